"""Operands of a word, as functions that get their values from a warp.

Our own tables give the position and file of register numbers. This module adds which of them is the second and the
third operand, and where their signs are. The upper three bits of an opcode are its form:

    1   the registers at 24, 32 and 64, in this order
    2   24, 64, and a constant of 32 bits at 32 as the third operand
    4   24, the constant at 32, 64
    6   24, a uniform register at 32, 64
    7   24, 64, and a uniform register at 32 as the third operand

A minus sign is one bit above or below the bit for the absolute value: 72 and 73 for the register at 24, 63 and 62 at
32, 75 and 74 at 64. All forms and signs were found by flipping single bits of words that ptxas generated for our
kernels, and disassembling them with nvdisasm.

An instruction of the uniform datapath works the same with a single lane: its registers are arrays of one element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt.sass.tables import Opcode, Table
from gpt.sass.words import bits

if TYPE_CHECKING:
    from tests.sass.interp.machine import Warp

Array = npt.NDArray[Any]
Fetch = Callable[["Warp"], Array]
Run = Callable[["Warp", Array], None]  # the array is a mask of the active lanes
Maker = Callable[["Word"], Run]

OPERATIONS: dict[str, Maker] = {}
HAS_UNIFORM = 91  # set in any word with a uniform register
NEGATED = {24: 72, 32: 63, 64: 75}
ABSOLUTE = {24: 73, 32: 62, 64: 74}
_SLOTS = {"a": 24, "b": 32, "c": 64}
_WIDTHS = {"R": 8, "P": 3, "UP": 3, "B": 4}


class Unimplemented(NotImplementedError):
    """Raised for an instruction, or a form of it, that the interpreter doesn't know."""


def mask_of(*places: int | tuple[int, int]) -> int:
    """Return a mask with these bits and bit ranges (first, last)."""
    mask = 0
    for place in places:
        first, last = place if isinstance(place, tuple) else (place, place)
        mask |= (1 << last + 1) - (1 << first)
    return mask


def operation(*names: str) -> Callable[[Maker], Maker]:
    """Return the name of an instruction's operation."""

    def add(maker: Maker) -> Maker:
        OPERATIONS.update(dict.fromkeys(names, maker))
        return maker

    return add


class Word:
    """An instruction being decoded."""

    def __init__(self, word: int, entry: Opcode, table: Table) -> None:
        self.word = word
        self.entry = entry
        self.name = entry.name
        self.form = entry.number >> 9
        self.operation = entry.number & 0x1FF
        self.uniform_bits = table.arch.uniform_bits
        named = [one for one in entry.operands if one.writes.of(word) or one.reads.of(word)]
        self.places = {one.low: one for one in named if one.file in ("R", "UR") and one.low is not None}
        self.predicates = {one.low: one for one in named if one.file in ("P", "UP") and one.low is not None}
        self.looked = 1 << HAS_UNIFORM  # bits that some code has looked at
        self.uniform = 12 in self.predicates and self.predicates[12].file == "UP"

    def refuse(self, why: str) -> Unimplemented:
        """Return the exception for an unknown form."""
        return Unimplemented(f"{self.name} ({self.entry.number:03x}) {self.word:032x}: {why}")

    def check(self) -> None:
        """Raise Unimplemented if a bit is set that no code has looked at."""
        known = self.looked | (1 << 40) - 1
        for one in self.entry.operands:
            if one.low is not None and one.file in ("P", "UP"):
                known |= 15 << one.low  # with its sign
            elif one.low is not None:
                known |= (1 << _WIDTHS.get(one.file, self.uniform_bits)) - 1 << one.low
        for place in (77, 81, 84, 87):  # an unused predicate is PT
            if bits(self.word, place, 3) == 7:
                known |= 15 << place
        left = self.word & (1 << 105) - 1 & ~known
        if left:
            raise self.refuse(f"bit {(left & -left).bit_length() - 1}")

    def bit(self, place: int) -> bool:
        """Return a bit."""
        self.looked |= 1 << place
        return bool(self.word >> place & 1)

    def field(self, low: int, width: int) -> int:
        """Return some bits as a number."""
        self.looked |= (1 << width) - 1 << low
        return bits(self.word, low, width)

    def signed(self, low: int, width: int) -> int:
        """Return some bits as a signed number."""
        value = self.field(low, width)
        return value - (value >> width - 1 << width)

    def ignore(self, *places: int | tuple[int, int]) -> None:
        """Say that bits don't matter here."""
        self.looked |= mask_of(*places)

    def place(self, slot: str) -> int:
        """Return the bit position of the operand `a`, `b` or `c`."""
        if self.form in (2, 3, 7) and slot in "bc":
            return 64 if slot == "b" else 32
        return _SLOTS[slot]

    @property
    def other(self) -> str:
        """Return the name of the second of two operands. It's at bit 32 in most instructions, and at bit 64 in some."""
        return "c" if (self.place("b") == 64 or (self.form == 1 and 32 not in self.places)) else "b"

    def has(self, slot: str) -> bool:
        """Return whether that operand is a register or a constant."""
        place = self.place(slot)
        return place in self.places or (place == 32 and self.form in (2, 4))

    def number(self, place: int) -> int | None:
        """Return the register number at a bit position, or None for RZ and URZ."""
        file = self.places[place].file
        width = self.uniform_bits if file == "UR" else 8
        number = bits(self.word, place, width)
        return None if number == (1 << width) - 1 else number

    def at(self, place: int, more: int = 0) -> Fetch:
        """Return the register whose number is at a bit position, or a later register."""
        number = self.number(place)
        if number is None:
            zero = np.zeros(1, np.uint32)
            return lambda warp: zero
        number += more
        if self.places[place].file == "UR":
            return lambda warp: warp.UR[number]
        return lambda warp: warp.R[number]

    def raw(self, slot: str, more: int = 0) -> Fetch:
        """Return an operand's 32 bits, without applying signs."""
        place = self.place(slot)
        if place in self.places:
            return self.at(place, more)
        if place != 32 or self.form not in (2, 4):
            raise self.refuse(f"operand {slot}")
        value = np.array([self.field(32, 32) if not more else 0], np.uint32)
        return lambda warp: value

    def is_negated(self, slot: str) -> bool:
        """Return whether the operand is negated."""
        place = self.place(slot)
        return place in self.places and self.bit(NEGATED[place])

    def is_absolute(self, slot: str) -> bool:
        """Return whether the operand's absolute value is used."""
        place = self.place(slot)
        return place in self.places and self.bit(ABSOLUTE[place])

    def pair(self, slot: str) -> Fetch:
        """Return the 64 bits of two registers. A constant only gives the upper half of a double."""
        place = self.place(slot)
        if place not in self.places:
            value = np.array([self.field(32, 32) << 32], np.uint64)
            return lambda warp: value
        low, high = self.at(place), self.at(place, 1)
        return lambda warp: low(warp).astype(np.uint64) | high(warp).astype(np.uint64) << np.uint64(32)

    def predicate(self, place: int) -> Fetch:
        """Return the predicate at a bit position; its negation bit is three bits higher."""
        number, negated = self.field(place, 3), self.bit(place + 3)
        file = self.predicates[place].file if place in self.predicates else "UP" if self.uniform else "P"
        if file == "UP":
            return (lambda warp: ~warp.UP[number]) if negated else lambda warp: warp.UP[number]
        return (lambda warp: ~warp.P[number]) if negated else lambda warp: warp.P[number]

    def result(self, place: int = 16) -> Callable[[Warp, Array, Array], None]:
        """Return a function that writes 32 bits to the register at a bit position."""
        number = self.number(place) if place in self.places else None
        if number is None:
            return lambda warp, mask, value: None
        if self.places[place].file == "UR":

            def write_uniform(warp: Warp, mask: Array, value: Array) -> None:
                if mask.any():
                    warp.UR[number] = value

            return write_uniform
        return lambda warp, mask, value: np.copyto(warp.R[number], value, where=mask, casting="unsafe")

    def results(self, count: int, place: int = 16) -> Callable[[Warp, Array, list[Array]], None]:
        """Return a function that writes several consecutive registers."""
        number = self.number(place) if place in self.places else None
        if number is None:
            return lambda warp, mask, values: None
        file = self.places[place].file

        def write(warp: Warp, mask: Array, values: list[Array]) -> None:
            for index in range(count):
                if file == "UR":
                    if mask.any():
                        warp.UR[number + index] = values[index]
                else:
                    np.copyto(warp.R[number + index], values[index], where=mask, casting="unsafe")

        return write

    def result64(self, place: int = 16) -> Callable[[Warp, Array, Array], None]:
        """Return a function that writes 64 bits to two registers."""
        write = self.results(2, place)
        low = np.uint64(0xFFFFFFFF)
        return lambda warp, mask, value: write(
            warp, mask, [(value & low).astype(np.uint32), (value >> np.uint64(32)).astype(np.uint32)]
        )

    def decide(self, place: int) -> Callable[[Warp, Array, Array], None]:
        """Return a function that writes the predicate at a bit position."""
        number = self.field(place, 3)
        if number == 7:
            return lambda warp, mask, value: None
        file = self.predicates[place].file if place in self.predicates else "UP" if self.uniform else "P"
        if file == "UP":

            def write_uniform(warp: Warp, mask: Array, value: Array) -> None:
                if mask.any():
                    warp.UP[number] = value

            return write_uniform
        return lambda warp, mask, value: np.copyto(warp.P[number], value, where=mask)


def make(word: int, entry: Opcode, table: Table) -> Run:
    """Return what executes a word. Raises Unimplemented."""
    decoded = Word(word, entry, table)
    maker = OPERATIONS.get(entry.name)
    if maker is None:
        raise decoded.refuse("not implemented")
    made = maker(decoded)
    decoded.check()
    return made
