"""The facts that differ between architectures, apart from their instruction tables.

Each fact shows in the code that ptxas generates for an empty kernel and for a kernel that loads a parameter;
`gpt.sass.derive.facts` looks the facts up there and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gpt.base.errors import GptError


@dataclass(frozen=True)
class SassArch:
    """Facts about the machine code of one architecture."""

    name: str
    parameters: int  # their offset in constant bank 0
    descriptor: int  # offset of global memory's descriptor in constant bank 0, 64 bits
    stack_pointer: int  # its initial value in constant bank 0
    entry: str  # a kernel's first instruction, which loads the stack pointer; sm_80 to sm_89: IMAD (IMAD.MOV) or MOV
    uniform_bits: int  # bits of a uniform register number; all bits set mean URZ
    branch: str  # the form of a branch's distance (gpt/sass/words.py)
    proven: bool  # True if woven code has run on hardware

    @cached_property
    def register_bits(self) -> dict[str, int]:
        """The bits of a register number, by register file."""
        return {"R": 8, "UR": self.uniform_bits, "P": 3, "UP": 3, "B": 4}


ARCHS = {
    arch.name: arch
    for arch in (
        SassArch("sm_80", 0x160, 0x118, 0x28, "IMAD", 6, "whole", False),
        SassArch("sm_86", 0x160, 0x118, 0x28, "IMAD", 6, "whole", False),
        SassArch("sm_89", 0x160, 0x118, 0x28, "IMAD", 6, "whole", False),
        SassArch("sm_90", 0x210, 0x208, 0x28, "LDC", 6, "split", True),
        SassArch("sm_100", 0x380, 0x358, 0x37C, "LDC", 8, "split", False),
        SassArch("sm_120", 0x380, 0x358, 0x37C, "LDC", 8, "split", False),
    )
}


def arch_of(name: str) -> SassArch:
    """Return the facts for `sm_90` or `sm_90a`. Raises GptError for an architecture without a table."""
    arch = ARCHS.get(name.rstrip("af"))
    if arch is None:
        raise GptError(f"no instruction table for {name} (there are {', '.join(ARCHS)})")
    return arch
