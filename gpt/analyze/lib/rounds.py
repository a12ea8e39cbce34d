"""Find the rounds of a process: the unit of launches that it repeats, such as a pass through a model.

summary and stages both ask here, so they name the same launches and begin at the same one. A round is the longest unit
that covers the launches: two passes through a model are two rounds, although each has many equal layers. A unit that
comes only twice, which any two launches may do by chance, has to cover ALL of them.

A round could begin at any of its launches. It begins where the host takes its longest break, if that is clearly longer
than the one where the sequence begins to repeat, unless there would be one round fewer: in M F M F with a break after
each M, the round is M F, twice.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from gpt.analyze.lib.periods import SHARE, Codes, Period, Places, Sliced, find_periods, split_units

ALL = 0.98  # share of the launches that a unit which comes only twice must cover
SAMPLE = 1000  # rounds that are searched for breaks
MOST = 1 << 22  # launches that are searched for breaks


class Times(Protocol):
    """When launches began: the part of an array's interface that is used here."""

    def __getitem__(self, places: slice, /) -> Places: ...


class Rounds(NamedTuple):
    """The unit that's repeated, or None; `others` of the same length, and shorter ones `inside` that repeat as well."""

    unit: Period | None
    others: list[Period]
    inside: list[Period]


def find_rounds(codes: Codes | Sliced) -> Rounds:
    """Find the unit that makes up most launches. If several of one length do so only together, `others` has them."""
    periods, least = find_periods(codes), SHARE * len(codes)
    often = split_units(codes, periods[0]) if periods and periods[0].covered >= least else []
    unit, others = (often[0], often[1:]) if often and often[0].covered >= least else (None, often)
    for period in find_periods(codes, 2):
        twice = split_units(codes, period)[0]
        longer = not unit or (twice.length > unit.length and twice.covered > unit.covered)
        if longer and twice.length > 1 and twice.covered >= ALL * len(codes):
            unit, others = twice, []
            break
    if not unit:
        return Rounds(None, others, [])
    return Rounds(unit, others, [one for one in periods if one.length < unit.length and one.covered >= least])


def begin_at_break(codes: Codes | Sliced, times: Times, period: Period) -> Period:
    """Return the period with its first stretch beginning where a round does."""
    length, first = period.length, int(period.begins[0])
    longest = int((period.ends - period.begins).argmax())
    begin = int(period.begins[longest])
    begin += _find_break(times, begin, int(period.ends[longest]), length)
    moved = first + _find(codes[first : first + 2 * length], codes[begin : begin + length])
    left = int(period.ends[0])
    if (left - moved) // length < (left - first) // length:
        return period
    return period._replace(begins=np.append(moved, period.begins[1:]))


def _find_break(times: Times, begin: int, end: int, length: int) -> int:
    """Return how many launches into the stretch from `begin` to before `end` the host takes its longest break."""
    rounds = min((end - begin - 1) // length, SAMPLE, max(1, MOST // length))
    if not rounds:
        return 0
    waits = np.diff(times[begin : begin + rounds * length + 1]).reshape(rounds, length)
    usual = np.median(waits, axis=0)  # after each launch of the unit; the last is the wait before its first launch
    longest = int(usual.argmax())
    return (longest + 1) % length if usual[longest] >= 2 * usual[-1] else 0


def _find(codes: Codes, unit: Codes) -> int:
    """Return where a unit begins in a sequence that has it."""
    for at in np.flatnonzero(codes[: len(codes) - len(unit) + 1] == unit[0]).tolist():
        if np.array_equal(codes[at : at + len(unit)], unit):
            return int(at)
    return 0
