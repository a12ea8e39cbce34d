"""The quick way to read an instruction against the grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.errors import MalformedError
from gpt.ptx.parse import parse_statements
from gpt.ptx.quick import _quick, parse_instruction

OPERANDS = st.sampled_from(
    ["%r1", "%tid.x", "tile", "$L_1", "_", "5", "-5", "-0", "0x1F", "0f3F800000", "0d0000000000000000", "017", "1.5",
     "[%rd1]", "[ %rd1 ]", "[%rd1+8]", "[%rd1+-8]", "[%rd1-8]", "[tile+4]", "[%rd1+0x10]", "{%r1, %r2}", "{ %f1 }",
     "{%r1,_}", "!%p1", "%p1|%p2", "%r1.x", "[%rd1, {%r1, %r2}]", "a+4", "5U", "{5, 6}", "", "%1", "[5]"]
)  # fmt: skip
HEADS = st.sampled_from(
    ["ld.global.v4.u32", "mov.b32", "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", "ret",
     "bra.uni", "call.uni (r),", "call", "st .global", "tex.2d.v4.f32.f32", "exit"]
)  # fmt: skip
GUARDS = st.sampled_from(["", "@%p1 ", "@!%p1 ", "@ %p1 ", "@!%p1\t", "@p "])
SPACES = st.sampled_from(["", " ", "\n", " /* c */ "])


@given(GUARDS, HEADS, SPACES, st.lists(OPERANDS, max_size=4), SPACES)
def test_it_is_what_the_grammar_says(guard, head, space, operands, end):
    text = f"{guard}{head} {space}{f',{space}'.join(operands)}{end};"
    try:
        expected = parse_statements(text)
    except MalformedError:
        with pytest.raises(MalformedError):
            parse_instruction(text)
        return
    assert [parse_instruction(text)] == expected


def test_the_usual_is_quick():
    for text in ("@!%p1 st.global.v2.u32 [%rd1+-8], {%r1, %r2};", "ret;", "fma.rn.f32 %f1, %f2, %f3, 0f3F800000;"):
        assert _quick(text)
