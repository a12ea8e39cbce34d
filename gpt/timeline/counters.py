"""Counters over time, which are drawn above the rows of a process."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt.trace.spill import Aside, Sorted, Tape, iter_windows

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

PARTS, LEAST = 1000, 1000  # slices of the time in which there are copies; minimum ns in a slice
SECOND = 1e9  # ns
MOST = float(1 << 62)
NO_COPIES = np.zeros(0, np.int64), np.zeros(0)
CALLED, RAN, REPLAYED = range(3)  # the call of a copy, its GPU time, or the launch of its graph
FLOW = [("start", "<i8"), ("begin", "<i8"), ("end", "<i8"), ("bytes", "<f8"), ("thread", "<u8"), ("process", "<u4"),
        ("op", "<u2"), ("how", "u1")]  # fmt: skip


TOGETHER = 4  # threads whose calls may begin in the same nanosecond


@dataclass(frozen=True)
class Counter:
    """A value over time. From each of `times` (ns) on, it's the corresponding one of `values`."""

    process: int
    name: str
    times: Whole
    values: Whole
    unit: str = "bytes"


class Copies:
    """Collects the copies of all processes. Calls and GPU times are added in chunks.

    The time of a copy is when it ran on the GPU. If the trace doesn't have that, it's the time of its call.
    """

    def __init__(self, model: TraceModel) -> None:
        self._model = model
        self._ops: list[str] = []
        self._called, self._ran = Sorted(Aside(), FLOW, "start"), Sorted(Aside(), FLOW, "start")
        self._joined = Tape(Aside(), FLOW)
        self._spans: dict[tuple[str, int, int], tuple[int, int, float]] = {}  # (op, process, how): begin, end, bytes

    def add_calls(self, calls: npt.NDArray[np.void]) -> None:
        """Add the copies among these calls, and the copies in the graphs that they launch."""
        copies = calls[(calls["result"] == 0) & (calls["bytes"] > 0)]
        for op, mine in self._find_ops(copies):
            self._called.add(self._make(copies[mine], copies["bytes"][mine], op, CALLED))
        for (_, op), (places, sizes) in _find_replayed(self._model, calls).items():
            self._called.add(self._make(calls[places], sizes, op, REPLAYED))

    def add_work(self, work: npt.NDArray[np.void]) -> None:
        """Add the copies among these GPU times."""
        for op, mine in self._find_ops(work):
            rows = work[mine]
            found = self._make(rows, np.zeros(len(rows)), op, RAN)
            found["start"], found["begin"] = rows["call"], rows["begin"]
            found["end"] = rows["begin"] + rows["duration"].astype(np.int64)
            self._ran.add(found)

    def _find_ops(self, rows: npt.NDArray[np.void]) -> Iterator[tuple[str, Whole]]:
        """Yield each direction in which there are copies, and the indexes of these copies."""
        for number, process in enumerate(self._model.processes):
            ops = defaultdict[str, list[int]](list)
            for id_, api in process.apis.items():
                if api.type == "memcpy":
                    ops[api.op].append(id_)
            for op, ids in ops.items():
                if len(mine := np.flatnonzero((rows["process"] == number) & np.isin(rows["api"], ids))):
                    yield op, mine

    def _make(self, rows: npt.NDArray[np.void], sizes: npt.NDArray[Any], op: str, how: int) -> npt.NDArray[np.void]:
        if op not in self._ops:
            self._ops.append(op)
        found = np.zeros(len(rows), FLOW)
        for name in ("process", "thread"):
            found[name] = rows[name]
        found["bytes"], found["op"], found["how"] = sizes, self._ops.index(op), how
        if how != RAN:
            found["start"] = found["begin"] = rows["start"]
            found["end"] = rows["start"] + rows["duration"].astype(np.int64)
        return found

    def join(self) -> None:
        """Find the bytes of copies that have a GPU time. Call this after everything has been added."""
        for called, ran in iter_windows((iter(self._called), FLOW, "start"), (iter(self._ran), FLOW, "start")):
            callers = find_callers(ran, called, "start")
            ran = ran[callers >= 0]
            ran["bytes"] = called["bytes"][callers[callers >= 0]]
            for rows in (called, ran[called["how"][callers[callers >= 0]] == CALLED]):
                self._joined.append(rows)
                for key, mine in self._iter_keys(rows):
                    begin, end = int(mine["begin"].min()), int(np.maximum(mine["end"], mine["begin"] + 1).max())
                    before = self._spans.get(key, (begin, end, 0.0))
                    total = before[2] + float(mine["bytes"].sum())
                    self._spans[key] = min(before[0], begin), max(before[1], end), total

    def _iter_keys(self, rows: npt.NDArray[np.void]) -> Iterator[tuple[tuple[str, int, int], npt.NDArray[np.void]]]:
        keys = (rows["process"].astype(np.int64) << 32) | (rows["op"].astype(np.int64) << 8) | rows["how"]
        for key in np.unique(keys).tolist():
            yield (self._ops[key >> 8 & 0xFFFFFF], key >> 32, key & 0xFF), rows[keys == key]

    def count_rates(self) -> Iterator[Counter]:
        """Yield how many bytes per second each process copied, by direction."""
        spreads: dict[tuple[str, int], Spread] = {}
        for op, process in sorted({key[:2] for key in self._spans}):
            measured = RAN if (op, process, RAN) in self._spans else CALLED
            known = [self._spans[key] for how in (measured, REPLAYED) if (key := (op, process, how)) in self._spans]
            begins, ends, sizes = zip(*known, strict=True)
            spreads[op, process] = Spread(measured, min(begins), max(ends), sum(sizes))
        for rows in self._joined:
            for (op, process, how), mine in self._iter_keys(rows):
                if how in (REPLAYED, (spread := spreads[op, process]).measured):
                    spread.add(mine["begin"], mine["end"], mine["bytes"])
        for (op, process), spread in spreads.items():
            yield Counter(process, f"{op} a second", *spread.rates(), "bytes/s")

    def count_totals(self) -> Iterator[Counter]:
        """Yield how many bytes each process has copied in all, by direction, with a value at each copy. This needs a
        lot of memory.
        """
        found = defaultdict[tuple[str, int], list[npt.NDArray[np.void]]](list)
        for rows in self._called:
            for (op, process, _), mine in self._iter_keys(rows):
                found[op, process].append(mine[["start", "bytes"]].copy())
        for (op, process), parts in sorted(found.items()):
            whole = np.concatenate(parts)
            total = np.minimum(np.cumsum(whole["bytes"]), MOST).astype(np.int64)
            yield Counter(process, f"bytes copied {op}", whole["start"].astype(np.int64), total)


class Spread:
    """Bytes per second in slices of time, from copies in graphs, and from CALLED or RAN copies (`measured`)."""

    def __init__(self, measured: int, first: int, last: int, total: float) -> None:
        self.measured = measured
        self._first, self._total = first, total
        slices = int(min(PARTS, max(1, (last - first) // LEAST)))
        self._edges = np.linspace(0, last - first, slices + 1)
        self._done = np.zeros(slices)

    def add(self, begins: Whole, ends: Whole, sizes: Real) -> None:
        """Add flows of these sizes."""
        took = np.maximum(ends - begins, 1).astype(np.float64)
        begin = (begins - self._first).astype(np.float64)
        rates = sizes / took
        self._done += np.diff(_since(begin, rates, self._edges) - _since(begin + took, rates, self._edges))

    def rates(self) -> tuple[Whole, Whole]:
        """Return when the rate changes, and the rate after each change. The last one is 0."""
        done = np.where(self._done < self._total * 1e-12, 0, self._done)  # rounding errors
        values = np.minimum(np.append(done / np.diff(self._edges), 0) * SECOND, MOST).astype(np.int64)
        new = np.append(True, values[1:] != values[:-1])
        return self._edges[new].astype(np.int64) + self._first, values[new]


def _find_replayed(model: TraceModel, calls: npt.NDArray[np.void]) -> dict[tuple[int, str], tuple[Whole, Real]]:
    """Return the launches of graphs that contain copies, by process and op: their indexes among the calls, and the
    bytes of each.
    """
    found: dict[tuple[int, str], tuple[Whole, Real]] = {}
    launches = np.flatnonzero(model.chosen(calls, type="graph", op="launch") & (calls["result"] == 0))
    for number, process in enumerate(model.processes):
        mine = launches[calls["process"][launches] == number]
        for _, graph, places in process.graphs.iter_launched(calls["object"][mine], calls["stamp"][mine]):
            for one in graph.operations or ():
                if one.type == "memcpy" and one.bytes:
                    before = found.get((number, one.op), NO_COPIES)
                    sizes = np.full(len(places), float(one.bytes))
                    found[number, one.op] = np.append(before[0], mine[places]), np.append(before[1], sizes)
    return found


def _since(times: Real, rates: Real, moments: Real) -> Real:
    """Return how many bytes have been transferred by each moment. Each transfer begins at its time and has a rate, in
    bytes per ns.
    """
    order = np.argsort(times)
    count = np.searchsorted(times[order], moments)
    all_, late = (np.append(0.0, np.cumsum(one[order])) for one in (rates, rates * times))
    found: Real = moments * all_[count] - late[count]
    return found


def find_callers(gpu: npt.NDArray[np.void], calls: npt.NDArray[np.void], stamp: str = "call") -> Whole:
    """Return the index of the call for each GPU time, or -1. `stamp` is the field with the start of the call. Calls are
    sorted.
    """
    found = np.full(len(gpu), -1, np.int64)
    at = np.searchsorted(calls["start"], gpu[stamp])
    for _ in range(TOGETHER):
        left = np.flatnonzero((found < 0) & (at < len(calls)))
        call = calls[at[left]]
        same = call["start"] == gpu[stamp][left]
        for name in ("process", "thread"):
            same &= call[name] == gpu[name][left]
        found[left[same]] = at[left[same]]
        at[left] += 1
    return found
