"""The state that hazards.py keeps: what's in flight before an instruction, and how two states join."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from gpt.sass.masks import STARTS
from gpt.sass.words import BARRIERS

NONE = (0,) * BARRIERS
UNREAD = BARRIERS  # stands for `unread` among the barriers

Readers = Mapping[tuple[int, int], int]


class State(NamedTuple):
    """Values in flight: the results and operands of each barrier. `loose` and `unread` have no barrier.

    `guarded` are the results of guarded instructions, by guard. `guarded_reads` are operands, by guard and barrier, if
    nothing else with that barrier reads them. `units` are results by execution unit.

    `covered`: for each barrier, the operands that have been read once it's cleared, because the queue is in order;
    `arrived` is the same for results.
    """

    writes: tuple[int, ...] = NONE
    reads: tuple[int, ...] = NONE
    covered: tuple[int, ...] = NONE
    arrived: tuple[int, ...] = NONE
    loose: tuple[int, ...] = (0,) * 3  # results, by unit
    unread: int = 0
    guarded: tuple[int, ...] = (0,) * 16
    guarded_reads: Readers = MappingProxyType({})
    units: tuple[int, ...] = (0,) * 3


def union(masks: tuple[int, ...]) -> int:
    found = 0
    for mask in masks:
        found |= mask
    return found


def _both_only(a: tuple[int, ...], b: tuple[int, ...], in_a: int, in_b: int) -> tuple[int, ...]:
    """For each guard, return what's in flight under that guard alone, whichever way the code took."""
    return tuple([(x | ~in_a) & (y | ~in_b) & (x | y) for x, y in zip(a, b, strict=True)])


def forget_guards(state: State, written: int) -> State:
    """Return the state after predicates were written. The old values no longer show which instructions ran."""
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
    """Return the operands that are read under one guard only, whichever way the code took."""
    found = {}
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


def add_reader(state: State, guard: int, read: int, announced: int, takes_unread: bool) -> Readers:
    """Return `guarded_reads` after an instruction that reads `read` and has a barrier for it, or UNREAD. With
    `takes_unread`, that barrier then stands for the operands that had none, too.
    """
    found = dict(state.guarded_reads)
    barriers = {announced, UNREAD} if takes_unread else {announced}
    for each in {key[0] for key in found} | {guard}:
        mine = read if each == guard else 0
        only, others = mine, read & ~mine
        for barrier in barriers:
            alone = found.get((each, barrier), 0)
            only, others = only | alone, others | reads_of(state, barrier) & ~alone
        if takes_unread:
            found.pop((each, UNREAD), None)
        found[each, announced] = only & ~others
    return {key: mask for key, mask in found.items() if mask}


def merge(one: State | None, other: State) -> State:
    if one is None or one == other:
        return other
    mine, theirs = union(one.reads) | one.unread, union(other.reads) | other.unread
    ours, others = union(one.writes) | union(one.loose), union(other.writes) | union(other.loose)

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
    )
