"""The facts about a word that checking a trampoline needs again and again, wherever the word is.

Many trampolines have the same words, so each word's facts are found once and kept.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.sass.check_saves import KEEPERS, RESTORERS
from gpt.sass.check_words import FORBIDDEN, is_collective
from gpt.sass.code import Instruction
from gpt.sass.flow import is_late
from gpt.sass.masks import STARTS
from gpt.sass.stalls import iter_safe
from gpt.sass.tables import Table
from gpt.sass.words import NO_BARRIER, bits, control_of

FACTS = "facts"  # Table.memo: by word
Fresh = tuple[int, int]  # registers, cycles left
_FLOW = {"BSSY", "BSYNC", "BRA", "WARPSYNC"}


class WordFacts(NamedTuple):
    """Facts about a word."""

    name: str
    guard: int  # the predicate of its guard
    is_forbidden: bool  # in a snippet
    is_local: bool  # accesses local memory
    reads: int
    writes: int
    named: int  # what it reads or writes
    stall: int
    wait: int
    fresh: tuple[Fresh, ...]
    keeps: bool  # may make a copy (check_saves.py)
    restores: bool  # may restore a register from a copy
    flows: bool  # may jump, or split or gather lanes
    starts: bool  # may put something in flight


def find_facts(one: Instruction, table: Table) -> WordFacts:
    """Return the facts about an instruction's word."""
    known = table.memo(FACTS)
    found: WordFacts | None = known.get(one.word)
    if found is None:
        found = known[one.word] = _make(one)
    return found


def find_fresh(one: Instruction, stall: int) -> tuple[Fresh, ...]:
    """Return an instruction's results of fixed latency that are pending once its stall has passed."""
    return tuple((mask, left - stall) for mask, left in iter_safe(one.entry, one.masks.writes) if left > stall)


def _make(one: Instruction) -> WordFacts:
    reads, writes, *_ = one.masks
    control = control_of(one.word)
    silent = control.write_barrier == control.read_barrier == NO_BARRIER
    return WordFacts(
        one.name,
        reads & 1 << STARTS.P + bits(one.word, 12, 3),
        one.name in FORBIDDEN and not is_collective(one.word),
        one.memory == "local",
        reads,
        writes,
        reads | writes,
        control.stall,
        control.wait,
        find_fresh(one, control.stall),
        one.opcode in KEEPERS,
        one.opcode in RESTORERS,
        one.name in _FLOW,
        not silent or is_late(one.entry),
    )
