"""Snippets that were shortened and reordered compute what ptxas's words compute, and wait long enough.

Straight code is compared by what it computes: each word is a function of the values that it reads. The interpreter
runs whole snippets, with their jumps, in test_weave.py and test_both_ways.py.
"""

from __future__ import annotations

import pytest

from gpt.base.cache import Cache
from gpt.packaging.snippets import PROBES, Texts, list_statements
from gpt.probe.read.load import load_all
from gpt.probe.sass import schedule, snippets
from gpt.probe.sass.body import AT_EXIT
from gpt.probe.sass.draft import with_change
from gpt.probe.sass.glue import PLAIN, load_descriptor, load_parameter, move, save_predicates
from gpt.probe.sass.schedule import reads_clock, reorder
from gpt.probe.sass.shorten import DESCRIPTOR, shorten
from gpt.probe.sass.snippets import Compiler
from gpt.probe.sass.waits import await_results
from gpt.sass.check_words import make_branch
from gpt.sass.code import Code
from gpt.sass.stalls import iter_safe
from gpt.sass.tables import table_of
from gpt.sass.words import CONTROL, PT, SIZE, Guard, control_of, dump_words, with_guard, with_target
from tests.tiers import full

TABLE = table_of("sm_90")
RET = 0x950 | PLAIN | 20 << 24 | PT << 87
VOTE = 0x806 | PLAIN | 0x038E0100 << 64
DIV, CONV = 1 << 91 | 2 << 32, 1 << 91 | 3 << 32  # in BRA
BSSY, BSYNC, BRA = 0x945 | PLAIN, 0x941 | PLAIN, 0x947 | PLAIN | PT << 87
COMPARE = 0x20C | PLAIN | 5 << 32 | (PT << 84 | PT << 87 | 2 << 76 | 7 << 68)  # ISETP P0
STORE = 0x986 | PLAIN | 1 << 72 | 0xC1019 << 72


def names(words):
    return [TABLE.opcode(word).name for word in words]


def compute(words):
    """Return what straight code stores, in order, and the final value of each register."""
    values, stored, clocks = {}, [], 0
    for one in Code(dump_words(words), TABLE):
        bare, read, written = one.word & ~CONTROL, [], []
        for field in sorted(TABLE.fields(one.word), key=lambda field: field.low):
            file, number = field.operand.file, field.number
            if number == field.none or not field.width:
                read.append(None)
                continue
            bare &= ~(field.none << field.low)
            registers = [(file, number + k) for k in range(field.width)]
            if field.operand.writes.of(one.word) > 0:
                written += registers
            if field.operand.reads.of(one.word) > 0:
                read += [values.get(register, register) for register in registers]
        clocks += reads_clock(one)
        result = hash((bare, *read, clocks if reads_clock(one) else 0))
        if one.memory not in (None, "constant"):
            stored.append(result)
        for place, register in enumerate(written):
            old = () if one.guard.always else (values.get(register, register),)
            values[register] = hash((result, place, *old))
    return stored, values


def distances(words):
    """Yield two words, of which the second uses a result of the first, the cycles between them, and how many are enough
    for anyone.
    """
    code, now, times = Code(dump_words(words), TABLE), 0, []
    for one in code:
        times.append(now)
        now += max(1, one.control.stall)
    for first, one in enumerate(code):
        for mask, enough in iter_safe(one.entry, one.masks.writes):
            for second in range(first + 1, len(code)):
                if mask & (code[second].masks.reads | code[second].masks.writes):
                    yield first, second, times[second] - times[first], enough


@pytest.fixture(scope="module", params=[12, full(4)])
def straight(request):
    """Return straight bodies of the built-in probes before and after they're reordered: (before, after, options). Only
    each 12th text, or each fourth, is compiled.
    """
    found = []

    def spy(words, table, **options):
        after = reorder(words, table, **options)
        if not any(schedule._is_fence(one) for one in Code(dump_words(words), TABLE)):
            found.append((words, after, options))
        return after

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snippets, "reorder", spy)
        patch.setattr(snippets.Shipped, "get", lambda self, key: None)
        compiler = Compiler("sm_90", TABLE, Cache(None))
        for name in ("block_sched", "warp_sched", "gmem_bytes", "tensorop_count"):
            (file,) = load_all([str(PROBES / f"{name}.toml")])
            texts = sorted(Texts(file, list_statements(), count=False).found)
            chosen = (number % request.param == 0 for number in range(len(texts)))
            compiler.compile([text for text, is_in in zip(texts, chosen, strict=True) if is_in or AT_EXIT in text])
    return found


def test_reordered_words_compute_the_same(straight):
    moved = 0
    for before, after, options in straight:
        stored, values = compute(before)
        assert compute(after)[0] == stored
        for number in range(64):
            if options["returned"] >> number & 1:
                assert compute(after)[1].get(("R", number)) == values.get(("R", number))
        moved += [word & ~CONTROL for word in before] != [word & ~CONTROL for word in after]
    assert moved >= 8 and any(options["at_exit"] for *_, options in straight)


def test_results_have_as_many_cycles_as_ptxas_left_or_as_anyone_needs(straight):
    """The least cycles that ptxas left after an instruction are compared, whatever used its result."""
    for before, after, _ in straight:
        least: dict[str, int] = {}
        for first, _, there, enough in distances(before):
            (name,) = names([before[first]])
            least[name] = min(there, enough, least.get(name, there))
        for first, second, there, _ in distances(after):
            assert there >= least[names([after[first]])[0]], (names(after), first, second)


def test_slow_results_are_requested_before_any_is_awaited(straight):
    """At an exit of block_sched, nothing waits before all special registers and constants are on their way."""
    (body,) = (after for _, after, options in straight if options["at_exit"] and names(after).count("STG") == 2
               and names(after).count("REDG") == 1)  # fmt: skip
    compiled = await_results(body, TABLE)
    waits = [index for index, word in enumerate(compiled) if control_of(word).wait]
    slow = [index for index, name in enumerate(names(compiled)) if name in ("S2R", "LDC")]
    assert len(slow) >= 8 and max(slow) < min(waits)


def test_a_predicate_that_a_mask_names_keeps_its_number():
    """P2R doesn't name its predicates one by one."""
    words = [COMPARE | 4 << 24, save_predicates(8, 1), COMPARE | 6 << 24, save_predicates(9, 1), STORE | 8 << 32]
    found = [word & ~CONTROL for word in reorder(words, TABLE, at_exit=True)]
    order = [found.index(word & ~CONTROL) for word in words]
    assert order[:4] == sorted(order[:4])


def jump(index, target, word=BRA, form="split"):
    return with_target(word, form, SIZE * index, SIZE * target)


def test_a_guard_replaces_a_jump_over_a_store():
    words = [
        move(4, 5),
        jump(1, 5, BSSY, TABLE.opcode(BSSY).target),
        with_guard(jump(2, 4), Guard(0, False)),
        STORE,
        BSYNC,
        RET,
    ]
    found = shorten(words, TABLE)
    assert names(found) == ["MOV", "STG", "RET"]
    assert found[1] >> 12 & 15 == 8, "@!P0"


USE = with_guard(move(8, 9), Guard(0, False))


@pytest.mark.parametrize("others, is_own", [([], True), ([jump(3, 0)], False), ([jump(3, 2)], False)])
def test_a_skipped_comparison_gets_its_own_predicate_only_if_no_other_path_needs_it(others, is_own):
    """`others` jump back: to the jump that reads the predicate, or to a word among the skipped ones."""
    words = [
        with_guard(jump(0, 3), Guard(0, False)),
        COMPARE,
        USE,
        *(with_guard(w, Guard(3, False)) for w in others),
        RET,
    ]
    assert (shorten(words, TABLE)[1] != COMPARE) == is_own


@pytest.mark.parametrize("between", [[], [jump(1, 2)]])
def test_divergence_is_ruled_out_only_in_one_straight_piece(between):
    """`between` is a jump to the next word: after it, the active lanes may differ from the lanes that voted."""
    divided = jump(2 + len(between), 5 + len(between), BRA | DIV)
    words = [VOTE | 4 << 16, *between, 0x2CA | PLAIN | 0 << 16 | 4 << 24 | 0xE << 80, divided, move(6, 7),
             make_branch(4 + len(between), 6 + len(between), "split") | 0xF << 105, move(8, 9), RET]  # fmt: skip
    found = shorten(words, TABLE)
    assert ("R2UR" in names(found)) == bool(between)
    assert len(found) == (len(words) - 1 if between else 3), "the jump to the next word is gone anyway"


@pytest.mark.parametrize(("kind", "left"), [(DIV, 2), (CONV, 7)])
def test_divergence_is_ruled_out_in_a_chain(kind, left):
    """A BRA.DIV and the code that it leads to are left out together, one pair after the other. A BRA.CONV stays: it
    jumps if lanes haven't diverged.
    """
    copy = 0x2CA | PLAIN | 0 << 16 | 4 << 24 | 0xE << 80
    words = [VOTE | 4 << 16, copy, jump(2, 6, BRA | DIV), copy, jump(4, 8, BRA | kind), jump(5, 10),
             move(6, 7), jump(7, 3), move(8, 9), jump(9, 5), RET]  # fmt: skip
    found = shorten([with_change(word, stall=15) for word in words], TABLE)
    assert names(found).count("BRA") == (0 if kind == DIV else 3)
    assert len(found) == left


def test_a_descriptor_is_loaded_where_it_is_needed():
    copy = 0x2CA | PLAIN | 0xE << 80
    words = [load_parameter(10, DESCRIPTOR), copy | 2 << 16 | 10 << 24, copy | 3 << 16 | 11 << 24, STORE | 2 << 64, RET]
    found = shorten(words, TABLE)
    assert names(found) == ["ULDC", "STG", "RET"]
    assert not (found[0] ^ load_descriptor(2, DESCRIPTOR)) & ~CONTROL
    assert control_of(found[0]).stall == 15
    words[0] = load_parameter(10, DESCRIPTOR + 8)
    assert shorten(words, TABLE) == words, "another value is left alone"
