"""Sum up consecutive words of a snippet, so that most of them needn't be followed one by one.

A *run* ends with the first word that may jump, or before a place where paths meet. What its words read, write, await
and leave in flight doesn't depend on where they are, so it's found once. Where a run begins, a few masks show whether
any of its words can break a rule: for example, none does if the run names no register for which something is in flight.
Only if these masks leave a doubt, the words are followed one by one (check_state.py), which finds out what's wrong, if
anything.
"""

from __future__ import annotations

from operator import and_
from typing import NamedTuple

from gpt.sass.check_known import State, merge
from gpt.sass.check_saves import drop_overwritten, find_copied, find_depth, holders
from gpt.sass.check_time import iter_hazards, iter_late_hazards
from gpt.sass.check_word import FACTS, find_facts
from gpt.sass.code import Code
from gpt.sass.flow import MEMBERS, NO_PARTS, NOTHING, InFlight, advance, as_flight, find_unseen, release, wait_for
from gpt.sass.masks import STARTS, union
from gpt.sass.stalls import LATE_GUARD
from gpt.sass.words import BARRIERS

RUNS = "runs"  # Table.memo: by words
Pending = frozenset[tuple[int, int, int]]


class Run(NamedTuple):
    """Consecutive words of a snippet. The sets of registers are unions over its words."""

    length: int
    is_plain: bool  # no word breaks a rule on its own
    depth: int  # bytes below the stack pointer that it accesses
    is_local: bool  # a word accesses local memory, so it may restore a register from a copy, or overwrite a copy
    flows: bool  # the last word may jump, or split or gather lanes
    reads: int
    writes: int
    defines: int  # what its words write in all lanes
    named: int
    guards: int
    copied: int  # registers of which a word may make a copy
    sources: int  # registers from which a word may restore others, if they hold copies
    first_wait: int  # barriers that the first word awaits
    later_wait: int  # barriers that the others await
    stall: int
    pending: tuple[tuple[int, int], ...]  # registers, cycles left: its own results at its end
    flight: InFlight  # from its own words, at its end
    unwaited: tuple[int, ...]  # by barrier: the registers that it names before one of its later words awaits that
    unwaited_writes: tuple[int, ...]  # the same for registers that it writes

    def uses(self, flight: InFlight) -> bool:
        """Return whether a word may use a register in flight, once the first word has waited."""
        if self.named & flight.unawaited:
            return True
        return any(map(and_, self.unwaited, flight.writes)) or any(map(and_, self.unwaited_writes, flight.reads))


def find_run(code: Code, index: int, stop: int) -> Run:
    """Return the run that begins at a word and ends before `stop` at the latest."""
    known = code.table.memo(RUNS)
    key = tuple(code.words[index:stop])
    found: Run | None = known.get(key)
    if found is None:
        found = known[key] = _sum_up(code, index, stop)
    return found


def _sum_up(code: Code, first: int, stop: int) -> Run:
    facts = code.table.memo(FACTS)
    is_plain, flows, uses_local, starts = True, False, False, False
    reads = writes = defines = guards = copied = sources = later_wait = clock = depth = in_use = late_named = 0
    late: list[tuple[int, int, int]] = []
    parts, unwaited, unwaited_writes = list(NO_PARTS), [-1] * BARRIERS, [-1] * BARRIERS  # -1: not awaited
    for index in range(first, stop):
        word = facts.get(code.words[index]) or find_facts(code[index], code.table)
        _, guard, is_forbidden, is_local, read, written, named, stall, wait, fresh, keeps, restored, flows, start = word
        if is_forbidden:
            is_plain = False
        if is_local:
            uses_local = True
            slot = find_depth(code[index])
            is_plain &= slot is not None
            depth = max(depth, slot or 0)
        elif restored:
            sources |= read
        if keeps:
            copied |= find_copied(code[index])
        if wait and index > first:
            reading, writing = find_unseen(code, index)
            for barrier in MEMBERS[wait]:
                if unwaited[barrier] < 0:
                    unwaited[barrier], unwaited_writes[barrier] = reads | writes, writes
                parts[barrier] &= writing
                parts[barrier + BARRIERS] &= reading
            later_wait |= wait
            in_use = union(parts) if in_use else 0
        if in_use & named:
            is_plain &= not any(iter_hazards(word, as_flight(parts)))
        if late_named & named:
            late = [one for one in late if one[1] > clock]
            is_plain &= not any(mask for _, mask, _ in iter_late_hazards(word, late, 0, clock))
            late = [(mask & ~written, due, 0) for mask, due, _ in late if mask & ~written]
            late_named = union(mask for mask, _, _ in late)
        if start:
            advance(parts, code, index)
            starts, in_use = True, in_use | named
        clock += stall
        for mask, left in fresh:
            late.append((mask, clock + left, 0))
            late_named |= mask
        reads |= read
        writes |= written
        defines |= 0 if guard else written
        guards |= guard
        if flows:
            break
    named = reads | writes
    pending = tuple((mask, due - clock) for mask, due, _ in late if due > clock)
    wait = find_facts(code[first], code.table).wait
    flight = as_flight(parts) if starts else NOTHING
    before = tuple([named if mask < 0 else mask for mask in unwaited])
    before_writes = tuple([writes if mask < 0 else mask for mask in unwaited_writes])
    sets = reads, writes, defines, named, guards, copied, sources
    return Run(
        index + 1 - first,
        is_plain,
        depth,
        uses_local,
        flows,
        *sets,
        wait,
        later_wait,
        clock,
        pending,
        flight,
        before,
        before_writes,
    )


def pass_run(run: Run, state: State, code: Code, index: int, is_guarded: bool) -> State | None:
    """Return the state after a run that begins at a word, or None if a word may break a rule, or copy or restore a
    register.

    In `state`, which is otherwise the one before the run, the first word has waited for the kernel's instructions.
    """
    own, defined, copies, flight, ours, pending, meetings, part, awaited = state
    if not run.is_plain or run.copied & own:
        return None
    if copies:
        held = holders(copies)
        if run.is_local or run.sources & held:
            return None
        if run.writes & held:
            copies = drop_overwritten(copies, run.writes)
    if any(run.writes >> STARTS.B + meeting & 1 for meeting in meetings):
        return None
    later = _pass_pending(run, pending, part)
    if later is None:
        return None
    if ours is NOTHING:
        ours = run.flight
    else:
        ours = release(ours, code, index)
        if ours.queued or run.uses(ours):
            return None
        ours = merge(wait_for(ours, run.later_wait), run.flight)
    if not is_guarded:
        defined |= run.defines
    flight = wait_for(flight, run.later_wait)
    return State(
        own & ~run.writes,
        defined,
        copies,
        flight,
        ours,
        later,
        meetings,
        part,
        awaited | run.first_wait | run.later_wait,
    )


def _pass_pending(run: Run, pending: Pending, part: int) -> Pending | None:
    """Return what's pending after a run of a part, or None if one of its words may use it too early."""
    found = [(mask, left, part) for mask, left in run.pending]
    for mask, left, other in pending:
        if mask & run.named and (other != part or (mask & run.guards and left > LATE_GUARD)):
            return None
        if left > run.stall and mask & ~run.writes:
            found.append((mask & ~run.writes, left - run.stall, other))
    return frozenset(found)
