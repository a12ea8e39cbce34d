"""Unions of time intervals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]


def unite(groups: npt.NDArray[np.generic], begins: Whole, ends: Whole) -> tuple[Whole, Whole, Whole]:
    """Merge the overlapping intervals of each group. Return, for each resulting interval, the index of its group among
    the sorted groups, its begin and its end.
    """
    count = len(groups)
    times, ranks = np.unique(np.concatenate([begins, ends]), return_inverse=True)
    _, number = np.unique(groups, return_inverse=True)
    if not count:
        return number.astype(np.int64), begins, ends
    low, high = (number * len(times) + ranks[side] for side in (slice(count), slice(count, None)))
    order = np.argsort(low, kind="stable")
    reach = np.maximum.accumulate(high[order])
    new = np.concatenate(([True], low[order][1:] > reach[:-1]))
    new[1:] |= number[order][1:] != number[order][:-1]
    last = np.concatenate((np.flatnonzero(new)[1:] - 1, [count - 1]))
    return number[order][new], begins[order][new], times[reach[last] % len(times)]
