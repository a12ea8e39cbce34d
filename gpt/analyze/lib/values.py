"""Distributions of numbers. Numbers are added as arrays, and memory doesn't grow with their count.

Each number is counted in a bin, which depends on its distance from a base. A bin is identified by the upper bits of
that distance as a 64-bit float, including the first BITS of the mantissa. So a bin is 0.2 % of the distance wide, and
each integer distance below 1024 has a bin of its own. All numbers in a bin are treated as the number at its start.

The base is 0, except that for unsigned numbers, it's the smallest number of the first array. Otherwise clocks and
addresses, which are large and close to each other, would all be in one bin. For numbers below half of such a base, the
distance from 0 is used instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt.trace.sums import FieldSums

BITS = 9
SHIFT = np.int64(52 - BITS)
# Bins double in width if both the median and the smallest number above 0 are this many times smaller than the greatest.
WIDE = 64
DOUBLINGS = 2  # maximum number of bins between a number and its double
BELOW = np.int64(1 << 21)  # subtracted from bins of distances from 0 if the base isn't 0, to put them before all others
HALF = 32  # bits of half a number: sums of halves don't overflow

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Distribution:
    """The distribution of `count` numbers, with their `total`, the `least` and the `greatest`. `nans` are counted
    separately.
    """

    def __init__(self) -> None:
        self.count = self.nans = self.infinite = 0
        self.total: int | float = 0
        self.least: int | float | None = None
        self.greatest: int | float | None = None
        self.whole = True  # True as long as all numbers are integers
        self._base = 0
        self._bins: Ints = np.zeros(0, np.int64)
        self._counts: Ints = np.zeros(0, np.int64)

    def add(self, found: npt.NDArray[Any]) -> None:
        """Add numbers."""
        found = found.ravel()
        if found.dtype.kind == "f":
            known = ~np.isnan(found)
            self.nans += len(found) - int(known.sum())
            found = found[known].astype(np.float64)
        if not len(found):
            return
        least, greatest = found.min().item(), found.max().item()
        if not self.count and found.dtype.kind == "u":
            self._base = least
        self.whole &= found.dtype.kind != "f"
        self.count += len(found)
        self.least = least if self.least is None else min(self.least, least)
        self.greatest = greatest if self.greatest is None else max(self.greatest, greatest)
        if found.dtype.kind == "f":
            finite = np.isfinite(found)
            self.infinite += len(found) - int(finite.sum())
            with np.errstate(over="ignore"):
                self.total += float(found[finite].sum())
        else:
            wide = found.astype(np.uint64 if found.dtype.kind == "u" else np.int64)
            low = wide & wide.dtype.type((1 << HALF) - 1)
            self.total += (int((wide >> wide.dtype.type(HALF)).sum()) << HALF) + int(low.sum())
        self._count(self._find_bins(found))

    def add_sums(self, found: FieldSums, records: int, whole: bool) -> None:
        """Add numbers of which only the sums are known. They aren't in any bin, so percentiles don't include them."""
        count = sum(found.bins)
        self.nans += records - count
        if not count:
            return
        self.count += count
        self.whole &= whole
        self.total += found.total
        self.least = found.least if self.least is None else min(self.least, found.least)
        self.greatest = found.greatest if self.greatest is None else max(self.greatest, found.greatest)

    def merge(self, other: Distribution) -> None:
        """Add the numbers of another distribution, none of which may be unsigned."""
        self.nans += other.nans
        if not other.count or other.least is None or other.greatest is None:
            return
        self.count += other.count
        self.infinite += other.infinite
        self.total += other.total
        self.whole &= other.whole
        self.least = other.least if self.least is None else min(self.least, other.least)
        self.greatest = other.greatest if self.greatest is None else max(self.greatest, other.greatest)
        self._add_bins(other._bins, other._counts)

    def _find_bins(self, found: npt.NDArray[Any]) -> Any:
        if found.dtype.kind != "u":
            bins = np.abs(found.astype(np.float64)).view(np.int64) >> SHIFT
            return np.where(found < 0, -bins, bins)
        base = found.dtype.type(self._base) if self._base <= np.iinfo(found.dtype).max else None
        if base is not None and found.min() >= base:
            return (found - base).astype(np.float64).view(np.int64) >> SHIFT
        numbers = found.astype(np.float64)
        away = numbers - float(self._base)
        bins = np.abs(away).view(np.int64) >> SHIFT
        bins = np.where(away < 0, -bins, bins)
        return np.where(numbers < self._base / 2, (numbers.view(np.int64) >> SHIFT) - BELOW, bins)

    def _count(self, bins: Ints) -> None:
        self._add_bins(*np.unique(bins, return_counts=True))

    def _add_bins(self, bins: Ints, counts: Ints) -> None:
        if len(self._bins):
            bins, where = np.unique(np.concatenate((self._bins, bins)), return_inverse=True)
            together = np.zeros(len(bins), np.int64)
            np.add.at(together, where, np.concatenate((self._counts, counts)))
            counts = together
        self._bins, self._counts = bins, counts

    def bins(self) -> tuple[Floats, Ints]:
        """Return the number at the start of each nonempty bin, ascending, and how many numbers are in it."""
        found, bases = self._split(self._bins)
        found = found + bases
        return np.clip(found, self.least, self.greatest) if self.count else found, self._counts

    def _split(self, bins: Ints) -> tuple[Floats, Floats]:
        """Return the distance at which each bin starts, and its base."""
        from_zero = bins < -BELOW // 2
        own = np.where(from_zero, bins + BELOW, bins)
        away = (np.abs(own) << SHIFT).view(np.float64)
        return np.where(own < 0, -away, away), np.where(from_zero, 0.0, float(self._base))

    def percentile(self, part: float) -> int | float | None:
        """Return a percentile, with `part` from 0 to 1, or None if there are no numbers."""
        count = int(self._counts.sum())
        if not count:
            return None
        rank = max(1, math.ceil(part * count))
        if rank == count:
            return self.greatest
        at = int(np.searchsorted(np.cumsum(self._counts), rank))
        if not self.whole or self.least is None or self.greatest is None:
            return float(self.bins()[0][at])
        away, base = self._split(self._bins[at : at + 1])
        found = int(away[0]) + (self._base if base[0] else 0)  # whole like the base, which a float may not hold
        return max(self.least, min(found, self.greatest))

    @property
    def mean(self) -> float | None:
        """Return the mean of the finite numbers."""
        return self.total / (self.count - self.infinite) if self.count > self.infinite else None


def iter_columns(series: Mapping[str, Distribution], most: int) -> Iterator[tuple[str, int | float, int | float, int]]:
    """Yield the nonempty columns of a histogram: the name of the series, both edges, and the count."""
    edges, counts = make_histogram([*series.values()], most)
    whole = all(values.whole for values in series.values()) and bool((edges % 1 == 0).all())
    shown: list[int | float] = [int(edge) if whole else edge for edge in edges.tolist()]
    for name, found in zip(series, counts, strict=True):
        for at in np.flatnonzero(found).tolist():
            yield name, shown[at], shown[at + 1], int(found[at])


def make_histogram(series: Sequence[Distribution], most: int) -> tuple[Floats, list[Ints]]:
    """Return the edges of at most `most` bins, and for each series the number of finite values in each bin.

    Integers that are close to each other get one bin each. Otherwise all bins have the same width, except for
    nonnegative numbers of very different sizes: their bins grow by a constant factor, and 0 has a bin of its own.
    """
    bins = [values.bins() for values in series]
    finite = [found[np.isfinite(found)] for found, _ in bins]
    everything = np.concatenate([*finite, np.zeros(0)])
    if not len(everything):
        return np.zeros(0), [np.zeros(0, np.int64) for _ in series]
    weights = np.concatenate([counts[np.isfinite(found)] for found, counts in bins])
    edges = _find_edges(everything, weights, all(values.whole for values in series if values.count), most)
    found = []
    for numbers, (all_, counts) in zip(finite, bins, strict=True):
        place = np.clip(np.searchsorted(edges, numbers, "right") - 1, 0, len(edges) - 2)
        kept = counts[np.isfinite(all_)]
        found.append(np.bincount(place, kept, len(edges) - 1).astype(np.int64))
    return edges, found


def _find_edges(numbers: Floats, weights: Ints, whole: bool, most: int) -> Any:
    low, high = float(numbers.min()), float(numbers.max())
    order = np.argsort(numbers)
    median = float(numbers[order][np.searchsorted(np.cumsum(weights[order]), weights.sum() / 2)])
    first = float(numbers[numbers > 0].min(initial=math.inf))
    if low >= 0 and high > WIDE * max(first, median) and high - low > WIDE * (median - low):
        lowest = math.floor(math.log2(first))
        octaves = math.log2(high) - lowest
        step = max(1 / DOUBLINGS, octaves / (most - 2))
        step = math.ceil(step) if step > 1 else 1.0 if step > 1 / DOUBLINGS else step
        steps = math.floor(octaves / step) + 1
        with np.errstate(over="ignore"):  # the last edge may exceed the largest float
            edges = np.minimum(2.0 ** (lowest + step * np.arange(steps + 1)), np.finfo(np.float64).max)
        return np.concatenate(([0.0], edges)) if low == 0 else edges
    if whole:
        step = max(1.0, float(math.ceil((high - low + 1) / most)))
        edges = low + step * np.arange(math.ceil((high - low + 1) / step) + 1, dtype=np.float64)
    elif math.isfinite(high - low):
        edges = np.linspace(low, high, most + 1)
    else:
        place = np.arange(most + 1) / most
        edges = low * (1 - place) + high * place
    edges = np.unique(np.minimum(edges, np.finfo(np.float64).max))  # large numbers may leave no room for all edges
    return edges if len(edges) > 1 else np.array([low, math.nextafter(low + (abs(low) / 100 or 1.0), math.inf)])
