"""Compute times that can be compared across SMs, and a bound for their error.

Each SM has its own clock, and any two can differ by any amount. A timer that all SMs share advances in steps, which are
too coarse to time single instructions. So probes record *pairs*: an SM's clock and the timer, read one right after the
other.

The same rate, in ns per clock, is used for all SMs: the slope of the lines through the pairs of each SM. In a short
launch, the steps of the timer make the slope uncertain, by a factor of ten if all warps end together; then the highest
clock rate of the device is used. Each SM also gets an offset, which is a mean over its pairs.

How large can the error of the difference of two SMs' times be? The timer is late by less than a step, but equally on
all SMs, so this counts once. For each of the two SMs, add

- the largest distance of its line from one of its pairs: the *drift* of its clock, and what the step adds to it;
- for clocks before its first pair or after its last one, the error of the rate times the distance to that pair. The SMs
  whose pairs are far apart limit that error: each of their rates is known to within a step at both ends.

The bound holds if the rate of a clock is constant from one pair to the next. If a warp is interrupted between the two
readings of a pair, that counts as drift.
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

LIMIT = np.uint64(1 << 60)  # clocks and ns: larger values are invalid
SLOPES = 0.1, 10.0  # ns per clock: 10 GHz, 100 MHz
EXACT = 0.02  # a slope with a larger standard error, relative to the slope, isn't used
FAR = 0.5  # SMs whose pairs are this far apart, as a share of the longest distance, limit the error of the rate


class Fit(NamedTuple):
    """Lines through pairs: the time at clock x of an SM is `rate` * x + `offsets[SM]`, in ns.

    `rate` is None if no line fits. `bound` is the largest error of the difference of two SMs' times, in ns, which
    includes a `step` of the timer, and drift; it's None if the pairs don't show it.
    """

    rate: float | None
    offsets: Real
    step: float | None = None
    bound: float | None = None


def highest_rate(card: Mapping[str, Any]) -> float:
    """Return the ns per clock at the highest clock rate of a device, or 1e9 if that isn't known."""
    return 1e9 / (card.get("clock_hz") or 1)


def describe_bound(step: float | None, bound: float | None) -> str:
    """Return a sentence that says how well the clocks of SMs are aligned."""
    if step is None or bound is None:
        return "the clocks of SMs are aligned, but the error isn't known"
    return f"SMs are aligned within {human_time(bound)}: step {human_time(step)}, drift {human_time(bound - step)}"


def fit_pairs(x: Real, y: Real, which: Whole, highest: float, first: Real, last: Real) -> Fit:
    """Fit lines to pairs (x, y) of clocks and ns; `which` has the index of each pair's SM.

    The pairs are sorted by SM. `highest` is the slope at the device's highest clock rate. `first` and `last` are the
    first and last clocks of each SM for which times are needed.
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
    """Return the standard error of a slope that is due to the timer's steps. Warps that end together share one
    error.
    """
    square = float(spans @ spans) / 2
    return step / math.sqrt(12 * square) if square else math.inf


def _find_rate_error(x: Real, y: Real, which: Whole, spans: Real, rate: float, step: float) -> float:
    """Return the largest error of the rate on any SM, in ns per clock."""
    if not spans.any():
        return math.inf
    order = np.lexsort((y, x, which))
    opens = np.flatnonzero(np.diff(which, prepend=-1))
    ends = np.append(opens[1:], len(which)) - 1
    far = spans >= FAR * spans.max()
    rose = (y[order][ends] - y[order][opens])[far]
    return float(max(((rose + step) / spans[far]).max() - rate, rate - ((rose - step) / spans[far]).min()))


class SmClocks:
    """Converts the clocks of the SMs in a launch to times, using pairs from the log that has the clocks.

    `rate` is None if the clocks can't be aligned.
    """

    def __init__(self, pairs: ClockPairs, first: Any, last: Any, highest: float) -> None:
        """Align the clocks. `first` and `last` are the clocks of each SM's first and last records, by SM number."""
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
        """Return the times, in ns, at these clocks of these SMs."""
        assert self.rate is not None
        times: Real = _signed(clock - self._base[sm]) * self.rate + self._offset[sm]
        return times


def _signed(distance: npt.NDArray[np.uint64]) -> Real:
    return distance.view(np.int64).astype(float)
