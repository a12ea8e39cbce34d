"""The back end for GPUs: ptxas, which makes cubins.

What ptxas writes is used only if it is complete: exit status 0 and a cubin that can be read. ptxas may also crash,
run for ever or print without end: it has `timeout` seconds, MAX_OUTPUT bytes of its output are kept, and it runs in
a process group of its own, which is killed afterwards.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from gpt.arch import parse_arch
from gpt.asm.backend import Made, Options
from gpt.asm.find import Tool, Tools
from gpt.asm.reports import MODULE, Report, find_faults, find_messages, read_reports, shorten
from gpt.asm.targets import GpuTarget, find_source, find_version
from gpt.errors import GptError, MalformedError
from gpt.formats.nvinfo import read_needs

MAX_OUTPUT = 64 << 20  # bytes: a report of 400 bytes for each of 160,000 kernels


@dataclass(frozen=True)
class Assembled:
    """A cubin, what was said of its functions, and warnings as (location, text)."""

    cubin: bytes
    reports: dict[str, Report] = field(default_factory=dict)
    warnings: list[tuple[str, str]] = field(default_factory=list)


class Ptxas:
    """ptxas as a back end: the one that knows a module's PTX version and its target, of those that are installed."""

    kind: ClassVar[str] = "cubin"

    def __init__(self, options: Options) -> None:
        """Raises MissingError if ptxas is not installed."""
        self._tools = Tools(options.tool)
        self._tools.first()
        self._options = options
        self._runner = Runner(options.timeout)

    @staticmethod
    def parse_target(word: str) -> GpuTarget:
        """`sm_90a` or `9.0a`. Raises UsageError."""
        return GpuTarget(*parse_arch(word))

    def target_for(self, text: bytes, target: GpuTarget) -> GpuTarget:
        """`sm_90a` for a module that requires it, if `sm_90` is asked for."""
        return target.for_source(find_source(text))

    def key(self, text: bytes, target: GpuTarget) -> list[bytes]:
        """The ptxas that it takes, and how it is called.

        Raises GptError if the module is for another GPU, MissingError if no ptxas knows it.
        """
        source = find_source(text)
        if source and not target.runs(source):
            raise GptError(f"is for {source} and cannot be assembled for {target}")
        tool = self._tools.choose(find_version(text), target)
        return [tool.identity.encode(), " ".join([str(target), *_arguments(self._options)]).encode()]

    def make(self, text: bytes, name: str, target: GpuTarget) -> Made:
        """Assembles a module. Raises Faults if ptxas refuses it, GptError if it fails."""
        tool = self._tools.choose(find_version(text), target)
        done = self._runner.assemble(tool, text, name, target, self._options)
        return Made(done.cubin, _resources(done), done.warnings)

    def stop(self) -> None:
        """Ends what runs, and assembles nothing more."""
        self._runner.stop()


class Runner:
    """Runs ptxas, from several threads at once. `stop` ends all of it."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def assemble(self, tool: Tool, text: bytes, name: str, target: GpuTarget, options: Options) -> Assembled:
        """Assembles a module, which messages call `name`.

        Raises Faults if ptxas refuses the text, and GptError if it fails itself.
        """
        with tempfile.TemporaryDirectory(prefix="gpt-asm-") as folder:
            Path(folder, MODULE).write_bytes(text)
            command = [tool.path, "-v", f"-arch={target}", *_arguments(options), MODULE, "-o", "module.cubin"]
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
            raise find_faults(output, text, name, target) or GptError(
                f"{tool.name} fails on it, for {target}: status {status}, {shorten(output)}", name
            )
        try:
            read_needs(cubin)
        except MalformedError as error:
            raise GptError(f"{tool.name} reports success but wrote no cubin: {error.fact}", name) from None
        reports = read_reports(output, options.relocatable)
        return Assembled(cubin, reports, find_messages(output, text, name, target, (b"warning", b"info")))

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
        pass  # it has ended, and so has all that it started


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _arguments(options: Options) -> list[str]:
    found = []
    if options.level is not None:
        found.append(f"-O{options.level}")
    if options.registers is not None:
        found.append(f"--maxrregcount={options.registers}")
    if options.relocatable:
        found.append("-c")
    if options.line_info:
        found.append("-lineinfo")
    return found


def _resources(done: Assembled) -> dict[str, dict[str, int]]:
    """What each kernel needs.

    The cubin says how many registers, how much stack with all that is called, and which constant banks; only
    ptxas says what was spilled, and how much shared memory the kernel declares itself.
    """
    found: dict[str, dict[str, int]] = {}
    for name, needs in read_needs(done.cubin).items():
        values = asdict(needs)
        if report := done.reports.get(name):
            values |= {"spills": report.spills, "stack": max(values["stack"], report.frame)}
            values |= {} if report.shared is None else {"shared": report.shared}
        found[name] = values
    return found
