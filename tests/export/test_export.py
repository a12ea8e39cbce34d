"""gpt-analyze export: the tables of hand-made traces, in both formats."""

import os
import pty
import resource
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from pyarrow import parquet

from gpt.analyze.export import NAMES, PREFIX, ExportFormat
from gpt.base.errors import OutputError
from gpt.base.scratch import scratch_folder
from gpt.export import correlate, files
from gpt.export.schema import TABLES, make_names
from gpt.export.strings import Strings, shorten_kernel
from gpt.stream import records
from gpt.trace.modules import LAYERS
from tests.analyze.asked import run
from tests.export.exported import APIS, GRAPH, HIGH, KERNEL, NS, ask, small, tables, write
from tests.tiers import first
from tests.trace import forge
from tests.trace.logs import RingLane, write_ring


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return write(tmp_path_factory.mktemp("export") / "t.sqlite", small())


def test_queries_for_exports_of_nsight_systems_work(made):
    joined = """SELECT api.value, name.value, whole.value, c.start, c.end, k.start, k.end, k.gridX, k.gridY, k.gridZ,
        k.blockX, k.blockY, k.dynamicSharedMemory, k.clusterX, k.launchType, k.deviceId, k.streamId
        FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME c USING (correlationId)
        JOIN StringIds api ON c.nameId = api.id JOIN StringIds name ON k.shortName = name.id
        JOIN StringIds whole ON k.demangledName = whole.id"""
    (row,) = ask(made, joined)
    assert row == ("cuLaunchKernel", "gemm", "at::native::gemm<float, 4>(float*, int)", 1000, 1100, 1500, 2400,
                   1, 2, 3, 32, 4, 128, 2, 2, 0, 7)  # fmt: skip
    resources = "registersPerThread, staticSharedMemory + dynamicSharedMemory, localMemoryTotal, greenContextId"
    assert ask(made, f"SELECT {resources} FROM CUPTI_ACTIVITY_KIND_KERNEL") == [(None,) * 4]
    copies = """SELECT label, bytes, m.start FROM CUPTI_ACTIVITY_KIND_MEMCPY m
        JOIN ENUM_CUDA_MEMCPY_OPER e ON m.copyKind = e.id"""
    assert ask(made, copies) == [("Host-to-Device", 4096, 2500)]
    assert ask(made, "SELECT bytes FROM CUPTI_ACTIVITY_KIND_MEMSET") == [(512,)]
    assert ask(made, "SELECT graphExecId, start FROM CUPTI_ACTIVITY_KIND_GRAPH_TRACE") == [(0xABC, 4500)]
    threads = "DISTINCT globalTid / 0x1000000 % 0x1000000, globalTid % 0x1000000"
    assert ask(made, f"SELECT {threads} FROM CUPTI_ACTIVITY_KIND_RUNTIME") == [(10, 1), (10, 2)]
    assert ask(made, "SELECT text, eventType, start, end, domainId FROM NVTX_EVENTS ORDER BY start") == [
        ("torch", 75, None, None, 1), ("step", 59, 900, None, 0), ("io", 60, 950, 6000, 1), ("now", 34, 960, None, 0),
    ]  # fmt: skip
    ioctls = """SELECT value, o.start, o.returnValue, command, c.start FROM OSRT_API o
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME c USING (correlationId) JOIN StringIds s ON o.nameId = s.id"""
    assert ask(made, ioctls) == [("NV_ESC_RM_CONTROL", 1010, 22, 8320, 1000)]
    assert ask(made, "SELECT name, computeMajor, computeMinor, smCount, memoryBandwidth FROM TARGET_INFO_GPU") == [
        ("H200", 9, 0, 132, 3_993_600_000_000)
    ]
    assert ask(made, "SELECT pid, name, host, start, status FROM PROCESSES") == [(10, "app", "here", 0, 0)]
    assert ask(made, "SELECT utcEpochNs, utcTime FROM TARGET_INFO_SESSION_START_TIME") == [
        (10**18, "2001-09-09 01:46:40")
    ]


def test_calls_have_the_module_and_the_ranges_that_they_were_made_in(tmp_path):
    more = [
        *(records.make("range", id=id_, type="push", thread=1, name=name, domain=domain, start=start)
          for id_, name, domain, start in ((7, "layers.3", LAYERS, 2900), (8, "layers.3.up", LAYERS, 2950),
                                           (9, "late", "app", 4900))),
        *(records.make("range_end", id=id_, thread=1, end=end) for id_, end in ((8, 3500), (7, 4500), (9, 4950))),
    ]  # fmt: skip
    asked = """SELECT c.start, layer.value, range.value FROM GPT_CALL_RANGES JOIN CUPTI_ACTIVITY_KIND_RUNTIME c
        USING (correlationId, globalTid) LEFT JOIN StringIds layer ON layer = layer.id
        LEFT JOIN StringIds range ON range = range.id ORDER BY 1"""
    for late in (False, True):
        first, *rest, end = small(late=late)
        path = write(tmp_path / f"{late}.sqlite", [first, *rest, *more, end | {"records": len(rest) + len(more)}])
        assert ask(path, asked) == [
            (1000, None, "step"), (2000, "layers.3.up", "step"), (3000, "layers.3", "step"), (4000, None, "step"),
        ]  # fmt: skip


def test_nodes_of_timed_replays(tmp_path):
    """Two replays, one of which timed a kernel, captured in a layer, and a copy of unknown origin."""
    inside = [
        forge.api(GRAPH, "cuGraphLaunch"), records.make("function", id=9, name=KERNEL),
        records.make("graph", exec=HIGH, at=1000, nodes=2, functions=[9], launches=[1], operations=[]),
        forge.calls([(n, 70, GRAPH, 0, HIGH, 7) for n in (5000, 9000)], forge.OBJECT),
        records.make("gpu_times", **forge.rows(
            [(5500, 900, 5000, 7, GRAPH, 0, 1, 0), (9500, 600, 9000, 7, GRAPH, 0, 1, 0)], forge.GPU_TIMES)),
        records.make("node_times", exec=HIGH, thread=1, start=5000, begin=5510, pause=10, types=[0, 1],
                     functions=[9, 0], threads=[1, 0], calls=[2000, 0], early=[0, 1], begins=[0, 520],
                     durations=[520, 400]),
        records.make("range", id=1, type="push", thread=1, name="layers.3", domain=LAYERS, start=1900),
        records.make("range_end", id=1, thread=1, end=2900),
    ]  # fmt: skip
    path = write(tmp_path / "t.sqlite", forge.trace(*inside, **NS))
    asked = """SELECT n.start, n.end, node, n.type, short.value, layer.value, range, waited, betweenEvents, eventCost,
        g.start, graphExecId FROM GPT_GRAPH_NODES n JOIN CUPTI_ACTIVITY_KIND_RUNTIME g USING (correlationId, globalTid)
        LEFT JOIN StringIds short ON shortName = short.id LEFT JOIN StringIds layer ON layer = layer.id"""
    own = HIGH - (1 << 64)
    assert ask(path, asked) == [  # 160 ns less each: 600 ns together
        (4510, 4870, 1, "kernel", "gemm", "layers.3", None, 0, 520.0, 160.0, 4000, own),
        (5030, 5270, 2, "memcpy", None, None, None, 1, 400.0, 160.0, 4000, own),
    ]


def test_unreturned_call_has_no_end_and_addresses_keep_their_bits(made):
    assert ask(made, "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE end IS NULL") == [(5000, None)]
    found = ask(made, "SELECT dst, printf('%#x', dst), bytes FROM GPT_CALL_ARGUMENTS WHERE bytes = 4096")
    assert found == [(HIGH - (1 << 64), hex(HIGH), 4096)]


@pytest.mark.parametrize("group", [files.GROUP, 2])
def test_export_has_every_table_in_all_formats(group, made, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "GROUP", group)  # with 2, several groups end within one batch of rows
    folder = write(tmp_path / "t", small(), shape=ExportFormat.parquet)
    sqlite = tables(made)
    assert set(sqlite) == {table.name for table in TABLES} == {path.stem for path in folder.iterdir()}
    for name, rows in sqlite.items():
        found = parquet.read_table(folder / f"{name}.parquet")
        unsigned = [str(field.type) == "uint64" for field in found.schema]
        told = [
            tuple(v - (1 << 64) if u and v is not None and v >= 1 << 63 else v
                  for v, u in zip(row.values(), unsigned, strict=True))
            for row in found.to_pylist()
        ]  # fmt: skip
        assert told == rows, name
    assert parquet.read_table(folder / "GPT_CALL_ARGUMENTS.parquet")["dst"].to_pylist()[1] == HIGH
    assert (folder.stat().st_mode & 0o777) == 0o777 & ~_umask()


def _umask():
    old = os.umask(0)
    os.umask(old)
    return old


def test_names_may_come_after_what_they_name(made, tmp_path):
    said = """SELECT value, c.start FROM CUPTI_ACTIVITY_KIND_RUNTIME c JOIN StringIds s ON nameId = s.id UNION
        SELECT value, start FROM CUPTI_ACTIVITY_KIND_KERNEL JOIN StringIds s ON shortName = s.id UNION
        SELECT 'copy', start FROM CUPTI_ACTIVITY_KIND_MEMCPY UNION SELECT value, 0 FROM GPT_CALL_ARGUMENTS
        JOIN StringIds s ON mangledName = s.id ORDER BY 2, 1"""
    late = write(tmp_path / "late.sqlite", small(late=True))
    assert ask(late, said) == ask(made, said)


@pytest.mark.parametrize("late", [False, True])
def test_work_finds_its_call_in_either_order(late, monkeypatch):
    monkeypatch.setattr(correlate, "MOST", 100)
    matcher, random = correlate.Matcher(), np.random.default_rng(1)
    found = {}
    for turn in range(50):  # work arrives up to two turns later or earlier
        keys = np.arange(turn * 10, turn * 10 + 10)
        calls = np.zeros(10, [("bytes", "<u8")])
        calls["bytes"] = keys * 7
        work = np.zeros(10, correlate.WORK)
        work["key"] = random.permutation(keys + (20 if late else -20))
        matcher.add_calls(keys, calls)
        matcher.add_work(work)
        for one, call in zip(*matcher.take(turn == 49), strict=True):
            found[int(one["key"])] = int(call["bytes"]) if call["known"] else None
    known = {key: moved for key, moved in found.items() if 0 <= key < 500}
    assert len(known) == 480 and all(moved == key * 7 for key, moved in known.items())


def test_unmatched_work_and_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(correlate, "MOST", 100)
    matcher = correlate.Matcher()
    for turn in range(10):
        work = np.zeros(50, correlate.WORK)
        work["key"] = np.arange(turn * 50, turn * 50 + 50)
        matcher.add_work(work)
        matcher.add_calls(work["key"] + 10**6, np.zeros(50, [("bytes", "<u8")]))
        matcher.take(False)
        assert sum(map(len, matcher._work)) <= 100 and sum(map(len, matcher._aside)) <= 100


def probed():
    """Return launches that saved to maps of each type."""
    maps = [
        forge.probe_map("gmem_bytes", 1, "total", "thread", read="u64"),
        forge.probe_map('../a"b', 2, "array", "warp", 2, Block="u32", block="f32", slot="u64"),
        forge.probe_map("log", 3, "log", "thread", 8, at="u64"),
        forge.probe_map("counted", 4, "array", "thread", 0, at="u64"),
        forge.probe_map("gmem_bytes", 5, "total", "thread", written="u64"),
    ]
    array = np.zeros((2, 1), [("count", "<u8"), ("slots", [("Block", "<u4"), ("block", "<f4"), ("slot", "<u8")], 2)])
    array["count"], array["slots"]["Block"][:, :, 0] = [[1], [3]], 5
    array["slots"]["block"], array["slots"]["slot"] = np.nan, (1 << 64) - 1
    log = np.array([2, 40, 11, 3, 12], "<u8")  # two entries: units 40 and 3 of blocks of 32
    return [
        *maps, forge.kernel(1, 9, KERNEL, 1, 2, 3, 4, 5), forge.probed(1, 1, 9, 2, 32),
        forge.buffer(1, np.arange(128, dtype="<u8").tobytes(), 1), forge.buffer(1, array.tobytes(), 2),
        forge.buffer(1, log.tobytes(), 3), forge.buffer(1, np.arange(64, dtype="<u8").tobytes(), 4),
        forge.buffer(1, b"", 5, lost="no room"),
    ]  # fmt: skip


def test_maps_of_probes_are_tables(tmp_path):
    lost = forge.buffer(1, np.zeros(128, "<u8").tobytes(), 5, lost="no room")
    segment = forge.trace(records.make("function", id=9, name=KERNEL), *probed()[:-1], lost)
    found = tables(write(tmp_path / "t.sqlite", segment))
    pid = 10 << 24
    assert found["GPT_MAP_gmem_bytes"][:2] == [(1, pid, 0, 0, 0, 1), (1, pid, 0, 1, 0, 3)]
    assert len(found["GPT_MAP_gmem_bytes"]) == 64
    assert found["GPT_MAP____a_b"] == [(1, pid, 0, 0, 0, 5, None, -1), (1, pid, 1, 0, 0, 5, None, -1),
                                       (1, pid, 1, 0, 1, 0, None, -1)]  # fmt: skip
    names = ask(tmp_path / "t.sqlite", "SELECT name FROM pragma_table_info('GPT_MAP____a_b')")
    assert [name for (name,) in names][4:] == ["slot", "Block_2", "block_3", "slot_2"]
    assert found["GPT_MAP_log"] == [(1, pid, 1, 8, 0, 11), (1, pid, 0, 3, 1, 12)]
    assert found["GPT_MAP_counted"][33] == (1, pid, 1, 1, 33) and len(found["GPT_MAP_counted"]) == 64
    assert [row[:5] for row in found["GPT_PROBED_LAUNCHES"]] == [(1, pid, pid | 1, 1001, 1001 << 10)]
    assert [row[1] for row in found["DIAGNOSTIC_EVENT"]] == ["1 buffers of probes are lost: no room"]
    folder = write(tmp_path / "t", segment, shape=ExportFormat.parquet)
    assert parquet.read_table(folder / "GPT_MAP____a_b.parquet")["slot_2"].to_pylist() == [(1 << 64) - 1] * 3


def test_ranges_of_warps_have_names(tmp_path):
    """A record whose number isn't in the list of ranges has the empty name."""
    map_ = forge.probe_map("tiles", 1, "log", capacity=1 << 20, clock="u64", sm="u32", range="u32", number="u32")
    map_ |= {"stored": ["clock", "sm", "shared", "shared"], "ring": 4, "ranges": ["load", "ä;"]}
    made = [(10, 0, 7), (20, 3, 0), (30, 1, 7), (40, 4, 0)]
    ring = forge.buffer(1, write_ring(4, [[RingLane(3, 5, made)]]), 1)
    launch = forge.kernel(1, 9, KERNEL, 1), forge.probed(1, 1, 9, 2, 64)
    segment = forge.trace(records.make("function", id=9, name=KERNEL), map_, *launch, ring)
    found = tables(path := write(tmp_path / "t.sqlite", segment))["GPT_MAP_tiles"]
    assert [(*row[2:5], *row[6:]) for row in found] == [
        (1, 1, 0, 10, 5, 0, 7), (1, 1, 1, 20, 5, 3, 0), (1, 1, 2, 30, 5, 1, 7), (1, 1, 3, 40, 5, 4, 0),
    ]  # fmt: skip
    query = "SELECT value, range % 2 FROM GPT_MAP_tiles JOIN StringIds ON nameId = id ORDER BY clock"
    assert ask(path, query) == [("load", 0), ("ä;", 1), ("load", 1), ("", 0)]


def test_names_are_what_databases_take():
    assert make_names(["a b", "A_b", "a\0b", "", 'x"; --']) == ["a_b", "A_b_2", "a_b_3", "_", "x_____"]
    assert [files.clean(text) for text in ("a", "é", "a\0b", "a\udcff", "\ud800")] == [
        "a", "é", "a\ufffdb", "a\ufffd", "\ufffd\ufffd\ufffd",
    ]  # fmt: skip
    assert [shorten_kernel(name) for name in ("k", "a::(anonymous namespace)::k<b::c>(d)", "f(int)::{lambda()#1}")] == [
        "k", "k", "f",
    ]  # fmt: skip
    strings = Strings()
    assert strings.kernel("k") == (1, 1, 1)


def test_texts_of_any_kind_come_through(tmp_path):
    odd = ["quo'te\"s", "a\0b", "\udcff\udcfe", "x" * 4096, ""]
    numbered = [*enumerate(odd, 1)]
    ranges = [records.make("range", id=at, type="push", thread=1, name=name, start=at) for at, name in numbered]
    functions = [records.make("function", id=at, name=name) for at, name in numbered]
    launches = [forge.launch(at, 5, 1, at) for at in range(1, len(odd) + 1)]
    segment = forge.trace(forge.api(1, APIS[0]), *functions, *ranges, forge.calls(launches, forge.LAUNCH), argv=odd)
    wanted = ["quo'te\"s", "a\ufffdb", "\ufffd\ufffd", "x" * 4096, ""]
    path = write(tmp_path / "t.sqlite", segment)
    assert [text for (text,) in ask(path, "SELECT text FROM NVTX_EVENTS ORDER BY start")] == wanted
    names = "SELECT value FROM GPT_CALL_ARGUMENTS JOIN StringIds ON mangledName = id ORDER BY correlationId"
    assert [text for (text,) in ask(path, names)] == wanted
    folder = write(tmp_path / "t", segment, shape=ExportFormat.parquet)
    assert parquet.read_table(folder / "NVTX_EVENTS.parquet")["text"].to_pylist() == wanted


@pytest.mark.parametrize("number", [1 << 32, 1 << 63, (1 << 64) - 1])
def test_numbers_of_any_size_come_through(number, tmp_path):
    narrow = min(number, (1 << 32) - 1)  # ids of processes and devices have 32 bits
    changes = {"device": {"index": narrow, "sms": narrow}}
    odd = [
        record | changes.get(record["kind"], {"thread": number} if "thread" in record else {})
        for record in small(pid=narrow, rank=number)
    ]
    for shape in ExportFormat:
        write(tmp_path / shape, odd, shape=shape)
    told = ask(tmp_path / "sqlite", "SELECT pid, rank FROM PROCESSES")
    assert [value % (1 << 64) for value in told[0]] == [narrow, number]


def test_several_traces_and_standard_input(tmp_path):
    """Processes with the same pid get separate numbers. Times count from the start of the first process."""
    (tmp_path / "b.mp").write_bytes(forge.pack(small(pid=10, host="other", boot_id="c", realtime=10**18 + 500)))
    out = tmp_path / "t.sqlite"
    done = run("export", "--format", "sqlite", "-o", out, "-", tmp_path / "b.mp", data=forge.pack(small()))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert ask(out, "SELECT globalPid, pid, host, start FROM PROCESSES") == [
        (10 << 24, 10, "here", 0), (1 << 48 | 10 << 24, 10, "other", 500),
    ]  # fmt: skip
    joined = """SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL k JOIN CUPTI_ACTIVITY_KIND_RUNTIME c
        ON k.correlationId = c.correlationId AND k.globalPid = c.globalTid / 0x1000000 * 0x1000000"""
    assert ask(out, joined) == [(2,)]
    done = run("export", "--format", "sqlite", "-o", out, "--tid", 2, tmp_path / "b.mp")
    assert ask(out, "SELECT start FROM CUPTI_ACTIVITY_KIND_RUNTIME") == [(5000,)]


def test_standard_output_gets_the_whole_file(made, tmp_path):
    done = run("export", "--format", "sqlite", "-o", "-", data=forge.pack(small()), cwd=tmp_path,
               env={**os.environ, "TMPDIR": str(tmp_path)})  # fmt: skip
    assert (done.returncode, done.stderr, os.listdir(tmp_path)) == (0, b"", [])
    (tmp_path / "t").write_bytes(done.stdout)
    assert tables(tmp_path / "t") == tables(made)


def test_a_terminal_gets_no_database():
    ours, theirs = pty.openpty()
    command = ["gpt-analyze", "export", "--format", "sqlite", "-o", "-"]
    done = subprocess.run(command, input=forge.pack(small()), stdout=theirs, stderr=subprocess.PIPE, check=False)
    os.close(theirs)
    os.close(ours)
    assert (done.returncode, done.stderr) == (2, b"gpt-analyze: error: -o: a database can't be written to a terminal\n")


def test_missing_data_is_reported(tmp_path):
    path, out = tmp_path / "t.mp", tmp_path / "t.sqlite"
    path.write_bytes(forge.pack(small(end=False)) + b"\x85\xa4")
    done = run("export", "--format", "sqlite", "-o", out, path)
    assert done.returncode == 3 and done.stderr.count(b"\n") == 1
    assert ask(out, "SELECT value FROM META_DATA_EXPORT WHERE name = 'COMPLETE'") == [("no",)]
    said = [text for (text,) in ask(out, "SELECT text FROM DIAGNOSTIC_EVENT")]
    assert len(said) == 2 and "no end of process 10" in said[0] and "into a record" in said[1]
    assert len(ask(out, "SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME")) == 5


@pytest.mark.parametrize(
    ("args", "data", "status", "said"),
    [
        (["--format", "sqlite"], b"", 2, "-o FILE"),
        (["-o", "x"], b"", 2, "--format sqlite or parquet"),
        (["--format", "sqlite", "-o", "x", "--json"], b"", 2, "no --json"),
        (["--format", "sqlite", "-o", "/dev/full"], b"", 1, "/dev/full: is not a regular file"),
        (["--format", "sqlite", "-o", "x"], b"", 3, ""),
        (["--format", "sqlite", "-o", "x"], forge.pack(forge.trace(records.make("lookup", module=1, what="enumerate"))),
         1, "no calls"),
        (["--format", "sqlite", "-o", "absent/x"], b"", 4, "absent/x: No such file"),
        (["--format", "parquet", "-o", "."], b"", 1, "a folder is not replaced"),
        (["--format", "parquet", "-o", "-"], forge.pack(small()), 2, "-o: --format parquet writes a folder"),
    ],
)  # fmt: skip
def test_faults_leave_nothing(args, data, status, said, tmp_path):
    (tmp_path / "old").write_text("kept")
    done = run("export", *args, data=data, cwd=tmp_path)
    assert (done.returncode, done.stderr.count(b"\n")) == (status, bool(said)), done.stderr
    assert said in done.stderr.decode() and os.listdir(tmp_path) == ["old"]


@pytest.mark.parametrize("shape", first(*ExportFormat))
def test_a_full_disk_leaves_what_was_there(shape, tmp_path):
    """A file size limit fails in the same way as a full disk."""
    out = tmp_path / "t"
    if shape is ExportFormat.sqlite:
        out.write_text("old")
    rows = [forge.calls([(at * 1000 + i, at * i % 7919, 1, 0, i, i * 77) for i in range(1, 500)], forge.OBJECT)
            for at in range(1, 400)]  # fmt: skip
    data = forge.pack(forge.trace(forge.api(1, APIS[0]), *rows))
    command = ["gpt-analyze", "export", "--format", shape, "-o", out]
    done = subprocess.run(command, input=data, capture_output=True, preexec_fn=limit, check=False)
    assert (done.returncode, done.stderr.count(b"\n")) == (1, 1), done.stderr
    assert done.stderr.decode().startswith(f"gpt-analyze: error: {out}: ")
    assert os.listdir(tmp_path) == ([] if shape is ExportFormat.parquet else ["t"])
    assert shape is ExportFormat.parquet or out.read_text() == "old"


def limit():
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))


@pytest.mark.parametrize("shape", ExportFormat)
def test_folder_swapped_by_others_is_untouched(shape, tmp_path):
    """In a folder that a group may write to, another member can replace our folder with a folder of links."""
    (victim := tmp_path / "victim").touch()
    (theirs := tmp_path / "theirs").mkdir()
    (theirs / "tables").mkdir()
    (theirs / "tables.sqlite").symlink_to(victim)
    with scratch_folder(PREFIX, tmp_path) as made:
        made.path.rename(tmp_path / "moved")
        theirs.rename(made.path)
        path = Path(made.working, NAMES[shape])
        if shape is ExportFormat.parquet:
            path.mkdir()
        files.FILES[shape](path, tmp_path / "t").create(TABLES[0])
    assert victim.read_bytes() == b"" and not os.listdir(tmp_path / "moved")
    assert sorted(os.listdir(made.path)) == ["tables", "tables.sqlite"] and not os.listdir(made.path / "tables")


def test_a_database_replaced_by_a_link_is_not_opened(monkeypatch, tmp_path):
    """SQLite opens files by name, so someone may create a link in between."""
    (victim := tmp_path / "victim").touch()
    connect = files.sqlite3.connect
    monkeypatch.setattr(files.sqlite3, "connect", lambda _, **how: connect(f"file:{victim}?mode=rw", **how))
    with pytest.raises(OutputError, match="another process renamed or replaced it"):
        files.SqliteFile(tmp_path / "ours", tmp_path / "t")
    assert victim.read_bytes() == b""


def test_control_c_leaves_nothing(tmp_path):
    command = ["gpt-analyze", "export", "--format", "sqlite", "-o", tmp_path / "t"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdin.write(forge.pack(small())[:-20])
        process.stdin.flush()
        while not os.listdir(tmp_path):
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
    assert os.listdir(tmp_path) == []


def test_parquet_without_pyarrow_says_what_to_install(tmp_path):
    (tmp_path / "pyarrow.py").write_text("raise ImportError")
    done = run("export", "--format", "parquet", "-o", tmp_path / "t", data=b"",
               env={**os.environ, "PYTHONPATH": str(tmp_path)})  # fmt: skip
    assert done.returncode == 4
    assert done.stderr.startswith(b"gpt-analyze: error: pyarrow: not installed; to install it: ")
