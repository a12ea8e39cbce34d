"""The scanner: how it splits text, its errors, and linear time on hostile text."""

import gc
import time
from pathlib import Path

import pytest

from gpt.base.errors import MalformedError
from gpt.ptx import scan
from tests.ptx.tokens import assert_whole_bodies

SHAPES = Path(__file__).with_name("shapes.ptx").read_bytes()
HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
BODY = HEAD + ".entry f(){"


def statements(body):
    module = scan.scan_module(f"{HEAD}.entry f()\n{{{body}}}".encode())
    return module, module.statements(module.entries[0])


def heads(body):
    return [(s.kind, s.head, s.guard) for s in statements(body)[1]]


def test_items_of_every_shape():
    module = scan.scan_module(SHAPES)
    names = [(item.kind, *item.names) for item in module.items if item.kind not in ("variable", "file")]
    assert names == [
        *[(word,) for word in ("version", "target", "address_size", "pragma")],
        *[("func", name) for name in ("vprintf", "__assertfail", "later", "nothing", "same", "twin")],
        ("alias", "twin"),
        *[("func", name) for name in ("old_style", "later")],
        *[("entry", name) for name in ("hidden", "unseen", "shapes")],
        *[("section", name) for name in (".debug_str", ".debug_info")],
    ]
    variables = [item.names for item in module.items if item.kind == "variable"]
    assert ("managed_one", "managed_two") in variables
    assert [names for names in variables if len(names) > 1] == [("managed_one", "managed_two")]
    assert [item.name for item in module.entries] == ["hidden", "unseen", "shapes"]
    assert [item.name for item in module.functions if item.kind == "func"] == ["same", "old_style", "later"]
    assert module.files == {1: "/src/of a; {shape}.cu", 2: "C:\\"}


def test_items_and_statements_are_all_of_the_text():
    module = scan.scan_module(SHAPES)
    at = 0
    for item in module.items:
        assert not module.skeleton[at : item.start].strip()
        at = item.end
    assert not module.skeleton[at:].strip()
    assert_whole_bodies(module)


def test_offsets_are_those_of_the_bytes():
    data = b"// \xe2\x82\xac\xff\n" + SHAPES
    module = scan.scan_module(data)
    (entry,) = [item for item in module.entries if item.name == "hidden"]
    assert data[entry.start : entry.end] == b".weak .entry hidden() { exit; }"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("@!%p1 bra.uni $L; @ ! p ret;", [("instruction", "bra.uni", "@!%p1"), ("instruction", "ret", "@ ! p")]),
        ("add .u32 a, b,\n 5 ;", [("instruction", "add.u32", "")]),
        ("ld.global.L1::no_allocate.v2.f32 {a,\nb}, [c];", [("instruction", "ld.global.L1::no_allocate.v2.f32", "")]),
        ("L: ret; // a; b\n/* } */", [("label", "L", ""), ("instruction", "ret", "")]),
        ("{.reg .b32 t;}", [("{", "", ""), ("directive", ".reg", ""), ("}", "", "")]),
        (".loc 1 2 3\nret;", [("directive", ".loc", ""), ("instruction", "ret", "")]),
        ('.pragma "a;}";', [("directive", ".pragma", "")]),
        ("t: .branchtargets a, b;", [("directive", ".branchtargets", "")]),
        ("p: .callprototype (.param .b32 _) _ (.param .b32 _);", [("directive", ".callprototype", "")]),
        (".shared .b32 x[2][1] = {{1},{2}}; ret;", [("directive", ".shared", ""), ("instruction", "ret", "")]),
        (
            "tcgen05.mma.cta_group::1.kind::f16 [a], b, c, d, p;",
            [("instruction", "tcgen05.mma.cta_group::1.kind::f16", "")],
        ),
    ],
)
def test_statements(body, expected):
    assert heads(body) == expected


def test_spans_hold_the_text_of_a_statement():
    module, found = statements(" @%p add.u32 a, b, c; /* ; */ L :\n\tret;\n")
    assert [module.source(s) for s in found] == ["@%p add.u32 a, b, c;", "L :", "ret;"]


@pytest.mark.parametrize(
    ("text", "where", "fact"),
    [
        (HEAD + ".entry f()\n{ ret; ", "k:4:1", "no end to '.entry'"),
        (HEAD + ".global .u32 x", "k:4:1", "no end to '.global'"),
        (HEAD + "}", "k:4:1", "unexpected '}'"),
        (HEAD + ".entry f()\n{\n\tadd.u32 a, b\n}", "k:6:2", "unexpected 'add'"),
        (HEAD + ".entry f()\n{\n  #ret;\n}", "k:6:3", "unexpected '#'"),
        (HEAD + '.file 1 "x', "k:4:9", "string without end"),
        (HEAD + "/* x", "k:4:1", "comment without end"),
        (HEAD + ".entry f()" + "{" * 65 + "}" * 65, "k:4:1", "braces nested more than 32 deep"),
    ],
)
def test_malformed_text_is_refused_with_its_place(text, where, fact):
    with pytest.raises(MalformedError) as error:
        module = scan.scan_module(text.encode(), "k")
        for function in module.functions:
            module.statements(function)
    assert error.value.where == where
    assert fact in error.value.fact


HOSTILE = {  # beginning, repeated part, end
    "specifiers": (HEAD, ".a\n", ""),
    "declarations": (HEAD, ".b y\n", ""),
    "entries": (HEAD, ".visible .entry f\n", ""),
    "pragmas": (HEAD, ".pragma\n", ""),
    "aliases": (HEAD, ".alias\n", ""),
    "sections": (HEAD, ".section .a {", ""),
    "prototypes": (HEAD, "a: .callprototype\n", ""),
    "braces": (HEAD + ".entry f()", "{", ""),
    "closed braces": (HEAD + ".entry f()", "{}}", ""),
    "quotes": (HEAD, '"', ""),
    "comments": (HEAD, "/*", ""),
    "ended comments": (HEAD, "/* */ /", ""),
    "targets": (HEAD, ".target\n\n\n", ""),
    "parentheses": (HEAD, ".a (\n", ""),
    "in parentheses": (HEAD + ".a (", ".b\n", ")"),
    "values": (HEAD + ".global .u32 a = {", "a,b,", "};"),
    "names": (HEAD + ".global .u32 a", "= 1, b", ";"),
    "labels": (BODY, "a:", "}"),
    "guards": (BODY, "@", "}"),
    "no semicolon": (BODY, "a b", "}"),
    "scopes": (BODY, "{}", "}"),
    "vectors": (BODY, "a {b}", "}"),
    "directives": (BODY, ".x ", "}"),
    "lines": (BODY, ".loc 1 1 1, function_name", "}"),
    "blanks": (BODY, "\n", "}"),
    "modifiers": (BODY, "a" + ".b" * 9, "}"),
}


@pytest.mark.full
@pytest.mark.parametrize("case", HOSTILE)
def test_time_is_in_proportion_to_size(case):
    def spent(size):
        begin, repeated, end = HOSTILE[case]
        data = (begin + repeated * (size // len(repeated)) + end).encode()
        gc.disable()  # a collection examines all objects that other tests have left
        started = time.process_time()
        try:
            module = scan.scan_module(data)
            for function in module.functions:
                module.statements(function)
        except MalformedError:
            pass
        finally:
            taken = time.process_time() - started
            gc.enable()
        return taken

    size = 40_000
    assert min(spent(8 * size), spent(8 * size)) < 24 * max(spent(size), spent(size), 0.002)


@pytest.mark.full
def test_a_module_has_so_many_items():
    text = HEAD + ".global .u8 a;\n" * (scan.MAX_ITEMS - 3)
    assert len(scan.scan_module(text.encode()).items) == scan.MAX_ITEMS
    with pytest.raises(MalformedError, match="262145:1: PTX: over 262144 functions, variables and directives"):
        scan.scan_module((text + ".global .u8 a;\n" * 1000).encode())


@pytest.mark.full
def test_35_megabytes_with_one_kernel_wanted_take_less_than_the_bound():
    from gpt.ptx.prune import prune

    body = "".join(
        f"\tld.global.v2.f32 {{%f{n}, %f{n + 1}}}, [%rd{n}+{8 * n}];\n\tfma.rn.f32 %f{n}, %f{n + 1}, %f{n + 2}, %f3;\n"
        f"\t@%p{n} bra $L_{n};\n$L_{n}:\n"
        for n in range(400)
    )
    kernel = "// .globl k{0}\n.visible .entry k{0}(.param .u64 k{0}_param_0)\n{{\n\t.reg .b32 %r<9>;\n{1}\tret;\n}}\n"
    text = HEAD + "".join(kernel.format(number, body) for number in range(35_000_000 // len(body)))
    data = text.encode()
    started = time.process_time()
    module = scan.scan_module(data)
    kept = prune(module, ["k77"])
    pruned = scan.scan_module(kept)
    found = pruned.statements(pruned.entries[0])
    assert time.process_time() - started < 1.5
    assert len(found) == 4 * 400 + 2


def test_positions_in_any_base():
    """ptxas reads such directives this way; the rest is a separate statement."""
    text = ".entry k() { .loc 0x2 010 0xa add.u32 %r1, %r1, 1; .loc 1 5 9, function_name a+4, inlined_at 0x1 3 2 ret; }"
    found = scan.scan_module(text.encode())
    statements = found.statements(found.functions[0])
    assert [statement.head for statement in statements] == [".loc", "add.u32", ".loc", "ret"]
    assert [found.loc(statements[number]) for number in (0, 2)] == [(2, 8), (1, 5)]
