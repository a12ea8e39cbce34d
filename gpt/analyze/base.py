"""What all analyses share: the way through the traces.

For gpt-stream(5) an analysis is a filter. It removes the kinds that it acts on, because an answer of a page should not
be followed by a trace of ten million calls, and passes all others on. Its answer goes where the rules of filters want
one: before a `sync`, and before the last `end`. So it can be asked while a program runs, and what it says
last is about everything that was read.

A trace that is torn or malformed is an error at the end; what was read of it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol

import typer

from gpt import cli, packed, records
from gpt.errors import GptError, MalformedError, MissingError, UsageError
from gpt.stage import STDOUT, Stage
from gpt.stream import Segments

if TYPE_CHECKING:
    from gpt.trace.process import Process

Record = dict[str, Any]
Answers = Iterator[Record]
Rows = Iterable[Sequence[Any]]


class Form(StrEnum):
    """What an answer can be written as, beside a table and the stream."""

    md = "md"
    csv = "csv"


Traces = Annotated[list[Path] | None, typer.Argument(metavar="[TRACE]...", help="Standard input by default.")]
Format = Annotated[Form | None, typer.Option("--format", help="Write Markdown or CSV.")]

# What a process knows, and others use. Launches of probed kernels are some of it: their buffers refer to them.
PASSED_ON = frozenset(("function", "library", "device", "module", "lookup", "kernel", "map", "probed", "unprobed"))


class Analysis(Protocol):
    """What is done with the processes of traces. Methods raise MalformedError if what they hold is nonsense."""

    kinds: frozenset[str]  # of records that a process is to know
    streams: bool  # whether the output is a stream, or lines that are not records

    def take(self, process: Process) -> None:
        """Takes the rows that a process has collected: when they are many, and when it is over."""

    def end(self, process: Process) -> None:
        """The segment of a process is over."""

    def answer(self) -> Answers:
        """What there is to say of all that was read."""

    def find_lack(self, kinds: set[str]) -> str | None:
        """Why there is nothing to say, of a trace that has records of these kinds."""


class Column(NamedTuple):
    """A column of an answer; what each key means is in gpt-stream(5)."""

    name: str
    type: str
    unit: str = ""
    title: str = ""
    shown: str = ""

    def declare(self) -> Record:
        """A struct `column`, at no place yet."""
        more = {key: getattr(self, key) for key in ("unit", "title", "shown") if getattr(self, key)}
        return {"name": self.name, "type": self.type, "offset": 0, **more}


def make_answer(
    name: str, columns: Sequence[Column], rows: Rows, verdict: Sequence[str] = (), top: int | None = None
) -> Record:
    """An `answer` of rows with a value for each column, None for none.

    Numbers are rounded where the column has whole ones, and as large as these can be where they are larger.
    Raises MalformedError if all of it is too large for a record.
    """
    packer = packed.Packer(column.declare() for column in columns)
    for row in rows:
        packer.add([_fit(column.type, value) for column, value in zip(columns, row, strict=True)])
    return records.make("answer", name=name, **packer.keys(), top=top, verdict=list(verdict))


def make_array_answer(
    name: str,
    columns: Sequence[Column],
    values: Sequence[Any],
    verdict: Sequence[str] = (),
    top: int | None = None,
) -> Record:
    """An `answer` with an array for each column, none of which is text; a number stands for an array of it."""
    import numpy as np

    declared, fields, stride = [], [], 0
    for column in columns:
        declared.append({**column.declare(), "offset": stride})
        fields.append("<" + packed.TYPES[column.type.rstrip("?")])
        stride += np.dtype(fields[-1]).itemsize
    rows = np.empty(len(values[0]), [(column.name, field) for column, field in zip(columns, fields, strict=True)])
    for column, array in zip(columns, values, strict=True):
        if rows[column.name].dtype.kind == "u" and np.asarray(array).dtype.kind == "f":
            array = np.clip(np.rint(array), 0, 1 << 63)
        rows[column.name] = array
    keys = {"columns": declared, "stride": stride, "texts": [], "rows": rows.tobytes()}
    return records.make("answer", name=name, **keys, top=top, verdict=list(verdict))


def find_lack(kinds: set[str], wanted: frozenset[str]) -> str | None:
    """What to say of a trace without calls."""
    return None if kinds & (wanted | {"child"}) else "no calls in the stream: 'gpt-hook run' records some"


def _fit(type_: str, value: Any) -> Any:
    """A number for a column; what malformed rows add up to may not fit."""
    if value is None or type_[0] != "u":
        return value
    return min(round(value), (1 << int(type_[1:].rstrip("?"))) - 1 - type_.endswith("?"))


def open_stage(form: Form | None, as_stream: bool, json: bool, from_json: bool) -> Stage:
    """The stage of an analysis that answers: tables unless another form is asked for."""
    if form and (as_stream or json):
        raise UsageError("--format cannot be combined with --stream or --json")
    stage = Stage("gpt-analyze", json=json, from_json=from_json, stream=as_stream, table=not (json or as_stream))
    if form:
        from gpt.screen.answers import AnswerReport

        stage.table = AnswerReport(form)
    return stage


def make_command(make: Callable[[], Analysis], about: str) -> Callable[..., int]:
    """The command of an analysis that answers, and has no options of its own."""

    def command(
        traces: Traces = None,
        form: Format = None,
        as_stream: cli.Stream = False,
        json: cli.Json = False,
        from_json: cli.FromJson = False,
        verbose: cli.Verbose = False,
        version: cli.Version = False,
    ) -> int:
        return run(open_stage(form, as_stream, json, from_json), make(), traces or ())

    command.__doc__ = about
    return command


def run(stage: Stage, analysis: Analysis, traces: Sequence[Path]) -> int:
    """Reads the traces, or standard input, writes what the analysis says, and returns the exit status."""
    from gpt.trace.follow import Follow

    passage = _Passage(stage, analysis)
    followed = Follow(traces or [None], lambda path: stage.read([path] if path else ()))
    for trace in followed:
        passage.folder = trace.path.parent if trace.path else None
        with _survived(stage, passage, trace.name):
            for record in trace:
                passage.pass_on(record)
        with _survived(stage, passage, trace.name):
            passage.close_trace()
    passage.finish([path for _, path in followed.absent])
    return stage.close()


@contextmanager
def _survived(stage: Stage, passage: _Passage, name: str) -> Iterator[None]:
    """Says what is wrong with a trace, and lets the run go on."""
    try:
        yield
    except GptError as error:
        passage.say(stage.error(error if error.where else type(error)(error.fact, name), ref=name))
    except OSError as error:
        if error.filename == STDOUT:
            raise
        missing = isinstance(error, FileNotFoundError | PermissionError)
        fact, where = error.strerror or str(error), str(error.filename or name)
        passage.say(stage.error(MissingError(fact, where) if missing else GptError(fact, where), ref=name))


class _Passage:
    """One run: what was read and is not written yet."""

    def __init__(self, stage: Stage, analysis: Analysis) -> None:
        self.folder: Path | None = None  # of the trace that is read
        self._stage = stage
        self._analysis = analysis
        self._taken = analysis.kinds - PASSED_ON
        self._end: Record | None = None  # the last one, held back: the answer may have to go before it
        self._segments = Segments()  # of the trace that is read
        self._processes: dict[int, Process] = {}  # of those that are open
        self._begun = False
        self._news = False  # since the last answer
        self._kinds: set[str] = set()  # of all records
        self._told = False  # whether a stage before has reported an error

    def pass_on(self, record: Record) -> None:
        """A record that was read."""
        kind = record["kind"]
        segment = self._segments.add(record)
        self._kinds.add(kind)
        self._told |= kind == "diag" and record.get("level") == "error"
        match kind:
            case "header":
                self._begin(segment, record)
            case "resume":
                self._write_end()
                self._write(record)
            case "end":
                self._close_segment(segment, record)
            case "sync":
                if self._analysis.streams:
                    self._write_answer()
                self._write(record)
            case _:
                process = self._processes[segment]
                process.add(record)
                if process.full:
                    self._analysis.take(process)
                if kind in self._analysis.kinds:
                    self._news = True
                if kind not in self._taken:
                    self._write(record)

    def _write(self, record: Record) -> None:
        if self._analysis.streams:
            self._stage.write(record)

    def _begin(self, segment: int, header: Record) -> None:
        from gpt.trace.process import Process

        self._write_end()
        self._write({**header, "via": [*header["via"], self._stage.tool]})
        self._begun = True
        self._processes[segment] = Process(header, self._analysis.kinds, self.folder)

    def say(self, diag: Record) -> None:
        """Writes a `diag`, if there is a segment to hold it."""
        if self._begun:
            self._write(diag)

    def close_trace(self) -> None:
        """The trace is over, and with it the segments that have no `end`."""
        for segment in list(self._processes):
            self._close_segment(segment, None)
        self._segments = Segments()

    def _close_segment(self, segment: int, end: Record | None) -> None:
        process = self._processes.pop(segment)
        if end is not None and (fault := records.check({**records.make("end", records=0, status=0), **end})):
            raise MalformedError(fault)
        if process.started:
            process.status = None if end is None else end.get("status", 0)
            self._analysis.take(process)
            self._analysis.end(process)
            self._news = True  # how it ended, if nothing else
        if end is not None:
            self._end = end

    def _write_end(self) -> None:
        if self._end is not None:
            self._write(self._end)
            self._end = None

    def _write_answer(self) -> None:
        for process in self._processes.values():
            if process.started:
                self._analysis.take(process)
        if self._news or not self._analysis.streams:
            for record in self._analysis.answer():
                self._write(record)
        self._news = False

    def finish(self, absent: list[str]) -> None:
        """Everything was read but the traces of these children: the answer."""
        if not self._begun:
            return
        for path in absent:
            self._write(self._stage.warn(path, "the trace of a child is absent and not counted", path))
        idle = self._kinds - {"header", "end", "diag"} and not self._kinds & {"answer", "sync"}
        lack = self._analysis.find_lack(self._kinds) if idle else None
        if lack and not (self._told or self._stage.faults):
            self._stage.flush()  # it ends quietly if nobody reads
            self._write(self._stage.error(GptError(lack)))
        self._write_answer()
        self._write_end()
