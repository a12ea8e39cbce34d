"""The format of the stream: msgpack maps in segments, as specified in gpt-stream(5).

Reading yields `Record`s: dictionaries that keep the bytes from which they were read. A stage that passes on a record
writes these bytes, so keys that it doesn't know stay unchanged. A stage that changes a record makes a new dictionary.
`chunk`s are expanded while reading.

msgpack has three pitfalls, which are handled here: its Unpacker silently drops an incomplete record at the end of the
input (we raise TruncatedError), it accepts plain text as a sequence of small integers, and by default it refuses large
records.
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
    """A record that was read. Never change it in place, because `raw` has its original bytes."""

    __slots__ = ("raw",)
    raw: bytes


class Packed:
    """Several records that are packed, with their number. Iterating over it yields the records."""

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
    """Return the bytes of a record: the original ones if it was read, or else canonical msgpack."""
    if isinstance(record, Record):
        return record.raw
    try:
        data: bytes = msgpack.packb(record, unicode_errors="surrogateescape")
    except (ValueError, OverflowError) as error:  # values from JSON, and deep nesting, may be impossible in msgpack
        raise MalformedError(f"{record['kind']} record has no msgpack form: {str(error)[:100]}") from None
    if len(data) > records.MAX_RECORD:
        raise MalformedError(f"{record['kind']} record of {len(data)} bytes; the limit is {records.MAX_RECORD}")
    return data


def unpack(data: bytes) -> Record:
    """Return the record that these bytes encode."""
    ((record, _, _),) = _split([data], "record")
    return record


def header(tool: str, argv: list[str]) -> dict[str, Any]:
    """Return a header that describes this process."""
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
    """Yield the records of a msgpack stream, expand chunks, and check that they form segments.

    A regular file is read up to the size that it has now, because a trace may grow faster than we can read it. Raises
    MalformedError if the input isn't a GPT stream, and TruncatedError if it ends inside a record. The location in their
    messages consists of `name` and an offset.
    """
    return check_segments(_expand(_split(_blocks(file), name), name), name)


def read_packed(file: IO[bytes], name: str) -> Iterator[Record]:
    """Return the records of a file that contains part of a segment. Raises MalformedError."""
    return (record for record, *_ in _split(iter(lambda: file.read(BLOCK), b""), name))


class Segments:
    """Tracks to which segment each record of a stream belongs.

    `count` is the number of segments so far. `current` is the number of the segment of the last record, starting with
    0, or None between segments. `open` are the segments without an `end`.
    """

    def __init__(self) -> None:
        self.count = 0
        self.current: int | None = None
        self.open: set[int] = set()

    def add(self, record: dict[str, Any]) -> int:
        """Return the segment of the next record. Raises MalformedError if it isn't in a segment."""
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


def check_segments(found: Iterable[tuple[R, str | int]], name: str) -> Iterator[R]:
    """Pass records on, and check that they form segments, each with a header of a version that we support.

    `found` yields each record with its location, or with its offset in the stream `name`. Raises MalformedError if they
    don't, or if there are no records.
    """
    segments = Segments()
    for record, where in found:
        kind = record["kind"]
        if kind == "header":
            _check_header(record, where if isinstance(where, str) else at(name, where))
        try:
            segments.add(record)
        except MalformedError as error:
            raise MalformedError(error.fact, where if isinstance(where, str) else at(name, where)) from None
        yield record
    if not segments.count:
        raise MalformedError("empty: no segment", name)


def _blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes that are available, at most a block at a time. Never waits until a pipe has a full block."""
    read1 = getattr(file, "read1", file.read)
    left = _size_ahead(file)
    while data := read1(min(BLOCK, left)):
        left -= len(data)
        yield data


def _size_ahead(file: IO[bytes]) -> int:
    """Return how many bytes are left in a regular file, or sys.maxsize for a pipe, a terminal or another kind of
    file.
    """
    try:
        status = os.fstat(file.fileno())
        return max(0, status.st_size - file.tell()) if stat.S_ISREG(status.st_mode) else sys.maxsize
    except (AttributeError, OSError):  # io.UnsupportedOperation is an OSError
        return sys.maxsize


class _Splitter:
    """Divides bytes into records. `offset` is the position of the next block, for messages.

    A trace is mostly chunks of a megabyte, so one instance divides all of them: its buffers are used again. Memory that
    is new costs more than what's done with it here.
    """

    def __init__(self, name: str) -> None:
        self.offset = 0
        self._name = name
        self._unpacker = msgpack.Unpacker(
            unicode_errors="surrogateescape",
            strict_map_key=False,
            max_buffer_size=records.MAX_RECORD + 2 * BLOCK,
            max_array_len=records.MAX_ENTRIES,
            max_map_len=records.MAX_ENTRIES,
        )
        self._edge = 0  # value of unpacker.tell() after the last record
        self._pending = bytearray()  # bytes that the unpacker has got, but hasn't returned as records

    def split(self, block: bytes | memoryview) -> Iterator[tuple[Record, int, int]]:
        """Yield each record that ends in a block, with its offset and the offset of its end. Zero bytes between records
        are padding, and are skipped.
        """
        unpacker, start = self._unpacker, self.offset - len(self._pending)
        self.offset += len(block)
        try:
            unpacker.feed(block)
        except msgpack.BufferFull:
            raise MalformedError(f"record of over {records.MAX_RECORD} bytes", at(self._name, start)) from None
        if self._pending:
            self._pending += block
        taken = 0  # bytes that have become records
        with memoryview(self._pending or block) as pending:
            while True:
                if taken < len(pending) and not pending[taken]:  # skip all of it at once, because padding can be long
                    end = _PADDING.match(pending, taken).end()  # type: ignore[union-attr]
                    unpacker.read_bytes(end - taken)
                    taken, self._edge = end, unpacker.tell()
                where = start + taken
                try:
                    value = unpacker.unpack()
                except msgpack.OutOfData:
                    break
                except (ValueError, TypeError, msgpack.UnpackException) as error:
                    raise MalformedError(f"not msgpack: {error}", at(self._name, where)) from None
                if not isinstance(value, dict) or not isinstance(kind := value.get("kind"), str):
                    raise MalformedError("not a GPT record", at(self._name, where))
                end = taken + unpacker.tell() - self._edge
                if end - taken > records.MAX_RECORD:
                    raise MalformedError(f"record of over {records.MAX_RECORD} bytes", at(self._name, where))
                record = Record(value)
                record.raw = bytes(pending[taken:end]) if kind != "chunk" else b""  # chunks are never passed on
                taken, self._edge = end, unpacker.tell()
                yield record, where, start + end
            left = None if self._pending and not taken else bytearray(pending[taken:])
        if left is not None:  # otherwise, a large record grows in place
            self._pending = left

    def close(self) -> None:
        """Raise TruncatedError if the last block ended inside a record."""
        if left := len(self._pending):
            raise TruncatedError(f"truncated {left} bytes into a record", at(self._name, self.offset - left))


def _split(blocks: Iterable[bytes], name: str) -> Iterator[tuple[Record, int, int]]:
    """Divide bytes into records, each with its offset and the offset of its end."""
    splitter = _Splitter(name)
    for block in blocks:
        yield from splitter.split(block)
    splitter.close()


def _expand(found: Iterable[tuple[Record, int, int]], name: str) -> Iterator[tuple[Record, int]]:
    """Replace each chunk by the records in it."""
    splitter = _Splitter(name)
    for record, offset, end in found:
        if record["kind"] != "chunk":
            yield record, offset
            continue
        if fault := records.check(record):
            raise MalformedError(fault, at(name, offset))
        data, used = record["data"], record["used"]
        if used > len(data):
            raise MalformedError(f"chunk of {len(data)} bytes uses {used}", at(name, offset))
        splitter.offset = end - len(data)
        for inner, place, _ in splitter.split(memoryview(data)[:used]):
            if inner["kind"] == "chunk":
                raise MalformedError("chunk inside a chunk", at(name, place))
            yield inner, place
        splitter.close()


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
