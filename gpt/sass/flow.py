"""Find the registers that a probe may write at a place in a kernel.

A register is free at a place if it's dead there and nothing is in flight for it.

*Dead*: on every path from there, it's written before it's read. `live_before` returns the registers that aren't. A
guarded instruction writes only in some lanes, so the old value stays live.

*In flight*: the hardware doesn't check. An earlier load may still write its result to the register, long after the
kernel last used it, and an earlier store may not have read its operands yet. Instructions of variable latency announce
both through scoreboards (words.py). A write barrier is decremented when the result has arrived, by which time the
operands have been read too; a read barrier when the operands have been read. Barriers are counters, so waiting for one
waits for every instruction that uses it.

Predicates, both guards and operands, are read when an instruction issues. ptxas relies on that in all of PyTorch's
kernels (docs/sass-check.md): it overwrites predicates of a load or store without waiting.

ptxas gives a store no barrier if nothing overwrites its operands, or if a later memory instruction has one: memory
instructions read their operands in order, so that barrier covers them all (docs/sass-rules.md). Until there is such an
instruction, the words don't show when the store has read its operands (`InFlight.queued`). Registers that no barrier
ever covers are in flight until the kernel ends (`loose` and `late`): the operands of HGMMA, and results of loads
without a barrier. Most kernels have one of these: they load the stack pointer and never use it. A later LDC may arrive
earlier (docs/sass-rules.md).

Both are sets of registers, in one bit mask for all register files. They're computed by iterating over the blocks of the
graph until nothing changes: liveness backwards, in-flight state forwards. At a call of code elsewhere, every register
that the called code names is live. Each block is first summarized in a few masks, which are all that the iteration
needs; then each block is walked once more, for its instructions. To find out what a block does to operands queued
before it, the queue starts with _TOKEN, a bit that belongs to no register.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from typing import NamedTuple

from gpt.sass.code import MEMORY, Code
from gpt.sass.graph import Block, Graph
from gpt.sass.masks import EVERY_REGISTER, STARTS, WIDTHS, pack, unpack
from gpt.sass.tables import Opcode
from gpt.sass.words import BARRIERS, NO_BARRIER

# Their results need no barriers, so the table may not say that their latency varies, but their operands do. For
# HGMMA, WARPGROUP.DEPBAR announces them, which isn't followed. BAR may have its number in a register.
_LATE = {name for name, memory in MEMORY.items() if memory != "constant"} | {"BAR", "HGMMA", "IGMMA", "BGMMA", "QGMMA"}
_HELD = ~(127 << STARTS.P | 127 << STARTS.UP)  # predicates are read when an instruction issues
_MEMBERS = [[barrier for barrier in range(BARRIERS) if mask >> barrier & 1] for mask in range(1 << BARRIERS)]
_WIDTH = sum(WIDTHS)  # bits of a set of registers; a packed state has one set per barrier and so on
_PART = (1 << _WIDTH) - 1
_TOKEN = 1 << _WIDTH
_QUEUED = _WIDTH * 2 * BARRIERS  # their positions in a packed state
SHORTEST = 2  # cycles until a barrier shows that something is in flight
QUEUE = {"LDG", "STG", "ATOMG", "LDS", "STS", "SHFL", "S2R"}  # in docs/sass-rules.md

__all__ = ["EVERY_REGISTER", "InFlight", "in_flight_before", "live_before", "pack", "unpack"]


def live_before(code: Code, graph: Graph) -> list[int]:
    """Return, for each instruction, the registers whose values it or a later one may still read."""
    masks = code.masks
    reads, keeps = [], []  # per block: the earlier values that it reads, and the registers that it keeps
    for number, block in enumerate(graph.blocks):
        live, kept = (EVERY_REGISTER, 0) if number in graph.calls_out else (0, -1)
        for read, _, keep, _ in reversed(masks[block.start : block.end]):
            live = live & keep | read
            kept &= keep
        reads.append(live)
        keeps.append(kept)
    after = [EVERY_REGISTER if number in graph.calls_out else 0 for number in range(len(reads))]
    predecessors = graph.predecessors
    left = [-number for number in range(len(reads) - 1, -1, -1)]  # a heap, the last block first
    waiting = [True] * len(reads)
    while left:
        number = -heappop(left)
        waiting[number] = False
        live = reads[number] | after[number] & keeps[number]
        for other in predecessors[number]:
            merged = after[other] | live
            if merged != after[other]:
                after[other] = merged
                if not waiting[other]:
                    waiting[other] = True
                    heappush(left, -other)
    found: list[int] = []
    for number in range(len(graph.blocks) - 1, -1, -1):
        block = graph.blocks[number]
        live = after[number]
        for read, _, keep, _ in reversed(masks[block.start : block.end]):
            live = live & keep | read
            found.append(live)
    if graph.calls_out:  # a called function can't expect anything in registers that this code never names
        named = 0
        for read, written, *_ in set(masks):
            named |= read | written
        found = [live & named for live in found]
    found.reverse()
    return found


class InFlight(NamedTuple):
    """Registers that an earlier instruction may still write or read, as one mask per barrier."""

    writes: tuple[int, ...]
    reads: tuple[int, ...]
    queued: int  # operands of memory instructions without a barrier, which a later instruction's barrier will cover
    loose: int  # operands that nothing announces
    late: int = 0  # results that nothing announces

    @property
    def unawaited(self) -> int:
        """The registers that no barrier announces so far."""
        return self.queued | self.loose | self.late

    @property
    def arriving(self) -> int:
        """The registers that an earlier instruction may still write."""
        found = self.late
        for mask in self.writes:
            found |= mask
        return found

    def after_waiting(self, mask: int) -> int:
        """Return the registers in flight once the barriers in `mask` are released, without `unawaited`."""
        found = 0
        for barrier in range(BARRIERS):
            if not mask >> barrier & 1:
                found |= self.writes[barrier] | self.reads[barrier]
        return found


NOTHING = InFlight((0,) * BARRIERS, (0,) * BARRIERS, 0, 0)


class Flights:
    """The registers in flight before each instruction, before it waits; None if it's never reached.

    A block is only walked when one of its instructions is requested, because probes go to few blocks.
    """

    def __init__(self, code: Code, graph: Graph, events: list[bool], arriving: list[int]) -> None:
        self._code, self._graph, self._events, self._arriving = code, graph, events, arriving
        self._starts = [block.start for block in graph.blocks]
        self._walked: dict[int, list[InFlight]] = {}

    def __getitem__(self, index: int) -> InFlight | None:
        number = bisect_right(self._starts, index) - 1
        if self._arriving[number] < 0:
            return None
        found = self._walked.get(number)
        if found is None:
            found = self._walked[number] = self._walk(self._graph.blocks[number], self._arriving[number])
        return found[index - self._starts[number]]

    def __iter__(self) -> Iterator[InFlight | None]:
        return (self[index] for index in range(len(self._code)))

    def _walk(self, block: Block, arrived: int) -> list[InFlight]:
        flight, found = _unpack_flight(arrived), []
        for index in range(block.start, block.end):
            found.append(flight)
            if self._events[index]:
                flight = issue(flight, self._code, index)
        return found


def in_flight_before(code: Code, graph: Graph) -> Flights:
    """Return what's in flight when each instruction may issue."""
    events = _events(code)
    passes = [_sum_up(code, events, block) for block in graph.blocks]
    arriving = [-1] * len(graph.blocks)  # packed; -1 if unreachable
    arriving[0] = 0
    left, waiting = [0], [False] * len(arriving)
    while left:
        number = heappop(left)
        waiting[number] = False
        state = passes[number].after(arriving[number])
        for follower in graph.successors[number]:
            before = arriving[follower]
            merged = state if before < 0 else before | state
            if merged != before:
                arriving[follower] = merged
                if not waiting[follower]:
                    waiting[follower] = True
                    heappush(left, follower)
    return Flights(code, graph, events, arriving)


class _Pass(NamedTuple):
    """A block's effect on the packed state: the bits that it keeps and adds, and where queued operands go."""

    keep: int
    add: int
    places: tuple[int, ...]

    def after(self, arrived: int) -> int:
        """Return the state after the block."""
        state, queued = arrived & self.keep | self.add, arrived >> _QUEUED & _PART
        for place in self.places if queued else ():
            state |= queued << place
        return state


def _sum_up(code: Code, events: list[bool], block: Block) -> _Pass:
    if True not in events[block.start : block.end]:
        return _Pass(-1, 0, ())
    state, waited = NOTHING._replace(queued=_TOKEN), 0
    for index in range(block.start, block.end):
        if events[index]:
            state = issue(state, code, index)
            waited |= code.controls.waits[index]
    parts = _parts(state)
    keep = -1
    for barrier in _MEMBERS[waited]:
        keep &= ~(_PART << _WIDTH * barrier | _PART << _WIDTH * (barrier + BARRIERS))
    if not parts[2 * BARRIERS] & _TOKEN:
        keep &= ~(_PART << _QUEUED)
    places = tuple(_WIDTH * number for number in range(BARRIERS, 2 * BARRIERS) if parts[number] & _TOKEN)
    add = sum((mask & ~_TOKEN) << _WIDTH * number for number, mask in enumerate(parts))
    return _Pass(keep, add, places)


def _parts(state: InFlight) -> list[int]:
    return [*state.writes, *state.reads, state.queued, state.loose, state.late]


def _unpack_flight(packed: int) -> InFlight:
    parts = [packed >> _WIDTH * number & _PART for number in range(2 * BARRIERS + 3)]
    return InFlight(tuple(parts[:BARRIERS]), tuple(parts[BARRIERS : 2 * BARRIERS]), *parts[2 * BARRIERS :])


def _events(code: Code) -> list[bool]:
    """Return, for each instruction, whether it can change what's in flight."""
    controls = code.controls
    late = {number: is_late(decoder.entry) for number, decoder in code.used.items()}
    return [
        bool(wait or write != NO_BARRIER or read != NO_BARRIER or late[opcode])
        for write, read, wait, opcode in zip(*controls[1:], code.opcodes, strict=True)
    ]


def is_late(entry: Opcode) -> bool:
    """Return whether an instruction without a barrier may read or write long after it issued."""
    return entry.variable or entry.name in _LATE


def wait_for(state: InFlight, mask: int) -> InFlight:
    """Return what's in flight once the barriers in `mask` are released."""
    if not mask or state == NOTHING:
        return state
    writes, reads = list(state.writes), list(state.reads)
    for barrier in _MEMBERS[mask]:
        writes[barrier] = reads[barrier] = 0
    return InFlight(tuple(writes), tuple(reads), *state[2:])


def release(state: InFlight, code: Code, index: int) -> InFlight:
    """Return what's in flight once an instruction has waited for its barriers.

    A barrier that was set less than SHORTEST cycles before, by the previous word, doesn't make it wait for that word.
    """
    stalls, write_barriers, read_barriers, waits = code.controls
    rest, last = wait_for(state, waits[index]), index - 1
    if rest is state or last < 0 or stalls[last] >= SHORTEST:
        return rest
    if (1 << write_barriers[last] | 1 << read_barriers[last]) & waits[index]:
        reading, writing, *_ = code.masks[last]
        writes = tuple([new | old & writing for new, old in zip(rest.writes, state.writes, strict=True)])
        reads = tuple([new | old & reading for new, old in zip(rest.reads, state.reads, strict=True)])
        return InFlight(writes, reads, *state[2:])
    return rest


def issue(state: InFlight, code: Code, index: int) -> InFlight:
    """Return what's in flight after an instruction has waited and issued."""
    write, read = code.controls.write_barriers[index], code.controls.read_barriers[index]
    state = release(state, code, index)
    entry = code.used[code.opcodes[index]].entry
    reading, writing, *_ = code.masks[index]
    reading &= _HELD
    if entry.name == "LDGSTS":  # nvdisasm lists a predicate as written, but ptxas overwrites it without waiting
        writing = 0
    if write >= BARRIERS and read >= BARRIERS:
        if not is_late(entry):
            return state
        if entry.name in QUEUE:
            return state._replace(queued=state.queued | reading, late=state.late | writing)
        return state._replace(loose=state.loose | reading, late=state.late | writing)
    writes, reads, queued, loose, late = state
    if write < BARRIERS:
        writes = (*writes[:write], writes[write] | writing, *writes[write + 1 :])
    elif is_late(entry):
        late |= writing
    awaited = read if read < BARRIERS else write
    if entry.name in QUEUE:
        reading |= queued
        queued = 0
    reads = (*reads[:awaited], reads[awaited] | reading, *reads[awaited + 1 :])
    return InFlight(writes, reads, queued, loose, late)
