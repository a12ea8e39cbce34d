"""Opcodes as in a table (tables.py), and the registers that a word with such an opcode reads and writes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from gpt.sass.masks import STARTS, Masks
from gpt.sass.words import PT

UNKNOWN = -1  # a number of registers
EVERY = 256
GUARD = 15 << 12
KEPT = 1 << 14  # masks cached per opcode, at most


@dataclass(frozen=True)
class Count:
    """The number of registers of an operand, by the value of selector bits."""

    selectors: tuple[int, ...]  # bits of the word, lowest first
    numbers: tuple[int, ...]

    def of(self, word: int) -> int:
        """Return the number for a word, or UNKNOWN."""
        value = 0
        for bit in reversed(self.selectors):
            value = value << 1 | word >> bit & 1
        return self.numbers[value]

    @property
    def most(self) -> int:
        """The greatest number for any value. If no value is known, all registers from the named one on count."""
        most = max(self.numbers)
        return EVERY if most == UNKNOWN else most


NEVER = Count((), (0,))


@dataclass(frozen=True)
class Operand:
    """A register number in a word, or, for PR and UPR, a mask of predicates (all of them if `low` is None)."""

    file: str
    low: int | None
    writes: Count
    reads: Count
    inverted: bool = False  # the number is stored inverted

    @property
    def name(self) -> str:
        """The name used in the table: R16."""
        return f"{self.file}{'' if self.low is None else self.low}{'~' if self.inverted else ''}"


@dataclass(frozen=True)
class Opcode:
    """An opcode, as in the table."""

    number: int
    name: str
    variable: bool  # its latency varies: ptxas gives it barriers
    target: str | None  # the form of the distance, if it jumps
    operands: tuple[Operand, ...]

    @cached_property
    def is_direct(self) -> bool:
        """True if it jumps to a place that its words name. CALL.REL with a register adds the register to that place."""
        adds = self.name == "CALL" and any(operand.file == "R" for operand in self.operands)
        return self.target is not None and not adds


class _Shape(NamedTuple):
    """The operands of words with the same selectors.

    A field is its lowest bit, a mask of its bits, the bits to invert, and by number, the registers written and read.
    """

    fields: tuple[tuple[int, int, int, tuple[int, ...], tuple[int, ...]], ...]
    sets: tuple[tuple[int, int, int, int], ...]  # for predicates: lowest bit, first bit in a mask, is written, is read
    writes: int  # registers written whatever the operands are
    reads: int
    exact: bool


@cache
def _ranges(start: int, file: int, last: int, count: int) -> tuple[int, ...]:
    """Return the masks of `count` registers from each number up to `last` on. Numbers that mean no register have
    nothing of the file's mask, which begins at bit `start`.
    """
    return tuple(((1 << count) - 1) << start + number & file for number in range(last + 1))


class Decoder:
    """Finds the registers that words with one opcode read and write.

    Words differ more in immediates than in registers, so masks are cached by the bits that they depend on. Even so, a
    big kernel has many different words, so the shape, which depends only on the selectors, is cached too.
    """

    def __init__(self, entry: Opcode, bits: dict[str, int]) -> None:
        self.entry = entry
        self.known: dict[int, Masks] = {}
        self._bits = bits
        self._shapes: dict[int, _Shape] = {}
        self._selectors = 0
        self.relevant = GUARD
        for operand in entry.operands:
            for bit in (*operand.writes.selectors, *operand.reads.selectors):
                self._selectors |= 1 << bit
            if operand.low is not None:
                width = 7 if operand.file in ("PR", "UPR") else bits[operand.file]
                self.relevant |= (1 << width) - 1 << operand.low
        self.relevant |= self._selectors

    def masks(self, word: int) -> Masks:
        """Return what a word with this opcode reads and writes."""
        key = word & self.relevant
        found = self.known.get(key)
        if found is None:
            if len(self.known) >= KEPT:
                self.known.clear()
            found = self.known[key] = self._masks(key)
        return found

    def _masks(self, word: int) -> Masks:
        shape = self._shapes.get(word & self._selectors)
        if shape is None:
            shape = self._shapes[word & self._selectors] = self._shape(word)
        fields, sets, writes, reads, exact = shape
        for low, none, turned, written, read in fields:
            number = word >> low & none ^ turned
            writes |= written[number]
            reads |= read[number]
        always = word & GUARD == PT << 12
        keeps = ~writes if exact and always else -1
        for low, start, is_written, is_read in sets:
            mask = (word >> low & 127) << start
            writes |= mask * is_written
            reads |= mask * is_read
        return Masks(reads, writes, keeps, exact)

    def _shape(self, word: int) -> _Shape:
        fields, sets = [], []
        writes = reads = 0
        exact = True
        for operand in self.entry.operands:
            written, read = operand.writes.of(word), operand.reads.of(word)
            exact = exact and UNKNOWN not in (written, read)
            written = operand.writes.most if written == UNKNOWN else written
            read = operand.reads.most if read == UNKNOWN else read
            start: int = getattr(STARTS, operand.file.replace("PR", "P"))
            if operand.file in ("PR", "UPR"):
                if operand.low is None:
                    exact = exact and not written  # a register says which ones
                    writes |= (127 << start) * (written > 0)
                    reads |= (127 << start) * (read > 0)
                else:
                    sets.append((operand.low, start, int(written > 0), int(read > 0)))
            elif written or read:
                none = (1 << self._bits[operand.file]) - 1
                file = (1 << (none if operand.file != "B" else none + 1)) - 1 << start
                turned = none if operand.inverted else 0
                fields.append(
                    (
                        operand.low or 0,
                        none,
                        turned,
                        _ranges(start, file, none, written),
                        _ranges(start, file, none, read),
                    )
                )
        return _Shape(tuple(fields), tuple(sets), writes, reads, exact)
