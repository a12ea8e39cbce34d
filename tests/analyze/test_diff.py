"""gpt-analyze diff: two traces whose differences are known."""

import os
import random

import numpy as np
import pytest

from gpt.analyze.lib.differences import RunSums, find_outliers, make_side, pair_names, tell_difference
from gpt.screen.units import human_time
from gpt.stream import records
from tests.analyze.asked import Answers, run
from tests.trace import forge

NAMES = ("cuMemAlloc", "cuMemcpyHtoD", "cuLaunchKernel", "cuStreamSynchronize", "cuInit")
APIS = [forge.api(number, name) for number, name in enumerate(NAMES, 1)]
MS = 10**6
ALLOC, COPY, LAUNCH, SYNC, INIT = range(1, 6)
KERNELS = {1: "_Z2k1v", 2: "_Z2k2v", 3: "_Z5only_v", 4: "_Z3newv"}


def side(count, mean, deviation=0.0, size=0, timed=True):
    """Return one side of a comparison, with times alternately one deviation above and one below the mean."""
    sums = RunSums(count, size)
    sums.times.add(np.array([mean + (deviation if n % 2 else -deviation) for n in range(count if timed else 0)], float))
    return make_side([sums])


@pytest.mark.parametrize(
    ("a", "b", "differs"),
    [
        (side(0, 0), side(1, 5), "only in B"),
        (side(1, 5), side(0, 0), "only in A"),
        (side(100, 50, 10), side(101, 50, 10), "count"),  # a different count is never noise
        (side(100, 50, 10), side(100, 50, 10, size=1), "bytes"),
        (side(100, 50, 10), side(100, 54, 10), "noise"),  # 2.8 standard errors
        (side(100, 50, 10), side(100, 55, 10), "time"),  # 3.5
        (side(10**5, 50, 10), side(10**5, 50.5, 10), "noise"),  # 1 %, as between runs on different days
        (side(10**5, 50, 10), side(10**5, 52, 10), "time"),
        (side(2, 50, 1), side(2, 500, 1), "few times"),
        (side(100, 50), side(100, 50), "nothing"),
        (side(7, 0, timed=False), side(7, 0, timed=False), "nothing"),  # only counted
        (side(7, 0, timed=False), side(7, 5), "not timed"),
    ],
)
def test_differences_are_distinguished_from_noise(a, b, differs):
    assert tell_difference(a, b, 10**9) == differs


def with_times(*runs):
    """Return a side whose runs have these times."""
    found = []
    for times in runs:
        found.append(RunSums(len(times)))
        found[-1].times.add(np.array(times, float))
    return make_side(found)


FAST = [1000.0] * 995


@pytest.mark.parametrize(
    ("a", "b", "whole", "differs"),
    [
        ([FAST + [1000.0] * 5], [FAST + [1e9] * 5], 5e9, "slowest"),  # five of 1,000 calls take a second
        ([FAST + [1000.0] * 5], [FAST + [1e5] * 5], 5e9, "noise"),  # which nobody notices
        ([FAST + [1e9] * 5], [FAST + [1.1e9] * 5], 5e9, "unsure"),  # slow calls on both sides
        ([FAST + [1e9] * 5], [FAST + [1.1e9] * 5], 1e12, "noise"),  # too small a share
        ([[1000.0, 1e6] * 500], [[1500.0] * 600 + [1e6] * 400], 5e8, "time"),
        ([[990.0] * 900 + [1e7] * 100], [[1990.0] * 900 + [1e7] * 100], 1e9, "median"),  # hidden by slow ones
        ([FAST] * 3, [[1100.0] * 995] * 3, 1e6, "time"),
        ([[1000.0] * 9, [1300.0] * 9, [900.0] * 9], [[1100.0] * 9, [1250.0] * 9, [1000.0] * 9], 1e5, "noise"),
        ([FAST, FAST], [[1100.0] * 995, FAST], 1e6, "time"),  # too few runs, so calls are compared
        # Counts that also occur in runs of the other side.
        ([[1.0] * 5, [1.0] * 6], [[1.0] * 6, [1.0] * 7], 1e3, "nothing"),
        ([[1.0] * 5, [1.0] * 6], [[1.0] * 7, [1.0] * 8], 1e3, "count"),
    ],
)  # fmt: skip
def test_slow_calls_and_several_runs(a, b, whole, differs):
    assert tell_difference(with_times(*a), with_times(*b), whole) == differs


def test_kernels_with_other_numbers_in_their_names_are_compared():
    a = ["triton_add_3", "triton_add_9", "gemm_128", "only_a", "same_1"]
    b = ["triton_add_4", "gemm_64", "only_b_2", "same_1"]
    assert pair_names(a, b) == {
        "triton_add_3": "triton_add_#", "triton_add_9": "triton_add_#", "triton_add_4": "triton_add_#",
        "gemm_128": "gemm_#", "gemm_64": "gemm_#",
    }  # fmt: skip
    assert pair_names(a, a) == {}


def trace(seed, copies, sync, kernels, **header):
    """Return noisy calls, copies of 100 bytes, waits of `sync` ns, and GPU times of kernels (count, ns)."""
    noise = random.Random(seed)
    plain = [(10 * n, round(noise.gauss(1000, 100)), ALLOC, 0) for n in range(1, 200)]
    plain += [(10 * n, round(noise.gauss(sync, 100)), SYNC, 0) for n in range(1, 200)]
    moved = [(10 * n, 50, COPY, 0, 0, 0, 100, 0) for n in range(1, copies + 1)]
    times = [(7, round(noise.gauss(ns, 5)), LAUNCH, function) for function, (count, ns) in kernels.items()
             for _ in range(count)]  # fmt: skip
    names = [records.make("function", id=n, name=KERNELS[n]) for n in kernels]
    counted = forge.launches({function: count for function, (count, _) in kernels.items()})
    return forge.trace(*APIS, *names, forge.calls(plain), forge.calls(moved, forge.MEMORY),
                       forge.gpu_times(times), counted, **header)  # fmt: skip


@pytest.fixture
def two(tmp_path):
    before = trace(1, 10, 3000, {1: (50, 200), 2: (50, 400), 3: (5, 100)}, pid=1, argv=["before"])
    after = trace(2, 11, 3500, {1: (50, 200), 2: (50, 300), 4: (5, 100)}, pid=2, argv=["after"])
    for name, segment in (("a.mp", before), ("b.mp", after)):
        (tmp_path / name).write_bytes(forge.pack(segment))
    return tmp_path / "a.mp", tmp_path / "b.mp"


def test_largest_change_comes_first(two):
    done = run("diff", "--json", *two)
    assert (done.returncode, done.stderr) == (0, b"")
    found = Answers(done.stdout)
    rows = [(r["name"], r["differs"], r["count_a"], r["count_b"]) for r in found.rows["functions"]]
    assert rows == [("cuStreamSynchronize", "time", 199, 199), ("cuMemcpyHtoD", "count", 10, 11),
                    ("cuMemAlloc", "noise", 199, 199)]  # fmt: skip
    first, copies, _ = found.rows["functions"]
    assert first["change"] == first["total_b"] - first["total_a"] == pytest.approx(199 * 500, rel=0.05)
    assert (copies["bytes_a"], copies["bytes_b"], copies["change"]) == (1000, 1100, 50)
    rows = [(r["name"], r["differs"], r.get("mean_a"), r.get("mean_b")) for r in found.rows["kernels"]]
    assert [row[:2] for row in rows] == [("_Z2k2v", "time"), ("_Z5only_v", "only in A"), ("_Z3newv", "only in B"),
                                         ("_Z2k1v", "noise")] or rows[1][0] == "_Z3newv"  # fmt: skip
    assert rows[0][2:] == (pytest.approx(400, abs=5), pytest.approx(300, abs=5))
    verdict = found.verdicts["whole"]
    assert [(row["side"], row["command"], row["calls"]) for row in found.rows["sides"]] == [
        ("A", "before", 408), ("B", "after", 409),
    ]  # fmt: skip
    assert found.verdicts["sides"] == ["A and B ran different commands, which may do different work"]
    assert verdict[0].startswith("B took ") and "folders of 3 runs or more" in verdict[0]
    assert verdict[-2].startswith("in calls, most of it: cuStreamSynchronize, ") and verdict[-2].endswith(")")
    assert "us longer (median " in verdict[-2]
    kernel = found.rows["kernels"][0]
    sides = [human_time(kernel[key]) for key in ("median_a", "median_b", "p99_a", "p99_b")]
    assert verdict[-1] == (
        f"on the GPU, most of it: kernel k2, {human_time(-kernel['change'])} less (median {sides[0]} in A, {sides[1]} "
        f"in B; p99 {sides[2]}, {sides[3]})"
    )
    assert found.verdicts["functions"] == [
        "functions: 1 differs in count, 1 differs in time; 1 noise",
        "count: how often it was called or launched",
        "noise: means within 3 standard errors of times within a run, or within 2 %",
    ]
    assert found.verdicts["kernels"][0] == "kernels: 1 only in A, 1 only in B, 1 differs in time; 1 noise"


def test_incomplete_recordings_are_reported(tmp_path):
    """B is recorded from 300 to 700 ns only, and three of five launches have no times, like launches in graphs."""
    off = [records.make("recording", on=on, at=at) for at, on in ((300, True), (700, False))]
    name = records.make("function", id=1, name="k")
    for at, more in enumerate(([forge.launches({1: 5})], [forge.launches({1: 2}), *off])):
        calls = forge.calls([(310, 20, INIT, 0), (690, 10, INIT, 0)])
        ran = forge.gpu_times([(320, 10, LAUNCH, 1), (340, 10, LAUNCH, 1)])
        (tmp_path / f"{'ab'[at]}.mp").write_bytes(forge.pack(forge.trace(*APIS, name, calls, ran, *more, pid=at + 1)))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    (line,) = (line for line in found.verdicts["sides"] if "recording" in line)
    assert line == "in B recording was off for 300ns: its calls and launches are missing"
    whole = {row["what"]: (row["a"], row["b"]) for row in found.rows["whole"]}
    assert whole == {"all of it": (700, 700), "not recorded": (0, 300), "outside of calls": (670, 370),
                     "CUDA calls": (30, 30), "on the GPU": (20, 20)}  # fmt: skip
    timed = [line for line in found.verdicts["kernels"] if "have a time" in line]
    assert timed == ["in A 2 of 5 launches have a time; those in graphs never do"]
    lines = run("summary", tmp_path / "a.mp").stdout.decode().splitlines()
    (at,) = (n for n, line in enumerate(lines) if line.startswith("kernel  launches"))
    assert lines[at].split() == ["kernel", "launches", "share", "timed", "GPU", "time", "share", "mean"]
    assert lines[at + 1].split() == ["k", "5", "100.0", "%", "2", "20ns", "100.0", "%", "10ns"]
    (tmp_path / "c.mp").write_bytes(forge.pack(forge.trace(*APIS, name, calls, ran, pid=3)))
    for other in ("b.mp", "c.mp"):  # all have times, and one has no counts of launches
        lines = run("summary", tmp_path / other).stdout.decode().splitlines()
        assert [line.split()[:3] for line in lines if line.startswith("k  ")] == [["k", "2", "100.0"]]
        assert not any("timed" in line for line in lines if line.startswith("kernel  "))


def test_the_largest_change_is_named_even_if_it_is_of_a_single_call(tmp_path):
    for name, took in (("a.mp", 1320), ("b.mp", 1)):
        calls = [(1, took * MS, INIT, 0), *((3000 * MS + n * MS, (took + n % 5) * 99, SYNC, 0) for n in range(100))]
        (tmp_path / name).write_bytes(forge.pack(forge.trace(*APIS, forge.calls(calls), pid=took)))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    assert found.verdicts["whole"][-1] == (
        "in calls, most of it: cuInit, 1.32s less, with times of only 1 call: too few to tell whether that's noise"
    )
    assert (found.rows["functions"][0]["name"], found.rows["functions"][0]["differs"]) == ("cuInit", "few times")
    assert "few times: fewer than 5 have a time on a side, which can't tell a difference from noise" in \
        found.verdicts["functions"]  # fmt: skip


def test_an_offset_change_is_called_the_largest_not_most_of_it(tmp_path):
    """Waits take 100 ms longer, and allocations 90 ms less."""
    for name, wait, alloc in (("a.mp", 1, 10), ("b.mp", 11, 1)):
        calls = [(n * 100 * MS, wait * MS + n % 5, SYNC, 0) for n in range(1, 11)]
        calls += [(n * 100 * MS + 50 * MS, alloc * MS + n % 5, ALLOC, 0) for n in range(1, 11)]
        (tmp_path / name).write_bytes(forge.pack(forge.trace(*APIS, forge.calls(calls), pid=wait)))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    assert (
        "in calls, the largest change: cuStreamSynchronize, 100ms longer (median 1.00ms in A, 11.0ms in B; p99 1.00ms, "
        "11.0ms)"
    ) in found.verdicts["whole"]


def test_copies_count_among_what_changed_on_the_gpu(tmp_path):
    """Kernels take 1 ms less, and copies 2 ms longer."""
    for name, kernel, copy in (("a.mp", 200, 100), ("b.mp", 100, 300)):
        times = [(100 * MS * n, kernel * 1000 + n % 5, LAUNCH, 1) for n in range(1, 11)]
        times += [(100 * MS * n + 50 * MS, copy * 1000 + n % 5, COPY, 0) for n in range(1, 11)]
        made = forge.trace(*APIS, records.make("function", id=1, name="_Z2k1v"), forge.gpu_times(times),
                           forge.calls([(1, 5, INIT, 0)]), forge.launches({1: 10}), pid=kernel)  # fmt: skip
        (tmp_path / name).write_bytes(forge.pack(made))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    assert found.verdicts["whole"][-1] == (
        "on the GPU, the largest change: cuMemcpyHtoD, 2.00ms longer (median 100us in A, 300us in B; p99 100us, 300us)"
    )


def test_few_calls_do_not_prove_that_nothing_differs(tmp_path):
    for name, took in (("a.mp", 5), ("b.mp", 50)):
        (tmp_path / name).write_bytes(forge.pack(forge.trace(*APIS, forge.calls([(1, took * MS, INIT, 0)]), pid=took)))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    assert found.verdicts["functions"][0] == "functions: no known difference; 1 few times"


@pytest.mark.full
def test_tables_are_whole_in_80_columns_and_in_markdown(two):
    for width in ("80", "160"):
        text = run("diff", *two, env={**os.environ, "COLUMNS": width}).stdout.decode()
        assert max(map(len, text.splitlines())) <= int(width)
        head = next(line for line in text.splitlines() if line.startswith("function "))
        assert all(title in head for title in ("differs in", "in A", "in B", "change", "time A", "time B"))
        assert "no room for" in text if width == "80" else "median B" in head
    text = run("diff", "--format", "md", *two).stdout.decode()
    assert "| `cuStreamSynchronize` | `time` | 199 | 199 |" in text and len(text) <= 8000


def test_children_are_of_the_trace_that_names_them(tmp_path):
    child = records.make("child", pid=5, how="fork", path="a.mp.5")
    call = forge.calls([(5, 10, INIT, 0)])
    for name, segment in (
        ("a.mp", forge.trace(*APIS, child, call, pid=1)),
        ("a.mp.5", forge.trace(*APIS, call, call, pid=5)),
        ("b.mp", forge.trace(*APIS, call, pid=2)),
    ):
        (tmp_path / name).write_bytes(forge.pack(segment))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    (row,) = found.rows["functions"]
    assert (row["count_a"], row["count_b"], row["differs"]) == (3, 1, "count")
    assert not any(line.startswith("of that") for line in found.verdicts["whole"])  # the processes' calls overlap
    assert any(line.endswith("about all threads of all processes: they don't add up")
               for line in found.verdicts["whole"])  # fmt: skip


def test_the_parts_of_a_change_are_those_of_one_thread(tmp_path):
    """Two threads make calls at the same time. B takes 10 ms longer, all of it in calls of both."""
    for name, took in (("a.mp", 1), ("b.mp", 11)):
        calls = [forge.calls([(1, took * MS, INIT, 0)], thread=thread) for thread in (1, 2)]
        (tmp_path / name).write_bytes(forge.pack(forge.trace(*APIS, *calls, pid=took)))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    assert found.rows["whole"][2]["change"] == 20 * MS
    assert found.verdicts["whole"][1] == ("in the thread that spends most time in calls, all of that is in CUDA calls")


def test_only_known_conditions_are_reported_as_different(tmp_path):
    """If A doesn't name its GPU, B may have run on the same one. One run of A had the same probes as B."""
    card = records.make("device", index=0, name="H200", arch="sm_90", runs="sass")
    call = forge.calls([(1, MS, INIT, 0)])
    probe = forge.probe_map("dmat", n="u64")
    for name, segments in (("a", [[call], [probe, call]]), ("b", [[card, probe, forge.calls([(1, 2 * MS, INIT, 0)])]])):
        (tmp_path / name).mkdir()
        for number, segment in enumerate(segments):
            made = forge.trace(*APIS, *segment, pid=ord(name) + 10 * number)
            (tmp_path / name / f"{number}.mp").write_bytes(forge.pack(made))
    found = Answers(run("diff", "--json", tmp_path / "a", tmp_path / "b").stdout)
    assert not any("GPU" in line for line in found.verdicts["sides"])
    assert not any("that may be why" in line for line in found.verdicts["whole"])
    bare = Answers(run("diff", "--json", tmp_path / "a" / "0.mp", tmp_path / "b" / "0.mp").stdout)
    assert "B ran with different probes: that may be why" in bare.verdicts["whole"]


@pytest.mark.full
def test_two_traces_are_needed(two, tmp_path):
    for paths in ([], two[:1], [*two, two[0]]):
        done = run("diff", *paths)
        assert done.returncode == 2 and b"two traces are compared" in done.stderr
    done = run("diff", two[0], two[0])
    assert done.returncode == 2 and f"A and B are the same: {two[0]}".encode() in done.stderr
    (tmp_path / "empty.mp").write_bytes(forge.pack(forge.trace(pid=9)))
    (tmp_path / "torn.mp").write_bytes(two[1].read_bytes()[:-7])
    done = run("diff", two[0], tmp_path / "empty.mp")
    assert done.returncode == 1 and b"no calls in trace B: 'gpt-hook run' records some" in done.stderr
    done = run("diff", two[0], tmp_path / "torn.mp")
    assert done.returncode == 3 and b"incomplete:" in done.stdout
    assert run("diff", two[0], tmp_path / "absent").returncode == 4


def test_folders_are_runs_with_known_noise(tmp_path):
    """Each side has three runs with a child. B's waits take a fifth longer, more than runs differ by."""
    for side, (name, sync) in enumerate((("a", 3000), ("b", 3600))):
        folder = tmp_path / name
        folder.mkdir()
        for number in range(3):
            child = records.make("child", pid=50 + number, how="fork", path=f"run{number}.mp.{50 + number}")
            segment = trace(10 * side + number, 10, sync, {1: (50, 200)}, pid=number + 1, argv=[name])
            (folder / f"run{number}.mp").write_bytes(forge.pack([*segment[:-1], child, segment[-1]]))
            call = forge.calls([(5, 10, INIT, 0)])
            (folder / f"run{number}.mp.{50 + number}").write_bytes(
                forge.pack(forge.trace(*APIS, call, pid=50 + number))
            )
        (folder / "notes.txt").write_text("not a trace")
    done = run("diff", "--json", tmp_path / "a", tmp_path / "b")
    assert (done.returncode, done.stderr) == (0, b"")
    found = Answers(done.stdout)
    whole = {row["what"]: row for row in found.rows["whole"]}
    assert whole["CUDA calls"]["differs"] == "time" and whole["CUDA calls"]["runs_a"] == 3
    rows = {row["name"]: (row["differs"], row["count_a"], row["count_b"]) for row in found.rows["functions"]}
    assert rows == {"cuStreamSynchronize": ("time", 199, 199), "cuMemAlloc": ("noise", 199, 199),
                    "cuMemcpyHtoD": ("nothing", 10, 10), "cuInit": ("nothing", 1, 1)}  # fmt: skip
    assert any(line.startswith("noise: means within 3 standard errors of runs") for line in found.verdicts["functions"])


def test_an_outlying_run_is_named(tmp_path):
    """Each side has five equal runs, except that one run of B waits for a second. Without that run, nothing has
    changed.
    """
    for side, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        for number in range(5):
            slow = (name, number) == ("b", 3)
            waits = [(n * 2_000_000 + 1, 1_000_000 + 1000 * ((7 * n + number) % 10), SYNC, 0) for n in range(500)]
            waits.append((waits[-1][0] + 2_000_000, 10**9 if slow else 1_000_000, SYNC, 0))
            segment = forge.trace(*APIS, forge.calls(waits), pid=10 * side + number + 1)
            (tmp_path / name / f"run{number}.mp").write_bytes(forge.pack(segment))
    found = Answers(run("diff", "--json", tmp_path / "a", tmp_path / "b").stdout)
    told = found.verdicts["whole"]
    assert told[-2] == (
        "run3.mp, one of 5 runs of B, took 2.00s; the others 1.00s; most of that: cuStreamSynchronize, 999ms longer"
    )
    assert told[-1].startswith("without that run, B took ")
    assert told[-1].endswith("as long as A, which is within what runs of the same side differ by")


@pytest.mark.parametrize(
    ("values", "far"),
    [
        ([100, 101, 99, 100, 200], [4]),
        ([100, 101, 150], [2]),
        ([50, 100, 101, 99, 100], [0]),
        ([100, 120, 150], []),  # they all differ
        ([100, 100, 100, 104], []),  # less than 5 %
        ([100, 200], []),  # which of them?
        ([100, 101, 102, 200, 201, 202], []),  # two kinds of runs
        ([0, 0, 0], []),
    ],
)
def test_outliers_are_found(values, far):
    assert find_outliers(values) == far


def test_a_few_waits_of_a_second_are_not_noise(tmp_path):
    for name, slow in (("a.mp", 1000), ("b.mp", 10**9)):
        calls, at = [], 1
        for n in range(1000):
            took = slow if n % 200 == 7 else 1000
            calls.append((at, took, SYNC, 0))
            at += took + 1000
        (tmp_path / name).write_bytes(forge.pack(forge.trace(*APIS, forge.calls(calls), pid=len(name) + slow % 7)))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    (row,) = found.rows["functions"]
    assert (row["differs"], row["change"]) == ("slowest", 5 * (10**9 - 1000))
    assert (row["median_a"], row["longest_a"], row["longest_b"]) == (pytest.approx(1000, rel=0.01), 1000, 10**9)
    assert found.verdicts["functions"][0] == "functions: 1 differs in slowest calls"
    assert found.verdicts["sides"] == []
    assert found.verdicts["whole"][0].startswith("B took 5.00s longer than A (2,50")
    assert found.verdicts["whole"][1:] == [
        "all of that is in CUDA calls",
        "in calls, most of it: cuStreamSynchronize, 5.00s longer, in few calls: the longest took 1.00us in A, "
        "1.00s in B",
    ]


def test_a_difference_in_host_code_is_reported_as_one(tmp_path):
    """B is 18 s shorter: host code takes 17.9 s less, and 31 calls of the same function 0.1 s less."""
    for name, pause, took, args, probe in (("a.mp", 20_000, 5, "3", "block_sched"), ("b.mp", 2_100, 2, "1", "dmat")):
        calls = [(1 + (MS * (n * (took + n) + (pause if n > 15 else 0))), MS * (took + n), SYNC, 0) for n in range(31)]
        calls += [(MS * (pause - 50 + n), 2 * MS, ALLOC, 0) for n in range(2 if took == 5 else 1)]
        segment = forge.trace(*APIS, forge.probe_map(probe, n="u64"), forge.calls(calls), pid=took, argv=["llm", args])
        (tmp_path / name).write_bytes(forge.pack(segment))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    assert found.verdicts["sides"] == [
        "A and B ran different commands, which may do different work",
        "A and B ran with different probes, which take time of their own: block_sched in A, dmat in B",
    ]
    whole = {row["what"]: row["change"] for row in found.rows["whole"]}
    assert whole["all of it"] == pytest.approx(whole["outside of calls"] + whole["CUDA calls"])
    assert whole["CUDA calls"] == -(31 * 3 + 2) * MS
    told = found.verdicts["whole"]
    assert told[1] == "B ran another command, with different probes: that may be why"
    assert told[2].startswith("of that, 17.9s (99.5 %) outside of CUDA calls, in host code, and 95.0ms (0.5 %) in CUDA")
    assert told[3] == (
        "in calls, most of it: cuStreamSynchronize, 93.0ms less (median 20.0ms in A, 17.0ms in B; p99 35.0ms, 32.0ms), "
        "which may be noise: its calls vary by as much"
    )
    assert [(row["name"], row["differs"]) for row in found.rows["functions"]] == [
        ("cuStreamSynchronize", "unsure"), ("cuMemAlloc", "count"),
    ]  # fmt: skip


def test_numbers_that_tell_kernels_apart_on_both_sides_stay():
    a = ["gemm_64x64_v1", "gemm_128x64_v1", "gemm_256x64_v1", "add_3", "mul_1_2", "mul_2_1"]
    b = ["gemm_64x64_v2", "gemm_128x64_v2", "add_4", "mul_1_1", "mul_2_2"]
    assert pair_names(a, b) == {
        "gemm_64x64_v1": "gemm_64x64_v#", "gemm_64x64_v2": "gemm_64x64_v#",
        "gemm_128x64_v1": "gemm_128x64_v#", "gemm_128x64_v2": "gemm_128x64_v#",
        "add_3": "add_#", "add_4": "add_#",
        **dict.fromkeys(("mul_1_2", "mul_2_1", "mul_1_1", "mul_2_2"), "mul_#_#"),
    }  # fmt: skip


def test_kernels_of_one_side_and_other_numbers_of_processes(tmp_path):
    """Kernel k1 is launched twice in A, and thrice in B, by two processes. Kernels `old` and `new` are on one side."""

    def make(number, kernel, launches, pid):
        names = [records.make("function", id=id_, name=name) for id_, name in ((1, "k1"), (2, kernel))]
        times = [(n * MS, 100_000, LAUNCH, 1) for n in range(launches)]
        times += [(n * MS + 200_000, 300_000 * number, LAUNCH, 2) for n in range(5)]
        counts = forge.launches({1: launches, 2: 5})
        calls = forge.calls([(1, 5 * pid, INIT, 0)])
        return forge.trace(*APIS, *names, forge.gpu_times(times), calls, counts, pid=pid)

    (tmp_path / "a.mp").write_bytes(forge.pack(make(1, "old", 2, 1)))
    (tmp_path / "b.mp").write_bytes(forge.pack(make(2, "new", 1, 2), make(2, "new", 2, 3)))
    found = Answers(run("diff", "--json", tmp_path / "a.mp", tmp_path / "b.mp").stdout)
    assert "A and B ran different numbers of processes: 1 in A, 2 in B" in found.verdicts["sides"]
    assert [row["processes"] for row in found.rows["sides"]] == [1, 2]
    told = found.verdicts["whole"]
    assert "B ran with another number of processes: that may be why" in told
    assert told[-2] == "in calls, most of it: cuInit, 20ns longer: 1 call in A, 2 calls in B"
    assert told[-1] == "on the GPU, most of it: kernel new, 6.00ms longer, only in B; only in A: kernel old, 1.50ms"


def test_empty_files_in_a_folder_are_named(tmp_path):
    for side, name in enumerate("ab"):
        (tmp_path / name).mkdir()
        for number in range(3):
            (tmp_path / name / f"run{number}.mp").write_bytes(forge.pack(trace(10 * side + number, 10, 3000, {})))
    for number in (3, 4):
        (tmp_path / "b" / f"run{number}.mp").write_bytes(b"")
    (tmp_path / "b" / "link.mp").symlink_to("run3.mp")
    done = run("diff", "--json", tmp_path / "a", tmp_path / "b")
    assert (done.returncode, done.stderr) == (0, b"")
    found = Answers(done.stdout)
    assert [row["runs"] for row in found.rows["sides"]] == [3, 3]
    assert found.verdicts["sides"][0] == "2 empty files in B not counted as runs: run3.mp, run4.mp"
