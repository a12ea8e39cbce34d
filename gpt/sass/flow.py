"""Find registers that a probe may write at a place in a kernel.

A register is free there if it's dead and nothing is in flight for it.

*Dead*: on every way from here it's written before it's read. `live_before` says which registers aren't. An instruction
under a guard writes in some lanes only, so the old value lives on.

*In flight*: the hardware doesn't check. An earlier load may still write its result there, long after the kernel lost
interest in it, and an earlier store may not have read its operands yet. Instructions whose latency varies announce
both by scoreboards (words.py): a write barrier is counted down when the result is there, and by then the operands have
been read, too; a read barrier when the operands have been read. Barriers are counters, so waiting for one waits for
every instruction that uses it.

ptxas leaves a store without any barrier if nobody overwrites its operands later. Words can't tell when such a store
has read them. They stay in flight until the kernel ends (`InFlight.unawaited`), unless somebody puts a read barrier on
the store.

Both are sets of registers, in one bit mask for all register files. They're found by going round the blocks of the graph
until nothing changes: liveness backwards, what's in flight forwards. Where code is called that isn't there, every
register is live.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.sass.code import Code
from gpt.sass.graph import Graph
from gpt.sass.tables import Registers
from gpt.sass.words import BARRIERS, NO_BARRIER

_WIDTHS = Registers(256, 256, 8, 8, 16)  # bits of each register file in a mask of all
_STARTS = Registers(0, 256, 512, 520, 528)
EVERY_REGISTER = (1 << 255) - 1 | ((1 << 255) - 1) << 256 | 127 << 512 | 127 << 520 | 0xFFFF << 528


def pack(registers: Registers) -> int:
    """Return sets of registers as one mask."""
    general, uniform, predicates, uniform_predicates, barriers = registers
    return general | uniform << 256 | predicates << 512 | uniform_predicates << 520 | barriers << 528


def unpack(mask: int) -> Registers:
    """Return one mask as sets of registers."""
    return Registers(*(mask >> start & (1 << width) - 1 for start, width in zip(_STARTS, _WIDTHS, strict=True)))


class _Step(NamedTuple):
    """An instruction's effect on registers, as masks of all files."""

    reads: int
    writes: int
    kills: int
    wait: int
    write_barrier: int
    read_barrier: int
    variable: bool


def _steps(code: Code) -> list[_Step]:
    made = []
    for one in code:
        _, _, write, read, wait, _ = one.control
        masks = pack(one.reads), pack(one.writes), pack(one.kills)
        made.append(_Step(*masks, wait, write, read, one.variable))
    return made


def live_before(code: Code, graph: Graph) -> list[int]:
    """Return for each instruction the registers whose values may still be read, by it or later."""
    steps = _steps(code)
    reads, keeps = [], []  # by a block: what it reads of before, and what it doesn't overwrite
    for number, block in enumerate(graph.blocks):
        live, kept = (EVERY_REGISTER, 0) if number in graph.calls_out else (0, -1)
        for step in reversed(steps[block.start : block.end]):
            live = live & ~step.kills | step.reads
            kept &= ~step.kills
        reads.append(live)
        keeps.append(kept)
    before = list(reads)
    predecessors = _turn_round(graph)
    left = set(range(len(graph.blocks)))
    while left:
        number = left.pop()
        live = reads[number] | _after(graph, before, number) & keeps[number]
        if live != before[number]:
            before[number] = live
            left.update(predecessors[number])
    found = [0] * len(code)
    for number, block in enumerate(graph.blocks):
        live = _after(graph, before, number)
        for index in range(block.end - 1, block.start - 1, -1):
            live = live & ~steps[index].kills | steps[index].reads
            found[index] = live
    return found


def _after(graph: Graph, before: list[int], number: int) -> int:
    """Return what's live behind a block."""
    live = EVERY_REGISTER if number in graph.calls_out else 0
    for follower in graph.successors[number]:
        live |= before[follower]
    return live


class InFlight(NamedTuple):
    """Registers that something earlier may still write or read. One mask for each barrier."""

    writes: tuple[int, ...]
    reads: tuple[int, ...]
    unawaited: int  # operands of stores without a barrier

    def after_waiting(self, mask: int) -> int:
        """Return the registers in flight once the barriers in `mask` are down; without `unawaited`."""
        found = 0
        for barrier in range(BARRIERS):
            if not mask >> barrier & 1:
                found |= self.writes[barrier] | self.reads[barrier]
        return found


_NOTHING = InFlight((0,) * BARRIERS, (0,) * BARRIERS, 0)


def in_flight_before(code: Code, graph: Graph) -> list[InFlight | None]:
    """Return for each instruction what's in flight when it may issue, before its own wait; None: it's never reached."""
    steps = _steps(code)
    arriving: list[InFlight | None] = [None] * len(graph.blocks)
    arriving[0] = _NOTHING
    left = {0}
    while left:
        number = left.pop()
        state = arriving[number]
        assert state is not None
        block = graph.blocks[number]
        for one in steps[block.start : block.end]:
            state = _issue(state, one)
        for follower in graph.successors[number]:
            merged = _merge(arriving[follower], state)
            if merged != arriving[follower]:
                arriving[follower] = merged
                left.add(follower)
    found: list[InFlight | None] = [None] * len(code)
    for block, arrived in zip(graph.blocks, arriving, strict=True):
        if arrived is not None:
            state = arrived
            for index in range(block.start, block.end):
                found[index] = state
                state = _issue(state, steps[index])
    return found


def _issue(state: InFlight, one: _Step) -> InFlight:
    """Return what's in flight after an instruction has waited and issued."""
    wait, write, read = one.wait, one.write_barrier, one.read_barrier
    bare = one.variable and write == read == NO_BARRIER
    if not wait and write == read == NO_BARRIER and not bare:
        return state
    writes, reads, unawaited = list(state.writes), list(state.reads), state.unawaited
    for barrier in range(BARRIERS):
        if wait >> barrier & 1:
            writes[barrier] = reads[barrier] = 0
    if write < BARRIERS:
        writes[write] |= one.writes
    if read < BARRIERS:
        reads[read] |= one.reads
    elif write < BARRIERS:
        reads[write] |= one.reads
    elif bare:
        unawaited |= one.reads
    return InFlight(tuple(writes), tuple(reads), unawaited)


def _merge(one: InFlight | None, other: InFlight) -> InFlight:
    if one is None or one == other:
        return other
    return InFlight(
        tuple(a | b for a, b in zip(one.writes, other.writes, strict=True)),
        tuple(a | b for a, b in zip(one.reads, other.reads, strict=True)),
        one.unawaited | other.unawaited,
    )


def _turn_round(graph: Graph) -> list[list[int]]:
    predecessors: list[list[int]] = [[] for _ in graph.blocks]
    for number, followers in enumerate(graph.successors):
        for follower in followers:
            predecessors[follower].append(number)
    return predecessors
