"""Positions: what they mean in a function."""

import pytest

from gpt.base.errors import MalformedError
from gpt.probe.model import Position
from gpt.probe.positions import matches, parse_positions
from gpt.probe.ptx.function import PtxFunction
from gpt.probe.ptx.template import Shapes
from gpt.ptx import scan

PROGRAM = """.version 8.0
.target sm_90
.address_size 64
.file 1 "/home/user/src/matmul.cu"
.file 2 "/usr/include/helper.h"
.func (.param .b32 r) dot_product(.param .b32 x)
{
    .reg .pred %p;
    @%p exit;
    ret;
}
.entry kernel(.param .u64 p)
{
    .reg .pred %p;
    .reg .b32 %r<9>;
    .loc 1 10 3
    mov.u32 %r1, %tid.x;
    add.u32 %r1, %r1, 1;
    .loc 2 42 1, function_name L0, inlined_at 1 10 3
    mov.u32 %r2, %r1;
$L_head:
    .loc 1 12 1
    @%p ret;
    .loc 1 10 9
    ld.global.u32 %r3, [%r1];
    { ld.volatile.global.v4.u32 {%r1, %r2, %r3, %r4}, [%r1]; }
    ld.u32 %r4, [%r1];
    st.shared::cluster.u32 [%r1], %r2;
    @!%p exit;
    bra $L_head;
$L_tail:
    add.u32 %r1, %r1, 1;
}
"""


def sites(text, name="kernel"):
    module = scan.scan_module(PROGRAM.encode())
    function = PtxFunction(module, module.find(name), Shapes())
    statements, found = function.statements, function.find_sites(parse_positions(text))
    return [(site.kind, *(statements[n].head if n < len(statements) else None for n in site[2:])) for site in found]


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ("kernel", [Position("kernel")]),
        ("ld.global:st.global", [Position("opcode", ("ld", "global")), Position("opcode", ("st", "global"))]),
        ("func:dot*:kernel", [Position("func", ("dot*",)), Position("kernel")]),
        ("line:a.cu:12:label:$L*", [Position("line", ("a.cu", "12")), Position("label", ("$L*",))]),
        ("st.shared::cluster:bra", [Position("opcode", ("st", "shared::cluster")), Position("opcode", ("bra",))]),
        (" bra : ret ", [Position("opcode", ("bra",)), Position("opcode", ("ret",))]),
        ("bra:bra", [Position("opcode", ("bra",))]),
    ],
)
def test_positions_are_read(text, positions):
    assert list(parse_positions(text)) == positions
    assert parse_positions(":".join(map(str, positions))) == tuple(positions)


@pytest.mark.parametrize(
    "text", ["", ":", "func", "func:", "line:a.cu", "line:a.cu:x", "ld.", "ld..u32", "a b", "\0", "ld:::st", "l\u00e9"]
)
def test_invalid_positions(text):
    with pytest.raises(MalformedError):
        parse_positions(text)


@pytest.mark.parametrize(
    ("position", "head", "expected"),
    [
        ("ld.global", "ld.global.u32", True),
        ("ld.global", "ld.volatile.global.v4.u32", True),
        ("ld.v4.global", "ld.volatile.global.v4.u32", True),
        ("ld.global", "ld.shared.u32", False),
        ("ld.global", "ld.u32", False),
        ("ld", "ld.u32", False),
        ("ld", "ld.global.u32", True),
        ("ld.generic", "ld.u32", True),
        ("ld.generic", "ld.volatile.v2.u32", True),
        ("ld.generic.v2", "ld.u32", False),
        ("ld.generic", "ld.global.u32", False),
        ("atom", "atom.global.add.u32", True),
        ("add", "atom.global.add.u32", False),
        ("st.shared", "st.shared::cta.u32", True),
        ("st.shared::cluster", "st.shared::cta.u32", False),
        ("mma.sync.aligned", "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32", True),
        ("mma.sync.aligned", "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", True),
        ("mma", "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", False),
        ("wgmma.mma_async", "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", True),
        ("wgmma.mma*", "wgmma.fence.sync.aligned", False),
        ("cp.async.cg", "cp.async.cg.shared.global", True),
        ("cp.async", "cp.async.ca.shared::cta.global.L2::128B", True),
        ("cp.async", "cp.async.commit_group", False),
        ("cp.async", "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", False),
        ("cp.async.bulk", "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes", True),
        ("cp.async.wait_all", "cp.async.wait_all", True),
        ("wmma.load.global", "wmma.load.a.sync.aligned.row.m16n16k16.global.f16", True),
        ("wmma.load.global", "wmma.load.a.sync.aligned.row.m16n16k16.f16", False),
        ("wmma.load.generic", "wmma.load.a.sync.aligned.row.m16n16k16.f16", True),
        ("wmma.load.generic", "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16", False),
        ("wmma.load", "wmma.load.a.sync.aligned.row.m16n16k16.f16", True),
        ("wmma.generic", "wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32", False),
        ("*", "ret", True),
        ("bar*", "barrier.sync", True),
        ("bar.sync", "bar.cta.sync", True),
        ("bar.sync", "bar.warp.sync", False),
        ("bar.warp", "bar.warp.sync", True),
        ("fma.rn.f*", "fma.rn.f32", True),
    ],
)
def test_opcodes(position, head, expected):
    (parsed,) = parse_positions(position)
    assert matches(parsed, head) == expected


def test_a_kernel_begins_once_and_ends_wherever_it_can():
    assert sites("kernel") == [
        ("entry", ".reg", ".reg"),
        ("exit", "ret", "ret"),
        ("exit", "exit", "exit"),
        ("end", None, None),
    ]
    assert sites("kernel", "dot_product") == [("exit", "exit", "exit")]
    assert sites("func:dot*", "dot_product") == [
        ("entry", ".reg", ".reg"),
        ("exit", "exit", "exit"),
        ("exit", "ret", "ret"),
    ]
    assert sites("func:dot*") == []


def test_opcode_sites_keep_to_their_function_and_scopes():
    assert sites("ld.global:ld.generic") == [
        ("instruction", "ld.global.u32", "ld.global.u32"),
        ("instruction", "ld.volatile.global.v4.u32", "ld.volatile.global.v4.u32"),
        ("instruction", "ld.u32", "ld.u32"),
    ]


def test_labels():
    assert sites("label:$L_h*") == [("label", "$L_head", "$L_head")]
    assert len(sites("label:*")) == 2


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("line:matmul.cu:10", [("line", "mov.u32", "add.u32"), ("line", "ld.global.u32", "ld.global.u32")]),
        ("line:src/matmul.cu:12", [("line", "ret", "ret")]),
        ("line:*.h:42", [("line", "mov.u32", "mov.u32")]),
        ("line:other.cu:10", []),
        ("line:matmul.cu:11", []),
    ],
)
def test_lines(text, expected):
    assert sites(text) == expected
