"""How long calls took: count, total, largest, and percentiles from a histogram of bounded size.

Ten million durations would be 80 MB and a sort. A histogram over the logarithm takes 64 KiB however many there are:
its bins are the exponent and the first seven bits of the mantissa of the duration as a double, so each is 1/128 of
its lower edge wide, and a percentile, the middle of its bin, is at most 0.4 % from the exact one. Count, total and
largest are exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

BITS = 7
BINS = 64 << BITS  # 1 ns to 2^64 ns
_SHIFT = np.uint64(52 - BITS)
_ONE = 1023 << BITS  # the bin of 1.0, were there no offset

Floats = npt.NDArray[np.float64]


class Bins(NamedTuple):
    """A histogram without its empty bins, to be kept: which bins, how many in each, and count, total and largest."""

    which: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    number: int
    total: float
    largest: float


def edges() -> Floats:
    """The lower edge of each bin, in ns."""
    found: Floats = ((np.arange(BINS, dtype=np.uint64) + np.uint64(_ONE)) << _SHIFT).view(np.float64)
    return found


class Durations:
    """Durations in ns, taken in as arrays."""

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.largest = 0.0
        self._bins = np.zeros(BINS, np.int64)

    def add(self, ns: Floats) -> None:
        """Takes some in. Below 1 ns they count as 1 ns in percentiles."""
        if len(ns):
            self.count += len(ns)
            self.total += float(ns.sum())
            self.largest = max(self.largest, float(ns.max()))
            bins = (np.maximum(ns, 1.0).view(np.uint64) >> _SHIFT).astype(np.int64) - _ONE
            self._bins += np.bincount(np.minimum(bins, BINS - 1), minlength=BINS)

    def merge(self, other: Durations) -> None:
        """Takes in what another one has."""
        self.count += other.count
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        self._bins += other._bins

    def bins(self) -> Bins:
        """What there is, in little memory."""
        which = np.flatnonzero(self._bins)
        return Bins(which, self._bins[which], self.count, self.total, self.largest)

    def merge_bins(self, other: Bins) -> None:
        """Takes in what another one had."""
        self.count += other.number
        self.total += other.total
        self.largest = max(self.largest, other.largest)
        self._bins[other.which] += other.counts

    def counts(self) -> npt.NDArray[np.int64]:
        """How many are in each bin."""
        return self._bins

    @property
    def variance(self) -> float:
        """Of the durations, in square ns: of the middles of their bins, about 1 % from the exact one."""
        which, counts = self.bins()[:2]
        both = np.array([which, which + 1], np.uint64) + np.uint64(_ONE)
        middles = np.minimum((both << _SHIFT).view(np.float64).mean(axis=0), self.largest)
        mean = (middles * counts).sum() / (self.count or 1)
        return float((counts * (middles - mean) ** 2).sum() / (self.count or 1))

    def percentile(self, part: float) -> float:
        """The duration that `part` of all, 0 to 1, are not longer than; 0 if there are none."""
        if not self.count:
            return 0.0
        rank = max(1, int(np.ceil(part * self.count)))
        if rank == self.count:
            return self.largest
        found = int(np.searchsorted(np.cumsum(self._bins), rank))
        edges = (np.array([found, found + 1], np.uint64) + np.uint64(_ONE)) << _SHIFT
        return min(float(edges.view(np.float64).mean()), self.largest)
