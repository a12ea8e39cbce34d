"""The tool that applies the checker's timing rules to ptxas's code finds faults, and knows the exceptions."""

import pytest

from gpt.base.errors import MissingError
from gpt.formats.cubin_edit import CubinEditor
from gpt.sass.derive.__main__ import find_tools
from gpt.sass.derive.kernels import compile_ptx
from gpt.sass.kernels import Kernel, read_kernel
from gpt.sass.tables import table_of
from tests import cuda
from tests.sass import hazards
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
        (("S2UR 7, w0", "S2UR 7, w1"), set()),  # unit order
        (("LDG 4 8, w0", "LDG 4 10, w1"), {(WRITE, 1)}),
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


_TWICE = (
    "LDG 6 4, w0 r1",  # reads R4
    "@2 BRA other",
    "MOV 7 6, b0",  # so it has read R4
    "STG 8 4, r2",  # reads R4, too
)


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (("other: MOV 7 6, b02", "MOV 4 255"), set()),
        (("other: MOV 7 255, b2", "MOV 4 255"), {(READ, 5)}),
        (("other: MOV 7 6, b0", "MOV 4 255"), {(READ, 5)}),
        (("other: MOV 7 255, b12", "MOV 4 255"), set()),
    ],
)
def test_paths_meet_where_a_register_is_read_by_one_of_two_instructions(last, expected):
    """Awaiting a load's result is enough for its operands, even if another instruction also reads them on one path."""
    assert {(kind, at) for kind, at in find(*_TWICE, *last) if kind == READ} == expected


GENERIC = """.version 8.0
.target sm_90
.address_size 64
.visible .entry kernel(.param .u64 to, .param .u64 out) {
    .reg .b64 %to, %out, %v; .reg .pred %p;
    ld.param.u64 %to, [to]; ld.param.u64 %out, [out];
    mov.u64 %v, 3;
again:
    atom.add.u64 %v, [%to], %v;
    st.global.u64 [%out], %v;
    setp.ne.u64 %p, %v, 0;
    @%p bra again;
    ret;
}"""


def test_a_generic_atomic_announces_its_predicate_by_its_read_barrier():
    """This one has a result, too, whose barrier ptxas awaits later."""
    try:
        kernel = read_kernel(CubinEditor(cuda.assemble(GENERIC)), "kernel", table_of("sm_90"))
    except FileNotFoundError as error:
        pytest.skip(str(error))
    atomic = kernel.code[kernel.code.find({"ATOM"})[0]]
    branch = next(one for one in kernel.code if one.index > atomic.index and one.reads.P & atomic.writes.P)
    assert {atomic.control.write_barrier, atomic.control.read_barrier} < set(range(6)) and atomic.writes.R
    assert branch.control.wait == 1 << atomic.control.read_barrier
    found = Hazards(kernel)
    found.run()
    assert not found.found


def test_ptxas_output_has_no_hazards():
    try:
        cubin = CubinEditor(compile_kernels())
    except FileNotFoundError as error:
        pytest.skip(str(error))
    for name in cubin.kernels:
        hazards = Hazards(read_kernel(cubin, name.decode(), table_of("sm_90")))
        hazards.run()
        assert not hazards.found, name


ARRIVALS = {
    "expect": "mbarrier.arrive.expect_tx.shared.b64 _, [%s], %a;",
    "arrive": "mbarrier.arrive.shared.b64 _, [%s], %a;",
    "complete": "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%s], %a;",
}
OTHERS = {  # instructions that make the next value of %a
    "LDG": "ld.global.b32 %u, [%o+16];",
    "POPC": "popc.b32 %u, %b; add.u32 %b, %b, %u;",
    "PHASECHK": "mbarrier.test_wait.parity.shared.b64 %p, [%s+8], %t; selp.b32 %u, 5, 7, %p;",
}
ARRIVING = """
.visible .entry {name}(.param .b64 out, .param .b32 n) {{
  .reg .b64 %o; .reg .b32 %a, %b, %u, %t, %s, %n; .reg .pred %p; .shared .align 8 .b8 bar{name}[32768];
  ld.param.b64 %o, [out]; ld.param.b32 %n, [n];
  mov.u32 %t, %tid.x; mad.wide.u32 %o, %t, 256, %o; mov.u32 %s, bar{name}; mad.lo.u32 %s, %t, 64, %s;
  ld.global.b32 %a, [%o+128]; ld.global.b32 %b, [%o+132];
loop:
  {body}
  sub.u32 %n, %n, 1; setp.ne.u32 %p, %n, 0;
  @%p bra loop;
  add.u32 %a, %a, %b;
  st.global.b32 [%o], %a;
  ret;
}}
"""


def test_arrivals_read_their_operands_in_order(monkeypatch):
    """ptxas lets one read barrier of a SYNCS.ARRIVE stand for the arrivals before it. It never relies on an order
    between these and other instructions: without the first rule, its code breaks ours; with it, it doesn't.
    """
    names = [(f"{one}_{other}", one, other) for one in ARRIVALS for other in OTHERS]
    body = "{first} {second} mad.lo.u32 %a, %a, %t, %u; "
    text = "".join(
        ARRIVING.format(name=name, body=6 * body.format(first=ARRIVALS[one], second=OTHERS[other]))
        for name, one, other in names
    )
    try:
        cubin = CubinEditor(compile_ptx(find_tools("sm_90")[0], "sm_90", text))
    except MissingError as error:
        pytest.skip(str(error))
    found = {}
    for rule, number in (("with", hazards.ARRIVE), ("without", None)):
        monkeypatch.setattr(hazards, "ARRIVE", number)
        for name, _, _ in names:
            one = Hazards(read_kernel(cubin, name, table_of("sm_90")))
            one.run()
            found[name, rule] = {kind for kind, _ in one.found}
    assert not any(found[name, "with"] for name, _, _ in names)
    assert all(found[f"{one}_{other}", "without"] == {READ} for one in ARRIVALS for other in ("LDG", "POPC"))
