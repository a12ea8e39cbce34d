"""gpt-analyze events --json --notes: reading them back gives every analysis the same answer."""

import random

import pytest

import gpt.trace
from gpt.stream import records
from tests.analyze.asked import run
from tests.timeline import made
from tests.trace import forge

ASKED = ("summary", "stages", "idle", "gaps", "memory", "nvtx", "ioctl", "graphs", "timeline")
NAMES = ("cuMemAlloc", "cuMemcpyHtoD", "cuLaunchKernel", "cuStreamSynchronize", "cuGraphLaunch", "cuMemcpyDtoH")
APIS = [forge.api(number, name, name + "_v2") for number, name in enumerate(NAMES, 1)]


def everything(seed=1, **header):
    """Return a segment with every kind of record in the notes, and rows of every layout."""
    source, zero = random.Random(seed), header.get("monotonic", 0) + 1000
    memory, launches, objects, gpu = [], [], [], []
    for n in range(60):
        at = zero + 1000 * n + source.randrange(100)
        memory.append(
            (at, 50, source.choice((1, 2, 6)), n % 7 == 3, 0x7F00 + n, 0x10, source.randrange(2) * 4096, 0xABC)
        )
        launches.append(forge.launch(at + 100, 40 + source.randrange(300), 3, 1 + n % 2, 0xABC * (n % 2)))
        objects.append((at + 200, 0 if n == 59 else 300, 4 + n % 2, 0, 0x55, 0xABC))
        gpu.append((at + 150, 90, at + 100, 0xABC, 3, 1 + n % 2, 22, 0))
    ioctl = records.make("ioctl", thread=21, parent=memory[0][0], device="/dev/nvidiactl", request=42, command=5,
                         name="NV_ESC_RM_CONTROL", start=memory[0][0] + 5, duration=7, error=22)  # fmt: skip
    return forge.trace(
        *APIS, records.make("function", id=1, name="_Z1kv"), records.make("function", id=2, name='odd"\n'),
        records.make("function", id=3, name="graphed"),
        records.make("device", index=0, name="GPU", arch="sm_90", uuid="u", runs="sass", sms=132),
        records.make("graph", exec=0x55, at=zero, nodes=3, functions=[3], launches=[2]),
        records.make("recording", on=False, at=zero + 70_000), *made.pushed(1, "load weights", 1, 30),
        forge.calls(memory, forge.MEMORY, thread=21), forge.calls(launches, forge.LAUNCH, thread=22),
        forge.calls(objects, forge.OBJECT, thread=22), records.make("gpu_times", **forge.rows(gpu, forge.GPU_TIMES)),
        forge.launches({1: 30, 2: 30}), records.make("counts", **forge.rows([(9, 5, 4, 0)], forge.QUERIES)),
        records.make("unprobed", function=1, launches=30, reason="no PTX comes with it"), ioctl, **header,
    )  # fmt: skip


def ticks(**header):
    """Make a segment whose times aren't whole ns."""
    source = random.Random(7)
    spans = [(10_000 * n, 600 + source.randrange(900)) for n in range(1, 300)]
    gpu = [(start + 333, took, start, 0, 2, 0, 21, 0) for start, took in spans]
    calls = forge.calls([(*span, 1 + n % 2, 0) for n, span in enumerate(spans)], thread=21)
    return forge.trace(*APIS, calls, records.make("gpu_times", **forge.rows(gpu, forge.GPU_TIMES)), **header)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Return a trace of four processes, and its lines, as two files.

    One process was replaced by exec, the times of one are ticks, and one made no call.
    """
    folder = tmp_path_factory.mktemp("notes")
    segments = [
        everything(1),
        everything(2, monotonic=200_000, argv=["then", "this"]),
        everything(3, pid=11, end=False),
        ticks(pid=13, tsc=0, tsc_hz=2_900_000_000, monotonic=1000),
        forge.trace(records.make("clock", monotonic=9, tsc=9), pid=12, argv=["idle"]),
    ]
    trace = folder / "trace"
    trace.write_bytes(forge.pack(*segments))
    done = run("events", "--json", "--notes", trace)
    assert (done.returncode, done.stderr) == (0, b"")
    lines = folder / "lines"
    lines.write_bytes(done.stdout)
    return trace, lines


@pytest.mark.parametrize("name", [ASKED[0], *(pytest.param(name, marks=pytest.mark.full) for name in ASKED[1:])])
def test_answers_are_those_of_the_trace(name, files):
    before, after = (run(name, path) for path in files)
    assert before.stdout.decode() == after.stdout.decode()
    assert (before.returncode, before.stderr) == (after.returncode, after.stderr)
    assert before.stdout


def test_lines_that_are_read_are_written_again(files):
    assert run("events", "--json", "--notes", files[1]).stdout == files[1].read_bytes()
    assert run("events", "--json", "--notes", data=files[1].read_bytes()).stdout == files[1].read_bytes()


def test_without_notes_there_are_only_calls(files):
    plain = run("events", "--json", files[0]).stdout.splitlines()
    noted = files[1].read_bytes().splitlines()
    assert plain == [line for line in noted if not line.startswith(b"# ")]
    assert all(line.startswith(b"{") for line in plain)


def test_launches_with_probes_are_not_reported_as_none(tmp_path):
    segment = everything()
    probed = records.make("probed", id=1, kernel=1, function=1, thread=22, start=2000, device=0, stream=0,
                          grid=[1, 1, 1], block=[1, 1, 1], shared=0)  # fmt: skip
    (tmp_path / "trace").write_bytes(forge.pack([*segment[:-1], probed, segment[-1]]))
    assert b"1 launch ran with probes" in run("summary", tmp_path / "trace").stdout
    (tmp_path / "lines").write_bytes(run("events", "--json", "--notes", tmp_path / "trace").stdout)
    assert b"ran with probes" not in run("summary", tmp_path / "lines").stdout


def test_notes_are_of_json(files):
    done = run("events", "--notes", files[0])
    assert (done.returncode, done.stderr) == (2, b"gpt-analyze: error: --notes requires --json\n")


def test_ticks_become_nanoseconds(tmp_path):
    rows = [(10**6 + 3 * n, 3 * n, 1, 0) for n in range(1, 100)]
    trace = tmp_path / "t"
    trace.write_bytes(forge.pack(forge.trace(*APIS, forge.calls(rows), tsc=10**6, tsc_hz=3 * 10**9, monotonic=5000)))
    lines = tmp_path / "l"
    lines.write_bytes(run("events", "--json", "--notes", trace).stdout)
    before, after = (gpt.trace.open(path).calls() for path in (trace, lines))
    assert (before == after).all() and before["duration"].tolist() == [*range(1, 100)]
    assert gpt.trace.open(lines).processes[0].header["monotonic"] == 5000


def test_files_of_several_runs_in_a_row(tmp_path):
    """The input is like `cat traces/trace_*.jsonl`: time starts again in each file."""
    paths = []
    for number, later in enumerate((0, 7_000_000)):
        trace = tmp_path / f"{number}.mp"
        header = {"monotonic": later, "realtime": 10**18 + later, "pid": 10 + number}
        trace.write_bytes(forge.pack(forge.trace(*APIS, forge.calls([(later + 1000, 10, 1, 0)]), **header)))
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_bytes(run("events", "--json", "--notes", trace).stdout)
    both = tmp_path / "both"
    both.write_bytes(b"".join(path.read_bytes() for path in paths))
    for found in (gpt.trace.open(both), gpt.trace.open(*paths)):
        assert found.calls()["start"].tolist() == [1000, 7_001_000] and found.incomplete == []
        assert [process.pid for process in found.processes] == [10, 11]


def test_truncated_file_is_reported(files, tmp_path):
    data = files[1].read_bytes()
    path = tmp_path / "cut"
    for at in range(data.index(b"\n{") + 200, len(data), 7001):
        path.write_bytes(data[:at])
        assert gpt.trace.open(path).incomplete
