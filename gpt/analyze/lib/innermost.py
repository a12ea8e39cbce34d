"""Find the innermost NVTX range of each thread over time, as a layer without overlaps (overlay.py).

Only ranges that were pushed and popped by a thread are considered.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpt.analyze.lib.overlay import LAYER
from gpt.trace.spill import Array, Aside, Sorted
from gpt.trace.unrecorded import FOREVER

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

BATCH = 1 << 14  # rows to collect in Python lists before they're converted to an array


def iter_innermost(trace: TraceModel, number: int) -> Iterator[Array]:
    """Yield when each pushed range was the innermost one of its thread, as rows of LAYER, sorted by begin.

    `what` is an index into the texts of the process's ranges. An inner range is cut off at the end of the outer one,
    and a range that never ended lasts FOREVER. Ranges that the user's filters leave out are included: they may have
    begun before the time that was chosen.
    """
    found = Sorted(Aside(), LAYER, "begin")
    parts: list[tuple[int, int, int, int, float]] = []
    stacks: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)  # by thread: ends and names, the innermost last
    since: dict[int, int] = {}  # by thread: until when rows have been added

    def leave(thread: int, until: int | None) -> None:
        """Close the ranges that ended no later than `until`, or all ranges, and add rows for them."""
        stack = stacks[thread]
        while stack and (until is None or stack[-1][0] <= until):
            end, name = stack.pop()
            if end > since[thread]:
                parts.append((since[thread], end, thread, name, 0.0))
                since[thread] = end

    for rows in trace.iter_ranges(number, FOREVER, every=True):
        pushed = rows[rows["pushed"]]
        columns = (pushed[name].tolist() for name in ("begin", "end", "thread", "name"))
        for begin, end, thread, name in zip(*columns, strict=True):
            leave(thread, begin)
            stack = stacks[thread]
            if stack and begin > since[thread]:
                parts.append((since[thread], begin, thread, stack[-1][1], 0.0))
            since[thread] = begin
            stack.append((min(end, stack[-1][0]) if stack else end, name))
            if len(parts) >= BATCH:
                found.add(np.array(parts, LAYER))
                parts.clear()
    for thread in stacks:
        leave(thread, None)
    if parts:
        found.add(np.array(parts, LAYER))
    return iter(found)
