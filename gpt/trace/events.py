"""Calls in order of time, as JSON lines.

Threads write chunks of their own, and processes files of their own, so all of a trace has to be read before the
first call is known. Rows are put aside in a temporary file; in memory are 24 bytes a call: when it began, as it is
and as nanoseconds, and its place in the order. Lines are made by columns, WINDOW calls at a time.
"""

from __future__ import annotations

import json
import mmap
import tempfile
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt import records
from gpt.errors import GptError, MalformedError
from gpt.printable import printable_json
from gpt.trace.clock import Clock
from gpt.trace.ioctls import Ioctls
from gpt.trace.rows import CALL, Collector, Rows, Threads

WINDOW = 1 << 16
UNKNOWN = '"type":"other","op":"unknown","name":"#{}"'


class Segment:
    """One process: what its ids mean, and its clock."""

    def __init__(self, header: dict[str, Any]) -> None:
        if fault := records.check(header):
            raise MalformedError(fault)
        self.header = header
        self.clock = Clock(header)
        self.collector = Collector()
        self.ioctls = Ioctls()
        self.apis: dict[int, str] = {}  # the part of a line that says what was called
        self.kernels: dict[int, str] = {}  # names as JSON
        self.memory: dict[int, bool] = {}  # whether it is about memory itself, and copies none

    def add(self, record: dict[str, Any]) -> None:
        """Takes a record in; of kinds that tell nothing of calls it takes no notice."""
        kind = record["kind"]
        if kind == "ioctl":
            record = self.ioctls.as_call(record)
            name = _quoted(self.ioctls.names[record["api"]])
            self.apis[record["api"]] = f'"type":"kernel","op":"ioctl","name":{name}'
        if kind in ("calls", "call", "ioctl"):
            self.collector.add(record)
            return
        if kind in ("api", "function") and (fault := records.check(record)):
            raise MalformedError(fault)
        match kind:
            case "api":
                said = (f'"{key}":{_quoted(record[key])}' for key in ("type", "op", "name", "symbol"))
                self.apis[record["id"]] = ",".join(said)
                self.memory[record["id"]] = record["type"] == "memory"
            case "function":
                self.kernels[record["id"]] = _quoted(record["name"])
            case "clock":
                self.clock.add(record)

    def offset(self, first: dict[str, Any]) -> int:
        """ns to add to its CLOCK_MONOTONIC for that of the machine that `first`, a header, was written on."""
        if self.header.get("boot_id") == first.get("boot_id"):
            return 0
        zero: int = self.header["realtime"] - self.header["monotonic"]
        return zero - int(first["realtime"]) + int(first["monotonic"])


def _quoted(text: str) -> str:
    whole = text.encode(errors="surrogateescape").decode(errors="replace")
    return printable_json(json.dumps(whole, ensure_ascii=False))


def _iter_lines(segment: Segment, times: npt.NDArray[np.int64], threads: Threads, rows: Rows) -> Iterator[str]:
    """The line of each row; `times` are ns."""
    names = rows.dtype.names or ()
    columns = [(rows["api"].tolist()), (times / 1000).tolist(), threads.tolist(), rows["result"].tolist()]
    took = (segment.clock.durations(rows["duration"]) / 1000).tolist()
    pid, apis = segment.header["pid"], segment.apis
    told = _arguments(segment, rows) if len(names) > len(CALL) else [""] * len(rows)
    for api, time, thread, result, us, more in zip(*columns, took, told, strict=True):
        said = apis.get(api) or UNKNOWN.format(api)
        back = f',"duration_us":{us:.3f},"result":{result}' if us else ""
        yield f'{{"ts":{time:.3f},{said},"pid":{pid},"tid":{thread}{back}{more}}}\n'


def _arguments(segment: Segment, rows: Rows) -> list[str]:
    """What else the rows tell, each text with a comma before it. A zero stands for what there is not, and is not told.

    Addresses and handles are hexadecimal text: as numbers they would not survive every reader of JSON.
    """
    names = rows.dtype.names or ()
    parts: list[list[str]] = []

    def tell(name: str, key: str, form: str = ',"{}":{}') -> None:
        if name in names:
            parts.append([form.format(key, value) if value else "" for value in rows[name].tolist()])

    tell("bytes", "size")
    memory = [segment.memory.get(api, False) for api in rows["api"].tolist()] if "to" in names else []
    for name, alone, copied in (("to", "ptr", "dst"), ("from", "handle", "src")):
        if name in names:
            keys = (alone if is_memory else copied for is_memory in memory)
            values = rows[name].tolist()
            parts.append([f',"{key}":"{value:#x}"' if value else "" for key, value in zip(keys, values, strict=True)])
    tell("object", "object", ',"{}":"{:#x}"')
    tell("stream", "stream", ',"{}":"{:#x}"')
    if "function" in names:
        kernels = segment.kernels
        parts.append([f',"kernel":{kernels[id_]}' if id_ in kernels else "" for id_ in rows["function"].tolist()])
    for what in ("grid", "block", "cluster"):
        if f"{what}_x" in names and f"{what}_y" in names and f"{what}_z" in names:
            xyz = (rows[f"{what}_{c}"].tolist() for c in "xyz")
            parts.append([f',"{what}":[{x},{y},{z}]' if x else "" for x, y, z in zip(*xyz, strict=True)])
    tell("shared", "shared")
    tell("cooperative", "cooperative")
    return ["".join(texts) for texts in zip(*parts, strict=True)] if parts else [""] * len(rows)


class _Batch(NamedTuple):
    """Rows of one layout that were put aside."""

    segment: Segment
    layout: np.dtype[np.void]
    offset: int  # in the file, of the threads; the rows follow
    starts: npt.NDArray[np.uint64]

    def read(self, data: mmap.mmap, wanted: npt.NDArray[np.intp]) -> tuple[Threads, Rows]:
        """Some of its rows."""
        count = len(self.starts)
        threads = np.frombuffer(data, np.uint64, count, self.offset)
        rows = np.frombuffer(data, self.layout, count, self.offset + threads.nbytes)
        return threads[wanted], rows[wanted]


class Events:
    """The calls of all segments that were added."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # lives as long as this
        self._batches: list[_Batch] = []

    def put_aside(self, segment: Segment) -> None:
        """Takes the calls that a segment has collected."""
        for threads, rows in segment.collector.take():
            offset = self._file.tell()
            try:
                self._file.write(threads.tobytes())
                self._file.write(rows.tobytes())
                self._file.flush()
            except OSError as error:
                raise GptError(error.strerror or str(error), tempfile.gettempdir()) from None
            self._batches.append(_Batch(segment, rows.dtype, offset, rows["start"].copy()))

    def iter_lines(self) -> Iterator[str]:
        """All calls, oldest first, some thousand lines at a time."""
        if not self._batches:
            return
        first = min((b.segment for b in self._batches), key=lambda s: s.header["realtime"]).header
        zero: int = first["monotonic"]
        times = np.concatenate(
            [b.segment.clock.times(b.starts) + (b.segment.offset(first) - zero) for b in self._batches]
        )
        order = np.argsort(times, kind="stable")
        edges = np.cumsum([0, *(len(b.starts) for b in self._batches)])
        with mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            for at in range(0, len(order), WINDOW):
                window = order[at : at + WINDOW]
                lines = np.empty(len(window), object)
                numbers = np.searchsorted(edges, window, side="right") - 1
                for number in np.unique(numbers):
                    places = np.flatnonzero(numbers == number)
                    batch = self._batches[number]
                    threads, rows = batch.read(data, window[places] - edges[number])
                    lines[places] = list(_iter_lines(batch.segment, times[window[places]], threads, rows))
                yield "".join(lines)
                data.madvise(mmap.MADV_DONTNEED)  # the next window lies elsewhere
