"""Sum up the work of graph launches (kernels, copies, memory), and the calls that were captured."""

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
    """The number of operations, and their bytes."""

    number: int = 0
    bytes: int = 0

    def plus(self, number: int, size: int) -> OperationBytes:
        """Add operations and bytes. If the sums become implausible, they're capped at MOST."""
        return OperationBytes(min(MOST, self.number + number), min(MOST, self.bytes + size))


class Replays:
    """The work of graph launches other than kernels: `done` by type and op, and how much of it isn't known.

    The other members count what's missing: `conditional` launches have nodes in conditional nodes, which ran an unknown
    number of times; of `kernels_only` launches, only the kernels are known; of `unknown` ones, nothing is. `for_device`
    graphs may also have been launched by kernels, and launches of `unseen` graphs weren't recorded.
    """

    def __init__(self) -> None:
        self.done = defaultdict[tuple[str, str], OperationBytes](OperationBytes)
        self.conditional = self.kernels_only = self.unknown = self.for_device = self.unseen = 0
        self.captured = Counter[str]()  # number of calls, by op

    def merge(self, other: Replays) -> None:
        """Add the counts of another instance."""
        for key, (number, size) in other.done.items():
            self.done[key] = self.done[key].plus(number, size)
        self.conditional += other.conditional
        self.kernels_only += other.kernels_only
        self.unknown += other.unknown
        self.for_device += other.for_device
        self.unseen += other.unseen
        self.captured += other.captured

    def verdict(self) -> Iterator[str]:
        """Return sentences about calls that were captured, and about work that isn't counted."""
        if self.captured:
            said = ", ".join(f"{op} {count:,}" for op, count in self.captured.most_common())
            yield f"captured into graphs, not run by these calls: {amount(self.captured.total(), 'call')} ({said})"
        if self.conditional:
            launches = amount(self.conditional, "launch")
            yield f"not counted: conditional nodes in {launches} of graphs; how often they ran isn't recorded"
        if self.for_device:
            yield f"not counted: launches from kernels, which can launch {amount(self.for_device, 'graph')}"
        if self.unseen:
            graphs = amount(self.unseen, "graph")
            yield f"launches of {graphs} are not recorded: 'gpt-hook run --calls graph' records them"
        if self.kernels_only:
            yield f"not in this trace: work other than kernels in {amount(self.kernels_only, 'launch')} of graphs"
        if self.unknown:
            launches = amount(self.unknown, "launch")
            yield f"not in this trace: the work in {launches} of graphs that were made before recording began"


def sum_replays(launched: Iterable[tuple[GraphContents, int]], graphs: Graphs) -> Replays:
    """Add up the work of graphs. `launched` has each graph with its number of launches; `graphs` are all graphs of the
    process.
    """
    found = Replays()
    for graph, launches in launched:
        found.conditional += launches if graph.unknown else 0
        if graph.operations is None:
            found.kernels_only += launches if graph.nodes > graph.kernels.total() else 0
            found.unknown += 0 if graph.nodes or graph.since else launches
        for one in graph.operations or ():
            found.done[one.type, one.op] = found.done[one.type, one.op].plus(launches * one.nodes, launches * one.bytes)
    found.for_device = sum(graph.for_device for _, graph in graphs.iter_all())
    return found


def count_copied(graphs: Graphs, launches: npt.NDArray[np.void], ops: Collection[str] = ()) -> npt.NDArray[np.float64]:
    """Return how many bytes each launch of a graph copied, with all ops or these ones. Rows have `object` and
    `stamp`.
    """
    found = np.zeros(len(launches))
    for _, graph, places in graphs.iter_launched(launches["object"], launches["stamp"]):
        copies = [one for one in graph.operations or () if one.type == "memcpy"]
        found[places] = sum(one.bytes for one in copies if not ops or one.op in ops)
    return found
