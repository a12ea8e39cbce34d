"""gpt-analyze idle: causes that don't leave the GPU idle, and work that begins late."""

import pytest

from gpt.stream import records
from tests.analyze.asked import ask
from tests.analyze.working import TIMES, US, ZERO, Made
from tests.trace import forge


@pytest.mark.parametrize(("growth", "told"), [(4, True), (0.5, False)])
def test_kernel_gets_slower(growth, told):
    """The first quarter of 40 launches takes 20 + 4 * 4.5 us on average, and the last quarter 20 + 4 * 34.5 us."""
    made, at = Made(), 10
    for number in range(40):
        made.call("cuLaunchKernel", 3 * number, 1, at, 20 + growth * number, function=2)
        at += 21 + growth * number
    rows = [row for row in ask("idle", made.segment()).rows["verdict"] if row["cause"] == "slower kernel"]
    assert bool(rows) == told
    if told:
        total, first = 40 * 20 + 4 * 780, 20 + 4 * 4.5
        assert rows[0]["time"] == (total - 40 * first) * US
        assert rows[0]["told"].startswith("k2 takes 158us in the last quarter of its launches, but 38.0us in the first")


@pytest.mark.parametrize("turns", [True, False])
def test_processes_that_share_a_gpu(turns):
    """Two processes run 20 kernels of 100 us: alternately, or one process after the other."""
    first, second = Made(pid=10), Made(pid=11)
    for number in range(20):
        places = (2 * number, 2 * number + 1) if turns else (number, 20 + number)
        for at, made in zip(places, (first, second), strict=True):
            made.call("cuLaunchKernel", 100 * at + 1, 5, 100 * at + 10, 100)
    found = ask("idle", first.segment(), second.segment())
    rows = [row for row in found.rows["verdict"] if row["cause"] == "shared GPU"]
    assert [row["time"] for row in rows] == [2000 * US] * turns
    if turns:
        assert rows[0]["told"].startswith("2 processes take turns on GPU 0, 38 times, with 50.0 %, 50.0 % of its work")


def test_processes_that_run_one_after_the_other_do_not_share_a_gpu():
    """Each of 15 processes has a fifteenth of the work, and the first two more."""
    made = [Made(pid=10 + number) for number in range(15)]
    for number, one in enumerate(made):
        for place in range(3 if number < 2 else 1):
            at = 1000 * number + 200 * place
            one.call("cuLaunchKernel", at + 1, 5, at + 10, 100)
    assert "shared GPU" not in [row["cause"] for row in ask("idle", *(one.segment() for one in made)).rows["verdict"]]


def named(made, name, type_, op, start, took, count=1):
    """Make calls of a function that `Made` doesn't know, one after the other."""
    made.found.append(forge.api(100, name) | {"type": type_, "op": op})
    rows = [(ZERO + round((start + at * took) * US), round(took * US), 100, 0) for at in range(count)]
    made.found.append(forge.calls(rows, forge.CALL, 1))


@pytest.mark.parametrize(
    ("name", "calls", "told"),
    [
        (None, 0, "its stream waits for another one;"),
        ("cuStreamWaitEvent", 8, "its stream waits for another one (8 calls of cuStreamWaitEvent);"),
        ("cuLaunchHostFunc", 8, "its stream waits for functions of the host (8 calls of cuLaunchHostFunc);"),
        ("cuLaunchHostFunc", 1, "its stream waits for another one;"),  # too few for 20 late kernels
    ],
)
def test_why_work_begins_late(name, calls, told):
    made = Made()
    for number in range(21):
        made.call("cuLaunchKernel", 10 + number, 1, 500 * number, 100)
    if name:
        named(made, name, "stream", "wait", 40, 1, calls)
    (row,) = (row for row in ask("idle", made.segment()).rows["verdict"] if row["cause"] == "begun late")
    assert row["told"].startswith(f"work begins late, 20 times, although it was launched before: {told}")


def test_work_that_begins_late_while_processes_share_a_gpu():
    made = [Made(pid=10), Made(pid=11)]
    for number in range(10):
        for at, one in enumerate(made):
            one.call("cuLaunchKernel", 10 + number, 1, 1000 * number + 500 * at, 100)
    rows = ask("idle", *(one.segment() for one in made)).rows["verdict"]
    (told,) = (row["told"] for row in rows if row["cause"] == "begun late")
    assert "its stream waits for another one, or the GPU serves another process;" in told


@pytest.mark.parametrize(("took", "polls"), [(0.5, True), (0.01, False)])
def test_host_keeps_polling(took, polls):
    """Kernels run for 2 ms, and the host asks 1,000 times whether they're done, for 500 us or 10 us."""
    made = Made()
    for number in range(20):
        made.call("cuLaunchKernel", number, 0.5, 100 * number + 30, 100)
    named(made, "cuEventQuery", "event", "query", 100, took, 1000)
    rows = [row for row in ask("idle", made.segment()).rows["verdict"] if row["cause"] == "polling"]
    assert [row["time"] for row in rows] == [500 * US] * polls
    if polls:
        assert rows[0]["told"] == (
            "the host asks 1,000 times in cuEventQuery whether the GPU is done, 500us together, which keeps a core "
            "busy: wait in cuEventSynchronize instead, or ask less often"
        )


def test_setting_memory_does_not_count_as_a_copy():
    made = Made()
    for number in range(10):
        made.call("cuLaunchKernel", 100 * number, 1, 100 * number + 5, 10)
        named(made, "cuMemsetD8Async", "memset", "set", 100 * number + 2, 1)
        at = ZERO + round((100 * number + 20) * US)
        row = (at, 50 * US, ZERO + round((100 * number + 2) * US), 7, 100, 0, 1, 0, 0, 0)
        made.found.append(records.make("gpu_times", **forge.rows([row], TIMES)))
    (row,) = (row for row in ask("idle", made.segment()).rows["verdict"] if row["cause"] == "only copies")
    assert (row["time"], row["told"].split(" the GPU ")[1]) == (
        500 * US, "only sets memory: set less, or in a separate stream while kernels run",
    )  # fmt: skip
