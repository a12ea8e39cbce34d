"""What a person sees of a trace: its processes, their calls, copies and kernels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from gpt import records
from gpt.demangle import demangle
from gpt.tables import human, percent

KINDS = ("process", "timing", "transfer", "launched")
KERNELS = 30  # shown
MAX_NAME = 200  # characters of a command line or kernel that are shown, or fewer
UNITS = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))

Row = dict[str, Any]


def human_time(ns: int) -> str:
    """A duration with three digits: `12 ns`, `3.14 ms`, `86400 s`."""
    unit, scale = next((u for u in UNITS if ns < 999.5 * u[1]), UNITS[-1])
    value = ns / scale
    digits = 0 if unit == "ns" or value >= 99.95 else 1 if value >= 9.995 else 2
    return f"{value:.{digits}f} {unit}"


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

    def iter_tables(self) -> Iterator[RenderableType]:
        """What to print, if anything came."""
        for kind, make in zip(KINDS, (_processes, _timings, _transfers, _kernels), strict=True):
            if rows := list(self._rows[kind].values()):
                yield from make(rows)
                yield ""


def _table(*columns: str, left: int = 1) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    for index, column in enumerate(columns):
        if index < left:
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        else:
            table.add_column(column, justify="right", no_wrap=True)
    return table


def _printable(text: str) -> Text:
    return Text("".join(c if c.isprintable() else repr(c)[1:-1] for c in text[:MAX_NAME]))


def _processes(rows: list[Row]) -> Iterator[RenderableType]:
    table = _table("process", "pid", "threads", "calls", "time", "exit")
    for row in rows:
        status = str(row["status"]) if "status" in row else "no end"
        cells = (str(row["pid"]), f"{row['threads']:,}", f"{row['calls']:,}", human_time(row["duration"]), status)
        table.add_row(_printable(shlex.join(row["argv"])), *cells)
    yield table


def _timings(rows: list[Row]) -> Iterator[RenderableType]:
    table = _table("type, function", "calls", "failed", "total", "mean", "p50", "p99", "slowest")
    for row in rows:
        name = Text("  ") + _printable(row["name"]) if "name" in row else _printable(row["type"])
        times = (human_time(row[key]) for key in ("total", "mean", "p50", "p99", "slowest"))
        failed = f"{row['failed']:,}" if row["failed"] else ""
        table.add_row(name, f"{row['calls']:,}", failed, *times, style="" if "name" in row else "bold")
    yield table
    if lost := sum(row["open"] for row in rows if "name" not in row):
        yield f"{lost:,} calls did not return; the times are those of the others"


def _transfers(rows: list[Row]) -> Iterator[RenderableType]:
    table = _table("copies", "calls", "bytes", "a call", "time in calls")
    for row in rows:
        size = human(row["bytes"] // max(1, row["calls"]))
        table.add_row(_printable(row["op"]), f"{row['calls']:,}", human(row["bytes"]), size, human_time(row["total"]))
    yield table


def _kernels(rows: list[Row]) -> Iterator[RenderableType]:
    timed = any("gpu_total" in row for row in rows)
    launches, time = (sum(row.get(key, 0) for row in rows) for key in ("launches", "gpu_total"))
    table = _table("kernel", "launches", "share", *(("GPU time", "share", "mean") if timed else ()))
    for row, name in zip(rows[:KERNELS], demangle([row["name"] for row in rows[:KERNELS]]), strict=True):
        cells = [f"{row['launches']:,}", percent(row["launches"], launches)]
        if "gpu_total" in row:
            total, mean = row["gpu_total"], row["gpu_total"] // max(1, row["gpu_launches"])
            cells += [human_time(total), percent(total, time), human_time(mean)]
        table.add_row(_printable(name), *cells)
    yield table
    if more := rows[KERNELS:]:
        yield f"and {len(more):,} more kernels, launched {sum(row['launches'] for row in more):,} times"
