"""Reuse what checking a snippet has found, wherever the same words run in the same circumstances.

Many places of a kernel have the same snippet with the same registers. What it does to a State (check_state.py) depends
on the registers that it names, `mask`, and on nothing else in the sets of registers: it leaves all other registers as
they are. So the key of a result has, besides the words, the sets restricted to `mask`, and these in full: copies,
pending results, what's in flight from the part before, and open BSSYs. Waiting clears a barrier's set of registers or
doesn't touch it, so the key also says which of these sets are empty, and the result, which are empty afterwards.

Results with faults aren't kept.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import NamedTuple

from gpt.sass.check_known import KERNEL, State
from gpt.sass.check_time import Pending
from gpt.sass.check_word import WordFacts
from gpt.sass.flow import InFlight
from gpt.sass.masks import STARTS
from gpt.sass.words import bits

SHORTEST = 4  # words from which on keeping results pays
KEPT, RESULTS = 1 << 12, 1 << 8  # snippets, and results of each


class Result(NamedTuple):
    """The state after a snippet, whose pending results have relative parts, and the registers that the snippet reads
    and saves.
    """

    state: State
    reads: int
    saved: int


@dataclass
class Known:
    """A snippet with the names of a place, and its results."""

    mask: int
    results: dict[Hashable, Result] = field(default_factory=dict)

    def keep(self, key: Hashable, result: Result) -> None:
        """Keep a result."""
        if len(self.results) >= RESULTS:
            self.results.clear()
        self.results[key] = result


def mask_of(facts: WordFacts, word: int) -> int:
    """Return every register on which a word's check depends, or whose state it changes."""
    found = facts.named | facts.guard
    if facts.keeps:  # a copy's register, whose position in the word depends on the instruction
        found |= 0xF << bits(word, 32, 8) | 1 << STARTS.UR + bits(word, 32, 6) | 127 << STARTS.P
    return found


def with_copies(mask: int, state: State) -> int:
    """Add the registers that copies may restore."""
    for _, _, register in state.copies:
        mask |= 1 << register
    return mask


def make_key(state: State, number: int, mask: int, *sets: int) -> Hashable:
    """Return all that a result depends on, for part `number`. `sets` are more sets of registers that matter."""
    flight = state.kernel
    groups = (*flight.writes, *flight.reads)
    return (
        *[found & mask for found in groups],
        *[not found for found in groups],
        *[found & mask for found in (*flight[2:], state.own, state.defined, *sets)],
        state.copies,
        state.ours,
        _make_relative(state.pending, number),
        state.meetings,
    )


def make_result(state: State, number: int, reads: int, saved: int) -> Result:
    """Return a result that can be applied to other places."""
    return Result(state._replace(pending=_make_relative(state.pending, number)), reads, saved)


def apply(result: Result, before: State, number: int, mask: int) -> State:
    """Return the state after part `number`, given the state before it."""
    found, flight = result.state, before.kernel
    writes = tuple([was if now else 0 for was, now in zip(flight.writes, found.kernel.writes, strict=True)])
    reads = tuple([was if now else 0 for was, now in zip(flight.reads, found.kernel.reads, strict=True)])
    pending = found.pending
    if pending:
        pending = frozenset([(one, left, KERNEL if k == _KERNEL else k + number) for one, left, k in pending])
    return State(
        before.own & ~mask | found.own & mask,
        before.defined & ~mask | found.defined & mask,
        found.copies,
        InFlight(writes, reads, *flight[2:]),
        found.ours,
        pending,
        found.meetings,
        number,
    )


_KERNEL = 1  # stands for the kernel where parts are relative; those that have run are at most 0


def _make_relative(pending: frozenset[Pending], number: int) -> frozenset[Pending]:
    if not pending:
        return pending
    return frozenset([(one, left, _KERNEL if k == KERNEL else k - number) for one, left, k in pending])
