"""How much of the time of a kernel on the GPU was the loading of its code.

Where modules are loaded lazily, as by default since CUDA 12.2, the driver loads a kernel within the call that launches
it first: after the event that `gpt-hook --gpu-time` records before it, and before the kernel. GPU times have no more
than the two events. But calls have times too, and launching is the last thing that such a call does: a first launch
that took over FAR times as long as the others of its kernel on the host began no sooner than that much before its
call ended, and so did the kernel.

A kernel that was launched once has nothing to compare with, and calls that were only counted have no times: of these it
is not known. Under CUDA_LAUNCH_BLOCKING a call contains its kernel; one that runs FAR times as long the first time,
because it has more to do, would be taken for one that is loaded.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from gpt.trace.rows import iter_groups

FAR = 10
TIMED = [("function", "<u4"), ("device", "<u4"), ("call", "<i8"), ("begin", "<i8"), ("duration", "<u8"),
         ("api", "<u4"), ("probed", "<u4")]  # fmt: skip
LAUNCH = [("function", "<u4"), ("start", "<i8"), ("duration", "<f4")]
Array = npt.NDArray[Any]
Times = npt.NDArray[np.float64]


def find_firsts(rows: Array) -> npt.NDArray[np.intp]:
    """Which rows of GPU times are the first launch of a kernel on a device, of those that say which call it was."""
    devices, calls, found = rows["device"], rows["call"], []
    for function, order in iter_groups(rows["function"]):
        order = order[calls[order] != 0] if function else order[:0]
        for device in np.unique(devices[order]):
            mine = order[devices[order] == device]
            found.append(mine[calls[mine].argmin()])
    return np.array(found, np.intp)


class FirstLaunches:
    """The first launches of the kernels of a process, of rows of GPU times that come in batches; in time stamps."""

    def __init__(self) -> None:
        self.rows: Array = np.zeros(0, TIMED)

    def add(self, rows: Array) -> None:
        """Takes GPU times in."""
        names = set(rows.dtype.names or ())
        if "call" in names:
            part = np.zeros(len(rows), TIMED)
            for name in names & set(part.dtype.names or ()):
                part[name] = rows[name]
            found = np.concatenate([self.rows, part[find_firsts(part)]])
            self.rows = found[find_firsts(found)]


def find_loading(firsts: Array, launches: Array) -> tuple[Times, Times]:
    """How much of each first launch's time was loading, by the launch calls (LAUNCH) of the same process.

    The second array is for kernels that were launched once, whose loading is not known: at most so much of the time is
    loading. All times have the same unit.
    """
    launches = launches[(launches["duration"] > 0) & np.isin(launches["function"], firsts["function"])]
    known, which = np.unique(launches["function"], return_inverse=True)
    if not len(known):
        return np.zeros(len(firsts)), np.zeros(len(firsts))
    count, total = np.bincount(which), np.bincount(which, launches["duration"])
    made = np.flatnonzero(np.isin(launches["start"], firsts["call"]))
    took = dict(zip(launches[made][["function", "start"]].tolist(), launches["duration"][made].tolist(), strict=True))
    call = np.array([took.get(key, 0.0) for key in firsts[["function", "call"]].tolist()])
    at = np.minimum(np.searchsorted(known, firsts["function"]), len(known) - 1)
    apart = np.bincount(at, call, len(known))  # the first launches of a kernel: one a device
    others = count - np.bincount(at, call > 0, len(known))
    usual = np.divide(total - apart, others, out=np.zeros(len(known)), where=others > 0)[at]
    cut = np.clip(call - usual - (firsts["begin"] - firsts["call"]), 0, firsts["duration"].astype(np.float64))
    return np.where((usual > 0) & (call > FAR * usual), cut, 0.0), np.where(usual > 0, 0.0, cut)
