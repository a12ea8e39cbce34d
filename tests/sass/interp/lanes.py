"""Instructions that exchange values between lanes of a warp, or read special registers."""

from __future__ import annotations

import numpy as np

from tests.sass.interp.bitwise import bytes_of
from tests.sass.interp.decode import Array, Run, Word, operation
from tests.sass.interp.integers import I32, U32, U64
from tests.sass.interp.memory import SHARED_WINDOW

LANES = np.arange(32, dtype=U32)
_BITS = U32(1) << LANES


def packed(mask: Array) -> int:
    """Return a mask of lanes as a number."""
    return int(_BITS[mask].sum(dtype=U64))


def unpacked(mask: int) -> Array:
    """Return a number as a mask of lanes."""
    return (U32(mask & 0xFFFFFFFF) & _BITS) != 0


START = 1 << 50  # the time when a launch begins


def _special(warp, number: int) -> Array | int | None:
    """Return a special register, or None if it's unknown. Numbers come from the code of our own kernels."""
    block = warp.block
    if 0x21 <= number <= 0x23:
        return warp.thread[number - 0x21]
    if 0x25 <= number <= 0x27:
        return block.index[number - 0x25]
    masks = {0x38: _BITS, 0x39: _BITS - U32(1), 0x3A: (_BITS << U32(1)) - U32(1)}
    masks |= {0x3B: ~((_BITS << U32(1)) - U32(1)), 0x3C: ~(_BITS - U32(1))}
    if number in masks:
        return masks[number]
    values: dict[int, Array | int] = {
        0x00: LANES,
        0x2F: SHARED_WINDOW >> 32,  # SR_SWINHI
        0x43: 3,  # SR_VIRTUALSMID
        0x50: int(warp.clock) & 0xFFFFFFFF,
        0x51: int(warp.clock) >> 32,
        0x52: int(warp.clock) + START & 0xFFFFFFFF,  # SR_GLOBALTIMERLO, in ns: a cycle takes 1 ns here
        0x53: int(warp.clock) + START >> 32,
        0x88: 0,  # SR_CgaCtaId
        0xFF: 0,
    }
    return values.get(number)


@operation("S2R", "S2UR", "CS2R")
def _read_special(word: Word) -> Run:
    number, wide = word.field(72, 8), word.name == "CS2R" and word.bit(80)
    write, writes = word.result(), word.results(2)

    def run(warp, mask):
        value = _special(warp, number)
        if value is None:
            raise word.refuse(f"special register {number:#x}")
        values = np.asarray(value, U32).reshape(-1)
        if not wide:
            write(warp, mask, values)
        else:
            writes(
                warp,
                mask,
                [values, np.asarray(_special(warp, number + 1) if number in (0x50, 0x52) else 0, U32).reshape(-1)],
            )

    return run


@operation("R2UR")
def _to_uniform(word: Word) -> Run:
    a, write = word.raw("a"), word.result()

    def run(warp, mask):
        if mask.any():
            write(warp, mask, np.broadcast_to(a(warp), (32,))[mask][:1])

    return run


@operation("VOTE", "VOTEU")
def _vote(word: Word) -> Run:
    kind, what, out = word.field(72, 2), word.predicate(87), word.decide(81)
    write = word.result()
    if kind == 3:
        raise word.refuse("an unknown vote")

    def run(warp, mask):
        if not mask.any():
            return
        votes = np.broadcast_to(what(warp), (32,)) & mask
        count, total = int(votes.sum()), int(mask.sum())
        found = count == total if kind == 0 else count > 0 if kind == 1 else count in (0, total)
        write(warp, mask, np.array([packed(votes)], U32))
        out(warp, mask, np.array([found]))

    return run


@operation("SHFL")
def _shuffle(word: Word) -> Run:
    """Read another lane's value. An inactive lane gives garbage; out of range, a lane gets its own value."""
    kind, a, write, out = word.field(58, 2), word.raw("a"), word.result(), word.decide(81)
    lane = word.at(32) if 32 in word.places else None
    limit = word.at(64) if 64 in word.places else None
    fixed_lane, fixed_limit = U32(word.field(53, 5)), U32(word.field(40, 13))

    def run(warp, mask):
        value = np.broadcast_to(a(warp), (32,))
        count = (lane(warp) if lane else fixed_lane) & U32(31)
        bound = limit(warp) if limit else fixed_limit
        clamp, segment = bound & U32(31), bound >> U32(8) & U32(31)
        most, least = (LANES & segment) | (clamp & ~segment), LANES & segment
        if kind == 0:
            source = least | (count & ~segment)
            inside = source <= most
        elif kind == 1:
            source = LANES - count
            inside = source.view(I32) >= most.view(I32)
        elif kind == 2:
            source = LANES + count
            inside = source <= most
        else:
            source = LANES ^ count
            inside = source <= most
        source = np.where(inside, source, LANES) & U32(31)
        garbage = warp.rng.integers(0, 1 << 32, 32, U32)
        write(warp, mask, np.where(mask[source], value[source], garbage))
        out(warp, mask, np.broadcast_to(inside, (32,)))

    return run


@operation("MATCH")
def _match(word: Word) -> Run:
    wide, matches_all, out, write = word.bit(73), not word.bit(79), word.decide(81), word.result()
    value = word.pair("a") if wide else word.raw("a")

    def run(warp, mask):
        numbers = np.broadcast_to(value(warp), (32,))
        equal = (numbers[:, None] == numbers[None, :]) & mask[None, :]
        masks = (equal * _BITS).sum(axis=1, dtype=U64).astype(U32)
        if matches_all:
            every = masks == packed(mask)
            write(warp, mask, np.where(every, masks, U32(0)))
            out(warp, mask, every)
        else:
            write(warp, mask, masks)

    return run


@operation("REDUX")
def _reduce(word: Word) -> Run:
    signed, kind, a, write = word.bit(73), word.field(78, 3), word.raw("a"), word.result()
    functions = {
        0: np.bitwise_and.reduce,
        1: np.bitwise_or.reduce,
        2: np.bitwise_xor.reduce,
        3: lambda values: np.add.reduce(values, dtype=values.dtype),
        4: np.minimum.reduce,
        5: np.maximum.reduce,
    }
    if kind not in functions:
        raise word.refuse("an unknown reduction")

    def run(warp, mask):
        if mask.any():
            values = np.ascontiguousarray(np.broadcast_to(a(warp), (32,))[mask])
            found = functions[kind](values.view(I32) if signed else values)
            write(warp, mask, np.array([found]).view(U32))

    return run


@operation("ELECT")
def _elect(word: Word) -> Run:
    out, write, among = word.decide(81), word.result(), word.predicate(87)

    def run(warp, mask):
        there = np.flatnonzero(mask & np.broadcast_to(among(warp), (32,)))
        out(warp, mask, (there[0] if len(there) else 32) == LANES)
        write(warp, mask, np.array([packed(mask)], U32))

    return run


@operation("B2R")
def _read_barrier(word: Word) -> Run:
    if not word.bit(78):
        raise word.refuse("not a result")
    out, write = word.decide(81), word.result()

    def run(warp, mask):
        write(warp, mask, np.array([warp.reduced], U32))
        out(warp, mask, np.array([warp.reduced != 0]))

    return run


@operation("MOVM")
def _transpose(word: Word) -> Run:
    """Transpose an 8 x 8 matrix of 16-bit numbers: lane l has row l / 4, columns 2 (l % 4) and 2 (l % 4) + 1."""
    a, write = word.raw("a"), word.result()
    if word.bit(78):
        raise word.refuse("not a transposition")

    def run(warp, mask):
        matrix = bytes_of(np.broadcast_to(a(warp), (32,)), False).astype(np.uint8).view(np.uint16).reshape(8, 8)
        write(warp, mask, np.ascontiguousarray(matrix.T).view(U32).reshape(32))

    return run
