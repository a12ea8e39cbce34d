"""What a person sees of a trace: its processes, their calls, copies and kernels."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from gpt.screen.grid import Grid, fold
from gpt.screen.tables import human, human_count, percent, readable

KINDS = ("process", "timing", "transfer", "launched")
KERNELS = 30  # shown
TIMES = ("total", "mean", "p50", "p99", "slowest")
UNITS = (("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000))

Row = Mapping[str, Any]


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
        """Takes a record of KINDS in."""
        keys = ("pid", "host", "start", "type", "op", "name")
        key = tuple(record.get(k) for k in keys)
        rows = self._rows[record["kind"]]
        rows.pop(key, None)  # the order is that of the last answer too
        rows[key] = record

    def lines(self, width: int) -> Iterator[Text]:
        """What to print on a screen of so many columns, if anything came."""
        gap = False
        for kind, make in zip(KINDS, (_processes, _timings, _transfers, _kernels), strict=True):
            if rows := list(self._rows[kind].values()):
                if gap:
                    yield Text()
                yield from make(rows, width)
                gap = True


def _processes(rows: list[Row], width: int) -> Iterator[Text]:
    grid = Grid("process", "pid", "threads", "calls", "time", "exit")
    for row in rows:
        status = str(row["status"]) if "status" in row else "no end"
        cells = (
            str(row["pid"]),
            human_count(row["threads"]),
            human_count(row["calls"]),
            human_time(row["duration"]),
            status,
        )
        grid.add(shlex.join(row["argv"]), *cells)
    yield from grid.lines(width)


def _timings(rows: list[Row], width: int) -> Iterator[Text]:
    failed = any(row["failed"] for row in rows)
    grid = Grid("type, function", "calls", *(("failed",) if failed else ()), *TIMES)
    for row in rows:
        counts = [human_count(row["calls"]), *([human_count(row["failed"])] if failed else [])]
        if "name" in row:
            grid.add("  " + row["name"], *counts, *_times(row))
        else:
            grid.add(row["type"], *counts, *_times(row), style="bold")
    yield from grid.lines(width)
    if counted := sum(row["counted"] for row in rows if "name" not in row):
        yield from fold(f"{counted:,} calls were only counted; the times are those of the others", width)
    if lost := sum(row["open"] for row in rows if "name" not in row):
        yield from fold(f"{lost:,} calls did not return; the times are those of the others", width)


def _times(row: Row) -> list[str]:
    timed = row["calls"] > row["counted"] + row["open"]
    return [human_time(row[key]) if timed else "-" for key in TIMES]


def _transfers(rows: list[Row], width: int) -> Iterator[Text]:
    timed = any("gpu_total" in row for row in rows)
    grid = Grid("copies", "calls", "bytes", "a call", "time in calls", *(("GPU time",) if timed else ()))
    for row in rows:
        size = human(row["bytes"] // max(1, row["calls"]))
        cells = [human_count(row["calls"]), human(row["bytes"]), size, human_time(row["total"])]
        if timed:
            cells.append(human_time(row["gpu_total"]) if "gpu_total" in row else "-")
        grid.add(row["op"], *cells)
    yield from grid.lines(width)


def _kernels(rows: list[Row], width: int) -> Iterator[Text]:
    timed = any("gpu_total" in row for row in rows)
    launches, time = (sum(row.get(key, 0) for row in rows) for key in ("launches", "gpu_total"))
    grid = Grid("kernel", "launches", "share", *(("GPU time", "share", "mean") if timed else ()))
    for row, name in zip(rows[:KERNELS], readable([row["name"] for row in rows[:KERNELS]]), strict=True):
        cells = [human_count(row["launches"]), percent(row["launches"], launches)]
        if timed:
            total, known = row.get("gpu_total", 0), row.get("gpu_launches", 0)
            cells += [human_time(total), percent(total, time), human_time(total // known)] if known else ["-"] * 3
        grid.add(name, *cells)
    yield from grid.lines(width)
    if more := rows[KERNELS:]:
        yield from fold(
            f"and {len(more):,} more kernels, launched {sum(row['launches'] for row in more):,} times", width
        )
