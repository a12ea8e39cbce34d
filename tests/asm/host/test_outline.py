"""The outline of a module with hostile declarations. tests/runtime/test_sim_declared.py, test_sim_demand.py and
test_sim_load.py test sane declarations.
"""

from __future__ import annotations

import msgpack
import pytest

from gpt.asm.host.outline import read_outline
from gpt.base.errors import MalformedError

HEAD = ".version 8.0\n.target sm_90\n.address_size 64\n"
MANY = "4611686018427387904"


def outline(text):
    found = read_outline((HEAD + text).encode(), "m")
    assert msgpack.packb(found)  # no number is larger than a record can hold
    return found


@pytest.mark.parametrize(
    "text",
    [
        f".global .u32 x[{MANY}];",
        f".global .u32 x[{MANY}][{MANY}];",
        ".global .u32 x[0-4];",
        ".global .texref x;",
        ".extern .global .u32 x[];",
    ],
)
def test_variables_of_no_size_are_left_out(text):
    assert outline(text)["variables"] == []


def test_lists_that_leave_out_more_than_there_can_be_have_no_value():
    (variable,) = outline(".global .b8 x[3][100000000] = {{1}, {2}};")["variables"]
    assert (variable["size"], "data" in variable) == (300_000_000, False)


def test_numbers_of_kernels_are_limited():
    shared = f".shared .b8 a[{1 << 40}]; .local .b8 b[{1 << 40}];"
    (kernel,) = outline(f".entry k() .maxntid {MANY}, {MANY} .maxnreg {MANY} {{ {shared} ret; }}")["kernels"]
    assert {kernel[key] for key in ("threads", "registers", "shared", "local")} == {(1 << 31) - 1}
    with pytest.raises(MalformedError, match="parameters"):
        outline(f".entry k(.param .b8 a[{MANY}]) {{ ret; }}")
