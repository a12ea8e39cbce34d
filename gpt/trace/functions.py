"""Calls by function: how many, how long, how many bytes; and kernels by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from gpt import records
from gpt.errors import MalformedError
from gpt.trace import rows as packed
from gpt.trace.clock import Clock
from gpt.trace.durations import Durations
from gpt.trace.rows import Rows, Threads, iter_groups, take

MAX_FUNCTIONS = 8192  # with calls: 64 KiB each; the driver has some 700
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


class Function:
    """The calls of one function."""

    def __init__(self) -> None:
        self.calls = self.failed = 0
        self.durations = Durations()  # of those that returned
        self.slowest: Slowest | None = None
        self.moved = Counter[str]()  # calls with a number of bytes that succeeded: `calls`, `bytes`, `total` ns

    def add(self, rows: Rows, threads: Threads, clock: Clock, pid: int) -> None:
        """Takes calls in."""
        done = rows["duration"] != 0
        self.calls += len(rows)
        if not done.all():
            rows, threads = rows[done], threads[done]
        if not len(rows):
            return
        durations = clock.durations(rows["duration"])
        self.durations.add(durations)
        at = int(durations.argmax())
        if self.slowest is None or durations[at] > self.slowest.duration:
            start = clock.realtime(int(clock.times(rows["start"][at : at + 1])[0]))
            self.slowest = Slowest(float(durations[at]), start, pid, int(threads[at]))
        results = rows["result"]
        if results.any():
            self.failed += int(np.isin(results, NOT_FAILED, invert=True).sum())
        if "bytes" in (rows.dtype.names or ()):
            good = results == 0
            total, size = durations[good].sum(), rows["bytes"][good].sum(dtype=np.float64)
            self.moved.update(calls=int(good.sum()), bytes=int(size), total=int(total))

    def merge(self, other: Function) -> None:
        """Takes in what another one has."""
        self.calls += other.calls
        self.failed += other.failed
        self.durations.merge(other.durations)
        if other.slowest and (self.slowest is None or other.slowest > self.slowest):
            self.slowest = other.slowest
        self.moved.update(other.moved)


class Kernel:
    """The launches of one kernel, and those of them whose time on the GPU is known."""

    def __init__(self) -> None:
        self.launches = self.executions = 0
        self.time = 0.0  # ns on the GPU

    def merge(self, other: Kernel) -> None:
        """Takes in what another one has."""
        self.launches += other.launches
        self.executions += other.executions
        self.time += other.time


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

    kinds = frozenset(("api", "calls", "call", "clock", "launches", "executions"))

    def __init__(self, header: dict[str, Any]) -> None:
        if fault := records.check(header):
            raise MalformedError(fault)
        self.header = header
        self.clock = Clock(header)
        self.calls = 0
        self.threads: set[int] = set()
        self.last = self.clock.monotonic  # when the last call that is known of ended
        self._collector = packed.Collector()
        self._apis: dict[int, Api] = {}
        self._names: dict[int, str] = {}  # of kernels
        self._functions: dict[int, Function] = {}
        self._kernels: dict[int, Kernel] = {}

    def add(self, record: dict[str, Any]) -> None:
        """Takes a record in; of kinds that tell nothing of calls and kernels it takes no notice."""
        match record["kind"]:
            case "calls" | "call":
                self._collector.add(record)
                self.threads.add(record["thread"])
                if self._collector.full:
                    self._drain()
            case "api" | "function" if fault := records.check(record):
                raise MalformedError(fault)
            case "api":
                self._apis[record["id"]] = Api(record["type"], record["op"], record["name"])
            case "function":
                self._names[record["id"]] = record["name"]
            case "clock":
                self.clock.add(record)
            case "launches":
                for row in packed.read_rows(record, packed.COUNTS):
                    if row["count"]:
                        _new(self._kernels, int(row["function"]), Kernel).launches += int(row["count"])
            case "executions":
                rows = packed.read_rows(record, packed.EXECUTIONS)
                self._add_executions(rows[(rows["duration"] != 0) & (rows["function"] != 0)])

    def _add_executions(self, rows: Rows) -> None:
        for function, order in iter_groups(rows["function"]):
            kernel, of_it = _new(self._kernels, function, Kernel), take(rows, order)
            kernel.executions += len(of_it)
            kernel.time += float(self.clock.durations(of_it["duration"]).sum())

    def _drain(self) -> None:
        """Takes in the calls that were collected."""
        for threads, rows in self._collector.take():
            self.calls += len(rows)
            last = int(self.clock.times(rows["start"] + rows["duration"]).max())
            self.last = max(self.last, last)
            for api, order in iter_groups(rows["api"]):
                function = self._functions.get(api)
                if function is None:
                    if len(self._functions) >= MAX_FUNCTIONS:
                        raise MalformedError(f"calls: of over {MAX_FUNCTIONS} functions")
                    function = self._functions[api] = Function()
                function.add(take(rows, order), threads[order], self.clock, self.header["pid"])

    def totals(self) -> Totals:
        """What is known by now, by name."""
        self._drain()
        found = Totals()
        for id_, function in self._functions.items():
            api = self._apis.get(id_, Api("other", "unknown", f"#{id_}"))
            _new(found.functions, api, Function).merge(function)
        for id_, kernel in self._kernels.items():
            _new(found.kernels, self._names.get(id_, f"#{id_}"), Kernel).merge(kernel)
        return found
