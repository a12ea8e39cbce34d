"""The names in a module, for any text; the scanner finds the same ones."""

from itertools import cycle
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import MalformedError
from gpt.formats.ptxtext import find_head
from gpt.ptx.names import parse_names
from gpt.ptx.scan import scan_module
from tests.tiers import examples

SHAPES = Path(__file__).with_name("shapes.ptx").read_bytes()


@settings(max_examples=examples(300))
@given(st.lists(st.sampled_from([
    b".version 8.0\n", b".entry ", b".func ", b"(", b")", b"name", b" ", b"\n", b"//", b"/*", b"*/", b".visible ",
    b".global ", b".b32 x;", b"{", b"}", b'"', b"\\", b"\xff", b"\0", b".func", b".entry", b"#line 1 ",
]), max_size=60))  # fmt: skip
def test_any_text(parts):
    text = b"".join(parts)
    contents = parse_names(text)
    assert all(isinstance(symbol["name"], str) for symbol in contents.kernels + contents.functions)
    if b"/*" not in text:  # without block comments, the text is read in a different way
        other = parse_names(text + b"\n/**/")
        assert (other.kernels, other.functions) == (contents.kernels, contents.functions)
        assert b"#" in text or other.variables == contents.variables  # the number of variables isn't exact


def test_comments_hide_what_they_hold():
    text = b"""
        // .version 1.0
        .version 8.0 .target sm_90a
        /* .entry no() /* */ .visible .entry yes(.param .u64 p) { ret; } // .entry neither()
        .func (.param .b32 r) helper(.param .b32 x); .extern .func other();
        .entry
            third() { /* .global .b32 not; */ }
            .visible .global .align 4 .b32 variable;
        .entry fourth /* unfinished
    """
    contents = parse_names(text)
    assert [symbol["name"] for symbol in contents.kernels] == ["yes", "third", "fourth"]
    assert [symbol["name"] for symbol in contents.functions] == ["helper", "other"]
    assert contents.variables == 1
    assert parse_names(text + b"/* .entry fifth ( // .entry no") == parse_names(text + b".entry fifth (")


def test_names_are_those_of_the_scanner():
    contents, module = parse_names(SHAPES), scan_module(SHAPES)
    for kind, found in ("entry", contents.kernels), ("func", contents.functions):
        names = dict.fromkeys(item.name for item in module.items if item.kind == kind)
        assert [symbol["name"] for symbol in found] == list(names)


def assert_same(text):
    """Check that the scanner, if it accepts a module, finds the same names as the reader of names."""
    contents, head = parse_names(text), find_head(text)
    try:
        module = scan_module(text)
        version, target = module.version, module.target
    except MalformedError:
        return False
    for kind, found in ("entry", contents.kernels), ("func", contents.functions):
        assert [symbol["name"] for symbol in found] == list(
            dict.fromkeys(item.name for item in module.items if item.kind == kind)
        )
    assert head
    assert (head.version, head.target or "sm_0") == (version, f"sm_{target}")
    return True


BLANKS = st.sampled_from([
    b" ", b"\n", b"/**/", b"// c\n", b"/* .entry no */", b"// .entry no\n", b'/* " */', b'// "\n', b"// /*\n",
    b"/*//*/", b'\n# 3 "x.cu"\n', b'\n#line 3 "x.cu" 1 2\n', b'\n# 3 "/*"\n', b'\n# 3 "//"\n',
    b'\n# 3 ".entry no"\n',
])  # fmt: skip
HEAD = [b".version 8.0", b".target", b"sm_90"]
ITEMS = [  # any blank may be replaced by any other; no blank is in a string
    b".visible .entry k ( .param .u64 p ) { ret; }", b".weak .entry l {  }", b".entry  m() ;",
    b".func f() {}", b".func ( .reg .b32 r ) g () {}", b".extern .func (.param .align 4 .b8 r[4]) h(.param .b64 a) ;",
    b".func .attribute(.unified(1,2)) (.reg .b32 r) i() {}", b".global .u32 x ;",
    b'.file 1 "/a//b.cu" ', b'.file 1 "/*" ', b'.file 2 "*/" ', b'.file 3 ".entry\nno()" ',
    b'.pragma "a\n.func\nno()" ;',
    b".section .s { .b8 1 }",
]  # fmt: skip


@given(st.lists(BLANKS, max_size=3), st.lists(st.sampled_from(ITEMS), max_size=5), st.lists(BLANKS, min_size=9))
def test_the_quick_look_finds_the_names_the_scanner_finds(before, items, blanks):
    assert_same(b"".join(before) + b" ".join(HEAD + items))
    parts = [*HEAD, *b" ".join(items).split(b" ")]
    assert_same(b"".join(before) + b"".join(part + blank for part, blank in zip(parts, cycle(blanks), strict=False)))


@pytest.mark.parametrize("item", ITEMS)
def test_each_of_these_items_is_one_to_the_scanner(item):
    assert assert_same(b" ".join([*HEAD, item]))
