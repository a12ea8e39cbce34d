"""gpt-analyze graphs on replays of hand-made graphs, and of a graph on the simulated device."""

import struct

import pytest

from gpt.stream import records
from gpt.trace.modules import LAYERS
from tests.analyze.asked import ask, run
from tests.trace import forge

APIS = [forge.api(1, "cuGraphLaunch"), forge.api(2, "cuLaunchKernel")]
KERNELS = [records.make("function", id=n, name=f"k{n}") for n in (1, 2, 3)]
MAP = forge.probe_map("block_sched", **forge.BLOCK_SCHED)
FIRST, SECOND = 0x7F00, 0x7F80


def made(exec_, at, nodes=9, **launches):
    ids = [int(name[1:]) for name in launches]
    return records.make("graph", exec=exec_, at=at, nodes=nodes, functions=ids, launches=list(launches.values()))


def replays(*found):
    """Return calls (start, duration, result, handle)."""
    return forge.calls([(start, took, 1, result, handle, 0) for start, took, result, handle in found], forge.OBJECT)


def warp(start, took):
    """Pack the record of a block of one warp, whose clock runs at 1 GHz."""
    return struct.pack("<QQQII", 1, start, start + took, took, 0)


def test_kernels_by_graph():
    calls = replays(
        (2000, 9, 0, FIRST), (3000, 5, 0, FIRST), (4000, 7, 1, FIRST), (5000, 5, 0, SECOND), (9000, 5, 0, FIRST)
    )
    known = made(FIRST, 1000, 5, f1=3, f2=1), made(SECOND, 1500, f2=10), made(FIRST, 8000, 2, f3=2)
    found = ask("graphs", forge.trace(*APIS, *known[:2], *KERNELS, calls, known[2]))  # fmt: skip
    rows = [(r["graph"], r["exec"], r["nodes"], r["kernels"], r["replays"], r["call"]) for r in found.rows["graphs"]]
    assert rows == [(1, FIRST, 5, 4, 2, 5), (2, SECOND, 9, 10, 1, 5), (3, FIRST, 2, 2, 1, 5)]
    rows = [(r["kernel"], r["graph"], r["replay"], r["launches"]) for r in found.rows["kernels"]]
    assert rows == [("k2", 2, 10, 10), ("k1", 1, 3, 6), ("k2", 1, 1, 2), ("k3", 3, 2, 2)]
    assert "'gpt-hook run --gpu-time'" in found.verdicts["graphs"][0]
    assert "'gpt-hook run -p block_sched'" in found.verdicts["kernels"][0]


def test_times_of_replays_and_of_the_kernels_in_them(tmp_path):
    times = forge.gpu_times([(2000, 70, 1, 0), (3000, 90, 1, 0), (2500, 1000, 2, 1)])
    probed, saved = [], []
    for number, (function, took) in enumerate(((1, 300), (1, 100), (2, 600))):
        one = forge.probed(number, 10 + function, function, 2, 32)
        probed.append({**one, "start": 2000, "exec": FIRST})
        saved.append(forge.buffer(number, warp(100, took) + warp(100 + took, took)))
    codes = [forge.kernel(10 + n, n, f"k{n}", 1) for n in (1, 2)]
    segment = [*APIS, made(FIRST, 1000, f1=2, f2=1), *KERNELS, replays((2000, 9, 0, FIRST), (3000, 5, 0, FIRST)), times]
    whole = forge.trace(*segment, MAP, *codes, *probed, *saved)
    (tmp_path / "g.png").write_bytes(b"\x89PNG\r\n\x1a\n")  # a picture may be replaced, since it isn't a trace
    done = run("graphs", "--plot", tmp_path / "g.png", data=forge.pack(whole))
    assert (done.returncode, done.stderr) == (0, b"") and (tmp_path / "g.png").stat().st_size > 1000
    found = ask("graphs", whole)
    (row,) = found.rows["graphs"]
    assert (row["time"], row["p50"], row["longest"]) == (160, 70, 90)
    rows = [(r["kernel"], r["probed"], r["time"], r["mean"], r["share"]) for r in found.rows["kernels"]]
    assert rows == [("k2", 1, 1200, 1200, 60), ("k1", 2, 800, 400, 40)]
    card = records.make("device", index=0, name="X", arch="sm_90", uuid="GPU-1", runs="sass", clock_hz=500_000_000)
    short = [forge.buffer(number, warp(100, 300) * 2) for number in range(3)]  # the warps end immediately
    rows = ask("graphs", forge.trace(card, *segment, MAP, *codes, *probed, *short)).rows["kernels"]
    assert [(r["kernel"], r["time"]) for r in rows] == [("k1", 1200), ("k2", 600)]
    gone = [forge.buffer(number, b"", lost="only sums") | {"size": 80} for number in (1, 2)]
    found = ask("graphs", forge.trace(*segment, MAP, *codes, *probed, saved[0], *gone))
    assert [(r["kernel"], r["probed"], r.get("time"), r.get("mean")) for r in found.rows["kernels"]] == [
        ("k1", 2, 600, 600), ("k2", 1, None, None)
    ]  # fmt: skip
    assert [line.partition(",")[0] for line in found.verdicts["kernels"]] == [
        "1 of these kernels has probes", "1 of these kernels has times for some launches only"
    ]  # fmt: skip


def test_kernels_of_one_name_are_one_row():
    """Programs compile many modules, and kernels in them may share a name, as tinygrad's do: 3 + 2 nodes of k."""
    twins = [records.make("function", id=n, name="k") for n in (4, 5)]
    calls = replays((2000, 9, 0, FIRST), (3000, 5, 0, FIRST))
    found = ask("graphs", forge.trace(*APIS, made(FIRST, 1000, 6, f4=3, f5=2, f1=1), *KERNELS, *twins, calls))
    rows = [(r["kernel"], r["replay"], r["launches"]) for r in found.rows["kernels"]]
    assert rows == [("k", 5, 10), ("k1", 1, 2)]


def test_kernel_looked_up_again_for_capture_has_times():
    """The graph has a different id for the kernel than the launches with probes."""
    again = [records.make("function", id=n + 10, name=f"k{n}") for n in (1, 2)]
    one = {**forge.probed(1, 11, 1, 2, 32), "start": 2000, "exec": FIRST}
    segment = [*APIS, made(FIRST, 1000, f11=2, f12=1), *KERNELS, *again, replays((2000, 9, 0, FIRST)), MAP]
    segment += [forge.kernel(11, 1, "k1", 1), one, forge.buffer(1, warp(100, 300) + warp(400, 300))]
    rows = ask("graphs", forge.trace(*segment)).rows["kernels"]
    assert [(r["kernel"], r["replay"], r.get("probed"), r.get("time")) for r in rows] == [
        ("k1", 2, 1, 600), ("k2", 1, None, None)
    ]  # fmt: skip


@pytest.mark.full
def test_missing_graphs_are_reported():
    for segment, fact in (
        ([*APIS, forge.calls([(5, 1, 2, 0)])], "no CUDA graph in the trace: the program made none"),
        ([*APIS, made(FIRST, 5, f1=1)], "no graph was launched while calls were recorded"),
        ([forge.probe_map("x", a="u32")], "no CUDA graph in the trace"),
    ):
        done = run("graphs", data=forge.pack(forge.trace(*segment)))
        assert done.returncode == 1 and fact in done.stderr.decode()
    found = ask("graphs", forge.trace(*APIS, made(FIRST, 5000, f1=0), replays((100, 1, 0, FIRST), (6000, 1, 0, FIRST))))
    assert [(r["nodes"], r["replays"]) for r in found.rows["graphs"]] == [(0, 1), (9, 1)]  # the first graph isn't known
    assert "not counted: launches of 1 kernel in conditional or disabled nodes" in found.verdicts["kernels"][1]


def test_launches_that_did_not_return_are_not_counted():
    calls = replays((2000, 0, 0, FIRST), (3000, 5, 0, FIRST), (4000, 7, 0, FIRST))
    times = forge.gpu_times([(3000, 90, 1, 0)])
    found = ask("graphs", forge.trace(*APIS, made(FIRST, 1000, 3, f1=3), *KERNELS, calls, times))
    (row,) = found.rows["graphs"]
    assert (row["replays"], row["call"], row["time"]) == (2, 5, 90)
    assert [row["launches"] for row in found.rows["kernels"]] == [6]
    assert found.verdicts["graphs"][0] == "no GPU time for 1 replay: the times leave them out"


def test_launches_of_graphs_that_were_made_earlier_are_not_an_error():
    done = run("graphs", data=forge.pack(forge.trace(*APIS, replays((100, 5, 0, FIRST)))))
    assert (done.returncode, done.stderr) == (0, b"")
    text = " ".join(done.stdout.decode().split())
    assert "not in this trace: the work in 1 launch of graphs that were made before recording began" in text
    assert "kernels of graphs" not in text  # tables without rows have no titles


def test_modules_of_the_nodes():
    ranges = []
    for number, (name, begin, end) in enumerate((("layers.0", 100, 200), ("layers.1", 200, 300)), 1):
        more = {"type": "push", "thread": 1, "domain": LAYERS, "name": name, "start": begin}
        ranges += [records.make("range", id=number, **more), records.make("range_end", id=number, thread=1, end=end)]
    calls = [150, 250, 250, 350]
    nodes = records.make("graph_nodes", exec=FIRST, at=1000, functions=[1, 1, 2, 2], threads=[1] * 4, calls=calls)
    segment = [*APIS, *ranges, made(FIRST, 1000, f1=2, f2=2), nodes, *KERNELS]
    found = ask("graphs", forge.trace(*segment, replays((2000, 9, 0, FIRST), (3000, 5, 0, FIRST))))
    assert [(row["module"], row["replay"], row["launches"]) for row in found.rows["modules"]] == [
        ("layers.N", 3, 6), ("(unknown)", 1, 2),
    ]  # fmt: skip


def test_kernel_that_takes_most_of_a_replay_is_named_without_times_of_nodes():
    """Outside of graphs, k1 takes 20 us and k2 takes 3 us. A replay of 30 us runs them once and twice."""

    def tell(*outside):
        times = [(100_000 * at, took, 2, function) for at, (function, took) in enumerate(outside, 1)]
        times += [(5_000_000 + 100_000 * at, 30_000, 1, 0) for at in range(3)]
        called = replays(*((5_000_000 + 100_000 * at, 9, 0, FIRST) for at in range(3)))
        segment = forge.trace(*APIS, *KERNELS, made(FIRST, 10, 3, f1=1, f2=2), called, forge.gpu_times(times))
        return ask("graphs", segment).verdicts["graphs"]

    told = ["graph 1: k1 takes 66.7 % of a replay, in 1 node, going by times outside of graphs"]
    assert tell((1, 20_000), (2, 3_000)) == tell((1, 18_000), (1, 22_000)) == told
    assert tell((2, 3_000)) == []
