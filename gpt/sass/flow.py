"""Find registers that a probe may write at a place in a kernel.

A register is free there if it's dead and nothing is in flight for it.

*Dead*: on every way from here it's written before it's read. `live_before` says which registers aren't. An instruction
under a guard writes in some lanes only, so the old value lives on.

*In flight*: the hardware doesn't check. An earlier load may still write its result there, long after the kernel lost
interest in it, and an earlier store may not have read its operands yet. Instructions whose latency varies announce
both by scoreboards (words.py): a write barrier is counted down when the result is there, and by then the operands have
been read, too; a read barrier when the operands have been read. Barriers are counters, so waiting for one waits for
every instruction that uses it.

ptxas leaves a store without a barrier if nobody overwrites its operands, or if a later memory instruction has one: they
read their operands in order, so that one's barrier covers them all (docs/sass-rules.md). Until there's such an
instruction, words can't tell when the store has read them (`InFlight.queued`). What nothing will ever announce is in
flight until the kernel ends (`InFlight.loose`): the results of loads without a barrier, for which ptxas waits by a
later load of the same unit, and the operands of HGMMA.

Both are sets of registers, in one bit mask for all register files. They're found by going round the blocks of the graph
until nothing changes: liveness backwards, what's in flight forwards. Where code is called that isn't there, every
register is live that this code names. A block is first summed up in two masks, so that only these are gone round; then
each block is walked once more, for its instructions.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.sass.code import Code
from gpt.sass.graph import Graph
from gpt.sass.masks import EVERY_REGISTER, pack, unpack
from gpt.sass.tables import Opcode
from gpt.sass.words import BARRIERS, NO_BARRIER

# Their results don't need barriers, but their operands do. Those of HGMMA are announced by WARPGROUP.DEPBAR, which
# isn't followed.
_LATE = {"STS", "LDGSTS", "HGMMA", "IGMMA", "BGMMA", "QGMMA"}
_QUEUE = {"LDG", "STG", "ATOMG", "LDS", "STS", "SHFL", "S2R"}  # in docs/sass-rules.md

__all__ = ["EVERY_REGISTER", "InFlight", "in_flight_before", "live_before", "pack", "unpack"]


def live_before(code: Code, graph: Graph) -> list[int]:
    """Return for each instruction the registers whose values may still be read, by it or later."""
    masks = code.masks
    reads, keeps = [], []  # by a block: what it reads of before, and what it doesn't overwrite
    for number, block in enumerate(graph.blocks):
        live, kept = (EVERY_REGISTER, 0) if number in graph.calls_out else (0, -1)
        for read, _, keep, _ in reversed(masks[block.start : block.end]):
            live = live & keep | read
            kept &= keep
        reads.append(live)
        keeps.append(kept)
    before = list(reads)
    predecessors = _turn_round(graph)
    changed = [True] * len(before)
    while any(changed):
        for number in [number for number, is_changed in enumerate(changed) if is_changed][::-1]:
            changed[number] = False
            live = reads[number] | _after(graph, before, number) & keeps[number]
            if live != before[number]:
                before[number] = live
                for other in predecessors[number]:
                    changed[other] = True
    found: list[int] = []
    for number in range(len(graph.blocks) - 1, -1, -1):
        block = graph.blocks[number]
        live = _after(graph, before, number)
        for read, _, keep, _ in reversed(masks[block.start : block.end]):
            live = live & keep | read
            found.append(live)
    if graph.calls_out:  # what's called can't expect anything in registers that this code never names
        named = 0
        for read, written, *_ in set(masks):
            named |= read | written
        found = [live & named for live in found]
    found.reverse()
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
    queued: int  # operands of memory instructions without a barrier, which a later one's barrier will cover
    loose: int  # what nothing announces

    @property
    def unawaited(self) -> int:
        """Registers that no barrier announces, so far."""
        return self.queued | self.loose

    def after_waiting(self, mask: int) -> int:
        """Return the registers in flight once the barriers in `mask` are down; without `unawaited`."""
        found = 0
        for barrier in range(BARRIERS):
            if not mask >> barrier & 1:
                found |= self.writes[barrier] | self.reads[barrier]
        return found


NOTHING = InFlight((0,) * BARRIERS, (0,) * BARRIERS, 0, 0)


def in_flight_before(code: Code, graph: Graph) -> list[InFlight | None]:
    """Return for each instruction what's in flight when it may issue, before its own wait; None: it's never reached."""
    events = _events(code)
    adds, waits = [], []  # by a block: what it leaves in flight if nothing was, and the barriers that it waits for
    for block in graph.blocks:
        state, waited = NOTHING, 0
        for index in range(block.start, block.end):
            if events[index]:
                state = issue(state, code, index)
                waited |= code.controls.waits[index]
        adds.append(state)
        waits.append(waited)
    arriving: list[InFlight | None] = [None] * len(graph.blocks)
    arriving[0] = NOTHING
    changed = [True, *[False] * (len(arriving) - 1)]
    while any(changed):
        for number in [number for number, is_changed in enumerate(changed) if is_changed]:
            changed[number] = False
            arrived = arriving[number]
            assert arrived is not None
            state = merge(wait_for(arrived, waits[number]), adds[number])
            for follower in graph.successors[number]:
                merged = merge(arriving[follower], state)
                if merged != arriving[follower]:
                    arriving[follower] = merged
                    changed[follower] = True
    found: list[InFlight | None] = [None] * len(code)
    for block, arrived in zip(graph.blocks, arriving, strict=True):
        if arrived is not None:
            state = arrived
            for index in range(block.start, block.end):
                found[index] = state
                if events[index]:
                    state = issue(state, code, index)
    return found


def _events(code: Code) -> list[bool]:
    """Return for each instruction whether it can change what's in flight."""
    controls = code.controls
    late = {number: _is_late(decoder.entry) for number, decoder in code.used.items()}
    return [
        bool(wait or write != NO_BARRIER or read != NO_BARRIER or late[opcode])
        for write, read, wait, opcode in zip(*controls[1:], code.opcodes, strict=True)
    ]


def _is_late(entry: Opcode) -> bool:
    """Return whether an instruction without a barrier may read and write long after it has issued."""
    return entry.variable or entry.name in _LATE


def wait_for(state: InFlight, mask: int) -> InFlight:
    """Return what's in flight once the barriers in `mask` are down."""
    if not mask or state == NOTHING:
        return state
    writes = tuple(0 if mask >> barrier & 1 else found for barrier, found in enumerate(state.writes))
    reads = tuple(0 if mask >> barrier & 1 else found for barrier, found in enumerate(state.reads))
    return InFlight(writes, reads, state.queued, state.loose)


def issue(state: InFlight, code: Code, index: int) -> InFlight:
    """Return what's in flight after an instruction has waited and issued."""
    _, write_barriers, read_barriers, waits = code.controls
    write, read = write_barriers[index], read_barriers[index]
    state = wait_for(state, waits[index])
    entry = code.used[code.opcodes[index]].entry
    reading, writing, *_ = code.masks[index]
    if write >= BARRIERS and read >= BARRIERS:
        if not _is_late(entry):
            return state
        if entry.name in _QUEUE:
            return state._replace(queued=state.queued | reading, loose=state.loose | writing)
        return state._replace(loose=state.loose | reading | writing)
    writes, reads, loose, queued = state.writes, state.reads, state.loose, state.queued
    if write < BARRIERS:
        writes = (*writes[:write], writes[write] | writing, *writes[write + 1 :])
    elif _is_late(entry):
        loose |= writing
    awaited = read if read < BARRIERS else write
    if entry.name in _QUEUE:
        reading |= queued
        queued = 0
    reads = (*reads[:awaited], reads[awaited] | reading, *reads[awaited + 1 :])
    return InFlight(writes, reads, queued, loose)


def merge(one: InFlight | None, other: InFlight) -> InFlight:
    """Return the union of two states, for a place where two ways meet."""
    if one is None or one is other or one == other:
        return other
    return InFlight(
        tuple([a | b for a, b in zip(one.writes, other.writes, strict=True)]),
        tuple([a | b for a, b in zip(one.reads, other.reads, strict=True)]),
        one.queued | other.queued,
        one.loose | other.loose,
    )


def _turn_round(graph: Graph) -> list[list[int]]:
    predecessors: list[list[int]] = [[] for _ in graph.blocks]
    for number, followers in enumerate(graph.successors):
        for follower in followers:
            predecessors[follower].append(number)
    return predecessors
