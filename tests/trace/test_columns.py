"""Data packed by the hook unpacks to the original; impossible columns are rejected before memory is allocated."""

import struct
from itertools import product

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from gpt.base.errors import GptError, MalformedError, MissingError
from gpt.stream import records
from gpt.trace.parts import MAX_PART, SideFiles, parse_part, unpack_part
from gpt.trace.probes import Probes
from tests.runtime import packing
from tests.tiers import every, examples
from tests.trace import forge
from tests.trace.columns import read_columns, write_columns


def part(data, size, row, codec="columns", **keys):
    return parse_part(records.make("buffer", launch=1, map=1, size=size, codec=codec, row=row, data=data, **keys))


def unpack(data, size, row, codec="columns"):
    return bytes(unpack_part(part(data, size, row, codec), None, SideFiles(None)))


def test_the_example_of_the_page():
    data, held = struct.pack("<4I", 5, 6, 6, 4), bytes.fromhex("0500000001020003")
    assert write_columns(data, 4) == held and read_columns(held, 4, 16) == data
    assert unpack(held, 16, 4) == data


@st.composite
def tables(draw):
    """Return the bytes of rows that are more or less similar."""
    row, rows = 4 * draw(st.integers(1, 20)), draw(st.integers(2, 60))
    random = np.random.default_rng(draw(st.integers(0, 1 << 32)))
    steps = random.integers(0, 1 << 32, (rows, row // 4), np.uint64).astype(np.uint32)
    width = st.sampled_from((0, 1, 7, 8, 15, 17, 31, 32))
    widths = np.array(draw(st.lists(width, min_size=row // 4, max_size=row // 4)))
    steps = np.where(widths, steps >> (32 - np.maximum(widths, 1)).astype(np.uint32), 0).astype(np.uint32)
    signs = random.integers(0, 2, steps.shape, np.uint32) if draw(st.booleans()) else np.zeros_like(steps)
    table = np.cumsum(np.where(signs, -steps.astype(np.int64), steps), axis=0).astype(np.uint32)
    return row, table.tobytes() + draw(st.binary(max_size=row - 1))


@settings(max_examples=examples(200), deadline=None)
@given(tables(), st.booleans())
def test_tables_packed_by_the_hook_round_trip(table, quick):
    row, data = table
    made = packing.packed(data, row, quick=quick)
    if made is None:
        return
    codec, held = made
    assert len(held) <= len(data) - len(data) // 8 and not (quick and codec != "columns")
    assert codec == "zstd" or unpack(held, len(data), row, codec) == data
    if codec == "columns":
        assert held == write_columns(data, row) and read_columns(held, row, len(data)) == data
    elif codec == "columns+zstd":
        assert zstandard.ZstdDecompressor().decompress(held) == write_columns(data, row)


@settings(max_examples=examples(100), deadline=None)
@given(tables(), st.booleans())
def test_tables_packed_by_another_writer_are_read(table, framed):
    row, data = table
    held = write_columns(data, row)
    held = zstandard.ZstdCompressor().compress(held) if framed else held
    if framed and len(write_columns(data, row)) > len(data):
        return  # Return a frame that contains more than the record claims.
    assert unpack(held, len(data), row, "columns+zstd" if framed else "columns") == data


@pytest.mark.parametrize(("rows", "row"), every(3, [*product((4, 63, 130, 100_000), (4, 32, 40, 256))]))
def test_sizes_around_tiles(rows, row):
    """Words have each width; the rows fill several of the pieces that the hook packs at once."""
    rows = min(rows, packing.MOST // row)
    steps = np.arange(rows * (row // 4), dtype=np.uint64).reshape(rows, -1)
    widths = np.arange(row // 4) % 5 * 6
    table = ((steps * 0x9E3779B97F4A7C15 >> 40) & ((1 << widths) - 1).astype(np.uint64)).astype("<u4")
    data = table.tobytes() + b"xyz"
    data = data[: packing.MOST]
    codec, held = packing.packed(data, row, quick=True)
    assert codec == "columns" and unpack(held, len(data), row) == data


def test_few_rows_and_noise_stay_as_they_are():
    noise = np.random.default_rng(1).integers(0, 256, 65536, np.uint8).tobytes()
    assert packing.packed(noise, 32, quick=False) is None
    assert packing.packed(bytes(96), 32, quick=False) is None and packing.packed(b"", 32, quick=False) is None
    assert packing.packed(bytes(packing.MOST + 1), 4, quick=False) is None


DATA = np.arange(40, dtype="<u4").tobytes()  # rows of 16 bytes
HELD = write_columns(DATA, 16)
FRAME = zstandard.ZstdCompressor().compress(HELD)


@pytest.mark.parametrize(
    ("held", "size", "row", "codec", "said"),
    [
        (HELD, 160, 0, "columns", "rows of 0 bytes"),
        (HELD, 160, 15, "columns", "rows of 15 bytes"),
        (HELD, 160, 4100, "columns", "rows of 4100 bytes"),
        (HELD, 160, (1 << 64) - 4, "columns", "rows of 1844"),
        (HELD[:-1], 160, 16, "columns", "columns of"),
        (HELD + b"x", 160, 16, "columns", "columns of"),
        (HELD, 161, 16, "columns", "columns of"),
        (HELD, 31, 16, "columns", "two rows"),
        (b"", 160, 16, "columns", "columns of 0 bytes"),
        (HELD[:17], 160, 16, "columns", "columns of 17 bytes"),
        (bytes(18), MAX_PART + 16, 16, "columns", "packed in one part; the limit"),
        (bytes(18), (1 << 64) - 1, 16, "columns", "packed in one part; the limit"),
        (HELD, 160, 16, "columns+zstd", "not a frame of zstd"),
        (FRAME[:-1], 160, 16, "columns+zstd", "not a frame of zstd"),
        (zstandard.ZstdCompressor().compress(bytes(1 << 20)), 160, 16, "columns+zstd", "a frame of 1048576 bytes"),
    ],
)
def test_columns_that_make_no_sense(held, size, row, codec, said):
    with pytest.raises(MalformedError, match=said):
        unpack(held, size, row, codec)


def test_different_file_under_the_same_name(tmp_path):
    (tmp_path / "b").write_bytes(bytes(200))
    record = records.make("buffer", launch=1, map=1, size=160, codec="columns", row=16, path="b", packed=60)
    with pytest.raises(MissingError, match="b: columns of 60 bytes"):
        unpack_part(parse_part(record), None, SideFiles(tmp_path))


def test_a_few_bytes_take_no_gigabytes(monkeypatch):
    """A few bytes can stand for gigabytes of zeros, so a buffer's size is checked before memory is allocated."""
    size = 1 << 45
    made = Probes(None)
    for record in (
        forge.probe_map("m", n="u64"),
        forge.kernel(5, 2, "_Z1kv", 1),
        forge.probed(7, 5, 2, size // 16, 32),
        records.make("buffer", launch=7, map=1, size=size, codec="columns", row=16, data=bytes(18)),
    ):
        made.add(record)
    (buffer,) = made.take()
    with pytest.raises(MissingError, match="more than there is memory for"):
        buffer.read()


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=100), st.integers(0, 400), st.integers(0, 64), st.sampled_from(("columns", "columns+zstd")))
def test_whatever_it_is_it_is_bytes_or_an_error(held, size, row, codec):
    try:
        assert len(unpack(held, max(size, 1), row, codec)) == max(size, 1)
    except GptError:
        pass
