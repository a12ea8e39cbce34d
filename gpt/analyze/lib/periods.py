"""The unit that a sequence repeats: how many launches an iteration has, found and not asked for.

A program launches kernels to warm up, then the same ones in the same order for each token or batch, with an odd one
here and there. Of a *period* p, the places where s[i] = s[i + p] are runs; a run of 2p places or more is a *stretch*
in which a unit of p comes three times or more. The period whose stretches cover most of the sequence is that of the
iteration. The layers of a model have a period too, but its stretches leave out what comes before and after the
layers; an odd kernel ends a stretch of any period, and the next one begins after it: nothing else is lost. Where
iterations are few, an odd one among them costs more than that: a longer period that covers nearly as much, and in each
of its units launches that the shorter one leaves out, is that of the iteration.

Which periods are tried? At some places, anchors, it is asked where what follows the anchor comes again: first what has
one launch in common with it, and with each answer what has more in common than that. In a stretch these distances grow
to the period, at the latest when a whole unit is in common. A distance that is a period around its anchor is tried on
the whole sequence. So the time is that of a handful of comparisons of the sequence with itself, moved. What is around
no anchor is overlooked: stretches that together are less than a 16th of the sequence; and a unit of over WINDOW.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]

SHARE = 0.5  # of a sequence that the unit of its iterations covers
REPEATS = 3  # times that a unit comes one after the other
ANCHORS, FEW = 32, 4
NEARLY = 0.9  # of what the period that covers most does
ENOUGH = 0.95  # share that a period covers: no more anchors are asked then, but for the first few
WINDOW = 1 << 17  # launches of the longest unit that is looked for
STEPS = 64  # distances that are asked about at an anchor
BLOCK = 1 << 16  # launches that are compared at once
BLOCKS = 1 << 20  # the same, of the whole sequence
BASE = np.uint64(0x9E3779B97F4A7C15)  # of the polynomial, odd
HALF = np.uint64(32)  # bits


class Sliced(Protocol):
    """What of an array is looked at here: it need not be in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice, /) -> Codes: ...


class Period(NamedTuple):
    """A unit of `length`: the stretches in which it repeats, from their `begins` to before their `ends`."""

    length: int
    begins: Places
    ends: Places

    @property
    def covered(self) -> int:
        """Launches in the stretches."""
        return int((self.ends - self.begins).sum())

    @property
    def times(self) -> int:
        """How often the unit comes, whole."""
        return int(((self.ends - self.begins) // self.length).sum())


def find_periods(codes: Codes | Sliced) -> list[Period]:
    """The units that repeat themselves: the iteration, then that which covers most first."""
    found: dict[int, Period] = {}
    anchors = sorted({len(codes) * at // ANCHORS for at in range(ANCHORS)}) if len(codes) else []
    for tried, anchor in enumerate(anchors, 1):
        for length in _find_lengths(codes, anchor, found):
            found[length] = make_period(codes, length)
        if tried >= FEW and max((period.covered for period in found.values()), default=0) >= ENOUGH * len(codes):
            break
    known = [period for period in found.values() if period.times]
    known.sort(key=lambda period: (-period.covered, period.length))
    outer = _find_outer(known)
    return sorted(known, key=lambda period: period is not outer)


def _find_outer(known: list[Period]) -> Period | None:
    """The first, or a longer one that holds its units and more."""
    if not known:
        return None
    outer, most = known[0], known[0].covered
    near = [period for period in known if most > period.covered >= NEARLY * most]
    for period in sorted(near, key=lambda period: period.length):
        left_out = period.covered - _count_common(period, outer)
        if period.length > outer.length and left_out >= period.times:
            outer = period
    return outer


def _count_common(some: Period, others: Period) -> int:
    """Launches that are in stretches of both."""
    sums = np.append(0, np.cumsum(others.ends - others.begins))

    def before(places: Places) -> Places:
        at = np.searchsorted(others.begins, places)  # stretches that begin before each
        last = np.append(0, others.ends)[at]
        found: Places = sums[at] - np.maximum(last - places, 0)
        return found

    return int((before(some.ends) - before(some.begins)).sum())


def make_period(codes: Codes | Sliced, length: int) -> Period:
    """The stretches of a period."""
    parts = [*_iter_stretches(codes, length)]
    begins, ends = np.concatenate(parts, axis=1)
    begins[1:] = np.maximum(begins[1:], ends[:-1])  # the end of one may look like the beginning of the next
    whole = ends - begins >= length
    return Period(length, begins[whole], ends[whole])


def _iter_stretches(codes: Codes | Sliced, length: int) -> Iterator[Places]:
    """Begins and ends of the stretches, BLOCKS of launches at a time."""
    began: int | None = None  # the beginning of a run that reaches the end of the blocks before
    size = max(0, len(codes) - length)
    for at in range(0, size + 1, BLOCKS):  # at least once, and with a place after the last
        end = min(at + BLOCKS, size)
        same = np.zeros(end - at + 2, np.int8)
        same[0] = began is not None
        same[1:-1] = codes[at + length : end + length] == codes[at:end]
        same[-1] = same[-2] if end < size else 0
        edges = np.flatnonzero(same[1:] != same[:-1]) + at
        edges = edges if began is None else np.append(began, edges)
        began = int(edges[-1]) if len(edges) % 2 else None
        runs = edges[: len(edges) // 2 * 2].reshape(-1, 2).T
        runs = runs[:, runs[1] - runs[0] >= (REPEATS - 1) * length]
        yield runs + np.array([[0], [length]])


def split_units(codes: Codes | Sliced, period: Period) -> list[Period]:
    """Return a period for each unit, that which covers most first: stretches of one length may repeat different ones.

    A stretch can begin anywhere in its unit, so units are told apart by a sum over their triples of launches, which
    doesn't depend on where they begin.
    """
    if not len(period.ends):
        return []
    _, which = np.unique(_add_triples(codes, period.ends, period.length), return_inverse=True)
    order = np.argsort(which, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    found = [Period(period.length, period.begins[group], period.ends[group]) for group in groups]
    return sorted(found, key=lambda one: (-one.covered, int(one.begins[0])))


def _add_triples(codes: Codes | Sliced, ends: Places, length: int) -> npt.NDArray[np.uint64]:
    """Return a sum over the unit before each place, modulo 2^64; its stretch begins at least two launches earlier."""
    places = np.unique(np.concatenate((ends, ends - length)))
    sums = np.zeros(len(places), np.uint64)  # of the triples that end before each place
    total = np.uint64(0)
    for at in range(0, int(places[-1]), BLOCKS):
        first = max(0, at - 2)
        near: npt.NDArray[np.uint64] = np.concatenate(
            (np.zeros(first - at + 2, np.uint64), codes[first : at + BLOCKS].astype(np.uint64))
        )
        triples: npt.NDArray[np.uint64] = (near[2:] * BASE + near[1:-1]) * BASE + near[:-2]
        triples = (triples ^ (triples >> HALF)) * BASE  # or the sums of many units would be the same
        running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(triples ^ (triples >> HALF)))) + total
        here = slice(*np.searchsorted(places, (at, at + BLOCKS + 1)))
        sums[here] = running[places[here] - at]
        total = running[-1]
    found: npt.NDArray[np.uint64] = sums[np.searchsorted(places, ends)] - sums[np.searchsorted(places, ends - length)]
    return found


def find_steps(times: Places, begins: Places, counts: Places, length: int) -> Places:
    """How long each unit took, from its beginning to that of the next one in its stretch.

    Each stretch has one of `begins`, and so many whole units as `counts` says. `times` has when each launch began.
    """
    began = times[find_units(begins, counts, length)]
    stretch = np.repeat(np.arange(len(counts)), counts)
    took: Places = np.diff(began)[np.diff(stretch) == 0]
    return took


def find_units(begins: Places, counts: Places, length: int) -> Places:
    """The places at which whole units begin."""
    return np.concatenate([np.zeros(0, np.int64), *(places for _, places in iter_units(begins, counts, length))])


def iter_units(begins: Places, counts: Places, length: int) -> Iterator[tuple[Places, Places]]:
    """The stretches of whole units, and the places at which these begin, BLOCK units at a time."""
    ends = np.cumsum(counts)
    for at in range(0, int(counts.sum()), BLOCK):
        units = np.arange(at, min(at + BLOCK, int(ends[-1])))
        stretches = np.searchsorted(ends, units, side="right")
        yield stretches, begins[stretches] + (units - (ends - counts)[stretches]) * length


def _find_lengths(codes: Codes | Sliced, anchor: int, known: Container[int]) -> list[int]:
    """Periods of what is around an anchor, those aside that are known."""
    near = codes[anchor : anchor + 3 * WINDOW]
    places = np.flatnonzero(near[1 : WINDOW + 1] == near[0]) + 1  # where what follows comes again
    found, same = [], 1  # launches that these have in common with the anchor
    sums: PrefixHashes | None = None
    for _ in range(STEPS):
        if not len(places):
            break
        length = int(places[0])
        common = _count_same(near, near[length:])
        if length not in known:
            back = (codes[max(0, end - WINDOW) : end][::-1] for end in (anchor, anchor + length))
            before = _count_same(*back)
            if common + before >= (REPEATS - 1) * length:
                found.append(length)
        if common >= 2 * WINDOW or length + common >= len(near):
            break
        places = places[1:]
        places = places[places + common + 1 <= len(near)]
        if len(places) * (common + 1 - same) <= BLOCK:
            block = np.arange(same, common + 1)
            places = places[(near[places[:, None] + block] == near[block]).all(axis=1)]
        else:
            sums = _sum_up(near) if sums is None else sums
            places = sums.keep_same(places, same, common + 1)
        same = common + 1
    return found


def _count_same(some: Codes, others: Codes) -> int:
    """How many of the first are the same."""
    end = min(len(some), len(others))
    at, size = 0, 64
    while at < end:
        block = some[at : min(at + size, end)] != others[at : min(at + size, end)]
        if block.any():
            return at + int(block.argmax())
        at, size = at + len(block), min(2 * size, BLOCK)
    return end


class PrefixHashes(NamedTuple):
    """A polynomial of the launches up to each one, modulo 2^64: two sequences of one length are the same if theirs are.

    If they are not, a length is tried in vain.
    """

    powers: npt.NDArray[np.uint64]
    sums: npt.NDArray[np.uint64]

    def keep_same(self, places: Places, begin: int, end: int) -> Places:
        """Those of the places after which the launches from `begin` to before `end` are those of the beginning."""
        theirs = self.sums[places + end] - self.sums[places + begin]
        ours = self.sums[end : end + 1] - self.sums[begin : begin + 1]  # arrays: numbers warn where they overflow
        same: Places = places[theirs == ours * self.powers[places]]
        return same


def _sum_up(near: Codes) -> PrefixHashes:
    powers = np.full(len(near) + 1, BASE)
    powers[0] = 1
    np.cumprod(powers, out=powers)
    sums = np.zeros(len(near) + 1, np.uint64)
    np.cumsum((near.astype(np.uint64) + np.uint64(1)) * powers[:-1], out=sums[1:])
    return PrefixHashes(powers, sums)
