"""The features that all analyses share: filters, scripts, pictures, growing traces, reports of missing data."""

import json
import os
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

import gpt.trace
from gpt.analyze.lib import base, live
from gpt.analyze.lib.answer import Column, make_answer
from gpt.base.errors import MalformedError
from gpt.stream import records, wire
from gpt.stream.stage import Stage
from tests.analyze.asked import Answers, ask, run
from tests.tiers import every
from tests.trace import forge

APIS = [forge.api(1, "cuLaunchKernel"), forge.api(2, "cuMemAlloc"), forge.api(3, "cuStreamSynchronize")]
KERNELS = [records.make("function", id=4, name="_Z6matmulIfEvPT_PKS0_i"), records.make("function", id=5, name="copy")]
MAP = forge.probe_map("gmem_bytes", type_="total", **forge.GMEM_BYTES)


def launch(start, function, stream_=0):
    return forge.launch(start, 10, 1, function, stream_)


def process(pid=10, zero=0, **more):
    """Return a trace with two threads that launched two kernels in two streams, an allocation, and records of two
    launches.
    """
    seconds = 10**9
    rows = [launch(zero + 1 * seconds, 4), launch(zero + 2 * seconds, 5, 7), launch(zero + 3 * seconds, 4, 7)]
    saved = [MAP, forge.kernel(3, 4, KERNELS[0]["name"], 1), forge.kernel(6, 5, "copy", 1)]
    for number, (kernel, function, at) in enumerate([(3, 4, 1), (6, 5, 2), (3, 4, 3)]):
        probed = forge.probed(number, kernel, function, 1, 32)
        saved += [{**probed, "start": zero + at * seconds, "stream": 7 if at > 1 else 0, "device": at % 2},
                  forge.buffer(number, struct.pack("<6Q", 32, 10**at, 0, 0, 0, 0))]  # fmt: skip
    allocation = forge.calls([(zero + 4 * seconds, 10, 2, 0, 64, 0, 4096, 0)], forge.MEMORY, thread=2)
    counted = forge.launches({4: 2, 5: 1})
    return forge.trace(*APIS, *KERNELS, forge.calls(rows, forge.LAUNCH), allocation, counted, *saved, pid=pid, **more)


FILTERS = [  # options, calls and launches of the summary, bytes of launches
    ([], 4, 3, 1110),
    (["--pid", 10], 4, 3, 1110),
    (["--pid", 11], 0, 0, None),
    (["--rank", 3], 4, 3, 1110),
    (["--rank", 3, "--host", "here", "--pid", 10], 4, 3, 1110),
    (["--rank", 2], 0, 0, None),
    (["--host", "there"], 0, 0, None),
    (["--tid", 1], 3, 3, 1110),
    (["--tid", 2, "--tid", 3], 1, 0, None),
    (["--cuda-stream", "0x7"], 2, 2, 1100),
    (["--cuda-stream", 0], 2, 1, 10),
    (["--kernel", "matmul*"], 2, 2, 1010),
    (["--kernel", "copy", "--kernel", "nothing"], 1, 1, 100),
    (["--time", "1.5,2.5"], 1, 1, 100),
    (["--time", ",3"], 2, 2, 110),
    (["--time", "2,", "--kernel", "_Z6*"], 1, 1, 1000),
    (["--gpu", 1], 0, 0, 1010),
]


@pytest.mark.parametrize(("options", "calls", "launches", "size"), every(4, FILTERS))
def test_filters(options, calls, launches, size, tmp_path):
    device = [records.make("device", index=n, name="d", arch="sm_90", runs="sass") for n in (0, 1)]
    segment = process(rank=3)
    segment[1:1] = device
    path = tmp_path / "t.mp"
    path.write_bytes(forge.pack(segment))
    done = run("summary", "--json", *options, path)
    found = Answers(done.stdout)
    assert sum(row["calls"] for row in found.rows.get("processes", [])) == calls
    assert sum(row["launches"] for row in found.rows.get("kernels", [])) == launches
    lines = run("events", "--json", *options, path).stdout.splitlines()
    assert len(lines) == calls
    done = run("gmem_bytes", "--json", *options, path)
    found = Answers(done.stdout)
    assert done.returncode == (size is None)
    assert sum(row["total"] for row in found.rows.get("kernels", [])) == (size or 0)
    assert sum(row["total"] for row in found.rows.get("launches", [])) == (size or 0)


def test_filters_are_of_all_processes(tmp_path):
    path = tmp_path / "t.mp"
    path.write_bytes(forge.pack(process(), process(11, boot_id="other", realtime=10**18 + 10**9)))
    found = Answers(run("summary", "--json", "--time", "2,3.5", path).stdout)
    assert [row["calls"] for row in found.rows["processes"]] == [2, 2]  # the other process began 1 s later


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (["--time", "5"], "--time takes FROM,TO in seconds, not '5'"),
        (["--time", "2,1"], "--time takes FROM,TO in seconds, not '2,1'"),
        (["--cuda-stream", "x"], "--cuda-stream takes a handle, as 0x7f..., not 'x'"),
        (["--follow"], "--follow takes files; a stream is read to its end anyway"),
        (["--plot", "x.gif"], "x.gif: the name of a plot ends in .png or .svg"),
    ],
)
def test_options_that_make_no_sense(options, fact):
    done = run("summary", *options, data=forge.pack(process()))
    assert (done.returncode, done.stderr.decode()) == (2, f"gpt-analyze: error: {fact}\n")


# Missing data


@pytest.mark.full
def test_every_form_says_what_is_missing(tmp_path):
    path = tmp_path / "t.mp"
    whole = forge.pack(process())
    path.write_bytes(whole + forge.pack(process(77))[:-150])  # truncated within a record
    fact = f"{path}+"
    for form in ([], ["--format", "md"], ["--format", "csv"], ["--json"]):
        done = run("summary", *form, path)
        assert done.returncode == 3
        text = done.stdout.decode().replace("\\", "")
        assert "incomplete" in text and "no end of process 77: killed, still running, or no longer recorded" in text
        assert fact in "".join(text.split()) and "bytesintoarecord" in "".join(text.split())
    svg = tmp_path / "p.svg"
    run("summary", "--plot", svg, path)
    assert svg.exists()
    model = gpt.trace.open(path)
    assert [process.pid for process in model.processes] == [10, 77] and len(model.incomplete) == 2


def test_a_whole_trace_is_not_incomplete():
    for form in ([], ["--format", "md"], ["--format", "csv"], ["--json"]):
        assert b"incomplete" not in run("summary", *form, data=forge.pack(process())).stdout


# The model, and scripts


def test_maps_of_launches_are_arrays_over_the_bytes(tmp_path):
    path, raw = tmp_path / "t.mp", struct.pack("<6Q", 32, 10, 0, 0, 0, 0)
    path.write_bytes(forge.pack(process(), process(11, realtime=10**18 + 5, monotonic=5)))
    model = gpt.trace.open(path)
    assert len(model.launches) == 6 and not model.incomplete
    first = model.launches[0]
    saved = first.maps["gmem_bytes"]
    assert saved.shape == (1, 1, 1) and saved["read"].tolist() == [[[10]]] and not saved.flags.owndata
    assert saved.dtype.itemsize == len(raw) - 8 and list(first.maps) == ["gmem_bytes"]
    assert (first.kernel, first.id, first.grid, first.start) == (KERNELS[0]["name"], 0, (1, 1, 1), 10**9)
    assert int(first.saved("gmem_bytes").counts.sum()) == 32


def test_calls_of_processes_are_in_order_of_one_clock(tmp_path):
    path = tmp_path / "t.mp"
    other = process(11, boot_id="other", realtime=10**18 + 10**9 + 5)
    path.write_bytes(forge.pack(other, process()))
    model = gpt.trace.open(path)
    calls = model.calls("bytes", "function")
    assert np.all(np.diff(calls["start"]) >= 0) and len(calls) == 8
    assert calls["start"][:3].tolist() == [10**9, 2 * 10**9, 2 * 10**9 + 5]
    assert [model.processes[n].pid for n in calls["process"][:3]] == [10, 10, 11]
    memory = model.chosen(calls, type="memory", op="alloc")
    assert calls["bytes"][memory].tolist() == [4096, 4096] and calls["thread"][memory].tolist() == [2, 2]
    assert model.kernel(calls[0]) == KERNELS[0]["name"] and model.api(calls[0]).name == "cuLaunchKernel"


SCRIPT = """
from gpt.analyze.lib.answer import Column, make_answer

def analyze(trace):
    {0}
    rows = [(launch.kernel, launch.maps["gmem_bytes"]["read"].sum().item()) for launch in trace.launches]
    yield make_answer("reads", [Column("kernel", "text", "kernel"), Column("read", "u64", "bytes")], rows, ["so"])
"""


def script(folder, *args, body=""):
    (folder / "my.py").write_text(SCRIPT.format(body))
    return run("--script", folder / "my.py", *args, data=forge.pack(process()))


def test_a_script_is_an_analysis(tmp_path):
    found = Answers(script(tmp_path, "--json", "--kernel", "copy").stdout)
    assert found.rows == {"reads": [{"kernel": "copy", "read": 100}]} and found.verdicts == {"reads": ["so"]}
    lines = script(tmp_path).stdout.decode().splitlines()
    assert [line.split()[-2:] for line in lines[:2]] == [["kernel", "read"], ["10", "B"]]
    done = script(tmp_path, "--plot", tmp_path / "p.png")
    assert done.returncode == 0 and (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def test_a_script_without_numbers_or_plots(tmp_path):
    body = 'yield make_answer("kinds", [Column("kind", "text")], [("a",)])\n    return'
    done = script(tmp_path, "--plot", tmp_path / "p.png", body=body)
    assert done.returncode == 1
    assert b"p.png: nothing to draw (a script can pass plots=[...] to make_answer)" in done.stderr


def test_script_fails(tmp_path):
    done = script(tmp_path, body="1 / 0")
    fact = f"gpt-analyze: error: {tmp_path}/my.py:5: ZeroDivisionError: division by zero\n"
    assert (done.returncode, done.stderr.decode()) == (1, fact)
    (tmp_path / "no.py").write_text("x = 1")
    done = run("--script", tmp_path / "no.py", data=forge.pack(process()))
    assert done.returncode == 2 and b"no function 'analyze'" in done.stderr
    assert run("--script", tmp_path / "absent.py", data=forge.pack(process())).returncode == 4


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("def analyze(trace:", "bad.py:1: SyntaxError: '(' was never closed"),
        ("def analyze(trace):\n    return 5", "TypeError: 'int' object is not iterable"),
        ("def analyze(trace):\n    raise SystemExit('no')", "bad.py:2: SystemExit: no"),
        ("def analyze(trace):\n    yield 3", "bad.py: not an answer: 'int'"),
        ("def analyze(trace):\n    yield {'kind': 'answer', 'name': 5}", "bad.py: not an answer: answer"),
    ],
)
def test_errors_in_a_script_are_reported(text, fact, tmp_path):
    (tmp_path / "bad.py").write_text(text)
    done = run("--script", tmp_path / "bad.py", "--json", data=forge.pack(process()))
    assert done.returncode == 1 and fact in done.stderr.decode() and "internal" not in done.stderr.decode()


def test_output_of_a_script_goes_to_stderr(tmp_path):
    done = script(tmp_path, "--json", body="print('seen')")
    assert done.stderr == b"seen\n" and "reads" in Answers(done.stdout).rows


def test_list():
    lines = run("--list").stdout.decode().splitlines()
    assert [line.split()[0] for line in lines][:2] == ["summary", "events"] and all(len(line) < 80 for line in lines)


# Traces that grow

GROWING = """
import os, sys, time
head, more, end = (bytes.fromhex(line) for line in sys.stdin.read().split())
with open(sys.argv[1], "ab", 0) as file:
    file.write(head.replace(b"PID!", os.getpid().to_bytes(4, "big")))
    while not os.path.exists(sys.argv[1] + ".go"):
        time.sleep(0.02)
    file.write(more + end)
"""


@pytest.fixture
def growing(tmp_path):
    """Return a trace whose process runs until a file appears, and then writes the rest."""
    path = tmp_path / "t.mp"
    path.touch()
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot_id = file.read().strip()
    header, *inner, end = process(pid=int.from_bytes(b"PID!", "big"), boot_id=boot_id)
    parts = [forge.pack([header, *inner[:6]]), forge.pack(inner[6:]), forge.pack([end])]
    with subprocess.Popen([sys.executable, "-c", GROWING, path], stdin=subprocess.PIPE, text=True) as writer:
        writer.stdin.write("\n".join(part.hex() for part in parts))
        writer.stdin.close()
        yield path
        (tmp_path / "t.mp.go").touch()


@pytest.mark.parametrize("name", ["summary", "events"])
def test_follow_answers_at_the_end(growing, name):
    command = ["gpt-analyze", name, "--json", "--follow", growing]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as done:
        time.sleep(1)
        assert done.poll() is None
        growing.with_suffix(".mp.go").touch()
        lines = [json.loads(line) for line in done.stdout]
    assert done.returncode == 0
    assert len(lines) == 4 if name == "events" else [line["status"] for line in lines if "status" in line] == [0, 0]


def test_follow_ends_when_a_trace_is_removed(growing):
    with subprocess.Popen(["gpt-analyze", "summary", "--follow", growing], stderr=subprocess.PIPE) as done:
        time.sleep(1)
        growing.unlink()
        assert done.wait(30) == 4 and b"No such file" in done.stderr.read()


def has_ended(path):
    """Return the answer that decides whether --follow looks again."""
    return base.read(Stage("gpt-analyze", stream=True, quiet=True), live.Nothing(), [path])


def test_follow_ends_for_a_trace_that_was_cut(tmp_path, monkeypatch, capfdbinary):
    monkeypatch.setattr(live, "FRESH", 0.0)  # it wasn't written recently
    whole, path = forge.pack(process()), tmp_path / "cut.mp"
    chunk = wire.pack({"kind": "chunk", "used": len(whole), "data": whole})
    for size in [*range(0, 40, 7), *range(40, len(chunk), 1997), len(chunk) - 1]:
        path.write_bytes(chunk[:size])
        assert has_ended(path), size
        with open(path, "r+b"):
            assert not has_ended(path), size  # it is being written
        with open(path, "rb"):
            assert has_ended(path), size  # it is being read
    for size in (len(chunk), len(chunk) + 1):  # even if it was truncated after a whole segment
        path.write_bytes((chunk + chunk)[:size])
        assert has_ended(path), size
        with open(path, "r+b"):
            assert not has_ended(path), size  # another process's segment may follow


def test_follow_waits_for_the_rest_of_a_stream_whose_process_has_ended(tmp_path):
    """A helper process or a copy may still be writing the trace. The answer used to say that the process had been
    killed.
    """
    whole, path = forge.pack(process()), tmp_path / "t.mp"
    for size in (len(whole) // 2, whole.rindex(b"kind") - 2):  # within a record, and before the end
        path.write_bytes(whole[:size])
        assert not has_ended(path)
        os.utime(path, (0, 0))
    path.write_bytes(whole)
    assert has_ended(path)


@pytest.mark.parametrize("begun", [b"", b"\x83\xd9\x04kind\xd9\x05chu"])
def test_follow_waits_for_a_trace_that_has_just_begun(growing, begun):
    path = growing.with_name("begun.mp")
    path.write_bytes(begun)
    assert not has_ended(path)
    os.utime(path, (0, 0))
    assert not has_ended(path)  # it was written just now


@pytest.mark.full
@pytest.mark.parametrize("name", ["summary", "events"])
def test_follow_of_a_cut_trace_has_its_error_in_the_end(tmp_path, name):
    (tmp_path / "cut.mp").write_bytes(forge.pack(process())[:20])
    done = subprocess.run(["gpt-analyze", name, "--follow", tmp_path / "cut.mp"], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout) == (3, b"") and b"bytes into a record" in done.stderr


def read_until(terminal, wanted=None):
    """Read from a terminal until there's output, or until it's closed."""
    text = b""
    try:
        while (wanted is None or wanted not in text) and (data := os.read(terminal, 65536)):
            text += data
    except OSError:  # closed
        pass
    return text


@pytest.mark.full
@pytest.mark.parametrize("ends", [True, False])
def test_follow_on_terminal_redraws_until_a_signal(growing, ends):
    ours, theirs = os.openpty()
    with subprocess.Popen(["gpt-analyze", "summary", "-f", growing], stdout=theirs) as done:
        os.close(theirs)
        assert b"processes" not in read_until(ours, b"still running")
        growing.with_suffix(".mp.go").touch() if ends else done.send_signal(signal.SIGINT)
        last = read_until(ours).rpartition(live.CLEAR.encode())[2]
    assert done.returncode == (0 if ends else -signal.SIGINT)
    assert b"kernel" in last and (b"no end of process" in last) != ends
    os.close(ours)


# Records


def test_numbers_fit_their_columns():
    columns = [Column("delta", "i64?"), Column("small", "i8"), Column("size", "u8?")]
    rows = [(-2.5, -1000, 300), (np.float64(1e30), 1000, 1.6), (None, 0.4, None)]
    found = Answers([make_answer("sizes", columns, rows)])
    assert found.rows["sizes"] == [
        {"delta": -2, "small": -128, "size": 254},
        {"delta": (1 << 63) - 2, "small": 127, "size": 2},
        {"small": 0},
    ]
    with pytest.raises(MalformedError, match=r"row\.size: -1 doesn't fit type u8"):
        make_answer("sizes", columns, [(0, 0, -1)])


def test_answer_passes_the_next_analysis():
    first = run("summary", "--stream", data=forge.pack(process())).stdout
    for name in "summary", "gaps":
        rows = Answers(run(name, "--json", data=first).stdout).rows
        assert rows["processes"][0]["calls"] == 4 and "gaps" not in rows


def test_answer_round_trips_through_json(tmp_path):
    data = forge.pack(process()[:-1])
    direct = run("gmem_bytes", "--stream", data=data).stdout
    lines = run("gmem_bytes", "--json", data=data).stdout
    (tmp_path / "direct").write_bytes(direct)
    with open(tmp_path / "direct", "rb") as file:
        answers = [record for record in wire.read_records(file, "d") if record["kind"] == "answer"]
    assert answers and all(
        answer["incomplete"] == ["no end of process 10: killed, still running, or no longer recorded"]
        for answer in answers
    )
    assert Answers(lines).rows["kernels"] == ask("gmem_bytes", process()[:-1]).rows["kernels"]
