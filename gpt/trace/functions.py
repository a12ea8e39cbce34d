"""Calls by function: how many, how long, how many bytes; and kernels by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpt import records
from gpt.errors import MalformedError
from gpt.trace import rows
from gpt.trace.clock import Clock
from gpt.trace.durations import Durations
from gpt.trace.graphs import Graphs
from gpt.trace.ioctls import Ioctls

MAX_FUNCTIONS = 8192  # with calls: 64 KiB each; the driver has some 700
GRAPH_LAUNCH = ("graph", "launch")  # type and op
NOT_FAILED = (0, 600)  # CUDA_SUCCESS; CUDA_ERROR_NOT_READY, the answer of a query


K = TypeVar("K")
V = TypeVar("V")


def _new(found: dict[K, V], key: K, make: Callable[[], V]) -> V:
    """The value of a key, made where there is none."""
    value = found.get(key)
    if value is None:
        value = found[key] = make()
    return value


class Api(NamedTuple):
    """A driver function, as its `api` record has it."""

    type: str
    op: str
    name: str


class Slowest(NamedTuple):
    """A call: its duration in ns, when it began in ns since the epoch, by whom."""

    duration: float
    start: int
    pid: int
    thread: int


class OnGpu:
    """What of it ran on the GPU, as far as that is known."""

    def __init__(self) -> None:
        self.count = 0
        self.time = 0.0  # ns

    def merge(self, other: OnGpu) -> None:
        """Takes in what another one has."""
        self.count += other.count
        self.time += other.time


class Function:
    """The calls of one function: `calls` were recorded, `counted` only counted."""

    def __init__(self) -> None:
        self.calls = self.counted = self.failed = 0
        self.durations = Durations()  # of those that returned
        self.slowest: Slowest | None = None
        self.gpu = OnGpu()
        self.moved = Counter[str]()  # calls with a number of bytes that succeeded: `calls`, `bytes`, `total` ns

    def add(self, calls: rows.Rows, threads: rows.Threads, clock: Clock, pid: int) -> None:
        """Takes calls in."""
        done = calls["duration"] != 0
        self.calls += len(calls)
        if not done.all():
            calls, threads = calls[done], threads[done]
        if not len(calls):
            return
        durations = clock.durations(calls["duration"])
        self.durations.add(durations)
        at = int(durations.argmax())
        if self.slowest is None or durations[at] > self.slowest.duration:
            start = clock.realtime(int(clock.times(calls["start"][at : at + 1])[0]))
            self.slowest = Slowest(float(durations[at]), start, pid, int(threads[at]))
        results = calls["result"]
        if results.any():
            self.failed += int(np.isin(results, NOT_FAILED, invert=True).sum())
        if "bytes" in (calls.dtype.names or ()):
            good = results == 0
            total, size = durations[good].sum(), calls["bytes"][good].sum(dtype=np.float64)
            self.moved.update(calls=int(good.sum()), bytes=int(size), total=int(total))

    def merge(self, other: Function) -> None:
        """Takes in what another one has."""
        self.calls += other.calls
        self.counted += other.counted
        self.gpu.merge(other.gpu)
        self.failed += other.failed
        self.durations.merge(other.durations)
        if other.slowest and (self.slowest is None or other.slowest > self.slowest):
            self.slowest = other.slowest
        self.moved.update(other.moved)


class Kernel:
    """The launches of one kernel."""

    def __init__(self) -> None:
        self.launches = 0
        self.gpu = OnGpu()

    def merge(self, other: Kernel) -> None:
        """Takes in what another one has."""
        self.launches += other.launches
        self.gpu.merge(other.gpu)


class Totals:
    """Functions and kernels of several segments."""

    def __init__(self) -> None:
        self.functions: dict[Api, Function] = {}
        self.kernels: dict[str, Kernel] = {}

    def merge(self, other: Totals) -> None:
        """Takes in what another one has."""
        for api, function in other.functions.items():
            _new(self.functions, api, Function).merge(function)
        for name, kernel in other.kernels.items():
            _new(self.kernels, name, Kernel).merge(kernel)

    def types(self) -> dict[str, Function]:
        """The functions of each type together."""
        found: dict[str, Function] = {}
        for api, function in self.functions.items():
            _new(found, api.type, Function).merge(function)
        return found


class Segment:
    """The calls of one process, while its records come: ids are good here only, and may come before their names."""

    kinds = frozenset(("api", "calls", "call", "clock", "counts", "launches", "gpu_times", "graph", "ioctl"))

    def __init__(self, header: dict[str, Any]) -> None:
        if fault := records.check(header):
            raise MalformedError(fault)
        self.header = header
        self.clock = Clock(header)
        self.calls = 0
        self.threads: set[int] = set()
        self.last = self.clock.monotonic  # when the last call that is known of ended
        self._collector = rows.Collector()
        self._gpu_times = rows.Collector("gpu_times", rows.GPU_TIMES, rows.GPU_TIMES)
        self._apis: dict[int, Api] = {}
        self._ioctls = Ioctls()
        self._graphs = Graphs()
        self._names: dict[int, str] = {}  # of kernels
        self._functions: dict[int, Function] = {}
        self._kernels: dict[int, Kernel] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Takes a record in; of kinds that tell nothing of calls and kernels it takes no notice."""
        kind = record["kind"]
        if kind == "ioctl":
            record = self._ioctls.as_call(record)
        match kind:
            case "calls" | "call" | "ioctl":
                self._collector.add(record)
                self.threads.add(record["thread"])
                if self._collector.full:
                    self._drain()
            case "gpu_times":
                self._gpu_times.add(record)
                if self._gpu_times.full:
                    self._drain()
            case "api" | "function" if fault := records.check(record):
                raise MalformedError(fault)
            case "api":
                self._apis[record["id"]] = Api(record["type"], record["op"], record["name"])
            case "function":
                self._names[record["id"]] = record["name"]
            case "clock":
                self.clock.add(record)
            case "graph":
                self._graphs.add_graph(record)
            case "launches":
                for row in rows.read_counts(record, rows.LAUNCHES):
                    _new(self._kernels, int(row["function"]), Kernel).launches += int(row["count"])
            case "counts":
                for row in rows.read_counts(record, rows.COUNTS):
                    self._function(int(row["api"])).counted += int(row["count"])
                    self.calls += int(row["count"])

    def _function(self, api: int) -> Function:
        function = self._functions.get(api)
        if function is None:
            if len(self._functions) >= MAX_FUNCTIONS:
                raise MalformedError(f"calls: of over {MAX_FUNCTIONS} functions")
            function = self._functions[api] = Function()
        return function

    def _drain(self) -> None:
        """Takes in the rows that were collected."""
        for threads, found in self._collector.take():
            self.last = max(self.last, int(self.clock.times(found["start"] + found["duration"]).max()))
            for api, order in rows.iter_groups(found["api"]):
                calls = rows.take(found, order)
                self._function(api).add(calls, threads[order], self.clock, self.header["pid"])
                if "object" in (found.dtype.names or ()) and self._apis.get(api, GRAPH_LAUNCH)[:2] == GRAPH_LAUNCH:
                    self._graphs.add_calls(api, calls)  # whose name may come yet
                self.calls += len(order) if api not in self._ioctls.names else 0
        for _, found in self._gpu_times.take():
            took = self.clock.durations(found["duration"])
            for field, make in (("function", self._kernel_on_gpu), ("api", self._function_on_gpu)):
                for id_, order in rows.iter_groups(found[field]):
                    on_gpu = make(id_)
                    on_gpu.count += len(order)
                    on_gpu.time += float(took[order].sum())

    def _kernel_on_gpu(self, id_: int) -> OnGpu:
        return _new(self._kernels, id_, Kernel).gpu if id_ else OnGpu()  # 0: no kernel

    def _function_on_gpu(self, id_: int) -> OnGpu:
        return self._function(id_).gpu

    def totals(self) -> Totals:
        """What is known by now, by name."""
        self._drain()
        found = Totals()
        for id_, function in self._functions.items():
            api = self._apis.get(id_)
            if id_ in self._ioctls.names:
                api = Api("ioctl", "ioctl", self._ioctls.names[id_])
            _new(found.functions, api or Api("other", "unknown", f"#{id_}"), Function).merge(function)
        for id_, kernel in self._kernels.items():
            _new(found.kernels, self._names.get(id_, f"#{id_}"), Kernel).merge(kernel)
        launch_graphs = {id_ for id_, api in self._apis.items() if api[:2] == GRAPH_LAUNCH}
        for id_, launches in self._graphs.count_launches(launch_graphs).items():
            _new(found.kernels, self._names.get(id_, f"#{id_}"), Kernel).launches += launches
        return found
