"""Addresses in shared, local and constant memory and of parameters have 32 bits, even in a 64-bit register: hardware
instructions (LDS, LDL, LDC) add a 32-bit register and an offset. So a negative base plus an offset, as in nvcc -O2's
code, is in bounds.
"""

from __future__ import annotations

import struct

import pytest

from gpt.asm.backend import Faults
from tests.asm.host.thread import Thread, kernel

MODULE = """
.const .u32 primes[4] = {2, 3, 5, 7};
.func (.param .b32 z) second(.param .align 8 .b8 a[16])
{
    .reg .b64 %x, %y; .reg .b32 %r<4>;
    mov.u64 %x, a;
    ld.local.u32 %r0, [%x+8]; add.u32 %r0, %r0, 1; st.local.u32 [%x+8], %r0;
    sub.u64 %y, %x, 100; ld.param.u32 %r1, [%y+108];
    cvt.u32.u64 %r2, %x; ld.param.u32 %r3, [%r2+8]; add.u32 %r1, %r1, %r3;
    cvta.local.u64 %y, %x; ld.u32 %r2, [%y+8]; add.u32 %r1, %r1, %r2;
    st.param.b32 [z], %r1;
    ret;
}
"""
DECLARED = """
    .shared .align 128 .b8 tile[256];
    .shared .align 8 .b64 barrier;
    .local .align 8 .b32 frame[8];
    .reg .b32 %base, %far; .reg .b64 %wide, %high, %generic;
    mov.u32 %base, tile; add.s32 %base, %base, -140;
    mov.u64 %wide, tile; add.s64 %wide, %wide, -140;
    mov.u64 %high, tile; add.s64 %high, %high, 0x700000000;
    mov.u32 %r0, 11; mov.u32 %r1, 12; mov.u32 %r2, 13; mov.u32 %r3, 14;
"""
CASES = {  # code that leaves a word in %r9 -> the word
    "ld st": ("st.shared.u32 [%base+140], %r0; ld.shared.u32 %r9, [tile];", 11),
    "ld of 64 bits": ("st.shared.u32 [%wide+144], %r1; ld.shared.u32 %r9, [%high+4];", 12),
    "vector": (
        "st.shared.v2.u32 [%base+140], {%r2, %r3}; ld.shared.v2.u32 {%r8, %r9}, [%wide+140];",
        14,
    ),
    "negative offset": ("add.s32 %r8, %base, 300; st.shared.u32 [%r8+-160], %r1; ld.shared.u32 %r9, [tile];", 12),
    "offset of 33 bits": ("st.shared.u32 [%base+4294967436], %r2; ld.shared.u32 %r9, [tile];", 13),
    "at the end of 32 bits": (
        "mov.b32 %far, -4; mov.b32 %r8, 0; st.shared.u32 [%far+4], %r3; ld.shared.u32 %r9, [%r8];",
        14,
    ),
    "generic": ("st.u32 [tile+4], %r2; st.u32 [frame+4], %r3; ld.shared.u32 %r9, [tile+4];", 13),
    "half a register": (
        "cvt.u16.u32 %h0, %base; add.u16 %h0, %h0, 140; st.shared.u32 [%h0+4], %r0; ld.shared.u32 %r9, [tile+4];",
        11,
    ),
    "atom": ("st.shared.u32 [tile], 5; atom.shared.add.u32 %r9, [%base+140], %r0; ld.shared.u32 %r9, [tile];", 16),
    "atom of 64 bits": (
        "st.shared.u32 [tile], 5; atom.shared::cta.cas.b32 %r9, [%high], 5, 9; ld.shared.u32 %r9, [tile];",
        9,
    ),
    "red": ("st.shared.u32 [tile], 5; red.shared.add.u32 [%wide+140], %r1; ld.shared.u32 %r9, [tile];", 17),
    "cp.async": (
        "cp.async.ca.shared.global [%base+140], [%p], 16; cp.async.wait_all; ld.shared.u32 %r9, [tile+4];",
        102,
    ),
    "cp.async in part": (
        "mov.u32 %r8, 8; cp.async.ca.shared.global [%high], [%p], 16, %r8; cp.async.wait_all; "
        "ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [tile]; add.u32 %r9, %r9, %r7;",
        102,
    ),
    "cp.async.bulk": (
        "mov.u32 %r8, barrier; add.s32 %r8, %r8, -4096; mbarrier.init.shared.b64 [%r8+4096], 1; mov.u32 %r7, 16; "
        "mbarrier.arrive.expect_tx.shared.b64 %d9, [%r8+4096], 16; "
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%high], [%p], %r7, [%r8+4096]; "
        "BULK: mbarrier.test_wait.shared.b64 %p0, [barrier], %d9; @!%p0 bra BULK; ld.shared.u32 %r9, [tile]; "
        "mbarrier.inval.shared.b64 [barrier];",
        101,
    ),
    "cp.async.bulk to global memory": (
        "st.shared.v4.u32 [tile], {%r0, %r1, %r2, %r3}; mov.u32 %r7, 16; add.u64 %d9, %p, 1024; "
        "fence.proxy.async; cp.async.bulk.global.shared::cta.bulk_group [%d9], [%high], %r7; "
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; ld.global.u32 %r9, [%d9+8];",
        13,
    ),
    "st.async": (
        "mbarrier.init.shared.b64 [barrier], 1; mov.u64 %d8, barrier; add.u64 %d8, %d8, 0x500000000; "
        "mbarrier.arrive.expect_tx.shared.b64 %d9, [%d8], 4; "
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%high], %r2, [%d8]; "
        "STORE: mbarrier.test_wait.shared.b64 %p0, [barrier], %d9; @!%p0 bra STORE; ld.shared.u32 %r9, [tile]; "
        "mbarrier.inval.shared.b64 [barrier];",
        13,
    ),
    "cvta": (
        "cvta.shared.u64 %generic, %high; st.u32 [%generic], %r3; ld.shared.u32 %r9, [tile];",
        14,
    ),
    "cvta.to": (
        "st.shared.u32 [tile], 77; mov.u64 %d9, tile; cvta.shared.u64 %generic, %d9; add.s64 %generic, %generic, -8; "
        "cvta.to.shared.u64 %d8, %generic; ld.shared.u32 %r9, [%d8+8];",
        77,
    ),
    "local": (
        "st.local.u32 [frame], 21; mov.u32 %r8, frame; sub.u32 %r8, %r8, 0x7ffffff0; "
        "ld.local.u32 %r9, [%r8+0x7ffffff0];",
        21,
    ),
    "local of 64 bits": (
        "mov.u64 %d9, frame; add.u64 %d9, %d9, 0x300000000; st.local.u32 [%d9+4], 22; ld.local.u32 %r9, [frame+4];",
        22,
    ),
    "const": ("mov.u32 %r8, primes; add.s32 %r8, %r8, -64; ld.const.u32 %r9, [%r8+72];", 5),
    "const of 64 bits": ("mov.u64 %d9, primes; sub.s64 %d9, %d9, 64; ld.const.u32 %r9, [%d9+76];", 7),
    "param": (
        "ld.param.u32 %r9, [buffer]; mov.u32 %r8, buffer; ld.param.u32 %r7, [%r8]; sub.u32 %r9, %r9, %r7; "
        "mov.u64 %d9, buffer; sub.u64 %d9, %d9, 160; ld.param.u64 %d9, [%d9+160]; ld.global.u32 %r8, [%d9]; "
        "add.u32 %r9, %r9, %r8;",
        101,
    ),
    "cvta.param": (
        "mov.u64 %d9, buffer; cvta.param.u64 %d9, %d9; cvta.to.param.u64 %d9, %d9; ld.param.u64 %d9, [%d9]; "
        "ld.global.u32 %r9, [%d9+8];",
        103,
    ),
    "param of a function": (
        "{ .param .align 8 .b8 a[16]; .param .b32 z; st.param.b32 [a+8], %r0; call (z), second, (a); "
        "ld.param.b32 %r9, [z]; }",
        36,
    ),
    "isspacep": (
        "mov.u64 %d9, tile; cvta.shared.u64 %generic, %d9; isspacep.shared %p0, %generic; isspacep.shared %p1, %p; "
        "selp.u32 %r8, 1, 0, %p0; selp.u32 %r9, 2, %r8, %p1;",
        1,
    ),
}


@pytest.fixture(scope="module")
def thread(tmp_path_factory):
    return Thread(tmp_path_factory.mktemp("thread"))


def test_they_wrap(thread):
    lines = [f"{text} st.global.u32 [%p+{16 + 4 * at}], %r9;" for at, (text, _) in enumerate(CASES.values())]
    made = thread.run(kernel(DECLARED + "\n".join(lines), MODULE), struct.pack("<4I", 101, 102, 103, 104) + bytes(4096))
    found = struct.unpack_from(f"<{len(CASES)}I", made, 16)
    assert dict(zip(CASES, found, strict=True)) == {name: word for name, (_, word) in CASES.items()}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ld.shared.u32 %r9, [%base];", "SHARED"),
        ("mov.b32 %far, -4; ld.shared.v2.u32 {%r8, %r9}, [%far+4096];", "MISALIGNED"),
        ("ld.local.u32 %r9, [%base];", "LOCAL"),
        ("ld.u32 %r9, [%h0];", "ADDRESS"),  # ptxas takes generic addresses of 16 bits, but not of 32
        ("ld.const.u32 %r9, [%wide];", "ADDRESS"),
        ("mov.u64 %d9, buffer; ld.param.u32 %r9, [%d9+8];", "ADDRESS"),
        ("cvta.shared.u64 %generic, %wide; ld.u32 %r9, [%generic+140];", "ADDRESS"),  # here hardware adds in 64 bits
        ("sub.u64 %d9, %p, 0x100000000; ld.global.u32 %r9, [%d9];", "ADDRESS"),
    ],
)
def test_accesses_outside_a_variable_fault(thread, text, fault):
    with pytest.raises(RuntimeError, match=f"^{fault} "):
        thread.run(kernel(f"{DECLARED} {text} st.global.u32 [%p], %r9;", MODULE), bytes(4096))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ld.global.u32 %r9, [%base+4];", "'%base+4' of type .b32 as an address: 32 bits are for another ABI"),
        ("atom.global.add.u32 %r9, [%base], 1;", "'%base' of type .b32 as an address"),
        ("ld.shared.u32 %r9, [%f0];", "'%f0' of type .f32 as an address"),
        ("ld.shared.u32 %r9, [%p0];", "'%p0' of type .pred as an address"),
        ("cvta.shared.u64 %generic, %base;", "'%base' is a register of .b32 where .u64 is expected"),
        ("ld.global.u32 %r9, [buffer];", "an address of .param as one of .global"),
        ("ld.u32 %r9, [buffer];", "an address of .param as a generic one"),
        ("ld.u32 %r9, [primes];", "an address of .const as a generic one"),
        ("ld.shared.u32 %r9, [frame];", "an address of .local as one of .shared"),
        ("cp.async.ca.shared.global [tile], [tile], 16;", "an address of .shared as one of .global"),
    ],
)
def test_invalid_addresses_are_refused(thread, text, fault):
    with pytest.raises(Faults) as caught:
        thread.run(kernel(f"{DECLARED} {text}", MODULE))
    assert fault in caught.value.found[0][1]


BULK = """
    .shared .align 8 .b8 block[64]; .reg .b64 %size; .reg .b64 %at; mov.u64 %at, block; mov.u64 %size, 16;
    st.shared.v4.b32 [block], {1, 2, 3, 4}; st.shared.v4.b32 [block+16], {5, 6, 7, 8};
    st.shared.v4.b32 [block+32], {9, 10, 11, 12};
"""
SHOW = """
    ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [block]; st.global.v4.b32 [%p], {%r0, %r1, %r2, %r3};
    ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [block+16]; st.global.v4.b32 [%p+16], {%r0, %r1, %r2, %r3};
    ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [block+32]; st.global.v4.b32 [%p+32], {%r0, %r1, %r2, %r3};
"""


def filled(text):
    """Return a kernel for the first architecture that has st.bulk."""
    return kernel(BULK + text + SHOW).replace("sm_90", "sm_100", 1).replace("8.7", "9.0", 1)


@pytest.mark.parametrize(
    "text",
    [
        "st.bulk.weak.shared::cta [%at+8], %size, 0;",
        "cvta.shared.u64 %d1, %at; st.bulk [%d1+8], %size, 0;",
        "mov.u32 %r1, 16; st.bulk.shared::cta [block+8], %r1, 0;",
        "st.bulk.weak.shared::cta [block+8], 16, 0; st.bulk.weak.shared::cta [block], 0, 0;",
    ],
)
def test_shared_memory_is_zeroed(thread, text):
    assert struct.unpack("<12I", thread.run(filled(text), bytes(48))) == (1, 2, 0, 0, 0, 0, 7, 8, 9, 10, 11, 12)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("mov.u64 %size, 12; st.bulk.weak.shared::cta [%at], %size, 0;", "MISALIGNED"),
        ("st.bulk.weak.shared::cta [%at+4], %size, 0;", "MISALIGNED"),
        ("mov.u64 %size, 0x800000; st.bulk.weak.shared::cta [%at], %size, 0;", "SHARED"),
    ],
)
def test_zeroing_missing_code(thread, text, fault):
    with pytest.raises(RuntimeError, match=f"^{fault} "):
        thread.run(filled(text), bytes(48))


def test_sums_of_narrow_registers_have_32_bits(thread):
    """ptxas's code adds to a register of 16 bits in 32: 0xfffe + 4 is 0x10002 there."""
    text = f"{DECLARED} mov.b16 %h0, 0xfffe; add.u32 %r9, %h0+4, 0; st.global.u32 [%p], %r9;"
    assert thread.run(kernel(text, MODULE), bytes(4096))[:4] == (0x10002).to_bytes(4, "little")
