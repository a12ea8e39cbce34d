"""The carry flag works as in hardware: there's one flag, the carry out of an addition. A subtraction adds the
complement and 1, so after `sub.cc` a set flag means that there was no borrow, and additions and subtractions can be
mixed.

ptxas turns these instructions into `IADD3 P0` and `IADD3.X ... P0` for sm_80, sm_90 and sm_100 alike: `sub.cc` is `a,
-b`, and `subc` is `a, ~b` with the carry.
"""

from __future__ import annotations

import random
import struct

import pytest

from tests.asm.host.integers import cast
from tests.asm.host.thread import Thread, kernel

TYPES = ("u32", "s32", "u64", "s64")
FIRST = ("add.cc", "sub.cc", "mad.lo.cc", "mad.hi.cc")
NEXT = ("addc", "subc", "madc.lo", "madc.hi", "addc.cc", "subc.cc", "madc.lo.cc", "madc.hi.cc")


@pytest.fixture(scope="module")
def thread(tmp_path_factory):
    return Thread(tmp_path_factory.mktemp("thread"))


def add(name: str, type_: str, a: int, b: int, c: int, carry: bool) -> tuple[int, bool]:
    """Return the result of an instruction, and the flag after it."""
    bits = int(type_[1:])
    mask = (1 << bits) - 1
    a, b, c = (cast(value, type_) for value in (a, b, c))
    opcode, *words = name.split(".")
    if "sub" in opcode:
        first, second = a & mask, ~b & mask
    elif "mad" in opcode:
        first, second = (a * b >> (bits if "hi" in words else 0)) & mask, c & mask
    else:
        first, second = a & mask, b & mask
    total = first + second + (carry if opcode[-1] == "c" else opcode == "sub")
    return total & mask, total >> bits > 0 if "cc" in words else carry


def chain(chance: random.Random) -> list[tuple[str, str]]:
    """Return instructions of mixed kinds and sizes; the first sets the flag."""
    names = [chance.choice(FIRST), *(chance.choice((*NEXT, *FIRST)) for _ in range(chance.randrange(1, 8)))]
    return [(name, chance.choice(TYPES)) for name in names]


@pytest.mark.full
def test_random_chains(thread):
    chance = random.Random(38)
    edges = [0, 1, 2, 0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 1 << 32, 1 << 63, (1 << 63) - 1, (1 << 64) - 1]
    chains = [chain(chance) for _ in range(40)]
    operands = [
        tuple(chance.choice(edges) if chance.random() < 0.6 else chance.getrandbits(64) for _ in range(3))
        for _ in range(120)
    ]
    count = sum(map(len, chains))
    body, at = [], 0
    for one in chains:
        for name, type_ in one:
            kind = "r" if type_ in ("u32", "s32") else "d"
            last = f", %{kind}3" if "mad" in name else ""
            body.append(f"{name}.{type_} %{kind}9, %{kind}1, %{kind}2{last}; st.global.{type_} [%d11+{at}], %{kind}9;")
            at += 8
    lines = "\n    ".join(body)
    made = thread.run(
        kernel(f"""
    ld.global.u32 %r10, [%p]; add.u64 %d10, %p, 8; mad.wide.u32 %d11, %r10, 24, %d10;
NEXT:
    ld.global.u64 %d1, [%d10]; ld.global.u64 %d2, [%d10+8]; ld.global.u64 %d3, [%d10+16];
    cvt.u32.u64 %r1, %d1; cvt.u32.u64 %r2, %d2; cvt.u32.u64 %r3, %d3;
    {lines}
    add.u64 %d10, %d10, 24; add.u64 %d11, %d11, {8 * count};
    sub.u32 %r10, %r10, 1; setp.ne.u32 %p1, %r10, 0; @%p1 bra NEXT;"""),
        struct.pack("<Q", len(operands))
        + b"".join(struct.pack("<3Q", *three) for three in operands)
        + bytes(8 * count * len(operands)),
    )
    found = iter(struct.unpack_from(f"<{count * len(operands)}Q", made, 8 + 24 * len(operands)))
    for three in operands:
        for one in chains:
            carry = False
            for name, type_ in one:
                wanted, carry = add(name, type_, *three, carry)
                got = next(found)
                assert got == wanted, f"{name}.{type_} in {one} of {three}: {got:#x}, not {wanted:#x}"


def test_mixed_as_on_an_h200(thread):
    made = thread.run(
        kernel("""
    sub.cc.u32 %r9, 5, 7;          addc.u32 %r0, 0, 0;  // borrows
    sub.cc.u32 %r9, 7, 5;          addc.u32 %r1, 0, 0;
    add.cc.u32 %r9, 0xffffffff, 1; subc.u32 %r2, 10, 3; // carries
    add.cc.u32 %r9, 1, 1;          subc.u32 %r3, 10, 3;
    st.global.v4.u32 [%p], {%r0, %r1, %r2, %r3};"""),
        bytes(16),
    )
    assert struct.unpack("<4I", made) == (0, 1, 7, 6)


def test_calls_and_branches(thread):
    """A function has its own flag. The flag survives branches, and instructions that are skipped because of their
    guards.
    """
    function = """
.func (.reg .u32 z) less(.reg .u32 a) { .reg .u32 t; sub.cc.u32 t, a, 1; subc.u32 z, 100, 0; ret; }"""
    made = thread.run(
        kernel(
            """
    setp.eq.u32 %p0, 0, 0;
    add.cc.u32 %r9, 0xffffffff, 2; call (%r0), less, (0); addc.u32 %r1, 20, 0;  // 99 21
    add.cc.u32 %r9, 1, 2; @!%p0 add.cc.u32 %r9, 0xffffffff, 2; addc.u32 %r2, 30, 0; // 30
    sub.cc.u32 %r9, 3, 2; @%p0 bra OVER; add.cc.u32 %r9, 0, 0; OVER: subc.u32 %r3, 40, 0; // 40
    st.global.v4.u32 [%p], {%r0, %r1, %r2, %r3};""",
            function,
        ),
        bytes(16),
    )
    assert struct.unpack("<4I", made) == (99, 21, 30, 40)
