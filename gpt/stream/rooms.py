"""The layout of a log that's divided into rooms: what its header, its rooms and its records hold. gpt-stream(5), Rooms.

Problem: a log used to have one counter, and each warp that saved something added to it. All warps of a launch waited
for this one address, which made `dmat` ten times as slow as the kernel. Each entry also repeated what the lanes of a
warp share, such as the clock.

So a lane claims a *room*, space for many records, and fills it by itself:

- The place of the next record is in registers. Lanes that save together write one record, and their lowest lane has
  claimed the room. Diverged parts of a warp have different lowest lanes, so they never share a room, and
  nobody has to wait.
- A lane claims a new room when the old one might be too small for a record. Its first two rooms have the smallest power
  of two that holds any record, the next two twice as much, and so on, up to room number LAST. A warp that saves three
  times wastes little, and a warp that saves a million times claims rarely.
- Rooms come from up to ARENAS arenas of equal size, each with a counter of its own, so that claims rarely wait either.
  The number of its block tells a lane which arena to use, so a launch that's repeated claims the same.
- A record begins with the mask of its lanes, which is never 0, and a buffer begins as zeros. So a room needs no count:
  it ends at the first zero mask. A kernel may end anywhere, so nobody could write the count.
- If an arena is full, a lane carries on without a room: it writes nothing, and adds the number of its entries to the
  arena's second counter. The first counter keeps growing, too. So a launch that overflows still counts exactly what it
  dropped, and how large the log would have to be.

A record stores only once what its lanes share. Other values are stored once as well if the lanes' values follow from
the first one, because they're the same distance apart. Coalesced accesses are like that: a record of `dmat` then has 32
bytes for 32 accesses. Otherwise each lane stores its distance to the first one, in 32 bits if that's enough for all of
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ARENAS, SECTOR = 16, 32  # most arenas, and the bytes of each one's counters
HEAD = ARENAS * SECTOR  # bytes before the first arena
DROPPED = 8  # offset of the second counter
SHARE = 8  # blocks per arena, at least
ROOM_HEAD = 32  # bytes of a room before its first record
LEAST, LAST = 128, 14  # bytes of the smallest room; the number of a lane's room from which on they don't grow
RECORD_HEAD = 16  # a record's mask, forms and size, and clock
UNIT = 16  # records are a multiple of this
FORMS = 16  # the lowest bit of the forms: bits below have the size in units
WORD, LANES = 4, 32
EQUAL, NARROW, WIDE = 0, 1, 2  # forms: how many 32-bit columns a value has
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

    @property
    def most(self) -> int:
        """Return the bytes of the largest record."""
        return self.size + LANES * WORD * sum(field.words for field in self.fields if field.stored in (*FORMED, "each"))

    @property
    def first(self) -> int:
        """Return the bytes of a lane's first room."""
        return max(LEAST, 1 << (ROOM_HEAD + self.most - 1).bit_length())


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
