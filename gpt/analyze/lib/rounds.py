"""Find the rounds of a process: repetitions of a unit of launches, such as a pass through a model.

summary and stages both use this, so they name the same launches and begin at the same one. A round is the longest unit
that covers the launches: two passes through a model are two rounds, although each has many equal layers. A unit that
occurs only twice may be a coincidence, so it must cover ALL of the launches. If nothing repeats throughout the
sequence, only the launches after the warm-up are searched. The warm-up ends when every kernel that recurs has been
launched once: a program that captures a graph first launches kernels, and then the graph.

A repetition could begin at any of its launches. We let it begin after the host's longest pause, provided
that this pause is clearly longer than the one before the first launch of the repetition, and that no round is lost: if
there's a pause after each M in M F M F, the round is M F, twice.

From the first round on, every complete sequence of the round's launches counts, so a reader who counts them gets the
same number. If threads launch at the same time, a launch of one thread may interrupt a round of another thread, which
then doesn't count; count_in_threads looks at each thread separately.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.periods import (
    BLOCKS,
    REPEATS,
    SHARE,
    Codes,
    Period,
    Places,
    Search,
    Sliced,
    hash_prefixes,
    split_units,
)
from gpt.trace.rows import iter_groups

ALL = 0.98  # minimum coverage of a unit that occurs only twice
LITTLE = 1000  # a warm-up shorter than 1 / LITTLE of the sequence makes no difference
SAMPLE = 1000  # number of rounds in which pauses are measured
MOST = 1 << 22  # number of launches between which pauses are measured
INTERLEAVED = "{} if the launches of each thread are counted alone, as threads interleave"


class Times(Protocol):
    """Launch times: the part of an array's interface that's used here."""

    def __getitem__(self, places: slice, /) -> Places: ...


class Rounds(NamedTuple):
    """The repeated `unit`, or None; `others` of the same length; shorter units that repeat `inside` it; and the largest
    number of launches that units of any length cover.
    """

    unit: Period | None
    others: list[Period]
    inside: list[Period]
    most: int


def find_rounds(codes: Codes | Sliced) -> Rounds:
    """Find the unit that makes up most of the launches. If it takes several units of the same length to do so, there's
    no unit, and they're in `others`.
    """
    search, least = Search(codes), SHARE * len(codes)
    periods = search.find_periods(REPEATS)
    often = split_units(codes, periods[0]) if periods and periods[0].covered >= least else []
    unit, others = (often[0], often[1:]) if often and often[0].covered >= least else (None, often)
    twice_or_more = search.find_periods(2)
    most = max((period.covered for period in twice_or_more), default=0)
    for period in twice_or_more:
        if period.covered < ALL * len(codes) or period.length <= (unit.length if unit else 1):
            continue
        twice = split_units(codes, period)[0]
        if twice.covered >= ALL * len(codes) and (not unit or twice.covered > unit.covered):
            unit, others = twice, []
            break
    if not unit:
        return Rounds(None, others, [], most)
    inside = [one for one in periods if one.length < unit.length and one.covered >= least]
    return Rounds(unit, others, inside, most)


def find_after(codes: Codes | Sliced, count_warm: Callable[[], int]) -> Rounds:
    """Find rounds in the whole sequence, or, if nothing repeats there, after the warm-up."""
    found = find_rounds(codes)
    if found.unit or found.others:
        return found
    warm = count_warm()
    if warm * LITTLE < len(codes) or found.most < SHARE * (len(codes) - warm):
        return found
    late = find_rounds(Rest(codes, warm))
    others, inside = ([one.shift(warm) for one in some] for some in (late.others, late.inside))
    return Rounds(late.unit and late.unit.shift(warm), others, inside, late.most)


class Rest:
    """The part of a sequence from some place on."""

    def __init__(self, codes: Codes | Sliced, first: int) -> None:
        self._codes, self._first = codes, first

    def __len__(self) -> int:
        return len(self._codes) - self._first

    def __getitem__(self, places: slice) -> Codes:
        start, stop, _ = places.indices(len(self))
        return self._codes[self._first + start : self._first + stop]


def begin_at_break(codes: Codes | Sliced, times: Times, period: Period) -> Period:
    """Shift a period so that its units begin at a pause, and return stretches of complete units."""
    length, first = period.length, int(period.begins[0])
    longest = int((period.ends - period.begins).argmax())
    begin = int(period.begins[longest])
    moved = begin + _find_break(times, begin, int(period.ends[longest]), length)
    plain = _find_from(codes, codes[first : first + length], first)
    if np.array_equal(codes[moved : moved + length], codes[first : first + length]):
        return plain
    found = _find_from(codes, codes[moved : moved + length], first)
    return found if found.times >= plain.times else plain


def _find_from(codes: Codes | Sliced, unit: Codes, first: int) -> Period:
    """Return the occurrences of a unit from launch `first` on, including any that end right before the stretch."""
    found = find_all(codes, unit, first)
    if len(found.begins):
        begin = int(found.begins[0])
        while begin >= len(unit) and np.array_equal(codes[begin - len(unit) : begin], unit):
            begin -= len(unit)
        found.begins[0] = begin
    return found


def find_all(codes: Codes | Sliced, unit: Codes, first: int) -> Period:
    """Return the stretches of complete units from launch `first` on. Units don't overlap."""
    begins: list[int] = []
    ends: list[int] = []
    for places in _iter_places(codes, unit, first):
        edges = np.flatnonzero(np.diff(places) != len(unit)) + 1
        begin, end = places[np.append(0, edges)], places[np.append(edges - 1, len(places) - 1)] + len(unit)
        if ends and ends[-1] == begin[0]:
            ends[-1], begin, end = int(end[0]), begin[1:], end[1:]
        begins += begin.tolist()
        ends += end.tolist()
    return Period(len(unit), np.array(begins, np.int64), np.array(ends, np.int64))


def count_in_threads(codes: Codes, threads: npt.NDArray[Any], unit: Codes) -> int:
    """Return how often a unit occurs if the launches of each thread are examined separately."""
    return sum(find_all(codes[own], unit, 0).times for _, own in iter_groups(threads))


def _iter_places(codes: Codes | Sliced, unit: Codes, first: int) -> Iterator[Places]:
    """Yield the places where a unit begins, BLOCKS launches at a time."""
    length, free = len(unit), first  # `free` is where the last unit ends
    for at in range(first, len(codes) - length + 1, BLOCKS):
        near = codes[at : at + BLOCKS + length - 1]
        places = np.flatnonzero((near[: len(near) - length + 1] == unit[0]) & (near[length - 1 :] == unit[-1]))
        if length > 2 and len(places):
            both = hash_prefixes(np.concatenate((unit, near)))
            places = both.keep_same(places + length, 0, length) - length
        places += at
        if len(places) and (places[0] < free or (np.diff(places) < length).any()):
            kept = []
            for place in places.tolist():
                if place >= free:
                    kept.append(place)
                    free = place + length
            places = np.array(kept, np.int64)
        if len(places):
            free = int(places[-1]) + length
            yield places


def _find_break(times: Times, begin: int, end: int, length: int) -> int:
    """Return the position, within the unit, of the launch after the host's longest pause. The stretch is from `begin`
    to `end`.
    """
    rounds = min((end - begin - 1) // length, SAMPLE, max(1, MOST // length))
    if not rounds:
        return 0
    waits = np.diff(times[begin : begin + rounds * length + 1]).reshape(rounds, length)
    usual = np.median(waits, axis=0)  # after each launch of the unit; the last is the wait before its first launch
    longest = int(usual.argmax())
    return (longest + 1) % length if usual[longest] >= 2 * usual[-1] else 0
