"""Blocks with known times, and traces of launches with such blocks."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from gpt.analyze.lib.schedule import make_schedule
from gpt.stream import records
from gpt.trace.buffers import MapLayout
from tests.trace import forge

FIELDS = forge.BLOCK_SCHED
MAP = forge.probe_map("block_sched", **FIELDS)
SLOT = np.dtype([("count", "<u8"), ("start", "<u8"), ("end", "<u8"), ("elapsed", "<u4"), ("sm", "<u4")])
NAME = "_Z6matmulIfEvPT_PKS0_i"
EPOCH = 10**18


def saved(blocks, warps=1):
    """Return saved data for blocks given as (start, clocks, sm). Their warps begin one clock apart; 2 clocks are 1
    ns.
    """
    data = np.zeros((len(blocks), warps), SLOT)
    for number, (start, took, sm) in enumerate(blocks):
        for warp in range(warps):
            at = start + warp * (took > warp)
            data[number, warp] = (1, at, EPOCH + (start + took) // 2, start + took - at, sm)
    return data.tobytes()


def trace(*launches, warps=1, name=NAME, first=0, **header):
    """Return a segment with a launch for each list of blocks."""
    found = [records.make("function", id=4, name=name), MAP, forge.kernel(3, 4, name, 1)]
    for number, blocks in enumerate(launches, first):
        found += [forge.probed(number, 3, 4, len(blocks), 32 * warps), forge.buffer(number, saved(blocks, warps))]
    return forge.trace(*found, **header)


def schedule(blocks, warps=1):
    return make_schedule(MapLayout(MAP).read(saved(blocks, warps), len(blocks), 32 * warps))


BLOCKS = [(1000, 100, 0), (1000, 50, 0), (1060, 50, 0), (1105, 50, 0), (7_000_000, 100, 9)]
BLOCK = st.tuples(st.integers(0, 60), st.integers(1, 30), st.integers(0, 2))
