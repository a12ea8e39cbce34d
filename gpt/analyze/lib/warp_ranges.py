"""Find the ranges of warps in the rings of probed launches, for timelines.

A range begins with a record of `RANGE begin` and ends with the next record of `RANGE end` with the same name from the
same lane; a range that begins in between has its end first. If another lane saves for the warp by then, because the
first one has left or the warp has diverged, there's no such record, and the end may be in the other lane's ring. A ring
keeps a lane's last records, so the first ends may lack their begin. The warps of a block run on one SM, so their clocks
are comparable without an error. Blocks on other SMs are aligned as sm_clocks.py describes. None of these clocks is the
trace's, so the first lane that saved something, even if it was overwritten, is assumed to have done so when the kernel
began.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.density import MOST_SMS
from gpt.analyze.lib.sm_clocks import SLOPES, SmClocks, describe_bound, highest_rate
from gpt.base.errors import GptError
from gpt.screen.units import amount
from gpt.timeline.tracks import NO_WARP, WARP_RANGE, WarpRanges

if TYPE_CHECKING:
    from gpt.timeline.saved import Ran
    from gpt.trace.buffers import Buffer, SavedBuffer

Whole = npt.NDArray[np.int64]

MOST_UNITS = 1024  # warps for each launch, which become rows of a timeline
MOST = float(1 << 60)  # ns
MISSING = {  # the noun for a count, and the rest of the sentence
    "overwritten": ("record", "overwritten by later ones: 'ring' in the probe file says how many are kept"),
    "dropped": ("record", "dropped, because the log had no room for another ring"),
    "begun": ("range", "not drawn, because no end was recorded"),
    "ended": ("range", "not drawn, because no begin was recorded, or it was overwritten"),
    "units": ("warp", f"not drawn: a launch has room for {MOST_UNITS:,}"),
    "guessed": ("launch", "placed where the call or the graph begins, because the time of the kernel is not known"),
    "unaligned": ("launch", "with clocks that cannot be aligned: the ranges of each SM begin with the kernel"),
    "unread": ("launch", "not read"),
}


class _Pairs(NamedTuple):
    """The indexes of the records that begin and end the ranges of a launch."""

    begins: list[int]
    ends: list[int]


def find_warp_ranges(launches: Iterable[Ran]) -> WarpRanges:
    """Return the ranges in these launches."""
    names: dict[str, int] = {}
    missing, bounds, parts = Counter[str](), list[tuple[float, str]](), [np.zeros(0, WARP_RANGE)]
    for ran in launches:
        for buffer in ran.launch.buffers.values():
            if not buffer.map.has_ranges or buffer.unsaved:
                continue
            try:
                saved = buffer.read()
            except GptError:
                missing["unread"] += 1
                continue
            missing.update(overwritten=saved.overwritten, dropped=saved.dropped)
            if saved.pairs is not None and saved.pairs.sm.max(initial=0) >= MOST_SMS:
                missing["unread"] += 1
            elif len(saved.slots):
                missing["guessed"] += not ran.exact
                parts.append(_find(ran, buffer, saved, names, missing, bounds))
    told = [f"ranges of warps: {amount(missing[what], unit)} {fact}" for what, (unit, fact) in MISSING.items()
            if missing[what]]  # fmt: skip
    return WarpRanges(np.concatenate(parts), list(names), told, max(bounds, default=(0.0, ""))[1])


def choose_blocks(found: WarpRanges) -> WarpRanges:
    """Return only the ranges of the first block that has any in each stream, for a timeline without room for more."""
    rows = found.rows
    streams, which = np.unique(rows[["process", "device", "stream"]], return_inverse=True)
    first = np.full(len(streams), np.iinfo(np.uint64).max, np.uint64)
    np.minimum.at(first, which, rows["block"])
    return found._replace(rows=rows[rows["block"] == first[which]])


def _find(
    ran: Ran,
    buffer: Buffer,
    saved: SavedBuffer,
    names: dict[str, int],
    missing: Counter[str],
    bounds: list[tuple[float, str]],
) -> npt.NDArray[np.void]:
    assert saved.units is not None
    launch, titles = ran.launch, buffer.map.ranges
    units, which = np.unique(saved.units, return_inverse=True)
    missing["units"] += max(0, len(units) - MOST_UNITS)
    times = ran.begin + _find_times(saved, highest_rate(launch.process.cards.get(launch.device, {})), missing, bounds)
    pairs = _pair(which, saved, buffer.map.ring or 0, len(titles), missing)
    rows = np.zeros(len(pairs.begins), WARP_RANGE)
    rows["begin"], rows["end"] = times[pairs.begins], times[pairs.ends]
    rows["process"], rows["device"], rows["stream"] = ran.process, launch.device, launch.stream
    unit = saved.units[pairs.begins]
    warps = np.uint64(buffer.map.units(launch.threads))
    rows["block"] = unit // warps
    rows["warp"] = unit % warps if buffer.map.level == "warp" else NO_WARP
    numbers = np.array([names.setdefault(title, len(names)) for title in titles], np.uint32)
    rows["name"] = numbers[saved.slots["range"][pairs.begins] // 2]
    rows["number"] = saved.slots["number"][pairs.begins]
    return rows


def _find_times(
    saved: SavedBuffer, highest: float, missing: Counter[str], bounds: list[tuple[float, str]]
) -> npt.NDArray[np.int64]:
    """Return the time of each record, in ns since the first lane of the launch saved something."""
    slots, pairs = saved.slots, saved.pairs
    assert pairs is not None
    sm, clock = slots["sm"].astype(np.int64), slots["clock"]
    first = np.full(MOST_SMS, np.iinfo(np.uint64).max, np.uint64)
    last = np.zeros(len(first), np.uint64)
    for each, clocks in ((sm, clock), (pairs.sm, pairs.clock)):
        np.minimum.at(first, each, clocks)
        np.maximum.at(last, each, clocks)
    aligned = SmClocks(pairs, first, last, highest)
    several = int(np.count_nonzero(last >= first)) > 1
    if aligned.rate is None:
        missing["unaligned"] += several
        rate = highest if SLOPES[0] <= highest <= SLOPES[1] else 1.0
        found = (clock - first[sm]).astype(float) * rate
    else:
        found = aligned.times(sm, clock) - aligned.times(pairs.sm.astype(np.int64), pairs.clock).min()
        if several:
            bounds.append((aligned.fit.bound or np.inf, describe_bound(aligned.fit.step, aligned.fit.bound)))
    return np.rint(np.clip(found, 0, MOST)).astype(np.int64)


def _pair(units: Whole, saved: SavedBuffer, ring: int, names: int, missing: Counter[str]) -> _Pairs:
    """Find the end of each range. The records of a unit, which is an index, are in order."""
    ranges, lanes, found = saved.slots["range"], saved.lanes, _Pairs([], [])
    assert lanes is not None
    lone = _pair_places(np.flatnonzero((units < MOST_UNITS) & (ranges // 2 < names)), lanes, ranges, found)
    is_end = ranges[lone] % 2 == 1
    cut = is_end & (np.bincount(lanes)[lanes[lone]] >= ring)  # these begins may have been overwritten
    rest = _pair_places(lone[~cut], units, ranges, found)
    ends = int((ranges[rest] % 2).sum())
    missing.update(ended=ends + int(cut.sum()), begun=len(rest) - ends)
    return found


def _pair_places(places: Whole, owners: Whole, ranges: npt.NDArray[np.uint32], found: _Pairs) -> Whole:
    """Find the end of each range among the records at these places, if its begin has the same owner. Return the places
    that are left over, in order.
    """
    open_ = defaultdict[tuple[int, int], list[int]](list)
    lone: list[int] = []
    for place, owner, edge in zip(places.tolist(), owners[places].tolist(), ranges[places].tolist(), strict=True):
        name, is_end = divmod(edge, 2)
        stack = open_[owner, name]
        if not is_end:
            stack.append(place)
        elif stack:
            found.begins.append(stack.pop())
            found.ends.append(place)
        else:
            lone.append(place)
    return np.sort(np.array([*lone, *(place for stack in open_.values() for place in stack)], np.int64))
