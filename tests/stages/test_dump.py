"""gpt-dump: launches in a stream become files, on which callbacks run, however they behave."""

import io
import os
import stat
import struct
import subprocess
import time

import pytest

from gpt.stream import records, wire
from gpt.trace.probes import Probes
from tests.runtime import hooked
from tests.stages.contract import run
from tests.trace import forge

DATA = struct.pack("<QQ", 1, 42)


def script(folder, text, name="hook.py"):
    path = folder / name
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def launches(count, callback=None, data=DATA):
    """Make a segment with this many launches, each with its buffer."""
    map_ = forge.probe_map("m", n="u64") | ({"callback": callback} if callback else {})
    found = [map_, forge.kernel(5, 2, "_Z1kv", 1), records.make("function", id=2, name="_Z1kv")]
    for number in range(1, count + 1):
        found += [forge.probed(number, 5, 2, 1, 32), forge.buffer(number, data)]
    return forge.trace(*found)


def dump(folder, segments, *options, **more):
    return run(["gpt-dump", *options], folder, data=forge.pack(*segments), **more)


def read(path):
    with open(path, "rb") as file:
        return list(wire.read_records(file, str(path)))


def value(path):
    made = Probes(None)
    for record in read(path):
        if record["kind"] in ("map", "kernel", "probed", "buffer"):
            made.add(record)
    return [buffer.read().slots["n"].tolist() for buffer in made.take()]


def test_each_launch_is_a_trace_of_its_own(tmp_path):
    segment = launches(2)
    parts = [
        forge.buffer(3, DATA[:8]) | {"size": 16, "length": 8},
        forge.buffer(3, DATA[8:]) | {"size": 16, "at": 8, "length": 8},
    ]
    segment[-1:-1] = [parts[0], forge.probed(3, 5, 2, 1, 32), parts[1]]
    device = records.make("device", index=0, name="d", arch="sm_90", runs="ptx")
    done = dump(tmp_path, [[segment[0], device, *segment[1:]]], "--dumps", "d", "-o", "out.mp")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert sorted(os.listdir(tmp_path / "d")) == ["10-1.mp", "10-2.mp", "10-3.mp"]
    for path in (tmp_path / "d").iterdir():
        assert value(path) == [[[[42]]]]
        kinds = [record["kind"] for record in read(path)]
        assert kinds[:6] == ["header", "device", "function", "map", "kernel", "probed"] and kinds[-1] == "end"
        assert read(path)[-1]["records"] == len(kinds) - 2
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "out.mp").stat().st_mode) == 0o600
    assert [r["kind"] for r in read(tmp_path / "out.mp")][1:] == ["device", *(r["kind"] for r in segment[1:])]


def test_records_may_follow_the_buffers_that_refer_to_them(tmp_path):
    header, map_, kernel, function, probed, buffer, end = launches(1)
    done = dump(tmp_path, [[header, buffer, probed, function, kernel, map_, end]], "--dumps", "d")
    assert (done.returncode, done.stderr) == (0, b"")
    assert value(tmp_path / "d" / "10-1.mp") == [[[[42]]]]


def test_segments_have_their_own_launches(tmp_path):
    one, two = launches(1), launches(1)
    two[0] = two[0] | {"pid": 11}
    two[1:-1] = [r | {"id": 9} if r["kind"] == "kernel" else r for r in two[1:-1]]
    two[1:-1] = [r | {"kernel": 9} if r["kind"] == "probed" else r for r in two[1:-1]]
    back = [records.make("resume", back=1)]
    done = dump(tmp_path, [one[:4], two[:5], back, one[4:], [records.make("resume", back=0)], two[5:]], "--dumps", "d")
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(os.listdir(tmp_path / "d")) == ["10-1.mp", "11-1.mp"]


def test_callbacks_get_each_launch_one_after_the_other(tmp_path):
    text = """
import os, sys, time
from gpt import stream
path = sys.argv[1]
kinds = [record["kind"] for record in stream.read_records(open(path, "rb"), path)]
print(os.path.basename(path), kinds[-2:], sys.stdin.read(), flush=True)
"""
    done = dump(
        tmp_path, [launches(3, script(tmp_path, text))], "-o", "out.mp", env={**os.environ, "TMPDIR": str(tmp_path)}
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().splitlines() == [f"10-{n}.mp ['buffer', 'end'] " for n in (1, 2, 3)]
    assert not list(tmp_path.glob("gpt-dump.*"))
    assert dump(tmp_path, [launches(1, script(tmp_path, text))]).stderr.startswith(b"10-1.mp")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("#!/bin/sh\nexit 3", ["ended with status 3", "failed on 4 launches"]),
        ("#!/bin/sh\nkill -9 $$", ["was ended by signal 9", "failed on 4 launches"]),
        ("#!/nonexistent", ["No such file or directory; it is not run"]),
        ("#!/bin/sh\nsleep 100 & sleep 100", ["did not end within 0.5 s, and is not run again"]),
    ],
    ids=["status", "signal", "missing", "hangs"],
)
def test_failing_callback_is_reported_once(tmp_path, text, said):
    callback = script(tmp_path, text, "hook")
    segment = launches(4, callback)
    began = time.monotonic()
    done = dump(tmp_path, [segment], "--limit", "0.5")
    assert time.monotonic() - began < 30
    assert done.stderr.decode().splitlines() == [f"gpt-dump: warning: {callback}: {fact}" for fact in said]
    assert done.returncode == 1
    found = [r for r in wire.read_records(io.BytesIO(done.stdout), "out") if r["kind"] != "diag"]
    assert [r["kind"] for r in found] == [r["kind"] for r in segment]


def test_processes_left_by_a_callback_do_not_block(tmp_path):
    """The callback writes a lot of output, and starts a process that outlives it."""
    text = """
import os, sys
for _ in range(100):
    sys.stdout.write("x" * 1000000)
sys.stdout.flush()
if not os.fork():
    os.setsid()
    os.close(1), os.close(2)
    __import__("time").sleep(20)
    os._exit(0)
"""
    began = time.monotonic()
    with open(tmp_path / "printed", "wb") as printed:
        done = dump(tmp_path, [launches(2, script(tmp_path, text))], "-o", "out.mp", stdout=printed)
    assert (done.returncode, done.stderr) == (0, b"")
    assert os.stat(tmp_path / "printed").st_size == 200_000_000
    assert time.monotonic() - began < 18


@pytest.mark.usefixtures("cold")
@pytest.mark.full
def test_a_signal_ends_the_callback_too(tmp_path):
    text = f"#!/bin/sh\necho $$ >'{tmp_path}/pid'\nsleep 100"
    data = forge.pack(launches(3, script(tmp_path, text, "hook")))
    with subprocess.Popen(
        ["gpt-dump"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(tmp_path)}
    ) as process:
        process.stdin.write(data)
        process.stdin.flush()
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            time.sleep(0.01)
        process.terminate()
        assert process.wait(20) == -15
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert not list(tmp_path.glob("gpt-dump.*"))


def test_incomplete_launches_are_not_dumped(tmp_path):
    """One launch is from a killed process, the other from a process whose device failed."""
    segment = launches(2)
    lost = [r | {"lost": "the device failed"} if r["kind"] == "buffer" else r for r in segment]
    for record in lost:
        record.pop("data", None)
    done = dump(tmp_path, [segment[:-2], lost], "--dumps", "d")
    assert done.returncode == 0
    assert done.stderr.decode() == (
        "gpt-dump: warning: launches not dumped, because the stream lacks some of their data: 1\n"
    )
    assert os.listdir(tmp_path / "d") == ["10-1.mp"]


def test_folder_that_accepts_no_files(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "10-1.mp").write_text("mine")
    done = dump(tmp_path, [launches(2)], "--dumps", "d")
    assert done.stderr.decode() == "gpt-dump: warning: d: File exists: launches are not dumped\n"
    assert (tmp_path / "d" / "10-1.mp").read_text() == "mine" and value(tmp_path / "d" / "10-2.mp") == [[[[42]]]]


def test_buffers_next_to_a_trace_are_missing(tmp_path):
    segment = launches(1)
    segment[5] = {key: value for key, value in segment[5].items() if key != "data"} | {"path": "t.mp.buffers"}
    done = dump(tmp_path, [segment], "--dumps", "d")
    assert b"a buffer is in a file next to the trace: launches are not dumped" in done.stderr


@pytest.mark.parametrize("wrong", [{"at": 4}, {"map": -1}, {"size": "x"}])
def test_invalid_records_pass_and_end_the_dumps(tmp_path, wrong):
    segment = launches(3)
    segment[7] = segment[7] | wrong
    done = dump(tmp_path, [segment], "--dumps", "d")
    assert b"no more launches are dumped" in done.stderr and done.returncode == 0
    assert os.listdir(tmp_path / "d") == ["10-1.mp"]
    kinds = [r["kind"] for r in wire.read_records(io.BytesIO(done.stdout), "out") if r["kind"] != "diag"]
    assert kinds == [r["kind"] for r in segment]


def test_standard_output_gets_the_stream(tmp_path):
    done = dump(tmp_path, [launches(1)], "-o", "-")
    assert (done.returncode, os.listdir(tmp_path)) == (0, []) and done.stdout == dump(tmp_path, [launches(1)]).stdout


def test_existing_file_is_kept(tmp_path):
    (tmp_path / "out.mp").write_text("mine")
    done = dump(tmp_path, [launches(1)], "-o", "out.mp")
    assert (done.returncode, done.stderr) == (1, b"gpt-dump: error: out.mp: exists\n")
    assert (tmp_path / "out.mp").read_text() == "mine"


@pytest.mark.usefixtures("cold")
@pytest.mark.full
def test_the_stream_is_not_held_up_by_callbacks(tmp_path):
    """The reader gets the complete stream while callbacks are still running."""
    data = forge.pack(launches(5, script(tmp_path, "#!/bin/sh\nsleep 1", "hook")))
    with subprocess.Popen(["gpt-dump"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(data)
        process.stdin.close()
        assert process.stdout.read().endswith(forge.pack(launches(0)[-1:])[-8:])
        assert process.poll() is None
        assert process.wait(30) == 0


def test_processes_with_one_number_have_files_of_their_own(tmp_path):
    """exec keeps the pid, and the new program's launches count from 1 again."""
    done = dump(tmp_path, [launches(1), launches(1)], "--dumps", "d")
    assert (done.returncode, done.stderr) == (0, b"")
    assert sorted(os.listdir(tmp_path / "d")) == ["10-1.mp", "10.2-1.mp"]


def test_a_program_is_not_looked_for(tmp_path):
    done = dump(tmp_path, [launches(2, "true")])
    assert done.returncode == 1
    assert done.stderr == b"gpt-dump: warning: true: not an absolute path; it is not run\n"


@pytest.mark.usefixtures("cold")
def test_folder_is_removed_even_if_killed(tmp_path):
    data = forge.pack(launches(1, script(tmp_path, "#!/bin/sh\nsleep 5", "hook")))
    env = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen(["gpt-dump"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=env) as process:
        process.stdin.write(data)
        process.stdin.flush()
        hooked.wait_until(lambda: [*tmp_path.glob("gpt-dump.*/*.mp")])
        process.kill()
    hooked.wait_until(lambda: not [*tmp_path.glob("gpt-dump.*")])


def test_callbacks_that_the_run_did_not_name_are_reported_and_not_run(tmp_path):
    """The stream is written by a watched program, which may be in a sandbox."""
    named, other = (script(tmp_path, f"open({name!r}, 'a').write('ran ')", f"{name}.py") for name in ("named", "other"))
    done = dump(tmp_path, [launches(2, named), launches(2, other)], "--only", named)
    assert done.returncode == 0
    assert done.stderr.decode() == f"gpt-dump: warning: {other}: not a callback of this run; it is not run\n"
    assert (tmp_path / "named").read_text() == "ran ran " and not (tmp_path / "other").exists()
