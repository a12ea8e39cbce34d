"""What a probe file says, whatever form it was written in: maps, registers, and probes with their snippets.

A snippet is PTX in which a helper (HELPERS) may stand for an operand, and SAVE for a record's fields. The verifier
reads these objects, the weaver lowers them; neither knows TOML or Python.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from gpt.ptx import tree
from gpt.ptx.types import SIZES, SPECIAL

MAX_LINES = 512  # statements of a snippet
LEVELS = ("thread", "warp", "block")
MAP_TYPES = ("array", "total")
LEADERS = ("active", "lane0")  # who saves for a warp: the lowest active lane, or lane 0 if it is there
HELPERS = {  # name: type, None if it is the operand's own
    **dict.fromkeys(("OUT", "IN1", "IN2", "IN3", "IN4")),
    "ADDR": "u64",  # the address that the instruction accesses, offset included
    "BYTES": "u32",  # what one lane moves
    "FLOPS": "u32",  # one lane's share of the arithmetic
    "ACTIVE": "u32",  # how many lanes are here
    "PRED": "pred",  # whether the instruction's guard held; true if it has none
    "CLOCK": "u64",  # clocks of this SM
    "TIME": "u64",  # ns, the same on all SMs
    "SMID": "u32",
    "WARPID": "u32",  # of the warp in its block
    "LANEID": "u32",
    "BLOCK": "u64",  # of the block in the grid, x first
}
COUNTS = {"BYTES", "FLOPS"}  # mostly constants: they stand for a u64, too
OPERANDS = {"OUT", "IN1", "IN2", "IN3", "IN4", "ADDR", "BYTES", "FLOPS"}  # they need an instruction


@dataclass(frozen=True, slots=True)
class Field:
    """A value of a record, little-endian at `offset`."""

    name: str
    type: str
    offset: int

    @property
    def size(self) -> int:
        """Bytes."""
        return SIZES[self.type]


@dataclass(frozen=True, slots=True)
class Map:
    """Where records go: `capacity` a thread, warp or block, None for an append log within `budget` bytes.

    Of type `total` there is one record, to which each thread adds what it saves.
    `size` is a record's bytes as declared; `stride`, a multiple of 8, is what a slot takes.
    """

    name: str
    level: str
    size: int
    capacity: int | None
    fields: tuple[Field, ...]
    leader: str = "active"
    budget: int | None = None
    line: int = 0
    type: str = "array"

    @property
    def stride(self) -> int:
        """Bytes from one record to the next."""
        return max(8, -(-self.size // 8) * 8)


@dataclass(frozen=True, slots=True)
class Register:
    """A register that the probes of a file share in each thread. `initial` is a constant in PTX, or nothing."""

    name: str
    type: str
    initial: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """Stores `values` to the fields of a record from number `first` on; `last` if the record is then complete."""

    map: str
    values: tuple[tree.Operand, ...]
    types: tuple[str, ...]  # as SAVE.u32 says, or the fields of the map; empty until that is known
    first: int = 0
    last: bool = True
    guard: tree.Guard | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A statement of a snippet and its line in the probe file."""

    node: tree.Instruction | tree.Label | Save
    line: int


@dataclass(frozen=True, slots=True)
class Snippet:
    """What runs before or after a position; declarations are in ProbeFile.registers."""

    lines: tuple[Line, ...]

    @property
    def saves(self) -> list[Save]:
        """Its SAVEs, in order."""
        return [line.node for line in self.lines if isinstance(line.node, Save)]

    @property
    def helpers(self) -> set[str]:
        """The helpers that it uses."""
        return {name for line in self.lines for name in names_of(line.node) if name in HELPERS}


@dataclass(frozen=True, slots=True)
class Position:
    """Where a probe goes. `kind` is kernel, opcode (`words` to find in the opcode), func, line or label.

    `words` are globs: for a line, the file and the number.
    """

    kind: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join(self.words) if self.kind == "opcode" else ":".join((self.kind, *self.words))


@dataclass(frozen=True, slots=True)
class Probe:
    """Code for positions. With `no_pred` it also runs if the guard of the instruction did not hold.

    `sample` is (`block` or `warp`, N): only one in N runs it.
    """

    name: str
    positions: tuple[Position, ...]
    level: str
    before: Snippet | None
    after: Snippet | None
    no_pred: bool = False
    sample: tuple[str, int] | None = None
    line: int = 0

    @property
    def snippets(self) -> list[tuple[str, Snippet]]:
        """`before` and `after`, those that are there."""
        return [(when, s) for when, s in (("before", self.before), ("after", self.after)) if s]


@dataclass(frozen=True, slots=True)
class ProbeFile:
    """A probe file. `callback` is what it wants to be run on the results: the path of a file, else as it is written,
    the name of an analysis or of a file that is absent. `source` is its text, `second` says that it's of Neutrino's
    second generation, as one in Python is.
    """

    path: str
    probes: tuple[Probe, ...]
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    callback: str | None = None
    source: str = field(default="", repr=False)
    second: bool = field(default=True, compare=False)

    def replaces(self, map_: Map) -> bool:
        """Whether each record that is saved to a map takes the place of the one before."""
        kinds = {
            position.kind
            for probe in self.probes
            for position in probe.positions
            if any(save.map == map_.name for _, snippet in probe.snippets for save in snippet.saves)
        }
        return map_.capacity == 1 and kinds <= {"kernel"}

    @property
    def script(self) -> str | None:
        """The file that is to be run."""
        return self.callback if self.callback and self.callback.startswith("/") else None

    def map(self, name: str) -> Map | None:
        """The map of that name."""
        return next((found for found in self.maps if found.name == name), None)


def names_of(node: tree.Instruction | tree.Label | Save | tree.Operand) -> Iterator[str]:
    """The names in a statement's guard and operands, registers and helpers and all, in order."""
    match node:
        case tree.Instruction():
            if node.guard:
                yield node.guard.register
            for operand in node.operands:
                yield from names_of(operand)
        case Save():
            if node.guard:
                yield node.guard.register
            for operand in node.values:
                yield from names_of(operand)
        case tree.Name():
            yield node.name
        case tree.Expression():
            for operand in node.operands:
                yield from names_of(operand)
        case tree.OperandGroup() | tree.Vector() | tree.Address():
            for operand in node.items:
                yield from names_of(operand)
        case tree.Prefixed():
            yield from names_of(node.operand)
        case tree.Apply():
            yield from names_of(node.function)
            yield from names_of(node.arguments)
        case tree.Index():
            yield from names_of(node.base)
            for index in node.indexes:
                yield from names_of(index)
        case _:
            pass


def layout(fields: list[tuple[str, str]]) -> tuple[tuple[Field, ...], int]:
    """Places named types one after the other, each aligned to its size: the fields, and their bytes in all."""
    placed, at = [], 0
    for name, type_ in fields:
        size = SIZES[type_]
        at = -(-at // size) * size
        placed.append(Field(name, type_, at))
        at += size
    return tuple(placed), at


def type_of_name(name: tree.Name, registers: dict[str, str]) -> str | None:
    """The type of a register, special register or helper; None of an operand's, whatever it is."""
    if name.name in HELPERS:
        return HELPERS[name.name]
    return registers.get(name.name) or SPECIAL.get(name.name)
