"""Assemble the bytes of a probe's buffer from the places that its records name.

A buffer is in one `buffer` record, or in several, each of which continues the previous one. The bytes are in the record
itself, or in a file next to the trace. Either all of them are there, or only the units that saved something. They're
stored as they are or as columns, and either may be packed in a zstd frame; or they're in a file of another format,
whose name is then the codec. gpt-stream(5) lists the keys and describes columns.

No number in a trace can be trusted. The bytes of one record, or of several that are adjacent in a file, are used in
place. Otherwise they're copied into memory filled with zeros, so that units that saved nothing need no pages. A frame
is only decompressed if it claims to contain as many bytes as the record says (for columns, at most as many). Columns
are only unpacked if their planes have the sizes that follow from the numbers in the record.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import GptError, MalformedError, MissingError, TruncatedError
from gpt.formats.paths import open_regular
from gpt.stream.reasons import Reason, parse
from gpt.trace.inputs import FORMATS

Record = dict[str, Any]
Bytes = bytes | memoryview | mmap.mmap | npt.NDArray[np.uint8]

NUMBER = 8  # bytes for the number of a unit
MAX_PART = 64 << 20  # limit for the bytes of a part after unpacking
MAX_ROW = 4096  # limit for the bytes in a row of columns
WORD = 4
COLUMNS = ("columns", "columns+zstd")
FRAMES = ("zstd", "columns+zstd")


class BufferPart(NamedTuple):
    """The contents of one record: `length` bytes from `at` on, or `units` units in this range, each with its number.

    The bytes are in `data`, or in the file `path` at an offset. If they're packed, `packed` is their size there; if
    they're columns, `row` is the number of bytes per row.
    """

    at: int
    length: int
    units: int | None
    codec: str | None
    path: str
    offset: int
    packed: int | None
    data: bytes | None
    row: int

    @property
    def plain(self) -> bool:
        """True if these are the bytes of the buffer: they aren't packed, and no units have been left out."""
        return self.units is None and self.codec is None

    def follows(self, other: BufferPart) -> bool:
        """Return whether the bytes come directly after another part's, in the same file."""
        return self.data is None and (self.path, self.offset) == (other.path, other.offset + other.length)


def parse_part(record: Record) -> BufferPart:
    """Return the part in a `buffer` record. Raises MalformedError if the record is invalid."""
    data, path = record.get("data"), record.get("path")
    size: int = record["size"]
    if (data is not None) + (path is not None) + ("lost" in record) != 1:
        raise MalformedError("buffer: exactly one of data, path and lost is needed")
    at: int = record.get("at", 0)
    length: int = record.get("length", size)
    if not 0 < length <= size - at and (at or length != size):
        raise MalformedError(f"buffer of {size} bytes: no part can have {length} from {at} on")
    units, codec = record.get("units"), record.get("codec")
    if codec not in (None, *COLUMNS, *FRAMES) and not _is_foreign(codec):
        raise MalformedError(f"buffer: unknown codec '{codec[:20]}'")
    row = record.get("row", 0)
    if codec in COLUMNS and (not 0 < row <= MAX_ROW or row % WORD):
        raise MalformedError(f"buffer: columns of rows of {row} bytes")
    offset, packed = record.get("offset", 0), record.get("packed")
    return BufferPart(at, length, units, codec, path or "", offset, packed, data, row)


def _is_foreign(codec: str | None) -> bool:
    """Return whether this codec is the name of another format."""
    return codec in FORMATS and FORMATS[codec].unpack is not None


Unpack = Callable[[IO[bytes], BufferPart], npt.NDArray[np.uint8]]


class Parts:
    """The parts of a buffer of `size` bytes, in the order in which they arrived. If the rest is lost, `lost` is the
    reason.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.lost: Reason | None = None
        self.dropped = 0  # number of records that didn't fit, if the first part gives it
        self.reduced: int | None = None  # size of the buffer, if these are only its sums
        self._parts: list[BufferPart] = []
        self._held = 0
        self._joined: Bytes | None = None

    def add(self, record: Record) -> bool:
        """Add the next part, and return True if it was the last one. Raises MalformedError if it isn't the next one."""
        part = parse_part(record)
        if "lost" in record:
            self.lost = parse(record["lost"])
            self._parts.clear()
            return True
        if (record["size"], part.at) != (self.size, self._held):
            raise MalformedError(
                f"buffer of {record['size']} bytes: its part at {part.at} follows {self._held} bytes of {self.size}"
            )
        self.dropped = self.dropped or record.get("dropped", 0)
        self.reduced = record.get("reduced", self.reduced)
        self._parts.append(part)
        self._held += part.length
        return self._held == self.size

    def read(self, unit: int | None, files: SideFiles, unpack: Unpack | None = None) -> tuple[Bytes, int]:
        """Return the bytes, and the offset at which the buffer begins in them. `unit` is the size of a unit in bytes,
        or None.

        `unpack` decodes parts of another format. Raises MissingError if the bytes are lost, if a file is absent or
        isn't the original, or if there isn't enough memory; TruncatedError if a file is too short; and MalformedError
        if the records are invalid.
        """
        if self.lost is not None:
            raise MissingError(str(self.lost))
        if self._joined is not None:
            return self._joined, 0
        parts = self._parts
        if any(_is_foreign(part.codec) for part in parts):
            (part,) = parts if len(parts) == 1 and unpack else (None,)
            if part is None or part.units is None or part.packed is None or part.data is not None:
                raise MalformedError("buffer: its codec belongs to another format, and the record does not")
            with files.open_file(part.path) as file:
                joined = unpack(file, part) if unpack else np.zeros(0, np.uint8)
            joined.flags.writeable = False
            self.size, self._joined = len(joined), joined
            return joined, 0
        if all(part.plain for part in parts):
            first = parts[0]
            if len(parts) == 1 and first.data is not None:
                return _read_stored(first, unit, files), 0
            if first.data is None and all(part.follows(before) for before, part in pairwise(parts)):
                return files.open(first.path, first.offset + self.size), first.offset
        self._joined = self._join(unit, files)
        parts.clear()
        return self._joined, 0

    def _join(self, unit: int | None, files: SideFiles) -> Bytes:
        too_large = MissingError(f"its {self.size} bytes are more than there is memory for")
        if self.size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2:
            raise too_large
        try:
            joined = np.zeros(self.size, np.uint8)
        except MemoryError:
            raise too_large from None
        for part in self._parts:
            held = np.frombuffer(unpack_part(part, unit, files), np.uint8)
            place = joined[part.at : part.at + part.length]
            if part.units is None:
                place[:] = held
            elif part.units:
                _spread(held, place, part, unit or 0)
        joined.flags.writeable = False
        return joined


def _wrong(part: BufferPart, fact: str) -> GptError:
    """Return the error for wrong contents: either the record is malformed, or the file isn't the original."""
    return MalformedError(f"buffer: {fact}") if part.data is not None else MissingError(f"{part.path}: {fact}")


def _spread(held: npt.NDArray[np.uint8], place: npt.NDArray[np.uint8], part: BufferPart, unit: int) -> None:
    """Copy units to where they belong in the range of the part."""
    if not unit or part.at % unit or part.length % unit:
        raise MalformedError("buffer: a part with units that does not begin and end at units")
    count, step = held.size // (NUMBER + unit), NUMBER + unit
    numbers = np.ndarray((count,), "<u8", held, 0, (step,)) - np.uint64(part.at // unit)
    if numbers.max() >= part.length // unit:  # a number from before the part has wrapped around to a huge one
        raise _wrong(part, "a unit outside of its part")
    place.reshape(-1, unit)[numbers.astype(np.int64)] = held.reshape(count, step)[:, NUMBER:]


def unpack_part(part: BufferPart, unit: int | None, files: SideFiles) -> Bytes:
    """Return the bytes of a part as they were written, unpacked."""
    stored = _read_stored(part, unit, files)
    if part.codec is None:
        return stored
    wanted = _written(part, unit)
    if wanted > MAX_PART:
        raise MalformedError(f"buffer: {wanted} bytes packed in one part; the limit is {MAX_PART}")
    if part.codec in FRAMES:
        stored = _decompress(stored, wanted, part)
    return _unpack_columns(np.frombuffer(stored, np.uint8), wanted, part) if part.codec in COLUMNS else stored


def _decompress(stored: bytes | memoryview, wanted: int, part: BufferPart) -> bytes:
    """Return the contents of a frame: `wanted` bytes, or if they're columns, at most that many."""
    import zstandard

    may_be_less = part.codec in COLUMNS
    try:
        found = zstandard.get_frame_parameters(stored).content_size
        if found == wanted or (may_be_less and found < wanted):
            data = zstandard.ZstdDecompressor(max_window_size=MAX_PART).decompress(stored, allow_extra_data=False)
            found = len(data)
    except zstandard.ZstdError as error:
        raise _wrong(part, f"not a frame of zstd: {error}") from None
    if not (found == wanted or (may_be_less and found < wanted)):
        raise _wrong(part, f"a frame of {found} bytes, not of {wanted}")
    return data


def _unpack_columns(held: npt.NDArray[np.uint8], wanted: int, part: BufferPart) -> npt.NDArray[np.uint8]:
    """Return the `wanted` bytes that are stored as columns."""
    row, rows = part.row, wanted // part.row
    begin = row + (row + 7) // 8
    present = np.unpackbits(held[row:begin], bitorder="little")[:row]
    size = begin + int(present.sum()) * (rows - 1) + wanted % row
    if rows < 2 or held.size != size:
        raise _wrong(part, f"columns of {held.size} bytes, not of {size if rows > 1 else 'two rows'}")
    found = np.empty(wanted, np.uint8)
    table = found[: rows * row].reshape(rows, row).view("<u4")
    table[0] = held[:row].view("<u4") if held.ctypes.data % WORD == 0 else held[:row].copy().view("<u4")
    at = begin
    for word in range(row // WORD):
        steps = np.zeros(rows - 1, np.uint32)
        for byte in range(WORD):
            if present[word * WORD + byte]:
                steps |= held[at : at + rows - 1].astype(np.uint32) << np.uint32(8 * byte)
                at += rows - 1
        steps = (steps >> np.uint32(1)) ^ (np.uint32(0) - (steps & np.uint32(1)))  # the lowest bit is the sign
        np.cumsum(steps, dtype=np.uint32, out=steps)
        table[1:, word] = steps + table[0, word]
    found[rows * row :] = held[at:]
    return found


def _written(part: BufferPart, unit: int | None) -> int:
    """Return how many bytes were written, before they were packed."""
    return part.length if part.units is None else part.units * (NUMBER + (unit or 0))


def _read_stored(part: BufferPart, unit: int | None, files: SideFiles) -> bytes | memoryview:
    """Return the bytes in the record or in the file as they're stored."""
    wanted = _written(part, unit)
    if part.data is not None:
        if part.codec is None and len(part.data) != wanted:
            raise MalformedError(f"buffer of {wanted} bytes has {len(part.data)}")
        return part.data
    if part.codec is not None:
        if part.packed is None or part.packed > wanted:
            raise MalformedError("buffer: packed, but not smaller than its contents")
        wanted = part.packed
    return memoryview(files.open(part.path, part.offset + wanted))[part.offset : part.offset + wanted]


class SideFiles:
    """The files that contain buffers. They must be regular files in the folder of the trace. They're mapped; the last
    one stays open.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._name = ""
        self._mapped: mmap.mmap | None = None

    def open(self, name: str, size: int) -> mmap.mmap:
        """Map a file, which must have at least `size` bytes. Raises the same errors as `Parts.read`."""
        if self._mapped is not None and name == self._name and len(self._mapped) >= size:
            return self._mapped
        with self.open_file(name) as file:
            length = os.fstat(file.fileno()).st_size
            if length < max(size, 1):  # an empty file can't be mapped
                raise TruncatedError(f"{length} bytes of {size}")
            self._mapped, self._name = mmap.mmap(file.fileno(), length, access=mmap.ACCESS_READ), name
        return self._mapped

    @contextmanager
    def open_file(self, name: str) -> Iterator[IO[bytes]]:
        """Open a file for reading. Raises the same errors as `Parts.read`, which name the file."""
        if not name or "/" in name:
            raise MalformedError(f"buffer.path is not the name of a file: '{name[:100]}'")
        if self._folder is None:
            raise MissingError(f"{name}: cannot be found from standard input")
        try:
            with open_regular(self._folder / name, follow=False) as file:
                yield file
        except OSError as error:
            raise MissingError(f"{name}: {error.strerror or error}") from None
        except (MissingError, TruncatedError) as error:
            raise type(error)(f"{name}: {error.fact}") from None
