"""Helpers bound to instructions, one line of PTX each."""

import pytest

from gpt.probe.operands import Descriptor, Partial, bind
from gpt.ptx.parse import parse_statements
from gpt.ptx.tree import Name, Number


def bound(text):
    (node,) = parse_statements(text)
    return bind(node)


@pytest.mark.parametrize(
    ("text", "out", "ins"),
    [
        ("add.u32 %r1, %r2, 5;", "%r1", ["%r2", "5"]),
        ("ld.global.v2.u32 {%r1, %r2}, [%rd1+8];", "{%r1, %r2}", ["[%rd1+8]"]),
        ("st.global.u32 [%rd1], %r1;", None, ["%r1"]),
        ("red.global.add.u32 [%rd1], %r1;", None, ["%r1"]),
        ("atom.global.cas.b32 %r1, [%rd1], %r2, %r3;", "%r1", ["[%rd1]", "%r2", "%r3"]),
        ("cp.async.cg.shared.global [%r1], [%rd1], 16;", None, ["[%rd1]", "16"]),
        ("bar.sync 1, 64;", None, ["1", "64"]),
        ("setp.lt.s32 %p1|%p2, %r1, %r2;", "%p1", ["%r1", "%r2"]),
        ("atom.global.add.u32 _, [%rd1], 1;", None, ["[%rd1]", "1"]),
        ("bra L;", None, []),
        ("call.uni (%r1), f, (%r2);", None, []),
        ("brx.idx %r1, targets;", None, ["%r1"]),
        ("ld.param.u64 %rd1, [p];", "%rd1", []),
        ("st.param::func.b32 [x+4], %r1;", None, ["%r1"]),
        ("bar.red.popc.u32 %r1, 0, %p1;", "%r1", ["0", "%p1"]),
        ("barrier.cta.red.and.pred %p1, 0, 32, !%p2;", "%p1", ["0", "32", "!%p2"]),
        ("barrier.cta.sync 1;", None, ["1"]),
        ("clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;", "%p1", ["%q1"]),
        ("clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];",
         None, ["[%r2]"]),
        ("stackrestore.u64 %rd1;", None, ["%rd1"]),
        ("ret;", None, []),
        ("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%a, %b}, {%c, %d}, {%e}, %f;",
         "{%a, %b}", ["{%c, %d}", "%e", "%f"]),
        ("@%p1 ld.global.b32 { %r1 }, [ %rd1 + 0 ];", "%r1", ["[%rd1+0]"]),  # as Triton writes it
        ("st.global.b32 [%rd1], {%r1};", None, ["%r1"]),
    ],
)  # fmt: skip
def test_results_and_operands(text, out, ins):
    found = bound(text)
    assert (str(found.out) if found.out else None) == out
    assert [str(operand) for operand in found.ins] == ins


@pytest.mark.parametrize(
    ("text", "address", "space", "size"),
    [
        ("ld.global.u32 %r1, [%rd1];", "[%rd1]", "global", 4),
        ("ld.volatile.global.v4.u32 {%a, %b, %c, %d}, [%rd1+-16];", "[%rd1+-16]", "global", 16),
        ("ld.u8 %r1, [%rd1];", "[%rd1]", "generic", 1),
        ("ld.global.nc.L1::no_allocate.v8.f32 {%a, %b, %c, %d, %e, %f, %g, %h}, [%rd1];", "[%rd1]", "global", 32),
        ("st.shared::cta.v2.b64 [tile+8], {%a, %b};", "[tile+8]", "shared::cta", 16),
        ("ld.global.b128 %q, [%rd1];", "[%rd1]", "global", 16),
        ("atom.global.add.noftz.f16x2 %r, [%rd1], %s;", "[%rd1]", "global", 4),
        ("atom.global.cas.b128 %q, [%rd1], %s, %t;", "[%rd1]", "global", 16),
        ("red.global.v4.f32.add [%rd1], {%a, %b, %c, %d};", "[%rd1]", "global", 16),
        ("cp.async.ca.shared::cta.global.L2::128B [%r1], [%rd2], 8;", "[%rd2]", "global", 8),
        ("cp.async.cg.shared.global [%r1], [%rd2], 16, 4;", "[%rd2]", "global", Partial(16, Number("4"))),
        ("cp.async.cg.shared.global [%r1], [%rd2], 16, %r3;", "[%rd2]", "global", Partial(16, Name("%r3"))),
        ("cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd2], 16, %r3, %rd4;", "[%rd2]", "global",
         Partial(16, Name("%r3"))),
        ("cp.async.cg.shared.global.L2::cache_hint [%r1], [%rd2], 16, %rd4;", "[%rd2]", "global", 16),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%rd2], %r3, [%r4];",
         "[%rd2]", "global", "%r3"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd2], [%r1], 256;", "[%rd2]", "global", 256),
        ("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r], [%t, {%x, %y}], [%m];",
         "[%t, {%x, %y}]", "global", None),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r1], %r2;", "[%rd1]", "global", "%r2"),
        ("cp.async.bulk.prefetch.L2.global [%rd1], 4096;", "[%rd1]", "global", 4096),
        ("multimem.cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r1], %r2;", "[%rd1]", "global", "%r2"),
        ("st.bulk.weak.shared::cta [%rd1], 4096, 0;", "[%rd1]", "shared::cta", 4096),
        ("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.u32 [%r1], {%r2, %r3}, [%r4];",
         "[%r1]", "shared::cluster", 8),
        ("mbarrier.arrive.expect_tx.shared.b64 _, [%r1], 8192;", "[%r1]", "shared", 8192),
        ("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], %r2;", "[%r1]", "shared::cta", "%r2"),
        ("mbarrier.arrive.shared.b64 %rd1, [%r1];", "[%r1]", "shared", None),
        ("wmma.load.a.sync.aligned.row.m8n8k32.global.s4 {%a}, [%rd1];", "[%rd1]", "global", 4),
        ("wmma.load.b.sync.aligned.col.m8n8k128.shared.b1 {%a}, [%rd1];", "[%rd1]", "shared", 4),
        ("cp.async.commit_group;", None, None, None),
        ("cp.async.bulk.wait_group.read 3;", None, None, None),
        ("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r2], 64, [%r3];",
         "[%r2]", "shared", 64),
        ("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%a, %b, %c, %d}, [%r1];", "[%r1]", "shared", 16),
        ("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%a}, [%r1];", "[%r1]", "shared", 4),
        ("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r1], {%a, %b};", "[%r1]", "shared", 8),
        ("wmma.load.a.sync.aligned.row.m16n16k16.global.f16 {%a}, [%rd1], %r1;", "[%rd1]", "global", 16),
        ("wmma.store.d.sync.aligned.row.m16n16k16.global.f32 [%rd1], {%a}, %r1;", "[%rd1]", "global", 32),
        ("prefetch.global.L2 [%rd1];", "[%rd1]", "global", None),
        ("bar.sync 0;", None, None, None),
        ("add.u32 %r1, %r2, %r3;", None, None, None),
    ],
)  # fmt: skip
def test_memory(text, address, space, size):
    found = bound(text)
    assert (str(found.address) if found.address else None) == address
    assert found.space == space
    assert (str(found.bytes) if isinstance(size, str) else found.bytes) == size


@pytest.mark.parametrize(
    ("text", "flops"),
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%a}, {%b}, {%c}, {%d};", 2 * 16 * 8 * 16 // 32),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%a}, {%b}, {%c}, {%d};", 16),
        ("mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32 {%a}, {%b}, {%c}, {%d};", 4 * 16),  # four in a warp
        ("wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%a}, {%b}, {%c}, {%d};", 2 * 16**3 // 32),
        (
            "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {%a}, %da, %db, 1, 1, 1, 0, 1;",
            2 * 64 * 128 * 16 // 128,
        ),
        ("fma.rn.f32 %f1, %f2, %f3, %f4;", 2),
        ("fma.rn.f16x2 %r1, %r2, %r3, %r4;", 4),
        ("fma.rn.f32x2 %rd1, %rd2, %rd3, %rd4;", 4),
        ("add.f64 %fd1, %fd2, %fd3;", 1),
        ("add.u32 %r1, %r2, %r3;", None),
        ("wgmma.fence.sync.aligned;", None),
        ("tcgen05.mma.cta_group::1.kind::f16;", None),
        ("tcgen05.mma.cta_group::1.kind::f16 %r1;", None),
        ("ld.global.f32 %f1, [%rd1];", None),
    ],
)
def test_arithmetic(text, flops):
    assert bound(text).flops == flops


@pytest.mark.parametrize(
    ("text", "register", "k"),
    [
        ("tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r2, %p1;", "%r2", 16),
        ("tcgen05.mma.cta_group::1.kind::tf32 [%r1], [%r3], %rd2, %r2, %p1;", "%r2", 8),
        ("tcgen05.mma.cta_group::2.kind::f8f6f4 [%r1], %rd1, %rd2, %r2, {%a}, %p1;", "%r2", 32),
        ("tcgen05.mma.cta_group::1.kind::mxf4.block_scale [%r1], %rd1, %rd2, %r2, [%r3], [%r4], %p1;", "%r2", 64),
        (
            "tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r1], [%r5], %rd2, %r2, [%r3], [%r4], %p1;",
            "%r2",
            32,
        ),
        ("tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], %rd1, %rd2, [%r3], %r2, %p1;", "%r2", 32),
        ("tcgen05.mma.sp.cta_group::1.kind::i8 [%r1], [%r5], %rd2, [%r3], %r2, %p1;", "%r2", 64),
    ],
)
def test_descriptor_determines_mma_operation(text, register, k):
    found = bound(text).flops
    assert isinstance(found, Descriptor)
    assert (str(found.register), found.k) == (register, k)


def test_number_in_other_base():
    assert bound("cp.async.cg.shared.global [%r1], [%rd1], 0x10;").bytes == 16


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3];", 64),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r3];", 32),
        ("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r3}, {%r4}, {%r5};", 64),
        ("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d1, %d2}, {%d3}, {%d4}, {%d5};", 128),
        ("cvt.rn.satfinite.e4m3x2.f32 %h1, %f1, %f2;", 16),
        ("add.rn.f32x2 %rd1, %rd2, %rd3;", 64),
        ("mbarrier.try_wait.parity.shared.b64 %p1, [%r1], %r2;", 1),
        ("mbarrier.test_wait.shared::cta.b64 %p1, [%r1], %rd1;", 1),
        ("mbarrier.arrive.shared.b64 %rd1, [%r1];", 64),
    ],
)
def test_how_wide_a_result_is(text, bits):
    assert bound(text).width("OUT") == bits
