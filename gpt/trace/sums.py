"""Read the sums that `gpt-hook run --detail` keeps in place of a launch's buffer: gpt-stream(5), Sums."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpt.base.errors import MalformedError

WORD = 8  # bytes
BINS = 65
_CODES = {"u": "Q", "i": "q", "f": "d"}


class FieldSums(NamedTuple):
    """Sums of the values of a field: their total, the smallest, the largest, and how many have `first` bits, one bit
    more, and so on. If integers differ too much to determine the total, it's modulo 2^64. The counts are for absolute
    values without their fractions.
    """

    total: int | float
    least: int | float
    greatest: int | float
    first: int
    bins: tuple[int, ...]

    def iter_bins(self) -> Iterator[tuple[int, int, int]]:
        """Yield each bin that has counted something: its smallest value, the next bin's, and the number of values
        in it.
        """
        for bits, count in enumerate(self.bins, self.first):
            if count:
                yield (1 << bits) >> 1, 1 << bits, count


class BufferSums(NamedTuple):
    """The sums of a buffer: how many records it had, how many were dropped, the sum of its counts (`saves`), and its
    fields.

    For a total, `records` is the number of units that saved something.
    """

    records: int
    dropped: int
    saves: int
    fields: Mapping[str, FieldSums]


def _unwrap(total: int, least: int, greatest: int, records: int) -> int:
    """Return the true value of a total that was computed modulo 2^64, if the range of the values determines it."""
    if least <= greatest and (greatest - least) * records < 1 << 64:
        return least * records + (total - least * records) % (1 << 64)
    return total


def parse_sums(data: bytes, types: Mapping[str, str], where: str) -> BufferSums:
    """Return the sums for the fields of a map, which have these `types`. Raises MalformedError."""
    at = 0

    def take(code: str) -> tuple[int | float, ...]:
        nonlocal at
        size = struct.calcsize(f"<{code}")
        if at + size > len(data):
            raise MalformedError(f"map '{where}': sums of {len(data)} bytes are too short")
        at += size
        return struct.unpack_from(f"<{code}", data, at - size)

    records, dropped, saves = map(int, take("3Q"))
    fields = {}
    for name, type_ in types.items():
        total, least, greatest = take(3 * _CODES[type_[0]])
        first, bins = map(int, take("2Q"))
        if type_[0] != "f":
            total = _unwrap(int(total), int(least), int(greatest), records)
        if first + bins > BINS:
            raise MalformedError(f"map '{where}': {bins} bins from {first} on in its sums")
        fields[name] = FieldSums(total, least, greatest, first, tuple(map(int, take(f"{bins}Q"))))
    if at != len(data):
        raise MalformedError(f"map '{where}': sums of {len(data)} bytes are {at}")
    return BufferSums(records, dropped, saves, fields)
