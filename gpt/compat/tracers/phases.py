"""Assemble calls from the lines of an eBPF tracer. It reports each event as it happens, so a call may have several
lines.

    {"event_id":4,"ts":0.51,"tid":7,"phase":"B","type":"userspace","name":"uprobe:/lib/libcuda.so.1:cuMemAlloc_v2"}
    {"event_id":5,"ts":0.59,"tid":7,"type":"memory","op":"alloc","size":4096}
    {"event_id":6,"ts":0.60,"tid":7,"phase":"E","type":"userspace","name":"...","duration_us":90.0,"retval":0}

`ts` is in milliseconds. A line without `phase` and `name` adds to the call that its thread is in, has just left, or
enters next, because the order in which a tracer runs several probes at one place isn't known. Without such a call, the
line becomes a call itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpt.trace.machines import LIMIT

Line = dict[str, Any]

US, MS = 1000, 1_000_000  # ns
DETAILS = {  # other facts in a line without a name, by its type and its op or direction
    "memory alloc": "cuMemAlloc", "memory free": "cuMemFree", "kernel launch": "cuLaunchKernel",
    "transfer H2D": "cuMemcpyHtoD", "transfer D2H": "cuMemcpyDtoH", "transfer D2D": "cuMemcpyDtoD",
}  # fmt: skip


@dataclass(slots=True)
class TracedCall:
    """A call: times in ns; `took` is None if it isn't known. `line` has everything else that its lines say."""

    name: str
    start: int
    took: int | None
    line: Line = field(default_factory=dict)
    begun: bool = True  # its start was seen
    told: bool = False  # a line added to it
    inside: TracedCall | None = None  # the call that contains it
    hangs: bool = False  # the last call of its thread, without an end

    def tell(self, line: Line) -> None:
        """Add the details of another line."""
        self.line = line | self.line | {key: line[key] for key in ("grid", "block", "size") if key in line}
        self.told = True


class Phases:
    """The calls of threads. `add` yields calls that are complete, and `finish` the rest."""

    def __init__(self) -> None:
        self._open: dict[Any, list[TracedCall]] = defaultdict(list)  # by thread, the innermost last
        self._last: dict[Any, TracedCall] = {}  # the call that ended last
        self._newest: dict[Any, TracedCall] = {}  # just begun, with nothing after it
        self._early: dict[Any, TracedCall] = {}  # its begin wasn't seen yet, but a line with details was

    def add(self, line: Line, at: int) -> Iterator[TracedCall]:
        """Take in a line and its time in ns; yield complete calls."""
        thread, phase = line.get("tid"), line.get("phase")
        thread = thread if isinstance(thread, int | str) else None
        name = str(line.get("name") or "").rpartition(":")[2]
        if phase == "B" and name:
            yield from self._begin(thread, TracedCall(name, at, None, line))
        elif phase == "E" and name:
            yield from self._end(thread, name, line, at)
        elif name:
            yield TracedCall(name, at, duration(line) or 1, line)
        else:
            yield from self._detail(thread, line, at)

    def _begin(self, thread: Any, call: TracedCall) -> Iterator[TracedCall]:
        last, early = self._last.pop(thread, None), self._early.pop(thread, None)
        if last and not last.begun and last.name == call.name and call.start <= last.start + (last.took or 0):
            last.begun = True  # lines from two processors may arrive in another order
            yield last
            return
        if last:
            yield last
        if early and call.name.startswith(early.name):
            call.tell(early.line)
        elif early:
            yield early
        call.inside = next(reversed(self._open[thread]), None)
        self._open[thread].append(call)
        self._newest[thread] = call

    def _end(self, thread: Any, name: str, line: Line, at: int) -> Iterator[TracedCall]:
        self._newest.pop(thread, None)
        for kept in (self._last, self._early):
            if thread in kept:
                yield kept.pop(thread)
        inside, took = self._open[thread], duration(line)
        place = next((n for n in reversed(range(len(inside))) if inside[n].name == name), None)
        if place is None:
            self._last[thread] = TracedCall(name, at - (took or 0), took or 1, line, begun=False)
            return
        call = inside[place]
        yield from inside[place + 1 :]  # their ends were lost
        del inside[place:]
        call.took = max(1, at - call.start if took is None else took)
        call.line = call.line | {"result": line["retval"]} if "retval" in line else call.line
        self._last[thread] = call

    def _detail(self, thread: Any, line: Line, at: int) -> Iterator[TracedCall]:
        what = line.get("type"), line.get("op") or line.get("direction")
        name = DETAILS.get("{} {}".format(*what))
        if name is None:
            if word := next((word for word in reversed(what) if word and isinstance(word, str)), None):
                yield TracedCall(word, at, 1, line)
            return
        near = [*reversed(self._open[thread]), *([self._last[thread]] if thread in self._last else [])]
        call = next((call for call in near if call.name.startswith(name) and not call.told), None)
        if call:
            call.tell(line)
            return
        self._newest.pop(thread, None)
        if thread in self._early:
            yield self._early.pop(thread)
        took = duration(line)
        self._early[thread] = TracedCall(name, at - (took or 0), took, line, told=True)

    def finish(self) -> Iterator[TracedCall]:
        """Yield calls without an end, and other waiting ones."""
        yield from self._last.values()
        yield from self._early.values()
        for call in self._newest.values():
            call.hangs = True
        for calls in self._open.values():
            yield from calls


def duration(line: Line) -> int | None:
    """Return the duration of a call in ns, if the line has one."""
    for key, unit in (("duration_us", US), ("duration_ms", MS)):
        if (ns := to_ns(line.get(key), unit)) is not None and ns >= 0:
            return max(1, ns)
    return None


def to_ns(value: Any, unit: int) -> int | None:
    """Convert a time to ns, or return None unless it's a number of `unit` ns within 70 years."""
    number = isinstance(value, int | float) and abs(value) < LIMIT / unit and not isinstance(value, bool)
    return round(value * unit) if number else None
