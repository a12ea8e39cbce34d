"""Read the rooms of a log as an array of entries. gpt/stream/rooms.py explains rooms, and gpt-stream(5) their layout.

Finding rooms means following their sizes through an arena, and finding records means following theirs through a room.
This is done in all arenas, and in all rooms, at once: each step handles the next record of every room, so there are as
many steps as records in the fullest room.

The bytes can't be trusted. A room or a record that doesn't fit into what surrounds it is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError
from gpt.stream.packed import RowField
from gpt.stream.rooms import (
    APART,
    ARENAS,
    DROPPED,
    EQUAL,
    FORMED,
    FORMS,
    HEAD,
    LANES,
    MOST_FORMED,
    MOST_RING,
    OVERWRITTEN,
    ROOM_HEAD,
    SECTOR,
    STEPS,
    STORED,
    TILED,
    UNIT,
    WIDE,
    WORD,
    RecordLayout,
    StoredField,
    arena_bytes,
    lay_out,
    ring_bytes,
)

Numbers = npt.NDArray[np.int64]
Counts = npt.NDArray[np.uint64]
Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint32]
Slots = npt.NDArray[np.void]
Bytes = npt.NDArray[np.uint8]


class ClockPairs(NamedTuple):
    """Pairs of readings: an SM's clock, and the timer that all SMs share (in ns), read one right after the other."""

    sm: Words
    clock: Counts
    time: Counts


class Entries:
    """The entries of a log, warp by warp. The entries of a warp are in the order in which it saved them. `read` unpacks
    some of them. `older` is the number of records in rings that were saved before their lane last started again.
    """

    def __init__(self, data: Bytes, layout: RecordLayout, ring: int | None = None) -> None:
        """Find all records of a log, in the form that it has in a trace. Each room of a `ring` has this many records.
        Raises MalformedError.
        """
        self._words: Words = data[: data.size // WORD * WORD].view("<u4")
        self._layout = layout
        at, rooms, owner = _find_records(data, self._words, layout)
        rooms //= WORD
        place, room = at // WORD, rooms[owner]
        self.pairs = ClockPairs(self._words[rooms + 1], _wide(self._words, rooms + 4), _wide(self._words, rooms + 6))
        if ring:
            self.pairs = self._add_tails(rooms, ring)
        clock, unit = _wide(self._words, place + 2), _wide(self._words, room + 2)
        self.older = _count_older(owner, clock)
        order = np.lexsort((clock, unit))
        self._place, self._clock, self._unit = place[order], clock[order], unit[order]
        self._sm = self._words[room + 1][order]
        self._owner = owner[order]
        self._mask, self._head = self._words[self._place], self._words[self._place + 1]
        self._lanes = np.unpackbits(self._mask.view(np.uint8).reshape(-1, WORD), axis=1).sum(axis=1, dtype=np.int64)
        self._begin = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._lanes)])
        self._check()

    @property
    def written(self) -> int:
        """Return the number of bytes in all records."""
        return int((self._head & ((1 << FORMS) - 1)).sum(dtype=np.int64)) * UNIT

    @property
    def rooms(self) -> Numbers:
        """Return the number of each entry's room."""
        return np.repeat(self._owner, self._lanes)

    def __len__(self) -> int:
        return int(self._begin[-1])

    def _add_tails(self, rooms: Numbers, ring: int) -> ClockPairs:
        """Return the readings of clocks with those at the ends of rooms that were full."""
        there = self._words[rooms] == ring_bytes(self._layout, ring)
        tails = rooms + (ROOM_HEAD + ring * self._layout.size) // WORD
        there[there] = _wide(self._words, tails[there] + 4) != 0
        tails, sms = tails[there], self._words[rooms[there] + 1]
        more = ClockPairs(sms, _wide(self._words, tails + 2), _wide(self._words, tails + 4))
        sm, clock, time = self.pairs
        return ClockPairs(
            np.concatenate([sm, more.sm]), np.concatenate([clock, more.clock]), np.concatenate([time, more.time])
        )

    def _check(self) -> None:
        """Raise MalformedError if a record is too small for the forms of its fields."""
        words, number = np.zeros(len(self._place), np.int64), 0
        for field in self._layout.fields:
            if field.stored in FORMED:
                form = self._form(slice(None), number)
                number += 1
                tiled = form == TILED
                if (np.where(tiled, 0, form) > field.words).any() or (tiled & (self._lanes != LANES)).any():
                    raise MalformedError("log: a value in a form that it can't have")
                if field.stored != "lane" and tiled.any():
                    raise MalformedError("log: a value in a form that it can't have")
                words += _words(form, self._lanes)
            elif field.stored == "each":
                words += field.words * self._lanes
        size = (self._head & ((1 << FORMS) - 1)).astype(np.int64) * UNIT
        if (self._layout.size + words * WORD > size).any():
            raise MalformedError("log: a record that's too small for its lanes")

    def _form(self, which: slice, number: int) -> Numbers:
        return (self._head[which] >> np.uint32(FORMS + 2 * number) & np.uint32(3)).astype(np.int64)

    def read(
        self, dtype: np.dtype[np.void], per_lane: bool, start: int = 0, end: int | None = None
    ) -> tuple[Counts, Slots]:
        """Return the units and the fields of the entries from `start` up to `end`. With `per_lane`, units are
        threads.
        """
        end = len(self) if end is None else min(end, len(self))
        first = int(np.searchsorted(self._begin, start, "right")) - 1
        last = int(np.searchsorted(self._begin, max(start, end), "left"))
        which = slice(first, max(first, last))
        bits = np.unpackbits(self._mask[which].view(np.uint8).reshape(-1, WORD), axis=1, bitorder="little")
        record, lane = np.nonzero(bits)
        rank = np.arange(len(record)) - (self._begin[which] - self._begin[first])[record]
        skipped = start - int(self._begin[first])
        cut = slice(skipped, skipped + max(0, end - start))
        record, lane, rank = record[cut], lane[cut], rank[cut]
        units = self._unit[which][record] + (lane.astype(np.uint64) if per_lane else np.uint64(0))
        slots: Slots = np.zeros(len(record), dtype)
        number = 0
        place, lanes = self._place[which][record], self._lanes[which][record]
        after = place + self._layout.size // WORD  # where the columns that have been read end
        for name, field in zip(dtype.names or (), self._layout.fields, strict=True):
            match field.stored:
                case "clock":
                    value = self._clock[which][record]
                case "sm":
                    value = self._sm[which][record].astype(np.uint64)
                case "each":
                    value = self._column(after + rank, field.words == 2, lanes)
                    after = after + field.words * lanes
                case "shared":
                    value = self._value(place, field)
                case _:
                    form = self._form(which, number)[record]
                    number += 1
                    value = self._value(place, field) + self._distance(place, field, form, rank, after, lanes)
                    after = after + _words(form, lanes)
            slots[name] = value.astype(f"<u{field.size}").view(dtype[name])
        return units, slots

    def _value(self, place: Numbers, field: StoredField) -> Counts:
        at = place + field.at // WORD
        return _wide(self._words, at) if field.size == 2 * WORD else self._words[at].astype(np.uint64)

    def _column(self, at: Numbers, wide: bool | Bools, lanes: Numbers) -> Counts:
        """Read the words at these places. If a value is `wide`, also read its upper word. Upper words come after all
        lower words.
        """
        upper = self._words[np.where(wide, at + lanes, at)].astype(np.uint64) << np.uint64(32)
        return self._words[at].astype(np.uint64) | np.where(wide, upper, np.uint64(0))

    def _distance(
        self, place: Numbers, field: StoredField, form: Numbers, rank: Numbers, after: Numbers, lanes: Numbers
    ) -> Counts:
        """Return the differences between these values and the first lane's."""
        found = np.zeros(len(place), np.uint64)
        if field.step:
            found = self._signed(place + field.step // WORD) * rank.astype(np.uint64)
        there = (form > EQUAL) & (form < TILED)
        if there.any():
            at, is_wide = (after + rank)[there], form[there] == WIDE
            found[there] = np.where(is_wide, self._column(at, is_wide, lanes[there]), self._signed(at))
        there = form == TILED
        if there.any():
            bits = rank[there].astype(np.uint64)
            terms = (self._signed(after[there] + n) * (bits >> np.uint64(n) & np.uint64(1)) for n in range(STEPS))
            found[there] = sum(terms, np.zeros(len(bits), np.uint64))
        return found

    def _signed(self, at: Numbers) -> Counts:
        """Read these words as signed numbers, and return them modulo 2^64."""
        return self._words[at].view("<i4").astype(np.int64).view(np.uint64)


def _count_older(owner: Numbers, clock: Counts) -> int:
    """Count the records that come after the first one in their room whose clock is before its predecessor's."""
    falls = np.flatnonzero((owner[1:] == owner[:-1]) & (clock[1:] < clock[:-1])) + 1
    rooms, first = np.unique(owner[falls], return_index=True)
    return int((np.searchsorted(owner, rooms, "right") - falls[first]).sum())


def _words(form: Numbers, lanes: Numbers) -> Numbers:
    """Return how many words a value of this form takes after the part that lanes share."""
    return np.where(form == TILED, STEPS, form * lanes)


def pack_arenas(data: bytes | memoryview, capacity: int, number: int = 0) -> bytes:
    """Convert a buffer of a device, with `capacity` sectors, to its form in a trace: the arenas follow each other, and
    each is cut off after the bytes that were claimed. The first counters become the sizes of the arenas. `number` is
    the number in the address of the buffer.
    """
    counters = np.frombuffer(data, "<u8", HEAD // 8).reshape(ARENAS, APART // 8).copy()
    size = arena_bytes(capacity, number)
    counters[:, 0] = np.minimum(counters[:, 0], size)
    starts = HEAD + size * np.arange(ARENAS)
    parts = [bytes(data[start : start + int(used)]) for start, used in zip(starts, counters[:, 0], strict=True)]
    return b"".join([counters.tobytes(), *parts])


def read_layout(record: Mapping[str, Any], fields: Sequence[RowField]) -> RecordLayout:
    """Return the layout of the records in a map's memory, as its `map` record describes it. Raises MalformedError."""
    stored = record["stored"]
    formed = sum(way in FORMED for way in stored)
    if len(stored) != len(fields) or not set(stored) <= set(STORED) or formed > MOST_FORMED:
        raise MalformedError(f"map: {len(stored)} entries in stored for {len(fields)} fields, or unknown ones")
    sizes = {"clock": (8,), "sm": (4,), "equal": (1, 2, 4)}
    if any(field.size not in sizes.get(way, (1, 2, 4, 8)) for way, field in zip(stored, fields, strict=True)):
        raise MalformedError("map: stored does not fit the size of a field")
    layout = lay_out([(field.size, way) for field, way in zip(fields, stored, strict=True)])
    ring = record.get("ring")
    if ring is not None and (formed or "each" in stored):
        raise MalformedError("map: a ring of records that differ in size")
    if ring is not None and not 0 < ring <= MOST_RING:
        raise MalformedError(f"map: a ring of {ring} records")
    return layout


def read_entries(
    data: Bytes, layout: RecordLayout, dtype: np.dtype[np.void], per_lane: bool, ring: int | None = None
) -> tuple[Counts, Slots, ClockPairs | None, int, Numbers | None]:
    """Return the units and fields of all entries, the readings of clocks, how many entries a `ring` overwrote, and
    which of its rooms each entry is in. Without data, all of this is empty.
    """
    if not len(data):
        return np.zeros(0, np.uint64), np.zeros(0, dtype), None, 0, None
    entries = Entries(data, layout, ring)
    overwritten = 0
    if ring:
        counted = _sum_counters(data, OVERWRITTEN)
        overwritten = counted - entries.older
        if overwritten < 0:
            raise MalformedError(f"log: {counted} overwritten records, of which {entries.older} are still there")
    return *entries.read(dtype, per_lane), entries.pairs, overwritten, entries.rooms if ring else None


def read_dropped(head: Bytes) -> int:
    """Return how many entries were dropped because they didn't fit."""
    return _sum_counters(head, DROPPED)


def _sum_counters(head: Bytes, offset: int) -> int:
    return int(head[:HEAD].view("<u8").reshape(ARENAS, APART // 8)[:, offset // 8].sum())


def _find_records(data: Bytes, words: Words, layout: RecordLayout) -> tuple[Numbers, Numbers, Numbers]:
    """Return where each record begins, where each room begins, and in which room each record is."""
    used = data[:HEAD].view("<u8").reshape(ARENAS, APART // 8)[:, 0]
    if (used > data.size).any() or int(used.sum()) + HEAD > data.size or (used % np.uint64(SECTOR)).any():
        raise MalformedError(f"log: arenas of up to {int(used.max())} bytes do not fit in {data.size}")
    ends = HEAD + np.cumsum(used.astype(np.int64))
    starts = np.concatenate([np.full(1, HEAD), ends[:-1]])
    rooms, limits = _follow(words, starts, ends, 0, 1, SECTOR)
    places = rooms + ROOM_HEAD
    records, _ = _follow(words, places, limits, 1, UNIT, layout.size)
    return records, rooms, np.searchsorted(rooms, records, "right") - 1


def _follow(words: Words, starts: Numbers, ends: Numbers, word: int, unit: int, least: int) -> tuple[Numbers, Numbers]:
    """Follow the sizes of items from each place in `starts`, until the first word of an item is 0. The word number
    `word` of an item has its size in multiples of `unit`. Return where the items begin and end, in order.
    """
    found: list[Numbers] = [np.zeros(0, np.int64)]
    limits = [found[0]]
    at, end = starts, ends
    while True:
        there = at + least <= end
        at, end = at[there], end[there]
        there = words[at // WORD] != 0
        at, end = at[there], end[there]
        if not len(at):
            break
        size = (words[at // WORD + word] & np.uint32((1 << FORMS) - 1 if word else (1 << 32) - 1)).astype(
            np.int64
        ) * unit
        if (size % max(unit, UNIT)).any() or (size < least).any() or (size > end - at).any():
            raise MalformedError(f"log: {int(size.max())} bytes where there are {int((end - at).min())}")
        found.append(at)
        limits.append(at + size)
        at = at + size
    begin = np.concatenate(found)
    order = np.argsort(begin)
    return begin[order], np.concatenate(limits)[order]


def _wide(words: Words, at: Numbers) -> Counts:
    """Return the 64-bit numbers at these words."""
    return words[at].astype(np.uint64) | words[at + 1].astype(np.uint64) << np.uint64(32)
