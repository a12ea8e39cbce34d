"""gpt-analyze gaps and stages on hand-made timelines."""

import numpy as np
import pytest

from gpt.analyze.lib.rounds import find_rounds
from gpt.stream import records
from tests.analyze.asked import ask, run
from tests.analyze.working import US, Made
from tests.trace import forge

APIS = [
    "cuModuleLoadData",
    "cuLaunchKernel",
    "cuMemAlloc",
    "cuStreamSynchronize",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuInit",
]
MS, ZERO = 10**6, 10**9  # time stamps start at ZERO, because a row whose begin is 0 is unused


def made(*calls, more=(), pid=10, threads=1):
    """Return a segment of calls (name, start, duration, kernel or bytes), in ms, which alternate between threads."""
    found = [forge.api(number, name) for number, name in enumerate(APIS, 1)]
    found += [records.make("function", id=n, name=f"k{n}") for n in range(1, 9)]
    for number, (name, start, duration, *what) in enumerate(calls):
        at, took, api = ZERO + int(start * MS), int(duration * MS), APIS.index(name) + 1
        thread = number % threads + 1
        if name == "cuLaunchKernel":
            found.append(forge.calls([forge.launch(at, took, api, what[0])], forge.LAUNCH, thread))
        else:
            found.append(forge.calls([(at, took, api, 0, 0, 0, *(what or [0]), 0)], forge.MEMORY, thread))
    return forge.trace(*found, *more, pid=pid)


def launches(*at):
    return [("cuLaunchKernel", start, 1, kernel) for start, kernel in at]


def test_gaps_between_launches_of_a_thread():
    found = ask("gaps", made(*launches((1, 1), (4, 2), (5, 1)), ("cuMemAlloc", 7, 2, 64), *launches((11, 3))))
    (row,) = found.rows["gaps"]
    assert row == {"gap": "launch", "pid": 10, "thread": 1, "count": 3, "total": 7 * MS, "mean": 7 * MS // 3,
                   "p50": 2 * MS, "p99": 5 * MS, "longest": 5 * MS, "share": pytest.approx(700 / 11)}  # fmt: skip
    rows = found.rows["longest"]
    longest = [(r["after"], r["before"], r["reason"], r["share"], r["start"] - ZERO, r["gap"]) for r in rows]
    host = "host code"
    assert longest == [("k1", "k3", host, 60.0, 6 * MS, 5 * MS), ("k1", "k2", host, 100.0, 2 * MS, 2 * MS)]
    assert found.verdicts["gaps"][0] == (
        "process 10 took 11.0ms from its first call to its last; of that, thread 1 spent 0.0 % before its "
        "first launch, 36.4 % in launches, 63.6 % between them, waits included, and 0.0 % after the last one"
    )
    assert found.verdicts["gaps"][1].startswith("no GPU times: ")


@pytest.mark.parametrize(
    ("between", "reason", "share", "call", "in_calls"),
    [
        ([("cuMemAlloc", 100, 0.002, 64)], "host code", 99.999, None, 0.001),
        ([("cuMemAlloc", 100, 150, 64)], "cuMemAlloc", 75.0, "cuMemAlloc", 75.0),
        ([("cuMemAlloc", 100, 60, 64), ("cuStreamSynchronize", 160, 120)], "cuStreamSynchronize", 60.0,
         "cuStreamSynchronize", 90.0),
        ([("cuMemAlloc", 100 + at, 8, 64) for at in range(0, 190, 10)], "several calls", 76.0, None, 76.0),
        ([], "host code", 100.0, None, 0.0),
    ],
)  # fmt: skip
def test_only_a_call_that_fills_most_of_a_gap_is_its_reason(between, reason, share, call, in_calls):
    (row,) = ask("gaps", made(*launches((99, 1)), *between, *launches((300, 2)))).rows["longest"]
    assert row["gap"] == 200 * MS and row["reason"] == reason and row.get("call") == call
    assert row["share"] == pytest.approx(share) and row["in_calls"] == pytest.approx(in_calls)


def test_overlapping_gaps_have_no_shares():
    """After two launches and a wait of 1 ms, the third launch comes 497 ms later. The time after the wait is also time
    between launches.
    """
    counts = records.make("counts", **forge.rows([(300, ZERO, 7, 0)], forge.QUERIES))
    calls = [*launches((0, 1), (2, 1)), ("cuStreamSynchronize", 4, 1), *launches((502, 1))]
    found = ask("gaps", made(*calls, more=[counts]))
    assert [(row["gap"], row["total"]) for row in found.rows["gaps"]] == [
        ("launch", 500 * MS), ("wait", 497 * MS),
    ]  # fmt: skip
    told = (
        "process 10 took 503ms from its first call to its last; of that, thread 1 spent 0.0 % before its first launch, "
    )
    assert found.verdicts["gaps"][:4] == [
        f"{told}0.6 % in launches, 99.4 % between them, waits included (99.2 % in 1 gap over 100ms), and 0.0 % after "
        "the last one",
        "98.8 % of that time is between the end of a wait for all work and the next launch: the GPU had no kernel of "
        "this process to run",
        "gaps after waits may lie inside gaps after launches: don't add them up",
        "300 calls counted but not timed: their time counts as host code",
    ]
    assert [row["reason"] for row in found.rows["longest"]] == ["host code", "host code"]


def test_the_thread_that_launches_most_is_the_one_described():
    """Thread 1 launches at the beginning and at the end, thread 2 in between."""
    more = [forge.calls([forge.launch(ZERO + at * MS, MS, 2, 1) for at in times], forge.LAUNCH, thread)
            for thread, times in ((1, (99,)), (2, range(10, 50, 10)))]  # fmt: skip
    told = ask("gaps", made(*launches((0, 1)), more=more)).verdicts["gaps"][0]
    assert told.startswith(
        "process 10 took 100ms from its first call to its last; of that, thread 2, which launches most of 2, spent "
        "10.0 % before its first launch, 4.0 % in launches, 27.0 % between them"
    )


def test_a_single_launch_has_no_gaps():
    assert ask("gaps", made(*launches((5, 1)))).verdicts["gaps"][0] == (
        "process 10 launched once, so nothing is between two launches"
    )


def test_gaps_say_that_recording_was_off():
    """Two launches are 95 ms apart; 60 ms of that weren't recorded."""
    times = gpu_times((1, 2, 0, "cuLaunchKernel", 1), (97, 2, 96, "cuLaunchKernel", 1))
    found = ask("gaps", made(*launches((0, 1), (96, 1)), more=[times, *recording((0, True), (20, False), (80, True))]))
    assert found.rows["gaps"][0]["total"] == 35 * MS
    assert (
        "process 10 took 37.0ms of recorded time from its first call to its last; of that, "
        in found.verdicts["gaps"][0]
    )
    assert (found.rows["gaps"][0]["count"], found.rows["gaps"][0].get("longest")) == (0, None)
    assert found.verdicts["gaps"][1:3] == [
        "recording of process 10 was off for 60.0ms: launches in that time are missing",
        "1 gap (1 after launches) around that time is not counted or listed, but the recorded time is in 'total' and "
        "'share'",
    ]
    assert "longest" not in found.rows and "periods" not in found.rows
    assert found.verdicts["idle"][0].endswith(", without 60.0ms in which recording was off")
    told = "1 idle period around that time is not counted or listed, but the recorded time is in 'idle' and 'share'"
    assert found.verdicts["idle"][1] == told


def gpu_times(*rows):
    """Return GPU times (begin, duration, call, api, kernel), in ms, of thread 1."""
    packed = [(ZERO + int(begin * MS), int(took * MS), ZERO + int(call * MS), 0, APIS.index(name) + 1, kernel, 1, 0)
              for begin, took, call, name, kernel in rows]  # fmt: skip
    return records.make("gpu_times", **forge.rows(packed, forge.GPU_TIMES))


def recording(*changes):
    return [records.make("recording", on=on, at=ZERO + int(at * MS)) for at, on in changes]


def test_unrecorded_time_is_neither_idle_nor_busy():
    """Four launches of 2 ms. Recording was off from 10 to 50 ms, and nothing is known about the host in that time."""
    at = (1, 5, 53, 57)
    ran = gpu_times(*((start, 2, start, "cuLaunchKernel", 1) for start in at))
    off = recording((0.5, True), (10, False), (50, True))
    found = ask("gaps", made(*launches(*((start, 1) for start in at)), more=[ran, *off]))
    (row,) = found.rows["gaps"]
    assert (row["count"], row["total"], row["longest"], row["mean"]) == (2, (3 + 7 + 3) * MS, 3 * MS, 3 * MS)
    assert row["share"] == pytest.approx(100 * 13 / (57 - 40))
    (idle,) = found.rows["idle"]
    assert (idle["busy"], idle["total"], idle["count"], idle["longest"]) == (8 * MS, 10 * MS, 2, 2 * MS)
    assert [row["gap"] for row in found.rows["longest"]] == [3 * MS, 3 * MS]
    periods = [(row["start"], row["took"]) for row in found.rows["periods"]]
    assert periods == [(1003 * MS, 2 * MS), (1055 * MS, 2 * MS)]  # from the end of the earlier work
    summary = ask("summary", made(*launches(*((start, 1) for start in at)), more=[ran, *off]))
    questions = {row["question"]: row for row in summary.rows["questions"]}
    assert questions["idle periods of the GPU"]["value"] == pytest.approx(100 * 10 / 18)
    idle = "10.0ms of the 18.0ms from its first work to its last, in 2 periods; the longest, 2.00ms, began "
    assert idle in questions["idle periods of the GPU"]["evidence"]
    stages = ask("stages", made(*launches(*((start, 1) for start in at)), more=[ran, *off]))
    assert {row["category"]: row["time"] for row in stages.rows["stages"]}["Total"] == 17 * MS
    assert "recording was off for 1.04s, which are in no stage" in stages.verdicts["stages"]


def test_iterations_leave_out_what_was_not_recorded():
    calls = launches(*((10 * n, 1 + n % 2) for n in range(1, 40)))
    plain = ask("summary", made(*calls)).rows["iterations"]
    off = recording((0.5, True), *((10 * n + at, bool(at > 4)) for n in range(1, 40) for at in (3, 8)))
    found = ask("summary", made(*calls, more=off)).rows["iterations"]
    assert [row["time"] for row in plain] == [20 * MS] and [row["time"] for row in found] == [10 * MS]


def test_iteration_with_recording_off_is_not_the_median():
    """Iterations take 10, 10, 90, 90, 20 and 20 ms; recording was off for a while in the two longest."""
    starts = [100, 110, 120, 210, 300, 320, 340]
    calls = [call for at in starts for call in (*launches((at, 1), (at + 2, 2)), ("cuStreamSynchronize", at + 4, 1))]
    segment = made(
        ("cuInit", 1, 1), *calls, more=recording((0.5, True), (150, False), (155, True), (250, False), (255, True))
    )
    (row,) = ask("summary", segment).rows["iterations"]
    rows = {row["category"]: row["time"] for row in ask("stages", segment).rows["stages"]}
    assert (row["count"], row["time"]) == (7, 15 * MS)
    assert rows["Per round"] == np.median([10, 20, 20, 5]) * MS  # without the first, and until the last wait ended


def test_kernels_of_their_own_are_not_the_same_iteration():
    """Five kernels, each launched 100 times in a row: no iteration, and certainly not one of 500."""
    calls = launches(*((10 * (100 * kernel + n), kernel) for kernel in range(1, 6) for n in range(100)))
    found = ask("summary", made(*calls))
    rows = [(row["unit"], row["first_kernel"], row["count"], row["first"]) for row in found.rows["iterations"]]
    assert rows == [("repetition", f"k{n}", 100, 100 * (n - 1) + 1) for n in range(1, 6)]
    answer = next(row for row in found.rows["questions"] if row["question"] == "kernels an iteration")
    assert answer["short"] == "no single iteration" and "value" not in answer


def test_two_models_have_times_of_their_own():
    """Iterations of two kernels: 60 of 40 ms, then 50 of 400 ms."""
    fast = [(20 * n, 1 + n % 2) for n in range(120)]
    slow = [(2400 + 200 * n, 3 + n % 2) for n in range(100)]
    rows = ask("summary", made(*launches(*fast, *slow))).rows["iterations"]
    assert [(row["unit"], row["first_kernel"], row["count"], row["time"]) for row in rows] == [
        ("iteration", "k1", 60, 40 * MS), ("repetition", "k3", 50, 400 * MS),
    ]  # fmt: skip


def test_waiting_for_kernels_does_not_count_as_transfer():
    """A 4-byte copy is called while two kernels of 99 ms each are pending. The copy itself takes 1 ms."""
    warm = [*launches((-10, 1)), ("cuStreamSynchronize", -5, 4)]
    calls = [*warm, *launches((0, 1), (2, 1)), ("cuMemcpyDtoH", 4, 197, 4), *launches((210, 1), (212, 1)),
             ("cuMemcpyDtoH", 214, 3, 4), *launches((220, 1))]  # fmt: skip
    ran = [(1, 99, 0, "cuLaunchKernel", 1), (100, 99, 2, "cuLaunchKernel", 1), (199.5, 1, 4, "cuMemcpyDtoH", 0),
           (211, 1, 210, "cuLaunchKernel", 1), (212, 1, 212, "cuLaunchKernel", 1), (215, 1, 214, "cuMemcpyDtoH", 0),
           (221, 1, 220, "cuLaunchKernel", 1)]  # fmt: skip
    untimed, timed = (ask("stages", made(*calls, more=more)) for more in ([], [gpu_times(*ran)]))

    def row(found, name):
        return next(row for row in found.rows["stages"] if row["category"] == name)

    assert row(untimed, "Output Transfer")["time"] == 200 * MS
    assert any("--gpu-time" in line for line in untimed.verdicts["stages"])
    out = row(timed, "Output Transfer")
    assert (out["time"], out["calls"], out["bytes"]) == (2 * MS + 3 * MS, 2, 8)  # from when the kernels had ended
    assert not any("--gpu-time" in line for line in timed.verdicts["stages"])
    assert [row.get("segment") for row in timed.rows["stages"] if row["category"] == "Total"] == [None]


def test_gaps_after_waiting():
    waits = [("cuStreamSynchronize", 2, 3), ("cuStreamSynchronize", 6, 1)]
    calls = [*launches((1, 1)), *waits, *launches((10, 1), (12, 1)), ("cuStreamSynchronize", 14, 6)]
    rows = ask("gaps", made(*calls)).rows["gaps"]
    assert [(r["gap"], r["count"], r["total"]) for r in rows] == [
        ("launch", 2, 9 * MS),
        ("wait", 1, 5 * MS),  # from the first of two waits
    ]


def test_time_before_the_first_work_and_after_the_last_is_reported():
    """From 10 to 100 ms: launches of 1 ms at 30, 50 and 70 ms, and work on the GPU from 32 to 75 ms."""
    ran = gpu_times(
        (32, 10, 30, "cuLaunchKernel", 1), (52, 10, 50, "cuLaunchKernel", 1), (72, 3, 70, "cuLaunchKernel", 1)
    )
    calls = [("cuInit", 10, 1), *launches((30, 1), (50, 1), (70, 1)), ("cuMemAlloc", 90, 10, 64)]
    found = ask("gaps", made(*calls, more=[ran]))
    assert found.verdicts["gaps"][0] == (
        "process 10 took 90.0ms from its first call to its last; of that, thread 1 spent 22.2 % before its "
        "first launch, 3.3 % in launches, 42.2 % between them, waits included, and 32.2 % after the last one"
    )
    assert found.verdicts["idle"] == [
        "GPU 0: idle 46.5 % of the 43.0ms from the first to the last thing that ran on it, which began 1.03s after its "
        "process did and ended 25.0ms before the last call did"
    ]
    assert (
        found.verdicts["longest"]
        == found.verdicts["periods"]
        == ["'at' counts from the beginning of the first process"]
    )


def test_a_wait_while_another_thread_launches_does_not_leave_the_gpu_idle():
    """Thread 2 launches during thread 1's wait, so the GPU may have work after it."""
    calls = [*launches((1, 1)), ("cuInit", 2, 1), ("cuStreamSynchronize", 4, 6), *launches((6, 1)), ("cuInit", 19, 1),
             *launches((20, 1))]  # fmt: skip
    rows = ask("gaps", made(*calls, threads=2)).rows["gaps"]
    assert [row for row in rows if row["gap"] == "wait"] == []


def test_the_gpu_is_idle_where_no_stream_has_work():
    rows = [(1 * MS, 4 * MS, 1, 1, 0), (3 * MS, 3 * MS, 1, 2, 7), (10 * MS, 2 * MS, 1, 1, 0)]
    packed = [(begin, took, begin, stream, api, function, 1, 0) for begin, took, api, function, stream in rows]
    times = records.make("gpu_times", **forge.rows(packed, forge.GPU_TIMES))
    found = ask("gaps", made(*launches((0.5, 1), (0.7, 2)), more=[times]))
    idle = [(r["stream"], r["busy"], r["count"], r["total"]) for r in found.rows["idle"]]
    assert idle == [("all streams", 7 * MS, 1, 4 * MS), ("0x0", 6 * MS, 1, 5 * MS), ("0x7", 3 * MS, 0, 0)]
    assert found.rows["idle"][0]["share"] == pytest.approx(100 * 4 / 11)
    (period,) = found.rows["periods"]
    assert (period["gpu"], period["pid"], period["start"], period["took"]) == ("GPU 0", 10, 6 * MS, 4 * MS)
    assert period["after"] != period["before"]


def test_idle_times_of_a_trace_without_calls():
    found = ask("gaps", made(more=[forge.gpu_times([(ZERO, MS, 2, 1), (ZERO + 3 * MS, MS, 2, 1)])]))
    assert [(row["count"], row["total"]) for row in found.rows["idle"]] == [(1, 2 * MS)]


def test_gaps_of_a_trace_without_calls():
    done = run("gaps", data=forge.pack(forge.trace(forge.probe_map("x", a="u32"))))
    assert done.returncode == 1 and b"no calls in the stream: 'gpt-hook run' records some" in done.stderr


@pytest.mark.parametrize(
    ("kernels", "period"),
    [([1, 2, 3] * 5, 3), ([9, 8, 1, 2, 2, 1, 2, 2, 1, 2, 2], 3), ([1, 2, 3, 4], None), ([5], None), ([1] * 6, 1),
     ([1, *[2, 3] * 9, 4] * 2, 20), ([1, *[2, 3] * 9, 4] * 3, 20),  # layers are no rounds
     ([1, 1], None), ([1, 2, 3, 4, 1, 2, 3, 4], 4), ([1, 2, 3, 4, 1, 2, 3, 4, 5], None),  # twice may be chance
     ([1, *[2, 3] * 30, 4] * 2 + [5], 62)],
)  # fmt: skip
def test_the_repeating_unit_is_found(kernels, period):
    found = find_rounds(np.array(kernels, np.uint64)[2 if kernels[0] == 9 else 0 :]).unit
    assert (found.length if found else None) == period


@pytest.mark.parametrize(
    ("breaks", "first", "times"),
    [
        ({1: 100}, 1, 4),  # a break after each k1: to begin with k2 would lose a round
        ({2: 100}, 1, 4),
        ({}, 1, 4),
        ({9: 100, 2: 100}, 2, 4),  # k2, and then four rounds
    ],
)
def test_summary_and_stages_have_the_same_rounds(breaks, first, times):
    """The program launches k1 and k2 four times, each pair within a millisecond, with a break after it. Both analyses
    find the unit k1 k2 and its first launch.
    """
    order = ([2] if 9 in breaks else []) + [1, 2] * 4
    at, calls = 10, [("cuMemcpyHtoD", 1, 1, 64)]
    for kernel in order:
        calls += launches((at, kernel))
        at += 3 + breaks.get(kernel, 0)
    segment = made(*calls, ("cuStreamSynchronize", at, 4))
    summary, found = ask("summary", segment), ask("stages", segment)
    (row,) = summary.rows["iterations"]
    assert (row["first_kernel"], row["launches"], row["first"], row["count"]) == ("k1", 2, first, times)
    assert row["covered"] == pytest.approx(100 * 8 / len(order))
    (told,) = (line for line in found.verdicts["stages"] if "equal rounds" in line)
    begin = f"4 equal rounds of 2 launches from launch {first} on, of which the 3 after Warmup are timed; "
    assert told.startswith(begin)


def test_rounds_after_a_warm_up_that_launches_more_often():
    """Before a program captures a graph, it launches the kernels themselves. It then launches the graph (k8) fewer
    times.
    """
    order = [1, 2, 3, 4, 5, 6, 7, 3, 1, 5, 2] + [8] * 7
    calls = [("cuMemcpyHtoD", 1, 1, 64), *launches(*((10 + 3 * n, kernel) for n, kernel in enumerate(order)))]
    segment = made(*calls, ("cuStreamSynchronize", 100, 4))
    (row,) = ask("summary", segment).rows["iterations"]
    assert (row["first_kernel"], row["launches"], row["count"], row["first"]) == ("k8", 1, 7, 12)
    assert row["covered"] == pytest.approx(100 * 7 / 18)
    (told,) = (line for line in ask("stages", segment).verdicts["stages"] if "equal rounds" in line)
    assert told.startswith("7 equal rounds of 1 launch from launch 12 on, of which the 6 after Warmup are timed; ")


def test_rounds_only_in_inference_are_reported():
    """Five kernels, each launched 100 times in a row: the inference begins when the last one has been launched."""
    calls = launches(*((10 * (100 * kernel + n), kernel) for kernel in range(1, 6) for n in range(100)))
    (told,) = (line for line in ask("stages", made(*calls)).verdicts["stages"] if "equal rounds" in line)
    assert told.startswith("99 equal rounds of 1 launch from launch 402 on, in the launches after Warmup alone; ")


def test_rounds_that_interleave_are_counted_thread_by_thread():
    """Two threads take turns at launching k1 k2 k3 k4, ten times each. In two of these turns, their launches
    interleave.
    """
    one = [(10 + 40 * n + 3 * step, step + 1) for n in range(10) for step in range(4)]
    other = [
        (start + (1 if n in (4, 7) else 20), kernel) for n in range(10) for start, kernel in one[4 * n : 4 * n + 4]
    ]
    calls = [("cuMemcpyHtoD", 1, 1, 1 << 20), *launches(*one)]
    more = [forge.calls([forge.launch(ZERO + start * MS, MS, 2, kernel) for start, kernel in other], forge.LAUNCH, 2)]
    segment = made(*calls, more=more)
    summary = ask("summary", segment)
    (row,) = [row for row in summary.rows["iterations"] if row["unit"] == "iteration"]
    assert (row["launches"], row["count"], row["in_threads"]) == (4, 16, 20)
    (said,) = [row["evidence"] for row in summary.rows["questions"] if row["question"] == "kernels an iteration"]
    assert "; 20 times if the launches of each thread are counted alone, as threads interleave" in said
    told = ask("stages", segment).verdicts["stages"]
    assert any(line.startswith("16 equal rounds of 4 launches from launch 1 on") for line in told)
    assert "20 rounds if the launches of each thread are counted alone, as threads interleave" in told


def test_partial_round_at_the_end_is_not_counted():
    """The program was killed in its fifth round."""
    segment = made(*launches(*((10 + 3 * n, 1 + n % 3) for n in range(14))))
    (row,) = ask("summary", segment).rows["iterations"]
    assert (row["launches"], row["count"], row["covered"]) == (3, 4, pytest.approx(100 * 12 / 14))


def test_the_last_round_lasts_until_its_wait():
    """Two rounds of 40 and 60 ms follow the warm-up. The host waits for the second, and launches nothing after it."""
    calls = [("cuMemcpyHtoD", 1, 1, 64)]
    for at, wait in ((10, 5), (20, 35), (60, 55)):
        calls += [*launches((at, 1), (at + 2, 2)), ("cuStreamSynchronize", at + 5, wait)]
    found = ask("stages", made(*calls, ("cuMemAlloc", 500, 1, 64)))
    rows = {row["category"]: row for row in found.rows["stages"]}
    assert rows["Per round"]["time"] == (40 + 60) / 2 * MS
    assert (
        "3 equal rounds of 2 launches from launch 1 on, of which the 2 after Warmup are timed; per round: the median "
        "from its first launch to the one after its last, waits included; the last round ends with the wait for it"
    ) in found.verdicts["stages"]


def test_calls_between_the_stages_are_in_the_sums():
    """A module that's loaded between two copies is part of a stage; calls after the weights aren't."""
    calls = [
        ("cuInit", 0, 10),
        ("cuMemcpyHtoD", 20, 30, 1 << 20),
        ("cuMemAlloc", 60, 7, 64),
        ("cuMemAlloc", 70, 25, 64),
    ]
    calls += [*launches((100, 1)), ("cuStreamSynchronize", 105, 5), *launches((120, 1)), ("cuMemcpyDtoH", 125, 3, 4096)]
    found = ask("stages", made(*calls))
    rows = {row["category"]: row for row in found.rows["stages"]}
    other, total = rows["Other"], rows["Total"]
    assert (other["time"], other["in_calls"], other["calls"]) == ((100 - 50) * MS, 32 * MS, 2)
    parts = [row for name, row in rows.items() if name not in ("Total", "Per round")]
    for name, value in (("time", 128 * MS), ("in_calls", (10 + 30 + 32 + 1 + 5 + 1 + 3) * MS), ("calls", 8),
                        ("launches", 2), ("bytes", (1 << 20) + 4096)):  # fmt: skip
        assert total[name] == value == sum(row.get(name) or 0 for row in parts), name
    told = "Other: the time between the stages, 36.0 % of it in no CUDA call; its longest call: cuMemAlloc, 25.0ms"
    assert told in found.verdicts["stages"]


INFERENCE = [
    ("cuInit", 0, 10),
    ("cuMemAlloc", 12, 1, 64),
    ("cuMemcpyHtoD", 20, 30, 10_000_000),
    ("cuMemcpyHtoD", 52, 8, 5_000_000),
    ("cuMemcpyHtoD", 70, 2, 4096),  # the input
    *launches((80, 1), (84, 2)),
    ("cuStreamSynchronize", 90, 10),  # until 100: the kernels are compiled
    *[
        call
        for n in range(4)
        for call in [*launches((100 + 10 * n, 1), (102 + 10 * n, 2)), ("cuStreamSynchronize", 104 + 10 * n, 4)]
    ],
    ("cuMemcpyDtoH", 141, 3, 4096),
]


def stages(*args, **more):
    found = ask("stages", made(*INFERENCE, **more), args=args)
    rows = {row["category"]: row for row in found.rows["stages"]}
    return {name: row["time"] / MS for name, row in rows.items()}, rows, found.verdicts["stages"]


def test_stages_are_found_from_the_calls():
    times, rows, verdict = stages()
    assert times == {
        "Initialization": 20, "Weight Loading": 40, "Input Transfer": 2, "Warmup": 20, "Inference": 38 - 16,
        "Per round": 10, "Sync": 16, "Output Transfer": 3, "After Inference": 6 - 3,
        "Other": 144 - 20 - 40 - 2 - 20 - 38 - 6, "Total": 144,
    }  # fmt: skip
    assert rows["Weight Loading"]["bytes"] == 15_000_000 and rows["Warmup"]["launches"] == 2
    assert rows["Per round"]["launches"] == 2
    assert sum(row["share"] for key, row in rows.items() if "share" in row and key != "Total") == pytest.approx(100)
    assert [row.get("begin") for row in rows.values()] == [
        ZERO + at * MS if at is not None else None for at in (0, 20, None, 80, 100, None, None, 138, None, None, None)
    ]
    in_calls = [row.get("in_calls") for row in rows.values()]
    assert in_calls == [11 * MS, 38 * MS, 2 * MS, 12 * MS, 8 * MS, 16 * MS, 3 * MS, 0, 0, 90 * MS, None]
    assert verdict == [
        "found by the calls, as no NVTX range names a stage: the names are guesses",
        "Warmup: from the first launch until each kernel that's launched more than once had been launched; host code, "
        "waits and copies included",
        "Other: the time between the stages, 100.0 % of it in no CUDA call",
        "5 equal rounds of 2 launches from launch 1 on, of which the 4 after Warmup are timed; per round: the median "
        "from its first launch to the one after its last, waits included; the last round ends with the wait for it",
        "'from' counts from the beginning of the first process",
    ]


def test_two_passes_of_a_model_are_two_rounds_and_not_its_layers():
    """A Llama on an H200 runs a warm-up pass, then two passes that are launched at once, waits, and exits."""
    one = [1, *[2, 3, 4, 5] * 6, 6]
    calls = [("cuInit", 0, 1), ("cuMemcpyHtoD", 2, 2, 1 << 20), ("cuModuleLoadData", 8, 2)]
    calls += launches(*((10 + 2 * n, kernel) for n, kernel in enumerate(one)))
    calls += [("cuMemcpyHtoD", 20.5, 0.25, 8), *launches(*((110 + 2 * n, kernel) for n, kernel in enumerate(2 * one)))]
    calls += [("cuStreamSynchronize", 214, 6), ("cuMemAlloc", 2000, 1, 64)]
    counts = records.make("counts", **forge.rows([(500, ZERO, 3, 0)], forge.QUERIES))
    found = ask("stages", made(*calls, more=[counts]))
    rows = {row["category"]: row for row in found.rows["stages"]}
    assert (rows["Per round"]["time"], rows["Per round"]["launches"]) == ((220 - 110) / 2 * MS, 26)
    assert (rows["Kernel Compile"]["launches"], rows["Inference"]["launches"]) == (26, 52)
    assert rows["Kernel Compile"]["begin"] == ZERO + 8 * MS
    assert rows["Kernel Compile"]["time"] == (61 - 8) * MS  # until the first launch of the last kernel returned
    assert rows["Kernel Compile"]["bytes"] == 8  # copies while kernels are compiled aren't input
    assert "Input Transfer" not in rows
    assert (rows["After Inference"]["begin"], rows["After Inference"]["time"]) == (ZERO + 220 * MS, 1781 * MS)
    assert found.verdicts["stages"][2:] == [
        "3 equal rounds of 26 launches from launch 1 on (within each, 6 times 4 launches), of which the 2 after Kernel "
        "Compile are timed; no wait between them, so per round is the time from the first one's first launch to the "
        "end of the wait after the last one, divided by their number",
        "500 calls counted but not timed, and in no stage",
        "'from' counts from the beginning of the first process",
    ]


def test_a_kernel_at_the_end_is_not_part_of_a_warmup():
    """In a generation on an H200, the kernel that joins all tokens runs once, after the kernels of many tokens."""
    calls = [("cuInit", 0, 1), ("cuMemcpyHtoD", 2, 2, 64), *launches((10, 1), (1000, 2), (2000, 3))]
    for token in range(10):
        calls += launches(*((2100 + 10 * token + 3 * part, 1 + part) for part in range(2)))
    calls += [*launches((2200, 5)), ("cuMemcpyDtoH", 2203, 1, 64)]
    (row,) = (r for r in ask("stages", made(*calls)).rows["stages"] if r["category"] == "Inference")
    assert row["time"] < 1300 * MS


def test_rounds_launched_ahead_take_until_the_wait_ends():
    """Each graph launch takes 40 us on the host and runs for 600 us."""
    calls = [("cuInit", 0, 1), ("cuMemcpyHtoD", 2, 2, 64), *launches((10, 1), (15, 2))]
    calls += [("cuStreamSynchronize", 20, 5), *launches(*((30 + 2 * n, 1 + n % 2) for n in range(20)))]
    found = ask("stages", made(*calls, ("cuStreamSynchronize", 71, 959)))
    rows = {row["category"]: row["time"] / MS for row in found.rows["stages"]}
    assert rows["Per round"] == pytest.approx((1030 - 25) / 10, rel=0.2)
    assert "no wait between them" in found.verdicts["stages"][2]


def test_rounds_that_are_never_waited_for_have_the_time_of_their_launches():
    """Recording was off from 100 to 200 ms, in no round."""
    calls = [("cuInit", 0, 1), *launches(*((10 * n, 1) for n in range(1, 10)), *((10 * n, 1) for n in range(20, 30)))]
    found = ask("stages", made(*calls, more=recording((0.5, True), (100, False), (200, True))))
    rows = {row["category"]: row["time"] / MS for row in found.rows["stages"]}
    assert rows["Per round"] == 10
    assert found.verdicts["stages"][-2].endswith("; none of them is waited for, so they may take longer on the GPU")


def test_delayed_round_was_not_launched_ahead():
    """The host waits for each token. One of them takes ten times as long as all others together."""
    calls = [("cuInit", 0, 1), ("cuMemcpyHtoD", 2, 2, 64), *launches((10, 1), (15, 2)), ("cuStreamSynchronize", 20, 5)]
    for token in range(10):
        at = 30 + 10 * token + (1000 if token > 4 else 0)
        calls += [*launches((at, 1), (at + 2, 2)), ("cuStreamSynchronize", at + 4, 1000 if token == 4 else 5)]
    found = ask("stages", made(*calls))
    rows = {row["category"]: row["time"] / MS for row in found.rows["stages"]}
    assert rows["Per round"] == 10
    assert "per round: the median from its first launch" in found.verdicts["stages"][2]


def range_(id_, name, start, end, **more):
    begun = records.make("range", id=id_, type="push", thread=1, name=name, start=ZERO + start * MS, **more)
    return [begun, records.make("range_end", id=id_, thread=1, end=ZERO + end * MS)]


def test_time_in_two_stages_at_once_counts_once():
    calls = [("cuLaunchKernel", 1, 1, 1), ("cuStreamSynchronize", 2, 1), ("cuLaunchKernel", 4, 1, 1),
             ("cuStreamSynchronize", 5, 10), ("cuMemcpyDtoH", 8, 12, 64), ("cuLaunchKernel", 30, 1, 1)]  # fmt: skip
    stages = ask("stages", made(*calls, threads=2)).rows["stages"]
    times = {row["category"]: row["time"] for row in stages}
    assert (times["Sync"], times["Output Transfer"], times["Total"]) == (10 * MS, 5 * MS, 30 * MS)
    assert sum(row.get("segment") or 0 for row in stages) == 30 * MS
    off = [records.make("recording", on=on, at=ZERO + at * MS) for at, on in ((6, False), (9, True))]
    stages = ask("stages", made(*calls, more=off, threads=2)).rows["stages"]
    times = {row["category"]: row["time"] for row in stages}
    assert (times["Sync"], times["Output Transfer"], times["Total"]) == (7 * MS, 5 * MS, 27 * MS)
    assert sum(row.get("segment") or 0 for row in stages) == 27 * MS


def test_ranges_of_libraries_are_not_stages():
    """NCCL names ranges after its functions, such as ncclCommInitRankConfig. Only ranges in the program's own domain
    are stages.
    """
    unmarked = stages()
    library = range_(1, "ncclCommInitRankConfig", 1, 140, domain="NCCL")
    assert stages(more=library) == unmarked
    times, _, verdict = stages(more=[*library, *range_(2, "generate", 100, 144, domain="me")])
    assert (times["Inference"], times["Total"], verdict[0]) == (44, 44, "found by NVTX ranges")


def test_stages_are_those_of_nvtx_where_the_program_has_them():
    ranges = [*range_(1, "load_weights", 15, 65), *range_(2, "warmup", 75, 100), *range_(3, "Inference", 100, 144),
              *range_(4, "forward", 110, 120), *range_(5, "my step", 0, 10)]  # fmt: skip
    times, _, verdict = stages(more=ranges)
    assert times == {
        "Weight Loading": 50,
        "Warmup": 25,
        "Inference": 44,
        "Per round": 10,
        "Other": 10,
        "Total": 129,
    }
    assert verdict[0] == "found by NVTX ranges"


def test_stages_of_kernels_launched_once():
    rows = ask("stages", made(("cuInit", 0, 1), ("cuModuleLoadData", 1, 2), *launches((5, 1), (7, 2)))).rows["stages"]
    assert [(row["category"], row["time"]) for row in rows] == [
        ("Initialization", 1 * MS), ("Kernel Compile", 4 * MS), ("Inference", 3 * MS), ("Total", 8 * MS),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        ((32 << 10) - 1, {"Initialization": 40 - 4, "Input Transfer": 4}),
        (32 << 10, {"Initialization": 2, "Weight Loading": 32 - 2, "Other": 40 - 32}),
    ],
)
def test_few_bytes_do_not_count_as_weights(size, wanted):
    """Two copies at 2 and 30 ms take 2 ms each, long before code is loaded. They count as weights only from 64 KiB
    on.
    """
    calls = [("cuInit", 0, 1), ("cuMemcpyHtoD", 2, 2, size), ("cuMemcpyHtoD", 30, 2, size), ("cuModuleLoadData", 40, 2)]
    rows = ask("stages", made(*calls, *launches((45, 1), (50, 1)), ("cuStreamSynchronize", 55, 5))).rows["stages"]
    times = {row["category"]: row["time"] / MS for row in rows}
    early = ("Initialization", "Weight Loading", "Input Transfer", "Other")
    assert {name: times[name] for name in early if name in times} == wanted
    assert times["Total"] == 60


@pytest.mark.parametrize(
    ("calls", "told"),
    [
        ([], "from the first loading of code until the first launch, as no kernel is launched twice"),
        ([*launches((9, 1)), ("cuStreamSynchronize", 10, 1), *launches((12, 1))],
         "from the first loading of code until each kernel that's launched more than once had been launched; host "
         "code, waits and copies included"),
        ([("cuMemcpyHtoD", 1, 1, 1 << 20)],
         "from the first loading of code after the weights until the first launch, as no kernel is launched twice"),
    ],
)  # fmt: skip
def test_kernel_compile_says_what_it_is_from_and_until(calls, told):
    calls = sorted([("cuInit", 0, 1), ("cuModuleLoadData", 3, 1), *launches((5, 1)), *calls], key=lambda call: call[1])
    assert f"Kernel Compile: {told}" in ask("stages", made(*calls)).verdicts["stages"]


def test_rounds_of_graphs_are_reported():
    """Rounds consist of a graph alone, or of a graph and a kernel."""
    graph = forge.api(9, "cuGraphLaunch")
    for kernel, told in ((False, "1 launch of a graph"), (True, "2 launches, 1 of graphs,")):
        more = [graph]
        for at in range(1, 9):
            more.append(forge.calls([(ZERO + 10 * at * MS, MS, 9, 0, 7, 0)], forge.OBJECT))
            if kernel:
                more.append(forge.calls([forge.launch(ZERO + (10 * at + 2) * MS, MS, 2, 1)], forge.LAUNCH))
        verdict = ask("stages", made(more=more)).verdicts["stages"]
        assert any(f"equal rounds of {told} from launch " in line for line in verdict), verdict


def test_graph_handle_equal_to_kernel_number_is_not_that_kernel():
    graph, more = forge.api(9, "cuGraphLaunch"), []
    for at in range(1, 9):
        more.append(forge.calls([(ZERO + 10 * at * MS, MS, 9, 0, 1, 0)], forge.OBJECT))
        more.append(forge.calls([forge.launch(ZERO + (10 * at + 2) * MS, MS, 2, 1)], forge.LAUNCH))
    verdict = ask("stages", made(more=[graph, *more])).verdicts["stages"]
    assert any("8 equal rounds of 2 launches, 1 of graphs, from launch 1 on" in line for line in verdict), verdict


@pytest.mark.parametrize("calls", [[("cuInit", 0, 1)], [("cuMemcpyHtoD", 1, 1, 64), ("cuStreamSynchronize", 3, 1)]])
def test_stages_without_a_launch_say_what_is_missing(calls):
    done = run("stages", data=forge.pack(made(*calls)))
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"gpt-analyze: error: no launch of a kernel or graph in the trace, and stages are")


def test_arbitrary_times_cause_no_traceback():
    wild = [forge.launch(start, took, 1, 1) for start in (1, 1 << 63) for took in (1, 1 << 63, (1 << 64) - 1)]
    for name in ("gaps", "stages"):
        segment = made(*launches((1, 1), (2, 1)), more=[forge.calls(wild, forge.LAUNCH)])
        done = run(name, data=forge.pack(segment))
        assert (done.returncode, done.stderr) == (0, b"")


def loading(first, more=(), begin=0.01):
    """Return launches of a kernel at 1, 101 and 111 ms, the first of which takes `first` ms, and of another kernel in
    between.
    """
    made_ = [(1, first, 1), (101, 0.01, 1), (111, 0.01, 1), *more]
    apis = APIS.index("cuLaunchKernel") + 1
    ran = [(at + begin, took + 2 if at == 1 else 2, at, function) for at, took, function in made_]
    rows = [[ZERO + int(at * MS), int(took * MS), ZERO + int(call * MS), 0, apis, f, 1, 0] for at, took, call, f in ran]
    times = records.make("gpu_times", **forge.rows(map(tuple, rows), forge.GPU_TIMES))
    return made(*(("cuLaunchKernel", *call) for call in made_), more=[times])


def test_kernel_loading_is_not_gpu_time():
    """Loading the code takes 80 ms of the launch call. The GPU reaches the event before the launch long before that."""
    segment = loading(80.01)
    found = ask("summary", segment)
    (kernel,) = found.rows["kernels"]
    ran = 3 * 2 + 0.01 + 80.01 - 80  # ms: the rest of the call is the launch itself
    assert kernel["gpu_total"] / MS == pytest.approx(ran, abs=0.02)
    assert found.verdicts["kernels"] == [
        "not in the GPU time: 80.0ms in which first launches loaded the code of 1 kernel"
    ]
    (idle,) = (row for row in found.rows["questions"] if row["question"].startswith("idle"))
    gaps = ask("gaps", segment)
    (gpu,) = gaps.rows["idle"]
    assert gpu["busy"] / MS == pytest.approx(ran, abs=0.02)
    assert gaps.verdicts["idle"][1] == "idle includes 80.0ms in which first launches loaded the code of 1 kernel"
    assert gpu["share"] == pytest.approx(idle["value"], abs=0.01)
    (row,) = (row for row in found.rows["functions"] if row.get("name") == "cuLaunchKernel")
    assert row["total"] / MS == pytest.approx(80.03)  # the time on the host is unchanged


def test_first_launch_in_queue_loads_no_code_in_gpu_time():
    """Earlier work in the stream took longer than loading the code, so the launch's event came later."""
    (kernel,) = ask("summary", loading(80.01, begin=85)).rows["kernels"]
    assert kernel["gpu_total"] / MS == pytest.approx(3 * 2 + 80.01, abs=0.01)


def loading_in_two_threads(second):
    """Return two threads that launch a kernel, which loads in 100 ms, and then launch it 20 times, 2 ms each."""
    api = APIS.index("cuLaunchKernel") + 1
    calls = {1: [(1, 100)], 2: [(second, 101 - second if second < 101 else 100)]}
    ran = {1: [(1, 1.5, 100.5)], 2: [(second, second + 0.5, 101.5 - second if second < 101 else 100.5)]}
    for thread in (1, 2):
        calls[thread] += [(1000 + 10 * n, 0.01) for n in range(20)]
        ran[thread] += [(1000 + 10 * n, 1001 + 10 * n, 2) for n in range(20)]
    rows = [forge.launch(ZERO + int(at * MS), int(took * MS), api, 1) for at, took in calls[1]]
    found = [forge.api(number, name) for number, name in enumerate(APIS, 1)]
    found += [records.make("function", id=1, name="k1"), forge.calls(rows, forge.LAUNCH, 1)]
    rows = [forge.launch(ZERO + int(at * MS), int(took * MS), api, 1) for at, took in calls[2]]
    found.append(forge.calls(rows, forge.LAUNCH, 2))
    times = [(ZERO + int(begin * MS), int(took * MS), ZERO + int(call * MS), thread, api, 1, thread, 0)
             for thread, own in ran.items() for call, begin, took in own]  # fmt: skip
    found.append(records.make("gpu_times", **forge.rows(times, forge.GPU_TIMES)))
    return forge.trace(*found, pid=10)


@pytest.mark.parametrize(("second", "left"), [(2, 1 + 1.5), (60, 1 + 1.5), (300, 1 + 100.5)])
def test_threads_that_wait_for_the_same_loading(second, left):
    """Only launches that begin while the code is being loaded wait for it. If a later launch takes long, there's
    another reason.
    """
    (kernel,) = ask("summary", loading_in_two_threads(second)).rows["kernels"]
    assert kernel["gpu_total"] / MS == pytest.approx(40 * 2 + left, abs=0.6)


def test_kernel_launched_once_has_unknown_loading_time():
    found = ask("summary", loading(0.01, more=[(201, 50, 2)]))
    kernels = {row["name"]: row["gpu_total"] / MS for row in found.rows["kernels"]}
    assert kernels["k2"] == 2  # the call took long
    (line,) = found.verdicts["kernels"]
    assert line == "up to 2.00ms of the GPU time may be the loading of 1 kernel launched only once"


def test_calls_that_all_contain_their_kernels_load_nothing():
    """CUDA_LAUNCH_BLOCKING is set."""
    made_ = [(1, 80, 1), (101, 80, 1), (201, 80, 1)]
    api = APIS.index("cuLaunchKernel") + 1
    rows = [(ZERO + at * MS, took * MS, ZERO + at * MS, 0, api, f, 1, 0) for at, took, f in made_]
    times = records.make("gpu_times", **forge.rows(rows, forge.GPU_TIMES))
    found = ask("summary", made(*(("cuLaunchKernel", *call) for call in made_), more=[times]))
    assert (found.rows["kernels"][0]["gpu_total"], found.verdicts["kernels"]) == (240 * MS, [])


def test_gaps_of_a_process_that_made_no_call():
    """A process may have GPU times but no calls: its trace ended before the calls were written."""
    times = forge.gpu_times([(ZERO, 4 * MS, 1, 0), (ZERO + 10 * MS, 4 * MS, 1, 0)])
    done = run("gaps", data=forge.pack(forge.trace(times)))
    text = " ".join(done.stdout.decode().split())
    said = "GPU 0: idle 42.9 % of the 14.0ms from the first to the last thing that ran on it, which began"
    assert done.returncode == 0 and said in text and "the last call" not in text


def test_waiting_copy_takes_no_time_itself():
    """Each copy from the device returns at once, while the kernel before it runs; then the host waits for both."""
    at = Made()
    for number in range(8):
        time = 1000 * number
        at.call("cuLaunchKernel", time, 5, time + 5, 900)
        at.call("cuMemcpyDtoHAsync", time + 10, 6, time + 905, 2, size=4).call("cuStreamSynchronize", time + 20, 890)
    found = ask("stages", at.segment())
    rows = {row["category"]: row for row in found.rows["stages"]}
    assert (rows["Output Transfer"]["calls"], rows["Output Transfer"]["time"]) == (8, 0)
    assert rows["Sync"]["time"] == (8 * 890 + 7 * 6) * US  # the first copy is the wait with which the inference begins
    assert (
        "Output Transfer: while the host was in its 8 calls, it only waited for earlier work, which is part of Sync"
        in found.verdicts["stages"]
    )
