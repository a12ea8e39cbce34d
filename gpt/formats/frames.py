"""Find cubins that a library packs itself: zstd frames with one cubin each, as in cuBLASLt's `.ldata`.

A frame (RFC 8878) begins with a magic number and a header, which may include the unpacked size. Then come blocks: u24
`last (1 bit) | type (2 bits) | size`, followed by that many bytes (a single one for type RLE). After the last block,
there may be a checksum. So the headers of the blocks are enough to find the end of a frame. Its first 64 unpacked bytes
show whether it's a cubin: the size computed from the ELF header must be equal to the frame's. All 387 frames in
cuBLASLt 13.1 are at multiples of 32, with zeros between them, include their size, and contain one cubin. Nothing around
them says which device a frame is for, so the library must get this from the cubin, or from tables of its own.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.formats import cubin, elf, fatbin
from gpt.formats.source import Source

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_HEADER = 18
RAW, RLE, PACKED = range(3)
CHECKSUM = 4  # bytes
MAX_BLOCK = 1 << 17  # a block unpacks to at most this many bytes
START, COST = 1 << 14, 1 << 8  # starting an unpacker, and reading a block's header, cost as much as this many bytes
MEAN_BLOCK = 8192  # average size of an unpacked block is at least this; the minimum that we've seen is 33,868


class FrameHeader(NamedTuple):
    """The header of a frame: its own size, the size of the unpacked data, and whether there's a checksum."""

    header_size: int
    size: int
    checksum: bool

    @property
    def blocks(self) -> int:
        """The maximum number of blocks that are read in search of the end."""
        return 2 + self.size // MEAN_BLOCK

    @property
    def cost(self) -> int:
        """The maximum cost of checking whether the frame contains a cubin, in bytes read or unpacked."""
        return START + COST * self.blocks + min(self.size, MAX_BLOCK)


def find_frame(source: Source, offset: int) -> FrameHeader | None:
    """Return the frame at `offset`, or None if there's no frame that can contain a cubin."""
    import zstandard

    head = source.pread(offset, min(MAX_HEADER, source.size - offset))
    try:
        found = zstandard.get_frame_parameters(head)
        frame = FrameHeader(zstandard.frame_header_size(head), found.content_size, found.has_checksum)
    except zstandard.ZstdError:
        return None
    if found.window_size > fatbin.MAX_WINDOW or found.dict_id:
        return None
    return frame if elf.EHDR_SIZE <= frame.size <= fatbin.MAX_UNPACKED else None  # if it isn't given, it's 2^64 - 1


def parse_cubin(source: Source, offset: int, frame: FrameHeader) -> fatbin.Element:
    """Return the cubin in a frame. Raises MalformedError if there's none in it, or if the frame has no end."""
    packed = _end(source, offset, frame) - offset
    head = _unpack_head(source.sub(offset, packed))
    is_cubin = len(head) == elf.EHDR_SIZE and elf.MACHINES.get(elf.machine_of(head) or 0) == "cuda"
    if not is_cubin or cubin.size_of_image(head) != frame.size:
        raise MalformedError("frame without a cubin", source.at(offset))
    return fatbin.Element(offset, offset, "cubin", cubin.arch_of(head), 0, packed, packed, frame.size, "zstd", 0)


def _end(source: Source, offset: int, frame: FrameHeader) -> int:
    position = offset + frame.header_size
    for _ in range(frame.blocks):
        block = int.from_bytes(source.pread(position, 3), "little")
        kind, length = block >> 1 & 3, block >> 3
        if kind > PACKED:
            break
        position += 3 + (1 if kind == RLE else length)
        if block & 1:
            return position + (CHECKSUM if frame.checksum else 0)
    raise MalformedError("frame without an end", source.at(offset))


def _unpack_head(frame: Source) -> bytes:
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=fatbin.MAX_WINDOW)
    try:
        with unpacker.stream_reader(frame.open()) as reader:
            head: bytes = reader.read(elf.EHDR_SIZE)
            return head
    except (zstandard.ZstdError, MemoryError):
        return b""
