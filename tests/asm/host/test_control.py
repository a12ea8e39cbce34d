"""Branches, calls, and operations that several threads do together, here run by one thread (thread.c)."""

from __future__ import annotations

import struct

import pytest

from gpt.asm.backend import Faults, Options
from gpt.asm.host.backend import Host, HostTarget
from tests.asm.host.thread import HEAD, Thread, kernel
from tests.asm.modules import RECURSIVE

TWICE = """
.func (.reg .u32 z) twice(.reg .u32 x) { .reg .u32 %q; shl.b32 %q, x, 1; mov.u32 z, %q; ret; }
.func leaves(.param .b64 a) { .reg .b64 %a; ld.param.b64 %a, [a]; st.global.u32 [%a], 99; exit; }
.global .align 8 .u64 table[2] = {depth, twice};
.const .align 4 .u32 fives[3] = {5, 55};
.const .align 8 .u64 place = generic(fives)+4;
"""
CALLS = """
    .shared .align 8 .b8 own[64];
    .local .align 8 .b8 frame[32];
    mov.u32 %r1, 6;
    { .param .b32 a; .param .b32 back;
      st.param.b32 [a], %r1; call.uni (back), depth, (a); ld.param.b32 %r2, [back]; }
    st.global.u32 [%p], %r2;                                            // 720
    { .param .b32 a; .param .b32 back; st.param.b32 [a], 5; ld.global.u64 %d1, [table];
      like: .callprototype (.param .b32 _) _ (.param .b32 _);
      call (back), %d1, (a), like; ld.param.b32 %r2, [back]; }
    st.global.u32 [%p+4], %r2;                                          // 120
    call (%r3), twice, (%r2);
    st.global.u32 [%p+8], %r3;                                          // 240
    targets: .branchtargets A, B, C;
    mov.u32 %r4, 1;
    brx.idx %r4, targets;
A:  mov.u32 %r3, 1;
B:  mov.u32 %r3, 7; bra D;
C:  mov.u32 %r3, 9;
D:  st.global.u32 [%p+12], %r3;                                         // 7
    { .reg .b32 %r3; mov.u32 %r3, 8; A: st.global.u32 [%p+16], %r3; }   // 8
    st.global.u32 [%p+20], %r3;                                         // 7
    ld.const.u32 %r5, [fives+4]; st.global.u32 [%p+24], %r5;            // 55
    mov.u64 %d2, own; st.shared.v2.u32 [%d2+8], {3, 4}; ld.shared.u32 %r5, [own+12];
    st.global.u32 [%p+28], %r5;                                         // 4
    mov.u64 %d2, frame; add.u64 %d2, %d2, 8; st.local.u16 [%d2], 0xfff6; cvta.local.u64 %d3, %d2; ld.s16 %r5, [%d3];
    st.global.u32 [%p+32], %r5;                                         // -10
    cvta.shared.u64 %d4, own; isspacep.shared %p1, %d4; isspacep.local %p2, %d3; isspacep.global %p3, %p;
    isspacep.shared %p4, %d3; selp.u32 %r5, 1, 0, %p1; @%p2 add.u32 %r5, %r5, 2; @%p3 add.u32 %r5, %r5, 4;
    @%p4 add.u32 %r5, %r5, 8; st.global.u32 [%p+36], %r5;               // 7
    stacksave.u64 %d5; mov.u32 %r6, 0;
MORE: stackrestore.u64 %d5; alloca.u64 %d6, 4000, 32; st.local.u32 [%d6+3996], %r6; add.u32 %r6, %r6, 1;
    setp.lt.u32 %p1, %r6, 500; @%p1 bra MORE;
    ld.local.u32 %r5, [%d6+3996]; st.global.u32 [%p+40], %r5;           // 499
    mov.b64 {%r5, %r6}, 0x500000006; mov.b64 %d7, {%r6, %r5}; mov.b64 {_, %r5}, %d7;
    st.global.u32 [%p+44], %r5;                                         // 6
    shfl.sync.idx.b32 %r5|%p1, %r6, 5, 31, 0x20; vote.sync.ballot.b32 %r6, %p1, 0x20; match.any.sync.b32 %r7, %r5, 0x20;
    redux.sync.add.u32 %r8, %r5, 0x20; elect.sync %r9|%p2, 0x20; activemask.b32 %r10;
    st.global.v4.u32 [%p+48], {%r6, %r7, %r8, %r9};                    // 32 (lane 5), 32, 5, 5
    bar.red.popc.u32 %r5, 0, %p2; barrier.cta.sync.aligned 1, 64; bar.warp.sync -1;
    st.global.u32 [%p+64], %r5;                                         // 1
    mov.u32 %r5, %tid.y; mov.u32 %r6, %lanemask_lt; mad.lo.u32 %r5, %r5, 1000, %r6;
    st.global.u32 [%p+68], %r5;                                         // 2031
    .reg .v4 .b32 %v; mov.b32 %v.x, 7; ld.global.v4.b32 %v, [%p+48]; st.global.v2.b32 [%p+80], {%v.w, %v.x}; // 5, 32
    mov.u64 %d8, %clock64; mov.u32 %r5, 0; mov.u64 %d9, %clock64; sub.u64 %d9, %d9, %d8;
    st.global.u32 [%p+72], %d9;                                         // 2
    { .param .b64 a; add.u64 %d1, %p, 76; st.param.b64 [a], %d1; call leaves, (a); }
    st.global.u32 [%p+76], 1;                                           // 99: not reached
"""
WANTED = (720, 120, 240, 7, 8, 7, 55, 4, -10, 7, 499, 6, 32, 32, 5, 5, 1, 2031, 2, 99, 5, 32)

ATOMICS = """
    st.global.u32 [%p], 10; st.global.u32 [%p+4], 0x3f800000; st.global.u64 [%p+8], 0;
    atom.global.add.u32 %r1, [%p], 5; atom.global.inc.u32 %r2, [%p], 15; atom.global.dec.u32 %r3, [%p], 7;
    atom.cas.b32 %r4, [%p], 7, 100; atom.max.s32 %r5, [%p], -1; red.relaxed.gpu.global.xor.b32 [%p], 1;
    st.global.v4.u32 [%p+16], {%r1, %r2, %r3, %r4}; st.global.u32 [%p+32], %r5;
    atom.global.add.f32 %f1, [%p+4], 0f00000001;
    atom.add.release.gpu.u64 %d1, [%p+8], 7; atom.global.exch.b64 %d2, [%p+8], 9; st.global.u64 [%p+40], %d2;
    mov.b128 %q1, {%d1, %d2}; atom.global.exch.b128 %q2, [%p+48], %q1; atom.global.cas.b128 %q3, [%p+48], %q1, %q2;
    atom.global.cas.b16 %h1, [%p+36], 0, 77;
    { .shared .align 8 .b64 bar; mbarrier.init.shared.b64 [bar], 2; mbarrier.arrive.shared.b64 %d1, [bar];
      mbarrier.test_wait.shared.b64 %p1, [bar], %d1; mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;
      .shared .align 16 .b8 tile[32]; mbarrier.test_wait.parity.shared.b64 %p2, [bar], 0;
      cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [%p], 16, [bar];
      mbarrier.try_wait.parity.shared::cta.b64 %p3, [bar], 0; mbarrier.test_wait.shared.b64 %p4, [bar], %d1;
      selp.u32 %r6, 1, 0, %p1; @%p2 add.u32 %r6, %r6, 2; @%p3 add.u32 %r6, %r6, 4; @%p4 add.u32 %r6, %r6, 8;
      ld.shared.u32 %r7, [tile]; cp.async.ca.shared.global [tile+16], [%p], 4, 2; cp.async.wait_all;
      ld.shared.u32 %r8, [tile+16]; st.global.v2.u32 [%p+64], {%r6, %r7}; st.global.u32 [%p+72], %r8; }
"""


REMOTE = """
    .shared .align 8 .b64 bar; .shared .align 16 .b8 tile[64]; mov.u32 %r1, bar; mov.u32 %r2, tile;
    mbarrier.init.shared.b64 [bar], 1; mbarrier.arrive.expect_tx.shared.b64 %d1, [bar], 68; mov.u64 %d2, 3;
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r2], {7, 8}, [%r1];
    st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.u32 [%r2+16], {1, 2, 3, 4}, [%r1];
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u64 [%r2], %d2, [%r1];
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.s32 [%r2+4], 20, [%r1];
    mbarrier.test_wait.shared.b64 %p1, [bar], %d1; fence.proxy.async.shared::cta;
    st.global.v4.u32 [%p], {1, 2, 3, 4};
    cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.xor.b32 [%r2], [%r2+16], 16, [%r1];
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r2+32], [%p], 16, [%r1], 3;
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%r2], [%p], 16, [%r1], 2;
    mbarrier.test_wait.shared.b64 %p2, [bar], %d1; selp.u32 %r3, 1, 0, %p1; @%p2 add.u32 %r3, %r3, 2;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%p], [%r2+16], 16;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u64 [%p+16], [%r2], 16;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; ld.shared.v2.u32 {%r4, %r5}, [tile+32];
    fence.acquire.sync_restrict::shared::cluster.cluster; st.global.v4.u32 [%p+32], {%r3, %r4, %r5, 0};
    mov.f32 %f1, 0fc0000000; redux.sync.max.abs.f32 %f2, %f1, 0x20; redux.sync.min.NaN.f32 %f3, 0f7fc00001, 0x20;
    set.lt.f16.s32 %h1, -1, 0; set.ge.and.bf16.u64 %h2, 5, %d2, %p2; st.global.v2.f32 [%p+48], {%f2, %f3};
    st.global.v2.b16 [%p+56], {%h1, %h2}; mov.u32 %r6, %pm3; mov.u64 %d3, %current_graph_exec;
"""


@pytest.fixture(scope="module")
def thread(tmp_path_factory):
    return Thread(tmp_path_factory.mktemp("thread"))


def test_calls_and_branches(thread):
    found = thread.run(kernel(CALLS, RECURSIVE + TWICE), bytes(4 * len(WANTED)))
    assert struct.unpack(f"<{len(WANTED)}i", found) == WANTED


def test_generic_stores_to_local_memory_are_visible_by_name(thread):
    body = """.local .align 16 .b8 own[32]; mov.u64 %d1, own; st.local.u32 [%d1], 5; cvta.local.u64 %d2, %d1;
    ld.u32 %r1, [%d2]; add.u64 %d1, %d1, 8; st.local.v2.u32 [%d1+8], {6, 7}; ld.local.u32 %r2, [own+20];
    st.u32 [%d2+24], 8; ld.local.u32 %r3, [own+24]; alloca.u64 %d3, 64; st.local.u32 [%d3+60], 9;
    cvta.local.u64 %d4, %d3; ld.u32 %r4, [%d4+60]; st.global.v4.u32 [%p], {%r1, %r2, %r3, %r4};"""
    assert struct.unpack("<4I", thread.run(kernel(body), bytes(16))) == (5, 7, 8, 9)


def test_an_alias_is_the_function(thread):
    module = """.func (.reg .u32 z) twice(.reg .u32 x) { shl.b32 z, x, 1; ret; }
    .visible .func (.reg .u32 z) other(.reg .u32 x); .alias other, twice; .global .u64 place = other;"""
    body = """call (%r1), other, (4); ld.global.u64 %d1, [place];
    like: .callprototype (.reg .u32 _) _ (.reg .u32 _);
    call (%r2), %d1, (5), like; st.global.v2.u32 [%p], {%r1, %r2};"""
    assert struct.unpack("<2I", thread.run(kernel(body, module), bytes(8))) == (8, 10)


def test_names_and_vectors(thread):
    """A function returns its own variable, not a variable of that name in an inner scope. Vectors are used in parts or
    as a whole.
    """
    module = """.func (.reg .u32 z) %own$(.reg .u32 x) { mov.u32 z, x; { .reg .u32 z; mov.u32 z, 77; } }"""
    body = """.reg .v2 .b32 %v; .reg .v4 .u32 %w; call (%r1), %own$, (4); mov.v2.b32 %v, {%r1, 6};
    st.global.b32 [%p], %v.x; st.global.v2.b32 [%p+8], %v; mov.v4.u32 %w, %tid; st.global.v2.u32 [%p+16], {%w.y, %w.w};
    mov.b64 %d1, %v; st.global.u64 [%p+24], %d1; mad.rn.f32 %f1, 2.0, 3.0, 1.0; st.global.f32 [%p+4], %f1;"""
    found = struct.unpack("<If6I", thread.run(kernel(body, module), bytes(32)))
    assert found == (4, 7.0, 4, 6, 2, 0, 4, 6)


def test_addresses_of_elements(thread):
    body = """.local .align 4 .b32 cells[4]; mov.u64 %d1, cells; mov.u64 %d2, cells[0]; sub.u64 %d1, %d2, %d1;
    st.global.u64 [%p], %d1;"""
    assert thread.run(kernel(body), bytes(range(8))) == bytes(8)


def test_constants_have_64_bits_and_the_fourth_component_is_0(thread):
    """A .b128 constant isn't sign-extended and %cluster_nctaid.w isn't 1, as in ptxas's code."""
    body = """
        mov.b128 %q1, -1; st.global.b128 [%p], %q1; st.global.b128 [%p+16], 41; mov.b128 %q1, 1+2;
        atom.global.exch.b128 %q2, [%p+16], 5; st.global.b128 [%p+32], %q1; st.global.b128 [%p+48], %q2;
        mov.u32 %r1, %clusterid.w; st.global.u32 [%p+64], %r1; mov.u32 %r1, %nclusterid.w; st.global.u32 [%p+68], %r1;
        mov.u32 %r1, %cluster_nctaid.w; st.global.u32 [%p+72], %r1; mov.u32 %r1, %cluster_nctaid.z;
        st.global.u32 [%p+76], %r1;
    """
    found = struct.unpack("<8Q4I", thread.run(kernel(body), b"\xff" * 80))
    assert found == ((1 << 64) - 1, 0, 5, 0, 3, 0, 41, 0, 0, 0, 0, 1)


def test_atomics_and_asynchronous_copies(thread):
    found = thread.run(kernel(ATOMICS), bytes(80))
    assert struct.unpack("<2IQ4IIHxxQ2Q4I", found) == (
        *(101, 0x3F800000, 9),
        *(10, 15, 0, 7, 100),
        *(77, 7, 0, 0),
        *(4 + 8, 101, 101, 0),
    )


def test_results_that_are_operands_of_a_vector_atomic(thread):
    """All elements are read before the first result is written, even if they share a register."""
    body = """mov.b32 %f1, 0f3F800000; atom.global.add.v4.f32 {%f1, %f2, %f3, %f4}, [%p], {%f1, %f1, %f1, %f1};
    st.global.v4.f32 [%p+16], {%f1, %f2, %f3, %f4};"""
    found = struct.unpack("<8f", thread.run(kernel(body), struct.pack("<8f", 1, 2, 3, 4, *bytes(4))))
    assert found == (2, 3, 4, 5, 1, 2, 3, 4)


def test_tables_of_more_than_eight_bits(thread):
    """`lop3` uses the lowest eight bits of a constant: ptxas turns 0x196 into 0x96 and -128 into 0x80."""
    body = """mov.b32 %r1, 0xF0; mov.b32 %r2, 0xCC; mov.b32 %r3, 0xAA; lop3.b32 %r4, %r1, %r2, %r3, 0x196;
    lop3.b32 %r5, %r1, %r2, %r3, -128; prmt.f4e.b32 %r6, %r1, %r2, 1; st.global.v2.b32 [%p], {%r4, %r5};
    st.global.b32 [%p+8], %r6;"""
    assert struct.unpack("<3I", thread.run(kernel(body), bytes(12))) == (0x96, 0x80, 0xCC << 24)


def test_copies_within_a_cluster_of_one_block(thread):
    found = struct.unpack("<4I2Q4I2I2H", thread.run(kernel(REMOTE).replace("sm_90", "sm_100a"), bytes(60)))
    tile = (10 ^ 1, 20 ^ 2, 3, 4)
    wide = (tile[0] | tile[1] << 32, tile[2] | tile[3] << 32)
    assert found == (2, 4, 6, 8, *wide, 3 - 1, 1, 2, 0, 0x40000000, 0x7FFFFFFF, 0x3C00, 0x3F80)


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("st.global.u32 [%p+2], 1;", "MISALIGNED 28: st.global.u32 [%p+2], 1 +2"),
        ("st.global.v4.u32 [%p+8], {1, 1, 1, 1};", "MISALIGNED"),
        ("ld.global.u8 %h1, [%p+-1];", "ADDRESS"),
        ("mov.u64 %d1, 0; ld.u8 %h1, [%d1];", "ADDRESS"),
        (".shared .b8 x[64]; mov.u32 %r1, x; ld.shared.u32 %r1, [%r1+320];", "SHARED"),
        (".shared .b8 x[64]; mov.u32 %r1, x; ld.shared.u64 %d1, [%r1+-8];", "SHARED"),
        ("mov.u64 %d1, -8; ld.local.u64 %d1, [%d1];", "LOCAL"),
        ("trap;", "TRAP"),
        ("mov.u64 %d1, %p; like: .callprototype _ (); call %d1, (), like;", "FUNCTION"),
        (
            "{ .param .b32 a; .param .b32 back; st.param.b32 [a], 99999999; call (back), depth, (a); }",
            "STACK",
        ),
        ("FOR: bra FOR;", "ASSERT"),  # exceeds the loop limit in thread.c
    ],
)
def test_faults(thread, body, fault):
    with pytest.raises(RuntimeError) as found:
        thread.run(kernel(body, RECURSIVE), bytes(8))
    assert str(found.value).startswith(fault)


def test_unsupported_instructions_are_refused_with_their_line():
    text = kernel(
        "    tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%p, {%r1}];\n    nothing.u32 %r1;\n    add.u32 %r1, %r2, y;"
    )
    with pytest.raises(Faults) as found:
        Host(Options()).make(text.encode(), "m", HostTarget())
    assert found.value.found == [
        ("m:9", "not supported: 'tex.1d.v4.f32.s32 {%f1, %f2, %f3, %f4}, [%p, {%r1}];'"),
        ("m:10", "not supported: 'nothing.u32 %r1;'"),
        ("m:11", "'y' is not a declared register: 'add.u32 %r1, %r2, y;'"),
    ]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("{HEAD}.entry k() {{ A: ret; A: ret; }}", "m:4: label 'A' is defined twice"),
        ("{HEAD}.entry k() {{ .reg .u32 a; .reg .u64 a; }}", "m:4: 'a' is declared twice"),
        ("{HEAD}.entry k() {{ .local .u32 a; .local .u64 a; }}", "m:4: 'a' is declared twice"),
        (
            "{HEAD}.global .u32 a; .global .u32 a; .entry k() {{ .reg .u64 b; mov.u64 b, a; }}",
            "m:4: 'a' is declared twice",
        ),
        ("{HEAD}.local .u32 a; .entry k() {{ .reg .u64 b; mov.u64 b, a; }}", "m:4: variable 'a' outside of functions"),
        ("{HEAD}.shared .b8 s[49153]; .entry k() {{ st.shared.u8 [s], 1; }}", "m:4: 49153 bytes of static shared"),
        (
            "{HEAD}.entry k() {{ .reg .u64 a; .reg .u32 b; add.u32 b, b, a; }}",
            "m:4: 'a' is a register of .u64 where .u32",
        ),
        (
            "{HEAD}.entry k() {{ .reg .u64 a; .reg .u32 b; add.u32 a, b, b; }}",
            "m:4: 'a' is a register of .u64 where .u32",
        ),
        ("{HEAD}.entry k() .maxntid x {{ }}", "m:4: '.maxntid x' with 'x'"),
        ("{HEAD}.entry k() .noreturn {{ trap; }}", "m:4: '.noreturn', which kernels don't have"),
        ("{HEAD}.func f(.reg .wide a) {{ }} .entry k() {{ call f; }}", "m:4: '.wide' after the type of parameter 'a'"),
        ("{HEAD}.entry k() {{ call (a); }}", "m:4: no function and no prototype '_': 'call (a);'"),
        ("{HEAD}.entry k() {{ .reg .u32 a; mov.u32 a, 1?2; }}", "m:4: a constant without an operand"),
        ("{HEAD}.entry k() {{ }}\n.entry k() {{ }}", "m:5: 'k' is defined twice"),
        ("{HEAD}.func f(); .func g();\n.alias f, g; .entry k() {{ call f; }}", "m:5: 'f' is not an alias of a"),
        (".version 8.0\n.target sm_90\n.address_size 32 .entry k() {{ }}", "m:3: addresses have 64 bits"),
    ],
)
def test_modules_that_are_refused(text, wanted):
    with pytest.raises(Faults) as found:
        Host(Options()).make(text.format(HEAD=HEAD).encode(), "m", HostTarget())
    assert ": ".join(found.value.found[0]).startswith(wanted)


def test_clusters_of_several_blocks_are_refused():
    with pytest.raises(Faults, match="clusters of several blocks"):
        Host(Options()).make(f"{HEAD}.entry k() .reqnctapercluster 2, 1, 1 {{ ret; }}".encode(), "m", HostTarget())


def test_the_same_text_gives_the_same_bytes():
    text = (HEAD + ".visible .entry k() { ret; }").encode()
    one, two = (Host(Options()).make(text, name, HostTarget()).image for name in "ab")
    assert one == two and one[:4] == b"\x7fELF"


def test_a_constant_added_to_a_register(thread):
    """ptxas accepts WARP_SZ as an operand, as wide as the register."""
    body = """
    mov.u32 %r1, 12; mov.u64 %d1, 0xffffffff; mov.b16 %h1, 3;
    st.global.u32 [%p], %r1 + 1; st.global.u64 [%p+8], %d1+1;
    add.u32 %r2, %r1+-2, %r1+(1+2)*3; st.global.u32 [%p+4], %r2;
    cvt.u32.u16 %r3, %h1+65535; st.global.u32 [%p+16], %r3;
    st.shared.u32 [tile], %r1+8; ld.shared.u32 %r4, [tile]; st.global.u32 [%p+20], %r4;"""
    found = thread.run(kernel(f".shared .b32 tile;{body}"), bytes(24))
    assert struct.unpack("<2IQ2I", found) == (13, 31, 1 << 32, 2, 20)
