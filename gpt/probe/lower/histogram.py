"""Write the code for a SAVE to a histogram: each lane atomically adds 1 to the bin of its value.

A histogram has several copies, and the number of an SM selects its copy, so that SMs rarely wait for each
other. Readers add up the copies. A PTX kernel can also count in shared memory, if the launch has room for the bins
(gpt/probe/ptx/room.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.plan.maps import PlacedMap, Room

# A lane empties the bins in shared memory after this many additions. Even 1,024 lanes add less than 2^32 in that time.
PERIOD = 1 << 20
BIN = 4  # bytes
UNREAD = 4  # offset in a room
NOWHERE = (1 << 32) - 1


def count_value(
    code: Emitter,
    placed: PlacedMap,
    base: str,
    value: str,
    width: int,
    condition: Condition | None,
    label: Callable[[], str],
) -> None:
    """Count a value if the condition holds. It has `width` bytes, which may be fewer than the field has.

    `label` makes a new label.
    """
    number = None if placed.counted else _find_bin(code, placed, value, width)
    if not placed.room:
        _count_outside(code, placed, base, number, condition)
        return
    assert number
    outside, done = label(), label()
    base = code.once("b64", "and.b64", base, -2)
    known = code.known_values()
    code.jump(outside, has_no_room(code, placed.room))
    _count_inside(code, placed, base, number, condition, label(), done)
    code.put(f"bra.uni {done}")
    code.forget(known)
    code.lines.append(f"{outside}:")
    _count_outside(code, placed, base, number, condition)
    code.forget(known)
    code.lines.append(f"{done}:")


def find_address(room: Room) -> str:
    """Return the register that holds the address of the kernel's room, or NOWHERE. It's computed once, because
    computing it at each place would take longer than counting.
    """
    return f"%{room.symbol}_at"


def has_no_room(code: Emitter, room: Room) -> Condition:
    """Return the condition that this launch has no room."""
    return Condition(code.once("pred", "setp.eq.u32", find_address(room), NOWHERE))


def empty_bins(code: Emitter, placed: PlacedMap, base: str, condition: str, group: str, here: str, label: str) -> None:
    """Move the counts of a histogram from shared memory to this SM's copy in global memory.

    The lanes in `group`, in which `condition` holds, share the work. `here` is the mask of all lanes that execute this
    code.
    """
    assert placed.room
    count = code.make("b32", "popc.b32", group)
    number = code.make("b32", "popc.b32", code.below(group))
    copy = _find_copy(code, placed, base)
    code.lines.append(f"{label}:")
    there = Condition(code.make("pred", "setp.lt.and.u32", number, placed.bins, condition))
    found = code.make("b32", "mov.u32", 0)
    place = code.make("b32", "mad.lo.u32", number, BIN, find_address(placed.room))
    code.put(f"atom.shared.exch.b32 {found}, [{place}+{placed.room.offset}], 0", there)
    address = code.make("b64", "mad.wide.u32", number, 8, copy)
    some = Condition(code.make("pred", "setp.ne.u32", found, 0))
    code.put(f"red.global.add.u64 [{address}], {code.make('b64', 'cvt.u64.u32', found)}", some)
    code.put(f"add.u32 {number}, {number}, {count}")
    more = code.make("pred", "setp.lt.and.u32", number, placed.bins, condition)
    code.jump(label, Condition(code.make("pred", "vote.sync.any.pred", more, here)))


def _count_inside(
    code: Emitter, placed: PlacedMap, base: str, number: str, condition: Condition | None, label: str, done: str
) -> None:
    """Add 1 to a 32-bit bin in shared memory.

    Nothing waits for the addition. To prevent overflows, each lane counts its additions in a register, and empties all
    bins after PERIOD of them. A lane in which the condition doesn't hold adds to a word that nobody reads, because for
    a guard, ptxas would make the lanes branch.
    """
    assert placed.room
    start = code.once("b32", "add.u32", find_address(placed.room), placed.room.offset)
    place = code.make("b32", "mad.lo.u32", number, BIN, start)
    if condition:
        unread = code.once("b32", "add.u32", find_address(placed.room), UNREAD)
        place = code.make("b32", "selp.b32", place, unread, code.positive(condition))
    code.put(f"red.shared.add.u32 [{place}], 1")
    counted = find_counter(placed)
    code.put(f"add.u32 {counted}, {counted}, 1")
    due = code.make("pred", "setp.eq.u32", code.make("b32", "and.b32", counted, PERIOD - 1), 0)
    here, _ = code.group(None)
    code.jump(done, Condition(code.make("pred", "vote.sync.any.pred", due, here), negated=True))
    empty_bins(code, placed, base, code.positive(None), here, here, label)


def find_counter(placed: PlacedMap) -> str:
    """Return the register in which a lane counts its additions to shared memory."""
    return f"%{placed.param}_counted"


def _count_outside(
    code: Emitter, placed: PlacedMap, base: str, number: str | None, condition: Condition | None
) -> None:
    address = _find_copy(code, placed, base)
    if number:
        address = code.make("b64", "mad.wide.u32", number, 8, address)
    code.put(f"red.global.add.u64 [{address}], {code.one()}", condition)


def _find_copy(code: Emitter, placed: PlacedMap, base: str) -> str:
    """Return the address of the copy of the histogram that this SM uses."""
    copy = code.once("b32", "and.b32", code.special("%smid"), (placed.copies or 1) - 1)
    return code.make("b64", "mad.wide.u32", copy, placed.unit_size, base)


def _find_bin(code: Emitter, placed: PlacedMap, value: str, width: int) -> str:
    """Return the number of the bin for a value, in 32 bits."""
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
    """A method to divide: if `factor` isn't 0, take the upper half of the product with it; then shift right by
    `shift`.
    """

    factor: int
    shift: int


def find_divisor(step: int, span: int, bits: int) -> Divisor | None:
    """Return how to divide numbers up to `span` by a step, with products of `bits` bits. Return None if such products
    aren't exact enough for all of these numbers.

    Let F = 2^S / step, rounded up by E / step. Then N * F / 2^S is N / step + N * E / (step * 2^S). Since the next
    quotient is at least 1 / step away, this rounds down to the right one if N * E is less than 2^S. We take the largest
    S for which F fits: 2^S > 2^(bits - 1) * step. Because E is less than the step, that's enough for any N below
    2^(bits - 1).
    """
    if step & (step - 1) == 0:
        return Divisor(0, step.bit_length() - 1)
    scale = bits + step.bit_length() - 1
    factor = -(-(1 << scale) // step)
    return Divisor(factor, scale - bits) if span * (factor * step - (1 << scale)) < 1 << scale else None
