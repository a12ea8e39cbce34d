"""Run a target over mutated inputs in a new process, with limits on time and memory.

The target decides which results are allowed: its `run` returns, or raises. Input number n of a seed is always the same
unless coverage guides it (`guided`). In that case one input in SAMPLE runs under a tracer, and an input that reaches
new lines of gpt/ becomes a parent of others. Every failure is saved with its traceback, once per place.
"""

from __future__ import annotations

import gc
import hashlib
import mmap
import os
import random
import re
import resource
import signal
import struct
import sys
import time
import traceback
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.mutate import Mutator, mutate_bytes

ROOT = Path(__file__).parents[2]
GPT = str(ROOT / "gpt") + os.sep
SAMPLE = 16  # one of this many inputs is traced
WALL = 60  # seconds that a process may spend waiting for anything other than a CPU
MAX_CORPUS = 2000
MEMORY = 1 << 30  # bytes in addition to the process's initial memory
Sample = Callable[[str], Path]  # returns the file for a name in tests/formats/samples.py
_SHARED = struct.Struct("<QQQQdQ")  # executions, lines, corpus, failures, begin of this one, bytes of the input
_ROOM = 4 << 20


@dataclass(frozen=True)
class Target:
    """The code under attack. `seeds` makes the first inputs, in a folder that is then the current one."""

    name: str
    seeds: Callable[[Sample], list[bytes]]
    run: Callable[[bytes], None]
    mutate: Mutator = mutate_bytes
    seconds: float = 10  # CPU time for an input
    quick: int = 200  # inputs in `make test`


@dataclass
class Result:
    """The result of a run."""

    name: str
    executions: int = 0
    lines: int = 0
    corpus: int = 0
    failures: list[Path] = field(default_factory=list)


class Wrong(AssertionError):
    """A target detected a forbidden result."""


class Slow(BaseException):
    """An input takes too much CPU time."""


def run(
    target: Target, sample: Sample, folder: Path, failures: Path, *, seed: str,
    count: int | None = None, seconds: float | None = None, guided: bool = False, step: int = 1,
) -> Result:  # fmt: skip
    """Run `count` inputs, or as many as `seconds` allow. Failures are saved as files in the folder `failures`.

    Inputs of one byte come first: every `step`-th value. The first value depends on the target.
    """
    end = time.monotonic() + seconds if seconds else float("inf")
    before = {path: path.stat().st_mtime_ns for path in saved(target.name, failures)}
    shared = mmap.mmap(-1, _SHARED.size + _ROOM)
    first, stop = 0, count if count is not None else 1 << 62
    tries = 0
    while first < stop and time.monotonic() < end and tries < 20:
        tries += 1
        pid = os.fork()
        if not pid:
            _child(target, sample, folder, failures, shared, seed, range(first, stop), end, guided, step)
        status = _wait(pid, shared)
        first = _SHARED.unpack_from(shared)[0]
        if os.WIFSIGNALED(status):
            *_, size = _SHARED.unpack_from(shared)
            data = shared[_SHARED.size : _SHARED.size + size]
            number = os.WTERMSIG(status)
            said = "hangs" if number == signal.SIGKILL else f"killed by signal {number}"
            _save(failures, target, data, said, said)
            first += 1
            _SHARED.pack_into(shared, 0, first, *_SHARED.unpack_from(shared)[1:])
        elif status:
            raise RuntimeError(f"{target.name}: the fuzzer itself failed: {os.waitstatus_to_exitcode(status)}")
    executions, lines, corpus, *_ = _SHARED.unpack_from(shared)
    found = [path for path in saved(target.name, failures) if path.stat().st_mtime_ns != before.get(path)]
    return Result(target.name, executions, lines, corpus, sorted(found))


def repeat(target: Target, sample: Sample, folder: Path, data: bytes) -> str | None:
    """Run one input again, in this process; return what's wrong, or None."""
    os.chdir(folder)
    target.seeds(sample)
    _limit()
    failure = _attempt(target, data)
    return failure and failure[1]


def _wait(pid: int, shared: mmap.mmap) -> int:
    """Return a child's status. Kill the child if it only waits. If it computes for too long, it ends itself."""
    seen, since = "", time.monotonic()
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        state = _state(pid)
        if state != seen or state.startswith("R") or not _SHARED.unpack_from(shared)[4]:
            seen, since = state, time.monotonic()
        elif time.monotonic() - since > WALL:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def _state(pid: int) -> str:
    """Return whether a process runs or could run, and its CPU time so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return f"{fields[0]} {fields[11]} {fields[12]}"


def _child(
    target: Target, sample: Sample, folder: Path, failures: Path, shared: mmap.mmap, seed: str,
    numbers: range, end: float, guided: bool, step: int,
) -> None:  # fmt: skip
    """Run inputs in the child process. Never returns."""
    status = 1
    try:
        folder.mkdir(parents=True, exist_ok=True)
        os.chdir(folder)
        corpus = target.seeds(sample)
        small = [b"", *(bytes([byte]) for byte in range(256))]  # which random changes hardly ever make
        for data in [*corpus, *small[zlib.crc32(target.name.encode()) % step :: step]]:
            if failure := _attempt(target, data):  # also loads late imports
                _save(failures, target, data, *failure)
        _limit()
        lines: set[tuple[str, int]] = set()
        if guided:
            for data in corpus:
                _attempt(target, data, lines)
        known: set[str] = set()
        for number in numbers:
            if number and time.monotonic() >= end:  # run at least one input, since running none would look like success
                break
            rng = random.Random(f"{seed} {target.name} {number}")
            data = target.mutate(rng, rng.choice(corpus), corpus)
            shared[_SHARED.size : _SHARED.size + min(len(data), _ROOM)] = data[:_ROOM]
            _SHARED.pack_into(shared, 0, number, len(lines), len(corpus), len(known), time.monotonic(), len(data))
            traced = lines if guided and number % SAMPLE == 0 else None
            seen = len(lines)
            failure = _attempt(target, data, traced)
            if failure and failure[0] not in known:
                known.add(failure[0])
                _save(failures, target, data, *failure)
            if len(lines) > seen and len(corpus) < MAX_CORPUS:
                corpus.append(data)
            _SHARED.pack_into(shared, 0, number + 1, len(lines), len(corpus), len(known), 0, len(data))
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
    finally:
        os._exit(status)


def _limit() -> None:
    """Limit memory and file sizes from here on."""
    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * mmap.PAGESIZE
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, 1 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _attempt(target: Target, data: bytes, lines: set[tuple[str, int]] | None = None) -> tuple[str, str] | None:
    """Run an input. Return None, or a text that's the same for all failures of this kind, and the traceback."""

    def too_slow(number: int, frame: FrameType | None) -> None:
        raise Slow

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(GPT):
            return None
        if event == "line":
            lines.add((frame.f_code.co_filename, frame.f_lineno))  # type: ignore[union-attr]
        return trace

    signal.signal(signal.SIGPROF, too_slow)
    signal.setitimer(signal.ITIMER_PROF, target.seconds * (10 if lines is not None else 1))
    try:
        sys.settrace(trace if lines is not None else None)
        target.run(data)
        return None
    except (Exception, Slow) as error:
        return _describe(error)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.settrace(None)
        gc.collect(0)


def _describe(error: BaseException) -> tuple[str, str]:
    cause = error.__cause__ or error
    places = [f for f in traceback.extract_tb(cause.__traceback__) if f.filename.startswith(GPT)]
    where = f"{places[-1].filename}:{places[-1].lineno}" if places else ""
    said = "" if places else re.sub(r"[\d'\"\\x]+", "", str(error))[:80]
    text = "".join(traceback.format_exception(error))
    return f"{type(cause).__name__} {where} {said}", text[-8000:]


def _save(folder: Path, target: Target, data: bytes, kind: str, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{target.name}-{hashlib.sha256(kind.encode()).hexdigest()[:10]}"
    if not (folder / name).exists():
        (folder / f"{name}.txt").write_text(text, errors="backslashreplace")
        (folder / name).write_bytes(data)
    else:
        os.utime(folder / name)  # an earlier run found this failure, and so did this one


def saved(name: str, folder: Path) -> list[Path]:
    """Return the inputs of a target that failed."""
    found = folder.glob(f"{name}-*") if folder.is_dir() else ()
    return [path for path in found if re.fullmatch(re.escape(name) + r"-[0-9a-f]{10}", path.name)]
