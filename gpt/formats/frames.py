"""Cubins that a library packs by itself: zstd frames that hold one each, as cuBLASLt keeps them in `.ldata`.

A frame (RFC 8878) begins with a magic number and a header, which may say the unpacked size, and goes on with blocks:
u24 `last (1 bit) | type (2 bits) | size`, then that many bytes (one, where the type is RLE). A checksum may follow
the last. So its end is known from block headers alone, and the first 64 bytes that it unpacks to tell whether it is
a cubin: the size that the ELF header comes to is the one that the frame states. Facts: 387 frames of cuBLASLt
13.1, each at a multiple of 32 with zeros between, state their size and hold one cubin; nothing around them says
which device a frame is for, so the library must go by the cubin, or by tables of its own.
"""

from __future__ import annotations

from gpt.errors import MalformedError
from gpt.formats import cubin, elf, fatbin
from gpt.formats.source import Source

MAGIC = b"\x28\xb5\x2f\xfd"
MAX_HEADER = 18
RAW, RLE, PACKED = range(3)
CHECKSUM = 4  # bytes
MEAN_BLOCK = 1024  # bytes that a block unpacks to, at least on the average; a hostile file has empty ones


def find_size(source: Source, offset: int) -> tuple[int, int] | None:
    """Sizes of the frame at `offset`, packed and unpacked; None where that is none that could hold a cubin."""
    import zstandard

    head = source.pread(offset, min(MAX_HEADER, source.size - offset))
    try:
        found = zstandard.get_frame_parameters(head)
        position = offset + zstandard.frame_header_size(head)
    except zstandard.ZstdError:
        return None
    size = found.content_size  # 2^64 - 1 where it is not stated
    if not elf.EHDR_SIZE <= size <= fatbin.MAX_UNPACKED or found.window_size > fatbin.MAX_WINDOW or found.dict_id:
        return None
    for _ in range(2 + size // MEAN_BLOCK):
        if position + 3 > source.size:
            return None
        block = int.from_bytes(source.pread(position, 3), "little")
        kind, length = block >> 1 & 3, block >> 3
        if kind > PACKED:
            return None
        position += 3 + (1 if kind == RLE else length)
        if block & 1:
            position += CHECKSUM if found.has_checksum else 0
            return (position - offset, size) if position <= source.size else None
    return None


def unpack_head(source: Source, offset: int, sizes: tuple[int, int]) -> bytes:
    """The ELF header of the cubin in a frame of these sizes. Raises MalformedError where none is in it."""
    import zstandard

    unpacker = zstandard.ZstdDecompressor(max_window_size=fatbin.MAX_WINDOW)
    try:
        with unpacker.stream_reader(source.sub(offset, sizes[0]).open()) as reader:
            head: bytes = reader.read(elf.EHDR_SIZE)
    except (zstandard.ZstdError, MemoryError):
        head = b""
    is_cubin = len(head) == elf.EHDR_SIZE and elf.MACHINES.get(elf.machine_of(head) or 0) == "cuda"
    if not is_cubin or cubin.size_of_image(head) != sizes[1]:
        raise MalformedError("frame that holds no cubin", source.at(offset))
    return head
