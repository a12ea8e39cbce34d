"""Add constants once for all instructions that run one after the other.

Many probes only count: at each load, gmem_bytes adds the number of bytes to a register. Between two jumps, either all
instructions run or none does. So instead of one addition for each load, the sum is added at one of them: the first one
where the trampoline fits.

A guard decides which lanes run an instruction. So instructions share an addition only if they have the same guard, and
nothing writes its predicate between them. Nor may any other code of the probe use the register between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpt.probe.plan.function import PlacedSnippet
from gpt.probe.sass.lowering import Lowered
from gpt.sass.kernels import Kernel
from gpt.sass.masks import STARTS

_MOST = (1 << 31) - 1  # the largest constant of an addition


@dataclass(eq=False)
class Sum:
    """Snippets of which only one is woven, with the sums of the constants that they add. Most sums have one member."""

    members: list[PlacedSnippet]
    addends: tuple[int, ...]
    failures: int = 0
    is_woven: bool = False

    def fail(self) -> list[PlacedSnippet]:
        """Note that it can't be woven at one of its members. If none is left, return them all."""
        self.failures += 1
        return self.members if self.failures == len(self.members) else []


def find_sums(kernel: Kernel, lowered: Sequence[tuple[PlacedSnippet, Lowered]]) -> dict[int, Sum]:
    """Return the sum of each snippet, by the id of its use."""
    found = {id(use): Sum([use], one.body.addends) for use, one in lowered}
    open_sums: dict[tuple[object, ...], tuple[int, Sum]] = {}  # each with the place of its last member
    looked_at: dict[tuple[int, str], int] = {}  # registers, and the last place where something else uses them
    masks = kernel.code.masks
    for use, one in sorted(lowered, key=lambda pair: pair[0].place.number):
        index, mine = use.place.number, found[id(use)]
        registers = [(use.file, name) for name in one.kept]
        if not mine.addends:
            looked_at |= dict.fromkeys(registers, index)
            continue
        guard = kernel.code[index].guard
        key = use.file, one.body.text, guard, kernel.graph.block_at(index)
        before, known = open_sums.get(key, (index, mine))
        if known is not mine:
            totals = tuple(map(int.__add__, known.addends, mine.addends))
            changed = 0 if guard.always else 1 << STARTS.P + guard.predicate
            is_seen = any(looked_at.get(register, -1) >= before for register in registers)
            if not is_seen and max(totals) <= _MOST and not any(one.writes & changed for one in masks[before:index]):
                known.members.append(use)
                known.addends = totals
                mine = found[id(use)] = known
        open_sums[key] = index, mine
    return found
