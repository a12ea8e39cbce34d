"""Which call made the GPU do what, found while both come, with bounded memory.

A call has a number that follows from its row alone: the ticks from the beginning of its process to that of the call,
and which thread of the process made it. Work on the GPU names its call by thread and time stamp, so it has the same
number. What only the call says of it, as the grid of a kernel and the bytes of a copy, is put aside until the work
comes: it comes soon after, in the order of the file a few chunks later or earlier. Of calls that are put aside the
newest MOST are kept, and as many rows of work wait for their call; older work stays without.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpt.trace.rows import Rows, Threads

MOST = 1 << 19
THREAD_BITS = 10  # of a number; threads after the first 1023 share one
SHAPE = (
    "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z", "shared", "cluster_x", "cluster_y", "cluster_z",
    "cooperative",
)  # fmt: skip
ASIDE = np.dtype(
    [("key", "<i8"), ("bytes", "<u8"), ("object", "<u8"), *((name, "<u4") for name in SHAPE), ("known", "?")]
)
WORK = np.dtype(
    [("key", "<i8"), ("begin", "<u8"), ("duration", "<u8"), ("stream", "<u8"), ("api", "<u4"), ("function", "<u4"),
     ("device", "<i8")]
)  # fmt: skip
NONE = -1  # no call, or no device, is named

Keys = npt.NDArray[np.int64]


class CallNumbers:
    """The numbers of the calls of a process."""

    def __init__(self, begin: int) -> None:
        """`begin` is the time stamp of its beginning."""
        self._begin = begin
        self._threads: dict[int, int] = {}

    def number(self, threads: Threads, stamps: npt.NDArray[np.uint64]) -> Keys:
        """Of calls, from threads and time stamps."""
        known, which = np.unique(threads, return_inverse=True)
        limit = (1 << THREAD_BITS) - 1
        places = [min(self._threads.setdefault(thread, len(self._threads)), limit) for thread in known.tolist()]
        since = (stamps - np.uint64(self._begin)).view(np.int64)
        return (since << THREAD_BITS) | np.array(places, np.int64)[which]


class Matcher:
    """Calls that were put aside, and work that waits for its call."""

    def __init__(self) -> None:
        self._aside: list[npt.NDArray[np.void]] = []
        self._work: list[npt.NDArray[np.void]] = []

    def add_calls(self, keys: Keys, rows: Rows) -> None:
        """Puts calls aside."""
        aside = np.zeros(len(rows), ASIDE)
        aside["key"], aside["known"] = keys, True
        for name in set(rows.dtype.names or ()) & set(ASIDE.names or ()):
            aside[name] = rows[name]
        self._aside.append(aside)

    def add_work(self, work: npt.NDArray[np.void]) -> None:
        """Takes rows in that ran on the GPU."""
        self._work.append(work)

    def take(self, over: bool) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        """Work, and its calls: those that are not `known` were not found. If it is `over` nothing waits any longer."""
        work = np.concatenate([np.zeros(0, WORK), *self._work])
        aside = np.concatenate([np.zeros(0, ASIDE), *self._aside])
        calls = np.zeros(len(work), ASIDE)
        if len(work) and len(aside):
            order = np.argsort(aside["key"], kind="stable")
            places = order[np.minimum(np.searchsorted(aside["key"][order], work["key"]), len(order) - 1)]
            found = (aside["key"][places] == work["key"]) & (work["key"] != NONE)
            calls[found] = aside[places[found]]
            left = np.ones(len(aside), bool)
            left[places[found]] = False
            aside = aside[left]
        ready = calls["known"] | (work["key"] == NONE) | over
        late = np.flatnonzero(~ready)[:-MOST]
        ready[late] = True
        self._work, self._aside = [work[~ready]], [aside[-MOST:]]
        return work[ready], calls[ready]
