"""Closed forms for how often a launch of launches.py reads and writes each byte of its buffers.

By source and kernel. Each buffer, identified by its parameter number, has offset and size of every access that a thread
makes, or None if that's up to the compiler. Counts are compared per byte, because accesses may be combined.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.tally.kernels import Array

Touched = dict[int, Array | None]  # rows of offset and bytes


def each(count: int, width: int, repeats: int = 1) -> Array:
    """Return accesses to consecutive elements of `width` bytes, `repeats` times each."""
    offsets = np.repeat(np.arange(count) * width, repeats)
    return np.stack([offsets, np.full(len(offsets), width)], 1)


def tiles(side: int, n: int) -> Touched:
    """Return the accesses of a matrix product whose blocks load a row of a's tiles and a column of b's."""
    return {0: each(n * n, 4, n // side), 1: each(n * n, 4, n // side), 2: each(n * n, 4)}


def both(*parts: Array) -> Array:
    return np.concatenate(parts)


TOUCHED: dict[tuple[str, str], Callable[[], Touched]] = {
    ("saxpy", "saxpy"): lambda: {2: each(613, 4), 3: each(613, 4, 2)},
    ("saxpy", "daxpy"): lambda: {2: each(501, 8), 3: each(501, 8, 2)},
    ("saxpy", "vadd4"): lambda: {0: each(64, 16), 1: each(64, 16), 2: each(64, 16)},
    ("blockcub", "bk"): lambda: {0: both(each(256, 4), each(2048, 4, 2))},
    ("lambda", "apIZ1gPiiEUliE_"): lambda: {2: each(30, 4)},
    ("lambda", "apIZ1gPiiEUliE0_"): lambda: {2: each(32, 4)},
    ("dynshared", "dynPi"): lambda: {0: each(100, 4, 2)},
    ("dynshared", "dyn2"): lambda: {0: each(64, 8, 2)},
    ("shared_tile", "gemmILi16E"): lambda: tiles(16, 48),
    ("shared_tile", "gemmILi32E"): lambda: tiles(32, 64),
    ("nbody", "nb"): lambda: {0: each(512, 16, 3), 1: None},
    ("warp", "wp"): lambda: {0: each(32, 4, 2), 1: each(1, 4, 32)},
    ("setmaxnreg", "sm"): lambda: {0: both(each(384, 4, 2), each(1, 4, 2 * 384))},
    ("pipeline", "bar"): lambda: {0: each(256, 4), 1: each(256, 4)},
    **{("lbounds", kernel): lambda: {0: each(1, 4, 32)} for kernel in ("l1Pi$", "l2", "l3", "l4ILi32E", "l6", "l7E")},
    ("lbounds", "l5I"): lambda: {0: each(1, 4, 32)},
}


def times(rows: Array, size: int) -> Array:
    """Return how often each byte is accessed."""
    steps = np.zeros(size + 1, np.int64)
    np.add.at(steps, rows[:, 0], 1)
    np.add.at(steps, rows[:, 0] + rows[:, 1], -1)
    return np.cumsum(steps)
