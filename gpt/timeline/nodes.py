"""Find when the nodes of replayed graphs ran, from the replays that 'gpt-hook run --node-times' measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.trace.calls_store import times_of
from gpt.trace.event_costs import EventCost, find_costs
from gpt.trace.modules import describe_path, find_paths
from gpt.trace.node_times import name_type

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.node_times import TimedReplay

MEASURED = {"timed": "with events around it (--node-times)"}


class PlacedNodes(NamedTuple):
    """The nodes of a replay: its row in the GPU times, when each began and ended in ns, the mangled name of each
    kernel or the type of other nodes, and facts.
    """

    row: int
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    names: list[str]
    facts: list[dict[str, str]]


def iter_nodes(model: TraceModel, gpu: npt.NDArray[np.void]) -> Iterator[PlacedNodes]:
    """Yield the nodes of each timed replay that is in the GPU times."""
    for number, process in enumerate(model.processes):
        own = np.flatnonzero((gpu["process"] == number) & (gpu["function"] == 0))
        keys = zip(gpu["thread"][own].tolist(), gpu["call"][own].tolist(), strict=True)
        rows = dict(zip(keys, own.tolist(), strict=True))
        costs = find_costs(model, number)
        for handle, graph in process.graphs.iter_all():
            for replay in process.graphs.timed(handle, graph):
                call = replay.thread, int(times_of(process, np.array([replay.start], np.uint64))[0])
                if call in rows:
                    yield _place(model, number, replay, costs[handle, graph.since], gpu, rows[call])


def _place(
    model: TraceModel, number: int, replay: TimedReplay, cost: EventCost, gpu: npt.NDArray[np.void], row: int
) -> PlacedNodes:
    process = model.processes[number]
    first = int(gpu["begin"][row])
    last = first + int(gpu["duration"][row])
    begin = int(times_of(process, np.array([replay.begin], np.uint64))[0])
    begins = begin + process.clock.durations(replay.begins).astype(np.int64)
    ends = begins + np.rint(cost.own(process, replay.durations)).astype(np.int64)
    names = process.kernels()
    titles = [
        names.get(function, f"#{function}") if not type_ else name_type(type_).capitalize()
        for type_, function in zip(replay.types.tolist(), replay.functions.tolist(), strict=True)
    ]
    paths, which = find_paths(model, number, times_of(process, replay.calls), replay.threads)
    texts = model.ranges(number).texts
    told = [zip(("layer", "range"), describe_path(path, texts), strict=True) for path in paths]
    facts = [MEASURED | {key: name for key, name in one if name is not None} for one in told]
    return PlacedNodes(row, np.clip(begins, first, last), np.clip(ends, first, last), titles,
                       [facts[at] for at in which.tolist()])  # fmt: skip
