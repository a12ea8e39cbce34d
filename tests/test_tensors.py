"""Values that gpt.tensors treats as tensors, and where it sees them. tests/runtime/test_tensors.py
tests its records.
"""

from __future__ import annotations

import ctypes
import gc
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from gpt import tensors
from gpt.tensors.types import TensorFacts, find_reader
from tests.tensor_likes import Exported, Interfaced, Pointed, callee, names, read

ROOT = Path(__file__).parents[1]


def test_tensors_are_recognized_by_their_methods():
    assert read(Pointed()) == TensorFacts(4096, 128, 4096, "float32", (4, 8))
    assert read(Pointed(stride=(16, 2))) == TensorFacts(4096, 4 * (3 * 16 + 7 * 2 + 1), 4096, "float32", (4, 8))
    assert read(Pointed(shape=(), stride=())) == TensorFacts(4096, 4, 4096, "float32", ())
    told = {"data": (8192, False), "shape": (3, 5), "typestr": "<f2", "version": 3}
    assert read(Interfaced(told)) == TensorFacts(8192, 30, 8192, "float16", (3, 5))
    backwards = told | {"strides": (-10, 2), "typestr": "|b1"}
    assert read(Interfaced(backwards)) == TensorFacts(8172, 29, 8192, "bool", (3, 5))
    array = np.zeros((6, 4), np.int16)[1::2, ::-1]
    assert read(export := Exported(array)) == TensorFacts(array.ctypes.data - 6, 40, array.ctypes.data, "int16", (3, 4))
    assert export.asked == [-1]
    assert sys.getrefcount(array) == 3  # the capsule has been freed


@pytest.mark.parametrize(
    "value",
    [
        Pointed(address=0),
        Pointed(is_cuda=False),
        Pointed(shape=(4, 0)),
        Pointed(shape=(2,) * 65),
        Pointed(shape=(1 << 62,)),
        Pointed(shape=("a",), stride=(1,)),
        Pointed(stride=(1,)),
        Pointed(address=16, shape=(8,), stride=(-8,)),
        Pointed(item=0, address=None),
        Interfaced({}),
        Interfaced({"data": (None, False), "shape": (1,), "typestr": "<f4"}),
        Interfaced(None),
        Exported(np.zeros(3), device=(1, 0)),
        Exported(None),
        np.zeros(3),
        3,
        int,
        "text",
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_without_device_memory_are_not_tensors(value):
    assert read(value) is None


def test_tensors_without_memory_of_their_own():
    """An example is FakeTensor: any attribute access goes to the library's own code, which may warn or fail."""
    base = type("Tensor", (Pointed,), {"__module__": "torch", "__torch_dispatch__": None})
    fake = type("FakeTensor", (base,), {"__torch_dispatch__": None})
    assert find_reader(base) and not find_reader(fake)
    assert find_reader(type("Parameter", (base,), {}))


def test_variables_are_read_before_each_call():
    found = []
    with tensors.trace(also=found.append):
        x, y = Pointed(0x1000), [Pointed(0x2000), {"in": (Pointed(0x3000),)}]
        out = callee(x, y[0], other=y)
    here = "test_variables_are_read_before_each_call"
    there = "callee"
    assert names(found) == [
        ("x", here), ("y[0]", here), ("first", there), ("rest[0]", there), ("named['other'][0]", there),
        ("made", there), ("out", here),
    ]  # fmt: skip
    ids = {seen.name: seen.id for seen in found}
    assert (
        ids["x"] == ids["first"]
        and ids["y[0]"] == ids["rest[0]"]
        and ids["made"] == ids["out"]
        and len(set(ids.values())) == 3
    )
    assert found[0].file == __file__ and found[0].line and found[-1].facts.first == 0x9000
    assert out and sys.getprofile() is None


def test_the_same_name_is_recorded_once():
    found = []
    with tensors.trace(also=found.append):
        x = Pointed()
        for _ in range(10):
            callee(x)
        x = Pointed()
        callee(x)
    found = [seen for seen in found if seen.name != "made"]
    assert names(found)[:2] == [("x", found[0].function), ("first", "callee")]
    assert len(found) == 4 and len({seen.id for seen in found}) == 2


def test_tensors_are_not_kept():
    class Noted(Pointed):
        gone = 0

        def __del__(self):
            Noted.gone += 1

    with tensors.trace(also=lambda seen: None):
        for _ in range(3):
            x = Noted()
            callee(x, [Noted()])
    del x
    gc.collect()
    assert Noted.gone == 6 and not any(known.ref and known.ref() is None for known in tensors._known.values())


def test_results_of_locals_stay_valid():
    x = Pointed()
    before = locals()
    with tensors.trace(also=lambda seen: None):
        callee(x)
    assert before["x"] is x and locals()["x"] is x


def test_changed_address_is_another_tensor():
    """The objects don't support weak references, so `ends` can't be known."""

    class Slotted(Interfaced):
        __slots__ = ()

    class Plain:
        __slots__ = ("address",)
        dtype, shape, itemsize = "int8", (4,), 1

        def data_ptr(self):
            return self.address

    found, value = [], Plain()
    for address in (0x100, 0x200, 0x200):
        value.address = address
        tensors.record(value=value, also=found.append)
    assert [seen.facts.first for seen in found] == [0x100, 0x200] and found[0].id != found[1].id


def test_modules_show_their_own_parameters():
    module = type("Module", (), {"__module__": "torch.nn.modules.module", "forward": lambda self: len(vars(self))})
    layer = type("Linear", (module,), {"work": lambda self: sys.intern("a")})()
    layer.__dict__ |= {"_parameters": {"weight": Pointed(0x10), "bias": None}, "_buffers": {"mean": Pointed(0x20)}}
    found = []
    with tensors.trace(also=found.append):
        layer.work()
    assert {name for name, _ in names(found)} == {"layer.weight", "layer.mean", "Linear.weight", "Linear.mean"}


def test_names_of_ones_own():
    found = []
    tensors.record(
        {"blocks.0.weight": Pointed(0x10), "none": None, "list": [Pointed(0x20)]}, x=Pointed(0x30), also=found.append
    )
    assert [seen.name for seen in found] == ["blocks.0.weight", "list[0]", "x"]


def test_a_function_may_be_wrapped_and_blocks_nested():
    found = []

    @tensors.trace(also=found.append)
    def work(x):
        """Do some work under a name."""
        with tensors.trace(also=found.append):
            callee(x)
        assert sys.getprofile() is not None
        return x

    x = Pointed()
    assert work(x) is x and work.__doc__ == "Do some work under a name." and sys.getprofile() is None
    assert ("first", "callee") in names(found)


def test_one_block_may_be_entered_many_times():
    found, block = [], tensors.trace()
    block = tensors.trace(also=found.append)

    def work():
        for _ in range(20):
            with block:
                with block:
                    callee(Pointed(0x10))
                callee(Pointed(0x20))
                assert sys.getprofile() is not None
            assert sys.getprofile() is None

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([seen for seen in found if seen.name == "first"]) == 4 * 40


@pytest.mark.full
def test_threads_have_their_own():
    found, mine = [], []

    def work():
        with tensors.trace(also=found.append):
            for _ in range(50):
                callee(Pointed(threading.get_ident()))

    threads = [threading.Thread(target=work) for _ in range(8)]
    with tensors.trace(also=mine.append):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [seen.name for seen in found].count("first") == 8 * 50 and not mine
    assert len({seen.id for seen in found}) == len(found)


def test_without_the_hook_nothing_is_done_and_nothing_imported():
    code = """
import sys
import gpt.tensors
assert not {"ctypes", "numpy", "torch", "msgpack"} & sys.modules.keys()
with gpt.tensors.trace() as t:
    assert sys.getprofile() is None
gpt.tensors.record(x=object())
assert "ctypes" not in sys.modules and not gpt.tensors._known
import os
os.environ["GPT_HOOK_OUTPUT"] = "x"  # and no library
gpt.tensors._find_hook.cache_clear()
with gpt.tensors.trace():
    assert sys.getprofile() is None
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_texts_of_any_kind():
    assert tensors._encode("a\0b\udc80\n") == b"a\\0b\\udc80\n" and tensors._encode(None) is None
    assert ctypes.sizeof(ctypes.c_uint64) == 8
