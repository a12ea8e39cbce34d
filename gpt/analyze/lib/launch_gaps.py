"""Find the gaps between launches: for each thread, how long it was until its next launch, and the longest of these
gaps.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.gap_lengths import GapLengths
from gpt.analyze.lib.sequence import LAUNCH, CallTable, Groups, IdleWaits, NextLaunches
from gpt.trace.unrecorded import Unrecorded

TOP = 10  # gaps kept per thread
LONG = 100_000_000  # minimum ns of a long gap
WAITS = "waits"  # the group of the gaps after waits; the other groups are threads


class Meanwhile(NamedTuple):
    """The calls that a thread made between two launches: how many ns they took in total, how many ns the longest one
    took, and its function (None if there were no calls).
    """

    time: float
    longest: float
    api: int | None


class Gap(NamedTuple):
    """A gap of `time` ns between two consecutive launches of a thread. `after` and `before` are the functions launched
    before and after it, and `calls` has the calls during it.
    """

    after: int
    before: int
    calls: Meanwhile
    start: int
    time: int


NO_CALLS = Meanwhile(0.0, 0.0, None)


class _Last(NamedTuple):
    """The most recent launch of a thread, and the calls since then."""

    end: int
    function: int
    since: Meanwhile


class Between:
    """The `gaps` between the launches of a process, by thread, and those after waits; and the `longest` gaps of each
    thread.

    `long` has the number and the total ns of LONG gaps in each thread. `edges` has the start of its first launch and
    the end of its last one. `longest` and `long` exclude gaps in which recording was off.
    """

    def __init__(self, unrecorded: Unrecorded) -> None:
        self.unrecorded = unrecorded
        self.launches = 0
        self.first, self.last = 0, 0  # when the first call began, and the last one ended
        self.gaps = GapLengths()
        self.longest: dict[int, list[Gap]] = {}
        self.long: dict[int, tuple[int, int]] = {}
        self.edges: dict[int, tuple[int, int]] = {}
        self._began = False
        self._threads = Groups()
        self._before: dict[int, _Last] = {}
        self._idle, self._next = IdleWaits(), NextLaunches()

    def add(self, calls: CallTable) -> None:
        """Add calls that follow the ones already added."""
        start, launch = calls.start, calls.of(LAUNCH)
        self.first, self._began = self.first if self._began else int(start[0]), True
        self.last = max(self.last, int(calls.end.max())) if self.launches or self.last else int(calls.end.max())
        self.launches += int(launch.sum())
        for thread, mine in self._threads.iter(calls.rows["thread"]):
            self._add_thread(thread, calls, mine, np.flatnonzero(launch[mine]))
        idle = self._idle.find(calls)
        begins, ends = self._next.find(start[launch], calls.end[launch], start[idle], calls.end[idle])
        off = self.unrecorded.within(begins, ends)
        found = ends - begins - off
        self.gaps.add_gaps(WAITS, found[found > 0], off[found > 0])

    @property
    def whole(self) -> int:
        """Return the recorded ns from the start of the first call to the end of the last one."""
        return self.last - self.first - self.unrecorded.within_one(self.first, self.last)

    def around(self, thread: int) -> tuple[int, int]:
        """Return the recorded ns from the first call to the first launch of a thread, and from its last launch to the
        end.
        """
        first, last = self.edges[thread]
        before = first - self.first - self.unrecorded.within_one(self.first, first)
        return before, self.last - last - self.unrecorded.within_one(last, self.last)

    def _add_thread(
        self, thread: int, calls: CallTable, mine: npt.NDArray[np.intp], places: npt.NDArray[np.intp]
    ) -> None:
        """Add the calls of one thread. `places` are the indexes of launches within `mine`."""
        last = self._before.get(thread)
        if len(places):
            own = mine[places]
            starts, ends = calls.rows["start"][own], calls.end[own]
            begins = np.concatenate(([last.end if last else starts[0]], ends[:-1]))
            off = self.unrecorded.within(begins, starts)
            between = np.maximum(starts - begins, 0) - off
            known = int(not last)  # 0 for the very first launch, which has no gap before it
            if len(between) > known:
                whole = self.gaps.add_gaps(thread, between[known:], off[known:])
                long, (count, time) = whole[whole > LONG], self.long.get(thread, (0, 0))
                self.long[thread] = count + len(long), time + int(long.sum())
            self._keep_longest(thread, calls, mine, places, np.where(off > 0, 0, between), known)
            rest = mine[places[-1] + 1 :]
            self.edges[thread] = self.edges.get(thread, (int(starts[0]), 0))[0], int(ends[-1])
            function = int(calls.rows["function"][own[-1]])
            self._before[thread] = _Last(int(ends[-1]), function, _add_calls(calls, rest, NO_CALLS))
        elif last:
            self._before[thread] = last._replace(since=_add_calls(calls, mine, last.since))

    def _keep_longest(
        self, thread: int, calls: CallTable, mine: npt.NDArray[np.intp], places: npt.NDArray[np.intp],
        between: npt.NDArray[np.int64], known: int,
    ) -> None:  # fmt: skip
        kept = self.longest.setdefault(thread, [])
        least = kept[-1].time if len(kept) == TOP else 0
        longer = known + np.flatnonzero(between[known:] > least)
        if not len(longer):
            return
        functions, last = calls.rows["function"], self._before.get(thread)
        for at in longer[np.argsort(-between[longer], kind="stable")[:TOP]].tolist():
            inside = mine[(places[at - 1] + 1 if at else 0) : places[at]]
            if at:
                before = mine[places[at - 1]]
                after, end, since = int(functions[before]), int(calls.end[before]), NO_CALLS
            else:
                assert last
                after, end, since = last.function, last.end, last.since
            next_ = int(functions[mine[places[at]]])
            kept.append(Gap(after, next_, _add_calls(calls, inside, since), end, int(between[at])))
        kept.sort(key=lambda gap: -gap.time)
        del kept[TOP:]


def _add_calls(calls: CallTable, places: npt.NDArray[np.intp], known: Meanwhile) -> Meanwhile:
    """Add these calls to the ones already counted in `known`."""
    if not len(places):
        return known
    took = calls.rows["duration"][places]
    at = int(took.argmax())
    time = known.time + float(took.sum())
    if known.api is not None and known.longest >= took[at]:
        return known._replace(time=time)
    return Meanwhile(time, float(took[at]), int(calls.rows["api"][places[at]]))
