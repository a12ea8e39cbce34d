"""Find what to subtract from the times of nodes that 'gpt-hook run --node-times' measured between stamps.

A stamp is a kernel that stores the GPU's timer or, if the driver doesn't take it, an event. On an H200, a stamp makes
each node take 1.0 us longer, and an event 2.8 us, although two events with nothing in between are only 1.3 us apart
(docs/measured.md). So the cost isn't taken from the time between two of them: it's chosen so that a graph's nodes add
up to the GPU time of its replays without stamps. A node's time then includes the gap before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.trace.calls_store import times_of
from gpt.trace.find_calls import find_calls
from gpt.trace.machines import LIMIT
from gpt.trace.node_times import same_nodes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpt.trace.model import TraceModel
    from gpt.trace.node_times import TimedReplay
    from gpt.trace.process import Process

Times = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
OUTLIER = 2000  # ns by which a time must differ from the median
Key = tuple[int, int]  # a graph's handle, and the time stamp since when it has had it


class EventCost(NamedTuple):
    """The ns that stamps add to each node of a graph, and the ns of its replays without stamps: their median, or None
    if none has a GPU time. Without it, the cost is the time between two stamps with nothing in between.
    """

    each: float
    replay: int | None

    def own(self, process: Process, durations: npt.NDArray[np.uint64]) -> Times:
        """Return the ns of nodes without their stamps, from the unit of time stamps."""
        return np.maximum(process.clock.durations(durations) - self.each, 0)

    def place(self, process: Process, replay: TimedReplay) -> tuple[Whole, Whole]:
        """Return when each node of a replay began and ended, in ns."""
        begins = times_of(process, np.array([replay.begin], np.uint64)) + _whole(process.clock.durations(replay.begins))
        return begins, begins + _whole(self.own(process, replay.durations))


def _whole(ns: Times) -> Whole:
    """Round durations. A damaged trace may have some that no integer can hold."""
    return np.rint(np.minimum(ns, LIMIT)).astype(np.int64)


def find_costs(trace: TraceModel, number: int) -> dict[Key, EventCost]:
    """Return the cost of stamps in each graph of a process whose nodes were timed."""
    process = trace.processes[number]
    if not list_timed(process):
        return {}
    places = [place for place in trace.gpus() if place[0] == number]
    gpu = [rows[rows["function"] == 0] for rows in trace.iter_gpu_times(places)] if places else []
    calls = [part[trace.chosen(part, type="graph", op="launch")]
             for part in trace.iter_calls("object", "stamp", process=number)]  # fmt: skip
    return compute_costs(process, np.concatenate(gpu) if gpu else None, np.concatenate(calls) if calls else None)


def list_timed(process: Process) -> dict[Key, list[TimedReplay]]:
    """Return the replays of each graph whose nodes were timed."""
    found = {(handle, graph.since): process.graphs.timed(handle, graph) for handle, graph in process.graphs.iter_all()}
    return {key: replays for key, replays in found.items() if replays}


def compute_costs(process: Process, rows: Any, launches: Any) -> dict[Key, EventCost]:
    """Return the cost of stamps in each graph whose nodes were timed.

    `rows` are the GPU times of replays, with the `thread` and the start of the `call`. `launches` are the calls that
    launched graphs, with the handle as `object`, and their starts also as time stamps. Other times are in ns. Either
    may be None.
    """
    timed = list_timed(process)
    bare = {} if rows is None or launches is None else _list_untimed(process, timed, rows, launches)
    return {key: _find_cost(process, replays, bare.get(key)) for key, replays in timed.items()}


def _find_cost(process: Process, replays: list[TimedReplay], bare: Times | None) -> EventCost:
    if bare is None:
        return find_pause(process, replays)
    times = process.clock.durations(np.array([one.durations for one in same_nodes(replays)], np.uint64))
    whole = median(bare)
    return EventCost(find_excess(find_means(times), whole), whole)


def find_means(times: Times) -> Times:
    """Return the mean of each column without outliers. A median would be as coarse as the GPU's timer, which may
    advance in steps of up to 1 us.
    """
    middle = np.percentile(times, 50, axis=0, method="inverted_cdf")
    found: Times = times.mean(axis=0, where=np.abs(times - middle) <= np.maximum(middle / 4, OUTLIER))
    return found


def find_pause(process: Process, replays: list[TimedReplay]) -> EventCost:
    """Return the cost to use if no replay without stamps has a GPU time."""
    return EventCost(median(process.clock.durations(np.array([one.pause for one in replays], np.uint64))), None)


def find_excess(times: Times, whole: float) -> float:
    """Return how much to subtract from each time so that the sum becomes `whole`. No time gets below 0.

    If the k longest times stay above 0, it's (their sum - whole) / k, which is largest for the right k.
    """
    sums = np.cumsum(np.sort(times)[::-1])
    return float(((sums - whole) / np.arange(1, len(sums) + 1)).max(initial=0))


def _list_untimed(process: Process, timed: dict[Key, list[TimedReplay]], rows: Any, launches: Any) -> dict[Key, Times]:
    """Return the GPU times of the replays of these graphs that ran without stamps."""
    rows = rows[find_timed(process, (one for replays in timed.values() for one in replays), rows) < 0]
    launched = find_calls(rows["thread"], rows["call"], launches["thread"], launches["start"])
    found = {}
    for handle, graph, own in process.graphs.iter_launched(launches["object"], launches["stamp"]):
        mine = np.isin(launched, own)
        if mine.any():
            found[handle, graph.since] = rows["duration"][mine].astype(np.float64)
    return found


def find_timed(process: Process, replays: Iterable[TimedReplay], rows: Any) -> Any:
    """Return which of these replays each GPU time belongs to, as an index, or -1."""
    calls = np.array([(one.thread, one.start) for one in replays], np.uint64).reshape(-1, 2)
    return find_calls(rows["thread"], rows["call"], calls[:, 0], times_of(process, calls[:, 1]))


def median(values: Any) -> int:
    """Return the median, one of the values."""
    return int(np.percentile(values, 50, method="inverted_cdf"))
