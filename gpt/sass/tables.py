"""Instruction tables: for each opcode of an architecture, the positions of its operands, and the number of registers in
each.

A table is a text file, such as `gpt/sass/tables/sm_90.txt`, written by gpt/sass/derive. Each opcode has a line with its
number (bits 0 to 11), its name, `variable` if its latency varies, and the form of its jump distance if it has one. One
line per operand follows:

    981 LDG variable
      P12 read 1
      R16 write by 73-75: 1*5 2 4 -
      R24 read by 72: 1 2

`R16` is a register number at bit 16. The numbers after a role say how many registers from there on are written or read.
`by` means that this depends on other bits, the selectors: there's a number for each of their values, lowest bit first.
`1*5` is five times 1; `-` is a value that nvdisasm rejects, so nothing is known about it.

The register files are R (general), UR (uniform), P and UP (predicates) and B (convergence barriers). A number with all
bits set means no register (RZ, URZ, PT, UPT); barriers have no such number. `~` means that the number is stored
inverted, so that zero means none. `PR32` isn't a number but seven bits, one per predicate; `PR` alone is all of them.

A word whose opcode isn't in the table is rejected. If a selector has an unknown value, the operand counts as the
largest number of registers for any known value, and the instruction isn't `exact`: its writes then don't count as
overwriting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from gpt.base.errors import MalformedError
from gpt.sass.arch import SassArch, arch_of
from gpt.sass.masks import Registers, unpack
from gpt.sass.opcodes import KEPT, NEVER, UNKNOWN, Count, Decoder, Opcode, Operand
from gpt.sass.words import CONTROL, opcode_of

__all__ = ["NEVER", "UNKNOWN", "Count", "Decoder", "Effect", "Opcode", "Operand", "Registers", "Table", "table_of"]

TITLE = "gpt-sass-table 1"

_OPCODE = re.compile(r"([0-9a-f]{3}) (\S+)((?: variable)?)(?: target=(\w+))?")
_OPERAND = re.compile(r"  (R|UR|P|UP|B|PR|UPR)(\d*)(~?) (.+)")
_ROLE = re.compile(r"(write|read) (?:by ([\d,-]+): )?((?:(?:\d+|-)(?:\*\d+)? ?)+)")


class UnknownOpcodeError(MalformedError):
    """A word has an opcode that isn't in the table."""


class Effect(NamedTuple):
    """The registers that a word writes and reads, including its guard. It's `exact` if all its modifiers are known."""

    writes: Registers
    reads: Registers
    exact: bool


class Field(NamedTuple):
    """A bit field of a word that names `width` consecutive registers, starting at `number`.

    The field starts at bit `low`, is as wide as the mask `none`, and is stored with the bits in `turn` inverted. All
    bits set mean no register, except for barriers. For a set of predicates (PR, UPR), `number` is the set and `width`
    is 0.
    """

    operand: Operand
    low: int
    none: int
    turn: int
    number: int
    width: int


@dataclass
class Table:
    """The instructions of one architecture."""

    arch: SassArch
    made_with: str
    opcodes: dict[int, Opcode]
    _decoders: dict[int, Decoder] = field(default_factory=dict, repr=False)
    _fields: dict[int, tuple[Field, ...]] = field(default_factory=dict, repr=False)
    _memos: dict[str, dict[Any, Any]] = field(default_factory=dict, repr=False, compare=False)

    def memo(self, name: str) -> dict[Any, Any]:
        """Return a dictionary in which a function keeps results that depend only on its key and this table."""
        found = self._memos.setdefault(name, {})
        if len(found) >= KEPT:
            found.clear()
        return found

    def opcode(self, word: int) -> Opcode:
        """Return the table's entry for a word. Raises UnknownOpcodeError."""
        entry = self.opcodes.get(opcode_of(word))
        if entry is None:
            raise UnknownOpcodeError(f"opcode {opcode_of(word):03x} isn't in the table of {self.arch.name}")
        return entry

    def decoder(self, word: int) -> Decoder:
        """Return the decoder for words with this word's opcode. Raises UnknownOpcodeError."""
        found = self._decoders.get(word & 0xFFF)
        if found is None:
            found = self._decoders[word & 0xFFF] = Decoder(self.opcode(word), self.arch.register_bits)
        return found

    def fields(self, word: int) -> tuple[Field, ...]:
        """Return the parts of a word that name registers in use. Raises UnknownOpcodeError."""
        key = word & ~CONTROL
        found = self._fields.get(key)
        if found is None:
            if len(self._fields) >= KEPT:
                self._fields.clear()
            found = self._fields[key] = tuple(self._iter_fields(word))
        return found

    def _iter_fields(self, word: int) -> Iterator[Field]:
        for operand in self.opcode(word).operands:
            counts = [number if (number := c.of(word)) >= 0 else c.most for c in (operand.writes, operand.reads)]
            if not any(counts):
                continue
            low = operand.low or 0
            if operand.file in ("PR", "UPR"):
                yield Field(operand, low, 0, 0, word >> low & 127 if operand.low is not None else 127, 0)
            else:
                none = (1 << self.arch.register_bits[operand.file]) - 1
                turn = none if operand.inverted else 0
                yield Field(operand, low, none, turn, (word >> low & none) ^ turn, max(counts))

    def effect(self, word: int) -> Effect:
        """Return what a word reads and writes. Raises UnknownOpcodeError."""
        reads, writes, _, exact = self.decoder(word).masks(word)
        return Effect(unpack(writes), unpack(reads), exact)


@cache
def table_of(arch: str) -> Table:
    """Return the table of `sm_90` or `sm_90a`. Raises GptError if there's none."""
    name = arch_of(arch).name
    return parse_table(files("gpt.sass").joinpath("tables", f"{name}.txt").read_text("utf-8"))


def parse_table(text: str) -> Table:
    """Parse a table. Raises MalformedError."""
    lines = text.splitlines()
    title, _, arch = lines[0].rpartition(" ") if lines else ("", "", "")
    if title != TITLE:
        raise MalformedError(f"not an instruction table: it doesn't begin with '{TITLE}'")
    made_with = ""
    opcodes: dict[int, Opcode] = {}
    current: tuple[int, str, bool, str | None] | None = None
    operands: list[Operand] = []
    known: dict[str, Operand] = {}  # most lines of operands occur many times
    for number, line in enumerate([*lines[1:], "end"], 2):
        if line.startswith("#"):
            made_with = made_with or line[1:].strip()
        elif line in known:
            operands.append(known[line])
        elif found := _OPERAND.fullmatch(line):
            known[line] = _parse_operand(found, number)
            operands.append(known[line])
        elif line:
            if current:
                opcodes[current[0]] = Opcode(*current, tuple(operands))
            found = _OPCODE.fullmatch(line)
            if found:
                current, operands = (int(found[1], 16), found[2], bool(found[3]), found[4]), []
            elif line != "end":
                raise MalformedError(f"instruction table: line {number}: '{line}'")
    return Table(arch_of(arch), made_with, opcodes)


def _parse_operand(operand: re.Match[str], line: int) -> Operand:
    file, low, inverted, roles = operand.groups()
    counts = {"write": NEVER, "read": NEVER}
    end = 0
    for found in _ROLE.finditer(roles):
        selectors = tuple(_iter_bits(found[2])) if found[2] else ()
        numbers = tuple(_iter_numbers(found[3].split()))
        if len(numbers) != 1 << len(selectors) or found.start() != end:
            raise MalformedError(f"instruction table: line {line}: {len(numbers)} numbers for {len(selectors)} bits")
        counts[found[1]] = Count(selectors, numbers)
        end = found.end()
    if end != len(roles):
        raise MalformedError(f"instruction table: line {line}: '{roles[end:]}'")
    return Operand(file, int(low) if low else None, counts["write"], counts["read"], bool(inverted))


def _iter_bits(text: str) -> Iterator[int]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield from range(int(first), int(last or first) + 1)


def _iter_numbers(words: Iterable[str]) -> Iterator[int]:
    for word in words:
        number, _, times = word.partition("*")
        yield from [UNKNOWN if number == "-" else int(number)] * int(times or 1)


def dump_table(table: Table) -> str:
    """Return the text of a table."""
    lines = [f"{TITLE} {table.arch.name}", f"# {table.made_with}"]
    for entry in sorted(table.opcodes.values(), key=lambda entry: entry.number):
        target = f" target={entry.target}" if entry.target else ""
        lines += ["", f"{entry.number:03x} {entry.name}{' variable' if entry.variable else ''}{target}"]
        lines += [f"  {operand.name} {_dump_roles(operand)}" for operand in entry.operands]
    return "\n".join(lines) + "\n"


def _dump_roles(operand: Operand) -> str:
    roles = (("write", operand.writes), ("read", operand.reads))
    return " ".join(f"{role} {_dump_count(count)}" for role, count in roles if count != NEVER)


def _dump_count(count: Count) -> str:
    runs: list[tuple[int, int]] = []
    for number in count.numbers:
        if runs and runs[-1][0] == number:
            runs[-1] = (number, runs[-1][1] + 1)
        else:
            runs.append((number, 1))
    numbers = " ".join(f"{'-' if n == UNKNOWN else n}{f'*{times}' if times > 1 else ''}" for n, times in runs)
    return f"by {_dump_bits(count.selectors)}: {numbers}" if count.selectors else numbers


def _dump_bits(selectors: tuple[int, ...]) -> str:
    runs: list[list[int]] = []
    for bit in selectors:
        if runs and runs[-1][1] == bit - 1:
            runs[-1][1] = bit
        else:
            runs.append([bit, bit])
    return ",".join(f"{first}-{last}" if last > first else str(first) for first, last in runs)
