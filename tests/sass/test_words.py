import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.sass.words import (
    CONTROL,
    TARGETS,
    Control,
    Guard,
    control_of,
    dump_words,
    guard_of,
    parse_words,
    target_of,
    with_control,
    with_guard,
    with_target,
)

WORDS = st.integers(0, (1 << 126) - 1)
CONTROLS = st.builds(
    Control,
    st.integers(0, 15),
    st.booleans(),
    st.integers(0, 7),
    st.integers(0, 7),
    st.integers(0, 63),
    st.integers(0, 15),
)


@given(WORDS)
def test_a_word_is_its_parts(word):
    assert with_control(word, control_of(word)) == word
    assert with_guard(word, guard_of(word)) == word


@given(WORDS, CONTROLS)
def test_control_field_round_trips_and_changes_no_other_bits(word, control):
    changed = with_control(word, control)
    assert control_of(changed) == control
    assert (changed ^ word) & ~CONTROL == 0


@given(WORDS, st.integers(0, 7), st.booleans())
def test_guard_round_trips_and_changes_no_other_bits(word, predicate, negated):
    changed = with_guard(word, Guard(predicate, negated))
    assert guard_of(changed) == (predicate, negated)
    assert (changed ^ word) >> 16 == 0 and (changed ^ word) & 0xFFF == 0


@given(WORDS, st.sampled_from(sorted(TARGETS)), st.integers(0, 1 << 20), st.integers(0, 1 << 20))
def test_target_round_trips(word, form, place, target):
    changed = with_target(word, form, place * 16, target * 16)
    assert target_of(changed, form, place * 16) == target * 16
    assert with_target(changed, form, place * 16, target_of(word, form, place * 16)) == word


def test_a_target_out_of_reach_is_refused():
    for form, target in (
        ("imm32", 1 << 31),
        ("imm32", -(1 << 32)),
        ("split", 1 << 60),
        ("split", 2),
        ("whole", 1 << 50),
    ):
        with pytest.raises(ValueError):
            with_target(0, form, 0, target + 16)


def test_parts_of_words_that_ptxas_made():
    branch = 0x000FEA0003800000_0000000000107947  # BRA .+0x50 of sm_90
    assert target_of(branch, "split", 0x40) == 0x90
    assert guard_of(branch) == (7, False) and guard_of(branch).always
    load = 0x000EA8000C1E1900_0000000402041981  # @P1 LDG.E R4, desc[UR4][R2.64]; sets barrier 2
    assert control_of(load) == Control(4, True, 2, 7, 0, 0)
    assert guard_of(load) == (1, False) and not guard_of(load).always


@given(st.lists(WORDS, max_size=20))
def test_sections_are_words(words):
    assert parse_words(dump_words(words)) == words


def test_a_section_of_half_words_is_refused():
    with pytest.raises(MalformedError, match="24 bytes"):
        parse_words(random.Random(1).randbytes(24))


@pytest.mark.parametrize("control", [(16, 0, 7, 7, 0, 0), (0, 0, 8, 7, 0, 0), (0, 0, 7, 7, 64, 0), (0, 0, 7, 7, 0, 16)])
def test_numbers_that_do_not_fit_are_refused(control):
    with pytest.raises(ValueError, match="doesn't fit"):
        with_control(0, Control(*control))
