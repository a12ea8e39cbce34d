"""Run compilers from several threads at once.

A compiler may crash, hang or print endlessly. So it has `timeout` seconds, its output beyond MAX_OUTPUT bytes is
discarded, and it runs in a separate process group, which is killed afterwards.
"""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import threading
import time

from gpt.base.errors import GptError

# What cc says if it fails because the system is short of something: processes, memory, files. runtime/common/ask.c
# knows these errors, too, and lets the program try again.
SHORTAGES = tuple(map(os.strerror, (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC)))
KILLED = "was killed"
MAX_OUTPUT = 64 << 20  # enough for a report of 400 bytes about each of 160,000 kernels


class Processes:
    """The compilers that are running. `stop` kills them all."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def stop(self) -> None:
        """Kill all running processes and start no more."""
        with self._lock:
            self._stopped = True
            for pid in self._running:
                _kill_group(pid)

    def run(self, command: list[str], folder: str) -> tuple[int, bytes]:
        """Run a command. Return its exit status, which is negative for a signal, and its output, cut off at MAX_OUTPUT.

        Its temporary files go to the same folder, because it can't remove them if it's killed. Raises TimeoutError.
        """
        with self._lock:
            if self._stopped:
                raise GptError("stopped")
            try:
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    # cc finds ld only if PATH is set; its messages are searched for SHORTAGES
                    env={"PATH": os.defpath} | os.environ | {"TMPDIR": ".", "LC_ALL": "C"},
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
            with self._lock:  # the pid can't be reused before wait()
                _kill_group(process.pid)
                self._running.discard(process.pid)
                status = process.wait()
                assert process.stdout
                process.stdout.close()
        return status, output

    def _listen(self, process: subprocess.Popen[bytes]) -> bytes:
        """Read the output of a process until it ends. Raises TimeoutError."""
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
        pass  # it and all its children have ended


def signal_name(number: int) -> str:
    """Return the name of a signal: 11 is SIGSEGV."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
