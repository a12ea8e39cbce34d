"""Store the calls and GPU times of processes as they arrive, and read them sorted by time, in ns.

Clocks, functions and devices are only known at the end, so until then, rows stay as they are in the trace. Each batch
is sorted by time stamp, which gives the same order as ns, and becomes a run for the merge in gpt/trace/spill.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.trace.loading import LAUNCH, FirstLaunches, find_firsts, find_loading
from gpt.trace.machines import LIMIT
from gpt.trace.process import Process
from gpt.trace.rows import ARGUMENTS, Rows, Threads, take
from gpt.trace.spill import Array, Aside, SortedRun, join, merge

CALL = [("start", "<i8"), ("duration", "<f8"), ("process", "<u4"), ("thread", "<u8"), ("api", "<u4"), ("result", "<i4")]
GPU = [("begin", "<i8"), ("duration", "<f8"), ("process", "<u4"), ("api", "<u4"), ("function", "<u4"),
       ("thread", "<u8"), ("call", "<i8"), ("stream", "<u8"), ("probed", "<u4"), ("device", "<u4")]  # fmt: skip
NO_DEVICE = (1 << 32) - 1  # for rows that don't say where they ran
WIDTHS = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "u64": "<u8"}
BLOCK = 1 << 16  # rows per read
LAST_STAMP = np.uint64((1 << 64) - 1)

Fill = Callable[[Array, Threads, Rows, Process], None]


def times_of(process: Process, stamps: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Convert time stamps of a process to ns since the first process began."""
    return process.clock.times(stamps) + process.machines.offset(process.header)


def call_fields(names: Sequence[str]) -> list[tuple[str, str]]:
    """Return the fields of CALL, and these ones."""
    known = {name: WIDTHS[width] for name, width in ARGUMENTS.items()}
    known |= dict.fromkeys(("stamp", "stack", "python"), "<u8")
    return [*CALL, *((name, known[name]) for name in names)]


class _Batch(NamedTuple):
    """Rows of one layout, sorted by time stamp.

    In the file, the threads of calls come before the rows. `device` is None if GPU times don't say which device they're
    from.
    """

    aside: Aside  # the file
    number: int  # the process's number
    process: Process
    layout: np.dtype[np.void]
    offset: int  # where its rows are in the file
    rows: int
    first: int  # time stamp of the first row
    threads: bool
    device: int | None

    def has(self, name: str) -> bool:
        """Return whether its rows have a field."""
        return name in (self.layout.names or ())


class Kept:
    """The rows of all processes. If there are many, they're spilled to a file. Only calls with these `types` are kept,
    or all if it's None.
    """

    def __init__(self, types: frozenset[str] | None = None) -> None:
        self._types = types
        self._aside = Aside()
        self._calls: list[_Batch] = []
        self._gpu_times: list[_Batch] = []
        self._firsts: dict[int, FirstLaunches] = {}
        self._last: dict[int, tuple[int, Process]] = {}  # by process: time stamp of the end of its last call
        self.loading: dict[tuple[int, int], tuple[int, int]] = {}  # how many kernels were loaded, and ns, by place

    def take(self, number: int, process: Process) -> None:
        """Store what a process has collected. Raises OutputError."""
        for threads, rows in process.calls.take():
            ends = rows["start"] + np.minimum(rows["duration"], LAST_STAMP - rows["start"])
            self._last[number] = max(int(ends.max()), self._last.get(number, (0,))[0]), process
            if self._types is not None:
                threads, rows = _choose_types(threads, rows, process, self._types)
            if len(rows):
                self._calls.append(self._put_aside(number, process, threads, rows, "start")[0])
        for _, rows in process.gpu_times.take():
            for device, mine in _by_device(rows):
                batch, ordered = self._put_aside(number, process, None, mine, "begin", device)
                self._gpu_times.append(batch)
                self._firsts.setdefault(number, FirstLaunches()).add(ordered)

    def merge(self, other: Kept, first: int) -> None:
        """Add the rows of other processes. These get new numbers, beginning with `first`."""
        for mine, theirs in ((self._calls, other._calls), (self._gpu_times, other._gpu_times)):
            mine += [batch._replace(number=first + batch.number) for batch in theirs]
        self._firsts |= {first + number: firsts for number, firsts in other._firsts.items()}
        self._last |= {first + number: last for number, last in other._last.items()}

    def _put_aside(
        self, number: int, process: Process, threads: Threads | None, rows: Rows, stamp: str, device: int | None = None
    ) -> tuple[_Batch, Rows]:
        since = process.clock.since(rows[stamp])
        if (since[1:] < since[:-1]).any():
            order = np.argsort(since, kind="stable")
            rows = take(rows, order)
            threads = None if threads is None else threads[order]
        if threads is not None:
            self._aside.write(threads)
        at, first = self._aside.write(rows), int(rows[stamp][0])
        has = threads is not None
        return _Batch(self._aside, number, process, rows.dtype, at, len(rows), first, has, device), rows

    def _read(self, batch: _Batch, at: int, count: int) -> tuple[Threads, Rows]:
        rows = batch.aside.read(batch.layout, batch.offset + at * batch.layout.itemsize, count)
        if not batch.threads:
            return np.zeros(0, np.uint64), rows
        return batch.aside.read(np.uint64, batch.offset - 8 * (batch.rows - at), count), rows

    def read(self, batch: _Batch, at: int, count: int, fields: Any, stamps: Collection[str], more: Fill) -> Array:
        """Read these fields of some rows in a batch. Time stamps in the fields `stamps` are converted to ns."""
        threads, rows = self._read(batch, at, count)
        process, found = batch.process, np.zeros(len(rows), fields)
        found["process"] = batch.number
        more(found, threads, rows, process)
        for name in set(rows.dtype.names or ()) & set(found.dtype.names or ()):
            if name in stamps:
                found[name] = times_of(process, rows[name])
            elif name == "duration":
                found[name] = np.minimum(process.clock.durations(rows[name]), LIMIT)
            else:
                found[name] = rows[name]
        return found

    # Calls

    def last(self, number: int) -> int | None:
        """Return when the last call of a process ended, even if its type isn't kept, or None if there were no calls."""
        if number not in self._last:
            return None
        stamp, process = self._last[number]
        return int(times_of(process, np.array([stamp], np.uint64))[0])

    def count_calls(self) -> int:
        """Return the number of calls."""
        return sum(batch.rows for batch in self._calls)

    def iter_calls(self, names: Sequence[str], process: int | None) -> Iterator[Array]:
        """Yield calls in chunks, for one process or for all."""
        fields = call_fields(names)
        chosen = [batch for batch in self._calls if process is None or batch.number == process]
        return merge([_KeptRun(self, batch, fields, ("start",), _fill_call) for batch in chosen], "start")

    def _iter_launches(self, process: int) -> Iterator[Array]:
        """Yield the launch calls of a process in the form that find_loading expects, in any order."""
        for batch in (one for one in self._calls if one.number == process and one.has("function")):
            for at in range(0, batch.rows, BLOCK):
                _, rows = self._read(batch, at, min(BLOCK, batch.rows - at))
                launched = rows[rows["function"] != 0]
                part = np.zeros(len(launched), LAUNCH)
                part["function"] = launched["function"]
                part["start"] = times_of(batch.process, launched["start"])
                part["duration"] = batch.process.clock.durations(launched["duration"])
                yield part

    # GPU times

    def gpus(self) -> dict[tuple[int, int], int]:
        """Return the number of GPU times of each process and device, in order."""
        found: dict[tuple[int, int], int] = {}
        for batch in self._gpu_times:
            place = batch.number, _device(batch)
            found[place] = found.get(place, 0) + batch.rows
        return dict(sorted(found.items()))

    def iter_gpu_times(self, places: Collection[tuple[int, int]]) -> Iterator[Array]:
        """Yield GPU times in chunks, for these processes and devices."""
        runs: list[SortedRun] = []
        moved: list[Array] = []
        for number in sorted({number for number, _ in places}):
            own = [batch for batch in self._gpu_times if batch.number == number]
            late = self._find_late(number, own)
            devices = late.rows["device"]
            moved.append(late.rows[np.isin(devices, [device for one, device in places if one == number])])
            for device in [device for one, device in places if one == number]:
                cut = late.cut[devices == device]
                self.loading[number, device] = len(cut), int(cut.sum())
            for place, batch in enumerate(own):
                if (number, _device(batch)) in places:
                    skip = late.places[late.batches == place]
                    runs.append(_KeptRun(self, batch, GPU, ("begin", "call"), _fill_gpu_time, skip))
        runs.sort(key=lambda run: run.batch.offset)  # type: ignore[attr-defined]
        if any(map(len, moved)):
            rows = join(moved)
            runs.insert(0, _MovedRun(rows[np.argsort(rows["begin"], kind="stable")]))
        return merge(runs, "begin")

    def _find_late(self, number: int, batches: list[_Batch]) -> _Moved:
        """Find kernels whose measured time includes loading their code, and move their start to the end of the loading.
        They're sorted by the old start.
        """
        firsts = self._firsts[number].rows if number in self._firsts else np.zeros(0, LAUNCH)
        where = [(int(first["batch"]), int(first["row"])) for first in firsts]
        parts = [self.read(batches[at], row, 1, GPU, ("begin", "call"), _fill_gpu_time) for at, row in where]
        rows = join(parts) if parts else np.zeros(0, GPU)
        chosen = find_firsts(rows)
        rows, places = rows[chosen], np.array(where, np.int64).reshape(-1, 2)[chosen]
        cut = np.zeros(len(rows))
        if len(rows):
            cut = np.rint(find_loading(rows, self._iter_launches(number))[0])
            late = np.flatnonzero(cut > 0)
            late = late[np.argsort(rows["begin"][late], kind="stable")]
            rows, places, cut = rows[late], places[late], cut[late]
            rows["begin"] += cut.astype(np.int64)
            rows["duration"] -= cut
        return _Moved(rows, places[:, 0], places[:, 1], cut)


class _Moved(NamedTuple):
    """GPU times whose start was moved by `cut` ns, and the batch and row of each."""

    rows: Array
    batches: Array
    places: Array
    cut: npt.NDArray[np.float64]


class _KeptRun:
    """A batch as a run, except for rows that are skipped."""

    def __init__(
        self, kept: Kept, batch: _Batch, fields: Any, stamps: Collection[str], more: Fill, skip: Array | None = None
    ) -> None:
        self.batch, self.count = batch, batch.rows
        self.low = int(times_of(batch.process, np.array([batch.first], np.uint64))[0])
        self._kept, self._fields, self._stamps, self._more = kept, fields, stamps, more
        self._skip = skip if skip is not None and len(skip) else None

    def read(self, at: int, count: int) -> Array:
        """Read some of its rows."""
        rows = self._kept.read(self.batch, at, count, self._fields, self._stamps, self._more)
        if self._skip is None:
            return rows
        inside = (self._skip >= at) & (self._skip < at + count)
        left = np.ones(len(rows), bool)
        left[self._skip[inside] - at] = False
        return rows[left]


class _MovedRun:
    """A run whose rows are in memory."""

    def __init__(self, rows: Array) -> None:
        self._rows, self.low, self.count = rows, int(rows["begin"][0]), len(rows)

    def read(self, at: int, count: int) -> Array:
        """Read some of its rows."""
        return self._rows[at : at + count]


def _device(batch: _Batch) -> int:
    if batch.device is not None:
        return batch.device
    cards = batch.process.cards
    return min(cards, default=0) if len(cards) < 2 else NO_DEVICE


def _by_device(rows: Rows) -> Iterator[tuple[int | None, Rows]]:
    """Yield the rows of each device."""
    if "device" not in (rows.dtype.names or ()):
        yield None, rows
        return
    devices = rows["device"]
    if (devices == devices[0]).all():
        yield int(devices[0]), rows
        return
    for device in np.unique(devices).tolist():
        yield device, take(rows, np.flatnonzero(devices == device))


def _fill_call(found: Array, threads: Threads, rows: Rows, process: Process) -> None:
    found["thread"] = threads
    if "stamp" in (found.dtype.names or ()):
        found["stamp"] = rows["start"]
    for name in {"stack", "python"} & {*(found.dtype.names or ())}:
        found[name] = process.sites.find(threads, rows["start"], name == "python")


def _fill_gpu_time(found: Array, _: Threads, rows: Rows, process: Process) -> None:
    if "device" not in (rows.dtype.names or ()):
        found["device"] = min(process.cards, default=0) if len(process.cards) < 2 else NO_DEVICE


def _choose_types(threads: Threads, rows: Rows, process: Process, types: frozenset[str]) -> tuple[Threads, Rows]:
    """Keep the calls of functions of these types, and of functions that aren't known yet."""
    known = process.apis
    ids = [id_ for id_ in np.unique(rows["api"]).tolist() if id_ not in known or known[id_].type in types]
    chosen = np.flatnonzero(np.isin(rows["api"], ids))
    return threads[chosen], take(rows, chosen)
