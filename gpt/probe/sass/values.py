"""Find out which registers of a probe must be kept from one place to another, and which are constants."""

from __future__ import annotations

from gpt.probe.lower.registers import Names
from gpt.probe.model import ProbeFile, Save, names_of
from gpt.probe.plan.function import PlacedSnippet
from gpt.ptx import tree


def written_by(node: tree.Instruction | tree.Label | Save) -> set[str]:
    """Return the registers that a statement of a probe always writes."""
    if isinstance(node, tree.Instruction) and node.operands and node.guard is None:
        return set(names_of(node.operands[0]))
    return set()


def jumps(use: PlacedSnippet) -> bool:
    """Return whether a snippet may jump over some of its statements."""
    return any(isinstance(line.node, tree.Label) for line in use.snippet.lines)


def find_constants(file: ProbeFile, names: Names, uses: list[PlacedSnippet]) -> dict[str, str]:
    """Return the registers of a file that have the same constant value wherever a snippet begins.

    That's the value to which the snippet at the entry sets the register, or its initial value. No other snippet may
    change the register, except one at the exits, provided that no other snippet uses the register. If the snippet at
    the entry jumps, or only some of the snippets are sampled, it may not set the register for the others.
    """
    found: dict[str, str] = {}
    distinct = {(id(use.snippet), use.place.kind): use for use in uses}
    lines = [(use, line.node, set(names_of(line.node))) for use in distinct.values() for line in use.snippet.lines]
    for register in file.registers:
        name = register.name
        values: set[str | None] = {names.initial[name]} if name in names.initial else set()
        users: set[int] = set()
        samples = {use.probe.sample for use, _, named in lines if name in named}
        is_changed = is_kept = False
        for use, node, named in lines:
            if name not in named:
                continue
            if use.place.kind == "entry":
                values.add(None if jumps(use) else _constant(node))
                continue
            users.add(id(use.snippet))
            if isinstance(node, tree.Instruction) and node.operands and name in set(names_of(node.operands[0])):
                is_changed = True
                is_kept |= use.place.kind not in ("exit", "leave")
        value = next(iter(values)) if len(values) == 1 else None
        alone = not is_changed or (not is_kept and len(users) == 1)
        if alone and len(samples) == 1 and value is not None and names.types[name] != "pred":
            found[name] = value
    return found


def _constant(node: tree.Instruction | tree.Label | Save) -> str | None:
    """Return the constant to which a statement sets its register. Return None if it does anything else."""
    if isinstance(node, tree.Instruction) and node.opcode == "mov" and node.guard is None:
        target, source = node.operands
        return source.text if isinstance(target, tree.Name) and isinstance(source, tree.Number) else None
    return None
