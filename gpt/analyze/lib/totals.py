"""Sum up calls by function (their number, duration and bytes), and the launches of kernels by name.

Calls arrive in batches, as arrays, and are added to one histogram per function (gpt/trace/durations.py), so memory
doesn't grow with the length of a trace.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sized
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.coverage import Coverage, make_coverage
from gpt.analyze.lib.iterations import BusyTimes, CallTimes, LaunchSequence
from gpt.base.errors import MalformedError
from gpt.trace import rows
from gpt.trace.durations import Durations
from gpt.trace.graphs import GRAPH_LAUNCH
from gpt.trace.loading import FAR, TIMED, FirstLaunches, find_loading
from gpt.trace.machines import LIMIT
from gpt.trace.process import CAPTURED, Api, Process
from gpt.trace.replays import Replays, sum_replays

if TYPE_CHECKING:
    from gpt.analyze.lib.slowest import SlowestCalls

MAX_FUNCTIONS = 8192  # at most 64 KiB each; the driver has about 700
FEW = 3  # minimum number of launches; if one took FAR times as long as the others, it loaded code
NOT_FAILED = (0, 4, 600)  # CUDA_SUCCESS, AT_EXIT, and CUDA_ERROR_NOT_READY, which queries return
ROUNDING = 4  # ns by which the end of a call may be off if it's converted from ticks
AT_EXIT = 4  # CUDA_ERROR_DEINITIALIZED: the driver has shut down because the program is exiting


class SlowestCall(NamedTuple):
    """A call: its duration in ns, when it began in ns since the epoch, and its process and thread."""

    duration: float
    start: int
    pid: int
    thread: int


class Calls:
    """A batch of calls of a process, with their threads and durations."""

    def __init__(self, process: Process, threads: rows.Threads, found: rows.Rows) -> None:
        self.rows = found
        self.durations = process.clock.durations(found["duration"])
        self.some_open = not self.durations.all()
        self.some_failed = bool(found["result"].max() or found["result"].min())
        self._process, self._threads = process, threads

    def describe(self, at: int, duration: float) -> SlowestCall:
        """Return the call with this index."""
        clock = self._process.clock
        start = clock.realtime(int(clock.times(self.rows["start"][at : at + 1])[0]))
        return SlowestCall(duration, start, self._process.pid, int(self._threads[at]))


class FunctionTotals:
    """The calls of one function: `calls` of them were recorded, and `counted` were only counted."""

    def __init__(self) -> None:
        self.calls = self.counted = self.failed = self.at_exit = 0
        self.durations = Durations()  # durations of calls that returned
        self.slowest: SlowestCall | None = None
        self.gpu = Durations()  # times of its work on the GPU
        self.moved = Counter[str]()  # successful calls with a number of bytes: `calls`, `bytes`, `total` ns

    def add(self, calls: Calls, order: npt.NDArray[np.intp]) -> None:
        """Add those calls of a batch that have these indexes."""
        self.calls += len(order)
        durations = calls.durations[order]
        if calls.some_open:
            done = durations != 0
            order, durations = order[done], durations[done]
        if not len(order):
            return
        self.durations.add(durations)
        at = int(durations.argmax())
        if self.slowest is None or durations[at] > self.slowest.duration:
            self.slowest = calls.describe(int(order[at]), float(durations[at]))
        good: slice | npt.NDArray[np.bool_] = slice(None)
        if calls.some_failed:
            results = calls.rows["result"][order]
            self.failed += int(np.isin(results, NOT_FAILED, invert=True).sum())
            self.at_exit += int((results == AT_EXIT).sum())
            good = results == 0
        if "bytes" in (calls.rows.dtype.names or ()):
            order, durations = order[good], durations[good]
            size = calls.rows["bytes"][order].sum(dtype=np.float64)
            self.moved.update(calls=len(order), bytes=int(size), total=int(durations.sum()))

    def merge(self, other: FunctionTotals) -> None:
        """Merge another one."""
        self.calls += other.calls
        self.counted += other.counted
        self.gpu.merge(other.gpu)
        self.failed += other.failed
        self.at_exit += other.at_exit
        self.durations.merge(other.durations)
        if other.slowest and (self.slowest is None or other.slowest > self.slowest):
            self.slowest = other.slowest
        self.moved.update(other.moved)


class KernelTotals:
    """The launches of one kernel."""

    def __init__(self) -> None:
        self.launches = self.captured = self.loads = 0
        self.loading = 0.0  # ns of the `loads` launches that took far longer than other launches of the same kernel
        self.loaded = 0.0  # ns that are known to have been spent loading code; not included in `gpu`
        self.unsure = 0.0  # ns in `gpu` that may have been spent loading code, of kernels that were launched only once
        self.gpu = Durations()  # times of its work on the GPU

    def find_loading(self, known: bool) -> None:
        """Set `loads` for one process: if one launch took far longer than the others, it loaded code, unless that time
        is already `known`.
        """
        gpu = self.gpu
        far = gpu.count >= FEW and gpu.largest > FAR * (gpu.total - gpu.largest) / (gpu.count - 1)
        self.loads, self.loading = (1, gpu.largest) if far and not known else (0, 0.0)

    def merge(self, other: KernelTotals) -> None:
        """Merge another one."""
        self.launches += other.launches
        self.captured += other.captured
        self.loads += other.loads
        self.loading += other.loading
        self.loaded += other.loaded
        self.unsure += other.unsure
        self.gpu.merge(other.gpu)


class Totals:
    """The functions and kernels of several processes, by name."""

    def __init__(self) -> None:
        # The symbol by which the program looked the function up doesn't matter.
        self.functions = defaultdict[Api, FunctionTotals](FunctionTotals)
        self.kernels = defaultdict[str, KernelTotals](KernelTotals)
        self.coverage = Coverage()
        self.replays = Replays()

    def merge(self, other: Totals) -> None:
        """Merge another one."""
        self.coverage.merge(other.coverage)
        self.replays.merge(other.replays)
        for api, function in other.functions.items():
            self.functions[api].merge(function)
        _check_number(self.functions)
        for name, kernel in other.kernels.items():
            self.kernels[name].merge(kernel)

    def types(self) -> dict[str, FunctionTotals]:
        """Return the sums of the functions of each type."""
        found = defaultdict[str, FunctionTotals](FunctionTotals)
        for api, function in self.functions.items():
            found[api.type].merge(function)
        return found


class ProcessTotals:
    """The sums of one process, by the ids of functions, whose names may arrive later.

    If there's a `slowest`, it gets the calls, too.
    """

    def __init__(self, process: Process, slowest: SlowestCalls | None = None) -> None:
        self.process, self.slowest = process, slowest
        self.launches, self.call_times, self.busy = LaunchSequence(process), CallTimes(), BusyTimes()
        self.calls = self.counted = 0  # all calls, and calls that were only counted
        self._last = process.clock.monotonic  # end of the last known call
        self.first_stamp, self.last_stamp = 1 << 64, 0  # time stamps of calls
        self.in_threads = defaultdict[int, float](float)  # ns that each thread spent in calls
        self._functions: dict[int, FunctionTotals] = {}
        self._kernels = defaultdict[int, KernelTotals](KernelTotals)
        self._captures = Counter[tuple[int, int]]()  # launches that were captured or may have been, by api and function
        self._gpu_time = [0.0, 0.0]  # ns of kernels without and with probes
        self._unprobed_time = defaultdict[int, float](float)  # ns without probes, by function
        self._firsts = FirstLaunches()
        self._loaded: rows.Rows | None = None  # what find_loaded has found since the last row was added

    @property
    def last(self) -> int:
        """Return the time in ns of CLOCK_MONOTONIC when the last call ended or, if that was later, when recording was
        last turned on or off.
        """
        return self.process.find_end(self._last)

    def take(self) -> None:
        """Add the rows that the process has collected."""
        process, self._loaded = self.process, None
        for threads, found in process.calls.take():
            self._add_calls(threads, found)
        for _, found in process.gpu_times.take():
            self.busy.add(found)
            self._firsts.add(found)
            took = process.clock.durations(found["duration"])
            for id_, order in rows.iter_groups(found["api"]):
                self._function(id_).gpu.add(took[order])
            probed = found["probed"] != 0 if "probed" in (found.dtype.names or ()) else None
            for id_, order in rows.iter_groups(found["function"]):
                if id_:  # 0 isn't a kernel
                    self._kernels[id_].gpu.add(own := took[order])
                    if probed is not None:
                        with_probes, total = float(own @ probed[order]), float(own.sum())
                        self._gpu_time[0] += total - with_probes
                        self._gpu_time[1] += with_probes
                        self._unprobed_time[id_] += total - with_probes
        for id_, count in process.take_launches().items():
            self._kernels[id_].launches += count
        for _, found in process.counts.take():
            for id_, count in found[["api", "count"]].tolist():
                self._function(id_).counted += count
                self.counted += count
                self.calls += count

    def _add_calls(self, threads: rows.Threads, found: rows.Rows) -> None:
        process, names = self.process, found.dtype.names or ()
        if self.slowest:
            self.slowest.add(threads, found)
        starts, apis = np.ascontiguousarray(found["start"]), np.ascontiguousarray(found["api"])
        self.call_times.add(starts, apis)
        if "function" in names:
            known = process.apis
            unsure = [id_ for id_ in rows.find_values(apis) if id_ not in known or known[id_].type == CAPTURED]
            self.launches.add_kernels(threads, found, unsure)
            if unsure:
                chosen = np.isin(apis, unsure) & (found["function"] != 0)
                self._captures.update(found[["api", "function"]][chosen].tolist())
        calls = Calls(process, threads, found)
        self._add_times(calls, threads, starts, apis)
        for id_, order in rows.iter_groups(apis):
            self._function(id_).add(calls, order)
            if "object" in names and process.apis.get(id_, GRAPH_LAUNCH)[:2] == GRAPH_LAUNCH:
                own = rows.take(found, order)
                process.graphs.add_calls(id_, own)  # its name may arrive later
                self.launches.add_graphs(id_, threads[order], own)
            self.calls += 0 if process.is_ioctl(id_) else len(order)

    def _add_times(
        self, calls: Calls, threads: rows.Threads, starts: npt.NDArray[np.uint64], apis: npt.NDArray[np.uint32]
    ) -> None:
        """Add the time that threads spent in calls, and update when the first call began and the last one ended."""
        clock, took = self.process.clock, calls.durations
        ends = starts + calls.rows["duration"]
        first, last = int(starts.min()), int(ends.max())
        self.first_stamp, self.last_stamp = min(self.first_stamp, first), max(self.last_stamp, last)
        if took.max() >= LIMIT:
            took, late = np.minimum(took, LIMIT), np.arange(len(took))
        else:  # only calls whose end is within the error of rounding can be the last
            late = np.flatnonzero(ends >= max(0, last - round(ROUNDING / clock.ns_per_tick)))
        stops = clock.times(starts[late]) + took[late].astype(np.int64)
        self._last = max(self._last, min(int(stops.max()), LIMIT))
        if self.process.is_ioctl(int(apis.max())):  # ioctls are part of calls
            took = np.where(apis > self.process.last_api, 0, took)
        begins = np.append(0, np.flatnonzero(threads[1:] != threads[:-1]) + 1)  # rows of a thread come in runs
        for thread, time in zip(threads[begins].tolist(), np.add.reduceat(took, begins).tolist(), strict=True):
            self.in_threads[thread] += time

    def _function(self, id_: int) -> FunctionTotals:
        function = self._functions.get(id_)
        if function is None:
            function = self._functions[id_] = FunctionTotals()
            _check_number(self._functions)
        return function

    def launched(self) -> Collection[int]:
        """Return the ids of the functions that were launched so far."""
        return self._kernels.keys()

    def find_loaded(self) -> rows.Rows:
        """Return the first launches in which kernels were loaded, as rows of GPU times. `took` is their duration in ns,
        `cut` the part that was spent loading.

        They include launches that may have loaded code; `unsure` is the part that would have been spent on that.
        """
        if self._loaded is None:
            self._loaded = self._find_loaded()
        return self._loaded

    def _find_loaded(self) -> rows.Rows:
        firsts, durations = self._firsts.rows, self.process.clock.durations
        found = np.zeros(len(firsts), [*TIMED, ("took", "<f8"), ("cut", "<i8"), ("unsure", "<i8")])
        for name in firsts.dtype.names or ():
            found[name] = firsts[name]
        found["took"] = durations(firsts["duration"])
        loading = find_loading(firsts, [self.launches.calls_of_kernels()] if len(firsts) else [])
        for name, ticks in zip(("cut", "unsure"), loading, strict=True):
            took, total = durations(np.minimum(np.rint(ticks), LIMIT).astype(np.uint64)), found["took"]
            found[name] = np.minimum(took, np.minimum(total, LIMIT))
        cut, unsure = found["cut"], found["unsure"]
        some: rows.Rows = found[cut + unsure > 0]
        return some

    def named(self) -> Totals:
        """Return the sums so far, by name."""
        found, process, kernels, loaded = Totals(), self.process, self.process.kernels(), self.find_loaded()
        for id_, function in self._functions.items():
            found.functions[process.api(id_)._replace(symbol="")].merge(function)
        for id_, kernel in self._kernels.items():
            kernel.find_loading(id_ in loaded["function"])
            found.kernels[kernels.get(id_, f"#{id_}")].merge(kernel)
        gpu_time, unprobed_time = self._take_out(found, loaded)
        graphs = {id_ for id_, api in process.apis.items() if api[:2] == GRAPH_LAUNCH}
        for id_, launches in process.graphs.count_launches(graphs).items():
            found.kernels[kernels.get(id_, f"#{id_}")].launches += launches
        found.replays = sum_replays(process.graphs.iter_replays(graphs), process.graphs)
        if not (process.is_narrow or any(what.type == "graph" and one.calls for what, one in found.functions.items())):
            found.replays.unseen = (
                len({handle for handle, _ in process.graphs.iter_all()}) if process.is_chosen("") else 0
            )
        for (api, id_), count in self._captures.items():
            if process.api(api).type == CAPTURED:
                found.kernels[kernels.get(id_, f"#{id_}")].captured += count
        for what, function in found.functions.items():
            if what.type == CAPTURED and function.calls:
                found.replays.captured[what.op] += function.calls
        found.coverage = make_coverage(process)
        if found.coverage.probed or found.coverage.unprobed:
            found.coverage.add_times(gpu_time, unprobed_time)
        return found

    def _take_out(self, totals: Totals, loaded: rows.Rows) -> tuple[list[float], dict[str, float]]:
        """Subtract the time spent loading from the times of kernels. Return the ns of kernels without and with probes,
        and the ns without probes by kernel.
        """
        left, kernels, unprobed = [*self._gpu_time], self.process.kernels(), defaultdict[str, float](float)
        for id_, time in self._unprobed_time.items():
            unprobed[kernels.get(id_, f"#{id_}")] += time
        names = ["function", "api", "probed", "took", "cut", "unsure"]
        for function, api, probed, took, cut, unsure in loaded[names].tolist():
            kernel = totals.kernels[kernels.get(function, f"#{function}")]
            kernel.loaded += cut
            kernel.unsure += unsure
            for gpu in (kernel.gpu, totals.functions[self.process.api(api)._replace(symbol="")].gpu):
                gpu.replace(took, took - cut)
            left[probed != 0] -= cut
            if not probed:
                unprobed[kernels.get(function, f"#{function}")] -= cut
        return left, unprobed


def _check_number(functions: Sized) -> None:
    if len(functions) > MAX_FUNCTIONS:
        raise MalformedError(f"calls: of over {MAX_FUNCTIONS} functions")
