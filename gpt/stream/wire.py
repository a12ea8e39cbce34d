"""The wire: msgpack maps in segments, as gpt-stream(5) specifies it.

Reading yields `Record`s, dictionaries that also hold the bytes they came from. A stage that passes a record on
writes those bytes again, so what it does not know leaves exactly as it came; a stage that changes one makes a
new dictionary. `chunk`s are expanded while reading.

Three traps of msgpack are dealt with here: its Unpacker forgets a record that is torn at the end of the input
(here a TruncatedError), takes plain text for a row of small integers, and refuses large records by default.
"""

from __future__ import annotations

import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from typing import IO, Any, TypeVar

import msgpack

from gpt.base.errors import MalformedError, TruncatedError, at
from gpt.stream import records

BLOCK = 1 << 20
_PADDING = re.compile(rb"\0*")


class Record(dict[str, Any]):
    """A record as it was read. Never changed in place: `raw` are its bytes on the wire."""

    __slots__ = ("raw",)
    raw: bytes


class Packed:
    """Several records as they go into a stream: bytes and their number. Iterating yields the records."""

    def __init__(self, produce: Iterable[dict[str, Any]]) -> None:
        self.data = bytearray()
        self.count = 0
        for record in produce:
            self.data += pack(record)
            self.count += 1

    def __iter__(self) -> Iterator[dict[str, Any]]:
        unpacker = msgpack.Unpacker(
            unicode_errors="surrogateescape", strict_map_key=False, max_buffer_size=2 * BLOCK + records.MAX_RECORD
        )
        for start in range(0, len(self.data), BLOCK):
            unpacker.feed(memoryview(self.data)[start : start + BLOCK])
            yield from unpacker


def pack(record: dict[str, Any]) -> bytes:
    """The bytes of a record: its own if it was read and not changed, else canonical msgpack."""
    if isinstance(record, Record):
        return record.raw
    try:
        data: bytes = msgpack.packb(record, unicode_errors="surrogateescape")
    except (ValueError, OverflowError) as error:  # JSON and deep nesting go beyond what msgpack can say
        raise MalformedError(f"{record['kind']} record has no msgpack form: {str(error)[:100]}") from None
    if len(data) > records.MAX_RECORD:
        raise MalformedError(f"{record['kind']} record of {len(data)} bytes; the limit is {records.MAX_RECORD}")
    return data


def unpack(data: bytes) -> Record:
    """The record of which these are the bytes."""
    ((record, _),) = _split([data], "record")
    return record


def header(tool: str, argv: list[str]) -> dict[str, Any]:
    """The record that begins a segment of this process."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot_id = file.read().strip()
    except OSError:
        boot_id = None
    return records.make(
        "header",
        version="{}.{}".format(*records.VERSION),
        tool=tool,
        argv=argv,
        host=os.uname().nodename,
        pid=os.getpid(),
        boot_id=boot_id,
        realtime=time.time_ns(),
        monotonic=time.monotonic_ns(),
        via=[],
    )


def read_records(file: IO[bytes], name: str) -> Iterator[Record]:
    """The records of a msgpack stream, chunks expanded, segments checked.

    Of a regular file it reads what was there at the call: a trace may grow faster than it is read.
    Raises MalformedError if the input is not a GPT stream, and TruncatedError if it ends inside a record;
    `name` stands in their messages, with the offset.
    """
    found = _expand(_split(_blocks(file), name), name)
    yield from check_segments(((record, at(name, offset)) for record, offset in found), name)


def read_packed(file: IO[bytes], name: str) -> Iterator[Record]:
    """The records of a file that is a part of a segment, to its end. Raises MalformedError."""
    return (record for record, _ in _split(iter(lambda: file.read(BLOCK), b""), name))


class Segments:
    """Which segment a record is in, of those that take turns in a stream.

    `current` is the number of that of the last record, from 0; None between segments. `open` are those that have no
    `end` by now, and `count` is how many began.
    """

    def __init__(self) -> None:
        self.count = 0
        self.current: int | None = None
        self.open: set[int] = set()

    def add(self, record: dict[str, Any]) -> int:
        """The segment of the next record. Raises MalformedError where it is in none."""
        kind = record["kind"]
        if kind == "header":
            self.current = self.count
            self.open.add(self.count)
            self.count += 1
        elif kind == "resume":
            if fault := records.check(record):
                raise MalformedError(fault)
            self.current = self.count - 1 - record["back"]
            if self.current not in self.open:
                raise MalformedError("resume of a segment that is not open")
        if self.current is None:
            raise MalformedError(f"{kind} record outside a segment")
        current = self.current
        if kind == "end":
            self.open.discard(current)
            self.current = None
        return current


R = TypeVar("R", bound=dict[str, Any])


def check_segments(found: Iterable[tuple[R, str]], name: str) -> Iterator[R]:
    """Passes records on as long as they form segments: a header that this version reads comes first.

    `found` yields each record with its location. Raises MalformedError otherwise, and on an empty input.
    """
    segments = Segments()
    for record, where in found:
        kind = record["kind"]
        if kind == "header":
            _check_header(record, where)
        try:
            segments.add(record)
        except MalformedError as error:
            raise MalformedError(error.fact, where) from None
        yield record
    if not segments.count:
        raise MalformedError("empty: no segment", name)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """What is there, at most a block at a time. A pipe's reader must not wait for a full block."""
    read1 = getattr(file, "read1", file.read)
    left = _size_ahead(file)
    while data := read1(min(BLOCK, left)):
        left -= len(data)
        yield data


def _size_ahead(file: IO[bytes]) -> int:
    """How many bytes of a regular file lie ahead; no limit for a pipe, a terminal and an object without a file."""
    try:
        status = os.fstat(file.fileno())
        return max(0, status.st_size - file.tell()) if stat.S_ISREG(status.st_mode) else sys.maxsize
    except (AttributeError, OSError):  # io.UnsupportedOperation is an OSError
        return sys.maxsize


def _split(blocks: Iterable[bytes], name: str, base: int = 0) -> Iterator[tuple[Record, int]]:
    """Cuts bytes into records and their offsets. Zero bytes between records are skipped (padding)."""
    unpacker = msgpack.Unpacker(
        unicode_errors="surrogateescape",
        strict_map_key=False,
        max_buffer_size=records.MAX_RECORD + 2 * BLOCK,
        max_array_len=records.MAX_ENTRIES,
        max_map_len=records.MAX_ENTRIES,
    )
    pending = bytearray()  # the bytes that the unpacker holds and has not returned yet
    start = 0  # offset of pending[0]
    edge = 0  # the unpacker's count at the end of the last record
    for block in blocks:
        try:
            unpacker.feed(block)
        except msgpack.BufferFull:
            raise MalformedError(f"record of over {records.MAX_RECORD} bytes", at(name, base + start)) from None
        pending += block
        taken = 0  # bytes of pending that became records
        while True:
            if pending.startswith(b"\0", taken):  # padding can be long: not one by one
                end = _PADDING.match(pending, taken).end()  # type: ignore[union-attr]
                unpacker.read_bytes(end - taken)
                taken, edge = end, unpacker.tell()
            where = base + start + taken
            try:
                value = unpacker.unpack()
            except msgpack.OutOfData:
                break
            except (ValueError, TypeError, msgpack.UnpackException) as error:
                raise MalformedError(f"not msgpack: {error}", at(name, where)) from None
            if not isinstance(value, dict) or not isinstance(value.get("kind"), str):
                raise MalformedError("not a GPT record", at(name, where))
            end = taken + unpacker.tell() - edge
            record = Record(value)
            record.raw = bytes(pending[taken:end])
            if len(record.raw) > records.MAX_RECORD:
                raise MalformedError(f"record of over {records.MAX_RECORD} bytes", at(name, where))
            taken, edge = end, unpacker.tell()
            yield record, where
        del pending[:taken]
        start += taken
    if pending:
        raise TruncatedError(f"truncated {len(pending)} bytes into a record", at(name, base + start))


def _expand(found: Iterable[tuple[Record, int]], name: str) -> Iterator[tuple[Record, int]]:
    """Puts the records that a chunk holds in its place."""
    for record, offset in found:
        if record["kind"] != "chunk":
            yield record, offset
            continue
        if fault := records.check(record):
            raise MalformedError(fault, at(name, offset))
        data, used = record["data"], record["used"]
        if used > len(data):
            raise MalformedError(f"chunk of {len(data)} bytes uses {used}", at(name, offset))
        start = offset + len(record.raw) - len(data)
        for inner, place in _split([data[:used]], name, start):
            if inner["kind"] == "chunk":
                raise MalformedError("chunk inside a chunk", at(name, place))
            yield inner, place


def _check_header(record: dict[str, Any], where: str) -> None:
    if fault := records.check(record):
        raise MalformedError(fault, where)
    major, dot, minor = record["version"].partition(".")
    if not (dot and major.isascii() and major.isdigit() and minor.isascii() and minor.isdigit()):
        raise MalformedError(f"version '{record['version'][:20]}' is not MAJOR.MINOR", where)
    if int(major[:9]) != records.VERSION[0]:
        raise MalformedError(
            f"version {record['version'][:20]}; this reads {records.VERSION[0]}.x: use a matching gpt", where
        )
