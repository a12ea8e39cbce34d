"""One run of gpt-attach: choose the drivers to watch, generate the program, and write the trace."""

from __future__ import annotations

import os
import resource
import secrets
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, NamedTuple

from gpt.attach import driver, kernel
from gpt.attach.driver import DriverFile
from gpt.attach.events import MAX_LINE, iter_events
from gpt.attach.program import Machine, generate, of_process
from gpt.attach.segments import SegmentWriter, split_command
from gpt.attach.watch import Watching, find_bpftrace, shares_mounts
from gpt.base import messages, signals
from gpt.base.errors import GptError, MalformedError, MissingError, UsageError
from gpt.base.outputs import check_folder, create, open_stream
from gpt.stream import wire
from gpt.stream.stage import STDIN, STDOUT

TOOL = "gpt-attach"
FIRST_NAMESPACE = 0xEFFFFFFC  # PROC_PID_INIT_INO in Linux: the pid namespace outside of all containers
TRACING = Path("/sys/kernel/tracing/events/sched/sched_process_exit")


class Output:
    """The trace file. It's created by the first write, so that an earlier failure doesn't affect an existing file.

    Like a trace of gpt-hook run, it grows while the process is being watched. If it's complete, it ends with a record
    that says so.
    """

    def __init__(self, name: str, force: bool) -> None:
        """Choose the file. Raises GptError if it exists, and OSError if it can't be created."""
        self.name = STDOUT if name == "-" else name
        self._file: IO[bytes] | None = open(os.dup(1), "wb") if name == "-" else open_stream(Path(name))
        if not self._file and not force and os.path.lexists(name):
            raise GptError("exists; -f overwrites it", name)
        if not self._file:
            check_folder(Path(name))

    def write(self, record: dict[str, object]) -> None:
        """Write a record. Raises OSError, or Terminated if the reader has gone away."""
        self._file = self._file or create(Path(self.name), 0o600)
        try:
            self._file.write(wire.pack(record))
            if record["kind"] in ("sync", "end"):
                self._file.flush()
        except BrokenPipeError:
            raise signals.Terminated(signal.SIGPIPE) from None
        except OSError as error:
            error.filename = self.name
            raise


class AttachOptions(NamedTuple):
    """The options of the command line; `pid` is None for all processes."""

    pid: int | None
    libraries: list[str]
    calls: str | None
    kernel: bool
    duration: float | None
    quiet: bool


def write_program(asked: AttachOptions, live: bool = False) -> tuple[str, list[DriverFile]]:
    """Return the bpftrace program, and the files to watch. Raises GptError if there's nothing that can be watched.

    With `live`, the program runs now, with the descriptors of these files. Otherwise, it's a program to be run by
    itself later.
    """
    wanted = driver.read_functions(asked.calls)
    files = _find_files(asked)
    found = []
    for one in files:
        place = f"/proc/self/fd/{one.file}" if live else one.place
        try:
            has = driver.exports(one.file, one.name)
        except GptError as error:
            if asked.pid or asked.libraries:
                raise
            messages.say(TOOL, "warning", error.where, error.fact)  # any user can give a file this name
            continue
        found += [(place, function) for function in wanted if function.symbol in has]
    if not found:
        raise UsageError("has none of these functions", files[0].name)
    whole = f"-p {asked.pid} " if asked.pid and shares_mounts(asked.pid) else ""
    about = [
        f"What {f'process {asked.pid}' if asked.pid else 'all processes'} and the CUDA driver exchange, by",
        f"'gpt-hook attach --print', for this boot of this machine: {len(found)} functions.",
        "",
        f"    bpftrace -f json {whole}FILE > OUTPUT; gpt-hook attach -o trace.mp OUTPUT",
        "",
        f"BPFTRACE_MAX_PROBES has to be {2 * len(found) + 3} or more, BPFTRACE_MAX_BPF_PROGS too.",
    ]
    names = kernel.find_functions() if asked.kernel else []
    about += [line for line in ("", f"kprobes: {', '.join(names)}") if names]
    pid = asked.pid if _is_first_namespace() else None  # bpftrace counts pids in that namespace
    if asked.pid and not whole and not pid:
        raise GptError("in another mount namespace: run gpt-hook attach outside of containers", f"process {asked.pid}")
    tag = secrets.token_hex(8)
    more = kernel.probes(names, tag, of_process(pid))
    return generate(found, _machine(asked.pid), more, about, TRACING.exists() and not asked.pid, tag, pid), files


def _is_first_namespace() -> bool:
    return os.readlink("/proc/self/ns/pid") == f"pid:[{FIRST_NAMESPACE}]"


def _find_files(asked: AttachOptions) -> list[DriverFile]:
    """Open the drivers to watch. Raises GptError if no driver is found."""
    if asked.libraries:
        return [driver.open_library(path) for path in asked.libraries]
    if asked.pid:
        return driver.find_driver(asked.pid)
    found, foreign = driver.find_all()
    for name in foreign[:1]:
        fact = "other users may write to it, so it isn't watched; --library watches it anyway"
        more = len(foreign) - 1
        messages.say(TOOL, "warning", name, fact + f" ({more} more like it)" * bool(more))
    if not found:
        raise MissingError("no process uses it, and the dynamic linker does not find it", driver.LIBRARY)
    return found


def _machine(pid: int | None) -> Machine:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    clocks = time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC
    pairs = [tuple(map(time.clock_gettime_ns, clocks)) for _ in range(9)]
    suspended = max(0, min(boot - monotonic for boot, monotonic in pairs))  # the clocks are read one after the other
    commands = {pid: _read_command(pid)} if pid else {}
    return Machine(os.uname().nodename, boot_id, suspended if suspended > 100_000 else 0, commands)


def watch(asked: AttachOptions, output: Output) -> int:
    """Watch processes, and write the trace. Returns the exit status. Raises GptError if it can't be done."""
    bpftrace = find_bpftrace()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # bpftrace inherits it, and needs a descriptor per probe
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    program, files = write_program(asked, live=True)
    watching = Watching(bpftrace, program, asked.pid, [one.file for one in files])
    kprobes = f", and in the kernel {', '.join(kernel.find_functions())}" if asked.kernel else ""

    def lines(printed: Iterable[bytes]) -> Iterator[bytes]:
        for line in printed:
            if watching.begun and not told and not asked.quiet:
                told.append(f"process {asked.pid}" if asked.pid else "all processes")
                messages.write(f"{TOOL}: watching {told[0]}{kprobes}; an interrupt (Ctrl-C) ends it\n")
            yield line

    told: list[str] = []
    with closing(watching.lines(asked.duration)) as printed:  # ends bpftrace in any case
        status = convert(lines(printed), output, asked.quiet, _command_of, live=watching)
    if watching.fault:
        messages.say(TOOL, "warning", output.name, f"bpftrace {watching.fault}: the trace is interrupted")
    return status


def read(paths: list[Path], output: Output, quiet: bool) -> int:
    """Make a trace from earlier output of bpftrace, by default on standard input. Returns the exit status."""
    status = 0
    inputs: list[Path | None] = [*paths]
    for path in inputs or [None]:
        with open(path or 0, "rb", closefd=path is not None) as source:
            lines = iter(lambda: source.readline(MAX_LINE), b"")
            where = str(path or STDIN)
            status = max(status, convert(lines, output, quiet, lambda _: [], source=where))
    return status


def _read_command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _command_of(pid: int) -> list[str]:
    return split_command(_read_command(pid))


def convert(
    lines: Iterable[bytes],
    output: Output,
    quiet: bool,
    command: Callable[[int], list[str]],
    live: Watching | None = None,
    source: str = "",
) -> int:
    """Convert lines of bpftrace to a trace, and report its contents. Returns the exit status.

    `live` is the process that's printing the lines, if any.
    """
    segments = SegmentWriter(command)
    for event in iter_events(lines):
        for record in segments.add(event):
            output.write(record)
    if not live and not segments.begun:
        raise MalformedError("not what bpftrace prints for a program of 'gpt-hook attach --print'", source)
    for record in segments.finish(complete=segments.ended or (live is not None and not live.fault)):
        output.write(record)
    if not segments.processes:
        raise GptError("nothing called a function that was watched", output.name)
    return _report(segments, output.name, quiet, live is not None, source)


def _report(segments: SegmentWriter, name: str, quiet: bool, live: bool, source: str) -> int:
    def plural(count: int, one: str, many: str) -> str:
        return f"{count} {one if count == 1 else many}"

    if segments.nameless:
        fact = f"no name for {plural(segments.nameless, 'kernel', 'kernels')} looked up before recording began"
        messages.say(TOOL, "warning", name, fact)
    if segments.lost:
        fact = f"bpftrace lost {plural(segments.lost, 'event', 'events')}: buffers full"
        messages.say(TOOL, "warning", name, fact)
    if segments.strange:
        lines = plural(segments.strange, "line", "lines")
        fact = f"can't parse {lines} of bpftrace's output; the first is '{segments.example}'"
        messages.say(TOOL, "warning", source or name, fact)
    if not live and not segments.ended:
        messages.say(TOOL, "warning", source, "ends before bpftrace did: the trace is interrupted")
    if not quiet:
        parts = (
            plural(segments.calls, "call", "calls"),
            plural(segments.launches, "launch", "launches"),
            plural(segments.processes, "process", "processes"),
        )
        messages.write(f"{TOOL}: {name}: {', '.join(parts)}\n")
    return 0
