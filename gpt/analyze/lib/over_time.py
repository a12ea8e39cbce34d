"""Make counters for timelines: the memory allocated on each GPU, and the warps of launches that ran there.

Calls don't name their device. In a process with several devices, an allocation belongs to the GPU of the context that
its thread had at the time; launches in that context show which GPU it is.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.allocations import make_pieces
from gpt.analyze.lib.gpu_use import iter_contexts
from gpt.analyze.lib.schedule import make_schedule
from gpt.base.errors import GptError
from gpt.screen.units import human_time
from gpt.timeline.counters import Counter
from gpt.timeline.tracks import gpu
from gpt.trace.calls_store import NO_DEVICE

if TYPE_CHECKING:
    from gpt.timeline.saved import Ran
    from gpt.trace.model import Launch, TraceModel

Whole = npt.NDArray[np.int64]
Real = npt.NDArray[np.float64]
Warps = tuple[Real, Real, int, float]  # begins and ends in ns since the very first, warps per entry, bound of the error

PARTS, POINTS = 100, 100_000  # points for each launch, and for all launches together
WARP = 32  # threads
MOST = 1 << 62


def count_memory(model: TraceModel, calls: npt.NDArray[np.void]) -> Iterator[Counter]:
    """Yield the memory that each process has allocated, by GPU; `calls` are from read_memory_calls."""
    numbers = {process: number for number, process in enumerate(model.processes)}
    several = [number for process, number in numbers.items() if len(process.cards) > 1]
    contexts, devices = _Contexts(model), dict[tuple[int, int], int]()
    for rows in model.iter_gpu_times([place for place in model.gpus() if place[0] in several]) if several else ():
        for number in several:
            own = rows[(rows["process"] == number) & (rows["device"] != NO_DEVICE) & (rows["call"] != 0)]
            found = contexts.find(number, own["thread"], own["call"])
            pairs = np.unique(np.stack([found, own["device"].astype(np.uint64)], axis=1), axis=0)
            devices |= {(number, context): device for context, device in pairs.tolist()}
    for pieces in make_pieces(model, calls):
        number = numbers[pieces.process]
        on = np.full(len(pieces.begins), min(pieces.process.cards, default=0))
        if number in several:
            found = contexts.find(number, pieces.threads, pieces.begins).tolist()
            on = np.array([devices.get((number, context), NO_DEVICE) for context in found], np.int64)
        for device in np.unique(on[pieces.on_gpu]).tolist():
            times, values = pieces.line(pieces.on_gpu & (on == device))
            yield Counter(number, f"{gpu(device)} memory", times, np.minimum(values, MOST).astype(np.int64))


class _Contexts:
    """The contexts of the threads of all processes, over time."""

    def __init__(self, model: TraceModel) -> None:
        self._known = defaultdict[tuple[int, int], list[tuple[int, int]]](lambda: [(-MOST, 0)])
        for process in range(len(model.processes)):
            for thread, start, _, context in iter_contexts(model, process):
                self._known[process, thread].append((start, context))

    def find(self, process: int, threads: npt.NDArray[np.uint64], times: Whole) -> npt.NDArray[np.uint64]:
        """Return the contexts that a process's threads had at these times."""
        found = np.zeros(len(times), np.uint64)
        for thread in np.unique(threads).tolist():
            starts, contexts = zip(*self._known[process, thread], strict=True)
            own = threads == thread
            found[own] = np.array(contexts, np.uint64)[np.searchsorted(starts, times[own], side="right") - 1]
        return found


def count_warps(found: list[Ran]) -> Iterator[Counter]:
    """Yield how many warps were resident on each GPU, as recorded by the probes block_sched and warp_sched.

    Their clocks aren't the trace's clock, so the first warp of a launch is assumed to begin when its kernel does.
    """
    ran = [(one, warps) for one in found if (warps := find_warps(one.launch))]
    parts = max(1, min(PARTS, POINTS // max(1, len(ran))))
    changes = defaultdict[tuple[int, int], list[tuple[Whole, Whole]]](list)
    bounds = defaultdict[tuple[int, int], float](float)
    for one, (begins, ends, weight, bound) in ran:
        edges = np.linspace(0, max(float(ends.max()), 1.0), parts + 1)
        mean = np.round(weight * mean_between(begins, ends, edges)).astype(np.int64)
        times = edges.astype(np.int64) + one.begin
        place = one.process, one.launch.launch.device
        bounds[place] = max(bounds[place], bound)
        changes[place].append((times, np.diff(mean, prepend=0, append=0)))
    for (process, device), parts_of in changes.items():
        times, which = np.unique(np.concatenate([times for times, _ in parts_of]), return_inverse=True)
        steps = np.bincount(which, np.concatenate([steps for _, steps in parts_of]))
        values, new = np.cumsum(steps).astype(np.int64), np.append(True, steps[1:] != 0)
        within = "an unknown error" if math.isinf(bounds[process, device]) else human_time(bounds[process, device])
        aligned = f" (SMs within {within})" if bounds[process, device] else ""
        yield Counter(process, f"{gpu(device)} resident warps{aligned}", times[new], values[new], "warps")


def find_warps(launch: Launch) -> Warps | None:
    """Return the warps of a launch, or None if no known map says when they ran."""
    try:
        for name, find in (("warp_sched", _of_warps), ("block_sched", _of_blocks)):
            if name in launch.buffers and (found := find(launch)) and len(found[0]):
                return found
    except (GptError, KeyError, ValueError):  # lost, or a map with that name but other fields
        return None
    return None


def _of_warps(launch: Launch) -> Warps:
    saved = launch.saved("warp_sched")
    slots = saved.slots[:, :, 0][saved.counts > 0]
    first = slots["start"].min(initial=MOST)
    begins = np.minimum(slots["start"] - first, np.uint64(MOST)).astype(np.float64)
    ends = np.minimum(np.maximum(slots["end"], slots["start"]) - first, np.uint64(MOST)).astype(np.float64)
    return begins, ends, 1, 0.0  # times of the timer that all SMs share


def _of_blocks(launch: Launch) -> Warps | None:
    schedule = make_schedule(launch.saved("block_sched"), launch.process.cards.get(launch.device, {}))
    if schedule is None or schedule.ns_per_clock is None:
        return None
    bound = (math.inf if schedule.bound is None else schedule.bound) if len(schedule.sms) > 1 else 0.0
    return schedule.began, schedule.ended, -(-launch.threads // WARP), bound


def mean_between(begins: Real, ends: Real, edges: Real) -> Real:
    """For each edge, return the mean number of intervals that were open until the next edge."""
    area = np.zeros(len(edges))
    for times, sign in ((begins, 1), (ends, -1)):
        ordered = np.sort(times)
        count = np.searchsorted(ordered, edges)
        area += sign * (count * edges - np.append(0.0, np.cumsum(ordered))[count])
    found: Real = np.maximum(np.diff(area) / np.maximum(np.diff(edges), 1e-9), 0)
    return found
