"""A process in a trace: everything that a segment says about it, for all readers.

Ids are only valid within their segment. Each thread writes chunks of its own, so a row may come before the record that
names its function, and a function before its module: only at the end is it certain what an id refers to. Rows stay
packed (gpt/trace/rows.py). Readers take them when `full` says that there are enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpt.base.errors import MalformedError
from gpt.stream import records
from gpt.stream.wire import Segments
from gpt.trace.clock import Clock
from gpt.trace.graphs import Graphs
from gpt.trace.machines import identity, machine_of
from gpt.trace.probes import Probes
from gpt.trace.rows import ARGUMENTS, CALL, COUNTS, GPU_CALLS, GPU_TIMES, LAUNCHES, Collector
from gpt.trace.samples import Samples
from gpt.trace.select import Selected, Selection
from gpt.trace.sites import Sites
from gpt.trace.tensors import Tensors
from gpt.trace.unrecorded import Unrecorded, find_unrecorded

Record = dict[str, Any]

CAPTURE = ("stream", "capture")  # type and op of functions that begin a capture
RECORDER = "gpt-hook"  # its traces end with the status of the program
CAPTURED = "capture"  # type of the functions whose calls were captured into a graph, and didn't run
UNTOLD = "this trace doesn't mark captured calls: they count as if they had run"
CONTROL = "NV_ESC_RM_CONTROL"  # an ioctl
MOST = 10_000  # records that are kept before a process that's drained is `full`
LAST_IOCTL = (1 << 32) - 1  # ioctls get ids from here downward; the ids of `api` records begin at 1


class Api(NamedTuple):
    """A function of the driver, or one of its ioctls. `symbol` is the name by which the program looked it up."""

    type: str
    op: str
    name: str
    symbol: str = ""

    @property
    def title(self) -> str:
        """The name, with a mark if its calls were captured."""
        return f"{self.name} (captured)" if self.type == CAPTURED else self.name


class LoadedModule(NamedTuple):
    """A module of GPU code: the file that contains it, and its offset there. If it was loaded from memory, its digest
    and the library that loaded it.

    `type` is `fatbin`, `cubin` or `ptx`.
    """

    path: str | None
    offset: int
    sha256: str | None
    loader: str | None
    type: str = ""


class LoadedFunction(NamedTuple):
    """A function that was looked up: its id, its mangled name, and the id of its module."""

    id: int
    name: str
    module: int | None


class Process:
    """The part of a segment that has been read. Records of kinds that the reader didn't ask for are
    ignored.

    - `started` is False if the segment only names another process. `status` is from its `end`, or None.
    - `libraries` are records, by path. `lookups` are pairs of a module id and `enumerate` or `variable`.
    - `devices` are pairs of an architecture and the code that it runs (`sass` or `ptx`). `cards` are `device` records,
      by ordinal.
    - `folder` is the folder of the trace, or None.

    Rows and launches that aren't in the `selection` are left out.
    """

    def __init__(
        self, header: Record, kinds: frozenset[str], folder: Path | None = None, selection: Selection | None = None
    ) -> None:
        """Begin a segment. Raises MalformedError if the header is invalid."""
        if fault := records.check(header):
            raise MalformedError(fault)
        self.header = header
        self.origin = 0  # index of the path on the command line from which this process was reached
        self.clock = Clock(header)
        self.started = False
        self.status: int | None = None
        self.threads: set[int] = set()
        self.changes: list[tuple[int, bool]] = []  # time stamps, and whether recording was turned on or off
        self.apis: dict[int, Api] = {}
        self.graphs = Graphs()
        self.functions: list[LoadedFunction] = []
        self.modules: list[tuple[int, LoadedModule]] = []
        self.libraries: dict[str, Record] = {}
        self.lookups: list[tuple[int, str]] = []
        self.devices: set[tuple[str, str]] = set()
        self.cards: dict[int, Record] = {}
        self._names: dict[int, str] = {}  # names of functions
        selection = selection or Selection()
        selection.machines.add(header)
        chosen = self._selected = Selected(selection, header, self.clock, self._names, set())
        pick = selection.chooses
        self.calls = Collector("calls", CALL | ARGUMENTS, CALL, chosen.of_calls if pick else None)
        self.gpu_times = Collector("gpu_times", GPU_TIMES | GPU_CALLS, GPU_TIMES, chosen.of_gpu_times if pick else None)
        self.launches = Collector("launches", LAUNCHES, LAUNCHES, chosen.of_launches if pick else None)
        self.counts = Collector("counts", COUNTS, COUNTS, chosen.of_counts if pick else None)
        self.probes = Probes(folder, kinds, chosen)
        self.tensors = Tensors()
        self.sites = Sites()
        self.samples = Samples()
        self.ranges: list[Record] = []  # `range` and `range_end`
        self._other_ranges: list[Record] = []  # the rest, which nodes of chosen replays may have been captured in
        self.diags: list[Record] = []
        self.drained = False  # True if the reader takes ranges and ioctls as they arrive
        self.machines = selection.machines
        self._excluded = selection.excludes(header)
        self._kinds = kinds | {"device"} if selection.devices else kinds
        self._ioctls: dict[str, int] = {}
        self._details: list[Record] = []  # `ioctl` records
        self._controls = Counter[int]()
        self._dropped: list[str] = []

    @property
    def pid(self) -> int:
        """The process id."""
        pid: int = self.header["pid"]
        return pid

    @property
    def exit_status(self) -> int | None:
        """The exit status of the program, or None if it isn't known. A trace of gpt-attach ends with its own status."""
        return self.status if self.header["tool"] == RECORDER else None

    @property
    def missing(self) -> list[str]:
        """Lines that say what's missing in the trace."""
        before = ["it ran before it was watched: what it did until then is not recorded"]
        lines = (before if self.header.get("attached") else []) + self._dropped
        lines += [UNTOLD] if self.confuses_captured else []
        return [f"process {self.pid}: {line}" for line in lines]

    @property
    def confuses_captured(self) -> bool:
        """True if the process captured streams, but its trace is too old to say which calls were captured."""
        told = self.header.get("captures") or self.captured()
        return not told and any(api[:2] == CAPTURE for api in self.apis.values())

    def captured(self) -> list[int]:
        """Return the ids, known so far, of functions whose calls were captured."""
        return [id_ for id_, api in self.apis.items() if api.type == CAPTURED]

    def gpu(self, ordinal: int | None) -> Hashable:
        """Return a key that's unique to a device. If its UUID is known, the key is the same in all processes."""
        uuid = self.cards[ordinal].get("uuid") if ordinal in self.cards else None
        return (machine_of(self.header), uuid) if uuid else (identity(self.header), ordinal)

    @property
    def full(self) -> bool:
        """True when the rows should be taken. If there's a filter for kernels, they have to wait until all names are
        known.
        """
        if self._selected.selection.kernels:
            return False
        rows = self.calls.full or self.gpu_times.full or self.launches.full or self.counts.full
        return rows or self.probes.full or (self.drained and len(self.ranges) + len(self._details) >= MOST)

    def add(self, record: Record) -> None:
        """Add a record. Raises MalformedError if it's invalid."""
        kind = record["kind"]
        if kind not in self._kinds or self._excluded:
            return
        self.started = True
        match kind:
            case "calls" | "call":
                self._add_calls(record)
            case "ioctl":
                self._add_calls(self._as_call(record))
            case "gpu_times" | "gpu_time":
                self.gpu_times.add(record)
            case "launches" | "launch":
                self.probes.counted.add(record)
                if not self.is_narrow:  # otherwise, they're counted from calls
                    self.launches.add(record)
            case "counts" | "count":
                self.counts.add(record)
            case _:
                if fault := records.check(record):
                    raise MalformedError(fault)
                self._learn(record)

    def _add_calls(self, record: Record) -> None:
        self.calls.add(record)
        self.threads.add(record["thread"])

    def _as_call(self, record: Record) -> Record:
        """Convert an `ioctl` to a call of a function whose id stands for the name of the ioctl."""
        if fault := records.check(record):
            raise MalformedError(fault)
        name, chosen = record["name"], self._selected.of_ioctl(record["thread"], record["start"])
        if chosen and "ioctl details" in self._kinds:
            self._details.append(record)
        if chosen and name == CONTROL and "command" in record:
            self._controls[record["command"]] += 1
        number = self._ioctls.setdefault(name, LAST_IOCTL - len(self._ioctls))
        self.apis[number] = Api("ioctl", "ioctl", name)
        call: Record = {"kind": "call", "api": number, "result": record.get("error", 0)}
        return call | {key: record[key] for key in ("thread", "start", "duration") if key in record}

    def _learn(self, record: Record) -> None:
        match record["kind"]:
            case "api":
                self.apis[record["id"]] = Api(record["type"], record["op"], record["name"], record["symbol"])
            case "function":
                self.functions.append(LoadedFunction(record["id"], record["name"], record.get("module")))
                self._names[record["id"]] = record["name"]
            case "clock":
                self.clock.add(record)
            case "dropped":
                self._dropped.append(f"{record['count']} {record['what']}: {record['reason']}")
            case "recording":
                self.changes.append((record["at"], record["on"]))
            case "graph":
                self.graphs.add_graph(record)
            case "graph_nodes":
                self.graphs.add_nodes(record)
            case "node_times":
                self.graphs.times.add(record)
            case "untimed":
                self.graphs.times.add_untimed(record)
            case "library":
                self.libraries[record["path"]] = record
            case "module":
                where = record.get("path"), record.get("offset", 0)
                module = LoadedModule(*where, record.get("sha256"), record.get("loader"), record["type"])
                self.modules.append((record["id"], module))
            case "lookup":
                self.lookups.append((record["module"], record["what"]))
            case "map" | "kernel" | "probed" | "buffer" | "unprobed" | "times" | "memusage":
                self.probes.add(record)
            case "range_end":
                self.ranges.append(record)
            case "range":
                chosen = self._selected.of_moment(record["thread"], record["start"])
                (self.ranges if chosen else self._other_ranges).append(record)
            case "tensor" | "tensor_end":
                self.tensors.add(record)
            case "diag":
                self.diags.append(record)
            case "stack" | "call_site":
                self.sites.add(record)
            case "sample" if self._selected.of_moment(record["thread"], record["at"]):
                self.samples.add(record)
            case "device":
                self.devices.add((record["arch"], record["runs"]))
                self.cards[record["index"]] = record
                self._selected.devices.add(record["index"])

    def take_ranges(self) -> list[Record]:
        """Return the records of ranges and their ends that have arrived since the last call."""
        found, self.ranges = self.ranges, []
        return found

    def take_other_ranges(self) -> list[Record]:
        """Do the same for ranges that aren't in the selection."""
        found, self._other_ranges = self._other_ranges, []
        return found

    @property
    def ioctls(self) -> list[Record]:
        """The `ioctl` records, if the reader asked for kinds.DETAILS."""
        return self._details if self._selected.says_device else []

    @property
    def controls(self) -> Counter[int]:
        """The commands of NV_ESC_RM_CONTROL, with how often each was sent."""
        return self._controls if self._selected.says_device else Counter()

    def take_ioctls(self) -> list[Record]:
        """Return the ioctls that have arrived since the last call."""
        found, self._details = self.ioctls, []
        return found

    @property
    def last_api(self) -> int:
        """Return the largest id of a function that isn't an ioctl."""
        return LAST_IOCTL - len(self._ioctls)

    def is_ioctl(self, api: int) -> bool:
        """Return whether this id stands for an ioctl."""
        return api > self.last_api

    def api(self, id_: int) -> Api:
        """Return the function with this id. Without a record, its name is its id."""
        return self.apis.get(id_) or Api("other", "unknown", f"#{id_}")

    def kernels(self) -> dict[int, str]:
        """Return the mangled names of functions, by id."""
        return self._names

    def other_means(self) -> dict[int, float]:
        """Return the mean GPU time, in ns, of each function's launches that the user's filters leave out."""
        means = [(id_, ticks / count) for id_, (count, ticks) in self._selected.other_times.items()]
        times = self.clock.durations(np.array([round(ticks) for _, ticks in means], np.uint64))
        return {id_: time for (id_, _), time in zip(means, times.tolist(), strict=True)}

    def take_launches(self) -> Counter[int]:
        """Return the number of launches since the last call, by function. Take the calls first: if the selection is
        narrow, launches are counted from them.
        """
        found = self._selected.take_launches(self.apis.keys(), self.captured(), self.status is not None)
        for _, rows in self.launches.take():
            for function, count in rows[["function", "count"]].tolist():
                found[function] += count
        return found

    @property
    def is_narrow(self) -> bool:
        """True if the selection is by thread, device, stream or time, which counts don't have."""
        return self._selected.selection.narrow

    @property
    def is_partial(self) -> bool:
        """True if the selection leaves out calls or work that happened at the same time as others that it keeps."""
        selection = self._selected.selection
        return bool(selection.threads or selection.streams or selection.kernels)

    @property
    def left_out(self) -> bool | None:
        """True if the selection left out everything that was checked, or None if nothing was."""
        if self._excluded:
            return True
        return not self._selected.kept if self._selected.looked else None

    def is_chosen(self, kernel: str) -> bool:
        """Return whether a kernel is chosen."""
        return self._selected.matches(kernel)

    @property
    def unrecorded_stamps(self) -> Unrecorded:
        """The periods in which recording was off, in time stamps since the header (`Clock.since`)."""
        stamps = self.clock.since(np.array([at for at, _ in self.changes], np.uint64)).tolist()
        return find_unrecorded(0, list(zip(stamps, [on for _, on in self.changes], strict=True)))

    @property
    def unrecorded(self) -> Unrecorded:
        """The periods in which recording was off, in ns of CLOCK_MONOTONIC."""
        times = self.clock.times(np.array([at for at, _ in self.changes], np.uint64)).tolist()
        changes = list(zip(times, [on for _, on in self.changes], strict=True))
        return find_unrecorded(self.clock.monotonic, changes)

    def find_end(self, last: int) -> int:
        """Return `last` or, if that was later, the time when recording was last turned on or off. Both are in ns of
        CLOCK_MONOTONIC.
        """
        if not self.changes:
            return last
        return max(last, int(self.clock.times(np.array([max(self.changes)[0]], np.uint64))[0]))

    def unrecorded_until(self, last: int) -> int:
        """Return how many ns recording was off, from the beginning of the process to `find_end(last)`."""
        return self.unrecorded.within_one(self.clock.monotonic, self.find_end(last))

    def recorded(self, last: int) -> int | None:
        """Return how many ns recording was on during that time, or None if it was never off."""
        if not self.changes:
            return None
        return max(0, self.find_end(last) - self.clock.monotonic - self.unrecorded_until(last))


def iter_processes(
    found: Iterator[Record],
    kinds: frozenset[str],
    folder: Path | None = None,
    selection: Selection | None = None,
) -> Iterator[Process]:
    """Yield the process of each segment once it's complete. Errors in the records are raised after the last process."""
    segments = Segments()
    processes: dict[int, Process] = {}
    fault: MalformedError | None = None
    try:
        for record in found:
            segment = segments.add(record)
            if record["kind"] == "header":
                processes[segment] = Process(record, kinds, folder, selection)
            elif record["kind"] == "end":
                processes[segment].status = record.get("status", 0)
                yield processes.pop(segment)
            else:
                processes[segment].add(record)
    except MalformedError as error:
        fault = error
    yield from processes.values()
    if fault:
        raise fault
