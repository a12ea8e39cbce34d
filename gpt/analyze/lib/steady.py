"""Find when a process becomes steady: the first repetition of its unit of launches that takes about as long as the
others.

The launches of a process repeat a unit (rounds.py). The first repetitions are often slower, because they load code,
choose algorithms or allocate memory, so they belong to the start-up.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpt.analyze.lib.numbers import Numbers
from gpt.analyze.lib.periods import Period, iter_units
from gpt.analyze.lib.rounds import begin_at_break, find_after
from gpt.analyze.lib.sequence import Whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpt.analyze.lib.short_calls import Tapes

USUAL = 2  # how long a steady unit may take, as a multiple of the median
STEPS = "steps"


class Steady(NamedTuple):
    """The unit that a process repeats. Times are in ns: when its first steady repetition begins, how long repetitions
    usually take, and how long the very first one took.
    """

    period: Period
    begin: int
    skipped: int  # number of repetitions before the first steady one
    usual: float
    first: int


def find_unit(tapes: Tapes) -> Period | None:
    """Return the unit of launches that a process repeats, or None."""
    codes = tapes.codes(0)
    unit = find_after(codes, partial(max, 0, tapes.again[2] + 1)).unit
    return begin_at_break(codes, tapes.starts(0), unit) if unit else None


def iter_steps(tapes: Tapes, period: Period) -> Iterator[tuple[Whole, Whole, Whole]]:
    """Yield the launches that begin repetitions, when they begin, and how long each repetition takes until the next
    launch.

    The last repetition is left out unless a launch follows it. Durations exclude time that wasn't recorded.
    """
    counts = (period.ends - period.begins) // period.length
    for _, places in iter_units(period.begins, counts, period.length):
        known = places[places + period.length < len(tapes.launches)]
        starts = tapes.launches.take(known)["start"]
        until = tapes.launches.take(known + period.length)["start"]
        yield known, starts, until - starts - tapes.unrecorded.within(starts, until)


def find_steady(tapes: Tapes) -> Steady | None:
    """Return the unit of a process and when it becomes steady, or None if nothing repeats."""
    period = find_unit(tapes)
    if period is None:
        return None
    took = Numbers()
    first: int | None = None
    for _, _, times in iter_steps(tapes, period):
        took.add(STEPS, times)
        first = int(times[0]) if first is None and len(times) else first
    if first is None:
        return None
    usual, skipped = took.median(STEPS), 0
    for _, starts, times in iter_steps(tapes, period):
        good = np.flatnonzero(times <= USUAL * usual)
        if len(good):
            return Steady(period, int(starts[good[0]]), skipped + int(good[0]), usual, first)
        skipped += len(times)
    return None
