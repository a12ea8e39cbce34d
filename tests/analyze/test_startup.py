"""gpt-analyze startup: a program's time until it works steadily."""

import pytest

from gpt.stream import records
from tests.analyze.asked import ask, run
from tests.trace import forge

MS, ZERO = 10**6, 10**9
APIS = {
    "cuInit": ("other", "init"), "cuDevicePrimaryCtxRetain": ("context", "retain"),
    "cuLibraryLoadData": ("module", "load"), "cuLinkComplete": ("module", "linkcomplete"),
    "cuMemAlloc": ("memory", "alloc"), "cuMemHostAlloc": ("memory", "alloc"), "cuMemcpyHtoD": ("memcpy", "HtoD"),
    "cuMemcpyDtoH": ("memcpy", "DtoH"), "cuLaunchKernel": ("kernel", "launch"),
    "cuStreamSynchronize": ("sync", "stream"), "cuStreamBeginCapture": ("stream", "capture"),
    "cuStreamEndCapture": ("stream", "captured"), "cuGraphInstantiate": ("graph", "instantiate"),
    "cuEventQuery": ("event", "query"),
}  # fmt: skip


def made(*calls, more=(), pid=10, **header):
    """Make a process that began at 0. Calls are given as (name, start, duration, kernel or (address, bytes), thread),
    in ms.
    """
    found = [
        forge.api(number, name) | {"type": type_, "op": op}
        for number, (name, (type_, op)) in enumerate(APIS.items(), 1)
    ]
    for number, path in enumerate(("/lib/libfast.so", "/lib/libbig.so"), 1):
        found.append(records.make("module", id=number, type="fatbin", path=path, offset=0))
    found += [records.make("function", id=n, name=f"k{n}", module=1 + (n > 2)) for n in range(1, 6)]
    for name, start, took, *rest in calls:
        what, thread = [*rest, 0, 1][:2] if len(rest) != 1 else (*rest, 1)
        at, api = ZERO + round(start * MS), [*APIS].index(name) + 1
        if name == "cuLaunchKernel":
            row = (at, round(took * MS), api, 0, 0, what, 0, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0, 0)
            found.append(forge.calls([row], forge.LAUNCH, thread))
        else:
            address, size = what or (0, 0)
            found.append(forge.calls([(at, round(took * MS), api, 0, address, address, size, 0)], forge.MEMORY, thread))
    return forge.trace(*found, *more, pid=pid, monotonic=ZERO, **header)


def steps(begin, slow=()):
    """Make ten steps of 10 ms with two launches each. The first steps take longer."""
    at, found = begin, []
    for took in (*slow, *[10] * 10):
        found += [("cuLaunchKernel", at, 0.01, 1), ("cuLaunchKernel", at + 1, 0.01, 2)]
        at += took
    return found


BEFORE = [
    ("cuInit", 1000, 200), ("cuDevicePrimaryCtxRetain", 1200, 300), ("cuMemHostAlloc", 1500, 50, (0x1000, 0x1000)),
    ("cuMemAlloc", 1550, 20), ("cuMemcpyHtoD", 1600, 100, (0x1800, 1000)), ("cuMemcpyHtoD", 1700, 100, (0x9000, 3000)),
    ("cuLibraryLoadData", 1900, 40), ("cuLinkComplete", 1940, 10), ("cuEventQuery", 1990, 1),
]  # fmt: skip


def times(found):
    return {row["what"]: row["time"] / MS for row in found.rows["startup"]}


def test_each_moment_of_the_start_has_one_kind():
    found = ask("startup", made(*BEFORE, *steps(2000)))
    assert times(found) == {
        "before CUDA": 1000.0, "contexts": 300.0, "driver start": 200.0, "copies to device": 200.0,
        "host code": 30.0 + 100.0 + 40.0 + 9.0, "pinned memory": 50.0, "loading GPU code": 40.0, "allocations": 20.0,
        "linking, compiling": 10.0, "other calls": 1.0,
    }  # fmt: skip
    row = next(row for row in found.rows["startup"] if row["what"] == "copies to device")
    assert (row["calls"], row["bytes"], row["pageable"], row["rate"]) == (2, 4000, 3000, 20000.0)
    assert row["told"] == (
        "3.91 KiB at 19.5 KiB a second, 2.93 KiB of them from pageable memory: read into pinned memory instead"
    )
    assert found.verdicts["startup"][0] == (
        "process 10: 2.00s and 0 launches until it steadily repeats a unit of 2 launches, which comes 10 times and "
        "takes 10.0ms"
    )


def test_slow_first_units_belong_to_the_start():
    """Two repetitions take longer: the first launches of two kernels load code, which is known for only one of them."""
    calls = [
        ("cuInit", 100, 10), ("cuLaunchKernel", 200, 50, 3), ("cuLaunchKernel", 260, 0.1, 3),
        ("cuLaunchKernel", 280, 30, 4), *steps(400, slow=(500, 21)),
    ]  # fmt: skip
    calls[4] = ("cuLaunchKernel", 400, 300, 1)
    calls[5] = ("cuLaunchKernel", 701, 0.01, 2)
    found = ask("startup", made(*calls))
    assert times(found) == {
        "before CUDA": 100.0, "driver start": 10.0, "host code": 90.0, "lazy loading": 380.0,
        "launches": pytest.approx(0.1 + 0.03), "host code, warm-up": pytest.approx(921 - 580 - 0.13),
    }  # fmt: skip
    assert (
        found.verdicts["startup"][1] == "process 10: its first 2 units aren't steady yet: the first of them took 500ms"
    )
    rows = {row["library"]: (row["kernels"], row["loaded"], row["time"] / MS) for row in found.rows["libraries"]}
    assert rows == {"libfast.so": (2, 1, pytest.approx(299.99)), "libbig.so": (2, 2, pytest.approx(79.9))}
    row = next(row for row in found.rows["startup"] if row["what"] == "lazy loading")
    assert row["told"].startswith(
        "loading GPU code takes 380ms, 41.3 % of the start, 380ms of that in 3 first launches of kernels, mostly of "
        "libfast.so: "
    )
    assert [(row["name"], row["took"] / MS) for row in found.rows["longest"]][:2] == [
        ("cuLaunchKernel", 300.0), ("cuLaunchKernel", 50.0)
    ]  # fmt: skip


def test_images_that_the_driver_compiles():
    more = [records.make("module", id=n, type=type_, sha256="ab") for n, type_ in ((7, "ptx"), (8, "cubin"))]
    found = ask("startup", made(("cuInit", 10, 1), *steps(200), more=more))
    told = "1 of 4 loaded images is PTX, which the driver compiles unless its cache has the result"
    assert told in found.verdicts["startup"]


def test_capturing_graphs_includes_host_code():
    calls = [
        ("cuInit", 10, 1), ("cuStreamBeginCapture", 20, 1), ("cuStreamEndCapture", 90, 2),
        ("cuGraphInstantiate", 100, 30), *steps(200),
    ]  # fmt: skip
    assert times(ask("startup", made(*calls))) == {
        "before CUDA": 10.0, "driver start": 1.0, "graph capture": 72.0, "graph creation": 30.0, "host code": 87.0,
    }  # fmt: skip


def test_the_thread_that_launches_counts():
    calls = [("cuInit", 10, 1), ("cuMemAlloc", 20, 150, 0, 2), *steps(200)]
    assert times(ask("startup", made(*calls))) == {"before CUDA": 10.0, "driver start": 1.0, "host code": 189.0}


def test_time_that_was_not_recorded_is_in_no_row():
    off = [records.make("recording", at=ZERO + at * MS, on=on) for at, on in ((0, True), (100, False), (150, True))]
    found = ask("startup", made(("cuInit", 10, 1), *steps(200), more=off))
    assert times(found) == {"before CUDA": 10.0, "driver start": 1.0, "host code": 139.0}
    assert "recording was off for 50.0ms, which are in no row" in found.verdicts["startup"]


def test_without_a_unit_that_repeats():
    found = ask("startup", made(("cuInit", 10, 1), ("cuLaunchKernel", 20, 1, 1)))
    assert times(found) == {"before CUDA": 10.0, "driver start": 1.0, "host code": 9.0, "launches": 1.0}
    assert found.verdicts["startup"][0] == "process 10: no unit of launches repeats, so this is all of its 21.0ms"


def test_several_processes_and_none():
    found = ask("startup", made(("cuInit", 10, 1), *steps(200)), made(("cuInit", 10, 500), *steps(600), pid=11))
    assert [(row["pid"], row["time"] / MS, row["most"], row["most_time"] / MS) for row in found.rows["processes"]] == [
        (11, 600.0, "driver start", 500.0), (10, 200.0, "host code", 189.0)
    ]  # fmt: skip
    assert found.verdicts["startup"][0].startswith(
        "process 11, of 2 that launched: --pid chooses: 600ms and 0 launches"
    )
    done = run("startup", data=forge.pack(made(("cuInit", 10, 1))))
    assert done.returncode == 1 and b"no launch of a kernel or graph" in done.stderr


def test_start_and_steady_work_are_compared():
    """The start takes 400 ms, and the steady work 90 ms: the last step ends the trace. Its kernels take 5 of 10 ms."""
    gpu = [forge.gpu_times([(ZERO + (at + 1) * MS, 5 * MS, 9, 1)]) for at in range(400, 500, 10)]
    found = ask("startup", made(("cuInit", 100, 10), *steps(400), more=gpu))
    start, steady = found.rows["parts"]
    assert (start["what"], start["time"] / MS, start["share"]) == ("start-up", 400.0, pytest.approx(100 * 400 / 491.01))
    assert start["told"] == "290ms in 'host code', 100ms in 'before CUDA'"
    assert (steady["what"], steady["time"] / MS) == ("steady work", pytest.approx(91.01))
    assert steady["told"].startswith("10 repetitions of 2 launches, usually 10.0ms each; 47.4 % of that: ")


def test_without_gpu_times_the_steady_work_has_no_cause():
    told = ask("startup", made(("cuInit", 100, 10), *steps(400))).rows["parts"][1]["told"]
    assert told == "10 repetitions of 2 launches, usually 10.0ms each"


def test_work_before_the_steady_state_does_not_count_in_it():
    """Two slow steps, in which the GPU waits for an allocation. Later on, kernels run all the time."""
    calls = [("cuInit", 10, 1), *steps(100, slow=(200, 200))]
    calls += [("cuMemAlloc", 150, 100, (64, 64)), ("cuMemAlloc", 350, 100, (64, 64))]
    gpu = [forge.gpu_times([(ZERO + at * MS, took * MS, 9, 1)]) for at, took in ((101, 10), (301, 10), (501, 99))]
    steady = ask("startup", made(*sorted(calls, key=lambda call: call[1]), more=gpu)).rows["parts"][1]["told"]
    assert steady.startswith("10 repetitions of 2 launches, usually 10.0ms each; 100.0 % of that: k1 takes 100.0 %")
