"""Stalls that are lengthened in ptxas's code, and scoreboards that are added to it."""

from gpt.probe.sass import glue
from gpt.probe.sass.draft import Draft, with_change
from gpt.probe.sass.waits import announce, await_reads, await_results, space
from gpt.sass.flow import NOTHING
from gpt.sass.stalls import LATE_GUARD
from gpt.sass.tables import table_of
from gpt.sass.words import Guard, control_of
from gpt.sass.woven import Snippet

PRODUCT = 0x000FE2000F8E00FF_0000000008087C25  # IMAD.WIDE.U32 R8, R8, UR0, RZ with a stall of 1
UNIFORM = 0x000FE400000E0000_00000000150072CA  # R2UR UR0, R21 with a stall of 2
SUM = 0x000FCA000FF3E0FF_00000003080F7C10  # IADD3 R15, P1, R8, UR3, RZ
OTHER = 0x000FE200078EC0FF_07FFFFFF12117812  # LOP3.LUT R17, R18, 0x7ffffff, RZ, 0xc0, !PT
BITS = 0x000FF000000000000000E000A7309  # POPC R10, R14 without a barrier
LEADING = 0x001E2400000E00000000000000007300  # FLO.U32 R0, R0 with write barrier 0
TABLE = table_of("sm_90")


def stalls(*words):
    found = space(list(words), TABLE)
    assert [word & (1 << 105) - 1 for word in found] == [word & (1 << 105) - 1 for word in words]
    return [control_of(word).stall for word in found]


def test_result_read_after_r2ur_gets_time():
    assert stalls(PRODUCT, UNIFORM, SUM) == [1, 6, 5]
    assert stalls(PRODUCT, UNIFORM, OTHER, SUM) == [1, 2, 4, 5], "in front of the word that reads it"
    assert stalls(PRODUCT, UNIFORM, OTHER) == [1, 2, 1], "it isn't read"


def test_a_result_of_a_wide_product_gets_time():
    assert stalls(PRODUCT, OTHER, SUM) == [1, 6, 5]
    assert stalls(UNIFORM, PRODUCT, SUM) == [2, 7, 5]


def test_other_stalls_are_as_ptxas_left_them():
    copy = glue.move(8, 9)
    assert stalls(copy, OTHER, SUM) == [1, 1, 5]
    assert stalls(UNIFORM, copy, SUM) == [2, 1, 5]


def test_result_announced_by_the_next_instruction_has_its_barrier():
    """ptxas only waits for FLO, because POPC's result arrives earlier."""
    barriers = [control_of(word).write_barrier for word in announce([BITS, LEADING], TABLE)[0]]
    assert barriers == [0, 0]


def test_a_barrier_is_awaited_once_it_shows_that_an_operand_is_being_read():
    """It shows nothing in the next cycle (docs/sass-rules.md)."""
    save = with_change(glue.store_stack(4, -16), read_barrier=5, stall=1)
    for words, expected in (
        ((save, glue.set_to(4, 7)), [(2, 0), (1, 1 << 5)]),
        ((save, glue.set_to(5, 7), glue.set_to(4, 7)), [(1, 0), (1, 0), (1, 1 << 5)]),
        ((save, glue.set_to(5, 7)), [(1, 0), (1, 0)]),
    ):
        found = await_reads([with_change(word, stall=1) for word in words], TABLE)
        assert [(control_of(word).stall, control_of(word).wait) for word in found] == expected


def test_a_result_is_awaited_once_its_barrier_shows_it():
    """The second word may already wait for the barrier, because of an earlier instruction."""
    load = with_change(glue.load_stack(4, -16), write_barrier=3, stall=1)
    for words, expected in (
        ((load, glue.move(5, 4)), [(2, 0), (1, 1 << 3)]),
        ((load, with_change(glue.move(5, 4), wait=1 << 3)), [(2, 0), (1, 1 << 3)]),
        ((load, with_change(glue.move(5, 6), wait=1 << 3)), [(1, 0), (1, 1 << 3)]),
    ):
        found = await_results([*words], TABLE)
        assert [(control_of(word).stall, control_of(word).wait) for word in found] == expected


def test_a_restored_predicate_is_awaited_where_it_guards_a_snippet():
    """The snippet of a second probe at a load may get the guard of the load, which the first probe saved."""
    draft = Draft(TABLE, 100, 0, [])
    draft.glue([glue.restore_predicates(41, 1)], NOTHING)
    names = {"R": {5: 5, 6: 6}, "UR": {}, "P": {}, "UP": {}, "B": {}}
    draft.insert(Snippet((glue.move(5, 6),)), names, NOTHING, Guard(0, True))
    assert sum(control_of(word).stall for word in draft.words[:-1]) >= LATE_GUARD
