"""Export the nodes of replays that 'gpt-hook run --node-times' timed.

The cost of the stamps between nodes is only known at the end, when replays without stamps can be compared. Until then,
the calls that launch graphs and the GPU times of replays wait in a temporary file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt.trace.calls_store import times_of
from gpt.trace.event_costs import compute_costs, find_timed, list_timed
from gpt.trace.node_times import name_type
from gpt.trace.spill import Aside, Tape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpt.trace.node_times import TimedReplay
    from gpt.trace.process import Process
    from gpt.trace.rows import Rows, Threads
    from gpt.trace.spill import Array

LAUNCHED = [("thread", "<u8"), ("start", "<i8"), ("object", "<u8"), ("stamp", "<u8")]
RAN = [("thread", "<u8"), ("call", "<i8"), ("begin", "<i8"), ("duration", "<f8")]


class NodeColumns(NamedTuple):
    """The nodes of a replay, the graph's handle, and the columns that don't depend on other tables. Times are in ns."""

    replay: TimedReplay
    handle: int
    columns: dict[str, Any]


class GraphNodes:
    """The replays of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._calls, self._work = Tape(Aside(), LAUNCHED), Tape(Aside(), RAN)

    def add_calls(self, threads: Threads, rows: Rows) -> None:
        """Add calls that launch graphs. If a call didn't succeed, no GPU time refers to it."""
        found = np.zeros(len(rows), LAUNCHED)
        found["thread"], found["object"], found["stamp"] = threads, rows["object"], rows["start"]
        self._calls.append(found)

    def add_work(self, rows: Rows) -> None:
        """Add GPU times of calls that launch graphs."""
        if not {"thread", "call"} <= {*(rows.dtype.names or ())}:
            return
        found = np.zeros(len(rows), RAN)
        for name in ("thread", "call", "begin", "duration"):
            found[name] = rows[name]
        self._work.append(found)

    def iter_nodes(self) -> Iterator[NodeColumns]:
        """Yield the nodes of each timed replay, clipped to its GPU time if that's known."""
        process = self._process
        if not (timed := list_timed(process)):
            return
        launches, work = _read(self._calls), _read(self._work)
        launches["start"] = times_of(process, launches["stamp"])
        for name in ("call", "begin"):
            work[name] = times_of(process, work[name].view(np.uint64))
        work["duration"] = process.clock.durations(work["duration"].astype(np.uint64))
        costs = compute_costs(process, work, launches)
        every = [(key, one) for key, replays in timed.items() for one in replays]
        which = find_timed(process, [one for _, one in every], work)
        spans = {at: work[row] for row, at in enumerate(which.tolist()) if at >= 0}
        for at, (key, replay) in enumerate(every):
            begins, ends = costs[key].place(process, replay)
            if at in spans:
                first = int(spans[at]["begin"])
                last = first + int(spans[at]["duration"])
                begins, ends = np.clip(begins, first, last), np.clip(ends, first, last)
            columns = {
                "start": begins,
                "end": ends,
                "node": np.arange(1, len(begins) + 1),
                "type": [name_type(type_) for type_ in replay.types.tolist()],
                "waited": replay.early,
                "betweenEvents": process.clock.durations(replay.durations),
                "eventCost": costs[key].each,
            }
            yield NodeColumns(replay, key[0], columns)


def _read(tape: Tape) -> Array:
    return np.concatenate([np.zeros(0, tape.dtype), *tape])
