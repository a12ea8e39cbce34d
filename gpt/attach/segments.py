"""Convert the output of bpftrace to the records of a trace, with a segment for each process. The segments are
interleaved.

Each line is a complete call, so lines can arrive in any order, depending on the CPUs' buffers; rows are sorted within
each batch. Time stamps are CLOCK_MONOTONIC, so the time for which the machine was suspended is subtracted. If the clock
of another CPU lags behind, a duration can be negative: it's recorded as 1 ns.

A kernel is identified by the handle that a look-up returned. If the look-up happened before the recording, the handle
gets an id, but no `function` record. If a process id occurs again after an `exit`, that's a new process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache

from gpt.attach.events import Call, Event, Lost, NamePart, Note, Strange, UnderWay
from gpt.attach.kernel import IOCTLS, name_request
from gpt.attach.process import Record, WatchedProcess
from gpt.attach.program import ALIASES, BEAT_MS, NAMED, PART_BYTES, PARTS
from gpt.stream import records
from gpt.trace.apis import find_api

KEPT = 1 << 15  # rows of all processes that are kept before they're written
LIMIT = 1 << 63  # for times in ns and counts
BEAT = BEAT_MS * 1_000_000  # ns from one beat to the next
MAX_NAMES = 1 << 16  # look-ups that haven't returned
BACKWARDS = 1 << 63  # longer durations are negative
ROOM = "bpftrace's buffers were full, so calls or names are missing"
BEFORE = "looked up before the process was watched: they have numbers only"


_find_api = lru_cache(4096)(find_api)


class SegmentWriter:
    """Converts events to records. `command` returns the words with which a process was started.

    After the last event, `processes`, `calls` and `launches` are totals. `nameless` is the number of kernels without
    names, `lost` the number of events for which bpftrace had no room, and `strange` the number of invalid lines, of
    which `example` is the first.
    """

    def __init__(self, command: Callable[[int], list[str]]) -> None:
        self.begun = False
        self.ended = False
        self.processes = self.calls = self.launches = self.nameless = self.lost = self.strange = 0
        self.example = ""
        self._command = command
        self._realtime = self._begin = self._suspended = 0
        self._now = 0  # the latest time in a `beat`, `exit` or `end` line
        self._commands: dict[int, list[str]] = {}
        self._machine: tuple[str, str | None] = ("", None)
        self._keys: list[tuple[str, list[str]]] = []  # symbols, and words for the keys of the maps
        self._open: dict[int, WatchedProcess] = {}
        self._headers = 0
        self._turn = -1  # the process whose records were written most recently
        self._kept = 0  # rows
        self._names: dict[tuple[int, int, int], dict[int, str]] = {}
        self._under_way: list[UnderWay] = []
        self._printed: list[UnderWay] = []  # since the last beat
        self._syncs = 0
        self._written = 0  # number of the last header
        self._told = False  # True once a record reports lost events

    def add(self, event: Event) -> Iterator[Record]:
        """Add an event."""
        match event:
            case Call():
                self._add_call(event)
                if self._kept >= KEPT:
                    yield from self.flush()
            case NamePart():
                self._names.setdefault(event[:3], {})[event.part] = event.text
                if len(self._names) > MAX_NAMES:
                    self._names.clear()
            case UnderWay():
                self._printed.append(event)
            case Note():
                yield from self._add_note(event)
            case Lost():
                self.lost = min(self.lost + event.events, LIMIT)
            case Strange():
                self._add_strange(event.line)

    def _add_strange(self, line: str) -> None:
        self.strange += 1
        self.example = self.example or line[:80]

    def _add_note(self, note: Note) -> Iterator[Record]:
        try:
            match note:
                case Note("begin", [at, time]):
                    second, _, part = time.partition(".")
                    self._begin = _number(at)
                    self._realtime = _number(second, LIMIT // 10**9) * 10**9 + _number(part.ljust(9, "0")[:9])
                    self.begun = True
                case Note("machine", [host, boot_id, suspended]):
                    self._machine, self._suspended = (host, boot_id), _number(suspended)
                case Note("functions", [text]):
                    lines = [line.split() for line in text.split(",")]
                    self._keys = [(words[1], words[2:]) for words in lines]
                case Note("argv", [pid, text]):
                    self._commands[int(pid)] = split_command(bytes.fromhex(text))
                case Note("beat", [at]):
                    self._now = _number(at)
                    self._under_way, self._printed = self._printed, []
                    yield from self.flush()
                case Note("exit", [pid, at]) if int(pid) in self._open:
                    self._now = _number(at)
                    yield from self._close(int(pid), over=True)
                case Note("end", [at]):
                    # bpftrace prints it after it has removed all probes, which may take a minute. Before that, beats
                    # stop.
                    self._now = min(_number(at), self._now + BEAT if self._now else LIMIT)
                    self.ended = True
                    self._under_way, self._printed = [], []  # bpftrace prints the maps once more
        except (ValueError, IndexError):
            self._add_strange(" ".join([note.kind, *note.words]))

    def _time(self, stamp: int) -> int:
        return max(1, stamp - self._suspended)

    def _process(self, pid: int, start: int) -> WatchedProcess:
        if pid not in self._open:
            host, boot_id = self._machine
            began = min(start, self._begin) if not self.processes else start
            argv = self._command(pid) or self._commands.get(pid, [])
            header = records.make(
                "header", version="{}.{}".format(*records.VERSION), tool="gpt-attach", argv=argv,
                host=host, pid=pid, boot_id=boot_id, realtime=min(max(0, self._realtime + began - self._begin), LIMIT),
                monotonic=self._time(began), attached=1, via=[],
            )  # fmt: skip
            self._open[pid] = WatchedProcess(self._headers, header)
            self._headers += 1
            self.processes += 1
            self._open[pid].ready.append(records.make("recording", on=True, at=self._time(began)))
        return self._open[pid]

    def _add_call(self, call: Call) -> None:
        if call.kernel and call.symbol in IOCTLS:
            self._add_ioctl(call, IOCTLS[call.symbol])
            return
        self._add_row(call, max(1, call.duration if call.duration < BACKWARDS else 1))

    def _add_ioctl(self, call: Call, device: str) -> None:
        """Add an ioctl. It waits for the driver call that it's part of, because that returns later."""
        name, command = name_request(call.fields.get("request", 0), call.fields)
        record = records.make(
            "ioctl", thread=call.tid, device=device, request=call.fields.get("request", 0), name=name, command=command,
            start=self._time(call.start), duration=max(1, call.duration if call.duration < BACKWARDS else 1),
            error=-call.result if call.result < 0 else None,
        )  # fmt: skip
        process = self._process(call.pid, call.start)
        process.ioctls.setdefault(call.tid, []).append(record)
        process.calls += 1
        self._kept += 1

    def _add_row(self, call: Call, duration: int) -> None:
        process = self._process(call.pid, call.start)
        name = _find_api(call.symbol).name
        values = call.fields
        returned = duration and not call.result
        if name in NAMED and "object" in values:
            parts = self._names.pop(call[1:4], {})
            if returned and parts:
                process.look_up(values["object"], _join(parts), call.start)
        elif name in ALIASES and returned and "kernel" in values:
            kernel = process.functions.get(values["kernel"])
            if kernel is not None and "object" in values:
                process.functions[values["object"]] = kernel
        if "rows" in values:
            values["bytes"] = values.get("bytes", 0) * values["rows"] & (1 << 64) - 1
        if "function" in values:
            values["function"] = process.function(values["function"], call.start)
            if returned:
                process.launches[values["function"]] += 1
        start = self._time(call.start)
        api = process.api(call.symbol, call.kernel)
        if not call.kernel:
            process.settle(call.tid, start, duration)
        process.add(call.tid, (start, duration, api, call.result), values)
        process.last[call.tid] = max(call.start, process.last.get(call.tid, 0))
        self._kept += 1

    def flush(self) -> Iterator[Record]:
        """Yield everything that's known so far, and a `sync`."""
        for process in self._open.values():
            found = list(process.take())
            if found:
                yield from self._turn_to(process)
                yield from found
        self._kept = 0
        last = next((process for process in self._open.values() if not process.header), None)
        if last:  # a sync is part of a segment that hasn't ended
            if all(process.number != self._turn for process in self._open.values()):
                yield from self._turn_to(last)
            self._syncs += 1
            yield records.make("sync", id=self._syncs)

    def _turn_to(self, process: WatchedProcess) -> Iterator[Record]:
        if process.header:
            yield process.header
            process.header = {}
            self._written = process.number
        elif self._turn != process.number:
            yield records.make("resume", back=self._written - process.number)
        self._turn = process.number

    def finish(self, complete: bool) -> Iterator[Record]:
        """Yield the remaining records. Segments get an `end` only if the input is `complete`."""
        self._add_under_way(self._printed if self.ended else self._under_way)
        for pid in list(self._open):
            yield from self._close(pid, over=complete)

    def _add_under_way(self, calls: list[UnderWay]) -> None:
        """Add calls that haven't returned, as rows with a duration of 0. Skip calls that have returned in the
        meantime.
        """
        for one in calls:
            process = self._open.get(one.pid)
            if one.function >= len(self._keys) or (process and one.start <= process.last.get(one.tid, 0)):
                continue
            symbol, words = self._keys[one.function]
            values = {word: value for word, value in zip(words, one.values, strict=False) if not word.endswith("*")}
            self._add_row(Call(False, one.pid, one.tid, one.start, 0, 0, symbol, values), 0)

    def _close(self, pid: int, over: bool) -> Iterator[Record]:
        process = self._open.pop(pid)
        found = [*process.take(last=True), *process.counts()]
        if over and self._now:
            found.append(records.make("recording", on=False, at=self._time(max(self._now, process.newest))))
        if process.nameless:
            found.append(records.make("dropped", count=process.nameless, what="names of kernels", reason=BEFORE))
        if self.lost and not self._told:
            found.append(records.make("dropped", count=self.lost, what="events", reason=ROOM))
            self._told = True
        yield from self._turn_to(process)
        yield from found
        if over:
            yield records.make("end", records=0, status=0)
        self.calls += process.calls
        self.launches += sum(process.launches.values())
        self.nameless += process.nameless


def split_command(data: bytes) -> list[str]:
    """Return the words of /proc/PID/cmdline."""
    return data.removesuffix(b"\0").decode(errors="surrogateescape").split("\0") if data else []


def _number(text: str, limit: int = LIMIT) -> int:
    """Parse a number in a note. Raises ValueError if it can't be a time."""
    number = int(text)
    if not 0 <= number < limit:
        raise ValueError
    return number


def _join(parts: dict[int, str]) -> str:
    """Join the parts of a name. If the name is longer than its parts together, or if a part was lost, the result ends
    with an ellipsis.
    """
    name = ""
    for part in range(PARTS):
        name += parts.get(part, "…")
        if len(parts.get(part, "").encode(errors="surrogateescape")) < PART_BYTES:
            return name
    return name + "…"
