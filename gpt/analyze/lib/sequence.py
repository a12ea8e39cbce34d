"""Read the calls of one process in batches, oldest first, and classify them: launches, copies, waits."""

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
FIRST, NEVER = np.iinfo(np.int64).min, np.iinfo(np.int64).max  # times before and after all others

# What a call does, as bits. ONE waits for a single stream, LOAD loads code, IN and OUT are copies to and from the
# device, FILL sets memory, and the last three change the thread's current context.
LAUNCH, WAIT, ONE, LOAD, COPY, IN, OUT, FILL, IOCTL, PUSH, SET, POP = (1 << bit for bit in range(12))
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
BY_TYPE = {"sync": WAIT, "module": LOAD, "memcpy": COPY, "memset": FILL, "ioctl": IOCTL}  # regardless of the op


class Acts:
    """The acts of a process's functions, as bits."""

    def __init__(self, process: Process) -> None:
        known = sorted(process.apis.items())
        self._ids = np.array([id_ for id_, _ in known] or [0], np.uint32)
        self._acts = np.array([_find_acts(api) for _, api in known] or [0], np.uint16)

    def of(self, calls: npt.NDArray[np.void]) -> npt.NDArray[np.uint16]:
        """Return the bits of each call; a launch counts only if it succeeded."""
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
        """Return True if any function launches."""
        return bool((self._acts == LAUNCH).any())


def _find_acts(api: Api) -> int:
    return ACTS.get(api[:2], BY_TYPE.get(api.type, 0))


class CallTable(NamedTuple):
    """Calls that returned, oldest first. `end` is when each returned, and `acts` are the bits of what it does.

    For a launch, `function` has the id of the kernel, or `object` has the handle of the graph.
    """

    rows: npt.NDArray[np.void]
    end: Whole
    acts: npt.NDArray[np.uint16]

    @property
    def start(self) -> Whole:
        """Return when each began, in ns."""
        found: Whole = self.rows["start"]
        return found

    def of(self, act: int) -> Mask:
        """Return which calls do any of the things in `act`."""
        found: Mask = (self.acts & act) != 0
        return found


def iter_calls(trace: TraceModel, number: int, *names: str) -> Iterator[CallTable]:
    """Yield the calls of a process that returned, with these fields. Calls in the same nanosecond are in the same
    table.
    """
    acts = Acts(trace.processes[number])
    for found in trace.iter_calls(*names, process=number):
        rows = found if found["duration"].all() else found[found["duration"] > 0]
        if len(rows):
            yield CallTable(rows, rows["start"] + rows["duration"].astype(np.int64), acts.of(rows))


def launches_any(trace: TraceModel, number: int) -> bool:
    """Return True if a process launches anything."""
    if not Acts(trace.processes[number]).launches:
        return False
    return any(calls.of(LAUNCH).any() for calls in iter_calls(trace, number))


class Groups:
    """Groups indexes by value, for arrays with few distinct values, such as threads or streams."""

    def __init__(self) -> None:
        self._known = np.zeros(0, np.uint64)

    def iter(self, values: npt.NDArray[np.uint64]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """Yield each value with its indexes, in order."""
        if not len(values):
            return
        if not len(self._known) or not self._has(values):
            self._known = np.union1d(self._known, values)
        ranks = np.searchsorted(self._known, values)
        ranks = ranks.astype(np.uint16) if len(self._known) < 1 << 16 else ranks  # numpy uses radix sort for u16
        order = np.argsort(ranks, kind="stable")
        counts = np.bincount(ranks, minlength=len(self._known))
        ends = np.cumsum(counts)
        for rank in np.flatnonzero(counts).tolist():
            yield int(self._known[rank]), order[ends[rank] - counts[rank] : ends[rank]]

    def _has(self, values: npt.NDArray[np.uint64]) -> bool:
        at = np.minimum(np.searchsorted(self._known, values), len(self._known) - 1)
        return bool((self._known[at] == values).all())


class IdleWaits:
    """Finds the waits after which the GPU has no work left, judging by the recorded calls.

    A wait for an event is treated as a wait for everything. The last launch and the last wait are stored per stream.
    """

    def __init__(self) -> None:
        self._launched: dict[int, int] = {}
        self._waited: dict[int, int] = {}
        self._all = FIRST

    def find(self, calls: CallTable) -> Mask:
        """Return which calls are such waits. The calls must be later than those passed before."""
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
    """For each element of `at`, return the last of the sorted `times` before it, or `before` if there's none."""
    found: Whole = np.concatenate(([before], times))[np.searchsorted(times, at)]
    return found


class NextLaunches:
    """Finds the times from a wait for everything to the next launch. If there are several waits before the launch, the
    first one counts.

    A wait doesn't count if a launch of another thread was in progress when it began, or if another thread launched
    something before it ended, because that work may take longer.
    """

    def __init__(self) -> None:
        self._waited = NEVER  # when the first wait since the last launch ended
        self._reach = FIRST  # when all launches so far had returned

    def find(self, launches: Whole, returned: Whole, starts: Whole, ends: Whole) -> tuple[Whole, Whole]:
        """Return when waits ended, and when the next launch after each of them began.

        `launches` are the times when more launches began, sorted, and `returned` when they returned. The new waits
        began at `starts`, also sorted, and ended at `ends`.
        """
        reach = np.maximum.accumulate(np.append(self._reach, returned))
        before = np.searchsorted(launches, starts)  # number of launches that began before each wait
        alone = reach[before] <= starts
        first = np.full(len(launches) + 1, NEVER)  # when the first wait before each launch ended
        np.minimum.at(first, before[alone], ends[alone])
        first[0] = min(first[0], self._waited)
        self._waited, self._reach = first[-1], reach[-1]
        good = first[:-1] < launches
        return first[:-1][good], launches[good]
