"""Prove that a probe is harmless, or reject it with its file and line.

Only listed instructions are allowed. A snippet computes: arithmetic, logic, comparisons and conversions on registers
that its file declares, special registers, constants and helpers. It reads values of the program only through helpers,
and never writes them. Its only output is SAVE, which the weaver keeps within the bounds of the map. It can't access
memory, shuffle, vote, call, exit, or wait at a barrier. It can branch forward to one of its own labels, and back in a
loop whose number of iterations is limited (bounds.py).

Two kinds of instructions look harmless, but are rejected. `add.cc` and `addc` use the carry flag, which belongs to the
program, and the program may be in the middle of a sum. `bra.uni` promises that all lanes agree, which a probe can't
know.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.base.errors import GptError
from gpt.base.printable import printable
from gpt.probe import constants
from gpt.probe.bounds import find_fault
from gpt.probe.forms import counts, forms, words
from gpt.probe.model import (
    COUNTS,
    HELPERS,
    MAX_LINES,
    OPERANDS,
    SKIPPED,
    Probe,
    ProbeFile,
    Save,
    Snippet,
    type_of_name,
)
from gpt.probe.operands import PARTS, Bound
from gpt.ptx import tree
from gpt.ptx.types import (
    BYTES,
    PACKED,
    SIZES,
    SPECIAL,
    VECTORS,
    fits,
    integer,
    is_packed,
    takes_no_constant,
    types_of,
)

UNDECLARED = "register '{}' is not declared in the probe, which can't use the program's"
_TAKEN = {*HELPERS, "SAVE", "WARP_SZ", "_"}


def verify(file: ProbeFile) -> None:
    """Prove that every probe of a file is harmless. Raises GptError for the first violation."""
    registers = {register.name: register.type for register in file.registers}
    for register in file.registers:
        if register.name in _TAKEN or register.name in SPECIAL:
            raise GptError(f"register '{register.name}' has a name that is taken", f"{file.path}:{register.line}")
    for probe in file.probes:
        for when, snippet in probe.snippets:
            _Check(file, probe, when, snippet, registers).run()
    for map_ in file.maps:
        if not any(save.map == map_.name for probe in file.probes for _, s in probe.snippets for save in s.saves):
            raise GptError(printable(f"map '{map_.name}': no probe saves to it"), f"{file.path}:{map_.line}")


def find_misfit(probe: Probe, bound: Bound) -> str | None:
    """Return why a probe can't run at an instruction that its position matched, naming the missing helper, or None if
    it can run.
    """
    for _, snippet in probe.snippets:
        for helper in sorted(snippet.helpers):
            if not bound.has(helper):
                why = ""
                if helper == "BYTES" and bound.address is not None and len(bound.address.items) > 1:
                    why = ", which its tensor map knows"
                elif helper == "OUT" and bound.pending:
                    why = f" yet: its result is there after {bound.pending}"
                return f"has no {helper}{why}"
        for line in snippet.lines:
            for operand, wanted, loose in _uses(line.node):
                helper, part = operand.name, "".join(operand.parts)
                found = bound.operand(helper, part)
                if found is None:
                    return f"has no {operand}"
                bits, room = bound.width(helper, part), SIZES[wanted] * 8 or 1
                if bits and bits != room and (not loose or bits > room or bits == 1 or wanted[0] == "f"):
                    unit = "bit" if bits == 1 else "bits"
                    return f"{operand} has {bits} {unit}, and line {line.line} expects {room}"
    return None


def parts_of(operand: tree.Operand, wanted: str | None) -> list[tuple[tree.Operand, str | None]]:
    """Yield the registers in an operand, with their types: two results, or the elements of a vector."""
    match operand:
        case tree.Expression(operands, operators) if set(operators) == {"|"} and wanted == "pred":
            return [(part, wanted) for part in operands]
        case tree.Vector(items) if wanted and len(items) in (2, 4) and SIZES[wanted] >= 2 * len(items):
            return [(part, f"b{SIZES[wanted] * 8 // len(items)}") for part in items]
    return [(operand, wanted)]


def _uses(node: tree.Instruction | tree.Label | Save) -> Iterator[tuple[tree.Name, str, bool]]:
    """Yield the helpers OUT and IN1 to IN4 that a statement uses, with the type that each must have, and whether a
    narrower type is accepted, as for a field of a record.
    """
    match node:
        case tree.Instruction():
            pairs = list(zip(node.operands, types_of(node), strict=True))
            if node.opcode == "cvt":  # it converts integers of any size
                pairs = [pair for pair in pairs if (pair[1] or "")[:1] == "f"]
        case Save():
            pairs = list(zip(node.values, node.types, strict=False))
        case _:
            return
    for pair in pairs:
        for operand, wanted in parts_of(*pair):
            if isinstance(operand, tree.Name) and wanted and HELPERS.get(operand.name, "") is None:
                yield operand, wanted, isinstance(node, Save)


class _Check:
    """The verification of one snippet."""

    def __init__(self, file: ProbeFile, probe: Probe, when: str, snippet: Snippet, registers: dict[str, str]) -> None:
        self.file, self.probe, self.when, self.snippet, self.registers = file, probe, when, snippet, registers
        self.labels: dict[str, int] = {}
        self.line = probe.line

    def refuse(self, fact: str) -> GptError:
        return GptError(printable(f"probe '{self.probe.name}': {fact}"), f"{self.file.path}:{self.line}")

    def run(self) -> None:
        lines = self.snippet.lines
        if len(lines) > MAX_LINES:
            raise self.refuse(f"{len(lines)} statements; the limit is {MAX_LINES}")
        for number, line in enumerate(lines):
            if isinstance(line.node, tree.Label):
                self.line = line.line
                if line.node.name in self.labels:
                    raise self.refuse(f"label '{line.node.name}' is defined twice")
                self.labels[line.node.name] = number
        for line in lines:
            self.line = line.line
            if isinstance(line.node, Save):
                self.guard(line.node.guard)
                self.save(line.node)
            elif isinstance(line.node, tree.Instruction):
                self.guard(line.node.guard)
                self.instruction(line.node)
        for number, line in enumerate(lines):  # here, each line is known to be well-formed
            if isinstance(line.node, tree.Instruction) and line.node.opcode == "bra":
                self.line = line.line
                self.branch(line.node, number)

    def guard(self, guard: tree.Guard | None) -> None:
        if guard and guard.register != "PRED" and self.registers.get(guard.register) != "pred":
            raise self.refuse(f"guard '{guard.register}' is not a predicate of this file")

    def instruction(self, node: tree.Instruction) -> None:
        count = len(node.operands)
        if node.opcode not in counts():
            raise self.refuse(f"'{node.opcode}' is not allowed in a probe")
        if any(modifier[1:] not in words() for modifier in node.modifiers):
            raise self.refuse(f"'{node.name}' is not allowed in a probe")
        if count not in counts()[node.opcode]:
            raise self.refuse(f"'{node}' has {count} operands")
        if (node.name, count) not in forms():
            if any((node.name, other) in forms() for other in counts()[node.opcode]):
                raise self.refuse(f"'{node}' has {count} operands")
            untyped = node.opcode != "bra" and None in types_of(node)
            raise self.refuse(f"'{node}' lacks a type" if untyped else f"'{node.name}' is not allowed in a probe")
        if node.opcode == "bra":
            return
        strict = any(modifier[1:] in PACKED for modifier in node.modifiers)  # registers can't be larger then
        for place, (operand, wanted) in enumerate(zip(node.operands, types_of(node), strict=True)):
            parts = parts_of(operand, wanted)
            self.form(node, place)
            for part, type_ in parts:
                if part == tree.Name("_") and place == 0 and len(parts) > 1:
                    continue  # one of the two results is discarded
                if place == 0:
                    self.written(part)
                self.read(part, type_, "" if strict else node.opcode)

    def form(self, node: tree.Instruction, place: int) -> None:
        """Raise an error for an operand that breaks a rule of its opcode, as opposed to a rule of its type."""
        operand, packed = node.operands[place], is_packed(node, place)
        match operand:
            case tree.Vector(items):
                packs = node.opcode == "mov" and node.modifiers[0][1] == "b"
                is_fit = packs and items and not (place and isinstance(node.operands[0], tree.Vector))
                is_fit = is_fit and any(item != tree.Name("_") for item in items)
            case tree.Expression(_, operators) if "|" in operators and not tree.is_constant(operand):
                is_fit = place == 0 and node.opcode == "setp" and node.modifiers[-1] not in (".f16", ".bf16")
            case tree.Name() if packed and (type_of_name(operand, self.registers) or "b")[0] != "b":
                raise self.refuse(f"'{operand}' is not a register of plain bits, as '{node.name}' requires")
            case tree.Number(text) if place in BYTES.get(node.opcode, ()):
                value = integer(text)
                is_fit = value is not None and value < 256
            case _ if tree.is_constant(operand):
                is_fit = not takes_no_constant(node, place)
            case _:
                is_fit = node.opcode != "lop3" or place != 4
        if not is_fit:
            raise self.refuse(f"'{node}' does not take '{operand}'")

    def written(self, operand: tree.Operand) -> None:
        if not isinstance(operand, tree.Name) or operand.parts or operand.name == "_":
            raise self.refuse(f"writes '{operand}', which is not a register")
        if operand.name in HELPERS or operand.name in SPECIAL:
            raise self.refuse(f"writes '{operand}', which can only be read")
        if operand.name not in self.registers:
            raise self.refuse(UNDECLARED.format(operand))

    def read(self, operand: tree.Operand, wanted: str | None, opcode: str = "SAVE") -> None:
        """Raise an error for an operand that the probe may not read, or that has the wrong type."""
        if tree.is_constant(operand):
            if fault := constants.find_fault(operand, wanted):
                raise self.refuse(fault)
            return
        match operand:
            case tree.Name(name, parts):
                if name in HELPERS:
                    if parts and (HELPERS[name] or parts[0] not in PARTS or len(parts) > 1):
                        raise self.refuse(f"'{operand}' is not a helper")
                    self.helper(name)
                elif name in SPECIAL:
                    if parts not in (((".x",), (".y",), (".z",)) if name in VECTORS else ((),)):
                        raise self.refuse(f"'{operand}' is not a special register")
                elif name not in self.registers or parts:
                    raise self.refuse(UNDECLARED.format(operand) if name[0] == "%" else f"reads '{operand}'")
                given = type_of_name(operand, self.registers)
                if name in COUNTS and wanted in ("u64", "s64", "b64"):
                    given = wanted
                if wanted and given and not fits(opcode, wanted, given):
                    raise self.refuse(f"'{operand}' is .{given}, where .{wanted} is expected")
            case tree.Prefixed(("!",), tree.Name() as inner) if wanted == "pred":
                self.read(inner, wanted, opcode)
            case tree.Address() | tree.Index():
                raise self.refuse(f"accesses memory, '{operand}'")
            case _:
                raise self.refuse(f"a probe may not use '{operand}'")

    def helper(self, name: str) -> None:
        kinds = {position.kind for position in self.probe.positions}
        if name in OPERANDS and kinds & {"kernel", "func", "label"}:
            where = next(str(p) for p in self.probe.positions if p.kind in ("kernel", "func", "label"))
            raise self.refuse(f"'{name}' at position '{where}', which is not an instruction")
        if name in OPERANDS and "line" in kinds:
            raise self.refuse(f"'{name}' at the position of a line, which may be many instructions")
        if name == "OUT" and self.when == "before":
            raise self.refuse("'OUT' before the instruction that makes it")

    def save(self, node: Save) -> None:
        map_ = self.file.map(node.map)
        if map_ is None:
            raise self.refuse(f"saves to '{node.map}', which is not a map of this file")
        others = [other for _, snippet in self.probe.snippets for other in snippet.saves]
        if not (node.first == 0 and node.last) and any(other.guard != node.guard for other in others):
            raise self.refuse("SAVEs of one record have different guards")
        if map_.level != self.probe.level:
            raise self.refuse(f"of level {self.probe.level} saves to map '{map_.name}' of level {map_.level}")
        fields = map_.fields[node.first : node.first + len(node.values)]
        if len(fields) < len(node.values) or (node.last and node.first + len(node.values) != len(map_.fields)):
            raise self.refuse(f"saves {len(node.values)} values, map '{map_.name}' has {len(map_.fields)} fields")
        if all(value == SKIPPED for value in node.values):
            raise self.refuse("saves nothing")
        for value, field in zip(node.values, fields, strict=True):
            if value == SKIPPED and map_.type == "total":
                continue
            if isinstance(value, tree.Vector):
                raise self.refuse(f"saves '{value}', which is not a register")
            given = type_of_name(value, self.registers) if isinstance(value, tree.Name) else None
            if isinstance(value, tree.Name) and value.name in COUNTS and field.size >= 4 and field.type[0] != "f":
                given = field.type
            if given == "pred":
                raise self.refuse(f"saves predicate '{value}'")
            if map_.type != "array" and (given, field.type) == ("u32", "u64"):
                given = field.type  # a sum may be wider than its terms
            if given and not fits("SAVE", field.type, given):
                raise self.refuse(f"saves '{value}', .{given}, as field '{field.name}' of type {field.type}")
            self.read(value, field.type if tree.is_constant(value) else None)

    # Branches

    def branch(self, node: tree.Instruction, number: int) -> None:
        match node.operands:
            case (tree.Name(label, ()),) if label in self.labels:
                lines = [line.node for line in self.snippet.lines]
                begin = self.labels[label]
                if begin <= number and (fault := find_fault(lines, begin, number)):
                    raise self.refuse(f"{fault}, '{node}'")
            case _:
                raise self.refuse(f"branches out of itself, '{node}'")
