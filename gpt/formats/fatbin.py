"""Read fatbins, the container in which nvcc packs code for several GPUs.

A *region* is one container: a header of 16 bytes, followed by elements.

    u32 magic 0xba55ed50 | u16 version 1 | u16 header size 16 | u64 bytes that follow

An *element* is a header of 64 to 128 bytes (a multiple of 8) and a payload:

    u16 kind | u16 0x101 | u32 header size | u64 payload size | u32 compressed size | u32 offset of options
    u16 minor | u16 major | u32 arch | u32 name offset | u32 name length | u64 flags | u64 key | u64 unpacked size

Kind 1 is PTX (major.minor is its `.version`), 2 a cubin, 8 LTO-IR, 128 Tile IR (tileir.py). `gpt-patch --mode fill`
changes the kind of dead elements to 0, which all readers skip, including cuobjdump and the driver. The compressed size
is nonzero if, and only if, the flag of a codec is set; the payload is then that size, rounded up to a multiple of 8. So
the unpacked size is known before unpacking, and a wrong one is detected. The limits below bound what a malicious file
can cost: a process that unpacks needs memory for one element, packed and unpacked, its names, and the window of zstd.

We learned these facts from 22,551 elements in 31 public libraries. cuobjdump 13.5 agrees with us about every byte.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from gpt.base.errors import MalformedError
from gpt.formats.source import BLOCK, Source

MAGIC = 0xBA55ED50
MAGIC_BYTES = struct.pack("<I", MAGIC)
REGION = struct.Struct("<IHHQ")
ELEMENT = struct.Struct("<HHIQIIHHIIIQQQ")
KINDS = {1: "ptx", 2: "cubin", 8: "ltoir", 128: "tileir"}
DEAD = 0  # the kind of an element that was removed in place
FLAG_LZ4, FLAG_ZSTD, FLAG_A, FLAG_F = 0x2000, 0x8000, 0x100000, 0x200000
CODECS = {0: "none", FLAG_LZ4: "lz4", FLAG_ZSTD: "zstd"}

MAX_HEADER = 4096  # bytes of an element's header; the maximum that we've seen is 128
MAX_UNPACKED = 256 << 20  # bytes of an element, unpacked or packed; the maximum that we've seen is 128 MiB (nccl)
READ = 1 << 15  # bytes to read at once when only the first ones are needed
MAX_REGIONS = MAX_ELEMENTS = 1 << 16  # in a file; the maximum that we've seen is 5,666 elements
MAX_WINDOW = 128 << 20  # bytes of the window of zstd
HEADS = [1 << 16, 1 << 18, 1 << 20, 4 << 20]  # try unpacking this many bytes first: they usually contain all names


class Region(NamedTuple):
    """A container. `offset` is relative to the source from which it was read. `size` includes its header."""

    offset: int
    size: int

    @property
    def end(self) -> int:
        """Offset of its end."""
        return self.offset + self.size


class Element(NamedTuple):
    """The header of an element. A cubin or PTX file that isn't in a fatbin is an element without header (`header_size`
    0).
    """

    region: int
    offset: int
    type: str
    arch: str
    header_size: int
    payload_size: int
    packed_size: int  # size of the payload without padding
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
        """True if the element was removed in place."""
        return self.type == "dead"


def iter_regions(source: Source, start: int, end: int) -> Iterator[Region]:
    """Yield the regions between two offsets. There may be words of zeros between them. Raises MalformedError for other
    words.
    """
    offset = start
    count = 0
    zeros = REGION.size  # bytes to read in a sequence of zeros, increasing
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
            raise MalformedError("not a fatbin region", source.at(offset))
        if version != 1 or header_size != REGION.size:
            raise MalformedError(f"unknown version {version} of a fatbin region", source.at(offset))
        if size > end - offset - header_size:
            raise MalformedError("fatbin region ends beyond its container", source.at(offset))
        count += 1
        if count > MAX_REGIONS:
            raise MalformedError(f"over {MAX_REGIONS} fatbin regions", source.at(offset))
        yield Region(offset, header_size + size)
        offset += header_size + size
    if any(source.pread(offset, end - offset)):
        raise MalformedError("not a fatbin region", source.at(offset))


def iter_elements(source: Source, region: Region) -> Iterator[Element]:
    """Yield the elements of a region, including dead ones. Raises MalformedError if a header is invalid."""
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
            raise MalformedError("fatbin element with compressed data longer than its payload", where)
    if max(packed, unpacked) > MAX_UNPACKED and kind != DEAD:
        raise MalformedError(f"element of {max(packed, unpacked)} bytes; the limit is {MAX_UNPACKED}", where)
    type_ = "dead" if kind == DEAD else KINDS.get(kind, f"unknown:{kind}")
    suffix = "a" if flags & FLAG_A else "f" if flags & FLAG_F else ""
    return Element(
        region, offset, type_, f"sm_{arch}{suffix}", header_size, payload_size, packed, unpacked, codec, flags
    )


def with_codec(flags: int, codec: str) -> int:
    """Return the flags of an element that has been packed again with another codec."""
    return flags & ~(FLAG_LZ4 | FLAG_ZSTD) | next(flag for flag, name in CODECS.items() if name == codec)


def dead_header(head: bytes) -> bytes:
    """Return a header that readers skip, to replace `head`. The sizes of header and payload, and the architecture, stay
    the same.

    Even here, cuobjdump expects an architecture that it knows.
    """
    _, mark, header_size, payload_size, *_, arch, _, _, _, _, _ = ELEMENT.unpack_from(head)
    dead = ELEMENT.pack(DEAD, mark, header_size, payload_size, 0, 0, 0, 0, arch, 0, 0, 0, 0, 0)
    return dead.ljust(len(head), b"\0")


def dead_element(head: bytes, size: int) -> bytes:
    """Return a header, derived from `head`, for a dead element that takes `size` bytes, header included."""
    dead = bytearray(dead_header(head)[: ELEMENT.size])
    struct.pack_into("<IQ", dead, 4, ELEMENT.size, size - ELEMENT.size)
    return bytes(dead)


class _Room:
    """Memory that's reused, because mapping and zeroing new pages takes as long as unpacking into them."""

    def __init__(self) -> None:
        self._pages: mmap.mmap | bytearray = bytearray()

    def take(self, size: int) -> memoryview:
        if len(self._pages) < size:
            self._pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError, AttributeError):  # some kernels don't support this
                self._pages.madvise(mmap.MADV_HUGEPAGE)
        return memoryview(self._pages)[:size]


class Unpacker:
    """Unpacks elements into one buffer, which is reused: the result of `unpack` is valid until the next call.

    Raises MalformedError if the data is corrupt, or doesn't have the size that it claims to have.
    """

    def __init__(self) -> None:
        import zstandard

        self._zstd = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)
        self._error = zstandard.ZstdError
        self._packed = _Room()
        self._unpacked = _Room()

    def unpack(self, source: Source, element: Element) -> memoryview:
        """Return the unpacked payload, which has `element.size` bytes. The NUL at the end of PTX is part of it."""
        return memoryview(self.expand(self.read(source, element), source, element))

    def read(self, source: Source, element: Element) -> memoryview:
        """Return the payload as it's stored."""
        packed = self._packed.take(element.packed_size)
        source.pread_into(element.payload, packed)
        return packed

    def expand(self, packed: memoryview, source: Source, element: Element) -> bytes | memoryview:
        """Unpack the stored payload of an element."""
        if element.codec == "none":
            return packed
        try:
            return self._lz4(packed, element) if element.codec == "lz4" else self._unzstd(packed, element)
        except (ValueError, RuntimeError, MemoryError, self._error) as error:
            raise MalformedError(
                f"{element.codec} data of {element.packed_size} bytes does not unpack to {element.size}: {error}",
                source.at(element.offset),
            ) from None

    def iter_heads(self, source: Source, element: Element) -> Iterator[memoryview]:
        """Unpack the beginning of an element. For each size in HEADS, up to half of the element, yield that many bytes.

        No more of the payload is read than necessary. Ends where the payload is corrupt; `unpack` says why.
        """
        sizes = [size for size in HEADS if size <= element.size // 2]
        out = self._unpacked.take(max(sizes, default=0))
        with suppress(ValueError, RuntimeError, MemoryError, self._error):
            for done in self._iter_done(source, element, out, sizes):
                yield out[:done]

    def _iter_done(self, source: Source, element: Element, out: memoryview, sizes: list[int]) -> Iterator[int]:
        """Unpack an element, and yield each of these sizes as soon as that many bytes have been unpacked."""
        packed = source.sub(element.payload, element.packed_size)
        if element.codec == "zstd":
            with packed.open() as file, self._zstd.stream_reader(file, read_size=READ) as reader:
                done = 0
                for size in sizes:
                    done += reader.readinto(out[done:size])
                    if done < size:
                        return
                    yield done
        elif sizes and (library := _liblz4()):
            part = memoryview(b"")
            for size in sizes:
                # packing makes incompressible data longer by this much
                most = (size if size == HEADS[0] else sizes[-1]) + element.size // 255 + 16
                if len(part) < min(most, packed.size):
                    part = self._packed.take(min(most, packed.size))
                    packed.pread_into(0, part)
                if library.LZ4_decompress_safe_partial(*_addresses(part, out), len(part), size, size) < size:
                    return
                yield size

    def _lz4(self, packed: memoryview, element: Element) -> bytes | memoryview:
        if library := _liblz4():
            out = self._unpacked.take(element.size)
            done = (
                library.LZ4_decompress_safe(*_addresses(packed, out), len(packed), len(out)) if out and packed else -1
            )
            if done != element.size:
                raise ValueError(f"{done} bytes unpacked" if done >= 0 else "corrupt, or it unpacks to more")
            return out
        import lz4.block

        try:
            data: bytes = lz4.block.decompress(packed, uncompressed_size=element.size)
        except lz4.block.LZ4BlockError as error:
            raise ValueError(error) from None
        if len(data) != element.size:
            raise ValueError(f"{len(data)} bytes unpacked")
        return data

    def _unzstd(self, packed: memoryview, element: Element) -> memoryview:
        out = self._unpacked.take(element.size + 1)
        with self._zstd.stream_reader(packed) as reader:
            done = reader.readinto(out)  # in a single call, which ends with the buffer or the frame
        if done != element.size:
            raise ValueError(f"{done} bytes unpacked" if done < element.size else "it unpacks to more")
        return out[:done]


@cache
def _liblz4() -> Any:
    """Return the C library in python-lz4, or None if it's missing. Its Python functions can't unpack into a buffer.

    A new block for each element would have to be mapped, and zeroing its pages takes nearly as long as unpacking.
    """
    import ctypes

    import lz4.block._block

    try:
        library = ctypes.CDLL(lz4.block._block.__file__)
        library.LZ4_decompress_safe.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int] * 2
        library.LZ4_decompress_safe_partial.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int] * 3
    except (OSError, AttributeError):
        return None
    return library


def _addresses(*buffers: memoryview) -> Iterator[int]:
    """Yield the addresses of writable buffers."""
    import ctypes

    return (ctypes.addressof(ctypes.c_char.from_buffer(buffer)) for buffer in buffers)
