"""Kernels that were launched by launching a graph: 16 bytes are kept of each such launch.

A call has the graph's handle. The driver uses a handle again when its graph is gone, so a launch means the graph
that had the handle when it began; the `graph` record says from when on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt import records
from gpt.errors import MalformedError
from gpt.trace.rows import Rows

Column = npt.NDArray[np.uint64]


class Made(NamedTuple):
    """What a handle means since a time stamp: nodes, and launches by function."""

    since: int
    nodes: int
    kernels: Counter[int]


class Graphs:
    """The graphs of a segment, and calls that may be launches of graphs."""

    def __init__(self) -> None:
        self._graphs: dict[int, list[Made]] = {}  # by handle
        self._calls: dict[int, list[tuple[Column, Column]]] = {}  # by api: handle and start of each

    def add_graph(self, record: dict[str, Any]) -> None:
        """Takes a `graph` record in."""
        if fault := records.check(record):
            raise MalformedError(fault)
        functions, launches = record["functions"], record["launches"]
        if len(functions) != len(launches):
            raise MalformedError(f"graph of {len(functions)} functions with {len(launches)} counts")
        kernels = Counter[int]()
        for function, count in zip(functions, launches, strict=True):
            kernels[function] += count
        self._graphs.setdefault(record["exec"], []).append(Made(record["at"], record["nodes"], kernels))

    def add_calls(self, api: int, calls: Rows) -> None:
        """Takes calls in that have an `object`: the handle, if it is graphs that the function launches."""
        good = (calls["result"] == 0) & (calls["duration"] != 0)
        self._calls.setdefault(api, []).append((calls["object"][good], calls["start"][good]))

    def find(self, handle: int, at: int) -> Counter[int]:
        """The launches, by function, of the graph that had a handle at a time; nothing if no record says."""
        known = [graph for graph in self.of(handle) if graph.since <= at]
        return Counter(known[-1].kernels) if known else Counter()

    def of(self, handle: int) -> list[Made]:
        """The graphs that had a handle, the first one first."""
        return sorted(self._graphs.get(handle, ()), key=lambda graph: graph.since)

    def iter_all(self) -> Iterator[tuple[int, Made]]:
        """Each graph, with its handle."""
        yield from ((handle, graph) for handle in self._graphs for graph in self.of(handle))

    def count_launches(self, apis: Container[int]) -> Counter[int]:
        """How often each function was launched by graphs, where `apis` launch them."""
        found = Counter[int]()
        for api, calls in self._calls.items():
            if api not in apis:
                continue
            objects, starts = (np.concatenate(column) for column in zip(*calls, strict=True))
            for handle, graphs in self._graphs.items():
                graphs.sort(key=lambda graph: graph.since)
                since = np.array([graph.since for graph in graphs], np.uint64)
                meant = np.searchsorted(since, starts[objects == handle], side="right")
                for (_, _, kernels), launches in zip(
                    graphs, np.bincount(meant, minlength=len(graphs) + 1)[1:], strict=True
                ):
                    for function, count in kernels.items():
                        found[function] += count * int(launches)
        return found
