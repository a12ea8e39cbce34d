"""Counters over time, drawn above the rows of a process."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

PARTS, LEAST = 1000, 1000  # slices of the time with copies, and fewest ns of a slice
SECOND = 1e9  # ns
MOST = float(1 << 62)
NO_COPIES = np.zeros(0, np.int64), np.zeros(0)


@dataclass(frozen=True)
class Counter:
    """A figure over time: from each of `times` (ns) on, it has the value in `values`."""

    process: int
    name: str
    times: Whole
    values: Whole
    unit: str = "bytes"


def count_copies(
    model: TraceModel, calls: npt.NDArray[np.void], gpu: npt.NDArray[np.void], callers: Whole
) -> Iterator[Counter]:
    """Yield the bytes that each process has copied so far, by direction, and the bytes per second.

    A copy lasts as long as it ran on the GPU, or as its call took if the trace doesn't have that.
    """
    good = (calls["result"] == 0) & model.chosen(calls, type="memcpy") & (calls["bytes"] > 0)
    ran = np.flatnonzero((callers >= 0) & good[callers]) if len(calls) else np.zeros(0, np.int64)
    inside = _find_replayed(model, calls)
    ops = {api.op for process in model.processes for api in process.apis.values() if api.type == "memcpy"}
    for op in sorted(ops | {op for _, op in inside}):
        chosen = good & model.chosen(calls, op=op)
        processes = {*np.unique(calls["process"][chosen]).tolist(), *(place for place, one in inside if one == op)}
        for process in sorted(processes):
            places, of_graphs = inside.get((process, op), NO_COPIES)
            replays = calls[places]
            own = calls[chosen & (calls["process"] == process)]
            starts = np.concatenate([own["start"], replays["start"]])
            sizes = np.concatenate([own["bytes"].astype(np.float64), of_graphs])
            order = np.argsort(starts, kind="stable")
            total = np.minimum(np.cumsum(sizes[order]), MOST).astype(np.int64)
            yield Counter(process, f"bytes copied {op}", starts[order], total)
            rows = ran[chosen[callers[ran]] & (gpu["process"][ran] == process)]
            if len(rows):
                own, sizes = gpu[rows], np.append(calls["bytes"][callers[rows]].astype(np.float64), of_graphs)
            begins = np.append(own["begin" if len(rows) else "start"], replays["start"]).astype(np.int64)
            took = np.append(own["duration"], replays["duration"]).astype(np.int64)
            times, rates = spread(begins, begins + took, sizes)
            yield Counter(process, f"{op} a second", times, rates, "bytes/s")


def _find_replayed(model: TraceModel, calls: npt.NDArray[np.void]) -> dict[tuple[int, str], tuple[Whole, Real]]:
    """Return launches of graphs that copy, by process and op: their indices among the calls, and the bytes of each."""
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


def spread(begins: Whole, ends: Whole, sizes: Real) -> tuple[Whole, Whole]:
    """Return the bytes per second in each of some slices of time, followed by 0."""
    first = begins.min()
    took = np.maximum(ends - begins, 1).astype(np.float64)
    begin = (begins - first).astype(np.float64)
    end, rates = begin + took, sizes / took
    edges = np.linspace(0, end.max(), int(min(PARTS, max(1, end.max() // LEAST))) + 1)
    done = np.diff(_since(begin, rates, edges) - _since(end, rates, edges))
    done[done < sizes.sum() * 1e-12] = 0  # rounding errors
    values = np.minimum(np.append(done / np.diff(edges), 0) * SECOND, MOST).astype(np.int64)
    new = np.append(True, values[1:] != values[:-1])
    return edges[new].astype(np.int64) + first, values[new]


def _since(times: Real, rates: Real, moments: Real) -> Real:
    """Return the bytes that flows have brought by each moment; each begins at its time and has its rate per ns."""
    order = np.argsort(times)
    count = np.searchsorted(times[order], moments)
    all_, late = (np.append(0.0, np.cumsum(one[order])) for one in (rates, rates * times))
    found: Real = moments * all_[count] - late[count]
    return found
