"""Find the critical path of a repeated unit: what the next unit waited for, from moment to moment.

The path ends when the work of the unit's first launch begins in the next repetition, and goes back to the beginning of
that work in this repetition. So its length is the time that a repetition takes, whether the host or the GPU is the
limit. Each step goes back to whatever ended last:

- Work on the GPU waited for the earlier work in its stream if that ended after the launch call had returned. If the
stream waits for an event, it waited for work in other streams, if that ended later. Otherwise it waited for its launch
call, and the path goes on with the host.
- A call that waits, or a copy whose call lasts until it's done, waited for the work that ended last during the call:
the path goes on with that work.
- Any other call, and the time between calls, is the host's own.

Threads that wait for other threads look like host code. Waits of collectives for other ranks aren't followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.periods import Period, iter_units
from gpt.analyze.lib.ranks import is_collective
from gpt.analyze.lib.sequence import COPY, IOCTL, WAIT, iter_calls
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
        ("function", "<u4")]  # fmt: skip
HOST_CALL = [("start", "<i8"), ("end", "<i8"), ("thread", "<u8"), ("api", "<u4"), ("acts", "<u2"), ("stream", "<u8")]


class Step(NamedTuple):
    """A step of a path: its kind and name, the thread or stream, and its begin and end in ns."""

    kind: str
    name: str
    where: str
    begin: int
    end: int


@dataclass
class UnitPath:
    """The critical paths of some repetitions: how many there are and how long they took, the time and number of steps
    by kind and name, and the steps of one of them in order.
    """

    units: int = 0
    took: int = 0
    sums: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)


def find_path(trace: TraceModel, number: int, launches: Tape, period: Period) -> UnitPath | None:
    """Return the critical path of the unit that a process repeats, or None if no GPU times were recorded for it.

    `launches` are rows of launch_times.py.
    """
    windows = _choose_windows(launches, period)
    if not windows:
        return None
    calls = _read_calls(trace, number, windows)
    work = _read_work(trace, number, windows)
    found = UnitPath()
    for begin, end in windows:
        steps = [*_Walk(trace.processes[number], calls, work).iter_back(begin, end)][::-1]
        found.units += 1
        found.took += end - begin
        found.steps = found.steps or steps
        for step in steps:
            count, time = found.sums.get((step.kind, step.name), (0, 0))
            found.sums[step.kind, step.name] = count + 1, time + step.end - step.begin
    return found


def _choose_windows(launches: Tape, period: Period) -> list[tuple[int, int]]:
    """For some repetitions, return when the first work of this one and of the next begins. The most typical repetitions
    come first.
    """
    counts = (period.ends - period.begins) // period.length
    parts: list[Array] = []
    for _, places in iter_units(period.begins, counts, period.length):
        places = places[places + period.length < len(launches)]
        first, next_ = launches.take(places), launches.take(places + period.length)
        begins, ends = first["begin"], next_["begin"]
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


def _read_calls(trace: TraceModel, number: int, windows: list[tuple[int, int]]) -> Array:
    parts = [np.zeros(0, HOST_CALL)]
    for calls in iter_calls(trace, number, "stream"):
        mask = _in_windows(calls.start, calls.end, windows) & ~calls.of(IOCTL)
        part = np.zeros(int(mask.sum()), HOST_CALL)
        part["start"], part["end"], part["acts"] = calls.start[mask], calls.end[mask], calls.acts[mask]
        for name in ("thread", "api", "stream"):
            part[name] = calls.rows[name][mask]
        parts.append(part)
    return np.concatenate(parts)


def _read_work(trace: TraceModel, number: int, windows: list[tuple[int, int]]) -> Array:
    parts = [np.zeros(0, WORK)]
    for rows in trace.iter_gpu_times([place for place in trace.gpus() if place[0] == number]):
        ends = rows["begin"] + rows["duration"].astype(np.int64)
        mask = _in_windows(rows["begin"], ends, windows)
        part = np.zeros(int(mask.sum()), WORK)
        part["end"] = ends[mask]
        for name in ("begin", "stream", "call", "thread", "api", "function"):
            part[name] = rows[name][mask]
        parts.append(part)
    return np.concatenate(parts)


class _Walk:
    """Walks back in time through the calls and the work of a process, both sorted by start."""

    def __init__(self, process: Process, calls: Array, work: Array) -> None:
        self._process, self._work = process, work
        self._threads = {int(id_): calls[calls["thread"] == id_] for id_ in np.unique(calls["thread"])}
        self._by_end = work[np.argsort(work["end"], kind="stable")]
        self._streams = {int(id_): self._by_end[self._by_end["stream"] == id_] for id_ in np.unique(work["stream"])}
        self._by_call = work[np.argsort(work["call"], kind="stable")]
        waits = [id_ for id_, api in process.apis.items() if api.name.startswith(EVENT_WAIT)]
        events = calls[np.isin(calls["api"], waits)]
        self._events = {stream: np.sort(events["start"][events["stream"] == stream]) for stream in self._streams}
        self._launched = {stream: np.sort(own["call"]) for stream, own in self._streams.items()}
        self._names = process.kernels()

    def iter_back(self, first: int, last: int) -> Iterator[Step]:
        """Follow the path backward from the work that begins at `last` to the time `first`, and yield its steps."""
        at = int(np.searchsorted(self._work["begin"], last))
        work, time = self._work[at] if at < len(self._work) else None, last
        thread = 0
        while time > first:
            if work is not None:
                work, thread, steps = self._leave_work(work, time)
            else:
                work, steps = self._leave_host(thread, time)
            for step in steps:
                if step.end > first and step.begin < step.end:
                    yield step._replace(begin=max(step.begin, first))
            time = min([time, *(step.begin for step in steps)])
            if not steps:
                return

    def _leave_work(self, work: Any, time: int) -> tuple[Any, int, list[Step]]:
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
                return None, thread, [Step(ORDER, "", where, BEFORE, time)]
            end = int(before["end"])
            steps = [Step(ORDER, "", where, end, time), self._name_work(before)]
            return before, thread, steps
        name = self._process.api(int(call["api"])).name
        on = f"thread {thread}"
        return None, thread, [Step(DELAY, "", on, returned, time), Step(CALL, name, on, start, returned)]

    def _name_work(self, work: Any) -> Step:
        api, function, stream = self._process.api(int(work["api"])), int(work["function"]), int(work["stream"])
        where = f"stream {stream:#x}" if stream else "default stream"
        name, kind = self._names.get(function, f"#{function}") if function else api.name, KERNEL
        if not function:
            kind = GRAPH if api.type == "graph" else COPIED
        elif is_collective(name):
            kind = COLLECTIVE
        return Step(kind, name, where, int(work["begin"]), int(work["end"]))

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

    def _leave_host(self, thread: int, time: int) -> tuple[Any, list[Step]]:
        """Return the work that the thread's last call waited for, or None, and the steps since then: that call, and
        host code.
        """
        calls, on = self._threads.get(thread), f"thread {thread}"
        at = int(np.searchsorted(calls["start"], time)) - 1 if calls is not None else -1
        if calls is None or at < 0:
            return None, [Step(HOST, "", on, BEFORE, time)]
        call = calls[at]
        start, end = int(call["start"]), min(int(call["end"]), time)
        steps, name = [Step(HOST, "", on, end, time)], self._process.api(int(call["api"])).name
        if work := self._find_awaited(call, start, end):
            step = self._name_work(work[0])
            return work[0], [*steps, Step(WAKE, name, on, step.end, end), step]
        return None, [*steps, Step(CALL, name, on, start, end)]

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
    return sum(time for (kind, _), (_, time) in path.sums.items() if kind in ON_HOST) / (path.took or 1)
