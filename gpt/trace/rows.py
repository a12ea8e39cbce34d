"""Packed rows (`calls`, `launches` and others) as numpy arrays, without an object for each row.

A trace of ten million calls has about twenty thousand `calls` records of up to 512 rows, with only a few different
layouts. So the fields are parsed once per layout instead of once per record, and rows with the same layout are
collected as bytes until there are enough of them to make an array worthwhile.

In JSON, each row is a record of its own (`call`, `launch`). Here, these are packed into rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError
from gpt.stream import packed, records

Rows = npt.NDArray[np.void]
Threads = npt.NDArray[np.uint64]
Choose = Callable[[Threads, Rows], npt.NDArray[np.bool_]]

BATCH = 16 << 20  # bytes of collected rows that make a batch
OVERHEAD = 64  # bytes that a collected record needs in addition to its rows
RECENT = 4  # layouts to compare with
MAX_LAYOUTS = 1000  # limit for the cache of layouts
_PACKER = msgpack.Packer(unicode_errors="surrogateescape")
CALL = {"start": "u64", "duration": "u64", "api": "u32", "result": "i32"}  # fields that every row of `calls` has
ARGUMENTS = {  # fields that it may have
    "object": "u64", "stream": "u64", "to": "u64", "from": "u64", "bytes": "u64", "function": "u32", "shared": "u32",
    "grid_x": "u32", "grid_y": "u32", "grid_z": "u32", "block_x": "u16", "block_y": "u16", "block_z": "u16",
    "cluster_x": "u8", "cluster_y": "u8", "cluster_z": "u8", "cooperative": "u8",
}  # fmt: skip
LAUNCHES = {"count": "u64", "function": "u32"}  # fields that every row of `launches` has
PROBED = {"function": "u32", "probed": "u32"}  # `probed` is missing in old traces
COUNTS = {"count": "u64", "api": "u32"}  # fields that every row of `counts` has
GPU_TIMES = {"begin": "u64", "duration": "u64", "api": "u32", "function": "u32"}  # fields of rows of `gpu_times`
GPU_CALLS = dict.fromkeys(("thread", "probed", "device"), "u32") | {"call": "u64", "stream": "u64"}  # optional


def parse_layout(record: dict[str, Any], known: dict[str, str]) -> np.dtype[np.void]:
    """Return a dtype for the rows of a record, with those fields whose names are in `known`.

    Raises MalformedError if the record is invalid, or if such a field has a different type.
    """
    found = [field for field in packed.parse_fields(record) if field.name in known]
    if odd := next((field.name for field in found if field.type != known[field.name]), None):
        raise MalformedError(f"field '{odd}' is not of type {known[odd]}")
    return np.dtype(
        {
            "names": [field.name for field in found],
            "formats": ["<" + field.code for field in found],
            "offsets": [field.offset for field in found],
            "itemsize": record["stride"],
        }
    )


class Layout:
    """A dtype that can be a dictionary key: hashing the dtype itself would take longer than processing its rows."""

    def __init__(self, dtype: np.dtype[np.void], *, line: bool = False) -> None:
        self.dtype = dtype
        self.line = line  # True if it's for a line of JSON

    def require(self, kind: str, names: Iterable[str]) -> None:
        """Raise MalformedError if a field is missing."""
        if missing := [name for name in names if name not in (self.dtype.names or ())]:
            raise MalformedError(f"{kind}: no field '{missing[0]}'")


def iter_groups(values: npt.NDArray[np.uint32]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Yield each distinct value, in ascending order, with the indexes at which it occurs."""
    if not len(values):
        return
    if int(values.max()) < 1 << 16:
        values = values.astype(np.uint16)  # numpy sorts 16-bit numbers by radix
        counts = np.bincount(values)
        distinct = np.flatnonzero(counts)
        ends = np.cumsum(counts[distinct])
    else:
        distinct, counts = np.unique(values, return_counts=True)
        ends = np.cumsum(counts)
    order, begin = np.argsort(values, kind="stable"), 0
    for value, end in zip(distinct.tolist(), ends.tolist(), strict=True):
        yield value, order[begin:end]
        begin = end


def find_values(values: npt.NDArray[np.uint32]) -> list[int]:
    """Return the distinct values. This is many times as fast as np.unique, because ids are small."""
    small = len(values) > 0 and int(values.max()) < 1 << 16
    return (np.flatnonzero(np.bincount(values)) if small else np.unique(values)).tolist()


def find_first_places(values: npt.NDArray[np.uint32]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return where each distinct value occurs first, and how often it occurs, in ascending order of the values. Where
    values are small, the result has entries for values that don't occur, too.
    """
    if len(values) and int(values.max()) < 1 << 16:
        counts = np.bincount(values)
        firsts = np.zeros(len(counts), np.intp)
        firsts[values[::-1]] = np.arange(len(values))[::-1]  # the last one assigned stays
        return firsts, counts
    _, firsts, counts = np.unique(values, return_index=True, return_counts=True)
    return firsts, counts


def take(rows: Rows, order: npt.NDArray[np.intp]) -> Rows:
    """Return `rows[order]`. This is ten times as fast, because it copies bytes instead of fields."""
    return rows.view(f"V{rows.dtype.itemsize}").take(order).view(rows.dtype)


class Collector:
    """Collects the records of a kind, or the JSON records for its rows, and returns them as arrays of rows.

    `known` has fields and their types, and `needed` the fields that every row must have. If the first needed field of a
    packed row is 0, the row is unused, or its thread was killed while writing it. Lines of JSON are always complete.
    `choose` returns a mask of the rows to keep; by default, all are kept.
    """

    def __init__(
        self,
        kind: str = "calls",
        known: dict[str, str] = CALL | ARGUMENTS,
        needed: Iterable[str] = CALL,
        choose: Choose | None = None,
    ) -> None:
        self._kind, self._known, self._needed, self._choose = kind, known, tuple(needed), choose
        self._threads = "thread" in records.KINDS[kind]
        self._layouts: dict[tuple[int, bytes], Layout] = {}
        self._recent: list[tuple[int, Any, Layout]] = []  # strides and fields of the last few records
        self._parts: dict[Layout, list[tuple[int, bytes]]] = {}
        self._size = 0
        self.full = False  # True if there are enough rows to `take` them

    def add(self, record: dict[str, Any]) -> None:
        """Add a record. Raises MalformedError if it's invalid."""
        layout, rows = self._pack_line(record) if record["kind"] != self._kind else self._find_layout(record)
        thread = record.get("thread") if self._threads else 0
        if type(thread) is not int or not 0 <= thread < 1 << 64:
            raise MalformedError(f"{record['kind']}.thread is not of type u64")
        self._parts.setdefault(layout, []).append((thread, rows))
        self._size += len(rows) + OVERHEAD
        self.full = self._size >= BATCH

    def _find_layout(self, record: dict[str, Any]) -> tuple[Layout, bytes]:
        stride, rows, fields = record.get("stride"), record.get("rows"), record.get("fields")
        if type(stride) is not int or type(rows) is not bytes:
            raise MalformedError(records.check(record) or f"{self._kind}: no rows")
        layout = None
        for size, known, one in self._recent:
            if size == stride and known == fields:  # comparing is faster than packing
                layout = one
                break
        if layout is None:
            layout = self._parse_layout(record, stride, fields)
            self._recent = [(stride, fields, layout), *self._recent[: RECENT - 1]]
        packed.check_rows(self._kind, rows, stride)
        return layout, rows

    def _parse_layout(self, record: dict[str, Any], stride: int, fields: Any) -> Layout:
        try:
            key = stride, _PACKER.pack(fields)
        except (TypeError, ValueError, OverflowError):
            raise MalformedError(records.check(record) or f"{self._kind}.fields nested too deep") from None
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = Layout(parse_layout(record, self._known))
            layout.require(self._kind, self._needed)
        return layout

    def _pack_line(self, record: dict[str, Any]) -> tuple[Layout, bytes]:
        """Pack a JSON record that stands for a single row."""
        names = tuple(name for name in self._known if name in record)
        key = (-1, repr(names).encode())
        layout = self._layouts.get(key)
        if layout is None:
            layout = Layout(np.dtype([(name, "<" + packed.TYPES[self._known[name]]) for name in names]), line=True)
            layout.require(record["kind"], self._needed)
            self._layouts[key] = layout
        values = tuple(record[name] for name in names)
        for name, value in zip(names, values, strict=True):
            limits = np.iinfo(layout.dtype[name])
            if type(value) is not int or not limits.min <= value <= limits.max:
                raise MalformedError(f"{record['kind']}.{name} is not of type {self._known[name]}")
        return layout, np.array([values], layout.dtype).tobytes()

    def take(self) -> Iterator[tuple[Threads, Rows]]:
        """Yield the collected rows that are in use, with the thread of each, which is 0 if the record doesn't name one.

        Rows of the same thread and layout stay in order.
        """
        parts, self._parts, self._size, self.full = self._parts, {}, 0, False
        for layout, found in parts.items():
            sizes = [len(data) // layout.dtype.itemsize for _, data in found]
            threads = np.repeat(np.array([thread for thread, _ in found], np.uint64), sizes)
            rows = np.frombuffer(b"".join([data for _, data in found]), layout.dtype)
            found.clear()
            whole = layout.line and self._needed[0] in ("start", "begin")
            used = np.full(len(rows), True) if whole else rows[self._needed[0]] != 0
            if self._choose:
                used &= self._choose(threads, rows)
            if used.any():
                yield (threads, rows) if used.all() else (threads[used], rows[used])
