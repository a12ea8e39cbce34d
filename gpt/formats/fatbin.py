"""Fatbins: the container in which nvcc packs code for several GPUs.

A *region* is one container: a header of 16 bytes and then elements, one after the other.

    u32 magic 0xba55ed50 | u16 version 1 | u16 header size 16 | u64 bytes that follow

An *element* is a header of 64 to 128 bytes (a multiple of 8) and a payload:

    u16 kind | u16 0x101 | u32 header size | u64 payload size | u32 compressed size | u32 offset of options
    u16 minor | u16 major | u32 arch | u32 name offset | u32 name length | u64 flags | u64 key | u64 unpacked size

Kind 1 is PTX (major.minor is its `.version`), 2 a cubin, 8 LTO-IR. Kind 0 is what `gpt-patch --mode fill`
leaves of an element: readers, cuobjdump and the driver included, step over it. The compressed size is not 0
exactly when a codec flag is set; the payload is that rounded up to 8, so the unpacked size is always known
before anything is unpacked, and one that lies is found out. The limits below bound what a hostile file costs:
a process that unpacks holds an element packed and unpacked, its names once more, and zstd's window.

Facts from 22,551 elements of 31 public libraries; cuobjdump 13.5 agrees on every byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from gpt.errors import MalformedError
from gpt.formats.source import BLOCK, Source

MAGIC = 0xBA55ED50
MAGIC_BYTES = struct.pack("<I", MAGIC)
REGION = struct.Struct("<IHHQ")
ELEMENT = struct.Struct("<HHIQIIHHIIIQQQ")
KINDS = {1: "ptx", 2: "cubin", 8: "ltoir"}
DEAD = 0  # the kind of an element that was cut out in place
FLAG_LZ4, FLAG_ZSTD, FLAG_A, FLAG_F = 0x2000, 0x8000, 0x100000, 0x200000
CODECS = {0: "none", FLAG_LZ4: "lz4", FLAG_ZSTD: "zstd"}

MAX_HEADER = 4096  # bytes of an element's header; 128 is the most ever seen
MAX_UNPACKED = 256 << 20  # bytes of an element, unpacked or packed; 128 MiB is the most ever seen (nccl)
MAX_REGIONS = MAX_ELEMENTS = 1 << 16  # of one file; 5,666 elements are the most ever seen
MAX_WINDOW = 128 << 20  # bytes of zstd's window
KEPT = MAX_UNPACKED  # bytes of the largest block that is used again and not given back to the kernel
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # mallopt(3)


@dataclass(frozen=True)
class Region:
    """A container at `offset`; `size` counts its header. `offset` is relative to the source it was read from."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """Offset of its end."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Element:
    """An element's header. A bare cubin or PTX file is an element without header (`header_size` 0)."""

    region: int
    offset: int
    type: str
    arch: str
    header_size: int
    payload_size: int
    packed_size: int  # payload without its padding
    size: int  # unpacked
    codec: str
    flags: int

    @property
    def payload(self) -> int:
        """Offset of its payload."""
        return self.offset + self.header_size

    @property
    def end(self) -> int:
        """Offset of its end."""
        return self.payload + self.payload_size

    @property
    def dead(self) -> bool:
        """Whether it was cut out in place."""
        return self.type == "dead"


def iter_regions(source: Source, start: int, end: int) -> Iterator[Region]:
    """The regions between two offsets; zero words between them are padding. Raises MalformedError on others."""
    offset = start
    count = 0
    zeros = REGION.size  # bytes to read where zeros stand: more and more
    while offset + REGION.size <= end:
        head = source.pread(offset, REGION.size)
        if head[:8] == bytes(8):
            zeros = min(2 * zeros, BLOCK)
            block = source.pread(offset, min(zeros, end - offset))
            offset += max(8, len(block) - len(block.lstrip(b"\0")) & ~7)
            continue
        zeros = REGION.size
        magic, version, header_size, size = REGION.unpack(head)
        if magic != MAGIC:
            raise MalformedError("no fatbin region here", source.at(offset))
        if version != 1 or header_size != REGION.size:
            raise MalformedError(f"fatbin region of version {version} is not known", source.at(offset))
        if size > end - offset - header_size:
            raise MalformedError("fatbin region ends beyond its container", source.at(offset))
        count += 1
        if count > MAX_REGIONS:
            raise MalformedError(f"over {MAX_REGIONS} fatbin regions", source.at(offset))
        yield Region(offset, header_size + size)
        offset += header_size + size
    if any(source.pread(offset, end - offset)):
        raise MalformedError("no fatbin region here", source.at(offset))


def iter_elements(source: Source, region: Region) -> Iterator[Element]:
    """The elements of a region, dead ones included. Raises MalformedError where a header makes no sense."""
    offset = region.offset + REGION.size
    while offset < region.end:
        if offset + ELEMENT.size > region.end:
            raise MalformedError("fatbin element ends beyond its region", source.at(offset))
        element = _parse_element(source, region.offset, offset)
        if element.end > region.end:
            raise MalformedError("fatbin element ends beyond its region", source.at(offset))
        yield element
        offset = element.end


def _parse_element(source: Source, region: int, offset: int) -> Element:
    (kind, _, header_size, payload_size, compressed, _, _, _, arch, _, _, flags, _, unpacked) = ELEMENT.unpack(
        source.pread(offset, ELEMENT.size)
    )
    where = source.at(offset)
    if not ELEMENT.size <= header_size <= MAX_HEADER:
        raise MalformedError(f"fatbin element with a header of {header_size} bytes", where)
    codec = CODECS.get(flags & (FLAG_LZ4 | FLAG_ZSTD))
    if codec is None:
        raise MalformedError(f"unsupported compression flags {flags:#x}", where)
    if codec == "none":
        packed = unpacked = payload_size
    else:
        packed = compressed
        if not packed <= payload_size:
            raise MalformedError("fatbin element is compressed to more than its payload", where)
    if max(packed, unpacked) > MAX_UNPACKED and kind != DEAD:
        raise MalformedError(f"element of {max(packed, unpacked)} bytes; the limit is {MAX_UNPACKED}", where)
    type_ = "dead" if kind == DEAD else KINDS.get(kind, f"unknown:{kind}")
    suffix = "a" if flags & FLAG_A else "f" if flags & FLAG_F else ""
    return Element(
        region, offset, type_, f"sm_{arch}{suffix}", header_size, payload_size, packed, unpacked, codec, flags
    )


def dead_header(head: bytes) -> bytes:
    """The header that readers step over in place of `head`: same sizes of header and payload, same architecture.

    cuobjdump wants an architecture that it knows of every element, of these too.
    """
    _, mark, header_size, payload_size, *_, arch, _, _, _, _, _ = ELEMENT.unpack_from(head)
    dead = ELEMENT.pack(DEAD, mark, header_size, payload_size, 0, 0, 0, 0, arch, 0, 0, 0, 0, 0)
    return dead.ljust(len(head), b"\0")


def dead_element(head: bytes, size: int) -> bytes:
    """The header of a dead element of `size` bytes in all, after one whose header is `head`."""
    dead = bytearray(dead_header(head)[: ELEMENT.size])
    struct.pack_into("<IQ", dead, 4, ELEMENT.size, size - ELEMENT.size)
    return bytes(dead)


class Unpacker:
    """Unpacks elements into one buffer that is used again: what `unpack` returned lives until the next call.

    Raises MalformedError where the data is corrupt or its size a lie.
    """

    def __init__(self) -> None:
        import zstandard

        self._zstd = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        self._error = zstandard.ZstdError
        self._packed = bytearray()
        self._buffer = bytearray()

    def unpack(self, source: Source, element: Element) -> memoryview:
        """The unpacked payload, `element.size` bytes. PTX ends with a NUL, as it is stored."""
        return memoryview(self.expand(self.read(source, element), source, element))

    def read(self, source: Source, element: Element) -> memoryview:
        """The payload as it is stored."""
        if len(self._packed) < element.packed_size:
            self._packed = bytearray(element.packed_size)
        packed = memoryview(self._packed)[: element.packed_size]
        source.pread_into(element.payload, packed)
        return packed

    def expand(self, packed: memoryview, source: Source, element: Element) -> bytes | memoryview:
        """What the stored payload of an element of `source` unpacks to."""
        if element.codec == "none":
            return packed
        try:
            return self._lz4(packed, element) if element.codec == "lz4" else self._unzstd(packed, element)
        except (ValueError, RuntimeError, MemoryError, self._error) as error:
            raise MalformedError(
                f"{element.codec} data of {element.packed_size} bytes does not unpack to {element.size}: {error}",
                source.at(element.offset),
            ) from None

    def _lz4(self, packed: memoryview, element: Element) -> bytes:
        import lz4.block

        _keep_memory()
        try:
            data: bytes = lz4.block.decompress(packed, uncompressed_size=element.size)
        except lz4.block.LZ4BlockError as error:
            raise ValueError(error) from None
        if len(data) != element.size:
            raise ValueError(f"{len(data)} bytes came out")
        return data

    def _unzstd(self, packed: memoryview, element: Element) -> memoryview:
        if len(self._buffer) < element.size + 1:
            self._buffer = bytearray(element.size + 1)
        out = memoryview(self._buffer)[: element.size + 1]
        with self._zstd.stream_reader(packed) as reader:
            done = reader.readinto(out)  # all of it in one call: it ends where the buffer or the frame does
        if done != element.size:
            raise ValueError(f"{done} bytes came out" if done < element.size else "more came out")
        return out[:done]


@cache
def _keep_memory() -> None:
    """Has glibc use again what python-lz4 frees, which knows no buffer to unpack into.

    Each block would be mapped anew, and the kernel's zeroing of its pages takes nearly as long as unpacking into it.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    mallopt(M_MMAP_THRESHOLD, KEPT)
    mallopt(M_TRIM_THRESHOLD, 2 * KEPT)
