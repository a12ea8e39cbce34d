"""The trace model: traces as arrays, for analyses that need everything at once.

    trace = gpt.trace.open("trace.mp")
    trace.launches[0].maps["warp_sched"]["end"].max()          # (blocks, warps, capacity), the bytes as they are
    calls = trace.calls("bytes")                               # start, duration, process, thread, api, result, bytes
    calls["bytes"][trace.chosen(calls, type="memcpy")].sum()

Times are in ns since the first process began; gpt/trace/machines.py explains how clocks are aligned. Rows are stored as
they are in the trace (gpt/trace/calls_store.py), and arrays are made when they're needed: all at once or, for traces of
any length, in chunks, oldest first. The buffers of probes are bytes in the trace, or in the file next to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError
from gpt.formats.paths import open_regular
from gpt.stream import wire
from gpt.trace.buffers import Buffer, ProbedLaunch, SavedBuffer
from gpt.trace.calls_store import GPU, Kept, call_fields, times_of
from gpt.trace.follow import Follow
from gpt.trace.inputs import expand, read_input, side_folder
from gpt.trace.kinds import COSTS, DETAILS, LOADS, NODES, RANGES, RUNS, SAMPLES, SAVES, SITES, TENSORS
from gpt.trace.machines import NO_END, identity
from gpt.trace.params import ArgumentValue
from gpt.trace.process import Api, Process, iter_processes
from gpt.trace.ranges import KeptRanges
from gpt.trace.select import Selection
from gpt.trace.unrecorded import Unrecorded

EVERYTHING = RUNS | LOADS | SAVES | COSTS | NODES | RANGES | SITES | SAMPLES | TENSORS | DETAILS


class Maps(Mapping[str, npt.NDArray[np.void]]):
    """The records that the probes in a launch saved, by map. Their shape is (blocks, units per block, capacity).

    A unit is a thread, a warp or a block, depending on the map. The records of a log have the shape (records,).
    `Launch.saved` returns how many slots each unit used. Looking up a map raises MissingError if its bytes are lost.
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
    """A launch with probes. `kernel` is its mangled name."""

    def __init__(self, model: TraceModel, process: Process, launch: ProbedLaunch, kernel: str) -> None:
        self.process = process
        self.kernel = kernel
        self._model = model
        self.launch = launch
        self.buffers: dict[str, Buffer] = {}
        self.maps = Maps(self.buffers)

    def __getattr__(self, name: str) -> Any:
        """Look up `id`, `device`, `stream`, `thread`, `grid`, `block`, `blocks`, `threads` or `params`."""
        if name.startswith("_") or name == "launch":
            raise AttributeError(name)
        return getattr(self.launch, name)

    def move(self, model: TraceModel) -> None:
        """Make this a launch of another model."""
        self._model = model

    @property
    def start(self) -> int:
        """When the call began, in ns since the first process began."""
        return int(self._model.times(self.process, np.array([self.launch.start], np.uint64))[0])

    @property
    def arguments(self) -> list[ArgumentValue]:
        """The arguments of the kernel, if they were recorded."""
        return next((buffer.arguments for buffer in self.buffers.values()), [])

    def saved(self, name: str) -> SavedBuffer:
        """Return the counts and the records of a map. Raises the same errors as `Buffer.read`."""
        return self.buffers[name].read()


class TraceModel:
    """The processes in some traces, their calls, and the data that probes saved. `incomplete` has a line for everything
    that's missing.
    """

    def __init__(self, types: frozenset[str] | None = None, drains: bool = False) -> None:
        """Keep calls of functions of these `types`, or by default all calls.

        If the model `drains` processes, it also stores their NVTX ranges, for `iter_ranges`.
        """
        self.processes: list[Process] = []
        self.launches: list[Launch] = []
        self.incomplete: list[str] = []
        self._kept = Kept(types)
        self._ranges: list[KeptRanges] | None = [] if drains else None
        self._numbers: dict[Process, int] = {}
        self._counted = Counter[int]()
        self._by_id: dict[tuple[int, int], Launch] = {}

    # Filling

    def take(self, process: Process) -> None:
        """Store what a process has collected since the last call. Raises OutputError."""
        number = self._numbers.get(process)
        if number is None:
            number = self._numbers[process] = len(self.processes)
            self.processes.append(process)
            if self._ranges is not None:
                self._ranges.append(KeptRanges())
        self._kept.take(number, process)
        for _, rows in process.counts.take():
            self._counted[number] += int(rows["count"].sum())
        if self._ranges is not None:
            self._ranges[number].add(process.take_ranges())
            self._ranges[number].add(process.take_other_ranges(), chosen=False)
        for buffer in process.probes.take():
            key = number, buffer.launch.id
            if key not in self._by_id:
                self._by_id[key] = Launch(self, process, buffer.launch, buffer.kernel)
                self.launches.append(self._by_id[key])
            self._by_id[key].buffers[buffer.map.name] = buffer

    def end(self, process: Process) -> None:
        """End a process. Raises MalformedError if a buffer belongs to no launch."""
        process.probes.check_taken()

    def merge(self, other: TraceModel) -> None:
        """Add the processes of another model, whose times must be on the same clock."""
        first = len(self.processes)
        self._kept.merge(other._kept, first)
        self.processes += other.processes
        for number, process in enumerate(self.processes):
            self._numbers[process] = number
            self.processes[0].machines.add(process.header)
            process.machines = self.processes[0].machines
        if self._ranges is not None:
            self._ranges += other._ranges or []
        self._counted.update({first + number: count for number, count in other._counted.items()})
        for launch in other.launches:
            launch.move(self)
        self.launches += other.launches
        self._by_id |= {(first + number, id_): launch for (number, id_), launch in other._by_id.items()}

    # Asking

    def times(self, process: Process, stamps: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Convert time stamps of a process to ns since the first process began, even if that one isn't selected."""
        return times_of(process, stamps)

    def began(self, process: Process) -> int:
        """Return when a process began, in ns since the first process began."""
        return process.clock.monotonic + process.machines.offset(process.header)

    def last(self, number: int) -> int:
        """Return when the last call of a process ended, whatever its type, in ns since the first process began.

        Without calls, return when the process began.
        """
        last = self._kept.last(number)
        return self.began(self.processes[number]) if last is None else last

    def called(self, number: int) -> bool:
        """Return whether the trace has any calls of a process."""
        return self._kept.last(number) is not None

    def count(self) -> int:
        """Return the number of calls and GPU times."""
        return self._kept.count_calls() + sum(self.gpus().values())

    def counted(self, number: int) -> int:
        """Return how many calls of a process were only counted, so that their times aren't known."""
        return self._counted[number]

    def unrecorded(self, process: Process) -> Unrecorded:
        """Return when recording of a process was off, in ns since the first process began."""
        return process.unrecorded.shift(process.machines.offset(process.header))

    def calls(self, *names: str) -> npt.NDArray[np.void]:
        """Return all calls, oldest first, with the fields of CALL and these fields of gpt/trace/rows.py, which are 0
        where they're missing.

        `process` is an index into `processes`. If a call didn't return, its `duration` is 0. Three more fields can be
        named: `stamp`, the start as a time stamp, which the `tensors` of the process expect; and `stack` and `python`,
        which say where the call came from, as a number for the `sites` of the process, or 0 if that wasn't recorded.
        """
        return self._gather(self.iter_calls(*names), self._kept.count_calls(), call_fields(names))

    def iter_calls(self, *names: str, process: int | None = None) -> Iterator[npt.NDArray[np.void]]:
        """Yield the same rows in chunks, for all processes or one. Calls that begin in the same ns share a chunk."""
        return self._kept.iter_calls(names, process)

    def gpu_times(self) -> npt.NDArray[np.void]:
        """Return all work on GPUs, oldest first, with the fields of GPU. `thread` and `call` identify the call, if it's
        known.

        `device` is NO_DEVICE if rows don't name it and the process has several. The time of a kernel begins after it
        has been loaded (gpt/trace/loading.py).
        """
        places = self.gpus()
        return self._gather(self.iter_gpu_times(places), sum(places.values()), GPU)

    def gpus(self) -> dict[tuple[int, int], int]:
        """Return the processes that have GPU times, with their devices, in order, and the number of GPU times for
        each.
        """
        return self._kept.gpus()

    def iter_gpu_times(self, places: Collection[tuple[int, int]]) -> Iterator[npt.NDArray[np.void]]:
        """Yield GPU times in chunks, for these processes and devices. Rows that begin in the same ns share a chunk."""
        return self._kept.iter_gpu_times(places)

    def loading(self, places: Collection[tuple[int, int]]) -> tuple[int, int]:
        """Return how many kernels were loaded by a first launch in these places, and the ns. Only valid after
        `iter_gpu_times`.
        """
        found = [self._kept.loading.get(place, (0, 0)) for place in places]
        return sum(count for count, _ in found), sum(time for _, time in found)

    def iter_ranges(self, process: int, last: int, every: bool = False) -> Iterator[npt.NDArray[np.void]]:
        """Yield the NVTX ranges of a process, like KeptRanges.iter_ranges. `last` is when its last call ended."""
        assert self._ranges is not None
        return self._ranges[process].iter_ranges(self.processes[process], last, every)

    def ranges(self, process: int) -> KeptRanges:
        """Return the ranges of a process. Only possible if the model drains processes."""
        assert self._ranges is not None
        return self._ranges[process]

    @staticmethod
    def _gather(chunks: Iterator[npt.NDArray[np.void]], count: int, fields: Any) -> npt.NDArray[np.void]:
        found, at = np.zeros(count, fields), 0
        for chunk in chunks:
            found[at : at + len(chunk)] = chunk
            at += len(chunk)
        return found

    def chosen(self, calls: npt.NDArray[np.void], **wanted: str) -> npt.NDArray[np.bool_]:
        """Return a mask of the calls whose function has this `type`, `op` or `name`."""
        mask = np.zeros(len(calls), bool)
        for number, process in enumerate(self.processes):
            good = [id_ for id_, api in process.apis.items() if all(getattr(api, k) == v for k, v in wanted.items())]
            mask |= (calls["process"] == number) & np.isin(calls["api"], good)
        return mask

    def api(self, call: Any) -> Api:
        """Return the function of a call."""
        return self.processes[int(call["process"])].api(int(call["api"]))

    def kernel(self, row: Any) -> str:
        """Return the mangled name of the kernel in a row of calls or GPU times."""
        number = int(row["function"])
        return self.processes[int(row["process"])].kernels().get(number, f"#{number}")


def read(paths: list[Path], selection: Selection | None = None) -> TraceModel:
    """Read traces, and the traces of the children that they name. Raises GptError if there's nothing to read."""

    def records(path: Path | None) -> Iterator[dict[str, Any]]:
        assert path
        with open_regular(path) as file:
            yield from wire.read_records(file, str(path))

    model, selection = TraceModel(), selection or Selection()
    seen: dict[Any, str] = {}
    followed = Follow([*expand(paths)], lambda path: read_input(path, records))
    for trace in followed:
        try:
            found = iter_processes(iter(trace), EVERYTHING, side_folder(trace.path), selection)
            for process in (one for one in found if one.started):
                if seen.setdefault(identity(process.header), trace.name) != trace.name:
                    continue  # a copy of a trace that has already been read
                model.take(process)
                model.end(process)
                model.incomplete += process.missing
                if process.status is None:
                    model.incomplete.append(f"no end of process {process.pid}: {NO_END}")
        except MalformedError as error:
            model.incomplete.append(str(error))
        model.incomplete += [f"{trace.name}: {fact}" for fact in trace.missing]
    model.incomplete += [f"{child}: the trace of a child is absent" for _, child in followed.absent]
    if not model.processes:
        raise MalformedError(model.incomplete[0] if model.incomplete else "no process", ", ".join(map(str, paths)))
    return model
