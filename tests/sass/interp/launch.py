"""Launches: blocks, their barriers and shared memory, and the order in which warps run."""

from __future__ import annotations

import struct
from collections.abc import Callable

import numpy as np

from tests.sass.interp import (
    accesses,
    atomics,
    bitwise,
    bulk,
    conversions,
    doubles,
    floats,
    halves,
    integers,
    lanes,
    matrices,
)
from tests.sass.interp.decode import Array
from tests.sass.interp.lanes import packed
from tests.sass.interp.loader import LoadedCubin, constants
from tests.sass.interp.machine import LOCAL_BASE, LOCAL_SIZE, Stuck, Warp
from tests.sass.interp.memory import LOCAL_WINDOW, GlobalMemory, Space
from tests.sass.interp.timing import Timing

MODULES = (accesses, atomics, bitwise, bulk, conversions, doubles, floats, halves, integers, lanes, matrices)
Size = tuple[int, int, int]
TURN = 200  # instructions of a warp at a time
AT_ONCE = 4  # blocks that run concurrently


class Block:
    """The warps of a block, and the state that they share."""

    def __init__(self, launch: Launch, index: Size) -> None:
        self.launch, self.index = launch, index
        size = accesses.SHARED_START + launch.shared
        self.shared = Space(0, -(-size // 16) * 16, launch.rng, "shared")
        self.shared.valid[: accesses.SHARED_START] = False
        x, y, z = launch.block
        start = launch.cubin.entry(launch.kernel)
        firsts = range(0, x * y * z, 32)
        self.warps = [Warp(self, first, launch.cubin, start, launch.rng) for first in firsts]
        self.arrived: dict[int, dict[Warp, int]] = {}  # by barrier: the number of lanes of each warp
        self.counts: dict[int, int] = {}
        self.phases: dict[int, bulk.Phase] = {}  # by the address of an mbarrier
        self.votes: dict[int, list[int]] = {}
        self.reductions: dict[int, int] = {}

    def arrive(self, warp: Warp, taken: Array, number: int, count: int, vote: tuple[int, int] | None) -> None:
        """Record that lanes have arrived at a barrier of the block, which waits for `count` threads (0 for all)."""
        lanes_of = self.arrived.setdefault(number, {})
        lanes_of[warp] = lanes_of.get(warp, 0) | packed(taken)
        self.counts[number] = count
        if vote:
            self.votes.setdefault(number, []).append(vote[0].bit_count())
            self.reductions[number] = vote[1]
        self.release()

    def release(self) -> None:
        """Open each barrier at which enough lanes have arrived. Exited lanes count as arrived when the others of their
        warp have.
        """
        for number, lanes_of in list(self.arrived.items()):
            count = self.counts[number]
            complete = {one: mask | packed(one.exited) == 0xFFFFFFFF for one, mask in lanes_of.items()}
            if count:
                there = sum(32 for one in lanes_of if complete[one])
                enough = there >= count
            else:
                enough = all(one.done or complete.get(one, False) for one in self.warps)
            if enough:
                self._open(number)

    def _open(self, number: int) -> None:
        lanes_of = self.arrived.pop(number)
        votes = self.votes.pop(number, None)
        result = None
        if votes is not None:
            total = sum(votes)
            everyone = sum(mask.bit_count() for mask in lanes_of.values())
            result = (total, int(total == everyone), int(total > 0))[self.reductions[number]]
        for warp in lanes_of:
            if result is not None:
                warp.reduced = result
            for part in warp.parts:
                if part.waits == ("bar", number):
                    part.waits = None
                    part.place += 16


class Launch:
    """A launch of a kernel."""

    def __init__(
        self,
        cubin: LoadedCubin,
        kernel: str,
        memory: GlobalMemory,
        *,
        grid: Size,
        block: Size,
        parameters: bytes,
        rng: np.random.Generator,
        dynamic: int = 0,
        strict: bool = False,
    ) -> None:
        self.cubin, self.kernel, self.memory, self.rng = cubin, kernel, memory, rng
        self.grid, self.block = grid, block
        self.shared = cubin.shared_size(kernel) + dynamic
        self.strict = strict
        self.early: list[str] = []  # messages about registers read or overwritten too early
        arch = cubin.table.arch
        bank = bytearray(arch.parameters + len(parameters))
        struct.pack_into("<6I", bank, 0, *block, *grid)
        struct.pack_into("<QI", bank, 0x20, LOCAL_WINDOW, LOCAL_BASE + LOCAL_SIZE)
        struct.pack_into("<Q", bank, 0xD0, cubin.place_constants(memory))
        bank[arch.parameters :] = parameters
        self.banks = constants(cubin, kernel, cubin.place_variables(memory), bytes(bank))
        self.executed = 0

    def timing_of(self, warp: Warp) -> Timing | None:
        """Return the clock of a warp, if timing is simulated."""
        return Timing(warp, self.early) if self.strict else None

    def run(self, limit: int = 200_000, watch: Callable[[Warp], None] | None = None) -> None:
        """Run all blocks, a few at once. Raises Stuck, MemoryFault, Unimplemented."""
        x, y, z = self.grid
        left = [(i % x, i // x % y, i // (x * y)) for i in range(x * y * z)]
        self.rng.shuffle(left)
        active: list[Block] = []
        with np.errstate(all="ignore"):
            while left or active:
                while left and len(active) < AT_ONCE:
                    active.append(Block(self, tuple(map(int, left.pop()))))
                ready = [warp for block in active for warp in block.warps if warp.can_run()]
                if not ready:
                    raise Stuck("\n".join(_describe(warp) for block in active for warp in block.warps))
                for index in self.rng.permutation(len(ready)):
                    before = ready[index].executed
                    ready[index].run(int(self.rng.integers(1, TURN)))
                    self.executed += ready[index].executed - before
                    if watch:
                        watch(ready[index])
                if self.executed > limit:
                    raise Stuck(f"{limit:,} instructions, and no end")
                active = [block for block in active if not all(warp.done for warp in block.warps)]


def _describe(warp: Warp) -> str:
    parts = ", ".join(f"{packed(one.lanes):08x} at {one.place:#x} waits for {one.waits}" for one in warp.parts)
    masks = " ".join(f"B{n}={mask:08x}" for n, mask in enumerate(warp.barriers) if mask)
    return f"block {warp.block.index}: {masks} {parts or 'done'}"


def run(cubin: LoadedCubin, kernel: str, memory: GlobalMemory, **how) -> Launch:
    """Run a kernel, and return its launch."""
    launch = Launch(cubin, kernel, memory, **how)
    launch.run()
    return launch
