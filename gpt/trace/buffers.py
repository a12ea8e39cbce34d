"""Launches of probed kernels, and what their probes saved: numpy arrays over the bytes, without an object for each
record.

gpt-stream(5), PROBE BUFFERS, describes the layout of a buffer; gpt/trace/parts.py finds its bytes, and
gpt/trace/probes.py collects the records.

No number in a trace can be trusted. A buffer is only read if its size follows from the map and from the grid and block
of the launch, and if that many bytes exist. So an array can be larger than the trace and its files only if the bytes
were compressed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError, MissingError
from gpt.stream import packed, rooms
from gpt.stream.reasons import Reason
from gpt.trace.inputs import FORMATS, StoredBuffer
from gpt.trace.params import ArgumentValue, parse_arguments
from gpt.trace.parts import BufferPart, Bytes, Parts, SideFiles
from gpt.trace.rooms import ClockPairs, read_dropped, read_entries, read_layout
from gpt.trace.sums import BufferSums, parse_sums
from gpt.trace.tables import TableLayout, find_flipped

Record = dict[str, Any]
Counts = npt.NDArray[np.uint64]
Slots = npt.NDArray[np.void]

COUNT = 8  # bytes of a count, and of the number of a unit
WARP = 32  # threads
LEVELS = ("thread", "warp", "block")
TYPES = ("array", "total", "log", "histogram", "table")
MOST_COPIES = 1 << 16  # limit for a histogram or table


class SavedBuffer(NamedTuple):
    """The contents of a buffer, as read-only views of its bytes.

    - For arrays and totals, `counts` has the shape (blocks, units per block), and `slots` (blocks, units per block,
      capacity). An array that keeps the last records of a repeated launch has dropped the oldest ones.
    - For a log, `counts` has one element, `slots` are the saved entries, and `units` has the unit number of each. If
      the log consists of rooms, `pairs` has readings of clocks.
    - For a histogram, `bins` has the number of values in each bin, and `slots` is empty.
    - For a table, `slots` has a row for each key, and `counts` how often each key was saved.

    `dropped` records didn't fit; gpt-stream(5) says what that means with a capacity of 1. `overwritten` records were in
    a ring, until later ones took their place; there, `lanes` has a number for each record, which is different for each
    lane that saved.
    """

    counts: Counts
    slots: Slots
    units: Counts | None
    dropped: int
    bins: Counts | None = None
    pairs: ClockPairs | None = None
    overwritten: int = 0
    lanes: npt.NDArray[np.int64] | None = None


class MapLayout:
    """The layout of a launch's buffer for one map."""

    def __init__(self, record: Record) -> None:
        """Read a `map` record. Raises MalformedError if it's invalid."""
        fields = packed.parse_fields(record)
        self.id: int = record["id"]
        self.name: str = record["name"]
        self.type: str = record["type"]
        self.level: str = record["level"]
        self.capacity: int = record["capacity"]
        self.stride: int = record["stride"]
        for value, known in ((self.type, TYPES), (self.level, LEVELS)):
            if value not in known:
                raise MalformedError(f"map: '{value}' is not one of {', '.join(known)}")
        self.keeps_last = record.get("keeps") == "last"  # if the launch repeats
        self.repeats = record.get("keeps") in ("last", "sum")  # the buffer's address has a bit for repeated launches
        self.head: int = record.get("head", COUNT)  # bytes before the slots of a unit
        if self.head != COUNT and (self.head or self.type not in ("total", "histogram") or self.capacity > 1):
            raise MalformedError(f"map: a head of {self.head} bytes")
        self.grows = self.type == "log" and record.get("keeps") == "all"
        self.rooms = read_layout(record, fields) if self.type == "log" and "stored" in record else None
        self.ring: int | None = record.get("ring") if self.rooms else None
        self.ranges: list[str] = record.get("ranges", [])
        self.copies: int | None = record.get("copies")
        has_copies = self.type in ("histogram", "table")
        if (
            has_copies != (self.copies is not None)
            or not 0 < (1 if self.copies is None else self.copies) <= MOST_COPIES
        ):
            raise MalformedError(f"map: {self.copies} copies")
        self.low, self.step = record.get("low", 0), record.get("step", 0)  # where bins begin, and how wide they are
        bins = self.stride // COUNT
        fits = self.low + self.step * bins < 1 << 64 if self.step else bins <= 65
        is_odd = self.stride % COUNT or bins < 2 or self.head or self.capacity > 1 or not fits
        if self.type == "histogram" and is_odd:
            raise MalformedError("map: impossible bins")
        self.types = {field.name: field.type for field in fields}
        if not self.capacity:  # records are only counted
            self.head = COUNT
        self.ops = {name: op for op in ("min", "max", "last") for name in record.get(op, ())}  # other than sums
        if self.ops and (self.type not in ("total", "table") or not self.types.keys() >= self.ops.keys()):
            raise MalformedError("map: min, max or last names no field of a total or table")
        self._flipped = {name: find_flipped(self.types[name], op) for name, op in self.ops.items() if op != "last"}
        self.unsigned = {name for name, type_ in self.types.items() if type_[0] == "u"}  # names of unsigned fields
        keys = list(record.get("key", ()))
        self.table = TableLayout(fields, keys, self.ops, self._flipped, self.stride) if self.type == "table" else None
        if keys and not self.table:
            raise MalformedError(f"map: a key of a {self.type}")
        self._slot = np.dtype(
            {
                "names": [field.name for field in fields],
                "formats": ["<" + field.code for field in fields],
                "offsets": [field.offset for field in fields],
                "itemsize": self.stride,
            }
        )

    @property
    def has_ranges(self) -> bool:
        """True if the records are ends of the `ranges`."""
        return bool(self.ring and self.ranges) and tuple(self.types.items()) == rooms.RANGE_FIELDS

    @property
    def unit(self) -> int | None:
        """The size of a unit in bytes, or None for a log."""
        return None if self.type == "log" else self.head + self.capacity * self.stride

    def units(self, threads: int) -> int:
        """Return the number of units in a block with this many threads."""
        return {"thread": threads, "warp": -(-threads // WARP), "block": 1}[self.level]

    def size(self, blocks: int, threads: int) -> int:
        """Return the size of the buffer in bytes for a launch with these many blocks, and threads per block."""
        if self.rooms:
            return rooms.HEAD + self.capacity * rooms.SECTOR
        if self.type == "log":
            return COUNT + self.capacity * (COUNT + self.stride)
        units = self.copies or blocks * self.units(threads)
        return units * (self.head + self.capacity * self.stride)

    def check_size(self, size: int, blocks: int, threads: int) -> None:
        """Raise MalformedError unless the buffer of this launch can have this size.

        A log may be cut off at its end, and if it can grow, it may be larger than its map says.
        """
        wanted = self.size(blocks, threads)
        head, entry = (rooms.HEAD, rooms.SECTOR) if self.rooms else (COUNT, COUNT + self.stride)
        whole = self.type == "log" and size >= head and (size - head) % entry == 0
        cut = whole and (self.grows or size < wanted)
        if not (size == wanted or cut) or not blocks or not threads:
            raise MalformedError(f"buffer of {size} bytes; map '{self.name}' has {wanted}")

    def read(self, data: Bytes, blocks: int, threads: int, offset: int = 0, size: int | None = None) -> SavedBuffer:
        """Read a buffer of `size` bytes at `offset`; by default, up to the end of the data.

        Raises MalformedError if the map can't have a buffer of that size, or if the data is too short.
        """
        there = len(data) - offset if size is None else size
        self.check_size(there, blocks, threads)
        if len(data) - offset < there:
            raise MalformedError(f"buffer of {len(data) - offset} bytes; it has {there}")
        if self.rooms:
            return self._read_rooms(np.frombuffer(data, np.uint8, there, offset), self.rooms)
        if self.type == "log":
            return self._read_log(data, offset, (there - COUNT) // (COUNT + self.stride))
        if self.table:
            return self._read_table(data, offset, self.table)
        if self.copies:
            return self._read_histogram(data, offset, self.copies)
        units = self.units(threads)
        unit = self.head + self.capacity * self.stride
        steps = (units * unit, unit)
        shape = (blocks, units, self.capacity)
        slots: Slots = np.ndarray(shape, self._slot, data, offset + self.head, (*steps, self.stride))
        if self.head:
            counts: Counts = np.ndarray((blocks, units), "<u8", data, offset, steps)
        else:
            bytes_ = np.ndarray((blocks, units, unit), "u1", data, offset, (*steps, 1))
            counts = np.asarray(bytes_.any(axis=2), np.uint64)
        if self._flipped:
            slots = self._unflip(slots, counts)
        dropped = 0
        if self.type == "array":
            over = counts[counts > self.capacity]  # usually empty
            dropped = int((over - np.uint64(self.capacity)).sum())
        return SavedBuffer(counts, slots, None, dropped)

    def read_reduced(self, data: bytes) -> SavedBuffer:
        """Read a histogram whose copies have been added up."""
        if len(data) != (self.capacity * self.stride or COUNT):
            raise MalformedError(f"map '{self.name}': a histogram of {len(data)} bytes")
        return self._read_histogram(data, 0, 1)

    def _read_histogram(self, data: Bytes, offset: int, copies: int) -> SavedBuffer:
        shape = copies, (self.capacity * self.stride if self.capacity else COUNT) // COUNT
        bins: Counts = np.ndarray(shape, "<u8", data, offset).sum(axis=0, dtype=np.uint64)
        counts: Counts = np.array([bins.sum()], np.uint64)
        return SavedBuffer(counts, np.zeros(0, self._slot), None, 0, bins if self.capacity else None)

    def _read_table(self, data: Bytes, offset: int, table: TableLayout) -> SavedBuffer:
        unit = self.head + self.capacity * self.stride
        first: Counts = np.ndarray((self.copies or 1,), "<u8", data, offset, (unit,))
        if not self.capacity:
            return SavedBuffer(np.array([first.sum()], np.uint64), np.zeros(0, self._slot), None, 0)
        shape, steps = (self.copies or 1, self.capacity, self.stride), (unit, self.stride, 1)
        slots = np.ndarray(shape, "u1", data, offset + self.head, steps)
        counts, rows = table.read(slots.reshape(-1, self.stride))
        return SavedBuffer(counts, rows, None, int(first.sum()))

    def iter_edges(self) -> Iterator[tuple[int, int | None]]:
        """Yield the lower bound of each bin of a histogram, and the lower bound of the next bin, or None for the last
        bin.
        """
        count = self.stride // COUNT
        if self.step:
            starts = [0, *(self.low + self.step * number for number in range(count - 1))]
        else:
            starts = [0, *(1 << number for number in range(count - 1))]
        yield from zip(starts, [*starts[1:], None], strict=True)

    def _unflip(self, slots: Slots, counts: Counts) -> Slots:
        """Return records with the original values of fields that keep a minimum or maximum, in which some bits are
        inverted.
        """
        slots, there = slots.copy(), counts > 0
        for name, bits in self._flipped.items():
            found = slots[name][:, :, 0]
            plain = (found.view(bits.dtype) ^ bits).view(found.dtype)
            slots[name][:, :, 0] = np.where(there, plain, found)
        slots.flags.writeable = False
        return slots

    def _read_rooms(self, data: npt.NDArray[np.uint8], layout: rooms.RecordLayout) -> SavedBuffer:
        dropped = read_dropped(data)
        of = data if self.capacity else data[:0]
        found = read_entries(of, layout, self._slot, self.level == "thread", self.ring)
        units, slots, pairs, overwritten, lanes = found
        count = np.array([min(len(slots) + dropped + overwritten, (1 << 64) - 1)], np.uint64)
        return SavedBuffer(count, slots, units, dropped, pairs=pairs, overwritten=overwritten, lanes=lanes)

    def _read_log(self, data: Bytes, offset: int, entries: int) -> SavedBuffer:
        counts: Counts = np.ndarray((1,), "<u8", data, offset)
        count, step = int(counts[0]), (COUNT + self.stride,)
        capacity = max(self.capacity, entries) if self.grows else self.capacity
        shape = (min(count, capacity),)
        if shape[0] > entries:
            raise MalformedError(f"map '{self.name}': {entries} entries of {shape[0]}")
        units: Counts = np.ndarray(shape, "<u8", data, offset + COUNT, step)
        slots: Slots = np.ndarray(shape, self._slot, data, offset + 2 * COUNT if shape[0] else 0, step)
        return SavedBuffer(counts, slots, units, max(0, count - capacity))


@dataclass(frozen=True)
class ProbedLaunch:
    """A launch of a kernel with probes. `start` is a time stamp."""

    id: int
    kernel: int
    function: int
    thread: int
    start: int
    device: int
    stream: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    params: bytes  # the bytes of the parameters, as the program passed them
    repeats: bool = False  # True if it may stand for several launches; then arrays keep the last records
    exec: int | None = None  # handle of the executable graph, if one launched it

    @property
    def blocks(self) -> int:
        """Number of blocks in the grid."""
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Number of threads in a block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class Buffer:
    """The records that the probes in a launch saved to one map. The bytes are only read when they're needed.

    `kernel` is the mangled name. If there are no bytes, `lost` is the reason.
    """

    launch: ProbedLaunch
    map: MapLayout
    kernel: str
    lost: Reason | None
    _params: list[Record]
    _parts: Parts
    _files: SideFiles

    @property
    def unsaved(self) -> bool:
        """True if there are no bytes because nobody asked for any, so that nothing is missing."""
        return self.lost is not None and self.lost.code == "not_saved"

    @property
    def arguments(self) -> list[ArgumentValue]:
        """The arguments that were passed to the kernel. Empty if they weren't recorded.

        Raises MalformedError if the records contradict each other.
        """
        return parse_arguments(self._params, self.launch.params) if self.launch.params else []

    @property
    def reduced(self) -> bool:
        """True if only the sums of its records were kept, because of --detail. Histograms consist of nothing but
        sums.
        """
        return self._parts.reduced is not None and self.map.type != "histogram"

    def read_sums(self) -> BufferSums:
        """Return the sums of a buffer, if nothing but its sums was kept. Raises the same errors as `Parts.read`."""
        return parse_sums(self._read_reduced(), self.map.types if self.map.capacity else {}, self.map.name)

    def _read_reduced(self) -> bytes:
        assert self._parts.reduced is not None
        self.map.check_size(self._parts.reduced, self.launch.blocks, self.launch.threads)
        if self.map.table:
            raise MalformedError(f"map '{self.map.name}': a table was reduced")
        data, offset = self._parts.read(None, self._files)
        return bytes(data[offset : offset + self._parts.size])

    def read(self) -> SavedBuffer:
        """Read the arrays. Raises the same errors as `Parts.read`, and MissingError if only sums were kept."""
        if self.reduced:
            raise MissingError("only sums were kept, because of --detail")
        if self._parts.reduced is not None:
            return self.map.read_reduced(self._read_reduced())
        shape = self.launch.blocks, self.launch.threads
        if self.lost is None:
            self.map.check_size(self._parts.size, *shape)
        data, offset = self._parts.read(self.map.unit, self._files, self._unpack)
        saved = self.map.read(data, *shape, offset, self._parts.size)
        if saved.units is not None and self._parts.dropped:  # dropped records aren't counted in other formats
            saved = saved._replace(dropped=self._parts.dropped)
        return _in_order(saved) if self.launch.repeats and self.map.keeps_last and saved.dropped else saved

    def _unpack(self, file: IO[bytes], part: BufferPart) -> npt.NDArray[np.uint8]:
        unpack, layout = FORMATS[part.codec or ""].unpack, self.map
        assert unpack  # parse_part checked it
        capacity = None if layout.type == "log" else layout.capacity
        shape = layout.level, layout.stride, capacity, self.launch.blocks, self.launch.threads
        return unpack(file, StoredBuffer(part.offset, part.packed or 0, part.units or 0, *shape))


def _in_order(saved: SavedBuffer) -> SavedBuffer:
    """Put the records of an array back into the order in which they were saved, after it has wrapped around."""
    capacity = np.uint64(saved.slots.shape[2])
    oldest = np.where(saved.counts > capacity, saved.counts % capacity, np.uint64(0))
    order = (oldest[..., None] + np.arange(capacity, dtype=np.uint64)) % capacity
    return saved._replace(slots=np.take_along_axis(saved.slots, order.astype(np.intp), axis=2))
