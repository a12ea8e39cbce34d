"""Tile IR: the bytecode of CUDA Tile, which the driver compiles for a GPU, like PTX.

    magic 7f "TileIR" 00 | u8 major | u8 minor | u16 tag | sections | u8 0

A section consists of a byte, with its kind in the low 7 bits and "aligned" in the top bit; its size, a varint; if it's
aligned, the alignment, a varint, and padding up to it, counted from the start of the file; and its contents. Varints
are LEB128. Two kinds of sections are read:

- 1, strings: a count, padding to 4, a u32 offset for each string, and the texts, each of which ends at the next offset;
- 2, functions: a count, and for each function: its name (number of a string), signature, a byte of flags (2 is a
  kernel, 4 says that hints follow), a location, attributes, the size of its body, and the body; then padding.

Attributes have many types, which depend on the version. NVIDIA's public reader only knows hints; nvcc 13.5 writes two
empty attributes. So we read a module in both ways, and trust the way that fits to the last byte. If neither or both
fit, or if a module has hints, its kernels aren't known.

Sources: the chapter "Binary format" in NVIDIA's Tile IR documentation, and modules from nvcc 13.5. nvcc -enable-tile
writes modules to separate fatbins (kind 128), whose wrappers are in the section `.nvFatBinSegmentAlt`.
"""

from __future__ import annotations

import struct
from contextlib import suppress

from gpt.base.errors import MalformedError
from gpt.formats.symbols import Contents

MAGIC = b"\x7fTileIR\0"
HEAD = 12  # bytes before the first section
STRINGS, FUNCTIONS = 1, 2
KERNEL, HINTS = 2, 4  # flags of a function
ATTRIBUTES = (b"", b"\x0b\0\x06\0")  # attributes that a function may have
PADDING = 0xCB
MAX_SECTIONS = 64
MAX_NAMES = 1 << 16  # limit for functions in a module, and for strings


class _Reader:
    def __init__(self, data: memoryview, at: int = 0) -> None:
        self.data = data
        self.at = at

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise MalformedError("Tile IR ends too early")
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self.byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise MalformedError("Tile IR with a number of over 64 bits")

    def align(self, alignment: int) -> None:
        if alignment > 1:
            self.at += -self.at % alignment

    def take(self, size: int) -> memoryview:
        if size > len(self.data) - self.at:
            raise MalformedError("Tile IR ends too early")
        self.at += size
        return self.data[self.at - size : self.at]


def parse_tileir(data: bytes | memoryview) -> Contents | None:
    """Return the kernels of a module, or None if they aren't known. Raises MalformedError."""
    view = memoryview(data)
    if bytes(view[: len(MAGIC)]) != MAGIC:
        raise MalformedError("not Tile IR")
    sections = dict(_iter_sections(view))
    if FUNCTIONS not in sections or STRINGS not in sections:
        raise MalformedError("Tile IR without functions or names")
    texts = _Texts(sections[STRINGS])
    found = [_find_functions(sections[FUNCTIONS], attributes) for attributes in ATTRIBUTES]
    known = [functions for functions in found if functions is not None]
    if len(known) != 1:
        return None
    kernels = [texts.get(number) for number, flags in known[0] if flags & KERNEL]
    others = [texts.get(number) for number, flags in known[0] if not flags & KERNEL]
    return Contents([{"name": name} for name in kernels], [{"name": name} for name in others], 0)


def _iter_sections(view: memoryview) -> list[tuple[int, memoryview]]:
    reader, found = _Reader(view, HEAD), list[tuple[int, memoryview]]()
    while kind := reader.byte():
        size = reader.number()
        if kind & 128:
            reader.align(reader.number())
        found.append((kind & 127, reader.take(size)))
        if len(found) > MAX_SECTIONS:
            raise MalformedError(f"Tile IR with over {MAX_SECTIONS} sections")
    return found


def _find_functions(section: memoryview, attributes: bytes) -> list[tuple[int, int]] | None:
    """Return the index of each function's name, and its flags. Return None if the functions don't have these
    attributes.
    """
    reader, found = _Reader(section), list[tuple[int, int]]()
    with suppress(MalformedError):
        count = reader.number()
        if count > MAX_NAMES:
            return None
        for _ in range(count):
            name, _signature, flags, _location = reader.number(), reader.number(), reader.byte(), reader.number()
            if flags & HINTS or bytes(reader.take(len(attributes))) != attributes:
                return None
            reader.take(reader.number())
            found.append((name, flags))
        rest = bytes(section[reader.at :])
        return found if len(rest) < 8 and not rest.strip(bytes([PADDING])) else None
    return None


class _Texts:
    def __init__(self, section: memoryview) -> None:
        reader = _Reader(section)
        count = reader.number()
        reader.align(4)
        if count > len(section) // 4:
            raise MalformedError("Tile IR with more names than bytes")
        self._starts = struct.unpack(f"<{count}I", reader.take(4 * count))
        self._texts = section[reader.at :]
        self._room = 2 * len(self._texts) + MAX_NAMES  # malicious names may share bytes

    def get(self, number: int) -> str:
        if number >= len(self._starts):
            raise MalformedError("Tile IR with a name that isn't there")
        start = self._starts[number]
        end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self._texts)
        self._room -= end - start
        if not start <= end <= len(self._texts) or self._room < 0:
            raise MalformedError("Tile IR with a name that isn't there")
        return bytes(self._texts[start:end]).decode("utf-8", "surrogateescape")
