"""Control flow: basic blocks and their successors."""

import pytest

from gpt.sass.code import Code
from gpt.sass.graph import UnboundedError, make_graph
from gpt.sass.words import dump_words
from tests.sass.assembly import program


def edges(*lines, tables=()):
    """Return the first instruction of each block, and of its successors.

    `tables` has the targets of indirect jumps, by the jump's index.
    """
    given = {16 * index: [16 * target for target in targets] for index, targets in dict(tables).items()}
    graph = make_graph(program(*lines), given)
    starts = [block.start for block in graph.blocks]
    return {start: [starts[one] for one in graph.successors[number]] for number, start in enumerate(starts)}


def test_branches_and_exits():
    found = edges("MOV 4", "back: MOV 5", "@0 BRA back", "@!1 EXIT", "BRA end", "MOV 6", "end: EXIT")
    assert found == {0: [1], 1: [1, 3], 3: [4], 4: [6], 5: [6], 6: []}


def test_a_second_predicate_makes_a_branch_or_an_exit_conditional():
    code = program("BRA end", "EXIT", "end: EXIT", "EXIT")
    assert make_graph(code).successors == ((2,), (), (), ())
    words = [word ^ 1 << 87 for word in code.words[:3]] + code.words[3:]  # P6 instead of PT
    assert make_graph(Code(dump_words(words), code.table)).successors == ((1, 2), (2,), (3,), ())


def test_kernel_runs_past_its_end():
    with pytest.raises(UnboundedError, match="runs past its end at 0x10"):
        make_graph(program("MOV 4", "MOV 5"))
    assert edges("EXIT", "MOV 4", "MOV 5") == {0: [], 1: []}  # unreachable code may run off the end


def test_jumps_to_where_no_instruction_is():
    code = program("BRA end", "end: EXIT")
    for changed in (code.words[0] + (8 << 16), code.words[0] + (1 << 17)):  # 8 units too far; half an instruction
        with pytest.raises(UnboundedError, match="where no instruction is"):
            make_graph(Code(dump_words([changed, code.words[1]]), code.table))


def test_bsync_continues_after_itself():
    """The label of the BSSY doesn't matter (docs/sass-rules.md)."""
    found = edges("BSSY 0 far", "@0 BRA other", "MOV 4", "other: BSYNC 0", "MOV 5", "EXIT", "far: MOV 6", "EXIT")
    assert found == {0: [2, 3], 2: [3], 3: [], 6: []}


def test_returns_lead_to_the_instruction_after_the_call():
    lines = ("CALL one", "CALL two", "EXIT", "one: RET 20", "two: MOV 4", "@0 RET 20", "RET 22")
    found = edges(*lines)
    assert (found[3], found[4], found[6]) == ([1], [2, 6], [2])


def test_return_of_function_called_differently():
    lines = ("CALLR 4", "CALL one", "EXIT", "one: RET 20", "MOV 4", "RET 20")
    found = edges(*lines)
    assert found[3] == [2]
    assert found[4] == [1, 2]


@pytest.mark.parametrize(
    "lines",
    [
        [*["CALL f"] * 500, "EXIT", "f: MOV 4", *["@0 RET 20"] * 500, "EXIT"],
        [*["CALLR 4"] * 500, "EXIT", *["@0 RET 20"] * 500, "EXIT"],
        [*(f"a{i}: CALL a{i + 1}" for i in range(500)), "a500: EXIT"],
    ],
    ids=["returns", "returns to any call", "functions"],
)
def test_calls_and_returns_have_a_limit(lines):
    """Otherwise, 100,000 instructions would have 2.5 billion edges."""
    with pytest.raises(UnboundedError, match="too many calls and returns"):
        make_graph(program(*lines))


def test_fewer_calls_and_returns_are_followed():
    found = edges(*["CALL f"] * 50, "EXIT", "f: MOV 4", *["@0 RET 20"] * 50, "EXIT")
    assert found[51] == [*range(1, 51), 53]


def test_calls_of_other_sections_are_marked():
    graph = make_graph(program("MOV 4", "CALLR 4", "EXIT"))
    assert graph.calls_out == {graph.block_at(1)}
    assert graph.successors[0] == (1,)


def test_indirect_jumps_need_a_table():
    lines = ("BRX 4", "MOV 4", "EXIT", "EXIT")
    for tables in ({}, {2: [3]}, {0: []}):
        with pytest.raises(UnboundedError, match="at 0x0 without a table"):
            edges(*lines, tables=tables)
    assert edges(*lines, tables={0: [2, 3]})[0] == [2, 3]


def test_an_indirect_jump_has_its_own_table():
    lines = ("@0 BRA other", "BRX 4", "other: BRX 4", "EXIT", "EXIT")
    found = edges(*lines, tables={1: [3], 2: [3, 4]})
    assert (found[1], found[2]) == ([3], [3, 4])


def test_collective_continues_after_its_end():
    lines = ("WARPSYNC end", "MOV 4", "ENDCOLLECTIVE", "end: EXIT")
    assert edges(*lines)[0] == [1]
    assert edges("WARPSYNC end", "MOV 4", "end: EXIT")[0] == [1, 2]


def test_no_code():
    with pytest.raises(UnboundedError, match="no code"):
        make_graph(program())
