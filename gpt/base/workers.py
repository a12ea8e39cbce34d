"""Run tasks in forked processes, and return their results in order.

Threads would be sufficient if all the work were done in C, but reading half a million names isn't, and waiting for the
interpreter's lock takes longer than a fork. A child already has everything that was read before, so only results have
to be sent. Tasks needn't clean up anything: their process is killed when nobody needs the result.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, TypeVar

from gpt.base.errors import GptError

WINDOW = 64 << 20  # bytes of results that may wait for an earlier one
_TOKEN = struct.Struct("<I")  # number of a task; written at once, so that one process reads all of it
_FRAME = struct.Struct("<IBQ")  # number of a task, 1 if it failed, size of the pickle that follows

T = TypeVar("T")


def run_all(tasks: Sequence[Callable[[], T]], jobs: int) -> Iterator[T]:
    """Yield the result of each task, in order, or raise its exception. Results must be picklable.

    Tasks run in `jobs` processes, which are started by the first `next()`. No new tasks are started while WINDOW bytes
    of results are waiting. With one job or one task, tasks run in this process. Raises GptError if a process is killed.
    """
    if jobs == 1 or len(tasks) == 1:
        yield from (task() for task in tasks)
        return
    crew = _Crew(tasks, min(jobs, len(tasks)))
    try:
        yield from crew.iter_results()
    finally:
        crew.close()


class _Crew(Generic[T]):
    """The worker processes: they read task numbers from a shared pipe, and each has a pipe for its results."""

    def __init__(self, tasks: Sequence[Callable[[], T]], jobs: int) -> None:
        self._total = len(tasks)
        numbers, self._numbers = os.pipe()
        self._pids: list[int] = []
        self._answers: list[int] = []
        for _ in range(jobs):
            answers, answer = os.pipe()
            self._answers.append(answers)
            self._pids.append(pid := os.fork())
            if pid == 0:
                _work(tasks, numbers, answer, [self._numbers, *self._answers])
            os.close(answer)
        os.close(numbers)

    def iter_results(self) -> Iterator[T]:
        waiting: dict[int, tuple[bool, bytes]] = {}
        size = given = 0
        poll = select.poll()
        for answers in self._answers:
            poll.register(answers, select.POLLIN)
        for number in range(self._total):
            while number not in waiting:
                while given < self._total and given - number - len(waiting) < 2 * len(self._pids) and size < WINDOW:
                    os.write(self._numbers, _TOKEN.pack(given))
                    given += 1
                for answers, _ in poll.poll():
                    done, failed, data = _receive(answers)
                    waiting[done] = failed, data
                    size += len(data)
            failed, data = waiting.pop(number)
            size -= len(data)
            result = pickle.loads(data)
            if failed:
                raise result
            yield result

    def close(self) -> None:
        """End the processes, whatever they're doing.

        If a signal ends us, closing their pipes isn't enough: zstd needs a minute for an element of 130 MB, and Python
        does nothing else in the meantime.
        """
        for pipe in (self._numbers, *self._answers):
            os.close(pipe)
        for pid in self._pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _work(tasks: Sequence[Callable[[], T]], numbers: int, answer: int, others: list[int]) -> None:
    """Run tasks in a child, which never returns: exit handlers and buffers belong to the parent."""
    try:
        for pipe in others:
            os.close(pipe)
        while token := os.read(numbers, _TOKEN.size):
            (number,) = _TOKEN.unpack(token)
            try:
                failed, data = False, pickle.dumps(tasks[number](), pickle.HIGHEST_PROTOCOL)
            except Exception as error:
                failed, data = True, _pickled(error)
            _send(answer, _FRAME.pack(number, failed, len(data)))
            _send(answer, data)
    except BaseException:  # a signal, or the parent has exited
        os._exit(1)
    os._exit(0)


def _pickled(error: Exception) -> bytes:
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:
        return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
    return data


def _send(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


def _receive(pipe: int) -> tuple[int, bool, bytes]:
    number, failed, size = _FRAME.unpack(_read(pipe, _FRAME.size))
    return number, bool(failed), _read(pipe, size)


def _read(pipe: int, size: int) -> bytes:
    parts: list[bytes] = []
    while size:
        part = os.read(pipe, min(size, 1 << 20))
        if not part:
            raise GptError("a worker process was killed, perhaps for lack of memory: try fewer (-j)")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
