"""Compare the words of a rewritten kernel with the words they were made from.

*Inserted* words equal the snippet's under one renaming that maps no two registers to the same one. Each register field
of a word is renamed; all other bits stay the same. RZ and PT aren't renamed, and registers that belong to one operand
stay adjacent. Jumps keep their distances within the snippet.

*Moved* words equal the kernel's, with two exceptions: a branch keeps its target, so its distance differs, and the EXIT
behind a guarded branch has lost its guard.

In both, waits can only get longer: a longer stall, more barriers awaited. A hint to keep operands in the register cache
may be dropped: the neighbouring words have changed, and the hint saves energy, not time. Whether an instruction
announces its result or its reads doesn't change, except that an *amended* word may announce its reads where it didn't
before, and an LDC its result, so that they can be awaited.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from gpt.formats.kernel_edit import NOP as PADDING
from gpt.sass.masks import STARTS, Registers, pack
from gpt.sass.tables import Opcode, Table
from gpt.sass.words import (
    BARRIERS,
    CONTROL,
    NO_BARRIER,
    PT,
    SIZE,
    Guard,
    bits,
    control_of,
    guard_of,
    target_of,
    with_guard,
    with_target,
)
from gpt.sass.woven import Inserted, Snippet

NOP = int.from_bytes(PADDING, "little")
BRANCH = 0x947 | PT << 12 | PT << 87
_SHORTEST = 2  # cycles that ptxas leaves at least between a result in general registers or predicates and its reader
_LANES = (1 << STARTS.UR) - 1 | 127 << STARTS.P
_SECOND_FIELD = 15 << 87  # in EXIT and BRA: a second predicate and its sign
LAST_PLAIN_STALL = 11  # from 12 on, ptxas clears the hint

# Instructions that aren't allowed in a snippet. The first three release lanes that wait at one of the kernel's BSYNCs
# (docs/sass-rules.md). The others end the kernel or leave the trampoline, use block barriers, whose number is in the
# file, or continue in the background without a scoreboard that announces their end.
FORBIDDEN = {
    *("YIELD", "NANOSLEEP", "WARPSYNC"),
    *("EXIT", "KILL", "CALL", "RET", "BRX", "BRXU", "JMP", "JMX", "JMXU", "BREAK", "LEPC", "BPT", "PREEXIT", "ACQBULK"),
    *("BAR", "B2R", "ARRIVES", "SYNCS", "UCGABAR_ARV", "UCGABAR_WAIT", "USETMAXREG", "PMTRIG"),
    *("HGMMA", "IGMMA", "BGMMA", "QGMMA", "WARPGROUP", "DEPBAR", "LDGSTS", "LDGDEPBAR", "STAS", "REDAS"),
    *("UBLKCP", "UBLKPF", "UBLKRED", "UTMALDG", "UTMAPF", "UTMAREDG", "UTMASTG", "UTMACCTL", "UTMACMDFLUSH"),
}
# These can't be moved: they depend on their place, or on the instructions around them.
UNMOVABLE = {
    *("CALL", "RET", "BRX", "BRXU", "JMP", "JMX", "JMXU", "LEPC", "BSSY", "BSYNC", "BREAK", "KILL", "BPT"),
    *("WARPSYNC", "ENDCOLLECTIVE", "YIELD", "NANOSLEEP", "WARPGROUP", "HGMMA", "IGMMA", "BGMMA", "QGMMA", "USETMAXREG"),
}
# Instructions for whose reads ptxas sets a barrier. On any other instruction, the barrier might never be released.
ANNOUNCES_READS = {
    *("LDG", "STG", "LDS", "STS", "LDL", "STL", "LD", "ST", "ATOM", "ATOMG", "ATOMS", "RED", "REDG", "LDGSTS"),
    *("LDSM", "STSM", "SHFL", "LDC", "MUFU", "POPC", "FLO", "F2F", "F2I", "I2F", "FRND", "FCHK"),
}
_COLLECTIVE = 1 << 86  # in WARPSYNC: gather the lanes of a mask up to ENDCOLLECTIVE


def is_collective(word: int) -> bool:
    """Return whether a WARPSYNC only gathers lanes, up to an ENDCOLLECTIVE."""
    return word & 0xFFF == 0x348 and bool(word & _COLLECTIVE)


def compare_control(new: int, old: int) -> str:
    """Return how a word waits for less than before, or sets other barriers; an empty string if it does neither."""
    return _compare_control(new & CONTROL, old & CONTROL)


@lru_cache(1 << 14)
def _compare_control(new: int, old: int) -> str:
    stall, hint, write, read, wait, reuse = control_of(new)
    was = control_of(old)
    if stall < was.stall:
        return f"it stalls {stall} cycles instead of {was.stall}"
    if stall > LAST_PLAIN_STALL and hint:
        return f"it has the scheduler's hint at a stall of {stall}"
    if was.wait & ~wait:
        return "it doesn't wait for a barrier"
    if (write, read) != (was.write_barrier, was.read_barrier):
        return "it announces something else"
    return "it keeps another operand in the register cache" if reuse & ~was.reuse else ""


def compare_amended(new: int, old: int, opcode: Opcode) -> str:
    """Return why a change to a word that wasn't moved may matter; an empty string if it can't."""
    if (new ^ old) & ~CONTROL:
        return "it's another instruction"
    return compare_control(new, with_announcements(old, new, opcode))


def with_announcements(old: int, new: int, opcode: Opcode) -> int:
    """Return the old word with the new one's barriers where it had none, if such an instruction may have them."""
    was, now = control_of(old), control_of(new)
    if was.read_barrier == NO_BARRIER and now.read_barrier < BARRIERS and opcode.name in ANNOUNCES_READS:
        old = old & ~(7 << 113) | now.read_barrier << 113
    if was.write_barrier == NO_BARRIER and now.write_barrier < BARRIERS and opcode.name == "LDC":
        old = old & ~(7 << 110) | now.write_barrier << 110
    return old


def make_branch(at: int, to: int, form: str, word: int = 0) -> int:
    """Return the branch from one instruction to another, with the guard of `word` if that's a guarded EXIT."""
    base = BRANCH if not word else BRANCH & ~(0xF << 12 | _SECOND_FIELD) | word & (0xF << 12 | _SECOND_FIELD)
    return with_target(base, form, SIZE * at, SIZE * to)


def compare_moved(new: int, at: int, old: int, source: int, opcode: Opcode, is_unguarded_exit: bool) -> str:
    """Return why a moved word isn't the kernel's, or an empty string if it is."""
    if opcode.target and opcode.name == "BRA":
        old = with_target(old, opcode.target, SIZE * at, target_of(old, opcode.target, SIZE * source))
    if is_unguarded_exit:
        old = with_guard(old, Guard(PT, False)) & ~_SECOND_FIELD | PT << 87
    return "it's another instruction" if (new ^ old) & ~CONTROL else compare_control(new, old)


class _Shape(NamedTuple):
    """The words of a snippet, prepared for renaming."""

    words: tuple[int, ...]  # with zeros in place of the fields that are renamed
    fields: tuple[tuple[tuple[int, int, int], ...], ...]  # by word: which of `operands`, first bit, bits to invert
    operands: tuple[
        tuple[str, int, int, str], ...
    ]  # each once: file, number, how many from there on, name in the table
    sets: tuple[tuple[str, int], ...]  # sets of predicates, whose bits aren't renamed: file, set
    faults: tuple[tuple[int, str], ...]  # wrong under any names: word, reason


class Renaming(NamedTuple):
    """A part's words as its snippet and its names say, and the registers of the kernel that they name."""

    words: list[int]  # apart from what their control parts may have instead
    snippet: Snippet
    faults: list[tuple[int, str]]
    given: int  # the snippet's inputs
    missing: int  # registers that are read before a word writes them
    writes: int


def compare_inserted(new: list[int], renaming: Renaming) -> Iterator[tuple[int, str]]:
    """Yield the index of each wrong word of a snippet, with the reason. `new` has the words in the woven kernel."""
    words, snippet, faults, *_ = renaming
    yield from faults
    if new != words:
        for index in [index for index, (now, was) in enumerate(zip(new, words, strict=True)) if now != was]:
            if (new[index] ^ words[index]) & ~CONTROL:
                yield index, "it isn't the snippet's word with the declared names"
            elif text := compare_control(new[index], snippet.words[index]):
                yield index, text


def find_renaming(part: Inserted, table: Table) -> Renaming:
    """Return what a part's words must be. Where a part is doesn't matter, because jumps are relative. So this is found
    once for each snippet, and once for each renaming of it.
    """
    known = table.memo("renamings")
    names = tuple([(file, *some.items()) for file, some in part.names.items()])
    key = part.snippet.words, part.snippet.inputs, part.guard, names
    found: Renaming | None = known.get(key)
    if found is None:
        words, faults = _rename_words(part, table)
        missing = writes = 0
        for word in words if not faults else ():
            masks = table.decoder(word).masks(word)
            missing |= masks.reads & ~writes
            writes |= masks.writes
        given = rename(pack(part.snippet.inputs), part) if not faults else 0
        found = known[key] = Renaming(words, part.snippet, faults, given, missing, writes)
    return found


def _rename_words(part: Inserted, table: Table) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the words of a renamed part, and what's wrong with its snippet or its names."""
    words, shapes = part.snippet.words, table.memo("shapes")
    has_guard = part.guard is not None
    shape: _Shape | None = shapes.get((words, has_guard))
    if shape is None:
        shape = shapes[words, has_guard] = _make_shape(words, has_guard, table)
    faults = [*shape.faults, *((0, text) for text in _check_names(part, table))]
    numbers = []
    for file, was, count, name in shape.operands:
        names = part.names.get(file, {})
        now = names.get(was, -1)
        numbers.append(max(now, 0))
        size = 1 << (count - 1).bit_length()
        if now < 0 or any(names.get(was + k) != now + k for k in range(1, count)):
            faults.append((0, f"{name} is renamed from {file}{was} to {file}{now}"))
        elif now % size and not was % size:
            faults.append((0, f"{name} isn't aligned"))
    for file, members in shape.sets:
        names = part.names.get(file, {})
        if any(names.get(number, number) != number for number in range(7) if members >> number & 1):
            faults.append((0, "predicates of a set have other names"))
    expected = []
    guard = (part.guard.predicate | part.guard.negated << 3) << 12 if part.guard is not None else 0
    if part.guard is not None and guard_of(guard) != part.guard:
        faults.append((0, "a guard that doesn't exist"))
    for word, fields in zip(shape.words, shape.fields, strict=True):
        for at, low, turn in fields:
            word |= (numbers[at] ^ turn) << low
        expected.append(word | guard)
    return expected, faults


def _make_shape(words: tuple[int, ...], has_guard: bool, table: Table) -> _Shape:
    faults, sets = [*_check_stalls(words, table)], list[tuple[str, int]]()
    found, fields = [], []
    operands: dict[tuple[str, int, int, str], int] = {}
    for index, old in enumerate(words):
        word, text = _place_word(old, index, len(words), has_guard, table)
        if text:
            faults.append((index, text))
        renamed = {}
        for operand, low, none, turn, was, count in table.fields(word):
            file = operand.file.replace("PR", "P")
            if not count:  # a set of predicates, whose bits are compared like all other bits
                sets.append((file, was))
            elif operand.file == "B" or was != none:
                at = operands.setdefault((file, was, count, operand.name), len(operands))
                renamed[at] = file, low, turn, none
        places = {(file, low, turn, none) for file, low, turn, none in renamed.values()}
        taken = 0
        for _, low, _, none in places:
            if taken & none << low:
                faults.append((index, "fields that overlap"))
            taken |= none << low
        word &= ~taken
        found.append(word & ~(15 << 12) if has_guard else word)
        fields.append(tuple((at, low, turn) for at, (_, low, turn, _) in renamed.items()))
    return _Shape(tuple(found), tuple(fields), tuple(operands), tuple(sets), tuple(faults))


def _place_word(old: int, index: int, count: int, has_guard: bool, table: Table) -> tuple[int, str]:
    """Return a word of a snippet as it has to be in a trampoline, and what's wrong with it."""
    opcode = table.opcode(old)
    if has_guard and (not guard_of(old).always or opcode.target or opcode.name in ("RET", "YIELD")):
        return old, "a guard for a word that has one, or jumps"
    if opcode.name == "YIELD":
        return NOP & ~CONTROL | old & CONTROL, ""
    if opcode.name == "RET":
        branch = make_branch(index, count, table.arch.branch)
        branch = with_guard(branch, guard_of(old)) & ~_SECOND_FIELD | old & _SECOND_FIELD
        return branch | old & CONTROL, ""
    if opcode.target:
        target = target_of(old, opcode.target, SIZE * index)
        if not 0 <= target <= SIZE * count or target % SIZE:
            return old, "the snippet leaves itself"
    return old, ""


def _check_stalls(words: tuple[int, ...], table: Table) -> Iterator[tuple[int, str]]:
    """Find words that read a result of fixed latency in the next cycle. ptxas always leaves two cycles, except to the
    units whose registers the hardware waits for (docs/sass-rules.md).
    """
    for index, (before, word) in enumerate(pairwise(words), 1):
        if before >> 105 & 15 >= _SHORTEST or table.opcode(before).variable:
            continue
        if table.decoder(before).masks(before).writes & table.decoder(word).masks(word).reads & _LANES:
            yield index, "it reads a result in the cycle after the word that computes it"


def _check_names(part: Inserted, table: Table) -> Iterator[str]:
    yield from (f"a renaming of {file}" for file in part.names if file not in Registers._fields)
    for file, names in part.names.items() if part.names.keys() <= {*Registers._fields} else ():
        last = (1 << table.arch.register_bits[file]) - (1 if file != "B" else 0)
        if len(set(names.values())) != len(names):
            yield f"two {file} registers of the snippet are one"
        if any(not 0 <= number < last for pair in names.items() for number in pair):
            yield f"a {file} register beyond the last"


def rename(mask: int, part: Inserted) -> int:
    """Return the kernel's registers for a set of the snippet's; registers that aren't renamed are left out."""
    found = 0
    for file, names in part.names.items() if mask else ():
        start: int = getattr(STARTS, file)
        for was, now in names.items():
            if mask >> start + was & 1:
                found |= 1 << start + now
    return found


def can_split(word: int) -> bool:
    """Return whether lanes may differ in taking a branch. They never do with BRA.DIV: all active lanes take it."""
    return not guard_of(word).always or bits(word, 87, 4) != PT
