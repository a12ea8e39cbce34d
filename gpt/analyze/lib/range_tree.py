"""Build the tree of the NVTX ranges that threads pushed, and sum up ranges without counting overlaps twice."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.sequence import Groups

if TYPE_CHECKING:
    from gpt.analyze.lib.range_contents import Within

Real = npt.NDArray[np.float64]
Places = npt.NDArray[np.intp]
Path = tuple[str, ...]

DEEPEST = 64


class Nested:
    """Processes the ranges of a process in the order of their begins.

    `paths` is the tree, which is shared by all processes. Its keys are the names of nested ranges, outermost first. Its
    values are the number of ranges, their ns, the ns outside of inner ranges, and the sums of range_contents.py.
    `texts` are the domains and names of ranges.
    """

    def __init__(self, texts: list[tuple[str | None, str]], paths: dict[Path, list[float]]) -> None:
        self._texts, self._paths = texts, paths
        self._reached: dict[Hashable, Any] = {}  # running sums at the latest end of a range so far
        self._open = defaultdict[int, list[tuple[int, Path]]](list)  # ends and paths of open ranges, by thread
        self._names, self._threads = Groups(), Groups()

    def iter_names(self, within: Within) -> Any:
        """Yield each group of ranges that have the same name and were all pushed, or all not: its name, whether they
        were pushed, their indexes, and the sums during any of these ranges.

        A call that's within several ranges of one thread counts once.
        """
        ranges = within.ranges
        for number, own in self._names.iter(2 * ranges["name"].astype(np.uint64) + ranges["pushed"]):
            name, pushed = number >> 1, bool(number & 1)
            if pushed:
                mine = self._threads.iter(ranges["thread"][own])
                found = sum(self._count((number, thread), within, own[at]) for thread, at in mine)
            else:
                found = self._count(number, within, own)
            yield name, pushed, own, found

    def count_launches(self, within: Within) -> float:
        """Return the number of launches during pushed ranges. A launch within nested ranges counts once."""
        pushed = np.flatnonzero(within.ranges["pushed"])
        mine = self._threads.iter(within.ranges["thread"][pushed])
        return sum(float(self._count(("all", thread), within, pushed[at])[0]) for thread, at in mine)

    def _count(self, group: Hashable, within: Within, own: Places) -> Real:
        """Return the sums during these ranges of one thread, or of all threads, without the parts that overlap earlier
        ranges.

        Running sums never decrease, so the sum at the latest end so far is the largest sum at any of the ends.
        """
        begins, ends = within.begins[:, own], within.ends[:, own]
        before = self._reached.get(group, np.zeros(len(ends)))
        reached = np.maximum.accumulate(np.concatenate((before[:, None], ends), axis=1), axis=1)
        self._reached[group] = reached[:, -1]
        found: Real = np.maximum(ends - np.maximum(begins, reached[:, :-1]), 0).sum(axis=1)
        return found

    def nest(self, within: Within) -> npt.NDArray[np.int64]:
        """Add ranges to the tree, and return the depth of each: the number of ranges around it.

        A range that's still open has no end, so it's neither inside other ranges nor around them.
        """
        ranges, depth = within.ranges, np.zeros(len(within.ranges), np.int64)
        pushed = np.flatnonzero(ranges["pushed"])
        columns = [ranges[name][pushed].tolist() for name in ("thread", "begin", "end", "name", "open")]
        values = (within.ends - within.begins)[:, pushed].T.tolist()
        for at, thread, begin, end, name, is_open, inside in zip(pushed.tolist(), *columns, values, strict=True):
            stack = self._open[thread]
            while stack and not is_open and (stack[-1][0] <= begin or stack[-1][0] < end):
                stack.pop()
            depth[at] = 0 if is_open else len(stack)
            domain, text = self._texts[name]
            text = f"{domain}: {text}" if domain else text
            path = (f"(open) {text}",) if is_open else (*(stack[-1][1] if stack else ()), text)
            sums = self._paths.setdefault(path, [0.0] * 7)
            for place, value in enumerate((1, end - begin, end - begin, *inside)):
                sums[place] += value
            if is_open:
                continue
            if stack:
                self._paths[stack[-1][1]][2] -= end - begin
            if len(stack) < DEEPEST:
                stack.append((end, path))
        return depth
