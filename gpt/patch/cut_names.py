"""Leave the names of removed kernels in the file, for gpt-hook.

If all code for a device is removed from a fatbin, the driver refuses the whole fatbin, and no call names the kernel
that the program wanted. So in each region from which elements were removed, the payload of one dead element begins with
a block:

    8 bytes   "gpt-cut" and a NUL
    u32       number of kernels in the removed elements, including names that aren't listed
    u32       bytes of the list
    list      names, each followed by a NUL; padded with NULs to a multiple of 8

Loaders skip dead elements, and `strip` doesn't change the section. A block has at most MOST bytes, so a library with
hundreds of regions grows by about 100 kB. runtime/hook/watch/missing.c reads it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from gpt.formats.fatbin import Element
from gpt.formats.source import Source

MAGIC = b"gpt-cut\0"
MOST = 512  # bytes of a block
_HEAD = struct.Struct("<8sII")


def pack(names: Sequence[str], count: int, room: int = MOST) -> bytes:
    """Return a block for `count` kernels, with as many names as fit in `room` bytes.

    It's empty if even the fields before the list don't fit.
    """
    room = min(room, MOST) & ~7
    listed = b""
    for name in names:
        data = name.encode(errors="replace") + b"\0"
        if b"\0" not in data[:-1] and _HEAD.size + len(listed) + len(data) <= room:
            listed += data
    block = _HEAD.pack(MAGIC, count, len(listed)) + listed
    return block.ljust(len(block) + 7 & ~7, b"\0") if listed else b""


def parse(block: bytes) -> tuple[list[str], int]:
    """Return the names in a block and the number of kernels, or nothing if it isn't a block."""
    if len(block) < _HEAD.size or not block.startswith(MAGIC):
        return [], 0
    _, count, size = _HEAD.unpack_from(block)
    names = block[_HEAD.size : min(_HEAD.size + size, MOST)].split(b"\0")[:-1]
    return [name.decode(errors="replace") for name in names], max(count, len(names))


def collect(
    source: Source, elements: Iterable[Element], dead: frozenset[int], kernels: Mapping[int, Sequence[str]]
) -> dict[int, tuple[list[str], int]]:
    """Return, for each region, the names of the kernels that are removed from it, and their number.

    `dead` are the offsets of elements to remove, and `kernels` are their kernels, by offset. The names of elements that
    were removed earlier are in existing blocks.
    """
    lost: dict[int, tuple[dict[str, None], int]] = {}
    for element in elements:
        names: Sequence[str] = ()
        unlisted = 0
        if element.dead:
            names, count = parse(source.pread(element.payload, min(element.payload_size, MOST)))
            unlisted = count - len(names)
        elif element.offset in dead:
            names = kernels.get(element.offset, ())
        if names:
            known, before = lost.get(element.region, ({}, 0))
            lost[element.region] = known | dict.fromkeys(names), max(before, unlisted)
    return {region: (sorted(names), len(names) + unlisted) for region, (names, unlisted) in lost.items()}
