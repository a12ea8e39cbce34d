"""Run the executables as a user does, and read their output."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpt.stream import wire
from tests import loaded

MIB = 1 << 20

# Start the command from a small process, because a child's resident size includes its parent's.
LAUNCH = """
import os, sys
pid = os.fork()
if not pid:
    os.execvp(sys.argv[2], sys.argv[2:])
_, status, usage = os.wait4(pid, 0)
os.write(int(sys.argv[1]), f'{usage.ru_maxrss} {usage.ru_utime + usage.ru_stime}'.encode())
code = os.waitstatus_to_exitcode(status)
os._exit(code if code >= 0 else 128 - code)
"""


@dataclass(frozen=True)
class Run:
    """The result of a finished process. If it was measured, `memory` is its peak resident size in bytes, and `seconds`
    the CPU time of the process and its children, which hardly changes on a busy machine.
    """

    status: int
    out: bytes
    err: str
    memory: int | None = None
    seconds: float | None = None

    @property
    def records(self) -> list[dict[str, Any]]:
        return list(wire.read_records(io.BytesIO(self.out), "<output>"))

    def kind(self, kind: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record["kind"] == kind]


def run(
    *command: str | Path, data: bytes = b"", cwd: Path | None = None, timeout: float = 300, measured: bool = False
) -> Run:
    """Run a command with `data` as its standard input."""
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        tempfile.TemporaryFile() as usage,
    ):
        stdin.write(data)
        stdin.seek(0)
        launcher = [sys.executable, "-ISc", LAUNCH, str(usage.fileno())] if measured else []
        if command[0] in loaded.mains() and not measured:
            status = loaded.start(command, (stdin.fileno(), out.fileno(), err.fileno()), timeout, cwd)
        else:
            process = subprocess.Popen(
                [*launcher, *map(str, command)],
                stdin=stdin, stdout=out, stderr=err, cwd=cwd, pass_fds=[usage.fileno()], start_new_session=True,
                env=loaded.cold() if measured else None,
            )  # fmt: skip
            try:
                wait(process, timeout)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
            status = process.returncode
        for file in (out, err, usage):
            file.seek(0)
        done = Run(status if status >= 0 else 128 - status, out.read(), err.read().decode(errors="replace"))
        if measured:
            kib, seconds = usage.read().split()
            done = replace(done, memory=int(kib) * 1024, seconds=float(seconds))
        return done


def wait(process: subprocess.Popen[bytes], timeout: float) -> None:
    """Wait for the process to end. Popen.wait with a timeout only checks every 50 ms, which is most
    of a stage's time.
    """
    number = os.pidfd_open(process.pid)
    try:
        if not select.select([number], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(process.args, timeout)
    finally:
        os.close(number)
    process.wait()


def extract(*args: str | Path, data: bytes = b"", cwd: Path | None = None, measured: bool = False) -> Run:
    return run("gpt-extract", *args, data=data, cwd=cwd, measured=measured)


def located(libraries: Path | list[Path], used: str, *options: str, arch: str = "sm_90") -> bytes:
    """Run extract | locate with the kernel names in `used`, whether or not a library has these kernels; both must
    succeed.
    """
    found = extract(*libraries) if isinstance(libraries, list) else extract(libraries)
    assert found.status == 0, found.err
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as names:
        names.write(used)
        names.flush()
        done = run("gpt-locate", "--used", names.name, "--allow-missing", "--arch", arch, *options, data=found.out)
    assert done.status == 0, done.err
    return done.out


def kept(found: bytes) -> bytes:
    """Return gpt-locate's output for a stream of libraries in which everything is used."""
    options = ("--used", "/dev/null", "--keep", ".", "--allow-missing", "--keep-ptx", "--arch", "sm_75,sm_80,sm_90")
    done = run("gpt-locate", *options, data=found)
    assert done.status == 0, done.err
    return done.out


def patch(stream: bytes, *options: str | Path) -> dict[str, Any]:
    """Run gpt-patch on `located` for one library; return its `patched` record."""
    done = run("gpt-patch", *options, data=stream)
    assert done.status == 0, done.err
    (record,) = done.kind("patched")
    return record
