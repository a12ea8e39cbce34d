"""--node-times: every Nth replay runs a copy of the graph with stamps, and the program notices nothing."""

from __future__ import annotations

import os
import shutil

import numpy as np
import pytest

from gpt.screen.units import human_time
from gpt.trace.clock import Clock
from tests.analyze.asked import Answers, run
from tests.runtime import hooked
from tests.runtime.probing import kept

PROGRAM = hooked.PROGRAMS / "node_times.c"
MS = (1, 3, 2, 6)  # how long the kernels take that it captures


def recorded(folder, scenario: str, share: str = "1/3") -> tuple[hooked.Trace, str]:
    """Run a scenario without and with the option. Return the trace and the output of the run with it."""
    program = hooked.compile_c(folder / "client", PROGRAM, f"-I{hooked.ROOT}/runtime")
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept()}
    plain = hooked.run(folder / "plain.mp", program, scenario, env=env)
    done = hooked.run(folder / "t.mp", program, scenario, options=("--node-times", share), env=env)
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)
    assert plain.returncode == 0 and plain.stdout
    assert not hooked.Trace(folder / "plain.mp").of("node_times")
    return hooked.Trace(folder / "t.mp"), done.stdout


def replays(trace: hooked.Trace) -> list[int]:
    """Return the starts of the calls that launched a graph."""
    launch = {one["id"] for one in trace.of("api") if one["name"] == "cuGraphLaunch"}
    return [call["start"] for call in trace.calls if call["api"] in launch and call["result"] == 0]


def ns(trace: hooked.Trace, ticks) -> list[float]:
    """Convert durations as the reader does: `clock` records correct the header's rate."""
    clock = Clock(trace.records[0])
    for record in trace.of("clock"):
        clock.add(record)
    return clock.durations(np.array(ticks, np.uint64)).tolist()


def names(trace: hooked.Trace, record) -> list[str | None]:
    known = {one["id"]: one["name"] for one in trace.of("function")}
    return [known.get(function) for function in record["functions"]]


def test_each_node_in_every_third_replay(tmp_path):
    trace, _ = recorded(tmp_path, "plain")
    found, calls = trace.of("node_times"), replays(trace)
    assert [calls.index(one["start"]) for one in found] == [2, 5, 8]  # the third, sixth and ninth of ten
    (nodes,) = trace.of("graph_nodes")
    gpu = {row["call"]: row for record in trace.of("gpu_times") for row in hooked.rows(record)}
    for one in found:
        assert one["types"] == [0, 0, 0, 0, 1] and names(trace, one) == ["spin"] * 4 + [None]
        assert one["functions"][:4] == nodes["functions"] and one["calls"][:4] == nodes["calls"]
        took = ns(trace, one["durations"])
        assert all(took[at] >= 1e6 * ms for at, ms in enumerate(MS)) and took[4] < 1e6
        ends = [begin + took for begin, took in zip(one["begins"], one["durations"], strict=True)]
        assert one["begins"] == [0, *ends[:-1]]
        row = gpu[one["start"]]  # the nodes are within the replay
        assert row["begin"] <= one["begin"] and one["begin"] + ends[-1] <= row["begin"] + row["duration"]


def test_each_replay(tmp_path):
    trace, _ = recorded(tmp_path, "plain", "1")
    assert [one["start"] for one in trace.of("node_times")] == replays(trace)


def test_changes_of_nodes_reach_the_copy(tmp_path):
    trace, printed = recorded(tmp_path, "parameters")
    found = trace.of("node_times")
    assert printed.split()[:12] == ["12", "0", "18", "18", "0", "0", "0", "0", "6", "12", "0", "0"]
    assert [names(trace, one)[1] for one in found[:4]] == ["spin", "spin", "other", "other"]
    assert ns(trace, found[0]["durations"])[1] >= 4e6 and ns(trace, found[2]["durations"])[1] < 4e6
    assert [names(trace, one) for one in found[4:]] == [["other", "spin", "spin", None]] * 2  # the first is disabled


def test_updates_reach_the_copy(tmp_path):
    trace, _ = recorded(tmp_path, "update")
    calls = replays(trace)
    assert [calls.index(one["start"]) for one in trace.of("node_times")] == [2, 5, 8, 11]
    assert {tuple(names(trace, one)) for one in trace.of("node_times")} == {("spin", "spin", "other", "spin", None)}


@pytest.mark.parametrize("share", ["1", "1/3"])
def test_replays_in_several_streams_run_one_after_another(tmp_path, share):
    """Each replay adds to counters with atomics, and then copies them. The copy has the complete sums."""
    trace, _ = recorded(tmp_path, "streams", share)
    calls = replays(trace)
    first = [calls.index(one["start"]) for one in trace.of("node_times")]
    assert first and all(at % 3 for at in first[1:])  # not the first in another stream


def test_a_loop_over_captured_batch_sizes(tmp_path):
    trace, printed = recorded(tmp_path, "batches", "1/2")
    counts = {0: 4, 1: 6, 2: 6}  # steps of each size
    assert [int(word) for word in printed.split()[:6]] == [2 * counts[at // 2] for at in range(6)]
    by_graph = {}
    for one in trace.of("node_times"):
        by_graph.setdefault(one["exec"], []).append(ns(trace, one["durations"]))
    execs = [graph["exec"] for graph in trace.of("graph")]
    assert [len(by_graph[one]) for one in execs] == [2, 3, 3]  # every second step of each size
    for size, exec_ in enumerate(execs):
        assert all(took[at] >= 1e6 * (2 if at % 2 else 1 << size) for took in by_graph[exec_] for at in range(4))
    done = run("summary", "--json", "--by", "layer", tmp_path / "t.mp")
    rows = {row["name"]: row for row in Answers(done.stdout).rows["by_layer"]}
    assert [rows[f"layers.{layer}"]["launches"] for layer in range(2)] == [32, 32]
    assert all(rows[f"layers.{layer}"]["gpu_total"] > 16 * 3e6 for layer in range(2))
    assert "(graphs, not split)" not in rows and not any(row.get("split") for row in rows.values())


def test_executable_graph_destroyed_while_running(tmp_path):
    trace, printed = recorded(tmp_path, "destroyed", "1")
    assert printed.split()[:4] == ["5"] * 4
    assert [one["start"] for one in trace.of("node_times")] == replays(trace)


def test_another_context(tmp_path):
    trace, _ = recorded(tmp_path, "contexts", "1")
    calls = replays(trace)
    timed = [calls.index(one["start"]) for one in trace.of("node_times")]
    assert not {0, 1, 2} & {*timed} and {4, 5, 8} <= {*timed}  # in the context that it was instantiated in


def test_edges_that_add_nothing(tmp_path):
    trace, _ = recorded(tmp_path, "skipping", "1/2")
    found = trace.of("node_times")
    assert len(found) == 3
    for one in found:
        assert all(took >= 1e6 * (at + 1) for at, took in enumerate(ns(trace, one["durations"])))
        assert one["early"] == [0] * 4


def test_a_captured_launch_is_left_alone(tmp_path):
    trace, _ = recorded(tmp_path, "captured", "1")
    assert len(trace.of("node_times")) == 6


def test_graphs_that_are_refused(tmp_path):
    trace, _ = recorded(tmp_path, "refused", "1")
    codes = ["nodes_parallel", "nodes_memory", "nodes_child", "nodes_host", "nodes_other"]
    assert [one["code"] for one in trace.of("untimed")] == codes and not trace.of("node_times")
    done = run("graphs", "--json", tmp_path / "t.mp")
    said = Answers(done.stdout).verdicts["nodes"]
    assert [line[:26] for line in said] == [f"graph {number}: no times of nodes" for number in range(1, 6)]
    assert "its nodes don't run strictly one after another; 'gpt-hook run -p block_sched'" in said[0]


@pytest.mark.parametrize("share", ["1", "1/4"])
def test_a_failing_kernel_fails_as_always(tmp_path, share):
    _, printed = recorded(tmp_path, "failing", share)
    assert printed == "failed 0 700 700\n"


def test_the_answer(tmp_path):
    trace, _ = recorded(tmp_path, "plain")
    done = run("graphs", "--json", tmp_path / "t.mp")
    found = Answers(done.stdout)
    rows = found.rows["nodes"]
    assert [(row["node"], row["kernel"], row["timed"]) for row in rows] == [
        *((at, "spin", 3) for at in range(1, 5)), (5, "(memcpy)", 3),
    ]  # fmt: skip
    assert all(row["least"] >= 1e6 * ms - row["stamps"] for row, ms in zip(rows, MS, strict=False))
    timed = {one["start"] for one in trace.of("node_times")}
    gpu = [row for record in trace.of("gpu_times") for row in hooked.rows(record)]
    bare = sorted(row["duration"] for row in gpu if row["call"] in replays(trace) and row["call"] not in timed)
    assert len(bare) == 7
    whole = ns(trace, [bare[3]])[0]
    took = sum(row["time"] for row in rows)
    assert abs(took - whole) < 5 if rows[0]["stamps"] else took <= whole
    assert f" {human_time(whole)}, the median of replays without stamps" in found.verdicts["nodes"][0]
    assert all(row["least"] <= row["time"] <= row["most"] for row in rows)
    assert sum(row["share"] for row in rows) == pytest.approx(100, abs=0.1)
    assert found.verdicts["nodes"][0].startswith("graph 1: 3 replays of 10 ran a copy with a stamp between any two")
    assert "such a replay took" in found.verdicts["nodes"][1]


def test_events_are_the_stamps_if_the_driver_lacks_a_function(tmp_path):
    program = hooked.compile_c(tmp_path / "client", PROGRAM, f"-I{hooked.ROOT}/runtime")
    folder = shutil.copytree(hooked.runtime() / "sim", tmp_path / "sim", symlinks=True)
    driver, name = folder / "libcuda.so.1", b"\0cuMemHostGetDevicePointer_v2\0"
    image = driver.read_bytes()
    assert name in image
    driver.write_bytes(image.replace(name, name.replace(b"v2", b"vX")))
    env = os.environ | {"GPT_SIM_RUN": "all", "XDG_CACHE_HOME": kept(), "LD_LIBRARY_PATH": str(folder)}
    done = hooked.run(tmp_path / "t.mp", program, "plain", options=("--node-times", "2"), device="real", env=env)
    assert done.returncode == 0, done.stderr
    trace = hooked.Trace(tmp_path / "t.mp")
    found = trace.of("node_times")
    assert len(found) == 5
    for one in found:
        assert all(took >= 1e6 * ms for took, ms in zip(ns(trace, one["durations"]), MS, strict=False))


def test_node_times_rejects_probes_and_bad_shares(tmp_path):
    for options in (("-p", "block_sched", "--node-times", "2"), ("--node-times", "1/0"), ("--node-times", "x")):
        done = hooked.run(tmp_path / "t.mp", "true", options=options)
        assert done.returncode == 2 and "--node-times" in done.stderr
