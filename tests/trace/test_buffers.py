"""Buffers of probed launches as arrays: their contents, where their bytes are, and buffers that are rejected."""

import os
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError, MissingError, TruncatedError
from gpt.stream import records
from gpt.stream.reasons import Reason
from gpt.trace.buffers import MapLayout
from gpt.trace.parts import SideFiles
from gpt.trace.probes import Probes
from tests.tiers import examples
from tests.trace import forge

FIELDS = {"address": "u64", "lane": "u32", "active": "u32"}
BLOCKS, THREADS = 3, 70
UNITS = {"thread": 70, "warp": 3, "block": 1}


def array_bytes(units, capacity):
    """Make U records for unit U, with its number."""
    data = b""
    for unit in range(units):
        kept = min(unit, capacity)
        slots = b"".join(struct.pack("<QII", 1000 * unit + k, k, unit) for k in range(kept))
        data += struct.pack("<Q", unit) + slots.ljust(16 * capacity, b"\0")
    return data


@pytest.mark.parametrize("level", UNITS)
def test_an_array_has_the_slots_of_each_unit(level):
    layout = MapLayout(forge.probe_map("m", level=level, capacity=4, **FIELDS))
    units = BLOCKS * UNITS[level]
    data = array_bytes(units, 4)
    assert layout.size(BLOCKS, THREADS) == len(data)
    saved = layout.read(data, BLOCKS, THREADS)
    assert saved.counts.shape == (BLOCKS, UNITS[level]) and saved.slots.shape == (BLOCKS, UNITS[level], 4)
    assert saved.counts.ravel().tolist() == list(range(units))
    for number, slots in enumerate(saved.slots.reshape(units, 4)):
        kept = min(number, 4)
        assert slots["address"].tolist() == [1000 * number + k for k in range(kept)] + [0] * (4 - kept)
        assert slots["active"].tolist() == [number] * kept + [0] * (4 - kept)
    assert saved.dropped == sum(max(0, number - 4) for number in range(units)) and saved.units is None
    assert not saved.slots.flags.writeable


@pytest.mark.parametrize("repeats", [0, 1])
def test_array_in_repeated_launch_keeps_the_last_run(repeats):
    """Record N is in slot N modulo the capacity."""
    found, kept = Probes(None), {0: [], 2: [0, 1], 3: [0, 1, 2], 4: [1, 2, 3], 8: [5, 6, 7]}
    numbers = [list(range(max(0, count - 3), count)) for count in kept]
    data = b"".join(
        struct.pack("<Q3Q", count, *[next((n for n in last if n % 3 == slot), 0) for slot in range(3)])
        for count, last in zip(kept, numbers, strict=True)
    )
    map_ = forge.probe_map("m", level="block", capacity=3, n="u64") | {"keeps": "last"}
    launch = forge.probed(1, 1, 1, 5, 32) | ({"repeats": 1} if repeats else {})
    for record in (map_, forge.kernel(1, 1, "k", 1), launch, forge.buffer(1, data)):
        found.add(record)
    (buffer,) = found.take()
    saved = buffer.read()
    assert saved.dropped == 6
    for (count, last), slots in zip(kept.items(), saved.slots["n"][:, 0].tolist(), strict=True):
        assert not repeats or slots[:count] == last


def test_arrays_are_views_of_the_bytes():
    data = bytearray(array_bytes(9, 2))
    saved = MapLayout(forge.probe_map("m", capacity=2, **FIELDS)).read(data, BLOCKS, THREADS)
    data[8:16] = struct.pack("<Q", 77)
    assert saved.slots["address"][0, 0, 0] == 77


def test_a_total_has_one_slot_and_drops_nothing():
    layout = MapLayout(forge.probe_map("m", type_="total", level="block", n="u64"))
    saved = layout.read(struct.pack("<4Q", 70, 5, 70, 6), 2, THREADS)
    assert (saved.counts.tolist(), saved.slots["n"].tolist(), saved.dropped) == ([[70], [70]], [[[5]], [[6]]], 0)


@pytest.mark.parametrize(("count", "kept", "dropped"), [(0, 0, 0), (2, 2, 0), (3, 3, 0), (10, 3, 7), (1 << 63, 3, -1)])
def test_log_has_existing_entries(count, kept, dropped):
    layout = MapLayout(forge.probe_map("m", type_="log", level="thread", capacity=3, n="u64"))
    data = struct.pack("<7Q", count, 50, 1, 51, 2, 52, 3)
    saved = layout.read(data, BLOCKS, THREADS)
    assert layout.size(BLOCKS, THREADS) == len(data)
    assert saved.units.tolist() == [50, 51, 52][:kept] and saved.slots["n"].tolist() == [1, 2, 3][:kept]
    assert saved.dropped == (dropped if dropped >= 0 else count - 3)


def test_a_log_may_end_after_its_last_entry():
    layout = MapLayout(forge.probe_map("m", type_="log", capacity=3, n="u64"))
    data = struct.pack("<5Q", 2, 50, 1, 51, 2)
    for end in (40, 56):
        saved = layout.read(data.ljust(end, b"\0"), BLOCKS, THREADS)
        assert (saved.units.tolist(), saved.slots["n"].tolist(), saved.dropped) == ([50, 51], [1, 2], 0)
    for end in (0, 7, 9, 24, 32, 57, 72):
        with pytest.raises(MalformedError):
            layout.read(data.ljust(end, b"\0")[:end], BLOCKS, THREADS)


@pytest.mark.parametrize("type_", ["array", "log"])
def test_counting_map(type_):
    layout = MapLayout(forge.probe_map("m", type_=type_, level="block", capacity=0, n="u64"))
    saved = layout.read(struct.pack("<Q", 9), 1, THREADS)
    assert (saved.counts.ravel().tolist(), saved.slots.size, saved.dropped) == ([9], 0, 9)


def test_fields_may_have_any_name():
    layout = MapLayout(forge.probe_map("m", type_="log", capacity=1, unit="u64", count="u8", titles="f32"))
    saved = layout.read(struct.pack("<QQQBf3x", 1, 7, 8, 9, 0.5), 1, 1)
    assert (saved.units[0], saved.slots["unit"][0], saved.slots["titles"][0]) == (7, 8, 0.5)


# From the records of a trace

MAP = forge.probe_map("m", n="u64")
KERNEL = forge.kernel(5, 2, "_Z1kv", 1)
LAUNCH = forge.probed(7, 5, 2, 1, 32)
DATA = struct.pack("<2Q", 1, 42)


def probes(*found, folder=None):
    made = Probes(folder)
    for record in found:
        assert records.check(record) is None
        made.add(record)
    return made


def value(made):
    (buffer,) = made.take()
    return buffer.kernel, buffer.launch.id, buffer.map.name, buffer.read().slots["n"].tolist()


def test_buffer_waits_for_records_it_refers_to():
    made = probes(forge.buffer(7, DATA))
    for record in (LAUNCH, KERNEL):
        assert list(made.take()) == []
        made.add(record)
    with pytest.raises(MalformedError, match="buffer of launch 7 and map 1: one of them has no record"):
        made.check_taken()
    made.add(MAP)
    assert value(made) == ("_Z1kv", 7, "m", [[[42]]])
    assert made.pending == 0 and list(made.take()) == []
    made.check_taken()


def test_a_buffer_waits_for_the_record_that_names_its_maps():
    """A kernel has two records. The record about its code may come first, in an earlier chunk than the other."""
    code = records.make("kernel", id=5, name="_Z1kv", function=2, arch="sm_90", registers=9)
    made = probes(MAP, code, LAUNCH, forge.buffer(7, DATA))
    assert list(made.take()) == []
    made.add(KERNEL)
    made.add(code)
    assert value(made) == ("_Z1kv", 7, "m", [[[42]]])
    assert made.pending == 0


def test_launches_are_counted():
    made = probes(LAUNCH, MAP, KERNEL, forge.probed(8, 5, 2, 1, 32), forge.buffer(8, DATA))
    for launches in (3, 4):
        made.add(records.make("unprobed", function=3, launches=launches, reason="no PTX"))
    assert len(list(made.take())) == 1
    assert (made.probed, made.unprobed, made.pending) == ({2: 2}, {(3, Reason("other", "no PTX")): 7}, 1)


def test_a_launch_with_two_maps_is_complete_after_the_second_buffer():
    made = probes(LAUNCH, MAP, forge.probe_map("o", 2, n="u64"), forge.kernel(5, 2, "k", 1, 2), forge.buffer(7, DATA))
    assert len(list(made.take())) == 1 and made.pending == 1
    made.add(forge.buffer(7, DATA, 2))
    assert [buffer.map.name for buffer in made.take()] == ["o"] and made.pending == 0


@pytest.mark.parametrize("offset", [0, 5, 4096, 70001])
def test_a_buffer_may_be_in_a_file(tmp_path, offset):
    (tmp_path / "t.mp.buffers").write_bytes(b"x" * offset + DATA)
    where = {"path": "t.mp.buffers", "offset": offset} if offset else {"path": "t.mp.buffers"}
    assert value(probes(LAUNCH, MAP, KERNEL, forge.buffer(7, DATA, **where), folder=tmp_path))[3] == [[[42]]]


def test_growing_file_is_mapped_again(tmp_path):
    made = probes(LAUNCH, forge.probed(8, 5, 2, 1, 32), MAP, KERNEL, folder=tmp_path)
    for number in (7, 8):
        with open(tmp_path / "b", "ab") as file:
            file.write(DATA)
        made.add(forge.buffer(number, DATA, path="b", offset=16 * (number - 7)))
        assert value(made)[1] == number


def test_unreadable_buffer_file_is_an_error(tmp_path):
    (tmp_path / "short").write_bytes(DATA[:-1])
    (tmp_path / "whole").write_bytes(DATA)
    (tmp_path / "link").symlink_to("whole")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for keys, folder, error, said in (
        ({"lost": "the disk is full"}, tmp_path, MissingError, "the disk is full"),
        ({"path": "absent"}, tmp_path, MissingError, "absent: No such file or directory"),
        ({"path": "link"}, tmp_path, MissingError, "link: a symbolic link"),
        ({"path": "folder"}, tmp_path, MissingError, "folder: a directory"),
        ({"path": "pipe"}, tmp_path, MissingError, "pipe: not a regular file"),
        ({"path": "a\0b"}, tmp_path, MissingError, "not a valid file name"),
        ({"path": ".."}, tmp_path, MissingError, "a directory"),
        ({"path": "whole"}, None, MissingError, "whole: cannot be found from standard input"),
        ({"path": "short"}, tmp_path, TruncatedError, "short: 15 bytes of 16"),
        ({"path": "whole", "offset": 1}, tmp_path, TruncatedError, "whole: 16 bytes of 17"),
        ({"path": "whole", "offset": (1 << 64) - 1}, tmp_path, TruncatedError, "16 bytes of"),
        ({"path": "/etc/passwd"}, tmp_path, MalformedError, "not the name of a file"),
        ({"path": "../whole"}, tmp_path, MalformedError, "not the name of a file"),
        ({"path": ""}, tmp_path, MalformedError, "not the name of a file"),
    ):
        (buffer,) = probes(LAUNCH, MAP, KERNEL, forge.buffer(7, DATA, **keys), folder=folder).take()
        with pytest.raises(error, match=said):
            buffer.read()


HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([LAUNCH | {"grid": [1, 1]}], "probed.grid is not three numbers"),
        ([LAUNCH | {"block": [0, HUGE, 1]}], "probed.block is not three numbers"),
        ([LAUNCH | {"grid": [HUGE] * 3}], "buffer of 16 bytes; map 'm' has"),
        ([LAUNCH, LAUNCH], "two probed launches have the number 7"),
        ([MAP | {"capacity": HUGE}], "buffer of 16 bytes; map 'm' has"),
        ([MAP | {"stride": HUGE}], "are too large"),
        ([MAP | {"stride": 4}], "does not fit its row"),
        ([MAP | {"type": "heap"}], "'heap' is not one of array, total, log"),
        ([MAP | {"level": "grid"}], "'grid' is not one of"),
        ([MAP | {"fields": []}], "rows without fields"),
        ([KERNEL | {"maps": [2]}], "no further buffer of map 'm'"),
        ([forge.buffer(7, DATA)], "no further buffer of map 'm'"),  # a second buffer
        ([forge.buffer(7, DATA) | {"path": "x"}], "exactly one of data, path and lost"),
        ([{"kind": "buffer", "launch": 7, "map": 1, "size": 16}], "exactly one of data, path and lost"),
        ([forge.buffer(9, DATA)], "buffer of launch 9 and map 1: one of them has no record"),
    ],
)
def test_invalid_records_are_malformed(wrong, said):
    two = [KERNEL | {"maps": [1, 3]}]  # so that the launch isn't complete
    with pytest.raises(MalformedError, match=said):
        made = probes(MAP, *two, *([] if wrong[0]["kind"] == "probed" else [LAUNCH]), *wrong, forge.buffer(7, DATA))
        for buffer in made.take():
            buffer.read()
        made.check_taken()


def test_nothing_in_an_empty_file(tmp_path):
    (tmp_path / "b").touch()
    (buffer,) = probes(MAP, KERNEL, LAUNCH, forge.buffer(7, b"", path="b"), folder=tmp_path).take()
    with pytest.raises(MalformedError, match="buffer of 0 bytes; map 'm' has 16"):
        buffer.read()
    with pytest.raises(TruncatedError, match="b: 0 bytes of 0"):
        SideFiles(tmp_path).open("b", 0)


def test_wrong_byte_count():
    (buffer,) = probes(MAP, KERNEL, LAUNCH, forge.buffer(7, DATA) | {"data": DATA[:-1]}).take()
    with pytest.raises(MalformedError, match="buffer of 16 bytes has 15"):
        buffer.read()


NUMBERS = st.one_of(st.integers(0, 5), st.sampled_from([32, 1 << 31, 1 << 32, HUGE]))


@settings(max_examples=examples(150))
@given(
    st.sampled_from(["array", "total", "log"]), st.sampled_from(["thread", "warp", "block"]),
    NUMBERS, NUMBERS, NUMBERS, st.lists(NUMBERS, max_size=4), st.lists(NUMBERS, max_size=4), st.binary(max_size=200),
)  # fmt: skip
def test_whatever_the_numbers_are_the_arrays_lie_in_the_bytes(type_, level, capacity, stride, at, grid, block, data):
    map_ = MAP | {"type": type_, "level": level, "capacity": capacity, "stride": stride}
    map_["fields"] = [{"name": "n", "type": "u32", "offset": at}]
    try:
        made = probes(map_, KERNEL, LAUNCH | {"grid": grid, "block": block}, forge.buffer(7, data))
        (buffer,) = made.take()
        saved = buffer.read()
    except GptError:
        return
    assert saved.counts.nbytes + saved.slots.nbytes <= len(data)
    assert saved.slots["n"].sum(dtype=object) is not None and np.isfinite(saved.counts.sum(dtype=float))
