"""Matrices spread over a warp: products, and loads and stores of 8 x 8 tiles.

Lanes hold elements as in PTX's mma instructions: in a result, lane l has row l / 4 and columns from 2 (l % 4) on, and
so on. Products are exact 64-bit sums that are rounded once. A tensor core rounds in several steps, so results can only
be compared bit for bit if no rounding is needed.
"""

from __future__ import annotations

import numpy as np

from tests.sass.interp.accesses import address, load, store
from tests.sass.interp.bitwise import bytes_of
from tests.sass.interp.conversions import brain_to_double, half_to_double, to_half
from tests.sass.interp.decode import Array, Run, Word, operation
from tests.sass.interp.floats import F64, double_of, narrowed
from tests.sass.interp.integers import I32, I64, U32, U64

ROW, PART = np.arange(32) // 4, np.arange(32) % 4


def _fetch(word: Word, place: int, count: int) -> list:
    return [word.at(place, index) for index in range(count)]


def _left(registers: list[Array], per: int) -> Array:
    """Return the 16-row matrix A, given its registers by row and half of the depth; each register holds
    `per` numbers.
    """
    halves = len(registers) // 2
    found = np.zeros((16, 4 * per * halves), registers[0].dtype)
    for index, values in enumerate(registers):
        rows, start = ROW + 8 * (index % 2), 4 * per * (index // 2)
        for part in range(per):
            found[rows, start + per * PART + part] = values[:, part]
    return found


def _right(registers: list[Array], per: int) -> Array:
    """Return the matrix B, 8 columns."""
    found = np.zeros((4 * per * len(registers), 8), registers[0].dtype)
    for index, values in enumerate(registers):
        for part in range(per):
            found[4 * per * index + per * PART + part, ROW] = values[:, part]
    return found


def _sum(registers: list[Array], rows: int) -> Array:
    """Return the matrix C from registers that hold one number each."""
    found = np.zeros((rows, 8), registers[0].dtype)
    for index, values in enumerate(registers):
        found[ROW + 8 * (index // 2), 2 * PART + index % 2] = values
    return found


def _spread(matrix: Array) -> list[Array]:
    return [matrix[ROW + 8 * (index // 2), 2 * PART + index % 2] for index in range(len(matrix) // 4)]


def _pairs(value: Array, brain: bool) -> Array:
    value = np.broadcast_to(value, (32,))
    convert = brain_to_double if brain else half_to_double
    return np.stack([convert(value & U32(0xFFFF)), convert(value >> U32(16))], axis=1)


@operation("HMMA")
def _half_product(word: Word) -> Run:
    kind, single = word.field(82, 2), word.bit(76)
    deep = word.bit(75) if kind < 2 else not word.bit(78)
    if (kind > 1 and (kind != 2 or word.bit(75))) or (kind < 2 and word.bit(78)):
        raise word.refuse("an unknown shape")
    left, right = _fetch(word, 24, 4 if deep else 2), _fetch(word, 32, 2 if deep else 1)
    before, write = _fetch(word, 64, 4 if single else 2), word.results(4 if single else 2)

    def run(warp, mask):
        if kind == 2:  # tf32: a float whose lower 13 bits are ignored
            cut = U32(0xFFFFE000)
            read = lambda one: double_of(np.broadcast_to(one(warp) & cut, (32,)))[:, None]  # noqa: E731
            a, b = (_left([read(one) for one in left], 1), _right([read(one) for one in right], 1))
        else:
            a = _left([_pairs(one(warp), kind == 1) for one in left], 2)
            b = _right([_pairs(one(warp), kind == 1) for one in right], 2)
        if single:
            c = _sum([double_of(np.broadcast_to(one(warp), (32,))) for one in before], 16)
            write(warp, mask, [narrowed(one, 0) for one in _spread(a @ b + c)])
        else:
            c = _sum([part for one in before for part in _pairs(one(warp), False).T], 16)
            found = [to_half(one) for one in _spread(a @ b + c)]
            write(warp, mask, [found[0] | found[1] << U32(16), found[2] | found[3] << U32(16)])

    return run


@operation("IMMA")
def _integer_product(word: Word) -> Run:
    if not word.bit(74) or not word.bit(86):
        raise word.refuse("an unknown shape")
    deep, signed = word.bit(75), (word.bit(76), word.bit(78))
    left, right = _fetch(word, 24, 4 if deep else 2), _fetch(word, 32, 2 if deep else 1)
    before, write = _fetch(word, 64, 4), word.results(4)

    def run(warp, mask):
        def read(one, with_sign):
            return bytes_of(np.broadcast_to(one(warp), (32,)), with_sign)

        a = _left([read(one, signed[0]) for one in left], 4)
        b = _right([read(one, signed[1]) for one in right], 4)
        c = _sum([np.broadcast_to(one(warp), (32,)).view(I32).astype(I64) for one in before], 16)
        write(warp, mask, [one.astype(U32) for one in _spread(a @ b + c)])

    return run


@operation("DMMA")
def _double_product(word: Word) -> Run:
    left, right = word.pair("a"), word.pair("b")
    before, write = _fetch(word, 64, 4), word.results(4)

    def run(warp, mask):
        a, b = np.zeros((8, 4)), np.zeros((4, 8))
        a[ROW, PART] = np.broadcast_to(left(warp), (32,)).view(F64)
        b[PART, ROW] = np.broadcast_to(right(warp), (32,)).view(F64)
        words = [np.broadcast_to(one(warp), (32,)).astype(U64) for one in before]
        c = _sum([(words[index] | words[index + 1] << U64(32)).view(F64) for index in (0, 2)], 8)
        found = [one.view(U64) for one in map(np.ascontiguousarray, _spread(a @ b + c))]
        write(warp, mask, [part.astype(U32) for one in found for part in (one & U64(0xFFFFFFFF), one >> U64(32))])

    return run


def _matrix_shape(word: Word) -> tuple[int, bool]:
    number, transposed = word.field(72, 2), word.bit(78)
    if number > 2:
        raise word.refuse("an unknown number of matrices")
    return 1 << number, transposed


@operation("LDSM")
def _load_matrices(word: Word) -> Run:
    count, transposed = _matrix_shape(word)
    where, write = address(word), word.results(count)

    def run(warp, mask):
        addresses, found = where(warp), []
        for index in range(count):
            rows = load(warp, "shared", addresses[8 * index : 8 * index + 8], np.arange(8), 16)
            matrix = rows.view(np.uint16)
            matrix = np.ascontiguousarray(matrix.T if transposed else matrix)
            found.append(matrix.view(U32).reshape(32))
        write(warp, mask, found)

    return run


@operation("STSM")
def _store_matrices(word: Word) -> Run:
    count, transposed = _matrix_shape(word)
    where, data = address(word), [word.at(32, index) for index in range(count)]

    def run(warp, mask):
        addresses = where(warp)
        for index in range(count):
            matrix = np.ascontiguousarray(np.broadcast_to(data[index](warp), (32,))).view(np.uint16).reshape(8, 8)
            rows = np.ascontiguousarray(matrix.T if transposed else matrix).view(np.uint8)
            store(warp, "shared", addresses[8 * index : 8 * index + 8], np.arange(8), rows)

    return run
