"""gpt-analyze program_progress on known steps of warps; warp_progress tests the code that both share."""

import struct

import pytest

from tests.analyze.asked import answers, run
from tests.trace import forge

FIELDS = {"clock": "u64", "time": "u64", "steps": "u32", "sm": "u32"}
EPOCH = 10**18


def trace(*entries):
    """Return a launch whose warps saved these records, given as (warp, clock, time, steps, sm)."""
    map_ = forge.probe_map("program_progress", type_="log", capacity=len(entries) or 1, **FIELDS)
    found = [forge.records.make("function", id=4, name="k"), map_, forge.kernel(3, 4, "k", 1)]
    data = struct.pack("<Q", len(entries)) + b"".join(struct.pack("<QQQII", *entry) for entry in entries)
    return forge.trace(*found, forge.probed(0, 3, 4, 4, 128), forge.buffer(0, data))


def test_steps_their_rate_and_lines_over_time():
    fast = [(0, 1000 + 100 * n, EPOCH + 50 * n, n, 0) for n in range(1, 11)]
    slow = [(16, 9000 + 400 * n, EPOCH + 1000 + 200 * n, n, 1) for n in range(1, 11)]
    found = answers("program_progress", trace(*fast, *slow))
    (row,) = found.rows["kernels"]
    assert (row["warps"], row["records"], row["steps"], row["rate"]) == (2, 20, 20, 4)  # 18 steps in 4500 clocks
    assert found.verdicts["kernels"][:2] == [
        "program_progress:steps 20 warps 2",
        "k: 4 steps in 1,000 clocks of a warp",
    ]
    lines = [(r["warp"], r["sm"], r["time"], r["progress"]) for r in found.rows["warps"]]
    assert lines == [(0, 0, 50 * n - 50, 10 * n) for n in range(1, 11)] + [
        (16, 1, 950 + 200 * n, 10 * n) for n in range(1, 11)
    ]


def test_lanes_that_part_never_take_a_warp_back():
    entries = [(3, 100, EPOCH, 1, 0), (3, 200, EPOCH + 1, 5, 0), (3, 300, EPOCH + 2, 2, 0), (3, 400, EPOCH + 3, 6, 0)]
    found = answers("program_progress", trace(*entries))
    assert [r["progress"] for r in found.rows["warps"]] == pytest.approx([100 / 6, 500 / 6, 500 / 6, 100])
    assert found.rows["kernels"][0]["rate"] == pytest.approx(1000 * 5 / 300)


def test_no_record_and_one(tmp_path):
    assert "rate" not in answers("program_progress", trace()).rows["kernels"][0]
    data = forge.pack(trace((0, 5, EPOCH, 1, 0)))
    done = run("program_progress", "--plot", tmp_path / "p.png", data=data)
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
