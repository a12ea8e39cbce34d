"""Run programs on launches, one after another, while the stream that contains the launches continues.

Each program gets a file with the launch as a trace. If a program fails, that's reported once, and the number of
failures is reported at the end. A program that can't be run, or doesn't end in time, isn't run again. Each run is a
session of its own, so that the program and its children can be killed together.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, deque
from contextlib import suppress
from pathlib import Path
from threading import Condition, Thread

from gpt.base import signals

MOST, MOST_BYTES = 1000, 256 << 20  # limits for the files that wait
LOOK = 0.2  # seconds between checks for signals


class Callbacks:
    """Runs callbacks on files, in a thread. `output` is the descriptor to which they print, and `python` runs scripts.

    `faults` are errors that haven't been reported, each with its callback. `failed` counts launches by callback.
    """

    def __init__(self, limit: float, output: int, keep: bool, python: str = sys.executable) -> None:
        self.faults: deque[tuple[str, str]] = deque()
        self.failed = Counter[str]()
        self._limit = limit
        self._output = output
        self._keep = keep
        self._python = python
        self._waiting: deque[tuple[Path, int, list[str]]] = deque()
        self._bytes = 0
        self._known: set[tuple[str, str]] = set()
        self._given_up: set[str] = set()
        self._running: subprocess.Popen[bytes] | None = None
        self._busy = self._stopped = False
        self._news = Condition()
        self._thread: Thread | None = None

    def add(self, path: Path, callbacks: list[str]) -> None:
        """Run callbacks on a file, and then remove it, unless files are kept. Blocks while too many files are
        waiting.
        """
        size = path.stat().st_size
        with signals.held():
            if self._thread is None:
                self._thread = Thread(target=self._work, daemon=True)
                self._thread.start()
            with self._news:
                self._waiting.append((path, size, callbacks))
                self._bytes += size
                self._news.notify_all()
        self._wait(lambda: len(self._waiting) <= MOST and self._bytes <= MOST_BYTES)

    @property
    def left(self) -> int:
        """The number of files that are waiting or in use."""
        return len(self._waiting) + self._busy

    def finish(self) -> None:
        """Wait for all files."""
        self._wait(lambda: not self._waiting and not self._busy)

    def stop(self) -> None:
        """Kill the running callback, and run no more."""
        self._stopped = True
        self._waiting.clear()
        if running := self._running:
            _end(running)

    def _wait(self, holds: object) -> None:
        assert callable(holds)
        done = False
        while not done:
            with signals.held(), self._news:
                done = self._news.wait_for(holds, LOOK)

    def _work(self) -> None:
        while True:
            with self._news:
                self._busy = False
                self._news.notify_all()
                self._news.wait_for(lambda: self._waiting)
                path, size, callbacks = self._waiting.popleft()
                self._bytes -= size
                self._busy = True
            for callback in callbacks:
                if callback not in self._given_up and not self._stopped:
                    self._run(callback, path)
            if not self._keep:
                with suppress(OSError):
                    path.unlink()

    def _run(self, callback: str, path: Path) -> None:
        command = [*([self._python] if callback.endswith(".py") else []), callback, str(path)]
        fault = None
        try:
            if not callback.startswith("/"):  # PATH isn't searched
                raise ValueError("not an absolute path")
            self._running = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=self._output, start_new_session=True
            )
            status = self._running.wait(self._limit)
            if status:
                fault = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        except subprocess.TimeoutExpired:
            fault = f"did not end within {self._limit:g} s, and is not run again"
            self._given_up.add(callback)
            if self._running:
                _end(self._running)
        except (OSError, ValueError) as error:
            fault = f"{getattr(error, 'strerror', None) or error}; it is not run"
            self._given_up.add(callback)
        self._running = None
        if fault and not self._stopped:
            self.failed[callback] += 1
            if (callback, fault) not in self._known:
                self._known.add((callback, fault))
                self.faults.append((callback, fault))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process, and its children if they're in the same process group."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
