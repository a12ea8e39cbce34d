"""Compute times that can be compared across SMs, and a bound for their error.

Problem: each SM has its own clock, and they differ by any number. A timer that all SMs share advances in steps, which
are too coarse to time single instructions. So probes record *pairs*: an SM's clock and the timer, read one right after
the other.

All SMs get the same rate, in ns per clock: the slope of the lines through the pairs of each SM. In a short launch, the
timer's steps leave the slope uncertain, by a factor of ten if its warps end together; then the device's highest clock
rate is used. Each SM gets an offset, which is the mean over its pairs.

How wrong is the difference of two SMs' times at most? The timer is late by less than a step, but equally on all SMs, so
it counts once. To that, each SM adds

- the largest distance of its line from one of its pairs: the *drift* of its clock, and what the step adds to it;
- for clocks before its first pair or after its last one, the error of the rate times the distance to that pair. The
  rates of the SMs whose pairs are far apart limit that error: each is known to a step at both ends.

This holds if a clock's rate is constant from one pair to the next. If a warp is stopped between the two readings of a
pair, that counts as drift.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.screen.units import human_time
from gpt.trace.rooms import ClockPairs

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]

LIMIT = np.uint64(1 << 60)  # clocks, ns: larger values are nonsense
SLOPES = 0.1, 10.0  # ns per clock: 10 GHz, 100 MHz
EXACT = 0.02  # greatest standard error of a usable slope, as a share of it
FAR = 0.5  # SMs whose pairs are this far apart, as a share of the longest distance, limit the error of the rate


class Fit(NamedTuple):
    """The time at clock x on an SM is `rate` * x + `offsets[SM]`, in ns.

    `rate` is None if no line fits. The difference of two SMs' times is wrong by at most `bound` ns, which consists of
    a `step` of the timer and of drift; it's None if the pairs don't tell.
    """

    rate: float | None
    offsets: Real
    step: float | None = None
    bound: float | None = None


def highest_rate(card: Mapping[str, Any]) -> float:
    """Return the ns per clock at a device's highest clock rate; 1e9 if it isn't known."""
    return 1e9 / (card.get("clock_hz") or 1)


def describe_bound(step: float | None, bound: float | None) -> str:
    """Say how well the clocks of SMs are aligned."""
    if step is None or bound is None:
        return "the clocks of SMs are aligned, but the error isn't known"
    return f"SMs are aligned within {human_time(bound)}: step {human_time(step)}, drift {human_time(bound - step)}"


def fit_pairs(x: Real, y: Real, which: Whole, highest: float, first: Real, last: Real) -> Fit:
    """Return the lines through pairs (x, y) of clocks and ns, of the SMs with the indexes `which`.

    The pairs are sorted by SM. `highest` is the slope at the device's highest clock rate; `first` and `last` are each
    SM's first and last clocks that times are needed for.
    """
    count = np.bincount(which)
    mean_x, mean_y = np.bincount(which, x) / count, np.bincount(which, y) / count
    dx, dy = x - mean_x[which], y - mean_y[which]
    square = float(dx @ dx)
    rate = float(dx @ dy) / square if square else 0.0
    steps = np.diff(np.unique(y))
    step = float(steps.min()) if len(steps) else math.inf
    opens = np.flatnonzero(np.diff(which, prepend=-1))
    low, high = np.minimum.reduceat(x, opens), np.maximum.reduceat(x, opens)
    if SLOPES[0] <= highest <= SLOPES[1] and _find_error(high - low, step) > EXACT * abs(rate):
        rate = highest
    if not SLOPES[0] <= rate <= SLOPES[1]:
        return Fit(None, np.zeros(len(count)))
    offsets = mean_y - rate * mean_x
    if not math.isfinite(step):
        return Fit(rate, offsets)
    drift = np.maximum.reduceat(np.abs(dy - rate * dx), opens)
    beyond = np.maximum(np.maximum(low - first, last - high), 0)
    if beyond.any():
        drift = drift + beyond * _find_rate_error(x, y, which, high - low, rate, step)
    bound = step + 2 * float(drift.max())
    return Fit(rate, offsets, step, bound if math.isfinite(bound) else None)


def _find_error(spans: Real, step: float) -> float:
    """Return the standard error of a slope that comes from the timer's steps; warps that end together share one
    error.
    """
    square = float(spans @ spans) / 2
    return step / math.sqrt(12 * square) if square else math.inf


def _find_rate_error(x: Real, y: Real, which: Whole, spans: Real, rate: float, step: float) -> float:
    """Return by how many ns per clock the rate is wrong at most, for any SM."""
    if not spans.any():
        return math.inf
    order = np.lexsort((y, x, which))
    opens = np.flatnonzero(np.diff(which, prepend=-1))
    ends = np.append(opens[1:], len(which)) - 1
    far = spans >= FAR * spans.max()
    rose = (y[order][ends] - y[order][opens])[far]
    return float(max(((rose + step) / spans[far]).max() - rate, rate - ((rose - step) / spans[far]).min()))


class SmClocks:
    """The clocks of the SMs in a launch, given pairs from the log that the times are needed for.

    `rate` is None if they can't be aligned.
    """

    def __init__(self, pairs: ClockPairs, first: Any, last: Any, highest: float) -> None:
        """`first` and `last` are the clocks of each SM's first and last records, by its number."""
        self.fit, self.rate = Fit(None, np.zeros(0)), None
        here = pairs.sm < len(first)
        sm, clock, time = pairs.sm[here].astype(np.int64), pairs.clock[here], pairs.time[here]
        used = np.flatnonzero(last >= first)
        if not len(sm) or not np.isin(used, sm).all() or not time.any():
            return
        order = np.lexsort((clock, sm))
        sm, clock, time = sm[order], clock[order], time[order]
        sms, opens, which = np.unique(sm, return_index=True, return_inverse=True)
        self._base, self._offset = np.zeros(len(first), np.uint64), np.zeros(len(first))
        self._base[sms] = clock[opens]
        x = np.minimum(clock - clock[opens][which], LIMIT).astype(float)
        y = np.minimum(time - time.min(), LIMIT).astype(float)
        ends = [_signed(np.where(last >= first, end, self._base) - self._base)[sms] for end in (first, last)]
        self.fit = fit_pairs(x, y, which, highest, *ends)
        self.rate = self.fit.rate
        self._offset[sms] = self.fit.offsets

    def times(self, sm: Any, clock: Any) -> Real:
        """Return the times in ns at clocks of SMs."""
        assert self.rate is not None
        times: Real = _signed(clock - self._base[sm]) * self.rate + self._offset[sm]
        return times


def _signed(distance: npt.NDArray[np.uint64]) -> Real:
    return distance.view(np.int64).astype(float)
