"""Array elements such as `table[3]` have the same offsets as in ptxas."""

from __future__ import annotations

import struct

import pytest

from gpt.asm.backend import Faults
from tests.asm.host.thread import Thread, kernel

MODULE = """
.global .u64 wide[4] = {10, 11, 12, 13};
.const .u32 grid[3][2] = {{1, 2}, {3, 4}, {5, 6}};
.global .v4 .u32 vectors[2] = {{20, 21, 22, 23}, {24, 25, 26, 27}};
.func (.reg .u32 z) last(.param .align 4 .b8 bytes[8]) { ld.param.u8 z, bytes[7]; ret; }
"""
BODY = """
    .shared .u32 tile[8]; .local .u16 frame[8];
    mov.u32 %r1, 2; mov.u64 %d1, 3; mov.b16 %h1, 1; mov.b32 %r9, -1;
    ld.global.u64 %d2, wide[%r1]; ld.global.u64 %d3, wide[%d1]; ld.global.u64 %d4, wide[%h1];
    ld.global.u64 %d5, wide[%r9+1]; ld.global.u64 %d6, wide[3];
    cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d3; cvt.u32.u64 %r4, %d4; cvt.u32.u64 %r5, %d5; cvt.u32.u64 %r6, %d6;
    st.global.v4.u32 [%p], {%r2, %r3, %r4, %r5}; st.global.u32 [%p+16], %r6;             // 12 13 11 10 13
    ld.const.u32 %r2, grid[4]; ld.global.v2.u32 {%r3, %r4}, vectors[2];
    st.global.u32 [%p+20], %r2; st.global.v2.u32 [%p+24], {%r3, %r4};                  // 5 22 23
    st.shared.u32 tile[%r1], 30; ld.shared.u32 %r2, [tile+8]; st.shared.u32 tile[3], 31; ld.shared.u32 %r3, [tile+12];
    st.local.u16 frame[%r1+1], 32; ld.local.u16 %r4, [frame+6]; st.global.v2.u32 [%p+32], {%r2, %r3}; // 30 31
    st.global.u32 [%p+40], %r4;                                                          // 32
    mov.u64 %d2, wide[1]; mov.u64 %d3, wide; sub.u64 %d2, %d2, %d3; mov.u64 %d4, wide[%r1]; sub.u64 %d4, %d4, %d3;
    cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d4; st.global.v2.u32 [%p+48], {%r2, %r3};    // 8 16
    { .param .align 4 .b8 given[8]; st.param.b32 [given+4], 0x21000000; call (%r5), last, (given); }
    st.global.u32 [%p+44], %r5;                                                          // 33
"""
WANTED = (12, 13, 11, 10, 13, 5, 22, 23, 30, 31, 32, 33, 8, 16)


@pytest.fixture(scope="module")
def thread(tmp_path_factory):
    return Thread(tmp_path_factory.mktemp("thread"))


def test_elements(thread):
    found = thread.run(kernel(BODY, MODULE), bytes(4 * len(WANTED)))
    assert struct.unpack(f"<{len(WANTED)}I", found) == WANTED


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("ld.global.u64 %d1, [wide[1]];", "address '[wide[1]]'"),
        ("ld.global.u64 %d1, wide;", "address 'wide'"),
        ("ld.param.u64 %d1, buffer[0];", "'buffer' is not an array"),
        ("ld.global.u64 %d1, %p[1];", "'%p[1]' where a constant is expected"),
        ("ld.global.u64 %d1, wide[%r1+%r2];", "'%r1' where a constant is expected"),
        ("ld.const.u32 %r1, grid[1][1];", "'grid[1][1]' where a constant is expected"),
    ],
)
def test_invalid_subscripts_are_refused(thread, text, fault):
    with pytest.raises(Faults) as caught:
        thread.run(kernel(text, MODULE))
    assert fault in caught.value.found[0][1]


def test_a_long_instruction_is_shortened_in_messages(thread):
    registers = ", ".join(["%r1"] * 64)
    with pytest.raises(Faults) as caught:
        thread.run(kernel(f"frob.sync.aligned {{{registers}}}, %d1, %d2;"))
    text = caught.value.found[0][1]
    assert text.startswith("not supported: 'frob.sync.aligned {%r1, %r1,") and text.endswith("%r1}, %d1, %d2;'")
    assert len(text) < 180
