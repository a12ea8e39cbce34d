"""The calls of one process as a timeline: which of them launch, copy and wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

Mask = npt.NDArray[np.bool_]
Whole = npt.NDArray[np.int64]

LAUNCHES = (("kernel", "launch"), ("graph", "launch"))  # types and ops


@dataclass(frozen=True)
class Timeline:
    """The calls of a process that returned, oldest first; `end` is when each did, `launch` and the others are masks.

    What is a launch has the number of its kernel in `function`, a launch of a graph that of its graph in `object`.
    """

    process: Process
    calls: npt.NDArray[np.void]
    end: Whole
    launch: Mask
    sync: Mask
    load: Mask  # code
    copies: dict[str, Mask]  # by direction
    one_stream: Mask  # what waits for one stream only

    @property
    def start(self) -> Whole:
        """When each began, in ns."""
        found: Whole = self.calls["start"]
        return found

    @property
    def kernels(self) -> npt.NDArray[np.uint64]:
        """What each launch launches, as a number."""
        calls = self.calls[self.launch]
        found: npt.NDArray[np.uint64] = np.where(calls["function"] != 0, calls["function"], calls["object"])
        return found

    def find_idle_waits(self) -> Mask:
        """The waits after which all that was launched before has been waited for, as far as the calls say.

        What waits for an event counts as if it waited for all.
        """
        streams, idle = self.calls["stream"], self.sync.copy()
        for stream in np.unique(streams[self.launch]):
            launched = self.start[self.launch & (streams == stream)]
            waited = self.start[self.sync & (~self.one_stream | (streams == stream))]
            others = np.flatnonzero(self.sync & self.one_stream & (streams != stream))
            at = self.start[others]
            idle[others] &= _latest(launched, at) <= _latest(waited, at)
        return idle


def _latest(times: Whole, at: Whole) -> Whole:
    """The last of `times`, which are in order, before each of `at`; of none a time before all."""
    found: Whole = np.concatenate(([np.iinfo(np.int64).min], times))[np.searchsorted(times, at)]
    return found


def make_timelines(trace: TraceModel) -> list[Timeline]:
    """Those of all processes that launched anything, that with most launches first, else by rank."""
    calls = trace.calls("function", "bytes", "object", "stream")
    calls = calls[calls["duration"] > 0]
    launch = np.zeros(len(calls), bool)
    for type_, op in LAUNCHES:
        launch |= trace.chosen(calls, type=type_, op=op)
    launch &= calls["result"] == 0
    sync, load = trace.chosen(calls, type="sync"), trace.chosen(calls, type="module")
    one_stream = sync & trace.chosen(calls, type="sync", op="stream")
    copies = {op: trace.chosen(calls, type="memcpy", op=op) for op in ("HtoD", "DtoH")}
    found = []
    for number, process in enumerate(trace.processes):
        own = calls["process"] == number
        if (own & launch).any():
            mine = calls[own]
            end = mine["start"] + mine["duration"].astype(np.int64)
            moved = {op: mask[own] for op, mask in copies.items()}
            masks = launch[own], sync[own], load[own], moved, one_stream[own]
            found.append(Timeline(process, mine, end, *masks))
    return sorted(found, key=lambda timeline: (-int(timeline.launch.sum()), timeline.process.header.get("rank", -1)))
