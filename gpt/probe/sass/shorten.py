"""Shorten what ptxas compiled for a snippet.

- If a jump skips words between a BSSY and its BSYNC, the words get its guard, and the jump is left out. ptxas doesn't
  do that for reductions in memory.

      BSSY B0, L
      @P0 BRA M              @!P0 REDG [R6], R12
      REDG [R6], R12     ->
   M: BSYNC B0
   L:

- BRA.DIV is left out, with the code that it leads to. It's there in case that lanes which a redux or shuffle names have
  diverged. If the VOTE that found these lanes is in the same straight piece of code, they haven't.
- If no lane of a warp saves, ptxas jumps over a guarded save with `@!P0 BRA.U`. For warps in which only some lanes
  save, there's a second branch, `@!P0 BRA`, between BSSY and BSYNC. check.py refuses BRA.U, because nobody has measured
  its exact meaning. The second branch is enough on its own.
- A function keeps the descriptor of global memory in general registers, and copies it to uniform ones for each access,
  which takes 13 cycles. It's loaded where it's needed instead.

Once there are no jumps left, all of a snippet can be reordered (schedule.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from gpt.probe.sass import glue
from gpt.probe.sass.draft import LONG, with_change
from gpt.probe.sass.renaming import Renamer
from gpt.sass.check_words import NOP
from gpt.sass.code import Code, Instruction
from gpt.sass.graph import Graph, is_conditional, make_graph
from gpt.sass.live import live_before
from gpt.sass.masks import STARTS
from gpt.sass.tables import Table
from gpt.sass.words import (
    CONTROL,
    PT,
    SIZE,
    Guard,
    bits,
    control_of,
    dump_words,
    guard_of,
    target_of,
    with_control,
    with_guard,
    with_target,
)

MOST = 8  # words that get a guard in place of a jump over them
DESCRIPTOR = 0x208  # where the descriptor of global memory is, in the bank of constants
_GUARDED = {"REDG", "STG", "MOV", "IMAD", "IADD3", "LOP3", "LEA", "SHF", "SEL"}
_LEFT = {"NOP", "ULDC"}  # these may run in all lanes
_KIND, _ANY, _DIV = 1 << 91 | 3 << 32, 1 << 32, 1 << 91 | 2 << 32  # the kind of a BRA: BRA.U, BRA.DIV; also BRA.CONV
_VOTE, _ACTIVE = 0x806, 0x038E0100 << 64 | PT << 12  # VOTE.ANY R, PT, PT gives the active lanes
_COPY = 0x2CA  # R2UR


def shorten(words: list[int], table: Table) -> list[int]:
    """Return the words without what isn't needed. The last word is a RET, which stays."""
    found = list(words)
    for index in _find_shortcuts(_code(found, table)):
        found[index] = with_control(NOP, control_of(found[index])._replace(reuse=0))
    while (shorter := _without_divergence(found, table)) is not found:  # what's gone no longer jumps to what's left
        found = shorter
    found = _with_own_guards(_with_descriptors(found, table), table)
    while change := next(_iter_guardable(_code(found, table)), None):
        found = _without(found, table, *change)
    return _without_idle(found, table)


def _code(words: list[int], table: Table) -> Code:
    return Code(dump_words(words), table)


def _graph(words: list[int], table: Table) -> Graph:
    """Return the graph of the words, whose last one ends the code."""
    return make_graph(_code([*words[:-1], words[-1] & ~0xFFF | 0x94D], table))


# Jumps


def _find_shortcuts(code: Code) -> Iterator[int]:
    """Yield each BRA.U that only saves time, because a BRA with the same guard follows, between a BSSY and the BSYNC
    before its target.

    No instruction in between may access memory or change the guard. Then it does no harm if lanes whose guard is true
    reach the second branch. That happens anyway if the guard is false in another lane.
    """
    for index, one in enumerate(code):
        if one.name != "BRA" or one.word & _KIND != _ANY or one.target is None:
            continue
        end, opened = one.target // SIZE, False
        for other in (code[number] for number in range(index + 1, min(end, len(code)))):
            if other.name == "BSSY":
                opened = other.guard.always and other.target == one.target
            elif other.name == "BRA":
                meets = other.target == one.target - SIZE and code[end - 1].name == "BSYNC"
                if opened and meets and guard_of(other.word) == guard_of(one.word):
                    yield index
                break
            elif other.memory not in (None, "constant") or other.masks.writes & one.masks.reads:
                break


def _without_divergence(words: list[int], table: Table) -> list[int]:
    code = _code(words, table)
    dropped = {at for at in code.find({"BRA"}) if code.words[at] & _KIND == _DIV and _names_active(code, at)}
    if not dropped:
        return words
    found = _without(words, table, dropped, {})
    graph = _graph(found, table)
    gone = {index for index in range(len(found) - 1) if not graph.reaches(index)}
    return _without(found, table, gone, {})


def _names_active(code: Code, index: int) -> bool:
    """Return whether a BRA.DIV names the lanes that a VOTE found to be active, with no jump from or to the words in
    between.
    """
    targets = {one.target // SIZE for one in code if one.target is not None}
    wanted = code[index].masks.reads & ~((1 << STARTS.UR) - 1)
    for other in (code[number] for number in range(index - 1, -1, -1)):
        if other.index + 1 in targets or other.entry.target or other.name in ("BSYNC", "WARPSYNC"):
            return False
        if not other.masks.writes & wanted:
            continue
        if not other.guard.always:
            return False
        if other.opcode == _COPY:
            wanted = other.masks.reads
            continue
        return other.opcode == _VOTE and other.word & ~CONTROL & ~(0xFF << 16 | 0xFFF) == _ACTIVE
    return False


def _with_own_guards(words: list[int], table: Table) -> list[int]:
    """If a word that a jump skips writes the predicate that decided about the jump, let it write another one."""
    code, renamer = _code(words, table), Renamer(words, table)
    targets = {one.target // SIZE for one in code if one.target is not None}
    for jump in code:
        guard, end = jump.guard, (jump.target or 0) // SIZE
        inside = range(jump.index + 1, end)
        if jump.name != "BRA" or guard.always or any(code[n].entry.target or n in targets for n in inside):
            continue
        after = 0 if _goes_back(code) else end
        needed = any(other.reads.P >> guard.predicate & 1 for other in (code[n] for n in range(after, len(code))))
        for index in inside:
            for field in renamer.fields[index]:
                if field.operand.file == "P" and field.number == guard.predicate:
                    renamer.rename(index, field, end, needed=needed)
    return renamer.words


def _iter_guardable(code: Code) -> Iterator[tuple[set[int], dict[int, Guard]]]:
    """Yield the words to drop, and the guards that other words get in exchange, for each pair of BSSY and BSYNC around
    a single jump over a few words.
    """
    for index, one in enumerate(code):
        end = one.target // SIZE - 1 if one.name == "BSSY" and one.guard.always and one.target else 0
        if not index < end < len(code) or code[end].name != "BSYNC":
            continue
        inside = [code[number] for number in range(index + 1, end)]
        jumps = [other for other in inside if other.entry.target or other.name in ("BSYNC", "RET", "EXIT")]
        if not jumps or not _skips(jumps[0], end, jumps[1:]):
            continue
        skipped = [other for other in inside if other.index > jumps[0].index and other not in jumps]
        guard = jumps[0].guard
        inverse = Guard(guard.predicate, not guard.negated)
        changes = any(other.masks.writes & jumps[0].masks.reads for other in skipped)
        plain = all(other.name in _GUARDED | _LEFT and other.guard.always for other in skipped)
        if 0 < len(skipped) <= MOST and plain and not changes:
            dropped = {index, end, *(jump.index for jump in jumps)}
            yield dropped, {other.index: inverse for other in skipped if other.name not in _LEFT}


def _skips(jump: Instruction, end: int, others: list[Instruction]) -> bool:
    """Return whether a jump leads to word `end`, and all others are at that place and only go on there."""
    ends = {end, *(other.index for other in others)}
    goes_on = all(
        other.name == "BRA" and not is_conditional(other) and other.target and other.target // SIZE in ends
        for other in others
    )
    straight = {other.index for other in others} == set(range(end - len(others), end))
    usual = jump.name == "BRA" and bits(jump.word, 32, 2) == 0 and bits(jump.word, 87, 4) == PT
    leads = jump.target is not None and jump.target // SIZE in ends
    return usual and leads and jump.guard.predicate != PT and goes_on and straight


# Descriptors


def _with_descriptors(words: list[int], table: Table) -> list[int]:
    """Load descriptors instead of copying them from general registers."""
    code = _code(words, table)
    found, dropped = list(words), set()
    for one in code:
        to, source = bits(one.word, 16, 6), bits(one.word, 24, 8)
        if one.opcode != _COPY or not _is_descriptor(code, source & ~1, one.index) or (to ^ source) & 1:
            continue
        if not _only_describes(code, one.index, to):
            return words
        if to & 1:
            dropped.add(one.index)
        else:
            wait = one.control.wait
            found[one.index] = with_change(glue.load_descriptor(to, DESCRIPTOR), stall=LONG, wait=wait)
    return _without(found, table, dropped, {})


def _is_descriptor(code: Code, register: int, index: int) -> bool:
    """Return whether a pair of registers has the descriptor at a word: it was loaded before, and no jump skips that."""
    last = next((n for n in range(index - 1, -1, -1) if code[n].masks.writes >> register & 3), 0)
    load = glue.load_parameter(register, DESCRIPTOR)
    skipped = any(
        one.target is not None and one.name != "BSSY" and (one.index < last < one.target // SIZE <= index)
        for one in code
    )
    return not (code[last].word ^ load) & ~CONTROL and not skipped and not _goes_back(code)


def _goes_back(code: Code) -> bool:
    """Return whether a jump leads to an earlier word."""
    return any(one.target is not None and one.target <= one.offset for one in code)


def _only_describes(code: Code, index: int, register: int) -> bool:
    """Return whether a uniform register that was written is only read by accesses to memory, until it's written again
    or the code ends.
    """
    mask = 1 << STARTS.UR + register
    for other in (code[number] for number in range(index + 1, len(code))):
        if other.masks.reads & mask and other.memory != "global":
            return False
        if other.masks.writes & mask and other.guard.always:
            return True
    return True


# Words


def _without_idle(words: list[int], table: Table) -> list[int]:
    """Return the words without NOPs, jumps to the next word, and registers that are loaded or copied for nothing."""
    while True:
        code, dropped = _code(words, table), set[int]()
        live = list(live_before(_code([*words[:-1], words[-1] & ~0xFFF | 0x94D], table), _graph(words, table)))
        for one in (code[number] for number in range(len(code) - 1)):
            is_next = one.name == "BRA" and not is_conditional(one) and one.target == one.offset + SIZE
            is_idle = one.opcode == _COPY or _loads_descriptor(one)
            if is_next or one.name == "NOP" or (is_idle and not one.masks.writes & live[one.index + 1]):
                dropped.add(one.index)
            if one.name == "ULDC" and _is_repeated(code, one):
                dropped.add(one.index)
        if not dropped:
            return words
        words = _without(words, table, dropped, {})


def _is_repeated(code: Code, one: Instruction) -> bool:
    """Return whether the same word has run before, its result is still there, and no jump is or leads in between."""
    targets = {other.target // SIZE for other in code if other.target is not None}
    for other in (code[number] for number in range(one.index - 1, -1, -1)):
        if other.index + 1 in targets or other.entry.target:
            return False
        if other.masks.writes & one.masks.writes:
            return not (other.word ^ one.word) & ~CONTROL
    return False


def _loads_descriptor(one: Instruction) -> bool:
    return not (one.word ^ glue.load_parameter(bits(one.word, 16, 8), DESCRIPTOR)) & ~CONTROL


def _without(words: list[int], table: Table, dropped: Collection[int], guards: Mapping[int, Guard]) -> list[int]:
    """Return the words without some of them, and with guards. The word after a dropped one waits in its place."""
    places, kept = [], 0
    for index in range(len(words) + 1):
        places.append(kept)
        kept += index not in dropped
    found, wait = list[int](), 0
    for index, word in enumerate(words):
        control = control_of(word)
        if index in dropped:
            wait |= control.wait
            if found:  # the next word may need the time
                last = control_of(found[-1])
                found[-1] = with_change(found[-1], stall=min(LONG, last.stall + control.stall))
            continue
        word = with_control(word, control._replace(wait=control.wait | wait))
        wait = 0
        form = table.opcode(word).target
        if form and table.opcode(word).name != "RET":
            target = places[target_of(word, form, SIZE * index) // SIZE]
            word = with_target(word, form, SIZE * places[index], SIZE * target)
        found.append(with_guard(word, guards[index]) if index in guards else word)
    return found
