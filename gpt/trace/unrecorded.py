"""Periods about which a trace says nothing, because recording was turned off.

It isn't known what a program did during such a period, so it counts neither as idle nor as busy. Every analysis that
adds up the time between events subtracts `Unrecorded.within`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Whole = npt.NDArray[np.int64]

FOREVER = 1 << 62  # ns: later than any time in a trace


class Unrecorded:
    """Sorted intervals, from `begins` up to `ends`, in ns. They don't touch each other."""

    def __init__(self, begins: Sequence[int] | Whole = (), ends: Sequence[int] | Whole = ()) -> None:
        self.begins = np.asarray(begins, np.int64)
        self.ends = np.asarray(ends, np.int64)
        self._sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.ends - self.begins)))

    def __len__(self) -> int:
        return len(self.begins)

    @property
    def ongoing(self) -> bool:
        """Return True if recording was off at the end."""
        return len(self) > 0 and bool(self.ends[-1] >= FOREVER // 2)

    def shift(self, offset: int) -> Unrecorded:
        """Return these intervals on another clock."""
        return Unrecorded(self.begins + offset, self.ends + offset)

    def before(self, times: Whole) -> Whole:
        """Return how many ns weren't recorded before each of these times."""
        if not len(self):
            return np.zeros(len(times), np.int64)
        at = np.searchsorted(self.begins, times, side="right")
        left = np.where(at > 0, np.maximum(np.append(0, self.ends)[at] - times, 0), 0)
        found: Whole = self._sums[at] - left
        return found

    def within(self, begins: Whole, ends: Whole) -> Whole:
        """Return, for each pair of `begins` and `ends`, how many ns between them weren't recorded. It's 0 if the end
        comes first.
        """
        if not len(self):
            return np.zeros(len(begins), np.int64)
        found: Whole = np.maximum(self.before(ends) - self.before(begins), 0)
        return found

    def within_one(self, begin: int, end: int) -> int:
        """Return the same for a single interval."""
        return int(self.within(np.array([begin]), np.array([end]))[0])


def find_unrecorded(began: int, changes: Sequence[tuple[int, bool]]) -> Unrecorded:
    """Return the intervals in which recording was off. `changes` are the times at which it was turned on or off.

    If it was off at the end, the last interval ends at FOREVER.
    """
    ordered = sorted(changes)
    # if the first change turned it on, it must have been off before
    off_since = began if ordered and ordered[0][1] else None
    begins, ends = [], []
    for time, on in ordered:
        if on and off_since is not None:
            if time > off_since:
                begins.append(off_since)
                ends.append(time)
            off_since = None
        elif not on and off_since is None:
            off_since = time
    if off_since is not None:
        begins.append(off_since)
        ends.append(FOREVER)
    return Unrecorded(begins, ends)


def unite(several: Sequence[Unrecorded]) -> Unrecorded:
    """Return the intervals in which at least one of several processes didn't record."""
    begins = np.concatenate([np.zeros(0, np.int64), *(one.begins for one in several)])
    ends = np.concatenate([np.zeros(0, np.int64), *(one.ends for one in several)])
    order = np.argsort(begins, kind="stable")
    begins, ends = begins[order], np.maximum.accumulate(ends[order])
    if not len(begins):
        return Unrecorded()
    first = np.append(True, begins[1:] > ends[:-1])
    return Unrecorded(begins[first], ends[np.append(first[1:], True)])
