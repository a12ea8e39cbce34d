"""Queries about a kernel are answered from the declarations in its PTX; no code is generated for that."""

import os
import subprocess
import sys
from textwrap import dedent

import pytest

from tests import cuda
from tests.runtime import hooked

HEAD = ".version 7.0\n.target sm_70\n.address_size 64\n"
PTX = """
.extern .shared .align 16 .b8 dynamic[];
.shared .align 8 .b8 bytes[20];
.shared .f64 number;
.shared .v4 .f32 vectors[3];
.func called();
.global .u64 table[1] = {called};
.func called()
{
    .shared .align 128 .b8 own[7];
    .local .b8 frame[40];
    .reg .u64 %r;
    mov.u64 %r, own;
    mov.u64 %r, bytes;
    ret;
}
.func (.reg .b32 result) other(.reg .b32 value)
{
    .reg .u64 %r;
    mov.u64 %r, vectors; // and not `number`
    ret;
}
.visible .entry calls() .maxntid 64, 2, 1
{
    .shared .b8 own[3];
    .local .align 8 .b8 x[5], y[6];
    .reg .u64 %r;
    .reg .b32 %v;
    mov.u64 %r, own;
    call (%v), other, (%v);
    ret;
}
.visible .entry by_table() { .reg .u64 %r; mov.u64 %r, table; ret; }
.visible .entry scopes()
{
    .reg .u64 %r;
    { .shared .align 64 .u32 own[2][3]; mov.u64 %r, own; }
    mov.u64 %r, number;
    mov.u64 %r, bytes;
    ret;
}
.visible .entry nothing() .reqntid 32 { ret; }
.visible .entry dynamics() { .reg .u64 %r; mov.u64 %r, dynamic; ret; }
.visible .entry much() { .shared .b8 own[40000]; .reg .u64 %r; mov.u64 %r, own; ret; }
"""
# Threads, shared and local bytes, maximum dynamic shared bytes; blocks of 32 threads per multiprocessor.
EXPECTED = {
    "calls": [128, 51, 11, 49101, 32],
    "by_table": [1024, 135, 40, 49017, 32],
    "scopes": [1024, 88, 0, 49064, 32],
    "nothing": [32, 0, 0, 49152, 32],
    "dynamics": [1024, 0, 0, 49152, 32],
    "much": [1024, 40000, 0, 9152, 5],
}
SCRIPT = """
import sys
from ctypes import *
from tests.runtime.driving import *

def ask(kernel):
    values = [c_int() for _ in range(5)]
    for value, attribute in zip(values, (0, 1, 3, 8)):
        ok(cu.cuFuncGetAttribute(byref(value), attribute, kernel))
    ok(cu.cuOccupancyMaxActiveBlocksPerMultiprocessor(byref(values[4]), kernel, 32, c_size_t(0)))
    return [value.value for value in values]

begin()
"""


def play(tmp_path, script, *args, **env):
    text = SCRIPT + dedent(script)
    env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"} | env
    env |= {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    line = [sys.executable, "-c", text, *map(str, args)]
    return subprocess.run(line, env=env, cwd=hooked.ROOT, capture_output=True, text=True, timeout=300)


def write(path, ptx):
    """Write a fatbin, because PTX outside of one is checked when it's loaded."""
    path.write_bytes(cuda.fatbin([("sm_70", "ptx", (HEAD + ptx).encode())], "none"))


@pytest.mark.full
def test_attributes_need_no_compiler(tmp_path):
    """The answers match the code that's made later, which also decides occupancy."""
    write(tmp_path / "code.fatbin", PTX)
    script = f"""
    module = load(sys.argv[1])
    for name, expected in {EXPECTED}.items():
        kernel = function(module, name)
        assert ask(kernel) == expected, (name, ask(kernel))
        assert launch(kernel, 1, 32) == int(sys.argv[2])
        assert ask(kernel) == expected, (name, ask(kernel))
    ok(synchronize())
    """
    for compiler, status in (("/nowhere/cc", 221), (os.environ.get("CC", "cc"), 0)):
        done = play(tmp_path, script, tmp_path / "code.fatbin", status, CC=compiler)
        assert done.returncode == 0, done.stderr


def test_thousand_kernels_in_one_request(tmp_path):
    """The program compiles none of these kernels, which would take half an hour."""
    one = ".visible .entry kernel{}() {{ .shared .b8 own[{}]; .reg .u64 %r; mov.u64 %r, own; ret; }}\n"
    write(tmp_path / "code.fatbin", "".join(one.format(n, n + 1) for n in range(1000)))
    script = """
    module = load(sys.argv[1])
    for n in range(1000):
        assert ask(function(module, f"kernel{n}"))[1] == n + 1
    """
    done = play(tmp_path, script, tmp_path / "code.fatbin", CC="/nowhere/cc")
    assert (done.returncode, done.stderr) == (0, "")
