"""Weaving and unweaving: random and damaged programs are restored, or rejected with their place."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError
from gpt.probe.ptx.weave import MARK, LeftAlone, unweave, weave
from gpt.ptx.prune import prune, pruned
from gpt.ptx.scan import scan_module
from tests.probe.ptx.woven import HEAD, REGISTERS, kernel, simple
from tests.tiers import examples

STATEMENTS = [
    "add.s32 %r1, %r2, 3;", "@%p1 bra L1;", "@!%p2 exit;", "ret;", "@%p3 ret;", "L1:", "{", "}", ".loc 1 2 3\n",
    "ld.global.u32 %r1, [%rd1+-4];", "@%p1 st.global.v2.u32 [%rd1], {%r1, %r2};", "ld.u32 %r1,[%rd1];",
    "ld.volatile .global\n.u64 %rd1, [%rd1];", "bar.sync 0;", "atom.global.add.u32 %r1, [%rd1], %r1;",
    '.pragma "nounroll";', "// ld.global.u32 %r1, [%rd1];\n", "/* ret; */", "add.f32 %f1, %f1, %f2;",
    "{ .param .b32 x; st.param.b32 [x], %r1; call f, (x); }", "call f , ( %r1 );", "mma.sync.aligned.m16n8k8.row.col."
    "f16.f16.f16.f16 {%r1, %r2}, {%r3, %r4}, {%r5}, {%r1, %r2};", "setp.lt.u32 %p1|%p2, %r1, 5;", ".reg .b32 %t;",
    "mov.u64 %rd1, va /* , */ + 8;", "ld.global.u32 %r1, [va\n+4];", "@%p1 st.global.u32 [vb], %r1;",
    "ld.u32 %r1,[vc];",
]  # fmt: skip
VARIABLES = [
    ".global .u32 va;", ".visible .global .b8 vb[5] = {1, 2, // \\\n 3};", ".global .u64 va, vb = 1, /* \xe9 */ vc;",
    ".const .u64 c1 = generic(va)+4;", ".const .u64 c2[2] = { vb , 1 };", ".extern .const .b8 c3[8];",
    ".shared .u32 vc;",
]  # fmt: skip
BLANKS = st.sampled_from(["", " ", "\n", "\n\n", "\t", " // c\n", "/* { */", "\r\n"])
FILES = [
    simple("kernel", "mov.u32 %a, SMID;", "after"),
    simple("ld.global:st.global:ld.generic", "cvt.u32.u64 %a, ADDR;", "after"),
    simple("bra", "selp.u32 %a, 1, 0, PRED;", more="no_pred = true"),
    simple("label:L1:line:*:2:func:f", "mov.u32 %a, ACTIVE;"),
    simple("setp:add.f32:mma:atom", "mov.u32 %a, 7;", "after"),
]


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(st.sampled_from(STATEMENTS), BLANKS), max_size=20),
    st.lists(st.tuples(st.sampled_from(STATEMENTS), BLANKS), max_size=8),
    st.lists(st.sampled_from(FILES), min_size=1, max_size=3, unique_by=id),
    BLANKS,
    st.lists(st.tuples(st.sampled_from(VARIABLES), BLANKS), max_size=3),
)
def test_weaving_and_back(body, function, files, blank, variables):
    """Unweaving restores the text even of programs that make no sense, which weaving doesn't check."""
    text = lambda parts: balanced("".join(statement + blank for statement, blank in parts))  # noqa: E731
    declared = "".join(variable + blank for variable, blank in variables)
    data = (
        f'{HEAD}.file 1 "a.cu"\n{declared}.func f{blank}(.param .b32 x){blank}{{{text(function)}{blank}}}\n'
        f".entry{blank or ' '}k{blank}(.param .u64 p{blank}){{{REGISTERS}{text(body)}{blank}}}{blank}"
    ).encode("latin-1")
    try:
        woven = weave(data, "k", files)
    except LeftAlone as error:
        assert re.search("^no probe applies|'v[abc]' is declared twice", error.fact)
        return
    assert unweave(woven.data) == data
    assert woven.data.count(MARK.encode()) >= len(woven.maps)
    shared = [variable.name for variable in woven.variables if variable.space == "global"]
    left = re.sub(r"//[^\n]*|/\*.*?\*/", "", woven.data.decode("latin-1"))
    assert not any(re.search(rf"\b{name}\b", left) for name in shared)
    assert all(site.woven <= site.matched for site in woven.sites)


def balanced(text):
    """Return the text without unmatched braces."""
    out, depth = [], 0
    for piece in re.split(r"(/\*.*?\*/|//[^\n]*\n|[{}])", text):
        if piece == "}" and not depth:
            continue
        depth += (piece == "{") - (piece == "}")
        out.append(piece)
    return "".join(out) + "}" * depth


PIECES = [
    "", "{", "}", "(", "]", ";", ",", '"', "/*", "//", "\n", "%r1", "@%p1 ", "<", "9" * 30, ".reg", ".func f", ":", "_",
    "-", "[9999999999]", "<99999999>", ".loc 1 99999999999999999999 0\n", ".loc 1 x 0\n", ".file 1\n", '.file x "y"\n',
    ".version 8\n", ".version x.y\n", ".version 99999.1\n", ".target sm_\n", ".address_size 32\n", "\xff", "\0", ".v4",
    "call f, (%r1, ", "brx.idx %r1, t;", ".visible .entry k(", ".param .align 99999999 .b8 p[", ".callprototype _ ();",
]  # fmt: skip
PROGRAM = kernel(
    '.file 1 "a.cu"\n.loc 1 2 3\nld.global.v2.u32 {%r1, %r2}, [%rd1+-4];\n@%p1 bra L1;\ncall f, (%r1);\nL1:\n'
    "atom.global.add.u32 %r1, [%rd1], %r1;\nsetp.lt.u32 %p1|%p2, %r1, 5;\nbar.sync 0;\n@!%p2 exit;\nret;"
).decode()
PROGRAM = PROGRAM.replace(".visible", ".func f(.param .b32 x) { ret; }\n.visible", 1)


@settings(max_examples=examples(200))
@given(st.data())
def test_mutated_programs_are_woven_or_refused(data):
    text = PROGRAM
    files = data.draw(st.lists(st.sampled_from(FILES), min_size=1, max_size=2, unique_by=id))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(text)))
        text = text[:at] + data.draw(st.sampled_from(PIECES)) + text[at + data.draw(st.integers(0, 12)) :]
    try:
        module = scan_module(text.encode("latin-1"), "m")
        for entry in module.entries:
            original = prune(module, [entry.name])
            woven = weave(original, entry.name, files, "m")
            assert unweave(woven.data) == original
    except GptError as error:
        assert error.where.startswith("m") or isinstance(error, LeftAlone)
        assert "\n" not in error.fact


def test_a_call_without_end_is_malformed():
    torn = PROGRAM.replace("call f, (%r1);", "call f, (%r1;").encode()
    with pytest.raises(MalformedError, match="no end to") as caught:
        weave(torn, "k", [simple("func:f", "mov.u32 %a, ACTIVE;")], "m")
    assert caught.value.where == f"m:{torn[: torn.index(b'(%r1')].count(10) + 1}:9"


@given(st.binary(max_size=200))
def test_unweaving_what_was_never_woven(data):
    if MARK.encode() not in data:
        assert unweave(data) == data


def test_a_fault_of_the_module_is_reported_with_its_place():
    first = kernel("ret;").replace(b"entry k", b"entry first")
    data = first + kernel("ld.global.u32 %r1,\n [%rd1]];\nret;").removeprefix(HEAD.encode())
    module = scan_module(data, "x")
    with pytest.raises(MalformedError) as caught:
        weave(pruned(module, ["k"]), "k", [simple("ld.global", "mov.u32 %a, 1;")])
    assert (caught.value.where, caught.value.fact) == (module.where(data.index(b"]]") + 1), "PTX: unexpected ']'")
