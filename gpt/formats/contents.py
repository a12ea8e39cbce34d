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
from gpt.formats import cubin, ptxtext
from gpt.formats.fatbin import Element, Unpacker
from gpt.formats.image import Placed
from gpt.formats.source import Source

WINDOW = 1024  # elements that may be ahead of the reader
PAYLOAD_WINDOW = 64 << 20  # bytes of payload that may be

EMPTY = cubin.Contents([], [], 0)


@dataclass(frozen=True)
class Opened:
    """An element, what it defines, and its unpacked bytes where they were asked for (PTX without its NULs)."""

    placed: Placed
    contents: cubin.Contents
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
        window: deque[tuple[Future[Opened], int]] = deque()
        ahead = 0
        try:
            for placed in found:
                keep = wants_data(placed.element)
                cost = placed.element.size if keep else PAYLOAD_WINDOW // WINDOW
                while window and ahead + cost > PAYLOAD_WINDOW:
                    ahead -= window[0][1]
                    yield window.popleft()[0].result()
                window.append((self._pool.submit(self._open, source, placed, keep), cost))
                ahead += cost
            while window:
                yield window.popleft()[0].result()
        finally:
            for future, _ in window:
                future.cancel()

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


def _parse(element: Element, data: bytes | memoryview) -> cubin.Contents:
    if element.type == "cubin":
        return cubin.parse_cubin(data)
    return ptxtext.parse_ptx(bytes(data)) if element.type == "ptx" else EMPTY
