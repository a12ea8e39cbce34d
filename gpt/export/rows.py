"""Convert the rows of a process to rows of the export's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MissingError, TruncatedError
from gpt.export import schema
from gpt.export.correlate import NONE, WORK, CallNumbers, Matcher
from gpt.export.files import TableFile
from gpt.export.graph_nodes import GraphNodes
from gpt.export.maps import MapTables
from gpt.export.open_ranges import CallRanges
from gpt.export.strings import Names, Strings
from gpt.trace.graphs import GRAPH_LAUNCH
from gpt.trace.machines import LIMIT
from gpt.trace.replays import sum_replays
from gpt.trace.rows import iter_groups, take

if TYPE_CHECKING:
    from gpt.trace.process import Process
    from gpt.trace.rows import Rows, Threads

ID_BITS = 24  # bits for the pid and the tid in globalPid and globalTid
LOW = (1 << ID_BITS) - 1
OPEN_RANGES = 1 << 18  # limit for the ranges, and for the ends of ranges, that wait for their counterpart
LAUNCHING = ("kernel", "memcpy", "memset", "graph")  # types of calls that may start work on the GPU
WIDE = {"object": "object", "to": "dst", "from": "src", "bytes": "bytes", "stream": "streamId"}
PARTS = ("prologue", "epilogue", "kernel", "original")  # the parts of a launch with probes that are timed
SHAPE = {
    **{f"{what}_{axis}": f"{what}{axis.upper()}" for what in ("grid", "block", "cluster") for axis in "xyz"},
    "shared": "dynamicSharedMemory",
}


class ProcessRows:
    """Writes the rows of a process: each `take` writes everything collected since the last one.

    `number` is how many earlier processes had the same pid, and `offset` is added to CLOCK_MONOTONIC of the process.
    """

    def __init__(
        self, process: Process, number: int, offset: int, strings: Strings, tables: TableFile, maps: MapTables
    ) -> None:
        self.process, self.offset = process, offset
        self.global_pid = (number & 0x7FFF) << 2 * ID_BITS | (process.pid & LOW) << ID_BITS
        self.lost = Counter[str]()  # buffers of probes that couldn't be read, by reason
        self.apart = 0  # work on the GPU whose call isn't known
        self._strings, self._tables, self._maps = strings, tables, maps
        header = process.header
        self._calls = CallNumbers(header["tsc"] if "tsc_hz" in header else header["monotonic"])
        self._matcher = Matcher()
        self._late: dict[int, int] = {}  # numbers reserved for the names of driver functions, by id
        self._late_kernels: dict[int, Names] = {}  # numbers reserved for the names of kernels, by id
        self._counts: tuple[Counter[int], Counter[int]] = Counter(), Counter()  # launches, calls
        self._ranges: dict[int, dict[str, Any]] = {}  # open ranges, by id
        self._ends: dict[int, dict[str, Any]] = {}  # ends of ranges that haven't arrived, by id
        self._domains: dict[str, int] = {}
        self._call_ranges = CallRanges(process, self.global_tids)
        self._graph_nodes = GraphNodes(process)

    def take(self, over: bool = False) -> None:
        """Write everything that has arrived. When the process is `over`, this includes work that's still waiting for
        its call.
        """
        process = self.process
        for threads, rows in process.calls.take():
            self._add_calls(threads, rows)
        for _, rows in process.gpu_times.take():
            self._add_work(rows)
        self._write_work(*self._matcher.take(over))
        self._add_ranges(over)
        self._add_ioctls()
        self._add_probed()
        for number, count in process.take_launches().items():
            self._counts[0][number] += count
        for _, rows in process.counts.take():
            for api, count in rows[["api", "count"]].tolist():
                self._counts[1][api] += count
        if over:
            self._end()

    def _times(self, stamps: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        return self.process.clock.times(stamps) + self.offset

    def _span(self, stamps: npt.NDArray[np.uint64], took: npt.NDArray[np.uint64]) -> dict[str, Any]:
        """Return `start` and `end`. For a call without a duration, `end` is NULL."""
        start = self._times(stamps)
        ends = start + np.minimum(self.process.clock.durations(took), LIMIT).astype(np.int64)
        return {"start": start, "end": np.ma.MaskedArray(ends, took == 0)}

    def global_tids(self, threads: npt.NDArray[np.unsignedinteger]) -> npt.NDArray[np.int64]:
        """Return thread ids that include the process."""
        return self.global_pid | (threads.astype(np.uint64) & np.uint64(LOW)).astype(np.int64)

    # Names

    def _name_apis(self, ids: npt.NDArray[np.uint32]) -> npt.NDArray[np.int64]:
        return _each(ids, self._name_api)

    def _name_api(self, id_: int) -> int:
        if id_ in self.process.apis and id_ not in self._late:
            return self._strings.number(self.process.apis[id_].title)
        return self._late.setdefault(id_, 0) or self._late.update({id_: self._strings.reserve()}) or self._late[id_]

    def _name_kernels(self, ids: npt.NDArray[np.uint32]) -> dict[str, Any]:
        """Return columns with the three names of each kernel, which are masked for id 0."""
        known, which = np.unique(ids, return_inverse=True)
        names = self.process.kernels()
        told = (id_ for id_ in known.tolist() if id_ in names and id_ not in self._late_kernels)
        self._strings.learn_kernels(names[id_] for id_ in told)
        found = np.array([self._name_kernel(id_) for id_ in known.tolist()], np.int64).reshape(-1, 3)[which]
        columns = ("demangledName", "shortName", "mangledName")
        return {name: np.ma.MaskedArray(found[:, at], ids == 0) for at, name in enumerate(columns)}

    def _name_kernel(self, id_: int) -> Names:
        name = self.process.kernels().get(id_)
        if not id_ or (name is not None and id_ not in self._late_kernels):
            return self._strings.kernel(name or "")
        if id_ not in self._late_kernels:
            self._late_kernels[id_] = self._strings.reserve(), self._strings.reserve(), self._strings.reserve()
        return self._late_kernels[id_]

    # Calls

    def _add_calls(self, threads: Threads, rows: Rows) -> None:
        apis, known = rows["api"], rows.dtype.names or ()
        ours = ~_each(apis, self.process.is_ioctl).astype(bool)  # `ioctl` records have more about the others
        if not ours.all():
            threads, rows = threads[ours], rows[ours]
        if not len(rows):
            return
        keys, tids = self._calls.number(threads, rows["start"]), self.global_tids(threads)
        told = {"correlationId": keys, "globalTid": tids}
        columns = self._span(rows["start"], rows["duration"]) | told
        columns |= {"eventClass": schema.DRIVER, "nameId": self._name_apis(rows["api"]), "returnValue": rows["result"]}
        self._tables.write(schema.RUNTIME, len(rows), columns)
        self._call_ranges.add_calls(keys, threads, rows)
        wide = {column: rows[name] for name, column in (WIDE | SHAPE).items() if name in known}
        if not wide:
            return
        if "function" in known:
            wide |= self._name_kernels(rows["function"]) | _launch_type(rows)
        if "object" in known:
            for api, places in iter_groups(rows["api"]):
                if self._may_replay(api):
                    self.process.graphs.add_calls(api, take(rows, places))
                    self._graph_nodes.add_calls(threads[places], take(rows, places))
        self._tables.write(schema.ARGUMENTS, len(rows), told | wide)
        launching = _each(rows["api"], self._may_launch).astype(bool)
        self._matcher.add_calls(keys[launching], rows[launching])

    def _may_replay(self, id_: int) -> bool:
        return self.process.apis.get(id_, GRAPH_LAUNCH)[:2] == GRAPH_LAUNCH

    def _may_launch(self, id_: int) -> bool:
        api = self.process.apis.get(id_)
        return api is None or api.type in LAUNCHING

    # Work on the GPU

    def _add_work(self, rows: Rows) -> None:
        self._graph_nodes.add_work(rows[_each(rows["api"], self._may_replay).astype(bool)])
        known = rows.dtype.names or ()
        work = np.zeros(len(rows), WORK)
        for name in ("begin", "duration", "stream", "api", "function", "device"):
            if name in known:
                work[name] = rows[name]
        if "device" not in known:
            cards = self.process.cards
            work["device"] = min(min(cards, default=0), LOW) if len(cards) < 2 else NONE
        work["key"] = NONE
        if "call" in known and "thread" in known:
            named = rows["call"] != 0
            keys = self._calls.number(rows["thread"][named].astype(np.uint64), rows["call"][named])
            work["key"][named] = keys
        self._matcher.add_work(work)

    def _write_work(self, work: npt.NDArray[np.void], calls: npt.NDArray[np.void]) -> None:
        if not len(work):
            return
        self.apart += int((~calls["known"]).sum())
        types = _each(work["api"], self._kind_of)
        types[work["function"] != 0] = 0
        for number, table in enumerate((schema.KERNEL, schema.MEMCPY, schema.MEMSET, schema.GRAPH)):
            mine = types == number
            if mine.any():
                one, of = work[mine], calls[mine]
                self._tables.write(table, len(one), self._work_columns(one) | self._own_columns(table, one, of))

    def _kind_of(self, id_: int) -> int:
        return {"memcpy": 1, "memset": 2, "graph": 3}.get(self.process.api(id_).type, 0)

    def _work_columns(self, work: npt.NDArray[np.void]) -> dict[str, Any]:
        columns = self._span(work["begin"], work["duration"]) | {"globalPid": self.global_pid}
        columns["deviceId"] = np.ma.MaskedArray(work["device"], work["device"] == NONE)
        columns["correlationId"] = np.ma.MaskedArray(work["key"], work["key"] == NONE)
        return columns | {"streamId": work["stream"]}

    def _own_columns(
        self, table: schema.ExportTable, work: npt.NDArray[np.void], calls: npt.NDArray[np.void]
    ) -> dict[str, Any]:
        def told(name: str) -> Any:
            return np.ma.MaskedArray(calls[name], ~calls["known"])

        if table is schema.MEMCPY:
            kinds = _each(work["api"], lambda id_: schema.COPIES.get(self.process.api(id_).op, 0))
            return {"bytes": told("bytes"), "copyKind": kinds}
        if table is schema.MEMSET:
            return {"bytes": told("bytes")}
        if table is schema.GRAPH:
            return {"graphExecId": told("object")}
        names = self._name_kernels(work["function"])
        types = {name: np.ma.MaskedArray(column, ~calls["known"]) for name, column in _launch_type(calls).items()}
        return names | types | {column: told(name) for name, column in SHAPE.items()}

    def _write_nodes(self) -> None:
        for replay, handle, columns in self._graph_nodes.iter_nodes():
            thread, start = (np.array([number], np.uint64) for number in (replay.thread, replay.start))
            columns["correlationId"] = int(self._calls.number(thread, start)[0])
            columns |= {"globalTid": self._global_tid(replay.thread), "graphExecId": handle}
            columns |= self._name_kernels(np.where(replay.types == 0, replay.functions, 0).astype(np.uint32))
            columns |= self._call_ranges.find(replay.threads, replay.calls, self._strings)
            self._tables.write(schema.NODES, len(replay.types), columns)

    # Ranges and ioctls

    def _add_ranges(self, over: bool) -> None:
        done: list[tuple[dict[str, Any], dict[str, Any] | None]] = []
        found = self.process.take_ranges()
        self._call_ranges.add_ranges(found)
        for record in found:
            if record["kind"] == "range_end":
                self._ends[record["id"]] = record
            elif record["type"] == "mark" or "id" not in record:
                done.append((record, None))
            else:
                self._ranges[record["id"]] = record
        done += [(self._ranges.pop(id_), self._ends.pop(id_)) for id_ in self._ends.keys() & self._ranges.keys()]
        if over or len(self._ranges) > OPEN_RANGES:
            done += [(record, None) for record in self._ranges.values()]
            self._ranges = {}
        if over or len(self._ends) > OPEN_RANGES:
            self._ends = {}  # their ranges began before a fork, or were left out
        if done:
            self._write_ranges(done)

    def _write_ranges(self, done: Sequence[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
        begun = [record for record, _ in done]
        starts = self._times(np.array([record["start"] for record in begun], np.uint64))
        stops = np.array([end["end"] if end else 0 for _, end in done], np.uint64)
        ends = np.ma.MaskedArray(self._times(stops), [end is None for _, end in done])
        types = {"mark": schema.MARK, "start": schema.STARTED}
        columns = {
            "start": starts,
            "end": ends,
            "eventType": [types.get(record["type"], schema.PUSHED) for record in begun],
            "rangeId": [record.get("id") for record in begun],
            "category": [record["category"] & 0xFFFFFFFF if "category" in record else None for record in begun],
            "text": [record.get("name") for record in begun],
            "globalTid": self.global_tids(np.array([record["thread"] for record in begun], np.uint64)),
            "endGlobalTid": [None if end is None else self._global_tid(end["thread"]) for _, end in done],
            "domainId": [self._domain(record.get("domain")) for record in begun],
        }
        self._tables.write(schema.NVTX, len(done), columns)

    def _global_tid(self, thread: int) -> int:
        return self.global_pid | thread & LOW

    def _domain(self, name: str | None) -> int:
        return 0 if name is None else self._domains.setdefault(name, len(self._domains) + 1)

    def _add_ioctls(self) -> None:
        found = self.process.take_ioctls()
        if not found:
            return
        threads = np.array([record["thread"] for record in found], np.uint64)
        parents = np.array([record.get("parent", 0) for record in found], np.uint64)
        starts, took = (np.array([record[name] for record in found], np.uint64) for name in ("start", "duration"))
        columns = self._span(starts, took) | {
            "eventClass": schema.OS_RUNTIME,
            "globalTid": self.global_tids(threads),
            "correlationId": np.ma.MaskedArray(self._calls.number(threads, parents), parents == 0),
            "nameId": [self._strings.number(record["name"]) for record in found],
            "returnValue": [min(record.get("error", 0), (1 << 31) - 1) for record in found],
            **{name: [record.get(name) for record in found] for name in ("device", "request", "command")},
        }
        self._tables.write(schema.IOCTLS, len(found), columns)

    # Probes

    def _add_probed(self) -> None:
        probes = self.process.probes
        if launches := probes.take_told("probed"):
            self._write_launches(launches)
        for buffer in probes.take():
            if buffer.unsaved:
                continue
            try:
                self._maps.add(self.global_pid, buffer)
            except (MissingError, TruncatedError) as error:
                self.lost[error.fact] += 1
        if times := probes.take_told("times"):
            columns = {name: [one.get(name) for one in times] for name in PARTS}
            columns["launchId"] = [one["launch"] for one in times]
            self._tables.write(schema.TIMES, len(times), {"globalPid": self.global_pid, **columns})
        if needs := probes.take_told("memusage"):
            columns = {name: [one[name] for one in needs] for name in ("launches", "bytes", "most")}
            self._write_by_kernel(schema.NEEDS, [one["function"] for one in needs], columns)

    def _write_launches(self, launches: Sequence[Any]) -> None:
        threads = np.array([launch.thread for launch in launches], np.uint64)
        starts = np.array([launch.start for launch in launches], np.uint64)
        names = self._name_kernels(np.array([launch.function & 0xFFFFFFFF for launch in launches], np.uint32))
        sizes = {
            f"{what}{axis}": np.array([min(getattr(launch, what)[at], 0xFFFFFFFF) for launch in launches], np.uint32)
            for what in ("grid", "block")
            for at, axis in enumerate("XYZ")
        }
        columns = {
            "launchId": [launch.id for launch in launches],
            "globalPid": self.global_pid,
            "globalTid": self.global_tids(threads),
            "start": self._times(starts),
            "correlationId": self._calls.number(threads, starts),
            "deviceId": [launch.device & 0xFFFFFFFF for launch in launches],
            "streamId": [launch.stream for launch in launches],
            "graphExecId": [launch.exec for launch in launches],
            **names,
            **sizes,
        }
        self._tables.write(schema.PROBED, len(launches), columns)

    # The end

    def _end(self) -> None:
        self._call_ranges.write(self._tables, self._strings)
        self._write_nodes()
        self._write_counts()
        process, strings = self.process, self._strings
        for id_, number in self._late.items():
            strings.texts[number] = process.api(id_).title
        names = process.kernels()
        strings.learn_kernels(names[id_] for id_ in self._late_kernels if id_ in names)
        for id_, numbers in self._late_kernels.items():
            for number, known in zip(numbers, strings.kernel(names.get(id_, f"#{id_}")), strict=True):
                strings.texts[number] = strings.texts[known]
        self._late, self._late_kernels = {}, {}

    def _write_counts(self) -> None:
        launches, calls = self._counts
        graphs = {id_ for id_, api in self.process.apis.items() if api[:2] == GRAPH_LAUNCH}
        launches += self.process.graphs.count_launches(graphs)
        replays = sum_replays(self.process.graphs.iter_replays(graphs), self.process.graphs)
        if done := replays.done:
            what = {"type": [type_ for type_, _ in done], "op": [op for _, op in done]}
            ran = {"count": [one.number for one in done.values()], "bytes": [one.bytes for one in done.values()]}
            self._tables.write(schema.GRAPH_WORK, len(done), {"globalPid": self.global_pid, **what, **ran})
        self._write_by_kernel(schema.LAUNCH_COUNTS, [*launches], {"launches": [*launches.values()]})
        process, names = self.process, self.process.kernels()
        found = process.probes.unprobed if not process.is_narrow else {}  # these have neither thread nor time
        unprobed = [(*key, count) for key, count in found.items() if process.is_chosen(names.get(key[0], ""))]
        functions, reasons, counts = [list(one) for one in zip(*unprobed, strict=True)] or ([], [], [])
        self._write_by_kernel(schema.UNPROBED, functions, {"reason": [*map(str, reasons)], "launches": counts})
        if calls:
            columns = {"globalPid": self.global_pid, "calls": [*calls.values()]}
            columns["nameId"] = self._name_apis(np.array([*calls], np.uint32))
            self._tables.write(schema.CALL_COUNTS, len(calls), columns)
        if domains := self._domains:
            columns = {"eventType": schema.DOMAIN, "text": [*domains], "domainId": [*domains.values()]}
            self._tables.write(schema.NVTX, len(domains), columns | {"globalTid": self.global_pid})

    def _write_by_kernel(self, table: schema.ExportTable, functions: list[int], columns: dict[str, Any]) -> None:
        if functions:
            names = self._name_kernels(np.array([id_ & 0xFFFFFFFF for id_ in functions], np.uint32))
            self._tables.write(table, len(functions), {"globalPid": self.global_pid, **names, **columns})

    def iter_lost(self) -> Iterator[str]:
        """Yield a line for each kind of missing data."""
        for reason, count in self.lost.most_common(3):
            yield f"{count:,} buffers of probes are lost: {reason}"
        if self.apart:
            yield f"{self.apart:,} kernels and copies have no grid or bytes: their calls are not in the trace"


def _each(ids: npt.NDArray[np.uint32], tell: Any) -> npt.NDArray[np.int64]:
    """Call `tell` once for each distinct id, and return the results for all."""
    known, which = np.unique(ids, return_inverse=True)
    return np.array([tell(id_) for id_ in known.tolist()], np.int64)[which]


def _launch_type(rows: npt.NDArray[np.void]) -> dict[str, npt.NDArray[np.int64]]:
    if "cooperative" not in (rows.dtype.names or ()):
        return {}
    return {"launchType": np.where(rows["cooperative"] != 0, schema.COOPERATIVE, schema.REGULAR)}
