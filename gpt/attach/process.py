"""A process that's being watched: the rows of its calls that haven't been written, and the ids of its functions and
kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np

from gpt.stream import records
from gpt.trace.apis import find_api

Record = dict[str, Any]

BASE = [("start", "u64"), ("duration", "u64"), ("api", "u32"), ("result", "i32")]
LAYOUTS: dict[str, list[tuple[str, str]]] = {  # fields besides BASE; the fields of a call determine its layout
    "launch": [("stream", "u64"), ("function", "u32"), ("shared", "u32"), ("grid_x", "u32"), ("grid_y", "u32"),
               ("grid_z", "u32"), ("block_x", "u16"), ("block_y", "u16"), ("block_z", "u16"), ("cooperative", "u8")],
    "memory": [("to", "u64"), ("from", "u64"), ("bytes", "u64"), ("stream", "u64")],
    "object": [("object", "u64"), ("stream", "u64")],
    "plain": [],
}  # fmt: skip
LIMITS = {"u8": 0xFF, "u16": 0xFFFF, "u32": 0xFFFFFFFF, "u64": (1 << 64) - 1}
ROWS = 512  # per record


class _Rows:
    """Rows of a thread in one layout."""

    def __init__(self, layout: str) -> None:
        self._fields = [*BASE, *LAYOUTS[layout]]
        self._dtype = np.dtype([(name, f"<{type_[0]}{int(type_[1:]) // 8}") for name, type_ in self._fields])
        offsets = [self._dtype.fields[name][1] for name, _ in self._fields] if self._dtype.fields else []
        self._layout = [
            {"name": name, "type": type_, "offset": int(at)}
            for (name, type_), at in zip(self._fields, offsets, strict=True)
        ]
        self._rows: list[tuple[int, ...]] = []

    def add(self, base: tuple[int, int, int, int], values: dict[str, int]) -> None:
        more = (min(values.get(name, 0), LIMITS[type_]) for name, type_ in self._fields[len(BASE) :])
        self._rows.append((*base, *more))

    def records(self, thread: int) -> Iterator[Record]:
        """Yield the stored rows, in the order in which the calls began, and remove them."""
        self._rows.sort()
        stride = self._dtype.itemsize
        for at in range(0, len(self._rows), ROWS):
            rows = np.array(self._rows[at : at + ROWS], self._dtype).tobytes()
            yield records.make("calls", thread=thread, fields=self._layout, stride=stride, rows=rows)
        self._rows.clear()


@lru_cache(4096)
def _layout_of(fields: tuple[str, ...]) -> str:
    """Return the layout for a call with these fields."""
    marks = {"launch": {"function"}, "memory": {"to", "from", "bytes"}, "object": {"object", "stream"}}
    return next((layout for layout, names in marks.items() if names & {*fields}), "plain")


class WatchedProcess:
    """A process: the rows and records that haven't been written, and the ids of its functions and kernels."""

    def __init__(self, number: int, header: Record) -> None:
        self.number = number  # index of its header in the stream
        self.header = header
        self.calls = 0
        self.launches: Counter[int] = Counter()  # by function
        self.last: dict[int, int] = {}  # by thread, when its last call began
        self.ready: list[Record] = []  # records to write before the rows
        self.functions: dict[int, int] = {}  # ids by handle
        self.names: dict[int, str] = {}  # names by these ids
        self._early: dict[int, tuple[int, int]] = {}  # handles without a name: the id, and when it was first used
        self.ioctls: dict[int, list[Record]] = {}  # by thread
        self._numbers = 0  # number of ids assigned so far
        self._apis: dict[str, int] = {}
        self._rows: dict[tuple[int, str], _Rows] = {}

    def api(self, symbol: str, kernel: bool) -> int:
        """Return the id of a function. If it's new, make a record for it."""
        if symbol not in self._apis:
            number = self._apis[symbol] = len(self._apis) + 1
            type_, op, name, _ = ("other", "kernel", symbol, symbol) if kernel else find_api(symbol)
            self.ready.append(records.make("api", id=number, symbol=symbol, name=name, type=type_, op=op))
        return self._apis[symbol]

    def function(self, handle: int, start: int) -> int:
        """Return the id for a handle that a call used at the time `start`."""
        number = self.functions.get(handle)
        if number is None:
            number = self.functions[handle] = self._new_number()
        if number not in self.names:
            self._early[handle] = number, min(start, self._early.get(handle, (number, start))[1])
        return number

    def look_up(self, handle: int, name: str, start: int) -> None:
        """Record that a look-up at the time `start` returned this handle. From then on, it stands for a function with
        this name.
        """
        number, used = self._early.get(handle, (0, 0))
        if number and start <= used:  # a line of another CPU about its use arrived earlier
            del self._early[handle]
            self._name(number, name)
        if self.names.get(self.functions.get(handle, 0)) != name:
            self.functions[handle] = self._new_number()
            self._name(self.functions[handle], name)

    def _name(self, number: int, name: str) -> None:
        self.names[number] = name
        self.ready.append(records.make("function", id=number, name=name))

    def _new_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def add(self, thread: int, base: tuple[int, int, int, int], values: dict[str, int]) -> None:
        """Add a row, in the layout for its values."""
        layout = _layout_of(tuple(values))
        self._rows.setdefault((thread, layout), _Rows(layout)).add(base, values)
        self.calls += 1

    def settle(self, thread: int, start: int, duration: int) -> None:
        """Called when a call of the driver has returned: make it the parent of the ioctls that were made during it."""
        for record in self.ioctls.get(thread, ()):
            if "parent" not in record and start <= record["start"] < start + duration:
                record["parent"] = start

    def take(self, last: bool = False) -> Iterator[Record]:
        """Yield the records to write. Unless this is the `last` time, ioctls may have to wait for their calls."""
        yield from self.ready
        self.ready.clear()
        for thread, found in list(self.ioctls.items()):
            for one in found if last or len(found) > ROWS else [one for one in found if "parent" in one]:
                yield records.make(**one)
            self.ioctls[thread] = [] if last or len(found) > ROWS else [one for one in found if "parent" not in one]
        for (thread, _), rows in self._rows.items():
            yield from rows.records(thread)
        self._rows.clear()

    @property
    def newest(self) -> int:
        """The time at which the last call began."""
        return max(self.last.values(), default=0)

    def counts(self) -> Iterator[Record]:
        """Yield how often each kernel was launched."""
        fields = [{"name": "count", "type": "u64", "offset": 0}, {"name": "function", "type": "u32", "offset": 8}]
        rows = np.array([(n, id_) for id_, n in self.launches.items()], [("count", "<u8"), ("function", "<u4")])
        if len(rows):
            yield records.make("launches", fields=fields, stride=rows.dtype.itemsize, rows=rows.tobytes())

    @property
    def nameless(self) -> int:
        """Return the number of kernels that were launched, but never looked up by name."""
        return sum(id_ not in self.names for id_ in self.launches)
