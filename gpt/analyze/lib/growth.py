"""Find memory that keeps growing, as opposed to memory that a program allocates once."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpt.analyze.lib.allocations import Pieces

PARTS, EACH = 4, 0.1  # number of parts into which the time is divided, and the minimum share of the growth in each
START = 0.1  # the time begins when this share of all bytes has been allocated
LEAST = 10  # allocations that were not freed
LONG = 0.1  # minimum length of the time, as a share of the time from its start to the last call


class Growth(NamedTuple):
    """Memory that grew from `start` to `end` bytes in `time` ns; `pieces` of it weren't freed."""

    start: float
    end: float
    pieces: int
    time: int


def find_growth(pieces: Pieces, last: int, chosen: npt.NDArray[np.bool_]) -> Growth | None:
    """Return how the `chosen` memory of a process grew until its `last` call, or None if it didn't grow steadily.

    The period from when START of all bytes had been allocated until the last allocation is divided into quarters. Each
    of them must have at least a tenth of the growth.
    """
    begins, ends, sizes = (one[chosen] for one in (pieces.begins, pieces.ends, pieces.sizes))
    if len(begins) < LEAST:
        return None
    order = np.argsort(begins, kind="stable")
    before = np.cumsum(sizes[order].astype(float))
    first, stop = int(begins[order][np.searchsorted(before, START * before[-1])]), int(begins.max())
    if stop - first < LONG * max(1, last - first):
        return None
    edges = np.linspace(first, stop, PARTS + 1)
    edges[-1] += 1
    freed = ~pieces.left[chosen]
    grown = np.array([
        sizes[(begins >= low) & (begins < high)].sum(dtype=float)
        - sizes[freed & (ends >= low) & (ends < high)].sum(dtype=float)
        for low, high in pairwise(edges.tolist())
    ])  # fmt: skip
    kept = (begins >= first) & (~freed | (ends > stop))
    if kept.sum() < LEAST or grown.sum() <= 0 or (grown < EACH * grown.sum()).any():
        return None
    start = float(sizes[(begins < first) & (~freed | (ends >= first))].sum(dtype=float))
    return Growth(start, start + float(grown.sum()), int(kept.sum()), stop - first)
