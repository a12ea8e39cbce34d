"""Floating-point instructions compared with exact rationals (exact.py), through real PTX: every rounding mode and
modifier.

All instructions on a type form one kernel, which is applied to many operands: boundaries, random bits, numbers near 1.
"""

from __future__ import annotations

import math
import os
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product

import numpy as np
import pytest

from gpt.asm.host.backend import find_compiler
from gpt.base.errors import GptError
from tests.asm.host import exact
from tests.asm.host.exact import BF16, F16, F32, F64, FORMATS, Format, Fraction
from tests.asm.host.floats import MODES, WHOLE, Case, arithmetic, cases_of
from tests.asm.host.thread import Thread, kernel
from tests.tiers import FULL, first, full, share


@pytest.fixture(scope="module")
def thread(tmp_path_factory):
    return Thread(tmp_path_factory.mktemp("thread"))


def results(thread: Thread, cases: list[Case], operands: list[tuple[int, ...]]) -> Iterator[tuple[int, ...]]:
    """Return the results of each instruction for each triple of operands."""
    body, size, newline = [], 8 * len(cases), "\n"
    for number, case in enumerate(cases):
        names = []
        for place, bits in enumerate(case.operands):
            names.append(f"{'%r' if bits == 32 else '%d' if bits == 64 else '%h'}{place + 1}")
            body.append(f"ld.global.b{bits} {names[-1]}, [%d10+{8 * place}];")
        result = {1: "%p2", 32: "%r8", 64: "%d8"}.get(case.result, "%h8")
        body.append(f"{case.text} {', '.join([result, *names])};")
        if case.result == 1:
            body.append("selp.u32 %r8, 1, 0, %p2;")
        body.append(f"st.global.b{max(case.result, 8)} [%d11+{8 * number}], {'%r8' if case.result == 1 else result};")
    text = kernel(
        f"""
    ld.global.u32 %r10, [%p]; add.u64 %d10, %p, 8; mad.wide.u32 %d11, %r10, 24, %d10;
NEXT:
    {newline.join(body)}
    add.u64 %d10, %d10, 24; add.u64 %d11, %d11, {size};
    sub.u32 %r10, %r10, 1; setp.ne.u32 %p1, %r10, 0; @%p1 bra NEXT;"""
    ).replace("sm_90", "sm_100a")  # sm_100a has e2m3x2 and similar types
    data = struct.pack("<Q", len(operands)) + b"".join(struct.pack("<3Q", *three) for three in operands)
    found = thread.run(text, data + bytes(size * len(operands)))[len(data) :]
    return struct.iter_unpack(f"<{len(cases)}Q", found)


def check(thread: Thread, cases: list[Case], operands: list[tuple[int, ...]]) -> None:
    """Check each instruction with each triple of operands."""
    compare(cases, operands, results(thread, cases, operands))


def compare(cases: list[Case], operands: list[tuple[int, ...]], *made: Iterator[tuple[int, ...]]) -> None:
    """Compare the results of one or more processors for each triple of operands."""
    for three, *found in zip(operands, *made, strict=True):
        for case, *gots in zip(cases, *found, strict=True):
            given = [value & (1 << bits) - 1 for value, bits in zip(three, case.operands, strict=False)]
            wanted = case.does(*given)
            for got in gots:
                if not (case.nan and case.nan.is_nan(wanted) and case.nan.is_nan(got)):
                    assert got == wanted, f"{case.text} of {list(map(hex, given))}: {got:#x}, not {wanted:#x}"


def samples(form: Format, count: int, seed: str) -> list[tuple[int, ...]]:
    """Return triples of operands. In every third one, the last operand is close to the negated
    product of the others.
    """
    source = random.Random(f"{seed} {count}")
    chosen = [form.samples(count, source) for _ in range(3)]
    for i in range(0, count, 3):
        negative, value = exact.multiply(form.decode(chosen[0][i]), form.decode(chosen[1][i]))
        if isinstance(value, Fraction):
            scaled = value * Fraction(2) ** source.randint(-form.fraction - 3, form.fraction + 3)
            chosen[2][i] = form.encode(not negative, scaled)
    return list(zip(*chosen, strict=True))


def operands_of(form: Format, count: int) -> list[tuple[int, ...]]:
    """Combine operands into triples; 16-bit operands are paired."""
    operands = samples(form, count, form.name)
    if form.size != 16:
        return operands
    return [tuple(a | b << 16 for a, b in zip(*two, strict=True)) for two in zip(operands, operands[::-1], strict=True)]


@pytest.fixture
def without_fma(monkeypatch):
    """Keep the compiler from using fma. The result of the earlier check for a compiler is cached."""

    @contextmanager
    def no_fma() -> Iterator[None]:
        with monkeypatch.context() as patch:
            patch.setenv("CC", f"{os.environ.get('CC', 'cc')} -mno-fma")
            find_compiler.cache_clear()
            yield
        find_compiler.cache_clear()

    return no_fma


@pytest.mark.full
@pytest.mark.parametrize("count", [8, full(3000)])
@pytest.mark.parametrize("name", first("f32", "f16", "bf16", "f64"))
def test_exact(tmp_path, without_fma, name, count):
    """Check arithmetic, rounded once in each mode, comparisons and conversions. The processor's fma is used; if FULL is
    set, the test also runs without it.
    """
    cases, operands = cases_of(FORMATS[name]), share(operands_of(FORMATS[name], count))
    made = [results(Thread(tmp_path), cases, operands)]
    if FULL:
        with without_fma():
            made.append(results(Thread(tmp_path), cases, operands))
    compare(cases, operands, *made)


def test_halfway(thread):
    """An f16 fma rounds once: if the product is halfway between two numbers, any addend decides, however small."""
    tiny = [1, 0x8001, 0x0400, 0x8400, 0, 0x8000]
    products = (0x3C01, 0x3C40), (0x3C03, 0x5020), (0x7BFF, 0x3C20), (0x6801, 0x4408)
    check(
        thread,
        [case for case in arithmetic(F16) if case.text == "fma.rn.f16"],
        [(*p, c) for p in products for c in tiny],
    )


@pytest.mark.full
def test_integers_to_floats(thread):
    """Every integer type is converted to every float type."""
    source = random.Random(1)
    edges = [0, 1, (1 << 24) + 1, (1 << 53) + 1, (1 << 64) - 1, 1 << 63, (1 << 63) - 1, 65519, 65520, 65504, 2049, 2051]
    edges += [source.getrandbits(64) >> source.randrange(64) for _ in range(60)]
    edges += [(1 << 64) - value for value in edges if value]
    cases = []
    for (of, (signed, bits)), to, mode in product(WHOLE.items(), (F16, BF16, F32, F64), MODES):
        if to is BF16 and bits == 8:  # takes registers of 8 bits only
            continue

        def does(a: int, signed=signed, bits=bits, to=to, mode=mode) -> int:
            value = a - (1 << bits) if signed and a >> bits - 1 else a
            return to.encode(value < 0, Fraction(abs(value)), mode)

        cases.append(Case(f"cvt.{mode}.{to.name}.{of}", to.size, (bits,), does))
    check(thread, cases, [(value, 0, 0) for value in edges])


def test_flushing_conversions(thread):
    """cvt with .ftz at its boundaries, as in ptxas's code for sm_80, sm_90 and sm_100: to f16, nothing is flushed (F2F
    and F2FP have no .FTZ there); to bf16, operands are; from f64, results are. An H200 gave all of these results.
    """
    least, below, bound, bound_64 = 1, 0x007FFFFF, 0x00800000, 0x380FFFFFE0000000  # bound_64 is 2^-126 - 2^-150
    wanted = {  # form -> an operand, and the results for it and its negation in modes rn, rz, rm and rp
        ("cvt.{}.ftz.f16.f32", 16, 32, least): (0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8001, 0x0001, 0x8000),
        ("cvt.{}.ftz.f16.f32", 16, 32, below): (0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8001, 0x0001, 0x8000),
        ("cvt.{}.ftz.f16.f32", 16, 32, bound): (0x0000, 0x8000, 0x0000, 0x8000, 0x0000, 0x8001, 0x0001, 0x8000),
        ("cvt.{}.ftz.sat.f16.f32", 16, 32, least): (0, 0, 0, 0, 0, 0, 1, 0),
        ("cvt.{}.ftz.bf16.f32", 16, 32, least): (0, 0x8000, 0, 0x8000, 0, 0x8000, 0, 0x8000),
        ("cvt.{}.ftz.bf16.f32", 16, 32, below): (0, 0x8000, 0, 0x8000, 0, 0x8000, 0, 0x8000),
        ("cvt.{}.ftz.bf16.f32", 16, 32, bound): (0x80, 0x8080) * 4,
        ("cvt.{}i.ftz.s32.f32", 32, 32, below): (0,) * 8,
        ("cvt.{}i.ftz.f32.f32", 32, 32, below): (0, 1 << 31) * 4,
        ("cvt.{}.ftz.f32.f64", 32, 64, bound_64): (0, 1 << 31) * 4,
        ("cvt.{}.ftz.f32.f64", 32, 64, bound_64 + 1): (0, 1 << 31, 0, 1 << 31, 0, 0x80800000, bound, 1 << 31),
    }
    modes = ("rn", "rz", "rm", "rp")
    cases = [Case(form.format(mode), to, (of,), int) for form, to, of, _ in wanted for mode in modes]
    operands = [(value, 0, 0) for _, _, of, operand in wanted for value in (operand, operand | 1 << of - 1)]
    rows = [*results(thread, cases, operands)]  # all forms at once, since each call compiles code
    for number, ((form, _, _, operand), results_) in enumerate(wanted.items()):
        pairs = [row[4 * number : 4 * number + 4] for row in rows[2 * number : 2 * number + 2]]
        assert tuple(one for pair in zip(*pairs, strict=True) for one in pair) == results_, (form, hex(operand))


def test_products_at_the_least_normal_number(thread):
    """With .ftz a product of 2^-126 - 2^-150, subnormal and halfway between two numbers of f32, is 0 in each mode, as
    on an H200, though rn and rp round it to 2^-126 without.
    """
    least, factor = 0x00800000, 0x3F7FFFFF
    modes = ("rn", "rz", "rm", "rp")
    cases = [Case(f"mul.{mode}{ftz}.f32", 32, (32, 32), int) for ftz in (".ftz", "") for mode in modes]
    cases += [Case(f"fma.{mode}{ftz}.f32", 32, (32, 32, 32), int) for ftz in (".ftz", "") for mode in modes]
    plain = (least, least - 1, least - 1, least)
    (found,) = results(thread, cases, [(least, factor, 0)])
    assert found == ((0,) * 4 + plain) * 2


def test_bf16_and_registers_of_8_bits(thread):
    """CUDA's cuda_bf16.h uses these instructions on sm_90. ptxas accepts no larger registers for them."""
    text = """
    .reg .b8 %s, %u;
    mov.u32 %r1, 0;
NEXT:
    cvt.u16.u32 %h1, %r1;
    mul.wide.u32 %d2, %r1, 8; add.u64 %d2, %d2, %p;
    cvt.rzi.s8.bf16 %s, %h1; cvt.rmi.u8.bf16 %u, %h1; mov.b16 %h2, {%s, %u}; st.global.b16 [%d2], %h2;
    mov.b16 {%s, %u}, %h1; cvt.rn.bf16.s8 %h2, %s; cvt.rz.bf16.u8 %h3, %s; st.global.v2.b16 [%d2+4], {%h2, %h3};
    add.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 65536; @%p1 bra NEXT;"""
    data = thread.run(kernel(text), bytes(8 * 65536))
    found = np.frombuffer(data, np.dtype([("s", "i1"), ("u", "u1"), ("", "<u2"), ("of_s", "<u2"), ("of_u", "<u2")]))
    bits = np.arange(65536, dtype=np.uint32)
    values = (bits << 16).view(np.float32)
    number = ~np.isnan(values)
    assert np.array_equal(found["s"][number], np.trunc(values[number]).clip(-128, 127))
    assert np.array_equal(found["u"][number], np.floor(values[number]).clip(0, 255))
    for name, byte in ("of_s", bits.astype(np.int8)), ("of_u", bits.astype(np.uint8)):
        assert np.array_equal((found[name].astype(np.uint32) << 16).view(np.float32), byte.astype(np.float32))
    for register in ("%h1", "%r1"):
        with pytest.raises(GptError, match=r"where \.s8 is expected"):
            thread.run(kernel(f"mov.b16 %h2, 0; cvt.rzi.s8.bf16 {register}, %h2;"), bytes(8))


def test_every_small_number(thread):
    """All 16-bit and 8-bit numbers, converted as in numpy and in the formats' definitions."""
    text = """
    mov.u32 %r1, 0;
NEXT:
    cvt.u16.u32 %h1, %r1;
    cvt.f32.f16 %f1, %h1; cvt.rn.f16.f32 %h2, %f1; cvt.f64.f16 %d1, %h1; cvt.rz.satfinite.bf16.f32 %h3, %f1;
    mul.wide.u32 %d2, %r1, 24; add.u64 %d2, %d2, %p;
    st.global.f32 [%d2], %f1; st.global.b16 [%d2+4], %h2; st.global.b64 [%d2+8], %d1;
    cvt.rn.f16x2.e4m3x2 %r2, %h1; cvt.rn.f16x2.e5m2x2 %r3, %h1; st.global.v2.u32 [%d2+16], {%r2, %r3};
    add.u32 %r1, %r1, 1; setp.ne.u32 %p1, %r1, 65536; @%p1 bra NEXT;"""
    data = thread.run(kernel(text), bytes(24 * 65536))
    fields = [("single", "<f4"), ("half", "<u2"), ("", "<u2"), ("double", "<f8"), ("e4m3", "<u4"), ("e5m2", "<u4")]
    found = np.frombuffer(data, np.dtype(fields))
    bits = np.arange(65536, dtype=np.uint16)
    halves = bits.view(np.float16)
    assert np.array_equal(found["single"], halves.astype(np.float32), equal_nan=True)
    assert np.array_equal(found["double"], halves.astype(np.float64), equal_nan=True)
    assert np.array_equal(found["half"], np.where(np.isnan(halves), 0x7FFF, bits))
    for name in ("e4m3", "e5m2"):
        one = np.array([F16.encode(*FORMATS[name].decode(byte)) for byte in range(256)], np.uint32)
        assert np.array_equal(found[name], one[bits & 255] | one[bits >> 8] << 16), name


# Function by name, with the maximum relative or absolute error that the manual states, as a power of 2.
APPROXIMATE: dict[str, tuple[Callable[[float], float], float]] = {
    "rcp": (lambda a: 1 / a, -23),
    "sqrt": (math.sqrt, -23),
    "rsqrt": (lambda a: 1 / math.sqrt(a), -22.9),
    "ex2": (math.exp2, -22.5),
    "lg2": (math.log2, -22.6),
    "tanh": (math.tanh, -11),
    "sin": (math.sin, -20.5),
    "cos": (math.cos, -20.5),
}
INFINITE, ZERO, MINUS = 0x7F800000, 0, 0x80000000
SPECIAL = {  # results for +infinity, -infinity, +0, -0, -1; None for a NaN
    "rcp": (ZERO, MINUS, INFINITE, INFINITE | MINUS, 0xBF800000),
    "sqrt": (INFINITE, None, ZERO, MINUS, None),
    "rsqrt": (ZERO, None, INFINITE, INFINITE | MINUS, None),
    "ex2": (INFINITE, ZERO, 0x3F800000, 0x3F800000, 0x3F000000),
    "lg2": (INFINITE, None, INFINITE | MINUS, INFINITE | MINUS, None),
    "tanh": (0x3F800000, 0xBF800000, ZERO, MINUS, 0xBF42F7D6),
    "sin": (None, None, ZERO, MINUS, 0xBF576AA3),
    "cos": (None, None, 0x3F800000, 0x3F800000, 0x3F0A5142),  # an H200: 0x3F0A5141
}


def test_approximate(thread):
    """Check special values, error bounds, and subnormal numbers with and without .ftz."""
    source = random.Random(3)
    numbers = [math.ldexp(source.uniform(0.5, 1), source.randint(-8, 6)) for _ in range(100)]
    special = [INFINITE, INFINITE | MINUS, ZERO, MINUS, 0xBF800000, 0x7FC00005, 0x00400000, 0x80400000]
    words = special + [bits_of(number) for number in numbers]
    names = [f"{name}.approx{ftz}" for name in APPROXIMATE for ftz in ("", ".ftz") if (name, ftz) != ("tanh", ".ftz")]
    cases = [Case(f"{name}.f32", 32, (32,), int) for name in names]
    found = zip(*results(thread, cases, [(word, 0, 0) for word in words]), strict=True)
    subnormal = {}
    for name, values in zip(names, found, strict=True):
        function, bound = APPROXIMATE[name.partition(".")[0]]
        expected = SPECIAL[name.partition(".")[0]]
        assert values[:6] == tuple(0x7FFFFFFF if one is None else one for one in (*expected, None)), name
        for word, result in zip(words[8:], values[8:], strict=True):
            if name[:3] in ("sin", "cos") and number_of(word) > math.pi:
                continue  # the manual states no error
            wanted = function(number_of(word))
            near = 2.0**bound * (max(1, abs(wanted)) if name[:3] in ("lg2", "sin", "cos") else abs(wanted))
            assert abs(number_of(result) - wanted) <= near, (name, number_of(word), hex(result))
        if name.endswith("ftz"):
            assert values[6:8] == values[2:4], name
        subnormal[name] = values[6]
    assert subnormal["rcp.approx"] == 0x7F000000 and subnormal["sqrt.approx"] == 0x1FB504F3
    assert subnormal["lg2.approx"] == 0xC2FE0000 and subnormal["tanh.approx"] == 0x00400000
    assert subnormal["sin.approx"] == ZERO and subnormal["cos.approx"] == 0x3F800000


def test_waves_of_large_and_tiny_operands(thread):
    """sin.approx and cos.approx keep 25 bits of the fraction of a turn. The results are an H200's."""
    expected = {
        0x34000000: (ZERO, 0x3F800000),  # 2^-23 is less than a unit
        0x35000000: (0x34C91200, 0x3F800000),  # 2^-21: 2.5 units
        0xC0C32A33: (0x3E3BA402, None),
        0xCA3BD761: (0x3E47C5C0, 0x3F7B14BF),
        0x4EF79C24: (ZERO, 0x3F800000),
        0xFD4A7988: (MINUS, 0x3F800000),
    }
    cases = [Case(f"{name}.approx{ftz}.f32", 32, (32,), int) for name in ("sin", "cos") for ftz in ("", ".ftz")]
    found = results(thread, cases, [(word, 0, 0) for word in expected])
    for (word, wanted), values in zip(expected.items(), found, strict=True):
        assert values[0] == values[1] and values[2] == values[3], hex(word)
        for value, right in zip(values[::2], wanted, strict=True):
            assert right is None or abs(number_of(value) - number_of(right)) < 2.0**-21, (hex(word), hex(value))


def test_nans_of_copies_and_of_approximations(thread):
    """A conversion that changes nothing keeps a NaN's bits, as on an H200. An approximation returns its own NaN."""
    single, double = (0x7F800001, 0, 0), (0x7FF8000000000001, 0, 0)
    same = [Case(f"cvt{words}.f32.f32", 32, (32,), int) for words in ("", ".ftz", ".rni")]
    assert list(results(thread, same, [single])) == [(0x7F800001, 0x7FFFFFFF, 0x7FFFFFFF)]
    wider = [Case(f"cvt{words}.f32.bf16", 32, (16,), int) for words in ("", ".rn", ".rz", ".ftz")]
    assert list(results(thread, wider, [(0xFF81, 0, 0)])) == [(0xFF810000, 0xFF810000, 0xFF810000, 0x7FFFFFFF)]
    upper = [Case(f"{name}.approx.ftz.f64", 64, (64,), int) for name in ("rcp", "rsqrt")]
    assert list(results(thread, upper, [double])) == [(0x7FFFFFFF00000000,) * 2]


def bits_of(number: float) -> int:
    return struct.unpack("<I", struct.pack("<f", number))[0]


def number_of(bits: int) -> float:
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def test_division_that_is_approximate(thread):
    """div.approx gives 0 for divisors above 2^126, and NaN for infinity by such a divisor; div.full doesn't."""
    one, two, large, infinite = 0x3F800000, 0x40000000, 0x7F400000, 0x7F800000
    expected = {  # results of div.approx and div.full
        (one, large): (0, 0x002AAAAB),
        (infinite, large): (0x7FFFFFFF, infinite),
        (one, two): (0x3F000000, 0x3F000000),
        (large, large): (0, one),
    }
    cases = [Case(f"div.{kind}.f32", 32, (32, 32), int) for kind in ("approx", "full")]
    assert list(results(thread, cases, [(*two, 0) for two in expected])) == list(expected.values())


def test_atomic_halves(thread):
    """For each type: memory before, and memory after."""
    body, wanted = [], []
    for number, name in enumerate(("f16", "bf16", "f16x2", "bf16x2")):
        form, factor = FORMATS[name.removesuffix("x2")], 0x10001 if name.endswith("x2") else 1
        before, given, after = (factor * form.encode(size < 0, Fraction(abs(size))) for size in (3, -5, -2))
        new, old, width = ("%r1", "%r2", 32) if factor > 1 else ("%h1", "%h2", 16)
        at = f"[%p+{8 * number}]"
        body += [f"mov.b{width} {new}, {before}; st.global.b{width} {at}, {new}; mov.b{width} {new}, {given};"]
        body += [f"atom.global.add.noftz.{name} {old}, {at}, {new}; st.global.b{width} [%p+{8 * number + 4}], {old};"]
        wanted += [after, before]
    found = thread.run(kernel("\n".join(body)), bytes(4 * len(wanted)))
    assert list(struct.unpack(f"<{len(wanted)}I", found)) == wanted
