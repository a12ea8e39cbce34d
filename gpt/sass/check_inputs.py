"""Check what the snippets of a trampoline get, and what the declaration says about it.

A snippet's words are trusted, but not that the weaver provides what they read. Each register that a snippet reads must
be one of these:

- an input with a value, which the kernel or an earlier snippet wrote. A snippet under a guard writes only in some
  lanes, so only snippets under the same guard may read the result;
- written by an earlier word of the snippet. ptxas's code never reads a register that only later words write.

A snippet has the guard of a moved instruction, and sees the same value of the predicate: no instruction that's moved
between the two writes it.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.sass.check_words import Renaming
from gpt.sass.code import Code
from gpt.sass.masks import STARTS, name_registers, pack
from gpt.sass.words import PT
from gpt.sass.woven import Inserted, Moved, Trampoline


def iter_missing(part: Inserted, renaming: Renaming, known: int, own: int) -> Iterator[tuple[int, str]]:
    """Yield registers that a snippet reads, but shouldn't, with the reason. There may be none of them.

    All registers in `known` have a value, and `own` have the kernel's value.
    """
    given, missing = renaming.given, renaming.missing
    if given & ~known:
        yield given & ~known, "is read, but nobody has written it"
    guard = 0
    if part.guard and part.guard.predicate != PT:
        guard = 1 << STARTS.P + part.guard.predicate
        yield guard & ~own, "is the guard, but no longer what it was"
        yield renaming.writes & guard, "is the guard, and overwritten"
    if missing & ~(given | guard):
        yield missing & ~(given | guard), "is read, but isn't an input"
    inputs = pack(part.snippet.inputs)
    if given.bit_count() != inputs.bit_count():
        yield inputs, "of the snippet is an input without a name"


def defined_under_guard(trampoline: Trampoline, number: int, code: Code) -> int:
    """Return the registers that earlier snippets wrote under the guard of a part, if it has one."""
    guard = getattr(trampoline.parts[number], "guard", None)
    found = 0
    for part in trampoline.parts[:number] if guard else ():
        if isinstance(part, Inserted) and part.guard == guard:
            for masks in code.masks[part.start : part.start + part.length]:
                found |= masks.writes
    return found


def has_guard_of_site(trampoline: Trampoline, number: int, code: Code) -> bool:
    """Return whether a moved instruction has a part's guard and sees the same predicate. `code` is the original."""
    parts, part = trampoline.parts, trampoline.parts[number]
    guard = getattr(part, "guard", None)
    if guard is None:
        return True
    predicate = 1 << STARTS.P + guard.predicate
    for at, other in enumerate(parts):
        if not isinstance(other, Moved):
            continue
        if code[other.source].guard == guard and code.masks[other.source].reads & predicate:  # and not UP0 for P0
            between = parts[at:number] if at < number else parts[number:at]
            if not any(isinstance(one, Moved) and code.masks[one.source].writes & predicate for one in between):
                return True
    return False


def iter_undeclared(trampoline: Trampoline, code: Code, reads: int, saved: int) -> Iterator[tuple[int, str, str]]:
    """Yield where the declared sets of a trampoline differ from what its snippets read and overwrite."""
    named = 0
    for source in trampoline.sources:
        read, written, *_ = code.masks[source]
        named |= read | written
    declared, declared_saved = pack(trampoline.reads), pack(trampoline.saved)
    for text, mask in (
        ("read, but not declared", reads & ~declared),
        ("declared as read, but not read", declared & ~reads),
        ("read, but not the moved instructions'", declared & ~named),
        ("overwritten, but not declared as saved", saved & ~declared_saved),
        ("declared as saved, but not overwritten", declared_saved & ~saved),
    ):
        if mask:
            yield trampoline.start, "declared", f"{name_registers(mask)}: {text}"
