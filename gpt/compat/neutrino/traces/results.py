"""Read `result/SECONDS.bin`: the data that the probes of a launch saved, in the layouts of both Neutrino generations.

    u32  grid x, y, z; block x, y, z; bytes of dynamic shared memory; sections
    first generation, for each section:   u64 size, u64 offset
    second generation, for each section:  u32 size, u32 threads of a unit (1 or 32), u64 offset
    then the records: by block, by unit of the block, by record of the unit

`size` is the bytes per unit (a thread or a warp); early versions store the bytes of the whole section there. The file
doesn't say which layout it has, so we choose the layout whose records fill the section. If a block ends with a partial
warp, the records of all full warps come first, because Neutrino's readers count `blockSize // 32` of them; records of
the partial warps follow, or are missing.

There are no counts: a record that wasn't saved is zero, or all ones in the second generation. So a saved record with
such a value isn't recognized.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError, MissingError, TruncatedError
from gpt.trace.inputs import StoredBuffer

HEADER, SECTION, SECOND = struct.Struct("<8I"), struct.Struct("<2Q"), struct.Struct("<2IQ")
COUNT, WARP = 8, 32
MOST_SECTIONS = 64
CHUNK = 32 << 20  # bytes of records per read

Bytes = npt.NDArray[np.uint8]


class Result(NamedTuple):
    """The header of a file: `sections` are pairs (size, offset), `size` is the size of the file."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    sections: list[tuple[int, int]]
    size: int

    @property
    def blocks(self) -> int:
        """Number of blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Number of threads in a block."""
        return self.block[0] * self.block[1] * self.block[2]


class SectionLayout(NamedTuple):
    """The place of a map's records: `units` units of `unit` bytes each, from `offset` on."""

    offset: int
    units: int
    unit: int


def parse_result(file: IO[bytes]) -> Result:
    """Parse the header. Raises TruncatedError, MalformedError."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(HEADER.size)
    if len(head) < HEADER.size:
        raise TruncatedError(f"{len(head)} bytes of a header of {HEADER.size}")
    *shape, shared, count = HEADER.unpack(head)
    if not all(shape) or not 0 < count <= MOST_SECTIONS:
        raise MalformedError(f"not a result of Neutrino: grid {shape[:3]}, block {shape[3:]}, {count} sections")
    table = file.read(SECTION.size * count)
    if len(table) < SECTION.size * count:
        raise TruncatedError(f"{size} bytes; {count} sections")
    sections = [SECTION.unpack_from(table, SECTION.size * number) for number in range(count)]
    return Result(tuple(shape[:3]), tuple(shape[3:]), shared, sections, size)


def find_place(result: Result, number: int, level: str, record: int, capacity: int | None) -> SectionLayout:
    """Return the place of the records in section `number`, given the map's level, bytes per record and capacity.

    `capacity` is None if each result has a capacity of its own. Raises TruncatedError, or MalformedError if no layout
    fits.
    """
    size, offset = result.sections[number]
    ends = [start for _, start in result.sections if start > offset]
    extent = min([*ends, result.size]) - offset
    threads, blocks = result.threads, result.blocks
    full = {"thread": threads, "warp": -(-threads // WARP), "block": 1}[level]
    whole = threads // WARP if level == "warp" else full
    second, unit_of = size & 0xFFFFFFFF, size >> 32
    found = [(blocks * units, second) for units in (full, whole) if unit_of and threads // unit_of in (full, whole)]
    found += [(blocks * units, size) for units in (full, whole)]
    found += [(blocks * units, size // (blocks * units)) for units in (full, whole)
              if units and size == extent and size % (blocks * units) == 0]  # fmt: skip
    fits = [
        SectionLayout(offset, units, unit)
        for units, unit in found
        if units and unit and unit % record == 0 and capacity in (None, unit // record) and offset >= HEADER.size
    ]
    if exact := [place for place in fits if place.units * place.unit == extent]:
        return exact[0]
    if inside := [place for place in fits if place.units * place.unit < extent]:
        return inside[0]
    if fits:
        raise TruncatedError(f"{max(extent, 0)} bytes of {fits[0].units * fits[0].unit}")
    raise MalformedError(f"a section of {size} bytes does not hold records of {record}")


def unpack_buffer(file: IO[bytes], stored: StoredBuffer) -> Bytes:
    """Make the buffer that gpt-hook would have written, from the section that a record refers to.

    Raises MalformedError if the sizes in the record don't fit, MissingError without enough memory, TruncatedError if
    the file is cut.
    """
    units, threads, capacity = stored.units, stored.threads, stored.capacity
    unit = stored.size // units if units else 0
    odd = not unit or stored.size % units or unit % stored.stride
    if odd or capacity not in (None, unit // stored.stride):
        raise MalformedError(f"buffer: {stored.size} bytes of {units} units")
    full = {"thread": threads, "warp": -(-threads // WARP), "block": 1}[stored.level]
    whole = threads // WARP if stored.level == "warp" else full
    if units not in (stored.blocks * full, stored.blocks * whole):
        raise MalformedError(f"buffer: {units} units; the launch has {stored.blocks * full}")
    place = SectionLayout(stored.offset, units, unit)
    return unpack_section(file, place, stored.stride, stored.blocks, full, whole, capacity)


def unpack_section(
    file: IO[bytes], place: SectionLayout, record: int, blocks: int, units: int, whole: int, capacity: int | None
) -> Bytes:
    """Convert a section to the buffer that gpt-hook would have written: with counts, and with the units in order.

    `capacity` is None for a log. A block has `units` units, `whole` of them before a partial warp. Raises MissingError
    without enough memory, TruncatedError if the file is truncated.
    """
    if place.offset + place.units * place.unit > os.fstat(file.fileno()).st_size:
        raise TruncatedError(f"cut before {place.offset + place.units * place.unit} bytes")
    if capacity is None:
        return _unpack_log(file.fileno(), place, record, blocks, units, whole)
    step = COUNT + place.unit
    made = _allocate(blocks * units * step).reshape(-1, step)
    for first, data in _iter_data(file.fileno(), place, place.unit):
        there = _saved(data.reshape(-1, record)).reshape(-1, capacity)
        counts = np.where(there.any(axis=1), capacity - there[:, ::-1].argmax(axis=1), 0).astype("<u8")
        at = _reorder(np.arange(first, first + len(counts)), blocks, units, whole)
        made[at, :COUNT] = counts[:, None].view(np.uint8)
        made[at, COUNT:] = data.reshape(-1, place.unit)
    return made.reshape(-1)


def _unpack_log(file: int, place: SectionLayout, record: int, blocks: int, units: int, whole: int) -> Bytes:
    count = sum(int(_saved(data.reshape(-1, record)).sum()) for _, data in _iter_data(file, place, record))
    step = COUNT + record
    made = _allocate(COUNT + count * step)
    made[:COUNT].view("<u8")[0] = count
    entries, at = made[COUNT:].reshape(-1, step), 0
    for first, data in _iter_data(file, place, record):
        rows = data.reshape(-1, record)
        there = np.flatnonzero(_saved(rows))[: count - at]
        unit = _reorder((first + there) // (place.unit // record), blocks, units, whole).astype("<u8")
        entries[at : at + len(there), :COUNT] = unit[:, None].view(np.uint8)
        entries[at : at + len(there), COUNT:] = rows if len(there) == len(rows) else rows[there]
        at += len(there)
    return made


def _allocate(size: int) -> Bytes:
    if size > os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2:
        raise MissingError(f"its {size} bytes are more than there is memory for")
    return np.zeros(size, np.uint8)


def _iter_data(file: int, place: SectionLayout, step: int) -> Iterator[tuple[int, Bytes]]:
    """Yield the bytes of a section in multiples of `step`, with the index of the first step; holes are skipped."""
    begin, end = place.offset, place.offset + place.units * place.unit
    most = max(1, CHUNK // step) * step
    at = begin
    while at < end:
        try:
            data = os.lseek(file, at, os.SEEK_DATA)
            hole = min(os.lseek(file, data, os.SEEK_HOLE), end)
        except OSError:  # only a hole is left
            return
        at = max(at, begin + (data - begin) // step * step)
        last = begin + -(-(hole - begin) // step) * step
        while at < last:
            read: Any = np.empty(min(most, last - at), np.uint8)
            got = os.preadv(file, [read], at)
            if got < len(read):
                raise TruncatedError("cut while it is read")
            yield (at - begin) // step, read
            at += len(read)


def _saved(rows: Bytes) -> npt.NDArray[np.bool_]:
    """Return which records aren't empty."""
    size = next(size for size in (8, 4, 2, 1) if rows.shape[1] % size == 0)
    words: Any = rows.view(f"<u{size}")
    any_, all_ = words[:, 0].copy(), words[:, 0].copy()
    for column in range(1, words.shape[1]):
        any_ |= words[:, column]
        all_ &= words[:, column]
    found: npt.NDArray[np.bool_] = (any_ != 0) & (all_ != np.iinfo(words.dtype).max)
    return found


def _reorder(units: npt.NDArray[np.int64], blocks: int, count: int, whole: int) -> npt.NDArray[np.int64]:
    """Convert indices of units in a file to indices in a buffer."""
    if whole == count:
        return units
    rest, late = count - whole, units - blocks * whole
    early = (units // max(whole, 1)) * count + units % max(whole, 1)
    return np.where(late < 0, early, late // rest * count + whole + late % rest)
