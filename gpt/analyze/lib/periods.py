"""Find the unit that a sequence of launches repeats, and thus the number of launches in an iteration, without asking
the user.

A program launches some kernels to warm up, then the same ones in the same order for each token or batch, with an odd
one here and there. For a *period* p, consider the runs of consecutive places i where s[i] = s[i + p]. A run of 2p or
more places is a *stretch*, in which a unit of p launches occurs at least three times. The iteration is the period whose
stretches cover most of the sequence. The layers of a model have a period, too, but its stretches don't include the
launches before and after the layers. An odd kernel ends the stretches of all periods; new ones begin after it, and
nothing else is lost. But if there are few iterations, an odd kernel costs a long period more than a short one. So a
longer period is preferred if it covers nearly as much, and each of its units contains launches that the shorter period
leaves out.

Which periods are tried? At some places, called anchors, the search looks for the next place that continues in the same
way as the anchor: first with one launch in common, then with more than the previously found place had. Within a
stretch, the distances to these places grow until they reach the period, at the latest when a complete unit is in
common. If such a distance is a period of the anchor's surroundings, it's tried on the whole sequence. So the search
takes about as long as comparing the sequence with a shifted copy of itself a few times. It misses stretches without an
anchor, but together these are less than a 16th of the sequence. It also misses units of more than WINDOW launches.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint32]
Places = npt.NDArray[np.int64]

SHARE = 0.5  # share of the sequence that the iterations must cover
REPEATS = 3  # minimum number of times that a unit occurs in a row
ANCHORS, FEW = 32, 4
NEARLY = 0.9  # how much a longer period must cover, as a share of the greatest coverage
ENOUGH = 0.95  # coverage of a period at which no more anchors are tried, after the first FEW
WINDOW = 1 << 17  # launches in the longest unit that's searched for
STEPS = 64  # distances to try at an anchor
BLOCK = 1 << 16  # launches compared at once
BLOCKS = 1 << 20  # launches compared at once on the whole sequence
BASE = np.uint64(0x9E3779B97F4A7C15)  # base of the polynomial; it must be odd
HALF = np.uint64(32)  # bits


class Sliced(Protocol):
    """The part of an array's interface that's used here. The launches needn't be in memory."""

    def __len__(self) -> int: ...

    def __getitem__(self, places: slice, /) -> Codes: ...


class Period(NamedTuple):
    """A unit of `length` launches, and the stretches in which it repeats: from each of `begins` up to `ends`."""

    length: int
    begins: Places
    ends: Places

    @property
    def covered(self) -> int:
        """Return the number of launches in the stretches."""
        return int((self.ends - self.begins).sum())

    @property
    def times(self) -> int:
        """Return how many times the complete unit occurs."""
        return int(((self.ends - self.begins) // self.length).sum())

    def after(self, first: int) -> Period:
        """Return the part of a period in which units begin at this place or later."""
        begins = self.begins + np.maximum(0, -((self.begins - first) // self.length)) * self.length
        whole = self.ends - begins >= self.length
        return Period(self.length, begins[whole], self.ends[whole])

    def shift(self, places: int) -> Period:
        """Return the period for a sequence that begins `places` earlier."""
        return Period(self.length, self.begins + places, self.ends + places)


def find_periods(codes: Codes | Sliced, repeats: int = REPEATS) -> list[Period]:
    """Return the units that occur at least `repeats` times in a row: the iteration first, then the others by coverage.

    With `repeats` = 2, check how much a unit covers, because short units often occur twice in a row by chance.
    """
    return Search(codes).find_periods(repeats)


class Search:
    """Searches a sequence for periods. What it learns about the anchors is the same for any number of repeats."""

    def __init__(self, codes: Codes | Sliced) -> None:
        self._codes = codes
        self._anchors = sorted({len(codes) * at // ANCHORS for at in range(ANCHORS)}) if len(codes) else []
        self._reach: dict[int, list[tuple[int, int]]] = {}  # by anchor

    def find_periods(self, repeats: int) -> list[Period]:
        """Do what find_periods does."""
        found: dict[int, Period] = {}
        for tried, anchor in enumerate(self._anchors, 1):
            if anchor not in self._reach:
                self._reach[anchor] = _find_reach(self._codes, anchor)
            for length, same in self._reach[anchor]:
                if same >= (repeats - 1) * length and length not in found:
                    found[length] = make_period(self._codes, length, repeats)
            most = max((period.covered for period in found.values()), default=0)
            if tried >= FEW and most >= ENOUGH * len(self._codes):
                break
        known = [period for period in found.values() if period.times]
        known.sort(key=lambda period: (-period.covered, period.length))
        outer = _find_outer(known)
        return sorted(known, key=lambda period: period is not outer)


def _find_outer(known: list[Period]) -> Period | None:
    """Return the first period, or a longer period with units that contain its units and other launches."""
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
    """Return how many launches are in stretches of both periods."""
    sums = np.append(0, np.cumsum(others.ends - others.begins))

    def before(places: Places) -> Places:
        at = np.searchsorted(others.begins, places)  # number of stretches that begin before each place
        last = np.append(0, others.ends)[at]
        found: Places = sums[at] - np.maximum(last - places, 0)
        return found

    return int((before(some.ends) - before(some.begins)).sum())


def make_period(codes: Codes | Sliced, length: int, repeats: int = REPEATS) -> Period:
    """Return a period with its stretches."""
    parts = [*_iter_stretches(codes, length, repeats)]
    begins, ends = np.concatenate(parts, axis=1)
    begins[1:] = np.maximum(begins[1:], ends[:-1])  # the end of a stretch may look like the start of the next
    whole = ends - begins >= length
    return Period(length, begins[whole], ends[whole])


def _iter_stretches(codes: Codes | Sliced, length: int, repeats: int) -> Iterator[Places]:
    """Yield the begins and ends of stretches, BLOCKS launches at a time."""
    began: int | None = None  # the start of a run that reaches the end of the previous block
    size = max(0, len(codes) - length)
    for at in range(0, size + 1, BLOCKS):  # at least once; includes the place after the last
        end = min(at + BLOCKS, size)
        same = np.zeros(end - at + 2, np.int8)
        same[0] = began is not None
        same[1:-1] = codes[at + length : end + length] == codes[at:end]
        same[-1] = same[-2] if end < size else 0
        edges = np.flatnonzero(same[1:] != same[:-1]) + at
        edges = edges if began is None else np.append(began, edges)
        began = int(edges[-1]) if len(edges) % 2 else None
        runs = edges[: len(edges) // 2 * 2].reshape(-1, 2).T
        runs = runs[:, runs[1] - runs[0] >= (repeats - 1) * length]
        yield runs + np.array([[0], [length]])


def split_units(codes: Codes | Sliced, period: Period) -> list[Period]:
    """Return one period for each unit, sorted by coverage, because the stretches of a period may repeat different units
    of the same length.

    A stretch can begin anywhere within its unit, so units are identified by a sum over their triples of launches, which
    is the same wherever they begin.
    """
    if not len(period.ends):
        return []
    _, which = np.unique(_add_triples(codes, period.ends, period.length), return_inverse=True)
    order = np.argsort(which, kind="stable")
    groups = np.split(order, np.flatnonzero(np.diff(which[order])) + 1)
    found = [Period(period.length, period.begins[group], period.ends[group]) for group in groups]
    return sorted(found, key=lambda one: (-one.covered, int(one.begins[0])))


def _add_triples(codes: Codes | Sliced, ends: Places, length: int) -> npt.NDArray[np.uint64]:
    """For each place, return the sum over the unit that ends there, modulo 2^64. Its stretch must begin at least two
    launches before that unit.
    """
    places = np.unique(np.concatenate((ends, ends - length)))
    sums = np.zeros(len(places), np.uint64)  # sums over the triples that end before each place
    total = np.uint64(0)
    for at in range(0, int(places[-1]), BLOCKS):
        first = max(0, at - 2)
        near: npt.NDArray[np.uint64] = np.concatenate(
            (np.zeros(first - at + 2, np.uint64), codes[first : at + BLOCKS].astype(np.uint64))
        )
        triples: npt.NDArray[np.uint64] = (near[2:] * BASE + near[1:-1]) * BASE + near[:-2]
        triples = (triples ^ (triples >> HALF)) * BASE  # otherwise the sums of many units would be equal
        running = np.concatenate((np.zeros(1, np.uint64), np.cumsum(triples ^ (triples >> HALF)))) + total
        here = slice(*np.searchsorted(places, (at, at + BLOCKS + 1)))
        sums[here] = running[places[here] - at]
        total = running[-1]
    found: npt.NDArray[np.uint64] = sums[np.searchsorted(places, ends)] - sums[np.searchsorted(places, ends - length)]
    return found


def find_steps(times: Places, period: Period) -> Places:
    """Return the duration of each complete unit, up to the next launch; a unit without a next launch has none. `times`
    are the times of all launches.
    """
    counts = (period.ends - period.begins) // period.length
    units = np.concatenate([np.zeros(0, np.int64), *(at for _, at in iter_units(period.begins, counts, period.length))])
    units = units[units + period.length < len(times)]
    took: Places = times[units + period.length] - times[units]
    return took


def iter_units(begins: Places, counts: Places, length: int) -> Iterator[tuple[Places, Places]]:
    """Yield stretches of complete units with the places at which their units begin, BLOCK units at a time."""
    ends = np.cumsum(counts)
    for at in range(0, int(counts.sum()), BLOCK):
        units = np.arange(at, min(at + BLOCK, int(ends[-1])))
        stretches = np.searchsorted(ends, units, side="right")
        yield stretches, begins[stretches] + (units - (ends - counts)[stretches]) * length


def _find_reach(codes: Codes | Sliced, anchor: int) -> list[tuple[int, int]]:
    """Return distances at which the launches around an anchor occur again, each with the number of consecutive launches
    for which that's true. A distance is a period if that number is large enough.
    """
    near = codes[anchor : anchor + 3 * WINDOW]
    places = np.flatnonzero(near[1 : WINDOW + 1] == near[0]) + 1  # where the anchor's launch occurs again
    found, same = [], 1  # launches that all places have in common with the anchor
    sums: PrefixHashes | None = None
    for _ in range(STEPS):
        if not len(places):
            break
        length = int(places[0])
        common = _count_same(near, near[length:])
        back = (codes[max(0, end - WINDOW) : end][::-1] for end in (anchor, anchor + length))
        found.append((length, common + _count_same(*back)))
        if common >= 2 * WINDOW or length + common >= len(near):
            break
        places = places[1:]
        places = places[places + common + 1 <= len(near)]
        if len(places) * (common + 1 - same) <= BLOCK:
            block = np.arange(same, common + 1)
            places = places[(near[places[:, None] + block] == near[block]).all(axis=1)]
        else:
            sums = hash_prefixes(near) if sums is None else sums
            places = sums.keep_same(places, same, common + 1)
        same = common + 1
    return found


def _count_same(some: Codes, others: Codes) -> int:
    """Return how many launches two sequences have in common at their beginning."""
    end = min(len(some), len(others))
    at, size = 0, 64
    while at < end:
        block = some[at : min(at + size, end)] != others[at : min(at + size, end)]
        if block.any():
            return at + int(block.argmax())
        at, size = at + len(block), min(2 * size, BLOCK)
    return end


class PrefixHashes(NamedTuple):
    """Hashes of the launches up to each place, as polynomials modulo 2^64.

    Two sequences of the same length are considered equal if their polynomials are. If the sequences differ after all, a
    period is tested and rejected.
    """

    powers: npt.NDArray[np.uint64]
    sums: npt.NDArray[np.uint64]

    def keep_same(self, places: Places, begin: int, end: int) -> Places:
        """Return the places where the launches from `begin` to `end` are the same as those at the anchor."""
        theirs = self.sums[places + end] - self.sums[places + begin]
        ours = self.sums[end : end + 1] - self.sums[begin : begin + 1]  # arrays: numbers warn where they overflow
        same: Places = places[theirs == ours * self.powers[places]]
        return same


def hash_prefixes(near: Codes) -> PrefixHashes:
    """Return the polynomials of all prefixes."""
    powers = np.full(len(near) + 1, BASE)
    powers[0] = 1
    np.cumprod(powers, out=powers)
    sums = np.zeros(len(near) + 1, np.uint64)
    np.cumsum((near.astype(np.uint64) + np.uint64(1)) * powers[:-1], out=sums[1:])
    return PrefixHashes(powers, sums)
