"""A section of code as a sequence of instructions, for control flow and liveness analysis.

    code = Code(section, table_of("sm_90"))
    code[3].name, code[3].reads.R, code[3].target

Sets of registers are bit masks, one for each register file (gpt.sass.tables.Registers), so that liveness is a few
operations on integers. The guard is among the reads. An instruction is made when it's asked for, and kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from gpt.sass.tables import Effect, Opcode, Registers, Table
from gpt.sass.words import SIZE, Control, Guard, control_of, guard_of, parse_words, target_of

# What an instruction accesses, by its name. Those that can't be named in advance (LD, ST, ATOM) are generic.
MEMORY = {
    **dict.fromkeys(("LDG", "STG", "RED", "REDG", "ATOMG", "LDGMC", "CCTL", "LDGSTS"), "global"),
    **dict.fromkeys(("LDS", "STS", "ATOMS", "LDSM", "STSM", "SYNCS"), "shared"),
    **dict.fromkeys(("LDL", "STL"), "local"),
    **dict.fromkeys(("LD", "ST", "ATOM", "QSPC"), "generic"),
    **dict.fromkeys(("LDC", "ULDC", "LDCU"), "constant"),
    **dict.fromkeys(("TEX", "TLD", "TLD4", "TXQ", "TXD", "TMML", "SULD", "SUST", "SUATOM", "SURED"), "texture"),
    **dict.fromkeys(("UTMALDG", "UTMASTG", "UTMAREDG", "UBLKCP", "UBLKPF", "UBLKRED", "UTMAPF"), "bulk"),
}


class Instruction:
    """An instruction in its place."""

    __slots__ = ("_effect", "entry", "index", "word")

    def __init__(self, index: int, word: int, entry: Opcode, effect: Effect) -> None:
        self.index = index  # in its section
        self.word = word
        self.entry = entry
        self._effect = effect

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
        """Registers that it reads, its guard included."""
        return self._effect.reads

    @property
    def writes(self) -> Registers:
        """Registers that it may write: with a guard, some lanes write them or none does."""
        return self._effect.writes

    @property
    def kills(self) -> Registers:
        """Registers whose value before is lost for certain: what it writes, unless it has a guard or isn't exact."""
        return self._effect.writes if self._effect.exact and self.guard.always else Registers()

    @property
    def exact(self) -> bool:
        """True if the table knows all modifiers. If not, reads and writes are the most that they can be."""
        return self._effect.exact

    @property
    def target(self) -> int | None:
        """The jump target, in bytes from the start of the section, or None if there's no fixed one.

        BSSY and WARPSYNC.COLLECTIVE don't jump, but name a place where lanes meet later: that's their target.
        """
        return target_of(self.word, self.entry.target, self.offset) if self.entry.target else None

    @property
    def variable(self) -> bool:
        """True if the latency varies, so that only a barrier says when it's done."""
        return self.entry.variable

    @property
    def memory(self) -> str | None:
        """The memory that it accesses: global, shared, local, generic, constant, texture, bulk, or None."""
        return MEMORY.get(self.entry.name)

    def __repr__(self) -> str:
        return f"<{self.offset:#x} {self.name} {self.word:032x}>"


class Code:
    """The instructions of a section."""

    def __init__(self, section: bytes | bytearray | memoryview, table: Table) -> None:
        """Raises MalformedError if the size isn't a multiple of 16, UnknownOpcodeError if the table lacks an opcode."""
        self.table = table
        self.words = parse_words(section)
        self._made: list[Instruction | None] = [None] * len(self.words)
        for word in self.words:
            table.opcode(word)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> Instruction:
        made = self._made[index]
        if made is None:
            word = self.words[index]
            made = Instruction(index % len(self.words), word, self.table.opcode(word), self.table.effect(word))
            self._made[index] = made
        return made

    def __iter__(self) -> Iterator[Instruction]:
        return (self[index] for index in range(len(self.words)))

    @cached_property
    def targets(self) -> frozenset[int]:
        """Every place that some instruction names as a target, in bytes."""
        return frozenset(found for one in self if (found := one.target) is not None)
