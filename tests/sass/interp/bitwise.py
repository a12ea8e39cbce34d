"""Counting bits, bit fields, packed numbers, minimum and maximum."""

from __future__ import annotations

import numpy as np

from tests.sass.interp.decode import Array, Run, Word, operation
from tests.sass.interp.integers import I32, I64, ONES, U32, U64, long, low, signed_source

_POWERS = U32(1) << np.arange(32, dtype=U32)


def bit_matrix(value: Array) -> Array:
    """Return a row of 32 bits for each number."""
    return (value[:, None] & _POWERS) != 0


def highest(value: Array) -> Array:
    """Return the number of the highest bit that's set, or all ones if there's none."""
    found = 31 - np.argmax(bit_matrix(value)[:, ::-1], axis=1)
    return np.where(value == 0, ONES, found.astype(U32))


@operation("IABS")
def _absolute(word: Word) -> Run:
    b, write = word.raw("b"), word.result()
    return lambda warp, mask: write(warp, mask, np.abs(b(warp).view(I32)).view(U32))


@operation("BREV", "UBREV")
def _reverse(word: Word) -> Run:
    b, write = word.raw("b"), word.result()
    return lambda warp, mask: write(warp, mask, (bit_matrix(b(warp)) * _POWERS[::-1]).sum(axis=1).astype(U32))


@operation("POPC", "UPOPC")
def _count(word: Word) -> Run:
    b, write = signed_source(word, "b", True), word.result()
    return lambda warp, mask: write(warp, mask, bit_matrix(b(warp)).sum(axis=1).astype(U32))


@operation("FLO", "UFLO")
def _find_highest(word: Word) -> Run:
    b, write, signed, as_shift = signed_source(word, "b", True), word.result(), word.bit(73), word.bit(74)

    def run(warp, mask):
        value = b(warp)
        found = highest(np.where(value.view(I32) < 0, ~value, value) if signed else value)
        write(warp, mask, np.where(found == ONES, found, U32(31) - found) if as_shift else found)

    return run


@operation("SGXT", "USGXT")
def _extend(word: Word) -> Run:
    a, b, write, signed, wraps = word.raw("a"), word.raw("b"), word.result(), word.bit(73), word.bit(75)

    def run(warp, mask):
        width = long(b(warp)) & U64(31) if wraps else np.minimum(long(b(warp)), U64(32))
        room = U64(64) - width
        value = np.where(width == 0, U64(0), long(a(warp)) << np.minimum(room, U64(63)))
        room = np.minimum(room, U64(63))
        write(warp, mask, low((value.view(I64) >> room.view(I64)).view(U64) if signed else value >> room))

    return run


@operation("BMSK", "UBMSK")
def _make_mask(word: Word) -> Run:
    a, b, write, wraps = word.raw("a"), word.raw("b"), word.result(), word.bit(75)

    def run(warp, mask):
        start, width = long(a(warp)), long(b(warp))
        if wraps:
            start, width = start & U64(31), width & U64(31)
        start, width = np.minimum(start, U64(32)), np.minimum(width, U64(32))
        write(warp, mask, low(((U64(1) << width) - U64(1)) << start))

    return run


def bytes_of(value: Array, signed: bool) -> Array:
    """Return a row of four numbers for each value."""
    found = np.ascontiguousarray(value).view(np.int8 if signed else np.uint8)
    return found.reshape(-1, 4).astype(I64)


def halves_of(value: Array, signed: bool) -> Array:
    """Return a row of two numbers for each value."""
    found = np.ascontiguousarray(value).view(np.int16 if signed else np.uint16)
    return found.reshape(-1, 2).astype(I64)


def pack_halves(values: Array) -> Array:
    """Combine each row of two numbers into one."""
    return np.ascontiguousarray(values.astype(np.uint16)).view(U32).reshape(-1)


@operation("IDP")
def _dot_product(word: Word) -> Run:
    a, b, c, write = word.raw("a"), word.raw("b"), signed_source(word, "c"), word.result()
    first, second, by_two, upper = word.bit(73), word.bit(74), word.bit(76), word.bit(77)

    def run(warp, mask):
        x, y = a(warp), bytes_of(b(warp), second)
        y = y[:, 2:] if by_two and upper else y[:, :2] if by_two else y
        products = (halves_of if by_two else bytes_of)(x, first) * y
        write(warp, mask, products.sum(axis=1).astype(U32) + c(warp))

    return run


@operation("VABSDIFF")
def _absolute_difference(word: Word) -> Run:
    a, b, c, write, signed = word.raw("a"), word.raw("b"), word.raw("c"), word.result(), word.bit(73)

    def run(warp, mask):
        x, y = a(warp), b(warp)
        x, y = (x.view(I32), y.view(I32)) if signed else (x, y)
        write(warp, mask, np.abs(x.astype(I64) - y.astype(I64)).astype(U32) + c(warp))

    return run


@operation("VABSDIFF4")
def _absolute_differences(word: Word) -> Run:
    a, b, c, write = word.raw("a"), word.raw("b"), word.raw("c"), word.result()
    signed, sums = word.bit(73), word.bit(75)

    def run(warp, mask):
        found = np.abs(bytes_of(a(warp), signed) - bytes_of(b(warp), signed))
        packed = found.sum(axis=1) if sums else np.ascontiguousarray(found.astype(np.uint8)).view(U32).reshape(-1)
        write(warp, mask, packed.astype(U32) + c(warp))

    return run


@operation("VIMNMX", "VIMNMX3", "VIADDMNMX")
def _extremes(word: Word) -> Run:
    """Return the minimum (if the predicate is true) or maximum of a and b, of a, b and c, or of a + b and c."""
    signed, packed, relu = word.bit(72), word.bit(73), word.bit(76)
    sources = [word.raw(slot) for slot in ("abc" if word.name != "VIMNMX" else "ab")]
    if word.name == "VIMNMX" and word.form == 1 and 32 not in word.places:
        sources[1] = word.raw("c")
    chooses_least, write = word.predicate(87), word.result()

    def values(fetched: Array) -> Array:
        if packed:
            return halves_of(fetched, signed)
        return (fetched.view(I32) if signed else fetched).astype(I64)[:, None]

    def run(warp, mask):
        numbers = [values(source(warp)) for source in sources]
        if word.name == "VIADDMNMX":
            total = numbers[0] + numbers[1]
            wrapped = total.astype(np.uint16 if packed else U32).reshape(-1)
            kind = {(True, True): np.int16, (True, False): np.uint16, (False, True): I32}.get((packed, signed), U32)
            numbers = [wrapped.view(kind).reshape(total.shape).astype(I64), numbers[2]]
        least = chooses_least(warp).reshape(-1, 1)
        found = numbers[0]
        for other in numbers[1:]:
            found = np.where(least, np.minimum(found, other), np.maximum(found, other))
        if relu:
            found = np.maximum(found, 0)
        write(warp, mask, pack_halves(found) if packed else found[:, 0].astype(U32))

    return run


@operation("P2R")
def _from_predicates(word: Word) -> Run:
    a, b, write = word.raw("a"), word.raw("b"), word.result()

    def run(warp, mask):
        packed = sum(warp.P[number].astype(U32) << U32(number) for number in range(7))
        write(warp, mask, a(warp) & ~b(warp) | packed & b(warp))

    return run


@operation("R2P")
def _to_predicates(word: Word) -> Run:
    a, b = word.raw("a"), word.raw("b")

    def run(warp, mask):
        value, chosen = a(warp), b(warp)
        for number in range(7):
            np.copyto(warp.P[number], value >> U32(number) & U32(1) != 0, where=mask & (chosen >> U32(number) & 1 != 0))

    return run
