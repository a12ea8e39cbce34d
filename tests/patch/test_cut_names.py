"""Names of removed kernels that gpt-patch leaves in the file."""

import pytest

from gpt.patch.cut_names import MOST, pack, parse


@pytest.mark.parametrize("names", [["a"], ["one", "two"], ["_Z3fooPi", "kernel" * 20], ["\N{GREEK SMALL LETTER MU}"]])
def test_names_round_trip(names):
    block = pack(names, len(names) + 3)
    assert parse(block) == (names, len(names) + 3) and len(block) % 8 == 0
    assert pack(*parse(block)) == block


def test_as_many_as_there_is_room_for():
    names = [f"kernel{i:05}" for i in range(1000)]
    block = pack(names, 1000)
    assert len(block) <= MOST and parse(block) == (names[: (MOST - 16) // 12], 1000)
    assert parse(pack(names, 1000, 44)) == (names[:2], 1000)
    assert pack(names, 1000, 20) == b"" == pack([], 0)


def test_long_names_are_left_out():
    assert parse(pack(["x" * 600, "short"], 2)) == (["short"], 2)


@pytest.mark.parametrize("data", [b"", b"gpt-cut", b"\1" * 512, b"gpt-cat\0" + bytes(8)])
def test_other_bytes_are_not_parsed_as_a_block(data):
    assert parse(data) == ([], 0)


def test_block_with_wrong_size():
    block = pack(["one", "two"], 2)
    assert parse(block[:12] + b"\xff" * 4 + block[16:])[0][:2] == ["one", "two"]
    assert parse(block[:8] + bytes(8) + block[16:]) == ([], 0)
