"""What a person sees of a trace: its processes, their calls, copies and kernels."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpt import records
from gpt.demangle import demangle
from gpt.tables import human, percent

KINDS = ("process", "timing", "transfer", "launched")
KERNELS = 30  # shown
MIN_NAME, MAX_NAME = 12, 400  # columns of a name, and characters of it that are looked at
GAP = 2  # columns between columns
TIMES = ("total", "mean", "p50", "p99", "slowest")
UNITS = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))

Row = dict[str, Any]


def human_time(ns: int) -> str:
    """A duration with three digits: `12ns`, `3.14ms`, `86400s`."""
    unit, scale = next((u for u in UNITS if ns < 999.5 * u[1]), UNITS[-1])
    value = ns / scale
    digits = 0 if unit == "ns" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f}{unit}"


class TraceTables:
    """Collects the records of an answer. Where several came, the last one is shown."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[Any, Row]] = {kind: {} for kind in KINDS}

    def add(self, record: Row) -> None:
        """Takes a record of KINDS in, unless somebody else wrote it wrong."""
        if records.check(record):
            return
        keys = ("pid", "host", "start", "type", "op", "name")
        key = tuple(record.get(k) for k in keys)
        rows = self._rows[record["kind"]]
        rows.pop(key, None)  # the order is that of the last answer too
        rows[key] = record

    def iter_tables(self, width: int) -> Iterator[RenderableType]:
        """What to print on a terminal of `width` columns, if anything came."""
        for kind, make in zip(KINDS, (_processes, _timings, _transfers, _kernels), strict=True):
            if rows := list(self._rows[kind].values()):
                yield from make(rows, width)
                yield ""


def _table(
    columns: Sequence[str], rows: list[list[str]], width: int, bold: Callable[[int], bool] | None = None
) -> Table:
    """A table whose first column is cut to leave room for the others, which are numbers."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    left = max(MIN_NAME, width - sum(w + GAP for w in widths[1:]))
    table.add_column(columns[0], no_wrap=True, overflow="ellipsis", max_width=left)
    for column, least in zip(columns[1:], widths[1:], strict=True):
        table.add_column(column, justify="right", no_wrap=True, min_width=least)
    for number, cells in enumerate(rows):
        table.add_row(*map(Text, cells), style="bold" if bold and bold(number) else "")
    return table


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:MAX_NAME])


def _processes(rows: list[Row], width: int) -> Iterator[RenderableType]:
    found = []
    for row in rows:
        status = str(row["status"]) if "status" in row else "no end"
        cells = (str(row["pid"]), f"{row['threads']:,}", f"{row['calls']:,}", human_time(row["duration"]), status)
        found.append([_printable(shlex.join(row["argv"])), *cells])
    yield _table(("process", "pid", "threads", "calls", "time", "exit"), found, width)


def _timings(rows: list[Row], width: int) -> Iterator[RenderableType]:
    found = []
    failed = any(row["failed"] for row in rows)
    for row in rows:
        name = "  " + _printable(row["name"]) if "name" in row else _printable(row["type"])
        counts = [f"{row['calls']:,}", *([f"{row['failed']:,}"] if failed else [])]
        found.append([name, *counts, *_times(row)])
    columns = ("type, function", "calls", *(("failed",) if failed else ()), *TIMES)
    yield _table(columns, found, width, bold=lambda number: "name" not in rows[number])
    if counted := sum(row["counted"] for row in rows if "name" not in row):
        yield f"{counted:,} calls were only counted; the times are those of the others"
    if lost := sum(row["open"] for row in rows if "name" not in row):
        yield f"{lost:,} calls did not return; the times are those of the others"


def _times(row: Row) -> list[str]:
    timed = row["calls"] > row["counted"] + row["open"]
    return [human_time(row[key]) if timed else "-" for key in TIMES]


def _transfers(rows: list[Row], width: int) -> Iterator[RenderableType]:
    found = []
    timed = any("gpu_total" in row for row in rows)
    for row in rows:
        size = human(row["bytes"] // max(1, row["calls"]))
        cells = [f"{row['calls']:,}", human(row["bytes"]), size, human_time(row["total"])]
        if timed:
            cells.append(human_time(row["gpu_total"]) if "gpu_total" in row else "-")
        found.append([_printable(row["op"]), *cells])
    columns = ("copies", "calls", "bytes", "a call", "time in calls", *(("GPU time",) if timed else ()))
    yield _table(columns, found, width)


def _kernels(rows: list[Row], width: int) -> Iterator[RenderableType]:
    timed = any("gpu_total" in row for row in rows)
    launches, time = (sum(row.get(key, 0) for row in rows) for key in ("launches", "gpu_total"))
    found = []
    for row, name in zip(rows[:KERNELS], demangle([row["name"] for row in rows[:KERNELS]]), strict=True):
        cells = [f"{row['launches']:,}", percent(row["launches"], launches)]
        if timed:
            total, known = row.get("gpu_total", 0), row.get("gpu_launches", 0)
            cells += [human_time(total), percent(total, time), human_time(total // known)] if known else ["-"] * 3
        found.append([_printable(name), *cells])
    yield _table(("kernel", "launches", "share", *(("GPU time", "share", "mean") if timed else ())), found, width)
    if more := rows[KERNELS:]:
        yield f"and {len(more):,} more kernels, launched {sum(row['launches'] for row in more):,} times"
