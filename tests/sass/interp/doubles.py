"""64-bit floating point (floats.py has the rest)."""

from __future__ import annotations

import numpy as np

from tests.sass.interp.decode import Array, Fetch, Run, Word, operation
from tests.sass.interp.floats import F64, compare, exact
from tests.sass.interp.integers import U64, combine

NAN64 = U64(0xFFF8000000000000)  # as a GPU makes it
_SIGN = U64(1 << 63)


def double(word: Word, slot: str) -> Fetch:
    """Return an operand as a double, with its sign bits applied."""
    fetch, negative, absolute = word.pair(slot), word.is_negated(slot), word.is_absolute(slot)

    def get(warp):
        value = fetch(warp)
        value = value & ~_SIGN if absolute else value
        return (value ^ _SIGN if negative else value).view(F64)

    return get


def _rounded(a: Array, b: Array, c: Array, mode: int, mask: Array) -> Array:
    a, b, c = np.broadcast_arrays(a, b, c)
    found = np.zeros(len(mask), F64)
    a, b, c = (np.broadcast_to(one, found.shape) for one in (a, b, c))
    for lane in np.flatnonzero(mask):
        found[lane] = exact(float(a[lane]), float(b[lane]), float(c[lane]), mode)
    return np.where(np.isnan(found), NAN64, found.view(U64))


@operation("DADD")
def _add(word: Word) -> Run:
    a, b, mode, write = double(word, "a"), double(word, word.other), word.field(78, 2), word.result64()
    return lambda warp, mask: write(warp, mask, _rounded(a(warp), np.ones(1), b(warp), mode, mask))


@operation("DMUL")
def _multiply(word: Word) -> Run:
    a, b, mode, write = double(word, "a"), double(word, "b"), word.field(78, 2), word.result64()

    def run(warp, mask):
        x, y = a(warp), b(warp)
        if not mode:
            product = np.broadcast_to(x * y, (32,))
            write(warp, mask, np.where(np.isnan(product), NAN64, product.view(U64)))
        else:
            write(warp, mask, _rounded(x, y, np.full(1, -0.0), mode, mask))

    return run


@operation("DFMA")
def _multiply_add(word: Word) -> Run:
    a, b, c = (double(word, slot) for slot in "abc")
    mode, write = word.field(78, 2), word.result64()
    return lambda warp, mask: write(warp, mask, _rounded(a(warp), b(warp), c(warp), mode, mask))


@operation("DSETP")
def _set_predicate(word: Word) -> Run:
    kind, joined = word.field(76, 4), word.field(74, 2)
    a, b, also = double(word, "a"), double(word, word.other), word.predicate(87)
    first, second = word.decide(81), word.decide(84)

    def run(warp, mask):
        x, y = a(warp), b(warp)
        if kind in (0, 15):  # MIN and MAX: whether the result is a, and whether both are NaN
            found = (x < y if kind == 0 else x > y) | np.isnan(y)
            other = np.isnan(x) & np.isnan(y)
        else:
            found = compare(kind, x, y)
            other = ~found
        first(warp, mask, combine(joined, found, also(warp)))
        second(warp, mask, combine(joined, other, also(warp)))

    return run
