"""Summarize durations of calls: count, total, largest, and percentiles from a histogram of bounded size.

Ten million durations would take 80 MB, and would have to be sorted; a histogram of their logarithms takes at most 64
KiB. The bin of a duration is the exponent and the first seven bits of the mantissa, as a double, so a bin is 1/128 of
its lower edge wide. A percentile is the middle of its bin, and at most 0.4 % off. Count, total and largest are exact.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BITS = 7
BINS = 64 << BITS  # for 1 ns to 2^64 ns
_SHIFT = np.uint64(52 - BITS)
_ONE = 1023 << BITS  # 1.0 would be in this bin without an offset

Floats = npt.NDArray[np.float64]


def edges() -> Floats:
    """Return the lower edge of each bin, in ns."""
    found: Floats = ((np.arange(BINS, dtype=np.uint64) + np.uint64(_ONE)) << _SHIFT).view(np.float64)
    return found


class Durations:
    """Durations in ns, which are added as arrays. Bins are stored only from the smallest to the largest in use."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.largest = 0.0
        self._squares = 0.0  # sum of squares
        self._first = 0  # number of the first bin that's stored
        self._bins = np.zeros(0, np.int64)

    def add(self, ns: Floats) -> None:
        """Add durations. Percentiles count anything below 1 ns as 1 ns."""
        if len(ns):
            self.count += len(ns)
            self.total += float(ns.sum())
            self.largest = max(self.largest, float(ns.max()))
            self._squares += float(ns @ ns)
            places = _bins_of(ns)
            first, last = int(places.min()), int(places.max())
            self._reserve(first, last)
            self._bins[first - self._first : last + 1 - self._first] += np.bincount(places - first)

    def replace(self, old: float, new: float) -> None:
        """Replace a duration that was added by another one. The largest duration isn't updated."""
        self.total += new - old
        self._squares += new * new - old * old
        before, after = _bins_of(np.array([old, new])).tolist()
        self._reserve(after, after)
        self._bins[before - self._first] -= 1
        self._bins[after - self._first] += 1

    def _reserve(self, first: int, last: int) -> None:
        """Make room for the bins from `first` to `last`."""
        if not len(self._bins):
            self._first = first
        before = max(0, self._first - first)
        after = max(0, last + 1 - self._first - len(self._bins))
        if before or after:
            self._bins = np.pad(self._bins, (before, after))
            self._first -= before

    def merge(self, other: Durations) -> None:
        """Add the durations of another instance."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        self._squares += other._squares
        self._add_bins(other._first, other._bins)

    def _add_bins(self, first: int, counts: npt.NDArray[np.int64]) -> None:
        if len(counts):
            self._reserve(first, first + len(counts) - 1)
            at = first - self._first
            self._bins[at : at + len(counts)] += counts

    def counts(self) -> npt.NDArray[np.int64]:
        """Return the number of durations in each bin."""
        found = np.zeros(BINS, np.int64)
        found[self._first : self._first + len(self._bins)] = self._bins
        return found

    @property
    def mean(self) -> float:
        """Mean in ns, 0 if there are no durations."""
        return self.total / self.count if self.count else 0.0

    @property
    def variance(self) -> float:
        """Variance in square ns, 0 if there are no durations."""
        return max(0.0, self._squares / self.count - self.mean**2) if self.count else 0.0

    def percentile(self, part: float) -> float:
        """Return the duration that a share `part` (from 0 to 1) of durations doesn't exceed, or 0 without any
        durations.
        """
        if not self.count:
            return 0.0
        rank = max(1, int(np.ceil(part * self.count)))
        if rank == self.count:
            return self.largest
        found = self._first + int(np.searchsorted(np.cumsum(self._bins), rank))
        edges = (np.array([found, found + 1], np.uint64) + np.uint64(_ONE)) << _SHIFT
        return min(float(edges.view(np.float64).mean()), self.largest)


def _bins_of(ns: Floats) -> npt.NDArray[np.int64]:
    """Return the bin number of each duration."""
    found = np.maximum(ns, 1.0).view(np.int64)
    found >>= 52 - BITS
    found -= _ONE
    return np.minimum(found, BINS - 1, out=found)
