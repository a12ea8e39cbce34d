"""Read tables, and check some words that are easily verified by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError
from gpt.sass.arch import ARCHS
from gpt.sass.code import Code
from gpt.sass.masks import EVERY_REGISTER, name_ranges, name_registers, pack
from gpt.sass.tables import Registers, UnknownOpcodeError, dump_table, parse_table, table_of
from gpt.sass.words import dump_words, words_array
from tests.sass.explain import Explained, explain
from tests.sass.torch_check import rebuild

TEXT = """gpt-sass-table 1 sm_90
# ptxas 1.2.3, nvdisasm 4.5.6

981 LDG variable
  P12 read 1
  R16 write by 73-75: 1*5 2 4 -
  R24 read by 72: 1 2
  P64~ read 1
  UR32 read by 76,91: 2 - 0 1

803 P2R
  R16 write 1
  PR32 read 1

945 BSSY target=imm32
  B16 write 1
"""
LOAD = 0x000EA8000C1E1900_0000000402047981  # LDG.E R4, desc[UR4][R2.64]


def test_a_table_is_text():
    table = parse_table(TEXT)
    assert table.made_with == "ptxas 1.2.3, nvdisasm 4.5.6"
    assert parse_table(dump_table(table)) == table
    assert [entry.name for entry in table.opcodes.values()] == ["LDG", "P2R", "BSSY"]
    assert table.opcodes[0x945].target == "imm32" and table.opcodes[0x981].variable


def test_sets_of_registers_have_names():
    some = pack(Registers(R=0b1011110001, UR=1, P=0x7F, B=1 << 15))
    assert name_ranges(some) == "R0 R4-R7 R9 UR0 P0-P6 B15"
    assert name_registers(some) == "R0 R4 R5 R6 R7 R9 UR0 P0 P1 P2 P3 P4 P5 P6 B15"
    assert name_ranges(0) == ""
    assert name_ranges(EVERY_REGISTER) == "R0-R254 UR0-UR254 P0-P6 UP0-UP6 B0-B15"


def test_selectors_choose_the_number_of_registers():
    table = parse_table(TEXT)
    for size, registers in ((4, 0b1), (5, 0b11), (6, 0b1111)):
        effect = table.effect(0x981 | 1 << 16 | 2 << 24 | size << 73)
        assert (effect.writes.R >> 1, effect.reads.R >> 2, effect.exact) == (registers, 0b1, True)
    assert table.effect(0x981 | 2 << 24 | 1 << 72).reads.R == 0b11 << 2


def test_an_unknown_value_counts_with_the_most():
    table = parse_table(TEXT)
    effect = table.effect(0x981 | 8 << 16 | 7 << 73)
    assert effect.writes.R == 0b1111 << 8 and not effect.exact
    code = Code(dump_words([0x981 | 8 << 16 | 7 << 73 | 7 << 12]), table)
    assert code[0].writes.R and not code[0].kills.R, "nobody knows whether all of them are overwritten"


@pytest.mark.parametrize("arch", ARCHS)
def test_a_bssy_may_name_a_label_before_it(arch):
    """Loops in code that isn't optimized have some."""
    word = 0x003FDE0003800000_FFFFF1A000037945  # BSSY B3, 0x5c0 at 0x1410
    code = Code(dump_words([0x918 | 7 << 12] * 0x141 + [word]), table_of(arch))
    assert code[0x141].target == 0x5C0


def test_r2p_ends_no_live_range():
    """R2P writes the predicates in its mask, or possibly any if the mask is in a register. nvdisasm keeps them alive,
    too.
    """
    words = [0x804 | 7 << 12 | 3 << 24 | 0x15 << 32, 0x204 | 7 << 12 | 3 << 24 | 4 << 32]
    code = Code(dump_words(words), table_of("sm_90"))
    assert code[0].writes == Registers(P=0b10101) and code[0].kills == Registers()
    assert code[1].writes == Registers(P=127) and code[1].kills == Registers()


def test_numbers_that_mean_no_register():
    table = parse_table(TEXT)
    nothing = table.effect(0x981 | 7 << 12 | 255 << 16 | 255 << 24 | 63 << 32)
    assert nothing.writes == Registers() and nothing.reads == Registers()
    assert table.effect(0x981 | 254 << 16 | 6 << 73).writes.R == 1 << 254, "R255 means no register, whatever the width"
    assert table.effect(0x981 | 7 << 12 | 1 << 64).reads.P == 1 << 6, "complement"


def test_masks_of_predicates():
    assert parse_table(TEXT).effect(0x803 | 7 << 12 | 0b1000101 << 32).reads.P == 0b1000101


def test_unknown_opcode_is_refused():
    table = parse_table(TEXT)
    with pytest.raises(UnknownOpcodeError, match="opcode abc isn't in the table of sm_90"):
        table.effect(0xABC)
    with pytest.raises(UnknownOpcodeError):
        Code(dump_words([LOAD, 0xABC]), table)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "gpt-sass-table 2 sm_90\n",
        "gpt-sass-table 1 sm_90\nnonsense\n",
        "gpt-sass-table 1 sm_90\n981 LDG\n  R16 write by 73-75: 1*5 2\n",
        "gpt-sass-table 1 sm_90\n981 LDG\n  R16 overwrite 1\n",
        "gpt-sass-table 1 sm_90\n981 LDG\n  X16 write 1\n",
    ],
)
def test_a_malformed_instruction_table_is_refused(text):
    with pytest.raises(MalformedError):
        parse_table(text)


def test_no_table_for_older_architectures():
    with pytest.raises(GptError, match="no instruction table for sm_75"):
        table_of("sm_75")


@pytest.mark.parametrize("arch", ARCHS)
def test_every_table_can_be_read(arch):
    table = table_of(arch)
    assert table.arch.name == arch
    assert len(table.opcodes) > 200
    assert dump_table(table) == dump_table(parse_table(dump_table(table)))
    exit_ = table.opcodes[0x94D]
    assert exit_.name == "EXIT" and [operand.name for operand in exit_.operands] == ["P12", "P87"]
    assert table.opcodes[0x947].target == table.arch.branch


def test_instructions_of_sm_90():
    code = Code(dump_words([LOAD, 0x000FEA0003800000_0000000000107947]), table_of("sm_90"))
    load, branch = code
    assert (load.name, load.memory, load.variable, load.target) == ("LDG", "global", True, None)
    assert load.reads == Registers(R=0b1100, UR=0b110000) and load.writes == load.kills == Registers(R=0b10000)
    assert load.control.write_barrier == 2 and load.offset == 0
    assert branch.name == "BRA" and branch.offset == 16 and code.targets == {0x60}


@pytest.mark.parametrize("arch", ARCHS)
def test_words_are_the_same_when_put_together_again(arch):
    """Any word whose opcode is in the table equals what's encoded from its guard, operands, target and control."""
    table = table_of(arch)

    @given(st.sampled_from(sorted(table.opcodes)), st.integers(0, (1 << 114) - 1))
    def check(opcode, rest):
        word = opcode | rest << 12
        assert rebuild(Code(dump_words([word]), table), 0) == word

    check()


@given(st.lists(st.sampled_from([LOAD, LOAD | 7 << 73, 0x803, 0xABC, 0x981 | 7 << 73]), max_size=30))
def test_explaining_much_code_agrees_with_one_word_after_the_other(words):
    table = parse_table(TEXT)
    found = Explained()
    explain(table, words_array(dump_words(words)) if words else np.zeros((0, 2), np.uint64), found)
    assert found.words == len(words)
    assert found.unknown.total() == sum(word & 0xFFF not in table.opcodes for word in words)
    known = [word for word in words if word & 0xFFF in table.opcodes]
    assert found.inexact.total() == sum(not table.effect(word).exact for word in known)


@pytest.mark.parametrize("name", ["HGMMA", "IGMMA", "BGMMA", "QGMMA"])
def test_matrix_operations_of_a_warp_group_write_only_their_result(name):
    """Fields of up to 128 registers were once measured so close together that these seemed to write their operands."""
    entries = [one for one in table_of("sm_90").opcodes.values() if one.name == name]
    assert len(entries) == 2
    for entry in entries:
        assert [operand.low for operand in entry.operands if operand.writes.most > 0] == [16]


def test_a_matrix_operation_with_an_operand_in_registers():
    """HGMMA.64x64x16.F32.BF16 R28, R220, gdesc[UR16], RZ, !UPT, gsb0"""
    effect = table_of("sm_90").effect(0x000FE2000C0018FF00E00010DC1C7DF0)
    assert effect.exact
    assert effect.writes == Registers(R=((1 << 32) - 1) << 28)
    assert (effect.reads.R, effect.reads.UR) == (15 << 220, 15 << 16)
