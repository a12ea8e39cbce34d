"""Match work on the GPU with the calls that started it, while both arrive, in limited memory.

A call gets a number that depends only on its row: the ticks from the start of its process to the start of the call, and
the thread that made it. Work on the GPU identifies its call by thread and time stamp, which gives the same number.
Details that only the call has, such as the grid of a kernel or the bytes of a copy, are kept until the work arrives,
which is at most a few chunks away in the file. Only the newest MOST calls are kept, and the same number of rows of work
wait for their call; older work remains without a call.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from gpt.trace.rows import Rows, Threads

MOST = 1 << 19
THREAD_BITS = 10  # bits for the thread in a number; all threads after the first 1023 share one
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
NONE = -1  # no call, or no device

Keys = npt.NDArray[np.int64]


class CallNumbers:
    """Numbers the calls of a process."""

    def __init__(self, begin: int) -> None:
        """Prepare to number the calls of a process that began at this time stamp."""
        self._begin = begin
        self._threads: dict[int, int] = {}

    def number(self, threads: Threads, stamps: npt.NDArray[np.uint64]) -> Keys:
        """Return the numbers of calls, given their threads and time stamps."""
        known, which = np.unique(threads, return_inverse=True)
        limit = (1 << THREAD_BITS) - 1
        places = [min(self._threads.setdefault(thread, len(self._threads)), limit) for thread in known.tolist()]
        since = (stamps - np.uint64(self._begin)).view(np.int64)
        return (since << THREAD_BITS) | np.array(places, np.int64)[which]


class Matcher:
    """Keeps calls, and work that's waiting for its call."""

    def __init__(self) -> None:
        self._aside: list[npt.NDArray[np.void]] = []
        self._work: list[npt.NDArray[np.void]] = []

    def add_calls(self, keys: Keys, rows: Rows) -> None:
        """Keep calls."""
        aside = np.zeros(len(rows), ASIDE)
        aside["key"], aside["known"] = keys, True
        for name in set(rows.dtype.names or ()) & set(ASIDE.names or ()):
            aside[name] = rows[name]
        self._aside.append(aside)

    def add_work(self, work: npt.NDArray[np.void]) -> None:
        """Add rows of work on the GPU."""
        self._work.append(work)

    def take(self, over: bool) -> tuple[npt.NDArray[np.void], npt.NDArray[np.void]]:
        """Return work with its calls; `known` is False for work without a call. When the process is `over`, return
        everything that's still waiting.
        """
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
