"""Samples of host threads: count those taken during given periods or calls, and name their frames."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.answer import Column
from gpt.base.printable import shorten
from gpt.screen.units import amount, human_share
from gpt.trace.samples import NONE, name_syscall
from gpt.trace.sites import CallFrame
from gpt.trace.spill import Array

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel

LIBRARY, PACKAGES = "/lib/python3", "/site-packages/"  # directories of code that isn't the program's own
RUNS = "(native code)"
INTERPRETER = re.compile(r"(lib)?python\d")
SYSTEM = re.compile(r"(ld-linux|libc|libm|libpthread)\b")
DEEPEST = 128  # most Python frames in a sample
NO_CALL = -1
WIDEST, MOSTLY = 60, 50  # columns of a name; percentage that counts as most samples
LISTENING = {"poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "epoll_pwait2", "accept", "accept4",
             "recvfrom", "recvmsg", "recvmmsg"}  # fmt: skip
SLEEPING = {"nanosleep", "clock_nanosleep", "pause"}
LOCK, OFTEN = "futex", 25  # the system call that waits for a lock; percentage of samples from which that's said
DRIVER = "libcuda.so"  # its functions are recorded as calls


class Place(NamedTuple):
    """The code that a thread executed, and its caller: the innermost frame outside of Python's own library."""

    at: str
    caller: str | None


class Hits(NamedTuple):
    """The number of samples, and in how many of them the thread waited in a system call.

    It waited for a lock in `locked` of the latter; in `expecting` for another thread or process, in a function of
    Python's own library; in `listening` for input; and in `sleeping` for time to pass. `files` counts samples in native
    code that Python called, by library.
    """

    samples: int
    waiting: int
    locked: int = 0
    expecting: int = 0
    listening: int = 0
    sleeping: int = 0
    files: tuple[tuple[str, int], ...] = ()

    def plus(self, other: Hits) -> Hits:
        """Add up two counts."""
        files = Counter(dict(self.files)) + Counter(dict(other.files))
        return Hits(
            self.samples + other.samples,
            self.waiting + other.waiting,
            self.locked + other.locked,
            self.expecting + other.expecting,
            self.listening + other.listening,
            self.sleeping + other.sleeping,
            tuple(files.items()),
        )


Places = dict[Place, Hits]
PLACES = (
    Column("place", "text", "function", "the host's own code was at"),
    Column("caller", "text?", "function", "called from", "any"),
    Column("samples", "u64"),
    Column("share", "f64", "%"),
    Column("waiting", "f64", "%"),
)


def merge_places(into: Places, found: Places) -> None:
    """Add the samples of another process."""
    for place, hits in found.items():
        into[place] = into[place].plus(hits) if place in into else hits


def iter_places(places: Places) -> Iterator[tuple[Any, ...]]:
    """Yield the columns PLACES, most samples first."""
    whole = sum(hits.samples for hits in places.values())
    for place, hits in _sort(places):
        yield *place, hits.samples, 100 * hits.samples / whole, 100 * hits.waiting / hits.samples


def _sort(places: Places) -> list[tuple[Place, Hits]]:
    return sorted(places.items(), key=lambda one: (-one[1].samples, one[0].at, one[0].caller or ""))


def describe_places(places: Places) -> str:
    """Return text in brackets that says where most samples were taken, or an empty string without samples."""
    for at, caller, samples, share, waiting in iter_places(places):
        outer = f", called from {shorten(caller, WIDEST)}" if caller else ""
        waits = "waiting " if waiting > MOSTLY else ""
        whole = amount(round(100 * samples / share), "sample")
        file = _find_file(places[Place(at, caller)])
        locked = find_locked(places)
        lock = f", {human_share(locked)} of them waiting for a lock, such as Python's GIL" if locked else ""
        return f" ({waits}at {shorten(at, WIDEST)}{file}{outer}, in {human_share(share)} of {whole}{lock})"
    return ""


def _find_file(hits: Hits) -> str:
    """Say in which library the native code is that Python called there, or return ""."""
    file, count = max(hits.files, key=lambda one: one[1], default=("", 0))
    return f" in {file}" if 0 < OFTEN * hits.samples <= 100 * count and not file.startswith(DRIVER) else ""


def find_locked(places: Places) -> float:
    """Return the percentage of the samples of the most frequent place that waited for a lock; 0 if it's small."""
    most = next((hits for _, hits in _sort(places)), Hits(1, 0))
    share = 100 * most.locked / most.samples
    return share if share >= OFTEN else 0


def is_expecting(places: Places) -> bool:
    """Return whether the most frequent place mostly waits for another thread or process."""
    return any(100 * hits.expecting > MOSTLY * hits.samples for _, hits in _sort(places)[:1])


def is_listening(places: Places) -> bool:
    """Return whether the most frequent place mostly waits for input."""
    return any(100 * hits.listening > MOSTLY * hits.samples for _, hits in _sort(places)[:1])


def is_sleeping(places: Places) -> bool:
    """Return whether the most frequent place mostly waits for time to pass."""
    return any(100 * hits.sleeping > MOSTLY * hits.samples for _, hits in _sort(places)[:1])


def name_frame(frame: CallFrame) -> str:
    """Return `data.py:41 collate` for a Python frame, `libfoo.so parse` for a native one."""
    file = os.path.basename(frame.path or "") or "?"
    if frame.is_python:
        line = f":{frame.line}" if frame.line else ""
        return f"{file}{line} {frame.function}"
    return f"{file} {frame.function}" if frame.function else file


class HostSamples:
    """The samples of a process. `rows` is sorted by thread and time; `hits` has how often `find` counted each
    sample.
    """

    def __init__(self, trace: TraceModel, number: int) -> None:
        process = trace.processes[number]
        self._sites = process.sites
        self.rows = process.samples.table(lambda stamps: trace.times(process, stamps))
        self.hits = np.zeros(len(self.rows), np.int64)
        threads, firsts = np.unique(self.rows["thread"], return_index=True)
        edges = [*firsts.tolist(), len(self.rows)]
        self._threads = {thread: slice(*edges[at : at + 2]) for at, thread in enumerate(threads.tolist())}

    def find(self, pieces: Array) -> None:
        """Count the samples taken during these pieces of time, an array with the fields `thread`, `begin` and `end`."""
        for thread, part in self._threads.items() if len(pieces) else ():
            mine = pieces[pieces["thread"] == thread]
            low, high = (np.searchsorted(self.rows["at"][part], mine[edge]) for edge in ("begin", "end"))
            steps = np.zeros(part.stop - part.start + 1, np.int64)
            np.add.at(steps, low, 1)
            np.add.at(steps, high, -1)
            self.hits[part] += steps.cumsum()[:-1]

    def find_calls(self, trace: TraceModel, number: int) -> npt.NDArray[np.int64]:
        """Return the function of the innermost CUDA call that each sample is in, or NO_CALL."""
        found = np.full(len(self.rows), NO_CALL)
        for calls in trace.iter_calls(process=number) if len(self.rows) else ():
            for thread, part in self._threads.items():
                mine, at = calls[calls["thread"] == thread], self.rows["at"][part]
                if not len(mine):
                    continue
                last = np.searchsorted(mine["start"], at, "right") - 1
                ends = mine["start"][last] + mine["duration"][last].astype(np.int64)
                inside = (last >= 0) & (at < ends)
                found[part][inside] = mine["api"][last[inside]]
        return found

    def places(self) -> Places:
        """Return the places in the code where the counted samples were taken, with their numbers."""
        found: Places = {}
        rows, hits = self.rows[self.hits > 0], self.hits[self.hits > 0]
        for row, count in zip(rows.tolist(), hits.tolist(), strict=True):
            _, _, python, native, syscall, _ = row
            place = self._place(python, native, syscall)
            waits, frames = syscall != NONE, self._sites.frames(python)
            expects = waits and bool(frames) and _is_library(frames[0])
            locked = waits and not expects and name_syscall(syscall) == LOCK
            file = None if waits else self._find_called(native)
            files = ((file, count),) if file else ()
            listens = waits and name_syscall(syscall) in LISTENING
            sleeps = waits and name_syscall(syscall) in SLEEPING
            flags = [count * flag for flag in (waits, locked, expects, listens, sleeps)]
            seen = Hits._make([count, *flags, files])
            merge_places(found, {place: seen})
        return found

    def _place(self, python: int, native: int, syscall: int) -> Place:
        frames = self._sites.frames(python)
        if not frames:
            return Place(self.name_native(native, syscall), None)
        outer = frames[1:]
        own = next((one for one in outer if not _is_library(one)), outer[0] if outer else None)
        return Place(name_frame(frames[0]), name_frame(own) if own else None)

    def name_native(self, native: int, syscall: int) -> str:
        """Return the name of a sample's native frame, or of the system call in which it waits."""
        frames = self._sites.frames(native)
        if frames and (frames[0].function or frames[0].path):
            return name_frame(frames[0])
        return f"waiting in {name_syscall(syscall)}" if syscall != NONE else RUNS

    def iter_stacks(self) -> Iterator[tuple[int, list[str], bool]]:
        """Yield, for each sample: its index, the names of its frames, outermost first, and whether it was in native
        code that Python called, outside of the interpreter and the system's libraries.
        """
        named: dict[int, list[str]] = {}
        for at, (python, native, syscall) in enumerate(self.rows[["python", "native", "syscall"]].tolist()):
            if python not in named:
                named[python] = [_name_in_stack(one) for one in reversed(self._sites.frames(python))]
            called = syscall == NONE and bool(self._find_called(native))
            inner = [self.name_native(native, syscall)] if called or not named[python] else []
            yield at, [*named[python], *inner], called or not named[python]

    def _find_called(self, native: int) -> str | None:
        """Return the name of the library with this native code, or None for the interpreter and for the system's
        libraries.
        """
        frames = self._sites.frames(native) if native else []
        file = os.path.basename(frames[0].path or "") if frames else ""
        return None if not file or INTERPRETER.match(file) or SYSTEM.match(file) else file

    def count_deepest(self) -> int:
        """Return how many samples have the maximum number of frames, so that outer ones may be missing."""
        deep = {id_ for id_ in set(self.rows["python"].tolist()) if len(self._sites.frames(id_)) >= DEEPEST}
        return int(np.isin(self.rows["python"], [*deep]).sum())

    def find_unread(self) -> str | None:
        """Return the interpreter if Python frames couldn't be read in any sample, or None."""
        if self.rows["python"].any():
            return None
        files = Counter[str]()
        for native in self.rows["native"].tolist():
            for frame in self._sites.frames(native)[:1] if native else ():
                if INTERPRETER.match(file := os.path.basename(frame.path or "")):
                    files[file] += 1
        return files.most_common(1)[0][0] if files else None


def _is_library(frame: CallFrame) -> bool:
    path = frame.path or ""
    return (LIBRARY in path and PACKAGES not in path) or path.startswith("<frozen")


def _name_in_stack(frame: CallFrame) -> str:
    """Return "collate (data.py:41)"."""
    file = os.path.basename(frame.path or "") or "?"
    return f"{frame.function} ({file}:{frame.line})" if frame.line else f"{frame.function} ({file})"


def count_frames(stacks: Counter[tuple[str, ...]]) -> dict[str, Hits]:
    """Count, for each frame, the samples that contain it. `waiting` counts those in which it's the innermost one."""
    found: dict[str, Any] = {}
    for stack, count in stacks.items():
        for frame in set(stack):
            hits = Hits(count, count if stack[-1] == frame else 0)
            found[frame] = found[frame].plus(hits) if frame in found else hits
    return found
