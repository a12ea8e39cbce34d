"""The critical path of a unit, on hand-made timelines whose paths follow from their numbers."""

import pytest

from gpt.stream import records
from tests.analyze.asked import ask
from tests.analyze.working import TIMES, US, ZERO, Made, steps
from tests.trace import forge

WAITS_FOR_EVENT = 20  # id of a function
NCCL, GATHER = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "ncclDevKernel_AllGather_RING_LL(x)"


def path(made):
    """Return the ns, in us, and the count of each part of the path, and its verdict."""
    found = ask("launches", made.segment())
    rows = {(row["what"], row.get("name")): (row["time"] / US, row["count"]) for row in found.rows["path"]}
    return rows, found


def test_host_launches_late():
    """In a unit of 30 us, the last work ends at 23 us, and the next unit begins when its launch call has returned."""
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


def test_gpu_never_idle():
    """Kernels are launched far ahead, some of them before the part of the trace that's read for the unit."""
    made = Made()
    for number in range(40):
        made.call("cuLaunchKernel", 10 * number, 4, 10 + 500 * number, 490, function=number % 2 + 1)
    rows, found = path(made)
    assert rows == {
        ("kernel", "k1"): (490.0, 1), ("kernel", "k2"): (490.0, 1), ("next in the stream", None): (20.0, 2),
    }  # fmt: skip
    assert ", 0.0 % of it on the host" in found.verdicts["path"][0]


def test_host_waits_for_the_gpu():
    made = Made()
    for number in range(6):
        at = 150 * number
        made.call("cuLaunchKernel", at, 5, at + 5, 100).call("cuStreamSynchronize", at + 10, 98)
    assert path(made)[0] == {
        ("kernel", "k1"): (100.0, 1), ("return from a wait", "cuStreamSynchronize"): (3.0, 1),
        ("host code", None): (42.0, 1), ("call", "cuLaunchKernel"): (5.0, 1),
    }  # fmt: skip


@pytest.mark.parametrize("takes", [30, 4])
def test_copy_may_outlast_its_call(takes):
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
def test_stream_waits_for_event_of_another(waits):
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


# Several ranks. Every step takes 1 ms.


def rank(number, *collectives, waits=((8, 660, 703),), shift=0, **header):
    """Return a rank whose steps launch k1, and then collectives, given as a stream, when the launch begins, and when
    all ranks end it, in us since the step began. `waits` are for a stream. All times are `shift` us ahead.
    """
    made = Made(pid=10 + number, uuid=f"GPU-{number}")
    made.found += [records.make("function", id=stream, name=name) for stream, name in ((8, NCCL), (9, GATHER))]
    for step in range(12):
        at = 1000 * step + shift
        made.call("cuLaunchKernel", at, 5, at + 5, 100)
        for stream, launched, end in collectives:
            call = ZERO + (at + launched) * US
            row = (call, 5 * US, 1, 0, stream, stream, 0, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, 0)
            made.found.append(forge.calls([row], forge.LAUNCH))
            work = (call + 10 * US, (end - launched - 10) * US, call, stream, 1, stream, 1, 0, 0, 0)
            made.found.append(records.make("gpu_times", **forge.rows([work], TIMES)))
        for stream, begin, end in waits:
            row = (ZERO + (at + begin) * US, (end - begin) * US, 4, 0, stream, stream)
            made.found.append(forge.calls([row], forge.OBJECT))
    return made.segment(rank=number, **header)


def across(*ranks):
    """Return the us and the count of each part of the path, and its verdict."""
    found = ask("launches", *ranks)
    return {(row.get("rank"), row["what"], row.get("name")): (row["time"] / US, row["count"])
            for row in found.rows["path"]}, found  # fmt: skip


OTHER = {"host": "h1", "boot_id": "b1"}


@pytest.mark.parametrize(("shift", "header"), [(0, {}), (3000, OTHER), (-2000, OTHER)])
def test_collective_waits_for_late_rank(shift, header):
    """Rank 1 computes on its host for 635 us before it launches the collective; the clock of its machine may differ."""
    zero = {"host": "h0", "boot_id": "b0"} if header else {}
    rows, found = across(rank(0, (8, 10, 700), **zero), rank(1, (8, 640, 700), shift=shift, **header))
    assert rows == {
        ("rank 1", "host code", None): (635.0, 1), ("rank 1", "call", "cuLaunchKernel"): (5.0, 1),
        ("rank 1", "launch delay", None): (5.0, 1), ("rank 0", "collective", NCCL): (50.0, 1),
        ("rank 0", "return from a wait", "cuStreamSynchronize"): (3.0, 1), ("rank 0", "host code", None): (297.0, 1),
        ("rank 0", "call", "cuLaunchKernel"): (5.0, 1),
    }  # fmt: skip
    first, second, *rest = found.verdicts["path"]
    assert first.endswith("a unit takes 1.00ms, 95.0 % of it on the host, the rest on the GPU: host code 93.2 %, "
                          "collective 5.0 %, call 1.0 %")  # fmt: skip
    assert second == ("64.5 % of it is on rank 1, for which collectives wait: host code 63.5 %, call 0.5 %, "
                      "launch delay 0.5 %")  # fmt: skip
    assert len(rest) == 1
    assert [(row["where"], row["what"], row["took"] / US) for row in found.rows["steps"]][:3] == [
        ("rank 1, thread 1", "host code", 635), ("rank 1, thread 1", "call", 5),
        ("rank 1, thread 1", "launch delay", 5),
    ]  # fmt: skip


def test_the_last_rank_waits_for_none():
    rows, found = across(rank(0, (8, 640, 700)), rank(1, (8, 10, 700)))
    assert {who for who, _, _ in rows} == {None} and rows[None, "collective", NCCL] == (50.0, 1)
    assert rows[None, "host code", None] == (635.0 + 297.0, 2) and len(found.verdicts["path"]) == 2


def test_chain_of_waiting_ranks():
    """Rank 2 launches late. Rank 1 has a collective with rank 2, and then launches its collective with rank 0."""
    middle = rank(1, (9, 10, 600), (8, 605, 700), waits=((9, 20, 603), (8, 660, 703)))
    rows, found = across(rank(0, (8, 10, 700)), middle, rank(2, (9, 500, 600)))
    assert rows == {
        ("rank 2", "host code", None): (495.0, 1), ("rank 2", "call", "cuLaunchKernel"): (5.0, 1),
        ("rank 2", "launch delay", None): (5.0, 1), ("rank 1", "collective", GATHER): (90.0, 1),
        ("rank 1", "collective", NCCL): (85.0, 1), ("rank 1", "return from a wait", "cuStreamSynchronize"): (6.0, 2),
        ("rank 1", "host code", None): (299.0, 2), ("rank 1", "call", "cuLaunchKernel"): (10.0, 2),
        ("rank 1", "launch delay", None): (5.0, 1),
    }  # fmt: skip
    assert found.verdicts["path"][1].startswith("50.5 % of it is on rank 2, for which collectives wait: host code 49.5")


@pytest.mark.parametrize("others", [[], [rank(1, (8, 710, 900), waits=())]])
def test_a_collective_without_those_of_other_ranks(others):
    """The other rank's trace is missing, or its collectives don't overlap."""
    rows, found = across(rank(0, (8, 10, 700)), *others)
    assert rows[None, "collective", NCCL] == (680.0, 1)
    assert any("gpt-analyze collectives" in line for line in found.verdicts["path"])
