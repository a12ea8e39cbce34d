"""The blocks of a launch on the SMs that ran them, from what the probe `block_sched` saved.

A block runs from the first clock of its warps to the last one. Clocks are those of its SM, so blocks are put in order
within an SM. There a first-in-first-out scheduler is replayed: a block that begins takes the slot of the block that
ended first among those whose slots are free; if none is free, it opens another one. What lies between the end of the
one and the beginning of the other, in the same slot, is the cost of scheduling.

For that nobody walks through the blocks. With E(k) blocks of an SM ended when its block k begins, and c(k) slots taken
again by then, c(k + 1) = min(c(k) + 1, E(k)). So c(k + 1) = k + min(1, E(0) - 0, ..., E(k) - k): a running minimum.

Across SMs there is only the time in ns, `end`, which may be coarse. The line through all (clock, ns) of warps, of one
slope for all SMs, gives each clock a time. Of a short launch the steps of the timer (32 ns of an H200) leave that slope
open, by a factor of ten if its warps end at once: then the slope is that of the device's highest rate of clocks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.trace.buffers import SavedBuffer

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

FIELDS = ("start", "elapsed", "sm")
TIME = "end"  # the field that some maps do not have
LIMIT = np.uint64(1 << 60)  # clocks, ns: what is more is nonsense
SLOPES = 0.1, 10.0  # ns a clock: 10 GHz, 100 MHz
EXACT = 0.02  # the standard error of a slope that is taken, as a share of it
UNKNOWN: Mapping[str, Any] = {}  # a device without a record


class Schedule(NamedTuple):
    """The blocks of a launch, those of each SM together and in the order in which they began.

    `block` is the number in the grid, `which` the place of its SM in `sms`, `slot` the number of its slot there.
    `begin` and `end` are clocks since the first block of its SM began; `gap` are the clocks that its slot was free
    before, -1 if it was the first in it. `began` and `ended` are ns since the first block began; if `ns_per_clock`
    is None they are clocks as `begin` and `end` are, because the ns fit no line.
    `silent` blocks saved nothing; they are not among the others.
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
    silent: int

    @property
    def running(self) -> Real:
        """Clocks of each SM: what its blocks took, added."""
        return np.bincount(self.which, self.end - self.begin, len(self.sms)).astype(np.float64)

    @property
    def scheduling(self) -> Real:
        """Clocks of each SM: the gaps between its blocks, added."""
        return np.bincount(self.which, np.maximum(self.gap, 0), len(self.sms)).astype(np.float64)

    @property
    def slots(self) -> Whole:
        """Slots of each SM: blocks that it ran at once."""
        return np.bincount(self.which, self.gap < 0, len(self.sms)).astype(np.int64)


def make_schedule(saved: SavedBuffer, card: Mapping[str, Any] = UNKNOWN) -> Schedule | None:
    """The schedule of a launch on the device of a record; None if no warp saved anything."""
    here = saved.counts > 0
    block = np.flatnonzero(here.any(axis=1))
    if not len(block):
        return None
    slots, here = saved.slots[block, :, 0], here[block]
    lasts = np.uint64(np.iinfo(np.uint64).max)
    first = np.where(here, slots["start"], lasts).min(axis=1)  # a block's
    late = np.minimum(np.where(here, slots["start"], first[:, None]) - first[:, None], LIMIT)
    took = late + np.where(here, np.minimum(slots["elapsed"], LIMIT), 0)  # until a warp ended
    length = np.maximum(took.max(axis=1), 1).astype(np.int64)
    sm = slots["sm"][np.arange(len(block)), here.argmax(axis=1)]
    order = np.lexsort((first, sm))
    block, first, length, sm = block[order], first[order], length[order], sm[order]
    opens = np.concatenate(([True], sm[1:] != sm[:-1]))  # the first block of an SM
    which = np.cumsum(opens) - 1
    begin = np.minimum(first - first[opens][which], LIMIT).astype(np.int64)
    slot, gap = _replay(begin, begin + length, which, opens)
    warp, lane = np.nonzero(here[order])
    at = begin[warp] + took[order][warp, lane].astype(np.int64)
    ns = slots[TIME] if TIME in (slots.dtype.names or ()) else np.zeros(slots.shape, np.uint64)
    slope, shift = _fit(at, ns[order][warp, lane], which[warp], 1e9 / (card.get("clock_hz") or 1))
    began = begin * (slope or 1.0) + shift[which]
    ended = (begin + length) * (slope or 1.0) + shift[which]
    zero = began.min()
    silent = len(saved.counts) - len(block)
    whole: Any = sm[opens].astype(np.uint64)
    return Schedule(whole, block, which, slot, begin, begin + length, gap, began - zero, ended - zero, slope, silent)


def _replay(begin: Whole, end: Whole, which: Whole, opens: npt.NDArray[np.bool_]) -> tuple[Whole, Whole]:
    """The slot of each block, and for how long it was free before: see above."""
    count = len(begin)
    number = np.arange(count)
    base = np.flatnonzero(opens)[which]  # the first block of its SM
    both = np.concatenate((end, begin))  # of what happens at once, ends come first
    order = np.lexsort((np.repeat((0, 1), count), both, np.concatenate((which, which))))
    begins = order >= count
    ended = np.cumsum(~begins)[begins]  # of its SM, and of all SMs before
    far = which * (count + 1)
    least = np.minimum(np.minimum.accumulate(ended - number - far) + far, 0)
    before = np.concatenate(([0], least[:-1]))
    again = ~opens & (least == before)  # takes a slot that was used
    by_end = np.lexsort((end, which))
    former = number.copy()  # the block in whose slot it is
    former[again] = by_end[(number - 1 + before)[again]]
    gap = np.where(again, begin - end[former], -1)
    root = former
    while (further := root[root]).tobytes() != root.tobytes():
        root = further
    opened = np.cumsum(~again)
    return (opened - opened[base])[root], gap


def _fit(at: Whole, ns: npt.NDArray[np.uint64], which: Whole, highest: float) -> tuple[float | None, Real]:
    """ns a clock, and for each SM the ns at its clock 0; `highest` is the slope of the highest rate."""
    x, y = at.astype(np.float64), np.minimum(ns - ns.min(), LIMIT).astype(np.float64)
    count = np.bincount(which)
    mean_x, mean_y = np.bincount(which, x) / count, np.bincount(which, y) / count
    dx, dy = x - mean_x[which], y - mean_y[which]
    square = float(dx @ dx)
    slope = float(dx @ dy) / square if square else 0.0
    if ns.any() and SLOPES[0] <= highest <= SLOPES[1] and _find_error(x, y, which) > EXACT * abs(slope):
        slope = highest
    if not SLOPES[0] <= slope <= SLOPES[1]:
        return None, np.zeros(len(count))
    return slope, mean_y - slope * mean_x


def _find_error(x: Real, y: Real, which: Whole) -> float:
    """The standard error of a slope that comes of the steps of `y`: warps that end together share theirs."""
    steps = np.diff(np.unique(y))
    step = float(steps.min()) if len(steps) else np.inf
    opens = np.flatnonzero(np.diff(which, prepend=-1))
    spans = np.maximum.reduceat(x, opens) - np.minimum.reduceat(x, opens)
    square = float(spans @ spans) / 2
    return step / math.sqrt(12 * square) if square else np.inf
