"""The quick way to read an instruction against the grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.errors import MalformedError
from gpt.ptx.parse import parse_head, parse_statements
from gpt.ptx.quick import _params, _quick, parse_instruction, parse_params
from gpt.ptx.scan import scan_module

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


PARAMS = st.sampled_from(
    [".param .u64 a", ".param .align 8 .b8 b[24]", ".param .u64 .ptr .global .align 16 c", ".param\t.f32\nd",
     ".param .b8 e[]", ".reg .b32 %f", ".param .u32 g[2][3]", ".param .b8 h[ 0x10 ]", ".param .texref t",
     ".param .u64 .ptr x /* y */", "x"]
)  # fmt: skip
TAILS = st.sampled_from(["", ".maxntid 256, 1, 1", ".minnctapersm 2 .maxnreg 32", '.pragma "nounroll";', ".noreturn"])
STARTS = st.sampled_from([".visible .entry k", ".entry $k", ".weak .func k", ".func (.param .b32 r) k", ".entry"])


@given(STARTS, st.none() | st.lists(PARAMS, max_size=4), TAILS, st.booleans())
def test_parameters_are_what_the_grammar_says(start, params, tail, declared):
    listed = "" if params is None else f"({', '.join(params)})"
    try:
        module = scan_module(f".version 8.0\n{start}{listed} {tail} {';' if declared else '{ ret; }'}".encode())
        expected = parse_head(module, module.items[1]).params
    except MalformedError:
        return
    assert parse_params(module, module.items[1]) == expected


def test_the_usual_parameters_are_quick():
    text = ".param .u64 a,\n.param .align 8 .b8 b[24],\n.param .u64 .ptr .global .align 16 c"
    assert [str(parameter) for parameter in _params(text)] == text.split(",\n")
