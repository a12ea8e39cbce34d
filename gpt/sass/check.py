"""Prove that a rewritten kernel does what the original did, and that the probe does what it was compiled to do.

A weaver replaces an instruction with a branch to a trampoline behind the kernel: a snippet, the instruction, perhaps
another snippet, and a branch back. The hardware checks none of this. A snippet that uses the wrong register, or the
right one a few cycles too early, produces wrong results without any error. So no woven kernel is used before it's been
checked here, from its words alone, in a few milliseconds. The checker shares no code with the weaver. It trusts neither
the weaver nor its declaration (woven.py), only the snippets' words and the original kernel. If it finds nothing, the
following is proven:

1. *Places*. Each word of the rewritten kernel is one of four: the same as in the original; a branch to a trampoline; in
   a trampoline; or amended, so that it waits or stalls longer, or announces more. Nothing jumps into the middle of the
   instructions that a trampoline replaces (`_check_places`).
2. *Words*. Inserted words are the snippet's, with registers renamed so that no two become the same one. Moved words are
   the same as in the kernel. The branch back leads to the word after the last moved one (check_words.py).
3. *Values*. Registers that the kernel will still read are unchanged or restored. A snippet's inputs have been written,
   or are operands of the moved instructions (check_state.py).
4. *Time*. A snippet doesn't write registers in flight or read a result before it arrives, and leaves nothing in
   flight. A scoreboard counts instructions in flight (words.py), but it helps only code that waits for it: a dead
   register isn't free while an old load may still write to it, or an old store may still read it (flow.py). At the
   seams between parts, where ptxas computed no stalls, they're long enough for any reader (stalls.py).
5. *Lanes*. A snippet may split the lanes of a warp only by a branch between its own BSSY and BSYNC, on a barrier that
   the kernel doesn't name, and it releases no lanes that wait elsewhere (docs/sass-rules.md). It uses uniform registers
   and barriers only if the kernel never names them, because other lanes of the warp may be anywhere in the kernel. The
   exception is some uniform registers that it saves and restores within one part, during which no other lane runs.
6. *Facts*. The file's register count, list of exits, stack size and number of barriers are sufficient for the words
   (check_facts.py).

The checker can't see which addresses snippets load from and store to (the probe language limits them), or whether the
user wanted probes at these places.

A finding doesn't mean that the kernel is wrong: a proof may need something that the words don't show. Such a kernel
isn't used, and the program runs the original.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpt.sass.check_facts import Version, iter_wrong_facts
from gpt.sass.check_inputs import has_guard_of_site
from gpt.sass.check_known import Surroundings
from gpt.sass.check_state import TrampolineCheck
from gpt.sass.check_words import (
    NOP,
    UNMOVABLE,
    compare_amended,
    compare_control,
    compare_inserted,
    compare_moved,
    is_collective,
    make_branch,
    with_announcements,
)
from gpt.sass.flow import SHORTEST
from gpt.sass.graph import is_conditional
from gpt.sass.kernels import Kernel
from gpt.sass.masks import STARTS, name_registers, pack
from gpt.sass.stalls import find_unscheduled
from gpt.sass.words import CONTROL, SIZE, control_of
from gpt.sass.woven import Declaration, Inserted, Moved, Trampoline

__all__ = ["Finding", "Version", "check"]


class Finding(NamedTuple):
    """Something that can't be proven: the number of a rewritten kernel's instruction, the rule, and what's wrong."""

    place: int
    rule: str
    detail: str


def check(original: Version, new: Version, declaration: Declaration) -> list[Finding]:
    """Return what can't be proven about a rewritten kernel; nothing if it's correct.

    Raises UnboundedError if the original's control flow can't be found.
    """
    found = [*_check_shape(original.kernel, new.kernel, declaration)]
    if found:
        return found  # the other checks would look at places that don't exist
    found += _check_places(original.kernel, new.kernel, declaration)
    found += [Finding(0, "facts", text) for text in iter_wrong_facts(original, new, declaration)]
    if not declaration.trampolines:
        return found
    new.kernel.code.borrow(original.kernel.code)
    flight = _amend(original.kernel, new.kernel, declaration).flight
    around = Surroundings(original.kernel, new.kernel.code, declaration, flight)
    defined = -1
    for trampoline in declaration.trampolines:
        words = list(_check_words(around, trampoline))
        found += words
        if not words:
            one = TrampolineCheck(around, trampoline)
            found += [Finding(*fault) for fault in one.run()]
            if trampoline.sources[0] == 0:
                for state in one.ends:
                    defined &= state.defined
    found += _check_persistent(around, declaration, defined)
    return found


def _amend(original: Kernel, new: Kernel, declaration: Declaration) -> Kernel:
    """Return the original with its amended instructions, which set additional barriers that can be awaited.

    If an amended instruction was moved, the word in the trampoline counts, because that word runs.
    """
    words = original.code.words
    changed = {}
    moved = {
        part.source: part.start for one in declaration.trampolines for part in one.parts if isinstance(part, Moved)
    }
    for index in declaration.amended:
        word = new.code.words[moved.get(index, index)]
        if not compare_amended(word, words[index], original.code.entry(index)):
            changed[index] = word
    return original.with_controls(changed) if changed else original


def _check_shape(original: Kernel, new: Kernel, declaration: Declaration) -> Iterator[Finding]:
    """Find declarations that name places that don't exist, or parts that don't follow each other."""
    before, after = len(original.code), len(new.code)
    if (index := find_unscheduled(original.code)) is not None:
        yield Finding(index, "stall", "nothing in the kernel's words says when its results arrive")
    if after < before:
        yield Finding(after, "places", "the kernel has become shorter")
    if any(not 0 <= index < before for index in declaration.amended):
        yield Finding(0, "places", "an amended instruction that isn't there")
    at = before
    for trampoline in sorted(declaration.trampolines, key=lambda one: one.start):
        if trampoline.start < at or trampoline.end > after:
            yield Finding(trampoline.start, "places", "a trampoline overlaps something, or isn't there")
        at = trampoline.end
        sources = trampoline.sources
        if not sources or sources != list(range(sources[0], sources[0] + len(sources))):
            yield Finding(trampoline.start, "places", "moved instructions that don't follow each other")
        elif not 0 <= sources[0] <= sources[-1] < before:
            yield Finding(trampoline.start, "places", "a moved instruction that isn't there")
        place = trampoline.start
        for part in trampoline.parts:
            if part.start != place:
                yield Finding(part.start, "places", "parts that don't follow each other")
            place = part.start + part.length
        if sources and place != trampoline.end - _has_branch_back(original, trampoline):
            yield Finding(trampoline.start, "places", "a trampoline that ends elsewhere")


def _has_branch_back(original: Kernel, trampoline: Trampoline) -> bool:
    """Return whether a trampoline must end with a branch, because its last instruction may continue."""
    last = trampoline.parts[-1]
    if isinstance(last, Inserted) or not 0 <= last.source < len(original.code):
        return True
    name = original.code.entry(last.source).name
    if name not in ("EXIT", "BRA"):
        return True
    one = original.code[last.source]
    unguarded = name == "EXIT" and len(trampoline.sources) == 1  # the branch to it may have the guard instead
    return not unguarded and is_conditional(one)


def _check_places(original: Kernel, new: Kernel, declaration: Declaration) -> Iterator[Finding]:
    """Find words outside trampolines that were changed without permission."""
    replaced = {trampoline.sources[0]: trampoline for trampoline in declaration.trampolines}
    sources = [source for trampoline in declaration.trampolines for source in trampoline.sources]
    if len(set(sources)) != len(sources):
        yield Finding(0, "places", "two trampolines for one instruction")
    old_words, new_words = original.code.words, new.code.words
    for index in {*new.code.differences(original.code)} | replaced.keys():
        word, was = new_words[index], old_words[index]
        if index in replaced:
            start, form = replaced[index].start, original.code.table.arch.branch
            branch = make_branch(index, start, form)
            control, before = control_of(word), control_of(was)
            is_branch = not (word ^ branch) & ~CONTROL or (
                _is_guarded_exit(original, replaced[index])
                and not (word ^ make_branch(index, start, form, was)) & ~CONTROL
            )
            if not is_branch or control.write_barrier != 7 or control.read_barrier != 7 or control.reuse:
                yield Finding(index, "places", "it isn't the branch to its trampoline")
            elif control.stall < (before.stall if original.code.entry(index).name == "EXIT" else 1):
                yield Finding(index, "places", "the branch stalls less than it must")
            elif (word ^ branch) & ~CONTROL and before.wait & ~control.wait:
                yield Finding(index, "places", "the branch has the guard, but doesn't wait for it")
        elif index not in declaration.amended:
            yield Finding(index, "places", "it was changed, but isn't declared")
        elif text := compare_amended(word, was, original.code.entry(index)):
            yield Finding(index, "places", text)
    at = len(old_words)  # _check_shape has found that trampolines don't overlap
    ordered = sorted((trampoline.start, trampoline.end) for trampoline in declaration.trampolines)
    for start, end in [*ordered, (len(new_words), len(new_words))]:
        for index in range(at, start):
            if new_words[index] != NOP:
                yield Finding(index, "places", "after the end of the kernel, and in no trampoline")
        at = end
    yield from _check_jumps(original, declaration)
    yield from _check_waits(original, new, declaration.amended)


def _check_waits(original: Kernel, new: Kernel, amended: frozenset[int]) -> Iterator[Finding]:
    """Find waits near amended words that come too early: the barrier doesn't show anything yet (flow.py)."""
    stalls, writes, reads, waits = new.code.controls
    for index in amended:
        for at in range(max(0, index - 1), min(index + 1, len(original.code) - 1)):
            if stalls[at] < SHORTEST and (1 << writes[at] | 1 << reads[at]) & waits[at + 1]:
                yield Finding(at + 1, "places", "it waits for a barrier that doesn't show anything yet")


def _is_guarded_exit(original: Kernel, trampoline: Trampoline) -> bool:
    """Return whether a trampoline contains just one guarded EXIT. The branch to it may then have the guard."""
    sources = trampoline.sources
    one = original.code[sources[0]]
    return len(sources) == 1 and one.name == "EXIT" and is_conditional(one)


def _check_jumps(original: Kernel, declaration: Declaration) -> Iterator[Finding]:
    """Find jumps into the middle of replaced instructions, which would bypass a probe.

    Also find places between a WARPSYNC.COLLECTIVE and its ENDCOLLECTIVE.
    """
    code = original.code
    targets = {target // SIZE for target in code.targets | original.jump_targets}
    collecting: set[int] = set()
    for index in code.find({"WARPSYNC"}):
        if is_collective(code.words[index]):
            end = index + 1
            while end < len(code) and code[end].name != "ENDCOLLECTIVE":
                collecting.add(end)
                end += 1
    for trampoline in declaration.trampolines:
        for source in trampoline.sources:
            if source != trampoline.sources[0] and source in targets:
                yield Finding(source, "places", "something jumps among the replaced instructions")
            if source in collecting or code.entry(source).name in UNMOVABLE:
                yield Finding(source, "places", f"{code.entry(source).name} can't be moved from here")


def _check_words(around: Surroundings, trampoline: Trampoline) -> Iterator[Finding]:
    """Find words of a trampoline that differ from the snippet's or the kernel's."""
    original, words, table = around.original, around.new.words, around.new.table
    first = trampoline.sources[0]
    branch = make_branch(first, trampoline.start, table.arch.branch)
    has_guard_on_branch = bool((words[first] ^ branch) & ~CONTROL)
    for number, part in enumerate(trampoline.parts):
        if isinstance(part, Inserted):
            now = words[part.start : part.start + part.length]
            for k, text in compare_inserted(now, around.renaming(part)):
                yield Finding(part.start + k, "words", text)
            if part.guard is not None and not has_guard_of_site(trampoline, number, original.code):
                yield Finding(part.start, "words", "a guard that no moved instruction has here")
        else:
            word, entry = original.code.words[part.source], original.code.entry(part.source)
            if part.source in around.declaration.amended:
                word = with_announcements(word, words[part.start], entry)
            text = compare_moved(words[part.start], part.start, word, part.source, entry, has_guard_on_branch)
            if text:
                yield Finding(part.start, "moved", text)
    if _has_branch_back(original, trampoline):
        at = trampoline.end - 1
        back = make_branch(at, trampoline.sources[-1] + 1, table.arch.branch)
        if (words[at] ^ back) & ~CONTROL or compare_control(words[at], back | _PLAIN):
            yield Finding(at, "places", "the branch back leads elsewhere")


_PLAIN = 1 << 105 | 7 << 110 | 7 << 113  # a stall of 1, no barriers


def _check_persistent(around: Surroundings, declaration: Declaration, defined: int) -> Iterator[Finding]:
    """Find registers that should keep values between trampolines, but can't."""
    mask = pack(declaration.persistent)
    if not mask:
        return
    kernel = around.original
    for text, bad in (
        ("the kernel names it, too", mask & kernel.named),
        ("the trampoline at the entry doesn't write it", mask & ~defined if defined != -1 else mask),
        ("only general registers keep values in each lane", mask >> STARTS.UR << STARTS.UR),
        ("the kernel calls code that may use it", mask if kernel.graph.calls_out else 0),
        ("something jumps to the entry", 0 if kernel.has_usual_entry else mask),
    ):
        if bad:
            yield Finding(0, "persistent", f"{name_registers(bad)}: {text}")
