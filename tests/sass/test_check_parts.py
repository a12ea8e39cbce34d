"""Trampolines that are put together by hand: what their snippets read, and when."""

from dataclasses import replace

import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.sass import glue
from gpt.probe.sass.draft import with_change
from gpt.probe.sass.stack import announce_stack_pointer
from gpt.sass.check import Version, check
from gpt.sass.check_words import NOP, make_branch
from gpt.sass.kernels import read_facts, read_kernel
from gpt.sass.masks import Registers, unpack
from gpt.sass.words import SIZE, Guard, control_of, with_control, with_guard, with_target
from gpt.sass.woven import Declaration, Inserted, Moved, Snippet, Trampoline
from tests.sass.checking import TABLE, with_words
from tests.sass.corpus import compile_kernels

PLAIN = 7 << 110 | 7 << 113  # no barriers
SLOT = 16


@pytest.fixture(scope="module")
def saxpy():
    """Return a kernel, and the index of its first LDG. R10 is free there, and R2 receives the loaded value."""
    try:
        image = compile_kernels()
    except FileNotFoundError as error:
        pytest.skip(str(error))
    version = Version(read_kernel(CubinEditor(image), "saxpy", TABLE), read_facts(CubinEditor(image), "saxpy"))
    kernel = version.kernel
    load = kernel.code.find({"LDG"})[0]
    busy = kernel.live[load] | kernel.flight[load].after_waiting(0) | kernel.flight[load].unawaited
    assert not busy >> 10 & 1 and kernel.code[load].writes.R == 1 << 2
    return version, load


def slow(word):
    """Return a word with the longest stall."""
    return with_change(word, stall=15)


PAUSE = slow(NOP | PLAIN)
ALL = with_control(PAUSE, control_of(PAUSE)._replace(wait=63))


def snippet(*words, guard=None):
    """Return a part's words, its inputs and its guard; what it reads are its inputs."""
    reads = 0
    for word in words:
        reads |= TABLE.decoder(word).masks(word).reads
    return words, reads, guard


def weave(version, *parts, stack=0):
    """Return the rules that a trampoline breaks. A part is a snippet, or the index of a moved instruction."""
    kernel = announce_stack_pointer(version.kernel)
    words, made = list(kernel.code.words), []
    start = len(words)
    for part in parts:
        at = len(words)
        if isinstance(part, int):
            word, target = kernel.code.words[part], kernel.code[part].target
            if target is not None:
                word = with_target(word, TABLE.arch.branch, SIZE * at, target)
            made.append(Moved(at, part))
            words.append(with_control(word, control_of(word)._replace(reuse=0)))
            continue
        inserted, reads, guard = part
        named = reads
        for word in inserted:
            named |= TABLE.decoder(word).masks(word).writes
        names = {
            file: {number: number for number in range(256) if mask >> number & 1}
            for file, mask in zip(Registers._fields, unpack(named), strict=True)
        }
        made.append(Inserted(at, Snippet(tuple(inserted), unpack(reads)), names, guard))
        words += [with_guard(word, guard) if guard else word for word in inserted]
    sources = [part for part in parts if isinstance(part, int)]
    words.append(with_change(make_branch(len(words), sources[-1] + 1, "split") | PLAIN, stall=15))
    words[-1] = with_control(words[-1], control_of(words[-1])._replace(wait=63))
    words[sources[0]] = make_branch(sources[0], start, "split") | 13 << 105 | PLAIN
    read = named = saved = 0
    for source in sources:
        named |= kernel.code.masks[source].reads | kernel.code.masks[source].writes
    for part in parts:
        if not isinstance(part, int):
            read |= part[1] & named & kernel.live[sources[0]] & (1 << 255) - 1 & ~2
            for word in part[0]:
                saved |= TABLE.decoder(word).masks(word).writes & kernel.live[sources[-1]]
    trampoline = Trampoline(start, len(words), tuple(made), unpack(read if not stack else 0), unpack(saved))
    moved = {SIZE * part.source: SIZE * part.start for part in made if isinstance(part, Moved)}
    facts = version.facts
    exits = tuple(moved.get(offset, offset) for offset in facts.exits)
    new = with_words(Version(kernel, replace(facts, exits=exits, stack=facts.stack + stack)), words)
    declaration = Declaration((trampoline,), frozenset({0}), registers=facts.registers, stack=stack)
    return {finding.rule for finding in check(version, new, declaration)}


def test_a_register_is_written_before_it_is_read(saxpy):
    version, load = saxpy
    write, copy = slow(glue.set_to(10, 1)), slow(glue.move(11, 10))
    for words, expected in (((write, copy), set()), ((copy, write), {"undefined"})):
        part = (words, 0, None)
        assert weave(version, part, snippet(PAUSE), load) == expected
    again = slow(glue.add(10, 10, 1))
    assert weave(version, ((again,), 0, None), snippet(PAUSE), load) == {"undefined"}
    assert weave(version, ((write, again), 0, None), snippet(PAUSE), load) == set()


def test_guarded_write_is_read_under_the_same_guard(saxpy):
    version, _ = saxpy
    branch = next(one for one in version.kernel.code if one.name == "BRA" and not one.guard.always)
    write, copy = slow(glue.set_to(10, 1)), slow(glue.move(2, 10))
    for guard, other, expected in (
        (None, None, set()), (branch.guard, branch.guard, set()), (branch.guard, None, {"undefined"}),
        (None, branch.guard, set()),
    ):  # fmt: skip
        parts = (snippet(write, guard=guard), snippet(PAUSE), snippet(copy, guard=other), snippet(PAUSE))
        assert weave(version, *parts, branch.index) == expected


def test_guard_has_the_value_at_its_site(saxpy):
    """A moved comparison with the guard P0 overwrites P0, so a snippet after it can't use that guard."""
    version, _ = saxpy
    compare = next(one.index for one in reversed(version.kernel.code) if one.name == "ISETP")
    guard = Guard(0, True)
    words = list(version.kernel.code.words)
    words[compare] = with_guard(words[compare], guard)
    changed = with_words(version, words)
    part = snippet(slow(glue.set_to(10, 1)), guard=guard)
    assert weave(changed, part, snippet(PAUSE), compare, snippet(PAUSE)) == set()
    assert weave(changed, compare, snippet(PAUSE), part, snippet(PAUSE)) == {"words"}


def test_each_part_is_reached(saxpy):
    version, _ = saxpy
    leave = next(one for one in version.kernel.code if one.name == "EXIT" and one.guard.always)
    assert weave(version, leave.index, snippet(slow(glue.set_to(10, 1)))) == {"reach"}


@pytest.mark.parametrize(("stall", "expected"), [(1, True), (2, False)])
def test_a_barrier_shows_nothing_in_the_next_cycle(saxpy, stall, expected):
    """If the next word waits for it then, the word doesn't wait at all. ptxas always leaves two cycles."""
    version, load = saxpy
    save = with_change(glue.store_stack(4, -SLOT), read_barrier=5, stall=stall)
    back = with_change(glue.load_stack(4, -SLOT), write_barrier=4, stall=stall)
    change = slow(glue.set_to(4, 7))
    later = next(one.index for one in version.kernel.code if one.index > load and one.name == "IADD3")
    parts = (snippet(save), snippet(ALL), snippet(change), snippet(PAUSE), snippet(back), snippet(ALL))
    assert bool(weave(version, *parts, later, stack=SLOT) & {"scoreboard", "in flight"}) is expected


@pytest.mark.parametrize(("stall", "expected"), [(1, {"in flight"}), (2, set())])
def test_a_moved_load_is_awaited_too_soon(saxpy, stall, expected):
    version, load = saxpy
    words = list(version.kernel.code.words)
    words[load] = with_control(words[load], control_of(words[load])._replace(stall=stall, hint=False))
    changed = with_words(version, words)
    parts = (load, snippet(ALL), ((slow(glue.move(10, 2)),), 1 << 2, None), snippet(PAUSE))
    assert weave(changed, *parts) - {"declared"} == expected


@pytest.mark.parametrize(("wait", "expected"), [(0, {"in flight"}), (1 << 2, set())])
def test_an_operand_of_the_site_has_not_arrived(saxpy, wait, expected):
    """A load announces nothing: the site reads its result, and awaits a later load. So a snippet has to await that."""
    version, load = saxpy
    words = list(version.kernel.code.words)
    words[load] = with_control(words[load], control_of(words[load])._replace(write_barrier=7))
    changed = with_words(version, words)
    site = next(one for one in changed.kernel.code if one.index > load and one.reads.R >> 2 & 1)
    assert site.control.wait == 1 << changed.kernel.code[load + 1].control.write_barrier == 1 << 2
    copy = with_control(slow(glue.move(10, 2)), control_of(slow(NOP | PLAIN))._replace(wait=wait))
    assert weave(changed, ((copy,), 1 << 2, None), site.index) - {"declared"} == expected
    assert weave(changed, snippet(slow(NOP | PLAIN)), site.index, ((copy,), 1 << 2, None)) - {"declared"} == set()


@pytest.mark.parametrize(("stall", "expected"), [(1, {"places"}), (2, set())])
def test_an_amended_word_is_awaited_too_soon(saxpy, stall, expected):
    """The stack pointer's load gets a barrier, and the word after it waits for that one."""
    version, _ = saxpy
    words = list(version.kernel.code.words)
    words[0] = with_control(words[0], control_of(words[0])._replace(write_barrier=0, stall=stall))
    words[1] = with_control(words[1], control_of(words[1])._replace(wait=1))
    declaration = Declaration(amended=frozenset({0, 1}), registers=version.facts.registers)
    assert {one.rule for one in check(version, with_words(version, words), declaration)} == expected


def test_a_snippet_reads_a_result_in_the_next_cycle(saxpy):
    version, load = saxpy
    for stall, expected in ((1, {"words"}), (2, set())):
        words = (with_change(glue.set_to(10, 1), stall=stall), slow(glue.add(11, 10, 1)))
        assert weave(version, (words, 0, None), snippet(PAUSE), load) == expected


def test_a_word_with_a_guard_of_its_own_defines_no_register(saxpy):
    """In lanes in which the guard is false, the register has some other value."""
    version, _ = saxpy
    branch = next(one for one in version.kernel.code if one.name == "BRA" and not one.guard.always)
    write, copy = slow(glue.set_to(10, 1)), slow(glue.move(2, 10))
    some = slow(with_guard(glue.set_to(10, 2), branch.guard))
    for words, expected in (((some,), {"undefined"}), ((write, some), set())):
        parts = (snippet(*words), snippet(PAUSE), snippet(copy), snippet(PAUSE))
        assert weave(version, *parts, branch.index) == expected
