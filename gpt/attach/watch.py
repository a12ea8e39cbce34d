"""Run bpftrace as long as necessary, and read the lines that it prints.

When bpftrace ends, it first removes its probes one by one, which takes the kernel up to a quarter of a second each, and
only then reads the last events. So when the user ends the recording, we let bpftrace run for two more beats; by then,
everything printed earlier has arrived. Then we kill it, and the kernel removes the probes. When the process has ended,
bpftrace ends by itself and may still have unread events, so we wait for it.

With -p, bpftrace opens files in the mount namespace of the process. If that isn't ours, bpftrace would find files of a
container instead of the descriptors that we pass, so we don't use -p. The program itself ignores other processes, but
their calls of the same driver file become as slow as if they were being watched.
"""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

from gpt.attach.events import MAX_LINE
from gpt.attach.program import BEAT_MS
from gpt.base import signals
from gpt.base.errors import GptError, MissingError
from gpt.base.outputs import is_same

LIMITS = {  # bpftrace's own limits are too low for a driver
    "BPFTRACE_MAX_PROBES": "16384",
    "BPFTRACE_MAX_BPF_PROGS": "16384",
    "BPFTRACE_PERF_RB_PAGES": "1024",
    "BPFTRACE_CACHE_USER_SYMBOLS": "0",
}
BEATS = 2  # number of beats to wait for at the end
LOOK_SECONDS = 0.2  # maximum delay until a signal is noticed
PATIENCE = 5 * BEATS * BEAT_MS / 1000  # seconds to wait for the beats
QUIET = ("RLIMIT_MEMLOCK", "uprobe_events", "failed to detach", "Error while reading traceable functions")


def find_bpftrace() -> str:
    """Return the path of bpftrace. Raises MissingError if it isn't installed, or may not be run."""
    if os.geteuid() != 0:
        raise MissingError("root is needed: bpftrace loads programs into the kernel", "attach")
    found = shutil.which("bpftrace", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not found:
        raise MissingError("not found (Debian: apt-get install bpftrace)", "bpftrace")
    return found


def shares_mounts(pid: int) -> bool:
    """Return whether a process is in our mount namespace. If it has ended, the answer doesn't matter."""
    try:
        return is_same(os.stat(f"/proc/{pid}/ns/mnt"), os.stat("/proc/self/ns/mnt"))
    except OSError:
        return True


def has_ended(pid: int) -> bool:
    """Return whether a process has ended, even if its parent hasn't waited for it yet."""
    try:
        return b"\nState:\tZ" in Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return True


class Watching:
    """A running bpftrace. `lines` yields what it prints, until it ends or is ended."""

    def __init__(self, bpftrace: str, program: str, pid: int | None, files: Sequence[int] = ()) -> None:
        """Start bpftrace with these descriptors. Raises MissingError if it can't be started."""
        self._program = os.memfd_create("gpt-attach.bt")  # in TMPDIR, other users who can write there could replace it
        with open(self._program, "w", encoding="ascii", closefd=False) as file:
            file.write(program)
        self._errors = tempfile.TemporaryFile()
        self._alone = pid is not None and not shares_mounts(pid)  # then bpftrace can't use -p
        process = ["-p", str(pid)] if pid and not self._alone else []
        self._child = subprocess.Popen(
            [bpftrace, "-f", "json", *process, f"/proc/self/fd/{self._program}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,  # interrupts are meant for us
            env=os.environ | {name: os.environ.get(name, value) for name, value in LIMITS.items()},
            pass_fds=[*files, self._program],
        )
        self._pid = pid
        self.begun = False  # True once it's watching
        self.fault = ""  # the reason if it ended by itself, before the process did

    def lines(self, duration: float | None) -> Generator[bytes]:
        """Yield lines until the process ends, a signal arrives, or `duration` seconds have passed since the first line.

        Raises MissingError if bpftrace failed, Terminated if a signal arrives before it watches.
        """
        asked: list[int] = []
        numbers = [number for number in signals.CAUGHT if signal.getsignal(number) != signal.SIG_IGN]
        before = {number: signal.signal(number, lambda number, _: asked.append(number)) for number in numbers}
        try:
            yield from self._read_until(duration, asked)
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _read_until(self, duration: float | None, asked: list[int]) -> Iterator[bytes]:
        left, rest = BEATS, b""
        wanted = last = float("inf")  # end of the recording; end of the wait for beats
        while (data := self._read()) != b"":
            *lines, rest = (rest + (data or b"")).split(b"\n")
            if len(rest) > MAX_LINE:
                raise GptError(f"prints a line of over {MAX_LINE} bytes", "bpftrace")
            for line in lines:
                if b'"data": "begin ' in line and not self.begun:
                    self.begun = True
                    wanted = time.monotonic() + (duration or float("inf"))
                left -= b'"data": "beat ' in line and last < float("inf")
                yield line + b"\n"
            now = time.monotonic()
            if last == float("inf") and (asked or now >= wanted or self._is_left_alone()):
                last = now + PATIENCE
            if asked and not self.begun:
                raise signals.Terminated(asked[0])
            if last < float("inf") and (left <= 0 or now >= last or len(asked) > 1):
                return
        if rest:
            yield rest
        self._child.wait()
        if not self.begun:
            if self._pid and has_ended(self._pid):
                raise GptError("has ended", f"process {self._pid}")
            raise MissingError(self._reason(), "bpftrace")
        self.fault = self._reason() if self._child.returncode else ""

    def _is_left_alone(self) -> bool:
        return self._alone and self.begun and self._pid is not None and has_ended(self._pid)

    def _read(self) -> bytes | None:
        """Return the output so far, or None if nothing has arrived for a while."""
        assert self._child.stdout
        ready, _, _ = select.select([self._child.stdout], [], [], LOOK_SECONDS)
        return os.read(self._child.stdout.fileno(), 1 << 16) if ready else None

    def _end(self) -> None:
        if self._child.poll() is None:
            self._child.kill()  # the kernel then removes its probes
        os.close(self._program)

    def _reason(self) -> str:
        """Return the reason why it printed nothing, as one line."""
        self._errors.seek(0)
        text = self._errors.read(1 << 20).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip() and not any(word in line for word in QUIET)]
        said = next((line for line in lines if line.startswith("ERROR")), lines[0] if lines else "")
        said = said.removeprefix("ERROR: ") or f"ended with status {self._child.returncode}"
        try:
            if "[none]" not in (state := Path("/sys/kernel/security/lockdown").read_text()):
                return f"{said} (the kernel is locked down: {state.strip()})"
        except OSError:
            pass
        forbidden = any(word in text for word in ("Operation not permitted", "Permission denied", "EPERM"))
        return said + (" (the kernel forbids it: a container needs CAP_BPF, CAP_PERFMON and bpf() allowed by seccomp)"
                       if forbidden else "")  # fmt: skip
