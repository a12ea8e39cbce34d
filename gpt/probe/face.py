"""Faces: the PTX instructions that probes see, whatever the program's instruction set.

A kernel may have hundreds of loads that look alike except for their registers, offsets and labels. They share a face,
in which these parts are slots: probes are matched and lowered once per face, and then the slots are filled in for each
instruction. A slot is a character outside of Latin-1. Modules are Latin-1 and probe code is ASCII, so nothing in them
can be mistaken for a slot.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpt.probe.model import OPERANDS, Snippet, names_of
from gpt.probe.operands import Bound, Descriptor, Partial
from gpt.ptx import tree

FIRST_SLOT, SLOTS = 0xE000, 6400  # the private use area
_SLOT = re.compile(f"%?([{chr(FIRST_SLOT)}-{chr(FIRST_SLOT + SLOTS - 1)}])")


class Template:
    """Text with slots."""

    def __init__(self, text: str) -> None:
        self._parts = _SLOT.split(text)
        self._slots = [ord(slot) - FIRST_SLOT for slot in self._parts[1::2]]

    def fill(self, values: Sequence[str]) -> str:
        """Replace the slots with these values, by number."""
        parts = self._parts.copy()
        parts[1::2] = [values[slot] for slot in self._slots]
        return "".join(parts)


@dataclass(frozen=True, eq=False)
class Face:
    """An instruction with slots, its operands as helpers, and the types of the slots that stand for registers."""

    instruction: tree.Instruction
    bound: Bound
    types: dict[str, str | None]

    def iter_reads(self, snippet: Snippet) -> Iterator[tree.Operand]:
        """Yield the operands that a snippet reads through helpers, and that must have their values from before the
        instruction.
        """
        bound = self.bound
        for helper in snippet.helpers & (OPERANDS - {"OUT"}):
            match helper:
                case "ADDR":
                    found: tree.Operand | int | None = bound.address
                case "BYTES":
                    found = bound.bytes.read if isinstance(bound.bytes, Partial) else bound.bytes
                case "FLOPS":
                    found = bound.flops.register if isinstance(bound.flops, Descriptor) else None
                case _:
                    found = bound.operand(helper)
            if found is not None and not isinstance(found, int):
                yield found

    def find_overwritten(self, snippet: Snippet) -> list[str]:
        """Return the registers that the instruction overwrites, although the snippet after it needs their previous
        values.
        """
        node = self.instruction
        if not node.operands or isinstance(node.operands[0], tree.Address):
            return []
        asked = {name for operand in self.iter_reads(snippet) for name in names_of(operand)}
        if node.guard:
            asked.add(node.guard.register)
        return [name for name in dict.fromkeys(names_of(node.operands[0])) if name in asked]
