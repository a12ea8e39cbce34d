"""The critical path of a unit, on hand-made timelines whose paths follow from their numbers."""

import pytest

from gpt.stream import records
from tests.analyze.asked import ask
from tests.analyze.working import TIMES, US, ZERO, Made, steps
from tests.trace import forge

WAITS_FOR_EVENT = 20  # id of a function
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)"


def path(made):
    """Return the ns, in us, and the count of each part of the path, and its verdict."""
    found = ask("launches", made.segment())
    rows = {(row["what"], row.get("name")): (row["time"] / US, row["count"]) for row in found.rows["path"]}
    return rows, found


def test_a_host_that_launches_late():
    """A unit of 30 us: the last work ends at 23 us, and the next one begins when its call has returned."""
    rows, found = path(steps())
    assert rows == {
        ("host code", None): (19.0, 2), ("call", "cuLaunchKernel"): (10.0, 3), ("launch delay", None): (1.0, 1),
    }  # fmt: skip
    assert found.verdicts["path"][0].endswith(
        "a unit takes 30.0us, 100.0 % of it on the host, the rest on the GPU: host code 63.3 %, call 33.3 %, "
        "launch delay 3.3 %"
    )
    order = [(row["where"], row["what"], row["begin"] / US, row["took"] / US) for row in found.rows["steps"]]
    assert order == [
        ("thread 1", "call", 0, 4), ("thread 1", "host code", 4, 1), ("thread 1", "call", 5, 2),
        ("thread 1", "host code", 7, 18), ("thread 1", "call", 25, 4), ("thread 1", "launch delay", 29, 1),
    ]  # fmt: skip


def test_a_gpu_that_is_never_idle():
    """Launches are made far ahead, even before the part of the trace that's read for the unit."""
    made = Made()
    for number in range(40):
        made.call("cuLaunchKernel", 10 * number, 4, 10 + 500 * number, 490, function=number % 2 + 1)
    rows, found = path(made)
    assert rows == {
        ("kernel", "k1"): (490.0, 1), ("kernel", "k2"): (490.0, 1), ("next in the stream", None): (20.0, 2),
    }  # fmt: skip
    assert ", 0.0 % of it on the host" in found.verdicts["path"][0]


def test_a_host_that_waits_for_the_gpu():
    made = Made()
    for number in range(6):
        at = 150 * number
        made.call("cuLaunchKernel", at, 5, at + 5, 100).call("cuStreamSynchronize", at + 10, 98)
    assert path(made)[0] == {
        ("kernel", "k1"): (100.0, 1), ("return from a wait", "cuStreamSynchronize"): (3.0, 1),
        ("host code", None): (42.0, 1), ("call", "cuLaunchKernel"): (5.0, 1),
    }  # fmt: skip


@pytest.mark.parametrize("takes", [30, 4])
def test_a_copy_lasts_as_long_as_its_call_or_not(takes):
    """The host waits for a copy that ends within its call, but not for a copy that outlasts it."""
    made = Made()
    for number in range(6):
        at = 100 * number
        made.call("cuLaunchKernel", at, 5, at + 5, 10)
        made.call("cuMemcpyDtoHAsync", at + 20, takes, at + 22, 25, size=9)
    rows = path(made)[0]
    if takes == 30:
        assert rows["copy or memset", "cuMemcpyDtoHAsync"] == (25.0, 1)
        assert rows["return from a wait", "cuMemcpyDtoHAsync"] == (3.0, 1)
    else:
        assert rows["call", "cuMemcpyDtoHAsync"] == (4.0, 1) and ("copy or memset", "cuMemcpyDtoHAsync") not in rows
    assert sum(time for time, _ in rows.values()) == pytest.approx(100)


@pytest.mark.parametrize("waits", [True, False])
def test_a_stream_that_waits_for_an_event_of_another(waits):
    """Each step's work in stream 8 begins when the collective in stream 7 has ended."""
    made = Made()
    made.found.append(forge.api(WAITS_FOR_EVENT, "cuStreamWaitEvent"))
    made.found.append(records.make("function", id=9, name=NCCL))
    for number in range(6):
        at = 200 * number
        made.call("cuLaunchKernel", at, 3, at + 20, 100, function=9)
        if waits:
            row = (ZERO + (at + 4) * US, US, WAITS_FOR_EVENT, 0, 0x99, 8)
            made.found.append(forge.calls([row], forge.OBJECT))
        row = (ZERO + (at + 6) * US, 3 * US, 1, 0, 8, 1, 0, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, 0)
        made.found.append(forge.calls([row], forge.LAUNCH))
        work = (ZERO + (at + 121) * US, 50 * US, ZERO + (at + 6) * US, 8, 1, 1, 1, 0, 0, 0)
        made.found.append(records.make("gpu_times", **forge.rows([work], TIMES)))
        made.found.append(forge.calls([(ZERO + (at + 10) * US, 175 * US, 4, 0, 0x8, 8)], forge.OBJECT))
    rows, found = path(made)
    assert rows["kernel", "k1"] == (50.0, 1) and rows["return from a wait", "cuStreamSynchronize"] == (14.0, 1)
    assert rows["host code", None] == (15.0, 1) and rows["call", "cuLaunchKernel"] == (3.0, 1)
    if waits:
        assert rows["collective", NCCL] == (100.0, 1) and rows["next in the stream", None] == (1.0, 1)
        assert rows["launch delay", None] == (17.0, 1)
        assert any("gpt-analyze collectives" in line for line in found.verdicts["path"])
    else:
        assert rows["launch delay", None] == (17.0 + 101.0, 2) and ("collective", NCCL) not in rows
