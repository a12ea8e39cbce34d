"""Elements with what they define.

Unpacking is the whole cost (4.7 GB for libtorch_cuda.so), so elements are grouped into batches that are worth a
process's while. One is unpacked at a time, into a buffer that is used again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpt.errors import MalformedError
from gpt.formats import cubin, ptxtext
from gpt.formats.fatbin import Element, Unpacker
from gpt.formats.image import Placed
from gpt.formats.source import Source
from gpt.formats.symbols import Contents

BATCH, BATCH_LENGTH = 16 << 20, 256  # bytes unpacked, and elements, that a process does in one go

EMPTY = Contents([], [], 0)


@dataclass(frozen=True)
class Opened:
    """An element, what it defines, and its unpacked bytes where they were asked for (PTX without its NULs).

    A cubin that lies in a library and in no region has a digest: the library loads it by itself, maybe from a copy.
    """

    placed: Placed
    contents: Contents
    data: bytes | None
    sha256: str | None = None


class Opener:
    """Opens the elements of a source, one after the other."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._unpacker = Unpacker()

    def open(self, placed: Placed, keep: bool) -> Opened:
        """The element with its bytes, if they are to be kept. Raises MalformedError with its location."""
        element = placed.element
        if not keep and element.type not in ("cubin", "ptx"):
            return Opened(placed, EMPTY, None)
        data = self._unpacker.unpack(self.source, element)
        text = bytes(data).rstrip(b"\0") if element.type == "ptx" else None
        try:
            contents = _parse(element, text if text is not None else data)
        except MalformedError as error:
            raise MalformedError(error.fact, self.source.at(element.offset)) from None
        kept = (text if text is not None else bytes(data)) if keep else None
        alone = placed.section and not element.header_size
        return Opened(placed, contents, kept, hashlib.sha256(data).hexdigest() if alone else None)


def iter_batches(found: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Elements in groups of BATCH bytes or BATCH_LENGTH elements."""
    batch: list[Placed] = []
    size = 0
    for placed in found:
        batch.append(placed)
        size += placed.element.size
        if size >= BATCH or len(batch) >= BATCH_LENGTH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _parse(element: Element, data: bytes | memoryview) -> Contents:
    if element.type == "cubin":
        return cubin.parse_cubin(data)
    return ptxtext.parse_ptx(bytes(data)) if element.type == "ptx" else EMPTY
