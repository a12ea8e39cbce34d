"""gpt-analyze launches on hand-made timelines, compared with a plain implementation."""

import io

import pytest

from gpt.analyze.launches import Launches
from gpt.stream import wire
from gpt.trace.model import TraceModel
from gpt.trace.process import iter_processes
from tests import tiers
from tests.analyze.asked import answers, ask, run
from tests.analyze.segments import make_segments
from tests.analyze.working import Made, steps
from tests.trace import forge

US = 1000


def test_a_graph_saves_nothing_if_the_gpu_is_the_limit():
    made = Made()
    for number in range(20):
        made.call("cuLaunchKernel", 10 * number, 4, 10 + 500 * number, 490, function=number % 2 + 1)
    assert ask("launches", made.segment()).verdicts["units"][:1] == [
        "a CUDA graph of the 2 launches would save nothing: their work keeps the GPU busy for all of the 20.0us"
    ]


def test_a_graph_saves_only_the_time_of_launches():
    """Two launches of 5 us in steps of 1000 us, most of which are spent in an allocation."""
    made = Made()
    for number in range(10):
        at = 1000 * number
        made.call("cuLaunchKernel", at, 5, at + 5, 100, function=1).call("cuMemAlloc", at + 10, 900)
        made.call("cuLaunchKernel", at + 950, 5, at + 955, 20, function=2)
    assert ask("launches", made.segment()).verdicts["units"][:1] == [
        "none of the 2 launches runs on the GPU for 88.0 % of the 1.00ms, but launch calls take only 10.0us: a CUDA "
        "graph helps only if it also replaces the host's other work, which 'gpt-analyze idle' shows"
    ]


def picked(row, *names):
    return tuple(row[name] / US if isinstance(row[name], int) and name not in COUNTS else row[name] for name in names)


COUNTS = ("launches", "timed", "count", "length", "times")
SUMS = ("launches", "call", "work", "delay")


def test_launches_and_their_work():
    found = ask("launches", steps().segment())
    (row,) = found.rows["launches"]
    assert picked(row, *SUMS) == (12, pytest.approx(10 / 3, abs=1e-3), 5.0, pytest.approx(13 / 3, abs=1e-3))
    assert (row["starved"], row["short"]) == (pytest.approx(200 / 3), pytest.approx(200 / 3))
    assert picked(row, "delay_p50", "delay_p99", "delay_most", "span") == (5.0, 5.0, 5.0, 113.0)
    assert row["depth"] == pytest.approx(12 * (13 / 3 + 5) / 113)
    assert found.verdicts["launches"][0] == (
        "launch-bound: 66.7 % of 12 launches found the GPU with nothing to do; on average, a call takes 3.33us and its "
        "work on the GPU 5.00us; in 66.7 % of launches, the work is shorter"
    )


def test_savings_of_a_graph_and_of_fusion_are_estimated():
    found = ask("launches", steps().segment())
    (row,) = found.rows["units"]
    assert picked(row, "length", "times", "took", "calls", "work") == (3, 4, 30.0, 10.0, 15.0)
    assert picked(row, "delay") == (pytest.approx(13 / 3, abs=1e-3),) and row["ahead"] == pytest.approx(1 / 3)
    assert (row["unit"], row["graph"], row["fusion"]) == ("k1", 50.0, pytest.approx(100 * 20 / 30))
    rows = [(row["kernel"], row["count"], *picked(row, "call", "work", "delay")) for row in found.rows["sequence"]]
    assert rows == [("k1", 2, 4.0, 2.5, 5.0), ("k2", 1, 2.0, 10.0, 3.0)]
    assert [row["short"] for row in found.rows["sequence"]] == [100.0, 0.0]
    assert found.verdicts["units"] == [
        "a CUDA graph of the 3 launches could save at most 50.0 % of the 30.0us: the time in which none of them runs "
        "on the GPU; fusing kernels that are shorter than their launch calls, too, could save 66.7 % in all",
        "on average, work in this unit begins 4.33us after its call begins, with 0.333 launches ahead of it",
    ]


def test_ranges_have_their_own_sums():
    made = steps().range("outer", 0, 65).range("inner", 31, 36)
    rows = {row["range"]: picked(row, *SUMS) for row in ask("launches", made.segment()).rows["ranges"]}
    assert rows["inner"] == (1, 4.0, 3.0, 5.0) and rows["outer"][0] == 6 and rows["(no range)"][0] == 5


def test_queue_never_empty():
    made = Made()
    for number in range(10):
        made.call("cuLaunchKernel", 3 * number, 2, 5 + 20 * number, 20)
    found = ask("launches", made.segment())
    (row,) = found.rows["launches"]
    assert row["starved"] == 10.0 and row["short"] == 0
    assert found.verdicts["launches"][0].startswith(
        "not launch-bound: 10.0 % of 10 launches found the GPU with nothing to do"
    )
    assert max(row["depth"] for row in found.rows["depth"]) == 9  # two launches had ended when the last one was made


def test_host_late_for_other_reasons():
    made = Made()
    for number in range(10):
        made.call("cuLaunchKernel", 100 * number, 5, 100 * number + 6, 50)
    (told, _) = ask("launches", made.segment()).verdicts["launches"]
    assert told.startswith("the host launches late, but launch calls are short: 100.0 % of 10 launches")


def test_a_graph_is_one_launch():
    made = Made().call("cuGraphLaunch", 0, 5, 10, 100).call("cuGraphLaunch", 200, 5, 210, 100)
    made.call("cuGraphLaunch", 400, 5, 410, 100)
    found = ask("launches", made.segment())
    assert [(row["kernel"], row["work"] / US) for row in found.rows["sequence"]] == [("(a graph)", 100.0)]


def test_missing_recordings_are_reported():
    done = run("launches", data=forge.pack(Made().call("cuLaunchKernel", 0, 5).segment()))
    assert done.returncode == 1 and b"'gpt-hook run --gpu-time' records when kernels ran" in done.stderr
    done = run("launches", data=forge.pack(Made().call("cuMemAlloc", 0, 5).segment()))
    assert done.returncode == 1 and b"no launch is recorded as a call" in done.stderr


@pytest.mark.parametrize("seed", tiers.every(8, range(40)))
def test_the_same_as_looking_at_each_launch(seed):
    segments = make_segments(seed, 120)
    model = TraceModel(drains=True)
    for process in iter_processes(wire.read_records(io.BytesIO(forge.pack(*segments)), "in"), Launches.kinds):
        model.take(process)
        model.end(process)
    found = {row["pid"]: row for row in answers("launches", *segments).rows.get("launches", [])}
    calls, work = model.calls(), model.gpu_times()
    good = (model.chosen(calls, type="kernel") | model.chosen(calls, type="graph", op="launch")) & (
        calls["result"] == 0
    )
    for number, process in enumerate(model.processes):
        mine = [row for row in calls[good & (calls["process"] == number)] if row["duration"] > 0]
        own = {}
        for row in work[work["process"] == number]:
            own.setdefault((int(row["call"]), int(row["thread"])), row)
        timed = [(row, own[key]) for row in mine if (key := (int(row["start"]), int(row["thread"]))) in own]
        if not mine:
            assert process.pid not in found
            continue
        row = found[process.pid]
        assert (row["launches"], row["timed"]) == (len(mine), len(timed))
        if not timed:
            continue
        ends = [int(one["begin"] + one["duration"]) for _, one in timed]
        done = [int(call["start"] + call["duration"]) for call, _ in timed]
        both = list(zip(done, ends, strict=True))
        starved = sum(not any(one != at and done[one] <= mine < ends[one] for one in range(len(both)))
                      for at, (mine, _) in enumerate(both))  # fmt: skip
        assert row["starved"] == pytest.approx(100 * starved / len(timed))
        short = sum(one["duration"] < call["duration"] for call, one in timed)
        delay = sum(max(0, int(one["begin"] - call["start"])) for call, one in timed) / len(timed)
        assert row["short"] == pytest.approx(100 * short / len(timed)) and row["delay"] == round(delay)
