"""Reconstruct the schedule of a launch's blocks on its SMs from the records of the probe `block_sched`.

A block runs from the first clock of its warps to their last. Each SM has its own clock, so only the blocks of one SM
can be sorted by time. For each SM, we replay a first-in-first-out scheduler: a block that begins takes the slot that
became free first or, if none is free, opens a new one. The time from the end of one block to the start of the next in
the same slot is the cost of scheduling.

This needs no loop over blocks. Let E(k) be the number of blocks of an SM that have ended when its block k begins, and
c(k) the number of slots that have been reused by then. Then c(k + 1) = min(c(k) + 1, E(k)), and so c(k + 1) = k +
min(1, E(0) - 0, ..., E(k) - k), which is a running minimum.

SMs have only the time in ns (`end`) in common, and it may be coarse. Together with the clock that was read with it, it
forms a pair, and such pairs align the clocks of SMs (sm_clocks.py). That's the clock when a block's first thread ended,
or in older traces, a whole warp or block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.sm_clocks import LIMIT, Fit, fit_pairs, highest_rate
from gpt.trace.buffers import SavedBuffer

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

FIELDS = ("start", "sm")
LENGTHS = ("stop", "elapsed")  # a map has at least one of these: the last clock of a block, and when `end` was read
TIME = "end"  # a field that only some maps have
UNKNOWN: Mapping[str, Any] = {}  # stands for a device without a record


class Schedule(NamedTuple):
    """The blocks of a launch, sorted by SM, and then by when they began.

    - `block` is the number of the block in the grid, `which` the index of its SM in `sms`, and `slot` the number of its
      slot on that SM.
    - `begin` and `end` are in clocks since the first block of the SM began. `gap` is how many clocks the slot was free
      before; it's -1 for the first block in a slot.
    - `began` and `ended` are in ns since the first block began. If `ns_per_clock` is None, because no line fits the
      pairs, they're clocks like `begin` and `end`.
    - `bound` is the largest error, in ns, of the difference between times on two SMs. It includes a `step` of the
      timer. Both are None if they aren't known.
    - `silent` is the number of blocks that saved nothing; they aren't in the arrays.
    """

    sms: npt.NDArray[np.uint64]
    block: Whole
    which: Whole
    slot: Whole
    begin: Whole
    end: Whole
    gap: Whole
    began: Real
    ended: Real
    ns_per_clock: float | None
    step: float | None
    bound: float | None
    silent: int

    @property
    def running(self) -> Real:
        """For each SM, return the sum over its slots of the clocks in blocks."""
        return np.bincount(self.which, self.end - self.begin, len(self.sms)).astype(np.float64)

    @property
    def scheduling(self) -> Real:
        """For each SM, return the sum over its slots of the clocks between blocks."""
        return np.bincount(self.which, np.maximum(self.gap, 0), len(self.sms)).astype(np.float64)

    @property
    def slots(self) -> Whole:
        """Return the number of slots of each SM, which is how many blocks it ran at once."""
        return np.bincount(self.which, self.gap < 0, len(self.sms)).astype(np.int64)


def find_elapsed(slots: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Return the clocks from the start of each record until its block or warp ended."""
    if "stop" in (slots.dtype.names or ()):
        found = np.maximum(slots["stop"], slots["start"]) - slots["start"]
    else:
        found = slots["elapsed"]
    limited: npt.NDArray[np.uint64] = np.minimum(found, LIMIT, dtype=np.uint64)
    return limited


def find_paired(slots: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    """Return the clocks from the start of each record until its time in ns was read."""
    if "elapsed" not in (slots.dtype.names or ()):
        return find_elapsed(slots)
    found: npt.NDArray[np.uint64] = slots["elapsed"].astype(np.uint64)
    return found


def make_schedule(saved: SavedBuffer, card: Mapping[str, Any] = UNKNOWN) -> Schedule | None:
    """Return the schedule of a launch, or None if no warp saved anything. `card` is the record of the device."""
    here = saved.counts > 0
    block = np.flatnonzero(here.any(axis=1))
    if not len(block):
        return None
    slots, here = saved.slots[block, :, 0], here[block]
    lasts = np.uint64(np.iinfo(np.uint64).max)
    first = np.where(here, slots["start"], lasts).min(axis=1)  # the first start of each block
    late = np.minimum(np.where(here, slots["start"], first[:, None]) - first[:, None], LIMIT)
    took = late + np.where(here, find_elapsed(slots), np.uint64(0))  # clocks until a warp ended
    length = np.maximum(took.max(axis=1), 1).astype(np.int64)
    sm = slots["sm"][np.arange(len(block)), here.argmax(axis=1)]
    order = np.lexsort((first, sm))
    block, first, length, sm = block[order], first[order], length[order], sm[order]
    opens = np.concatenate(([True], sm[1:] != sm[:-1]))  # the first block of an SM
    which = np.cumsum(opens) - 1
    begin = np.minimum(first - first[opens][which], LIMIT).astype(np.int64)
    slot, gap = _replay(begin, begin + length, which, opens)
    warp, lane = np.nonzero(here[order])
    read = late + np.where(here, np.minimum(find_paired(slots), LIMIT), np.uint64(0))
    at = begin[warp] + read[order][warp, lane].astype(np.int64)
    ns = slots[TIME] if TIME in (slots.dtype.names or ()) else np.zeros(slots.shape, np.uint64)
    last = np.maximum.reduceat(begin + length, np.flatnonzero(opens))
    fit = _fit(at, ns[order][warp, lane], which[warp], highest_rate(card), last)
    began = begin * (fit.rate or 1.0) + fit.offsets[which]
    ended = (begin + length) * (fit.rate or 1.0) + fit.offsets[which]
    zero = began.min()
    silent = len(saved.counts) - len(block)
    whole: Any = sm[opens].astype(np.uint64)
    times = began - zero, ended - zero, fit.rate, fit.step, fit.bound
    return Schedule(whole, block, which, slot, begin, begin + length, gap, *times, silent)


def _replay(begin: Whole, end: Whole, which: Whole, opens: npt.NDArray[np.bool_]) -> tuple[Whole, Whole]:
    """Return the slot of each block, and for how long it was free before. The module's docstring explains the
    method.
    """
    count = len(begin)
    number = np.arange(count)
    base = np.flatnonzero(opens)[which]  # the first block on its SM
    both = np.concatenate((end, begin))  # at equal times, ends come first
    order = np.lexsort((np.repeat((0, 1), count), both, np.concatenate((which, which))))
    begins = order >= count
    ended = np.cumsum(~begins)[begins]  # blocks that ended on its SM, and on all SMs before it
    far = which * (count + 1)
    least = np.minimum(np.minimum.accumulate(ended - number - far) + far, 0)
    before = np.concatenate(([0], least[:-1]))
    again = ~opens & (least == before)  # the block reuses a slot
    by_end = np.lexsort((end, which))
    former = number.copy()  # the previous block in its slot
    former[again] = by_end[(number - 1 + before)[again]]
    gap = np.where(again, begin - end[former], -1)
    root = former
    while (further := root[root]).tobytes() != root.tobytes():
        root = further
    opened = np.cumsum(~again)
    return (opened - opened[base])[root], gap


def _fit(at: Whole, ns: npt.NDArray[np.uint64], which: Whole, highest: float, last: Whole) -> Fit:
    """Align the clocks of SMs, using pairs of a clock and a time. Times are needed for clocks
    from 0 to each SM's `last` clock.
    """
    if not ns.any():
        return Fit(None, np.zeros(len(last)))
    x, y = at.astype(np.float64), np.minimum(ns - ns.min(), LIMIT).astype(np.float64)
    return fit_pairs(x, y, which, highest, np.zeros(len(last)), last.astype(np.float64))
