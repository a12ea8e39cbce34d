"""Lower SAVE to a histogram: each lane adds 1 to the bin of its value, with an atomic.

The histogram is replicated, and a copy chosen by SM number, so that SMs rarely contend. Readers add up the copies.
"""

from __future__ import annotations

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.plan.maps import PlacedMap


def count_value(
    code: Emitter, placed: PlacedMap, base: str, value: str, width: int, condition: Condition | None
) -> None:
    """Count a value if the condition holds. Its `width` in bytes may be less than the field's."""
    copy = code.once("b32", "and.b32", code.special("%smid"), (placed.copies or 1) - 1)
    address = code.make("b64", "mad.wide.u32", copy, placed.unit_size, base)
    if not placed.counted:
        address = code.make("b64", "mad.wide.u32", _find_bin(code, placed, value, width), 8, address)
    code.put(f"red.global.add.u64 [{address}], {code.one()}", condition)


def _find_bin(code: Emitter, placed: PlacedMap, value: str, width: int) -> str:
    """Return the 32-bit number of a value's bin."""
    scale, bits = placed.map.scale, 8 * width
    assert scale
    if not scale.step:
        return code.make("b32", "sub.u32", bits, code.make("b32", f"clz.b{bits}", value))
    kind, last = f"u{bits}", scale.bins(width) - 2
    below = code.make("pred", f"setp.lt.{kind}", value, min(scale.low, (1 << bits) - 1))
    place = code.make(f"b{bits}", f"sub.{kind}", value, scale.low)
    if scale.step & (scale.step - 1):
        place = code.make(f"b{bits}", f"div.{kind}", place, scale.step)
    else:
        place = code.make(f"b{bits}", f"shr.{kind}", place, scale.step.bit_length() - 1)
    place = code.make(f"b{bits}", f"min.{kind}", place, last)
    if width == 8:
        place = code.make("b32", "cvt.u32.u64", place)
    return code.make("b32", "selp.b32", 0, code.make("b32", "add.u32", place, 1), below)
