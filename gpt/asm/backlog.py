"""Run jobs on several threads, and return their results in the order in which the jobs were submitted.

Threads are sufficient, because another process (the compiler) does the work. The queue is limited in two ways: by the
number of jobs, and by the bytes of the records in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Generic, NamedTuple, TypeVar

from gpt.base import signals

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 4  # queued jobs per thread
WINDOW = 128 << 20  # bytes of queued records


class _Entry(NamedTuple, Generic[T, R]):
    futures: list[Future[T]]
    done: SimpleQueue[Future[T]]  # finished futures; waiting for a queue can be interrupted by a signal
    finish: Callable[[list[Future[T]]], Iterable[R]]
    size: int


class Backlog(Generic[T, R]):
    """A queue of entries, each of which has any number of jobs. Once all jobs of an entry are done, `finish` returns
    its results.
    """

    def __init__(self, threads: int, stop: Callable[[], None]) -> None:
        """Start the threads. `stop` makes jobs that are running end soon."""
        self._pool = ThreadPoolExecutor(threads)
        self._most = AHEAD * threads
        self._stop = stop
        self._entries: deque[_Entry[T, R]] = deque()
        self._jobs = self._size = 0

    def __enter__(self) -> Backlog[T, R]:
        return self

    def __exit__(self, *_: object) -> None:
        with signals.held():
            self._stop()
            self._pool.shutdown(cancel_futures=True)

    def add(
        self, jobs: Iterable[Callable[[], T]], finish: Callable[[list[Future[T]]], Iterable[R]], size: int
    ) -> Iterator[R]:
        """Submit an entry whose input has `size` bytes, and yield the results of entries that are complete."""
        entry = _Entry[T, R]([], SimpleQueue(), finish, size)
        with signals.held():
            for job in jobs:
                future = self._pool.submit(job)
                future.add_done_callback(entry.done.put)
                entry.futures.append(future)
        self._entries.append(entry)
        self._jobs += len(entry.futures)
        self._size += size
        while self._entries and (self._jobs > self._most or self._size > WINDOW or self._is_done()):
            yield from self._take()

    def drain(self) -> Iterator[R]:
        """Yield all remaining results."""
        while self._entries:
            yield from self._take()

    def _is_done(self) -> bool:
        entry = self._entries[0]
        return entry.done.qsize() == len(entry.futures)

    def _take(self) -> Iterable[R]:
        entry = self._entries.popleft()
        self._jobs -= len(entry.futures)
        self._size -= entry.size
        for _ in entry.futures:
            entry.done.get()
        return entry.finish(entry.futures)
