"""Extract the launches with probes from a stream that's still being written, each as soon as everything it saved has
arrived.

Each launch becomes a trace of its own: a header, the records that it refers to, `probed`, its buffers, and an end. So
every program that reads traces can read it. Buffers stay packed until the last one has arrived; large ones are kept in
an unnamed temporary file.

Records of different threads come in any order: a buffer may come before the `probed`, `kernel` and `map` that it refers
to.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import IO, Any

from gpt.base.errors import MalformedError
from gpt.stream import records, wire
from gpt.stream.wire import Segments
from gpt.trace.parts import Parts, parse_part
from gpt.trace.rows import PROBED, Collector

Record = dict[str, Any]

IN_MEMORY = 1 << 20  # bytes of a launch's buffers
COPY = 1 << 20
OF_A_SEGMENT = ("device", "function", "kernel", "map")  # kinds of records that launches refer to


class WholeLaunch:
    """A launch with everything that it saved. `buffers` has the packed records; if they're missing, `fault` says why.

    `callbacks` are the callbacks of its maps, each once. `around` are the records that it refers to, beginning with the
    header.
    """

    def __init__(self, probed: Record, around: list[Record], callbacks: list[str], kept: _Kept) -> None:
        self.probed = probed
        self.around = around
        self.callbacks = callbacks
        self.fault = kept.fault
        self.buffers = kept.file
        self._count = kept.count

    @property
    def id(self) -> int:
        """The number of the launch in its segment."""
        number: int = self.probed["id"]
        return number

    @property
    def pid(self) -> int:
        """The process id."""
        pid: int = self.around[0]["pid"]
        return pid

    def write(self, file: IO[bytes]) -> None:
        """Write the launch as a trace. Raises OSError."""
        for record in (*self.around, self.probed):
            file.write(wire.pack(record))
        self.buffers.seek(0)
        while data := self.buffers.read(COPY):
            file.write(data)
        count = len(self.around) + self._count  # without the header, but with the `probed` record
        file.write(wire.pack(records.make("end", records=count, status=0)))

    def close(self) -> None:
        """Discard the buffers."""
        self.buffers.close()


class _Kept:
    """The records of a launch that have arrived so far."""

    def __init__(self, folder: Path) -> None:
        self.probed: Record | None = None
        self.fault: str | None = None
        self.count = 0  # number of buffer records
        self.file: IO[bytes] = SpooledTemporaryFile(IN_MEMORY, dir=str(folder))
        self._parts: dict[int, Parts] = {}  # by map
        self._whole: set[int] = set()

    def add(self, record: Record) -> None:
        map_ = record["map"]
        parts = self._parts.setdefault(map_, Parts(record["size"]))
        lean = {key: value for key, value in record.items() if key != "data"}  # the bytes are in the file
        if map_ in self._whole:
            raise MalformedError(f"buffer of launch {record['launch']}: map {map_} has its own already")
        if parts.add(lean | {"data": b""} if "data" in record else lean):
            self._whole.add(map_)
        if "path" in record:
            self.fault = self.fault or "a buffer is in a file next to the trace"
        self.count += 1
        try:
            if not self.fault:
                self.file.write(wire.pack(record))
        except OSError as error:
            self.fault = error.strerror or str(error)

    def has(self, maps: set[int]) -> bool:
        return maps <= self._whole

    @property
    def saved(self) -> bool:
        """True if at least one buffer wasn't lost."""
        return any(parts.lost is None for parts in self._parts.values())


class _Segment:
    """A process: the records to which its launches refer, and the launches that aren't complete yet."""

    def __init__(self, header: Record) -> None:
        self.header = header
        self.clock: Record | None = None
        self.known: dict[str, dict[int, list[Record]]] = {kind: {} for kind in OF_A_SEGMENT}
        self.open: dict[int, _Kept] = {}
        self.counted = Collector("launches", PROBED, ("function",))  # all launches, whether or not they were written
        self.written = 0  # number of `probed` records, without graph nodes

    def count_pending(self) -> int:
        """Return the number of launches that aren't complete."""
        counts = (rows["probed"].sum() for _, rows in self.counted.take() if "probed" in (rows.dtype.names or ()))
        self.written -= sum(map(int, counts))
        return sum(kept.probed is not None for kept in self.open.values()) + max(0, -self.written)

    def maps_of(self, probed: Record) -> set[int] | None:
        """Return the maps of the launch's kernel, or None if records are still missing."""
        kernels = self.known["kernel"].get(probed["kernel"], [])
        maps = {map_ for kernel in kernels for map_ in kernel.get("maps", ())}
        return maps if maps and maps <= self.known["map"].keys() else None

    def around(self, probed: Record, maps: set[int]) -> list[Record]:
        wanted = (("device", [probed["device"]]), ("function", [probed["function"]]))
        found = [self.header, *([self.clock] if self.clock else [])]
        for kind, ids in (*wanted, ("map", sorted(maps)), ("kernel", [probed["kernel"]])):
            for id_ in ids:
                found += self.known[kind].get(id_, [])
        return found


class CompleteLaunches:
    """Collects the launches of a stream. Buffers of incomplete launches are kept in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._segments = Segments()
        self._known: dict[int, _Segment] = {}

    @property
    def pending(self) -> int:
        """The number of incomplete launches."""
        return sum(segment.count_pending() for segment in self._known.values())

    def add(self, record: Record) -> Iterator[WholeLaunch]:
        """Add a record, and yield the launches that it completes. The caller must close them.

        Raises MalformedError if the record is invalid.
        """
        number, kind = self._segments.add(record), record["kind"]
        if kind == "header":
            self._known[number] = _Segment(record)
        segment = self._known[number]
        if kind == "clock":
            segment.clock = record
        if kind in ("launches", "launch"):
            segment.counted.add(record)
        if kind not in (*OF_A_SEGMENT, "probed", "buffer"):
            return
        if fault := records.check(record):
            raise MalformedError(fault)
        if kind == "buffer":
            parse_part(record)
            self._kept(segment, record["launch"]).add(record)
            yield from self._take(segment, record["launch"])
        elif kind == "probed":
            self._kept(segment, record["id"]).probed = record
            segment.written += "exec" not in record
            yield from self._take(segment, record["id"])
        else:
            key = record["index"] if kind == "device" else record["id"]
            segment.known[kind].setdefault(key, []).append(record)
            if kind in ("kernel", "map"):
                for launch in list(segment.open):
                    yield from self._take(segment, launch)

    def _kept(self, segment: _Segment, launch: int) -> _Kept:
        if launch not in segment.open:
            segment.open[launch] = _Kept(self._folder)
        return segment.open[launch]

    def _take(self, segment: _Segment, launch: int) -> Iterator[WholeLaunch]:
        kept = segment.open[launch]
        maps = segment.maps_of(kept.probed) if kept.probed else None
        if kept.probed is None or maps is None or not kept.has(maps):
            return
        del segment.open[launch]
        if not kept.saved:
            kept.file.close()
            return
        layouts = [record for map_ in sorted(maps) for record in segment.known["map"][map_]]
        callbacks = dict.fromkeys(record["callback"] for record in layouts if "callback" in record)
        yield WholeLaunch(kept.probed, segment.around(kept.probed, maps), list(callbacks), kept)
