"""The state that hazards.py keeps: what's in flight before an instruction, and how two states join."""

from __future__ import annotations

from typing import NamedTuple

from gpt.sass.masks import STARTS
from gpt.sass.words import BARRIERS

NONE = (0,) * BARRIERS


class State(NamedTuple):
    """Values in flight: the results and operands of each barrier. `loose` and `unread` have no barrier.

    `guarded` are the results of guarded instructions, by guard; `guarded_reads` are their operands. `units` are results
    by execution unit.

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
    guarded_reads: tuple[int, ...] = (0,) * 16
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
        guarded_reads=tuple([0 if k & 7 in changed else mask for k, mask in enumerate(state.guarded_reads)]),
    )


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
        _both_only(one.guarded_reads, other.guarded_reads, mine, theirs),
        _both_only(one.units, other.units, ours, others),
    )
