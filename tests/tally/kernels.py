"""The kernels of tests/tally/corpus in Python. Each function changes its arrays like the kernel of the same name.

CUDA's `int` arithmetic wraps around. Where threads race, or a library function is approximate, launches.py has a note.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.asm.host.integers import select_bytes

Array = np.ndarray[Any, Any]
Random = np.random.Generator
i8, i16, i32, i64 = np.int8, np.int16, np.int32, np.int64
u16, u32, u64, f16, f32, f64 = np.uint16, np.uint32, np.uint64, np.float16, np.float32, np.float64


def integers(random: Random, count: int, least: int = -(1 << 31), end: int = 1 << 31) -> Array:
    return random.integers(least, end, count).astype(i32)


def dyadic(random: Random, count: int, bits: int = 12, type_: Any = f32) -> Array:
    """Make numbers below 8 with this many bits, so that sums of a few products are exact or need one rounding."""
    return (random.integers(-(1 << bits), 1 << bits, count) / (1 << (bits - 3))).astype(type_)


def nothing(*_: Any) -> None:
    """Do nothing: this kernel is checked in another way."""


def assign(place: int, index: int, value: Any) -> Callable[..., None]:
    """Return a kernel that stores one value."""

    def does(*values: Any) -> None:
        values[place][index] = value

    return does


def wrap(value: int) -> int:
    """Wrap a number as a C int does."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def quotient(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


# What the kernels do, by source


def as_(p: Array, q: Array) -> None:
    q[0] = 2 * q[1]


def as_check(before: list[Array], after: list[Array]) -> bool:
    a, b, c = map(int, before[0][:3])
    total = a * b + c
    mixed = [(total ^ total >> 32 ^ lane) & 0xFFFFFFFF for lane in range(32)]
    bytes_ = [select_bytes(one, lane, 0x1234) for lane, one in enumerate(mixed)]
    near = any(int(after[0][0]) - one in range(65) for one in mixed)
    return near and int(after[0][1]) in bytes_


def at(a: Array, b: Array, f: Array, d: Array, h: Array, u: Array) -> None:
    for _ in range(96):
        a[8] = 0 if a.view(u32)[8] >= 10 else a[8] + 1
        a[9] = 3 if a[9] == 0 or a.view(u32)[9] > 3 else a[9] - 1
        a[7] ^= 9
    a[0] += 3 * 96
    a[1], a[2], a[3] = min(a[1], 2), max(a[2], 3), 4
    a[4] = 6 if a[4] == 5 else a[4]
    a[5] &= 7
    a[6] |= 8
    b[0] += u64(96)
    b[1] = max(b[1], u64(2))
    f[0] += 96
    d[0] += 96
    h += np.array([96, 192], f16)
    u[0] = 2 if u[0] == 1 else u[0]


def fives(p: Array, q: Array) -> None:
    p[0] = q[0] = 5


def bk(p: Array) -> None:
    v = p[:256].astype(i64)
    x = np.repeat(v.reshape(8, 32).sum(1), 32)
    x[0] = v.sum()
    more = x + np.concatenate([[0], np.cumsum(v)[:-1]])
    p[:] = (np.sort(p).astype(i64) + np.repeat(more, 8)).astype(i32)


def ch(p: Array, q: Array, d: Array) -> None:
    p[0] = p[1:6].sum()
    p[6:9] = 1, 2, 3
    p[9] = q[0] + q[3]
    p[10:12] = p[0], 1
    p[12:16] = q
    p[16] = p[0]
    d[:2] = d[2:]


def kc(o: Array, i: Any) -> None:
    # tab, pc.b, pc.c, msg, arr, mg, ctr, nanv
    o[5] = TAB[5] + 2.5 + ord("c") + ord("h") + 0 + 3 + 0 + 0.25


TAB = np.arange(256).astype(f32) / 4


def cgk(p: Array) -> None:
    sums = p.reshape(-1, 32).sum(1)
    p[:] = np.repeat(sums, 32) * (3 + 1 + np.arange(len(p)) % 4)


def hf(h: Array, h2: Array, b: Array, b2: Array, e: Array, f: Array) -> None:
    # h[0] is 0, and becomes exp(0) = 1, which is less than h[1], so the result is h[2]. b and b2 are the high halves of
    # floats.
    b[0] = (f32(2.25) + f[0]).view(u32) >> 16
    b2[:2] = [f32(x * x + y).view(u32) >> 16 for x, y in ((2.0, 0.5), (1.5, 3.0))]
    e[0] = 0x4C  # 6
    f[0] = 6 + 1 + 8.25
    h2[:2] = h2[2:]
    h[0] = h[2]


def i8_(p: Array, u: Array, n: Any) -> None:
    def get(a: Array, i: int) -> int:
        return int(a[2 * i]) | int(a[2 * i + 1]) << 64

    def put(a: Array, i: int, value: int) -> None:
        a[2 * i], a[2 * i + 1] = value % (1 << 64), (value >> 64) % (1 << 64)

    put(p, 0, get(p, 1) * get(p, 2) + int(n))
    put(u, 0, get(u, 1) >> int(n))
    put(u, 2, get(u, 3) + get(u, 4))


def swapped(p: Array, n: int) -> list[int]:
    """Return a[] of lm after its loop."""
    a = p.tolist()
    for i in range(n):
        k = int(p[i]) & 63
        a[k], a[i & 63] = a[i & 63], a[k]
    return a


def lm(p: Array, n: Any) -> None:
    p[:] = swapped(p, n)
    p[0] += 1


def lm_values(random: Random) -> list[Any]:
    """Return values such that p[1] becomes n - 1, the only byte of alloca that's set."""
    while True:
        p = random.integers(0, 64, 64).astype(i32)
        if swapped(p, 40)[1] == 39:
            return [p, i32(40)]


def j0(x: float) -> float:
    return float(np.cos(x * np.sin((np.arange(64) + 0.5) * math.pi / 64)).mean())


def mt(f: Array, d: Array) -> None:
    for i in range(len(f)):
        x, y = float(f[i]), float(d[i])
        f[i] = (
            math.sin(x) + math.cos(x) * math.tan(x) + math.exp(x) + math.log(x) + x**2.3 + math.sqrt(x) + x**-0.5
            + 2 * x + 3 + math.erf(x) + math.gamma(x) + math.fmod(x, 3) + math.sin(x) + math.exp(x) + x / 3
            + math.floor(x) + math.floor(x + 0.5) + math.trunc(x) + min(x, 1) - x + 8 * x + j0(x) + math.tanh(x)
        )  # fmt: skip
        d[i] = (
            math.sin(y) + math.exp(y) + math.log(y) + y**1.5 + math.sqrt(y) / y + math.erf(y) + math.atan2(y, 2)
            + math.lgamma(y) + y + 1 + 1 / y + y * y + 1
        )  # fmt: skip


def nb(p: Array, v: Array, n: Any, dt: Any) -> None:
    at_, mass = p.reshape(-1, 4).astype(f64)[:, :3], p.reshape(-1, 4)[:, 3].astype(f64)
    apart = at_[None] - at_[:, None]
    inverse = ((apart**2).sum(2) + 1e-9) ** -1.5
    v.reshape(-1, 4)[:, :3] += ((apart * (inverse * mass)[:, :, None]).sum(1) * float(dt)).astype(f32)


def pa(*values: Any) -> None:
    out = values[-1]
    b, c, s, i, long, uc, f, d = (value.item() for value in values[:8])
    # v.x[2], s1.d, f3.z, i2.y, h.a[i]
    out[0] = wrap(b + c + s + i + long + uc + int(f) + int(d) + 3 - 77 + 9 - 5 + i * 3)
    values[8][0] = 1


PA = [
    np.bool_(True), i8(-3), i16(-300), i32(7), i64((5 << 32) + 12), np.uint8(200), f32(2.75), f64(-1e6)
]  # fmt: skip
PA_STRUCTS = [
    struct.pack("<4f", 1, 2, 3.5, 4),
    struct.pack("<b7xd3i4x", 1, -77.5, 1, 2, 3),
    b"\0",
    struct.pack("<3f", 7, 8, 9.25),
    struct.pack("<2i", 4, -5),
    np.arange(0, 6000, 3).astype(i32).tobytes(),
]


def pipe(g: Array, o: Array, n: Any) -> None:
    for row in g.reshape(int(n), 256):
        o += row


def re_(p: Array) -> None:
    p[0] = (p[1] * 7 + 1) + 2 + 10 * (p[2] & 15)


def rk(p: Array, i: Any) -> None:
    a, b = 0, 1
    for _ in range(int(p[0])):
        a, b = b, a + b
    p[0] = a + (2 + 3 + i if i & 1 else 3 + 6) + 9 + i % 10


def axpy(count: int) -> Callable[..., None]:
    def does(n: Any, a: Any, x: Array, y: Array) -> None:
        wide: Any = f64 if y.dtype == f32 else np.longdouble
        y[:count] = (wide(a) * x[:count].astype(wide) + y[:count].astype(wide)).astype(y.dtype)

    return does


def gemm(a: Array, b: Array, c: Array, n: Any) -> None:
    c[:] = (a.reshape(n, n) @ b.reshape(n, n)).reshape(-1)


def sw(p: Array, n: Any) -> None:
    q = p.tolist()
    n = int(n)
    chosen = [
        lambda: q[1] * 3, lambda: quotient(q[2], 5), lambda: int(math.fmod(q[3], 7)), lambda: q[4] ^ q[5],
        lambda: q[6] << 2, lambda: q[7] + q[8], lambda: q[9], lambda: q[10] - 3, lambda: q[11] | 5, lambda: ~q[12],
    ]  # fmt: skip
    q[0] = wrap(chosen[n]() if n < len(chosen) else -1)
    for i in range(n):
        if q[i] == 5:
            continue
        if q[i] == 9:
            break
        q[i] = quotient(q[i], n)
    if n:
        q[1] = wrap(quotient(q[0], n) + q[0] % (1 << 64) % 17)
    p[:] = q


def wp(p: Array, f: Array) -> None:
    lane = np.arange(32)
    v = p.astype(i64)

    def add(more: Any) -> None:
        nonlocal v
        v = (v + more).astype(i32).astype(i64)

    add(v[np.where(lane < 16, lane + 16, lane)])
    add(v[lane ^ 8])
    add(v[np.maximum(lane - 1, 0)])
    add(v[0])
    b = sum(1 << i for i in range(32) if v[i] > 3)
    add(int((v != 0).any()))
    add(-int((v != 0).all()))
    reverse = int(f"{b:032b}"[::-1], 2)
    add(b.bit_count() + 32 - b.bit_length() + (b & -b).bit_length() + reverse)
    add(-1)  # activemask: all
    add(v.sum())
    add(v.min())
    add(np.array([sum(1 << i for i in range(32) if v[i] == one) for one in v]))
    same = len(set(v.tolist())) == 1
    add(-1 if same else 0)
    p[:] = [wrap(_wp_last(int(one) % (1 << 32), b) + same) for one in v]


def _wp_last(v: int, b: int) -> int:
    """Return the results of byte_perm (which is v), dp4a, vadd4, funnelshift_l, mulhi, sad, umul24."""
    signed, bytes_ = wrap(v), v.to_bytes(4, "little")
    dot = b + sum(((one ^ 128) - 128) ** 2 for one in bytes_)
    four = sum((x + y & 255) << 8 * i for i, (x, y) in enumerate(zip(bytes_, b.to_bytes(4, "little"), strict=True)))
    funnel = (b << 32 | v) << 3 >> 32
    return v + v + dot + four + funnel + (signed * signed >> 32) + abs(signed - 1) + 2 + (v & 0xFFFFFF) * 3


def wp_check(before: list[Array], after: list[Array]) -> bool:
    return after[1].view(i32)[0] in after[0]  # from some lane, if not all of them match


def wm(a: Array, b: Array, c: Array) -> None:
    one, two = a.reshape(16, 16).astype(c.dtype), b.reshape(16, 16).astype(c.dtype)
    c[:] = (one @ two.T).reshape(-1)


def small(random: Random, count: int, type_: Any) -> Array:
    return random.integers(-8, 9, count).astype(type_)


def saxpy_values(n: int, count: int) -> Callable[[Random], list[Any]]:
    return lambda r: [i32(n), f32(1.375), dyadic(r, count), dyadic(r, count)]


OTHER = b""".version 8.3
.target sm_90
.address_size 64
.visible .global .align 4 .f32 gv = 0f40266666;
.visible .const .align 4 .u32 gcst[16] = {0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 100, 110, 120, 130, 140, 150};
.visible .func (.param .b32 r) _Z5otheri(.param .b32 x) {
    .reg .b32 %r<3>; ld.param.b32 %r1, [x]; mad.lo.s32 %r2, %r1, 7, 1; st.param.b32 [r], %r2; ret;
}
"""
