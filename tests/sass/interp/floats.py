"""Floating point of 32 and 64 bits.

Sums and products of 32-bit floats are computed in 64 bits, rounded to odd, and rounded again; the second rounding is
then correct. 64-bit results come from the C library or, for rounding modes other than to nearest, from exact fractions.

MUFU, which approximates, is rounded correctly here. A GPU's last bits differ, so only results that a kernel corrects
afterwards, such as quotients, can be compared bit for bit. FCHK, which decides whether a division needs the slow path,
may choose it more often than on a GPU.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from tests.sass.interp.decode import Array, Fetch, Run, Word, operation
from tests.sass.interp.integers import I64, U32, U64, combine

F32, F64 = np.float32, np.float64
NAN32 = U32(0x7FFFFFFF)
SIGN = U32(0x80000000)
_ROUND_NEAREST, _ROUND_DOWN, _ROUND_UP, _ROUND_TO_ZERO = range(4)
_libm = ctypes.CDLL(ctypes.util.find_library("m"))
_libm.fma.restype = ctypes.c_double
_libm.fma.argtypes = [ctypes.c_double] * 3


def flushed(value: Array) -> Array:
    """Return 32-bit floats with denormals flushed to signed zeros."""
    tiny = value & U32(0x7F800000) == 0
    return np.where(tiny, value & SIGN, value)


def single(word: Word, slot: str, ftz: bool = False) -> Fetch:
    """Return an operand as the bits of a float, with its sign bits applied."""
    fetch, negative, absolute = word.raw(slot), word.is_negated(slot), word.is_absolute(slot)

    def get(warp):
        value = fetch(warp)
        value = value & ~SIGN if absolute else value
        value = value ^ SIGN if negative else value
        return flushed(value) if ftz else value

    return get


def odd_sum(a: Array, b: Array, c: Array) -> Array:
    """Return a * b + c, rounded to odd; a * b is exact in 64 bits."""
    product = a * b
    total = product + c
    part = total - product
    error = (product - (total - part)) + (c - part)
    bits = total.view(I64)
    error = np.where(np.isfinite(total), error, 0)
    away = (error > 0) == (total > 0)
    return np.where((error != 0) & (bits & 1 == 0), bits + np.where(away, 1, -1), bits).view(F64)


def narrowed(value: Array, mode: int) -> Array:
    """Return the bits of the float nearest to a double, or of the next one down, up, or toward zero."""
    found = value.astype(F32)
    back = found.astype(F64)
    down = mode == _ROUND_DOWN or (mode == _ROUND_TO_ZERO and value > 0)
    up = mode == _ROUND_UP or (mode == _ROUND_TO_ZERO and value <= 0)
    if mode:
        found = np.where(down & (back > value), np.nextafter(found, F32(-np.inf)), found)
        found = np.where(up & (back < value), np.nextafter(found, F32(np.inf)), found)
    return np.where(np.isnan(found), NAN32, found.view(U32))


def finished(value: Array, saturates: bool, ftz: bool) -> Array:
    """Return the bits of a result after .SAT and .FTZ."""
    if saturates:
        number = value.view(F32)
        value = np.where(np.isnan(number), F32(0), np.clip(number, F32(0), F32(1))).view(U32)
    return flushed(value) if ftz else value


def double_of(value: Array) -> Array:
    """Return the bits of floats as doubles."""
    return value.view(F32).astype(F64)


@operation("FADD")
def _add(word: Word) -> Run:
    ftz, saturates, mode = word.bit(80), word.bit(77), word.field(78, 2)
    a, b, write = single(word, "a", ftz), single(word, word.other, ftz), word.result()

    def run(warp, mask):
        total = odd_sum(double_of(a(warp)), F64(1), double_of(b(warp)))
        if mode == _ROUND_DOWN:  # the sum of opposite numbers is -0
            x, y = double_of(a(warp)), double_of(b(warp))
            total = np.where((total == 0) & ~((x == 0) & ~np.signbit(x) & ~np.signbit(y)), -0.0, total)
        write(warp, mask, finished(narrowed(total, mode), saturates, ftz))

    return run


@operation("FMUL")
def _multiply(word: Word) -> Run:
    ftz, saturates, mode = word.bit(80), word.bit(77), word.field(78, 2)
    if word.field(84, 3) != 4:
        raise word.refuse("a scaled product")
    a, b, write = single(word, "a", ftz), single(word, "b", ftz), word.result()

    def run(warp, mask):
        product = double_of(a(warp)) * double_of(b(warp))
        write(warp, mask, finished(narrowed(product, mode), saturates, ftz))

    return run


@operation("FFMA")
def _multiply_add(word: Word) -> Run:
    ftz, saturates, mode = word.bit(80), word.bit(77), word.field(78, 2)
    a, b, c = (single(word, slot, ftz) for slot in "abc")
    write = word.result()

    def run(warp, mask):
        total = odd_sum(*(double_of(source(warp)) for source in (a, b, c)))
        write(warp, mask, finished(narrowed(total, mode), saturates, ftz))

    return run


@operation("FMNMX")
def _extreme(word: Word) -> Run:
    ftz, keeps_nan = word.bit(80), word.bit(81)
    a, b, least, write = single(word, "a", ftz), single(word, word.other, ftz), word.predicate(87), word.result()

    def run(warp, mask):
        x, y = np.broadcast_arrays(a(warp), b(warp))
        first, second = x.view(F32), y.view(F32)
        less = (first < second) | ((first == second) & np.signbit(first) & ~np.signbit(second))
        found = np.where(less == least(warp), x, y)
        found = np.where(np.isnan(first), y, np.where(np.isnan(second), x, found))
        nan = np.isnan(first) | np.isnan(second) if keeps_nan else np.isnan(first) & np.isnan(second)
        write(warp, mask, np.where(nan, NAN32, found))

    return run


def compare(kind: int, x: Array, y: Array) -> Array:
    """Compare floats. 1 to 6 are LT, EQ, LE, GT, NE, GE, and 7 is NUM; adding 8 makes unordered
    operands compare true.
    """
    unordered = np.isnan(x) | np.isnan(y)
    found = unordered & False
    for bit, holds in ((1, x < y), (2, x == y), (4, x > y)):
        found = found | holds if kind & bit else found
    return found | unordered if kind & 8 else found & ~unordered


@operation("FSETP")
def _set_predicate(word: Word) -> Run:
    kind, joined, ftz = word.field(76, 4), word.field(74, 2), word.bit(80)
    if joined == 3 or word.form in (2, 7):
        raise word.refuse("no known way to join")
    a, b, also = single(word, "a", ftz), single(word, "b", ftz), word.predicate(87)
    first, second = word.decide(81), word.decide(84)

    def run(warp, mask):
        found = compare(kind, a(warp).view(F32), b(warp).view(F32))
        first(warp, mask, combine(joined, found, also(warp)))
        second(warp, mask, combine(joined, ~found, also(warp)))

    return run


@operation("FSET")
def _set(word: Word) -> Run:
    kind, joined, ftz, number = word.field(76, 4), word.field(74, 2), word.bit(80), not word.bit(71)
    a, b, also, write = single(word, "a", ftz), single(word, "b", ftz), word.predicate(87), word.result()
    yes = U32(0x3F800000 if not number else 0xFFFFFFFF)

    def run(warp, mask):
        found = combine(joined, compare(kind, a(warp).view(F32), b(warp).view(F32)), also(warp))
        write(warp, mask, np.where(found, yes, U32(0)))

    return run


@operation("FSEL")
def _select(word: Word) -> Run:
    ftz = word.bit(80)
    a, b, choice, write = single(word, "a", ftz), single(word, word.other, ftz), word.predicate(87), word.result()
    return lambda warp, mask: write(warp, mask, np.where(choice(warp), a(warp), b(warp)))


@operation("FCHK")
def _check_division(word: Word) -> Run:
    a, b, out = single(word, "a"), single(word, "b"), word.decide(81)

    def run(warp, mask):
        slow = False
        for value in (a(warp), b(warp)):
            exponent = (value >> U32(23) & U32(255)).astype(I64) - 127
            slow = slow | (np.abs(exponent) > 60)
        out(warp, mask, slow)

    return run


def _reciprocal_root(x: Array) -> Array:
    return np.where(x < 0, np.nan, 1 / np.sqrt(np.abs(x)) * np.where(np.signbit(x), -1, 1))


_FUNCTIONS: dict[int, Callable[[Array], Array]] = {
    0: lambda x: np.cos(2 * np.pi * x),
    1: lambda x: np.sin(2 * np.pi * x),
    2: np.exp2,
    3: lambda x: np.where(x < 0, np.nan, np.log2(np.abs(x))),
    4: lambda x: 1 / x,
    5: _reciprocal_root,
    8: np.sqrt,
    9: np.tanh,
}


@operation("MUFU")
def _approximate(word: Word) -> Run:
    kind = word.field(74, 4)
    write = word.result()
    if kind in (6, 7):  # for the upper half of a double
        upper = word.raw("b")
        minus, absolute = word.is_negated("b"), word.is_absolute("b")

        def run_upper(warp, mask):
            value = upper(warp)
            value = value & ~SIGN if absolute else value
            value = value ^ SIGN if minus else value
            number = (value.astype(U64) << U64(32)).view(F64)
            found = 1 / number if kind == 6 else _reciprocal_root(number)
            write(warp, mask, (found.view(U64) >> U64(32)).astype(U32))

        return run_upper
    function, b = _FUNCTIONS.get(kind), single(word, "b")
    if function is None:
        raise word.refuse("an unknown function")
    return lambda warp, mask: write(warp, mask, narrowed(function(double_of(b(warp))), 0))


def exact(a: float, b: float, c: float, mode: int) -> float:
    """Return a * b + c, rounded to nearest, down, up, or toward zero."""
    nearest = _libm.fma(a, b, c)
    if mode == _ROUND_NEAREST or not all(map(math.isfinite, (a, b, c, nearest))):
        return nearest
    wanted, found = Fraction(a) * Fraction(b) + Fraction(c), Fraction(nearest)
    if mode == _ROUND_DOWN or (mode == _ROUND_TO_ZERO and wanted > 0):
        return math.nextafter(nearest, -math.inf) if found > wanted else nearest
    return math.nextafter(nearest, math.inf) if found < wanted else nearest
