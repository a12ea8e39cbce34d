"""Count the accesses of a launch by page and time, in a matrix that's small enough to draw.

A launch can make a hundred million accesses, each a 32-byte entry of a memory-mapped file. They're read BATCH at a
time, in several passes: the first finds the range of clocks and addresses, the next finds the pages that are accessed
(page_ranks.py), and the last counts.

There's a row for each accessed page; the addresses in between take no room. The tensors in these pages may be known
only later, so there are many rows at first; `fold` then combines them into at most ROWS rows, none of which spans two
tensors. The columns are clocks since the first access. If the log has pairs of times, clocks are aligned across SMs
(sm_clocks.py). Otherwise each SM's clock counts from its own first access, provided that entries name the SM
(Neutrino's don't).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.page_ranks import rank_pages
from gpt.analyze.lib.sm_clocks import SmClocks
from gpt.trace.buffers import SavedBuffer

Numbers = npt.NDArray[np.int64]
Addresses = npt.NDArray[np.uint64]

BATCH = 4 << 20  # accesses processed at once
FINE = 1 << 14  # limit for rows that aren't folded yet
ROWS, COLUMNS = 100, 160  # limits for the matrix, as in Neutrino's paper
MOST_SMS = 4096  # a larger number can't be an SM
LATEST = np.iinfo(np.uint64).max


class Matrix(NamedTuple):
    """The accesses of a launch. In `counts`, each row is a number of consecutive accessed pages, and each column is
    `step` clocks wide.
    """

    pages: Addresses  # address of the first page of each row
    rows: int  # pages per row
    step: int
    counts: Numbers


class Clocks:
    """Converts the clocks of entries to clocks since the first access, of which `last` is the largest.

    If `rate` (ns per clock) isn't None, clocks are aligned across SMs, to within `bound` ns if that's known. If `own`
    is True, each SM's clock counts from its own first access instead. `sms` is the number of SMs, if entries name their
    SM.
    """

    def __init__(self, saved: SavedBuffer, named: bool, highest: float) -> None:
        """Find the range of the clocks. `named` says whether entries name their SM; `highest` is the number of ns per
        clock at the highest clock rate.
        """
        slots = saved.slots
        batches = list(iter_batches(slots))
        self.own = named and all(batch["sm"].max() < MOST_SMS for batch in batches)
        self._first = np.full(MOST_SMS if self.own else 1, LATEST, np.uint64)
        last = np.zeros(len(self._first), np.uint64)
        for batch in batches:
            sm = batch["sm"] if self.own else np.zeros(len(batch), np.intp)
            np.minimum.at(self._first, sm, batch["clock"])
            np.maximum.at(last, sm, batch["clock"])
        self._aligned: SmClocks | None = None
        if self.own and saved.pairs is not None and len(slots):
            found = SmClocks(saved.pairs, self._first, last, highest)
            self._aligned = found if found.rate is not None else None
            self.own = self._aligned is None
        self._zero = 0.0
        there = np.flatnonzero(last >= self._first)
        self.sms = len(there) if self.own or self._aligned else None
        if self._aligned:
            self._zero = float(self._aligned.times(there, self._first[there]).min())
        self.last = max((int(self.since(batch).max()) for batch in batches), default=0)

    @property
    def rate(self) -> float | None:
        """Return the ns per clock, or None if clocks aren't aligned."""
        return self._aligned.rate if self._aligned else None

    @property
    def bound(self) -> float | None:
        """Return the largest error, in ns, of the difference between times on two SMs."""
        return self._aligned.fit.bound if self._aligned else None

    @property
    def step(self) -> float | None:
        """Return the resolution of the timer in ns, which contributes to `bound`."""
        return self._aligned.fit.step if self._aligned else None

    def since(self, batch: Any) -> Addresses:
        """Return each entry's clocks since the first access."""
        if self._aligned and self._aligned.rate:
            ns = self._aligned.times(batch["sm"], batch["clock"]) - self._zero
            return np.maximum(np.rint(ns / self._aligned.rate), 0).astype(np.uint64)
        found: Addresses = batch["clock"] - (self._first[batch["sm"]] if len(self._first) > 1 else self._first[0])
        return found


class Pages(NamedTuple):
    """The sorted numbers of the accessed pages. `rank` returns the position of pages in this order."""

    pages: Addresses
    rank: Callable[..., Numbers]


def iter_batches(slots: Any) -> Iterator[Any]:
    """Yield the entries, BATCH at a time."""
    for at in range(0, len(slots), BATCH):
        yield slots[at : at + BATCH]


def find_pages(slots: Any, shift: int) -> Pages:
    """Return the pages of `1 << shift` bytes that are accessed."""

    def pages() -> Iterator[Any]:
        for batch in iter_batches(slots):
            yield batch["address"] >> np.uint64(shift)

    if not len(slots):
        return Pages(np.zeros(0, np.uint64), np.zeros_like)
    ends = [(batch["address"].min(), batch["address"].max()) for batch in iter_batches(slots)]
    low, high = np.array(ends, np.uint64).T
    return Pages(*rank_pages(pages, int(low.min()) >> shift, int(high.max()) >> shift))


def make_matrix(slots: Any, found: Pages, clocks: Clocks, shift: int, counted: bool) -> Matrix:
    """Count the accesses in at most FINE rows. If `counted`, each entry stands for as many accesses as its `count`
    says.
    """
    rows = -(-len(found.pages) // FINE)
    step = clocks.last // COLUMNS + 1
    height, width = -(-len(found.pages) // rows), clocks.last // step + 1
    counts = np.zeros(height * width, np.int64)
    for batch in iter_batches(slots):
        row = found.rank(batch["address"] >> np.uint64(shift)) // rows
        column = (clocks.since(batch) // np.uint64(step)).astype(np.int64)
        weights = batch["count"] if counted else None
        counts += np.bincount(row * width + column, weights, height * width).astype(np.int64)
    return Matrix(found.pages[::rows] << np.uint64(shift), rows, step, counts.reshape(height, width))


def fold(matrix: Matrix, regions: Numbers) -> tuple[Matrix, Numbers]:
    """Combine rows so that at most ROWS are left, and return the region of each of these.

    `regions` has the number of each row's region. Rows of different regions are only combined if there are more than
    ROWS regions; such a row gets the region with the most accesses in it.
    """
    opens = np.flatnonzero(np.diff(regions, prepend=-1))
    sizes = np.diff(np.append(opens, len(regions)))
    if len(opens) > ROWS:
        opens, sizes = np.zeros(1, np.int64), np.array([len(regions)])
    each = -(-len(regions) // ROWS)
    while (-(-sizes // each)).sum() > ROWS:
        each += 1
    starts = np.concatenate([np.arange(open_, open_ + size, each) for open_, size in zip(opens, sizes, strict=True)])
    counts = np.add.reduceat(matrix.counts, starts, axis=0)
    totals, row = matrix.counts.sum(axis=1), np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(regions))))
    sums = np.zeros((len(starts), int(regions.max()) + 1), np.int64)
    np.add.at(sums, (row, regions), totals)
    return Matrix(matrix.pages[starts], matrix.rows * each, matrix.step, counts), sums.argmax(axis=1)
