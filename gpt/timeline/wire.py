"""Encode many Protobuf messages by column: the bytes of each field in all rows are computed at once, without an object
for each message.

https://protobuf.dev/programming-guides/encoding: a field is its tag, followed by a varint, or for texts and messages,
by a length and the bytes. The size of a field is different in each row. So a column is a matrix with a row for each
message, together with a mask of the bytes that are used. These bytes, read row by row, are the encoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.integer]
Mask = npt.NDArray[np.bool_]
VARINT, BYTES = 0, 2  # types of fields
SEVEN = np.arange(10, dtype=np.uint64) * np.uint64(7)  # bits of each byte of a varint


class Columns(NamedTuple):
    """The bytes of each row. `data` and `used` have the shape (rows, width)."""

    data: npt.NDArray[np.uint8]
    used: Mask

    def pack(self) -> bytes:
        """Return all rows, one after another."""
        return self.data[self.used].tobytes()


def varints(values: Numbers) -> Columns:
    """Encode each number as a varint. Negative numbers take ten bytes, as int32 and int64 require."""
    numbers = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64).view(np.uint64)
    width = max(1, -(-int(numbers.max(initial=0)).bit_length() // 7))
    parts = numbers[:, None] >> SEVEN[:width]
    more = np.zeros(parts.shape, bool)  # another byte follows
    more[:, :-1] = parts[:, 1:] > 0
    used = np.ones(parts.shape, bool)
    used[:, 1:] = more[:, :-1]
    return Columns((parts & np.uint64(127)).astype(np.uint8) | more.astype(np.uint8) << np.uint8(7), used)


def choose(texts: Sequence[bytes], which: Numbers) -> Columns:
    """Return one of the texts for each row."""
    lengths = np.array([len(text) for text in texts])
    width = int(lengths.max(initial=0))
    table = np.frombuffer(b"".join(text.ljust(width, b"\0") for text in texts), np.uint8).reshape(len(texts), width)
    return Columns(table[which], np.arange(width) < lengths[which][:, None])


def constant(data: bytes, count: int) -> Columns:
    """Repeat the same bytes in each of `count` rows."""
    row = np.frombuffer(data, np.uint8)
    return Columns(np.broadcast_to(row, (count, len(row))), np.ones((count, len(row)), bool))


def join(*parts: Columns) -> Columns:
    """Concatenate columns row by row."""
    return Columns(np.hstack([part.data for part in parts]), np.hstack([part.used for part in parts]))


def where(present: Mask, part: Columns) -> Columns:
    """Keep a column only in the rows where it's present."""
    return Columns(part.data, part.used & present[:, None])


def number(field: int, values: Numbers) -> Columns:
    """Encode an integer field."""
    return join(constant(_tag(field, VARINT), len(values)), varints(values))


def message(field: int, *parts: Columns) -> Columns:
    """Encode a field that is a message or text made of these parts."""
    inside = join(*parts)
    length = varints(np.count_nonzero(inside.used, axis=1))
    return join(constant(_tag(field, BYTES), len(inside.data)), length, inside)


def digits(values: Numbers) -> Columns:
    """Encode each number, which must be at least 0, as decimal text."""
    count = len(str(int(values.max(initial=0))))
    tens = np.array([10**place for place in range(count - 1, -1, -1)], np.uint64)
    parts = values.astype(np.uint64)[:, None] // tens
    used = parts > 0
    used[:, -1] = True
    return Columns((parts % np.uint64(10)).astype(np.uint8) + np.uint8(ord("0")), used)


def _tag(field: int, type_: int) -> bytes:
    return varints(np.array([field << 3 | type_])).pack()
