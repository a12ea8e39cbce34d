"""The model of a probe file: maps, registers, and probes with their snippets.

A snippet is PTX that can use helpers (HELPERS) as operands, SAVE to write the fields of a record, and RANGE to record
when a range begins or ends. The verifier checks these objects and the weaver lowers them. Neither knows whether the
file was TOML or Python.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpt.ptx import tree
from gpt.ptx.types import SIZES, SPECIAL

MAX_LINES = 512  # statements per snippet
LEVELS = ("thread", "warp", "block")
MAP_TYPES = ("array", "total", "histogram", "table")
EDGES = ("begin", "end")  # a range has these two
OPS = ("min", "max", "last")  # how a total combines the values of a field, other than by adding them
LEADERS = ("active", "lane0", "all")  # the lanes that save for a warp: the lowest active one, lane 0 if active, or all
HELPERS = {  # name: type; None stands for the type of the operand
    **dict.fromkeys(("OUT", "IN1", "IN2", "IN3", "IN4")),
    "ADDR": "u64",  # the address that the instruction accesses, offset included
    "BYTES": "u32",  # bytes moved by one lane
    "FLOPS": "u32",  # one lane's share of the arithmetic
    "ACTIVE": "u32",  # number of active lanes
    "PRED": "pred",  # the instruction's guard; true if it has none
    "CLOCK": "u64",  # clocks of this SM
    "TIME": "u64",  # ns, the same on all SMs
    "SMID": "u32",
    "WARPID": "u32",  # index of the warp in its block
    "LANEID": "u32",
    "BLOCK": "u64",  # index of the block in the grid, x first
}
SKIPPED = tree.Name("_")  # stands for a value in a SAVE to a total: the field stays as it is
SECTOR = 32  # GPUs write to memory in units of at least this many bytes
NO_OPS: Mapping[str, str] = {}
COUNTS = {"BYTES", "FLOPS"}  # mostly constants, so they can be used as u64 too
OPERANDS = {"OUT", "IN1", "IN2", "IN3", "IN4", "ADDR", "BYTES", "FLOPS"}  # they need an instruction


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a record, stored at `offset` in little-endian order. `op` is what a total or table does with the
    values: it's sum or one of OPS, or key for a field in the key of a table.
    """

    name: str
    type: str
    offset: int
    op: str = "sum"

    @property
    def size(self) -> int:
        """The size in bytes."""
        return SIZES[self.type]


class Scale(NamedTuple):
    """The bins of a histogram: each is `step` wide, from `low` to `high`, and there's one more bin for everything
    below, and one for everything above. If the step is 0, there's one bin for 0 and one for each number of bits.
    """

    low: int = 0
    high: int = 0
    step: int = 0

    def bins(self, size: int) -> int:
        """Return the number of bins for a value of `size` bytes."""
        return (self.high - self.low) // self.step + 2 if self.step else 1 + 8 * size


@dataclass(frozen=True, slots=True)
class Map:
    """A buffer for records. `capacity` is the number of records per thread, warp or block; for an append log, it's
    None, and `budget` is the size of the log in bytes. With a `ring`, each lane that saves keeps its last `ring`
    records, and `ranges` has the names of the ranges that RANGE saves.

    A `histogram` counts the values of its field in the bins of its `scale`. A `table` has `capacity` slots, each of
    which adds up the values that were saved with the same key. A `total` has a single record, which combines the values
    of all threads, or if there's a `leader`, of one lane for all that save together. Without `counts`, it doesn't count
    how often values were saved. `size` is the declared size of a record in bytes. `stride` is the size of its slot: a
    multiple of 8, or without `counts`, a multiple of SECTOR, so that no two records share a sector.
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
    counts: bool = True
    scale: Scale | None = None  # a histogram's bins
    ring: int | None = None
    ranges: tuple[str, ...] = ()

    @property
    def stride(self) -> int:
        """The distance in bytes from one record to the next."""
        if self.scale:
            return 8 * self.scale.bins(self.fields[0].size)
        return round_up(self.size, self.counts)


def round_up(size: int, counts: bool) -> int:
    """Return the size of the slot for a record of `size` bytes."""
    unit = 8 if counts else SECTOR
    return max(1, -(-size // unit)) * unit


@dataclass(frozen=True, slots=True)
class Register:
    """A register that the probes of a file share. Each thread has its own. `initial` is a PTX constant, or None."""

    name: str
    type: str
    initial: str | None = None
    line: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """Stores `values` in the fields of a record, beginning with field number `first`. If `last` is set, this completes
    the record. `mark` is the edge and the name of a range if this is a RANGE.
    """

    map: str
    values: tuple[tree.Operand, ...]
    types: tuple[str, ...]  # from SAVE.u32 or from the map's fields; empty until known
    first: int = 0
    last: bool = True
    guard: tree.Guard | None = None
    mark: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """A statement of a snippet and its line in the probe file."""

    node: tree.Instruction | tree.Label | Save
    line: int


@dataclass(frozen=True, slots=True)
class Snippet:
    """The code to run before or after a position; its declarations are in ProbeFile.registers."""

    lines: tuple[Line, ...]

    @property
    def saves(self) -> list[Save]:
        """The SAVEs in the snippet, in order."""
        return [line.node for line in self.lines if isinstance(line.node, Save)]

    @property
    def helpers(self) -> set[str]:
        """The helpers that it uses."""
        return {name for line in self.lines for name in names_of(line.node) if name in HELPERS}


@dataclass(frozen=True, slots=True)
class Position:
    """A place where a probe is inserted. `kind` is kernel, opcode (with the `words` to match), func, line or label.

    `words` are globs. For a line, they're the file and the line number.
    """

    kind: str
    words: tuple[str, ...] = ()

    def __str__(self) -> str:
        return ".".join(self.words) if self.kind == "opcode" else ":".join((self.kind, *self.words))


@dataclass(frozen=True, slots=True)
class Probe:
    """Code to insert at some positions. With `no_pred`, it runs even where the guard of the instruction is false.

    `sample` is (`block` or `warp`, N): the probe runs in only one of N.
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
        """The probe's snippets, with `before` or `after`."""
        return [(when, s) for when, s in (("before", self.before), ("after", self.after)) if s]

    def with_saves(self, change: Callable[[Save, int], Save]) -> Probe:
        """Return the probe with each SAVE replaced by `change(save, line)`."""

        def changed(snippet: Snippet | None) -> Snippet | None:
            return snippet and Snippet(
                tuple(
                    replace(line, node=change(line.node, line.line)) if isinstance(line.node, Save) else line
                    for line in snippet.lines
                )
            )

        return replace(self, before=changed(self.before), after=changed(self.after))


@dataclass(frozen=True, slots=True)
class ProbeFile:
    """A probe file. `callback` is the program or the analysis that processes the results: the path of a file, or if
    there's no such file, the name as written, which may be an analysis. `source` is the text of the file.
    `second` is True for the second generation of Neutrino's format, which all Python files use.
    """

    path: str
    probes: tuple[Probe, ...]
    maps: tuple[Map, ...]
    registers: tuple[Register, ...]
    callback: str | None = None
    source: str = field(default="", repr=False)
    second: bool = field(default=True, compare=False)

    def replaces(self, map_: Map) -> bool:
        """Return whether each record saved to a map replaces the previous one."""
        kinds = {
            position.kind
            for probe in self.probes
            for position in probe.positions
            if any(save.map == map_.name for _, snippet in probe.snippets for save in snippet.saves)
        }
        return map_.capacity == 1 and kinds <= {"kernel"}

    def saves_once(self, map_: Map) -> bool:
        """Return whether no thread can save to a map twice. That's so if its only SAVE is where the kernel ends, and
        outside of loops.
        """
        found = [
            (when, snippet)
            for probe in self.probes
            for when, snippet in probe.snippets
            for save in snippet.saves
            if save.map == map_.name and save.last
        ]
        straight = not any(isinstance(line.node, tree.Label) for _, snippet in found for line in snippet.lines)
        return self.replaces(map_) and len(found) == 1 and found[0][0] == "after" and straight

    @property
    def script(self) -> str | None:
        """The path of the callback if it's a file."""
        return self.callback if self.callback and self.callback.startswith("/") else None

    def map(self, name: str) -> Map | None:
        """Return the map with this name."""
        return next((found for found in self.maps if found.name == name), None)


def names_of(node: tree.Instruction | tree.Label | Save | tree.Operand) -> Iterator[str]:
    """Yield the names in the guard and the operands of a statement, such as registers and helpers, in order."""
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


def layout(fields: list[tuple[str, str]], ops: Mapping[str, str] = NO_OPS) -> tuple[tuple[Field, ...], int]:
    """Lay out fields one after the other, each aligned to its size. Return the fields and their size in bytes.

    `ops` has the operations of fields that a total doesn't add up.
    """
    placed, at = [], 0
    for name, type_ in fields:
        size = SIZES[type_]
        at = -(-at // size) * size
        placed.append(Field(name, type_, at, ops.get(name, "sum")))
        at += size
    return tuple(placed), at


def layout_slot(fields: list[tuple[str, str]], ops: Mapping[str, str]) -> tuple[tuple[Field, ...], int]:
    """Lay out a slot of a table: the count, then the fields of the key, with 8 bytes for each of their 32-bit words,
    and then the other fields, each aligned to its size. Return the fields in their original order, and the size of the
    slot in bytes.
    """
    keys = [name for name, _ in fields if ops.get(name) == "key"]
    types, places, at = dict(fields), dict[str, int](), 8
    for name in keys:
        places[name] = at
        at += 2 * SIZES[types[name]]
    for name in (name for name, _ in fields if name not in keys):
        size = SIZES[types[name]]
        places[name] = at = -(-at // size) * size
        at += size
    return tuple(Field(name, type_, places[name], ops.get(name, "sum")) for name, type_ in fields), -(-at // 8) * 8


def type_of_name(name: tree.Name, registers: dict[str, str]) -> str | None:
    """Return the type of a register, special register or helper. For helpers that have the type of an operand, return
    None.
    """
    if name.name in HELPERS:
        return HELPERS[name.name]
    return registers.get(name.name) or SPECIAL.get(name.name)
