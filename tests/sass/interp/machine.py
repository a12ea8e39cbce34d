"""Warps, blocks and grids: scheduling, and how lanes diverge and reconverge.

A warp's lanes are in *parts*, each with its own program counter. A part runs until it has to wait, ends or yields.
Which part runs next, and which side of a branch goes first, is random. Parts never join just because they reach the
same place; only these instructions join them (docs/sass-rules.md lists the facts measured on an H200):

    BSYNC B       waits for the lanes that BSSY put into B and that haven't exited or left by BREAK
    WARPSYNC      waits for the lanes of its mask
    WARPSYNC.COLLECTIVE   the same, up to ENDCOLLECTIVE, where they separate again
    BAR           waits for the block; the parts stay apart

YIELD, NANOSLEEP, WARPSYNC.ALL, and a WARPSYNC that has to wait remove the lanes that execute them from every barrier,
so no BSYNC waits for those lanes any more. That's how inserted code with one of these can break a kernel.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from gpt.sass.words import PT, SIZE, bits, control_of, guard_of
from tests.sass.interp import control
from tests.sass.interp.decode import Array
from tests.sass.interp.lanes import packed
from tests.sass.interp.memory import GlobalMemory, Space

if TYPE_CHECKING:
    from tests.sass.interp.launch import Block
    from tests.sass.interp.loader import LoadedCubin
    from tests.sass.interp.timing import Timing

LOCAL_BASE, LOCAL_SIZE = 0x1000, 0x4000
BURST = 20_000  # instructions before another part gets a turn, for code that spins without YIELD


class Stuck(Exception):
    """No part can continue: lanes wait for something that can't happen."""


@dataclass(eq=False)
class Part:
    """Lanes that run together."""

    place: int  # the address of the next instruction
    lanes: Array
    waits: tuple[str, int] | None = (
        None  # why it waits: ("bsync", barrier), ("warpsync", mask), ("collective", mask), "bar"
    )
    inside: list[Array] = field(default_factory=list)  # the parts joined in a collective


class Warp:
    """32 lanes. Lanes that the block doesn't have never run."""

    def __init__(self, block: Block, first: int, cubin: LoadedCubin, start: int, rng: np.random.Generator) -> None:
        self.block, self.cubin, self.rng = block, cubin, rng
        self.memory: GlobalMemory = block.launch.memory
        self.timing: Timing | None = block.launch.timing_of(self)
        self.R = rng.integers(0, 1 << 32, (256, 32), np.uint32)
        self.UR = rng.integers(0, 1 << 32, (256, 1), np.uint32)
        self.P = rng.integers(0, 2, (8, 32), np.uint8).astype(bool)
        self.UP = rng.integers(0, 2, (8, 1), np.uint8).astype(bool)
        self.P[PT] = self.UP[PT] = True
        self.barriers = [0] * 16  # masks of lanes
        self.local = Space(LOCAL_BASE, LOCAL_SIZE, rng, "local")
        self.local_data = rng.integers(0, 256, (32, LOCAL_SIZE), np.uint8)
        x, y, z = block.launch.block
        numbers = first + np.arange(32)
        self.exists = numbers < x * y * z
        self.thread = [n.astype(np.uint32) for n in (numbers % x, numbers // x % y, numbers // (x * y))]
        self.exited = ~self.exists
        self.parts = [Part(start, self.exists.copy())]
        self.current: Part | None = None
        self.waiting: list[Part] = []  # in the order in which they began to wait
        self.reduced = 0
        self.clock = int(rng.integers(0, 1 << 40))
        self.executed = 0
        self.burst = 0

    def constants(self, bank: int) -> Array:
        """Return a bank's bytes."""
        return self.block.launch.banks[bank]

    @property
    def done(self) -> bool:
        """True if all lanes have exited."""
        return not self.parts

    def can_run(self) -> bool:
        """Return whether some part doesn't wait."""
        return any(part.waits is None for part in self.parts)

    def split(self, part: Part, lanes: Array, place: int) -> Part:
        """Take lanes out of a part. Return a new part for them, which begins at `place`; without lanes, the part isn't
        added.
        """
        if (lanes.all() and part.lanes.all()) or (lanes == part.lanes).all():
            part.place = place
            return part
        part.lanes = part.lanes & ~lanes
        made = Part(place, lanes, inside=list(part.inside))
        if lanes.any():
            self.parts.append(made)
        return made

    def remove(self, part: Part) -> None:
        """Remove a part that's empty or has been joined with another."""
        self.parts.remove(part)
        if self.current is part:
            self.current = None

    def run(self, limit: int) -> None:
        """Execute up to this many instructions, or until no part can continue."""
        for _ in range(limit):
            part = self.current
            if part is None or part.waits or self.burst > BURST:
                ready = [one for one in self.parts if one.waits is None]
                if not ready:
                    return
                if self.burst <= BURST:
                    ready = self.awaited(ready)
                part = self.current = ready[int(self.rng.integers(len(ready)))]
                self.burst = 0
            self.step(part)

    def awaited(self, ready: list[Part]) -> list[Part]:
        """Return the parts that the last part to start waiting waits for, or all parts.

        Functions that save the barriers they use need this order: while some lanes are in the function, no others may
        reach the caller's BSYNC.
        """
        self.waiting = [part for part in self.waiting if part.waits and part in self.parts]
        for part in reversed(self.waiting):
            kind, value = part.waits or ("", 0)
            if kind != "bar":
                mask = self.barriers[value] if kind == "bsync" else value
                found = [one for one in ready if packed(one.lanes) & mask]
                if found:
                    return found
        return ready

    def step(self, part: Part) -> None:
        """Execute one instruction of a part."""
        word = self.cubin.words[part.place]
        entry = self.cubin.table.opcode(word)
        guard = guard_of(word)
        if guard.predicate == PT:
            taken = np.zeros(32, bool) if guard.negated else part.lanes
        else:
            by = self.UP if entry.operands and entry.operands[0].file == "UP" else self.P
            taken = part.lanes & (by[guard.predicate] ^ guard.negated)
        self.executed += 1
        self.burst += 1
        if self.timing:
            self.timing.issue(part.place, self.cubin.issue(part.place), taken)
        found = control.FLOW.get(entry.name)
        if found:
            found(self, part, taken, word, entry)
        else:
            uniform = entry.operands and entry.operands[0].file == "UP"
            mask = np.array([taken.any()]) if uniform else taken
            self.cubin.run(part.place)(self, mask)
            part.place += SIZE
        if self.timing:
            self.timing.finish()
        self.clock += max(1, control_of(word).stall)

    def number(self, word: int, place: int, lanes: Array) -> int:
        """Return the 32-bit register at a bit position of a word, as the first lane sees it."""
        register = bits(word, place, 8)
        return 0 if register == 255 else int(self.R[register][lanes][0])
