"""Packed rows (`calls`, `launches` and the like) as numpy arrays, without an object a row.

A trace of ten million calls is some twenty thousand `calls` records of up to 512 rows, in a handful of layouts. So
the fields of a record are looked at once for each layout and not once for each record, and rows of one layout are
collected as bytes until there are enough of them for an array to be worth its price.

The JSON form has a record for each row instead (`call`, `launch`); those become rows again here.
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

BATCH = 16 << 20  # bytes of rows that are collected
OVERHEAD = 64  # bytes that a collected record takes beside its rows
MAX_LAYOUTS = 1000  # that are remembered
CALL = {"start": "u64", "duration": "u64", "api": "u32", "result": "i32"}  # what every row of `calls` has
ARGUMENTS = {  # and what some have
    "object": "u64", "stream": "u64", "to": "u64", "from": "u64", "bytes": "u64", "function": "u32", "shared": "u32",
    "grid_x": "u32", "grid_y": "u32", "grid_z": "u32", "block_x": "u16", "block_y": "u16", "block_z": "u16",
    "cluster_x": "u8", "cluster_y": "u8", "cluster_z": "u8", "cooperative": "u8",
}  # fmt: skip
LAUNCHES = {"count": "u64", "function": "u32"}  # what rows of `launches` have
COUNTS = {"count": "u64", "api": "u32"}  # and of `counts`
GPU_TIMES = {"begin": "u64", "duration": "u64", "api": "u32", "function": "u32"}  # and of `gpu_times`
GPU_CALLS = dict.fromkeys(("thread", "probed", "device"), "u32") | {"call": "u64", "stream": "u64"}  # what some have


def parse_layout(record: dict[str, Any], known: dict[str, str]) -> np.dtype[np.void]:
    """The fields of its rows whose names are `known`, as a dtype.

    Raises MalformedError if the record makes no sense, or a field that is known has another type.
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
    """A dtype, as a key of dictionaries: hashing a dtype takes longer than what is done with it."""

    def __init__(self, dtype: np.dtype[np.void], *, line: bool = False) -> None:
        self.dtype = dtype
        self.line = line  # whether it is that of a line of JSON

    def require(self, kind: str, names: Iterable[str]) -> None:
        """Raises MalformedError if a field is missing."""
        if missing := [name for name in names if name not in (self.dtype.names or ())]:
            raise MalformedError(f"{kind}: no field '{missing[0]}'")


def iter_groups(values: npt.NDArray[np.uint32]) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
    """Each value that occurs, with the indices where it does, in order."""
    if not len(values):
        return
    small = values.astype(np.uint16) if int(values.max()) < 1 << 16 else values  # numpy sorts those by radix
    order = np.argsort(small, kind="stable")
    ordered = values[order]
    edges = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    for start, end in zip([0, *edges], [*edges, len(order)], strict=True):
        yield int(ordered[start]), order[start:end]


def take(rows: Rows, order: npt.NDArray[np.intp]) -> Rows:
    """`rows[order]`, ten times as fast: as bytes, not field by field."""
    return rows.view(f"V{rows.dtype.itemsize}").take(order).view(rows.dtype)


class Collector:
    """Takes in records of a kind, or those that its rows have in JSON, and returns arrays of rows.

    `needed` are fields that must be there, of those `known`. Where the first of them is 0 a packed row is padding, or
    its thread was killed while it wrote the row; lines of JSON are whole.
    `choose` says which rows are wanted, of all by default.
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
        self._parts: dict[Layout, list[tuple[int, bytes]]] = {}
        self._size = 0

    @property
    def full(self) -> bool:
        """Whether it is time to `take`."""
        return self._size >= BATCH

    def add(self, record: dict[str, Any]) -> None:
        """Takes a record in. Raises MalformedError if it is nonsense."""
        layout, rows = self._pack_line(record) if record["kind"] != self._kind else self._find_layout(record)
        thread = record.get("thread") if self._threads else 0
        if type(thread) is not int or not 0 <= thread < 1 << 64:
            raise MalformedError(f"{record['kind']}.thread is not of type u64")
        self._parts.setdefault(layout, []).append((thread, rows))
        self._size += len(rows) + OVERHEAD

    def _find_layout(self, record: dict[str, Any]) -> tuple[Layout, bytes]:
        stride, rows = record.get("stride"), record.get("rows")
        if type(stride) is not int or type(rows) is not bytes:
            raise MalformedError(records.check(record) or f"{self._kind}: no rows")
        try:
            key = stride, msgpack.packb(record.get("fields"), unicode_errors="surrogateescape")
        except (TypeError, ValueError, OverflowError):
            raise MalformedError(records.check(record) or f"{self._kind}.fields nested too deep") from None
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= MAX_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = Layout(parse_layout(record, self._known))
            layout.require(self._kind, self._needed)
        packed.check_rows(self._kind, rows, stride)
        return layout, rows

    def _pack_line(self, record: dict[str, Any]) -> tuple[Layout, bytes]:
        """The row that a line of JSON was."""
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
        """All that was collected: rows that were written, with the thread of each, 0 if records name none.

        A thread's rows of one layout are in order.
        """
        parts, self._parts, self._size = self._parts, {}, 0
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
