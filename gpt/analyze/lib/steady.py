"""Find the first steady unit: the first repetition of the unit that takes about as long as the others.

The launches of a process repeat a unit (rounds.py). Its first repetitions are often slower, since they load code,
choose algorithms or allocate memory: they belong to the start of the program.
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

USUAL = 2  # longest time of a steady unit, as a multiple of the median
STEPS = "steps"


class Steady(NamedTuple):
    """The repeated unit, in ns: when it's first `steady`, how long it usually takes, and how long it took at first."""

    period: Period
    begin: int
    skipped: int  # repetitions before it
    usual: float
    first: int


def find_unit(tapes: Tapes) -> Period | None:
    """Return the unit of launches that a process repeats, or None."""
    codes = tapes.codes(0)
    unit = find_after(codes, partial(max, 0, tapes.again[2] + 1)).unit
    return begin_at_break(codes, tapes.starts(0), unit) if unit else None


def iter_steps(tapes: Tapes, period: Period) -> Iterator[tuple[Whole, Whole, Whole]]:
    """Yield the launches that begin repetitions, when these begin, and how long each takes until the next launch.

    The last repetition has a time only if a launch follows it. Time that wasn't recorded doesn't count.
    """
    counts = (period.ends - period.begins) // period.length
    for _, places in iter_units(period.begins, counts, period.length):
        known = places[places + period.length < len(tapes.launches)]
        starts = tapes.launches.take(known)["start"]
        until = tapes.launches.take(known + period.length)["start"]
        yield known, starts, until - starts - tapes.unrecorded.within(starts, until)


def find_steady(tapes: Tapes) -> Steady | None:
    """Return the first steady unit of a process, or None if nothing repeats."""
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
