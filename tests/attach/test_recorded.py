"""gpt-attach on bpftrace's output: the trace, and its handling of faulty lines."""

import json
import os
import signal
import stat
import subprocess
import tempfile
import time

import pytest

from gpt.attach import command
from gpt.attach.watch import has_ended
from gpt.base import signals
from gpt.base.errors import GptError, MalformedError
from gpt.trace import model, used
from tests import loaded
from tests.attach.printed import BEGIN, END, TAG, as_json, as_text, call, launch, name
from tests.tiers import first

KERNEL = "_Z" + "k" * 150


def attach(folder, text, capfd=None):
    """Make `trace.mp` from a recording, in this process; return the output on standard error."""
    (folder / "seen").write_bytes(text if isinstance(text, bytes) else text.encode())
    assert command.read([folder / "seen"], command.Output(str(folder / "trace.mp"), force=True), quiet=True) == 0
    return capfd.readouterr().err if capfd else ""


def trace(folder, text):
    attach(folder, text)
    return model.read([folder / "trace.mp"])


WHOLE = [
    *BEGIN,
    call("cuMemAlloc_v2", 5_000_001_000, 300, to=0x7000, bytes=4096),
    launch(0x10, 5_000_002_000),
    *name(KERNEL, 5_000_003_000),
    call("cuModuleGetFunction", 5_000_003_000, object=0x20),
    launch(0x20, 5_000_004_000),
    call("cuMemAlloc_v2", 5_000_005_000, result=2, tid=8, to=0, bytes=1 << 40),
    "beat 5500000000",
    *END,
    "@call1[7, 8, 1]: (5000006000, 0)",
]


@pytest.mark.parametrize("form", [as_text, as_json])
def test_a_recording_is_a_trace(form, tmp_path):
    found = trace(tmp_path, form(WHOLE))
    calls = found.calls("bytes", "to", "function", "grid_x", "block_x", "stream", "shared")
    assert [found.api(row).name for row in calls] == [
        "cuMemAlloc", "cuLaunchKernel", "cuModuleGetFunction", "cuLaunchKernel", "cuMemAlloc", "cuCtxSynchronize",
    ]  # fmt: skip
    assert calls["start"].tolist() == [1000, 2000, 3000, 4000, 5000, 6000]
    assert calls["duration"].tolist() == [300, 1000, 1000, 1000, 1000, 0]  # the last one has not returned
    assert calls["result"].tolist() == [0, 0, 0, 0, 2, 0]
    assert calls["thread"].tolist() == [7, 7, 7, 7, 8, 8]
    assert calls["bytes"].tolist() == [4096, 0, 0, 0, 1 << 40, 0]
    assert calls[1][["grid_x", "block_x", "stream", "shared"]].tolist() == (3, 32, 0x55, 16)
    assert [found.kernel(row) for row in calls[[1, 3]]] == ["#1", KERNEL]
    (process,) = found.processes
    assert process.header["argv"] == ["python3", "my app.py"]
    assert process.header["attached"] == 1
    assert process.header["realtime"] == 1795445621439691000
    assert process.recorded(0) == 1_000_000_000  # until a beat is missing
    assert (process.status, process.exit_status) == (0, None)  # bpftrace doesn't see how the program ends
    assert len(found.incomplete) == 2  # the process ran before that, and one kernel has no name


def test_lines_may_come_in_any_order(tmp_path):
    lines = [call("cuMemFree_v2", 5_000_000_000 + at, tid=at % 3 + 1, to=at) for at in range(1, 2000)]
    one = trace(tmp_path, as_json([*BEGIN, *lines, *END])).calls("to")
    mixed = sorted(lines, key=lambda line: hash((line, 1)))
    other = trace(tmp_path, as_json([*BEGIN, *mixed, *END])).calls("to")
    assert one["to"].tolist() == other["to"].tolist() == list(range(1, 2000))


def launched(found):
    """Return the name of each launch's kernel."""
    return [found.kernel(row) for row in found.calls("function") if found.api(row).name == "cuLaunchKernel"]


def test_launch_line_before_lookup_line_has_the_name(tmp_path):
    look_up = [*name("kernel", 5_000_002_000), call("cuModuleGetFunction", 5_000_002_000, object=0x20)]
    again = [line.replace(" 7 7 5000002000", " 7 9 5000005000") for line in look_up]
    lines = [launch(0x20, 5_000_004_000, tid=8), *again, *look_up, launch(0x20, 5_000_006_000)]
    found = trace(tmp_path, as_json([*BEGIN, *lines, *END]))
    assert launched(found) == ["kernel", "kernel"]
    assert len(found.incomplete) == 1


def test_unnamed_kernel_does_not_take_the_name_of_another(tmp_path):
    look_up = [*name("kernel", 5_000_002_000), call("cuModuleGetFunction", 5_000_002_000, object=0x20)]
    lines = [launch(0x20, 5_000_001_000), *look_up, launch(0x20, 5_000_004_000), launch(0x30, 5_000_005_000)]
    assert launched(trace(tmp_path, as_json([*BEGIN, *lines, *END]))) == ["#1", "kernel", "#3"]


def test_suspended_time_does_not_count(tmp_path):
    begin = [line.replace(" 0", " 4000000000") if line.startswith("machine") else line for line in BEGIN]
    found = trace(tmp_path, as_json([*begin, call("cuMemFree_v2", 5_000_001_000), *END]))
    assert found.processes[0].header["monotonic"] == 1_000_000_000
    assert found.calls()["start"].tolist() == [1000]


def test_clock_skew_between_cpus_shortens_a_call(tmp_path):
    found = trace(tmp_path, as_json([*BEGIN, call("cuMemFree_v2", 5_000_001_000, duration=2**64 - 50), *END]))
    assert found.calls()["duration"].tolist() == [1]


def test_lost_events_are_reported_by_trace_and_analysis(tmp_path, capfd):
    said = attach(tmp_path, as_json([*BEGIN, "Lost 12 events", WHOLE[4], "Lost 3 events", *END]), capfd)
    assert "bpftrace lost 15 events: buffers full" in said
    done = loaded.run(["gpt-analyze", "summary", "trace.mp"], cwd=tmp_path, text=True, check=True)
    assert "15 events: bpftrace's buffers were full" in " ".join(done.stdout.split())


def test_processes_take_turns_and_an_id_may_come_again(tmp_path):
    lines = [
        call("cuMemFree_v2", 5_000_001_000, pid=7),
        call("cuMemFree_v2", 5_000_002_000, pid=9),
        "beat 5500000000",
        call("cuMemFree_v2", 5_600_000_000, pid=7),
        "exit 7 5700000000",
        call("cuMemFree_v2", 5_800_000_000, pid=9),
        call("cuMemFree_v2", 5_900_000_000, pid=7),
    ]
    found = trace(tmp_path, as_json([*BEGIN, *lines, *END]))
    assert [process.pid for process in found.processes] == [7, 9, 7]
    assert found.calls()["process"].tolist() == [0, 1, 0, 1, 2]
    assert not [line for line in found.incomplete if "no end" in line]


def test_truncated_recording_is_an_interrupted_trace(tmp_path, capfd):
    text = as_json(WHOLE[:-3])
    said = attach(tmp_path, text[:-9], capfd)
    assert "; the first is '" in said
    assert "the trace is interrupted" in said
    found = model.read([tmp_path / "trace.mp"])
    assert any("no end of process 7" in line for line in found.incomplete)
    assert len(found.calls()) == 4


STRANGE = [
    "call", "call 1 2 3", "call 7 7 x 1 0 cuInit", "call -7 7 1 1 0 cuInit", "call 7 7 1 99999999999999999999 0 cuInit",
    "call 7 7 1 1 0 cuInit to=xyz", "name 7 7", "begin", "beat", "exit x y", "functions", "machine a", "@call1[1]: (2)",
    "@call1[7, 7, 999]: (5000000001, 1)", "@other[1]: 4", "hello", "\ufffd\ufffd", "x" * 5000, "command x 'unclosed",
]  # fmt: skip


@pytest.mark.parametrize("form", [as_text, as_json])
def test_lines_that_mean_nothing_are_counted_and_harm_nothing(form, tmp_path):
    lines = [line for line in STRANGE if not (form is as_json and line.startswith("@"))]
    found = trace(tmp_path, form([*BEGIN, *lines, WHOLE[4], *lines, *END]))
    assert len(found.calls()) == 1


def test_invalid_json_is_ignored(tmp_path):
    text = as_json([*BEGIN, WHOLE[4], *END])
    odd = ["{", "{}", '{"type": "printf"}', '{"type": "printf", "data": 5}', '{"type": "map", "data": []}', "[" * 5000,
           '{"type": "map", "data": {"@call1": {"a,b,c": [1]}}}', '{"type": "lost_events", "data": {"events": -4}}',
           '{"type": "map", "data": {"@call1": {"7,7,1": 5}}}', "{" * 5000, json.dumps({"type": "value"})]  # fmt: skip
    found = trace(tmp_path, text.encode() + b"\xff\xfe\n" + "\n".join(odd).encode() + b"\n")
    assert len(found.calls()) == 1


@pytest.mark.parametrize("more", [[], [call("cuMemFree_v2", 5_600_000_000, pid=8)]])
def test_beats_after_a_process_has_ended(more, tmp_path):
    """A beat after the last process has ended belongs to no segment."""
    lines = [*BEGIN, WHOLE[4], "beat 5500000000", *more, "beat 5700000000", "exit 7 6000000000", "beat 6500000000"]
    found = trace(tmp_path, as_text([*lines, *END]))
    assert [process.pid for process in found.processes] == [7, 8][: 1 + len(more)]
    assert len(found.calls()) == 1 + len(more)


@pytest.mark.parametrize("pid", [2**31, 2**64 - 1])
def test_impossible_process_ids_are_ignored(pid, tmp_path):
    found = trace(tmp_path, as_text([*BEGIN, WHOLE[4], call("cuMemFree_v2", 5_600_000_000, pid=pid), *END]))
    assert [process.pid for process in found.processes] == [7]


@pytest.mark.parametrize("form", [as_text, as_json])
def test_lost_events_that_no_number_holds(form, tmp_path):
    lines = [*BEGIN, WHOLE[4], *[f"Lost {2**64 - 1} events"] * 2, f"Lost {2**64} events", *END]
    found = trace(tmp_path, form(lines).replace(str(2**64), "9" * 5000))
    assert len(found.calls()) == 1
    assert f"{2**63} events: bpftrace's buffers were full" in " ".join(found.incomplete)


def test_a_name_with_a_line_break_forges_no_line(tmp_path):
    evil = "k\ncall 7 7 5000007000 1 0 cuMemFree_v2"
    lines = [
        *BEGIN,
        *name(evil, 5_000_003_000),
        call("cuModuleGetFunction", 5_000_003_000, object=0x20),
        launch(0x20, 5_000_004_000),
    ]
    found = trace(tmp_path, as_json([*lines, *END]))
    calls = found.calls("function")
    assert len(calls) == 2
    assert found.kernel(calls[1]) == evil


@pytest.mark.parametrize("size", [0, 1, 62, 63, 64, 126, 1007, 1008, 1100])
def test_names_are_joined_of_their_parts(size, tmp_path):
    text = "é" * 0 + "n" * size
    parts = name(text, 5_000_003_000)[:16]
    lines = [*BEGIN, *parts, call("cuModuleGetFunction", 5_000_003_000, object=0x20), launch(0x20, 5_000_004_000), *END]
    found = trace(tmp_path, as_json(lines))
    assert found.kernel(found.calls("function")[1]) == (text if size < 1008 else text[:1008] + "…")


def test_lost_part_of_a_name_is_shown(tmp_path):
    parts = name("n" * 200, 5_000_003_000)
    lines = [
        *BEGIN,
        *parts[:1],
        *parts[2:],
        call("cuModuleGetFunction", 5_000_003_000, object=0x20),
        launch(0x20, 5_000_004_000),
    ]
    found = trace(tmp_path, as_json([*lines, *END]))
    assert found.kernel(found.calls("function")[1]) == "n" * 63 + "…"


@pytest.mark.parametrize("text", ["", "hello\n", "\0" * 5000])
def test_other_files_are_refused_without_writing_a_trace(text, tmp_path):
    with pytest.raises(MalformedError, match="not what bpftrace prints"):
        attach(tmp_path, text)
    assert not (tmp_path / "trace.mp").exists()


def test_an_empty_recording_leaves_no_trace(tmp_path):
    with pytest.raises(GptError, match="nothing called a function"):
        attach(tmp_path, as_json([*BEGIN, *END]))
    assert not (tmp_path / "trace.mp").exists()


def test_attached_traces_do_not_prove_that_code_is_unused(tmp_path):
    attach(tmp_path, as_json(WHOLE))
    with pytest.raises(GptError, match="ran before it was watched"):
        used.read_used([tmp_path / "trace.mp"], allow_incomplete=False)


def test_an_existing_trace_is_left_alone(tmp_path):
    (tmp_path / "trace.mp").write_text("mine")
    (tmp_path / "seen").write_text(as_json(WHOLE))
    line = ["gpt-hook", "attach", "seen"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "gpt-attach: error: trace.mp: exists; -f overwrites it\n")
    assert (tmp_path / "trace.mp").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "fact"),
    first(
        (["-p", "1", "--system"], "exclude"),
        (["--duration", "1"], "-p PID or --system is needed"),
        (["-p", "0"], "x>=1"),
        (["--system", "--duration", "nan"], "not a valid number"),
        (["--system", "--calls", "cuMemAllok"], "cuMemAlloc"),
        (["--system", "--calls", ""], "names nothing"),
    ),
)
def test_wrong_options_are_refused(words, fact, tmp_path):
    line = ["gpt-hook", "attach", *words, *(["--library", "/nothing"] if "--calls" in words else []), "--print"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    assert done.returncode == 2
    assert fact in done.stderr


def test_ioctls_are_part_of_the_call_that_makes_them(tmp_path):
    lines = [
        call("nvidia_unlocked_ioctl", 5_000_001_100, kind="kernel", request=0xC020462A, command=0xA06C0101),
        call("nvidia_unlocked_ioctl", 5_000_009_000, kind="kernel", result=-14, request=0xC0304627),
        call("nvidia_isr", 5_000_009_500, pid=0, tid=0, kind="kernel"),
        call("cuMemAlloc_v2", 5_000_001_000, duration=3000, to=0x7000, bytes=64),
    ]
    found = trace(tmp_path, as_json([*BEGIN, *lines, *END]))
    process = next(one for one in found.processes if one.pid == 7)
    (control, other) = sorted(process.ioctls, key=lambda one: one["start"])
    assert (control["name"], control["command"], control["parent"]) == ("NV_ESC_RM_CONTROL", 0xA06C0101, 5_000_001_000)
    assert (other["name"], other["error"]) == ("0xc0304627", 14)
    assert "parent" not in other
    assert [found.api(row).op for row in found.calls() if row["process"] != found.processes.index(process)] == [
        "kernel"
    ]


def test_summary_counts_alternating_processes(tmp_path):
    """In the past, when another process's calls came in between, calls of a process were left out, even in live
    streams.
    """
    turns = [call("cuMemFree_v2", 5_000_001_000 + at, pid=at % 2 + 7) for at in range(10)]
    attach(tmp_path, as_json([*BEGIN, *(line for one in turns for line in (one, f"beat {5_000_100_000}")), *END]))
    done = loaded.run(["gpt-analyze", "summary", "trace.mp"], cwd=tmp_path, text=True, check=True)
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("  cuMemFree")]
    assert row[1] == "10"


def test_a_wait_has_its_stream_and_an_object_is_kept(tmp_path):
    lines = [
        call("cuStreamSynchronize", 5_000_001_000, stream=5),
        call("cuEventRecord", 5_000_002_000, object=6, stream=7),
    ]
    calls = trace(tmp_path, as_json([*BEGIN, *lines, *END])).calls("object", "stream")
    assert calls[["object", "stream"]].tolist() == [(0, 5), (6, 7)]


# A bpftrace that misbehaves in some way.

BEGUN = """printf '%s\\n' '{"type": "printf", "data": "begin 1000000000 1.0 5f\\n"}' """
CALLED = """'{"type": "printf", "data": "call 5f 7 7 1000001000 9 0 cuCtxSynchronize\\n"}'"""


def watch(folder, script, pid, monkeypatch):
    """Watch with this bpftrace script."""
    (folder / "bpftrace").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bpftrace").chmod(0o755)
    monkeypatch.setattr(command, "find_bpftrace", lambda: str(folder / "bpftrace"))
    monkeypatch.setattr(command, "write_program", lambda asked, live: ("", []))
    asked = command.AttachOptions(pid, [], None, kernel=False, duration=None, quiet=True)
    return command.watch(asked, command.Output(str(folder / "trace.mp"), force=True))


def test_killed_bpftrace_leaves_interrupted_trace(tmp_path, monkeypatch, capfd):
    assert watch(tmp_path, f"{BEGUN} {CALLED}; kill -9 $$", os.getpid(), monkeypatch) == 0
    assert capfd.readouterr().err.endswith("bpftrace ended with status -9: the trace is interrupted\n")
    assert any("no end" in line for line in model.read([tmp_path / "trace.mp"]).incomplete)


def test_process_ends_before_attach(tmp_path, monkeypatch):
    with subprocess.Popen("true") as process:
        process.wait()
    with pytest.raises(GptError, match="has ended") as found:
        watch(tmp_path, "echo 'ERROR: : No such process' >&2; exit 1", process.pid, monkeypatch)
    assert found.value.status == 1


def test_an_interrupt_before_it_watches_is_one(tmp_path, monkeypatch):
    before = signal.signal(signal.SIGINT, lambda *_: None)  # ignore the first signals, which come too early
    script = f"echo $$ > {tmp_path}/pid; while kill -INT $PPID; do sleep 0.1; done"
    try:
        with pytest.raises(signals.Terminated):
            watch(tmp_path, script, os.getpid(), monkeypatch)
    finally:
        while not has_ended(int((tmp_path / "pid").read_text())):  # it was killed, but may still send one more signal
            time.sleep(0.01)
        signal.signal(signal.SIGINT, before)
    assert not (tmp_path / "trace.mp").exists()


def test_reader_exit_leaves_no_files(tmp_path, monkeypatch):
    def gone(*_):
        raise signals.Terminated(signal.SIGPIPE)

    (folder := tmp_path / "tmp").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setattr(command.Output, "write", gone)
    with pytest.raises(signals.Terminated) as raised:
        watch(tmp_path, f"{BEGUN} {CALLED} '{{\"type\": \"printf\", \"data\": \"beat 5f 1\\n\"}}'; exec sleep 60",
              os.getpid(), monkeypatch)  # fmt: skip
    assert raised.value.number == signal.SIGPIPE and [*folder.iterdir()] == []


def test_time_for_removing_bpftrace_probes_is_not_recorded(tmp_path):
    beats = [f"beat {at}" for at in range(5_500_000_000, 7_000_000_000, 500_000_000)]
    lines = [*BEGIN, call("cuMemFree_v2", 5_000_001_000), *beats, "end 60000000000"]
    (process,) = trace(tmp_path, as_json(lines)).processes
    assert sorted(process.changes)[-1] == (7_000_000_000, False)


@pytest.mark.parametrize(
    "note", ["machine gpu-7 boot -1", "begin -5 1.0", f"begin 5 {2**63}.0", f"beat {2**64}", "end -1", "begin 5 1.-5"]
)
def test_malformed_times_are_ignored(note, tmp_path, capfd):
    lines = [*BEGIN, note, call("cuMemFree_v2", 2**64 - 1), call("cuMemFree_v2", 5_000_001_000), *END]
    assert "can't parse 1 line of bpftrace's output" in attach(tmp_path, as_json(lines), capfd)
    assert len(model.read([tmp_path / "trace.mp"]).calls()) == 2


def test_too_large_map_time_is_ignored(tmp_path, capfd):
    lines = [*BEGIN, call("cuMemFree_v2", 5_000_001_000), *END, f"@call1[7, 7, 1]: ({2**64}, 0)"]
    assert "can't parse 1 line of bpftrace's output" in attach(tmp_path, as_text(lines), capfd)


def test_trace_replaces_a_link_and_is_private(tmp_path):
    (tmp_path / "victim").write_text("precious")
    for how in ("link", "hard link", "file", "nothing", "dangling"):
        path = tmp_path / "trace.mp"
        path.unlink(missing_ok=True)
        match how:
            case "link":
                path.symlink_to("victim")
            case "hard link":
                os.link(tmp_path / "victim", path)
            case "file":
                path.touch(0o644)
            case "dangling":
                path.symlink_to("nothing")
        attach(tmp_path, as_text(WHOLE))
        assert stat.S_IMODE(path.lstat().st_mode) == 0o600 and path.lstat().st_nlink == 1
        assert stat.S_ISREG(path.lstat().st_mode)
    assert (tmp_path / "victim").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seen", "trace.mp", "victim"]


@pytest.mark.parametrize("output", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "pipe"])
def test_the_trace_goes_to_a_pipe(output, tmp_path):
    (tmp_path / "seen").write_text(as_text(WHOLE))
    os.mkfifo(tmp_path / "pipe")
    line = ["gpt-attach", "-q", "-o", output, "seen"]
    with subprocess.Popen(line, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as running:
        got = (tmp_path / "pipe").read_bytes() if output == "pipe" else running.stdout.read()
    assert running.returncode == 0
    (tmp_path / "got.mp").write_bytes(got)
    assert len(model.read([tmp_path / "got.mp"]).calls()) == 6


def test_dev_stdout_as_file_appends_at_its_position(tmp_path):
    (tmp_path / "seen").write_text(as_text(WHOLE))
    with open(tmp_path / "got.mp", "wb") as file:
        file.write(b"before")
        file.flush()
        subprocess.run(["gpt-attach", "-q", "-o", "/dev/stdout", "seen"], cwd=tmp_path, stdout=file, check=True)
    assert (tmp_path / "got.mp").read_bytes().startswith(b"before\x8b\xa4kind\xa6header")


@pytest.mark.parametrize("form", [as_text, as_json])
def test_kernel_name_with_newlines_forges_no_lines(form, tmp_path, capfd):
    """Each line that the program prints has its tag, and so does the end of each name. Nobody else can know the tag."""
    forged = [*END, launch(1, 5_000_002_000), "@call1[7, 7, 1]: (5000006000, 0)", "beat 1", "exit 7 1", "", "end"]
    forged += ["Lost 5 events", "Attaching 3 probes...", '{"type":"lost_events","data":{"events":9}}']
    evil = "x\n" + "\n".join(forged)
    parts = name(evil, 5_000_003_000)
    call_ = call("cuModuleGetFunction", 5_000_003_000, object=0x20)
    said = attach(tmp_path, form([*BEGIN, *parts, call_, launch(0x20, 5_000_004_000), *END]), capfd)
    found = model.read([tmp_path / "trace.mp"])
    assert [found.api(row).name for row in found.calls()] == ["cuModuleGetFunction", "cuLaunchKernel"]
    assert (said, launched(found)) == ("", [evil])
    assert ["before it was watched" in line for line in found.incomplete] == [True]  # and nothing else is missing


@pytest.mark.parametrize("form", [as_text, as_json])
@pytest.mark.parametrize("rest", [[], ["Lost 5 events"], ["x" * 60] * 30])
def test_a_name_without_an_end_is_not_accepted(rest, form, tmp_path, capfd):
    """A name without an end was cut off, or comes from another program. What follows must not be taken for a part of it
    forever.
    """
    cut = f"name {TAG} 7 7 5000003000 0 x"
    text = form([*BEGIN, WHOLE[4]]) + "\n".join([cut, *rest, ""])
    assert "can't parse " in attach(tmp_path, text, capfd)
    assert len(model.read([tmp_path / "trace.mp"]).calls()) == 1


def test_json_within_a_recording_of_text_counts_for_nothing(tmp_path, capfd):
    """In JSON, bpftrace's maps and losses have no tag. They only count if the whole recording is JSON."""
    forged = ['{"type":"map","data":{"@call2":{"1,1,0":[5,6]}}}', '{"type":"lost_events","data":{"events":9}}']
    said = attach(tmp_path, as_text([*BEGIN, WHOLE[4], "beat 5500000000", *END, *forged]), capfd)
    assert "parse 2 lines of bpftrace's output; the first is '{" in said
    found = model.read([tmp_path / "trace.mp"])
    assert [process.pid for process in found.processes] == [7]
    assert not [line for line in found.incomplete if "no room" in line]


def test_a_recording_without_a_tag_is_refused(tmp_path):
    lines = [line.replace(f" {TAG}", "").replace(f"_{TAG}", "") for line in as_text(WHOLE).splitlines(keepends=True)]
    with pytest.raises(MalformedError, match="not what bpftrace prints"):
        attach(tmp_path, "".join(lines))


def test_command_line_round_trips_through_hex(tmp_path):
    words = ["python3", 'a "b', "", "new\nline", "\udcff"]
    argv = "\0".join([*words, ""]).encode(errors="surrogateescape").hex()
    lines = [line if not line.startswith("argv") else f"argv 7 {argv}" for line in BEGIN]
    found = trace(tmp_path, as_json([*lines, call("cuMemFree_v2", 5_000_001_000), *END]))
    assert found.processes[0].header["argv"] == words
