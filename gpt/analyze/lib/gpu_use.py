"""Find when GPUs were idle, and where GPUs and threads switched to another process or context."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.gap_lengths import GapLengths
from gpt.analyze.lib.idle_times import find_breaks
from gpt.analyze.lib.locations import Gpus, Who
from gpt.analyze.lib.sequence import CONTEXTS, POP, PUSH, CallTable, Groups, iter_calls
from gpt.trace.calls_store import NO_DEVICE
from gpt.trace.unrecorded import Unrecorded, unite

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

Array = npt.NDArray[np.void]
Place = tuple[int, int]  # a process, and the ordinal of one of its devices
LISTED = 1000  # switches whose times are kept
ALL = "all processes"


class Switch(NamedTuple):
    """A switch to another context or process: where and when it happened, and how many ns the calls or the GPU took."""

    place: str
    process: int | None  # the process that the thread belongs to
    source: str
    target: str
    at: int
    took: int


class SwitchSums:
    """Switches of one kind: their number, their total and longest ns, and the time of the first one."""

    def __init__(self, first: int) -> None:
        self.count = self.total = self.longest = 0
        self.first = first


class Switches:
    """All switches: sums by kind, and the first ones individually."""

    def __init__(self) -> None:
        self.sums: dict[tuple[str, int | None, str, str], SwitchSums] = {}
        self.count = 0
        self._points: list[Switch] = []

    def add(self, switch: Switch) -> None:
        """Add a switch; the switches of one place are added in time order."""
        key = switch.place, switch.process, switch.source, switch.target
        sums = self.sums.setdefault(key, SwitchSums(switch.at))
        sums.count += 1
        sums.total += switch.took
        sums.longest = max(sums.longest, switch.took)
        self.count += 1
        self._points.append(switch)
        if len(self._points) >= 2 * LISTED:
            self._points = self.points()

    def points(self) -> list[Switch]:
        """Return the switches whose times were kept: the first LISTED."""
        return sorted(self._points, key=lambda switch: switch.at)[:LISTED]

    def order(self) -> None:
        """Sort kinds by their first switch."""
        self.sums = dict(sorted(self.sums.items(), key=lambda one: one[1].first))


class Work(NamedTuple):
    """A piece of work on a GPU: its process, the id of its kernel's function (0 if it has none), and its call."""

    process: int
    function: int
    api: int


class IdlePeriod(NamedTuple):
    """An idle period of a GPU in ns. `after` is the work that preceded it, and `before` the work that ended it."""

    begin: int
    took: int
    after: Work
    before: Work


class GpuUse:
    """The work on a GPU, and the idle time of each group.

    A group is the whole GPU (ALL), a process, or a stream of a process. `gaps` has the lengths of its idle periods.
    `longest` has the longest idle periods of the whole GPU during which recording was on. `breaks` are periods in which
    none of the processes was using the GPU. What the GPU did then isn't known, so they don't count as idle.
    """

    def __init__(self, name: str, places: list[Place], unrecorded: dict[int, Unrecorded], breaks: Unrecorded) -> None:
        """`unrecorded` has the periods for which each process didn't record anything."""
        self.name = name
        self.places = places
        self.processes = sorted({process for process, _ in places})
        self.gaps = GapLengths()
        self.streams: dict[int, set[int]] = defaultdict(set)  # the streams of each process
        self._began: dict[Hashable, int] = {}
        self._reach: dict[Hashable, int] = {}  # the time at which all earlier work had ended
        self._groups = Groups()
        self._last: int | None = None  # the process whose kernel started last
        self.longest: list[IdlePeriod] = []
        self._ender: tuple[Work, int] | None = None  # the work that has ended last so far, and when
        self.breaks, self._paused = breaks, unite([*unrecorded.values()])
        self._unrecorded: dict[Hashable, Unrecorded] = {ALL: unite([self._paused, breaks])}
        for process, off in unrecorded.items():
            self._unrecorded[process] = off
        self._unknown = defaultdict[Hashable, int](int)  # by group: ns during which recording was off

    def whole(self, group: Hashable) -> int:
        """Return the time from the first start to the last end, without unrecorded idle time."""
        return self._reach[group] - self._began[group] - self._unknown[group]

    def edges(self, group: Hashable) -> tuple[int, int]:
        """Return the start of the group's first work and the end of its last."""
        return self._began[group], self._reach[group]

    def add(self, rows: Array, names: list[str], switches: Switches) -> None:
        """Add GPU times, later than those already added. `names` are the names of the processes."""
        if len(self.processes) > 1:
            gaps, off = self._add(ALL, rows)
            self._keep_longest(ALL, rows, np.where(off > 0, 0, gaps))
            paused = self._paused.within(rows["begin"] - gaps - off, rows["begin"])
            self._add_switches(rows, gaps + off - paused, names, switches)
        for process in self.processes:
            mine = rows if len(self.processes) == 1 else rows[rows["process"] == process]
            if len(mine):
                gaps, off = self._add(process, mine)
                if len(self.processes) == 1:
                    self._keep_longest(process, mine, np.where(off > 0, 0, gaps))
                for stream, order in self._groups.iter(mine["stream"]):
                    self.streams[process].add(stream)
                    self._add((process, stream), mine[order])

    def _add(self, group: Hashable, rows: Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return how long the group was idle before each row, in ns: the time while recording was on, and while it was
        off.
        """
        begins = rows["begin"]
        first = group not in self._reach
        if first:
            self._began[group] = self._reach[group] = int(begins[0])
        ends = begins + rows["duration"].astype(np.int64)
        reach = np.maximum.accumulate(np.concatenate(([self._reach[group]], ends)))
        self._reach[group] = int(reach[-1])
        gaps: npt.NDArray[np.int64] = np.maximum(begins - reach[:-1], 0)
        off = self._unrecorded[group[0] if isinstance(group, tuple) else group].within(reach[:-1], begins)
        self._unknown[group] += int(off.sum())
        gaps -= off
        self.gaps.add_gaps(group, gaps[gaps > 0], off[gaps > 0])
        return gaps, off

    def _keep_longest(self, group: Hashable, rows: Array, gaps: npt.NDArray[np.int64]) -> None:
        """Update the list of the LISTED longest idle periods, some of which may have ended at these rows."""
        ends = rows["begin"] + rows["duration"].astype(np.int64)
        reach = np.maximum.accumulate(ends)
        ender = np.maximum.accumulate(np.where(ends >= reach, np.arange(len(rows)), 0))  # the row that ends last so far
        least = self.longest[-1].took if len(self.longest) == LISTED else 0
        places = np.flatnonzero(gaps > least)
        for at in places[np.argsort(-gaps[places], kind="stable")[:LISTED]].tolist():
            before = [(_work(rows[ender[at - 1]]), int(reach[at - 1]))] if at else []
            before += [self._ender] if self._ender else []
            if before:
                after, end = max(before, key=lambda one: one[1])
                self.longest.append(IdlePeriod(end, int(gaps[at]), after, _work(rows[at])))
        self.longest.sort(key=lambda idle: -idle.took)
        del self.longest[LISTED:]
        if int(reach[-1]) >= self._reach[group]:
            self._ender = _work(rows[ender[-1]]), int(reach[-1])

    def _add_switches(self, rows: Array, gaps: npt.NDArray[np.int64], names: list[str], switches: Switches) -> None:
        """Record where the GPU switches between processes, which have these `names`."""
        process = rows["process"].astype(np.int64)
        before = np.concatenate(([process[0] if self._last is None else self._last], process[:-1]))
        for at in np.flatnonzero(process != before).tolist():
            source, target = names[int(before[at])], names[int(process[at])]
            switches.add(Switch(self.name, None, source, target, int(rows["begin"][at]), int(gaps[at])))
        self._last = int(process[-1])


def _work(row: Any) -> Work:
    return Work(int(row["process"]), int(row["function"]), int(row["api"]))


def find_uses(trace: TraceModel, names: list[str], switches: Switches) -> list[GpuUse]:
    """Return how each GPU that ran anything was used, and add switches between processes to `switches`."""
    gpus, places = Gpus(), defaultdict[int, list[Place]](list)
    for number, device in trace.gpus():
        place = gpus.number(trace.processes[number], None if device == NO_DEVICE else device)
        places[place].append((number, device))
    unrecorded = [trace.unrecorded(process) for process in trace.processes]
    found = [
        GpuUse(
            f"GPU {gpu}",
            own,
            {process: unrecorded[process] for process, _ in own},
            find_breaks(trace, own) if len({process for process, _ in own}) > 1 else Unrecorded([], []),
        )
        for gpu, own in sorted(places.items())
    ]
    for use in found:
        for rows in trace.iter_gpu_times(use.places):
            use.add(rows, names, switches)
    return found


class Current(NamedTuple):
    """A change of a thread's current context at `start`, in ns: the new `context` (0 if none), and how many ns the call
    took.
    """

    thread: int
    start: int
    took: float
    context: int


class Contexts:
    """Follows the current context of each thread of a process."""

    def __init__(self) -> None:
        self._stacks = defaultdict[int, list[int]](list)

    def iter(self, calls: CallTable) -> Iterator[Current]:
        """Yield the changes of context that these calls make. They must be later than the calls passed before."""
        good = np.flatnonzero(calls.of(CONTEXTS) & (calls.rows["result"] == 0))
        rows = calls.rows[["thread", "start", "duration", "object"]][good]
        for (thread, start, took, context), act in zip(rows.tolist(), calls.acts[good].tolist(), strict=True):
            stack = self._stacks[thread]
            _change(stack, act, context)
            yield Current(thread, start, took, stack[-1] if stack else 0)


def iter_contexts(trace: TraceModel, process: int) -> Iterator[Current]:
    """Yield the contexts of a process's threads in time order."""
    contexts = Contexts()
    for calls in iter_calls(trace, process, "object"):
        yield from contexts.iter(calls)


class ThreadSwitches:
    """Finds where a process's threads switch to another context."""

    def __init__(self, process: int, switches: Switches) -> None:
        self._process, self._switches = process, switches
        self._contexts = Contexts()
        self._last: dict[int, int] = {}  # the last context of each thread, even if it has none now

    def add(self, calls: CallTable) -> None:
        """Add calls that follow the ones already added."""
        for thread, start, took, now in self._contexts.iter(calls):
            before = self._last.get(thread, 0)
            if now and before and now != before:
                place, source, target = f"thread {thread}", f"{before:#x}", f"{now:#x}"
                self._switches.add(Switch(place, self._process, source, target, start, round(took)))
            self._last[thread] = now or before


def _change(stack: list[int], act: int, context: int) -> None:
    """Apply a call to the stack of contexts of its thread. The last one on the stack is current."""
    if act & PUSH:
        stack.append(context)
    elif stack:
        stack.pop()
    if act & ~(PUSH | POP) and context:
        stack.append(context)


def name_processes(who: list[Who]) -> list[str]:
    """Return names for processes, as short as possible."""
    ranks = [rank for _, rank, _ in who]
    if None not in ranks and len(set(ranks)) == len(ranks):
        return [f"rank {rank}" for rank in ranks]
    return [f"pid {pid}" + (f" of {host}" if host else "") for host, _, pid in who]


def find_untimed(trace: TraceModel) -> list[Process]:
    """Return the processes that used a GPU but have no GPU times."""
    timed = {number for number, _ in trace.gpus()}
    return [process for number, process in enumerate(trace.processes) if number not in timed]
