"""Sets of registers as bit masks: one per register file, or one number for all of them.

The analyses use one number for all files, so that each instruction costs only a few integer operations. R has the
lowest 256 bits, followed by UR, P, UP and B.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Registers(NamedTuple):
    """Sets of registers: one bit mask per register file."""

    R: int = 0
    UR: int = 0
    P: int = 0
    UP: int = 0
    B: int = 0

    def __or__(self, other: Registers) -> Registers:
        return Registers(*(a | b for a, b in zip(self, other, strict=True)))


class Masks(NamedTuple):
    """The registers that a word reads and writes, including its guard, as masks of all files.

    `keeps` has every register whose old value may survive: all but written registers. A guarded word, or a word that
    isn't `exact`, may write less than it could, so it keeps everything. `exact` says that all modifiers are known, and
    that no register says which predicates are written (R2P PR, R3, R4). Predicates that a mask names (R2P PR, R3, 0x6)
    are kept too, as nvdisasm keeps them.
    """

    reads: int
    writes: int
    keeps: int
    exact: bool


NO_REGISTERS = Registers()
WIDTHS = Registers(256, 256, 8, 8, 16)  # bits per register file in a mask of all files
STARTS = Registers(0, 256, 512, 520, 528)
EVERY_REGISTER = (1 << 255) - 1 | ((1 << 255) - 1) << 256 | 127 << 512 | 127 << 520 | 0xFFFF << 528


def pack(registers: Registers) -> int:
    """Pack sets of registers into one mask."""
    general, uniform, predicates, uniform_predicates, barriers = registers
    return general | uniform << 256 | predicates << 512 | uniform_predicates << 520 | barriers << 528


def unpack(mask: int) -> Registers:
    """Unpack one mask into sets of registers."""
    return Registers(*(mask >> start & (1 << width) - 1 for start, width in zip(STARTS, WIDTHS, strict=True)))


def name_ranges(mask: int) -> str:
    """Return the registers in a mask as text with ranges: R0 R4-R7 P0."""
    names = []
    for file, start, width in zip(Registers._fields, STARTS, WIDTHS, strict=True):
        left = mask >> start & (1 << width) - 1
        while left:
            first = (left & -left).bit_length() - 1
            count = ((~left >> first) & -(~left >> first)).bit_length() - 1
            names.append(f"{file}{first}" if count == 1 else f"{file}{first}-{file}{first + count - 1}")
            left &= -1 << first + count
    return " ".join(names)


def name_registers(mask: int) -> str:
    """Return the registers in a mask as text: R4 R5 P0."""
    names = []
    for file, start, width in zip(Registers._fields, STARTS, WIDTHS, strict=True):
        names += [f"{file}{number}" for number in range(width) if mask >> start + number & 1]
    return " ".join(names)


def union(masks: Iterable[int]) -> int:
    """Return the union of sets of registers."""
    found = 0
    for mask in masks:
        found |= mask
    return found
