"""Write `result/SECONDS.bin`: the data that the probes of a launch saved, in the layout that Neutrino's readers expect.

    u32  grid x, y, z; block x, y, z; bytes of dynamic shared memory; sections
    u64  for each section (a map): bytes of a unit (a thread, a warp), offset of its records in the file;
         if the probe file has the format of the second generation: u32 bytes of a unit, u32 its threads, u64 offset
    then the records: by block, by unit of the block, by record of the unit

The fields of a record come one after another, without padding, and take as many bytes as the probe declares. Records
that a unit didn't save are zero. In a log, each unit gets as much space as the unit that saved most in this launch.

Each SM has its own clock. In a log, the field `clock_sm` has the number of the SM in its upper bits. In the file, it's
replaced by the clock since the first record of the launch, starting at 1, so that readers that know nothing about SMs
draw aligned clocks. The log's pairs of clocks and times align the SMs; without them, each SM starts at 1.

Neutrino's readers expect `blockSize // 32` warps. If a block ends with a partial warp, the records of all full warps
come first, as these readers expect, and the records of each block's last warp come after them.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.sm_clocks import SmClocks
from gpt.compat.neutrino.traces.results import HEADER, SECOND, SECTION
from gpt.trace.buffers import WARP, MapLayout, ProbedLaunch, SavedBuffer
from gpt.trace.rooms import ClockPairs

CHUNK = 16 << 20  # bytes of records to write at once
MOST = 1 << 60  # bytes of a file
CLOCK, CLOCK_BITS = "clock_sm", 54  # a field of logs: the number of the SM is above its clock


class ResultSection(NamedTuple):
    """The records of a map in a file: bytes per record, records per unit, units per block and how many of these are
    full, and threads per unit.

    `entries` is the number of records in a log.
    """

    name: str
    bytes: int
    capacity: int
    units: int
    whole: int
    entries: int | None
    threads: int

    def size(self, blocks: int) -> int:
        """Return the bytes of all records."""
        return blocks * self.units * self.unit

    @property
    def unit(self) -> int:
        """Bytes of a unit."""
        return self.bytes * self.capacity


def pack_fields(fields: Sequence[tuple[str, str]], size: int) -> np.dtype[np.void]:
    """Return a dtype with these fields, without padding. A record has `size` bytes, or more if the fields need more."""
    packed = np.dtype(list(fields))
    return np.dtype(
        {
            "names": [name for name, _ in fields],
            "formats": [type_ for _, type_ in fields],
            "offsets": [packed.fields[name][1] for name, _ in fields] if packed.fields else [],
            "itemsize": max(size, packed.itemsize),
        }
    )


def dtype_of(saved: SavedBuffer, size: int) -> np.dtype[np.void]:
    """Return the dtype of a saved record in a file. `size` is the size that the probe declares."""
    slot = saved.slots.dtype
    assert slot.fields is not None
    ordered = sorted(slot.fields.items(), key=lambda field: field[1][1])
    return pack_fields([(name, field[0].str) for name, field in ordered], size)


def make_section(launch: ProbedLaunch, layout: MapLayout, saved: SavedBuffer, size: int) -> ResultSection:
    """Return how the records of a map are laid out in the file."""
    units = layout.units(launch.threads)
    whole = launch.threads // WARP if layout.level == "warp" else units
    capacity, count = layout.capacity, None
    if saved.units is not None:
        count = len(saved.units)
        most = np.unique(saved.units, return_counts=True)[1].max() if count else 0
        capacity = max(1, int(most))
    threads = {"thread": 1, "warp": WARP, "block": launch.threads}[layout.level]
    return ResultSection(layout.name, dtype_of(saved, size).itemsize, capacity, units, whole, count, threads)


def write_result(
    file: IO[bytes],
    probed: dict[str, Any],
    found: Sequence[tuple[ResultSection, SavedBuffer]],
    second: bool = False,
    highest: float = math.inf,
) -> int:
    """Write a launch in the format of either generation, and return the size of the file. `highest` is the number of ns
    per clock at the device's highest clock rate, if that's known. Raises OSError.
    """
    blocks = math.prod(probed["grid"])
    at = HEADER.size + SECTION.size * len(found)
    head = [HEADER.pack(*probed["grid"], *probed["block"], probed["shared"], len(found))]
    starts = []
    for section, _ in found:
        if second and section.unit >= 1 << 32:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        head.append(SECOND.pack(section.unit, section.threads, at) if second else SECTION.pack(section.unit, at))
        starts.append(at)
        at += section.size(blocks)
    if at > MOST:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    file.write(b"".join(head))
    for (section, saved), start in zip(found, starts, strict=True):
        record = dtype_of(saved, section.bytes)
        if saved.units is None:
            for part in _iter_dense(section, saved, record):
                file.write(part)
        else:
            file.flush()
            _write_sparse(file.fileno(), start, section, saved, record, blocks, highest)
            file.seek(start + section.size(blocks))
    file.flush()
    os.ftruncate(file.fileno(), at)  # the last units of a log may have saved nothing
    return at


def _copy(slots: npt.NDArray[np.void], record: np.dtype[np.void]) -> npt.NDArray[np.void]:
    made = np.zeros(slots.shape, record)
    for name in record.names or ():
        made[name] = slots[name]
    return made


def _iter_dense(section: ResultSection, saved: SavedBuffer, record: np.dtype[np.void]) -> Iterator[bytes]:
    """Yield the units of all blocks: first the full ones, then the others."""
    for start, end in ((0, section.whole), (section.whole, section.units)):
        if start == end:
            continue
        step = max(1, CHUNK // max(1, section.unit * (end - start)))
        for block in range(0, len(saved.slots), step):
            yield _copy(saved.slots[block : block + step, start:end], record).tobytes()


def _write_sparse(
    file: int,
    start: int,
    section: ResultSection,
    saved: SavedBuffer,
    record: np.dtype[np.void],
    blocks: int,
    highest: float,
) -> None:
    """Write the entries of a log, each at the place of its unit, and leave holes in between."""
    assert saved.units is not None
    there = saved.units < blocks * section.units
    units, slots = saved.units[there].astype(np.int64), saved.slots[there]
    if not len(units):
        return
    if CLOCK in (slots.dtype.names or ()) and slots.dtype[CLOCK] == np.uint64:
        slots[CLOCK] = align_clocks(slots[CLOCK], saved.pairs, highest)
    order = np.argsort(units, kind="stable")  # the entries of a unit stay in order
    units, slots = units[order], slots[order]
    first = np.flatnonzero(np.r_[True, units[1:] != units[:-1]])
    within = np.arange(len(units)) - np.repeat(first, np.diff(np.r_[first, len(units)]))
    slot = _place(units, section, blocks) * section.capacity + within
    cuts = np.flatnonzero(np.r_[True, np.diff(slot) != 1])
    for begin, end in zip(cuts.tolist(), [*cuts[1:].tolist(), len(slot)], strict=True):
        data = memoryview(_copy(slots[begin:end], record).tobytes())
        at = start + int(slot[begin]) * section.bytes
        while data:
            done = os.pwrite(file, data, at)
            data, at = data[done:], at + done


def align_clocks(
    stamps: npt.NDArray[np.uint64], pairs: ClockPairs | None = None, highest: float = math.inf
) -> npt.NDArray[np.uint64]:
    """Return clocks counted from the first clock of all SMs or, if `pairs` can't align SMs, from the first clock of
    each SM. In the given clocks, the bits above CLOCK_BITS have the number of the SM.

    The first one is 1, because a record of zeros would count as not saved.
    """
    sms, which = np.unique(stamps >> np.uint64(CLOCK_BITS), return_inverse=True)
    some = np.zeros(len(sms), np.uint64)
    some[which] = stamps  # any clock of the SM will do: clocks may have wrapped around since then, but not twice
    since = _since(stamps, some[which])
    if pairs is not None and len(sms):
        place = np.searchsorted(sms, pairs.sm)
        there = sms[np.minimum(place, len(sms) - 1)] == pairs.sm
        place, clocks = place[there], _since(pairs.clock[there], some[place[there]])
        if (found := _align_sms(which, since, (place, clocks, pairs.time[there]), highest)) is not None:
            return found
    first = np.full(len(sms), np.iinfo(np.int64).max)
    np.minimum.at(first, which, since)
    aligned: npt.NDArray[np.uint64] = (since - first[which] + 1).astype(np.uint64)
    return aligned


def _since(clocks: npt.NDArray[np.uint64], others: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the signed distances between clocks of CLOCK_BITS bits."""
    turn = np.uint64(64 - CLOCK_BITS)
    found: npt.NDArray[np.int64] = ((clocks - others) << turn).view(np.int64) >> np.int64(turn)
    return found


def _align_sms(
    which: npt.NDArray[np.intp], since: npt.NDArray[np.int64], pairs: tuple[Any, Any, Any], highest: float
) -> npt.NDArray[np.uint64] | None:
    """Return clocks since the first of all clocks, or None if the pairs can't align them. `which` has the index of each
    clock's SM; `pairs` are such indexes, clocks and times.
    """
    middle = np.int64(1 << CLOCK_BITS)  # makes all clocks positive
    clocks = (since + middle).astype(np.uint64)
    first = np.full(which.max() + 1, np.iinfo(np.uint64).max, np.uint64)
    last = np.zeros(len(first), np.uint64)
    np.minimum.at(first, which, clocks)
    np.maximum.at(last, which, clocks)
    sm, clock, time = pairs
    placed = ClockPairs(sm.astype(np.uint32), (clock + middle).astype(np.uint64), time)
    aligned = SmClocks(placed, first, last, highest)
    if aligned.rate is None:
        return None
    times = aligned.times(which, clocks)
    found: npt.NDArray[np.uint64] = np.rint((times - times.min()) / aligned.rate + 1).astype(np.uint64)
    return found


def _place(units: npt.NDArray[np.int64], section: ResultSection, blocks: int) -> npt.NDArray[np.int64]:
    """Return the position of each unit in the file, in which partial warps come after all full warps."""
    block, unit = np.divmod(units, section.units)
    rest = section.units - section.whole
    early = block * section.whole + unit
    late = blocks * section.whole + block * rest + unit - section.whole
    return np.where(unit < section.whole, early, late)


def fields_of(record: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the fields of a `map` record in the order of a slot, with the letters of `struct`."""
    letters = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i8": "b", "i16": "h", "i32": "i", "i64": "q",
               "f16": "e", "f32": "f", "f64": "d"}  # fmt: skip
    ordered = sorted(record["fields"], key=lambda field: field["offset"])
    return [(field["name"], letters[field["type"]]) for field in ordered]
