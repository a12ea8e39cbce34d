"""Kernels and calls that fail: `python faults.py CASE [LIBRARY]` prints the driver's error code."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.asm.host.driver import CudaError, Driver

HEAD = """.version 7.8
.target sm_80
.address_size 64
.const .align 4 .u32 constant[4] = {1, 2, 3, 4};
.global .align 4 .u32 variable[4];
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 text[4] = {97, 98, 99, 0};
.func (.param .b32 result) deep(.param .b32 n) {
    .reg .b32 %r<4>; .local .align 4 .b8 room[256]; .reg .b64 %rd<3>;
    ld.param.u32 %r1, [n]; mov.u64 %rd1, room; st.local.u32 [%rd1+4], %r1; add.u32 %r2, %r1, 1;
    { .param .b32 p; .param .b32 q; st.param.b32 [p], %r2; call (q), deep, (p); ld.param.b32 %r3, [q]; }
    ld.local.u32 %r2, [%rd1+4]; add.u32 %r3, %r3, %r2; st.param.b32 [result], %r3; ret;
}
.visible .entry k(.param .u64 memory) {
    .reg .b64 %rd<9>; .reg .b32 %r<9>; .reg .pred %p<3>;
    .shared .align 16 .b8 shared[64]; .local .align 16 .b8 local[64];
    ld.param.u64 %rd1, [memory]; mov.u32 %r1, %tid.x;
"""
TAIL = "    ret;\n}\n"
BODIES = {
    "nothing": "st.global.u32 [%rd1], 1;",
    "null": "mov.u64 %rd2, 0; ld.global.u32 %r2, [%rd2]; st.global.u32 [%rd1], %r2;",
    "generic null": "mov.u64 %rd2, 0; ld.u32 %r2, [%rd2]; st.global.u32 [%rd1], %r2;",
    "wild": "mov.u64 %rd2, 0x123456789000; st.global.u32 [%rd2], 1;",
    "not canonical": "mov.u64 %rd2, 0xf123456789000000; st.global.u32 [%rd2], 1;",
    "4 bytes behind": "st.global.u32 [%rd1+1024], 1;",
    "1 GiB behind": "st.global.u32 [%rd1+1073741824], 1;",
    "misaligned global": "st.global.u32 [%rd1+1], 1;",
    "misaligned vector": "st.global.v4.u32 [%rd1+4], {1, 1, 1, 1};",
    "misaligned generic": "st.u16 [%rd1+1], 1;",
    "misaligned shared": "st.shared.u32 [shared+1], 1;",
    "misaligned shared by register": "mov.u32 %r2, shared; add.u32 %r2, %r2, 2; st.shared.u32 [%r2], 1;",
    "misaligned local": "mov.u64 %rd2, local; add.u64 %rd2, %rd2, 1; st.local.u32 [%rd2], 1; "
    "ld.local.u32 %r2, [%rd2]; st.global.u32 [%rd1], %r2;",
    "misaligned atomic": "atom.global.add.u32 %r2, [%rd1+2], 1;",
    "misaligned constant": "mov.u64 %rd2, constant; add.u64 %rd2, %rd2, 1; ld.const.u32 %r2, [%rd2]; "
    "st.global.u32 [%rd1], %r2;",
    "shared 4 behind": "mov.u32 %r2, shared; add.u32 %r2, %r2, 64; st.shared.u32 [%r2], 1;",
    "shared 1 MiB behind": "mov.u32 %r2, shared; add.u32 %r2, %r2, 1048576; st.shared.u32 [%r2], 1;",
    "shared below": "mov.u32 %r2, shared; sub.u32 %r2, %r2, 65536; st.shared.u32 [%r2], 1;",
    "local far": "mov.u64 %rd2, local; add.u64 %rd2, %rd2, 16777216; st.local.u32 [%rd2], 1; "
    "ld.local.u32 %r2, [%rd2]; st.global.u32 [%rd1], %r2;",
    "constant far": "mov.u64 %rd2, constant; add.u64 %rd2, %rd2, 1048576; ld.const.u32 %r2, [%rd2]; "
    "st.global.u32 [%rd1], %r2;",
    "store to constant": "mov.u64 %rd2, constant; cvta.const.u64 %rd2, %rd2; st.u32 [%rd2], 1;",
    "atomic on local": "mov.u64 %rd2, local; cvta.local.u64 %rd2, %rd2; atom.add.u32 %r2, [%rd2], 1; "
    "st.global.u32 [%rd1], %r2;",
    "trap": "trap;",
    "brkpt": "brkpt;",
    "assert": """{ .reg .b64 %q<2>; .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
    mov.u64 %q1, text; cvta.global.u64 %q1, %q1; st.param.b64 [a], %q1; st.param.b64 [b], %q1; st.param.b32 [c], 7;
    st.param.b64 [d], %q1; mov.u64 %q0, 1; st.param.b64 [e], %q0; call.uni __assertfail, (a, b, c, d, e); }""",
    "call of 0": "mov.u64 %rd2, 0; ld.global.u64 %rd3, [%rd1]; add.u64 %rd2, %rd2, %rd3; "
    "P: .callprototype _ (); call %rd2, (), P;",
    "call of nonsense": "ld.global.u64 %rd3, [%rd1]; add.u64 %rd2, %rd3, 0x123450; P: .callprototype _ (); "
    "call %rd2, (), P;",
    "deep recursion": "{ .param .b32 p; .param .b32 q; st.param.b32 [p], %r1; call (q), deep, (p); "
    "ld.param.b32 %r2, [q]; } st.global.u32 [%rd1], %r2;",
    "barrier 20": "ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 20; bar.sync %r2;",
    "barrier of 33 threads": "ld.global.u32 %r2, [%rd1]; add.u32 %r2, %r2, 33; bar.sync 1, %r2;",
    "barrier after an exit": "setp.ge.u32 %p1, %r1, 32; @%p1 exit; bar.sync 0; st.global.u32 [%rd1], 5;",
    "barrier after an exit in the warp": "setp.ge.u32 %p1, %r1, 7; @%p1 exit; bar.sync 0; st.global.u32 [%rd1], 5;",
    "shuffle without itself": "shfl.sync.idx.b32 %r2, %r1, 0, 31, 2; st.global.u32 [%rd1], %r2;",
    "warp barrier of the exited": "setp.ge.u32 %p1, %r1, 7; @%p1 exit; bar.warp.sync -1; st.global.u32 [%rd1], 5;",
    "shuffle from the exited": "setp.ge.u32 %p1, %r1, 7; @%p1 exit; shfl.sync.idx.b32 %r2, %r1, 9, 31, -1; "
    "st.global.u32 [%rd1], %r2;",
}


def run(driver: Driver, case: str) -> str:
    """Return the outcome: the results of the launch, of waiting for it, and of a call after that."""
    if case == "use after free":
        driver.free(memory := driver.allocate(1024))
        return kernel(driver, "st.global.u32 [%rd1], 1;", memory)
    if case == "double free":
        driver.free(memory := driver.allocate(1024))
        return attempt(lambda: driver.free(memory))
    if case == "free inside":
        memory = driver.allocate(1024)
        return attempt(lambda: driver.free(memory + 256))
    if case == "copy behind":
        memory = driver.allocate(1024)
        return attempt(lambda: driver.read(memory, 1 << 30))
    if case == "host memory":
        buffer = ctypes.create_string_buffer(1024)
        return kernel(driver, "st.global.u32 [%rd1], 1;", ctypes.addressof(buffer))
    if case == "too many threads":
        return launch(driver, 1, 1025, 0)
    if case == "empty grid":
        return launch(driver, 0, 32, 0)
    if case == "too much shared memory":
        return launch(driver, 1, 32, 100_000)
    return kernel(driver, BODIES[case], driver.allocate(1024))


CALLS = ["use after free", "double free", "free inside", "copy behind", "host memory"]
CALLS += ["too many threads", "empty grid", "too much shared memory"]
CASES = [*BODIES, *CALLS]


def attempt(do) -> str:
    """Return the error code of a call."""
    try:
        do()
    except CudaError as error:
        return str(error.code)
    return "0"


def launch(driver: Driver, grid: int, block: int, shared: int) -> str:
    """Return a launch that the driver may reject."""
    function = driver.function(driver.module(HEAD + BODIES["nothing"] + TAIL), "k")
    return attempt(lambda: driver.launch(function, grid, block, driver.allocate(1024), shared=shared))


def kernel(driver: Driver, body: str, memory: int) -> str:
    """Return a kernel that's launched with 64 threads."""
    try:
        function = driver.function(driver.module(HEAD + body + TAIL), "k")
    except CudaError as error:
        return f"load {error.code}"
    found = [attempt(lambda: driver.launch(function, 1, 64, memory)), attempt(driver.wait)]
    found.append(attempt(lambda: driver.allocate(16)))
    try:
        found.append("= " + str(int.from_bytes(driver.read(memory, 4), "little")))
    except CudaError:
        pass
    return " ".join(found)


if __name__ == "__main__":
    print(run(Driver(*sys.argv[2:3]), sys.argv[1]))
