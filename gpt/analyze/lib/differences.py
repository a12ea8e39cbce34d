"""Decide whether a function or kernel differs between the runs of two sides by more than noise.

A different number of calls or bytes always counts as a difference. Times vary from call to call and from run to run.
With RUNS runs or more per side, the spread within a side is the noise: the means over m and n runs differ if they're
more than NOISE standard errors apart; the standard error is sqrt(a/m + b/n), where a and b are the variances between
runs. With fewer runs, only the calls within them show a spread, so the same rule is applied to m and n calls. A
difference of at most LITTLE of the mean always counts as noise, because clocks and temperature change.

A run that's far from the others of its side raises the variance, which can hide a difference that the other runs show.
Such outliers are found with the median and the median distance from it, which a single run hardly changes, and the
verdict names them.

A few very long calls raise the total, but also the variance, so a single run can't show that they aren't noise. But
they do cost time, so they count as SLOWEST if they change the time of the whole program. If there are too few runs, and
the time of the program changes by other calls, but by no more than calls vary, the result is UNSURE rather than noise:
all calls of a run may have been slow for the same reason.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpt.trace.durations import Durations

ONLY_A, ONLY_B, COUNT, SIZE, TIME, MEDIAN, SLOWEST, UNSURE, NOISE_ONLY, FEW_TIMES, NOT_TIMED, NOTHING = (
    "only in A", "only in B", "count", "bytes", "time", "median",
    "slowest", "unsure", "noise", "few times", "not timed", "nothing",
)  # fmt: skip
REAL = (ONLY_A, ONLY_B, COUNT, SIZE, TIME, MEDIAN, SLOWEST)
NOISE = 3.0  # standard errors
LITTLE = 0.02  # share of a mean
MUCH = 0.01  # a change is large if it's at least this share of the time in all calls
FAR = 2.0  # ratio from which the slowest calls of both sides differ
FEW, RUNS = 5, 3  # durations, and runs per side, that are enough to know their variance
OUTLYING, VISIBLE = (
    5.0,
    0.05,
)  # an outlier is this many standard deviations, and this share of the median, away from the median of the runs
SCALE = 1.4826  # standard deviation / median distance from the median, in a normal distribution
DIGITS = re.compile(r"\d+")


class RunSums:
    """One function or kernel in one run: the number of calls, the durations of timed calls in ns, and the bytes."""

    def __init__(self, number: int = 0, bytes_: float = 0.0) -> None:
        self.number = number
        self.bytes = bytes_
        self.times = Durations()

    def add(self, number: int, bytes_: float, times: Durations) -> None:
        """Add calls or launches."""
        self.number += number
        self.bytes += bytes_
        self.times.merge(times)


class Side(NamedTuple):
    """A function or kernel in the runs of one side."""

    runs: Sequence[RunSums]
    times: Durations  # durations in all runs

    @property
    def number(self) -> float:
        """Return the mean number of calls per run."""
        return mean_of(run.number for run in self.runs).mean

    @property
    def timed(self) -> float:
        """Return the mean number of timed calls per run."""
        return self.times.count / len(self.runs)

    @property
    def bytes(self) -> float:
        """Return the mean bytes per run."""
        return mean_of(run.bytes for run in self.runs).mean

    @property
    def total(self) -> float:
        """Return the mean ns per run."""
        return self.times.total / len(self.runs)


class Mean(NamedTuple):
    """The mean of some values, and the square of its standard error."""

    mean: float
    error: float


def mean_of(values: Iterable[float]) -> Mean:
    """Return the mean of one or more values."""
    found = [*values]
    mean = math.fsum(found) / len(found)
    spread = math.fsum((value - mean) ** 2 for value in found) / max(1, len(found) - 1)
    return Mean(mean, spread / len(found))


def is_apart(a: Mean, b: Mean) -> bool:
    """Return True if two means differ by more than noise."""
    return abs(a.mean - b.mean) > max(NOISE * math.sqrt(a.error + b.error), LITTLE * max(a.mean, b.mean))


def find_outliers(values: Sequence[float]) -> list[int]:
    """Return the indexes of values that are far from the others; none if there are fewer than RUNS."""
    if len(values) < RUNS:
        return []
    middle = statistics.median(values)
    spread = SCALE * statistics.median(abs(value - middle) for value in values)
    limit = max(OUTLYING * spread, VISIBLE * middle)
    return [at for at, value in enumerate(values) if abs(value - middle) > limit]


def make_side(runs: Sequence[RunSums]) -> Side:
    """Return the side that consists of these runs."""
    times = Durations()
    for run in runs:
        times.merge(run.times)
    return Side(runs, times)


def tell_difference(a: Side, b: Side, whole: float) -> str:
    """Return how two sides differ. `whole` is the time in ns that a run spends in everything that's compared."""
    several = min(len(a.runs), len(b.runs)) >= RUNS
    if not a.number or not b.number:
        return ONLY_B if b.number else ONLY_A
    if _values_differ([run.number for run in a.runs], [run.number for run in b.runs], several):
        return COUNT
    if _values_differ([run.bytes for run in a.runs], [run.bytes for run in b.runs], several):
        return SIZE
    if not a.times.count or not b.times.count:
        return NOT_TIMED if a.times.count or b.times.count else NOTHING
    if a.times.mean == b.times.mean and a.times.variance == b.times.variance == 0:
        return NOTHING
    if several:
        if is_apart(*(mean_of(run.times.mean for run in side.runs) for side in (a, b))):
            return TIME
        if is_apart(*(mean_of(run.times.percentile(0.5) for run in side.runs) for side in (a, b))):
            return MEDIAN
        return _tell_slowest(a, b, whole)
    if min(a.times.count, b.times.count) < FEW:
        return FEW_TIMES
    if is_apart(*(Mean(side.times.mean, side.times.variance / side.times.count) for side in (a, b))):
        return TIME
    found = MEDIAN if _medians_differ(a.times, b.times) else _tell_slowest(a, b, whole)
    return UNSURE if found == NOISE_ONLY and abs(b.total - a.total) > MUCH * whole else found


def _values_differ(a: Sequence[float], b: Sequence[float], several: bool) -> bool:
    """Return True if counts or bytes differ. With fewer than RUNS runs, they differ if the two sides have no value in
    common.
    """
    return is_apart(mean_of(a), mean_of(b)) if several else set(a).isdisjoint(b)


def _medians_differ(a: Durations, b: Durations) -> bool:
    """Return True if medians differ by more than noise."""
    lows, middles, highs = zip(*(
        [times.percentile(min(1.0, max(0.0, 0.5 + side * NOISE / 2 / math.sqrt(times.count)))) for side in (-1, 0, 1)]
        for times in (a, b)
    ), strict=True)  # fmt: skip
    return bool(max(lows) > min(highs)) and max(middles) - min(middles) > LITTLE * max(middles)


def _tell_slowest(a: Side, b: Side, whole: float) -> str:
    tails = ((times.percentile(0.99), times.largest) for times in (a.times, b.times))
    far: bool = any(max(pair) > FAR * min(pair) for pair in zip(*tails, strict=True))
    return SLOWEST if far and abs(b.total - a.total) > MUCH * whole else NOISE_ONLY


def pair_names(a: Iterable[str], b: Iterable[str]) -> dict[str, str]:
    """Return names under which kernels found on only one side should be compared: two kernels match if their names
    differ only in numbers.

    Programs number the kernels that they generate, as in triton_poi_fused_add_3, and not always in the same way.
    Numbers that distinguish the kernels of both sides in the same way, such as tile sizes, remain.
    """
    only = [sorted({*a} - {*b}), sorted({*b} - {*a})]
    shapes: list[dict[str, list[str]]] = [defaultdict(list), defaultdict(list)]
    for found, names in zip(shapes, only, strict=True):
        for name in names:
            if (shape := DIGITS.sub("#", name)) != name:
                found[shape].append(name)
    paired: dict[str, str] = {}
    for shape in shapes[0].keys() & shapes[1].keys():
        paired |= _pair_numbered(shape, shapes[0][shape], shapes[1][shape])
    return paired


def _pair_numbered(shape: str, a: list[str], b: list[str]) -> dict[str, str]:
    """Pair the names of one `shape` (equal except for numbers). Return them with only the numbers that both sides
    have.
    """
    numbers = [[*zip(*map(DIGITS.findall, names), strict=True)] for names in (a, b)]
    kept = [{*left} <= {*right} or {*right} <= {*left} for left, right in zip(*numbers, strict=True)]

    def shorten(name: str) -> str:
        keeps = iter(kept)
        return DIGITS.sub(lambda number: number[0] if next(keeps) else "#", name)

    both = {*map(shorten, a)} & {*map(shorten, b)}
    return {name: shorten(name) for name in (*a, *b) if shorten(name) in both} or dict.fromkeys((*a, *b), shape)
