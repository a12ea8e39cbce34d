"""gpt-analyze summary answers questions about an inference: traces with known answers."""

import random

import pytest

from gpt.stream import records
from tests.analyze.asked import ask, run
from tests.analyze.working import Made
from tests.trace import forge

NAMES = ("cuMemAlloc", "cuMemcpyHtoD", "cuLaunchKernel", "cuStreamSynchronize", "cuGraphLaunch", "cuInit")
APIS = [forge.api(number, name) for number, name in enumerate(NAMES, 1)]
ALLOC, COPY, LAUNCH, SYNC, GRAPH, INIT = range(1, 7)
KERNELS = [records.make("function", id=n, name=f"k{n}") for n in range(1, 9)]
US, ZERO = 1000, 10**6


def launch(at, kernel, stream=0):
    return forge.launch(ZERO + at * US, 2 * US, LAUNCH, kernel, stream)


def call(at, api, took=1):
    return (ZERO + at * US, took * US, api, 0)


def copy(at, size):
    return (ZERO + at * US, 5 * US, COPY, 0, 0, 0, size, 0)


def ioctl(name, at, **more):
    return {"kind": "ioctl", "thread": 1, "device": "/dev/nvidiactl", "request": 42, "name": name,
            "start": ZERO + at * US, "duration": 3 * US, **more}  # fmt: skip


def inference(*more, tokens=10):
    """Return six calls, a 4 KiB copy, a warm-up of two launches, and tokens of four launches and a wait, 50 us each."""
    calls = [call(at, api) for at, api in ((0, INIT), (10, ALLOC), (20, ALLOC), (30, ALLOC), (40, ALLOC))]
    launches = [launch(100, 7), launch(110, 8)]
    for token in range(tokens):
        at = 200 + 50 * token
        launches += [launch(at + 5 * n, kernel) for n, kernel in enumerate((1, 2, 2, 3))]
        calls.append(call(at + 20, SYNC, 10))
    calls.append(call(2000, ALLOC))
    packed = [forge.calls(calls), forge.calls([copy(50, 4096)], forge.MEMORY), forge.calls(launches, forge.LAUNCH)]
    return forge.trace(*APIS, *KERNELS, *packed, *more)


def questions(found):
    return {row["question"]: row for row in found.rows["questions"]}


def test_processes_are_named_by_rank():
    first, second = inference(), inference(tokens=12)
    for number, segment in enumerate((first, second)):
        segment[0] |= {"rank": number, "pid": 10 + number}
    found = ask("summary", first, second)
    assert {(row["phase"], row["rank"], row["pid"]) for row in found.rows["phases"] if row["phase"] == "loading"} == {
        ("loading", 0, 10), ("loading", 1, 11),
    }  # fmt: skip
    assert [(row["rank"], row["pid"]) for row in found.rows["iterations"]] == [(1, 11), (0, 10)]
    assert questions(found)["kernels an iteration"]["evidence"].startswith(
        "rank 1, process 11: the same 4 launches 12 times"
    )
    found = ask("summary", first, second, args=("--rank", 0))
    assert [row["pid"] for row in found.rows["iterations"]] == [10]
    text = run("summary", data=forge.pack(first, second)).stdout.decode()
    heading, *rows = text[text.index("begins with") :].splitlines()[:3]  # two rows with one name each
    assert "pid" in heading and [row.split()[2:4] for row in rows] == [["1", "11"], ["0", "10"]]
    assert max(map(len, text.splitlines())) <= 80


def test_the_gpu_is_idle_after_the_work_that_ended_last():
    """The longest idle period follows the work that ends last, which needn't be the work that began last."""
    times = [
        (ZERO + 210 * US, 60 * US, LAUNCH, 1),
        (ZERO + 220 * US, 10 * US, COPY, 0),
        (ZERO + 300 * US, US, LAUNCH, 2),
    ]
    evidence = questions(ask("summary", inference(forge.gpu_times(times))))["idle periods of the GPU"]["evidence"]
    assert "30.0us of the 91.0us from its first work to its last, in 1 period; the longest, 30.0us, began " in evidence
    assert "between k1 and k2" in evidence and "other processes" not in evidence
    other = inference()
    other[0] |= {"pid": 11}
    evidence = questions(ask("summary", inference(forge.gpu_times(times)), other))["idle periods of the GPU"][
        "evidence"
    ]
    assert "30.0us of the 91.0us" in evidence and "work of other processes does not count" in evidence


def test_questions_are_answered_from_the_trace():
    times = [(ZERO + 205 * US + 50 * US * n, 20 * US, LAUNCH, 1) for n in range(10)]
    times.append((ZERO + 52 * US, 4 * US, COPY, 0))
    controls = [ioctl("NV_ESC_RM_CONTROL", 60 + n, command=command) for n, command in
                enumerate((0xA06C0101, 0xA06C0101, 0xA06F0104, 0x20800102))]  # fmt: skip
    segment = inference(forge.gpu_times(times), *controls, ioctl("NV_ESC_RM_ALLOC", 64))
    found = ask("summary", segment, args=["--verbose"])
    asked = questions(found)
    assert {name: (row["short"], row["value"]) for name, row in asked.items()} == {
        "calls of loading": ("6 of 59 calls", 6),
        "kernels an iteration": ("4, 10 times", 4),
        "compute against copies": ("50 : 1 (98.0 % compute)", 50),
        "idle periods of the GPU": ("67.3 % of the time", pytest.approx(100 * (9 * 30 + 149) / (9 * 50 + 20 + 153))),
        "in cuStreamSynchronize": ("100us, 3.3 % of the time", 100 * US),
        "ioctls to nvidia.ko": ("5 calls of 2 kinds", 5),
        "scheduler of the GPU": ("3 ioctls to schedule channels", 3),
    }
    evidence = {name: row["evidence"] for name, row in asked.items()}
    assert evidence["calls of loading"].endswith("in the 100us until its first launch: memory 4, memcpy 1, other 1")
    assert "the same 4 launches 10 times, from launch 3 (k1) on, 95.2 % of its launches; each takes 50.0us" in \
        evidence["kernels an iteration"]  # fmt: skip
    idle = "419us of the 623us from its first work to its last, in 10 periods; the longest, 149us, began 1.06ms after "
    assert f"{idle}the process, between a copy (cuMemcpyHtoD) and k1" in evidence["idle periods of the GPU"]
    assert "schedule a group of channels 2, bind a channel to an engine 1" in evidence["scheduler of the GPU"]
    assert not any("option" in row for row in asked.values())
    (row,) = found.rows["iterations"]
    assert (row["scope"], row["unit"], row["first_kernel"], row["launches"], row["kernels"]) == (
        "all", "iteration", "k1", 4, 4,
    )  # fmt: skip
    assert (row["count"], row["first"], row["begin"], row["time"]) == (10, 3, ZERO + 200 * US, 50 * US)
    phases = [(row["phase"], row["calls"], row["launches"], row["time"]) for row in found.rows["phases"]]
    assert phases == [("loading", 6, 0, 100 * US), ("before iterations", 2, 2, 100 * US),
                      ("iterations", 50, 40, 500 * US), ("the rest", 1, 0, 1301 * US)]  # fmt: skip


def test_unanswered_questions_name_an_option():
    asked = questions(ask("summary", inference(), args=["--verbose"]))
    options = {name: row["option"] for name, row in asked.items() if "option" in row}
    assert options == {"compute against copies": "--gpu-time", "idle periods of the GPU": "--gpu-time",
                       "ioctls to nvidia.ko": "--ioctl", "scheduler of the GPU": "--ioctl"}  # fmt: skip
    assert all(f"'gpt-hook run {option}'" in asked[name]["evidence"] for name, option in options.items())
    counted = forge.trace(*APIS, *KERNELS, forge.launches({1: 5}), forge.calls([call(0, INIT)]))
    asked = questions(ask("summary", counted))
    assert asked["kernels an iteration"]["option"] == asked["calls of loading"]["option"] == "--calls all"


def test_no_option_is_suggested_without_launches():
    asked = questions(ask("summary", forge.trace(*APIS, forge.calls([call(0, INIT)]))))
    told = {name: row.get("option") for name, row in asked.items() if row["short"] == "nothing ran"}
    assert told == dict.fromkeys(
        ("calls of loading", "kernels an iteration", "compute against copies", "idle periods of the GPU")
    )


def test_launches_of_graphs_have_the_kernels_of_the_graphs():
    graph = records.make("graph", exec=7, at=1, nodes=9, functions=[1, 2], launches=[8, 2])
    replays = [(ZERO + 1000 * n, 5, GRAPH, 0, 7, 0) for n in range(1, 20)]
    sampled = [launch(n, 5) for n in range(1, 20)]
    late = [*APIS[:4], graph, forge.calls(replays, forge.OBJECT), forge.calls(sampled, forge.LAUNCH), APIS[4]]
    (row,) = ask("summary", forge.trace(*KERNELS, *late)).rows["iterations"]
    assert (row["launches"], row["kernels"], row["count"], row["time"]) == (2, 11, 19, 1000)
    (row,) = ask("summary", forge.trace(*KERNELS, *APIS, graph, forge.calls(replays, forge.OBJECT))).rows["iterations"]
    assert (row["first_kernel"], row["kernels"], row["count"]) == ("a graph", 10, 19)
    told = {}
    for what, more in (("graphs", []), ("both", [forge.calls(sampled, forge.LAUNCH)])):
        found = ask("summary", forge.trace(*KERNELS, *APIS, graph, forge.calls(replays, forge.OBJECT), *more))
        told[what] = questions(found)["kernels an iteration"]["evidence"]
    one = "the same launch of a graph 19 times, from launch 1 (a graph) on, 100.0 % of its launches, where a "
    assert one + "graph counts as one; each takes" in told["graphs"]
    assert "the same 2 launches, some of graphs, 19 times, from launch 1 " in told["both"]


def test_calls_of_loading_add_up():
    """Six types of calls come before the first launch: four are named, and the calls of the others are counted."""
    names = ["cuInit", "cuCtxSetCurrent", "cuMemAlloc", "cuStreamSynchronize", "cuModuleLoadData", "cuMemcpyHtoD"]
    apis = [forge.api(number, name) for number, name in enumerate([*names, "cuLaunchKernel"], 1)]
    rows = [(100 * at + n, 1, at, 0) for at in range(1, 7) for n in range(at)]
    segment = forge.trace(*apis, *KERNELS, forge.calls(rows), forge.calls([forge.launch(900, 1, 7, 1)], forge.LAUNCH))
    said = questions(ask("summary", segment))["calls of loading"]
    assert said["value"] == 21
    assert said["evidence"].endswith(": memcpy 6, module 5, sync 4, memory 3, and 3 more")


def test_threads_that_take_turns_by_chance_have_iterations_of_their_own():
    source, turns = random.Random(3), [1] * 300 + [2] * 200
    source.shuffle(turns)
    places = {1: 0, 2: 0}
    rows = {1: [], 2: []}
    for at, thread in enumerate(turns):
        unit = (1, 2, 3) if thread == 1 else (4, 4, 5, 6)
        rows[thread].append(launch(at, unit[places[thread] % len(unit)]))
        places[thread] += 1
    batches = [forge.calls(rows[thread], forge.LAUNCH, thread) for thread in (2, 1)]
    found = ask("summary", forge.trace(*APIS, *KERNELS, *batches)).rows["iterations"]
    assert [(row["scope"], row["launches"], row["count"]) for row in found] == [
        ("thread 1", 3, 100),
        ("thread 2", 4, 50),
    ]


def test_an_iteration_begins_after_the_break_of_the_host():
    """The iteration begins at the longest break, not where launches happen to repeat for the first time."""
    tail = [launch(n, kernel) for n, kernel in enumerate((2, 3))]  # a warm-up
    rows = [launch(100 * n + 5 * i, kernel) for n in range(1, 9) for i, kernel in enumerate((1, 2, 3))]
    (row,) = ask("summary", forge.trace(*APIS, *KERNELS, forge.calls(tail + rows, forge.LAUNCH))).rows["iterations"]
    assert (row["first_kernel"], row["first"], row["count"], row["time"]) == ("k1", 3, 8, 100 * US)


def test_malformed_time_stamps_cause_no_traceback():
    rows = [forge.launch(start, took, LAUNCH, 1) for start in (1, 1 << 63, (1 << 64) - 1) for took in (1, 1 << 63)]
    segment = forge.trace(*APIS, *KERNELS, forge.calls(rows, forge.LAUNCH), tsc=1 << 63, tsc_hz=1)
    done = run("summary", data=forge.pack(segment))
    assert (done.returncode, done.stderr) == (0, b"")


def test_the_list_is_whole_in_80_columns_and_in_markdown():
    segment = inference(records.make("unprobed", function=1, launches=3, reason="x" * 200))
    text = run("summary", data=forge.pack(segment)).stdout.decode()
    lines = text.splitlines()
    assert max(map(len, lines)) <= 80
    at = lines.index("kernels an iteration     4, 10 times")
    assert lines[at + 1].startswith("    process 10: the same 4 launches 10 times, from launch 3 (k1)")
    assert "no room for" not in text
    text = run("summary", "--format", "md", data=forge.pack(segment)).stdout.decode()
    assert "| `kernels an iteration` | `4, 10 times` |" in text and "each takes 50.0us" in text
    assert len(text.encode()) <= 8000


def test_ranks_that_launch_equally_often_come_by_rank():
    segments = [inference() for _ in range(3)]
    for rank, segment in zip((2, 0, 1), segments, strict=True):
        segment[0] |= {"rank": rank, "pid": 100 + rank}
    found = ask("summary", *segments)
    assert [row["rank"] for row in found.rows["processes"]] == [0, 1, 2]
    assert [*dict.fromkeys(row["rank"] for row in found.rows["iterations"])] == [0, 1, 2]
    assert next(row for row in found.rows["questions"])["evidence"].startswith("rank 0")


@pytest.mark.parametrize(("threads", "why"), [(2, "if threads wait at the same time, each counts"),
                                              (1, "a wait counts whole, even if recording was off in it")])  # fmt: skip
def test_waits_are_not_more_than_all_of_the_time(threads, why):
    off = [records.make("recording", on=on, at=10**9 + at) for at, on in ((2000, False), (9000, True))]
    names = ["cuLaunchKernel", "cuStreamSynchronize"]
    calls = [forge.calls([(10**9 + 10, 10_000, 2, 0)], thread=thread) for thread in range(1, threads + 1)]
    segment = forge.trace(*[forge.api(n, name) for n, name in enumerate(names, 1)], *calls, *off, monotonic=10**9)
    said = questions(ask("summary", segment))["in cuStreamSynchronize"]
    assert said["short"].endswith("0us, over 100 % of the time") and said["evidence"].endswith(why)


def test_captured_calls_have_a_label_of_their_own():
    captured = records.make("api", id=1, symbol="cuLaunchKernel", name="cuLaunchKernel", type="capture", op="launch")
    segment = forge.trace(captured, forge.api(2, "cuLaunchKernel"), forge.calls([(5, 1, 1, 0), (9, 1, 2, 0)]))
    labels = [row["label"] for row in ask("summary", segment).rows["functions"] if row.get("label")]
    assert sorted(labels) == ["cuLaunchKernel", "cuLaunchKernel (captured)"]


def test_few_launches_and_no_waits_are_explained():
    one = forge.trace(*APIS, *KERNELS, forge.calls([launch(100, 7)], forge.LAUNCH))
    asked = questions(ask("summary", one))
    assert asked["kernels an iteration"]["evidence"] == "process 10: 1 launch"
    assert asked["in cuStreamSynchronize"]["evidence"] == "no other waits either"
    many = forge.trace(*APIS, *KERNELS, forge.calls([launch(100 * n, 1 + n % 8) for n in range(12)], forge.LAUNCH))
    assert questions(ask("summary", many))["kernels an iteration"]["evidence"] == (
        "process 10: 12 launches; no unit covers half of them by repeating three times, or nearly all by two"
    )


def test_long_names_of_kernels_are_cut():
    found = Made().call("cuLaunchKernel", 0, 5, 5, 10).call("cuLaunchKernel", 50, 5, 55, 10).segment()
    name = "k" * 200
    found = [one | {"name": name} if one["kind"] == "function" else one for one in found]
    rows = {row["question"]: row["evidence"] for row in ask("summary", found).rows["questions"]}
    assert f"between {'k' * 59}\u2026 and {'k' * 59}\u2026;" in rows["idle periods of the GPU"]


def test_the_median_of_iterations_is_not_all_of_their_time():
    """Every third of 30 iterations takes 9 ms, and the others 20 us."""
    made, at = Made(), 0
    for number in range(30):
        made.call("cuLaunchKernel", at, 5, at + 5, 10, function=1)
        at += 9000 if number % 3 == 2 else 20
    evidence = questions(ask("summary", made.segment()))["kernels an iteration"]["evidence"]
    assert "each takes 20.0us, the median" in evidence
    assert "all of them take 81.4ms: some far longer than others" in evidence and "ahead" not in evidence


def test_the_host_may_launch_ahead_of_the_gpu():
    made = Made()
    for number in range(30):
        made.call("cuLaunchKernel", 20 * number, 5, 10 + 500 * number, 490, function=1)
    evidence = questions(ask("summary", made.segment()))["kernels an iteration"]["evidence"]
    assert "each takes 20.0us, the median" in evidence and "some far longer" not in evidence
    assert "; the GPU is busy for 14.7ms: the host launches ahead of it" in evidence
