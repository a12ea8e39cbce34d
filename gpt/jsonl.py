"""The same records as JSON lines, for jq, a pager and a shell (`--json`, `--from-json`).

JSON has no bytes, no integers that every reader keeps beyond 2^53, no infinity or NaN, no text that is not
UTF-8 and no map keys but text. Those are written as maps of one key, `{"$int": "n"}`, `{"$b64": ".."}`,
`{"$float": "nan"}`, `{"$raw": ".."}` (base64 too), `{"$ext": [code, ".."]}`, `{"$pairs": [[key, value], ..]}`;
a map that looks like one of them is wrapped in `{"$map": ..}`. Reading a line gives back the record that was
written, whatever it held.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator
from typing import IO, Any

import msgpack

from gpt import records
from gpt.errors import MalformedError
from gpt.printable import printable_json
from gpt.stream import Record, check_segments, pack

MAX_INT = 1 << 53
ESCAPES = frozenset(("$int", "$float", "$b64", "$raw", "$ext", "$pairs", "$map"))
ROW_TYPES = {
    "u8": "B", "u16": "H", "u32": "I", "u64": "Q",
    "i8": "b", "i16": "h", "i32": "i", "i64": "q", "f32": "f", "f64": "d",
}  # fmt: skip


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_escape(value: dict[Any, Any]) -> bool:
    return len(value) == 1 and next(iter(value)) in ESCAPES


def encode(value: Any) -> Any:
    """A msgpack value as what json.dumps takes."""
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
            return [encode(v) for v in value]
        case dict():
            if not all(isinstance(key, str) and encode(key) is key for key in value):
                return {"$pairs": [[encode(k), encode(v)] for k, v in value.items()]}
            plain = {key: encode(v) for key, v in value.items()}
            return {"$map": plain} if _is_escape(plain) else plain
        case msgpack.ExtType():
            return {"$ext": [value.code, _b64(value.data)]}
        case msgpack.Timestamp():
            return {"$ext": [-1, _b64(value.to_bytes())]}
    raise TypeError(f"no JSON for {type(value).__name__}")


def decode(value: Any) -> Any:
    """The inverse of `encode`. Raises ValueError, TypeError or KeyError on an escape that holds nonsense."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    if not _is_escape(value):
        return {key: decode(v) for key, v in value.items()}
    ((escape, inner),) = value.items()
    match escape:
        case "$int":
            number = int(inner)
            if not -(1 << 63) <= number < 1 << 64:
                raise ValueError(f"{inner} does not fit 64 bits")
            return number
        case "$float":
            return float(inner)
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
            return {decode(k): decode(v) for k, v in inner}
    return {key: decode(v) for key, v in inner.items()}


def lines(record: dict[str, Any]) -> Iterator[str]:
    """The lines of a record: one, but for `calls`, which become a `call` for each row."""
    if record["kind"] != "calls":
        yield _dump(record)
        return
    if fault := records.check(record):
        raise MalformedError(fault)
    common = {"kind": "call", "thread": record["thread"]}
    names = [field["name"] for field in record["fields"]]
    if len({*common, *names}) < len(common) + len(names):
        raise MalformedError(f"calls: fields of one name, or named {' or '.join(common)}")
    for row in _rows(record):
        yield _dump({**common, **dict(zip(names, row, strict=True))})


def _dump(record: dict[str, Any]) -> str:
    try:
        return printable_json(json.dumps(encode(record), ensure_ascii=False))
    except RecursionError:
        raise MalformedError(f"{record['kind']} record nested too deep for JSON") from None


def _rows(record: dict[str, Any]) -> Iterator[list[Any]]:
    """The rows of a `calls` record, a value for each field. Rows of zero bytes were never written."""
    layout, stride, rows = [], record["stride"], record["rows"]
    for field in record["fields"]:
        code = ROW_TYPES.get(field["type"])
        if code is None or field["offset"] + struct.calcsize(code) > stride:
            raise MalformedError(f"field '{field['name']}' of type '{field['type']}' does not fit its row")
        layout.append((struct.Struct("<" + code), field["offset"]))
    if not layout or len(rows) % stride:
        raise MalformedError(f"calls: {len(rows)} bytes are no rows of {stride}")
    padding = bytes(stride)
    for start in range(0, len(rows), stride):
        if rows[start : start + stride] == padding:
            continue
        yield [code.unpack_from(rows, start + offset)[0] for code, offset in layout]


def read_lines(file: IO[bytes], name: str) -> Iterator[Record]:
    """The records of JSON lines, segments checked. Raises MalformedError with the line's number."""
    yield from check_segments(_parse_lines(file, name), name)


def _parse_lines(file: IO[bytes], name: str) -> Iterator[tuple[Record, str]]:
    for number, line in enumerate(iter(lambda: file.readline(2 * records.MAX_RECORD), b""), 1):
        where = f"{name}:{number}"
        try:
            record = decode(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise MalformedError(f"no JSON record: {str(error)[:100]}", where) from None
        if not isinstance(record, dict) or not isinstance(record.get("kind"), str):
            raise MalformedError("not a GPT record", where)
        if record["kind"] == "chunk":  # no tool writes one, and whoever reads this could not see what is in it
            raise MalformedError("chunk in the JSON form", where)
        packed = Record(record)
        try:
            packed.raw = pack(record)
        except MalformedError as error:
            raise MalformedError(error.fact, where) from None
        yield packed, where
