"""Find the tensor at an address, at a time."""

import pickle
import random

import numpy as np
import pytest

from gpt.base.errors import GptError, MalformedError
from gpt.stream import records
from gpt.trace.tensors import Tensors, parse_lines, read_lines


def tensor(id_, at, address, size, name="x", **more):
    what = {"thread": 1, "name": name, "dtype": "f32", "shape": [size // 4]}
    return records.make("tensor", id=id_, at=at, address=address, bytes=size, **what, **more)


def end(id_, at):
    return records.make("tensor_end", id=id_, at=at)


def build(*found):
    tensors = Tensors()
    for record in found:
        tensors.add(record)
    return tensors


def names(tensors, addresses, stamps):
    found = tensors.find(
        np.array(addresses, np.uint64), stamps if isinstance(stamps, int) else np.array(stamps, np.uint64)
    )
    return [None if i < 0 else tensors.tensors[i].name + "?" * bool(later) for i, later in zip(*found, strict=True)]


def test_an_address_is_used_again():
    tensors = build(tensor(1, 10, 100, 50, "a"), end(1, 20), tensor(2, 30, 120, 50, "b"), end(2, 40))
    assert names(tensors, [99, 100, 149, 150], 15) == [None, "a", "a", "b?"]
    assert names(tensors, [120] * 7, [5, 10, 19, 20, 29, 30, 40]) == ["a?", "a", "a", "b?", "b?", "b", None]


def test_records_may_come_in_any_order():
    found = [tensor(1, 10, 100, 50, "a"), tensor(1, 12, 100, 50, "also"), end(1, 20), tensor(2, 30, 120, 50, "b")]
    for _ in range(5):
        random.shuffle(found)
        tensors = build(*found)
        assert tensors.tensors[0].names == ["a", "also"] and tensors.tensors[0].end == 20
        assert names(tensors, [120], 15) == ["a"]


def test_views_are_smaller_than_what_they_are_of():
    tensors = build(tensor(1, 10, 100, 90, "base"), tensor(2, 20, 130, 30, "view"), tensor(3, 30, 100, 90, "again"))
    assert names(tensors, [100, 130, 159, 160, 190], 40) == ["base", "view", "view", "base", None]
    assert names(tensors, [130], 15) == ["base"]


def test_lines_have_no_ends():
    line = "[call]  {}  (10,)  40  {}  {}  run  a.py:1\n".format
    tensors = parse_lines([line(1, 100, "old"), line(2, 120, "new")])
    assert names(tensors, [110, 130], 1) == ["old", "old"] and names(tensors, [110, 130], 2) == [None, "new"]
    tensors = build(tensor(1, 10, 100, 40, "part"), tensor(2, 20, 80, 90, "whole"))
    assert names(tensors, [110, 85], 25) == ["part", "whole"]


def test_tensor_moved():
    tensors = build(tensor(1, 10, 100, 40, "x"), tensor(1, 20, 500, 40, "x"))
    assert names(tensors, [100, 500], 30) == ["x", "x"]


def test_against_a_search_by_hand():
    chance = random.Random(5)
    for _ in range(20):
        made = [
            (chance.randrange(100), chance.randrange(1, 40), chance.randrange(100), chance.randrange(1, 60))
            for _ in range(12)
        ]
        tensors = build(
            *(tensor(i, at, low, size, str(i)) for i, (low, size, at, _) in enumerate(made)),
            *(end(i, at + length) for i, (_, _, at, length) in enumerate(made)),
        )
        addresses = np.arange(150, dtype=np.uint64)
        for stamp in (0, 20, 50, 90, 170):
            found = tensors.find(addresses, stamp)
            for address in range(150):
                there = [(low, size, at, str(i)) for i, (low, size, at, length) in enumerate(made)
                         if low <= address < low + size and at + length > stamp]  # fmt: skip
                now = [one for one in there if one[2] <= stamp]
                index = int(found.tensors[address])
                if not there:
                    assert index == -1
                    continue
                one = tensors.tensors[index]
                assert bool(found.later[address]) == (not now)
                if now:
                    assert one.size == min(size for _, size, _, _ in now)
                else:
                    assert one.begin == min(at for _, _, at, _ in there)


def test_many_addresses():
    tensors = build(*(tensor(i, i, 1000 * i, 900, f"t{i}") for i in range(1, 2001)))
    addresses = np.random.default_rng(1).integers(0, 3_000_000, 1_000_000).astype(np.uint64)
    found = tensors.find(addresses, 5000).tensors
    wanted = np.where(
        (addresses % 1000 < 900) & (addresses >= 1000) & (addresses < 2_001_000), addresses // 1000 - 1, -1
    )
    assert (found == wanted.astype(np.int64)).all()


def test_none():
    assert names(Tensors(), [1, 2], 3) == [None, None] and names(build(tensor(1, 1, 5, 0)), [5], 3) == [None]
    with pytest.raises(MalformedError, match="address space"):
        build(tensor(1, 1, (1 << 64) - 4, 8))


LINES = """\
[call]  1700000000.25  (4, 32, 4096, 64)  67108864  140000000000  q  forward  /a b/fig1.py:12
[return]  odd
[call]  1700000000.5  torch.Size([4])  8  0x7f00  args  run  <string>:3
[call]  1700000001  (4,)  8  0x7f00  again  run  jit.py:4
"""


def test_lines_of_neutrino(tmp_path):
    tensors = parse_lines(LINES.splitlines(keepends=True))
    q, args = tensors.tensors
    assert (q.address, q.size, q.shape, q.names) == (140000000000, 67108864, (4, 32, 4096, 64), ["q"])
    assert (q.function, q.file, q.line) == ("forward", "/a b/fig1.py", 12)
    assert (args.address, args.shape, args.file) == (0x7F00, (4,), "<string>") and args.names == ["args", "again"]
    assert names(tensors, [140000000000 + 67108863, 0x7F07], 100) == ["q", "args"]
    file = tmp_path / "tensor.trace"
    file.write_text(LINES)
    assert len(read_lines(file).tensors) == 2
    file.write_text("nothing\n")
    with pytest.raises(MalformedError, match=r"tensor.trace: no line has the form of a tensor.trace"):
        read_lines(file)
    with pytest.raises(GptError, match="No such file"):
        read_lines(tmp_path / "none")
    file.write_text("")
    assert not read_lines(file).tensors


@pytest.mark.parametrize("odd", ["[call]  1  " + "5  5  " * 10_000, "[call]  1  s  5  5  " + "a  " * 20_000])
def test_odd_lines_take_no_time(odd):
    assert parse_lines([odd, LINES.splitlines()[0]]).tensors


def test_numbers_of_odd_lines():
    """An address with a leading zero is decimal, as Neutrino would write it; digits of other scripts aren't digits."""
    form = "[call]  1  (4,)  8  {}  a  run  jit.py:{}"
    (tensor,) = parse_lines(
        [form.format("0123", 7), form.format("\u0661\u0662", 7), form.format("8", "\u0667")]
    ).tensors
    assert (tensor.address, tensor.size, tensor.line) == (123, 8, 7)


def test_a_pickle_is_not_read(tmp_path):
    class Bad:
        def __reduce__(self):
            return (pytest.fail, ("it was run",))

    for name in ("tensor.pkl", "tensor.trace"):
        (tmp_path / name).write_bytes(pickle.dumps(Bad()))
        with pytest.raises(GptError, match="a pickle can run code"):
            read_lines(tmp_path / name)
