"""What all analyses share: the way through the traces.

To gpt-stream(5) an analysis is a filter. It takes out the kinds that it acts on, for a trace of ten million calls
should not come out again behind an answer of a page, passes all others on, and puts its answer where the filter's
rules want one: before a `sync`, and before the last `end`. So it can be asked while a program runs, and what it says
last is about everything that was read.

A trace that is torn or malformed is an error at the end; what was read of it counts.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from gpt import cli, records
from gpt.errors import GptError, MalformedError, MissingError

Record = dict[str, Any]
Answer = Iterator[Record]


class Analysis(Protocol):
    """What is done with the records of traces. Methods raise MalformedError where they are nonsense."""

    @property
    def kinds(self) -> frozenset[str] | None:
        """Those that are not passed on; None for all, where the output is no stream."""

    def begin(self, header: Record) -> None:
        """A segment begins."""

    def add(self, record: Record) -> None:
        """Takes a record in, also one that is passed on."""

    def end_segment(self, status: int | None) -> Answer:
        """The segment is over, with the status of its `end` or without one: what is to be said in it."""

    def answer(self) -> Answer:
        """What there is to say of all that was read, if that is not what was said before."""


def run(stage: cli.Stage, analysis: Analysis, traces: Sequence[Path]) -> int:
    """Reads the traces, or standard input, writes what the analysis says, and returns the exit status."""
    passage = _Passage(stage, analysis)
    for name, found in _iter_traces(stage, traces, passage):
        with _survived(stage, passage, name):
            for record in found:
                passage.pass_on(record)
        with _survived(stage, passage, name):
            passage.close_segment(None)
    passage.finish()
    return stage.close()


@contextmanager
def _survived(stage: cli.Stage, passage: _Passage, name: str) -> Iterator[None]:
    """Says what is wrong with a trace, and lets the run go on."""
    try:
        yield
    except MalformedError as error:
        passage.say(stage.error(error if error.where else MalformedError(error.fact, name), ref=name))
    except GptError as error:
        passage.say(stage.error(error, ref=name))
    except OSError as error:
        if error.filename == cli.STDOUT:
            raise
        missing = isinstance(error, FileNotFoundError | PermissionError)
        fact, where = error.strerror or str(error), str(error.filename or name)
        passage.say(stage.error(MissingError(fact, where) if missing else GptError(fact, where), ref=name))


def _iter_traces(stage: cli.Stage, traces: Sequence[Path], passage: _Passage) -> Iterator[tuple[str, Iterator[Record]]]:
    """Each trace once with its name, those of the children of each that it tells of behind it."""
    if not traces:
        yield cli.STDIN, stage.read()
        passage.absent += [path for pid, path in passage.take_children() if pid not in passage.started]
        return
    seen: set[str] = set()
    pending = list(traces)
    for path in pending:  # grows
        if (real := os.path.realpath(path)) in seen:
            continue
        seen.add(real)
        yield str(path), stage.read([path])
        for _, name in passage.take_children():
            child = path.parent / name
            if child.is_file():
                pending.append(child)
            else:
                passage.absent.append(str(child))


class _Passage:
    """One run: what was read and is not written yet."""

    def __init__(self, stage: cli.Stage, analysis: Analysis) -> None:
        self._stage = stage
        self._analysis = analysis
        self._write = stage.write if analysis.kinds is not None else lambda record: None
        self._end: Record | None = None  # the last one, held back: the answer may have to go before it
        self._open = False
        self._begun = False
        self._pid = 0
        self._children: list[tuple[int, str]] = []  # process id and path of those that were told of
        self.started: set[int] = set()  # processes that more is known of than that they are there
        self.absent: list[str] = []  # traces that are not there

    def pass_on(self, record: Record) -> None:
        """A record that was read."""
        kind = record["kind"]
        match kind:
            case "header":
                self.close_segment(None)
                self._write_end()
                self._write({**record, "via": [*record["via"], self._stage.tool]})
                self._open = self._begun = True
                self._pid = record["pid"]
                self._analysis.begin(record)
            case "end":
                self.close_segment(record)
            case "sync":
                if self._analysis.kinds is not None:
                    self._write_answer()
                self._write(record)
            case _:
                if kind == "child":
                    self._add_child(record)
                else:
                    self.started.add(self._pid)
                self._analysis.add(record)
                if kind not in (self._analysis.kinds or ()):
                    self._write(record)

    def _add_child(self, record: Record) -> None:
        if fault := records.check(record):
            raise MalformedError(fault)
        if "path" in record:
            self._children.append((record["pid"], record["path"]))

    def take_children(self) -> list[tuple[int, str]]:
        """The processes that the trace that was read last told of, and where theirs is, relative to its folder."""
        children, self._children = self._children, []
        return children

    def say(self, diag: Record) -> None:
        """Writes a `diag`, if there is a segment to hold it."""
        if self._begun:
            self._write(diag)

    def close_segment(self, end: Record | None) -> None:
        """The segment is over, with its `end` or without one."""
        if not self._open:
            return
        self._open = False
        if end is not None and (fault := records.check({**records.make("end", records=0, status=0), **end})):
            raise MalformedError(fault)
        for record in self._analysis.end_segment(None if end is None else end.get("status", 0)):
            self._write(record)
        self._end = end

    def _write_end(self) -> None:
        if self._end is not None:
            self._write(self._end)
            self._end = None

    def _write_answer(self) -> None:
        for record in self._analysis.answer():
            self._write(record)

    def finish(self) -> None:
        """Everything was read: the answer."""
        if not self._begun:
            return
        for path in self.absent:
            self._write(self._stage.warn(path, "the trace of a child is absent: it does not count", path))
        self._write_answer()
        self._write_end()
