"""The facts that checking a trampoline tracks for each instruction, and what it needs to know about the kernel.

check_state.py explains the parts of State.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

from gpt.sass.check_saves import Copy
from gpt.sass.check_words import Renaming, find_renaming
from gpt.sass.code import Code
from gpt.sass.flow import Flights, InFlight
from gpt.sass.kernels import RESERVED, Kernel
from gpt.sass.masks import EVERY_REGISTER, STARTS
from gpt.sass.words import SIZE
from gpt.sass.woven import Declaration, Inserted, Moved, Trampoline

KERNEL = -1  # the part that's the kernel's own code
GENERAL = (1 << 255) - 1
SHARED = EVERY_REGISTER & ~(GENERAL | 127 << STARTS.P)  # shared by the lanes of a warp


class State(NamedTuple):
    """Facts before an instruction (check_state.py)."""

    own: int
    defined: int
    copies: frozenset[Copy]
    kernel: InFlight
    ours: InFlight
    pending: frozenset[tuple[int, int, int]]  # (registers, cycles left, part)
    meetings: tuple[int, ...]  # barriers of BSSYs whose BSYNC is still to come
    part: int  # part of the previous instruction; KERNEL at the beginning
    awaited: int = 0  # barriers that some word of the trampoline has awaited


def join(one: State | None, other: State) -> State | None:
    """Return what's known where two paths meet, or None if they can't."""
    if one is None or one == other:
        return other
    if one.meetings != other.meetings:
        return None
    return State(
        one.own & other.own,
        one.defined & other.defined,
        one.copies & other.copies,
        merge(one.kernel, other.kernel),
        merge(one.ours, other.ours),
        one.pending | other.pending,
        one.meetings,
        one.part if one.part == other.part else KERNEL,
        one.awaited & other.awaited,
    )


def merge(one: InFlight | None, other: InFlight) -> InFlight:
    """Return the union of two states, for a place where two paths meet."""
    if one is None or one is other or one == other:
        return other
    return InFlight(
        tuple([a | b for a, b in zip(one.writes, other.writes, strict=True)]),
        tuple([a | b for a, b in zip(one.reads, other.reads, strict=True)]),
        one.queued | other.queued,
        one.loose | other.loose,
        one.late | other.late,
    )


@dataclass
class Surroundings:
    """The kernel and the declaration, in the form in which every trampoline's check needs them."""

    original: Kernel
    new: Code
    declaration: Declaration
    flight: Flights  # the kernel's, with its amended instructions
    _renamings: dict[tuple[object, ...], Renaming] = field(default_factory=dict, repr=False)

    def renaming(self, part: Inserted) -> Renaming:
        """Return what the words of one of the declaration's parts must be."""
        key = id(part.snippet), id(part.names), part.guard  # the declaration keeps these objects
        found = self._renamings.get(key)
        if found is None:
            found = self._renamings[key] = find_renaming(part, self.new.table)
        return found

    @cached_property
    def usable(self) -> int:
        """The registers that the file's count allows, unless part of the kernel gives some back."""
        kernel = self.original
        count = kernel.kept if kernel.code.find({"USETMAXREG"}) else min(255, self.declaration.registers) - RESERVED
        return (1 << max(0, count)) - 1 | EVERY_REGISTER & ~GENERAL

    @cached_property
    def shared(self) -> int:
        """The registers that the lanes of a warp share and the kernel names."""
        return self.original.named & SHARED

    @cached_property
    def joins(self) -> set[int]:
        """The instructions in the code after the kernel's own that are targets of branches in that code."""
        code, first = self.new, len(self.original.code)
        branches = {number for number, decoder in code.used.items() if decoder.entry.name == "BRA"}
        found = {code[index].target for index in range(first, len(code)) if code.opcodes[index] in branches}
        return {target // SIZE for target in found if target is not None}

    @cached_property
    def _ordered_joins(self) -> list[int]:
        return sorted(self.joins)

    def list_joins(self, trampoline: Trampoline) -> list[int]:
        """Return the instructions of a trampoline that are targets of such branches."""
        ordered = self._ordered_joins
        return ordered[bisect_left(ordered, trampoline.start) : bisect_left(ordered, trampoline.end)]

    def needed(self, index: int) -> int:
        """Return the registers that must have the kernel's own values at one of its instructions: live registers, and
        uniform ones, since another lane may need them.
        """
        live = self.original.live
        return (live[index] if index < len(live) else 0) | self.original.steady


def registers_named(kernel: Kernel) -> int:
    """Return the registers that a kernel's instructions name, including the functions that it calls."""
    return kernel.named


def facts_of_parts(around: Surroundings, trampoline: Trampoline) -> list[tuple[int, int]]:
    """Return two sets for each part. The first one has the registers that the first moved instruction reads and no
    moved instruction wrote, so their values have arrived. The second one has the registers that are live at the
    kernel's next instruction.
    """
    masks, after = around.original.code.masks, trampoline.sources[-1] + 1
    needed = around.needed(after) if after < len(around.original.code) else 0
    live: list[int] = []  # backwards
    for part in reversed(trampoline.parts):
        if isinstance(part, Moved):
            needed = around.needed(part.source)
        live.append(needed)
    usable = masks[trampoline.sources[0]].reads
    found = []
    for part, one in zip(trampoline.parts, reversed(live), strict=True):
        found.append((usable, one))
        if isinstance(part, Moved):
            usable &= ~masks[part.source].writes
    return found
