"""A kernel of a cubin as a function of the program, as seen by probes.

gpt/sass/faces.py says which PTX instruction stands for a machine instruction. Here, it gets operands whose names say
what they are: `%out0`, `%in0`, `%addr`, `%guard`. So instructions that differ only in registers and offsets share a
face, and the code of a probe is compiled once for all of them. `find_source` returns which registers of the site a name
stands for. Operands that aren't in registers have a name but no source; a probe that reads one is left out there.

A section contains the kernel and the functions that it calls. They're treated as a single function, with all EXITs in
it as its exits. There are no labels and no source lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from typing import NamedTuple

from gpt.probe.face import Face
from gpt.probe.model import ProbeFile
from gpt.probe.operands import bind
from gpt.probe.plan.function import Function
from gpt.ptx.quick import parse_instruction
from gpt.ptx.tree import Label
from gpt.sass.check_words import UNMOVABLE
from gpt.sass.code import Instruction
from gpt.sass.faces import OPCODES, UNIFORM, find_face
from gpt.sass.kernels import Kernel
from gpt.sass.words import bits

RZ, URZ = 255, 63
_HAS_UNIFORM = 91  # a bit in accesses to shared memory
GUARD, ADDRESS = "%guard", "%addr"
ONCE = "%once"  # true only in the lowest lane
SIZE, UNITS = "%size", "%units"  # bytes in a bulk copy, and its size as machine code has it
UNIFORM_GUARD = "%uguard"  # a predicate that isn't specific to a lane
COPIED = {4: 4, 5: 8, 6: 16}  # bytes that an LDGSTS copies, by its width bits
_VECTOR = re.compile(r"\.v([24])\.")
_WIDE = re.compile(r"\.[busf]64$")
_RESULT, _ADDRESS, _DATA, _SWAP = 16, 24, 32, 64  # bit positions of register fields in memory instructions


class Source(NamedTuple):
    """The source of an operand's value: one or two registers, beginning with `register`, possibly plus a
    uniform register.
    """

    register: int
    width: int
    uniform: int | None = None


class Statement(NamedTuple):
    """An instruction. If it has no face or is unreachable, its kind is `other`. `width` is the size of a copy in
    bytes.
    """

    kind: str
    head: str
    guard: str
    width: int = 0


OTHER = Statement("other", "", "")


class SassFunction(Function):
    """A kernel's section."""

    def __init__(self, name: str, statements: list[Statement], seen: Iterable[int] | None = None) -> None:
        """Take the instructions."""
        super().__init__(name, True, statements, seen)

    @classmethod
    def of(cls, kernel: Kernel, files: Iterable[ProbeFile]) -> SassFunction:
        """Return a kernel's function, in which the probes of `files` find their places."""
        statements = [OTHER] * len(kernel.code)
        found = kernel.code.find(_find_names(files))
        for index in found:
            statements[index] = _statement(kernel, kernel.code[index])
        return cls(kernel.name, statements, found)

    def find_face(self, number: int) -> tuple[Face, list[str]]:
        """Return the face of an instruction. It has no slots."""
        statement = self.statements[number]
        return make_face(statement.head, statement.guard, statement.width), []

    def find_plain(self, number: int) -> Face:
        """Return the face of an instruction as if it had no guard."""
        statement = self.statements[number]
        return make_face(statement.head, "", statement.width)

    def _falls_off(self) -> bool:
        return False


def _find_names(files: Iterable[ProbeFile]) -> set[str]:
    """Return the names of all instructions that these probes may match."""
    found = {"EXIT"}
    for position in (position for file in files for probe in file.probes for position in probe.positions):
        if position.kind == "opcode":
            found |= _find_matching(position.words[0])
    return found


@cache
def _find_matching(pattern: str) -> frozenset[str]:
    """Return the names of all instructions whose face may begin with a word that the pattern matches."""
    return frozenset(
        name for name, opcodes in OPCODES.items() if any(fnmatchcase(opcode, pattern) for opcode in opcodes)
    )


def _statement(kernel: Kernel, one: Instruction) -> Statement:
    face = find_face(one)
    if not face or not kernel.graph.reaches(one.index):
        return OTHER
    guard = list_guards(one.name)[0 if one.guard.always else 1 + one.guard.negated]
    size = COPIED[bits(one.word, 73, 3)] if one.name == "LDGSTS" else 0
    return Statement("instruction", face, guard, size)


def list_guards(name: str) -> tuple[str, str, str]:
    """Return the guards of the faces of an instruction: if it has none, if it has one, and if that is negated."""
    if name in UNIFORM:
        return f"@{ONCE}", f"@{UNIFORM_GUARD}", f"@{UNIFORM_GUARD}"
    return ("", "", "") if name == "EXIT" else ("", f"@{GUARD}", f"@!{GUARD}")


@cache
def make_face(head: str, guard: str, size: int = 0) -> Face:
    """Return the face of instructions with this opcode and this guard."""
    outs, ins, address = _shape(head)
    operands = [_together(outs)] if outs else []
    values = [_together(ins)] if ins else []
    if address:
        operands += [*values, f"[{ADDRESS}]"] if head.startswith("cp.async") else [f"[{ADDRESS}]", *values]
    elif head.startswith("bra"):
        operands = ["$L"]
    else:
        operands += values
    if head.startswith("mbarrier"):
        is_silent = "::cluster" in head or (ins and not head.startswith("mbarrier.arrive"))
        operands = [f"[{ADDRESS}]", *ins] if not outs else ["_" if is_silent else outs[0], f"[{ADDRESS}]", *ins]
    if ".bulk" in head:
        operands = [f"[{ADDRESS}]", SIZE] if ".prefetch" in head else ["[%to]", f"[{ADDRESS}]", SIZE]
        if ".tensor" in head:
            operands = ["[%map, {%at}]"] if ".prefetch" in head else ["[%to]", "[%map, {%at}]"]
    elif head.startswith("cp."):
        operands = ["[%to]", f"[{ADDRESS}]", str(size)]
    if head.startswith("atom") and ".cas." in head:
        operands = [outs[0], f"[{ADDRESS}]", "%in0", "%in1"]
    instruction = parse_instruction(f"{guard} {head} {', '.join(operands)};")
    assert not isinstance(instruction, Label)
    wide = "b64" if _WIDE.search(head) else "b32"
    types: dict[str, str | None] = dict.fromkeys([*outs, *ins], wide)
    types |= {"%to": "b32", ADDRESS: "b32" if _is_shared(head) else "b64", SIZE: "b32", UNITS: "b32"}
    types |= dict.fromkeys((GUARD, ONCE, UNIFORM_GUARD), "pred")
    return Face(instruction, bind(instruction), types)


def _is_shared(head: str) -> bool:
    return (".shared" in head and not head.startswith("cp.")) or ".local" in head


def _together(names: list[str]) -> str:
    return names[0] if len(names) == 1 else "{" + ", ".join(names) + "}"


def _shape(head: str) -> tuple[list[str], list[str], bool]:
    """Return the names of the results and values, and whether there's an address."""
    opcode, *modifiers = head.split(".")
    vector = _VECTOR.search(head + ".")
    count = int(vector[1]) if vector else 1
    outs, ins = [f"%out{k}" for k in range(count)], [f"%in{k}" for k in range(count)]
    match opcode:
        case "ld":
            return outs, [], True
        case "st":
            return [], ins, True
        case "red":
            return [], ["%in0"], True
        case "atom":
            return ["%out0"], ["%in0", "%in1"] if "cas" in modifiers else ["%in0"], True
        case "cp":
            return [], [], True
        case "ldmatrix" | "stmatrix":
            number = next(int(word[1:]) for word in modifiers if word[0] == "x" and word[1:].isdigit())
            names = [f"%{'out' if opcode == 'ldmatrix' else 'in'}{k}" for k in range(number)]
            return (names, [], True) if opcode == "ldmatrix" else ([], names, True)
        case "mma" | "wgmma":
            return ["%out0"], ["%in0", "%in1", "%in2"] if opcode == "mma" else ["%in0", "%in1"], False
        case "mbarrier":
            takes = {"expect_tx", "complete_tx"} & {*modifiers} or "noComplete" in modifiers
            return ["%out0"] * ("arrive" in head), ["%in0"] * bool(takes), True
        case "bar" if "red" in modifiers:
            return ["%out0"], ["%in0"], False
        case "bar":
            return [], ["%in0"], False
        case "brx":
            return [], ["%in0"], False
    return [], [], False


def find_source(one: Instruction, head: str, name: str) -> Source | None:
    """Return the registers that hold an operand of an instruction's face. Return None if it isn't in registers."""
    opcode = head.partition(".")[0]
    if one.name in UNIFORM:
        return Source(RZ, 1, bits(one.word, 64, 6)) if name == UNITS and ".tensor" not in head else None
    if opcode not in ("ld", "st", "red", "atom", "cp", "ldmatrix", "stmatrix", "mbarrier"):
        return None
    if name == ADDRESS:
        count = next((c for low, c in _operands(one) if low == _ADDRESS), 0)
        if opcode == "cp" or not _is_shared(head) or not bits(one.word, _HAS_UNIFORM, 1):
            return Source(bits(one.word, _ADDRESS, 8), count) if count else None
        return Source(bits(one.word, _ADDRESS, 8), 1, _find_uniform(one))
    width = 2 if _WIDE.search(head) else 1
    number = int(name[-1]) if name[-1].isdigit() else 0
    if name.startswith("%out"):
        first = bits(one.word, _RESULT, 8)
    elif name.startswith("%in"):
        swaps = opcode == "atom" and ".cas." in head
        first = bits(one.word, _SWAP if swaps and number == 1 else _DATA, 8)
        number = 0 if swaps else number
    else:
        return None
    return Source(first + width * number if first != RZ else RZ, width)


def _find_uniform(one: Instruction) -> int | None:
    """Return the uniform register that an instruction reads. Return None if it's URZ, or if the encoding has none."""
    for operand in one.entry.operands:
        if operand.file == "UR" and operand.low is not None and operand.reads.of(one.word) == 1:
            number = bits(one.word, operand.low, 6)
            return number if number != URZ else None
    return None


def find_offset(one: Instruction) -> int:
    """Return the offset that a memory instruction adds to its address."""
    return bits(one.word, 40, 24) - (bits(one.word, 63, 1) << 24)


def _operands(one: Instruction) -> list[tuple[int, int]]:
    """Return the general registers that an instruction reads: the bit position of each number, and how many registers
    there are from that one on.
    """
    return [(o.low, o.reads.of(one.word)) for o in one.entry.operands if o.file == "R" and o.low is not None]


def find_obstacle(kernel: Kernel, index: int) -> str | None:
    """Return why an instruction can't be moved to a trampoline, as a phrase that follows 'an instruction', or None if
    it can.
    """
    one = kernel.code[index]
    if one.name in UNMOVABLE:
        return f"{one.name}, which can't be moved"
    return None
