"""Find when kernels ran, from the clocks that the probe block_sched saved for their blocks.

A block saves its SM's clock when it begins and ends, and the GPU's time in ns when its first thread ends. In older
traces, each warp does, or the time was read when the block ended. The clocks say how long before that time the block
began, and how long after it the block ended. Clocks are converted to ns at the SM's clock rate, which follows from
comparing launches. To align the GPU's times with the clock of the calls, we assume that the launch with the shortest
delay before its first warp had no delay.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.schedule import FIELDS, LENGTHS, find_elapsed, find_paired
from gpt.analyze.lib.sm_clocks import SLOPES
from gpt.base.errors import MissingError, TruncatedError

if TYPE_CHECKING:
    from gpt.trace.model import Launch, TraceModel
    from gpt.trace.process import Process

MAP = "block_sched"
RATE = 0.6  # ns per clock if the rate isn't known

Whole = npt.NDArray[np.int64]
Times = tuple[npt.NDArray[np.object_], Whole, Whole]  # names, begin, end


def find_blocks(trace: TraceModel, process: Process, wanted: Callable[[str], bool]) -> dict[tuple[int, int], Times]:
    """Return the names of the launched kernels that `wanted` accepts, and when each launch ran, by device and
    stream.
    """
    lanes: dict[tuple[int, int], list[tuple[Launch, npt.NDArray[np.void]]]] = defaultdict(list)
    for launch in trace.launches:
        buffer = launch.buffers.get(MAP)
        if launch.process is process and wanted(launch.kernel) and buffer and _is_known(buffer.map.unsigned):
            try:
                saved = buffer.read()
            except (MissingError, TruncatedError):
                continue
            slots = saved.slots[:, :, 0][saved.counts > 0]
            if len(slots):
                lanes[launch.device, launch.stream].append((launch, slots))
    return {key: _times(found) for key, found in lanes.items()}


def _is_known(fields: set[str]) -> bool:
    """Return whether a map has the fields that say when its blocks ran."""
    return fields.issuperset((*FIELDS, "end")) and not fields.isdisjoint(LENGTHS)


def _times(found: list[tuple[Launch, npt.NDArray[np.void]]]) -> Times:
    found.sort(key=lambda one: int(one[1]["end"].max()))
    rate = _rate([slots for _, slots in found])
    zero = int(found[0][1]["end"].min())
    end = np.array([_moved(slots, zero, rate, find_elapsed(slots)).max() for _, slots in found], np.int64)
    begin = np.array([_moved(slots, zero, rate, 0).min() for _, slots in found], np.int64)
    begin = np.minimum(begin, end)
    apart = int((begin - np.array([launch.start for launch, _ in found], np.int64)).min())
    return np.array([launch.kernel for launch, _ in found], object), begin - apart, end - apart


def _moved(slots: npt.NDArray[np.void], zero: int, rate: float, clocks: npt.NDArray[np.uint64] | int) -> Whole:
    """Return the times in ns, after `zero`, when `clocks` had passed since the start of each record."""
    read = (slots["end"] - np.uint64(zero)).view(np.int64)
    return read + np.rint((clocks - find_paired(slots).astype(np.float64)) * rate).astype(np.int64)


def _rate(launches: list[npt.NDArray[np.void]]) -> float:
    """Measure the clock period in ns between launches: the median over all SMs."""
    last: dict[int, tuple[int, int]] = {}
    rates = []
    for slots in launches:
        sms, places = np.unique(slots["sm"], return_index=True)
        paired = find_paired(slots)
        for sm, at in zip(sms.tolist(), places.tolist(), strict=True):
            now = int(slots["start"][at]) + int(paired[at]), int(slots["end"][at])
            clocks, ns = now[0] - last.get(sm, now)[0], now[1] - last.get(sm, now)[1]
            if clocks > 0 and SLOPES[0] <= ns / clocks <= SLOPES[1]:
                rates.append(ns / clocks)
            last[sm] = now
    return float(np.median(rates)) if rates else RATE
