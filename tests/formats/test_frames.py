"""Frames that hold cubins: where they end, which ones are accepted, and the cost of data that only
looks like a frame.
"""

import random
import struct
from functools import cache

import pytest
import zstandard

from gpt.base.errors import MalformedError
from gpt.formats import frames
from gpt.formats.source import Source
from tests.formats import forge
from tests.formats.samples import MANY, image
from tests.stages.tools import MIB, extract
from tests.tiers import full


@cache
def cubin():
    data = image(MANY, "sm_90") + random.Random(1).randbytes(300_000)  # several blocks, some of them raw
    data = data[:40] + struct.pack("<Q", len(data)) + data[48:] + forge.section(0, 0)  # with its headers at the end
    return data[:58] + struct.pack("<HHH", 64, 1, 0) + data[64:]


def pack(data, **options):
    return zstandard.ZstdCompressor(level=3, **options).compress(data)


@cache
def packed_cubin():
    return pack(cubin())


def find(data, before=b"\0" * 24):
    source = Source("file", before + data)
    frame = frames.find_frame(source, len(before))
    return frame and frames.parse_cubin(source, len(before), frame)


@pytest.mark.parametrize("checksum", [False, True])
def test_a_frame_is_measured_by_its_blocks(checksum):
    packed = pack(cubin(), write_checksum=checksum)
    element = find(packed + b"\x28\xb5\x2f\xfd what follows")
    assert (element.offset, element.packed_size, element.end) == (24, len(packed), 24 + len(packed))
    assert (element.size, element.arch, element.codec, element.header_size) == (len(cubin()), "sm_90", "zstd", 0)


def test_runs_of_a_byte():
    """A raw block, a run of one byte, and an empty block at the end."""
    data = image(MANY, "sm_90")[:64]
    size = 64 + 100_000
    data = data[:40] + struct.pack("<Q", size - 64) + data[48:58] + struct.pack("<HHH", 64, 1, 0)
    head = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", size)
    blocks = struct.pack("<I", 64 << 3)[:3] + data + struct.pack("<I", 100_000 << 3 | 2)[:3] + b"\7" + b"\1\0\0"
    assert zstandard.decompress(head + blocks) == data + b"\7" * 100_000
    assert find(head + blocks).packed_size == len(head + blocks)


NOT_ONE = {
    "cut short": lambda: packed_cubin()[:-1],
    "cut in its header": lambda: packed_cubin()[:6],
    "no cubin": lambda: pack(bytes(1000)),
    "a host's ELF file": lambda: pack(cubin()[:18] + b"\x3e\0" + cubin()[20:]),
    "a cubin and more": lambda: pack(cubin() + b"more"),
    "half a cubin": lambda: pack(cubin()[:-4]),
    "without its size": lambda: pack(cubin(), write_content_size=False),
    "less than an ELF header": lambda: pack(cubin()[:63]),
    "another size than it says": lambda: packed_cubin()[:5] + struct.pack("<I", len(cubin()) + 1) + packed_cubin()[9:],
    "a block of a kind that is reserved": lambda: packed_cubin()[:9] + b"\6\0\0" + packed_cubin()[12:],
    "blocks of nothing": lambda: b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(cubin())) + bytes(3000),
}


@pytest.mark.parametrize("name", NOT_ONE)
def test_frames_without_a_whole_cubin_are_not_found(name):
    try:
        assert find(NOT_ONE[name]()) is None
    except MalformedError as error:
        assert error.where.startswith("file")


def host(body):
    """Return an empty ELF file for the host."""
    return forge.elf_header() + body


HOSTILE = {
    "frames of nothing": lambda: (b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 250 << 20)).ljust(16, b"\0") * 1_000_000,
    "frames of zeros": lambda: pack(bytes(250 << 20)) * 200,
    "small frames": lambda: pack(bytes(1000)).ljust(24, b"\0") * 500_000,
    "a wide window": lambda: (
        (b"\x28\xb5\x2f\xfd\x40\x88" + struct.pack("<H", 1000) + b"\1\0\0").ljust(16, b"\0") * 200_000
    ),
}


@pytest.mark.parametrize("name", [*map(full, HOSTILE)])
def test_files_of_frames_that_hold_none(name, tmp_path):
    path = tmp_path / "hostile"
    path.write_bytes(host(HOSTILE[name]()))
    done = extract("--scan", path, measured=True)
    assert done.status in (1, 3)
    assert done.err.count("\n") == 1
    assert done.memory < 300 * MIB
    assert done.seconds < 40
