"""The last line of gpt-analyze summary names the most useful next command for a program."""

import pytest

from gpt.stream import records
from tests.analyze.asked import answers, ask, run
from tests.analyze.working import Made
from tests.trace import forge

US, MS = 1000, 10**6
APIS = ("cuLaunchKernel", "cuMemAlloc", "cuMemFree", "cuGraphLaunch")
TYPES = {"cuMemFree": ("memory", "free")}
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def made(steps=10, first=0, at=100 * MS, busy=0.3, kernel="k", graph=False, allocs=(), gpu=True, **header):
    """Make a process that launches a kernel or a graph in each step of 10 ms. The first step takes longer."""
    step = 10 * MS
    found = [
        forge.api(number, name) | dict(zip(("type", "op"), TYPES.get(name, ()), strict=False))
        for number, name in enumerate(APIS, 1)
    ]
    found.append(records.make("function", id=1, name=kernel))
    calls, others, times = [], [], []
    for number in range(steps):
        api = 1 + 3 * graph
        if graph:
            found.append(forge.calls([(at, US, api, 0, 5, 7)], forge.OBJECT))
        else:
            calls.append(forge.launch(at, US, api, 1))
        times.append((at, round(busy * step), api, 0 if graph else 1))
        others += [(at + 10 * US, US, 2 if what == "alloc" else 3, 0, 64 * number, 0, 64, 0) for what in allocs]
        at += step + (first if number == 0 else 0)
    found += [forge.calls(calls, forge.LAUNCH), forge.calls(others, forge.MEMORY)]
    return forge.trace(*found, *([forge.gpu_times(times)] if gpu else []), **header)


def named(*segments):
    (row,) = answers("summary", *segments).rows["next"]
    return row["command"].removeprefix("gpt-analyze "), row["why"]


def test_idle_unless_something_else_is_plain():
    assert named(made()) == ("idle", "why the GPU is idle 67.7 % of the time")
    assert named(made(gpu=False)) == ("gaps", "when nothing was launched (--gpu-time says more)")


def test_a_busy_gpu_is_not_called_idle():
    def find(idle):
        return named(Made().run(0, 500).run(500 + idle, 500 - idle).segment())

    assert find(50) == ("idle", "why the GPU is idle 5.0 % of the time")
    assert find(49) == ("idle", "what keeps the GPU busy 95.1 % of the time")
    answer = answers("summary", Made().run(0, 10).run(10, 10).segment())
    assert answer.rows["next"][0]["option"] == "-p block_sched"


@pytest.mark.parametrize("end", [True, False])
def test_the_last_line_names_it(end):
    done = run("summary", data=forge.pack(made(end=end)))
    assert (b"incomplete:" in done.stdout) == (not end)
    assert done.stdout.splitlines()[-1].split() == b"gpt-analyze idle  why the GPU is idle 67.7 % of the time".split()


@pytest.mark.parametrize(
    ("allocs", "command"),
    [(["alloc"], "memory"), (["alloc", "free"], "idle"), (["alloc", "alloc", "free"], "memory"), (["free"], "idle")],
)
def test_memory_that_grows(allocs, command):
    assert named(made(steps=20, allocs=allocs))[0] == command


def test_a_long_start():
    assert named(made(at=32_000 * MS)) == ("startup", "where 32.0s go before steady work of 93.0ms")
    assert named(made(at=28_000 * MS))[0] == "idle"
    assert named(made(first=2_000 * MS)) == ("startup", "where 2.11s go before steady work of 83.0ms")
    assert named(made(first=80 * MS))[0] == "idle"
    assert named(made(first=2_000 * MS, steps=80))[0] == "idle"
    assert named(made(first=2_000 * MS, steps=60))[0] == "startup"


def test_a_loop_that_the_host_launches_in_no_time_is_no_short_loop():
    """The host launches all steps in 1.2 ms, after 0.2 s. The GPU needs 0.6 s for them."""
    warm = Made().call("cuLaunchKernel", 0, 5, 5, 10, function=1)
    for step in range(60):
        warm.call("cuLaunchKernel", 200_000 + 20 * step, 5, 200_005 + 10_000 * step, 10_000, function=2)
    assert named(warm.segment())[0] == "idle"


@pytest.mark.parametrize(("count", "apart", "command"), [(5, 400, "startup"), (4, 400, "idle"), (5, 100, "idle")])
def test_processes_that_start_one_after_the_other(count, apart, command):
    """Each takes 250 ms to start, and then works for 93 ms. If they overlap, only the first and the fifth count."""
    found = [
        made(pid=10 + number, at=(apart * number + 250) * MS, monotonic=apart * number * MS) for number in range(count)
    ]
    assert named(*found)[0] == command
    if command == "startup":
        assert named(*found)[1] == "where 1.25s go in 5 processes before steady work of 465ms"


def test_graphs_that_keep_the_gpu_busy():
    assert named(made(graph=True, busy=0.9)) == ("graphs", "which kernels take 100.0 % of the GPU time in graphs")
    assert named(made(graph=True, busy=0.5))[0] == "idle"
    probed = forge.probed(1, 9, 1, 1, 32)
    slow = made(graph=True, busy=0.5, first=2_000 * MS)
    assert named(slow)[0] == "startup" and named([*slow[:-1], probed, slow[-1]])[0] == "graphs"


def test_ranks_that_wait():
    ranks = [made(kernel=NCCL, pid=10 + rank, rank=rank) for rank in range(2)]
    assert named(*ranks) == ("collectives", "which rank the others wait for in 100.0 % of the GPU time")
    assert named(ranks[0])[0] == "idle" and named(*(made(pid=pid) for pid in (10, 11)))[0] == "idle"


def test_times_without_calls_are_enough():
    assert named(Made().run(0, 10).run(30, 10).segment()) == ("idle", "why the GPU is idle 50.0 % of the time")


def test_units_of_threads_are_not_looked_up_in_all_launches():
    """Two threads launch in random order, so each thread's unit can only be found in its own launches."""
    found = [forge.api(1, "cuLaunchKernel"), *(records.make("function", id=n, name=f"k{n}") for n in range(1, 7))]
    for thread, start in ((1, 100), (2, 137)):
        rows, at = [], start * MS
        for number in range(60):
            rows.append(forge.launch(at, US, 1, 1 + number % 3 + 3 * (thread == 2)))
            at += (7 + 5 * thread + number * number % 11) * MS
        found.append(forge.calls(rows, forge.LAUNCH, thread))
    assert named(forge.trace(*found))[0] == "gaps"


def test_nothing_is_named_where_nothing_was_launched():
    assert "next" not in ask("summary", forge.trace(forge.api(1, "cuMemAlloc"), forge.calls([(5, 5, 1, 0)]))).rows
