"""The state that hazards.py keeps: what's in flight before an instruction, and how two states join."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpt.sass.masks import STARTS
from gpt.sass.words import BARRIERS, PT

NONE = (0,) * BARRIERS
UNGUARDED = (0,) * 16
UNREAD = BARRIERS  # stands for `unread` among the barriers
OTHER = 2  # stands for instructions that read their operands in no known order
WIDTH = 256  # bits of a set of operands
EACH = sum(1 << WIDTH * barrier for barrier in range(BARRIERS + 1))  # a set times this has it for each barrier
UNITS = 4  # execution units

Readers = Mapping[tuple[int, int], int]


class State(NamedTuple):
    """Values in flight: the results and operands of each barrier. `loose` and `unread` have no barrier.

    `guarded` are the results of guarded instructions, by guard. `guarded_reads` are operands, by guard and barrier, if
    nothing else with that barrier reads them. `units` are results by execution unit.

    `readers` are the operands by the order in which instructions read them (hazards.py's _order); it may
    have more than are still being read.

    `covered`: for each barrier, the operands that have been read once it's cleared, because the queue is in order. Two
    instructions may read one register, so this is a number like `packed_reads`, with a part for each barrier that
    announces operands. `arrived` is the same for results, but as a single set.
    """

    writes: tuple[int, ...] = NONE
    reads: tuple[int, ...] = NONE
    covered: tuple[int, ...] = NONE
    arrived: tuple[int, ...] = NONE
    loose: tuple[int, ...] = (0,) * UNITS  # results, by unit
    unread: int = 0
    guarded: tuple[int, ...] = UNGUARDED
    guarded_reads: Readers = MappingProxyType({})
    units: tuple[int, ...] = (0,) * UNITS
    readers: tuple[int, ...] = (0,) * (OTHER + 1)

    @property
    def flying(self) -> int:
        """The results in flight."""
        return union(self.writes) | union(self.loose)

    @property
    def being_read(self) -> int:
        """The operands that are still to be read."""
        return union(self.reads) | self.unread

    @property
    def packed_reads(self) -> int:
        """The operands that are still to be read, with a part of the number for each barrier, and one for UNREAD."""
        found = self.unread
        for mask in reversed(self.reads):
            found = found << WIDTH | mask
        return found

    def out_of_order(self, order: int) -> int:
        """Return the operands that instructions outside of an order may still read."""
        return union(tuple([mask for each, mask in enumerate(self.readers) if each != order or each == OTHER]))


def union(masks: tuple[int, ...]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _both_only(a: tuple[int, ...], b: tuple[int, ...], in_a: int, in_b: int) -> tuple[int, ...]:
    """For each guard, return what's in flight only under that guard, on whichever path the code came."""
    if a == b:
        return a
    return tuple([(x | ~in_a) & (y | ~in_b) & (x | y) for x, y in zip(a, b, strict=True)])


def forget_guards(state: State, written: int) -> State:
    """Return the state after predicates were written. The old values no longer show which instructions ran."""
    if state.guarded == UNGUARDED and not state.guarded_reads:
        return state
    changed = {k & 7 for k in range(7) if written >> STARTS.P + k & 1}
    if not changed:
        return state
    return state._replace(
        guarded=tuple([0 if k & 7 in changed else mask for k, mask in enumerate(state.guarded)]),
        guarded_reads={key: mask for key, mask in state.guarded_reads.items() if key[0] & 7 not in changed},
    )


def reads_of(state: State, barrier: int) -> int:
    """Return the operands that a barrier announces; for UNREAD, the operands without one."""
    return state.unread if barrier == UNREAD else state.reads[barrier]


def _merge_readers(one: State, other: State) -> Readers:
    """Return the operands that are read only under one guard, on whichever path the code came."""
    found: dict[tuple[int, int], int] = {}
    for guard, barrier in one.guarded_reads.keys() | other.guarded_reads.keys():
        a, b = (state.guarded_reads.get((guard, barrier), 0) for state in (one, other))
        mask = (a | ~reads_of(one, barrier)) & (b | ~reads_of(other, barrier)) & (a | b)
        if mask:
            found[guard, barrier] = mask
    return found


def read_by_others(state: State, guard: int) -> int:
    """Return the operands that are still to be read, except those read only under a guard."""
    found = 0
    for barrier in range(BARRIERS + 1):
        found |= reads_of(state, barrier) & ~state.guarded_reads.get((guard, barrier), 0)
    return found


def add_reads(state: State, read: int, guard: int, order: int, write: int, reads: int) -> State:
    """Return the state after an instruction that reads `read`, with its write and read barrier.

    `order` is a group of instructions that read their operands in order, or OTHER. A barrier of the group also stands
    for the group's operands that have none.
    """
    others = state.out_of_order(order)
    announced = next((barrier for barrier in (reads, write) if barrier < BARRIERS), UNREAD)
    taken = 0
    covered = [mask & ~(read << WIDTH * announced) for mask in state.covered]
    if order != OTHER and announced != UNREAD:
        taken = state.unread & ~others
        for number, mask in enumerate(covered):
            kept = mask >> WIDTH * UNREAD | ~taken
            covered[number] = mask & ~(~kept << WIDTH * announced)
        for barrier in {write, reads}:
            if barrier < BARRIERS:
                covered[barrier] |= ((state.readers[order] | read) & ~others) * EACH
    readers = list(state.readers)
    readers[order] |= read
    guards = _add_reader(state, guard, read, announced, taken)
    every, unread = list(state.reads), state.unread & ~taken
    if announced == UNREAD:
        unread |= read
    else:
        every[announced] |= read | taken
    return state._replace(
        reads=tuple(every), unread=unread, covered=tuple(covered), readers=tuple(readers), guarded_reads=guards
    )


def _add_reader(state: State, guard: int, read: int, announced: int, taken: int) -> Readers:
    """Return `guarded_reads` after an instruction that reads `read` and has a barrier for it, or UNREAD. That barrier
    then also stands for the operands in `taken`, which had none.
    """
    old = state.guarded_reads
    if not read | taken or (not old and guard & 7 == PT):
        return old
    found = dict(old)
    for each in {key[0] for key in old} | {guard}:
        mine = read if each == guard else 0
        alone, loose = old.get((each, announced), 0), old.get((each, UNREAD), 0)
        others = read & ~mine | reads_of(state, announced) & ~alone | taken & ~loose
        if taken:
            found[each, UNREAD] = loose & ~taken
        found[each, announced] = (mine | alone | loose & taken) & ~others
    return {key: mask for key, mask in found.items() if mask}


def merge(one: State | None, other: State) -> State:
    if one is None or one == other:
        return other
    mine, theirs = one.packed_reads, other.packed_reads
    ours, others = one.flying, other.flying

    def both(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([x | y for x, y in zip(a, b, strict=True)])

    covered = tuple([(a | ~mine) & (b | ~theirs) for a, b in zip(one.covered, other.covered, strict=True)])
    arrived = tuple([(a | ~ours) & (b | ~others) for a, b in zip(one.arrived, other.arrived, strict=True)])
    return State(
        both(one.writes, other.writes),
        both(one.reads, other.reads),
        tuple([mask & (mine | theirs) for mask in covered]),
        tuple([mask & (ours | others) for mask in arrived]),
        both(one.loose, other.loose),
        one.unread | other.unread,
        _both_only(one.guarded, other.guarded, ours, others),
        _merge_readers(one, other),
        _both_only(one.units, other.units, ours, others),
        both(one.readers, other.readers),
    )


def clear(state: State, mask: int) -> State:
    """Return the state after the barriers in `mask` were awaited."""
    covered = arrived = 0
    for barrier in range(BARRIERS):
        if mask >> barrier & 1:
            covered |= state.covered[barrier]
            arrived |= state.arrived[barrier]
    kept = [not mask >> barrier & 1 for barrier in range(BARRIERS)]
    reads = tuple([r & ~(covered >> WIDTH * each) if kept[each] else 0 for each, r in enumerate(state.reads)])
    unread = state.unread & ~(covered >> WIDTH * UNREAD)
    left = union(reads) | unread
    return State(
        tuple([w & ~arrived if keep else 0 for w, keep in zip(state.writes, kept, strict=True)]),
        reads,
        tuple([c if keep else 0 for c, keep in zip(state.covered, kept, strict=True)]),
        tuple([a if keep else 0 for a, keep in zip(state.arrived, kept, strict=True)]),
        tuple([loose & ~arrived for loose in state.loose]),
        unread,
        state.guarded,
        state.guarded_reads,
        state.units,
        tuple([readers & left for readers in state.readers]),
    )
