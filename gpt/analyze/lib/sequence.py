"""The calls of one process, oldest first and some at a time: which of them launch, copy and wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Api, Process

Mask = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]

LAUNCHES = (("kernel", "launch"), ("graph", "launch"))  # types and ops
FIRST = np.iinfo(np.int64).min  # a time before all

# What a call does: bits. ONE waits for one stream only, LOAD loads code, IN and OUT are copies to the device and from
# it, and the last three make a context that of the thread.
LAUNCH, WAIT, ONE, LOAD, COPY, IN, OUT, IOCTL, PUSH, SET, POP = (1 << bit for bit in range(11))
CONTEXTS = PUSH | SET | POP
ACTS = {
    **dict.fromkeys(LAUNCHES, LAUNCH),
    ("memcpy", "HtoD"): COPY | IN,
    ("memcpy", "DtoH"): COPY | OUT,
    ("sync", "stream"): WAIT | ONE,
    ("context", "create"): PUSH,
    ("context", "push"): PUSH,
    ("context", "set"): SET,
    ("context", "pop"): POP,
}
BY_TYPE = {"sync": WAIT, "module": LOAD, "memcpy": COPY, "ioctl": IOCTL}  # whatever the op


class Acts:
    """What the functions of a process do."""

    def __init__(self, process: Process) -> None:
        known = sorted(process.apis.items())
        self._ids = np.array([id_ for id_, _ in known] or [0], np.uint32)
        self._acts = np.array([_find_acts(api) for _, api in known] or [0], np.uint16)

    def of(self, calls: npt.NDArray[np.void]) -> npt.NDArray[np.uint16]:
        """The bits of each call; a launch is one that succeeded."""
        found = self.of_ids(calls["api"])
        found[(calls["result"] != 0) & (found == LAUNCH)] = 0
        return found

    def of_ids(self, apis: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint16]:
        """Return the bits of functions."""
        at = np.minimum(np.searchsorted(self._ids, apis), len(self._ids) - 1)
        found: npt.NDArray[np.uint16] = np.where(self._ids[at] == apis, self._acts[at], 0).astype(np.uint16)
        return found

    @property
    def launches(self) -> bool:
        """Whether any function launches."""
        return bool((self._acts == LAUNCH).any())


def _find_acts(api: Api) -> int:
    return ACTS.get(api[:2], BY_TYPE.get(api.type, 0))


class CallTable(NamedTuple):
    """Calls that returned, oldest first; `end` is when each did, `acts` what it does.

    What is a launch has the number of its kernel in `function`, a launch of a graph that of its graph in `object`.
    """

    rows: npt.NDArray[np.void]
    end: Whole
    acts: npt.NDArray[np.uint16]

    @property
    def start(self) -> Whole:
        """When each began, in ns."""
        found: Whole = self.rows["start"]
        return found

    def of(self, act: int) -> Mask:
        """Which of them do that, or any of it."""
        found: Mask = (self.acts & act) != 0
        return found


def iter_calls(trace: TraceModel, number: int, *names: str) -> Iterator[CallTable]:
    """The calls of a process that returned, with these fields. What begins in one nanosecond comes together."""
    acts = Acts(trace.processes[number])
    for found in trace.iter_calls(*names, process=number):
        rows = found if found["duration"].all() else found[found["duration"] > 0]
        if len(rows):
            yield CallTable(rows, rows["start"] + rows["duration"].astype(np.int64), acts.of(rows))


def launches_any(trace: TraceModel, number: int) -> bool:
    """Whether a process launches anything."""
    if not Acts(trace.processes[number]).launches:
        return False
    return any(calls.of(LAUNCH).any() for calls in iter_calls(trace, number))


class Groups:
    """The places at which each of some numbers is, of arrays that have few of them: threads, streams."""

    def __init__(self) -> None:
        self._known = np.zeros(0, np.uint64)

    def iter(self, values: npt.NDArray[np.uint64]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """Each number with its places, in order."""
        if not len(values):
            return
        if not len(self._known) or not self._has(values):
            self._known = np.union1d(self._known, values)
        ranks = np.searchsorted(self._known, values)
        ranks = ranks.astype(np.uint16) if len(self._known) < 1 << 16 else ranks  # numpy sorts those by radix
        order = np.argsort(ranks, kind="stable")
        counts = np.bincount(ranks, minlength=len(self._known))
        ends = np.cumsum(counts)
        for rank in np.flatnonzero(counts).tolist():
            yield int(self._known[rank]), order[ends[rank] - counts[rank] : ends[rank]]

    def _has(self, values: npt.NDArray[np.uint64]) -> bool:
        at = np.minimum(np.searchsorted(self._known, values), len(self._known) - 1)
        return bool((self._known[at] == values).all())


class IdleWaits:
    """Finds the waits after which all that was launched before has been waited for, as far as the calls say.

    What waits for an event counts as if it waited for all. Of each stream it keeps when the last launch was, and the
    last wait for it.
    """

    def __init__(self) -> None:
        self._launched: dict[int, int] = {}
        self._waited: dict[int, int] = {}
        self._all = FIRST

    def find(self, calls: CallTable) -> Mask:
        """Which of these calls are such waits: they follow those of the last time."""
        idle, launch, one = calls.of(WAIT), calls.of(LAUNCH), calls.of(ONE)
        start, streams = calls.start, calls.rows["stream"]
        alone = np.flatnonzero(one)
        all_, launched, launched_in = start[idle & ~one], start[launch], streams[launch]
        waits, waits_for = start[alone], streams[alone]
        here = set(np.unique(launched_in).tolist())
        if len(alone):
            behind = {stream for stream, at in self._launched.items() if at > self._last_wait(stream)}
            for stream in here | behind:
                others = waits_for != stream
                at = waits[others]
                found = _latest(launched[launched_in == stream], at, self._launched.get(stream, FIRST))
                known = np.maximum(_latest(waits[~others], at, self._waited.get(stream, FIRST)),
                                   _latest(all_, at, self._all))  # fmt: skip
                idle[alone[others]] &= found <= known
        self._all = max(self._all, int(all_.max(initial=FIRST)))
        for kept, times, numbers in ((self._launched, launched, launched_in), (self._waited, waits, waits_for)):
            values, last = np.unique(numbers[::-1], return_index=True)
            kept.update(zip(values.tolist(), times[::-1][last].tolist(), strict=True))
        return idle

    def _last_wait(self, stream: int) -> int:
        return max(self._all, self._waited.get(stream, FIRST))


def _latest(times: Whole, at: Whole, before: int) -> Whole:
    """The last of `times`, which are in order, before each of `at`; of none what was `before`."""
    found: Whole = np.concatenate(([before], times))[np.searchsorted(times, at)]
    return found


class NextLaunches:
    """How long after waits the next launch began; of several waits before one launch, after the last.

    Waits that no launch followed yet are kept, but of those that are over the last only.
    """

    def __init__(self) -> None:
        self._ends = np.zeros(0, np.int64)
        self._last = np.zeros(0, bool)  # whether the wait after it is before a later launch

    def find(self, launches: Whole, waits: Whole, now: int) -> tuple[Whole, Whole]:
        """Return the ends of the waits before these launches, and the ns from there to the launch.

        `waits` are the ends of further waits, in the order in which these began, and `now` is the last call's begin.
        """
        ends = np.concatenate((self._ends, waits))
        last = np.concatenate((self._last, np.zeros(len(waits), bool)))
        next_ = np.searchsorted(launches, ends)
        done = next_ < len(launches)
        last[:-1] |= next_[1:] != next_[:-1]
        last[-1:] |= done[-1:]
        found = np.flatnonzero(done & last)
        begins: Whole = ends[found]
        between: Whole = np.maximum(launches[next_[found]] - begins, 0)
        left = ~done
        over = left & (ends <= now)
        left[:-1] &= last[:-1] | ~(over[:-1] & over[1:])
        self._ends, self._last = ends[left], last[left]
        return begins, between
