"""The `.bin` file of a launch, and the generated reader for it."""

import ast
import os
import struct

import numpy as np
import pytest

from gpt.compat.neutrino.reader import BEGIN, END, ReadMap, make_reader
from gpt.compat.neutrino.results import align_clocks, fields_of, make_section, write_result
from gpt.trace.buffers import MapLayout
from gpt.trace.probes import Probes
from gpt.trace.rooms import ClockPairs
from tests.trace import forge

FIELDS = {"begin": "u64", "elapsed": "u32", "sm": "u32"}


def saved(map_, blocks, threads, data):
    probes = Probes(None)
    for record in (map_, forge.kernel(5, 2, "k", 1), forge.probed(1, 5, 2, blocks, threads), forge.buffer(1, data)):
        probes.add(record)
    (found,) = probes.take()
    return found.launch, found.map, found.read()


def write(path, map_, blocks, threads, data, size=0):
    launch, layout, found = saved(map_, blocks, threads, data)
    section = make_section(launch, layout, found, size)
    probed = forge.probed(1, 5, 2, blocks, threads) | {"shared": 77}
    with open(path, "w+b") as file:
        assert write_result(file, probed, [(section, found)]) == os.path.getsize(path)
    return section


def read(path, map_, size):
    """Read the file with the generated reader."""
    single = map_["type"] != "log" and map_["capacity"] == 1
    text = make_reader([ReadMap(map_["name"], map_["level"], fields_of(map_), size, single)])
    assert text.startswith(BEGIN) and text.rstrip().endswith(END)
    names = {}
    exec(text, names)
    return names["parse"](path)


def array(layout, blocks, threads, value):
    """Return a buffer in which each record of a unit has these values."""
    units = layout.units(threads)
    found = [value(block, unit) for block in range(blocks) for unit in range(units)]
    return b"".join(struct.pack("<Q", 1) + one.ljust(layout.stride * layout.capacity, b"\0") for one in found)


def test_full_warps_are_where_readers_of_neutrino_expect_them(tmp_path):
    map_ = forge.probe_map("block_sched", **FIELDS)
    data = array(MapLayout(map_), 3, 96, lambda block, warp: struct.pack("<QII", 100 * block + warp, 7, block))
    write(tmp_path / "r.bin", map_, 3, 96, data, 16)
    text = (tmp_path / "r.bin").read_bytes()
    assert struct.unpack_from("<8I", text) == (3, 1, 1, 96, 1, 1, 77, 1)
    assert struct.unpack_from("<2Q", text, 32) == (16, 48)
    records = [struct.unpack_from("<QII", text, 48 + 16 * number) for number in range(9)]
    assert records == [(100 * block + warp, 7, block) for block in range(3) for warp in range(3)]
    assert len(text) == 48 + 9 * 16


@pytest.mark.parametrize(("threads", "whole"), [(70, 2), (64, 2), (20, 0), (33, 1), (1, 0)])
def test_parts_of_warps_come_last_and_are_read_in_their_place(tmp_path, threads, whole):
    map_ = forge.probe_map("block_sched", **FIELDS)
    units = -(-threads // 32)
    data = array(MapLayout(map_), 4, threads, lambda block, warp: struct.pack("<QII", 100 * block + warp, 7, block))
    write(tmp_path / "r.bin", map_, 4, threads, data, 16)
    text = (tmp_path / "r.bin").read_bytes()
    first = [struct.unpack_from("<Q", text, 48 + 16 * number)[0] for number in range(4 * whole)]
    assert first == [100 * block + warp for block in range(4) for warp in range(whole)]  # as blockSize // 32 reads
    header, sections, records = read(tmp_path / "r.bin", map_, 16)
    assert header.blockDimX == threads and sections[0].size == 16
    assert [[warp.begin for warp in block] for block in records] == [
        [100 * block + warp for warp in range(units)] for block in range(4)
    ]


def test_fields_are_packed_and_record_has_declared_size(tmp_path):
    map_ = forge.probe_map("m", level="thread", low="u32", pad="u32", high="u64")  # ours is aligned
    data = array(MapLayout(map_), 2, 3, lambda block, thread: struct.pack("<IIQ", block, 0, thread))
    write(tmp_path / "r.bin", map_, 2, 3, data, 12)
    text = (tmp_path / "r.bin").read_bytes()[48:]
    assert [struct.unpack_from("<IQ", text, 12 * n) for n in range(6)] == [(b, t) for b in range(2) for t in range(3)]
    assert len(text) == 72
    write(tmp_path / "s.bin", map_, 2, 3, data, 32)
    assert (tmp_path / "s.bin").stat().st_size == 48 + 6 * 32
    assert [tuple(thread) for thread in read(tmp_path / "s.bin", map_, 32)[2][1]] == [(1, 0), (1, 1), (1, 2)]


def test_units_with_several_records(tmp_path):
    map_ = forge.probe_map("m", level="thread", capacity=3, n="u64")
    data = array(MapLayout(map_), 2, 2, lambda block, thread: struct.pack("<QQ", block + 1, thread + 1))
    section = write(tmp_path / "r.bin", map_, 2, 2, data)
    assert section.unit == 24
    records = read(tmp_path / "r.bin", map_, 8)[2]
    assert [[record.n for record in thread] for thread in records[1]] == [[2, 1, 0], [2, 2, 0]]


@pytest.mark.parametrize("threads", [70, 64, 7])
def test_log_has_room_for_the_largest_unit(tmp_path, threads):
    map_ = forge.probe_map("m", type_="log", capacity=1000, n="u64")
    warps = -(-threads // 32)
    entries = [(unit, 10 * unit + nth) for nth in range(4) for unit in range(5 * warps) if nth < unit % 5]
    data = struct.pack("<Q", len(entries)) + b"".join(struct.pack("<QQ", *entry) for entry in entries)
    section = write(tmp_path / "r.bin", map_, 5, threads, data)
    assert (section.capacity, section.entries) == (max(unit % 5 for unit in range(5 * warps)), len(entries))
    records = read(tmp_path / "r.bin", map_, 8)[2]
    for unit in range(5 * warps):
        block, warp = divmod(unit, warps)
        wanted = [10 * unit + nth for nth in range(unit % 5)]
        assert [record.n for record in records[block][warp]] == wanted + [0] * (section.capacity - len(wanted))


def test_an_empty_log(tmp_path):
    map_ = forge.probe_map("m", type_="log", level="thread", capacity=1000, n="u64")
    section = write(tmp_path / "r.bin", map_, 2, 2, struct.pack("<Q", 0))
    assert (section.capacity, (tmp_path / "r.bin").stat().st_size) == (1, 48 + 4 * 8)
    assert [tuple(record) for block in read(tmp_path / "r.bin", map_, 8)[2] for unit in block for record in unit] == [
        (0,)
    ] * 4


def test_a_log_of_few_units_takes_little_of_the_disk(tmp_path):
    """The space between units is a hole."""
    map_ = forge.probe_map("m", type_="log", level="thread", capacity=100_000, n="u64")
    entries = np.zeros((2000, 2), "<u8")
    entries[:, 0], entries[:, 1] = 999_999, 5
    write(tmp_path / "r.bin", map_, 1000, 1000, struct.pack("<Q", 2000) + entries.tobytes())
    status = (tmp_path / "r.bin").stat()
    assert status.st_size == 48 + 10**6 * 2000 * 8
    assert status.st_blocks * 512 < 10**6


def test_several_maps(tmp_path):
    maps = [
        forge.probe_map("a", 1, level="thread", n="u32"),
        forge.probe_map("b", 2, level="block", capacity=2, m="u64"),
    ]
    made = []
    for map_ in maps:
        layout = MapLayout(map_)
        data = array(layout, 2, 4, lambda block, unit: struct.pack("<I", 10 * block + unit))
        launch, layout, found = saved(map_ | {"id": 1}, 2, 4, data)
        made.append((make_section(launch, layout, found, 0), found))
    with open(tmp_path / "r.bin", "w+b") as file:
        write_result(file, forge.probed(1, 5, 2, 2, 4), made)
    names = {}
    exec(
        make_reader([ReadMap("a", "thread", [("n", "I")], 4, True), ReadMap("b", "block", [("m", "Q")], 8, False)]),
        names,
    )
    header, sections, records = names["parse"](tmp_path / "r.bin")
    assert header.numProbes == 2 and [section.size for section in sections] == [4, 16]
    assert [[thread.n for thread in block] for block in records["a"]] == [[0, 1, 2, 3], [10, 11, 12, 13]]
    assert [[record.m for record in block[0]] for block in records["b"]] == [[0, 0], [10, 0]]


def named(name, single=True):
    """Read maps of this name and of names that give the same Python identifier, whose fields have such names, too."""
    fields = [(name, "I"), (f"{name}-", "I"), (f"{name}+", "I")]
    return make_reader([ReadMap(one, "block", fields, 12, single) for one in (f"{name}-", name, f"{name}+")])


def test_names_of_any_kind(tmp_path):
    """Names that the generated reader uses itself work, too."""
    head = struct.pack("<8I6Q", 1, 1, 1, 32, 1, 1, 0, 3, 12, 80, 12, 92, 12, 104)
    (tmp_path / "r.bin").write_bytes(head + struct.pack("<9I", *range(9)))
    nodes = list(ast.walk(ast.parse(named("a", single=False))))
    mine = {getattr(node, key, None) for node in nodes for key in ("id", "arg", "name", "asname")} - {None}
    assert {"struct", "block", "record", "range", "parse", "TraceHeader", "f"} <= mine
    for name in [*mine, "class", "1st", "a b", "_x", "é", "", "__class__", "count", "index", "_asdict"]:
        for single in (True, False):
            names = {}
            exec(named(name, single), names)
            header, _, records = names["parse"](tmp_path / "r.bin")
            found = [blocks[0][0] if single else blocks[0][0][0] for blocks in records.values()]
            assert header.numProbes == 3 and [tuple(one) for one in found] == [(0, 1, 2), (3, 4, 5), (6, 7, 8)], name


def test_clocks_count_from_the_first_record_of_their_sm():
    """One clock wraps around within the launch."""
    clocks = np.array([5, (1 << 54) - 3, 2, 100, 90], np.uint64)
    sms = np.array([1, 1, 1, 1023, 1023], np.uint64)
    assert align_clocks(sms << np.uint64(54) | clocks).tolist() == [9, 1, 6, 11, 1]
    assert align_clocks(np.zeros(0, np.uint64)).tolist() == []


def test_pairs_align_the_clocks_of_sms():
    """A clock takes 0.5 ns. The first record of SM 9 is 100 ns later than SM 1's, and its clock wraps around."""
    wrap = (1 << 54) - 100
    sms, clocks = np.array([1, 9, 1, 9], np.uint64), np.array([100, wrap, 300, 100], np.uint64)
    pairs = ClockPairs(np.array([1, 1, 9, 9, 4], np.uint32),
                       np.array([100, 2100, wrap, wrap + 2000, 7], np.uint64),
                       np.array([1000, 2000, 1100, 2100, 5], np.uint64))  # fmt: skip
    assert align_clocks(sms << np.uint64(54) | clocks, pairs).tolist() == [1, 201, 201, 401]
    alone = ClockPairs(*(column[:2] for column in pairs))  # nothing about SM 9
    assert align_clocks(sms << np.uint64(54) | clocks, alone).tolist() == [1, 1, 201, 201]
