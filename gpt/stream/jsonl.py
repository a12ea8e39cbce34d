"""Convert records to JSON lines and back, for jq, a pager or a shell (`--json`, `--from-json`).

JSON has no bytes, no infinity and NaN, no text that isn't UTF-8, no map keys except text, and no integers above 2^53
that every reader preserves. We write these as maps with a single key: `{"$int": "n"}`, `{"$b64": ".."}`, `{"$float":
"nan"}`, `{"$raw": ".."}` (also base64), `{"$ext": [code, ".."]}`, `{"$pairs": [[key, value], ..]}`. A map that looks
like one of them is wrapped in `{"$map": ..}`, so reading a line always gives the original record.

Packed rows are for programs, so in JSON, each row becomes a line of its own. When lines are read, rows of traces remain
separate records, and rows of an `answer` are put back into it.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Any

import msgpack

from gpt.base.errors import MalformedError
from gpt.base.numbers import parse_int
from gpt.base.printable import printable_json
from gpt.stream import packed, records
from gpt.stream.wire import Record, check_segments, pack

MAX_INT = 1 << 53
MAX_NESTING = 100  # nesting of arrays and maps in a record
NOT_FINITE = {str(value): value for value in (math.nan, math.inf, -math.inf)}
ESCAPES = frozenset(("$int", "$float", "$b64", "$raw", "$ext", "$pairs", "$map"))


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_escape(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and next(iter(value)) in ESCAPES


def _check_room(room: int) -> None:
    if room < 0:
        raise RecursionError(f"nested more than {MAX_NESTING} deep")


def encode(value: Any, room: int = MAX_NESTING) -> Any:
    """Return a msgpack value in a form that json.dumps accepts.

    Raises RecursionError if it's nested deeper than `room`.
    """
    _check_room(room)
    match value:
        case bool() | None:
            return value
        case float():
            return value if math.isfinite(value) else {"$float": str(value)}
        case int():
            return value if -MAX_INT <= value <= MAX_INT else {"$int": str(value)}
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return {"$raw": _b64(value.encode(errors="surrogateescape"))}
            return value
        case bytes():
            return {"$b64": _b64(value)}
        case list() | tuple() if not isinstance(value, msgpack.ExtType):
            return [encode(v, room - 1) for v in value]
        case dict():
            if not all(isinstance(key, str) and encode(key) is key for key in value):
                return {"$pairs": [[encode(k, room - 1), encode(v, room - 1)] for k, v in value.items()]}
            plain = {key: encode(v, room - 1) for key, v in value.items()}
            return {"$map": plain} if _is_escape(plain) else plain
        case msgpack.ExtType():
            return {"$ext": [value.code, _b64(value.data)]}
        case msgpack.Timestamp():
            return {"$ext": [-1, _b64(value.to_bytes())]}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def decode(value: Any, room: int = MAX_NESTING) -> Any:
    """Return the inverse of `encode`.

    Raises ValueError, TypeError or KeyError if an escape is malformed, and RecursionError if it's nested deeper than
    `room`.
    """
    _check_room(room)
    if isinstance(value, list):
        return [decode(v, room - 1) for v in value]
    if not isinstance(value, dict):
        return value
    if not _is_escape(value):
        return {key: decode(v, room - 1) for key, v in value.items()}
    ((escape, inner),) = value.items()
    match escape:
        case "$int":
            number = parse_int(inner)
            if not -(1 << 63) <= number < 1 << 64:
                raise ValueError(f"{inner} does not fit 64 bits")
            return number
        case "$float":
            return NOT_FINITE[inner]
        case "$b64":
            return base64.b64decode(inner, validate=True)
        case "$raw":
            return base64.b64decode(inner, validate=True).decode(errors="surrogateescape")
        case "$ext":
            code, data = inner
            if code == -1:
                return msgpack.Timestamp.from_bytes(base64.b64decode(data))
            return msgpack.ExtType(code, base64.b64decode(data, validate=True))
        case "$pairs":
            return {decode(k, room - 1): decode(v, room - 1) for k, v in inner}
    return {key: decode(v, room - 1) for key, v in inner.items()}


def lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a record: one for each packed row, or else one for the record. Raises MalformedError."""
    if record["kind"] == "answer":
        yield from _answer_lines(record)
    elif record["kind"] in records.ROWS:
        yield from _row_lines(record)
    else:
        yield _dump(record)


def _row_lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each row, with the other keys of the record. Rows that consist of zeros are padding."""
    fields = packed.parse_fields(record)
    kind, stride, rows = record["kind"], record["stride"], record["rows"]
    packed.check_rows(kind, rows, stride)
    common = {key: value for key, value in record.items() if key not in ("fields", "stride", "rows")}
    common["kind"] = records.ROWS[kind]
    names = _check_names(kind, fields, common)
    for at, row in enumerate(packed.iter_rows(fields, stride, rows)):
        if any(row) or any(rows[at * stride : (at + 1) * stride]):
            yield _dump(common | dict(zip(names, row, strict=True)))


def _answer_lines(record: dict[str, Any]) -> Iterator[str]:
    """Yield a line without the rows, and then a line for each row. Columns without a value are left out."""
    fields, rows = packed.unpack_rows(record)
    common = {"kind": records.ANSWER_ROW, "answer": record["name"]}
    names = _check_names("answer", fields, common)
    yield _dump({key: value for key, value in record.items() if key not in ("stride", "texts", "rows")})
    for row in rows:
        values = zip(names, row, strict=True)
        yield _dump(common | {name: value for name, value in values if value is not None})


def _check_names(kind: str, fields: list[packed.RowField], common: dict[str, Any]) -> list[str]:
    """Return the names of fields. Raises MalformedError if one is also another key of the line."""
    if both := next((field.name for field in fields if field.name in common), None):
        raise MalformedError(f"{kind}: a field is named {both}")
    return [field.name for field in fields]


def _dump(record: dict[str, Any]) -> str:
    try:
        return printable_json(json.dumps(encode(record), ensure_ascii=False))
    except RecursionError:
        raise MalformedError(f"{record['kind']} record nested more than {MAX_NESTING} deep") from None


def read_lines(file: IO[bytes], name: str) -> Iterator[Record]:
    """Yield the records in JSON lines, and check that they form segments.

    Raises MalformedError with the number of the line.
    """
    yield from check_segments(_gather_rows(_parse_lines(file, name)), name)


def _gather_rows(found: Iterable[tuple[Record, str]]) -> Iterator[tuple[Record, str]]:
    """Put rows back into the `answer` before them."""
    answer: _AnswerLines | None = None
    for record, where in found:
        if answer and answer.add(record, where):
            continue
        if answer:
            yield answer.record()
        answer = None
        if record["kind"] == "answer" and "rows" not in record:
            answer = _AnswerLines(record, where)
        else:
            yield record, where
    if answer:
        yield answer.record()


class _AnswerLines:
    """An answer that's read line by line. Faults are reported with the line of the answer or the row."""

    def __init__(self, head: Record, where: str) -> None:
        if fault := records.check(head | {"stride": 0, "texts": [], "rows": b""}):
            raise MalformedError(fault, where)
        self._head, self._where = head, where
        self._names = [column["name"] for column in head["columns"]]
        with _located(where):
            self._rows = packed.Packer(head["columns"])

    def add(self, record: Record, where: str) -> bool:
        """If the record is a row of this answer, add it and return True."""
        if record["kind"] != records.ANSWER_ROW or record.get("answer") != self._head["name"]:
            return False
        with _located(where):
            self._rows.add([record.get(name) for name in self._names])
        return True

    def record(self) -> tuple[Record, str]:
        """Return the complete answer, and the location of its first line."""
        keys = self._head | self._rows.keys()
        declared = {key: keys[key] for key in ("kind", *records.KINDS["answer"]) if key in keys}
        whole = Record(declared | keys)
        with _located(self._where):
            whole.raw = pack(dict(whole))
        return whole, self._where


@contextmanager
def _located(where: str) -> Iterator[None]:
    try:
        yield
    except MalformedError as error:
        raise MalformedError(error.fact, where) from None


def _parse_lines(file: IO[bytes], name: str) -> Iterator[tuple[Record, str]]:
    for number, line in enumerate(iter(lambda: file.readline(2 * records.MAX_RECORD), b""), 1):
        where = f"{name}:{number}"
        try:
            record = decode(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise MalformedError(f"not a JSON record: {str(error)[:100]}", where) from None
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            raise MalformedError("not a GPT record", where)
        if record["kind"] == "chunk":  # no tool writes one, and its records would be hidden from readers of JSON
            raise MalformedError("chunk in the JSON form", where)
        found = Record(record)
        with _located(where):
            found.raw = pack(record)
        yield found, where
