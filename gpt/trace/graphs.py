"""Executable graphs and their launches, which take 16 bytes per launch.

A call only has the handle of a graph. The driver reuses the handles of destroyed graphs, so a launch refers to the
graph that had the handle when the call began. Each `graph` record says from when on it applies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError
from gpt.stream import records
from gpt.stream.reasons import Reason
from gpt.trace.node_times import NodeTimes, TimedReplay
from gpt.trace.rows import Rows

MOST = (1 << 63) - 1  # a graph with more launches makes no sense
GRAPH_LAUNCH = ("graph", "launch")  # type and op of a function that launches graphs
Column = npt.NDArray[np.uint64]


class Operation(NamedTuple):
    """Work in a graph other than kernels: the number of nodes that perform it, and their bytes per launch."""

    type: str
    op: str
    nodes: int
    bytes: int
    address: int | None = None


class GraphContents(NamedTuple):
    """The graph that a handle refers to from some time stamp on: its nodes, the number of launches by function, and the
    work of its other nodes.

    `operations` is None if that wasn't recorded. How often the `unknown` nodes run depends on a condition, so they
    aren't included elsewhere. With `for_device`, kernels can launch the graph.
    """

    since: int
    nodes: int
    kernels: Counter[int]
    operations: tuple[Operation, ...] | None = None
    unknown: int = 0
    for_device: bool = False


class NodeOrigins(NamedTuple):
    """The kernel nodes that a replay launches: the function of each, and the thread and time stamp of the call that
    created it, or that was captured as this node. Thread and time stamp are 0 if the call isn't known.
    """

    functions: Column
    threads: Column
    calls: Column


NOTHING = GraphContents(0, 0, Counter())  # a graph that was created before recording began


def _read_operation(record: dict[str, Any]) -> Operation:
    """Read a nested record, which may have keys that only later versions know."""
    return Operation(*(record.get(name) for name in Operation._fields))  # type: ignore[arg-type]


class Graphs:
    """The graphs of a segment, and the calls that may launch graphs."""

    def __init__(self) -> None:
        self.times = NodeTimes()
        self._graphs: dict[int, list[GraphContents]] = {}  # by handle
        self._calls: dict[int, list[tuple[Column, Column]]] = {}  # by api: handle and start of each
        self._nodes: dict[int, dict[int, list[NodeOrigins]]] = {}  # by handle, and by the time stamp of the graph

    def add_graph(self, record: dict[str, Any]) -> None:
        """Add a `graph` record."""
        if fault := records.check(record):
            raise MalformedError(fault)
        functions, launches = record["functions"], record["launches"]
        if len(functions) != len(launches):
            raise MalformedError(f"graph of {len(functions)} functions with {len(launches)} counts")
        kernels = Counter[int]()
        for function, count in zip(functions, launches, strict=True):
            kernels[function] += count
        operations = tuple(map(_read_operation, record["operations"])) if "operations" in record else None
        more = operations, record.get("unknown", 0), bool(record.get("device", 0))
        self._graphs.setdefault(record["exec"], []).append(GraphContents(record["at"], record["nodes"], kernels, *more))

    def add_nodes(self, record: dict[str, Any]) -> None:
        """Add a checked `graph_nodes` record."""
        parts = [record[name] for name in ("functions", "threads", "calls")]
        if len({*map(len, parts)}) != 1:
            raise MalformedError(f"graph_nodes: {len(parts[0])} functions, {len(parts[1])} threads")
        found = NodeOrigins(*(np.array(part, np.uint64) for part in parts))
        self._nodes.setdefault(record["exec"], {}).setdefault(record["at"], []).append(found)

    def origins(self, handle: int, graph: GraphContents) -> NodeOrigins | None:
        """Return the nodes of a graph, or None if they aren't known, as in older traces."""
        known = self._nodes.get(handle, {})
        at = max((at for at in known if at <= graph.since), default=None)
        if at is None:
            return None
        found = NodeOrigins(*(np.concatenate(part) for part in zip(*known[at], strict=True)))
        functions, counts = np.unique(found.functions, return_counts=True)
        told = dict(zip(functions.tolist(), counts.tolist(), strict=True))
        return found if told == +graph.kernels else None  # otherwise they belong to another graph, or are incomplete

    def timed(self, handle: int, graph: GraphContents) -> list[TimedReplay]:
        """Return the replays of a graph whose nodes were timed, oldest first."""
        return self.times.of(handle, *self._period(handle, graph))

    def untimed(self, handle: int, graph: GraphContents) -> Reason | None:
        """Return why the nodes of a graph weren't timed, or None."""
        return self.times.reason(handle, *self._period(handle, graph))

    def _period(self, handle: int, graph: GraphContents) -> tuple[int, int | None]:
        """Return the time stamps between which a handle refers to a graph."""
        later = (other.since for other in self.of(handle) if other.since > graph.since)
        return graph.since, min(later, default=None)

    def add_calls(self, api: int, calls: Rows) -> None:
        """Add calls that have an `object`. If the function launches graphs, it's a handle."""
        good = (calls["result"] == 0) & (calls["duration"] != 0)
        self._calls.setdefault(api, []).append((calls["object"][good], calls["start"][good]))

    def find(self, handle: int, at: int) -> Counter[int]:
        """Return the number of launches by function, for the graph that had a handle at that time. Empty if no record
        describes it.
        """
        known = [graph for graph in self.of(handle) if graph.since <= at]
        return Counter(known[-1].kernels) if known else Counter()

    def of(self, handle: int) -> list[GraphContents]:
        """Return the graphs that had this handle, oldest first."""
        return sorted(self._graphs.get(handle, ()), key=lambda graph: graph.since)

    def iter_all(self) -> Iterator[tuple[int, GraphContents]]:
        """Yield each graph with its handle."""
        yield from ((handle, graph) for handle in self._graphs for graph in self.of(handle))

    def iter_launched(
        self, objects: Column, starts: Column
    ) -> Iterator[tuple[int, GraphContents, npt.NDArray[np.intp]]]:
        """For each graph that was launched, yield its handle, the graph, and the indexes of its launches in `objects`
        and `starts`.

        If a graph has no record, NOTHING stands for it.
        """
        for handle in np.unique(objects).tolist():
            own = np.flatnonzero(objects == handle)
            graphs = self.of(handle)
            since = np.array([graph.since for graph in graphs], np.uint64)
            meant = np.searchsorted(since, starts[own], side="right")
            for at in np.unique(meant).tolist():
                yield handle, graphs[at - 1] if at else NOTHING, own[meant == at]

    def iter_replays(self, apis: Container[int]) -> Iterator[tuple[GraphContents, int]]:
        """Yield each graph that `apis` launched, and the number of its launches. If a graph has no record, NOTHING
        stands for it.
        """
        parts = [part for api, calls in self._calls.items() if api in apis for part in calls]
        if parts:
            columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
            for _, graph, places in self.iter_launched(*columns):
                yield graph, len(places)

    def count_launches(self, apis: Container[int]) -> Counter[int]:
        """Return how often graphs launched each function. `apis` are the functions that launch graphs."""
        found = Counter[int]()
        for graph, launches in self.iter_replays(apis):
            for function, count in graph.kernels.items():
                found[function] = min(MOST, found[function] + count * launches)
        return found
