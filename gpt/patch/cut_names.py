"""Names of kernels that were cut, left in the file for gpt-hook.

When all code for a device is cut from a fatbin, the driver refuses the fatbin as a whole, and no call names the kernel
that the program wanted. So the payload of one dead element of each region that lost an element begins with a block:

    8 bytes   "gpt-cut" and a NUL
    u32       how many kernels its elements had, names that are not listed included
    u32       bytes of the list
    list      names, each ended by a NUL; padded with NULs to a multiple of 8

Loaders step over dead elements, and `strip` leaves the section alone. A block takes at most MOST bytes, so that a
library of hundreds of regions grows by some 100 kB. runtime/hook/watch/missing.c reads it.
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
    """Return the block for some of `count` names, as many as fit into `room` bytes; empty if it has no room."""
    room = min(room, MOST) & ~7
    listed = b""
    for name in names:
        data = name.encode(errors="replace") + b"\0"
        if b"\0" not in data[:-1] and _HEAD.size + len(listed) + len(data) <= room:
            listed += data
    block = _HEAD.pack(MAGIC, count, len(listed)) + listed
    return block.ljust(len(block) + 7 & ~7, b"\0") if listed else b""


def parse(block: bytes) -> tuple[list[str], int]:
    """Return the names of a block and how many there were; none of what is no block."""
    if len(block) < _HEAD.size or not block.startswith(MAGIC):
        return [], 0
    _, count, size = _HEAD.unpack_from(block)
    names = block[_HEAD.size : min(_HEAD.size + size, MOST)].split(b"\0")[:-1]
    return [name.decode(errors="replace") for name in names], max(count, len(names))


def collect(
    source: Source, elements: Iterable[Element], dead: frozenset[int], kernels: Mapping[int, Sequence[str]]
) -> dict[int, tuple[list[str], int]]:
    """Return, by region, the names of kernels that it has lost, and how many these are.

    `dead` are the offsets of elements that go, `kernels` the kernels of elements by offset. Those of elements that
    went earlier are read from their blocks.
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
