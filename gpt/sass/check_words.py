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

from gpt.formats.kernel_edit import NOP as PADDING
from gpt.sass.masks import STARTS, Registers
from gpt.sass.tables import Field, Opcode, Table
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
from gpt.sass.woven import Inserted

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


def compare_inserted(new: list[int], part: Inserted, table: Table) -> Iterator[tuple[int, str]]:
    """Yield the index of each wrong word of a snippet, with the reason. `new` has the words in the woven kernel.

    Words that were right are remembered: many places have the same snippet with the same names, and perhaps other
    control parts. Where a snippet is doesn't matter, because jumps are relative.
    """
    words = part.snippet.words
    known = table.memo("compare_inserted")
    key = (words, part.guard, *((file, *names.items()) for file, names in part.names.items()))
    right: tuple[int, ...] | None = known.get(key)
    if right is not None:
        changed = [index for index, (now, was) in enumerate(zip(new, right, strict=True)) if now != was]
        different = 0
        for index in changed:
            different |= new[index] ^ right[index]
        if not different & ~CONTROL:
            for index in changed:
                if text := compare_control(new[index], words[index]):
                    yield index, text
            return
    faults = [*_check_stalls(words, table), *((0, text) for text in _check_names(part, table))]
    for index, (now, old) in enumerate(zip(new, words, strict=True)):
        if text := _compare(now, old, index, part, table):
            faults.append((index, text))
    yield from faults
    if not faults:
        known[key] = tuple(new)


def _check_stalls(words: tuple[int, ...], table: Table) -> Iterator[tuple[int, str]]:
    """Find words of a snippet that read a result of fixed latency in the next cycle. ptxas always leaves two cycles,
    except to the units whose registers the hardware waits for (docs/sass-rules.md).
    """
    for index, (before, word) in enumerate(pairwise(words), 1):
        if control_of(before).stall >= _SHORTEST or table.opcode(before).variable:
            continue
        if table.decoder(before).masks(before).writes & table.decoder(word).masks(word).reads & _LANES:
            yield index, "it reads a result in the cycle after the word that computes it"


def _check_names(part: Inserted, table: Table) -> Iterator[str]:
    for file, names in part.names.items():
        if file not in Registers._fields:
            yield f"a renaming of {file}"
            continue
        last = (1 << table.arch.register_bits[file]) - (1 if file != "B" else 0)
        if len(set(names.values())) != len(names):
            yield f"two {file} registers of the snippet are one"
        if any(not 0 <= number < last for pair in names.items() for number in pair):
            yield f"a {file} register beyond the last"


def _compare(new: int, old: int, index: int, part: Inserted, table: Table) -> str:
    opcode = table.opcode(old)
    at = SIZE * (part.start + index)
    if opcode.name == "YIELD":
        return "a YIELD isn't a NOP" if (new ^ NOP) & ~CONTROL else compare_control(new, old)
    if opcode.name == "RET":
        branch = make_branch(part.start + index, part.start + part.length, table.arch.branch)
        branch = with_guard(branch, guard_of(old)) & ~_SECOND_FIELD | old & _SECOND_FIELD
        old = branch | old & CONTROL
        opcode = table.opcode(old)
    elif opcode.target:
        target = target_of(old, opcode.target, SIZE * index)
        if not 0 <= target <= SIZE * part.length or target % SIZE:
            return "the snippet leaves itself"
        old = with_target(old, opcode.target, at, SIZE * part.start + target)
    if part.guard is not None:
        if not guard_of(old).always or opcode.target:
            return "a guard for a word that has one, or jumps"
        if guard_of(new) != part.guard:
            return "it hasn't the declared guard"
        new = with_guard(new, Guard(PT, False))
    fields = 0
    for one in table.fields(old):
        if text := _compare_field(new, one, part):
            return text
        fields |= one.none << one.low
    if (new ^ old) & ~(CONTROL | fields):
        return "it's another instruction"
    return compare_control(new, old)


def _compare_field(new: int, one: Field, part: Inserted) -> str:
    """Return why a field doesn't name the registers that the snippet's field should be renamed to."""
    operand, low, none, turn, was, count = one
    names = part.names.get(operand.file.replace("PR", "P"), {})
    if not count:  # a set of predicates, whose bits are compared like all other bits
        moved = any(names.get(number, number) != number for number in range(7) if was >> number & 1)
        return "predicates of a set have other names" if moved else ""
    now = (new >> low & none) ^ turn
    if operand.file != "B" and none in (was, now):
        return "" if was == now else f"{operand.name} is RZ or PT on one side only"
    if names.get(was) != now or any(names.get(was + k) != now + k for k in range(1, count)):
        return f"{operand.name} is {operand.file}{now}, for the snippet's {operand.file}{was}"
    size = 1 << (count - 1).bit_length()
    return "" if was % size or not now % size else f"{operand.name} isn't aligned"


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
