"""The tool that applies the checker's timing rules to ptxas's code finds faults, and knows the exceptions."""

import pytest

from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.kernels import Kernel, read_kernel
from gpt.sass.tables import table_of
from tests.sass.assembly import program
from tests.sass.corpus import compile_kernels
from tests.sass.hazards import Hazards


def find(*lines):
    """Return what's found in a kernel, and the indices of the first instructions where it is."""
    hazards = Hazards(Kernel("k", program(*lines, "EXIT"), 32, {}))
    hazards.run()
    return {(kind, hazards.where[where]) for kind, _ in hazards.found for where in hazards.where if where[0] == kind}


READ, ARRIVE, WRITE = "writes what's still being read", "reads what hasn't arrived", "writes what will still be written"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("LDG 4 8, w0", "MOV 5 4, b0"), set()),
        (("LDG 4 8, w0", "MOV 5 4, b1"), {(ARRIVE, 1)}),
        (("LDG 4 8, w0", "MOV 4 6"), {(WRITE, 1)}),
        (("STG 8 4, r0", "MOV 4 6"), {(READ, 1)}),
        (("STG 8 4", "LDG 6 10, w0", "MOV 4 7, b0"), set()),  # queue reads
        (("STG 8 4, r0", "LDG 4 10, w1"), set()),  # queue writes
        (("@3 LDG 4 8, w0", "@!3 MOV 5 4"), set()),  # other lanes
        (("@3 LDG 4 8, w0", "@2 MOV 5 4"), {(ARRIVE, 1)}),
    ],
)
def test_rules(lines, expected):
    assert find(*lines) == expected


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (("@3 STG 8 4, r0", "@!3 STG 10 4, r1", "@3 MOV 4 6, b0"), set()),
        (("@!3 STG 8 4, r0", "@3 STG 10 4, r1", "@3 MOV 4 6, b0"), {(READ, 2)}),
        (("@!3 STG 8 4, r0", "@3 STG 10 4, r1", "@3 MOV 4 6, b1"), set()),
        (("@3 STG 8 4, r0", "@!3 STG 10 4, r1", "@2 MOV 4 6, b0"), {(READ, 2)}),
        (("@3 STG 8 4, r0", "@!3 STG 10 4, r0", "@3 MOV 4 6"), {(READ, 2)}),  # one barrier for both
        (("@3 STG 8 4", "@!3 STG 10 4, r1", "@3 MOV 4 6"), {(READ, 2)}),  # the second barrier is for both
        (("@!3 STG 8 4", "@!3 STG 10 4, r1", "@3 MOV 4 6"), set()),
        (("@2 BRA other", "@!3 STG 8 4, r1", "other: @3 MOV 4 6"), set()),
        (("@2 BRA other", "@!3 STG 8 4, r1", "BRA end", "other: STG 8 4, r1", "end: @3 MOV 4 6"), {(READ, 4)}),
    ],
)
def test_two_instructions_under_opposite_guards_read_a_register(lines, expected):
    """Each of the two instructions has its own lanes and its own barrier; a lane may overwrite the register once its
    barrier was awaited.
    """
    assert find(*lines) == expected


def test_nothing_is_wrong_with_what_ptxas_compiles():
    try:
        cubin = CubinEditor(compile_kernels())
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for name in cubin.kernels:
        hazards = Hazards(read_kernel(cubin, name.decode(), table_of("sm_90")))
        hazards.run()
        assert not hazards.found, name
