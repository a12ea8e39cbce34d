"""Follow traces: first those on the command line, then the traces of the processes that these started.

A `child` record names the trace of another process, which is a file in the same folder. The name can't be trusted, so
nothing else is opened: no links, and no files elsewhere. A live stream names no files, because the segments of children
follow in the stream. Each file is read once, however often it's named.

This module only reports damage; the reader decides what to do about it. A segment without `end` is *interrupted*: its
process was killed, or is still running. A file is *truncated* if it ends within a record, or if it names a child whose
trace is absent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpt.base.errors import MalformedError
from gpt.formats.paths import is_regular, real_path
from gpt.stream import records
from gpt.stream.wire import Segments

Record = dict[str, Any]
Read = Callable[[Path | None], Iterator[Record]]
STDIN = "<stdin>"
MISSING = "missing"  # `ref` of a diag record about something that the trace lacks


class Child(NamedTuple):
    """A child process: its pid, the path of its trace, and the index of the segment that names it."""

    pid: int
    path: str
    segment: int


class Trace:
    """A trace file, or standard input, whose `path` is None. Iterating over it reads it.

    `root` is False if only a `child` record names it. `interrupted` has the pids of segments without end; `forked` has
    the pids of children that haven't called `exec`. `origin` is the index of the path on the command line from which
    this trace was reached. `missing` has lines in which the writer says what the trace lacks.
    """

    def __init__(self, path: Path | None, root: bool, read: Read, origin: int = 0) -> None:
        self.path = path
        self.origin = origin
        self.name = STDIN if path is None else str(path)
        self.root = root
        self.interrupted: set[int] = set()
        self.forked: set[int] = set()
        self.children: list[Child] = []
        self.missing: list[str] = []
        self._read = read
        self._pids: list[int] = []  # the pid of each segment
        self._started: dict[int, set[int]] = {}  # by pid: segments with more in them than a header and an end

    def __iter__(self) -> Iterator[Record]:
        """Yield its records. Raises MalformedError at the first bad one; the records before it are valid."""
        segments, started = Segments(), None
        for record in self._read(self.path):
            segment = segments.add(record)
            match record["kind"]:
                case "header":
                    self._pids.append(record["pid"])
                case "child":
                    self._add_child(record, segment)
                case "end" | "resume" | "sync":
                    pass
                case "diag" if record.get("ref") == MISSING:
                    self.missing.append(str(record.get("text")))
                case _ if segment != started:
                    self._started.setdefault(self._pids[segment], set()).add(segment)
                    started = segment
            yield record
        self.interrupted = {self._pids[segment] for segment in segments.open}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle a trace that has been read, without the function that read it."""
        return {**self.__dict__, "_read": None}

    def _add_child(self, record: Record, segment: int) -> None:
        if fault := records.check(record):
            raise MalformedError(fault, self.name)
        if "path" in record:
            self.children.append(Child(record["pid"], record["path"], segment))
        if record["how"] != "exec":
            self.forked.add(record["pid"])

    def has_segment_of(self, child: Child) -> bool:
        """Return whether the file has the segment of this child. A child that was created by `exec` has the pid of its
        parent.
        """
        return bool(self._started.get(child.pid, set()) - {child.segment})


class Follow:
    """The traces at `paths` and their children's traces, each once. None stands for standard input, which has no
    folder.

    `read` returns the records of a trace. `absent` grows while traces are read: it has the traces of children that are
    neither regular files in the folder of the trace that names them, nor in `paths` or `given` (other files that will
    be read). Each entry is the name of the parent's trace, and the path of the child's.
    """

    def __init__(self, paths: Sequence[Path | None], read: Read, given: Sequence[Path | None] = ()) -> None:
        self.absent: list[tuple[str, str]] = []
        self.traces = [Trace(path, True, read, at) for at, path in enumerate(paths)]  # grows
        self._seen: set[str] = set()
        self._given = {real_path(path) for path in (*paths, *given) if path}
        self._read = read

    def __iter__(self) -> Iterator[Trace]:
        """Yield each trace, which must be read before the next one is requested."""
        for trace in self.traces:
            if self.is_new(trace):
                yield trace
                self.traces += self.children(trace)

    def is_new(self, trace: Trace) -> bool:
        """Return whether the trace hasn't been read yet, and remember that it has now."""
        if trace.path is None:
            return True
        real = real_path(trace.path)
        known = real in self._seen
        self._seen.add(real)
        return not known

    def children(self, trace: Trace) -> list[Trace]:
        """Return the traces of the children that a trace names. It must have been read. Missing ones are added to
        `absent`.
        """
        found = []
        for child in trace.children:
            path = trace.path.parent / child.path if trace.path else None
            if path and path.name == child.path and is_regular(path, follow=False):
                found.append(Trace(path, False, self._read, trace.origin))
            elif path and real_path(path) in self._given:
                pass
            elif path or not trace.has_segment_of(child):
                self.absent.append((trace.name, str(path or child.path)))
        return found
