"""How many cycles after an instruction of fixed latency its result may be used.

The hardware waits for nothing: if the reader issues too early, it gets the old value. ptxas knows the exact latency for
each pair of units (docs/sass-rules.md: 4 cycles within a unit, 5 from one to another, 13 from a comparison to a guard).
Inside a snippet its stalls are kept. Where snippets, moved instructions and the kernel's own meet, nobody has computed
them, so a distance is asked for that is enough for every reader: at least the longest that ptxas leaves for any pair of
this kind in PyTorch's kernels. A seam is rarely short of it, since a branch alone counts for 10 cycles.

`least` is the shortest distance that ptxas leaves for any pair of the kind: nothing of its own is below.
"""

from __future__ import annotations

from gpt.sass.masks import STARTS
from gpt.sass.tables import Opcode

BRANCH_CYCLES = 10  # a branch with any stall (docs/sass-rules.md)
_GENERAL = (1 << STARTS.UR) - 1
_DOUBLE = {"DADD", "DFMA", "DMUL", "DSETP"}
_TENSOR = {"HMMA", "IMMA", "BMMA", "DMMA"}
LONGEST = 36


def safe_cycles(opcode: Opcode, written: int) -> int:
    """Return after how many cycles anything may use the registers that an instruction writes, or overwrite them."""
    if opcode.variable:
        return 0
    if opcode.name in _TENSOR:
        return LONGEST
    if opcode.name in _DOUBLE:
        return 18
    return 15 if written & ~_GENERAL else 7
