"""Find the ranges that were open at some moments, for any number of ranges and moments.

Ranges and moments are read side by side, sorted by time. The open ranges of a thread change only where a range begins
or ends. So each window of time has a list of changes for each thread, and each moment gets the state after the last
change before it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpt.trace.ranges import RANGE
from gpt.trace.spill import Array, iter_windows

if TYPE_CHECKING:
    from gpt.trace.process import Process
    from gpt.trace.ranges import KeptRanges

Path = tuple[int, ...]  # names of open ranges, outermost first
Numbers = npt.NDArray[np.int64]
NO_PATH = 0
FIRST = np.iinfo(np.int64).min


class OpenRanges:
    """The ranges of a process that were pushed and have one of these `names`.

    `paths` are the combinations of open ranges that have occurred so far. The path of a moment is an index into it;
    NO_PATH means that no range is open.
    """

    def __init__(self, kept: KeptRanges, process: Process, last: int, names: Sequence[int]) -> None:
        """Take the ranges of a process. `last` is when its last call ended, in ns."""
        self.paths: list[Path] = [()]
        self.started = 0  # number of ranges that belong to no thread, and are left out
        self._kept, self._process, self._last = kept, process, last
        self._names = np.array(sorted(names), np.uint32)
        self._numbers: dict[Path, int] = {(): NO_PATH}
        self._threads = defaultdict[int, _Thread](_Thread)

    def iter(self, *moments: tuple[Iterator[Array], npt.DTypeLike]) -> Iterator[list[tuple[Array, Numbers]]]:
        """Yield windows of time, each with the next rows of each stream of moments, and the path of each row.

        Rows have a `time` and a `thread`, and are sorted by time. A chunk must contain all rows with the same time.
        """
        streams = [(chunks, dtype, "time") for chunks, dtype in moments]
        for ranges, *rows in iter_windows((self._iter_ranges(), RANGE, "begin"), *streams):
            until = max(int(part["time"][-1]) for part in rows if len(part)) if any(map(len, rows)) else FIRST
            begun: dict[int, Array] = {}
            for thread in np.unique(ranges["thread"]).tolist():
                begun[thread] = ranges[ranges["thread"] == thread]
            changes = {
                thread: self._threads[thread].advance(begun.get(thread, ranges[:0]), until, self._number_of)
                for thread in {*begun, *self._threads}
            }
            yield [(part, _look_up(part, changes)) for part in rows]

    def _iter_ranges(self) -> Iterator[Array]:
        """Yield the ranges by start. The user's filters don't matter here, because a graph that they choose a replay of
        may have been captured before, or in another thread.
        """
        for rows in self._kept.iter_ranges(self._process, self._last, every=True) if len(self._names) else ():
            known = np.isin(rows["name"], self._names)
            self.started += int((known & ~rows["pushed"] & rows["chosen"]).sum())
            yield rows[known & rows["pushed"]]

    def _number_of(self, path: Path) -> int:
        number = self._numbers.setdefault(path, len(self.paths))
        if number == len(self.paths):
            self.paths.append(path)
        return number


class _Thread:
    """The open ranges of a thread, as pairs of an end and a name, in the order in which they began."""

    def __init__(self) -> None:
        self._open: list[tuple[int, int]] = []
        self._path = NO_PATH

    def advance(self, begun: Array, until: int, number: object) -> tuple[Numbers, Numbers]:
        """Open these ranges, and close all ranges that end no later than `until`. Return the times at which the path
        changes, and the new paths.
        """
        times, paths = [FIRST], [self._path]

        def change(time: int) -> None:
            times.append(time)
            paths.append(number(tuple(name for _, name in self._open)))  # type: ignore[operator]

        def close(by: int) -> None:
            while self._open and (first := min(self._open)[0]) <= by:
                self._open = [one for one in self._open if one[0] != first]
                change(first)

        begins, ends, names = (begun[name].tolist() for name in ("begin", "end", "name"))
        for begin, end, name in zip(begins, ends, names, strict=True):
            close(begin)
            if end > begin:
                self._open.append((end, name))
                change(begin)
        close(until)
        self._path = paths[-1]
        return np.array(times, np.int64), np.array(paths, np.int64)


def _look_up(rows: Array, changes: dict[int, tuple[Numbers, Numbers]]) -> Numbers:
    found = np.zeros(len(rows), np.int64)
    for thread in np.unique(rows["thread"]).tolist():
        if thread in changes:
            times, paths = changes[thread]
            own = rows["thread"] == thread
            found[own] = paths[np.searchsorted(times, rows["time"][own], side="right") - 1]
    return found
