"""Measure the minimal cost of reading a library's kernels: find and decompress every element, and do nothing else.

    python tests/bench/unpack.py [-j N] FILE

This is the lower bound for gpt-extract. It shares no code with gpt/, only zstandard and lz4, and uses the fastest known
method that needs no more memory: headers are walked in a mapping; each thread takes the next element, reads it into one
reused buffer and decompresses it into another. (Reading from a mapping would be 5 % faster, but would keep the whole
library resident.) Only sizes are checked, and no names are read.
"""

from __future__ import annotations

import mmap
import os
import struct
import sys
from collections.abc import Iterable, Iterator
from threading import Thread
from typing import NamedTuple

LZ4, ZSTD = 0x2000, 0x8000  # flags of an element


class Packed(NamedTuple):
    """An element: where its payload is, how it's compressed, and its decompressed size."""

    start: int
    end: int
    codec: int
    size: int


def iter_sections(file: mmap.mmap) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each fatbin section of an ELF file."""
    (shoff,) = struct.unpack_from("<Q", file, 40)
    shnum, shstrndx = struct.unpack_from("<HH", file, 60)
    heads = [struct.unpack_from("<IIQQQQ", file, shoff + 64 * i) for i in range(shnum)]
    names = heads[shstrndx][4]
    for name, _, _, _, offset, size in heads:
        if file[names + name : file.find(b"\0", names + name)] in (b".nv_fatbin", b"__nv_relfatbin"):
            yield offset, offset + size


def iter_elements(file: mmap.mmap, offset: int, end: int) -> Iterator[Packed]:
    """Yield the elements of a section, region by region."""
    while offset + 16 <= end:
        magic, _, header_size, size = struct.unpack_from("<IHHQ", file, offset)
        if magic == 0:  # padding
            offset += 8
            continue
        assert magic == 0xBA55ED50, hex(offset)
        offset += header_size
        region_end = offset + size
        while offset < region_end:
            _, _, header_size, payload, packed = struct.unpack_from("<HHIQI", file, offset)
            flags, _, unpacked = struct.unpack_from("<QQQ", file, offset + 40)
            codec, start = flags & (LZ4 | ZSTD), offset + header_size
            offset = start + payload
            yield Packed(start, start + packed, codec, unpacked) if codec else Packed(start, offset, 0, payload)


def unpack(file: int, elements: Iterable[Packed]) -> None:
    """Decompress elements taken from `elements`, which the threads share."""
    import zstandard

    zstd, packed, buffer = zstandard.ZstdDecompressor(), bytearray(), bytearray()
    for start, end, codec, size in elements:
        if len(packed) < end - start:
            packed = bytearray(end - start)
        data = memoryview(packed)[: end - start]
        os.preadv(file, [data], start)
        if codec == LZ4:
            import lz4.block

            done = len(lz4.block.decompress(data, uncompressed_size=size))
        elif codec == ZSTD:
            if len(buffer) < size:
                buffer = bytearray(size)
            with zstd.stream_reader(data) as reader:
                done = reader.readinto(memoryview(buffer)[:size])
        else:
            done = end - start
        assert done == size, f"{done} bytes unpacked of {size}"


def main(jobs: int, path: str) -> None:
    """Unpack a library with this many threads."""
    with open(path, "rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as file:
        # A list's iterator hands each element to one thread only.
        shared = iter([element for section in iter_sections(file) for element in iter_elements(file, *section)])
        threads = [Thread(target=unpack, args=(opened.fileno(), shared)) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    options = sys.argv[1:]
    number = int(options[1]) if options[0] == "-j" else len(os.sched_getaffinity(0))
    main(number, options[-1])
