"""Write the code that claims a room of a log. gpt/stream/rooms.py explains rooms, arenas and their counters.

Each thread has two registers for a log, `cursor` and `left`. Both are 0 at first.

    room        cursor                          left
    there       address of the next record      bytes left, a multiple of 16, plus the number of the next room
    not there   bytes left, less than ABSENT    the number of the next room

A room isn't there if it was claimed but didn't fit into the arena. In that case, `left` is only the number of the next
room, which is less than 16, so it's less than the size of any record. One comparison therefore shows whether a lane can
write. Most saves need no claim, so the code for claims is behind a uniform branch.

In a log with a ring, a lane claims room number 0 only, and starts again at its beginning when it's full. If that room
isn't there, `cursor` stays 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from gpt.probe.lower.emit import Condition, Emitter, Value
from gpt.probe.lower.store import Stored, store
from gpt.probe.plan.maps import PlacedMap
from gpt.stream.rooms import (
    APART,
    ARENAS,
    DROPPED,
    GROWTH,
    HEAD,
    LAST,
    LEAST,
    OVERWRITTEN,
    ROOM_HEAD,
    SECTOR,
    ring_bytes,
)

NUMBER = 15  # the bits of `left` that hold the number of the next room
ABSENT = 1 << 16  # more than the bytes of a room, and less than any address
STREAMED = ".cs"  # evict early: this launch doesn't read the data again


class Room(NamedTuple):
    """The registers that hold a lane's position in a log."""

    cursor: str
    left: str


class Place(NamedTuple):
    """A log, as seen by a lane: its map, the register with its address, the lane's room in it, and a function that
    makes labels.
    """

    placed: PlacedMap
    base: str
    room: Room
    label: Callable[[], str]


def make_room(
    code: Emitter,
    place: Place,
    group: str,
    size: str,
    here: str,
    leader: Condition,
) -> None:
    """Claim a room if the leader's is too small for a record of this size.

    If the arena has no space for another room, count the entries as dropped, one for each lane in `group`, and subtract
    the size of the record from what's left of the missing room. `here` is the mask of all lanes that execute this code.
    """
    placed, base, room, label = place
    known, go_on = code.known_values(), label()
    short = code.make("pred", "setp.lt.and.u32", room.left, size, code.positive(leader))
    somebody = code.make("pred", "vote.sync.any.pred", short, here)
    code.jump(go_on, Condition(somebody, negated=True))

    given = [Value(base, "b64"), Value(group, "b32"), Value(size, "b32")]
    given.append(Value(code.make("b32", "selp.b32", 1, 0, short), "b32"))

    def claim(code: Emitter, given: list[str], changed: list[str]) -> None:
        base, group, size, short = given
        claims = code.make("pred", "setp.ne.u32", short, 0)
        if placed.map.ring:
            _claim_ring(code, placed, base, claims, Room(*changed))
        else:
            _claim(code, placed, base, group, size, claims, Room(*changed))

    code.share(f"room_{placed.param}", given, [Value(room.cursor, "b64"), Value(room.left, "b32")], claim)
    code.lines.append(f"{go_on}:")
    code.forget(known)


def _claim(code: Emitter, placed: PlacedMap, base: str, group: str, size: str, short: str, room: Room) -> None:
    """Claim a room for a leader that has none, or whose room is too small."""
    absent = code.make("pred", "setp.lt.u64", room.cursor, ABSENT)
    left = code.make("b32", "selp.b32", code.make("b32", "cvt.u32.u64", room.cursor), room.left, absent)
    claims = Condition(code.make("pred", "setp.lt.and.u32", left, size, short))
    number = code.make("b32", "and.b32", room.left, NUMBER)
    growth = code.make("b32", "mul.lo.u32", number, GROWTH.bit_length() - 1)
    wanted = code.make("b32", "shl.b32", code.make("b32", "mov.b32", LEAST), growth)
    least = code.make("b32", "add.u32", size, ROOM_HEAD + SECTOR - 1)
    wanted = code.make("b32", "max.u32", wanted, code.make("b32", "and.b32", least, 0x100000000 - SECTOR))
    counters, place, fits = _claim_bytes(code, placed, base, wanted, claims)
    number = code.make("b32", "min.u32", code.make("b32", "add.u32", number, 1), LAST)
    inside = code.make("b32", "sub.u32", wanted, ROOM_HEAD)
    code.put(f"mov.b32 {room.left}, {number}", claims)
    code.put(f"cvt.u64.u32 {room.cursor}, {inside}", claims)
    code.put(f"or.b32 {room.left}, {inside}, {number}", fits)
    code.put(f"add.u64 {room.cursor}, {place}, {HEAD + ROOM_HEAD}", fits)
    missing = Condition(code.make("pred", "setp.lt.and.u64", room.cursor, ABSENT, short))
    code.put(f"sub.u64 {room.cursor}, {room.cursor}, {code.make('b64', 'cvt.u64.u32', size)}", missing)
    entries = code.make("b64", "cvt.u64.u32", code.make("b32", "popc.b32", group))
    code.put(f"red.global.add.u64 [{counters}+{DROPPED}], {entries}", missing)


def _claim_ring(code: Emitter, placed: PlacedMap, base: str, short: str, room: Room) -> None:
    """Claim a room for a leader that never claimed one, or let it start again at the beginning of its room."""
    records = placed.map.ring or 0
    filled = records * placed.layout.size
    size = ring_bytes(placed.layout, records)
    is_full = Condition(code.make("pred", "setp.ge.and.u64", room.cursor, ABSENT, short))
    claims = Condition(code.make("pred", "setp.eq.and.u32", room.left, 0, short))
    counters, place, fits = _claim_bytes(code, placed, base, code.make("b32", "mov.b32", size), claims)
    code.put(f"mov.b32 {room.left}, 1", claims)
    code.put(f"mov.b32 {room.left}, {filled | 1}", fits)
    code.put(f"add.u64 {room.cursor}, {place}, {HEAD + ROOM_HEAD}", fits)
    missing = Condition(code.make("pred", "setp.lt.and.u64", room.cursor, ABSENT, short))
    code.put(f"red.global.add.u64 [{counters}+{DROPPED}], {code.one()}", missing)
    for at, name in ((8, "%clock64"), (16, "%globaltimer")):  # the tail
        store(code, [Stored(at, 8, code.make("b64", "mov.u64", name))], room.cursor, 8, is_full, STREAMED)
    code.put(f"sub.u64 {room.cursor}, {room.cursor}, {filled}", is_full)
    code.put(f"add.u32 {room.left}, {room.left}, {filled}", is_full)
    overwritten = code.make("b64", "mul.lo.u64", code.one(), records)
    code.put(f"red.global.add.u64 [{counters}+{OVERWRITTEN}], {overwritten}", is_full)


def _claim_bytes(
    code: Emitter, placed: PlacedMap, base: str, wanted: str, claims: Condition
) -> tuple[str, str, Condition]:
    """Claim a room of `wanted` bytes if the condition holds. Return the address of the arena's counters, the address of
    the room less HEAD, and the condition that the room is there.
    """
    base, arena, end_of_arena = _find_arena(code, placed, base)
    counters = code.make("b64", "mad.wide.u32", arena, APART, base)
    wide = code.make("b64", "cvt.u64.u32", wanted)
    before = code.make("b64", "mov.u64", 0)
    code.put(f"atom.global.add.u64 {before}, [{counters}], {wide}", claims)
    end = code.make("b64", "add.u64", before, wide)
    fits = Condition(code.make("pred", "setp.le.and.u64", end, end_of_arena, claims.register))
    place = code.make("b64", "mad.lo.u64", code.make("b64", "cvt.u64.u32", arena), end_of_arena, base)
    place = code.make("b64", "add.u64", place, before)
    if not placed.counted:
        _write_head(code, placed, place, wanted, fits)
    return counters, place, fits


def _write_head(code: Emitter, placed: PlacedMap, place: str, size: str, fits: Condition) -> None:
    """Write the head of a room, in pairs of words, which takes fewer registers. This happens too rarely for speed to
    matter.
    """
    unit = code.unit(placed.map.level)
    if placed.map.level == "thread":
        unit = code.make("b64", "sub.u64", unit, code.make("b64", "cvt.u64.u32", code.special("%laneid")))
    store(code, [Stored(HEAD, 4, size), Stored(HEAD + 4, 4, code.special("%smid"))], place, 8, fits, STREAMED)
    store(code, [Stored(HEAD + 8, 8, unit)], place, 8, fits, STREAMED)
    for at, name in ((HEAD + 16, "%clock64"), (HEAD + 24, "%globaltimer")):
        store(code, [Stored(at, 8, code.make("b64", "mov.u64", name))], place, 8, fits, STREAMED)


def _find_arena(code: Emitter, placed: PlacedMap, base: str) -> tuple[str, str, str]:
    """Return the address of a log, the number of this block's arena, and the size of an arena in bytes: gpt-stream(5),
    Rooms.
    """
    number = code.make("b32", "and.b32", code.make("b32", "cvt.u32.u64", base), 255)
    base = code.make("b64", "and.b64", base, 0xFFFFFFFFFFFFFF00)
    arenas = code.make("b32", "shr.u32", number, 5)
    mask = code.make("b32", "shl.b32", -1, arenas)
    block = code.once("b32", "cvt.u32.u64", code.block())
    arena = code.make("b32", "and.b32", block, code.make("b32", "not.b32", mask))
    doublings = code.make("b32", "and.b32", number, 31)
    doublings = code.make("b32", "sub.u32", code.make("b32", "add.u32", doublings, ARENAS.bit_length() - 1), arenas)
    least = code.make("b64", "mov.u64", placed.capacity // ARENAS * SECTOR)
    return base, arena, code.make("b64", "shl.b64", least, doublings)
