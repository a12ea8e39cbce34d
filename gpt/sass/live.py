"""Find the registers that are live at a place in a kernel.

A register is dead if it's written before it's read on every path from there; otherwise, it's live. A guarded
instruction writes only in some lanes, so the old value stays live. At a call of code elsewhere, every register that the
called code names is live.

Liveness is a set of registers, in one bit mask for all register files. It's computed by iterating over the blocks of
the graph backwards until nothing changes. Each block is first summarized in two masks, which are all that the iteration
needs.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush

from gpt.sass.code import Code
from gpt.sass.graph import Graph
from gpt.sass.masks import EVERY_REGISTER


class Live:
    """The registers, for each instruction, whose values it or a later one may still read.

    A block is only walked when one of its instructions is requested, because probes go to few blocks. `after` has the
    registers that are live after each block; others than `expected` aren't live anywhere.
    """

    def __init__(self, code: Code, graph: Graph, after: list[int], expected: int) -> None:
        self._code, self._graph, self._after, self._expected = code, graph, after, expected
        self._starts = [start for start, _ in graph.blocks]
        self._walked: dict[int, list[int]] = {}

    def __len__(self) -> int:
        return self._graph.blocks[-1].end

    def __iter__(self) -> Iterator[int]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> int:
        number = bisect_right(self._starts, index) - 1
        found = self._walked.get(number)
        if found is None:
            found = self._walked[number] = self._walk(number)
        return found[index - self._starts[number]]

    def _walk(self, number: int) -> list[int]:
        start, end = self._graph.blocks[number]
        live, found = self._after[number], []
        for read, _, keep, _ in reversed(self._code.masks[start:end]):
            live = live & keep | read
            found.append(live & self._expected)
        found.reverse()
        return found


def live_before(code: Code, graph: Graph) -> Live:
    """Return, for each instruction, the registers whose values it or a later one may still read."""
    masks = code.masks
    reads, keeps = [], []  # per block: the earlier values that it reads, and the registers that it keeps
    for number, block in enumerate(graph.blocks):
        live, kept = (EVERY_REGISTER, 0) if number in graph.calls_out else (0, -1)
        for read, _, keep, _ in reversed(masks[block.start : block.end]):
            live = live & keep | read
            kept &= keep
        reads.append(live)
        keeps.append(kept)
    after = [EVERY_REGISTER if number in graph.calls_out else 0 for number in range(len(reads))]
    predecessors = graph.predecessors
    left = [-number for number in range(len(reads) - 1, -1, -1)]  # a heap, the last block first
    waiting = [True] * len(reads)
    while left:
        number = -heappop(left)
        waiting[number] = False
        live = reads[number] | after[number] & keeps[number]
        for other in predecessors[number]:
            merged = after[other] | live
            if merged != after[other]:
                after[other] = merged
                if not waiting[other]:
                    waiting[other] = True
                    heappush(left, -other)
    expected = -1
    if graph.calls_out:  # a called function can't expect anything in registers that this code never names
        expected = 0
        for read, written, *_ in {id(one): one for one in masks}.values():
            expected |= read | written
    return Live(code, graph, after, expected)
