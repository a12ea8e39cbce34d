"""LLVM offload binaries: images for devices that clang writes to the section `.llvm.offloading` of object files.

All numbers are little-endian, and offsets are from the first byte of the binary. A section can have several binaries,
each at a multiple of 8 (llvm/Object/OffloadBinary.h):

    header   10 ff 10 ad, u32 version, u64 size of all, u64 offset of the entries,
             u64 (version 1) their size or (2) count
    entry    u16 kind of the image, u16 producer, u32 flags (1: no image), u64 offset and number of its strings,
             u64 offset and size of the image
    string   u64 offset of the key, u64 offset of the value, and in version 2 u64 size of the value

The strings "triple" and "arch" identify the target of an image. Clang's linker wrapper converts the images in object
files to cubins and fatbins, so a linked program has a `.nv_fatbin`, like one from nvcc.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.formats.source import Source

MAGIC = b"\x10\xff\x10\xad"
SECTION = ".llvm.offloading"
HEADER = struct.Struct("<4sIQQQ")
ENTRY = struct.Struct("<HHIQQQQ")
STRINGS = {1: struct.Struct("<QQ"), 2: struct.Struct("<QQQ")}  # by version
KINDS = ("image without a kind", "object", "bitcode", "cubin", "fatbin", "PTX", "SPIR-V")
PRODUCERS = {1: "OpenMP", 2: "CUDA", 3: "HIP", 4: "HIP", 8: "SYCL"}  # HIP was 3 before LLVM 21
NO_IMAGE = 1
MAX_ENTRIES, MAX_STRINGS, MAX_TEXT = (
    1 << 12,
    1 << 6,
    1 << 8,
)  # limits: entries of a range, strings of an entry, and their bytes, because strings may overlap


class OffloadImage(NamedTuple):
    """An image at `offset` in the source, with the facts from its entry."""

    kind: str
    producer: str
    triple: str
    arch: str
    offset: int
    size: int


def iter_images(source: Source, start: int, end: int) -> Iterator[OffloadImage]:
    """Yield the images in all offload binaries in a range. Raises MalformedError."""
    room = MAX_ENTRIES
    while start + HEADER.size <= end:
        magic, version, size, entries, count = HEADER.unpack(source.pread(start, HEADER.size))
        if magic != MAGIC:
            if any(source.pread(start, end - start)):
                raise MalformedError("no offload binary where one should begin", source.at(start))
            return
        if version not in STRINGS:
            known = " and ".join(map(str, STRINGS))
            raise MalformedError(f"offload binary of version {version}: {known} are read", source.at(start))
        count = 1 if version == 1 else count
        if not HEADER.size <= size <= end - start or entries + count * ENTRY.size > size:
            raise MalformedError("offload binary that does not fit its header", source.at(start))
        room -= max(count, 1)
        if room < 0:
            raise MalformedError(f"over {MAX_ENTRIES} images in offload binaries", source.at(start))
        binary = source.sub(start, size)
        for fields in ENTRY.iter_unpack(binary.pread(entries, count * ENTRY.size)):
            kind, producer, flags, strings, number, offset, length = fields
            if flags & NO_IMAGE:
                continue
            if offset + length > size or number > MAX_STRINGS:
                raise MalformedError("image beyond the end of its offload binary", source.at(start))
            texts = dict(_iter_strings(binary, strings, number, STRINGS[version]))
            yield OffloadImage(
                KINDS[kind] if kind < len(KINDS) else f"image of kind {kind}",
                PRODUCERS.get(producer, "an unknown producer"),
                texts.get("triple", ""),
                texts.get("arch", ""),
                start + offset,
                length,
            )
        start += size + -size % 8


def _iter_strings(binary: Source, offset: int, number: int, layout: struct.Struct) -> Iterator[tuple[str, str]]:
    for key, value, *size in layout.iter_unpack(binary.pread(offset, number * layout.size)):
        yield _text(binary, key, None), _text(binary, value, size[0] if size else None)


def _text(binary: Source, offset: int, size: int | None) -> str:
    data = binary.pread(offset, min(MAX_TEXT if size is None else size, MAX_TEXT, max(0, binary.size - offset)))
    return (data if size is not None else data.partition(b"\0")[0]).decode(errors="backslashreplace")


def describe(images: list[OffloadImage]) -> str:
    """Return a list of the images as text: `2 bitcode of OpenMP for nvptx64-nvidia-cuda sm_90`."""
    kinds = Counter(
        f"{image.kind} of {image.producer} for {' '.join(filter(None, (image.triple, image.arch))) or 'no target'}"
        for image in images
    )
    return ", ".join(f"{count} {kind}" for kind, count in kinds.items())
