"""gpt-analyze summary: its sums equal plain Python's, on forged traces."""

import csv
import io
import json
import math
import os
import random
import subprocess
from collections import defaultdict
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpt.analyze.lib.base import EMPTY
from gpt.stream import jsonl, packed, records
from gpt.trace.machines import NO_END
from tests import loaded
from tests.analyze.asked import ask
from tests.tiers import examples
from tests.trace import forge

NAMES = {1: "cuMemAlloc", 2: "cuMemcpyHtoD", 3: "cuMemcpyDtoH", 4: "cuLaunchKernel", 5: "cuStreamSynchronize"}
APIS = [forge.api(id_, name) for id_, name in NAMES.items()]


def run(*args, data=b"", **options):
    return loaded.run(["gpt-analyze", "summary", *args], data, **options)


def summed(*segments, status=0, warnings=0, args=()):
    """Return the records of the answer to a stream, by kind."""
    done = run("--json", *args, data=forge.pack(*segments))
    assert done.returncode == status, done.stderr
    assert len(done.stderr.splitlines()) == warnings, done.stderr
    return by_kind(done.stdout)


def by_kind(lines):
    found = defaultdict(list)
    for record in jsonl.read_lines(io.BytesIO(lines), "out"):
        assert records.check(record) is None
        if record["kind"] == "answer":
            fields, rows = packed.unpack_rows(record)
            names = [field.name for field in fields]
            told = [zip(names, row, strict=True) for row in rows]
            found[record["name"]] = [{name: value for name, value in row if value is not None} for row in told]
            found["verdicts"] += record["verdict"]
        else:
            found[record["kind"]].append(record)
    return found


def functions(found):
    return {row["name"]: row for row in found["functions"] if "name" in row}


def types(found):
    return {row["type"]: row for row in found["functions"] if "name" not in row}


def nearest(values, part):
    return sorted(values)[math.ceil(part * len(values)) - 1]


def test_sums_are_those_of_the_calls():
    source = random.Random(3)
    rows = defaultdict(list)
    calls = []
    for number in range(5000):
        api = source.choice(list(NAMES))
        call = (1000 + 10 * number, int(source.lognormvariate(8, 2)) + 1, api, source.choice([0, 0, 0, 1, 600]))
        size = source.randrange(1 << 30)
        thread = source.choice([7, 8, 9])
        layout = "MEMORY" if api <= 3 else "CALL"
        rows[thread, layout].append((*call, 1, 2, size, 0) if api <= 3 else call)
        calls.append((*call, size, thread))
    batches = [forge.calls(values, getattr(forge, name), thread) for (thread, name), values in rows.items()]
    found = summed(forge.trace(*APIS, *batches))
    for api, name in NAMES.items():
        row = functions(found)[name]
        took = [c[1] for c in calls if c[2] == api]
        slowest = max((c for c in calls if c[2] == api), key=lambda c: c[1])
        assert (row["type"], row["op"]) == forge.TYPES[name]
        assert (row["calls"], row["counted"], row["open"]) == (len(took), 0, 0)
        assert row["failed"] == sum(c[3] == 1 for c in calls if c[2] == api)
        assert (row["total"], row["mean"], row["slowest"]) == (sum(took), round(sum(took) / len(took)), max(took))
        assert row["p50"] == pytest.approx(nearest(took, 0.5), rel=0.004, abs=1)
        assert row["p99"] == pytest.approx(nearest(took, 0.99), rel=0.004, abs=1)
        assert row["slowest_start"] == 10**18 + slowest[0]
        assert (row["slowest_pid"], row["slowest_thread"]) == (10, slowest[5])
    copies = [c for c in calls if c[2] in (2, 3)]
    row = types(found)["memcpy"]
    assert (row["calls"], row["total"]) == (len(copies), sum(c[1] for c in copies))
    assert row["p50"] == pytest.approx(nearest([c[1] for c in copies], 0.5), rel=0.004)
    for api, op in ((2, "HtoD"), (3, "DtoH")):
        (row,) = (row for row in found["copies"] if row["op"] == op)
        good = [c for c in calls if c[2] == api and c[3] == 0]
        assert (row["calls"], row["bytes"]) == (len(good), sum(c[4] for c in good))
        assert row["total"] == sum(c[1] for c in good)
    assert {row["op"] for row in found["copies"]} == {"HtoD", "DtoH"}
    (process,) = found["processes"]
    assert (process["calls"], process["threads"], process["status"]) == (5000, 3, 0)
    assert process["duration"] == max(c[0] + c[1] for c in calls)


def test_types_and_functions_come_with_the_longest_first():
    calls = forge.calls([(1, 50, 1, 0), (2, 10, 2, 0), (3, 70, 3, 0), (4, 500, 5, 0)])
    found = summed(forge.trace(*APIS, calls))
    assert [(row["type"], row.get("name")) for row in found["functions"]] == [
        ("sync", None),
        ("sync", "cuStreamSynchronize"),
        ("memcpy", None),
        ("memcpy", "cuMemcpyDtoH"),
        ("memcpy", "cuMemcpyHtoD"),
        ("memory", None),
        ("memory", "cuMemAlloc"),
    ]


def test_calls_that_did_not_return_are_counted_and_not_timed():
    found = summed(forge.trace(*APIS, forge.calls([(5, 0, 5, 0), (6, 9, 5, 0)]), end=False))
    row = functions(found)["cuStreamSynchronize"]
    assert (row["calls"], row["open"], row["total"], row["slowest"]) == (2, 1, 9, 9)
    assert "status" not in found["processes"][0] and not found["end"]


def test_function_without_returned_calls():
    found = summed(forge.trace(*APIS, forge.calls([(5, 0, 5, 0)])))
    row = functions(found)["cuStreamSynchronize"]
    assert (row["calls"], row["open"]) == (1, 1)
    assert not row.keys() & {"total", "mean", "p50", "p99", "slowest", "slowest_start", "slowest_pid"}


def test_kernels_are_counted_by_name_whoever_loaded_them():
    kernel = [records.make("function", id=i, name=n) for i, n in ((1, "_Z1av"), (2, "_Z1bv"), (3, "_Z1av"))]
    found = summed(forge.trace(forge.launches({1: 5, 2: 10}), *kernel, forge.launches({3: 7, 9: 1})))
    assert [(row["name"], row["launches"]) for row in found["kernels"]] == [("_Z1av", 12), ("_Z1bv", 10), ("#9", 1)]
    assert not any("gpu_total" in row for row in found["kernels"])
    assert len(found["function"]) == 3  # passed on


def test_time_on_the_gpu_is_that_of_kernels_and_copies():
    kernel = [records.make("function", id=i, name=n) for i, n in ((1, "a"), (2, "b"))]
    times = forge.gpu_times([(100, 50, 4, 2), (200, 70, 4, 2), (300, 5, 4, 1), (400, 33, 2, 0), (0, 0, 0, 0)])
    copies = forge.calls([(90, 5, 2, 0, 1, 2, 4096, 0)], forge.MEMORY)
    found = summed(forge.trace(*APIS, *kernel, forge.launches({1: 9, 2: 2}), times, copies))
    assert [(r["name"], r["launches"], r["gpu_launches"], r["gpu_total"]) for r in found["kernels"]] == [
        ("b", 2, 2, 120),
        ("a", 9, 1, 5),
    ]
    (row,) = found["copies"]
    assert (row["op"], row["gpu_calls"], row["gpu_total"]) == ("HtoD", 1, 33)


def test_first_launches_that_load_their_code_are_reported():
    """On an H200, the event before a launch enters the stream long before the driver has loaded the kernel."""
    kernel = [records.make("function", id=i, name=n) for i, n in ((1, "a"), (2, "b"), (3, "c"))]
    took = [(73_000_000, 4, 1), (2000, 4, 1), (3000, 4, 1), (900, 4, 2), (100, 4, 2), (5000, 4, 3), (5100, 4, 3)]
    times = forge.gpu_times([(100 * n, *row) for n, row in enumerate(took, 1)])
    segment = [*APIS, *kernel, forge.launches({1: 3, 2: 2, 3: 2})]
    assert ask("summary", forge.trace(*segment, times)).verdicts["kernels"] == [
        "73.0ms of the GPU time went to 1 launch that took over 10 times as long as the others of the same kernel: "
        "a first launch may include the loading of its code"
    ]
    times = forge.gpu_times([(100 * n, *row) for n, row in enumerate(took[1:], 1)])
    assert not ask("summary", forge.trace(*segment, times)).verdicts["kernels"]


def test_kernels_that_graphs_launched():
    def graph(exec_, at, **launches):
        ids = [int(name[1:]) for name in launches]
        return records.make("graph", exec=exec_, at=at, nodes=9, functions=ids, launches=list(launches.values()))

    calls = [
        (60, 5, 0, 7),
        (110, 5, 0, 7),
        (160, 5, 0, 7),
        (170, 5, 1, 7),
        (180, 0, 0, 7),
        (90, 5, 0, 8),
        (20, 5, 0, 7),
    ]
    launches = [(start, took, 9, result, handle, 0) for start, took, result, handle in calls]
    kernel = [records.make("function", id=i, name=n) for i, n in ((1, "a"), (2, "b"))]
    found = summed(
        forge.trace(
            forge.calls(launches, forge.OBJECT),  # before the name of the function, as another thread's chunk may be
            forge.api(9, "cuGraphLaunch"),
            graph(7, 100, f1=3),  # the handle was used twice; the graph launched before 50 is unknown
            graph(7, 50, f1=1, f2=10),
            graph(8, 50, f2=100),
            *kernel,
            forge.launches({1: 1000}),
        )
    )
    assert {r["name"]: r["launches"] for r in found["kernels"]} == {"a": 1000 + 1 + 2 * 3, "b": 10 + 100}


def test_malformed_graph():
    wrong = records.make("graph", exec=1, at=1, nodes=1, functions=[1, 2], launches=[1])
    summed(forge.trace(wrong), status=3, warnings=1)


def test_for_how_long_a_process_was_recorded():
    changes = [records.make("recording", on=on, at=at) for at, on in ((0, False), (2000, True), (9000, False))]
    call = forge.calls([(3000, 5000, 1, 0)])
    found = summed(forge.trace(*APIS, *changes, call), forge.trace(*APIS, call))
    assert [(row["duration"], row.get("recorded")) for row in found["processes"]] == [(9000, 7000), (8000, None)]
    assert sum("recording was off at times" in text for text in found["verdicts"]) == 1
    launched = forge.calls([forge.launch(3000, 5000, 4, 1)], forge.LAUNCH)
    stages = loaded.run(["gpt-analyze", "stages"], forge.pack(forge.trace(*APIS, *changes, launched)))
    assert b"recording was off for 2.00us, which are in no stage" in stages.stdout  # time - recorded


def test_launches_with_and_without_probes_are_counted():
    kernel = [records.make("function", id=i, name=n) for i, n in ((1, "a"), (2, "b"))]
    unprobed = [records.make("unprobed", function=f, launches=n, reason=r) for f, n, r in
                ((1, 3, "no PTX"), (2, 4, "no PTX"), (2, 1, "x"), (2, 2, "y"), (2, 1, "z"))]  # fmt: skip
    launched = forge.launches({1: 5, 2: 900})
    probed = [forge.probed(number, 9, 1, 1, 32) for number in range(1200)]
    line = "1,200 launches ran with probes, 11 without: no PTX (7), y (2), x (1), 1 more reasons"
    assert summed(forge.trace(*kernel, launched, *probed, *unprobed))["verdicts"] == [line]
    assert summed(forge.trace(*probed[:2]))["verdicts"] == ["2 launches ran with probes"]
    assert summed(forge.trace(*kernel, launched))["verdicts"] == []
    found = summed(forge.trace(forge.probe_map("m", n="u64"), *probed[:1], forge.buffer(0, b"")))
    assert len(found["map"]) == len(found["probed"]) == len(found["buffer"]) == 1  # passed on


def test_gpu_time_without_probes_is_reported_by_reason():
    """Kernel a runs for 60 us with probes and 20 us without. Kernel b runs for 20 us without: once for one reason,
    three times for another.
    """
    kernel = [records.make("function", id=i, name=n) for i, n in ((1, "a"), (2, "b"))]
    unprobed = [records.make("unprobed", function=f, launches=n, reason=r) for f, n, r in
                ((1, 9, "no PTX"), (2, 1, "x"), (2, 3, "no PTX"))]  # fmt: skip
    times = [(10_000, 60_000, 4, 1, 1), (80_000, 20_000, 4, 1, 0)]
    times += [(110_000, 12_000, 4, 2, 0), (130_000, 8_000, 4, 2, 0)]
    found = summed(forge.trace(*APIS, *kernel, forge.probed(1, 9, 1, 1, 32), forge.probed_times(times), *unprobed))
    times = "(0.060 ms on the GPU, 60.0 %), 13 without (0.040 ms on the GPU, 40.0 %)"
    assert found["verdicts"][-1] == f"1 launch ran with probes {times}: no PTX (12, 35.0 %), x (1, 5.0 %)"
    assert [tuple(row[name] for name in ("kernel", "reason", "launches", "gpu_time", "share")) for row in
            found["unprobed"] if "share" in row] == [
        ("a", "no PTX", 9, 20_000, 20.0), ("b", "no PTX", 3, 15_000, 15.0), ("b", "x", 1, 5_000, 5.0)
    ]  # fmt: skip


def test_calls_that_were_only_counted():
    counts = records.make("counts", **forge.rows([(30, 5, 1, 0), (4, 5, 1, 0)], forge.QUERIES))
    found = summed(forge.trace(*APIS, counts, forge.calls([(5, 8, 1, 0)])))
    row = functions(found)["cuMemAlloc"]
    assert (row["calls"], row["counted"], row["open"], row["total"], row["p50"]) == (35, 34, 0, 8, 8)
    assert row["timed"] == types(found)["memory"]["timed"] == 1  # what the mean is of
    assert found["processes"][0]["calls"] == 35
    assert "timed" not in functions(summed(forge.trace(*APIS, forge.calls([(5, 8, 1, 0)]))))["cuMemAlloc"]


def test_calls_after_the_driver_has_shut_down_have_not_failed():
    found = ask("summary", forge.trace(*APIS, forge.calls([(5, 8, 1, 0), (20, 8, 1, 2), (40, 1, 1, 4), (50, 1, 1, 4)])))
    row = next(row for row in found.rows["functions"] if row.get("name") == "cuMemAlloc")
    assert (row["calls"], row["failed"], row["at_exit"]) == (4, 1, 2)
    assert found.verdicts["functions"] == [
        "2 calls came after the driver had shut down at the program's exit, which is usual: "
        "they don't count as 'failed'"
    ]


def test_functions_that_begin_alike_are_cut_in_the_middle(monkeypatch):
    from gpt.screen.grid import Grid

    grid = Grid("function", "calls", functions=[0])
    for name in ("cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease", "cuLaunchKernel", "cuLaunchKernelEx"):
        grid.add(name, "1")
    shown = [line.plain.split()[0] for line in grid.lines(24)]
    assert shown == ["function", "cuDevice…txRetain", "cuDevice…xRelease", "cuLaunchKernel", "cuLaunchKernelEx"]


def test_counted_calls_are_in_every_number_of_calls():
    counts = records.make("counts", **forge.rows([(2, 5, 1, 0)], forge.QUERIES))
    made = forge.calls([(5, 8, 1, 0)] * 7), forge.calls([forge.launch(90, 8, 4, 1)], forge.LAUNCH)
    found = ask("summary", forge.trace(*APIS, records.make("function", id=1, name="a"), counts, *made))
    (loading,) = (row for row in found.rows["questions"] if row["question"] == "calls of loading")
    assert found.rows["processes"][0]["calls"] == 10 and loading["short"] == "7 of 10 calls"
    assert loading["evidence"].endswith("2 calls counted but not timed, which may be among them")


def test_time_inside_of_graphs_is_part_of_the_time_of_the_gpu():
    apis = [*APIS, forge.api(9, "cuGraphLaunch")]
    times = [(10, 300, 4, 1), (400, 900, 9, 0)]
    found = ask("summary", forge.trace(*apis, records.make("function", id=1, name="a"), forge.gpu_times(times),
                                       forge.launches({1: 1}), forge.calls([(5, 8, 1, 0)])))  # fmt: skip
    assert [(row["gpu_total"], row["gpu_share"]) for row in found.rows["kernels"]] == [(300, 25)]
    assert found.verdicts["kernels"][0] == (
        "not in the times of kernels: 900ns, 75.0 % of the GPU time, in 1 launch of graphs, which 'gpt-analyze graphs' "
        "lists"
    )


@pytest.mark.parametrize(("runs", "said"), [("ptx", 1), ("sm_90", 0)])
def test_simulated_times_are_labelled(runs, said):
    device = records.make("device", index=0, name="x", arch="sm_90", runs=runs)
    for name in ("summary", "gaps", "stages"):
        launched = forge.calls([forge.launch(90, 8, 4, 1)], forge.LAUNCH)
        found = ask(name, forge.trace(*APIS, device, records.make("function", id=1, name="a"), launched))
        lines = [line for verdict in found.verdicts.values() for line in verdict]
        assert lines.count("the simulated device ran this: its times say nothing about a GPU") == said


def test_ioctls_are_listed_with_their_calls():
    ioctls = [
        {
            "kind": "ioctl",
            "thread": 1,
            "device": "/dev/nvidiactl",
            "request": 1,
            "name": name,
            "start": 5,
            "duration": d,
        }
        for name, d in (("NV_ESC_RM_CONTROL", 10), ("NV_ESC_RM_ALLOC", 3), ("NV_ESC_RM_CONTROL", 20))
    ]
    ioctls[1]["error"] = 22
    segment = forge.trace(*APIS, *ioctls, forge.calls([(5, 40, 1, 0)]))
    found = summed(segment, args=["--verbose"])
    assert [(r["calls"], r["failed"], r["total"]) for r in (functions(found)["NV_ESC_RM_CONTROL"],)] == [(2, 0, 30)]
    assert functions(found)["NV_ESC_RM_ALLOC"]["failed"] == 1
    assert types(found)["ioctl"]["total"] == 33
    assert found["processes"][0]["calls"] == 1
    questions = {row["question"] for row in found["questions"]}
    found = summed(segment)
    assert list(types(found)) == ["memory"] and list(functions(found)) == ["cuMemAlloc"]
    assert "these calls made 3 ioctls, which --verbose and 'gpt-analyze ioctl' show" in found["verdicts"]
    assert questions - {row["question"] for row in found["questions"]} == {
        "ioctls to nvidia.ko", "scheduler of the GPU",
    }  # fmt: skip


def test_the_slowest_calls_have_a_time_a_place_and_ranges():
    """The second of two processes starts 50 ns later. Calls that didn't return and ioctls aren't listed."""
    pushed = (1, "step", 10, None), (2, "fwd", 100, "app"), (3, "late", 400, None)
    ranges = [records.make("range", type="push", id=id_, thread=1, name=name, start=start, domain=domain)
              for id_, name, start, domain in pushed]  # fmt: skip
    ends = [records.make("range_end", id=id_, thread=1, end=end) for id_, end in ((2, 200), (1, 300), (3, 500))]
    ioctl = {"kind": "ioctl", "thread": 1, "device": "/dev/nvidiactl", "request": 1, "name": "X", "start": 5,
             "duration": 10**6}  # fmt: skip
    kernel = records.make("function", id=7, name="_Z1kv")
    launched = forge.calls([forge.launch(150, 90, 4, 7), forge.launch(310, 20, 4, 7)], forge.LAUNCH)
    moved = forge.calls([(250, 80, 2, 1, 0, 0, 4096, 0), (260, 0, 2, 0, 0, 0, 64, 0)], forge.MEMORY)
    elsewhere = forge.calls([(n, n, 1, 0) for n in range(1, 60)], thread=2)
    first = forge.trace(*APIS, kernel, *ranges, launched, moved, elsewhere, ioctl, *ends, pid=1)
    second = forge.trace(*APIS, forge.calls([(30, 85, 5, 0)], thread=3), pid=2, realtime=10**18 + 50)
    found = ask("summary", first, second, args=("--top", 4))
    keys = ("name", "took", "start", "pid", "thread", "kernel", "bytes", "ranges", "result")
    assert [tuple(row.get(key) for key in keys) for row in found.rows["slowest"]] == [
        ("cuLaunchKernel", 90, 150, 1, 1, "_Z1kv", None, "step/app: fwd", 0),
        ("cuStreamSynchronize", 85, 80, 2, 3, None, None, None, 0),
        ("cuMemcpyHtoD", 80, 250, 1, 1, None, 4096, "step", 1),
        ("cuMemAlloc", 59, 59, 1, 2, None, None, None, 0),
    ]
    assert "slowest" not in ask("summary", first).rows
    many = [forge.calls([(1000 * batch + n, (7 * n) % 1000 + 100, 1, 0) for n in range(999)]) for batch in range(3)]
    rows = ask("summary", forge.trace(*APIS, *many), args=("--top", 5)).rows["slowest"]
    assert [(row["took"], row["start"]) for row in rows] == [
        (1099, 857), (1099, 1857), (1099, 2857), (1098, 714), (1098, 1714),
    ]  # fmt: skip


def test_names_that_come_late_or_never():
    found = summed(forge.trace(forge.calls([(5, 8, 1, 0), (6, 2, 77, 0)]), APIS[0]))
    assert set(functions(found)) == {"cuMemAlloc", "#77"}


def test_processes_are_summed_up_together_and_named_apart():
    first = forge.trace(*APIS, forge.calls([(5, 10, 1, 0)]), pid=1)
    other = [forge.api(99, "cuMemAlloc"), forge.calls([(5, 30, 99, 0)], thread=4)]  # ids are its own
    second = forge.trace(*other, pid=2, argv=["worker", "1"], end=False, tsc=0, tsc_hz=2 * 10**9)
    found = summed(first, second)
    assert [(p["pid"], p["calls"], p.get("status")) for p in found["processes"]] == [(1, 1, 0), (2, 1, None)]
    row = functions(found)["cuMemAlloc"]
    assert (row["calls"], row["total"], row["slowest"], row["slowest_pid"]) == (2, 25, 15, 2)  # 2 ticks a ns


def test_one_answer_precedes_the_last_end():
    segment = forge.trace(*APIS, forge.calls([(5, 10, 1, 0)]))
    lines = run("--json", data=forge.pack(segment, segment, segment)).stdout.splitlines()
    kinds = [json.loads(line)["kind"] for line in lines]
    rows = ["answer", *["row"] * 3, "answer", *["row"] * 2, "answer", *["row"] * 3, "answer", *["row"] * 5]
    assert kinds == [*["header", "end"] * 2, "header", *rows, "end"]


def test_children_are_read_once_and_absent_ones_named(tmp_path):
    def write(name, *inner, **header):
        (tmp_path / name).write_bytes(forge.pack(forge.trace(*APIS, *inner, **header)))

    calls = forge.calls([(5, 10, 1, 0)])
    children = [
        records.make("child", pid=pid, how="fork", path=path) for pid, path in ((2, "t.mp.2"), (3, "gone"), (4, "t.mp"))
    ]
    write("t.mp", calls, *children, pid=1)
    write("t.mp.2", calls, records.make("child", pid=5, how="fork", path="t.mp.5"), pid=2)
    write("t.mp.5", calls, pid=5)
    done = run("--json", tmp_path / "t.mp", tmp_path / "t.mp.2", tmp_path / "t.mp")
    assert done.returncode == 0
    gone = f"gpt-analyze: warning: {tmp_path}/gone: the trace of a child is absent and not counted\n"
    assert done.stderr.decode() == gone
    found = by_kind(done.stdout)
    assert [p["pid"] for p in found["processes"]] == [1, 2, 5]
    assert functions(found)["cuMemAlloc"]["calls"] == 3
    assert [d["ref"] for d in found["diag"]] == [f"{tmp_path}/gone"]
    lost = "incomplete: at least 1 of 4 processes left out, with all calls, launches and memory"
    assert lost in " ".join(run(tmp_path / "t.mp").stdout.decode().split())
    # On a pipe there's no folder, but the children's segments may follow.
    data = b"".join((tmp_path / name).read_bytes() for name in ("t.mp", "t.mp.2", "t.mp.5"))
    done = run("--json", data=data)
    assert done.returncode == 0 and [line.split()[2] for line in done.stderr.splitlines()] == [b"gone:", b"t.mp:"]


def test_segment_with_only_a_process_record_is_ignored(tmp_path):
    tells = forge.trace(records.make("child", pid=2, how="spawn"), pid=2, argv=[])
    found = summed(forge.trace(*APIS, pid=1), tells)
    assert [p["pid"] for p in found["processes"]] == [1]


def test_torn_trace_counts_up_to_the_tear(tmp_path):
    data = forge.pack(forge.trace(*APIS, forge.calls([(5, 10, 1, 0)])))
    (tmp_path / "a.mp").write_bytes(data[:-5])
    (tmp_path / "b.mp").write_bytes(data.replace(b"\xa3pid\x0a", b"\xa3pid\x0b"))
    done = run("--json", tmp_path / "a.mp", tmp_path / "absent.mp", tmp_path / "b.mp")
    assert done.returncode == 4
    errors = done.stderr.decode().splitlines()
    assert len(errors) == 2 and "a.mp+0x" in errors[0] and errors[1].endswith("absent.mp: No such file or directory")
    found = by_kind(done.stdout)
    assert functions(found)["cuMemAlloc"]["calls"] == 2
    assert [p.get("status") for p in found["processes"]] == [None, 0]
    assert run(tmp_path / "a.mp").returncode == 3


@pytest.mark.full
def test_functions_are_bounded():
    ids = [(5, 1, i, 0) for i in range(1, 9000)]
    done = run("--json", data=forge.pack(forge.trace(forge.calls(ids))))
    assert done.returncode == 3 and b"of over 8192 functions" in done.stderr


@pytest.mark.full
def test_a_fault_of_a_killed_process_does_not_hide_the_others(tmp_path):
    ids = [(5, 1, i, 0) for i in range(1, 9000)]
    (tmp_path / "a.mp").write_bytes(forge.pack(forge.trace(forge.calls(ids), end=False)))
    (tmp_path / "b.mp").write_bytes(forge.pack(forge.trace(*APIS, forge.calls([(5, 10, 1, 0)]), pid=2)))
    done = run("--json", tmp_path / "a.mp", tmp_path / "b.mp")
    assert done.returncode == 3
    assert done.stderr.decode() == f"gpt-analyze: error: {tmp_path}/a.mp: calls: of over 8192 functions\n"
    assert functions(by_kind(done.stdout))["cuMemAlloc"]["calls"] == 1


def read_terminal(file):
    """Read everything written to a terminal, until no process has it open any more."""
    parts = []
    with suppress(OSError):  # a terminal ends with EIO
        while part := os.read(file, 1 << 16):
            parts.append(part)
    os.close(file)
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.mark.full
def test_tables_fit_the_terminal_and_names_are_readable(tmp_path):
    kernel = records.make("function", id=1, name="_Z6matmulIfEvPT_PKS0_i")
    evil = records.make("function", id=2, name="\x1b[31m" + "x" * 500)
    rows = [(5, 10, 1, 0), (6, 0, 1, 0), (7, 9, 1, 2), (8, 9_876_543_210, 5, 0)]
    times = forge.gpu_times([(5, 1000, 4, 1)])
    counts = forge.launches({1: 3, 2: 1})
    copies = forge.calls([(90, 5, 2, 0, 1, 2, 4096, 0)], forge.MEMORY)
    segment = forge.trace(*APIS, kernel, evil, forge.calls(rows), copies, times, counts, argv=["python3", "a b.py"])
    more = [records.make("function", id=10 + i, name=f"k{i}") for i in range(40)]
    other = forge.trace(*more, forge.launches({10 + i: 1 for i in range(40)}), end=False, pid=77)
    for width in (60, 80, 200):
        ours, theirs = os.openpty()
        env = {**os.environ, "COLUMNS": str(width), "TERM": "dumb"}
        (tmp_path / "in").write_bytes(forge.pack(segment, other))
        with open(tmp_path / "in", "rb") as stdin, open(tmp_path / "err", "wb") as stderr:
            done = subprocess.Popen(["gpt-analyze", "summary"], stdin=stdin, stdout=theirs, stderr=stderr, env=env)
            os.close(theirs)
            text = read_terminal(ours)
        assert (done.wait(), (tmp_path / "err").read_bytes()) == (0, b"")
        assert text.replace("\n", "").isprintable()
        lines = text.splitlines()
        assert max(map(len, lines)) <= width
        assert any(line.startswith("no room for") for line in lines) == (width == 60)
        assert "    python3 'a b.py'" in lines  # on a line of its own, not next to the numbers
        if width > 60:
            assert any("matmul<float>" in line and "1.00us" in line for line in lines)
        assert f"incomplete: no end of process 77: {NO_END}" in " ".join(text.split())
        assert any("9.88s" in line for line in lines)
        assert "no time for 1 call that did not return" in lines
        assert "and 12 more kernels: 12 launches" in lines


def test_malformed_answers_are_reported():
    strange = [
        {"kind": "answer", "name": 5},
        records.make("answer", name="a", columns=[], stride=0, texts=[], rows=b"x", verdict=[]),
    ]
    for form in [], ["--format", "md"]:
        done = run(*form, data=forge.pack(forge.trace(*strange)))
        assert done.returncode == 0
        assert done.stderr.decode().splitlines() == [
            f"gpt-analyze: warning: {fault}: not in the tables"
            for fault in ("answer.name is not of type str", "answer: rows without fields")
        ]


def test_csv_answer_has_every_row_unrounded():
    kernels = [records.make("function", id=i, name=f'_Z{i},"\n') for i in range(40)]
    segment = forge.trace(*APIS, *kernels, forge.launches(dict.fromkeys(range(40), 2)), forge.calls([(5, 10, 1, 0)]))
    text = run("--format", "csv", data=forge.pack(segment)).stdout.decode()
    blocks = [list(csv.DictReader(io.StringIO(block))) for block in text.split("\n\n")]
    assert [len(block) for block in blocks] == [1, 2, 40, 1, 5]
    assert blocks[1][1]["name"] == "cuMemAlloc" and blocks[1][1]["total"] == "10" and blocks[1][0]["name"] == ""
    assert {(row["name"], row["launches"], row["gpu_total"]) for row in blocks[2]} == {
        (f'_Z{i},"\\n', "2", "") for i in range(40)
    }


def test_an_answer_as_markdown_is_short_and_says_what_the_table_says():
    kernels = [records.make("function", id=i, name=f"k{i}" + "|`\x1b" * 200) for i in range(400)]
    calls = forge.calls([(5, 10, i, 0) for i in range(1, 400)])
    segment = forge.trace(*APIS, calls, *kernels, forge.launches(dict.fromkeys(range(400), 2)), end=False)
    data = forge.pack(segment)
    done = run("--format", "md", data=data)
    assert (done.returncode, done.stderr) == (0, b"")
    text = done.stdout.decode()
    assert len(done.stdout) <= 8000 and text.replace("\n", "").isprintable()
    assert [line for line in text.splitlines() if line.startswith("#")] == [
        "## processes",
        "## functions",
        "## kernels",
        "## phases",
        "## questions",
    ]
    assert "more kernels: " in text
    assert text.startswith(
        "**incomplete: no end of process 10: killed, still running, or no longer recorded**\n\n## processes\n"
    )
    assert "| `app` | 10 | 399 | 1 | 15ns | - |" in text


def test_an_answer_has_one_form():
    for other in ("--json", "--stream"):
        done = run("--format", "md", other, data=forge.pack(forge.trace()))
        assert done.returncode == 2 and b"--format cannot be combined with --stream or --json" in done.stderr


SAMPLE = forge.pack(
    forge.trace(
        *APIS,
        forge.calls([(5, 10, 1, 0), (6, 3, 4, 1)]),
        forge.calls([forge.launch(9, 1, 4, 1)], forge.LAUNCH),
        forge.gpu_times([(100, 50, 4, 2)]),
        records.make("function", id=1, name="_Z1av"),
        records.make("clock", monotonic=5, tsc=7),
        forge.launches({1: 5}),
        tsc=1,
        tsc_hz=10**9,
    )
)


@pytest.mark.full
@settings(max_examples=examples(10), suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, len(SAMPLE) - 1), st.binary(min_size=1, max_size=8)), max_size=4))
def test_any_input_gives_an_answer_or_one_error(changes):
    data = bytearray(SAMPLE)
    for at, value in changes:
        data[at : at + len(value)] = value
    for command in (["summary", "--json"], ["events", "--json"], ["summary", "--format", "md"]):
        done = loaded.run(["gpt-analyze", *command], bytes(data))
        assert done.returncode in (0, 3), done.stderr
        lines = done.stderr.decode().splitlines()
        assert len(lines) == (done.returncode == 3), lines
        assert b"internal" not in done.stderr


@pytest.mark.full
def test_arbitrary_rows_cause_no_traceback():
    rows = []
    for field, code in enumerate("QQIiQQQQ"):
        for value in (0, 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1):
            row = [5, 10, 1, 0, 1, 2, 3, 4]
            row[field] = value & {"Q": (1 << 64) - 1, "I": (1 << 32) - 1, "i": (1 << 31) - 1}[code]
            rows.append(tuple(row))
    calls = forge.calls(rows, forge.MEMORY)
    for header in ({}, {"tsc": 1 << 63, "tsc_hz": 1}):
        for command in ("summary", "events", "gaps"):
            data = forge.pack(forge.trace(*APIS, calls, **header))
            done = loaded.run(["gpt-analyze", command, "--json"], data)
            assert (done.returncode, done.stderr) == (0, b"")
            assert all(isinstance(json.loads(line), dict) for line in done.stdout.splitlines())


@pytest.mark.parametrize("command", ["summary", "events"])
def test_a_stream_without_calls_is_named_as_one(command):
    library = records.make("library", path="libfoo.so", size=1)
    fact = "gpt-analyze: error: no calls in the stream: 'gpt-hook run' records some\n"
    failed = records.make("diag", level="error", where="libfoo.so", text="truncated")
    for segment, expected in (
        ([library], (1, fact)),
        ([library, failed], (0, "")),
        ([library, records.make("sync", id=1)], (0, "")),
        ([], (0, f"gpt-analyze: warning: {EMPTY}\n")),
        ([library, *APIS], (0, "")),
    ):
        args = ["gpt-analyze", command]
        done = loaded.run(args, forge.pack(forge.trace(*segment)))
        assert (done.returncode, done.stderr.decode()) == expected
