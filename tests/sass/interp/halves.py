"""Pairs of halves or bfloat16: a register has two 16-bit numbers.

An operand may use one of them twice (`.H0_H0`, `.H1_H1`), which two bits select: at 74 for the register at 24, at 60
for 32, at 81 for 64. The sign bits of the register at 64 are 84 and 83.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.sass.interp.conversions import brain_to_double, half_to_double, to_brain, to_half
from tests.sass.interp.decode import Array, Run, Word, operation
from tests.sass.interp.floats import F64, compare, narrowed, odd_sum
from tests.sass.interp.integers import U32, combine

_CHOICE = {24: 74, 32: 60, 64: 81}
_SIGNS = {24: (72, 73), 32: (63, 62), 64: (84, 83)}
_BRAIN = 85
_PLAIN, _LOWER, _UPPER = 0, 2, 3
Numbers = tuple[Array, Array]  # the lower ones and the upper ones, as doubles


def bits_of(word: Word, slot: str, chooses: bool = True) -> Callable[..., tuple[Array, Array]]:
    """Return a function that gets both halves of an operand, as bits with signs applied."""
    fetch, place = word.raw(slot), word.place(slot)
    register = place in word.places
    choice = word.field(_CHOICE[place], 2) if register and chooses else _PLAIN
    if choice == 1:
        raise word.refuse("an operand of 32 bits")
    negative, absolute = (register and word.bit(bit) for bit in _SIGNS[place])

    def get(warp):
        value = fetch(warp)
        lower, upper = value & U32(0xFFFF), value >> U32(16)
        lower, upper = (lower, lower) if choice == _LOWER else (upper, upper) if choice == _UPPER else (lower, upper)
        if absolute:
            lower, upper = lower & U32(0x7FFF), upper & U32(0x7FFF)
        if negative:
            lower, upper = lower ^ U32(0x8000), upper ^ U32(0x8000)
        return lower, upper

    return get


def numbers(word: Word, slot: str, brain: bool, chooses: bool = True) -> Callable[..., Numbers]:
    """Return a function that gets both halves of an operand."""
    fetch, convert = bits_of(word, slot, chooses), brain_to_double if brain else half_to_double

    def get(warp):
        lower, upper = fetch(warp)
        return convert(lower), convert(upper)

    return get


def _writer(word: Word, brain: bool) -> Callable[..., None]:
    write, convert, saturates = word.result(), to_brain if brain else to_half, word.bit(77)

    def put(warp, mask, lower, upper):
        if saturates:
            lower, upper = (np.where(np.isnan(one), 0, np.clip(one, 0, 1)) for one in (lower, upper))
        write(warp, mask, convert(upper) << U32(16) | convert(lower))

    return put


@operation("HADD2")
def _add(word: Word) -> Run:
    brain = word.bit(_BRAIN)
    a, b = numbers(word, "a", brain), numbers(word, word.other, brain)
    if word.bit(78):  # .F32: a single 32-bit number
        write = word.result()
        return lambda warp, mask: write(warp, mask, narrowed(a(warp)[0] + b(warp)[0], 0))
    put = _writer(word, brain)

    def run(warp, mask):
        one = F64(1)
        put(warp, mask, *(odd_sum(x, one, y) for x, y in zip(a(warp), b(warp), strict=True)))

    return run


@operation("HMUL2")
def _multiply(word: Word) -> Run:
    brain = word.bit(_BRAIN)
    a, b, put = numbers(word, "a", brain), numbers(word, "b", brain), _writer(word, brain)
    return lambda warp, mask: put(warp, mask, *(x * y for x, y in zip(a(warp), b(warp), strict=True)))


@operation("HFMA2")
def _multiply_add(word: Word) -> Run:
    brain, chooses = word.bit(_BRAIN), not word.operation & 4  # HFMA2.MMA can't choose halves
    if not chooses and any(word.field(_CHOICE[place], 2) for place in (24, 64)):
        raise word.refuse("a choice of halves")
    a, b, c = (numbers(word, slot, brain, chooses) for slot in "abc")
    put = _writer(word, brain)

    def run(warp, mask):
        put(warp, mask, *(odd_sum(*three) for three in zip(a(warp), b(warp), c(warp), strict=True)))

    return run


@operation("HMNMX2")
def _extreme(word: Word) -> Run:
    brain, keeps_nan = word.bit(_BRAIN), word.bit(81)
    a, b = bits_of(word, "a"), bits_of(word, word.other)
    least, write, convert = word.predicate(87), word.result(), brain_to_double if brain else half_to_double

    def run(warp, mask):
        found = []
        for x, y in zip(a(warp), b(warp), strict=True):
            first, second = convert(x), convert(y)
            less = (first < second) | ((first == second) & np.signbit(first) & ~np.signbit(second))
            chosen = np.where(less == least(warp), x, y)
            chosen = np.where(np.isnan(first), y, np.where(np.isnan(second), x, chosen))
            either, both = np.isnan(first) | np.isnan(second), np.isnan(first) & np.isnan(second)
            found.append(np.where(either if keeps_nan else both, U32(0x7FFF), chosen))
        write(warp, mask, found[1] << U32(16) | found[0])

    return run


@operation("HSET2")
def _set(word: Word) -> Run:
    kind, joined, whole, brain = word.field(76, 4), word.field(69, 2), not word.bit(71), word.bit(65)
    a, b, also, write = numbers(word, "a", brain), numbers(word, word.other, brain), word.predicate(87), word.result()
    yes = U32(0xFFFF if whole else 0x3F80 if brain else 0x3C00)

    def run(warp, mask):
        pairs = zip(a(warp), b(warp), strict=True)
        lower, upper = (np.where(combine(joined, compare(kind, x, y), also(warp)), yes, U32(0)) for x, y in pairs)
        write(warp, mask, upper << U32(16) | lower)

    return run


@operation("HSETP2")
def _set_predicates(word: Word) -> Run:
    kind, joined, brain = word.field(76, 4), word.field(69, 2), word.bit(65)
    a, b, also = numbers(word, "a", brain), numbers(word, word.other, brain), word.predicate(87)
    outs = word.decide(81), word.decide(84)
    if word.bit(71):
        raise word.refuse("both joined")

    def run(warp, mask):
        for out, x, y in zip(outs, a(warp), b(warp), strict=True):
            out(warp, mask, combine(joined, compare(kind, x, y), also(warp)))

    return run
