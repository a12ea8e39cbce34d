"""Buffers in several records, partial or packed: they're read as if they were complete and plain."""

import mmap
import os
import struct
from itertools import pairwise

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError, MissingError, TruncatedError
from gpt.stream import records
from gpt.trace import parts
from gpt.trace.probes import Probes
from tests.tiers import examples
from tests.trace import forge

MAP = forge.probe_map("m", n="u64")  # 16 bytes a unit
KERNEL = forge.kernel(5, 2, "_Z1kv", 1)
UNITS = 6
LAUNCH = forge.probed(7, 5, 2, UNITS, 32)
DATA = b"".join(struct.pack("<QQ", 1, 100 + unit) for unit in range(UNITS))
THIN = b"".join(struct.pack("<QQQ", unit, 1, 100 + unit) for unit in (1, 4))


def part(data=None, **keys):
    held = {} if data is None else {"data": data}
    return records.make("buffer", **{"launch": 7, "map": 1, "size": len(DATA)} | held | keys)


def pack(data):
    return zstandard.ZstdCompressor().compress(data)


def take(*records, folder=None):
    made = Probes(folder)
    for record in (MAP, KERNEL, LAUNCH, *records):
        made.add(record)
    return made, list(made.take())


def values(*records, folder=None):
    made, (buffer,) = take(*records, folder=folder)
    assert made.pending == 0
    first, again = buffer.read(), buffer.read()
    assert not first.slots.flags.writeable and not first.counts.flags.writeable
    assert (first.slots["n"] == again.slots["n"]).all()
    return first.slots["n"].ravel().tolist()


ALL = [100, 101, 102, 103, 104, 105]
SOME = [0, 101, 0, 0, 104, 0]


@pytest.mark.parametrize("cuts", [(48,), (16, 32, 80), (5, 90), ()])
def test_parts_are_joined(cuts):
    edges = (0, *cuts, len(DATA))
    found = [part(DATA[at:end], at=at, length=end - at) for at, end in pairwise(edges)]
    assert values(*found) == ALL


def test_parts_may_come_one_by_one():
    """Parts arrive one by one, as in a live stream. The buffer isn't complete before the last one."""
    made, found = take(part(DATA[:48], length=48))
    assert not found and made.pending == 1
    made.add(part(DATA[48:], at=48, length=48))
    (buffer,) = made.take()
    assert buffer.read().slots["n"].ravel().tolist() == ALL


def test_units_that_saved_nothing_are_zero():
    assert values(part(THIN, units=2)) == SOME
    assert values(part(b"", units=0)) == [0] * UNITS
    assert values(part(DATA[:48], length=48), part(THIN[24:], at=48, length=48, units=1)) == [100, 101, 102, 0, 104, 0]
    assert values(part(b"", length=5, units=0), part(DATA[5:], at=5, length=91))[1:] == ALL[1:]


def test_units_of_a_total():
    made = Probes(None)
    for record in (MAP | {"type": "total"}, KERNEL, LAUNCH, part(THIN, units=2)):
        made.add(record)
    (buffer,) = made.take()
    saved = buffer.read()
    assert saved.counts.ravel().tolist() == [0, 1, 0, 0, 1, 0] and saved.slots["n"].ravel().tolist() == SOME


def test_frames_are_unpacked(tmp_path):
    one, two, thin = pack(DATA[:48]), pack(DATA[48:]), pack(THIN)
    (tmp_path / "b").write_bytes(one + b"xx" + two + thin)
    keys = {"path": "b", "codec": "zstd"}
    one_part = part(length=48, packed=len(one), **keys)
    two_part = part(at=48, length=48, offset=len(one) + 2, packed=len(two), **keys)
    assert values(one_part, two_part, folder=tmp_path) == ALL
    whole = part(units=2, offset=len(one) + 2 + len(two), packed=len(thin), **keys)
    assert values(whole, folder=tmp_path) == SOME
    assert values(part(pack(DATA), codec="zstd")) == ALL
    assert values(part(pack(THIN), codec="zstd", units=2)) == SOME


def test_parts_that_lie_together_in_a_file_are_not_copied(tmp_path):
    (tmp_path / "b").write_bytes(b"12345" + DATA)
    _, (buffer,) = take(
        part(path="b", offset=5, length=32), part(path="b", offset=37, at=32, length=64), folder=tmp_path
    )
    saved = buffer.read()
    base = saved.slots
    while isinstance(base, np.ndarray):
        base = base.base
    assert isinstance(base.obj if isinstance(base, memoryview) else base, mmap.mmap)
    assert saved.slots["n"].ravel().tolist() == ALL
    apart = part(path="b", offset=37, length=64), part(path="b", offset=5, at=64, length=32)
    assert values(*apart, folder=tmp_path) == [102, 103, 104, 105, 100, 101]


def test_a_lost_part_ends_a_buffer():
    _, (buffer,) = take(part(DATA[:48], length=48), part(lost="the disk is full"))
    assert str(buffer.lost) == "the disk is full"
    with pytest.raises(MissingError, match="the disk is full"):
        buffer.read()


def test_parts_that_are_missing_are_pending():
    made, found = take(part(DATA[:48], length=48))
    assert not found and made.pending == 1


HUGE = (1 << 64) - 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([part(DATA[:48], length=48), part(DATA[:48], at=32, length=48)], "its part at 32 follows 48 bytes of 96"),
        ([part(DATA[48:], at=48, length=48)], "its part at 48 follows 0 bytes of 96"),
        ([part(DATA[:48], length=48), part(DATA[48:], at=48, length=48, size=112)], "buffer of 112 bytes: its part"),
        ([part(DATA, length=97)], "no part can have 97 from 0 on"),
        ([part(DATA, length=0)], "no part can have 0 from 0 on"),
        ([part(DATA, at=HUGE, length=HUGE)], "no part can have"),
        ([part(DATA, at=48)], "no part can have 96 from 48 on"),
        ([part(DATA[:40], length=48), part(DATA[48:], at=48, length=48)], "buffer of 48 bytes has 40"),
        ([part(THIN, units=3)], "buffer of 72 bytes has 48"),
        ([part(THIN, units=HUGE)], "has 48"),
        ([part(struct.pack("<QQQ", 6, 1, 1), units=1)], "a unit outside of its part"),
        ([part(struct.pack("<QQQ", HUGE, 1, 1), units=1)], "a unit outside of its part"),
        ([part(DATA[:48], length=48), part(THIN[:24], at=48, length=48, units=1)], "a unit outside of its part"),
        ([part(DATA[:8], length=8), part(THIN[:24], at=8, length=88, units=1)], "does not begin and end at units"),
        ([part(DATA, codec="lz4")], "unknown codec 'lz4'"),
        ([part(DATA, codec="zstd")], "not a frame of zstd"),
        ([part(pack(DATA + b"x"), codec="zstd")], "a frame of 97 bytes, not of 96"),
        ([part(pack(DATA[1:]), codec="zstd")], "a frame of 95 bytes, not of 96"),
        ([part(pack(DATA) + b"x", codec="zstd")], "not a frame of zstd"),
        ([part(pack(DATA)[:-5], codec="zstd")], "not a frame of zstd"),
        ([part(zstandard.ZstdCompressor(write_content_size=False).compress(DATA), codec="zstd")], "a frame of"),
        ([part(path="b", codec="zstd")], "not smaller than its contents"),
        ([part(path="b", codec="zstd", packed=97)], "not smaller than its contents"),
    ],
)
def test_invalid_parts_are_malformed(wrong, said, tmp_path):
    (tmp_path / "b").write_bytes(DATA)
    with pytest.raises(MalformedError, match=said):
        for buffer in take(*wrong, folder=tmp_path)[1]:
            buffer.read()


@pytest.mark.parametrize(
    ("held", "keys", "said"),
    [
        (DATA, {"codec": "zstd", "packed": 24}, "b: not a frame of zstd"),
        (pack(DATA + b"x"), {"codec": "zstd", "packed": 24}, "b: a frame of 97 bytes"),
        (struct.pack("<Q", 99) + DATA[:16], {"units": 1}, "b: a unit outside of its part"),
    ],
)
def test_different_file_under_the_same_name(held, keys, said, tmp_path):
    """Data missing from this file is lost; data elsewhere isn't."""
    (tmp_path / "b").write_bytes(held)
    _, (buffer,) = take(part(path="b", **keys), folder=tmp_path)
    with pytest.raises(MissingError, match=said):
        buffer.read()


def test_file_ends_before_a_frame(tmp_path):
    (tmp_path / "b").write_bytes(DATA)
    _, (buffer,) = take(part(path="b", offset=90, codec="zstd", packed=10), folder=tmp_path)
    with pytest.raises(TruncatedError, match="b: 96 bytes of 100"):
        buffer.read()


def test_more_than_there_is_memory_for(monkeypatch):
    """In a trace, a frame of zeros takes only a few bytes. If the machine can't hold the unpacked data, it isn't
    unpacked.
    """
    _, (buffer,) = take(part(THIN, units=2))
    monkeypatch.setattr(os, "sysconf", lambda name: 8)
    with pytest.raises(MissingError, match="its 96 bytes are more than there is memory for"):
        buffer.read()


def test_a_log_has_no_units():
    made = Probes(None)
    log = forge.probe_map("m", type_="log", capacity=4, n="u64")
    for record in (log, KERNEL, LAUNCH, part(THIN[:24], units=1, size=8 + 4 * 16)):
        made.add(record)
    (buffer,) = made.take()
    with pytest.raises(MalformedError):
        buffer.read()


NUMBERS = st.one_of(st.none(), st.integers(0, 100), st.sampled_from([HUGE, 1 << 32]))


@settings(max_examples=examples(150))
@given(
    st.lists(st.tuples(NUMBERS, NUMBERS, NUMBERS, st.booleans(), st.booleans(), st.binary(max_size=100)), max_size=4)
)
def test_whatever_the_numbers_are_it_is_an_answer_or_an_error(found):
    made = []
    for at, length, units, codec, packed, data in found:
        keys = {"at": at, "length": length, "units": units, "codec": "zstd" if codec else None}
        keys = {key: value for key, value in keys.items() if value is not None}
        made.append(part(pack(data) if packed else data, **keys))
    try:
        for buffer in take(*made)[1]:
            saved = buffer.read()
            assert saved.slots["n"].shape == (UNITS, 1, 1)
    except GptError:
        pass


def test_a_frame_may_not_be_larger_than_a_part():
    assert parts.MAX_PART >= 16 << 20
    size = parts.MAX_PART + 16
    blocks = size // 16
    made = Probes(None)
    frame = pack(bytes(size))
    for record in (MAP, KERNEL, forge.probed(7, 5, 2, blocks, 32), part(frame, codec="zstd", size=size)):
        made.add(record)
    (buffer,) = made.take()
    with pytest.raises(MalformedError, match="the limit is"):
        buffer.read()
