"""Prove that the mutations which the checker accepts do no harm.

Each class in EQUIVALENT has a proof in words, and a function that decides whether a mutation belongs to it. These
functions don't use the checker: they look at the changed bits, and walk straight through a trampoline.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from gpt.sass.code import Code
from gpt.sass.masks import EVERY_REGISTER, Registers, pack
from gpt.sass.stalls import iter_safe
from gpt.sass.words import BARRIERS, NO_BARRIER, Control, bits, control_of, dump_words
from gpt.sass.woven import Inserted, Moved, Trampoline
from tests.sass.mutations import Mutation
from tests.sass.weaver import SAVING

_READ_LATE = {
    "SHFL",
    "LDC",
    "MUFU",
    "POPC",
    "FLO",
    "F2F",
    "F2I",
    "I2F",
    "FRND",
    "FCHK",
}  # not of memory, with such barriers


def _only_control(one: Mutation) -> tuple[int, int] | None:
    """Return the word before and after, if the only change is in one word's control part."""
    old = one.woven.new.kernel.code.words
    changed = [index for index, word in enumerate(one.words) if word != old[index]]
    if len(changed) != 1 or one.facts or one.declaration != one.woven.declaration:
        return None
    was, now = old[changed[0]], one.words[changed[0]]
    return (was, now) if not (was ^ now) & (1 << 105) - 1 and was >> 126 == now >> 126 else None


def _changes_only(one: Mutation, *parts: str) -> tuple[Control, Control] | None:
    """Return the control parts before and after, if only these fields of one word differ."""
    words = _only_control(one)
    if words is None:
        return None
    was, now = control_of(words[0]), control_of(words[1])
    zero: dict[str, Any] = dict.fromkeys(parts, 0)
    return (was, now) if was._replace(**zero) == now._replace(**zero) else None


def _stalls_more(one: Mutation) -> bool:
    changed = _changes_only(one, "stall")
    return (
        changed is not None and changed[1].stall > changed[0].stall and (changed[1].stall < 12 or not changed[1].hint)
    )


def _waits_more(one: Mutation) -> bool:
    changed = _changes_only(one, "wait")
    return changed is not None and not changed[0].wait & ~changed[1].wait


def _forgets_an_operand(one: Mutation) -> bool:
    changed = _changes_only(one, "reuse")
    return changed is not None and not changed[1].reuse & ~changed[0].reuse


def _has_another_hint(one: Mutation) -> bool:
    changed = _changes_only(one, "hint")
    return changed is not None and (changed[1].stall < 12 or not changed[1].hint)


def _around(one: Mutation) -> Trampoline | None:
    """Return the trampoline in which a word was changed."""
    old = one.woven.new.kernel.code.words
    changed = [index for index, word in enumerate(one.words) if word != old[index]]
    for trampoline in one.declaration.trampolines:
        if changed and trampoline.start <= changed[0] < trampoline.end:
            return trampoline
    return None


def _distances_suffice(one: Mutation) -> bool:
    """Return whether each fixed-latency result arrives before another part of the trampoline needs it. Trampolines are
    straight-line code.
    """
    trampoline = _around(one)
    if trampoline is None:
        return False
    code = Code(dump_words(one.words), one.woven.new.kernel.code.table)
    part_of = {p.start + k: n for n, p in enumerate(trampoline.parts) for k in range(p.length)}
    live = one.woven.original.kernel.live[trampoline.sources[-1] + 1] if code[trampoline.end - 1].name == "BRA" else 0
    for writer in range(trampoline.start, trampoline.end):
        written, passed = code.masks[writer].writes, 0
        for reader in range(writer + 1, trampoline.end):
            passed += code.controls.stalls[reader - 1]
            used = code.masks[reader].reads | code.masks[reader].writes
            if reader == trampoline.end - 1 and reader not in part_of:  # the branch back
                used, passed = live, passed + 10
            other = part_of.get(reader) != part_of[writer] if writer in part_of else False
            if other and any(
                mask & used and passed < cycles for mask, cycles in iter_safe(code[writer].entry, written)
            ):
                return False
    return True


def _stalls_less(one: Mutation) -> bool:
    return bool(_changes_only(one, "stall")) and _given_control(one) and _distances_suffice(one)


def _given_control(one: Mutation) -> bool:
    """Return whether the changed word stalls and waits at least as much as in its snippet."""
    trampoline = _around(one)
    old = one.woven.new.kernel.code.words
    (at,) = [index for index, word in enumerate(one.words) if word != old[index]]
    if trampoline is None:
        return False
    for part in trampoline.parts:
        if isinstance(part, Inserted) and part.start <= at < part.start + part.length:
            given, now = control_of(part.snippet.words[at - part.start]), control_of(one.words[at])
            return now.stall >= given.stall and not given.wait & ~now.wait
    return at == trampoline.end - 1  # the branch back


def _waits_enough(one: Mutation) -> bool:
    """Return whether each wait that was removed happened earlier, or concerns no register that's used here."""
    words, trampoline = _only_control(one), _around(one)
    if words is None or trampoline is None or not _changes_only(one, "wait") or not _given_control(one):
        return False
    lost = control_of(words[0]).wait & ~control_of(words[1]).wait
    code = Code(dump_words(one.words), one.woven.new.kernel.code.table)
    old = one.woven.new.kernel.code.words
    (at,) = [index for index, word in enumerate(one.words) if word != old[index]]
    flight = one.woven.original.kernel.flight[trampoline.sources[0]]
    assert flight is not None
    moved = {part.start for part in trampoline.parts if isinstance(part, Moved)}
    for barrier in (number for number in range(BARRIERS) if lost >> number & 1):
        writing, reading, is_ours = flight.writes[barrier], flight.reads[barrier], False
        for index in range(trampoline.start, at):
            if code.controls.waits[index] >> barrier & 1:
                writing = reading = 0
                is_ours = False
            sets_it = code.controls.write_barriers[index], code.controls.read_barriers[index]
            if barrier in sets_it:
                is_ours |= index not in moved
                writing |= code.masks[index].writes if sets_it[0] == barrier else 0
                reading |= code.masks[index].reads
        if is_ours:
            return False
        for index in range(at, trampoline.end):
            if index in moved or (index > at and code.controls.waits[index] >> barrier & 1):
                break
            masks = code.masks[index]
            if masks.reads & writing or masks.writes & (writing | reading):
                return False
    return True


def _is_site_branch(one: Mutation) -> bool:
    old = one.woven.new.kernel.code.words
    changed = [index for index, word in enumerate(one.words) if word != old[index]]
    sites = [trampoline.sources[0] for trampoline in one.declaration.trampolines]
    return bool(_changes_only(one, "stall", "wait", "hint")) and changed[0] in sites


def _declares_what_is_not_there(one: Mutation) -> bool:
    same = one.words == one.woven.new.kernel.code.words and not one.facts
    was, now = one.woven.declaration, one.declaration
    extra = now.amended - was.amended
    return same and bool(extra) and replace(now, amended=was.amended) == was


def _keeps_nothing(one: Mutation) -> bool:
    """Return whether all snippets, except the one at the entry, write registers that are no longer persistent before
    reading them.
    """
    same = one.words == one.woven.new.kernel.code.words and not one.facts
    was, now = one.woven.declaration, one.declaration
    lost = pack(was.persistent) & ~pack(now.persistent)
    if not same or not lost or now.persistent.R & ~was.persistent.R:
        return False
    masks = one.woven.new.kernel.code.masks
    places = [k for tramp in now.trampolines if tramp.sources[0] for k in range(tramp.start, tramp.end)]
    return not any(masks[k].reads & lost for k in places)


def _names_what_is_not_there(one: Mutation) -> bool:
    table = one.woven.new.kernel.code.table
    for old, new in zip(one.woven.declaration.trampolines, one.declaration.trampolines, strict=True):
        for was, now in zip(old.parts, new.parts, strict=True):
            if was == now or not isinstance(was, Inserted) or not isinstance(now, Inserted):
                continue
            named = 0
            for word in was.snippet.words:
                masks = table.decoder(word).masks(word)
                named |= masks.reads | masks.writes
            for file, names in now.names.items():
                for key, value in names.items():
                    mask = pack(Registers(**{file: 1 << key}))
                    if was.names.get(file, {}).get(key) != value and mask & named:
                        return False
    return one.kind == "a name" and one.words == one.woven.new.kernel.code.words


def _takes_another_free_register(one: Mutation) -> bool:
    """Return whether the register used instead belongs to the probe, or is dead and not in flight wherever the
    trampoline runs.
    """
    if one.registers is None or one.at is None:
        return False
    new = 1 << one.registers[1]
    kernel = one.woven.original.kernel
    (trampoline,) = [t for t in one.declaration.trampolines if t.start <= one.at < t.end]
    following = [p.source for p in trampoline.parts if isinstance(p, Moved) and p.start > one.at]
    live = [*kernel.live, 0][following[0] if following else trampoline.sources[-1] + 1]
    (part,) = [p for p in trampoline.parts if p.start == one.at]
    assert isinstance(part, Inserted)
    written = 0
    code = Code(dump_words(one.words), kernel.code.table)
    for index in range(part.start, part.start + part.length):
        written |= code.masks[index].writes
    if not written & new:
        return False
    flight = kernel.flight[trampoline.sources[0]]
    assert flight is not None
    busy = flight.unawaited | flight.after_waiting(
        code.controls.waits[part.start] | code.controls.waits[trampoline.start]
    )
    saved = pack(trampoline.saved)
    return not new & busy & EVERY_REGISTER and (not new & live or bool(new & saved))


def _amends_as_allowed(one: Mutation) -> bool:
    """Return whether an amended word, moved or not, waits and stalls as before, and sets the barriers that it did or
    may set.
    """
    if one.at is None or one.facts:
        return False
    parts = [part for tramp in one.declaration.trampolines for part in tramp.parts if isinstance(part, Moved)]
    source = next((part.source for part in parts if part.start == one.at), one.at)
    if source not in one.declaration.amended:
        return False
    original = one.woven.original.kernel.code[source]
    was, now = original.control, control_of(one.words[one.at])
    can_announce = original.memory is not None or original.name in _READ_LATE
    reads = now.read_barrier == was.read_barrier or (
        can_announce and was.read_barrier == NO_BARRIER and now.read_barrier < BARRIERS
    )
    result = now.write_barrier == was.write_barrier or (
        original.name == "LDC" and was.write_barrier == NO_BARRIER and now.write_barrier < BARRIERS
    )
    return (
        (reads and result and now.reuse | was.reuse == was.reuse)
        and not was.wait & ~now.wait
        and now.stall >= was.stall
        and (now.stall < 12 or not now.hint)
    )


def _loads_the_same(one: Mutation) -> bool:
    """Return whether each LDL of the trampoline loads the same value as before, from the probe's stack."""
    trampoline = _around(one)
    if one.kind != "another slot" or trampoline is None:
        return False
    old = _loaded(one.woven.new.kernel.code, trampoline, one.declaration.stack)
    return old is not None and old == _loaded(
        Code(dump_words(one.words), one.woven.new.kernel.code.table), trampoline, one.declaration.stack
    )


def _loaded(code: Code, trampoline: Trampoline, stack: int) -> list[object] | None:
    """For each LDL, return where its slot was written and from which register, or None if the slot isn't the probe's.

    The test weaver saves and loads in parts of one word, where all lanes are together, one register at a time.
    """
    values: dict[int, object] = {}
    slots: dict[int, object] = {}
    found: list[object] = []
    for index in range(trampoline.start, trampoline.end):
        word, name = code.words[index], code[index].name
        slot = bits(word, 40, 24) - (1 << 24)
        if name in ("STL", "LDL") and (slot % SAVING or not -stack <= slot <= -SAVING):
            return None
        if name == "STL":
            slots[slot] = values.get(bits(word, 32, 8), bits(word, 32, 8))
        elif name == "LDL":
            values[bits(word, 16, 8)] = slots.get(slot)
            found.append(slots.get(slot))
        else:
            values.update({number: (index, number) for number in range(255) if code.masks[index].writes >> number & 1})
    return found


EQUIVALENT: tuple[tuple[str, str, Callable[[Mutation], bool]], ...] = (
    (
        "stalls longer",
        "The next words issue later. Nothing has to come early: results stay, and waiting lanes go on waiting.",
        _stalls_more,
    ),
    (
        "waits for more",
        "Scoreboards are counted down by what's in flight, which needs nothing of this warp, so the wait ends.",
        _waits_more,
    ),
    (
        "keeps less in the register cache",
        "An operand that isn't kept is read from its register, which has the same value.",
        _forgets_an_operand,
    ),
    (
        "another hint to the scheduler",
        "Which warp issues next changes no result (docs/sass-rules.md: bit 109 is harmless).",
        _has_another_hint,
    ),
    (
        "the branch to a trampoline stalls or waits otherwise",
        "It reads no register, and counts for 10 cycles or more whatever its stall. What a snippet needs is asked for "
        "at the snippet, with this branch counted as 10.",
        _is_site_branch,
    ),
    (
        "stalls shorter, but as long as its snippet, and long enough",
        "The weaver stalled longer than it had to: no other part uses a result before it's there.",
        _stalls_less,
    ),
    (
        "waits for less, but for enough",
        "The weaver waited for a barrier that nothing in flight uses here, or that was awaited already.",
        _waits_enough,
    ),
    (
        "an amended word waits for more, or announces its reads or its result",
        "Who waits for that barrier waits for one more, which comes down by itself: ptxas sets such barriers for "
        "instructions of this kind.",
        _amends_as_allowed,
    ),
    (
        "declares as amended what wasn't",
        "The word is the original's; a declaration allows a change, and there's none.",
        _declares_what_is_not_there,
    ),
    (
        "declares that a register keeps no value, and none is read",
        "Only the trampoline at the entry writes it, and the kernel has no such register.",
        _keeps_nothing,
    ),
    (
        "names a register that the snippet doesn't have",
        "No word has a field to which the name applies.",
        _names_what_is_not_there,
    ),
    (
        "takes another register that's as good",
        "The other one is dead on all ways from here, or saved as well, nothing is in flight for it, and the snippet "
        "writes it before it reads it.",
        _takes_another_free_register,
    ),
    (
        "another slot, but the right value is loaded",
        "An earlier save of the same value is still in the slot that's loaded.",
        _loads_the_same,
    ),
)


def explain(one: Mutation) -> str | None:
    """Return the class of a harmless mutation, or None."""
    return next((name for name, _, holds in EQUIVALENT if holds(one)), None)
