"""Find when the nodes of replayed graphs ran, from the replays that 'gpt-hook run --node-times' measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.trace.calls_store import times_of
from gpt.trace.event_costs import EventCost, Key, find_costs, find_timed, list_timed
from gpt.trace.modules import describe_path, find_paths
from gpt.trace.node_times import name_type

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.node_times import TimedReplay
    from gpt.trace.process import Process

MEASURED = {"timed": "with events around it (--node-times)"}


class PlacedNodes(NamedTuple):
    """The nodes of a replay: its row in the GPU times, the type of each node, when each began and ended in ns, the
    mangled name of each kernel or the type of other nodes, and facts.
    """

    row: int
    types: npt.NDArray[np.uint64]
    begins: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    names: list[str]
    facts: list[dict[str, str]]


def is_timed(model: TraceModel, gpu: npt.NDArray[np.void]) -> npt.NDArray[np.bool_]:
    """Return which GPU times are replays whose nodes were timed."""
    found = np.zeros(len(gpu), bool)
    for number, process in enumerate(model.processes):
        if replays := [one for _, one in _list_timed(process)]:
            own = np.flatnonzero((gpu["process"] == number) & (gpu["function"] == 0))
            found[own] = find_timed(process, replays, gpu[own]) >= 0
    return found


def iter_nodes(model: TraceModel, gpu: npt.NDArray[np.void]) -> Iterator[PlacedNodes]:
    """Yield the nodes of each timed replay that has a row in `gpu`."""
    for number, process in enumerate(model.processes):
        if not (timed := _list_timed(process)):
            continue
        own = np.flatnonzero((gpu["process"] == number) & (gpu["function"] == 0))
        which = find_timed(process, [one for _, one in timed], gpu[own])
        costs = find_costs(model, number)
        for row, at in zip(own[which >= 0].tolist(), which[which >= 0].tolist(), strict=True):
            key, replay = timed[at]
            yield _place(model, number, replay, costs[key], gpu, row)


def _list_timed(process: Process) -> list[tuple[Key, TimedReplay]]:
    return [(key, one) for key, replays in list_timed(process).items() for one in replays]


def _place(
    model: TraceModel, number: int, replay: TimedReplay, cost: EventCost, gpu: npt.NDArray[np.void], row: int
) -> PlacedNodes:
    process = model.processes[number]
    first = int(gpu["begin"][row])
    last = first + int(gpu["duration"][row])
    begins, ends = cost.place(process, replay)
    names = process.kernels()
    titles = [
        names.get(function, f"#{function}") if not type_ else name_type(type_).capitalize()
        for type_, function in zip(replay.types.tolist(), replay.functions.tolist(), strict=True)
    ]
    paths, which = find_paths(model, number, times_of(process, replay.calls), replay.threads)
    texts = model.ranges(number).texts
    told = [zip(("layer", "range"), describe_path(path, texts), strict=True) for path in paths]
    facts = [MEASURED | {key: name for key, name in one if name is not None} for one in told]
    return PlacedNodes(row, replay.types, np.clip(begins, first, last), np.clip(ends, first, last), titles,
                       [facts[at] for at in which.tolist()])  # fmt: skip
