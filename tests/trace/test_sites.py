"""Call stacks, and the names of functions found in libraries."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from gpt.stream import records
from gpt.trace.sites import CallFrame, Sites, read_symbols


def build(*calls, frames=()):
    sites = Sites()
    sites.add(records.make("stack", id=7, frames=list(frames)))
    for start, thread, stack in calls:
        sites.add(records.make("call_site", thread=thread, start=start, stack=stack))
    return sites


def test_calls_find_their_stacks():
    sites = build((30, 1, 7), (10, 1, 5), (10, 2, 6), (20, 2, 7))
    starts = np.array([10, 10, 10, 20, 30, 40, 5], np.uint64)
    threads = np.array([1, 2, 3, 2, 1, 1, 1], np.uint64)
    assert sites.find(threads, starts).tolist() == [5, 6, 0, 7, 7, 0, 0] and len(sites) == 4
    assert build().find(threads, starts).tolist() == [0] * 7


def test_allocations_by_caller():
    frames = [{"path": "/a/libcudart.so.12", "offset": 5}, {"path": "/b/libc10_cuda.so", "offset": 6}, {"offset": 9}]
    sites = build(frames=frames)
    assert sites.asker(7) == CallFrame("/b/libc10_cuda.so", 6) and sites.asker(8) is None
    assert sites.frames(7)[2] == CallFrame(None, 9, None) and sites.frames(8) == []
    assert build(frames=frames[:1]).asker(7) == CallFrame("/a/libcudart.so.12", 5)


@pytest.mark.parametrize("strip", [False, True])
def test_names_of_functions(tmp_path, strip):
    source = "int shown(int x) { return x * 3; }\nstatic __attribute__((noinline)) int hidden(int x) { return x + 4; }"
    source += "\nint last(int x) { return hidden(x) + shown(x); }"
    library = tmp_path / "lib.so"
    flags = ["-x", "c", "-shared", "-fPIC", "-O1", *(["-s"] if strip else [])]
    subprocess.run(["cc", *flags, "-", "-o", library], input=source, text=True, check=True)
    symbols = read_symbols(str(library))
    names = {symbols.find(offset) for offset in range(library.stat().st_size)}
    assert {"shown", "last"} <= names and ("hidden" in names) is not strip


def test_files_that_are_not_libraries(tmp_path):
    (tmp_path / "text").write_text("text")
    (tmp_path / "cut").write_bytes(Path(sys.executable).read_bytes()[:1000])
    for path in ("/none", "/dev/null", str(tmp_path), str(tmp_path / "text"), str(tmp_path / "cut"), "a\0b"):
        assert read_symbols(path) is None, path
