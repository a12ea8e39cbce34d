"""Infer the types of shared registers that aren't declared (`%NR0`, `%PD0` in the second generation) from how they're
used.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypeGuard

from gpt.base.errors import GptError
from gpt.probe.model import Probe, Register, Save
from gpt.ptx import tree
from gpt.ptx.types import SIZES, fits, types_of

_SHARED = re.compile(r"%[A-Z]{2,}\d+")  # compilers don't use such names


def infer_types(probes: list[Probe], declared: list[Register], path: str) -> list[Register]:
    """Return the declared registers and the inferred ones. Raises GptError if the uses of a register contradict each
    other.

    The type follows from instructions. A register that's only saved gets the type of the field.
    """
    known = {register.name for register in declared}
    found: dict[str, Register] = {}
    lines = [(probe, line) for probe in probes for _, snippet in probe.snippets for line in snippet.lines]
    for probe, line in lines:
        for operand, type_ in _uses(line.node):
            if type_ is None or not _is_shared(operand) or operand.name in known:
                continue
            first = found.setdefault(operand.name, Register(operand.name, type_, None, line.line))
            if SIZES[first.type] != SIZES[type_]:
                fact = f"'{operand.name}' is .{type_} here and .{first.type} in line {first.line}"
                raise GptError(f"probe '{probe.name}': {fact}", f"{path}:{line.line}")
            if not fits("mov", first.type, type_):  # a float in one place: registers without a type can hold either
                found[operand.name] = replace(first, type=f"b{SIZES[type_] * 8}")
    for _, line in lines:
        if isinstance(line.node, Save):
            for value, type_ in zip(line.node.values, line.node.types, strict=False):
                if _is_shared(value) and value.name not in known:
                    found.setdefault(value.name, Register(value.name, type_, None, line.line))
    return declared + list(found.values())


def _is_shared(operand: tree.Operand) -> TypeGuard[tree.Name]:
    return isinstance(operand, tree.Name) and _SHARED.fullmatch(operand.name) is not None


def _uses(node: tree.Instruction | tree.Label | Save) -> list[tuple[tree.Operand, str | None]]:
    """Return the operands of an instruction, including its guard, with their types."""
    if not isinstance(node, tree.Instruction):
        return []
    guard: list[tuple[tree.Operand, str | None]] = [(tree.Name(node.guard.register), "pred")] if node.guard else []
    return [*zip(node.operands, types_of(node), strict=True), *guard]
