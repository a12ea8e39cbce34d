"""The names of a module, whatever its text, and that they are those of the scanner."""

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.ptx.names import parse_names
from gpt.ptx.scan import scan_module

SHAPES = Path(__file__).with_name("shapes.ptx").read_bytes()


@settings(deadline=None, max_examples=300)
@given(st.lists(st.sampled_from([
    b".version 8.0\n", b".entry ", b".func ", b"(", b")", b"name", b" ", b"\n", b"//", b"/*", b"*/", b".visible ",
    b".global ", b".b32 x;", b"{", b"}", b'"', b"\\", b"\xff", b"\0",
]), max_size=60))  # fmt: skip
def test_any_text(parts):
    text = b"".join(parts)
    contents = parse_names(text)
    assert all(isinstance(symbol["name"], str) for symbol in contents.kernels + contents.functions)
    if b"/*" not in text:  # read another way than text that has such comments
        assert parse_names(text + b"\n/**/") == contents


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
