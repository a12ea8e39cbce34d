"""gpt-analyze branch_divergence, sync_wait and inst_latency on known sums of warps."""

import struct

import pytest

from gpt.stream import records
from tests.analyze.asked import ask, run
from tests.trace import forge

NAME = "_Z6matmulIfEvPT_PKS0_i"
MAPS = {
    "branch_divergence": ("total", dict.fromkeys(("reached", "taken", "split"), "u64")),
    "sync_wait": ("array", {"clocks": "u64", "waits": "u32"}),
    "inst_latency": ("total", {"loads": "u64", "clocks": "u64"}),
}


def trace(name, *launches, kernel=NAME, **header):
    """Make a launch for each list of blocks. A block is a list of its warps' records, with None for a warp that saved
    nothing.
    """
    type_, fields = MAPS[name]
    map_ = forge.probe_map(name, type_=type_, **fields)
    found = [forge.records.make("function", id=4, name=kernel), map_, forge.kernel(3, 4, kernel, 1)]
    layout = struct.Struct("<Q" + "".join(forge.CODES[type_] for type_ in fields.values()))
    for number, blocks in enumerate(launches):
        data = b"".join(
            (layout.pack(1, *warp) if warp else b"").ljust(8 + map_["stride"], b"\0")
            for warps in blocks
            for warp in warps
        )
        found += [forge.probed(number, 3, 4, len(blocks), 32 * len(blocks[0])), forge.buffer(number, data)]
    return forge.trace(*found, **header)


def test_divergence_of_kernels_launches_and_warps():
    first = trace("branch_divergence", [[(320, 100, 80), (320, 0, 0)], [(320, 320, 0), None]])
    second = trace("branch_divergence", [[(40, 30, 20)]], [[(0, 0, 0)]], kernel="copy", pid=11)
    found = ask("branch_divergence", first, second)
    one, two = found.rows["kernels"]
    assert (one["name"], one["divergence"], one["share"], one["warps"], one["silent"]) == (NAME, 100 / 12, 80, 3, 1)
    assert (one["p50"], one["most"], one["reached"], one["taken"], one["split"]) == (0, 25, 960, 420, 80)
    assert (two["name"], two["divergence"], two["launches"], two["warps"]) == ("copy", 50, 2, 2)
    launches = [(r["launch"], r["kernel"], r.get("divergence"), r["split"]) for r in found.rows["launches"]]
    assert launches == [(1, NAME, 100 / 12, 80), (2, "copy", 50, 20), (3, "copy", None, 0)]
    assert found.verdicts["kernels"] == [
        "branch_divergence:reached 1000 taken 450 split 100",
        "10.0 % of 1,000 lanes at branches jump while others stay; 80 % of that in matmul<float>: 8.3 % there",
        "3 launches ran with probes",
    ]
    warps = [(r["low"], r["high"], r["warps"]) for r in found.rows["warps"] if r["name"] == NAME and r["warps"]]
    assert warps == [(0, 2.5, 2), (25, 27.5, 1)]


def test_kernels_without_branches_and_with_branches_that_do_not_diverge():
    found = ask("branch_divergence", trace("branch_divergence", [[(0, 0, 0)]]))
    assert found.verdicts["kernels"][1] == "no warp reached a branch" and found.rows["warps"] == []
    (row,) = found.rows["kernels"]
    assert "divergence" not in row and "most" not in row and row["share"] == 0
    found = ask("branch_divergence", trace("branch_divergence", [[(64, 32, 0)]]))
    assert found.verdicts["kernels"][1].startswith("no branch diverges: of 64 lanes")


def test_barrier_waits_name_the_late_warp():
    block = [(1000, 10), (1000, 10), (50, 10), (1000, 10)]
    found = ask("sync_wait", trace("sync_wait", [block, block]))
    (row,) = found.rows["kernels"]
    assert (row["wait"], row["p50"], row["most"], row["waits"], row["clocks"]) == (76.25, 100, 100, 80, 6100)
    assert [(r["warp"], r["wait"], r["waits"]) for r in found.rows["places"]] == [
        (0, 100, 20), (1, 100, 20), (2, 5, 20), (3, 100, 20),
    ]  # fmt: skip
    told = found.verdicts["kernels"][1]
    assert "76.2 clocks, imbalance 95.0 %; others wait for warp 2 of their block: 100 clocks, itself 5" in told
    even = ask("sync_wait", trace("sync_wait", [[(100, 1), (100, 1)]])).verdicts["kernels"][1]
    assert even.endswith("100 clocks, imbalance 0.0 %")


def test_latency_counts_each_load_of_a_lane():
    found = ask("inst_latency", trace("inst_latency", [[(32, 32 * 400), (96, 96 * 800)], [(0, 0), (32, 32 * 30)]]))
    (row,) = found.rows["kernels"]
    assert (row["latency"], row["p50"], row["most"]) == ((400 + 3 * 800 + 30) / 5, 400, 800)
    assert "a load takes 566 clocks on average (160 loads); 100 % of that in " in found.verdicts["kernels"][1]
    assert sum(r["warps"] for r in found.rows["warps"]) == 3  # the fourth warp has no ratio


@pytest.mark.full
@pytest.mark.parametrize("name", MAPS)
def test_pictures_and_narrow_tables(name, tmp_path):
    size = len(MAPS[name][1])
    data = forge.pack(trace(name, [[(5, 3, 2)[:size]]], kernel="k" * 4096))
    done = run(name, "--plot", tmp_path / "p.png", data=data)
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"
    assert max(map(len, done.stdout.decode().splitlines())) <= 80
    assert len(run(name, "--format", "md", data=data).stdout) <= 8000


@pytest.mark.parametrize("name", MAPS)
def test_trace_without_the_map(name):
    done = run(name, data=forge.pack(forge.trace(forge.launches({1: 2}))))
    fact = f"no map '{name}' in the trace: 'gpt-hook run -p {name}' records one"
    assert (done.returncode, done.stderr.decode()) == (1, f"gpt-analyze: error: {fact}\n")


@pytest.mark.parametrize("name", MAPS)
def test_run_where_the_probe_matched_nothing(name):
    """The probe was requested, so the message about the missing map says why no launch has it."""
    rejected = records.make("unprobed", function=1, reason="no probe applies to it", launches=23)
    kernel = records.make("function", id=1, name="k1")
    done = run(name, data=forge.pack(forge.trace(kernel, forge.launches({1: 23}), rejected)))
    fact = f"no map '{name}' in the trace: 'gpt-hook run -p {name}' records one"
    why = "0 launches ran with probes, 23 without: no probe applies to it (23)"
    assert (done.returncode, done.stderr.decode()) == (1, f"gpt-analyze: error: {fact}; {why}\n")


def test_clocks_that_went_back_break_nothing():
    found = ask("sync_wait", trace("sync_wait", [[((1 << 64) - 5, (1 << 32) - 1), (7, 1)]]))
    assert found.rows["kernels"][0]["waits"] == 1 << 32 and len(found.rows["places"]) == 2
