"""Elements, and the symbols that they define.

Most of the time is spent unpacking (4.7 GB for libtorch_cuda.so), so elements are processed in batches that are large
enough for a process. Each process unpacks one element at a time into a buffer that's reused, and no more of it than
necessary: only the tables of an uncompressed cubin, only the beginning of a large compressed cubin if that has all
names (cubin_prefix.py), and only the first of several elements with the same bytes (four of five in libcublasLt.so).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.base.workers import run_all
from gpt.formats import cubin, cubin_prefix, tileir
from gpt.formats.fatbin import Element, Unpacker
from gpt.formats.image import Placed
from gpt.formats.source import Source
from gpt.formats.symbols import Contents
from gpt.ptx.names import parse_names

MAX_KNOWN = 1 << 16  # functions to remember, for elements that occur again; takes about 20 MB
TAIL = 64  # bytes at the end of a payload that are compared first
BATCH, BATCH_LENGTH = 16 << 20, 256  # bytes to unpack, and number of elements, per task
FRONT = 8  # in a large cubin, the part with the names is about an eighth

EMPTY = Contents([], [], 0)


class Opened(NamedTuple):
    """An element, its symbols, and if they were requested, its unpacked bytes (PTX without NULs at the end).

    A cubin outside of regions has a digest, because the library loads it itself, and may load a copy.
    """

    placed: Placed
    contents: Contents
    data: bytes | None
    sha256: str | None = None


class Opener:
    """Opens the elements of a source one by one.

    `found` are all elements of the source, so that possible duplicates can be recognized.
    """

    def __init__(self, source: Source, found: Iterable[Placed] = ()) -> None:
        self.source = source
        self._unpacker = Unpacker()
        self._sizes = Counter(_sizes(placed.element) for placed in found)
        self._known: dict[tuple[object, ...], tuple[Element, Contents]] = {}
        self._room = MAX_KNOWN

    def open(self, placed: Placed, keep: bool) -> Opened:
        """Return an element, with its bytes if `keep` is set. Raises MalformedError with its location."""
        element = placed.element
        if not keep and element.type not in ("cubin", "ptx", "tileir"):
            return Opened(placed, EMPTY, None)
        alone = placed.section is not None and not element.header_size
        try:
            if not keep and not alone:
                return Opened(placed, self._name(element), None)
            data = self._unpacker.unpack(self.source, element)
            contents = _parse(element, data)
        except MalformedError as error:
            if error.where:
                raise
            raise MalformedError(error.fact, self.source.at(element.offset)) from None
        kept = bytes(data) if keep else None
        if kept and element.type == "ptx":
            kept = kept.rstrip(b"\0")
        return Opened(placed, contents, kept, Source("", bytes(data)).sha256() if alone else None)

    def _name(self, element: Element) -> Contents:
        """Return the symbols of an element, unpacking no more than necessary."""
        if element.type == "cubin" and element.codec == "none":
            return cubin.parse_cubin(self.source.sub(element.payload, element.packed_size))
        if self._sizes[_sizes(element)] < 2:
            return self._parse(element)
        tail = min(TAIL, element.packed_size)
        key = _sizes(element), self.source.pread(element.payload + element.packed_size - tail, tail)
        if key in self._known:
            first, contents = self._known[key]
            if self.source.pread(first.payload, first.packed_size) == self._unpacker.read(self.source, element):
                return contents
        contents = self._parse(element)
        self._room -= len(contents.kernels) + len(contents.functions) + 1
        if self._room >= 0:
            self._known[key] = element, contents
        return contents

    def _parse(self, element: Element) -> Contents:
        found = _find_front(self._unpacker, self.source, element)
        return found or _parse(element, self._unpacker.unpack(self.source, element))


def check_names(source: Source, elements: Iterable[Element], jobs: int) -> None:
    """Check cubins whose symbols were read from their first bytes, by unpacking them in `jobs` processes.

    Raises MalformedError if the section headers of a cubin lead to other symbols than its first bytes.
    """
    unpacker = Unpacker()
    for _ in run_all([partial(_check, unpacker, source, e) for e in elements if _has_front(e)], jobs):
        pass


def _check(unpacker: Unpacker, source: Source, element: Element) -> None:
    found = _find_front(unpacker, source, element)
    if found and found != _parse(element, unpacker.unpack(source, element)):
        raise MalformedError(
            "cubin whose first bytes and section headers name different code", source.at(element.offset)
        )


def _find_front(unpacker: Unpacker, source: Source, element: Element) -> Contents | None:
    """Return the symbols of an element from its first bytes, or None if these don't contain them."""
    if _has_front(element):
        for head in unpacker.iter_heads(source, element):
            with suppress(MalformedError):
                if contents := cubin_prefix.find_contents(bytes(head), element.size):
                    return contents
    return None


def iter_batches(found: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Yield groups of elements, each of about BATCH bytes to unpack or BATCH_LENGTH elements."""
    batch: list[Placed] = []
    size = 0
    for placed in found:
        batch.append(placed)
        size += placed.element.size // (FRONT if _has_front(placed.element) else 1)
        if size >= BATCH or len(batch) >= BATCH_LENGTH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _has_front(element: Element) -> bool:
    """Return whether the first bytes of an element may contain its symbols."""
    return element.type == "cubin" and element.codec != "none" and element.size >= cubin_prefix.LEAST


def _sizes(element: Element) -> tuple[object, ...]:
    """Return a key that's the same for elements that may have the same bytes."""
    return element.type, element.codec, element.packed_size, element.size


def _parse(element: Element, data: bytes | memoryview) -> Contents:
    if element.type == "cubin":
        return cubin.parse_cubin(data)
    if element.type == "tileir":
        with suppress(MalformedError):  # it may be a newer version, whose kernels aren't known
            return tileir.parse_tileir(data) or EMPTY
    return parse_names(bytes(data)) if element.type == "ptx" else EMPTY
