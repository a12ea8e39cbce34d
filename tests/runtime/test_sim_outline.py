"""The simulated device checks `outline` records: missing or impossible values are rejected."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import msgpack
import pytest

from gpt.stream import records, wire
from tests.runtime import hooked

TEXT = b".version 8.0\n.target sm_90\n.entry k() { ret; }\n\0"
SCRIPT = """
from ctypes import *
from tests.runtime.driving import *
begin()
module, place, size, count = c_void_p(), c_uint64(), c_size_t(), c_uint32()
status = cu.cuModuleLoadData(byref(module), TEXT)
found = {}
if not status:
    ok(cu.cuModuleGetFunctionCount(byref(count), module))
    for name in NAMES:
        if not cu.cuModuleGetGlobal_v2(byref(place), byref(size), module, name.encode()):
            content = create_string_buffer(size.value)
            ok(cu.cuMemcpyDtoH_v2(content, place, size))
            found[name] = content.raw
print((status, count.value, found))
"""
KERNEL = {"name": "k", "params": [], "threads": 0, "registers": 0, "shared": 0, "local": 0}
GOOD = {"name": "good", "space": "global", "size": 4, "align": 4, "data": b"\1"}
OUTLINE = {"kind": "outline", "id": 0, "module": "m", "kernels": [KERNEL], "variables": [GOOD]}
EXPECTED = {"good": b"\1\0\0\0"}


@pytest.fixture
def load(tmp_path):
    """Load PTX on a device whose gpt-asm gives this answer; return the status, and the numbers of kernels and
    variables.
    """

    def run(answer: bytes) -> tuple[int, int, dict[str, bytes]]:
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        shutil.copy(hooked.runtime() / "sim" / "libcuda.so.1", tmp_path)
        ends = [wire.pack(records.make("sync", id=1)), wire.pack(records.make("end", records=0, status=0))]
        (tmp_path / "answer").write_bytes(answer + b"".join(ends))
        for name, line in (("gpt-extract", "cat"), ("gpt-asm", f"cat > {tmp_path}/asked; cat {tmp_path}/answer")):
            (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
            (tmp_path / name).chmod(0o755)
        env = os.environ | {
            "LD_LIBRARY_PATH": str(tmp_path),
            "GPT_SIM_RUN": "none",
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        }
        env["PATH"] = f"{tmp_path}:{env['PATH']}"
        script = f"TEXT, NAMES = {TEXT!r}, ['good', 'odd']\n{SCRIPT}"
        line = [sys.executable, "-c", script]
        done = subprocess.run(line, env=env, cwd=hooked.ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return eval(done.stdout)  # printed by our own script

    return run


@pytest.mark.parametrize(
    ("odd", "expected"),
    [
        ({"size": 2, "data": b"four"}, b"\0\0"),  # more data than bytes
        ({"size": 4, "align": 3 << 40, "data": b"four"}, b"four"),
        ({"size": (1 << 64) - 1}, None),
        ({"size": 0}, None),
        ({"size": -1}, None),
        ({"size": "4"}, None),
        ({"name": 7}, None),
        ({"addresses": [{"offset": (1 << 64) - 1, "symbol": "good", "size": 8}]}, bytes(8)),
        ({"addresses": [{"offset": 0, "symbol": "good", "size": 255, "shift": 255}]}, bytes(8)),
        ({"addresses": [7, {"offset": 0}]}, bytes(8)),
        ({"addresses": {}}, bytes(8)),
    ],
)
def test_malformed_variable(load, odd, expected):
    odd = {"name": "odd", "space": "global", "size": 8, "align": 8} | odd
    answer = msgpack.packb(OUTLINE | {"variables": [odd, GOOD]})
    assert load(answer) == (0, 1, EXPECTED | ({} if expected is None else {"odd": expected}))


@pytest.mark.parametrize(
    ("key", "value", "kernels", "variables"),
    [
        ("kernels", {}, 0, EXPECTED),
        ("kernels", [KERNEL | {"params": [{"offset": 1 << 63, "size": 1 << 63}]}], 1, EXPECTED),
        ("kernels", [KERNEL | {"shared": (1 << 64) - 1, "registers": (1 << 64) - 1, "threads": 1 << 40}], 1, EXPECTED),
        ("kernels", [KERNEL, 7, KERNEL], 1, EXPECTED),
        ("variables", 7, 1, {}),
        ("target", "sm_", 1, EXPECTED),
    ],
)
def test_malformed_module(load, key, value, kernels, variables):
    assert load(msgpack.packb(OUTLINE | {key: value})) == (0, kernels, variables)


def test_record_longer_than_its_data(load):
    """The record claims an array of four billion kernels, and has none."""
    whole = msgpack.packb({"kind": "outline", "kernels": []})
    assert load(whole[:-1] + b"\xdd\xff\xff\xff\xff")[0] != 0
