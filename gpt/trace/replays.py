"""The work of launches of graphs: kernels, copies and memory beside those of calls; and calls that were captured."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpt.screen.units import amount
from gpt.trace.graphs import MOST

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpt.trace.graphs import GraphContents, Graphs

COPIES = ("memcpy", "memset")  # types


class OperationBytes(NamedTuple):
    """Operations, and the bytes of all of them."""

    number: int = 0
    bytes: int = 0

    def plus(self, number: int, size: int) -> OperationBytes:
        """Add more; numbers that make no sense stay below MOST."""
        return OperationBytes(min(MOST, self.number + number), min(MOST, self.bytes + size))


class Replays:
    """The work of launches of graphs, without kernels: `done` by type and op. And how much of it isn't known.

    Launches are `conditional` if some of their nodes ran as often as a condition said, `untold` if only their kernels
    are known, `blind` if nothing is; `for_device` graphs may have been launched by kernels too, and launches of
    `unseen` ones are not recorded.
    """

    def __init__(self) -> None:
        self.done = defaultdict[tuple[str, str], OperationBytes](OperationBytes)
        self.conditional = self.untold = self.blind = self.for_device = self.unseen = 0
        self.captured = Counter[str]()  # calls by op

    def merge(self, other: Replays) -> None:
        """Takes in what another one has."""
        for key, (number, size) in other.done.items():
            self.done[key] = self.done[key].plus(number, size)
        self.conditional += other.conditional
        self.untold += other.untold
        self.blind += other.blind
        self.for_device += other.for_device
        self.unseen += other.unseen
        self.captured += other.captured

    def verdict(self) -> Iterator[str]:
        """Say which calls were captured, and which work isn't counted."""
        if self.captured:
            said = ", ".join(f"{op} {count:,}" for op, count in self.captured.most_common())
            yield f"captured into graphs, not run by these calls: {amount(self.captured.total(), 'call')} ({said})"
        launches = amount(self.conditional, "launch")
        if self.conditional:
            yield f"{launches} of graphs ran nodes as often as a condition said: those are not counted"
        if self.for_device:
            yield f"{amount(self.for_device, 'graph')} can be launched by kernels, too: that is not counted"
        if self.unseen:
            yield f"launches of {amount(self.unseen, 'graph')} are not recorded: 'gpt-hook run --calls graph' does that"
        if self.untold:
            yield f"what else than kernels {amount(self.untold, 'launch')} of graphs ran is not in this trace"
        if self.blind:
            fact = f"what {amount(self.blind, 'launch')} of graphs ran is not recorded"
            yield f"{fact}: the graphs were made before recording began"


def sum_replays(launched: Iterable[tuple[GraphContents, int]], graphs: Graphs) -> Replays:
    """Add up the work of graphs, each launched some times; `graphs` are all of the process."""
    found = Replays()
    for graph, launches in launched:
        found.conditional += launches if graph.unknown else 0
        if graph.operations is None:
            found.untold += launches if graph.nodes > graph.kernels.total() else 0
            found.blind += 0 if graph.nodes or graph.since else launches
        for one in graph.operations or ():
            found.done[one.type, one.op] = found.done[one.type, one.op].plus(launches * one.nodes, launches * one.bytes)
    found.for_device = sum(graph.for_device for _, graph in graphs.iter_all())
    return found


def count_copied(graphs: Graphs, launches: npt.NDArray[np.void], ops: Collection[str] = ()) -> npt.NDArray[np.float64]:
    """Return the bytes that launches of graphs copied, all or those of some ops; rows with `object` and `stamp`."""
    found = np.zeros(len(launches))
    for _, graph, places in graphs.iter_launched(launches["object"], launches["stamp"]):
        copies = [one for one in graph.operations or () if one.type == "memcpy"]
        found[places] = sum(one.bytes for one in copies if not ops or one.op in ops)
    return found
