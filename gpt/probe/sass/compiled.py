"""A compiled body (snippets.py): its words, and how its registers may be renamed.

Registers that occur in one operand stay together and aligned, and so do 64-bit values that are passed to the body.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from gpt.probe.sass.glue import OFFSET
from gpt.sass.code import Code
from gpt.sass.masks import Registers, unpack
from gpt.sass.tables import Operand, Table
from gpt.sass.words import dump_words, with_bits
from gpt.sass.woven import Snippet

URZ = 63
_GUARDABLE = {"IADD3", "VIADD", "IMAD", "MOV", "LOP3", "SHF", "SEL", "CS2R", "LEA", "IABS", "NOP"}


@dataclass(frozen=True)
class Unit:
    """General registers that must keep their distances from each other. They can be moved by multiples of `align`."""

    members: tuple[int, ...]
    align: int


@dataclass(frozen=True)
class Compiled:
    """The words of a body, and the barriers to wait for after them. Three kinds of words have to be filled in for a
    kernel: `sized` contain the size of the program's constants, `parameters` load the addresses of maps, and `adding`
    contain the constants that the body adds. The first register of each address is given with its word.
    """

    snippet: Snippet
    table: Table
    wait: int = 0
    sized: tuple[int, ...] = ()
    parameters: tuple[tuple[int, int], ...] = ()
    adding: tuple[int, ...] = ()
    _units: dict[tuple[int, ...], list[Unit]] = field(default_factory=dict, repr=False, compare=False)
    _groups: dict[str, list[tuple[int, ...]]] = field(default_factory=dict, repr=False, compare=False)
    _filled: dict[tuple[int, ...], Compiled] = field(default_factory=dict, repr=False, compare=False)

    def fill_in(self, size: int, offsets: Mapping[int, int], addends: tuple[int, ...] = ()) -> Compiled:
        """Return the body for a kernel: with the size of the program's constants, which isspacep needs to distinguish
        them from global memory, with the offset of each parameter in the bank of constants, and with `addends`.
        """
        if not self.sized and not self.parameters and not self.adding:
            return self
        key = size if self.sized else 0, *(offsets[at] for _, at in self.parameters), *addends
        found = self._filled.get(key)
        if found is None:
            words = list(self.snippet.words)
            for index in self.sized:
                words[index] = with_bits(words[index], 32, 32, size)
            for index, at in self.parameters:
                words[index] = with_bits(words[index], *OFFSET, offsets[at] // 4)
            for index, addend in zip(self.adding, addends, strict=True):
                words[index] = with_bits(words[index], 32, 32, addend)
            snippet = replace(self.snippet, words=tuple(words))
            found = self._filled[key] = Compiled(snippet, self.table, self.wait)
        return found

    @cached_property
    def code(self) -> Code:
        """The words as code."""
        return Code(dump_words(self.snippet.words), self.table)

    @cached_property
    def jumps(self) -> bool:
        """True if there's a jump in it."""
        return any(one.entry.target or one.name == "RET" for one in self.code)

    @cached_property
    def named(self) -> Registers:
        """Registers that occur in it."""
        found = 0
        for masks in self.code.masks:
            found |= masks.reads | masks.writes
        return unpack(found)

    @cached_property
    def written(self) -> Registers:
        """Registers that it writes."""
        found = 0
        for masks in self.code.masks:
            found |= masks.writes
        return unpack(found)

    @cached_property
    def masked(self) -> int:
        """Predicates that a word names in a mask. They can't be renamed."""
        found = 0
        for word in self.snippet.words:
            for one in self.table.fields(word):
                if one.operand.file == "PR":
                    found |= one.number
        return found & 127

    @cached_property
    def takes_guard(self) -> bool:
        """True if all of its words can have the guard of the site: they only compute, and have no guards of their
        own.
        """
        return all(one.name in _GUARDABLE and one.guard.always and not one.writes.P for one in self.code)

    def find_units(self, pairs: list[int]) -> list[Unit]:
        """Return the general registers in units. Each register in `pairs` stays with the one after it."""
        key = tuple(pairs)
        found = self._units.get(key)
        if found is None:
            found = self._units[key] = _find_units(self.snippet.words, self.table, self.named.R, pairs)
        return found

    def find_groups(self, file: str) -> list[tuple[int, ...]]:
        """Return the registers of another file in groups: the registers of a pair in one operand belong together."""
        found = self._groups.get(file)
        if found is None:
            found = self._groups[file] = self._find_groups(file)
        return found

    def _find_groups(self, file: str) -> list[tuple[int, ...]]:
        mask: int = getattr(self.named, file)
        pairs = {
            number & ~1
            for word in self.snippet.words
            for operand in self.table.opcode(word).operands
            if operand.file == file == "UR" and _count(operand, word) > 1
            if (number := word >> (operand.low or 0) & URZ) != URZ
        }
        numbers = [number for number in range(64) if mask >> number & 1]
        wide = [(number, number + 1) for number in sorted(pairs) if mask >> number & 3]
        return wide + [(number,) for number in numbers if number & ~1 not in pairs]


def _find_units(words: tuple[int, ...], table: Table, named: int, pairs: list[int]) -> list[Unit]:
    """Put registers that occur in the same operand in one unit."""
    runs = [(first, 2) for first in pairs if named >> first & 3]
    for word in words:
        for operand in table.opcode(word).operands:
            first = word >> (operand.low or 0) & 255
            if operand.file == "R" and first != 255 and (count := _count(operand, word)) > 0:
                runs.append((first, count))
    members = {number for number in range(255) if named >> number & 1}
    members |= {first + k for first, count in runs for k in range(count)}
    group = {number: number for number in members}

    def root(number: int) -> int:
        while group[number] != number:
            number = group[number]
        return number

    aligns: dict[int, int] = defaultdict(lambda: 1)
    for first, count in runs:
        for number in range(first, first + count):
            one, other = root(first), root(number)
            group[other] = one
            aligns[one] = max(aligns[one], aligns[other], 1 << (count - 1).bit_length())
    units: dict[int, list[int]] = defaultdict(list)
    for number in sorted(members):
        units[root(number)].append(number)
    return [Unit(tuple(some), aligns[one]) for one, some in units.items()]


def _count(operand: Operand, word: int) -> int:
    counts = [number if (number := count.of(word)) >= 0 else count.most for count in (operand.writes, operand.reads)]
    return max(counts)
