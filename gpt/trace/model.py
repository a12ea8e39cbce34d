"""The trace model: what traces say, as arrays, for whoever asks a question of all of it at once.

    trace = gpt.trace.open("trace.mp")
    trace.launches[0].maps["block_sched"]["elapsed"].max()     # (blocks, warps, capacity), the bytes as they are
    calls = trace.calls("bytes")                               # start, duration, process, thread, api, result, bytes
    calls["bytes"][trace.chosen(calls, type="memcpy")].sum()

Times are ns since the first process began; gpt/trace/machines.py has how clocks are joined. Rows are kept as they are
in the trace, some 24 to 72 bytes a call, and buffers of probes as bytes of the trace or of the file beside it; arrays
are made when they are asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt import stream
from gpt.errors import MalformedError
from gpt.formats.paths import open_regular
from gpt.trace.buffers import Buffer, ProbedLaunch, Saved
from gpt.trace.follow import Follow
from gpt.trace.inputs import expand, read_input, side_folder
from gpt.trace.kinds import COSTS, DETAILS, LOADS, RANGES, RUNS, SAVES, SITES, TENSORS
from gpt.trace.loading import LAUNCH, find_firsts, find_loading
from gpt.trace.machines import LIMIT, identity
from gpt.trace.params import Argument
from gpt.trace.process import Api, Process, iter_processes
from gpt.trace.rows import ARGUMENTS, Collector, Rows, Threads
from gpt.trace.select import Selection

EVERYTHING = RUNS | LOADS | SAVES | COSTS | RANGES | SITES | TENSORS | DETAILS
CALL = [("start", "<i8"), ("duration", "<f8"), ("process", "<u4"), ("thread", "<u8"), ("api", "<u4"), ("result", "<i4")]
GPU = [("begin", "<i8"), ("duration", "<f8"), ("process", "<u4"), ("api", "<u4"), ("function", "<u4"),
       ("thread", "<u8"), ("call", "<i8"), ("stream", "<u8"), ("probed", "<u4"), ("device", "<u4")]  # fmt: skip
NO_DEVICE = (1 << 32) - 1  # of a row that does not say on which it ran
WIDTHS = {"u8": "<u1", "u16": "<u2", "u32": "<u4", "u64": "<u8"}

Batch = tuple[Threads, Rows]


class Maps(Mapping[str, npt.NDArray[np.void]]):
    """What the probes of a launch saved, by map: records of shape (blocks, units of a block, capacity).

    A unit is a thread, a warp or a block, as the map says; of a log the shape is (records,). Of the slots of a unit as
    many are used as `Launch.saved` counts. Looking at one raises MissingError if its bytes are lost.
    """

    def __init__(self, buffers: Mapping[str, Buffer]) -> None:
        self._buffers = buffers

    def __getitem__(self, name: str) -> npt.NDArray[np.void]:
        return self._buffers[name].read().slots

    def __iter__(self) -> Iterator[str]:
        return iter(self._buffers)

    def __len__(self) -> int:
        return len(self._buffers)


class Launch:
    """A launch with probes; `kernel` is its mangled name."""

    def __init__(self, model: TraceModel, process: Process, launch: ProbedLaunch, kernel: str) -> None:
        self.process = process
        self.kernel = kernel
        self._model = model
        self.launch = launch
        self.buffers: dict[str, Buffer] = {}
        self.maps = Maps(self.buffers)

    def __getattr__(self, name: str) -> Any:
        """`id`, `device`, `stream`, `thread`, `grid`, `block`, `blocks`, `threads`, `params` of the launch."""
        if name.startswith("_") or name == "launch":
            raise AttributeError(name)
        return getattr(self.launch, name)

    @property
    def start(self) -> int:
        """When it was called, in ns since the first process began."""
        return int(self._model.times(self.process, np.array([self.launch.start], np.uint64))[0])

    @property
    def arguments(self) -> list[Argument]:
        """What the kernel was given, as far as that is recorded."""
        return next((buffer.arguments for buffer in self.buffers.values()), [])

    def saved(self, name: str) -> Saved:
        """The counts and the records of a map. Raises what `Buffer.read` raises."""
        return self.buffers[name].read()


class TraceModel:
    """The processes of traces, what they called and what probes saved. `incomplete` says what is missing, in lines."""

    def __init__(self, types: frozenset[str] | None = None) -> None:
        """`types` are those of functions whose calls are kept; all by default."""
        self._types = types
        self.processes: list[Process] = []
        self.launches: list[Launch] = []
        self.incomplete: list[str] = []
        self._batches: dict[str, list[tuple[int, Batch]]] = {"calls": [], "gpu_times": []}
        self._numbers: dict[Process, int] = {}
        self._by_id: dict[tuple[int, int], Launch] = {}

    # Filling

    def take(self, process: Process) -> None:
        """Keeps what a process has collected since the last time."""
        number = self._numbers.get(process)
        if number is None:
            number = self._numbers[process] = len(self.processes)
            self.processes.append(process)
        collectors: dict[str, Collector] = {"calls": process.calls, "gpu_times": process.gpu_times}
        for kind, collector in collectors.items():
            for batch in collector.take():
                if kind == "calls" and self._types is not None:
                    batch = _choose_types(batch, process, self._types)
                self._batches[kind].append((number, batch))
        for buffer in process.probes.take():
            key = number, buffer.launch.id
            if key not in self._by_id:
                self._by_id[key] = Launch(self, process, buffer.launch, buffer.kernel)
                self.launches.append(self._by_id[key])
            self._by_id[key].buffers[buffer.map.name] = buffer

    def end(self, process: Process) -> None:
        """A process is over. Raises MalformedError if a buffer is of no launch."""
        process.probes.check_taken()

    # Asking

    def times(self, process: Process, stamps: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Time stamps of a process as ns since the first one began, chosen or not."""
        return process.clock.times(stamps) + process.machines.offset(process.header)

    def began(self, process: Process) -> int:
        """When a process began, in the same."""
        return process.clock.monotonic + process.machines.offset(process.header)

    def calls(self, *names: str) -> npt.NDArray[np.void]:
        """Every call, oldest first: the fields CALL, and those named of gpt/trace/rows.py, 0 where a row has none.

        `process` is a place in `processes`; a `duration` of 0 is that of a call that did not return. Two more may be
        named: `stamp`, the start as a time stamp, which `tensors` of the process are asked with; and `stack`, where the
        call came from, a number in `sites` of the process, 0 where that is not recorded.
        """
        known = {name: WIDTHS[width] for name, width in ARGUMENTS.items()} | {"stamp": "<u8", "stack": "<u8"}
        fields = [*CALL, *((name, known[name]) for name in names)]
        return self._gather("calls", fields, ("start",), self._by_thread)

    def gpu_times(self) -> npt.NDArray[np.void]:
        """What ran on the GPU, oldest first: the fields GPU. `thread` and `call` name the call, where that is known.

        `device` is NO_DEVICE where rows do not say it and the process has several. Kernels begin once they are loaded
        (gpt/trace/loading.py).
        """
        found = self._gather("gpu_times", GPU, ("begin", "call"), _default_device)
        for number in range(len(self.processes)):
            own = np.flatnonzero(found["process"] == number)
            firsts = own[find_firsts(found[own])]
            if len(firsts):
                cut = np.rint(find_loading(found[firsts], self._launches(number))[0])
                found["begin"][firsts] += cut.astype(np.int64)
                found["duration"][firsts] -= cut
        return found[np.argsort(found["begin"], kind="stable")]

    def _launches(self, process: int) -> npt.NDArray[np.void]:
        """The launch calls of a process, as find_loading takes them."""
        parts = []
        for number, (_, rows) in self._batches["calls"]:
            if number == process and "function" in (rows.dtype.names or ()):
                launched = rows[rows["function"] != 0]
                part = np.zeros(len(launched), LAUNCH)
                part["function"] = launched["function"]
                part["start"] = self.times(self.processes[number], launched["start"])
                part["duration"] = self.processes[number].clock.durations(launched["duration"])
                parts.append(part)
        return np.concatenate(parts) if parts else np.zeros(0, LAUNCH)

    def _by_thread(self, found: npt.NDArray[np.void], threads: Threads, rows: Rows, process: Process) -> None:
        found["thread"] = threads
        if "stamp" in (found.dtype.names or ()):
            found["stamp"] = rows["start"]
        if "stack" in (found.dtype.names or ()):
            found["stack"] = process.sites.find(threads, rows["start"])

    def _gather(self, kind: str, fields: Any, stamps: tuple[str, ...], more: Any) -> npt.NDArray[np.void]:
        batches = self._batches[kind]
        found = np.zeros(sum(len(rows) for _, (_, rows) in batches), fields)
        at = 0
        for number, (threads, rows) in batches:
            part = found[at : at + len(rows)]
            at += len(rows)
            process = self.processes[number]
            part["process"] = number
            if more:
                more(part, threads, rows, process)
            for name in set(rows.dtype.names or ()) & set(found.dtype.names or ()):
                if name in stamps:
                    part[name] = self.times(process, rows[name])
                elif name == "duration":
                    part[name] = np.minimum(process.clock.durations(rows[name]), LIMIT)
                else:
                    part[name] = rows[name]
        return found[np.argsort(found[stamps[0]], kind="stable")]

    def chosen(self, calls: npt.NDArray[np.void], **wanted: str) -> npt.NDArray[np.bool_]:
        """Which calls are of functions whose `type`, `op` or `name` is the one that is wanted."""
        mask = np.zeros(len(calls), bool)
        for number, process in enumerate(self.processes):
            good = [id_ for id_, api in process.apis.items() if all(getattr(api, k) == v for k, v in wanted.items())]
            mask |= (calls["process"] == number) & np.isin(calls["api"], good)
        return mask

    def api(self, call: Any) -> Api:
        """The function of a call."""
        return self.processes[int(call["process"])].api(int(call["api"]))

    def kernel(self, row: Any) -> str:
        """The mangled name of the kernel of a launch, of calls or of GPU times."""
        number = int(row["function"])
        return self.processes[int(row["process"])].kernels().get(number, f"#{number}")


def _choose_types(batch: Batch, process: Process, types: frozenset[str]) -> Batch:
    """The calls of functions of these types, and those of which that is not known yet."""
    threads, rows = batch
    known = process.apis
    ids = [id_ for id_ in np.unique(rows["api"]).tolist() if id_ not in known or known[id_].type in types]
    chosen = np.flatnonzero(np.isin(rows["api"], ids))
    return threads[chosen], rows[chosen]


def _default_device(found: npt.NDArray[np.void], _: Threads, rows: Rows, process: Process) -> None:
    if "device" not in (rows.dtype.names or ()):
        found["device"] = min(process.cards, default=0) if len(process.cards) < 2 else NO_DEVICE


def read(paths: list[Path], selection: Selection | None = None) -> TraceModel:
    """The model of some traces and of those that they name. Raises GptError if there is nothing to be read."""

    def records(path: Path | None) -> Iterator[dict[str, Any]]:
        assert path
        with open_regular(path) as file:
            yield from stream.read_records(file, str(path))

    model, selection = TraceModel(), selection or Selection()
    seen: dict[Any, str] = {}
    followed = Follow([*expand(paths)], lambda path: read_input(path, records))
    for trace in followed:
        try:
            found = iter_processes(iter(trace), EVERYTHING, side_folder(trace.path), selection)
            for process in (one for one in found if one.started):
                if seen.setdefault(identity(process.header), trace.name) != trace.name:
                    continue  # a copy of a trace that was read
                model.take(process)
                model.end(process)
                model.incomplete += process.missing
                if process.status is None:
                    model.incomplete.append(f"no end of process {process.pid}: killed, or still running")
        except MalformedError as error:
            model.incomplete.append(str(error))
        model.incomplete += [f"{trace.name}: {fact}" for fact in trace.missing]
    model.incomplete += [f"{child}: the trace of a child is absent" for _, child in followed.absent]
    if not model.processes:
        raise MalformedError(model.incomplete[0] if model.incomplete else "no process", ", ".join(map(str, paths)))
    return model
