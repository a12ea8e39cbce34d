"""Read the tables that kernels fill: merge the slots of all copies by key. gpt-stream(5), Tables, describes their
layout.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError
from gpt.stream.packed import RowField

Counts = npt.NDArray[np.uint64]
Rows = npt.NDArray[np.void]

WORD = 8  # bytes of a slot that contain 32 bits of its key


class TableLayout:
    """The slots of a table. Each has `stride` bytes. `keys` are the fields of the key. `ops` has the operations of
    fields that aren't added up, and `flipped` which of their bits are inverted.
    """

    def __init__(
        self,
        fields: Sequence[RowField],
        keys: Sequence[str],
        ops: Mapping[str, str],
        flipped: Mapping[str, npt.NDArray[Any]],
        stride: int,
    ) -> None:
        """Lay out the slots. Raises MalformedError if that's impossible."""
        self._fields = {field.name: field for field in fields}
        known = len(set(keys)) == len(keys) and self._fields.keys() >= set(keys)
        if not keys or not known or not ops.keys().isdisjoint(keys):
            raise MalformedError("map: the key of a table isn't among its fields")
        if "last" in ops.values():
            raise MalformedError("map: a table doesn't keep last values")
        self.keys, self._ops, self._flipped = tuple(keys), ops, flipped
        taken = [range(WORD)]  # the count
        for field in fields:
            size = field.end - field.offset
            if size not in (4, 8) or (field.name in keys and field.code in "fd"):
                raise MalformedError(f"map: a table with field '{field.name}' of type {field.type}")
            taken.append(range(field.offset, field.offset + (2 * size if field.name in keys else size)))
        taken.sort(key=lambda bytes_: bytes_.start)
        if any(one.stop > other.start for one, other in pairwise(taken)) or taken[-1].stop > stride:
            raise MalformedError("map: fields of a table overlap")
        self.dtype = np.dtype([(field.name, f"<{field.code}") for field in fields])
        self.values = tuple(name for name in self._fields if name not in self.keys)
        self._identity = (self.dtype.descr, self.keys, tuple(ops.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableLayout) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(str(self._identity))

    def read(self, slots: npt.NDArray[np.uint8]) -> tuple[Counts, Rows]:
        """Read slots from bytes. Return how often each key was saved, and a row for each key, sorted by key."""
        first = self._fields[self.keys[0]].offset
        slots = slots[_words(slots, first) >> np.uint64(32) != 0]
        rows = np.zeros(len(slots), self.dtype)
        for name, field in self._fields.items():
            if name in self.keys:
                value = _words(slots, field.offset) & np.uint64(0xFFFFFFFF)
                if field.end - field.offset == 2 * 4:
                    value |= _words(slots, field.offset + WORD) << np.uint64(32)
                rows[name] = value.astype(f"<u{field.end - field.offset}").view(rows.dtype[name])
                continue
            raw = np.ascontiguousarray(slots[:, field.offset : field.end]).view(rows.dtype[name])[:, 0]
            bits = self._flipped.get(name)
            rows[name] = raw if bits is None else (raw.view(bits.dtype) ^ bits).view(raw.dtype)
        return self.merge(_words(slots, 0), rows)

    def merge(self, counts: Counts, rows: Rows) -> tuple[Counts, Rows]:
        """Combine rows with equal keys. Return them sorted by key."""
        keys, place = np.unique(rows[list(self.keys)], return_inverse=True)
        place = place.reshape(-1)
        found = np.zeros(len(keys), self.dtype)
        sums = np.zeros(len(keys), np.uint64)
        np.add.at(sums, place, counts)
        for name in self._fields:
            op = self._ops.get(name)
            if name in self.keys:
                found[name] = keys[name]
            elif op is None:
                np.add.at(found[name], place, rows[name])
            else:
                found[name][place] = rows[name]
                (np.minimum if op == "min" else np.maximum).at(found[name], place, rows[name])
        return sums, found


def _words(slots: npt.NDArray[np.uint8], offset: int) -> Counts:
    found: Counts = np.ascontiguousarray(slots[:, offset : offset + WORD]).view("<u8")[:, 0]
    return found


def find_flipped(type_: str, op: str) -> npt.NDArray[Any]:
    """Return the bits that are inverted in a field that keeps its minimum or maximum."""
    if type_ not in ("u32", "u64", "i32", "i64"):
        raise MalformedError(f"map: the {op} of a field of type {type_}")
    bits = int(type_[1:])
    sign = 1 << bits - 1 if type_[0] == "i" else 0
    return np.array((1 << bits) - 1 - sign if op == "min" else sign, f"<u{bits // 8}")
