"""Pack the calls of one process, which arrive as JSON lines, into rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from gpt.stream import records
from gpt.stream.packed import TYPES
from gpt.trace.process import Api
from gpt.trace.rows import ARGUMENTS, CALL, GPU_CALLS, GPU_TIMES, LAUNCHES

Record = dict[str, Any]

NONE = (0, 0, 0)


def _launch(line: Record, function: int) -> tuple[int, ...]:
    shared, cooperative = min(_whole(line.get("shared")), U32), min(_whole(line.get("cooperative")), 1)
    shape = *_shape(line.get("grid"), U32), *_shape(line.get("block"), U16), *_shape(line.get("cluster"), U8)
    return _whole(line.get("stream")), function, shared, *shape, cooperative


def _memory(line: Record, _: int) -> tuple[int, ...]:
    to, from_ = line.get("ptr", line.get("dst")), line.get("handle", line.get("src"))
    return _whole(to), _whole(from_), _whole(line.get("size")), _whole(line.get("stream"))


def _object(line: Record, _: int) -> tuple[int, ...]:
    return _whole(line.get("object")), _whole(line.get("stream"))


U8, U16, U32 = (1 << 8) - 1, (1 << 16) - 1, (1 << 32) - 1
LAUNCH = ("stream", "function", "shared", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "cluster_x",
          "cluster_y", "cluster_z", "cooperative")  # fmt: skip
Names = tuple[str, ...]
LAYOUTS: tuple[tuple[frozenset[str], Names, Callable[[Record, int], tuple[int, ...]]], ...] = (
    # by a line's keys: the fields that its call has besides CALL, and the function that makes them
    (frozenset(("kernel", "grid", "block")), LAUNCH, _launch),
    (frozenset(("size", "ptr", "dst", "src", "handle")), ("to", "from", "bytes", "stream"), _memory),
    (frozenset(("object", "stream")), ("object", "stream"), _object),
)
NO_NAME = "(no name)"
DTYPES: dict[tuple[str, ...], np.dtype[np.void]] = {
    names: np.dtype([(name, "<" + TYPES[(CALL | ARGUMENTS)[name]]) for name in (*CALL, *names)])
    for names in ((), *(names for _, names, _ in LAYOUTS))
}
COUNTED = np.dtype([(name, "<" + TYPES[type_]) for name, type_ in LAUNCHES.items()])
ON_GPU = {name: (type_, (1 << int(type_[1:])) - 1) for name, type_ in (GPU_TIMES | GPU_CALLS).items()}


class LineCalls:
    """A traced process: what the ids in its lines mean, and which of its calls haven't been passed on yet.

    `noted` means that the file has the process's header, in which case other lines have details that calls lack, such
    as launch counts. `place` is its index in the file.
    """

    def __init__(self, place: int, header: Record, noted: bool) -> None:
        self.place, self.header, self.noted = place, header, noted
        self.news: list[Record] = []
        self._launches = Counter[int]()
        self._apis: dict[Api, int] = {}
        self._kernels: dict[str, int] = {}
        self._gpu_times: dict[Names, list[tuple[int, ...]]] = {}
        self._last = [0, 0]  # the last id of each kind
        self._rows: dict[tuple[int, tuple[str, ...]], list[tuple[int, ...]]] = {}

    def learn(self, record: Record) -> None:
        """Take in a record that defines an id; the reader of the records reports its errors."""
        if records.check(record):
            return
        if record["kind"] == "api":
            self._apis.setdefault(Api(record["type"], record["op"], record["name"], record["symbol"]), record["id"])
            self._last[0] = max(self._last[0], record["id"])
        elif record["kind"] == "function":
            self._kernels.setdefault(record["name"], record["id"])
            self._last[1] = max(self._last[1], record["id"])

    def add(self, api: Api, start: int, took: int, line: Record) -> None:
        """Add a call. Its start is a time stamp; a duration of 0 ns means that it didn't return."""
        result = _whole(line.get("result", line.get("retval")))
        result = result if result < 1 << 31 else 0
        names, more = self._tell(api, result, line)
        key = _whole(line.get("tid")), names
        rows = self._rows.get(key)
        if rows is None:
            rows = self._rows[key] = []
        rows.append((start, took, self._find_api(api), result, *more))

    def add_gpu_time(self, record: Record) -> bool:
        """Add work that ran on the GPU, or return False if the record lacks a field."""
        names = tuple(name for name in ON_GPU if name in record)
        if not GPU_TIMES.keys() <= record.keys():
            return False
        self._gpu_times.setdefault(names, []).append(
            tuple(min(_whole(record[name]), ON_GPU[name][1]) for name in names)
        )
        return True

    def _tell(self, api: Api, result: int, line: Record) -> tuple[Names, tuple[int, ...]]:
        """Return a call's fields besides CALL: their names and values."""
        if api.type == "kernel" and api.op == "launch":
            function = self._find_function(line)
            if not self.noted and not result:
                self._launches[function] += 1
            return LAUNCH, _launch(line, function)
        for keys, names, make in LAYOUTS:
            if not keys.isdisjoint(line):
                return names, make(line, 0)
        return (), ()

    def _find_api(self, api: Api) -> int:
        number = self._apis.get(api)
        if number is None:
            self._last[0] += 1
            number = self._apis[api] = self._last[0]
            said = api._asdict() | {"symbol": api.symbol or api.name}
            self.news.append(records.make("api", id=number, **said))
        return number

    def _find_function(self, line: Record) -> int:
        """Return the id of a kernel. A nameless one is identified by its shape."""
        name = line.get("kernel")
        if not isinstance(name, str) or not name:
            if self.noted:
                return 0
            shapes = [line[what] for what in ("grid", "block") if isinstance(line.get(what), list)]
            name = " ".join([NO_NAME, *("x".join(str(_whole(size)) for size in shape[:3]) for shape in shapes)])
        number = self._kernels.get(name)
        if number is None:
            self._last[1] += 1
            number = self._kernels[name] = self._last[1]
            self.news.append(records.make("function", id=number, name=text(name)))
        return number

    def take(self) -> Iterator[Record]:
        """Yield the records of everything added since the last call."""
        news, self.news = self.news, []
        yield from news
        rows, self._rows = self._rows, {}
        for (thread, names), values in rows.items():
            yield records.make("calls", thread=thread, **_pack(values, DTYPES[names]))

        times, self._gpu_times = self._gpu_times, {}
        for names, values in times.items():
            dtype = np.dtype([(name, "<" + TYPES[ON_GPU[name][0]]) for name in names])
            yield records.make("gpu_times", **_pack(values, dtype))

    def count_launches(self) -> Iterator[Record]:
        """Yield how often each kernel was launched, as counted from the calls."""
        if self._launches:
            counts = [(count, function) for function, count in self._launches.items()]
            yield records.make("launches", **_pack(counts, COUNTED))


def _pack(rows: Sequence[tuple[int, ...]], dtype: np.dtype[np.void]) -> Record:
    """Return the keys of a record with rows."""
    types = CALL | ARGUMENTS | LAUNCHES | GPU_TIMES | GPU_CALLS
    places = {name: place[1] for name, place in (dtype.fields or {}).items()}
    fields = [{"name": name, "type": types[name], "offset": at} for name, at in places.items()]
    return {"fields": fields, "stride": dtype.itemsize, "rows": np.array(rows, dtype).tobytes()}


def text(name: str) -> str:
    """Replace anything in JSON text that a record can't hold."""
    return name.encode(errors="replace").decode()


def _shape(value: Any, most: int) -> tuple[int, int, int]:
    """Return sizes in x, y and z."""
    if not isinstance(value, list):
        return NONE
    if len(value) == 3 and all(type(size) is int and 0 <= size <= most for size in value):
        return value[0], value[1], value[2]
    x, y, z = (*map(_whole, value[:3]), *NONE)[:3]
    return min(x, most), min(y, most), min(z, most)


def _whole(value: Any) -> int:
    """Return a 64-bit number from digits or hexadecimal text; 0 for anything else."""
    if value is None:
        return 0
    if isinstance(value, str) and len(value) <= 20:
        try:
            value = int(value, 0)
        except ValueError:
            return 0
    return value if type(value) is int and 0 <= value < 1 << 64 else 0
