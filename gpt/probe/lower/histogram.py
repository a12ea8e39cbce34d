"""Lower SAVE to a histogram: each lane adds 1 to the bin of its value, with an atomic.

There are several copies, by the number of the SM, so that SMs rarely wait for each other. A reader adds them up.
A kernel in PTX can also count in shared memory, if a launch has room there: gpt/probe/ptx/room.py.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.plan.maps import PlacedMap, Room

HALF = 1 << 31


def count_value(
    code: Emitter, placed: PlacedMap, base: str, value: str, width: int, condition: Condition | None
) -> None:
    """Count a value of `width` bytes, which may be less than the field has, if the condition holds."""
    bit = code.once("b64", "and.b64", base, 1) if placed.room else None
    if bit:
        base = code.once("b64", "sub.u64", base, bit)
    copy = code.once("b32", "and.b32", code.special("%smid"), (placed.copies or 1) - 1)
    address = code.make("b64", "mad.wide.u32", copy, placed.unit_size, base)
    if not placed.counted:
        number = _find_bin(code, placed, value, width)
        address = code.make("b64", "mad.wide.u32", number, 8, address)
    if placed.room:
        inside = code.once("pred", "setp.ne.u64", bit, 0)
        start = code.make("b32", "add.u32", find_start(code, placed.room), placed.room.offset)
        _count_inside(code, code.make("b32", "mad.lo.u32", number, 4, start), address,
                      code.both(Condition(inside), condition))  # fmt: skip
        condition = code.both(Condition(inside, negated=True), condition)
    code.put(f"red.global.add.u64 [{address}], {code.one()}", condition)


def find_start(code: Emitter, room: Room) -> str:
    """Return a register of 32 bits with the address of a room."""
    end = code.once("b32", "add.u32", code.once("b32", "mov.u32", room.symbol), code.special("%dynamic_smem_size"))
    return code.once("b32", "sub.u32", end, room.size)


def _count_inside(code: Emitter, place: str, address: str, condition: Condition | None) -> None:
    """Add 1 to a 32-bit bin in shared memory. A bin that reaches HALF is added to global memory at once."""
    before = code.make("b32", "mov.u32", 0)
    code.put(f"atom.shared.add.u32 {before}, [{place}], 1", condition)
    full = Condition(code.make("pred", "setp.eq.u32", before, HALF - 1))
    code.put(f"red.shared.add.u32 [{place}], {HALF}", full)  # the same as subtracting it
    code.put(f"red.global.add.u64 [{address}], {HALF}", full)


def _find_bin(code: Emitter, placed: PlacedMap, value: str, width: int) -> str:
    """Return the 32-bit number of a value's bin."""
    scale, bits = placed.map.scale, 8 * width
    assert scale
    if not scale.step:
        return code.make("b32", "sub.u32", bits, code.make("b32", f"clz.b{bits}", value))
    kind, most = f"u{bits}", (1 << bits) - 1
    if scale.low > most:
        return code.once("b32", "mov.b32", 0)
    span = min(scale.high - scale.low, most)
    below = code.make("pred", f"setp.lt.{kind}", value, scale.low)
    place = code.make(f"b{bits}", f"min.{kind}", code.make(f"b{bits}", f"sub.{kind}", value, scale.low), span)
    divisor = find_divisor(scale.step, span, bits)
    if not divisor:
        place, bits, divisor = code.make("b64", "cvt.u64.u32", place), 64, find_divisor(scale.step, span, 64)
    assert divisor
    if divisor.factor:
        place = code.make(f"b{bits}", f"mul.hi.u{bits}", place, divisor.factor)
    if divisor.shift:
        place = code.make(f"b{bits}", f"shr.u{bits}", place, divisor.shift)
    if bits == 64:
        place = code.make("b32", "cvt.u32.u64", place)
    return code.make("b32", "selp.b32", 0, code.make("b32", "add.u32", place, 1), below)


class Divisor(NamedTuple):
    """Divide by taking the upper half of a product with `factor`, if it isn't 0, and shifting it right by `shift`."""

    factor: int
    shift: int


def find_divisor(step: int, span: int, bits: int) -> Divisor | None:
    """Return how to divide numbers up to `span`, of this many bits, by a step; None if a product of that size isn't
    exact for all of them.

    With F = 2^S / step, rounded up by E / step, N * F / 2^S is N / step + N * E / (step * 2^S). The next quotient is at
    least 1 / step away, so this rounds down to the right one if N * E is less than 2^S. S is as large as F has room
    for: 2^S > 2^(bits - 1) * step. As E is less than the step, that's enough if N is below 2^(bits - 1).
    """
    if step & (step - 1) == 0:
        return Divisor(0, step.bit_length() - 1)
    scale = bits + step.bit_length() - 1
    factor = -(-(1 << scale) // step)
    return Divisor(factor, scale - bits) if span * (factor * step - (1 << scale)) < 1 << scale else None
