"""gpt-analyze events: one line per call, ordered by time, to which all recipes in the eBPF tracer's guide apply."""

import csv
import json
import os
import re
import resource
import shutil
import signal
import subprocess

import pytest

from gpt.stream import records
from tests import loaded
from tests.trace import forge

NAMES = ("cuMemAlloc", "cuMemcpyHtoD", "cuLaunchKernel", "cuStreamSynchronize")
APIS = [forge.api(number, name, name + "_v2") for number, name in enumerate(NAMES, 1)]
ALLOC, COPY, LAUNCH, SYNC = 1, 2, 3, 4


def run(*args, data=b"", **options):
    return loaded.run(["gpt-analyze", "events", *args], data, **options)


def events(*segments):
    done = run("--json", data=forge.pack(*segments))
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_lines_tell_what_the_rows_tell():
    memory = [(1000, 2500, ALLOC, 0, 0x7F00, 0, 4096, 0), (2000, 10, COPY, 1, 0x7F00, 0x10, 64, 0xABC)]
    kernel = records.make("function", id=6, name="_Z1kv")
    found = events(
        forge.trace(
            *APIS,
            forge.calls(memory, forge.MEMORY, thread=21),
            forge.calls([forge.launch(3000, 1, LAUNCH, 6, 0xABC)], forge.LAUNCH, thread=22),
            forge.calls([(4000, 0, SYNC, 0, 0, 0xABC)], forge.OBJECT, thread=22),
            kernel,
        )
    )
    assert found == [
        {"ts": 1.0, "type": "memory", "op": "alloc", "name": "cuMemAlloc", "symbol": "cuMemAlloc_v2", "pid": 10,
         "tid": 21, "duration_us": 2.5, "result": 0, "size": 4096, "ptr": "0x7f00"},
        {"ts": 2.0, "type": "memcpy", "op": "HtoD", "name": "cuMemcpyHtoD", "symbol": "cuMemcpyHtoD_v2", "pid": 10,
         "tid": 21, "duration_us": 0.01, "result": 1, "size": 64, "dst": "0x7f00", "src": "0x10", "stream": "0xabc"},
        {"ts": 3.0, "type": "kernel", "op": "launch", "name": "cuLaunchKernel", "symbol": "cuLaunchKernel_v2",
         "pid": 10, "tid": 22, "duration_us": 0.001, "result": 0, "stream": "0xabc", "kernel": "_Z1kv",
         "grid": [1, 2, 3], "block": [32, 4, 1], "shared": 128},
        {"ts": 4.0, "type": "sync", "op": "stream", "name": "cuStreamSynchronize", "symbol": "cuStreamSynchronize_v2",
         "pid": 10, "tid": 22, "stream": "0xabc"},
    ]  # fmt: skip


SLOW = [(1000, 2500, ALLOC, 0, 0x7F00, 0, 4096, 0), (5000, 10, ALLOC, 0, 0, 0, 1, 0), (6000, 0, ALLOC, 0, 0, 0, 2, 0),
        (7000, 9000, ALLOC, 0, 0, 0, 3, 0), (9000, 2500, ALLOC, 0, 0, 0, 4, 0)]  # fmt: skip


def test_slowest_calls_come_first_on_request():
    data = forge.pack(forge.trace(*APIS, forge.calls(SLOW, forge.MEMORY, thread=21)))

    def sizes(*args):
        return [json.loads(line)["size"] for line in run("--json", *args, data=data).stdout.splitlines()]

    assert sizes() == [4096, 1, 2, 3, 4] and sizes("--top", "2") == [4096, 1]
    assert sizes("--sort", "took") == [3, 4096, 4, 1, 2]  # calls that didn't return are last
    assert sizes("--sort", "took", "--top", "1") == [3]
    lines = run("--sort", "took", "--top", "1", data=data).stdout.decode().splitlines()
    assert len(lines) == 2 and lines[1].split()[:2] == ["0.000007", "9.00us"]


def test_csv_has_a_column_for_each_key():
    kernel = records.make("function", id=6, name="=cmd")
    calls = forge.calls(SLOW[:1], forge.MEMORY, thread=21)
    launch = forge.calls([forge.launch(3000, 1, LAUNCH, 6, 0xABC)], forge.LAUNCH, thread=22)
    done = run("--format", "csv", data=forge.pack(forge.trace(*APIS, calls, launch, kernel)))
    alloc, launched = csv.DictReader(done.stdout.decode().splitlines())
    assert (alloc["ts"], alloc["duration_us"], alloc["size"], alloc["ptr"]) == ("1.0", "2.5", "4096", "0x7f00")
    assert alloc["grid"] == "" and launched["grid"] == "1x2x3" and launched["tid"] == "22"
    assert launched["kernel"].lstrip("'") == "=cmd" and launched["kernel"] != "=cmd"
    done = run("--format", "csv", "--json", data=b"")
    assert done.returncode == 2 and b"--format cannot be combined with --json" in done.stderr


def test_threads_and_processes_are_in_one_order():
    def segment(pid, first, **header):
        batches = []
        for thread in (1, 2):
            rows = [(first + 7 * i + thread, 1, ALLOC, 0) for i in range(1000)]
            batches += [forge.calls(rows[:500], thread=thread), forge.calls(rows[500:], thread=thread)]
        return forge.trace(*APIS, *reversed(batches), pid=pid, **header)

    found = events(segment(1, 1000), segment(2, 1003), segment(3, 1_100_000, tsc=0, tsc_hz=10**12))
    assert len(found) == 6000
    assert [e["ts"] for e in found] == sorted(e["ts"] for e in found)
    assert {e["pid"] for e in found[:100]} == {1, 2, 3}


def test_clocks_of_machines_are_joined_by_the_time_of_day():
    first = forge.trace(*APIS, forge.calls([(1000, 1, ALLOC, 0)]), boot_id="a", realtime=5000, monotonic=900)
    later = forge.trace(*APIS, forge.calls([(90, 1, ALLOC, 0)]), boot_id="b", realtime=7000, monotonic=50)
    assert [e["ts"] for e in events(first, later)] == [0.1, 2.04]
    assert [e["ts"] for e in events(later, first)] == [0.1, 2.04]


def test_clock_records_move_all_calls_alike():
    """A better rate arrives late; the order within a thread is kept."""
    rows = [(i * 1000, 1, ALLOC, 0) for i in range(1, 2000)]
    late = records.make("clock", monotonic=10**9, tsc=2 * 10**9)
    found = events(forge.trace(*APIS, forge.calls(rows), late, tsc=0, tsc_hz=10**9))
    assert [e["ts"] for e in found] == [i / 2 for i in range(1, 2000)]


def test_ioctls_have_type_kernel_as_in_the_guide():
    ioctl = {"kind": "ioctl", "thread": 3, "device": "/dev/nvidiactl", "request": 42, "name": "NV_ESC_RM_ALLOC",
             "start": 50, "duration": 7, "error": 22, "parent": 40}  # fmt: skip
    (found,) = events(forge.trace(ioctl))
    assert found == {"ts": 0.05, "type": "kernel", "op": "ioctl", "name": "NV_ESC_RM_ALLOC", "pid": 10, "tid": 3,
                     "duration_us": 0.007, "result": 22}  # fmt: skip


def test_recording_that_was_turned_on_and_off_is_a_line():
    changes = [records.make("recording", on=on, at=at) for at, on in ((1000, False), (2000, True), (9000, False))]
    found = events(forge.trace(*APIS, *changes, forge.calls([(3000, 5, ALLOC, 0)])))
    said = [(event["ts"], event["type"], event["name"]) for event in found]
    assert said == [(1.0, "recording", "recording off"), (2.0, "recording", "recording on"),
                    (3.0, "memory", "cuMemAlloc"), (9.0, "recording", "recording off")]  # fmt: skip
    assert all("duration_us" not in event for event in found if event["type"] == "recording")


def test_names_are_text_whatever_they_hold():
    apis = [forge.api(1, 'a"b\\\n'), forge.api(2, "\udcff")]
    found = events(forge.trace(*apis, forge.calls([(1, 1, 1, 0), (2, 1, 2, 0), (3, 1, 3, 0)])))
    assert [e["name"] for e in found] == ['a"b\\\n', "\ufffd", "#3"]


def test_a_trace_without_calls_has_no_lines():
    assert events(forge.trace(*APIS)) == []


def text_of(*segments, columns="80"):
    done = run(data=forge.pack(*segments), env={**os.environ, "COLUMNS": columns})
    assert (done.returncode, done.stderr) == (0, b"")
    return done.stdout.decode().splitlines()


def test_as_text_a_call_is_a_line():
    memory = [(1000, 2500, ALLOC, 2, 0x7F00, 0, 4096, 0), (2000, 10, COPY, 0, 0x7F00, 0x10, 64, 0xABC)]
    kernel = records.make("function", id=6, name="_Z6matmulIfEvPT_PKS0_i")
    evil = records.make("function", id=7, name="\x1b[2J\n" + "x" * 400)
    ioctl = {"kind": "ioctl", "thread": 3, "device": "/dev/nvidiactl", "request": 42, "name": "NV_ESC\x9b",
             "start": 5000, "duration": 7, "error": 22}  # fmt: skip
    segment = forge.trace(
        *APIS,
        forge.calls(memory, forge.MEMORY, thread=21),
        forge.calls(
            [forge.launch(3000, 1, LAUNCH, 6, 0xABC), forge.launch(3500, 1, LAUNCH, 7)], forge.LAUNCH, thread=22
        ),
        forge.calls([(4_000_000, 0, SYNC, 0, 0, 0xABC)], forge.OBJECT, thread=22),
        kernel,
        evil,
        ioctl,
    )
    lines = text_of(segment)
    assert [line.split() for line in lines[:3]] == [
        ["seconds", "took", "pid/tid", "result", "call"],
        ["0.000001", "2.50us", "10/21", "2", "cuMemAlloc", "size=4096", "ptr=0x7f00"],
        ["0.000002", "10ns", "10/21", "0", "cuMemcpyHtoD", "size=64", "dst=0x7f00", "src=0x10", "stream=0xabc"],
    ]
    assert lines[3].split()[4:8] == ["cuLaunchKernel", "stream=0xabc", "grid=1x2x3", "block=32x4x1"]
    assert lines[3].endswith(" shared=128 matmul<float>(float*, f…")
    assert "matmul<float>(float*, float const*, int)" in text_of(segment, columns="160")[3]
    assert r" \x1b[2J\nxxx" in lines[4] and lines[4].endswith("…")
    assert lines[5].split()[:4] + lines[5].split()[4:] == ["0.000005", "7ns", "10/3", "22", "ioctl", r"NV_ESC\x9b"]
    assert lines[6].split() == ["0.004000", "-", "10/22", "-", "cuStreamSynchronize", "stream=0xabc"]
    assert len(lines) == 7 and "".join(lines).isprintable()
    assert len({line.index(word) for line, word in zip(lines, ("call", *["cu"] * 4, "ioctl", "cu"), strict=True)}) == 1


@pytest.mark.full
def test_text_of_many_calls_has_a_line_for_each():
    rows = [(i, 1, 1 + i % 4, 0) for i in range(1, 70_001)]
    assert len(text_of(forge.trace(*APIS, forge.calls(rows[:40_000]), forge.calls(rows[40_000:])))) == 70_001
    assert text_of(forge.trace(*APIS))[1:] == []


@pytest.mark.full
def test_faults_are_those_of_every_stage(tmp_path):
    data = forge.pack(forge.trace(*APIS, forge.calls([(1, 1, 1, 0)])))
    done = run("--json", data=data[:-3])
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1
    assert len(done.stdout.splitlines()) == 1  # bytes read
    assert run("--json", tmp_path / "absent").returncode == 4
    assert run("--json", data=b"hello").returncode == 3
    with open("/dev/full", "wb") as full:
        command = ["gpt-analyze", "events", "--json"]
        done = subprocess.run(command, input=data, stdout=full, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (1, b"gpt-analyze: error: <stdout>: No space left on device\n")


def test_a_full_folder_for_temporary_files(tmp_path):
    def few():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    rows = forge.calls([(i, 1, ALLOC, 0) for i in range(1, 100_000)])
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    done = run("--json", data=forge.pack(forge.trace(*APIS, rows)), env=env, preexec_fn=few)
    assert done.returncode == 1
    assert done.stderr.decode() == f"gpt-analyze: error: {tmp_path}: File too large\n"


# Recipes: the commands as the guide of the eBPF tracer has them, and what each must print on the trace below.

GUIDE = [
    (
        r"cat traces/trace_*.jsonl | grep -E '^{' | jq -r '.type' | sort | uniq -c",
        "2 kernel 2 memcpy 3 memory 1 sync",
    ),
    (
        r"cat traces/trace_*.jsonl | grep -E '^{' | jq -r '.name' | sort | uniq",
        "cuLaunchKernel cuMemAlloc cuMemcpyHtoD cuStreamSynchronize",
    ),
    (r"""cat traces/trace_*.jsonl | grep -E '^{' | jq 'select(.type=="memory")' | wc -l""", "39"),
    (
        r"""cat traces/trace_*.jsonl | grep -E '^{' | jq 'select(.type=="kernel" and .op=="launch")' | wc -l""",
        "44",
    ),
    (
        r"""cat traces/trace_*.jsonl | grep -E '^{' | \
     jq 'select(.name=="cuLaunchKernel")' | \
     jq -r '.ts' | \
     awk 'NR>1 {print $1-prev} {prev=$1}'""",
        "20.5",
    ),
    (
        r"""cat traces/trace_*.jsonl | grep -E '^{' | \
     jq 'select(.type=="memory" and .op=="alloc")' | \
     jq '{ts, size}'""",
        '{ "ts": 1, "size": 4096 } { "ts": 1.5, "size": 8192 } { "ts": 5, "size": 1048576 }',
    ),
    (
        r"""cat traces/trace_*.jsonl | grep -E '^{' | \
     jq 'select(.type=="kernel")' | \
     jq '{ts, name}'""",
        '{ "ts": 20, "name": "cuLaunchKernel" } { "ts": 40.5, "name": "cuLaunchKernel" }',
    ),
    (
        r"""cat traces/trace_*.jsonl | grep -E '^{' | \
     jq 'select(.duration_us) | {name, duration_us}' | \
     jq -s 'group_by(.name) | map({name: .[0].name, total: map(.duration_us) | add})'""",
        '[ { "name": "cuLaunchKernel", "total": 3.5 }, { "name": "cuMemAlloc", "total": 2.75 },'
        ' { "name": "cuMemcpyHtoD", "total": 7.5 } ]',
    ),
    (
        r"""cat traces/trace_*.jsonl | grep '^{' | \
  jq -s 'group_by(.type) | map({type: .[0].type, count: length})'""",
        '[ { "type": "kernel", "count": 2 }, { "type": "memcpy", "count": 2 }, { "type": "memory", "count": 3 },'
        ' { "type": "sync", "count": 1 } ]',
    ),
    (
        r"""cat traces/trace_*.jsonl | grep '^{' | \
  jq 'select(.duration_us) | {name, duration_us}' | \
  jq -s 'sort_by(.duration_us) | reverse | .[0:10]'""",
        '[ { "name": "cuMemcpyHtoD", "duration_us": 7 }, { "name": "cuLaunchKernel", "duration_us": 2.5 },'
        ' { "name": "cuMemAlloc", "duration_us": 2 }, { "name": "cuLaunchKernel", "duration_us": 1 },'
        ' { "name": "cuMemcpyHtoD", "duration_us": 0.5 }, { "name": "cuMemAlloc", "duration_us": 0.5 },'
        ' { "name": "cuMemAlloc", "duration_us": 0.25 } ]',
    ),
]


@pytest.fixture(scope="module", params=[(), ("--notes",)], ids=["calls", "notes"])
def guide(request, tmp_path_factory):
    """Return a folder with the lines of a trace of two threads, each with its own chunks."""
    first = [(1000, 250, ALLOC, 0, 1, 0, 4096, 0), (5000, 2000, ALLOC, 0, 1, 0, 1 << 20, 0)]
    second = [
        (1500, 500, ALLOC, 0, 1, 0, 8192, 0),
        (3000, 500, COPY, 0, 1, 2, 64, 0),
        (9000, 7000, COPY, 0, 1, 2, 9, 0),
    ]
    launches = [forge.launch(40500, 1000, LAUNCH, 0), forge.launch(20000, 2500, LAUNCH, 0)]
    segment = forge.trace(
        *APIS,
        forge.calls([(60000, 0, SYNC, 0)], thread=2),  # killed while waiting
        forge.calls(launches[:1], forge.LAUNCH, thread=1),
        forge.calls(first, forge.MEMORY, thread=1),
        forge.calls(launches[1:], forge.LAUNCH, thread=2),
        forge.calls(second, forge.MEMORY, thread=2),
        end=False,
    )
    folder = tmp_path_factory.mktemp("guide")
    (folder / "traces").mkdir()
    (folder / "traces" / "trace_1.jsonl").write_bytes(run("--json", *request.param, data=forge.pack(segment)).stdout)
    return folder


def plain(text):
    """Return the words, with numbers as jq before 1.7 prints them: 1.5 for 1.500."""
    return re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.15g}", text).split()


@pytest.mark.parametrize(("recipe", "printed"), GUIDE, ids=range(1, len(GUIDE) + 1))
def test_recipe(recipe, printed, guide):
    if not shutil.which("jq"):
        pytest.skip("no jq (Debian: apt-get install jq)")
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", recipe], cwd=guide, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert plain(done.stdout) == plain(printed)
