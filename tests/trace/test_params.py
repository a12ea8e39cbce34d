"""Parameters of a launch as values."""

import struct

import pytest

from gpt.base.errors import MalformedError
from gpt.ptx.params import layout
from gpt.ptx.quick import parse_params
from gpt.ptx.scan import scan_module
from gpt.trace.params import MOST_TEXT, parse_arguments, to_text

PTX = b""".version 8.0
.target sm_80
.address_size 64
.visible .entry k(.param .u64 .ptr .global .align 16 a, .param .f32 b, .param .align 8 .b8 c[12], .param .s32 d,
                  .param .u64 .ptr e, .param .f64 f, .param .u16 g[3]) { ret; }
"""
DATA = struct.pack("<Qf4x12siQdHHH", 0x7F00, 1.5, b"abc" * 4, -7, 16, 0.25, 1, 2, 3)


def described():
    module = scan_module(PTX, "k")
    params = layout(parse_params(module, module.entries[0]))
    return [{key: value for key, value in param._asdict().items() if value is not None} for param in params]


def test_types_are_those_that_ptx_declares():
    assert [(one["type"], one.get("space")) for one in described()] == [
        ("u64", "global"), ("f32", None), ("b8[12]", None), ("s32", None), ("u64", "generic"), ("f64", None),
        ("u16[3]", None),
    ]  # fmt: skip


def test_values():
    found = parse_arguments(described(), DATA)
    assert [one.value for one in found] == [0x7F00, 1.5, b"abc" * 4, -7, 16, 0.25, [1, 2, 3]]
    assert to_text(found) == (
        "u64 global 0x7f00, f32 1.5, b8[12] 0x636261636261636261636261, s32 -7, u64 generic 0x10, f64 0.25, "
        "u16[3] [1, 2, 3]"
    )


def test_untyped_arguments_are_bytes():
    old = [{"offset": 0, "size": 4}, {"offset": 4, "size": 2, "type": "x9"}, {"offset": 6, "size": 3, "type": "u16"}]
    found = parse_arguments(old, b"abcdefghi")
    assert [one.value for one in found] == [b"abcd", b"ef", b"ghi"] and str(found[0]) == "0x64636261"
    assert len(to_text([found[0]] * 100)) == MOST_TEXT


def test_incomplete_parameters():
    with pytest.raises(MalformedError):
        parse_arguments(described(), DATA[:-1])
