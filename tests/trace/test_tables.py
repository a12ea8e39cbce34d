"""Tables filled by a kernel: copies are merged, and slots that can't be merged are rejected."""

import struct

import pytest

from gpt.base.errors import MalformedError
from gpt.trace.buffers import MapLayout
from tests.trace import forge

FIELDS = [
    {"name": "sm", "type": "i32", "offset": 8},
    {"name": "at", "type": "u64", "offset": 16},
    {"name": "sum", "type": "u32", "offset": 32},
    {"name": "least", "type": "i32", "offset": 36},
]
MAP = {"copies": 2, "stride": 40, "fields": FIELDS, "key": ["sm", "at"], "min": ["least"]}


def table(**keys):
    return forge.probe_map("t", 1, "table", "thread", 3, sm="i32", at="u64", sum="u32", least="i32") | MAP | keys


def slot(count, sm, at, sum_, least):
    words = sm & 0xFFFFFFFF, at & 0xFFFFFFFF, at >> 32
    return struct.pack(
        "<Q6I2I", count, *(part for word in words for part in (word, 1)), sum_, ~least & 0x7FFFFFFF | least & 1 << 31
    )


def test_copies_are_merged():
    """Keys may be any numbers; sums wrap as they do on the GPU."""
    high = (1 << 64) - 1
    first = struct.pack("<Q", 5) + slot(2, -1, high, 7, -3) + bytes(40) + slot(1, -1, 1 << 32, 1, 9)
    second = struct.pack("<Q", 1) + slot(4, -1, high, (1 << 32) - 1, 2) + slot(1, 3, high, 4, 4) + bytes(40)
    layout = MapLayout(table())
    saved = layout.read(first + second, blocks=9, threads=64)
    assert saved.dropped == 6
    rows = dict(zip([tuple(row.tolist()) for row in saved.slots], saved.counts.tolist(), strict=True))
    assert rows == {(-1, high, 6, -3): 6, (-1, 1 << 32, 1, 9): 1, (3, high, 4, 4): 1}
    empty = layout.read(bytes(len(first + second)), blocks=1, threads=1)
    assert len(empty.slots) == len(empty.counts) == empty.dropped == 0


def test_counting_table():
    layout = MapLayout(table(capacity=0))
    saved = layout.read(struct.pack("<2Q", 3, 4), blocks=1, threads=32)
    assert (saved.counts.tolist(), len(saved.slots), saved.dropped) == ([7], 0, 0)


@pytest.mark.parametrize(
    "keys",
    [
        {"key": []},
        {"key": ["sm", "sm"]},
        {"key": ["no"]},
        {"key": ["sm", "at", "least"]},
        {"last": ["sum"]},
        {"copies": 0},
        {"copies": 1 << 17},
        {"head": 0},
        {"stride": 39},
        {"fields": [FIELDS[0] | {"offset": 0}, *FIELDS[1:]]},
        {"fields": [FIELDS[0] | {"offset": 12}, *FIELDS[1:]]},
        {"fields": [FIELDS[0], FIELDS[1] | {"offset": 24}, *FIELDS[2:]]},
        {"fields": [FIELDS[0] | {"type": "f32"}, *FIELDS[1:]]},
        {"fields": [FIELDS[0], FIELDS[1], FIELDS[2] | {"type": "u16"}, FIELDS[3]]},
        {"type": "total"},
        {"type": "array"},
    ],
)
def test_impossible_tables(keys):
    with pytest.raises(MalformedError):
        MapLayout(table(**keys))
