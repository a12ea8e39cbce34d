"""Filters and records without a thread, stream or kernel; and the message if a filter leaves out everything."""

import pytest

from gpt.stream import records
from tests.analyze.asked import Answers, ask, run
from tests.analyze.modelled import Program
from tests.trace import forge

SECOND = 10**9
FUNCTIONS = {4: "_Z6matmulPf", 5: "copy"}
GPU_TIMES = dict.fromkeys(("begin", "duration", "call", "stream"), "u64")
GPU_TIMES |= dict.fromkeys(("api", "function", "thread", "device"), "u32")
CONTROL = {"device": "/dev/nvidiactl", "request": 1, "name": "NV_ESC_RM_CONTROL", "command": 0xA06C0101}


def process(devices=2):
    """Return launches at 1, 2, 3 and 4 s, which alternate between two kernels, two threads and two devices."""
    cards = [records.make("device", index=n, name="d", arch="sm_90", runs="sass") for n in range(devices)]
    names = [records.make("function", id=id_, name=name) for id_, name in FUNCTIONS.items()]
    inner, gpu = [], []
    for number in range(4):
        function, thread, at = 4 + number % 2, 1 + number % 2, (number + 1) * SECOND
        device, stream = number % devices, 7 * (number % 2)
        inner.append(forge.calls([forge.launch(at, 500, 1, function, stream)], forge.LAUNCH, thread))
        gpu.append((at + 600, 10**number, at, stream, 1, function, thread, device))
        inner.append(records.make("ioctl", thread=thread, parent=at, start=at + 10, duration=50, **CONTROL))
        launched = forge.probed(number, 10 + function, function, 1, 32)
        inner.append({**launched, "thread": thread, "start": at, "device": device, "stream": stream})
        inner.append(records.make("times", launch=number, prologue=100, kernel=10**number, epilogue=10, original=1))
    kernels = [forge.kernel(10 + id_, id_, name) for id_, name in FUNCTIONS.items()]
    needs = [records.make("memusage", function=id_, launches=2, bytes=10 * id_, most=id_) for id_ in FUNCTIONS]
    rows = records.make("gpu_times", **forge.rows(gpu, GPU_TIMES))
    return forge.trace(*cards, forge.api(1, "cuLaunchKernel"), *names, *kernels, *inner, rows, *needs)


TRACE, ONE_DEVICE = forge.pack(process()), forge.pack(process(1))


def found(name, *options, data=TRACE, status=0):
    done = run(name, "--json", *options, data=data)
    assert done.returncode == status, done.stderr
    return Answers(done.stdout)


COSTS = [
    (["--kernel", "matmul*"], {"_Z6matmulPf": 2}),
    (["--kernel", "copy", "--time", "3,"], {"copy": 1}),
    (["--tid", 1], {"_Z6matmulPf": 2}),
    (["--gpu", 1], {"copy": 2}),
    (["--cuda-stream", 7, "--time", ",3"], {"copy": 1}),
    (["--cuda-stream", 0, "--cuda-stream", 7, "--time", "2,4"], {"_Z6matmulPf": 1, "copy": 1}),
]


@pytest.mark.parametrize(("options", "launches"), COSTS)
def test_costs_are_those_of_chosen_launches(options, launches):
    rows = found("overhead", *options).rows["kernels"]
    assert {row["name"]: row["launches"] for row in rows} == launches
    rows = found("exposed_latency", *options).rows["latency"]
    assert {row["name"]: row["launches"] for row in rows} == launches


def test_needs_of_chosen_kernels_count():
    assert [row["total"] for row in found("memusage", "--kernel", "matmul*").rows["kernels"]] == [40]
    done = run("memusage", "--tid", 1, data=TRACE)  # sums have no thread
    assert "kernels" not in Answers(run("memusage", "--json", "--tid", 1, data=TRACE).stdout).rows, done.stdout


@pytest.mark.parametrize(("options", "total"), [([], 1111), (["--gpu", 0], 101), (["--gpu", 1, "--tid", 2], 1010)])
def test_gpu_times_say_their_device(options, total):
    assert sum(row["gpu_total"] for row in found("summary", *options).rows["kernels"]) == total


@pytest.mark.parametrize(
    ("options", "count"), [([], 4), (["--tid", 2], 2), (["--time", "2,"], 3), (["--time", "2,3.5", "--tid", 1], 1)]
)
def test_ioctls_of_threads_and_times(options, count):
    assert found("ioctl", *options).rows["ioctls"][0]["calls"] == count
    questions = {row["question"]: row for row in found("summary", "--verbose", *options).rows["questions"]}
    assert questions["scheduler of the GPU"]["value"] == count


@pytest.mark.parametrize("options", [["--kernel", "copy"], ["--cuda-stream", 7]])
def test_no_ioctl_is_of_a_kernel_or_stream(options):
    done = run("ioctl", *options, data=TRACE)
    assert done.returncode == 1 and b"no ioctl in the trace" in done.stderr and not done.stdout


def test_all_calls_of_a_one_device_process_match_gpu_0():
    assert found("ioctl", "--gpu", 0, data=ONE_DEVICE).rows["ioctls"][0]["calls"] == 4
    assert run("ioctl", "--gpu", 0, data=TRACE).returncode == 1
    assert run("ioctl", "--gpu", 1, data=ONE_DEVICE).returncode == 1


@pytest.mark.parametrize("name", ["summary", "events", "overhead", "gaps", "timeline"])
@pytest.mark.parametrize("options", [["--pid", 99], ["--tid", 3], ["--kernel", "x", "--time", "1.5,"]])
def test_filters_that_leave_out_everything(name, options):
    done = run(name, *options, data=TRACE)
    given = " ".join(map(str, options))
    there = "the kernels are matmul(float*), copy" if "--kernel" in options else "the processes are 10"
    fact = f"gpt-analyze: error: {given} leaves out everything; {there}\n"
    assert (done.returncode, done.stderr.decode(), done.stdout) == (1, fact, b"")


def test_message_names_what_is_missing():
    done = run("dmat", "--tid", 1, data=TRACE)
    fact = (
        "no map 'dmat' in the trace: 'gpt-hook run -p dmat' records one; 2 launches lost what they saved: it is not in"
    )
    assert (
        f"{fact} the trace (of what --tid 1 chooses)\n" in done.stderr.decode() and not done.stdout
    )  # no table of passed-on records


@pytest.mark.parametrize(
    ("name", "options", "table", "column"),
    [("idle", (), "longest", "range"), ("launches", (), "ranges", "range"),
     ("summary", ("--top", 1), "slowest", "ranges"), ("summary", ("--by", "range"), "by_range", "name")],
)  # fmt: skip
def test_ranges_that_began_before_the_chosen_time_count(name, options, table, column):
    program = Program()
    with program.main.range("epoch"):
        for _ in range(9):
            program.main.launch("k", 50)
            program.main.sync()
            program.main.own(200)
    found = ask(name, program.segment(), args=(*options, "--time", "1.0005,"))
    assert {row.get(column) for row in found.rows[table]} == {"epoch"}
