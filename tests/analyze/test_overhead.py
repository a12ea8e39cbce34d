"""gpt-analyze overhead and memusage: sums of known numbers."""

import pytest

from gpt.stream import records
from tests.analyze.asked import ask, run
from tests.trace import forge

NAME = "_Z6matmulIfEvPT_PKS0_i"


def times(launch, **more):
    return records.make("times", launch=launch, prologue=1000 + launch, epilogue=100, **more)


def code(before, after, function=4):
    return forge.kernel(3, function, NAME) | {"registers": after, "registers_before": before}


def trace(*more, pid=10):
    launches = [forge.probed(number, 3, 4, 2, 32) for number in range(4)]
    return forge.trace(records.make("function", id=4, name=NAME), *launches, *more, pid=pid)


def test_kernels_are_compared_by_their_medians():
    first = trace(times(0, kernel=300, original=100), times(1, kernel=100, original=100), times(2), code(20, 26))
    other = [records.make("function", id=4, name="k"), forge.probed(0, 3, 4, 2, 32), times(0, kernel=30, original=10)]
    found = ask("overhead", first, forge.trace(*other, code(8, 9), pid=11))
    assert found.rows["kernels"] == [
        {"name": NAME, "launches": 3, "original": 100, "probed": 200, "slowdown": 2.0, "registers_before": 20,
         "registers": 26, "prologue": 1001, "epilogue": 100, "timed": 2, "compared": 2},
        {"name": "k", "launches": 1, "original": 10, "probed": 30, "slowdown": 3.0, "registers_before": 8,
         "registers": 9, "prologue": 1000, "epilogue": 100, "timed": 1, "compared": 1},
    ]  # fmt: skip
    assert found.verdicts["kernels"] == [
        "slowdown:2.500, +3.50 registers, mean of 2 kernels", "5 launches ran with probes",
    ]  # fmt: skip


def test_first_launch_loading_code_does_not_change_slowdown():
    """Figures from an H200: 3 ms of the first launch are lazy loading."""
    took = ((3_300_000, 9940), (9900, 9950), (9800, 10_100))
    found = ask("overhead", trace(*(times(n, kernel=k, original=o) for n, (o, k) in enumerate(took)), code(94, 96)))
    (row,) = found.rows["kernels"]
    assert (row["original"], row["probed"], row["slowdown"]) == (9900, 9950, pytest.approx(1.005, abs=1e-3))
    assert found.verdicts["kernels"][0].startswith("slowdown:1.005")


def test_times_of_gpu_time_belong_to_their_launches():
    rows = forge.gpu_times([(1001, 700, 2, 4), (5000, 9000, 2, 4)])
    (row,) = ask("overhead", trace(rows, times(0), times(1))).rows["kernels"]
    assert (row["launches"], row["timed"], row["probed"]) == (2, 1, 700) and "slowdown" not in row


def test_a_trace_without_probed_launches():
    done = run("overhead", data=forge.pack(forge.trace(forge.launches({1: 2}))))
    assert done.returncode == 1 and b"no launch with probes in the trace" in done.stderr


APIS = ["cuMemAlloc", "cuMemFree", "cuMemAllocHost", "cuMemCreate", "cuMemRelease"]


def memory(*changes):
    """Return records of allocations and frees: one call every 100 ns, which takes 5 ns."""
    rows = [(100 * n, 5, APIS.index(name) + 1, 0, to, 0, size, 0) for n, (name, to, size) in enumerate(changes, 1)]
    apis = [forge.api(number, name) for number, name in enumerate(APIS, 1)]
    return [forge.calls(rows, forge.MEMORY), *apis]  # names may come later


@pytest.mark.parametrize(
    ("changes", "allocations", "peak", "left"),
    [
        ([("cuMemAlloc", 16, 100), ("cuMemAlloc", 32, 50), ("cuMemFree", 16, 0), ("cuMemAlloc", 64, 60)], 3, 150, 110),
        ([("cuMemAlloc", 16, 100), ("cuMemAlloc", 16, 70)], 2, 100, 70),  # freed by an unknown function
        ([("cuMemAllocHost", 16, 100), ("cuMemCreate", 16, 7), ("cuMemFree", 16, 0)], 1, 7, 7),
        ([("cuMemCreate", 16, 7), ("cuMemRelease", 16, 0), ("cuMemRelease", 16, 0)], 1, 7, 0),
    ],
)
def test_memory_of_the_program(changes, allocations, peak, left):
    need = [records.make("memusage", function=4, launches=n, bytes=n * 10, most=m) for n, m in ((3, 12), (1, 8))]
    function = records.make("function", id=4, name=NAME)
    found = ask("memusage", forge.trace(function, *memory(*changes), *need))
    (row,) = found.rows["processes"]
    assert (row["allocations"], row["peak"], row["left"], row["most"]) == (allocations, peak, left, 12)
    assert found.rows["kernels"] == [{"name": NAME, "launches": 4, "total": 40, "mean": 10, "most": 12}]
    assert found.verdicts["kernels"] == ["memusage:12 for a launch at most, 40 for all"]


def test_trace_without_totals():
    done = run("memusage", data=forge.pack(forge.trace(forge.launches({1: 2}))))
    assert done.returncode == 1 and b"no buffer sizes in the trace" in done.stderr
