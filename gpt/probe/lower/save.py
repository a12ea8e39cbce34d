"""Write the code for SAVE: choose the lane that saves, find the slot for the record, and stay within the buffer.

All branches are uniform: lanes that don't save execute the same instructions with a false predicate. So a SAVE can be
anywhere, even between instructions that all lanes of a warp must reach together.

gpt-stream(5) describes the buffers: each unit has a count and slots, or there's a log with rooms (rooms.py). The count
keeps growing when the slots are full, so it shows how many records were dropped; if records replace each other, it's 1.
If the lowest bit of an array's address is set, a full array starts again at its first slot, and so keeps the last
records. A log may be larger than its map says. The lowest bits of its address hold the factor, so that the launcher can
choose its size from what earlier launches needed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from gpt.probe.lower.claim import Room
from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.lower.histogram import count_value
from gpt.probe.lower.leader import find_leader
from gpt.probe.lower.rooms import append
from gpt.probe.lower.store import store_record
from gpt.probe.lower.table import add_to_slot
from gpt.probe.lower.total import take_in
from gpt.probe.plan.maps import PlacedMap


def save(
    code: Emitter,
    placed: PlacedMap,
    base: Callable[[PlacedMap], str],
    values: list[str],
    widths: list[int],
    condition: Condition | None,
    *,
    overwrite: bool,
    label: Callable[[], str],
    constant: list[bool],
    room: Room | None,
) -> None:
    """Save the values of a record if the condition holds. Values are registers; `widths` are the sizes of their fields
    in bytes, and `constant` says which values are the same in all threads.

    `base` returns the register with the address of the map's buffer. A value for a total may be narrower than its
    field, or empty if nothing is added. With `overwrite`, the record replaces the previous one. `label` makes labels.
    If the map is a log, `room` is the lane's room in it.
    """
    map_ = placed.map
    if placed.type == "histogram":
        count_value(code, placed, base(placed), values[0], widths[0], condition, label)
        return
    if placed.type == "table":
        add_to_slot(code, placed, base(placed), values, widths, condition, label())
        return
    if placed.type == "log":
        assert room
        append(code, placed, base(placed), values, constant, condition, room, label)
        return
    address = code.addresses.get(placed.param) or _address(code, placed, base)
    if placed.type == "total":
        take_in(code, placed, address, values, widths, condition)
        return
    leader = condition if map_.level == "thread" else find_leader(code, map_, condition)
    if placed.keeps:
        bit = code.once("b64", "and.b64", base(placed), 1)
        address = code.make("b64", "sub.u64", address, bit)
        is_last = code.once("pred", "setp.ne.u64", bit, 0)
    if placed.counted or (overwrite and placed.may_fill):
        code.put(f"red.global.add.u64 [{address}], {code.one()}", leader)
    if placed.counted:
        return
    if overwrite:  # faster than an atomic, which would only keep the count at 1
        count = None if placed.may_fill else code.make("b64", "mov.u64", 1)
        store_record(code, placed, address, 8, placed.unit_size, values, leader, count)
        return
    if map_.level == "thread":  # no other lane uses this counter
        number = code.make("b64", "ld.global.u64", f"[{address}]")
        code.put(f"st.global.u64 [{address}], {code.make('b64', 'add.u64', number, 1)}", leader)
    else:
        number = _claim(code, address, 1, leader)
    if placed.keeps:
        there = Condition(code.make("pred", "setp.lt.or.u64", number, placed.capacity, is_last))
        fits = code.both(there, leader)
        number = code.remainder(number, placed.capacity)
    else:
        fits = _fits(code, number, placed.capacity, leader)
    slot = code.make("b64", "mad.lo.u64", number, map_.stride, address)
    store_record(code, placed, slot, 8, math.gcd(placed.unit_size, map_.stride), values, fits)


def find_addresses(code: Emitter, maps: Iterable[PlacedMap], base: Callable[[PlacedMap], str]) -> dict[str, str]:
    """Compute the addresses of this thread's, warp's or block's elements in maps to which one lane saves for others,
    and in totals of the same level. Return the registers by the maps' parameters.
    """
    maps = [placed for placed in maps if _has_short_numbers(placed)]
    levels = {placed.map.level for placed in maps if placed.map.leader != "all"}
    return {
        placed.param: _address(code, placed, base)
        for placed in maps
        if placed.type in ("array", "total") and placed.map.level in levels
    }


def _address(code: Emitter, placed: PlacedMap, base: Callable[[PlacedMap], str]) -> str:
    """Compute the address of this thread's, warp's or block's element in a map."""
    level, size = placed.map.level, placed.unit_size
    if not _has_short_numbers(placed):
        return code.element(level, size, base(placed))
    number = code.once("b32", "cvt.u32.u64", code.unit(level))
    return code.once("b64", "mad.wide.u32", number, size, base(placed))


def _has_short_numbers(placed: PlacedMap) -> bool:
    """Return whether the numbers of a map's elements fit in 32 bits, because a larger buffer would have 64 GB. It would
    only have half of that if records are only counted. ptxas truncates sizes of elements that have more bits.
    """
    return not placed.counted and placed.unit_size < 1 << 32


def _claim(code: Emitter, address: str, count: int | str, condition: Condition | None) -> str:
    """Add `count` to a counter, and return its previous value. The register is always written, so that it isn't live
    before.
    """
    number = code.make("b64", "mov.u64", 0)
    code.put(f"atom.global.add.u64 {number}, [{address}], {count}", condition)
    return number


def _fits(code: Emitter, number: str, capacity: int | str, condition: Condition | None) -> Condition:
    if condition is None:
        return Condition(code.make("pred", "setp.lt.u64", number, capacity))
    return Condition(code.make("pred", "setp.lt.and.u64", number, capacity, code.positive(condition)))
