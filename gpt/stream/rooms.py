"""The layout of a log that's divided into rooms: what its header, its rooms and its records hold. gpt-stream(5), Rooms.

Problem: a log used to have one counter, and each warp that saved something added to it. All warps of a launch waited
for this one address, which made `dmat` ten times as slow as the kernel. Each entry also repeated what the lanes of a
warp share, such as the clock.

So a lane claims a *room*, space for many records, and fills it by itself:

- The place of the next record is in registers. Lanes that save together write one record, and their lowest lane has
  claimed the room. Diverged parts of a warp have different lowest lanes, so they never share a room, and
  nobody has to wait.
- A lane claims a new room when the old one is too small for a record. Its first room has LEAST bytes, which is enough
  for three usual records, the next one GROWTH times as many, and so on, up to room number LAST. So a warp that saves
  three times wastes little, and a warp that saves a million times claims rarely. Where a record needs a larger room, it
  gets one.
- Rooms come from up to ARENAS arenas of equal size, each with a counter of its own, so that claims rarely wait either.
  The number of its block tells a lane which arena to use, so a launch that's repeated claims the same.
- A record begins with the mask of its lanes, which is never 0, and a buffer begins as zeros. So a room needs no count:
  it ends at the first zero mask. A kernel may end anywhere, so nobody could write the count.
- If an arena is full, a lane carries on without a room: it writes nothing, and adds the number of its entries to the
  arena's second counter. The first counter keeps growing, too. So a launch that overflows still counts exactly what it
  dropped, and how large the log would have to be.

A record stores once what its lanes share. Other values are stored once as well if the lanes' values follow from the
first one:

- They're the same distance apart, like the addresses of coalesced accesses. A record of `dmat` then has 32 bytes for 32
  accesses.
- The lanes access a tile, such as 8 rows of 4 values. A lane's distance to the first one is then a sum with a term for
  each bit in the lane's number. 5 terms are enough, and a record of `dmat` has 64 bytes.

Otherwise each lane stores its distance to the first one, in 32 bits if that's enough for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ARENAS, APART = 16, 128  # most arenas, and the bytes between their counters: a cache line of its own for each
HEAD = ARENAS * APART  # bytes before the first arena
SECTOR = 32  # rooms are a multiple of this
DROPPED = 8  # offset of the second counter
SHARE = 8  # blocks per arena, at least
ROOM_HEAD = 32  # bytes of a room before its first record
LEAST, GROWTH, LAST = 128, 4, 4  # bytes of a lane's first room; growth, and the number of the room where it ends
RECORD_HEAD = 16  # a record's mask, forms and size, and clock
UNIT = 16  # records are a multiple of this
FORMS = 16  # the lowest bit of the forms: bits below have the size in units
WORD, LANES = 4, 32
EQUAL, NARROW, WIDE, TILED = 0, 1, 2, 3  # forms; up to WIDE the number of 32-bit columns that a value has
STEPS = 5  # words of a value that's tiled: a step for each bit of a lane's number
STORED = ("clock", "sm", "shared", "lane", "equal", "each")
FORMED = ("lane", "equal")  # these have a form
MOST_FORMED = 4  # fields with a form; further ones are `each`


class StoredField(NamedTuple):
    """A field of `size` bytes in a record. `at` is the offset of the value, or of the first lane's; `step` of
    the distance between two lanes' values. They're 0 if there's no such thing: a field that's `equal` has no step.
    """

    size: int
    stored: str
    at: int = 0
    step: int = 0

    @property
    def words(self) -> int:
        """Return the 32-bit words of a value."""
        return 2 if self.size == 8 else 1


class RecordLayout(NamedTuple):
    """The fields of a record, and the bytes that its lanes share."""

    fields: tuple[StoredField, ...]
    size: int


def lay_out(fields: Sequence[tuple[int, str]]) -> RecordLayout:
    """Lay out a record's fields, given each one's size and how it's stored: 8 bytes first."""
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


def count_arenas(blocks: int) -> int:
    """Return how many arenas a launch with this many blocks should have: a power of two."""
    return 1 << min(ARENAS, max(1, blocks // SHARE)).bit_length() - 1


def make_number(blocks: int, doublings: int = 0) -> int:
    """Return the number in the low bits of a log's address: in the upper three bits the logarithm of the number of
    arenas, in the lower five how often the log's size was doubled.
    """
    return count_arenas(blocks).bit_length() - 1 << 5 | doublings


def arena_bytes(capacity: int, number: int) -> int:
    """Return the bytes of each arena in a log of `capacity` sectors with this number in its address."""
    return capacity // ARENAS * SECTOR << (number & 31) + ARENAS.bit_length() - 1 - (number >> 5)
