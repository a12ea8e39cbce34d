"""Find the critical path of a repeated unit: what the next unit waited for, from moment to moment.

The path ends when the work of the unit's first launch begins in the next repetition, and goes back to the beginning of
that work in this repetition. So its length is the time that a repetition takes, whether the host or the GPU is the
limit. Each step goes back to whatever ended last:

- Work on the GPU waited for the earlier work in its stream if that ended after the launch call had returned. If the
stream waits for an event, it waited for work in other streams, if that ended later. Otherwise it waited for its launch
call, and the path continues with the host.
- A call that waits, or a copy whose call lasts until it's done, waited for the work that ended last during the call:
the path continues with that work.
- A collective waited for the rank that started its kernel last: from that moment on, the path continues in that rank,
with whatever its kernel waited for. Times of ranks are aligned as in ranks.py.
- Any other call, and the time between calls, is the host's own.

Threads that wait for other threads look like host code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.periods import Period, iter_units
from gpt.analyze.lib.ranks import Communicator, align, find_collectives, is_collective
from gpt.analyze.lib.sequence import COPY, IOCTL, WAIT, iter_calls
from gpt.trace.machines import machine_of
from gpt.trace.spill import Array, Tape

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

UNITS = 8  # repetitions to follow; their times are closest to the median
EARLIER = 4  # calls are read from this many units before, since work may have been launched long ago
HOST, CALL, WAKE, DELAY, ORDER = "host code", "call", "return from a wait", "launch delay", "next in the stream"
KERNEL, COPIED, GRAPH, COLLECTIVE = "kernel", "copy or memset", "graph", "collective"
ON_HOST = (HOST, CALL, WAKE, DELAY)
EVENT_WAIT = "cuStreamWaitEvent"
BEFORE = -(1 << 62)  # ns: before everything
WORK = [("begin", "<i8"), ("end", "<i8"), ("stream", "<u8"), ("call", "<i8"), ("thread", "<u8"), ("api", "<u4"),
        ("function", "<u4"), ("device", "<u4")]  # fmt: skip
HOST_CALL = [("start", "<i8"), ("end", "<i8"), ("thread", "<u8"), ("api", "<u4"), ("acts", "<u2"), ("stream", "<u8")]


class Step(NamedTuple):
    """A step of a path: the number of the process, its kind and name, the thread or stream, and its begin and end in
    ns.
    """

    process: int
    kind: str
    name: str
    where: str
    begin: int
    end: int


@dataclass
class UnitPath:
    """The critical paths of some repetitions: how many there are and how long they took, the time and number of steps
    by process, kind and name, and the steps of one of them in order. `alone` is True if a collective on it matches none
    of another rank.
    """

    units: int = 0
    took: int = 0
    sums: dict[tuple[int, str, str], tuple[int, int]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    alone: bool = False


def find_path(trace: TraceModel, number: int, launches: Tape, period: Period) -> UnitPath | None:
    """Return the critical path of the unit that a process repeats, or None if no GPU times were recorded for it.

    `launches` are rows of launch_times.py.
    """
    ranks = _Ranks(trace)
    windows = _choose_windows(launches, period, ranks.align(number))
    if not windows:
        return None
    walks = _Walks(trace, ranks, windows)
    found = UnitPath()
    for begin, end in windows:
        steps = [*walks.iter_back(number, begin, end)][::-1]
        found.units += 1
        found.took += end - begin
        found.steps = found.steps or steps
        for step in steps:
            key = step.process, step.kind, step.name
            count, time = found.sums.get(key, (0, 0))
            found.sums[key] = count + 1, time + step.end - step.begin
    found.alone = walks.alone
    return found


Align = Callable[[npt.NDArray[np.int64]], npt.NDArray[np.int64]]


class _Ranks:
    """The collectives of all ranks, and how to align the times of their processes."""

    def __init__(self, trace: TraceModel) -> None:
        self._machines = [machine_of(process.header) for process in trace.processes]
        named = [any(map(is_collective, process.kernels().values())) for process in trace.processes]
        found = find_collectives(trace) if sum(named) > 1 or (any(named) and len(trace.gpus()) > 1) else None
        self._offsets = found.offsets if found else {}
        places = [(trace.processes.index(rank.process), rank.device) for rank in found.ranks] if found else []
        self._known: dict[tuple[int, int], list[tuple[int, Communicator]]] = {}
        self._places = places
        for group in found.groups if found else []:
            for at, rank in enumerate(group.ranks):
                self._known.setdefault(places[rank], []).append((at, group))

    def align(self, number: int) -> Align:
        """Return a function that aligns the times of a process with other ranks."""
        offset = self._offsets.get(self._machines[number])
        return (lambda times: align(times, offset)) if offset else (lambda times: times)

    def find_last(self, number: int, device: int, begin: int) -> tuple[int, int, int] | None:
        """For the kernel of a collective, return the process, the device and the begin of the kernel that began last,
        or None if the collectives of other ranks aren't known. Times are aligned.
        """
        for at, group in self._known.get((number, device), ()):
            place = int(np.searchsorted(group.begin[at], begin))
            if place < group.begin.shape[1] and int(group.begin[at, place]) == begin:
                last = int(group.begin[:, place].argmax())
                return *self._places[group.ranks[last]], int(group.begin[last, place])
        return None


def _choose_windows(launches: Tape, period: Period, align: Align) -> list[tuple[int, int]]:
    """Choose some repetitions, the most typical ones first. For each, return when its first work begins, and when the
    next repetition's first work begins.
    """
    counts = (period.ends - period.begins) // period.length
    parts: list[Array] = []
    for _, places in iter_units(period.begins, counts, period.length):
        places = places[places + period.length < len(launches)]
        first, next_ = launches.take(places), launches.take(places + period.length)
        begins, ends = align(first["begin"]), align(next_["begin"])
        parts.append(np.stack([begins, ends], axis=1)[first["timed"] & next_["timed"] & (ends > begins)])
    found = np.concatenate(parts) if parts else np.zeros((0, 2), np.int64)
    if not len(found):
        return []
    took = found[:, 1] - found[:, 0]
    order = np.argsort(np.abs(took - np.median(took)), kind="stable")[:UNITS]
    return [(begin, end) for begin, end in found[order].tolist()]


def _in_windows(times: npt.NDArray[np.int64], ends: npt.NDArray[np.int64], windows: list[tuple[int, int]]) -> Any:
    mask = np.zeros(len(times), bool)
    for begin, end in windows:
        mask |= (ends >= begin - EARLIER * (end - begin)) & (times <= end)
    return mask


def _read_calls(trace: TraceModel, number: int, windows: list[tuple[int, int]], align: Align) -> Array:
    parts = [np.zeros(0, HOST_CALL)]
    for calls in iter_calls(trace, number, "stream"):
        starts, ends = align(calls.start), align(calls.end)
        mask = _in_windows(starts, ends, windows) & ~calls.of(IOCTL)
        part = np.zeros(int(mask.sum()), HOST_CALL)
        part["start"], part["end"], part["acts"] = starts[mask], ends[mask], calls.acts[mask]
        for name in ("thread", "api", "stream"):
            part[name] = calls.rows[name][mask]
        parts.append(part)
    return np.concatenate(parts)


def _read_work(trace: TraceModel, number: int, windows: list[tuple[int, int]], align: Align) -> Array:
    parts = [np.zeros(0, WORK)]
    for rows in trace.iter_gpu_times([place for place in trace.gpus() if place[0] == number]):
        begins, ends = align(rows["begin"]), align(rows["begin"] + rows["duration"].astype(np.int64))
        mask = _in_windows(begins, ends, windows)
        part = np.zeros(int(mask.sum()), WORK)
        part["begin"], part["end"], part["call"] = begins[mask], ends[mask], align(rows["call"])[mask]
        for name in ("stream", "thread", "api", "function", "device"):
            part[name] = rows[name][mask]
        parts.append(part)
    return np.concatenate(parts)


class _Walks:
    """Walks through all processes. The rows of a process are read when a path first gets there."""

    def __init__(self, trace: TraceModel, ranks: _Ranks, windows: list[tuple[int, int]]) -> None:
        self._trace, self._ranks, self._windows = trace, ranks, windows
        self._walks: dict[int, _Walk] = {}
        self.alone = False  # True if a collective on a path matches none of another rank

    def _walk(self, number: int) -> _Walk:
        if number not in self._walks:
            align = self._ranks.align(number)
            calls = _read_calls(self._trace, number, self._windows, align)
            work = _read_work(self._trace, number, self._windows, align)
            self._walks[number] = _Walk(self._trace.processes[number], number, calls, work)
        return self._walks[number]

    def iter_back(self, number: int, first: int, last: int) -> Iterator[Step]:
        """Follow the path backward from the work of a process that begins at `last` to the time `first`, and yield its
        steps.
        """
        walk = self._walk(number)
        work, time = walk.find_work(last), last
        thread = 0
        while time > first:
            if work is not None:
                work, thread, steps = walk.leave_work(work, time)
            else:
                work, steps = walk.leave_host(thread, time)
            if work is not None and steps[-1].kind == COLLECTIVE:
                walk, work = self._find_last(walk, work)
                steps[-1] = steps[-1]._replace(begin=int(work["begin"]))
            for step in steps:
                if step.end > first and step.begin < step.end:
                    yield step._replace(begin=max(step.begin, first))
            time = min([time, *(step.begin for step in steps)])
            if not steps:
                return

    def _find_last(self, walk: _Walk, work: Any) -> tuple[_Walk, Any]:
        """Return the work for which a collective waited: the kernel of the rank that began last, or its own."""
        found = self._ranks.find_last(walk.number, int(work["device"]), int(work["begin"]))
        if found is None:
            self.alone = True
            return walk, work
        number, device, begin = found
        other = self._walk(number)
        last = other.find_collective(device, begin)
        late = last is not None and int(work["begin"]) < begin < int(work["end"])
        return (other, last) if late else (walk, work)


class _Walk:
    """Walks back in time through the calls and the work of a process, both sorted by start."""

    def __init__(self, process: Process, number: int, calls: Array, work: Array) -> None:
        self.number = number
        self._process, self._work = process, work
        threads, streams = calls["thread"], work["stream"]
        self._threads = {int(id_): calls[threads == id_] for id_ in np.unique(threads)}
        self._by_end = work[np.argsort(work["end"], kind="stable")]
        ended = self._by_end["stream"]
        self._streams = {int(id_): self._by_end[ended == id_] for id_ in np.unique(streams)}
        self._by_call = work[np.argsort(work["call"], kind="stable")]
        waits = [id_ for id_, api in process.apis.items() if api.name.startswith(EVENT_WAIT)]
        events = calls[np.isin(calls["api"], waits)]
        starts, streams = events["start"], events["stream"]
        self._events = {stream: np.sort(starts[streams == stream]) for stream in self._streams}
        self._launched = {stream: np.sort(own["call"]) for stream, own in self._streams.items()}
        self._names = process.kernels()

    def find_work(self, begin: int) -> Any:
        """Return the first work that begins at this time or later, or None."""
        at = int(np.searchsorted(self._work["begin"], begin))
        return self._work[at] if at < len(self._work) else None

    def find_collective(self, device: int, begin: int) -> Any:
        """Return the collective that begins at this time on a device, or None."""
        low, high = np.searchsorted(self._work["begin"], (begin, begin + 1))
        own = [one for one in self._work[low:high] if int(one["device"]) == device]
        return next((one for one in own if self._name_work(one).kind == COLLECTIVE), None)

    def leave_work(self, work: Any, time: int) -> tuple[Any, int, list[Step]]:
        """Return the work or the thread that this work waited for, and the steps in between."""
        thread, start, stream = int(work["thread"]), int(work["call"]), int(work["stream"])
        where = f"stream {stream:#x}" if stream else "default stream"
        call = self._find_call(thread, start)
        returned = min(int(call["end"]), time) if call is not None else start
        before = self._find_last(self._streams[stream], time)
        if call is not None and self._waits_for_event(stream, start):
            before = self._find_last(self._by_end, time)
        if (before is not None and int(before["end"]) >= returned) or call is None:
            if before is None:
                return None, thread, [self._step(ORDER, "", where, BEFORE, time)]
            end = int(before["end"])
            steps = [self._step(ORDER, "", where, end, time), self._name_work(before)]
            return before, thread, steps
        name = self._process.api(int(call["api"])).name
        on = f"thread {thread}"
        return None, thread, [self._step(DELAY, "", on, returned, time), self._step(CALL, name, on, start, returned)]

    def _name_work(self, work: Any) -> Step:
        api, function, stream = self._process.api(int(work["api"])), int(work["function"]), int(work["stream"])
        where = f"stream {stream:#x}" if stream else "default stream"
        name, kind = self._names.get(function, f"#{function}") if function else api.name, KERNEL
        if not function:
            kind = GRAPH if api.type == "graph" else COPIED
        elif is_collective(name):
            kind = COLLECTIVE
        return self._step(kind, name, where, int(work["begin"]), int(work["end"]))

    def _step(self, kind: str, name: str, where: str, begin: int, end: int) -> Step:
        return Step(self.number, kind, name, where, begin, end)

    def _find_call(self, thread: int, start: int) -> Any:
        calls = self._threads.get(thread)
        at = int(np.searchsorted(calls["start"], start)) if calls is not None else 0
        return calls[at] if calls is not None and at < len(calls) and int(calls["start"][at]) == start else None

    @staticmethod
    def _find_last(work: Array, time: int) -> Any:
        """Return the work that ended last, no later than `time`, or None. Work without duration doesn't count."""
        at = int(np.searchsorted(work["end"], time, side="right")) - 1
        while at >= 0 and int(work["begin"][at]) >= time:  # without duration
            at -= 1
        return work[at] if at >= 0 else None

    def _waits_for_event(self, stream: int, until: int) -> bool:
        """Return whether a call after the stream's previous launch made it wait for an event."""
        launched, events = self._launched[stream], self._events[stream]
        at = int(np.searchsorted(launched, until)) - 1
        low, high = np.searchsorted(events, (int(launched[at]) if at >= 0 else BEFORE, until))
        return bool(high > low)

    def leave_host(self, thread: int, time: int) -> tuple[Any, list[Step]]:
        """Return the work that the thread's last call waited for, or None, and the steps since then: that call, and
        host code.
        """
        calls, on = self._threads.get(thread), f"thread {thread}"
        at = int(np.searchsorted(calls["start"], time)) - 1 if calls is not None else -1
        if calls is None or at < 0:
            return None, [self._step(HOST, "", on, BEFORE, time)]
        call = calls[at]
        start, end = int(call["start"]), min(int(call["end"]), time)
        steps, name = [self._step(HOST, "", on, end, time)], self._process.api(int(call["api"])).name
        if work := self._find_awaited(call, start, end):
            step = self._name_work(work[0])
            return work[0], [*steps, self._step(WAKE, name, on, step.end, end), step]
        return None, [*steps, self._step(CALL, name, on, start, end)]

    def _find_awaited(self, call: Any, start: int, end: int) -> list[Any]:
        """Return a list with the work that a call waited for, or an empty list."""
        acts = int(call["acts"])
        if acts & WAIT:
            one = self._streams.get(int(call["stream"]), self._by_end[:0])
            last = self._find_last(one if call["stream"] and len(one) else self._by_end, end)
        elif acts & COPY:
            low, high = np.searchsorted(self._by_call["call"], (start, start + 1))
            own = self._by_call[low:high][self._by_call["thread"][low:high] == call["thread"]]
            last = own[0] if len(own) and int(own["end"][0]) <= end else None
        else:
            last = None
        return [last] if last is not None and int(last["end"]) > start else []


def share_on_host(path: UnitPath) -> float:
    """Return the share of the paths (0 to 1) on the host: host code, calls, and delays of launches."""
    return sum(time for (_, kind, _), (_, time) in path.sums.items() if kind in ON_HOST) / (path.took or 1)
