"""What is between the launches of a process: of each thread how long until the next one, and the longest of these."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.numbers import Numbers
from gpt.analyze.sequence import LAUNCH, Calls, Groups, IdleWaits, NextLaunches

TOP = 10  # gaps that are kept of a thread
WAITS = "waits"  # the group of what follows waits; others are threads


class Gap(NamedTuple):
    """From a launch to the next one of its thread: the functions, the api of the longest call meanwhile, ns."""

    after: int
    before: int
    call: int | None
    start: int
    time: int


class _Last(NamedTuple):
    """The last launch of a thread, and the longest call since then: its time and its api."""

    end: int
    function: int
    longest: tuple[float, int] | None


class Between:
    """Of the calls of a process, as they come: `gaps` by thread and after waits, and the `longest` by thread."""

    def __init__(self) -> None:
        self.launches = 0
        self.first, self.last = 0, 0  # when the first call began, and the last one ended
        self.gaps = Numbers()
        self.longest: dict[int, list[Gap]] = {}
        self._began = False
        self._threads = Groups()
        self._before: dict[int, _Last] = {}
        self._idle, self._next = IdleWaits(), NextLaunches()

    def add(self, calls: Calls) -> None:
        """Takes calls in that follow those of the last time."""
        start, launch = calls.start, calls.of(LAUNCH)
        self.first, self._began = self.first if self._began else int(start[0]), True
        self.last = max(self.last, int(calls.end.max())) if self.launches or self.last else int(calls.end.max())
        self.launches += int(launch.sum())
        for thread, mine in self._threads.iter(calls.rows["thread"]):
            self._add_thread(thread, calls, mine, np.flatnonzero(launch[mine]))
        waits = calls.end[self._idle.find(calls)]
        found = self._next.find(start[launch], waits, int(start[-1]))
        if len(found):
            self.gaps.add(WAITS, found)

    def _add_thread(self, thread: int, calls: Calls, mine: npt.NDArray[np.intp], places: npt.NDArray[np.intp]) -> None:
        """Those of a thread; launches are at `places` of its own."""
        last = self._before.get(thread)
        if len(places):
            own = mine[places]
            starts, ends = calls.rows["start"][own], calls.end[own]
            between = starts - np.concatenate(([last.end if last else starts[0]], ends[:-1]))
            known = int(not last)  # the first launch of all is after none
            if len(between) > known:
                self.gaps.add(thread, np.maximum(between[known:], 0))
            self._keep_longest(thread, calls, mine, places, between, known)
            rest = mine[places[-1] + 1 :]
            function = int(calls.rows["function"][own[-1]])
            self._before[thread] = _Last(int(ends[-1]), function, _longest(calls, rest, None))
        elif last:
            self._before[thread] = last._replace(longest=_longest(calls, mine, last.longest))

    def _keep_longest(
        self, thread: int, calls: Calls, mine: npt.NDArray[np.intp], places: npt.NDArray[np.intp],
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
                after, end, call = int(functions[before]), int(calls.end[before]), _longest(calls, inside, None)
            else:
                assert last
                after, end, call = last.function, last.end, _longest(calls, inside, last.longest)
            next_ = int(functions[mine[places[at]]])
            kept.append(Gap(after, next_, call[1] if call else None, end, int(between[at])))
        kept.sort(key=lambda gap: -gap.time)
        del kept[TOP:]


def _longest(calls: Calls, places: npt.NDArray[np.intp], known: tuple[float, int] | None) -> tuple[float, int] | None:
    """The time and the api of the call that took longest, of some and of what is known of those before."""
    if not len(places):
        return known
    at = places[calls.rows["duration"][places].argmax()]
    found = float(calls.rows["duration"][at]), int(calls.rows["api"][at])
    return known if known and known[0] >= found[0] else found
