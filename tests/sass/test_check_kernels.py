"""The kernel around a trampoline: the checker once accepted each of these cases, although it's wrong."""

from collections import Counter
from dataclasses import replace

import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.sass import glue
from gpt.sass.check import Version
from gpt.sass.check_known import State, Surroundings
from gpt.sass.check_saves import is_slot
from gpt.sass.check_state import TrampolineCheck
from gpt.sass.check_words import NOP
from gpt.sass.flow import NOTHING
from gpt.sass.kernels import Relocation, read_facts, read_kernel
from gpt.sass.masks import EVERY_REGISTER, STARTS, Registers
from gpt.sass.words import SIZE, Guard, bits, control_of, with_bits, with_control, with_guard
from gpt.sass.woven import Inserted
from tests import cuda
from tests.sass.checking import TABLE, instruction, rules, site, stored, with_words
from tests.sass.corpus import compile_kernels
from tests.sass.weaver import LDL, PLAIN, STL, Place, Use, compiled_snippets, weave

USETMAXREG = 0x9C8 | 7 << 12 | 5 << 72 | PLAIN  # USETMAXREG.DEALLOC, the number is at bit 32
CALL = 0x343 | 7 << 12 | 2 << 24 | 7 << 87 | PLAIN  # CALL.ABS R2


@pytest.fixture(scope="module")
def image():
    try:
        return compile_kernels()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def snippets():
    try:
        return compiled_snippets()
    except FileNotFoundError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def leader(image, snippets):
    """Return a kernel with one snippet before a load, which uses uniform registers, and R0 and up."""
    _, source = site(image, "saxpy", "LDG")
    return weave(image, "saxpy", [Place(source, (Use("leader"),))], snippets)


def inserted(woven, least=2):
    """Return a trampoline, and the index of its first part that has that many words."""
    for trampoline in woven.declaration.trampolines:
        for number, part in enumerate(trampoline.parts):
            if isinstance(part, Inserted) and part.length >= least:
                return trampoline, number
    pytest.fail("no snippet")


def with_kernel_word(woven, at, word):
    """Return the original and the woven kernel, with one of the kernel's words replaced in both."""
    versions = []
    for version in (woven.original, woven.new):
        words = list(version.kernel.code.words)
        words[at] = word
        versions.append(with_words(version, words))
    return replace(woven, original=versions[0], new=versions[1])


def padding(woven):
    words = woven.original.kernel.code.words
    assert words[-1] == NOP
    return len(words) - 1


def with_snippet_word(woven, trampoline, number, index, change):
    """Return new words and the declaration, with one of a snippet's words changed in both."""
    part = trampoline.parts[number]
    words = list(woven.new.kernel.code.words)
    words[part.start + index] = change(words[part.start + index])
    given = list(part.snippet.words)
    given[index] = change(given[index])
    parts = list(trampoline.parts)
    parts[number] = replace(part, snippet=replace(part.snippet, words=tuple(given)))
    made = replace(trampoline, parts=tuple(parts))
    kept = tuple(made if one is trampoline else one for one in woven.declaration.trampolines)
    return with_words(woven.new, words), replace(woven.declaration, trampolines=kept)


def named(woven, part, *names):
    """Return the positions of instructions with these names in a snippet."""
    code = woven.new.kernel.code
    return [k for k in range(part.length) if code[part.start + k].name in names]


def test_kernel_releases_registers(leader):
    """A warp can't use a dead register after it has released it."""
    trampoline, number = inserted(leader)
    names = trampoline.parts[number].names["R"].values()
    at = padding(leader)
    assert not rules(with_kernel_word(leader, at, USETMAXREG | 3 + max(names) << 32))
    assert rules(with_kernel_word(leader, at, USETMAXREG | 2 + max(names) << 32)) == {"count"}
    assert rules(with_kernel_word(leader, at, USETMAXREG & ~0xFFF | 0x3C8 | 255 << 32)) == {"count"}, "by a register"


def test_code_that_is_not_here_may_use_any_uniform_register(leader):
    """The only exceptions are __assertfail and the file's own functions."""
    calling = with_kernel_word(leader, padding(leader), CALL)
    assert rules(calling) == {"shared"}
    kernel = replace(calling.original.kernel, elsewhere=0)
    assert not rules(replace(calling, original=Version(kernel, calling.original.facts)))


def test_one_place_in_two_trampolines(image, snippets):
    _, source = site(image, "matrix", "LDS", 1)
    woven = weave(image, "matrix", [Place(source, count=2), Place(source + 1)], snippets)
    assert rules(woven) == {"places"}


def test_amended_instruction_moved(image, snippets):
    """A barrier set in the trampoline counts where the word runs, not at its old place."""
    name = "wide"
    kernel = read_kernel(CubinEditor(image), name, TABLE)
    store = next(one for one in kernel.code if one.name == "STG" and one.control.read_barrier == 7)
    leave = next(one for one in kernel.code if one.name == "EXIT" and one.index > store.index)
    woven = weave(image, name, [Place(store.index - 1, count=2), Place(leave.index, (Use("leader"),))], snippets)
    assert not rules(woven)
    taken = (store.reads.R & ~2).bit_length() - 1
    at, number = inserted(woven)
    part = at.parts[number]
    was = part.names["R"][3]
    words = list(woven.new.kernel.code.words)
    for index in range(part.start, part.start + part.length):
        for operand in woven.new.kernel.code[index].entry.operands:
            if operand.file == "R" and words[index] >> operand.low & 255 == was:
                words[index] = with_bits(words[index], operand.low, 8, taken)
    parts = list(at.parts)
    parts[number] = replace(part, names={**part.names, "R": {**part.names["R"], 3: taken}})
    declaration = replace(
        woven.declaration,
        trampolines=(woven.declaration.trampolines[0], replace(at, parts=tuple(parts))),
        amended=frozenset({0, store.index}),
    )
    announced = with_control(store.word, store.control._replace(read_barrier=2))
    words[store.index] = announced
    assert "in flight" in rules(woven, with_words(woven.new, words), declaration)
    moved = next(p.start for p in declaration.trampolines[0].parts if getattr(p, "source", None) == store.index)
    words[moved] = with_control(words[moved], control_of(words[moved])._replace(read_barrier=2))
    assert not rules(woven, with_words(woven.new, words), declaration)
    assert "moved" in rules(woven, with_words(woven.new, words), replace(declaration, amended=frozenset()))


def test_guarded_branch_waits_like_the_exit(image, snippets):
    kernel, source = site(image, "saxpy", "EXIT")
    leave = kernel.code[source]
    assert not leave.guard.always
    woven = weave(image, "saxpy", [Place(source, (Use("leader"),))], snippets)
    waiting = with_control(leave.word, leave.control._replace(wait=4))
    trampoline = woven.declaration.trampolines[0]
    old, new = list(woven.original.kernel.code.words), list(woven.new.kernel.code.words)
    old[source] = waiting
    moved = next(part.start for part in trampoline.parts if hasattr(part, "source"))
    new[moved] = with_control(new[moved], control_of(new[moved])._replace(wait=4))
    changed = replace(woven, original=with_words(woven.original, old), new=with_words(woven.new, new))
    assert rules(changed) == {"places"}
    new[source] = with_control(new[source], control_of(new[source])._replace(wait=4))
    assert not rules(replace(changed, new=with_words(woven.new, new)))


def test_a_branch_without_a_stall(leader):
    (trampoline,) = leader.declaration.trampolines
    words = list(leader.new.kernel.code.words)
    at = trampoline.sources[0]
    words[at] = with_control(words[at], control_of(words[at])._replace(stall=0))
    assert rules(leader, with_words(leader.new, words)) == {"places"}


def test_a_relocation_follows_what_was_moved(leader):
    (trampoline,) = leader.declaration.trampolines
    source = trampoline.sources[0]
    moved = next(part.start for part in trampoline.parts if hasattr(part, "source"))

    def with_relocation(version, at):
        return Version(version.kernel, replace(version.facts, relocations=(Relocation(at, 56, 3, 0),)))

    original = with_relocation(leader.original, SIZE * source + 4)
    for at, expected in ((SIZE * source + 4, {"facts"}), (SIZE * moved + 4, set()), (SIZE * moved, {"facts"})):
        assert rules(replace(leader, original=original, new=with_relocation(leader.new, at))) == expected


def test_numbers_of_the_file_that_are_too_great_or_too_small(leader):
    facts = leader.new.facts
    assert read_facts(CubinEditor(leader.image), "saxpy") == facts
    for change in ({"bound": facts.registers - 1}, {"in_section": 5}, {"in_section": facts.registers}):
        version = Version(leader.new.kernel, replace(facts, **change))
        assert rules(leader, version) == {"facts"}
    many = Version(leader.new.kernel, replace(facts, registers=256, bound=256))
    assert rules(leader, many, replace(leader.declaration, registers=256)) == {"facts"}


def test_unannounced_load_is_not_read(image, snippets):
    """The kernel waits for the load after the site, or the site itself reads the result."""
    kernel, source = site(image, "saxpy", "LDG")
    load = kernel.code[source]
    without = with_control(load.word, load.control._replace(write_barrier=7))
    result = load.writes.R.bit_length() - 1
    for place in (Place(source, after=(Use("slot", result),)), Place(source + 1, (Use("slot", result),))):
        woven = weave(image, "saxpy", [place], snippets)
        assert not rules(woven) or place.source != source
        old, new = list(woven.original.kernel.code.words), list(woven.new.kernel.code.words)
        moved = [part.start for t in woven.declaration.trampolines for part in t.parts if hasattr(part, "source")]
        at = moved[0] if place.source == source else source
        old[source] = without
        new[at] = with_control(new[at], control_of(new[at])._replace(write_barrier=7))
        changed = replace(woven, original=with_words(woven.original, old), new=with_words(woven.new, new))
        assert "in flight" in rules(changed)


@pytest.mark.parametrize("word", [1 << 64, 1 << 72, 1 << 76, 1 << 77, 1 << 78, 1 << 91])
def test_a_slot_has_a_plain_address(word):
    assert is_slot(stored(STL, 4, -8), 8) and is_slot(stored(LDL, 4, -8), 8)
    for base in (STL, LDL):
        assert not is_slot(instruction((base ^ word) | (1 << 24) - 8 << 40 | 4 << (32 if base == STL else 16)), 8)


def test_barrier_with_waiting_lanes_is_not_reused(leader):
    trampoline, number = inserted(leader)
    (push,) = named(leader, trampoline.parts[number], "BSSY")
    snippet = trampoline.parts[number].snippet.words
    names = trampoline.parts[number].names["B"]
    same = snippet[push] - (SIZE // 4 << 34)  # with the label unchanged
    again = iter((with_bits(same, 16, 4, names[same >> 16 & 15]), same))
    assert "lanes" in rules(leader, *with_snippet_word(leader, trampoline, number, push + 1, lambda _: next(again)))
    under = Guard(7, True)
    guarded = with_snippet_word(leader, trampoline, number, push, lambda word: with_guard(word, under))
    assert "lanes" in rules(leader, *guarded)


def test_snippet_of_the_weaver_waits_for_itself(leader):
    """In a snippet that the weaver wrote, its own scoreboards and the 13 cycles before a guard are checked as well."""
    trampoline, number = inserted(leader)
    part, code = trampoline.parts[number], leader.new.kernel.code
    waiting = [k for k in range(1, part.length) if code[part.start + k].control.wait]
    comparing = [k for k in range(part.length) if code[part.start + k].writes.P]
    assert waiting and comparing
    for places, change, rule in ((waiting, {"wait": 0}, "scoreboard"), (comparing, {"stall": 4}, "stall")):
        for index in places:
            changed = with_snippet_word(
                leader, trampoline, number, index, lambda w, c=change: with_control(w, control_of(w)._replace(**c))
            )
            assert rules(leader, *changed) == {rule}, (index, code[part.start + index])


def test_a_uniform_register_is_not_saved_where_lanes_are_split(leader):
    """By the time it's restored, other lanes may have overwritten the register."""
    trampoline, number = inserted(leader)
    part = trampoline.parts[number]
    words = list(leader.new.kernel.code.words)
    words[part.start] = glue.save_uniform(9, 40)
    code = with_words(leader.new, words).kernel.code
    check = TrampolineCheck(Surroundings(leader.original.kernel, code, leader.declaration, ()), trampoline)
    own = 1 << STARTS.UR + 40
    for meetings, expected in (((), {("R", 9, STARTS.UR + 40)}), ((3,), set())):
        state = State(own, 0, frozenset(), NOTHING, NOTHING, frozenset(), meetings, number)
        ((_, after),) = check._insert(part.start, part, number, state)
        assert after.copies == expected


@pytest.mark.parametrize(("opcode", "expected"), [("LDG", set()), ("BAR", {"undefined"})])
def test_a_uniform_register_across_a_barrier(image, snippets, opcode, expected):
    """At a BAR, other lanes of the warp may overwrite a uniform register; during a load, they can't
    (docs/sass-rules.md).
    """
    _, source = site(image, "matrix", opcode)
    woven = weave(image, "matrix", [Place(source, (Use("leader"),), (Use("leader"),))], snippets)
    (trampoline,) = woven.declaration.trampolines
    last = next(part for part in reversed(trampoline.parts) if isinstance(part, Inserted) and part.names.get("UR"))
    uniform = min(last.names["UR"])
    inputs = last.snippet.inputs._replace(UR=1 << uniform)
    parts = tuple(
        replace(part, snippet=replace(part.snippet, inputs=inputs)) if part is last else part
        for part in trampoline.parts
    )
    declaration = replace(woven.declaration, trampolines=(replace(trampoline, parts=parts),))
    assert not rules(woven) and rules(woven, declaration=declaration) == expected


def test_functions_that_are_called_by_address():
    """CALL.REL adds a register to its target, so it may lead anywhere. The code of printf isn't known."""
    source = "__device__ __noinline__ int f{0}(int x) {{ return x * {0}; }}"
    table = "__device__ int (*table[2])(int) = {f3, f5};"
    body = 'extern "C" __global__ void k(int *p) { p[1] = table[p[0] & 1](p[2]); SAY }'
    for say, known in (("", True), ('if (p[3] > 4) printf("%d", p[3]);', False)):
        text = "\n".join(["extern \"C\" __device__ int printf(const char *, ...);", source.format(3), source.format(5),
                          table, body.replace("SAY", say)])  # fmt: skip
        kernel = read_kernel(CubinEditor(cuda.nvrtc_compile(text, "sm_90")), "k", TABLE)
        assert kernel.graph.calls_out
        assert (kernel.elsewhere != EVERY_REGISTER) is known and kernel.elsewhere & kernel.named == kernel.elsewhere
        assert kernel.named & 1 << 4, "an argument"


def test_call_that_exits_and_call_that_returns():
    """The address of __assertfail is loaded from constant bank 4 before the call; a function pointer may lead to any
    function.
    """
    check = '__assertfail("x", "f", 1, "k", 1);'
    head = """extern "C" __device__ void __assertfail(const char *, const char *, unsigned, const char *, size_t);
    typedef int (*F)(int); extern "C" __global__ void k(F *f, int *p) { if (p[0] > p[2]) """
    for body, returns in ((check, False), (f"{check} p[1] = f[p[3]](p[4]);", True)):
        kernel = read_kernel(CubinEditor(cuda.nvrtc_compile(f"{head} {body} }}", "sm_90")), "k", TABLE)
        assert kernel.graph.calls_out
        assert kernel.returns is returns, body


def test_a_snippet_is_given_the_stack_pointer(image, snippets):
    """The snippet would get a wrong value, because no moved instruction reads R1. The kernel itself isn't harmed."""
    _, source = site(image, "saxpy", "LDG")
    woven = weave(image, "saxpy", [Place(source, (Use("slot", 1),))], snippets)
    (trampoline,) = woven.declaration.trampolines
    assert trampoline.reads.R == 1 << 1
    for declared in (trampoline.reads, Registers()):
        made = replace(woven.declaration, trampolines=(replace(trampoline, reads=declared),))
        assert rules(woven, declaration=made) == {"declared"}


def test_words_where_paths_meet_are_visited_once(image, snippets, monkeypatch):
    visits = Counter()
    step = TrampolineCheck._step

    def count(self, index, state):
        visits[index] += 1
        return step(self, index, state)

    monkeypatch.setattr(TrampolineCheck, "_step", count)
    kernel, source = site(image, "saxpy", "LDG")
    operand = bits(kernel.code.words[source], 24, 8)
    woven = weave(image, "saxpy", [Place(source, (Use("slot", operand),))], snippets)
    assert not rules(woven)
    (trampoline,) = woven.declaration.trampolines
    assert visits == dict.fromkeys(range(trampoline.start, trampoline.end), 1)
    code = woven.new.kernel.code
    jumps = [index for index in range(trampoline.start, trampoline.end - 1) if code[index].name == "BRA"]
    assert jumps, "the snippet has two paths"


def test_snippet_accepted_elsewhere_is_compared_again(leader):
    """The checker remembers words that were right with these names."""
    trampoline, number = inserted(leader)
    part = trampoline.parts[number]
    assert not rules(leader)
    for index in range(part.start, part.start + part.length):
        words = list(leader.new.kernel.code.words)
        words[index] ^= 1 << 91  # no control bit
        assert rules(leader, with_words(leader.new, words)), index
        words[index] ^= 1 << 91 | 1 << 110  # another write barrier
        assert rules(leader, with_words(leader.new, words)), index
    assert not rules(leader)
