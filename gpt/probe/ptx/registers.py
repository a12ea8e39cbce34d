"""Name the registers of a probe file in the program, and find the registers that are local to a snippet."""

from __future__ import annotations

import re

from gpt.probe.model import ProbeFile, names_of
from gpt.ptx import tree

_WORD = re.compile(r"\W", re.ASCII)


class Names:
    """The names of a probe file's registers in the program."""

    def __init__(self, file: ProbeFile, prefix: str) -> None:
        self.types = {register.name: register.type for register in file.registers}
        for map_ in file.maps:  # values that partial SAVEs keep for the last one
            for number, field in enumerate(map_.fields):
                self.types[part_name(map_.name, number)] = f"b{max(16, field.size * 8)}"
        self.names: dict[str, str] = {}
        taken: set[str] = set()
        for name in self.types:
            plain = f"%{prefix}{_WORD.sub('_', name.removeprefix('%'))}"
            while plain in taken:
                plain += "_"
            taken.add(plain)
            self.names[name] = plain
        self.initial = {r.name: r.initial for r in file.registers if r.initial is not None}
        self.own = _own_registers(file)
        self.zeros: set[str] = set()  # registers that are always 0


def part_name(map_: str, number: int) -> str:
    """Return the register for a field of a record that several SAVEs fill."""
    return f"{map_}[{number}]"


def _own_registers(file: ProbeFile) -> dict[tuple[str, str], set[str]]:
    """Return each snippet's local registers: no other snippet uses them, and they're written before they're read."""
    users: dict[str, set[tuple[str, str]]] = {}
    first: dict[tuple[str, str], set[str]] = {}
    for probe in file.probes:
        for when, snippet in probe.snippets:
            seen: set[str] = set()
            straight = True
            written = first.setdefault((probe.name, when), set())
            for line in snippet.lines:
                node = line.node
                straight &= not isinstance(node, tree.Label)
                for name in names_of(node):
                    users.setdefault(name, set()).add((probe.name, when))
                if isinstance(node, tree.Instruction) and node.operands and straight and not node.guard:
                    reads = {name for operand in node.operands[1:] for name in names_of(operand)}
                    written |= set(names_of(node.operands[0])) - reads - seen
                    straight &= node.opcode != "bra"
                seen |= set(names_of(node))
    with_initial = {register.name for register in file.registers if register.initial is not None}
    return {key: {name for name in names if users[name] == {key}} - with_initial for key, names in first.items()}
