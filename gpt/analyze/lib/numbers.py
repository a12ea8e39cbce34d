"""Collect nonnegative integers by group, however many there are, and compute their count, sum, maximum and exact
percentiles.

The numbers are spilled to disk (gpt/trace/spill.py). A percentile is found by counting: first in bins from zero to the
largest number, then in finer bins where the percentile must be, until few numbers or a single value
remain.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from gpt.trace.spill import Aside

Whole = npt.NDArray[np.int64]

PENDING = 1 << 20  # numbers in memory
SMALL = 1 << 10  # groups with fewer pending numbers stay in memory at first
FEW = 1 << 16  # numbers few enough to sort
BITS = 16  # log2 of the number of bins
HALF = 32


class _Group:
    def __init__(self) -> None:
        self.count = self.total = self.most = self.pending = 0
        self.parts: list[Whole] = []
        self.places: list[tuple[int, int]] = []  # offsets in the file, and how many numbers are there


class Numbers:
    """Groups of numbers that are at least 0."""

    def __init__(self) -> None:
        self._aside = Aside()
        self._groups: dict[Hashable, _Group] = {}
        self._pending = 0

    def add(self, group: Hashable, values: Whole) -> None:
        """Add numbers to a group. Raises OutputError."""
        mine = self._groups.get(group) or self._groups.setdefault(group, _Group())
        if not len(values):
            return
        mine.count += len(values)
        mine.total += add_up(values)
        mine.most = max(mine.most, int(values.max()))
        mine.parts.append(values)
        mine.pending += len(values)
        self._pending += len(values)
        if self._pending >= PENDING:
            self._put_aside(SMALL)
            if self._pending >= PENDING // 2:
                self._put_aside(0)

    def _put_aside(self, least: int) -> None:
        for group in self._groups.values():
            if group.pending > least:
                group.places.append((self._aside.write(*group.parts), group.pending))
                self._pending -= group.pending
                group.parts, group.pending = [], 0

    def __contains__(self, group: Hashable) -> bool:
        return group in self._groups

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._groups)

    def count(self, group: Hashable) -> int:
        """Return the number of numbers in a group."""
        return self._groups[group].count if group in self._groups else 0

    def total(self, group: Hashable) -> int:
        """Return the sum of a group."""
        return self._groups[group].total

    def most(self, group: Hashable) -> int:
        """Return the largest number in a group."""
        return self._groups[group].most

    def percentile(self, group: Hashable, percent: int) -> int:
        """Return a percentile of a nonempty group: `percent` of its numbers are no larger."""
        return self.find(group, max(math.ceil(Fraction(percent, 100) * self.count(group)), 1) - 1)

    def median(self, group: Hashable) -> float:
        """Return the median: the middle number, or the mean of the two middle ones."""
        count = self.count(group)
        return (self.find(group, (count - 1) // 2) + self.find(group, count // 2)) / 2

    def find(self, group: Hashable, rank: int) -> int:
        """Return the number at index `rank` of the sorted group."""
        mine = self._groups[group]
        low, high, left = 0, mine.most, mine.count
        while left > FEW and low < high:
            shift = max(0, (high - low).bit_length() - BITS)
            counts = np.zeros((high - low >> shift) + 1, np.int64)
            for values in self._iter_between(mine, low, high):
                counts += np.bincount((values - low) >> shift, minlength=len(counts))
            before = np.cumsum(counts)
            at = int(np.searchsorted(before, rank, side="right"))
            rank -= int(before[at] - counts[at])
            low, high, left = low + (at << shift), min(high, low + (at + 1 << shift) - 1), int(counts[at])
        if low == high:
            return low
        return int(np.sort(np.concatenate(list(self._iter_between(mine, low, high))))[rank])

    def _iter_between(self, group: _Group, low: int, high: int) -> Iterator[Whole]:
        for offset, count in group.places:
            for at in range(0, count, FEW):
                values = self._aside.read(np.int64, offset + 8 * at, min(FEW, count - at))
                yield values[(values >= low) & (values <= high)]
        for values in group.parts:
            yield values[(values >= low) & (values <= high)]


def add_up(values: Whole) -> int:
    """Return the sum of numbers that are at least 0, however large it is."""
    return (int((values >> HALF).sum()) << HALF) + int((values & ((1 << HALF) - 1)).sum())
