"""Find the times when a GPU was idle, the work before and after each of them, and the call that launched the work after
it.

The work of all processes on a GPU counts, copies included, and work that overlaps counts once. Only the time from a
GPU's first work to its last is covered, because nothing is known about the rest. If several processes use the GPU one
after the other, this applies to each of them, because no trace says what happened between two runs.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.sequence import FILL, IN, LAUNCH, OUT, Acts
from gpt.trace.calls_store import NO_DEVICE
from gpt.trace.spill import Array, Aside, Sorted
from gpt.trace.unrecorded import Unrecorded, unite

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from gpt.trace.model import TraceModel

# An idle time of a GPU. `after` is the work before it. `function`, `api` and `took` describe the work after it, which
# the `call` of a `thread` launched.
IDLE = [("begin", "<i8"), ("end", "<i8"), ("gpu", "<u4"), ("thread", "<u8"), ("call", "<i8"), ("off", "<i8"),
        ("process", "<u4"), ("after_process", "<u4"), ("after_function", "<u4"), ("after_api", "<u4"),
        ("function", "<u4"), ("api", "<u4"), ("took", "<f8")]  # fmt: skip


class Use(NamedTuple):
    """The use of a GPU between its first and last work, in ns: for kernels or graphs, only for copies, or not
    at all.
    """

    key: Hashable  # identifies the GPU across processes
    processes: list[int]
    whole: int
    kernels: int
    copies: int
    idle: int
    times: int  # number of idle periods that were recorded completely
    cut: int  # number of idle periods in which recording was off for a while
    host_copies: float  # share of copies to or from the device in the time of all copies and memsets
    memsets: float  # share of memsets in that time
    first: int
    last: int
    off: int  # ns that aren't known, because recording was off or no process was using the GPU
    work: dict[int, float]  # ns of work by process
    turns: int  # how often a process that had had work before followed another one


class _Gpu:
    """Follows the work on one GPU, and finds the times when there's none."""

    def __init__(self, unrecorded: Unrecorded) -> None:
        self.unrecorded = unrecorded
        self.first: int | None = None
        self.reach = self.kernel_reach = 0
        self.kernels = self.idle = self.count = self.cut = self.off = 0
        self.ender: tuple[int, int, int] = (0, 0, 0)  # process, function and call of the last work to end
        self.work, self.turns = Counter[int](), 0
        self._last: int | None = None  # the process of the last work to begin

    def add(self, rows: Array, is_kernel: npt.NDArray[np.bool_], number: int) -> Array:
        """Return the idle times that ended at these rows, which must be later than the rows added before. `number` is
        the number of the GPU.
        """
        begins = rows["begin"]
        ends = begins + rows["duration"].astype(np.int64)
        self._add_processes(rows)
        if self.first is None:
            self.first = self.reach = self.kernel_reach = int(begins[0])
        reach = np.maximum.accumulate(np.append(self.reach, ends))
        last = np.maximum.accumulate(np.where(ends >= reach[1:], np.arange(len(rows)), -1))
        found = self._find(rows, reach, last, number)
        self.idle += int((found["end"] - found["begin"] - found["off"]).sum())
        cut = int(np.count_nonzero(found["off"]))
        self.count, self.cut = self.count + len(found) - cut, self.cut + cut
        self.off += int(found["off"].sum())
        if last[-1] >= 0:
            self.ender = tuple(rows[["process", "function", "api"]][last[-1]].tolist())
        self.reach = int(reach[-1])
        own, end = begins[is_kernel], ends[is_kernel]
        covered = np.maximum.accumulate(np.append(self.kernel_reach, end))
        self.kernels += int(np.maximum(end - np.maximum(own, covered[:-1]), 0).sum())
        self.kernel_reach = int(covered[-1])
        return found

    def _add_processes(self, rows: Array) -> None:
        processes = rows["process"]
        changes = int(np.count_nonzero(processes[1:] != processes[:-1]))
        changes += self._last != int(processes[0])
        begun = len(self.work)
        _add_times(self.work, processes, rows["duration"])
        self.turns += changes - (len(self.work) - begun)  # a process's first work isn't a turn
        self._last = int(processes[-1])

    def _find(self, rows: Array, reach: Array, last: Array, number: int) -> Array:
        at = np.flatnonzero(rows["begin"] > reach[:-1])
        off = self.unrecorded.within(reach[at], rows["begin"][at])
        known = rows["begin"][at] - reach[at] > off
        self.off += int(off[~known].sum())
        at, off = at[known], off[known]
        found = np.zeros(len(at), IDLE)
        found["begin"], found["end"], found["off"], found["gpu"] = reach[at], rows["begin"][at], off, number
        for name in ("process", "thread", "call", "function", "api"):
            found[name] = rows[name][at]
        found["took"] = rows["duration"][at]
        before = np.where(at > 0, last[at - 1], -1)
        enders = rows[["process", "function", "api"]][before]
        for place, name in enumerate(("process", "function", "api")):
            found[f"after_{name}"] = np.where(before >= 0, enders[name], self.ender[place])
        return found


def find_idle(
    trace: TraceModel, since: Mapping[int, int] | None = None
) -> tuple[list[Use], list[Sorted], list[Counter[int]]]:
    """Find the idle times of all GPUs. Return three things: how each GPU was used; for each process, the idle times
    that its work ended, as rows of IDLE sorted by begin; and for each process, its ns of GPU work by function.

    With `since`, only these processes count, and only their work that begins at that time or later.
    """
    places: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for number, device in trace.gpus():
        if since is not None and number not in since:
            continue
        key = trace.processes[number].gpu(None if device == NO_DEVICE else device)
        places[key].append((number, device))
    aside = Aside()
    idle = [Sorted(aside, IDLE, "begin") for _ in trace.processes]
    acts = [Acts(process) for process in trace.processes]
    uses: list[Use] = []
    times = [Counter[int]() for _ in trace.processes]
    for key, own in places.items():
        numbers = sorted({number for number, _ in own})
        off = [trace.unrecorded(trace.processes[number]) for number in numbers]
        if len(numbers) > 1:
            off.append(find_breaks(trace, own))
        gpu, host_copies, memsets, moved = _Gpu(unite(off)), 0.0, 0.0, 0.0
        for rows in trace.iter_gpu_times(own):
            rows = rows if since is None else _find_later(rows, since)
            if not len(rows):
                continue
            is_kernel = _find(rows, acts, numbers, LAUNCH) | (rows["function"] != 0)
            moved += float(rows["duration"][~is_kernel].sum())
            host_copies += float(rows["duration"][~is_kernel & _find(rows, acts, numbers, IN | OUT)].sum())
            memsets += float(rows["duration"][~is_kernel & _find(rows, acts, numbers, FILL)].sum())
            found = gpu.add(rows, is_kernel, len(uses))
            for number in numbers:
                own_rows = rows if len(numbers) == 1 else rows[rows["process"] == number]
                _add_times(times[number], own_rows["function"], own_rows["duration"])
                if len(mine := found[found["process"] == number]):
                    idle[number].add(mine)
        if gpu.first is None:  # all of its work was earlier
            continue
        whole = gpu.reach - gpu.first - gpu.off
        copies = whole - gpu.idle - gpu.kernels
        shares = host_copies / (moved or 1), memsets / (moved or 1)
        sums = whole, gpu.kernels, copies, gpu.idle, gpu.count, gpu.cut, *shares
        uses.append(Use(key, numbers, *sums, gpu.first, gpu.reach, gpu.off, dict(gpu.work), gpu.turns))
    return uses, idle, times


def _find_later(rows: Array, since: Mapping[int, int]) -> Array:
    """Return the work that begins no earlier than its process's time."""
    good = np.zeros(len(rows), bool)
    for number, time in since.items():
        good |= (rows["process"] == number) & (rows["begin"] >= time)
    return rows if good.all() else rows[good]


def _find_edges(trace: TraceModel, number: int, places: list[tuple[int, int]]) -> tuple[int, int]:
    """Return the begin of a process's first work on these devices, and the end of its last work."""
    first: int | None = None
    last = 0
    for rows in trace.iter_gpu_times([place for place in places if place[0] == number]):
        ends = rows["begin"] + rows["duration"].astype(np.int64)
        first, last = (int(rows["begin"][0]), int(ends.max())) if first is None else (first, max(last, int(ends.max())))
    return first or 0, last


def find_breaks(trace: TraceModel, places: list[tuple[int, int]]) -> Unrecorded:
    """Return the periods, between the first and the last work on these devices, in which no process was using them."""
    edges = [_find_edges(trace, number, places) for number in {number for number, _ in places}]
    begins, ends = [], []
    reach: int | None = None
    for first, last in sorted(edges):
        if reach is not None and first > reach:
            begins.append(reach)
            ends.append(first)
        reach = last if reach is None else max(reach, last)
    return Unrecorded(begins, ends)


def _add_times(times: Counter[int], keys: Array, durations: Array) -> None:
    found, which = np.unique(keys, return_inverse=True)
    sums = np.bincount(which, durations, len(found))
    times.update(dict(zip(found.tolist(), sums.tolist(), strict=True)))


def _find(rows: Array, acts: list[Acts], numbers: list[int], wanted: int) -> npt.NDArray[np.bool_]:
    """Return the rows whose call performs one of the `wanted` acts."""
    found = np.zeros(len(rows), bool)
    for number in numbers:
        found |= (rows["process"] == number) & ((acts[number].of_ids(rows["api"]) & wanted) != 0)
    return found
