"""Read the traces, pass them to an analysis, and write its answers.

In the terms of gpt-stream(5), an analysis is a filter. It removes the kinds of records that it uses, because nobody
wants a one-page answer followed by a trace of ten million calls, and passes all others on. Its answer goes where
filters have to write one: before a `sync`, and before the last `end`. So you can get an answer while a program runs,
and the last answer covers everything that was read.

If a trace is truncated or malformed, that's reported as an error at the end. The part that could be read counts, and
every answer says what's missing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpt.analyze.lib import live
from gpt.analyze.lib.answer import Answers, Record
from gpt.analyze.lib.locations import tell_apart
from gpt.base.errors import GptError, MalformedError, MissingError, OutputError
from gpt.stream import records
from gpt.stream.stage import STDIN, STDOUT, Stage
from gpt.stream.wire import Segments

if TYPE_CHECKING:
    from gpt.trace.follow import Trace
    from gpt.trace.machines import Header
    from gpt.trace.process import Process
    from gpt.trace.select import Selection

# Records that describe a process, which later stages need as well. They include launches of probed kernels, because the
# buffers of probes refer to launches.
PASSED_ON = frozenset(("function", "library", "device", "module", "lookup", "kernel", "map", "probed", "unprobed"))
NAMED = 3  # lines about missing input
KERNELS = 8  # names of kernels shown if a selection matches none
SIMULATED = "the simulated device ran this: its times say nothing about a GPU"
EMPTY = "the trace has no records: no process that gpt-hook watched used the CUDA driver"


class Fold(Protocol):
    """An analysis while traces are being read. Methods raise MalformedError for records that make no sense.

    If the answer can be computed from parts, the fold has a method `merge`, which adds the fold of later traces. Such
    an analysis can run on a cluster (cluster.py).
    """

    kinds: frozenset[str]  # kinds of records that a process must keep
    streams: bool  # False if the output is lines of text, not records

    def take(self, process: Process) -> None:
        """Take the rows that a process has collected. Called when there are many rows, and at the process's end."""

    def end(self, process: Process) -> None:
        """Record that the segment of a process has ended."""

    def answer(self, incomplete: list[str]) -> Answers:
        """Yield the answers for everything that was read. `incomplete` has the lines that say which input is
        missing.
        """

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return why a trace with only these kinds of records gives no answer, or None if it gives one."""


def find_lack(kinds: set[str], wanted: frozenset[str]) -> str | None:
    """Return the message for a trace without calls."""
    return None if kinds & (wanted | {"child"}) else "no calls in the stream: 'gpt-hook run' records some"


def read(
    stage: Stage,
    fold: Fold,
    traces: Sequence[Path] = (),
    selection: Selection | None = None,
    seen: Callable[[Record], object] | None = None,
) -> bool:
    """Read the traces, or standard input, and write the answers to the stage, and to `seen`.

    Returns whether everything has ended: no process is running, and nobody is writing a trace.
    """
    from gpt.trace.follow import Follow
    from gpt.trace.inputs import expand, read_input

    inputs = expand(traces)

    def read_one(path: Path | None) -> Iterator[Record]:
        return read_input(path, lambda one: stage.read([one]) if one else _read_stdin(stage))

    if selection and (selection.timed or getattr(fold, "timed", False)):
        # Times count from the start of the first process, whichever trace is read first.
        selection.look(filter(None, inputs), read_one)
    passage = Passage(stage, fold, selection, seen)
    followed = Follow(inputs or [None], read_one)
    for trace in followed:
        read_trace(stage, passage, trace)
    passage.finish([path for _, path in followed.absent])
    return passage.ended


def read_trace(stage: Stage, passage: Passage, trace: Trace) -> None:
    """Read a trace, and report errors in it."""
    from gpt.trace.inputs import side_folder

    passage.begin_trace(trace, side_folder(trace.path))
    with _survived(stage, passage, trace.name):
        for record in trace:
            passage.pass_on(record)
        passage.note_whole(trace)
    for fact in trace.missing:
        passage.say(stage.warn(trace.name, fact, trace.name))
    with _survived(stage, passage, trace.name):
        passage.close_trace()


def _read_stdin(stage: Stage) -> Iterator[Record]:
    """Read a stream, or text of another format."""
    if not (stage.from_json or os.isatty(0)):
        from gpt.trace.inputs import find_text

        if read_text := find_text(stage.peek()):
            return read_text(stage.stdin, STDIN)
    return stage.read()


@contextmanager
def _survived(stage: Stage, passage: Passage, name: str) -> Iterator[None]:
    """Report an error in a trace without ending the run."""
    try:
        yield
    except OutputError:
        raise
    except GptError as error:
        passage.say(stage.error(error if error.where else type(error)(error.fact, name), ref=name))
    except OSError as error:
        if error.filename == STDOUT:
            raise
        missing = isinstance(error, FileNotFoundError | PermissionError)
        fact, where = error.strerror or str(error), str(error.filename or name)
        passage.say(stage.error(MissingError(fact, where) if missing else GptError(fact, where), ref=name))


class Passage:
    """The state of one run: the records read so far, and everything that's still to be written.

    `known` maps processes that other readers have already counted to the names of their traces.
    """

    def __init__(
        self,
        stage: Stage,
        fold: Fold,
        selection: Selection | None,
        seen: Callable[[Record], object] | None = None,
        known: Mapping[Hashable, str] | None = None,
    ) -> None:
        self.folder: Path | None = None  # folder of the current trace
        self.origin = 0  # the current trace's first time stamp
        self.name = ""  # name of the current trace
        self._stage = stage
        self._fold = fold
        self._selection = selection
        self._seen = seen
        self._taken = fold.kinds - PASSED_ON
        self._missing: dict[str, None] = {}  # lines about missing input
        self._absent, self._ended = 0, 0  # children whose traces are absent, and processes that were read
        self._endless: list[Header] = []  # segments that ended without `end`
        self._end: Record | None = None  # the last record, held back because the answer may have to precede it
        self._segments = Segments()  # segments of the current trace
        self._processes: dict[int, Process] = {}  # by segment; removed when it ends
        self.known: dict[Hashable, str] = {**(known or {})}  # processes, and the trace of each
        self._again: set[int] = set()  # open segments of processes that are also in another trace
        self._begun = False
        self._runs = False  # True if a process whose trace has no `end` is still running
        self._complete: dict[Path, bool] = {}  # by trace: whether it and each segment in it has ended
        self._news = False  # True if anything has arrived since the last answer was written
        self._kinds: set[str] = set()  # kinds of all records seen
        self._told = False  # True if an earlier stage reported an error
        self._left_out = set[bool]()  # for each process: whether the selection excludes all of it
        self._pids: dict[int, None] = {}
        self._names: dict[str, None] = {}  # some kernels' names, to list if a selection matches none
        self._simulated = False  # True if the simulated device ran any of it

    def begin_trace(self, trace: Trace, folder: Path | None) -> None:
        """Begin with the records of a trace."""
        self.folder, self.name, self.origin = folder, trace.name, trace.origin
        if trace.path:
            self._complete[trace.path] = False

    def note_whole(self, trace: Trace) -> None:
        """Record that this trace was read completely and without errors."""
        if trace.path:
            self._complete[trace.path] = not self._processes

    def pass_on(self, record: Record) -> None:
        """Handle a record that was read."""
        kind = record["kind"]
        segment = self._segments.add(record)
        if segment in self._again and kind not in ("header", "resume", "end", "sync"):
            return
        self._kinds.add(kind)
        self._told |= kind == "diag" and record.get("level") == "error"
        self._simulated |= kind == "device" and record.get("runs") == "ptx"
        match kind:
            case "header":
                self._begin(segment, record)
            case "resume":
                self._write_end()
                self._write(record)
            case "end":
                self._close_segment(segment, record)
            case "sync":
                if self._fold.streams:
                    self._write_answer()
                self._write(record)
            case _:
                process = self._processes[segment]
                process.add(record)
                if process.full:
                    self._fold.take(process)
                if kind in self._fold.kinds:
                    self._news = True
                if kind not in self._taken:
                    self._write(record)

    def _write(self, record: Record) -> None:
        if self._fold.streams:
            self._stage.write(record)

    def _begin(self, segment: int, header: Record) -> None:
        from gpt.trace.machines import identity
        from gpt.trace.process import Process

        self._write_end()
        self._write({**header, "via": [*header["via"], self._stage.tool]})
        self._begun = True
        self._processes[segment] = Process(header, self._fold.kinds, self.folder, self._selection)
        self._processes[segment].origin = self.origin
        self._processes[segment].drained = getattr(self._fold, "drains", False)
        apart = getattr(self._fold, "apart", False)  # True if traces are compared with each other
        known = self.known.setdefault((identity(header), self.name if apart else None), self.name)
        if known != self.name:
            self._again.add(segment)
            fact = f"process {header['pid']} is in {known} too, and counted once"
            self._write(self._stage.warn(self.name, fact, self.name))

    @property
    def ended(self) -> bool:
        """Return True once no process is running and nobody is writing a trace; a truncated file has no writer."""
        return not self._runs and not live.are_written(self._complete)

    def say(self, diag: Record) -> None:
        """Write a `diag` record, unless there's no segment to write it to."""
        self._missing[f"{diag['where']}: {diag['text']}"] = None
        if self._begun:
            self._write(diag)

    def close_trace(self) -> None:
        """End the trace and each of its segments that has no `end`."""
        for segment in list(self._processes):
            self._close_segment(segment, None)
        self._segments = Segments()

    def _close_segment(self, segment: int, end: Record | None) -> None:
        process = self._processes.pop(segment)
        self._again.discard(segment)
        if end is not None and (fault := records.check({**records.make("end", records=0, status=0), **end})):
            raise MalformedError(fault)
        if end is None:
            self._endless += [process.header] if process.started else []
            self._runs |= live.is_running(process.header)
        if process.started:
            process.status = None if end is None else end.get("status", 0)
            self._fold.take(process)
            self._fold.end(process)
            self._ended += 1
        self._pids[process.pid] = None
        if self._selection and self._selection.kernels:
            self._names |= dict.fromkeys(process.kernels().values())
        if process.left_out is not None:
            self._left_out.add(process.left_out)
        if process.started:
            self._missing |= dict.fromkeys(process.missing)
            self._news = True  # at least the fact that it ended
        if end is not None:
            self._end = end

    def _write_end(self) -> None:
        if self._end is not None:
            self._write(self._end)
            self._end = None

    def _write_answer(self) -> None:
        for process in self._processes.values():
            if process.started:
                self._fold.take(process)
        if self._news or not self._fold.streams:
            lines, more = self._lines(), [SIMULATED] if self._simulated else []
            for record in self._fold.answer(lines):
                if record["kind"] == "answer":
                    verdict, more = [*record["verdict"], *more], []
                    record = records.make(**{**record, "verdict": verdict, "incomplete": lines or None})
                    if self._seen:
                        self._seen(record)
                self._write(record)
        self._news = False

    def merge(self, other: Passage) -> None:
        """Add the results of another run, which read later traces."""
        self._fold.merge(other._fold)  # type: ignore[attr-defined]
        self._missing |= other._missing
        self._endless += other._endless
        self._ended += other._ended
        self.known |= other.known
        self._kinds |= other._kinds
        self._begun |= other._begun
        self._runs |= other._runs
        self._complete |= other._complete
        self._told |= other._told
        self._news |= other._news
        self._left_out |= other._left_out
        self._pids |= other._pids
        self._names |= other._names
        self._simulated |= other._simulated

    def _find_left_out(self) -> str | None:
        """Return the message for a selection that excludes everything the analysis could show."""
        if not self._selection or self._left_out != {True}:
            return None
        if self._names:
            from gpt.screen.demangle import readable

            names = readable([*self._names])
            rest = f" and {len(names) - KERNELS:,} more" if len(names) > KERNELS else ""
            return f"{self._selection} leaves out everything; the kernels are {', '.join(names[:KERNELS])}{rest}"
        pids = [*map(str, self._pids)]
        more = f" and {len(pids) - NAMED:,} more" if len(pids) > NAMED else ""
        return f"{self._selection} leaves out everything; the processes are {', '.join(pids[:NAMED])}{more}"

    def _find_unmatched(self) -> str | None:
        """Return a warning that lists the globs that match no kernel, or None. A single glob without a match is an
        error instead.
        """
        from gpt.screen.demangle import readable

        wanted = self._selection.kernels if self._selection else ()
        if len(wanted) < 2 or not self._names:
            return None
        names = {*self._names, *readable([*self._names])}
        unmatched = [one for one in wanted if not any(fnmatchcase(name, one) for name in names)]
        return f"matches no kernel: {', '.join(map(repr, unmatched))}" if unmatched else None

    def _lines(self) -> list[str]:
        """Return the lines about missing input."""
        from gpt.trace.machines import NO_END

        lines = [*self._missing]
        if more := len(lines) - NAMED:
            lines[NAMED:] = [f"{more:,} more errors"] if more > 0 else []
        if self._absent:
            from gpt.screen.units import amount

            every = amount(self._absent + self._ended, "process")
            lines.append(f"at least {self._absent:,} of {every} left out, with all calls, launches and memory")
        if found := [*self._endless, *(process.header for process in self._processes.values() if process.started)]:
            who = tell_apart(found)[:NAMED]
            names = [f"{pid}" + (f" of {host}" if host else "") for host, _, pid in who]
            told = ", ".join(names) + (f" and {len(found) - NAMED:,} more" if len(found) > NAMED else "")
            lines.append(f"no end of process {told}: {NO_END}")
        return lines

    def finish(self, absent: list[str]) -> None:
        """Write the answer, when everything has been read except the traces of the children in `absent`."""
        if not self._begun:
            return
        for path in absent:
            self.say(self._stage.warn(path, "the trace of a child is absent and not counted", path))
        self._absent = len(set(absent))
        if self._kinds <= {"header", "end"} and not (self._told or self._stage.faults):
            self._write(self._stage.warn("", EMPTY))
        idle = self._kinds - {"header", "end", "diag"} and not self._kinds & {"answer", "sync"}
        lack = self._fold.find_lack(self._kinds) if idle else None
        left_out = self._find_left_out() if idle else None
        if lack and self._selection and self._selection.chooses:
            lack = f"{lack} (of what {self._selection} chooses)"
        elif idle and not (lack or left_out) and (fact := self._find_unmatched()):
            self._write(self._stage.warn("--kernel", fact))
        if lack := left_out or lack:
            self._seen = None  # nothing else gets a picture
            if not (self._told or self._stage.faults):
                self._stage.flush()  # exits quietly if nobody reads the output
                self._write(self._stage.error(GptError(lack)))
        answered = "answer" in self._kinds and not self._kinds & self._taken  # an earlier stage took the records
        if not (left_out or answered):
            self._write_answer()
        self._write_end()
