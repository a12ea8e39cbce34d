"""Proves a probe harmless, or refuses it with its file and line.

What is not listed is refused. A snippet computes: arithmetic, logic, comparisons and conversions over registers that
the probes of its file declared, special registers, constants and helpers. It reads the program through helpers only
and writes nothing of it; SAVE is its one way out, and the weaver lowers that within the map's bounds. It has no memory
access, no shuffle, vote, barrier, call or exit. It branches forward, to a label of its own, or back in a loop whose
count is plain (loops.py).

Two things look like computing and are not: the carry flag (`add.cc`, `addc`) is the program's, which may be between
its own two halves of a sum, and `bra.uni` promises for all lanes what a probe cannot know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpt.errors import GptError
from gpt.probe.loops import find_fault
from gpt.probe.model import COUNTS, HELPERS, MAX_LINES, OPERANDS, SIZES, Probe, ProbeFile, Save, Snippet
from gpt.probe.operands import PARTS, Bound
from gpt.probe.types import FLOAT, SPECIAL, VECTORS, fits, integer, type_of_name, types_of
from gpt.ptx import tree

_OPERANDS = {  # how many operands, at least and at most, an opcode has: what is not here is not allowed
    (1, 1): "activemask bra",
    (2, 2): "abs neg rcp sqrt rsqrt sin cos lg2 ex2 tanh popc clz bfind brev not cnot testp mov isspacep",
    (2, 4): "cvt",
    (3, 3): "add sub mul mul24 div rem and or xor shl shr copysign bmsk szext",
    (3, 4): "min max setp set",
    (4, 4): "mad mad24 fma sad fns bfe dp4a dp2a selp slct shf prmt",
    (5, 5): "bfi",
    (5, 6): "lop3",
}
ALLOWED = {opcode: counts for counts, opcodes in _OPERANDS.items() for opcode in opcodes.split()}
_MODIFIERS = """
    lo hi wide sat ftz rn rz rm rp rna rni rzi rmi rpi approx full relu noftz xorsign abs NaN pack satfinite
    eq ne lt le gt ge ls hs equ neu ltu leu gtu geu num nan and or xor
    l r wrap clamp shiftamt f4e b4e rc8 rc16 ecl ecr
    finite infinite number notanumber normal subnormal
    global shared local const param
"""
WORDS = set(_MODIFIERS.split())  # beside types, which are in _TYPE
_TYPE = re.compile(r"[busf](8|16|32|64)(x2)?|pred|bf16(x2)?|tf32|f16x2")


def verify(file: ProbeFile) -> None:
    """Proves every probe of a file harmless. Raises GptError for the first thing that is not."""
    registers = {register.name: register.type for register in file.registers}
    for register in file.registers:
        if register.name in HELPERS or register.name in SPECIAL or register.name == "SAVE":
            raise GptError(f"register '{register.name}' has a name that is taken", f"{file.path}:{register.line}")
    for probe in file.probes:
        for when, snippet in probe.snippets:
            _Check(file, probe, when, snippet, registers).run()
    for map_ in file.maps:
        if not any(save.map == map_.name for probe in file.probes for _, s in probe.snippets for save in s.saves):
            raise GptError(f"map '{map_.name}': no probe saves to it", f"{file.path}:{map_.line}")


def find_misfit(probe: Probe, bound: Bound) -> str | None:
    """Why a probe cannot run at an instruction that its position matched, or None: what its helpers lack there."""
    for _, snippet in probe.snippets:
        for helper in sorted(snippet.helpers):
            if not bound.has(helper):
                mapped = helper == "BYTES" and bound.address is not None and len(bound.address.items) > 1
                return f"has no {helper}{', which its tensor map knows' * mapped}"
        for line in snippet.lines:
            for operand, wanted, loose in _uses(line.node):
                helper, part = operand.name, "".join(operand.parts)
                found = bound.operand(helper, part)
                if found is None:
                    return f"has no {operand}"
                bits, room = bound.width(helper, part), SIZES[wanted] * 8 or 1
                if bits and bits != room and (not loose or bits > room or bits == 1 or wanted[0] == "f"):
                    return f"{operand} has {bits} bit{'s' * (bits > 1)}, and line {line.line} wants {room}"
    return None


def parts_of(operand: tree.Operand, wanted: str | None) -> list[tuple[tree.Operand, str | None]]:
    """An operand's registers and their types: two results, or the parts of a vector."""
    match operand:
        case tree.Expression(operands, operators) if set(operators) == {"|"} and wanted == "pred":
            return [(part, wanted) for part in operands]
        case tree.Vector(items) if wanted and len(items) in (2, 4) and SIZES[wanted] >= 2 * len(items):
            return [(part, f"b{SIZES[wanted] * 8 // len(items)}") for part in items]
    return [(operand, wanted)]


def _uses(node: tree.Instruction | tree.Label | Save) -> Iterator[tuple[tree.Name, str, bool]]:
    """OUT and IN1 to IN4 where a type is wanted of them, and whether less than that will do: a field takes it."""
    match node:
        case tree.Instruction():
            pairs = list(zip(node.operands, types_of(node), strict=True)) if node.opcode != "cvt" else []
        case Save():
            pairs = list(zip(node.values, node.types, strict=False))
        case _:
            return
    for pair in pairs:
        for operand, wanted in parts_of(*pair):
            if isinstance(operand, tree.Name) and wanted and HELPERS.get(operand.name, "") is None:
                yield operand, wanted, isinstance(node, Save)


class _Check:
    """One snippet under the eye of the verifier."""

    def __init__(self, file: ProbeFile, probe: Probe, when: str, snippet: Snippet, registers: dict[str, str]) -> None:
        self.file, self.probe, self.when, self.snippet, self.registers = file, probe, when, snippet, registers
        self.labels: dict[str, int] = {}
        self.line = probe.line

    def refuse(self, fact: str) -> GptError:
        return GptError(f"probe '{self.probe.name}': {fact}", f"{self.file.path}:{self.line}")

    def run(self) -> None:
        lines = self.snippet.lines
        if len(lines) > MAX_LINES:
            raise self.refuse(f"{len(lines)} statements; the limit is {MAX_LINES}")
        for number, line in enumerate(lines):
            if isinstance(line.node, tree.Label):
                self.line = line.line
                if line.node.name in self.labels:
                    raise self.refuse(f"label '{line.node.name}' stands twice")
                self.labels[line.node.name] = number
        for line in lines:
            self.line = line.line
            if isinstance(line.node, Save):
                self.guard(line.node.guard)
                self.save(line.node)
            elif isinstance(line.node, tree.Instruction):
                self.guard(line.node.guard)
                self.instruction(line.node)
        for number, line in enumerate(lines):  # each is known to be well-formed now
            if isinstance(line.node, tree.Instruction) and line.node.opcode == "bra":
                self.line = line.line
                self.branch(line.node, number)

    def guard(self, guard: tree.Guard | None) -> None:
        if guard and guard.register != "PRED" and self.registers.get(guard.register) != "pred":
            raise self.refuse(f"guard '{guard.register}' is no predicate of this file")

    def instruction(self, node: tree.Instruction) -> None:
        if node.opcode not in ALLOWED:
            raise self.refuse(f"'{node.opcode}' is not allowed in a probe")
        for modifier in node.modifiers:
            if modifier[1:] not in WORDS and not _TYPE.fullmatch(modifier[1:]):
                raise self.refuse(f"'{node.name}' is not allowed in a probe")
        least, most = ALLOWED[node.opcode]
        if node.opcode in ("set", "setp"):  # the last one goes with an operator
            least = most = 3 + any(modifier in (".and", ".or", ".xor") for modifier in node.modifiers)
        if not least <= len(node.operands) <= most:
            raise self.refuse(f"'{node}' has {len(node.operands)} operands")
        if node.opcode == "bra":
            return
        if None in types_of(node):
            raise self.refuse(f"'{node}' lacks a type")
        for place, (operand, wanted) in enumerate(zip(node.operands, types_of(node), strict=True)):
            parts = parts_of(operand, wanted)
            for part, type_ in parts:
                if part == tree.Name("_") and place == 0 and len(parts) > 1:
                    continue  # one of two results is not wanted
                if place == 0:
                    self.written(part)
                self.read(part, type_, node.opcode)

    def written(self, operand: tree.Operand) -> None:
        if not isinstance(operand, tree.Name) or operand.parts or operand.name == "_":
            raise self.refuse(f"writes '{operand}', which is no register")
        if operand.name in HELPERS or operand.name in SPECIAL:
            raise self.refuse(f"writes '{operand}', which can only be read")
        if operand.name not in self.registers:
            raise self.refuse(f"writes program register '{operand}'")

    def read(self, operand: tree.Operand, wanted: str | None, opcode: str = "SAVE") -> None:
        """Refuses an operand that is not the probe's to read, or of another type than is wanted."""
        if texts := _numbers(operand):
            for text in texts:
                self.number(text, wanted)
            return
        match operand:
            case tree.Name("WARP_SZ", ()):
                return
            case tree.Name(name, parts):
                if name in HELPERS:
                    if parts and (HELPERS[name] or parts[0] not in PARTS or len(parts) > 1):
                        raise self.refuse(f"'{operand}' is no helper")
                    self.helper(name)
                elif name in SPECIAL:
                    if parts not in (((".x",), (".y",), (".z",)) if name in VECTORS else ((),)):
                        raise self.refuse(f"'{operand}' is no special register")
                elif name not in self.registers or parts:
                    raise self.refuse(f"reads program register '{operand}'" if name[0] == "%" else f"reads '{operand}'")
                given = type_of_name(operand, self.registers)
                if name in COUNTS and wanted in ("u64", "s64", "b64"):
                    given = wanted
                if wanted and given and not fits(opcode, wanted, given):
                    raise self.refuse(f"'{operand}' is .{given}, where .{wanted} is wanted")
            case tree.Prefixed(("!",), tree.Name() as inner) if wanted == "pred":
                self.read(inner, wanted, opcode)
            case tree.Address() | tree.Index():
                raise self.refuse(f"accesses memory, '{operand}'")
            case _:
                raise self.refuse(f"'{operand}' has no place in a probe")

    def number(self, text: str, wanted: str | None) -> None:
        """Refuses what ptxas takes for no number, or for one of another type."""
        if FLOAT.fullmatch(text):
            bits = {"f": "b32", "d": "b64"}.get(text[1:2].lower())
            is_fit = wanted in (None, "f32", "f64", bits)
        else:
            value = integer(text)
            if value is None:
                raise self.refuse(f"'{text}' is no number of 64 bits")
            is_fit = wanted is None or (wanted[0] in "usb" and value < 1 << 8 * SIZES[wanted])
        if not is_fit:
            raise self.refuse(f"'{text}' where .{wanted} is wanted")

    def helper(self, name: str) -> None:
        kinds = {position.kind for position in self.probe.positions}
        if name in OPERANDS and kinds & {"kernel", "func", "label"}:
            where = next(str(p) for p in self.probe.positions if p.kind in ("kernel", "func", "label"))
            raise self.refuse(f"'{name}' at position '{where}', which is no instruction")
        if name in OPERANDS and "line" in kinds:
            raise self.refuse(f"'{name}' at the position of a line, which may be many instructions")
        if name == "OUT" and self.when == "before":
            raise self.refuse("'OUT' before the instruction that makes it")

    def save(self, node: Save) -> None:
        map_ = self.file.map(node.map)
        if map_ is None:
            raise self.refuse(f"saves to '{node.map}', which is no map of this file")
        others = [other for _, snippet in self.probe.snippets for other in snippet.saves]
        if not (node.first == 0 and node.last) and any(other.guard != node.guard for other in others):
            raise self.refuse("SAVEs of one record have different guards")
        if map_.level != self.probe.level:
            raise self.refuse(f"of level {self.probe.level} saves to map '{map_.name}' of level {map_.level}")
        fields = map_.fields[node.first : node.first + len(node.values)]
        if len(fields) < len(node.values) or (node.last and node.first + len(node.values) != len(map_.fields)):
            raise self.refuse(f"saves {len(node.values)} values, map '{map_.name}' has {len(map_.fields)} fields")
        for value, field in zip(node.values, fields, strict=True):
            if isinstance(value, tree.Vector):
                raise self.refuse(f"saves '{value}', which is no register")
            given = type_of_name(value, self.registers) if isinstance(value, tree.Name) else None
            if isinstance(value, tree.Name) and value.name in COUNTS and field.size >= 4 and field.type[0] != "f":
                given = field.type
            if given == "pred":
                raise self.refuse(f"saves predicate '{value}'")
            if map_.type == "total" and (given, field.type) == ("u32", "u64"):
                given = field.type  # a sum may be wider than what it is of
            if given and not fits("SAVE", field.type, given):
                raise self.refuse(f"saves '{value}', .{given}, as field '{field.name}' of type {field.type}")
            self.read(value, field.type if _numbers(value) else None)

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


def _numbers(operand: tree.Operand) -> list[str]:
    """The numbers of a constant expression; none of anything else."""
    match operand:
        case tree.Number(text):
            return [text]
        case tree.Prefixed(_, inner):
            return _numbers(inner)
        case tree.Expression(operands, _) | tree.Group(operands):
            found = [_numbers(part) for part in operands]
            return [text for part in found for text in part] if all(found) else []
    return []
