"""The checker proves the code of the tests' weaver, and detects faults in any other code."""

from dataclasses import replace

import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.probe.sass import glue
from gpt.sass.check import Version, check
from gpt.sass.check_saves import find_restored, is_slot, keep_copies
from gpt.sass.check_words import NOP
from gpt.sass.code import Code
from gpt.sass.kernels import read_facts, read_kernel
from gpt.sass.masks import STARTS, Registers
from gpt.sass.stalls import find_unscheduled
from gpt.sass.words import Control, dump_words, guard_of, with_bits, with_control, with_guard
from gpt.sass.woven import Declaration, Inserted, Moved, Snippet
from tests import cuda
from tests.sass.checking import TABLE, instruction, rules, site, stored, with_words
from tests.sass.corpus import compile_kernels, find_places, iter_places, make_pool
from tests.sass.equivalent import EQUIVALENT
from tests.sass.mutate import run
from tests.sass.mutations import KINDS
from tests.sass.weaver import (
    ADD_ONE,
    LDL,
    P2R,
    PLAIN,
    R2P,
    STL,
    TICK,
    Place,
    Use,
    compiled_snippets,
    weave,
)
from tests.tiers import full


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
def pool(image, snippets):
    return make_pool()


def kernels(image):
    return [raw.decode() for raw in CubinEditor(image).kernels]


@pytest.mark.parametrize("step", [30, full(4)])
def test_places_of_every_kernel_are_proven(image, snippets, step):
    proven = saving = 0
    for name in kernels(image):
        kernel = read_kernel(CubinEditor(image), name, TABLE)
        for source in find_places(kernel)[::step]:
            for place in iter_places(kernel, source, ticks=True):
                try:
                    woven = weave(image, name, [place], snippets, ticks=any(use.value == TICK for use in place.before))
                except LookupError:
                    continue
                assert not check(woven.original, woven.new, woven.declaration), (name, place)
                proven += 1
                saving += woven.declaration.stack > 0
    assert proven > 1000 / step and saving > 280 / step


def test_unchanged_kernel(image):
    for name in kernels(image):
        cubin = CubinEditor(image)
        one = Version(read_kernel(cubin, name, TABLE), read_facts(cubin, name))
        assert not check(one, one, Declaration(registers=one.facts.registers))


def test_a_kernel_without_a_schedule(image):
    """ptxas 13.5 writes no stalls and no barriers into code that it doesn't optimize."""
    cubin = CubinEditor(image)
    name = next(iter(cubin.kernels)).decode()
    kernel, facts = read_kernel(cubin, name, TABLE), read_facts(cubin, name)
    assert find_unscheduled(kernel.code) is None
    bare = {index: with_control(word, Control(0, True, 7, 7, 0, 0)) for index, word in enumerate(kernel.code.words)}
    one = Version(replace(kernel, code=kernel.code.with_controls(bare)), facts)
    found = check(one, one, Declaration(registers=facts.registers))
    assert [(finding.place, finding.rule) for finding in found] == [(0, "stall")]


@pytest.mark.full
def test_nvdisasm_reads_what_is_woven(pool):
    for woven in pool[:2]:
        assert woven.original.kernel.name in cuda.disassemble(woven.image)


def test_several_instructions_in_one_trampoline(image, snippets):
    name = "matrix"
    kernel, source = site(image, name, "LDS", 1)
    woven = weave(image, name, [Place(source, (Use("leader"),), (Use("leader"),), count=2)], snippets)
    assert not rules(woven)
    kernel, source = site(image, name, "LDG")
    jumps = {target // 16 for target in kernel.code.targets}
    first = next(index for index in sorted(jumps) if index > 3 and kernel.code[index - 1].name not in ("BRA", "EXIT"))
    woven = weave(image, name, [Place(first - 1, (Use("leader"),), count=2)], snippets)
    assert rules(woven) == {"places"}, "a jump into the middle would miss the probe"


def test_a_snippet_of_one_instruction_takes_the_guard(image, snippets):
    """The counter of a guarded LDG needs no branch: the addition itself is guarded."""
    for name in kernels(image):
        kernel = read_kernel(CubinEditor(image), name, TABLE)
        for source in find_places(kernel):
            guard = kernel.code[source].guard
            if guard.always or kernel.code[source].name in ("EXIT", "BRA"):
                continue
            woven = weave(image, name, [Place(source, (Use("tick", TICK),))], snippets, ticks=True)
            trampoline = woven.declaration.trampolines[1]
            part = trampoline.parts[0]
            words = list(woven.new.kernel.code.words)
            words[part.start] = with_guard(words[part.start], guard)
            assert "words" in rules(woven, with_words(woven.new, words)), "the guard isn't declared"
            for other, expected in ((guard, set()), (guard._replace(negated=not guard.negated), {"words"})):
                words[part.start] = with_guard(words[part.start], other)
                parts = (replace(part, guard=other), *trampoline.parts[1:])
                made = (woven.declaration.trampolines[0], replace(trampoline, parts=parts))
                declaration = replace(woven.declaration, trampolines=made)
                assert rules(woven, with_words(woven.new, words), declaration) == expected
            return
    pytest.fail("no guarded instruction")


def test_an_amended_store_frees_its_operands(image, snippets):
    """A kernel's last store sets no barrier for its reads. If it's given one, a snippet at the EXIT can use its
    registers.
    """
    name = "wide"
    kernel = read_kernel(CubinEditor(image), name, TABLE)
    facts = read_facts(CubinEditor(image), name)
    store = next(one for one in kernel.code if one.name == "STG" and one.control.read_barrier == 7)
    leave = next(one for one in kernel.code if one.name == "EXIT" and one.index > store.index)
    declaration = Declaration(registers=facts.registers)
    words = list(kernel.code.words)
    words[store.index] = with_control(store.word, store.control._replace(read_barrier=2))
    amended = replace(declaration, amended=frozenset({store.index}))
    plain = Version(kernel, facts)
    assert not check(plain, with_words(plain, words), amended)
    for changed, how in ((words, declaration), ([*words[: store.index], words[store.index] ^ 1 << 32], amended)):
        changed = [*changed, *words[len(changed) :]]
        assert [one.rule for one in check(plain, with_words(plain, changed), how)] == ["places"]

    woven = weave(image, name, [Place(leave.index, (Use("leader"),))], snippets)
    trampoline = woven.declaration.trampolines[0]
    number, part = next(
        (k, part) for k, part in enumerate(trampoline.parts) if isinstance(part, Inserted) and part.length > 2
    )
    taken = (store.reads.R & ~2).bit_length() - 1
    words = list(woven.new.kernel.code.words)
    was = part.names["R"][3]
    for index in range(part.start, part.start + part.length):
        for low, file in ((16, "writes"), (32, "reads")):
            registers: Registers = getattr(woven.new.kernel.code[index], file)
            if registers.R >> was == 1 or (low == 32 and index == part.start + 7):
                words[index] = with_bits(words[index], low, 8, taken)
    parts = list(trampoline.parts)
    parts[number] = replace(part, names={**part.names, "R": {**part.names["R"], 3: taken}})
    made = replace(woven.declaration, trampolines=(replace(trampoline, parts=tuple(parts)),))
    assert rules(woven, with_words(woven.new, words), made) == {"in flight"}
    words[store.index] = with_control(store.word, store.control._replace(read_barrier=2))
    assert not rules(woven, with_words(woven.new, words), replace(made, amended=made.amended | {store.index}))


def test_a_yield_must_become_a_nop(image, snippets):
    kernel, source = site(image, "saxpy", "LDG")
    operand = (kernel.code[source].reads.R & ~2).bit_length() - 1
    woven = weave(image, "saxpy", [Place(source, (Use("slot", operand),))], snippets)
    trampoline = woven.declaration.trampolines[0]
    part = next(part for part in trampoline.parts if isinstance(part, Inserted) and part.length > 2)
    at = next(k for k, word in enumerate(part.snippet.words) if TABLE.opcode(word).name == "YIELD")
    words = list(woven.new.kernel.code.words)
    assert not rules(woven) and woven.new.kernel.code[part.start + at].name == "NOP"
    words[part.start + at] = part.snippet.words[at]
    assert "words" in rules(woven, with_words(woven.new, words))


def test_snippet_with_divergent_lanes(image, snippets):
    """The BSSY and BSYNC are also removed from the compiled snippet."""
    _, source = site(image, "saxpy", "LDG")
    nop = 0x918 | PLAIN
    words = tuple(nop if TABLE.opcode(w).name in ("BSSY", "BSYNC") else w for w in snippets["leader"].words)
    split = {**snippets, "leader": replace(snippets["leader"], words=words)}
    assert rules(weave(image, "saxpy", [Place(source, (Use("leader"),))], split)) == {"lanes"}


def test_values_are_kept_and_come_back():
    own = 1 << 4 | 1 << 5
    saved = keep_copies(stored(STL, 4, -8), frozenset(), own)
    assert saved == {("stack", -8, 4)}
    assert find_restored(stored(LDL, 4, -8), saved) == 1 << 4
    assert find_restored(stored(LDL, 5, -8), saved) == 0, "another register's"
    assert find_restored(stored(LDL, 4, -4), saved) == 0, "another slot"
    assert keep_copies(stored(STL, 5, -8), saved, own) == {("stack", -8, 5)}
    assert keep_copies(stored(STL, 6, -8), saved, own) == set(), "R6 has no value of the kernel's"
    guarded = instruction(with_guard(with_bits(STL, 40, 24, (1 << 24) - 8) | 4 << 32, guard_of(1 << 12)) & ~PLAIN)
    assert keep_copies(guarded, frozenset(), own) <= {("stack", -8, 4)}


def test_predicates_are_kept_together():
    own = 0b101 << STARTS.P
    saved = keep_copies(instruction(P2R | 9 << 16), frozenset(), own)
    assert saved == {("R", 9, STARTS.P), ("R", 9, STARTS.P + 2)}
    assert find_restored(instruction(R2P | 9 << 24), saved) == own
    assert keep_copies(instruction(ADD_ONE | 9 << 16), saved, own) == set(), "the register was overwritten"
    some = keep_copies(instruction(with_bits(P2R | 9 << 16, 32, 7, 3)), frozenset(), own)
    assert some == {("R", 9, STARTS.P)}, "P2 isn't kept"
    assert find_restored(instruction(with_bits(R2P | 9 << 24, 32, 7, 4)), saved) == 0b100 << STARTS.P
    assert keep_copies(instruction(P2R | 1 << 39 | 9 << 16), frozenset(), own) == set(), "another number"


def test_uniform_registers_are_kept_and_come_back():
    own = 1 << STARTS.UR + 40
    saved = keep_copies(instruction(glue.save_uniform(9, 40)), frozenset(), own)
    assert saved == {("R", 9, STARTS.UR + 40)}
    assert find_restored(instruction(glue.restore_uniform(40, 9)), saved) == own
    assert find_restored(instruction(glue.restore_uniform(41, 9)), saved) == 0, "another register"
    assert find_restored(instruction(glue.restore_uniform(40, 8)), saved) == 0, "from elsewhere"
    assert keep_copies(instruction(glue.save_uniform(9, 41)), frozenset(), own) == set(), "not the kernel's value"
    assert keep_copies(instruction(glue.add_uniform(9, 8, 40)), frozenset(), own) == set(), "a sum"
    guarded = [with_bits(word, 12, 4, 1) for word in (glue.save_uniform(9, 40), glue.restore_uniform(40, 9))]
    save, restore = Code(dump_words(guarded), TABLE)
    assert keep_copies(save, frozenset(), own) == set()
    assert find_restored(restore, saved) == 0


@pytest.mark.parametrize(
    ("offset", "stack", "is_right"),
    [(-4, 4, True), (-8, 4, False), (0, 16, False), (-2, 16, False), (-16, 16, True), (4, 16, False)],
)
def test_slots_are_below_the_stack_pointer(offset, stack, is_right):
    assert is_slot(stored(STL, 4, offset), stack) is is_right
    assert not is_slot(instruction(with_bits(STL, 24, 8, 2) | 4 << 32), 16), "another base"


def test_inputs_of_a_snippet_must_have_been_written(image, snippets):
    kernel, source = site(image, "saxpy", "LDG")
    needs = {**snippets, "leader": replace(snippets["leader"], inputs=Registers(R=0x31))}
    assert rules(weave(image, "saxpy", [Place(source, (Use("leader"),))], needs)) & {"undefined", "declared"}
    operand = (kernel.code[source].reads.R & ~2).bit_length() - 1
    lacks = {**snippets, "slot": replace(snippets["slot"], inputs=Registers(R=0x30))}
    assert rules(weave(image, "saxpy", [Place(source, (Use("slot", operand),))], lacks)) == {"undefined", "declared"}


def test_preserved_register_must_be_set_at_entry(image, snippets):
    _, source = site(image, "saxpy", "LDG")
    woven = weave(image, "saxpy", [Place(source, (Use("tick", TICK),))], snippets, ticks=True)
    begin, rest = woven.declaration.trampolines
    assert not rules(woven)
    words = list(woven.new.kernel.code.words)
    words[0] = woven.original.kernel.code.words[0]
    words[begin.start : begin.end] = [NOP] * (begin.end - begin.start)
    without = replace(woven.declaration, trampolines=(rest,))
    assert rules(woven, with_words(woven.new, words), without) == {"persistent"}


def test_declarations_that_make_no_sense(pool):
    woven = pool[0]
    (first, *rest) = woven.declaration.trampolines
    for change in (
        {"start": -5},
        {"end": 1 << 40},
        {"parts": ()},
        {"parts": first.parts[1:]},
        {"parts": tuple(reversed(first.parts))},
        {"parts": (*first.parts, Moved(first.end, -1))},
        {"parts": (*first.parts, Inserted(first.end, Snippet((0xABC,)), {}))},
        {"parts": (replace(first.parts[0], start=first.parts[0].start + 1), *first.parts[1:])},
    ):
        bad = replace(woven.declaration, trampolines=(replace(first, **change), *rest))
        assert rules(woven, declaration=bad), change
    assert rules(woven, declaration=replace(woven.declaration, amended=frozenset({-1}))) == {"places"}


def check_mutations(pool, count):
    tally = run(pool, count)
    named = [(one.kind, one.woven.original.kernel.name, one.at) for one in tally.unexplained]
    assert not named
    assert set(tally.kinds) == set(KINDS)
    never = {
        "a snippet with a forbidden instruction",
        "a snippet without its BSSY or BSYNC",
        "an opcode",
        "a predicate",
    }
    assert not {kind for kind, _ in tally.passed} & never
    return tally


def test_mutations_are_found_or_do_no_harm(pool):
    tally = check_mutations(pool, 600)
    assert tally.rules.total() > 480


@pytest.mark.full
@pytest.mark.timeout(900)
def test_ten_thousand_mutations(pool):
    tally = check_mutations(pool, 10_000)
    assert {reason for _, reason in tally.passed} <= {name for name, _, _ in EQUIVALENT}
