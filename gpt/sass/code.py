"""A section of code as a sequence of instructions, for control flow and liveness analysis.

    code = Code(section, table_of("sm_90"))
    code[3].name, code[3].reads.R, code[3].target

Sets of registers are bit masks, one per register file (gpt.sass.tables.Registers), so that liveness takes only a few
operations on integers. An instruction's guard counts as read. Instructions are decoded on first use, then cached.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping
from copy import copy
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.sass.masks import Masks, Registers, unpack
from gpt.sass.tables import Opcode, Table
from gpt.sass.words import CONTROL, NO_BARRIER, SIZE, Control, Guard, control_of, guard_of, target_of, words_array

# The memory that an instruction accesses, by its name. Instructions whose memory isn't known (LD, ST, ATOM) are
# generic.
MEMORY = {
    **dict.fromkeys(("LDG", "STG", "RED", "REDG", "ATOMG", "LDGMC", "CCTL", "LDGSTS"), "global"),
    **dict.fromkeys(("LDS", "STS", "ATOMS", "LDSM", "STSM", "SYNCS"), "shared"),
    **dict.fromkeys(("LDL", "STL"), "local"),
    **dict.fromkeys(("LD", "ST", "ATOM", "QSPC"), "generic"),
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), "constant"),
    **dict.fromkeys(("TEX", "TLD", "TLD4", "TXQ", "TXD", "TMML", "SULD", "SUST", "SUATOM", "SURED"), "texture"),
    **dict.fromkeys(("UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKPF", "UBLKRED", "UTMAPF"), "bulk"),
}


_LOW = (1 << 64) - 1
_IDLE = NO_BARRIER | NO_BARRIER << 3


class Instruction:
    """An instruction at its place."""

    __slots__ = ("entry", "index", "masks", "word")

    def __init__(self, index: int, word: int, entry: Opcode, masks: Masks) -> None:
        self.index = index  # in its section
        self.word = word
        self.entry = entry
        self.masks = masks

    @property
    def offset(self) -> int:
        """Bytes from the start of the section."""
        return self.index * SIZE

    @property
    def name(self) -> str:
        """The mnemonic without modifiers: LDG."""
        return self.entry.name

    @property
    def opcode(self) -> int:
        """Bits 0 to 11."""
        return self.entry.number

    @property
    def guard(self) -> Guard:
        """The predicate that says which lanes take part."""
        return guard_of(self.word)

    @property
    def control(self) -> Control:
        """Stall, barriers and wait mask."""
        return control_of(self.word)

    @property
    def reads(self) -> Registers:
        """The registers that it reads, including its guard."""
        return unpack(self.masks.reads)

    @property
    def writes(self) -> Registers:
        """The registers that the instruction may write. If it has a guard, maybe only some lanes write them, or
        none.
        """
        return unpack(self.masks.writes)

    @property
    def kills(self) -> Registers:
        """The registers whose old values are certainly lost: all that the instruction writes, unless it has a guard or
        isn't exact.
        """
        return unpack(~self.masks.keeps)

    @property
    def exact(self) -> bool:
        """True if the table knows all modifiers. If not, `reads` and `writes` are upper bounds."""
        return self.masks.exact

    @property
    def target(self) -> int | None:
        """The jump target, in bytes from the start of the section, or None if there's no fixed one.

        BSSY and WARPSYNC.COLLECTIVE don't jump, but name a place where lanes meet later; that's their target.
        """
        entry = self.entry
        return target_of(self.word, entry.target, self.offset) if entry.is_direct and entry.target else None

    @property
    def variable(self) -> bool:
        """True if the latency varies, so that only a barrier can announce the result."""
        return self.entry.variable

    @property
    def memory(self) -> str | None:
        """The memory that it accesses: global, shared, local, generic, constant, texture, bulk, or None."""
        return MEMORY.get(self.entry.name)

    def __repr__(self) -> str:
        return f"<{self.offset:#x} {self.name} {self.word:032x}>"


class Controls(NamedTuple):
    """The control part of each word, without hint and reuse."""

    stalls: list[int]
    write_barriers: list[int]
    read_barriers: list[int]
    waits: list[int]


class Code:
    """The instructions of a section."""

    def __init__(self, section: bytes | bytearray | memoryview, table: Table, like: Code | None = None) -> None:
        """Decode a section. Raises MalformedError for a size that isn't a multiple of 16, or UnknownOpcodeError.

        If most words are also in `like`, in the same place, this takes less time.
        """
        self.table = table
        self._array = words_array(section)
        self.words = _parse(self._array) if like is None else _parse_like(self._array, like)
        self.opcodes: list[int] = (self._array[:, 0] & np.uint64(0xFFF)).tolist()
        self._made: list[Instruction | None] = [None] * len(self.words)
        self.used = {number: table.decoder(number) for number in set(self.opcodes)}

    def with_controls(self, changed: Mapping[int, int]) -> Code:
        """Return the same code with these words, which may differ from the old ones only in their control parts. Raises
        ValueError if more differs.
        """
        if any((word ^ self.words[index]) & ~CONTROL for index, word in changed.items()):
            raise ValueError("not only the control part of a word differs")
        _ = self.masks
        other = copy(self)
        other.words, other._array, other._made = list(self.words), self._array.copy(), [None] * len(self.words)
        other.__dict__.pop("controls", None)
        for index, word in changed.items():
            other.words[index] = word
            other._array[index] = word & _LOW, word >> 64
        return other

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Instruction:
        made = self._made[index]
        if made is None:
            index %= len(self.words)
            made = Instruction(index, self.words[index], self.table.opcodes[self.opcodes[index]], self.masks[index])
            self._made[index] = made
        return made

    def entry(self, index: int) -> Opcode:
        """Return the table's entry for an instruction."""
        return self.used[self.opcodes[index]].entry

    def __iter__(self) -> Iterator[Instruction]:
        return (self[index] for index in range(len(self.words)))

    @cached_property
    def masks(self) -> list[Masks]:
        """The registers that each word reads and writes."""
        used = self.used
        return [
            decoder.known.get(word & decoder.relevant) or decoder.masks(word)
            for word, decoder in zip(self.words, map(used.__getitem__, self.opcodes), strict=True)
        ]

    def borrow(self, other: Code) -> None:
        """Reuse what another Code has decoded, for words that both have in the same place."""
        if "masks" in self.__dict__ or self.table is not other.table:
            return
        count = min(len(self), len(other))
        masks = other.masks[:count]
        for index in self.differences(other):
            masks[index] = self.used[self.opcodes[index]].masks(self.words[index])
        masks += [self.used[self.opcodes[index]].masks(self.words[index]) for index in range(count, len(self))]
        self.__dict__["masks"] = masks

    def differences(self, other: Code) -> list[int]:
        """Compare two Codes up to the end of the shorter one. Return the indexes of words that differ."""
        return _differences(self._array, other._array)

    @cached_property
    def distinct(self) -> list[tuple[Opcode, Masks]]:
        """One instruction for each opcode and set of registers that occur: what else the words have may differ."""
        found = dict(zip(map(id, self.masks), zip(self.opcodes, self.masks, strict=True), strict=True))
        return [(self.used[number].entry, masks) for number, masks in found.values()]

    def parts(self, low: int, width: int) -> set[int]:
        """Return all values of a part of the words; the part must be in their lower half."""
        return set((self._array[:, 0] >> np.uint64(low) & np.uint64((1 << width) - 1)).tolist())

    @cached_property
    def controls(self) -> Controls:
        """The control part of each word."""
        high = self._array[:, 1] >> np.uint64(41)
        parts = ((0, 15), (5, 7), (8, 7), (11, 63))
        return Controls(*((high >> np.uint64(low) & np.uint64(mask)).tolist() for low, mask in parts))

    def find_busy(self, numbers: Collection[int]) -> list[int]:
        """Return the indexes of instructions that wait for barriers or set one, or have one of these opcodes."""
        known = np.zeros(1 << 12, bool)
        known[list(numbers)] = True
        parts = self._array[:, 1] >> np.uint64(46) & np.uint64(0xFFF)  # barriers and wait mask
        found: list[int] = np.flatnonzero((parts != _IDLE) | known[self._array[:, 0] & np.uint64(0xFFF)]).tolist()
        return found

    def find(self, names: Container[str]) -> list[int]:
        """Return the indexes of instructions with these names, in order."""
        numbers = {number for number, decoder in self.used.items() if decoder.entry.name in names}
        return self._find_opcodes(numbers)

    def _find_opcodes(self, numbers: set[int]) -> list[int]:
        if not numbers:
            return []
        known = np.zeros(1 << 12, bool)
        known[list(numbers)] = True
        found: list[int] = np.flatnonzero(known[self._array[:, 0] & np.uint64(0xFFF)]).tolist()
        return found

    @cached_property
    def jumps(self) -> list[int]:
        """The indexes of instructions with a target."""
        return self._find_opcodes({number for number, decoder in self.used.items() if decoder.entry.is_direct})

    @cached_property
    def targets(self) -> frozenset[int]:
        """The offsets in bytes of all places that instructions have as their targets."""
        forms = {number: decoder.entry.target for number, decoder in self.used.items() if decoder.entry.target}
        words, opcodes = self.words, self.opcodes
        return frozenset(target_of(words[index], forms[opcodes[index]], SIZE * index) for index in self.jumps)


def _parse(array: npt.NDArray[np.uint64]) -> list[int]:
    return [low | high << 64 for low, high in array.tolist()]


def _parse_like(array: npt.NDArray[np.uint64], like: Code) -> list[int]:
    count = min(len(array), len(like))
    words = like.words[:count]
    for index in _differences(array, like._array):
        low, high = array[index].tolist()
        words[index] = low | high << 64
    return words + _parse(array[count:])


def _differences(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> list[int]:
    count = min(len(one), len(other))
    differ = one[:count] != other[:count]
    found: list[int] = np.flatnonzero(differ[:, 0] | differ[:, 1]).tolist()
    return found
