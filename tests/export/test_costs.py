"""gpt-analyze export: costs of probes, counts, and files that are never replaced."""

import pytest
from pyarrow import parquet

from gpt.analyze.export import ExportFormat
from gpt.stream import records
from tests.analyze.asked import run
from tests.export.exported import KERNEL, NS, ask, small, write
from tests.trace import forge


def test_counts_of_unnamed_things_give_their_number(tmp_path):
    counted = records.make("counts", **forge.rows([(8, 3)], {"api": "u32", "count": "u64"}))
    found = write(tmp_path / "t.sqlite", forge.trace(forge.launches({5: 2}), counted, **NS))
    of_name, of_kernel = (f"JOIN StringIds ON id = {name}" for name in ("nameId", "mangledName"))
    assert ask(found, f"SELECT value, launches FROM GPT_LAUNCH_COUNTS {of_kernel}") == [("#5", 2)]
    assert ask(found, f"SELECT value, calls FROM GPT_CALL_COUNTS {of_name}") == [("#8", 3)]


def test_probe_costs_and_unprobed_launches_are_exported(tmp_path):
    told = [
        records.make("function", id=9, name=KERNEL),
        records.make("times", launch=3, prologue=10, epilogue=20, kernel=40),
        records.make("memusage", function=9, launches=2, bytes=100, most=60),
        records.make("unprobed", function=9, launches=4, reason="no PTX comes with it"),
        records.make("unprobed", function=9, launches=5, reason="no PTX comes with it"),
        records.make("unprobed", function=0, launches=1, reason="closed"),
    ]
    found = write(tmp_path / "t.sqlite", forge.trace(*told, **NS))
    of_kernel = "LEFT JOIN StringIds ON id = shortName"
    assert ask(found, "SELECT * FROM GPT_PROBE_TIMES") == [(3, 10 << 24, 10, 20, 40, None)]
    assert ask(found, f"SELECT value, launches, bytes, most FROM GPT_PROBE_MEMORY {of_kernel}") == [
        ("gemm", 2, 100, 60)
    ]
    assert ask(found, f"SELECT value, reason, launches FROM GPT_UNPROBED_LAUNCHES {of_kernel}") == [
        ("gemm", "no PTX comes with it", 9), (None, "closed", 1),
    ]  # fmt: skip


def test_a_sum_beyond_64_bits_is_clipped(tmp_path):
    lost = [records.make("unprobed", function=0, launches=(1 << 64) - 1, reason="closed")] * 2
    trace = forge.trace(*lost, **NS)
    found = write(tmp_path / "t.sqlite", trace)
    assert ask(found, "SELECT launches FROM GPT_UNPROBED_LAUNCHES") == [(-1,)]  # 2^64 - 1 as a signed integer of SQLite
    folder = write(tmp_path / "t", trace, shape=ExportFormat.parquet)
    counts = parquet.read_table(folder / "GPT_UNPROBED_LAUNCHES.parquet")["launches"]
    assert counts.to_pylist() == [(1 << 64) - 1]


@pytest.mark.parametrize("command", ["export --format sqlite", "timeline --format chrome"])
def test_a_trace_is_not_replaced(command, tmp_path):
    data = forge.pack(small())
    lines, link = tmp_path / "calls.jsonl", tmp_path / "link"
    lines.write_bytes(b'{"func": "cuInit", "t_us": 1, "dur_us": 1}\n')
    link.symlink_to("t.mp")
    for name in ("t.mp", "t.mp.11", "t.mp.buffers"):
        (tmp_path / name).write_bytes(data)
    name, *form = command.split()
    for read, written in (("t.mp", "t.mp"), ("t.mp", "t.mp.11"), ("t.mp", "t.mp.buffers"), ("t.mp", "link"),
                          ("calls.jsonl", "calls.jsonl")):  # fmt: skip
        kept = (tmp_path / written).read_bytes()
        done = run(name, *form, "-o", tmp_path / written, tmp_path / read)
        assert (done.returncode, done.stderr.count(b"\n")) == (2, 1) and b"is a trace, and not replaced" in done.stderr
        assert (tmp_path / written).read_bytes() == kept and link.is_symlink()
    for _ in range(2):  # files that export itself wrote are replaced
        assert run(name, *form, "-o", tmp_path / "out", tmp_path / "t.mp").returncode == 0


def test_only_requested_kernels_are_reported(tmp_path):
    segment = forge.trace(
        *(records.make("function", id=at, name=name) for at, name in ((9, KERNEL), (10, "_Z4copyi"))),
        forge.kernel(1, 9, KERNEL), forge.kernel(2, 10, "_Z4copyi"), forge.probed(1, 1, 9, 2, 32),
        forge.probed(2, 2, 10, 2, 32), records.make("times", launch=1, prologue=1, epilogue=1),
        records.make("times", launch=2, prologue=1, epilogue=1),
        records.make("memusage", function=10, launches=2, bytes=100, most=60),
        records.make("unprobed", function=10, launches=4, reason="no PTX comes with it"), **NS,
    )  # fmt: skip
    path = tmp_path / "t.sqlite"
    done = run("export", "--format", "sqlite", "-o", path, "--kernel", "*gemm*", data=forge.pack(segment))
    assert done.returncode == 0, done.stderr
    counts = [len(ask(path, f"SELECT * FROM GPT_{one}")) for one in
              ("PROBED_LAUNCHES", "PROBE_TIMES", "PROBE_MEMORY", "UNPROBED_LAUNCHES")]  # fmt: skip
    assert counts == [1, 1, 0, 0]


@pytest.mark.parametrize("option", ["--tid 1", "--time 0,0.000002", "--gpu 0", "--cuda-stream 7"])
def test_tables_have_only_the_requested_data(option, tmp_path):
    """One record of `times` comes before its launch. Counts have no thread, time, device or stream."""
    other = forge.probed(2, 1, 9, 2, 32) | {"thread": 2, "start": 9000, "device": 1, "stream": 8}
    segment = forge.trace(
        records.make("function", id=9, name=KERNEL), forge.kernel(1, 9, KERNEL),
        *(records.make("times", launch=2, prologue=1, epilogue=1), forge.probed(1, 1, 9, 2, 32), other),
        *(records.make("times", launch=1, prologue=1, epilogue=1),),
        records.make("memusage", function=9, launches=2, bytes=100, most=60),
        records.make("unprobed", function=9, launches=4, reason="no PTX comes with it"), **NS,
    )  # fmt: skip
    path = tmp_path / "t.sqlite"
    done = run("export", "--format", "sqlite", "-o", path, *option.split(), data=forge.pack(segment))
    assert done.returncode == 0, done.stderr
    assert [ask(path, f"SELECT launchId FROM GPT_{one}") for one in ("PROBED_LAUNCHES", "PROBE_TIMES")] == [[(1,)]] * 2
    assert [ask(path, f"SELECT * FROM GPT_{one}") for one in ("PROBE_MEMORY", "UNPROBED_LAUNCHES")] == [[], []]


def test_a_benchmark_is_complete(tmp_path):
    """Buffers that weren't saved because of --benchmark don't count as missing."""
    segment = forge.trace(
        records.make("function", id=9, name=KERNEL), forge.probe_map("m", n="u64"), forge.kernel(1, 9, KERNEL, 1),
        forge.api(1, "cuLaunchKernel"), forge.calls([forge.launch(1001, 10, 1, 9)], forge.LAUNCH),
        forge.probed(1, 1, 9, 2, 32), forge.buffer(1, b"", lost="--benchmark saves no buffers") | {"size": 1024},
        records.make("times", launch=1, prologue=1, epilogue=1, kernel=2, original=1), **NS,
    )  # fmt: skip
    found = write(tmp_path / "t.sqlite", segment)
    assert ask(found, "SELECT text FROM DIAGNOSTIC_EVENT") == []
    assert ask(found, "SELECT value FROM META_DATA_EXPORT WHERE name = 'COMPLETE'") == [("yes",)]
    done = run("timeline", data=forge.pack(segment))
    assert done.returncode == 0 and b"incomplete" not in done.stdout and b"lost" not in done.stdout
