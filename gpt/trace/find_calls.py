"""Find the calls that records refer to by thread and start, which together identify a call of a process."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.int64]


def find_calls(threads: Any, starts: Any, known_threads: Any, known_starts: Any) -> Places:
    """Return the index of each call among the known ones, or -1. If a known call occurs several times, its last
    occurrence counts.
    """
    columns = ((known_threads, threads), (known_starts, starts))
    thread, start = (np.concatenate([part.astype("<u8") for part in column]) for column in columns)
    order = np.lexsort((thread, start))  # equal calls stay in order, known ones first
    thread, start = thread[order], start[order]
    first = np.ones(len(order), bool)
    first[1:] = (thread[1:] != thread[:-1]) | (start[1:] != start[:-1])
    group = np.cumsum(first) - 1
    known = np.flatnonzero(order < len(known_threads))
    last = np.full(len(order), -1, np.int64)  # by group
    last[group[known]] = order[known]  # numpy keeps the last of several
    found = np.empty(len(order), np.int64)
    found[order] = last[group]
    return found[len(known_threads) :]
