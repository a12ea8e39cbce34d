"""Compute the cycles until the result of a fixed-latency instruction may be used.

The hardware waits for nothing: a reader that issues too early gets the old value. ptxas knows the exact latency for
each pair of units (docs/sass-rules.md: 4 cycles within a unit, 5 from one to another, 13 from a comparison to a guard).
Inside a snippet, ptxas's stalls are kept. Where snippets, moved instructions and the kernel's own code meet, there are
no computed stalls, so we require a distance that's enough for every reader. tests/sass/hazards.py compares it with the
distances that ptxas leaves in PyTorch's kernels. A transition rarely needs an extra stall, since a branch alone takes
10 cycles.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.sass.code import Code
from gpt.sass.graph import Graph
from gpt.sass.masks import STARTS
from gpt.sass.tables import Opcode
from gpt.sass.words import SIZE

BRANCH_CYCLES = 10  # a branch with any stall (docs/sass-rules.md)
_GENERAL = (1 << STARTS.UR) - 1
_SLOW = {"DADD", "DFMA", "DMUL", "DSETP", "HFMA2"}
_TENSOR = {"HMMA", "IMMA", "BMMA", "DMMA"}
LONGEST = 36
LATE_GUARD = 5  # how many of these cycles may be left when a guard is read, because ptxas leaves 13


def find_unscheduled(code: Code) -> int | None:
    """Return the first instruction that writes a register and has a stall of 0, or None.

    ptxas 13.5 gives all instructions a stall of 0 and no barriers when it doesn't optimize (-O0, -g). Something else
    must make the next instruction wait then, and nobody knows what. Only chains of tensor instructions have a stall of
    0 elsewhere.
    """
    stalls, index = code.controls.stalls, -1
    for _ in range(stalls.count(0)):
        index = stalls.index(0, index + 1)
        if code.masks[index].writes and code[index].name not in _TENSOR:
            return index
    return None


def describe_unscheduled(code: Code) -> str:
    """Describe the first instruction that writes a register but has a stall of 0. Return "" if there's none."""
    index = find_unscheduled(code)
    return "" if index is None else f"{code[index].name} at {SIZE * index:#x} has a stall of 0"


def iter_safe(opcode: Opcode, written: int) -> Iterator[tuple[int, int]]:
    """Yield the registers that an instruction writes, and the cycles until anything may use or overwrite each."""
    if opcode.variable:
        return
    general, others = written & _GENERAL, written & ~_GENERAL
    if general:
        yield general, LONGEST if opcode.name in _TENSOR else 18 if opcode.name in _SLOW else 7
    if others:
        yield others, 18 if opcode.name in _SLOW else 15


def find_longest(code: Code) -> int:
    """Return the most cycles that any of these instructions takes until anything may use its result."""
    entries = [decoder.entry for decoder in code.used.values()]
    return max((cycles for entry in entries for _, cycles in iter_safe(entry, -1)), default=0)


def iter_late(code: Code, graph: Graph, first: int, longest: int = LONGEST) -> Iterator[tuple[int, int]]:
    """Yield registers that may not have been written yet after a branch that replaces instruction `first`, each with
    the number of cycles until its value arrives. No value takes longer than `longest`.
    """
    seen: dict[int, int] = {}
    stalls, masks, used, opcodes = code.controls.stalls, code.masks, code.used, code.opcodes
    left = [(first, BRANCH_CYCLES)]
    while left:
        index, elapsed = left.pop()
        block = graph.block_at(index)
        start = graph.blocks[block].start
        while seen.get(index, longest) > elapsed:
            seen[index] = elapsed
            before = [index - 1] if index > start else [graph.blocks[k].end - 1 for k in graph.predecessors[block]]
            for other in before:
                passed = elapsed + stalls[other]
                for written, cycles in iter_safe(used[opcodes[other]].entry, masks[other].writes):
                    if cycles > passed:
                        yield written, cycles - passed
                if index == start:
                    left.append((other, passed))
            if index == start:
                break
            index, elapsed = index - 1, passed
