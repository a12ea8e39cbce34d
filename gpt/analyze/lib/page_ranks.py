"""Find the pages that are accessed, and the rank of each, for a hundred million accesses in little memory.

Pages are marked in bitmaps, one for each region of 2^20 pages in which there are accesses; regions are larger if
addresses are far apart. If there are too many regions, page numbers are sorted instead, which takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

PAGES = 1 << 26  # in all regions together
REGIONS, REGION = 1 << 22, 20  # most regions between the lowest and the highest page; log2 of the pages in a region

Numbers = npt.NDArray[np.uint64]
Ranks = npt.NDArray[np.int64]


def rank_pages(
    iter_pages: Callable[[], Iterator[Numbers]], low: int, high: int
) -> tuple[Numbers, Callable[..., Ranks]]:
    """Return the pages that `iter_pages` yields, sorted, and a function from pages to their ranks.

    All page numbers are from `low` to `high`.
    """
    bits = max(REGION, (high - low + 1).bit_length() - REGIONS.bit_length())
    regions = np.full(((high - low) >> bits) + 1, -1, np.int64)
    here: list[npt.NDArray[np.bool_]] = []
    lowest, mask = np.uint64(low), np.uint64((1 << bits) - 1)
    for pages in iter_pages():
        distance = pages - lowest
        region = (distance >> np.uint64(bits)).view(np.int64)
        seen = np.zeros(len(regions), bool)
        seen[region] = True
        for new in np.flatnonzero(seen & (regions < 0)):
            if (len(here) + 1) << bits > PAGES:
                return _sort(iter_pages)
            regions[new] = len(here)
            here.append(np.zeros(1 << bits, bool))
        within = (distance & mask).view(np.int64)
        if len(here) == 1:
            here[0][within] = True
        else:
            _mark(here, regions[region], within)
    tops = np.flatnonzero(regions >= 0)
    ordered = [here[regions[top]] for top in tops]
    found = [np.flatnonzero(one).astype(np.uint64) + (np.uint64(top << bits) + lowest)
             for top, one in zip(tops.tolist(), ordered, strict=True)]  # fmt: skip
    regions[tops] = np.arange(len(tops)) << bits
    ranks: Any = np.cumsum(np.concatenate(ordered), dtype=np.int32) - 1

    def rank(pages: Numbers) -> Ranks:
        distance = pages - lowest
        place = regions[(distance >> np.uint64(bits)).view(np.int64)]
        place += (distance & mask).view(np.int64)
        return ranks[place].astype(np.int64)  # type: ignore[no-any-return]

    return np.concatenate(found), rank


def _mark(here: list[npt.NDArray[np.bool_]], which: Ranks, within: Ranks) -> None:
    for number in np.flatnonzero(np.bincount(which)):
        here[number][within[which == number]] = True


def _sort(iter_pages: Callable[[], Iterator[Numbers]]) -> tuple[Numbers, Callable[..., Ranks]]:
    found = np.zeros(0, np.uint64)
    for pages in iter_pages():
        found = np.union1d(found, pages)

    def rank(pages: Numbers) -> Ranks:
        places: Any = np.searchsorted(found, pages)
        return places  # type: ignore[no-any-return]

    return found, rank
