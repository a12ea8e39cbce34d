"""Conversions between numbers of all kinds."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.sass.interp.decode import Array, Run, Word, operation
from tests.sass.interp.doubles import NAN64, double
from tests.sass.interp.floats import F32, F64, double_of, finished, narrowed, single
from tests.sass.interp.integers import I64, U32, U64, extended, low

_HALF, _SINGLE, _DOUBLE = 1, 2, 3
_ROUNDERS: tuple[Callable[[Array], Array], ...] = (np.rint, np.floor, np.ceil, np.trunc)
_NAN16 = U32(0x7FFF)


def half_to_double(value: Array) -> Array:
    """Return the lower 16 bits as a number."""
    return value.astype(np.uint16).view(np.float16).astype(F64)


def brain_to_double(value: Array) -> Array:
    """Return the lower 16 bits, a bfloat16, as a number."""
    return double_of(value << U32(16))


def to_half(value: Array, mode: int = 0) -> Array:
    """Return the bits of a half, rounded as `narrowed` does."""
    found = value.astype(np.float16)
    if mode:
        back = found.astype(F64)
        down = mode == 1 or (mode == 3 and value > 0)
        up = mode == 2 or (mode == 3 and value <= 0)
        found = np.where(down & (back > value), np.nextafter(found, np.float16(-np.inf)), found)
        found = np.where(up & (back < value), np.nextafter(found, np.float16(np.inf)), found)
    return np.where(np.isnan(value), _NAN16, found.view(np.uint16).astype(U32))


def to_brain(value: Array) -> Array:
    """Return the bits of a bfloat16: the upper half of a float that was rounded to odd, rounded to nearest."""
    bits = narrowed(value, 3)
    odd = np.where((bits.view(F32).astype(F64) != value) & np.isfinite(value), bits | U32(1), bits)
    rounded = (odd.astype(U64) + U64(0x7FFF) + (odd >> U32(16) & U32(1)).astype(U64)) >> U64(16)
    return np.where(np.isnan(value), _NAN16, rounded.astype(U32))


def _float_source(word: Word, kind: int, ftz: bool):
    if kind == _DOUBLE:
        return double(word, "b")
    if kind == _SINGLE:
        fetch = single(word, "b", ftz)
        return lambda warp: double_of(fetch(warp))
    if kind == _HALF and not word.is_absolute("b"):
        half, minus, upper = word.raw("b"), word.is_negated("b"), U32(16 * word.bit(60))
        return lambda warp: half_to_double(half(warp) >> upper) * (-1 if minus else 1)
    raise word.refuse("an unknown source")


def _float_result(word: Word, kind: int, mode: int, ftz: bool):
    if kind == _DOUBLE:
        write = word.result64()
        return lambda warp, mask, value: write(warp, mask, np.where(np.isnan(value), NAN64, value.view(U64)))
    write = word.result()
    if kind == _SINGLE:
        return lambda warp, mask, value: write(warp, mask, finished(narrowed(value, mode), False, ftz))
    if kind == _HALF:
        return lambda warp, mask, value: write(warp, mask, to_half(value, mode))
    raise word.refuse("an unknown result")


@operation("F2F")
def _float_to_float(word: Word) -> Run:
    get = _float_source(word, word.field(84, 2), word.bit(80))
    put = _float_result(word, word.field(75, 2), word.field(78, 2), word.bit(80))
    return lambda warp, mask: put(warp, mask, get(warp))


@operation("FRND")
def _round(word: Word) -> Run:
    get, rounder = _float_source(word, word.field(84, 2), word.bit(80)), _ROUNDERS[word.field(78, 2)]
    put = _float_result(word, word.field(75, 2), 0, word.bit(80))
    return lambda warp, mask: put(warp, mask, rounder(get(warp)))


@operation("F2I")
def _float_to_integer(word: Word) -> Run:
    get, rounder = _float_source(word, word.field(84, 2), word.bit(80)), _ROUNDERS[word.field(78, 2)]
    width, signed, nan_is_zero = 8 << word.field(75, 2), word.bit(72), word.bit(77)
    write = word.result64() if width == 64 else word.result()
    least, most = (-(1 << width - 1), (1 << width - 1) - 1) if signed else (0, (1 << width) - 1)
    nan = 0 if nan_is_zero else 1 << width - 1

    def convert(value: float) -> int:
        if value != value:
            return nan
        return least if value <= least else most if value >= most else int(value)

    def run(warp, mask):
        values = np.broadcast_to(rounder(get(warp)), (32,))
        found = np.array([convert(value) & (1 << 64) - 1 for value in values.tolist()], U64)
        write(warp, mask, found if width == 64 else low(found))

    return run


@operation("I2F")
def _integer_to_float(word: Word) -> Run:
    width, signed, mode = 8 << word.field(84, 2), word.bit(74), word.field(78, 2)
    kind = word.field(75, 2)
    if (word.field(60, 2) and width < 32) or (mode and kind != _SINGLE):
        raise word.refuse("a part of a register, or a way of rounding")
    get = word.pair("b") if width == 64 else word.raw("b")
    put = _float_result(word, kind, mode, False)
    write = word.result()

    def run(warp, mask):
        value = get(warp) if width == 64 else extended(get(warp), False)
        if width < 64:
            value = value << U64(64 - width)
            value = (value.view(I64) >> (64 - width)).view(U64) if signed else value >> U64(64 - width)
        number = value.view(I64) if signed else value
        if width < 64 or kind == _DOUBLE:
            put(warp, mask, number.astype(F64))
        elif kind == _SINGLE:  # 64 bits don't fit a double: a sticky bit stands for those cut off
            size = np.abs(number).view(U64) if signed else value
            cut = U64(0x3FF)
            kept = np.where(size >> U64(50) != 0, size & ~cut | ((size & cut) != 0).astype(U64) << U64(10), size)
            big = kept.astype(F64)
            write(warp, mask, narrowed(np.where(number < 0, -big, big) if signed else big, mode))
        else:
            raise word.refuse("half of 64 bits")

    return run


@operation("I2FP")
def _integer_to_single(word: Word) -> Run:
    signed, b, mode, write = word.bit(74), word.raw("b"), word.field(78, 2), word.result()
    if word.field(75, 2) != 2 or word.field(84, 2) != 2:
        raise word.refuse("not from 32 bits to 32")

    def run(warp, mask):
        number = extended(b(warp), signed)
        write(warp, mask, narrowed((number.view(I64) if signed else number).astype(F64), mode))

    return run


@operation("F2FP")
def _pack(word: Word) -> Run:
    """Return a in the upper half, and b in the lower one, as halves or bfloat16."""
    a, b, relu, brain, write = single(word, "a"), single(word, "b"), word.bit(75), word.bit(76), word.result()
    mode = word.field(79, 2)
    if mode not in (0, 3) or (brain and mode):
        raise word.refuse("a way of rounding")
    convert = to_brain if brain else lambda value: to_half(value, mode)

    def run(warp, mask):
        values = [double_of(source(warp)) for source in (a, b)]
        if relu:
            values = [np.where(value > 0, value, np.where(np.isnan(value), value, 0)) for value in values]
        upper, lower = (convert(value) for value in values)
        write(warp, mask, upper << U32(16) | lower)

    return run
