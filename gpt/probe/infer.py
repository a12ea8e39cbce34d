"""The shared registers of the second generation, `%NR0`, `%PD0`: nobody declares them, their use tells their type."""

from __future__ import annotations

import re
from dataclasses import replace

from gpt.errors import GptError
from gpt.probe.model import SIZES, Probe, Register, Save
from gpt.probe.types import fits, types_of
from gpt.ptx import tree

_SHARED = re.compile(r"%[A-Z]{2,}\d+")  # no compiler names registers so


def infer_types(probes: list[Probe], declared: list[Register], path: str) -> list[Register]:
    """The declared registers and those that need no declaration. Raises GptError where uses disagree."""
    known = {register.name: register for register in declared}
    found: dict[str, Register] = {}
    for probe in probes:
        for _, snippet in probe.snippets:
            for line in snippet.lines:
                if isinstance(line.node, tree.Instruction):
                    uses = list(zip(line.node.operands, types_of(line.node), strict=True))
                    if line.node.guard:
                        uses.append((tree.Name(line.node.guard.register), "pred"))
                elif isinstance(line.node, Save):
                    uses = list(zip(line.node.values, line.node.types, strict=False))
                else:
                    continue
                for operand, type_ in uses:
                    if not isinstance(operand, tree.Name) or operand.name in known or type_ is None:
                        continue
                    if _SHARED.fullmatch(operand.name):
                        first = found.setdefault(operand.name, Register(operand.name, type_, None, line.line))
                        if SIZES[first.type] != SIZES[type_]:
                            fact = f"'{operand.name}' is .{type_} here and .{first.type} in line {first.line}"
                            raise GptError(f"probe '{probe.name}': {fact}", f"{path}:{line.line}")
                        if not fits("mov", first.type, type_):  # a float in one place: plain bits hold either
                            found[operand.name] = replace(first, type=f"b{SIZES[type_] * 8}")
    return declared + list(found.values())
