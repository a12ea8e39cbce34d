"""Read JSON lines of calls, between other text, as records of a trace: from `gpt-analyze events --json`, or a tracer.

    # {"kind":"header","argv":["python","infer.py"],"pid":7, ...}
    {"ts":12.5,"type":"memory","op":"alloc","name":"cuMemAlloc","pid":7,"tid":7,"duration_us":3.1,"size":4096}

A line that begins with `{` is an event: `ts` in microseconds since the first process began, and the call, in the form
that gpt-analyze(1) describes. An event with `phase` or `event_id` comes from an eBPF tracer, and its `ts` is in
milliseconds (phases.py). `# ` is followed by a record of gpt-stream(5) in its JSON form, with more about processes; all
of its times are in ns. Without headers, each `pid` is a process (0 if a line has none), and the file's modification
time is the time of day. All other lines are text.

Gaps are reported at the end: a `diag` of MISSING for events that the tracer lost and for lines of other kinds, and a
MalformedError for lines that are broken or truncated.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import IO, Any

from gpt.base.errors import MalformedError
from gpt.base.wrong_input import is_stream
from gpt.compat.tracers.line_calls import LineCalls, text
from gpt.compat.tracers.phases import DETAILS, MS, US, Phases, TracedCall, duration, to_ns
from gpt.stream import jsonl, records
from gpt.stream.wire import Segments, pack
from gpt.trace.apis import find_api
from gpt.trace.follow import MISSING
from gpt.trace.machines import LIMIT, Machines
from gpt.trace.process import Api

Record = dict[str, Any]

TOOL = "tracer"
ZERO = 1 << 40  # ns: start of processes without a header, not 0 so that earlier events get time stamps, too
BATCH = 1 << 16  # calls per batch
DECODE = json.JSONDecoder().decode  # json.loads takes twice as long
MOST_LINE = 1 << 20  # bytes
BOM = b"\xef\xbb\xbf"
EVENT = re.compile(rb'^(?:\xef\xbb\xbf)?(?:\{(?!"kind")[^\n]*"ts"[ \t]*:|# \{"kind": ?"header")', re.M)
LOST = re.compile(rb"Lost (\d{1,15}) events")  # in bpftrace's words
NOTED = frozenset((  # kinds of records that may follow `# `
    "api", "count", "device", "end", "function", "gpu_time", "graph", "header", "ioctl", "launch", "range", "range_end",
    "recording", "resume", "unprobed",
))  # fmt: skip
OTHER, LATE = "no event", "a time that makes no sense"  # reasons to skip a line
BROKEN, LONG, CUT = "broken", f"longer than {MOST_LINE >> 20} MiB", "cut off"
FAULTS = (BROKEN, LONG, CUT)


def is_lines(head: bytes) -> bool:
    """Return whether a file that begins like this has such lines."""
    return not is_stream(head) and b"\0" not in head and EVENT.search(head) is not None


def read_lines(file: IO[bytes], name: str) -> Iterator[Record]:
    """Yield the records that the lines of a file stand for. Broken lines raise MalformedError after the last one."""
    lines = _Lines(name, os.fstat(file.fileno()).st_mtime_ns)
    for line, ended in _iter_lines(file):
        yield from lines.add(line, ended)
    yield from lines.finish()


def _iter_lines(file: IO[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Yield each line (only the first MOST_LINE bytes of a long one), and whether it's complete."""
    inside = False
    while part := file.readline(MOST_LINE):
        ended = part.endswith(b"\n")
        if not inside:
            yield part, ended
        inside = not ended


class _Lines:
    """The part of a file that has been read."""

    def __init__(self, name: str, changed: int) -> None:
        self._name = name
        self._changed = changed  # ns since the epoch
        self._number = 0  # number of the current line
        self._processes: list[LineCalls] = []
        self._fresh: list[Record] = []  # headers that we made and haven't returned yet
        self._found: dict[tuple[Any, ...], list[LineCalls]] = {}  # by host and pid
        self._noted = Segments()  # segments of the records after `# `
        self._own: list[LineCalls] = []  # the processes of these segments
        self._machines = Machines()
        self._current: LineCalls | None = None  # the process whose records are being returned
        self._ends: list[tuple[LineCalls, Record]] = []
        self._phases = Phases()
        self._apis: dict[tuple[str, ...], Api] = {}
        self._begun = False  # True if events followed the last headers
        self._calls = 0  # not returned yet
        self._events = self._unknown = self._lost = 0
        self._skipped: Counter[str] = Counter()
        self._where: dict[str, int] = {}  # first line for each reason

    def add(self, line: bytes, ended: bool) -> Iterator[Record]:
        """Take a line in, and yield the records that are ready."""
        line = line if self._number else line.removeprefix(BOM)
        self._number += 1
        event, note = line.startswith(b"{"), line.startswith(b'# {"kind"')
        if not (event or note):
            lost = LOST.search(line) if len(line) < 1000 else None
            self._lost += int(lost[1]) if lost else 0
            return
        try:
            if not ended and len(line) == MOST_LINE:
                raise ValueError(LONG)
            found = DECODE((line if event else line[2:]).decode())
        except (ValueError, RecursionError) as error:
            self._skip(LONG if str(error) == LONG else BROKEN if ended else CUT)
            return
        if note:
            yield from self._note(found)
        else:
            self._add_event(found)
        if self._calls >= BATCH:
            yield from self._flush()

    def _skip(self, reason: str) -> None:
        self._skipped[reason] += 1
        self._where.setdefault(reason, self._number)

    # Records after `# `

    def _note(self, found: Any) -> Iterator[Record]:
        if isinstance(found, dict) and found.get("kind") == "gpu_time" and self._noted.current is not None:
            self._calls += 1  # there are as many of them as calls
            if not self._own[self._noted.current].add_gpu_time(found):
                self._skip(BROKEN)
            return
        try:
            record = jsonl.decode(found)
            kind = record["kind"]
            if kind not in NOTED:
                return
            pack(record)  # rejects anything that no record can hold, such as half of a surrogate pair
            if kind == "header" and (fault := records.check(record)):
                raise MalformedError(fault)
            place = self._noted.add(record)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, MalformedError):
            self._noted.current = None  # its meaning is unknown
            self._skip(BROKEN)
            return
        if kind == "header":
            yield from self._flush()  # the records after it belong to the new process
            if self._begun:  # another file with different times was appended to this one
                self._machines, self._found, self._begun = Machines(), {}, False
            self._machines.add(record)
            self._own.append(self._begin(record, noted=True))
            yield record
            zero = record["monotonic"]
            yield records.make("clock", tsc=zero, monotonic=zero)  # marks the process as seen, even without calls
        elif kind == "end":
            self._ends.append((self._own[place], record))
        elif kind != "resume":
            self._own[place].learn(record)
            yield from self._switch(self._own[place])
            yield record

    def _begin(self, header: Record, noted: bool) -> LineCalls:
        process = self._current = LineCalls(len(self._processes), header, noted)
        self._processes.append(process)
        for host in {None, header["host"]}:
            self._found.setdefault((host, header["pid"]), []).append(process)
        return process

    def _switch(self, process: LineCalls) -> Iterator[Record]:
        """Yield the record that makes the next records belong to a process."""
        if process is not self._current:
            self._current = process
            yield records.make("resume", back=len(self._processes) - 1 - process.place)

    # Events

    def _add_event(self, line: Any) -> None:
        if not isinstance(line, dict):
            return self._skip(OTHER)
        traced = "phase" in line or "event_id" in line
        at = to_ns(line.get("ts"), MS if traced else US)
        if at is None:
            return self._skip(LATE if "ts" in line else OTHER)
        if traced:
            return self._add_calls(self._phases.add(line, at))
        name = line.get("name") or DETAILS.get(f"{line.get('type')} {line.get('op')}")
        if not isinstance(name, str):
            return self._skip(OTHER)
        return self._add_calls((TracedCall(name, at, duration(line), line),))

    def _add_calls(self, calls: Iterable[TracedCall]) -> None:
        for call in calls:
            line, process = call.line, self._find_process(call)
            stamp = call.start + (ZERO if not process.noted else -self._machines.offset(process.header))
            if not 0 < stamp < LIMIT:
                self._skip(LATE)
                continue
            may_hang = process.noted or call.hangs  # other processes have lost their ends
            self._unknown += call.took is None and not may_hang
            took = call.took or (0 if may_hang else 1)
            self._calls += 1
            self._events += 1
            self._begun = True
            match line.get("type"):
                case "recording":
                    if not process.noted:
                        process.news.append(records.make("recording", on=line.get("op") == "on", at=stamp))
                case "kernel" if not call.name.startswith("cu"):
                    if not process.noted:
                        parent = None if call.inside is None else call.inside.start + ZERO
                        process.news.append(_make_ioctl(call, stamp, took, parent))
                case _:
                    process.add(self._find_api(call.name, line), stamp, took, line)

    def _find_process(self, call: TracedCall) -> LineCalls:
        """Return the process of a call. If several processes had its pid, return the last to begin."""
        host, pid = call.line.get("host"), call.line.get("pid")
        key = host if isinstance(host, str) else None, pid if type(pid) is int and 0 <= pid < 1 << 64 else 0
        found = self._found.get(key)
        if found is None:
            rank = call.line.get("rank")
            more = {"rank": rank} if type(rank) is int and 0 <= rank < 1 << 64 else {}
            header = records.make(
                "header", version="{}.{}".format(*records.VERSION), tool=TOOL, argv=[os.path.basename(self._name)],
                host=text(key[0] or ""), pid=key[1], realtime=self._changed, monotonic=ZERO, via=[], **more,
            )  # fmt: skip
            self._fresh.append(header)
            found = self._found[key] = [LineCalls(len(self._processes), header, noted=False)]
            self._processes += found
        if len(found) == 1:
            return found[0]
        begun = [one for one in found if one.header["monotonic"] + self._machines.offset(one.header) <= call.start]
        return max(begun or found, key=lambda one: int(one.header["monotonic"]))

    def _find_api(self, name: str, line: Record) -> Api:
        """Return the function of a call. Tracers have other types; for driver functions, ours follow from the name."""
        words = [word if isinstance(word := line.get(key), str) else "" for key in ("type", "op", "symbol")]
        key = name, *words
        api = self._apis.get(key)
        if api is None:
            type_, op, symbol = words
            if name.startswith("cu") and not (symbol and type_):
                api = find_api(text(name))
            else:
                api = Api(text(type_ or "other"), text(op or name.lower()), text(name), text(symbol))
            self._apis[key] = api
        return api

    def _flush(self) -> Iterator[Record]:
        """Yield the records of all calls that were added."""
        self._calls = 0
        fresh, self._fresh = self._fresh, []
        if fresh:
            yield from fresh
            self._current = self._processes[-1]
        for process in self._processes:
            taken = list(process.take())
            if taken:
                yield from self._switch(process)
                yield from taken

    def finish(self) -> Iterator[Record]:
        """Yield the remaining records, reports of gaps, and the ends of segments. Raises MalformedError if lines were
        broken.
        """
        self._add_calls(self._phases.finish())
        yield from self._flush()
        broken = [self._say(reason) for reason in FAULTS if self._skipped[reason]]
        if not self._processes or not (self._events or self._own):
            raise MalformedError(f"no event in its {self._number:,} lines", self._name)
        last = self._processes[-1]
        for process in self._processes:
            if not process.noted:
                yield from self._switch(process)
                yield from process.count_launches()
        missing = [self._say(reason) for reason in (OTHER, LATE) if self._skipped[reason]]
        if self._unknown:
            calls = "1 call has" if self._unknown == 1 else f"{self._unknown:,} calls have"
            missing.append(f"{calls} no duration: each counts as 1 ns")
        missing += [f"the tracer lost {self._lost:,} event{'s' * (self._lost > 1)}"] if self._lost else []
        yield from self._switch(last)
        for fact in missing:
            yield records.make("diag", level="warning", where=self._name, text=fact, ref=MISSING)
        end = records.make("end", records=0, status=0)
        for process, end in self._ends + [(process, end) for process in self._processes if not process.noted]:
            yield from self._switch(process)
            yield end
            self._current = None
        if broken:
            raise MalformedError("; ".join(broken), self._name)

    def _say(self, reason: str) -> str:
        more = self._skipped[reason] - 1
        return f"line {self._where[reason]:,}" + (f" and {more:,} more" if more else "") + f": {reason}"


def _make_ioctl(call: TracedCall, start: int, took: int, parent: int | None) -> Record:
    """Make an `ioctl` from a call into NVIDIA's kernel modules; the request number distinguishes ioctls."""
    line = call.line
    request = line.get("ioctl_cmd", line.get("request"))
    request = request if type(request) is int and 0 <= request < 1 << 64 else None
    name = text(call.name) if request is None else f"{text(call.name)} {request:#x}"
    error = line.get("result", line.get("retval"))
    error = abs(error) if type(error) is int and 0 < abs(error) < 1 << 31 else None
    thread = line.get("tid")
    return records.make(
        "ioctl", thread=thread if type(thread) is int and 0 <= thread < 1 << 64 else 0, parent=parent,
        device="/dev/nvidia", request=request or 0, name=name, start=start, duration=took, error=error,
    )  # fmt: skip
