"""Write logs that consist of rooms, as gpt-stream(5), Rooms, describes them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

ARENAS, SECTOR, HEAD = 16, 32, 2048
SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}


class Saved(NamedTuple):
    """A save of some lanes: the clock, and each lane's values in the order of fields."""

    clock: int
    lanes: Mapping[int, Sequence[int]]


class Room(NamedTuple):
    """A room of a lane: its unit and SM, what it saved, the number of bytes that stay free after it, and the time
    of its first record.
    """

    unit: int
    sm: int
    saved: Sequence[Saved]
    spare: int = 0
    time: int = 5


def write_log(
    types: Sequence[str], stored: Sequence[str], arenas: Sequence[Sequence[Room]], dropped: Sequence[int] = ()
) -> bytes:
    """Return a log with these rooms in its arenas, of unsigned fields."""
    bodies = [b"".join(_write_room(types, stored, room) for room in rooms) for rooms in arenas]
    bodies += [b""] * (ARENAS - len(bodies))
    counts = [*dropped, *[0] * ARENAS][:ARENAS]
    heads = [struct.pack("<QQ112x", len(body), count) for body, count in zip(bodies, counts, strict=True)]
    return b"".join([*heads, *bodies])


def _write_room(types: Sequence[str], stored: Sequence[str], room: Room) -> bytes:
    body = b"".join(_write_record(types, stored, saved) for saved in room.saved) + bytes(room.spare)
    body += bytes(-len(body) % SECTOR)
    return struct.pack("<IIQQQ", 32 + len(body), room.sm, room.unit, room.saved[0].clock, room.time) + body


def _write_record(types: Sequence[str], stored: Sequence[str], saved: Saved) -> bytes:
    lanes = sorted(saved.lanes)
    wide, narrow, columns, forms, number = b"", b"", b"", 0, 0
    for at, (type_, way) in enumerate(zip(types, stored, strict=True)):
        values = [saved.lanes[lane][at] for lane in lanes]
        size = SIZES[type_]
        if way in ("shared", "lane", "equal"):
            if size == 8:
                wide += struct.pack("<Q", values[0])
            else:
                narrow += struct.pack("<I", values[0])
        if way in ("lane", "equal"):
            form, step, words = _compare(values, size, way == "lane")
            narrow += struct.pack("<i", step) if way == "lane" else b""
            columns += b"".join(struct.pack(f"<{len(column)}I", *column) for column in words)
            forms |= form << 2 * number
            number += 1
        elif way == "each":
            for shift in range(0, max(32, 8 * size), 32):
                columns += struct.pack(f"<{len(lanes)}I", *(value >> shift & 0xFFFFFFFF for value in values))
    shared = wide + narrow
    body = shared + bytes(-len(shared) % 16) + columns
    body += bytes(-len(body) % 16)
    mask = sum(1 << lane for lane in lanes)
    return struct.pack("<IIQ", mask, forms << 16 | (16 + len(body)) // 16, saved.clock) + body


def _compare(values: Sequence[int], size: int, steps: bool) -> tuple[int, int, list[list[int]]]:
    """Return a field's form, its step, and its columns."""
    bits = max(32, 8 * size)
    distances = [(value - values[0]) % (1 << bits) for value in values]
    second = distances[1] & 0xFFFFFFFF if steps and len(values) > 1 else 0
    step = second - (1 << 32 if second >> 31 else 0)
    if all(distance == step * rank % (1 << bits) for rank, distance in enumerate(distances)):
        return 0, step, []
    low = [distance & 0xFFFFFFFF for distance in distances]
    terms = [low[1 << bit] - (1 << 32 if low[1 << bit] >> 31 else 0) for bit in range(5)] if len(values) == 32 else []
    if (
        steps
        and terms
        and all(
            distance == sum(term for bit, term in enumerate(terms) if lane >> bit & 1) % (1 << bits)
            for lane, distance in enumerate(distances)
        )
    ):
        return 3, step, [[low[1 << bit] for bit in range(5)]]
    if bits == 32 or all(one - (1 << 32 if one >> 31 else 0) == d - (1 << 64 if d >> 63 else 0)
                         for one, d in zip(low, distances, strict=True)):  # fmt: skip
        return 1, step, [low]
    return 2, step, [low, [distance >> 32 for distance in distances]]


def expected(types: Sequence[str], arenas: Sequence[Sequence[Room]], per_lane: bool) -> list[tuple[Any, ...]]:
    """Return the entries that a reader should find, as unit and values, in the order of warps and clocks."""
    found = []
    for room in (room for rooms in arenas for room in rooms):
        for saved in room.saved:
            rows = [(room.unit + lane * per_lane, *map(int, saved.lanes[lane])) for lane in sorted(saved.lanes)]
            found.append((room.unit, saved.clock, rows))
    return [row for _, _, rows in sorted(found, key=lambda one: one[:2]) for row in rows]


class RingLane(NamedTuple):
    """A lane of a ring for ranges: its unit and SM, a (clock, range, number) for each record that it made, and the
    offset and the ns per clock of the time that it reads.
    """

    unit: int
    sm: int
    made: Sequence[tuple[int, int, int]]
    offset: int = 0
    rate: float = 1


def write_ring(ring: int, arenas: Sequence[Sequence[RingLane]]) -> bytes:
    """Return a log in which each of these lanes keeps its last `ring` records."""
    bodies, counts = [], []
    for lanes in arenas:
        body, overwritten = b"", 0
        for lane in lanes:
            slots, tail = [bytes(32)] * ring, bytes(32)
            for number, (clock, edge, given) in enumerate(lane.made):
                if number and number % ring == 0:
                    overwritten += ring
                    tail = struct.pack("<QQQQ", 0, clock, lane.offset + round(clock * lane.rate), 0)
                slots[number % ring] = struct.pack("<IIQIIII", 1, 2, clock, edge, given, 0, 0)
            first = lane.made[0][0]
            head = 64 + 32 * ring, lane.sm, lane.unit, first, lane.offset + round(first * lane.rate)
            body += struct.pack("<IIQQQ", *head) + b"".join(slots) + tail
        bodies.append(body)
        counts.append(overwritten)
    bodies += [b""] * (ARENAS - len(bodies))
    counts += [0] * (ARENAS - len(counts))
    heads = [struct.pack("<QQQ104x", len(body), 0, count) for body, count in zip(bodies, counts, strict=True)]
    return b"".join([*heads, *bodies])
