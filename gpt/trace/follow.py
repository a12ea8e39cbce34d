"""The way through traces: the files that were named, and after them those of the processes that these started.

A `child` record names the trace of another process: a file in the folder of the file that it stands in. Nothing else
is opened, no link and no file elsewhere, for whoever wrote the trace chose the name. A live stream names none: there
the segments of children follow. Each file is read once, whoever names it.

What becomes of a trace that is not whole depends on the reader; here it is only reported. A segment without `end` is
*interrupted*: its process was killed, or runs. A file that ends within a record, or that names a child whose trace is
absent, is *truncated*.
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
MISSING = "missing"  # the `ref` of a diag about what is not in the trace that it stands in


class Child(NamedTuple):
    """A process that another one started: its pid, the path of its trace, the number of the segment that names it."""

    pid: int
    path: str
    segment: int


class Trace:
    """A file of a trace, or standard input, whose `path` is None. Iterating it reads it.

    `root` is false for what only a `child` record named. `interrupted` are the pids of segments without end, `forked`
    those of processes that do not continue another. `origin` is the place of the one that was named, 0 for the first.
    `missing` are lines: what whoever wrote it says is not in it.
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
        self._pids: list[int] = []  # of the segments
        self._started: dict[int, set[int]] = {}  # by pid: segments that say more than that it is there

    def __iter__(self) -> Iterator[Record]:
        """Its records. Raises MalformedError if they are not records; what was read before counts."""
        segments = Segments()
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
                case _:
                    self._started.setdefault(self._pids[segment], set()).add(segment)
            yield record
        self.interrupted = {self._pids[segment] for segment in segments.open}

    def __getstate__(self) -> dict[str, Any]:
        """One that was read, for another process."""
        return {**self.__dict__, "_read": None}

    def _add_child(self, record: Record, segment: int) -> None:
        if fault := records.check(record):
            raise MalformedError(fault, self.name)
        if "path" in record:
            self.children.append(Child(record["pid"], record["path"], segment))
        if record["how"] != "exec":
            self.forked.add(record["pid"])

    def has_segment_of(self, child: Child) -> bool:
        """Whether a segment of its own says what a child did; after an `exec` its pid is that of its parent."""
        return bool(self._started.get(child.pid, set()) - {child.segment})


class Follow:
    """The traces at `paths` and those of their children, each once; None is standard input, which has no folder.

    `read` returns the records of one. `absent` are, as far as they are known by now, traces of children that are no
    regular files beside the trace that names them, nor among `paths` and what else is `given` to be read: the name of
    that trace, and the child's path.
    """

    def __init__(self, paths: Sequence[Path | None], read: Read, given: Sequence[Path | None] = ()) -> None:
        self.absent: list[tuple[str, str]] = []
        self.traces = [Trace(path, True, read, at) for at, path in enumerate(paths)]  # grows
        self._seen: set[str] = set()
        self._given = {real_path(path) for path in (*paths, *given) if path}
        self._read = read

    def __iter__(self) -> Iterator[Trace]:
        """Each trace, to be read before the next is asked for."""
        for trace in self.traces:
            if self.is_new(trace):
                yield trace
                self.traces += self.children(trace)

    def is_new(self, trace: Trace) -> bool:
        """Whether it is read now, and not before."""
        if trace.path is None:
            return True
        real = real_path(trace.path)
        known = real in self._seen
        self._seen.add(real)
        return not known

    def children(self, trace: Trace) -> list[Trace]:
        """The traces that one names which was read; others are `absent`."""
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
