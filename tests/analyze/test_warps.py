"""gpt-analyze warp_sched and tensorop_count on known warps."""

import struct

import numpy as np
import pytest

from tests.analyze.asked import ask, run
from tests.trace import forge

FIELDS = {"start": "u64", "end": "u64", "block": "u64", "sm": "u32"}
MAP = forge.probe_map("warp_sched", **FIELDS)
SLOT = np.dtype([("count", "<u8"), ("start", "<u8"), ("end", "<u8"), ("block", "<u8"), ("sm", "<u4"), ("pad", "<u4")])
EPOCH = 10**18


def warps(*times):
    """Pack a block from its warps (begin, end); None for a warp that saved nothing."""
    data = np.zeros(len(times), SLOT)
    for number, time in enumerate(times):
        data[number] = (1, EPOCH + time[0], EPOCH + time[1], number, 0, 0) if time else (0,) * 6
    return data.tobytes()


def trace(*launches, **header):
    found = [forge.records.make("function", id=4, name="k"), MAP, forge.kernel(3, 4, "k", 1)]
    for number, times in enumerate(launches):
        found += [forge.probed(number, 3, 4, len(times), 32), forge.buffer(number, warps(*times))]
    return forge.trace(*found, **header)


def test_warps_alone_and_with_other_kernels():
    alone, one, other = [(0, 100), (0, 300)], [(1000, 1100), (1000, 1500)], [(1400, 1500), (1450, 1600)]
    found = ask("warp_sched", trace(alone, one, other), trace([(1000, 1100)], pid=11))  # not of the same process
    rows = {row["how"]: row for row in found.rows["kernels"]}
    assert {how: (r["launches"], r["warps"], r["mean"], r["longest"]) for how, r in rows.items()} == {
        "alone": (2, 3, 167, 300), "shared": (2, 4, 212, 500),
    }  # fmt: skip
    assert [row["how"] for row in found.rows["launches"]] == ["alone", "shared", "shared", "alone"]
    assert [row["span"] for row in found.rows["launches"]] == [300, 500, 200, 100]
    times = found.rows["times"]
    assert (sum(row["alone"] for row in times), sum(row["shared"] for row in times)) == (3, 4)
    near = {row["time"]: row["shared"] for row in times if row["shared"]}
    assert sum(count for time, count in near.items() if 90 < time < 110) == 2  # both take 100 ns
    assert found.verdicts["kernels"][0].startswith("7 warps of 4 launches, 2 sharing the GPU; tail: ")


def test_warps_with_another_process_on_the_same_gpu():
    def of(pid, uuid, launch):
        found = trace(launch, pid=pid)
        device = forge.records.make("device", index=0, name="H200", arch="sm_90", uuid=uuid, runs="sass")
        return [found[0], device, *found[1:]]

    one, beside, other = of(10, "GPU-a", [(0, 100)]), of(11, "GPU-a", [(50, 90)]), of(12, "GPU-b", [(60, 80)])
    assert [row["how"] for row in ask("warp_sched", one, beside, other).rows["launches"]] == ["shared"] * 2 + ["alone"]


@pytest.mark.parametrize(
    ("times", "tail"),
    [
        ([(0, 100)] * 4, 0),
        ([(0, 100), (0, 100), (0, 100), (0, 900)], 800),  # one of four
        ([(0, 100), (0, 100), (0, 900), (0, 900)], 800),  # half
        ([(0, 100), (0, 100), (0, 900), (0, 900), (100, 900)], 0),
        ([None, (5, 8)], 0),
    ],
)
def test_the_tail_is_when_at_most_half_of_the_warps_run(times, tail):
    (row,) = ask("warp_sched", trace(times)).rows["kernels"]
    assert row["tail"] == tail and row["silent"] == times.count(None)


def test_the_tail_is_a_share_of_the_launch():
    quarter, none = [(8000, 8750), (8000, 9000)], [(20_000, 20_100)]
    found = ask("warp_sched", trace(quarter, none))
    assert [row["tail_share"] for row in found.rows["launches"]] == [25, 0]
    assert "tail: 12.5 % of a launch on average" in found.verdicts["kernels"][0]


def test_launch_without_saved_warps():
    (row,) = ask("warp_sched", trace([None, None])).rows["kernels"]
    assert (row["warps"], row["silent"], row["span"]) == (0, 2, 0)


def test_a_picture_of_run_times(tmp_path):
    done = run("warp_sched", "--plot", tmp_path / "w.png", data=forge.pack(trace([(0, 100), (0, 300)])))
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "w.png").read_bytes()[:4] == b"\x89PNG"


def test_tensor_operations_add_up():
    map_ = forge.probe_map("tensorop_count", type_="total", operations="u64", flops="u64")
    found = [forge.records.make("function", id=4, name="k"), map_, forge.kernel(3, 4, "k", 1)]
    data = struct.pack("<6Q", 1, 3, 12288, 1, 2, 8192)
    found = ask("tensorop_count", forge.trace(*found, forge.probed(0, 3, 4, 2, 32), forge.buffer(0, data)))
    (row,) = found.rows["kernels"]
    assert (row["flops"], row["operations"], row["share"], row["dropped"]) == (20480, 5, 100, 0)
    assert found.verdicts["kernels"] == ["tensorop_count:5 FLOPs:20480", "1 launch ran with probes"]


@pytest.mark.parametrize("name", ["tensorop_count", "warp_sched"])
def test_trace_without_the_map(name):
    done = run(name, data=forge.pack(forge.trace(forge.launches({1: 2}))))
    fact = f"no map '{name}' in the trace: 'gpt-hook run -p {name}' records one"
    assert (done.returncode, done.stderr.decode()) == (1, f"gpt-analyze: error: {fact}\n")


PROGRESS = np.dtype([("unit", "<u8"), ("clock", "<u8"), ("flops", "<u8"), ("sm", "<u4"), ("pad", "<u4")])


def progress(*entries):
    """Return the trace of a launch whose warps saved these records, given as (warp, clock, flops, sm)."""
    fields = {"clock": "u64", "flops": "u64", "sm": "u32"}
    map_ = forge.probe_map("warp_progress", type_="log", capacity=len(entries), **fields)
    found = [forge.records.make("function", id=4, name="k"), map_, forge.kernel(3, 4, "k", 1)]
    data = struct.pack("<Q", len(entries) + 2) + np.array([(*entry, 0) for entry in entries], PROGRESS).tobytes()
    return forge.trace(*found, forge.probed(0, 3, 4, 4, 128), forge.buffer(0, data))


def test_progress_of_warps_and_their_rate(tmp_path):
    fast = [(8, 1000 + 10 * n, 100 * n, 0) for n in range(11)]  # 10 FLOPs a clock
    slow = [(0, 5000 + 40 * n, 100 * n, 1) for n in range(11)]  # 2.5
    mixed = [entry for pair in zip(fast, slow, strict=True) for entry in pair]
    found = ask("warp_progress", progress(*mixed))
    (row,) = found.rows["kernels"]
    assert (row["warps"], row["records"], row["flops"], row["dropped"]) == (2, 22, 2000, 2)
    assert row["rate"] == row["first"] == row["last"] == 4  # 2000 FLOPs in 500 clocks
    assert [(r["progress"], r["rate"]) for r in found.rows["rates"]] == [(5.5 + 10 * n, 4) for n in range(10)]
    warps = [(r["warp"], r["sm"], r["clock"], r["progress"]) for r in found.rows["warps"]]
    assert warps == [(0, 1, 40 * n, 10 * n) for n in range(11)] + [(8, 0, 10 * n, 10 * n) for n in range(11)]
    done = run("warp_progress", "--plot", tmp_path / "w.png", data=forge.pack(progress(*mixed)))
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "w.png").read_bytes()[:4] == b"\x89PNG"
