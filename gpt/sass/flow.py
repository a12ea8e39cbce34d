"""Find the registers for which something is in flight at a place in a kernel.

A probe may write registers that are dead (live.py) and for which nothing is in flight. The hardware doesn't check the
second condition. An earlier load may still write its result to the register, long after the kernel last used it, and an
earlier store may not have read its operands yet. Instructions of variable latency announce both through scoreboards
(words.py). A write barrier is decremented when the result has arrived, by which time the
operands have been read too; a read barrier when the operands have been read. Barriers are counters, so waiting for one
waits for every instruction that uses it.

Predicates, both guards and operands, are read when an instruction issues. ptxas relies on that in all of PyTorch's
kernels (docs/sass-check.md): it overwrites predicates of a load or store without waiting.

ptxas gives a store no barrier if nothing overwrites its operands, or if a later memory instruction has one: memory
instructions read their operands in order, so that barrier covers them all (docs/sass-rules.md). Until there is such an
instruction, the words don't show when the store has read its operands (`InFlight.queued`). Registers that no barrier
ever covers are in flight until the kernel ends (`loose` and `late`): the operands of HGMMA, and results of loads
without a barrier. Most kernels have one of these: they load the stack pointer and never use it. A later LDC may arrive
earlier (docs/sass-rules.md). But once the kernel reads such a result, it has arrived: ptxas has waited for a later one
from the same unit, as it does for LDSM.

The state is computed by iterating over the blocks of the graph until nothing changes. Each block is first summarized in
a few masks, which are all that the iteration needs; then each block is walked once more, for its instructions. To find
out what a block does to operands queued before it, the queue starts with _TOKEN, a bit that belongs to no register.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from gpt.sass.code import MEMORY, Code
from gpt.sass.graph import Block, Graph
from gpt.sass.masks import STARTS, WIDTHS
from gpt.sass.tables import Opcode
from gpt.sass.words import BARRIERS, PT

# Their results need no barriers, so the table may not say that their latency varies, but their operands do. For
# HGMMA, WARPGROUP.DEPBAR announces them, which isn't followed. BAR may have its number in a register.
_LATE = {name for name, memory in MEMORY.items() if memory != "constant"} | {"BAR", "HGMMA", "IGMMA", "BGMMA", "QGMMA"}
_HELD = ~(127 << STARTS.P | 127 << STARTS.UP)  # predicates are read when an instruction issues
MEMBERS = [[barrier for barrier in range(BARRIERS) if mask >> barrier & 1] for mask in range(1 << BARRIERS)]
_WIDTH = sum(WIDTHS)  # bits of a set of registers; a packed state has one set per barrier and so on
_PART = (1 << _WIDTH) - 1
_TOKEN = 1 << _WIDTH
_QUEUED = _WIDTH * 2 * BARRIERS  # their positions in a packed state
_QUEUE_PART, _LOOSE_PART, _LATE_PART = range(2 * BARRIERS, 2 * BARRIERS + 3)
SHORTEST = 2  # cycles until a barrier shows that something is in flight
QUEUE = {"LDG", "STG", "ATOMG", "LDS", "STS", "SHFL", "S2R"}  # in docs/sass-rules.md
_NONE = (0,) * BARRIERS


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
        if self.writes == self.reads == _NONE:
            return 0
        found = 0
        for barrier in range(BARRIERS):
            if not mask >> barrier & 1:
                found |= self.writes[barrier] | self.reads[barrier]
        return found


NOTHING = InFlight(_NONE, _NONE, 0, 0)
NO_PARTS = (0,) * (2 * BARRIERS + 3)


class Flights:
    """The registers in flight before each instruction, before it waits; None if it's never reached.

    A block is only walked when one of its instructions is requested, because probes go to few blocks.
    """

    def __init__(self, code: Code, graph: Graph, events: list[int], reads: dict[int, int], arriving: list[int]) -> None:
        self._code, self._graph, self._events, self._reads, self._arriving = code, graph, events, reads, arriving
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
        parts = [arrived >> _WIDTH * number & _PART for number in range(2 * BARRIERS + 3)]
        flight, found, at = as_flight(parts), list[InFlight](), block.start
        first, last = (bisect_left(self._events, index) for index in block)
        for index in self._events[first:last]:
            found += [flight] * (index + 1 - at)
            parts[_LATE_PART] &= ~self._reads.get(index, 0)
            advance(parts, self._code, index)
            flight, at = as_flight(parts), index + 1
        return found + [flight] * (block.end - at)


def in_flight_before(code: Code, graph: Graph) -> Flights:
    """Return what's in flight when each instruction may issue."""
    events = code.find_busy({number for number, decoder in code.used.items() if is_late(decoder.entry)})
    readers = _find_readers(code, events)
    events = sorted({*events, *readers}) if readers else events
    places = np.searchsorted(events, [*(start for start, _ in graph.blocks), len(code)]).tolist()
    passes = [_sum_up(code, events[first:last], readers) for first, last in pairwise(places)]
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
    return Flights(code, graph, events, readers, arriving)


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


_UNCHANGED = _Pass(-1, 0, ())


def _sum_up(code: Code, events: list[int], readers: dict[int, int]) -> _Pass:
    """Return the effect of a block, in which these instructions can change what's in flight."""
    if not events:
        return _UNCHANGED
    waited, waits, arrived = 0, code.controls.waits, 0
    parts = list(NO_PARTS)
    parts[2 * BARRIERS] = _TOKEN
    for index in events:
        if index in readers:
            arrived |= readers[index]
            parts[_LATE_PART] &= ~readers[index]
        advance(parts, code, index)
        waited |= waits[index]
    keep = ~(arrived << _WIDTH * _LATE_PART)
    for barrier in MEMBERS[waited]:
        keep &= ~(_PART << _WIDTH * barrier | _PART << _WIDTH * (barrier + BARRIERS))
    if not parts[2 * BARRIERS] & _TOKEN:
        keep &= ~(_PART << _QUEUED)
    places = tuple(_WIDTH * number for number in range(BARRIERS, 2 * BARRIERS) if parts[number] & _TOKEN)
    add = 0
    for number, mask in enumerate(parts):
        if mask:
            add |= (mask & ~_TOKEN) << _WIDTH * number
    return _Pass(keep, add, places)


def _find_readers(code: Code, events: list[int]) -> dict[int, int]:
    """Return the instructions that certainly read results which nothing announces, with these registers. Those that
    read their operands late don't count: HGMMA adds to a result that is still being computed.
    """
    late, barriers = 0, code.controls.write_barriers
    for index in events:
        if barriers[index] >= BARRIERS and is_late(code.entry(index)):
            late |= code.masks[index].writes
    late &= _HELD
    if not late:
        return {}
    return {
        index: masks.reads & late
        for index, masks in enumerate(code.masks)
        if masks.reads & late and masks.exact and code.words[index] >> 12 & 15 == PT and not is_late(code.entry(index))
    }


def is_late(entry: Opcode) -> bool:
    """Return whether an instruction without a barrier may read or write long after it issued."""
    return entry.variable or entry.name in _LATE


def wait_for(state: InFlight, mask: int) -> InFlight:
    """Return what's in flight once the barriers in `mask` are released."""
    if not mask or state == NOTHING:
        return state
    writes, reads = list(state.writes), list(state.reads)
    for barrier in MEMBERS[mask]:
        writes[barrier] = reads[barrier] = 0
    return InFlight(tuple(writes), tuple(reads), *state[2:])


def release(state: InFlight, code: Code, index: int) -> InFlight:
    """Return what's in flight once an instruction has waited for its barriers."""
    mask = code.controls.waits[index]
    if not mask or state == NOTHING:
        return state
    reading, writing = find_unseen(code, index)
    writes, reads = list(state.writes), list(state.reads)
    for barrier in MEMBERS[mask]:
        writes[barrier] &= writing
        reads[barrier] &= reading
    return InFlight(tuple(writes), tuple(reads), *state[2:])


def find_unseen(code: Code, index: int) -> tuple[int, int]:
    """Return the registers that the previous word reads, and the ones it writes, if the instruction doesn't wait for
    them although it waits for their barrier: set less than SHORTEST cycles before, it doesn't show anything yet.
    """
    stalls, write_barriers, read_barriers, waits = code.controls
    last = index - 1
    if (
        last < 0
        or stalls[last] >= SHORTEST
        or not (1 << write_barriers[last] | 1 << read_barriers[last]) & waits[index]
    ):
        return 0, 0
    return code.masks[last][:2]


def issue(state: InFlight, code: Code, index: int) -> InFlight:
    """Return what's in flight after an instruction has waited and issued."""
    parts = [*state.writes, *state.reads, *state[2:]]
    advance(parts, code, index)
    return as_flight(parts)


def as_flight(parts: list[int]) -> InFlight:
    """Return masks as an InFlight: what's being written and read by barrier, then its other fields."""
    return InFlight(tuple(parts[:BARRIERS]), tuple(parts[BARRIERS : 2 * BARRIERS]), *parts[2 * BARRIERS :])


def advance(parts: list[int], code: Code, index: int) -> None:
    """Change what's in flight to what it is after an instruction has waited and issued. `parts` are the masks of an
    InFlight.
    """
    _, write_barriers, read_barriers, waits = code.controls
    write, read = write_barriers[index], read_barriers[index]
    if waits[index]:
        reading, writing = find_unseen(code, index)
        for barrier in MEMBERS[waits[index]]:
            parts[barrier] &= writing
            parts[barrier + BARRIERS] &= reading
    entry = code.used[code.opcodes[index]].entry
    reading, writing, *_ = code.masks[index]
    reading &= _HELD
    if entry.name == "LDGSTS":  # nvdisasm lists a predicate as written, but ptxas overwrites it without waiting
        writing = 0
    if write < BARRIERS:
        parts[write] |= writing
    elif is_late(entry):
        parts[_LATE_PART] |= writing
    if write < BARRIERS or read < BARRIERS:
        if entry.name in QUEUE:
            reading |= parts[_QUEUE_PART]
            parts[_QUEUE_PART] = 0
        parts[BARRIERS + (read if read < BARRIERS else write)] |= reading
    elif is_late(entry):
        parts[_QUEUE_PART if entry.name in QUEUE else _LOOSE_PART] |= reading
