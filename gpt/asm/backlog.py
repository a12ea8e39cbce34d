"""Work of several threads whose results come out in the order in which it was handed in.

Threads do, because all of the work is another process's. What waits is bounded: by the number of jobs, and by the
bytes of the records between them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 4  # jobs that wait, for each thread
WINDOW = 128 << 20  # bytes of what waits


class Backlog(Generic[T, R]):
    """Entries in order: each has a job or several, or none, and `finish` makes results of it once they are done."""

    def __init__(self, threads: int, stop: Callable[[], None]) -> None:
        """`stop` makes jobs that run end soon."""
        self._pool = ThreadPoolExecutor(threads)
        self._most = AHEAD * threads
        self._stop = stop
        self._entries: deque[tuple[list[Future[T]], Callable[[list[Future[T]]], Iterable[R]], int]] = deque()
        self._jobs = self._size = 0

    def __enter__(self) -> Backlog[T, R]:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()
        self._pool.shutdown(cancel_futures=True)

    def add(
        self, jobs: Iterable[Callable[[], T]], finish: Callable[[list[Future[T]]], Iterable[R]], size: int
    ) -> Iterator[R]:
        """Hands in an entry, whose input is `size` bytes, and gives the results that are due."""
        futures = [self._pool.submit(job) for job in jobs]
        self._entries.append((futures, finish, size))
        self._jobs += len(futures)
        self._size += size
        while self._entries and (self._jobs > self._most or self._size > WINDOW or self._is_done()):
            yield from self._take()

    def drain(self) -> Iterator[R]:
        """All results that are not given yet."""
        while self._entries:
            yield from self._take()

    def _is_done(self) -> bool:
        return all(future.done() for future in self._entries[0][0])

    def _take(self) -> Iterable[R]:
        futures, finish, size = self._entries.popleft()
        self._jobs -= len(futures)
        self._size -= size
        return finish(futures)
