"""Packed rows: check the fields that a record declares, and unpack its rows.

A row has `stride` bytes, and each field is at its offset, in little-endian order. The record determines the layout and
can't be trusted, so always parse its fields with `parse_fields` before you unpack rows.

An `answer` has columns instead of fields. In a `text` column, values are indexes into the record's `texts`. The same is
true for a `number` column, in which each text is an integer of up to 64 bits or a float, in decimal; it's for columns
that contain both. If a type ends in `?`, its largest number, or for floats NaN, means that the row has no value.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from gpt.base.errors import MalformedError
from gpt.stream import records

MAX_FIELDS = 1024  # in a row
TYPES = {  # the names in struct and numpy, after `<`
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
    "f16": "e", "f32": "f", "f64": "d",
}  # fmt: skip
TEXT, NUMBER = "text", "number"
LONGEST = 64  # characters of a number
DECIMALS = re.compile(r"-?(?:[0-9]+((?:\.[0-9]+)?(?:e[+-]?[0-9]+)?)|(inf|nan))")


class RowField(NamedTuple):
    """A field of a row. `code` is its format character in struct and numpy; `size` is in bytes."""

    name: str
    type: str
    code: str
    offset: int
    size: int
    optional: bool = False

    @property
    def end(self) -> int:
        """Return the offset after the field."""
        return self.offset + self.size

    @property
    def none(self) -> Any:
        """Return the value that stands for no value."""
        if self.code in "efd":
            return math.nan
        return (1 << 8 * self.size - self.code.islower()) - 1


def parse_fields(record: Mapping[str, Any]) -> list[RowField]:
    """Return the fields in the rows of a record, in the order of the record.

    Raises MalformedError if the record lacks keys that its kind requires, if a type isn't known, if two fields have the
    same name, or if a field overlaps another or extends beyond the row.
    """
    if fault := records.check(record):
        raise MalformedError(fault)
    kind, stride, answer = record["kind"], record["stride"], record["kind"] == "answer"
    declared = record["columns" if answer else "fields"]
    if stride > records.MAX_RECORD:
        raise MalformedError(f"{kind}: rows of {stride} bytes are too large")
    if not declared:
        raise MalformedError(f"{kind}: rows without fields")
    if len(declared) > MAX_FIELDS:
        raise MalformedError(f"{kind}: {len(declared)} fields in a row; the limit is {MAX_FIELDS}")
    fields = [_parse_field(one, answer) for one in declared]
    for field in fields:
        if field.end > stride:
            raise MalformedError(f"field '{field.name}' of type '{field.type}' does not fit its row")
    if len({field.name for field in fields}) < len(fields):
        raise MalformedError(f"{kind}: two fields have the same name")
    ordered = sorted(fields, key=lambda field: field.offset)
    for one, other in pairwise(ordered):
        if one.end > other.offset:
            raise MalformedError(f"{kind}: fields '{one.name}' and '{other.name}' overlap")
    return fields


def _parse_field(declared: Mapping[str, Any], answer: bool) -> RowField:
    name, type_ = declared["name"], declared["type"]
    base = type_.removesuffix("?") if answer else type_
    code = "I" if base in (TEXT, NUMBER) and answer else TYPES.get(base)
    if code is None:
        known = ", ".join([TEXT, NUMBER, *TYPES] if answer else TYPES)
        raise MalformedError(f"field '{name}': unknown type '{type_}' (there are {known})")
    return RowField(name, base, code, declared["offset"], struct.calcsize("<" + code), base != type_)


def check_rows(kind: str, rows: bytes, stride: int) -> None:
    """Raise MalformedError if the bytes aren't a whole number of rows."""
    if not stride or len(rows) % stride:
        raise MalformedError(f"{kind}: {len(rows)} bytes are not whole rows of {stride}")


def iter_rows(fields: Sequence[RowField], stride: int, rows: bytes | memoryview) -> Iterator[tuple[Any, ...]]:
    """Yield the values of each row, in the order of the fields. Padding is included."""
    order = sorted(range(len(fields)), key=lambda number: fields[number].offset)
    code, at = "<", 0
    for field in (fields[number] for number in order):
        code += f"{field.offset - at}x{field.code}"
        at = field.end
    found = struct.iter_unpack(f"{code}{stride - at}x", rows)
    places = [order.index(number) for number in range(len(order))]
    if places == sorted(places):
        return found
    pick: Callable[[tuple[Any, ...]], tuple[Any, ...]] = itemgetter(*places)
    return map(pick, found)


# Answers


class Packer:
    """Packs the rows of an answer: one column after the other, without gaps."""

    def __init__(self, columns: Iterable[Mapping[str, Any]]) -> None:
        """Lay out the columns. Raises MalformedError if a type is unknown."""
        self._columns: list[dict[str, Any]] = []
        self._fields: list[RowField] = []
        self._stride = 0
        for column in columns:
            self._columns.append({**column, "offset": self._stride})
            self._fields.append(_parse_field(self._columns[-1], True))
            self._stride = self._fields[-1].end
        self._row = struct.Struct("<" + "".join(field.code for field in self._fields))
        self._numbers: dict[str, int] = {}  # texts and their indexes
        self._packed = bytearray()

    def add(self, row: Sequence[Any]) -> None:
        """Add a row. Raises MalformedError if a value does not fit its column, or the rows are too many."""
        values = [self._number(field, value) for field, value in zip(self._fields, row, strict=True)]
        try:
            self._packed += self._row.pack(*values)
        except (struct.error, OverflowError):
            raise MalformedError(self._describe_misfit(values)) from None
        if len(self._packed) > records.MAX_RECORD or len(self._numbers) > records.MAX_ENTRIES:
            raise MalformedError("answer: too many rows for a record")

    def _describe_misfit(self, values: Sequence[Any]) -> str:
        for field, value in zip(self._fields, values, strict=True):
            try:
                struct.pack(f"<{field.code}", value)
            except (struct.error, OverflowError):
                return f"row.{field.name}: {value!r} doesn't fit type {field.type}"
        return "row: a number doesn't fit its column"

    def _number(self, field: RowField, value: Any) -> Any:
        if value is None and field.optional:
            return field.none
        if field.type == TEXT and isinstance(value, str):
            return self._numbers.setdefault(value, len(self._numbers))
        if field.type == NUMBER and (type(value) is float or (type(value) is int and -(1 << 63) <= value < 1 << 64)):
            return self._numbers.setdefault(repr(value), len(self._numbers))
        if field.type in (TEXT, NUMBER) or type(value) not in (int, float) or (field.optional and value == field.none):
            raise MalformedError(f"row.{field.name} is not of type {field.type}")
        return value

    def keys(self) -> dict[str, Any]:
        """Return `columns`, `stride`, `texts` and `rows` of the answer."""
        texts, rows = list(self._numbers), bytes(self._packed)
        return {"columns": self._columns, "stride": self._stride, "texts": texts, "rows": rows}


def unpack_rows(answer: Mapping[str, Any], first: int | None = None) -> tuple[list[RowField], Iterator[list[Any]]]:
    """Return the columns of an answer and its rows, or with `first`, only the first rows. Text is str, and None means
    no value.

    Raises MalformedError immediately if the columns are invalid, and later if the index of a text is out of range.
    """
    fields, stride, rows = parse_fields(answer), answer["stride"], answer["rows"]
    check_rows("answer", rows, stride)
    if first is not None:
        rows = memoryview(rows)[: first * stride]
    return fields, _iter_values(fields, answer["texts"], iter_rows(fields, stride, rows))


def _iter_values(fields: list[RowField], texts: list[str], rows: Iterable[tuple[Any, ...]]) -> Iterator[list[Any]]:
    nones = [field.none if field.optional else None for field in fields]
    for row in rows:
        values: list[Any] = []
        for field, none, value in zip(fields, nones, row, strict=True):
            if field.optional and (value == none or value != value):  # NaN isn't equal to itself
                values.append(None)
            elif field.type not in (TEXT, NUMBER):
                values.append(value)
            elif value < len(texts):
                values.append(texts[value] if field.type == TEXT else _parse_number(field.name, texts[value]))
            else:
                raise MalformedError(f"answer: column '{field.name}' has text {value} of {len(texts)}")
        yield values


def _parse_number(name: str, text: str) -> int | float:
    if len(text) > LONGEST or not (found := DECIMALS.fullmatch(text)):
        raise MalformedError(f"answer: column '{name}' isn't a number everywhere")
    return float(text) if found[1] or found[2] else int(text)
