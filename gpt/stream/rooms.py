"""The layout of a log that's divided into rooms: its header, its rooms and its records. gpt-stream(5), Rooms, has the
details.

A log used to have a single counter, to which each warp added when it saved something. All warps of a launch had to wait
for this one address, which made `dmat` ten times as slow as the kernel. Each entry also repeated what the lanes of a
warp have in common, such as the clock.

So now, a lane claims a *room*, which is space for many records, and fills it by itself:

- The address of the next record is in registers. Lanes that save together write one record, in the room of the lowest
  of them. Diverged parts of a warp have different lowest lanes, so they never share a room, and nobody has to wait.
- A lane claims a new room when the old one is too small for a record. Its first room has LEAST bytes, which is enough
  for three typical records, the next one is GROWTH times as large, and so on, up to room number LAST. So a warp that
  saves three times wastes little, and a warp that saves a million times claims rarely. If a record needs a larger room,
  it gets one.
- Rooms come from up to ARENAS arenas of equal size, each with a counter of its own, so that lanes rarely have to wait
  for each other to claim one. The number of its block determines which arena a lane uses, so if a launch is repeated,
  it claims the same rooms.
- A record begins with the mask of its lanes, which is never 0, and a buffer is filled with zeros at first. So a room
  needs no count: it ends at the first mask that's 0. A kernel can end anywhere, so nobody could write the count.
- If an arena is full, a lane continues without a room: it writes nothing, and adds the number of its entries to the
  second counter of the arena. The first counter keeps growing, too. So if a launch overflows its log, the counters
  still show exactly how much it dropped, and how large the log would have to be.

What the lanes have in common is stored once per record. Other values are also stored once if they can be computed from
the first lane's:

- The distances between lanes are equal, as for the addresses of coalesced accesses. A record of `dmat` then has 32
  bytes for 32 accesses.
- The lanes access a tile, such as 8 rows of 4 values. The distance of a lane from the first one is then a sum, with a
  term for each bit in the number of the lane. 5 terms are enough, and a record of `dmat` has 64 bytes.

Otherwise, each lane stores its distance from the first lane, in 32 bits if that's enough for all of them.

In a log with a *ring*, a lane claims one room and never another: when it's full, the lane starts again at the beginning
of its room, and adds the number of records in the room to the third counter of the arena. All records have the same
size, so each one is overwritten by a whole one. Since their clocks rise, a reader can tell where the lane is, and so
which of the records that were added to the counter are still there. Whenever it starts again, the lane reads its clock
and the time once more, and stores both after the last record of the room. With the pair in the room's head, they tell
how fast the clock runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ARENAS, APART = 16, 128  # maximum number of arenas; bytes between their counters, so that each has its own cache line
HEAD = ARENAS * APART  # bytes before the first arena
SECTOR = 32  # rooms are a multiple of this
DROPPED, OVERWRITTEN = 8, 16  # offsets of the second and the third counter
SHARE = 8  # minimum number of blocks per arena
ROOM_HEAD = 32  # bytes in a room before its first record
RING_TAIL = 32  # bytes after the last record of a ring: 8 zeros, and the last pair of clock and time
LEAST, GROWTH, LAST = 128, 4, 4  # bytes of a lane's first room; growth, and the number of the room at which it stops
RECORD_HEAD = 16  # the mask, forms and size, and clock of a record
UNIT = 16  # records are a multiple of this
FORMS = 16  # the lowest bit of the forms; lower bits have the size, in units
WORD, LANES = 4, 32
EQUAL, NARROW, WIDE, TILED = 0, 1, 2, 3  # forms; up to WIDE, they're the number of 32-bit columns of a value
STEPS = 5  # words of a value in a tile: a step for each bit in the number of a lane
STORED = ("clock", "sm", "shared", "lane", "equal", "each")
FORMED = ("lane", "equal")  # these have a form
MOST_RING = 1 << 16  # records in a ring
RANGE_FIELDS = (("clock", "u64"), ("sm", "u32"), ("range", "u32"), ("number", "u32"))  # saved by RANGE
MOST_FORMED = 4  # fields with a form; all others are `each`


class StoredField(NamedTuple):
    """A field of `size` bytes in a record. `at` is the offset of the value, or of the first lane's value. `step` is the
    offset of the distance between two lanes' values. Either is 0 if it doesn't exist: an `equal` field has no step.
    """

    size: int
    stored: str
    at: int = 0
    step: int = 0

    @property
    def words(self) -> int:
        """Return the number of 32-bit words in a value."""
        return 2 if self.size == 8 else 1


class RecordLayout(NamedTuple):
    """The fields of a record, and the number of bytes that its lanes share."""

    fields: tuple[StoredField, ...]
    size: int


def lay_out(fields: Sequence[tuple[int, str]]) -> RecordLayout:
    """Lay out the fields of a record, given the size of each and how it's stored. Fields of 8 bytes come first."""
    at, steps = RECORD_HEAD, {}
    places: dict[int, int] = {}
    for number, (size, stored) in enumerate(fields):
        if stored in ("shared", *FORMED) and size == 8:
            places[number] = at
            at += 8
    for number, (size, stored) in enumerate(fields):
        if stored in ("shared", *FORMED) and size < 8:
            places[number] = at
            at += WORD
        if stored == "lane":
            steps[number] = at
            at += WORD
    found = tuple(
        StoredField(size, stored, places.get(number, 0), steps.get(number, 0))
        for number, (size, stored) in enumerate(fields)
    )
    return RecordLayout(found, -(-at // UNIT) * UNIT)


def ring_bytes(layout: RecordLayout, records: int) -> int:
    """Return the size of a room of a ring that keeps this many records."""
    return -(-(ROOM_HEAD + records * layout.size + RING_TAIL) // SECTOR) * SECTOR


def count_arenas(blocks: int) -> int:
    """Return how many arenas a launch with this many blocks should have, which is a power of two."""
    return 1 << min(ARENAS, max(1, blocks // SHARE)).bit_length() - 1


def make_number(blocks: int, doublings: int = 0) -> int:
    """Return the number in the low bits of a log's address. Its upper three bits are the logarithm of the number of
    arenas; its lower five bits say how often the size of the log was doubled.
    """
    return count_arenas(blocks).bit_length() - 1 << 5 | doublings


def arena_bytes(capacity: int, number: int) -> int:
    """Return the size of an arena in bytes, for a log of `capacity` sectors with this number in its address."""
    return capacity // ARENAS * SECTOR << (number & 31) + ARENAS.bit_length() - 1 - (number >> 5)
