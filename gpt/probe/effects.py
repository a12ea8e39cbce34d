"""Find out how the snippets of a file use its registers and maps, wherever the snippets are woven in.

A register belongs to a snippet if no other snippet uses it, and the snippet writes it before it reads it. All other
registers are shared: each thread keeps their values from one snippet to the next.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpt.probe.forms import counts
from gpt.probe.model import Probe, ProbeFile, Snippet, names_of
from gpt.ptx import tree


def acts(snippet: Snippet, file: ProbeFile) -> bool:
    """Return whether a snippet does more than set the registers of its file: whether it saves, or has an effect that
    isn't verified.
    """
    nodes = [line.node for line in snippet.lines]
    own = {register.name for register in file.registers} | {n.name for n in nodes if isinstance(n, tree.Label)} | {"_"}
    instructions = (node for node in nodes if isinstance(node, tree.Instruction))
    return any(save.last for save in snippet.saves) or any(
        node.opcode not in counts() or not node.operands or not set(names_of(node.operands[0])) <= own
        for node in instructions
    )


def cooperating(file: ProbeFile) -> list[list[Probe]]:
    """Group the probes of a file: probes that share a register are in the same group."""
    registers = {register.name for register in file.registers}
    groups: list[tuple[set[str], list[Probe]]] = []
    for probe in file.probes:
        named = {n for _, snippet in probe.snippets for line in snippet.lines for n in names_of(line.node)} & registers
        joined = [group for group in groups if group[0] & named]
        groups = [group for group in groups if group not in joined]
        groups.append((named.union(*(g[0] for g in joined)), [p for g in joined for p in g[1]] + [probe]))
    return [probes for _, probes in groups]


def find_zeros(file: ProbeFile, snippets: Iterable[Snippet]) -> set[str]:
    """Return the registers of a file that are always 0 if only these snippets of it run."""
    initial = {register.name: register.initial for register in file.registers if register.initial}
    zeros = {name for name, value in initial.items() if value == "0"}
    others = initial.keys() - zeros
    for snippet in snippets:
        for line in snippet.lines:
            if isinstance(line.node, tree.Instruction) and line.node.operands:
                cleared = line.node.opcode == "mov" and line.node.operands[1:] == (tree.Number("0"),)
                (zeros if cleared else others).update(names_of(line.node.operands[0]))
    return zeros - others


def find_own_registers(file: ProbeFile) -> dict[tuple[str, str], set[str]]:
    """Return the registers that belong to each snippet, by the name of its probe and `before` or `after`."""
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
