"""Elements with what they define, unpacked by several threads and given back in order.

Unpacking is the whole cost (4.7 GB for libtorch_cuda.so), and zstd and LZ4 let go of the interpreter's lock
while they work, so threads are enough. Each keeps one buffer; results wait in a window of bounded size, so
memory stays at one element a thread plus, where payloads are wanted, PAYLOAD_WINDOW bytes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from gpt.errors import MalformedError
from gpt.formats.fatbin import Element, Unpacker
from gpt.formats.image import Placed
from gpt.formats.source import Source
from gpt.formats.symbols import Contents

WINDOW = 1024  # elements that may be ahead of the reader
PAYLOAD_WINDOW = 64 << 20  # bytes of payload that may be

BATCH, BATCH_LENGTH = 16 << 20, 256  # bytes unpacked, and elements, that a thread does in one go

EMPTY = Contents([], [], 0)
Batch = list[tuple[Placed, bool]]  # elements, and whether their bytes are wanted


@dataclass(frozen=True)
class Opened:
    """An element, what it defines, and its unpacked bytes where they were asked for (PTX without its NULs)."""

    placed: Placed
    contents: Contents
    data: bytes | None


class Reader:
    """Threads that unpack. A context manager; `jobs` is their number."""

    def __init__(self, jobs: int) -> None:
        self._pool = ThreadPoolExecutor(jobs)
        self._local = threading.local()

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def digest(self, source: Source) -> Future[str]:
        """The sha256 of a source, computed beside the unpacking."""
        return self._pool.submit(source.sha256)

    def open(self, source: Source, found: Iterable[Placed], wants_data: Callable[[Element], bool]) -> Iterator[Opened]:
        """Opens the elements in order. Raises MalformedError with the location of the one that is broken."""
        window: deque[tuple[Future[list[Opened]], int]] = deque()
        ahead = 0
        try:
            for batch, cost in _batches(found, wants_data):
                while window and ahead + cost > PAYLOAD_WINDOW:
                    ahead -= window[0][1]
                    yield from window.popleft()[0].result()
                window.append((self._pool.submit(self._open_all, source, batch), cost))
                ahead += cost
            while window:
                yield from window.popleft()[0].result()
        finally:
            for future, _ in window:
                future.cancel()

    def _open_all(self, source: Source, batch: Batch) -> list[Opened]:
        return [self._open(source, placed, keep) for placed, keep in batch]

    def _open(self, source: Source, placed: Placed, keep: bool) -> Opened:
        element = placed.element
        if not keep and element.type not in ("cubin", "ptx"):
            return Opened(placed, EMPTY, None)
        unpacker = getattr(self._local, "unpacker", None)
        if unpacker is None:
            unpacker = self._local.unpacker = Unpacker()
        data = unpacker.unpack(source, element)
        text = bytes(data).rstrip(b"\0") if element.type == "ptx" else None
        try:
            contents = _parse(element, text if text is not None else data)
        except MalformedError as error:
            raise MalformedError(error.fact, source.at(element.offset)) from None
        return Opened(placed, contents, (text if text is not None else bytes(data)) if keep else None)


def _batches(found: Iterable[Placed], wants_data: Callable[[Element], bool]) -> Iterator[tuple[Batch, int]]:
    """Elements in groups that are worth the trip to a thread, and what each takes of the window."""
    batch: Batch = []
    size = cost = 0
    for placed in found:
        keep = wants_data(placed.element)
        batch.append((placed, keep))
        size += placed.element.size
        cost += placed.element.size if keep else max(PAYLOAD_WINDOW // WINDOW, placed.element.size // 4)
        if size >= BATCH or len(batch) >= BATCH_LENGTH:
            yield batch, cost
            batch, size, cost = [], 0, 0
    if batch:
        yield batch, cost


def _parse(element: Element, data: bytes | memoryview) -> Contents:
    from gpt.formats import cubin, ptxtext  # and numpy, in a thread: it takes its time

    if element.type == "cubin":
        return cubin.parse_cubin(data)
    return ptxtext.parse_ptx(bytes(data)) if element.type == "ptx" else EMPTY
