"""Neutrino's folders as traces: both generations, gpt-neutrino's, and faulty ones."""

import os
import struct
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gpt.trace
from gpt.analyze.block_sched import BlockSched
from gpt.analyze.dmat import Dmat
from gpt.analyze.gmem_bytes import GmemBytes
from gpt.base.errors import GptError, MissingError, UsageError
from gpt.compat.neutrino.traces.folder import read_folder
from gpt.compat.neutrino.traces.results import Result, find_place
from gpt.trace.buffers import MapLayout
from gpt.trace.inputs import expand
from tests.analyze.asked import Answers, run
from tests.tiers import examples
from tests.trace import folders, forge

WARPS = b"".join(struct.pack("<QII", 1000 * warp + 1, 50, warp // 2) for warp in range(4))  # 2 blocks of 64 threads
UNITS = {"thread": lambda threads: threads, "warp": lambda threads: -(-threads // 32), "block": lambda threads: 1}


def launch_of(folder):
    (launch,) = gpt.trace.open(folder).launches
    return launch


@pytest.mark.parametrize(
    ("form", "probe"),
    [
        ({}, folders.BLOCK_SCHED),
        ({"total": True}, folders.BLOCK_SCHED),
        ({"second": 32}, folders.SECOND),
        ({"second": 32}, folders.COMPILED),
    ],
)
def test_a_result_of_each_generation(tmp_path, form, probe):
    data = folders.result((2, 1, 1), (64, 1, 1), (16, WARPS), **form)
    folder = folders.neutrino(tmp_path / "Apr24_231539_77", probe, data, data)
    model = gpt.trace.open(folder)
    assert [(one.kernel, one.start, one.launch.grid) for one in model.launches] == [
        (folders.NAME, 1000, (2, 1, 1)), (folders.NAME, 2000, (2, 1, 1)),
    ]  # fmt: skip
    assert model.processes[0].header["realtime"] == folders.START and model.processes[0].pid == 77
    records = model.launches[1].maps["block_sched"]
    assert records.shape == (2, 2, 1) and records["start"].ravel().tolist() == [1, 1001, 2001, 3001]
    assert records["sm"].ravel().tolist() == [0, 0, 1, 1] and not records.flags.writeable
    rows, verdicts = folders.answer(BlockSched, folder)
    assert verdicts["kernels"][0] == "No.block:4 Running:2100 Scheduling:0(cycle)"
    assert rows["launches"][0]["blocks"] == 2
    (one,) = gpt.trace.open(folder / "result" / "0.000002.bin").launches
    assert one.kernel == folders.NAME and (one.maps["block_sched"] == records).all()


def test_zeros_and_all_ones_mean_no_record(tmp_path):
    for number, empty in enumerate((bytes(16), b"\xff" * 16)):
        data = folders.result((2, 1, 1), (64, 1, 1), (16, WARPS[:32] + empty + WARPS[48:]), second=32)
        saved = launch_of(folders.neutrino(tmp_path / str(number), folders.SECOND, data)).saved("block_sched")
        assert saved.counts.tolist() == [[1, 1], [0, 1]]


def test_bytes_of_threads_are_those_that_the_built_in_probe_counts(tmp_path):
    """The tool's map has another name, and its loads and stores are one number."""
    threads = b"".join(struct.pack("<II", 4 * thread, 16) for thread in range(100))
    folder = folders.neutrino(tmp_path / "t", folders.GMEM_BYTES, folders.result((2, 1, 1), (50, 1, 1), (8, threads)))
    rows, verdicts = folders.answer(GmemBytes, folder)
    assert verdicts["kernels"] == [f"gmem_bytes:{4 * 4950 + 1600}", "1 launch ran with probes"]
    assert [(row["sync"], row["async"], row["read"]) for row in rows["kernels"]] == [(4 * 4950, 1600, 0)]


@pytest.mark.parametrize("unused", [b"\0", b"\xff"])
def test_accesses_of_threads(tmp_path, unused):
    accesses = [(5, 0x7000), (9, 0x7008), (5, 0x9000)]
    units = [accesses[:2], accesses[2:], []]
    data = b"".join(b"".join(struct.pack("<QQ", *one) for one in unit).ljust(32, unused) for unit in units)
    folder = folders.neutrino(tmp_path / "t", folders.DMAT, folders.result((1, 1, 1), (3, 1, 1), (32, data)))
    rows, _ = folders.answer(Dmat, folder)
    assert [(row["page"], row["clock"], row["accesses"]) for row in rows["accesses"]] == [
        (0x7000, 0, 1), (0x7000, 4, 1), (0x9000, 0, 1),
    ]  # fmt: skip
    assert rows["launches"][0]["bytes"] is None and launch_of(folder).saved("dmat").units.tolist() == [0, 0, 1]
    line = f"[call]  {folders.START / 1e9:.6f}  torch.Size([2, 8])  64  0x9000  key  f  a.py:7\n"
    (folder / "tensor.trace").write_text(f"{line}nonsense\n{line.replace('key', 'k2')}")
    rows, _ = folders.answer(Dmat, folder)
    assert [(row["tensor"], row["accesses"]) for row in rows["tensors"]] == [("key 2x8", 1)]


LAYOUTS = [
    (forge.probe_map("block_sched", begin="u64", elapsed="u32", sm="u32"), 16, "block_sched.toml"),
    (forge.probe_map("gmem_bytes", level="thread", sync_bytes="u32", async_bytes="u32"), 8, "gmem_bytes.toml"),
    (forge.probe_map("tensorop_count", level="thread", operations="u64"), 8, "tensorop_count.toml"),
]


@pytest.mark.parametrize(("map_", "size", "probe"), LAYOUTS)
@pytest.mark.parametrize("threads", [64, 70, 20])
def test_results_of_gpt_neutrino_round_trip(tmp_path, map_, size, probe, threads):
    layout, random = MapLayout(map_), np.random.default_rng(threads)
    units = 3 * layout.units(threads)
    data = np.zeros((units, 8 + layout.stride), np.uint8)
    there = random.random(units) < 0.8
    data[there, 8:] = random.integers(1, 200, (there.sum(), layout.stride))
    data[there, 0] = 1
    shapes = [forge.probed(id_, 5, 2, 3, threads) for id_ in (1, 2)]
    launches = [*shapes, *(forge.buffer(id_, data.tobytes()) for id_ in (1, 2))]
    function = forge.records.make("function", id=2, name="k")
    segment = forge.trace(function, map_, forge.kernel(5, 2, "k", 1), *launches)
    folder = folders.write(tmp_path, segment, folders.TOOLS / probe, **{map_["name"]: size})
    wanted = layout.read(data.tobytes(), 3, threads)
    found = gpt.trace.open(folder)
    assert [one.kernel for one in found.launches] == ["k", "k"]
    for launch in found.launches:
        saved = launch.saved(map_["name"])
        assert (saved.counts == wanted.counts).all()
        assert saved.slots.tolist() == wanted.slots.tolist()  # by another name, maybe


@pytest.mark.parametrize("threads", [64, 70])
def test_log_of_gpt_neutrino_round_trips(tmp_path, threads):
    map_ = forge.probe_map("dmat", type_="log", level="thread", capacity=1000, clock="u64", addr="u64")
    entries = [(unit, 100 + unit + nth, 4096 * nth + 8) for unit in range(2 * threads) for nth in range(unit % 4)]
    data = struct.pack("<Q", len(entries)) + b"".join(struct.pack("<QQQ", *one) for one in entries)
    function = forge.records.make("function", id=2, name="k")
    segment = forge.trace(function, map_, forge.kernel(5, 2, "k", 1), forge.probed(1, 5, 2, 2, threads),
                          forge.buffer(1, data))  # fmt: skip
    folder = folders.write(tmp_path, segment, folders.TOOLS / "dmat.toml", dmat=16)
    saved = launch_of(folder).saved("dmat")
    assert [(int(unit), *slot) for unit, slot in zip(saved.units, saved.slots.tolist(), strict=True)] == entries
    assert saved.dropped == 0


def cut(folder):
    os.truncate(folder / "result" / "0.000001.bin", 90)


def link(folder):
    path = folder / "result" / "0.000001.bin"
    path.rename(folder / "elsewhere")
    path.symlink_to(folder / "elsewhere")


def absurd(folder):
    path = folder / "result" / "0.000001.bin"
    path.write_bytes(struct.pack("<8I", *[(1 << 32) - 1] * 6, 0, 1) + path.read_bytes()[32:])


def many(folder):
    path = folder / "result" / "0.000001.bin"
    path.write_bytes(struct.pack("<8I", 2, 1, 1, 64, 1, 1, 0, (1 << 32) - 1) + path.read_bytes()[32:])


FAULTS = [
    (cut, "42 bytes of 64"), (link, "a symbolic link"),
    (absurd, "64 bytes of 3138"), (many, "not a result of Neutrino"),
    (lambda folder: (folder / "result" / "0.000001.bin").unlink(), "No such file or directory"),
    (lambda folder: (folder / "result" / "0.000001.bin").write_bytes(b""), "0 bytes of a header of 32"),
]  # fmt: skip


@pytest.mark.parametrize(("break_", "fact"), FAULTS)
def test_unreadable_result_does_not_drop_others(tmp_path, break_, fact):
    data = folders.result((2, 1, 1), (64, 1, 1), (16, WARPS))
    folder = folders.neutrino(tmp_path / "t", folders.BLOCK_SCHED, data, data)
    break_(folder)
    rows, verdicts = folders.answer(BlockSched, folder)
    assert len(rows["launches"]) == 1
    (line,) = [line for line in verdicts["kernels"] if "lost what it saved" in line]
    assert f"0.000001.bin: {fact}" in line


def test_a_huge_hole_takes_no_memory(tmp_path):
    head = struct.pack("<8I", 1 << 20, 1, 1, 1024, 1, 1, 0, 1) + struct.pack("<QQ", 4 << 10, 48)
    folder = folders.neutrino(tmp_path / "t", folders.DMAT, head)
    with open(folder / "result" / "0.000001.bin", "r+b") as file:
        file.truncate(48 + (1 << 30) * (4 << 10))
        file.seek(48 + (1 << 35))
        file.write(struct.pack("<QQ", 7, 0x1000))
    saved = launch_of(folder).saved("dmat")
    assert saved.slots.tolist() == [(7, 0x1000)] and saved.units.tolist() == [1 << 23]


def test_without_a_log_there_are_results_and_the_only_kernel(tmp_path):
    data = folders.result((2, 1, 1), (64, 1, 1), (16, WARPS))
    folder = folders.neutrino(tmp_path / "t", folders.BLOCK_SCHED, data, data, log=False)
    assert [(one.kernel, one.launch.start) for one in gpt.trace.open(folder).launches] == [
        (folders.NAME, 1000), (folders.NAME, 2000),
    ]  # fmt: skip


def test_folder_without_probe_file_is_reported(tmp_path):
    folder = folders.neutrino(tmp_path / "t", "", folders.result((2, 1, 1), (64, 1, 1), (16, WARPS)))
    with pytest.raises(MissingError, match=r"no probe.toml, so nothing says what its records are"):
        gpt.trace.open(folder)


def test_folder_without_gpu_code_is_reported(tmp_path):
    (tmp_path / "result").mkdir()
    (tmp_path / "event.log").write_text("[pid] 3\n[info] init success\n")
    with pytest.raises(GptError, match="nothing happened: no result, and no launch"):
        gpt.trace.open(tmp_path)


def test_a_run_with_benchmark_saves_nothing_and_has_times(tmp_path):
    folder = folders.neutrino(tmp_path / "t", "", b"")
    log = (folder / "event.log").read_text().replace("[exec] prologue", "[benchmark] prologue")
    (folder / "result" / "0.000001.bin").unlink()
    lines = [line for line in log.splitlines() if "] save" not in line]
    log = "\n".join(lines).replace("ratio 1.500000", "original 2.000000 impact 2.000000 0")
    (folder / "event.log").write_text(log + "\n")
    found = list(read_folder(folder))
    (times,) = [one for one in found if one["kind"] == "times"]
    assert (times["prologue"], times["kernel"], times["original"]) == (1_500_000, 4_000_000, 2_000_000)
    (code,) = [one for one in found if one["kind"] == "kernel" and "registers" in one]
    assert (code["registers_before"], code["registers"]) == (10, 14)
    assert [one["kind"] for one in found].count("unprobed") == 0


@settings(max_examples=examples(100))
@pytest.mark.full
@given(st.data())
def test_whatever_a_log_says_it_is_a_trace_or_an_error(data):
    """Lines are truncated, changed and mixed; readers accept every record."""
    known = [
        "[pid] 7", "[cmd] 3 a b", "[jit] find 0x1 name k bin 0x2 size 9", "[jit] rename k 0_ab", "[jit] rename k ..",
        "[exec] funcmap-find 0x1 success", "[exec] funcmap-find 0x1 fail", "[exec] 99999999999999999999 param 1",
        "[exec] 1700000000000000000 param", "[exec] grid 0 0 0 block 99999999999999999999 1 1 shared 7",
        "[exec] probe-mem 99999999999999999999 (bytes)", "[exec] save ../../etc/passwd size 9",
        "[exec] save a/b.bin size 1",
       "[exec] prologue -1 kernel 9.5 epilogue 999999999999999 ratio nan", "[exec] backup 99999999999999999999 why k",
        "[exec] lost m: gone", "[exec] failed 700", "[mem] cuMemcpyHtoDAsync_v2 0 dst 1", "[mem] cuMemFree_v2 0 dptr 1",
        "[benchmark] prologue 1 kernel 1 epilogue 1 original 0.1 impact 1 0", "\xff\0", "[exec] " + "x" * 70000,
    ]  # fmt: skip
    lines = data.draw(st.lists(st.one_of(st.sampled_from(known), st.text(max_size=20)), max_size=30))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "result").mkdir()
        (folder / "probe.toml").write_text(folders.BLOCK_SCHED)
        (folder / "event.log").write_text("\n".join(lines), errors="replace")
        try:
            model = gpt.trace.open(folder)
        except GptError:
            return
        for launch in model.launches:
            with pytest.raises(GptError):
                launch.saved("block_sched")


def test_no_code_of_a_folder_runs(tmp_path):
    folder = folders.neutrino(tmp_path / "t", folders.BLOCK_SCHED, folders.result((2, 1, 1), (64, 1, 1), (16, WARPS)))
    ran = tmp_path / "ran"
    for path in (folder / "kernel" / "0_ab" / "read.py", folder / "block_sched_local.py"):
        path.write_text(f"open({str(ran)!r}, 'w')\n")
    folders.answer(BlockSched, folder)
    assert not ran.exists()
    for name in ("tmp.pkl", "tmp"):
        (tmp_path / name).write_bytes(b"\x80\x04cos\nsystem\n.")
        with pytest.raises(GptError, match="a pickle can run code"):
            gpt.trace.open(tmp_path / name)


@pytest.mark.parametrize("numbers", [False, True])
def test_a_dmat_file(tmp_path, numbers):
    pages = [0x20000, 0x10000]
    rows = [(7, [(0, 3), (1, 1)]), (9, [(1, 5)])]
    data = struct.pack("<4Q", 2, 2, *pages)
    for clock, found in rows:
        data += struct.pack("<2Q", clock, len(found))
        data += b"".join(struct.pack("<QI", at if numbers else pages[at], count) for at, count in found)
    (tmp_path / "fig1.dmat").write_bytes(data)
    found, _ = folders.answer(Dmat, tmp_path / "fig1.dmat", page=1 << 16)
    assert [(row["page"], row["clock"], row["accesses"]) for row in found["accesses"]] == [
        (0x10000, 0, 1), (0x10000, 2, 5), (0x20000, 0, 3),
    ]  # fmt: skip
    assert (found["launches"][0]["kernel"], found["launches"][0]["accesses"]) == ("fig1", 9)
    for size in (0, 15, 20, 40, 60):
        (tmp_path / "fig1.dmat").write_bytes(data[:size])
        with pytest.raises(GptError, match=f"{size} bytes"):
            folders.answer(Dmat, tmp_path / "fig1.dmat")


def test_truncated_dmat_file_counts_complete_clocks(tmp_path):
    data = struct.pack("<3Q", 1, 2, 0x10000) + struct.pack("<2QQI", 7, 1, 0x10000, 3) + struct.pack("<2QQ", 9, 1, 0)
    (tmp_path / "fig1.dmat").write_bytes(data)
    done = run("dmat", "--json", tmp_path / "fig1.dmat")
    assert done.returncode == 3 and f"{len(data)} bytes; 1 of 2 clocks are there" in done.stderr.decode()
    assert [row["accesses"] for row in Answers(done.stdout).rows["accesses"]] == [3]
    assert done.stdout.decode().count("clocks are there") and "still running" not in done.stdout.decode()


def test_which_layout_a_section_has():
    def place(size, extent, capacity=1, threads=70):
        return find_place(Result((3, 1, 1), (threads, 1, 1), 0, [(size, 48)], 48 + extent), 0, "warp", 16, capacity)

    assert place(16, 3 * 3 * 16)[1:] == (9, 16)
    assert place(16, 3 * 2 * 16)[1:] == (6, 16)  # without the last warps
    assert place(3 * 3 * 16, 3 * 3 * 16)[1:] == (9, 16)
    assert place(32 << 32 | 16, 3 * 2 * 16)[1:] == (6, 16)
    assert place(64, 3 * 3 * 64, capacity=None)[1:] == (9, 64)
    for size in (0, 15, 24, (1 << 64) - 16):
        with pytest.raises(GptError):
            place(size, 3 * 3 * 16)


def test_folders_on_the_command_line_are_expanded(tmp_path):
    first, second = tmp_path / "Jan01_000000_1", tmp_path / "Jan01_000000_2"
    for folder in (first, second):
        (folder / "result").mkdir(parents=True)
    (tmp_path / "notes").mkdir()
    assert expand([tmp_path, first / "-"]) == [first, second, first / "-"]
    assert expand([expand.__globals__["STDIN"], first]) == [None, first]
    with pytest.raises(UsageError, match="once"):
        expand([expand.__globals__["STDIN"]] * 2)
    with pytest.raises(MissingError, match="pass traces as files"):
        expand([tmp_path / "notes"])
