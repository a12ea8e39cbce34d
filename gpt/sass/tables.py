"""Instruction tables: for each opcode of an architecture, where its operands stand, and how many registers they are.

A table is a text file, `gpt/sass/tables/sm_90.txt`, that gpt/sass/derive makes. An opcode is a line with its number
(bits 0 to 11), its name, `variable` if its latency varies, and the form of its jump distance if it has one. A line for
each operand follows:

    981 LDG variable
      P12 read 1
      R16 write by 73-75: 1*5 2 4 -
      R24 read by 72: 1 2

`R16` is a register number at bit 16. The numbers after a role say how many registers from there on are written or
read. With `by`, that depends on other bits, the selectors: there's a number for each of their values, the lowest bit
first. `1*5` is five times 1; `-` is a value that nvdisasm refuses, so that nothing is known of it.

The register files are R (general), UR (uniform), P and UP (predicates) and B (convergence barriers). A number with all
bits set means no register (RZ, URZ, PT, UPT); barriers have no such number. After `~` the number's bits are
complements, so that zero means none. `PR32` isn't a number but seven bits, one
for each predicate; `PR` alone is all of them.

A word whose opcode isn't in the table is refused. If a selector has a value that nothing is known of, the operand
counts with the most registers that it has for any other value, and the instruction isn't `exact`: then what it
writes may not count as overwritten.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.sass.arch import SassArch, arch_of
from gpt.sass.masks import STARTS, Masks, Registers, unpack
from gpt.sass.words import PT, opcode_of

UNKNOWN = -1  # a number of registers
GUARD = 15 << 12
KEPT = 1 << 14  # masks that are kept, at most, for each opcode
TITLE = "gpt-sass-table 1"

_OPCODE = re.compile(r"([0-9a-f]{3}) (\S+)((?: variable)?)(?: target=(\w+))?")
_OPERAND = re.compile(r"  (R|UR|P|UP|B|PR|UPR)(\d*)(~?) (.+)")
_ROLE = re.compile(r"(write|read) (?:by ([\d,-]+): )?((?:(?:\d+|-)(?:\*\d+)? ?)+)")


class UnknownOpcodeError(MalformedError):
    """A word has an opcode that isn't in the table."""


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
        """The greatest number for any value."""
        return max(self.numbers)


NEVER = Count((), (0,))


@dataclass(frozen=True)
class Operand:
    """A register number in a word, or with PR and UPR a mask of predicates (all of them if `low` is None)."""

    file: str
    low: int | None
    writes: Count
    reads: Count
    inverted: bool = False  # all bits of the number are turned

    @property
    def name(self) -> str:
        """As in the table: R16."""
        return f"{self.file}{'' if self.low is None else self.low}{'~' if self.inverted else ''}"


@dataclass(frozen=True)
class Opcode:
    """An opcode, as in its table."""

    number: int
    name: str
    variable: bool  # its latency varies: ptxas gives it barriers
    target: str | None  # the form of the distance, if it jumps
    operands: tuple[Operand, ...]


class Effect(NamedTuple):
    """Registers that a word writes and reads, its guard included. `exact` if all its modifiers are known."""

    writes: Registers
    reads: Registers
    exact: bool


class Decoder:
    """What the words with one opcode read and write.

    Words differ in immediates more than in registers: so the masks are kept under the bits that it depends on.
    """

    def __init__(self, entry: Opcode, bits: dict[str, int]) -> None:
        self.entry = entry
        self.known: dict[int, Masks] = {}
        self.relevant = GUARD
        self._places: list[tuple[Operand, str, int, int, int]] = []  # file, first bit, all bits set, start in a mask
        for operand in entry.operands:
            for bit in (*operand.writes.selectors, *operand.reads.selectors):
                self.relevant |= 1 << bit
            file = operand.file.replace("PR", "P") if (many := operand.file in ("PR", "UPR")) else operand.file
            none = (1 << (7 if many else bits[file])) - 1
            if operand.low is not None:
                self.relevant |= none << operand.low
            self._places.append((operand, "PR" if many else file, operand.low or 0, none, getattr(STARTS, file)))

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
        reads = writes = 0
        exact = True
        for operand, file, low, none, start in self._places:
            registers = word >> low & none
            if file == "PR":
                first = last = 0
                run = registers << start if operand.low is not None else 127 << start
            else:
                if operand.inverted:
                    registers ^= none
                if registers == none and file != "B":
                    first = last = 0
                else:
                    first, last = start + registers, start + (none if file != "B" else none + 1)
                run = 0
            for count, is_write in ((operand.writes, True), (operand.reads, False)):
                number = count.of(word) if count is not NEVER else 0
                if number == UNKNOWN:
                    exact = False
                    number = count.most
                if number:
                    found = run or (1 << min(first + number, last)) - (1 << first)
                    if is_write:
                        writes |= found
                    else:
                        reads |= found
        always = word & GUARD == PT << 12
        return Masks(reads, writes, ~writes if exact and always else -1, exact)


@dataclass
class Table:
    """The instructions of one architecture."""

    arch: SassArch
    made_with: str
    opcodes: dict[int, Opcode]
    _decoders: dict[int, Decoder] = field(default_factory=dict, repr=False)

    def opcode(self, word: int) -> Opcode:
        """Return the entry for a word. Raises UnknownOpcodeError."""
        entry = self.opcodes.get(opcode_of(word))
        if entry is None:
            raise UnknownOpcodeError(f"opcode {opcode_of(word):03x} isn't in the table of {self.arch.name}")
        return entry

    def decoder(self, word: int) -> Decoder:
        """Return what knows the words with the opcode of this one. Raises UnknownOpcodeError."""
        found = self._decoders.get(word & 0xFFF)
        if found is None:
            found = self._decoders[word & 0xFFF] = Decoder(self.opcode(word), self.arch.register_bits)
        return found

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
    for number, line in enumerate([*lines[1:], "end"], 2):
        if line.startswith("#"):
            made_with = made_with or line[1:].strip()
        elif found := _OPERAND.fullmatch(line):
            operands.append(_parse_operand(found, number))
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
