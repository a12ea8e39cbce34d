"""Ranges of warps in a warp-specialized kernel on the simulated device: the iterations that each warp records, which of
them a ring keeps, and what's counted.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.runtime import hooked
from tests.runtime.probing import kept, saved
from tests.tiers import first

FILE = """
[map.ranges]
level = "warp"
ring = {ring}
{budget}

[probe.wait]
position = "mbarrier.try_wait"
level = "warp"
before = '''.reg .u32 %turn = 0;
.reg .u32 %tries = 0;
.reg .u32 %part;
.reg .pred %begins;
and.b32 %part, %turn, 3;
or.b32 %part, %part, %tries;
setp.eq.u32 %begins, %part, 0;
@%begins RANGE begin tile, %turn;
mov.u32 %tries, 1;'''
after = '''.reg .pred %ends;
.reg .u32 %done;
and.b32 %part, %turn, 3;
setp.eq.and.u32 %ends, %part, 0, OUT;
@%ends RANGE end tile, %turn;
selp.u32 %done, 1, 0, OUT;
sub.u32 %tries, 1, %done;
add.u32 %turn, %turn, %done;'''

[probe.barrier]
position = "bar.sync"
level = "warp"
before = "RANGE begin barrier;"
after = "RANGE end barrier, 7;"
"""
BLOCKS, WARPS, TILES = 2, 3, 40  # warps of each block


def run(folder, *options, ring=16, budget=None, tiles=TILES, blocks=BLOCKS):
    """Return what each launch saved, in order, and the trace's path."""
    (folder / "ranges.toml").write_text(FILE.format(ring=ring, budget=f"budget = {budget}" if budget else ""))
    out = folder / "t.mp"
    program = [sys.executable, "-m", "tests.runtime.warp_roles", str(blocks), str(tiles)]
    line = hooked.command("run", "-fo", out, "--device", "sim", "-p", folder / "ranges.toml", *options, "--", *program)
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept(), "PYTHONPATH": str(hooked.ROOT)}
    done = subprocess.run(line, env=env, cwd=hooked.ROOT, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return [one for _, one in sorted(saved(out, "ranges").items())], out


def records_of(tiles):
    """Return what a warp records: (range, number)."""
    turns = [(edge, turn) for turn in range(0, tiles, 4) for edge in (0, 1)]
    return [(2, 0), (3, 7), *turns, (2, 0), (3, 7)]


def rows_of(one, warp):
    return one.slots[one.units == warp]


@pytest.mark.parametrize("ring", first(16, 64))
def test_a_ring_keeps_the_last_iterations_of_each_warp(tmp_path, ring):
    launches, _ = run(tmp_path, ring=ring)
    every = records_of(TILES)
    assert len(every) == 24
    for one in launches:
        assert (one.overwritten, one.dropped) == (BLOCKS * WARPS * max(0, len(every) - ring), 0)
        for warp in range(BLOCKS * WARPS):
            rows = rows_of(one, warp)
            assert [*zip(rows["range"].tolist(), rows["number"].tolist(), strict=True)] == every[-ring:]
            assert (np.diff(rows["clock"].astype(np.int64)) > 0).all()
    assert len(launches) == 2


def test_warps_that_share_a_tile_line_up(tmp_path):
    """A tile is full after the warp that copies it has found its place empty; and its place is only empty again after
    both others have found it full.
    """
    launches, _ = run(tmp_path, ring=64)
    for one in launches:
        for block in range(BLOCKS):
            ends = [{row["number"]: row["clock"] for row in rows_of(one, WARPS * block + warp) if row["range"] == 1}
                    for warp in range(WARPS)]  # fmt: skip
            for tile in range(0, TILES, 4):
                assert all(ends[0][tile] < other[tile] for other in ends[1:])
                assert tile + 4 >= TILES or all(other[tile] < ends[0][tile + 4] for other in ends[1:])


@pytest.mark.full
def test_rings_without_room_are_counted_and_the_next_launch_has_room(tmp_path):
    """The first log has room for 3 rings of 576 bytes."""
    (first, second), _ = run(tmp_path, budget=2048 + 64 * 32)
    every = len(records_of(TILES))
    assert (first.dropped, first.overwritten) == (3 * every, 3 * (every - 16))
    assert len(np.unique(first.units)) == 3 and len(first.slots) == 3 * 16
    assert (second.dropped, len(second.slots)) == (0, BLOCKS * WARPS * 16)


@pytest.mark.full
def test_the_first_launch_gets_a_room_for_each_warp(tmp_path):
    """With 4,000 records each, they take more than a log has at first. A log of 64 MiB would be too large."""
    blocks, ring, tiles = 4, 4000, 4
    launches, _ = run(tmp_path, "--max-memory", "16M", ring=ring, tiles=tiles, blocks=blocks)
    assert blocks * WARPS * ring * 32 > 1 << 20
    assert [(one.dropped, one.overwritten) for one in launches] == [(0, 0), (0, 0)]
    assert [len(one.slots) for one in launches] == [blocks * WARPS * len(records_of(tiles))] * 2


def test_the_timeline_has_the_warps_below_their_kernel(tmp_path):
    _, trace = run(tmp_path, "--gpu-time", tiles=5)
    command = [hooked.ROOT / "bin" / "gpt-analyze", "timeline", "--format", "chrome", trace]
    done = subprocess.run(command, capture_output=True, check=True)
    events = json.loads(done.stdout)["traceEvents"]
    titles = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    found = {}
    for e in (e for e in events if e.get("cat") == "user_annotation"):
        found.setdefault(titles[e["pid"], e["tid"]], []).append((e["name"], e["args"].get("number")))
    each = [("barrier", None), ("tile", None), ("tile", 4), ("barrier", None)]
    assert found == {f"block {block} warp {warp}": 2 * each for block in range(BLOCKS) for warp in range(WARPS)}
    kernels = [e for e in events if e.get("cat") == "kernel"]
    assert [e["name"] for e in kernels] == ["roles", "roles"]
    assert all(e["args"]["ranges.records"] == 48 for e in kernels)
