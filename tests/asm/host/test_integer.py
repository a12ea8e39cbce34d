"""Integer instructions compared with Python's exact arithmetic: all of them are in one kernel, which is applied to many
operands.

Each type's boundary values come first, then random ones.
"""

from __future__ import annotations

import random
import struct
from itertools import product

import pytest

from tests.asm.host.integers import bits, cast, instructions, video
from tests.asm.host.thread import Thread, kernel
from tests.tiers import full

REGISTER = {8: "%h", 16: "%h", 32: "%r", 64: "%d"}


def values(count: int) -> list[tuple[int, int, int]]:
    """Return 64-bit operands; instructions take their lowest bits."""
    edges = [0, 1, 2, 31, 32, 33, 63, 64, 65, 255, 256]
    for n in (8, 16, 32, 64):
        edges += [(1 << n) - 1, 1 << n - 1, (1 << n - 1) - 1, (1 << n) - 2]
    chance = random.Random(15)
    pairs = [(a % (1 << 64), b % (1 << 64), chance.choice(edges)) for a, b in product(edges, edges)]
    sizes = (6, 16, 33, 64)
    return chance.sample(pairs, count) + [
        tuple(chance.getrandbits(chance.choice(sizes)) for _ in range(3)) for _ in range(count)
    ]


@pytest.fixture(scope="module")
def thread(tmp_path_factory):
    return Thread(tmp_path_factory.mktemp("thread"))


@pytest.mark.full
def test_integers(thread):
    """Check each result of each instruction for each triple of operands."""
    check(thread, [case for case in instructions() if case[3]], values(150))


@pytest.mark.parametrize("step", [61, full(3)])
def test_video_instructions(thread, step):
    check(thread, list(video())[::step], values(20))


def check(thread, cases, operands):
    body = []
    for number, (text, to, of, _) in enumerate(cases):
        registers = []
        for place, type_ in enumerate(of):
            name = f"{REGISTER[bits(type_)]}{place + 1}"
            body.append(f"ld.global.{type_} {name}, [%d10+{8 * place}];")
            registers.append(name)
        result = f"{REGISTER[bits(to)]}8"
        form = text if "{}" in text else text + " {}" + ", {}" * len(of)
        body.append(form.format(result, *registers) + ";")
        body.append(f"st.global.{to} [%d11+{8 * number}], {result};")
    size = 8 * len(cases)
    text = kernel(
        f"""
    ld.global.u32 %r10, [%p];
    add.u64 %d10, %p, 8;
    mad.wide.u32 %d11, %r10, 24, %d10;
NEXT:
    {"".join(body)}
    add.u64 %d10, %d10, 24;
    add.u64 %d11, %d11, {size};
    sub.u32 %r10, %r10, 1;
    setp.ne.u32 %p1, %r10, 0;
    @%p1 bra NEXT;"""
    )
    data = struct.pack("<Q", len(operands)) + b"".join(struct.pack("<3Q", *three) for three in operands)
    found = thread.run(text, data + bytes(size * len(operands)))[len(data) :]
    for row, three in enumerate(operands):
        for number, (form, to, of, does) in enumerate(cases):
            given = [cast(value, type_) for value, type_ in zip(three, of, strict=False)]
            at = size * row + 8 * number
            wanted = cast(does(*given), f"u{bits(to)}")
            got = int.from_bytes(found[at : at + bits(to) // 8], "little")
            assert got == wanted, f"{form} of {given}: {got:#x}, not {wanted:#x}"
