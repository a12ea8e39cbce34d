"""Runs ptxas over one module and reads what it says.

Its messages are lines `ptxas FILE, line N; error : TEXT`, where its own name is that of its file. A line that a probe
brought into the text ends in a comment `//@ FILE:LINE`, the place in the probe's file that it comes from, escaped as
Python does; a message about it names that place.

What ptxas writes is taken only where it is whole: exit status 0 and a cubin that can be read. It may also crash,
run for ever or print without end: it has `timeout` seconds, of its output MAX_OUTPUT bytes are kept, and it runs in
a process group of its own, of which nothing is left.
"""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpt.asm.find import Tool
from gpt.asm.targets import Target
from gpt.errors import GptError, MalformedError
from gpt.formats.nvinfo import read_needs

MODULE = "module.ptx"
MAX_OUTPUT = 64 << 20  # bytes: a report of 400 bytes for each of 160,000 kernels
MAX_LINES = 5  # faults of a module that are told
MAX_TEXT = 300  # characters of one

_LINE = re.compile(rb"^\S+ (?:(.+?), line (\d+); )?(info|warning|error|fatal) *: (.*)$", re.MULTILINE)
_ENTRY = re.compile(r"Compiling entry function '(.*)' for '")
_PROPERTIES = re.compile(r"Function properties for (.*)")
_FRAME = re.compile(rb"^ +(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", re.MULTILINE)
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"\b(\d+)(?:\+(\d+))? bytes smem")
_ORIGIN = re.compile(rb"//@ (.+):(\d+)[ \t\r]*$")
_NOTE = b"(C7"  # on performance, such as C7514: wgmma is serialized
_EXTERN, _ABORTED = b"Unresolved extern", b"Ptx assembly aborted"


@dataclass(frozen=True)
class Options:
    """What is asked of ptxas beside the target."""

    level: int | None = None
    registers: int | None = None
    relocatable: bool = False
    line_info: bool = False

    def arguments(self) -> list[str]:
        """As ptxas takes them."""
        found = [] if self.level is None else [f"-O{self.level}"]
        found += [] if self.registers is None else [f"--maxrregcount={self.registers}"]
        return found + ["-c"] * self.relocatable + ["-lineinfo"] * self.line_info


@dataclass(frozen=True)
class Report:
    """What `ptxas -v` says of an entry: bytes of its stack frame and of spills, registers, bytes of shared memory."""

    frame: int
    spills: int
    registers: int | None = None
    shared: int | None = None


_NOTHING = Report(0, 0)


@dataclass(frozen=True)
class Assembled:
    """A cubin, what was said of its functions, and warnings as (location, text)."""

    cubin: bytes
    reports: dict[str, Report] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)


class Faults(MalformedError):
    """What ptxas has against a module: several faults, as (location, text)."""

    def __init__(self, found: list[tuple[str, str]]) -> None:
        super().__init__(found[0][1], found[0][0])
        self.found = found


class Runner:
    """Runs ptxas, from several threads at once. `stop` ends all of it."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def assemble(self, tool: Tool, text: bytes, name: str, target: Target, options: Options) -> Assembled:
        """Assembles a module, which messages call `name`.

        Raises Faults where ptxas refuses the text, and GptError where it fails itself.
        """
        with tempfile.TemporaryDirectory(prefix="gpt-asm-") as folder:
            Path(folder, MODULE).write_bytes(text)
            command = [tool.path, "-v", f"-arch={target}", *options.arguments(), MODULE, "-o", "module.cubin"]
            try:
                status, output = self._run(command, folder)
            except TimeoutError:
                slow = f"{tool.name} took over {self._timeout:g} s for {target} and was killed (--timeout)"
                raise GptError(slow, name) from None
            out = Path(folder, "module.cubin")
            cubin = out.read_bytes() if status == 0 and out.is_file() else b""
        if status < 0:
            raise GptError(f"{tool.name} crashes on it, for {target}: {_signal_name(-status)}", name)
        if status:
            raise _faults(output, text, name, target) or GptError(
                f"{tool.name} fails on it, for {target}: status {status}, {_shorten(output)}", name
            )
        try:
            read_needs(cubin)
        except MalformedError as error:
            raise GptError(f"{tool.name} says that it succeeded, and wrote no cubin: {error.fact}", name) from None
        reports = read_reports(output, options.relocatable)
        return Assembled(cubin, reports, _messages(output, text, name, target, (b"warning", b"info")))

    def stop(self) -> None:
        """Kills what runs; nothing more is started."""
        with self._lock:
            self._stopped = True
            for pid in self._running:
                _kill_group(pid)

    def _run(self, command: list[str], folder: str) -> tuple[int, bytes]:
        """Its exit status, negative for a signal, and what it printed, cut off at MAX_OUTPUT.

        Raises TimeoutError.
        """
        with self._lock:
            if self._stopped:
                raise GptError("stopped")
            try:
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    process_group=0,
                )
            except OSError as error:
                raise GptError.of(error, command[0]) from None
            self._running.add(process.pid)
        try:
            output = self._listen(process)
        finally:
            with self._lock:  # its number is its own until it is waited for
                _kill_group(process.pid)
                self._running.discard(process.pid)
                status = process.wait()
                assert process.stdout
                process.stdout.close()
        return status, output

    def _listen(self, process: subprocess.Popen[bytes]) -> bytes:
        """What a process prints until it ends. Raises TimeoutError."""
        assert process.stdout
        end = time.monotonic() + self._timeout
        output = bytearray()
        pipe = process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while True:
            if not poll.poll(max(0, end - time.monotonic()) * 1000):
                raise TimeoutError
            block = os.read(pipe, 1 << 16)
            if not block:
                break
            output += block[: MAX_OUTPUT - len(output)]
        while os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            if time.monotonic() > end:
                raise TimeoutError
            time.sleep(0.001)
        return bytes(output)


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # it has ended, and nothing that it started is left


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def read_reports(output: bytes, relocatable: bool = False) -> dict[str, Report]:
    """What `-v` says of each entry. What is not understood is left out.

    Each entry has its own copy of the device functions that it calls, which are told of after it: what they spill
    is counted with it. In relocatable code they stand for themselves, and before the entries.
    """
    reports: dict[str, Report] = {}
    entry = name = ""
    found = sorted([*_LINE.finditer(output), *_FRAME.finditer(output)], key=lambda match: match.start())
    for match in found:
        own = reports.get(entry, _NOTHING)
        if match.re is _FRAME:
            frame, stores, loads = map(int, match.groups())
            if name and name == entry:
                reports[entry] = replace(own, frame=frame, spills=own.spills + stores + loads)
            elif entry in reports and not relocatable:
                reports[entry] = replace(own, spills=own.spills + stores + loads)
            name = ""
            continue
        text = match[4].decode("utf-8", "surrogateescape")
        if begun := _ENTRY.match(text):
            entry = begun[1]
        elif begun := _PROPERTIES.match(text):
            name = begun[1]
        elif (used := _USED.match(text)) and entry in reports:
            shared = _SHARED.search(text)
            size = sum(int(part or 0) for part in shared.groups()) if shared else 0
            reports[entry] = replace(own, registers=int(used[1]), shared=size)
    return reports


def _faults(output: bytes, text: bytes, name: str, target: Target) -> Faults | None:
    found = _messages(output, text, name, target, (b"error", b"fatal"))
    return Faults(found) if found else None


def _messages(
    output: bytes, text: bytes, name: str, target: Target, levels: tuple[bytes, ...]
) -> list[tuple[str, str]]:
    """The first messages of these levels, each once, with where they belong: in a probe's file if it is a probe's.

    An `info` counts where it is a note on performance; the others are the report. Of no use is that there were
    errors, after these.
    """
    found: dict[tuple[str, str], None] = {}
    lines: list[bytes] | None = None
    more = 0
    for file, number, level, fact in _LINE.findall(output):
        if level not in levels or fact.startswith(_ABORTED) or (level == b"info" and not fact.startswith(_NOTE)):
            continue
        if len(found) == MAX_LINES:
            more += 1
            continue
        if number and file != MODULE.encode():  # a `#line` of the module says so
            found[f"{name}: {_shorten(file)}:{number.decode()}", _shorten(fact)] = None
        elif number:
            lines = text.split(b"\n") if lines is None else lines
            found[_place(lines, int(number[:18]), name), _shorten(fact)] = None
        else:
            advice = " (-c makes relocatable code)" if fact.startswith(_EXTERN) and level != b"warning" else ""
            found[name, f"for {target}: {_shorten(fact)}{advice}"] = None
    if more:
        found[name, f"for {target}: {more} more of these"] = None
    return list(found)


def _place(lines: list[bytes], number: int, name: str) -> str:
    """Where a line comes from: a probe's file, or the module."""
    origin = _ORIGIN.search(lines[number - 1]) if 0 < number <= len(lines) else None
    if origin:
        return f"{origin[1].decode('unicode_escape', 'replace')}:{int(origin[2])}"
    return f"{name}:{number}"


def _shorten(text: bytes) -> str:
    """The first line of something, not too long."""
    line = text.strip().partition(b"\n")[0].decode(errors="replace").strip()
    return (line if len(line) <= MAX_TEXT else line[:MAX_TEXT] + "...") or "no message"
