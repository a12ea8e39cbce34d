"""The grammar and the tree: a printed module has the tokens of the original, and ptxas makes the same code from it."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.ptx import parse, scan, tree
from gpt.ptx.tree import Address, Expression, Guard, Instruction, Name, Number, OperandGroup, Prefixed, Vector
from tests import cuda
from tests.ptx.tokens import assert_same_cuts, tokens
from tests.tiers import examples, first, full

SHAPES = Path(__file__).with_name("shapes.ptx")
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"


def one(text):
    (statement,) = parse.parse_statements(text)
    return statement


def r(name):
    return Name(f"%{name}")


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("ret;", Instruction("ret")),
        ("@!%p bra L;", Instruction("bra", (), (Name("L"),), Guard("%p", True))),
        (
            "ld.global.v2.u32 {%a, _}, [%b+-8];",
            Instruction(
                "ld",
                (".global", ".v2", ".u32"),
                (
                    Vector((r("a"), Name("_"))),
                    Address((Expression((r("b"), Prefixed(("-",), Number("8"))), ("+",)),)),
                ),
            ),
        ),
        (
            "setp.eq.u32 %p|%q, %tid.x, 1, !%s;",
            Instruction(
                "setp",
                (".eq", ".u32"),
                (
                    Expression((r("p"), r("q")), ("|",)),
                    Name("%tid", (".x",)),
                    Number("1"),
                    Prefixed(("!",), r("s")),
                ),
            ),
        ),
        (
            "call (%a), f, (1);",
            Instruction("call", (), (OperandGroup((r("a"),)), Name("f"), OperandGroup((Number("1"),)))),
        ),
        ("bar.warp.sync -1;", Instruction("bar", (".warp", ".sync"), (Prefixed(("-",), Number("1")),))),
        ("new.ly_made::up.b4x16_p64 %a;", Instruction("new", (".ly_made::up", ".b4x16_p64"), (r("a"),))),
    ],
)
def test_nodes(text, node):
    assert one(text) == node
    assert tokens(str(node)) == tokens(text)


def test_a_head_says_what_a_function_takes():
    module = scan.scan_module(SHAPES.read_bytes())
    head = parse.parse_head(module, module.find("shapes"))
    assert head.kind == ".entry"
    assert head.body is None
    assert [str(parameter.declarator) for parameter in head.params] == [
        "shapes_param_0",
        "shapes_param_1[128]",
        "shapes_param_2",
    ]
    assert [str(attribute) for attribute in head.attributes] == [".reqntid 128, 1, 1", ".maxnreg 128"]


def test_every_item_parses_alone():
    module = scan.scan_module(SHAPES.read_bytes())
    whole = parse.parse_module(SHAPES.read_bytes())
    assert [parse.parse_item(module, item) for item in module.items if item.kind != "section"] == [
        item for item in whole.items if not isinstance(item, tree.SectionNode)
    ]


def test_shapes_print_back_token_for_token():
    text = SHAPES.read_text()
    program = parse.parse_module(text.encode())
    assert tokens(str(program)) == tokens(text)
    assert parse.parse_module(str(program).encode()) == program


@pytest.mark.parametrize("home", ["fresh", "torn", full("file"), full("readonly")])
def test_tables_in_the_cache_are_a_convenience(home, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    tables = tmp_path / "cache" / "gpt" / "ptx"
    if home == "file":
        (tmp_path / "cache").write_text("no folder")
    elif home == "readonly":
        tables.parent.mkdir(parents=True)
        tables.touch()
    for _ in range(2):
        parse.parser.cache_clear()
        assert one("ret;") == Instruction("ret")
        for path in tables.glob("*"):
            path.write_bytes(path.read_bytes()[:99] if home == "torn" else path.read_bytes())
    assert len([*tables.glob("*")]) == (home in ("fresh", "torn"))
    parse.parser.cache_clear()


def test_tables_that_somebody_else_put_there_do_not_run(tmp_path, monkeypatch):
    """The tables are a pickle."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    parse.parser.cache_clear()
    assert one("ret;") == Instruction("ret")
    (path,) = (tmp_path / "gpt" / "ptx").iterdir()
    evil = b"cos\nmkdir\n(V" + str(tmp_path / "ran").encode() + b"\ntR."
    head = path.read_bytes()[64:].partition(b"\n")[0]
    for data in (evil, head + b"\n" + evil, path.read_bytes()[:64] + head + b"\n" + evil):
        path.write_bytes(data)
        (tmp_path / "gpt" / "ptx-tables").write_bytes(data)  # where earlier releases stored the tables
        parse.parser.cache_clear()
        assert one("ret;") == Instruction("ret")
    assert not (tmp_path / "ran").exists()
    parse.parser.cache_clear()


SEPARATORS = [" ", "\n", "\t", " // ; } {\n", '/* ) ] } \n "*/', "\r\n"]


@settings(max_examples=examples(25))
@given(st.randoms(use_true_random=False))
def test_blanks_and_comments_mean_nothing(random):
    text = SHAPES.read_text()
    loose = "".join(token + random.choice(SEPARATORS) for token in tokens(text))
    assert parse.parse_module(loose.encode()) == parse.parse_module(text.encode())
    plain, spread = scan.scan_module(text.encode()), scan.scan_module(loose.encode())
    assert_same_cuts(plain)
    assert_same_cuts(spread)
    assert [item[:2] for item in spread.items] == [item[:2] for item in plain.items]
    for one_function, other in zip(plain.functions, spread.functions, strict=True):
        before, after = plain.statements(one_function), spread.statements(other)
        assert [s[:2] for s in after] == [s[:2] for s in before]
        assert [tokens(spread.source(s)) for s in after] == [tokens(plain.source(s)) for s in before]


# What compilers write

SOURCE = """
#include <cuda_fp16.h>
#include <mma.h>
struct S { float x[5]; char c; };
__device__ __noinline__ int deep(int n, S s) { return n > 1 ? deep(n - 1, s) * n : s.c; }
__device__ int (*chosen)(int, S) = deep;
__constant__ double table[3] = {1.5, 2, 3};
extern __shared__ int dynamic[];
__global__ void __launch_bounds__(128, 2) all(int *p, S s, __half2 *h, float *f, int n) {
    __shared__ float tile[64];
    tile[threadIdx.x & 63] = s.x[n % 5] * table[n % 3];
    dynamic[threadIdx.x] = n;
    __syncthreads();
    if (n > 3) { p[0] = deep(n, s) + chosen(n, s) + dynamic[n]; printf("%d \\n", n); }
    switch (n) { case 0: p[1] = 7; break; case 1: p[2] = 9; break; case 2: p[3] = 1; break; case 9: p[4] = 0; break; }
    for (int i = 0; i < n; i++) atomicAdd(f + i, __shfl_xor_sync(~0u, tile[i & 63], 1));
    h[n] = __hfma2(h[0], h[1], h[2]);
    asm volatile("{ .reg .b32 t; // not; a statement\\n mov.b32 t, %1; st.global.v2.u32 [%0], {t, t}; }"
                 :: "l"(p), "r"(n));
    using namespace nvcuda;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(c, 0.f);
    wmma::load_matrix_sync(a, (half *)h, 16);
    wmma::load_matrix_sync(b, (half *)h, 16);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(f, c, 16, wmma::mem_row_major);
    if (n == 77) __trap();
}
"""


def check_same_code(arch, before, after):
    """Check that ptxas generates the same code for both, except for the line numbers that it appends to names."""
    cubins = [cuda.assemble(ptx, arch, "-c") for ptx in (before, after)]
    if cubins[0] != cubins[1]:
        one, two = (re.sub(r"__\d+\b", "", cuda.disassemble(cubin)) for cubin in cubins)
        assert two == one
        assert "STG" in one or "ST.E" in one


@pytest.mark.full
@pytest.mark.parametrize(
    ("arch", "options"),
    first(("75", []), ("80", ["-lineinfo"]), ("90", ["-G"]), ("90a", []), ("100a", ["-rdc=true"])),
)
def test_ptxas_assembles_printed_ptx_to_the_same_code(arch, options):
    text = cuda.nvrtc_compile(SOURCE, f"compute_{arch}", options)
    program = parse.parse_module(text)
    printed = str(program)
    assert tokens(printed) == tokens(text.decode())
    check_same_code(f"sm_{arch}", text, printed.encode())


def test_ptxas_takes_the_shapes():
    printed = str(parse.parse_module(SHAPES.read_bytes())).encode()
    check_same_code("sm_90a", SHAPES.read_bytes(), printed)


# ptxas, the scanner and the grammar accept the same text.

BODY = ".visible .entry k() {{ .reg .pred %p; .reg .b32 %r<3>; .reg .b64 %rd<3>; .reg .f32 %f<3>;\n{} ret; }}"
TAKEN = [
    ".visible.entry k(.param.u64 p){.reg.b64 %rd<9>;ret;}",
    ".visible.entry k(.param.align 8 .b8 x[4]) .maxntid 128 .minnctapersm 2{ret;}",
    ".weak.func(.param.b32 r)f(.param.b32 a){ret;} .visible.global.b32 x;",
    ".section.debug_str{L:.b8 1,2 .b8 3}",
    BODY.format("mov.u32%r1,1;ld.u32%r1,[%rd1];mov.b64{%r1,%r2},%rd1;@!%p bra L;L:"),
    BODY.format("mov .u32 %r1, %tid .x; @ ! %p mov\n.u32\n%r1\n,\n1\n; L : bra L;"),
    BODY.format("mov.f32 %f1, .5; add.f32 %f1, %f2, -.25e2; mov.f32 %f2, .5e-3;"),
    ".entry k() { .reg .b32 %r<0x4>, %s<010>, %t<0b11>, %u<4U>; ret; }",
    '#line 3 "a;b{.cu"\n.global .b32 x; # 4 "a.cu" 1 2\n' + BODY.format('mov.u32\n# 5 "a.cu"\n%r1, 1;'),
]
REFUSED = [
    ". global .b32 x;",
    ".global . b32 x;",
    ". visible .entry k() { ret; }",
    ". section .debug_str { .b8 1 }",
    BODY.format("mov . u32 %r1, 1;"),
    BODY.format("mov. u32 %r1, 1;"),
    BODY.format("mov.u32 %r1, %tid. x;"),
    BODY.format("mov.u32 % r1, 1;"),
    BODY.format("mov.u32 %r1, # 5\n1;"),
    ".global .b32 x<5>=4;",
    BODY.format(".loc 1 2 3, function_namefoo, inlined_at 1 2 3\n"),
    "#define X 1\n.global .b32 x;",
    '#line "a.cu"\n.global .b32 x;',
]


def is_grammatical(text, folder):
    """Return whether ptxas can parse the text, whatever it means."""
    (folder / "in.ptx").write_text(text)
    command = [cuda.tool("ptxas"), "-arch=sm_90", "-c", folder / "in.ptx", "-o", folder / "out.cubin"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 or "Parsing error" in done.stderr, done.stderr
    return done.returncode == 0


@pytest.mark.parametrize("text", TAKEN)
def test_text_that_ptxas_accepts_is_accepted(text, tmp_path):
    text = HEAD + text + "\n"
    assert is_grammatical(text, tmp_path)
    printed = str(parse.parse_module(text.encode()))
    assert is_grammatical(printed, tmp_path)
    module = scan.scan_module(text.encode())
    assert [item.names for item in module.items] == [item.names for item in scan.scan_module(printed.encode()).items]
    for function in module.functions:
        assert all(statement.head for statement in module.statements(function))


@pytest.mark.parametrize("text", REFUSED)
def test_text_that_ptxas_refuses_is_refused(text, tmp_path):
    assert not is_grammatical(HEAD + text + "\n", tmp_path)
    with pytest.raises(MalformedError):
        parse.parse_module((HEAD + text).encode())


# Any program

names = st.from_regex(r"[A-Za-z_$%][a-z0-9_$]{1,5}", fullmatch=True).filter(
    lambda name: name not in ("function_name", "inlined_at")
)
words = st.from_regex(r"\.[a-z0-9_]{1,4}(::[a-z0-9]{1,3})?", fullmatch=True).filter(
    lambda word: (
        word not in (".entry", ".func", ".file", ".loc", ".pragma", ".alias", ".section", ".version", ".target")
    )
)
numbers = st.one_of(
    st.integers(0, 1 << 64).map(str),
    st.integers(0, 1 << 32).map(lambda n: f"0x{n:x}U"),
    st.integers(0, (1 << 32) - 1).map(lambda n: f"0f{n:08X}"),
    st.sampled_from(["1.5", "2.", "1e-5", "0b101", "0d3FF0000000000000"]),
).map(Number)
strings = st.text(st.characters(max_codepoint=255, exclude_characters='"\0'), max_size=5).map(tree.String)
registers = st.builds(Name, names, st.lists(words, max_size=2).map(tuple))
OPERATORS = ["+", "-", "*", "/", "%", "|", "&", "^", "<<", ">>", "==", "!=", "<=", ">=", "<", ">", "&&", "||", "?", ":"]


def named_briefly(strategy):
    """Return the strategy with a short repr. If a filter fails, hypothesis prints the repr, and nested strategies had
    megabytes of it.
    """

    @st.composite
    def inner(draw):
        return draw(strategy)

    return inner()


def expressions(operand):
    """Return a strategy for expressions. An operand has no prefix and isn't an expression itself: that would parse to a
    different tree.
    """
    operand = named_briefly(operand)
    plain = operand.filter(lambda node: not isinstance(node, Expression | tree.Setting))
    base = plain.filter(lambda node: not isinstance(node, Prefixed))
    items = st.lists(operand, max_size=3).map(tuple)
    prefixes = st.lists(st.sampled_from(["-", "+", "!", "~", "(.s64)"]), min_size=1, max_size=3).map(tuple)
    return st.one_of(
        st.builds(OperandGroup, items),
        st.builds(Vector, items),
        st.builds(Address, items),
        st.builds(Prefixed, prefixes, base),
        st.builds(tree.Apply, registers | numbers, st.builds(OperandGroup, items)),
        st.builds(tree.Index, registers, st.lists(st.builds(Address, items), min_size=1, max_size=2).map(tuple)),
        st.lists(plain, min_size=2, max_size=4).flatmap(
            lambda nodes: st.tuples(*[st.sampled_from(OPERATORS)] * (len(nodes) - 1)).map(
                lambda operators: Expression(tuple(nodes), operators)
            )
        ),
    )


operands = st.recursive(registers | numbers | strings, expressions, max_leaves=8)
guards = st.none() | st.builds(Guard, names, st.booleans())
opcodes = st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True)
instructions = st.builds(
    Instruction, opcodes, st.lists(words, max_size=4).map(tuple), st.lists(operands, max_size=4).map(tuple), guards
)
labels = st.builds(tree.Label, names)
specifiers = st.one_of(
    st.builds(tree.Specifier, words),
    st.builds(tree.Specifier, st.just(".align"), st.integers(1, 128).map(str)),
    st.builds(tree.Specifier, st.just(".attribute"), st.sampled_from(["(.managed)", "(.unified(1, 2))"])),
)
declarators = st.builds(
    tree.Declarator,
    names,
    st.none() | st.integers(1, 99).map(str),
    st.lists(st.none() | numbers, max_size=2).map(tuple),
    st.none() | operands,
)
declarations = st.builds(
    tree.Declaration,
    st.lists(specifiers, min_size=1, max_size=4).map(tuple),
    st.lists(declarators, min_size=1, max_size=3).map(tuple),
)
pragmas = strings.map(lambda text: tree.Directive(".pragma", str(text), ";"))
locs = st.integers(1, 9).map(lambda n: tree.Directive(".loc", f"1 {n} 3"))
statements = st.recursive(
    st.one_of(instructions, labels, declarations, pragmas, locs),
    lambda inner: st.lists(inner, max_size=3).map(lambda nodes: tree.Scope(tuple(nodes))),
    max_leaves=6,
)
parameters = st.builds(
    tree.Parameter,
    st.lists(specifiers, min_size=1, max_size=3).map(tuple),
    st.builds(tree.Declarator, names, st.none(), st.lists(st.none() | numbers, max_size=1).map(tuple)),
)
signatures = st.none() | st.lists(parameters, max_size=3).map(tuple)
attributes = st.builds(tree.Attribute, words, st.lists(numbers.map(str), max_size=3).map(tuple))
functions = st.builds(
    tree.FunctionNode,
    st.lists(st.sampled_from([".visible", ".weak", ".extern"]).map(tree.Specifier), max_size=2).map(tuple),
    st.sampled_from([".entry", ".func"]),
    st.just(()),
    signatures,
    names,
    signatures,
    st.lists(attributes, max_size=3).map(tuple),
    st.none() | st.lists(statements, max_size=4).map(lambda nodes: tree.Scope(tuple(nodes))),
)


@settings(max_examples=examples(60))
@given(st.lists(statements, max_size=5))
def test_printed_statements_parse_to_the_same_tree(nodes):
    assert parse.parse_statements("\n".join(map(str, nodes))) == nodes


@settings(max_examples=examples(60))
@given(st.lists(functions | declarations, max_size=3))
def test_programs_round_trip_and_the_scanner_splits_them_equally(nodes):
    program = tree.ModuleNode(tuple(nodes))
    data = str(program).encode("latin-1")
    assert parse.parse_module(data) == program
    if any(item.body is None for item in nodes if isinstance(item, tree.FunctionNode)):
        return
    module = scan.scan_module(data)
    assert len(module.items) == len(nodes)
    for item, node in zip(module.items, nodes, strict=True):
        if isinstance(node, tree.FunctionNode):
            assert item.names == (node.name,)
            assert len(module.statements(item)) == sum(map(pieces, node.body.statements))


def pieces(statement):
    """Return the number of statements that the scanner sees in a statement of the tree: a scope has its braces and its
    contents.
    """
    return 2 + sum(map(pieces, statement.statements)) if isinstance(statement, tree.Scope) else 1


@settings(max_examples=examples(60))
@given(st.text(st.sampled_from('ab%.,;:{}[]()<>=+-"/* \n019@!|_#\\\xe9'), max_size=60))
def test_any_text_is_parsed_or_refused_with_its_place(text):
    for read in (parse.parse_module, scan.scan_module):
        try:
            read(text.encode("latin-1"), "k")
        except MalformedError as error:
            assert re.fullmatch(r"k:\d+:\d+", error.where)


@pytest.mark.parametrize(
    ("text", "where", "fact"),
    [
        ("ret;\n  add.u32 %a # %b;", "k:2:14", "unexpected '#'"),
        ("add.u32 %a,, %b;", "k:1:12", "unexpected ','"),
        ("add.u32 %a", "k:1:11", "unexpected end"),
        ("add.u32 %a %b, 1;", "k:1:12", "unexpected '%b'"),
        ("%add.u32 %a, 1;", "k:1:5", "unexpected '.u32'"),
        ("@bra $L;", "k:1:6", "unexpected '$L'"),
        ("add.u32 {%a;", "k:1:12", "unexpected ';'"),
        ("mov.u32 %a, " + "(" * 65 + "1" + ")" * 65 + ";", "k:1:77", "nested more than 64 deep"),
    ],
)
def test_malformed_statements_are_refused_with_their_place(text, where, fact):
    with pytest.raises(MalformedError) as error:
        parse.parse_statements(text, "k")
    assert error.value.where == where
    assert fact in error.value.fact


@pytest.mark.parametrize("repeated", first("b+", "-", "(.u32)", "[1]", "b?1:"))
def test_long_expressions_do_not_exhaust_the_stack(repeated):
    text = f"mov.u32 {'b' if repeated == '[1]' else ''}{repeated * 20000}{'' if repeated == '[1]' else 1};"
    assert tokens(str(one(text))) == tokens(text)
