"""The fast parsers of instructions, declarations and parameters, compared with the grammar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.ptx import quick
from gpt.ptx.parse import parse_head, parse_statements
from gpt.ptx.quick import parse_declaration, parse_function, parse_instruction, parse_params, parse_statement
from gpt.ptx.scan import scan_module
from gpt.ptx.tree import Declaration

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


DECLARED = st.sampled_from(
    [".reg .u32 %a;", ".reg\t.pred p, %q<3>;", ".reg .u64 %n = 0;", ".reg .v2 .f32 %v;", ".regs .u32 %a;",
     ".reg.u32 %a;", ".branchtargets a, b;", ".loc 1 2 3;", '.pragma "x";', "L: ;", "L:", "L: .branchtargets a;",
     'SAVE ["m"], {%a};', "SAVE.u64 {%a, 1};", "{", "add.u32 %a, %b // c\n, 1;",
     ".reg .u32 %a /* b */;", "", ";", "ret", "ret; ret;"]
)  # fmt: skip


@given(DECLARED)
def test_a_statement_is_what_the_grammar_says(text):
    try:
        expected = parse_statements(text, "")
    except MalformedError as error:
        with pytest.raises(MalformedError) as found:
            parse_statement(text)
        assert str(found.value) == str(error)
        return
    assert parse_statement(text) == expected


@pytest.fixture
def no_grammar(monkeypatch):
    """Fail if plain text is parsed by the grammar."""
    for name in ("parse_statements", "parse_head"):
        monkeypatch.setattr(quick, name, None)


@pytest.mark.usefixtures("no_grammar")
def test_the_usual_is_quick():
    for text in (
        "@!%p1 st.global.v2.u32 [%rd1+-8], {%r1, %r2};",
        "ret;",
        "fma.rn.f32 %f1, %f2, %f3, 0f3F800000;",
        "call.uni (retval0), deep, (param0, param1);",
    ):
        assert str(parse_instruction(text)) == text
    for text in (".reg .b32 %r<9>;", ".reg .pred %p, %q;", ".visible .global .align 4 .b8 a[2][] = 0;"):
        assert str(parse_declaration(text)) == text


PARAMS = st.sampled_from(
    [".param .u64 a", ".param .align 8 .b8 b[24]", ".param .u64 .ptr .global .align 16 c", ".param\t.f32\nd",
     ".param .b8 e[]", ".reg .b32 %f", ".param .u32 g[2][3]", ".param .b8 h[ 0x10 ]", ".param .texref t",
     ".param .u64 .ptr x /* y */", "x"]
)  # fmt: skip
TAILS = st.sampled_from(
    ["", ".maxntid 256, 1, 1", ".minnctapersm 2 .maxnreg 32", '.pragma "nounroll";', ".noreturn", ".maxntid 4*32",
     ".maxntid 256 1", ".maxntid 256,", ".maxntid , 1", ".reqntid n, 0x20", ".abi_preserve 5 /* c */", "5", ".5"]
)  # fmt: skip
STARTS = st.sampled_from(
    [".visible .entry k", ".entry $k", ".weak .func k", ".func (.param .b32 r) k", ".entry", ".func () k",
     ".visible .func .attribute(.unified(1, 2)) k", ".align 8 .func k",
     ".extern .func (.reg .pred p, .param .b8 q[4]) %k"]
)  # fmt: skip


@given(STARTS, st.none() | st.lists(PARAMS, max_size=4), TAILS, st.booleans())
def test_parameters_are_what_the_grammar_says(start, params, tail, declared):
    listed = "" if params is None else f"({', '.join(params)})"
    try:
        module = scan_module(f".version 8.0\n{start}{listed} {tail} {';' if declared else '{ ret; }'}".encode())
    except MalformedError:
        return
    try:
        expected = parse_head(module, module.items[1])
    except MalformedError as error:
        with pytest.raises(MalformedError) as found:
            parse_function(module, module.items[1])
        assert str(found.value) == str(error)
        return
    assert parse_function(module, module.items[1]) == expected
    assert parse_params(module, module.items[1]) == expected.params


@pytest.mark.usefixtures("no_grammar")
def test_the_usual_parameters_are_quick():
    text = ".param .u64 a,\n.param .align 8 .b8 b[24],\n.param .u64 .ptr .global .align 16 c"
    module = scan_module(f".version 8.0\n.visible .entry k({text}) .maxntid 256, 1, 1 {{ ret; }}".encode())
    assert [str(parameter) for parameter in parse_params(module, module.items[1])] == text.split(",\n")


WORDS = st.sampled_from([".global", ".align 8", ".b8", ".reg", ".u32", ".attribute(.managed)", ".const[2]", ".5", ""])
DECLARATORS = st.sampled_from(
    ["a", "%r<9>", "%r<0x4>", "b[4]", "c[2][]", "d[WARP_SZ]", "e[4+4]", "f = 5", "g[2] = {1, 2}", "h = -1", "i<2", "5"]
)  # fmt: skip


@given(st.lists(WORDS, max_size=4), st.lists(DECLARATORS, max_size=3), SPACES)
def test_declarations_are_what_the_grammar_says(words, declarators, space):
    text = f"{' '.join(words)} {f',{space}'.join(declarators)}{space};"
    try:
        expected = parse_statements(text)
    except MalformedError:
        with pytest.raises(MalformedError):
            parse_declaration(text)
        return
    if isinstance(expected[0], Declaration):
        assert [parse_declaration(text)] == expected
