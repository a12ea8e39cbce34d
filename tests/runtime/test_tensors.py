"""Tensors named through gpt.tensors, in the trace; tests/test_tensors.py tests which objects are tensors."""

from __future__ import annotations

import subprocess
import sys

import gpt.trace
from tests.runtime import hooked
from tests.runtime.hooked import Trace

PRELUDE = """
import ctypes, gc, os, sys, threading, time
import gpt.tensors
from ctypes import byref, c_size_t, c_uint64, c_void_p

def begin():
    global cu
    cu = ctypes.CDLL("libcuda.so.1")
    context = c_void_p()
    assert cu.cuInit(0) == 0 == cu.cuDevicePrimaryCtxRetain(byref(context), 0) == cu.cuCtxSetCurrent(context)

class Tensor:
    dtype = "torch.float16"
    def __init__(self, *shape):
        self.shape, self.memory = shape, c_uint64()
        self.size = 2 * (shape[0] if shape else 1)
        assert cu.cuMemAlloc_v2(byref(self.memory), c_size_t(self.size)) == 0
    def data_ptr(self): return self.memory.value
    def element_size(self): return 2
    def stride(self): return (1,)[:len(self.shape)]
    def __del__(self): cu.cuMemFree_v2(self.memory)

def work(data):
    cu.cuMemsetD8_v2(data.memory, 0, c_size_t(2))
"""


def traced(tmp_path, source, options=("--calls", "all")) -> Trace:
    line = [sys.executable, "-c", PRELUDE + source]
    done = hooked.run(tmp_path / "t.mp", *line, options=options, cwd=hooked.ROOT)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return Trace(tmp_path / "t.mp")


def test_tensors_are_on_the_clock_of_the_calls(tmp_path):
    source = """
begin()
with gpt.tensors.trace():
    for x in (Tensor(10), Tensor(20)):
        work(x)
    del x
print("done")
"""
    trace = traced(tmp_path, source)
    frees = [call for call in trace.calls if call["name"] == "cuMemFree"]
    for size in (20, 40):
        allocated = next(call for call in trace.calls if call["name"] == "cuMemAlloc" and call["bytes"] == size)
        freed = next(call for call in frees if call["to"] == allocated["to"] and call["start"] > allocated["start"])
        x, data = (
            next(r for r in trace.of("tensor") if (r["name"], r["bytes"]) == (name, size)) for name in ("x", "data")
        )
        used = [call for call in trace.calls if call["name"] == "cuMemsetD8" and call["to"] == x["address"]]
        (end,) = (r["at"] for r in trace.of("tensor_end") if r["id"] == x["id"])
        assert x["id"] == data["id"] and x["address"] == data["address"] == allocated["to"]
        assert any(allocated["start"] < x["at"] < data["at"] < call["start"] < end for call in used)
        assert abs(freed["start"] - end) < 1e12 and x["thread"] == allocated["thread"]
    record = trace.of("tensor")[0]
    assert list(record) == ["kind", "id", "at", "thread", "name", "address", "bytes", "dtype", "shape", "function",
                            "file", "line"]  # fmt: skip
    assert (record["dtype"], record["function"], record["file"]) == ("float16", "<module>", "<string>")


def test_calls_find_the_tensors_that_they_used(tmp_path):
    """Tensors are in reused memory. Calls through ctypes can't be observed, so `made` gets its name when the function
    returns.
    """
    source = """
begin()
def make(n):
    work(Tensor(n))
    made = Tensor(n)
    cu.cuMemsetD8_v2(made.memory, 1, c_size_t(n))
    return made
with gpt.tensors.trace():
    for n in (10, 10, 10):
        first = Tensor(n)
        work(first)
        del first
        second = make(n)
        work(second)
        del second
"""
    traced(tmp_path, source)
    model = gpt.trace.open(tmp_path / "t.mp")
    calls, process = model.calls("to", "stamp", "stack"), model.processes[0]
    calls = calls[model.chosen(calls, name="cuMemsetD8")]
    assert not calls["stack"].any()
    found = process.tensors.find(calls["to"], calls["stamp"])
    names = [process.tensors.tensors[i].name if i >= 0 else None for i in found.tensors.tolist()]
    assert names == ["first", "data", "made", "made"] * 3
    assert found.later.tolist() == [False, False, True, False] * 3


def test_names_of_any_kind(tmp_path):
    source = r"""
begin()
x, scalar = Tensor(3), Tensor()
gpt.tensors.record({"n" * 5000: x, "\x1b[31m\n\0\udcff\U0001f600": x, "": scalar})
"""
    trace = traced(tmp_path, source)
    long, odd, none = trace.of("tensor")
    assert long["name"] == "n" * 1023 and odd["name"] == "\x1b[31m\n\\0\\udcff\U0001f600"
    assert (none["name"], none["shape"], none["bytes"]) == ("", [], 2)


def test_a_process_without_a_driver_begins_no_trace(tmp_path):
    source = """
class Far:
    shape, dtype, itemsize, strides = (3,), "int8", 1, (1,)
    def data_ptr(self): return 4096
gpt.tensors.record(x=Far())
assert gpt.tensors._find_hook()
"""
    line = [sys.executable, "-c", PRELUDE + source]
    done = hooked.run(tmp_path / "t.mp", *line, cwd=hooked.ROOT)
    assert (done.returncode, done.stderr, list(tmp_path.iterdir())) == (0, "", [])


def test_threads(tmp_path):
    source = """
begin()
context = c_void_p()
cu.cuCtxGetCurrent(byref(context))
def many():
    assert cu.cuCtxSetCurrent(context) == 0
    with gpt.tensors.trace():
        for i in range(200):
            work(Tensor(i + 1))
threads = [threading.Thread(target=many) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""
    trace = traced(tmp_path, source)
    data = [record for record in trace.of("tensor") if record["name"] == "data"]
    assert len(data) == 800 == len({record["id"] for record in data})
    assert len({record["thread"] for record in data}) == 4
    assert {record["id"] for record in data} == {record["id"] for record in trace.of("tensor_end")}


def test_a_forked_process_has_its_own(tmp_path):
    source = """
begin()
x = Tensor(10)
with gpt.tensors.trace():
    work(x)
    child = os.fork()
    if not child:
        work(x)
        gpt.tensors.record(again=x)
        os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    trace = traced(tmp_path, source)
    (child,) = trace.of("child")
    assert {r["name"] for r in trace.of("tensor")} == {"x", "data"}
    theirs = Trace(tmp_path / child["path"]).of("tensor")
    assert {r["name"] for r in theirs} == {"x", "data", "again"}
    assert {r["id"] for r in theirs}.isdisjoint(r["id"] for r in trace.of("tensor"))


def test_nothing_while_nothing_is_recorded(tmp_path):
    source = """
begin()
x = Tensor(3)
gpt.tensors.record(x=x)
assert not gpt.tensors._known[id(x)].names  # it is recorded the next time
"""
    assert not traced(tmp_path, source, ("--disabled",)).of("tensor")


def test_live_streams(tmp_path):
    source = "begin()\nx = Tensor(3)\ngpt.tensors.record(x=x)"
    line = hooked.command("run", "-o", "-", "--device", "sim", "--", sys.executable, "-c", PRELUDE + source)
    out = tmp_path / "live.mp"  # the helper may write after the program has ended, so read a pipe to its end
    out.write_bytes(subprocess.run(line, stdout=subprocess.PIPE, cwd=hooked.ROOT, check=True, timeout=100).stdout)
    assert [record["name"] for record in Trace(out).of("tensor")] == ["x"]
