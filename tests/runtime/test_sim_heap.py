"""malloc in device code: many allocations at once, the limit, and misuse of the memory."""

import os
import subprocess
import sys
from textwrap import dedent

import pytest

from tests import cuda
from tests.runtime import hooked

SOURCE = """
typedef unsigned long long u64;
extern "C" {
__global__ void hold(u64 *counts, int each) { // all of all threads at once, in a list
    void **head = nullptr;
    for (int i = 0; i < each; i++) {
        void **made = (void **)malloc(16);
        if (!made)
            break;
        *made = head, head = made;
        __syncthreads();
    }
    for (void **next; head; head = next) {
        next = (void **)*head;
        free(head);
        atomicAdd(counts, 1ull);
    }
}
__global__ void again(u64 *counts, int each) { // more than there is, but not at once
    for (int i = 0; i < each; i++) {
        int size = 1 << i % 18;
        char *made = (char *)malloc(size);
        if (!made)
            return;
        made[0] = made[size - 1] = (char)i;
        atomicAdd(counts, made[size - 1] == (char)i);
        free(made);
    }
}
__global__ void most(u64 *counts, int size) {
    char *first = (char *)malloc(size), *second = (char *)malloc(1);
    counts[0] = first && !second;
    free(first);
    counts[1] = (second = (char *)malloc(1)) != nullptr;
    counts[2] = (u64)malloc(0);
    free(second), free(nullptr);
}
__device__ volatile char *kept;
__global__ void keep(u64 *counts, int size) {
    kept = (char *)malloc(size);
    kept[size - 1] = 7;
    *counts = (u64)kept;
}
__global__ void use(u64 *counts, int at) { counts[1] = kept[at]; }
__global__ void drop(u64 *, int at) { free((void *)(kept + at)); }
__global__ void use_late(u64 *counts, int) {
    for (int i = 0; i < 2; i++) {
        *counts += kept[3]; // the same instruction
        if (!i)
            free((void *)kept);
    }
}
}
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    path = tmp_path_factory.mktemp("heap") / "code.ptx"
    path.write_bytes(cuda.nvrtc_compile(SOURCE, "compute_80") + b"\0")
    return path


@pytest.fixture
def play(code):
    def run(script):
        text = """
        import sys
        from tests.runtime.driving import *
        from ctypes import *

        def run(name, value=0, grid=1, block=1):
            ok(launch(function(module, name), grid, block, memory, c_int(value)))
            return synchronize()

        def counts():
            return [one | two << 32 for one, two in zip(memory.read()[::2], memory.read()[1::2])]

        begin()
        module, memory = load(sys.argv[1]), Memory(6)
        """
        env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"}
        line = [sys.executable, "-c", dedent(text) + dedent(script), str(code)]
        return subprocess.run(line, env=env, cwd=hooked.ROOT, capture_output=True, text=True, timeout=300)

    return run


@pytest.mark.full
def test_many_live_at_once(play):
    """With a million allocations, the test would never end if each call examined all of them."""
    script = """
    ok(cu.cuCtxSetLimit(2, c_size_t(1 << 24)))
    ok(run("hold", 1000, 10, 100))
    assert counts()[0] == 1000000
    """
    done = play(script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.full
def test_limit_counts_existing_entries(play):
    script = """
    ok(run("most", 8 << 20))
    assert counts() == [1, 1, 0]
    ok(run("again", 1800, 1, 8))
    assert counts()[0] == 1 + 8 * 1800
    ok(run("keep", 1 << 20))
    pointer = counts()[0]
    ok(run("use", (1 << 20) - 1))
    assert counts()[1] == 7
    assert cu.cuMemcpyDtoH_v2(create_string_buffer(4), c_uint64(pointer), c_size_t(4)) == 1
    assert cu.cuMemFree_v2(c_uint64(pointer)) == 1
    """
    done = play(script)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.full
@pytest.mark.parametrize(
    ("size", "before", "last", "end"),
    [
        (100, [], ("use", 100), "0 bytes after a block of 100 bytes of malloc"),
        (100000, [], ("use", 100000), "0 bytes after a block of 100000 bytes of malloc"),
        (100, [("drop", 0)], ("use", 5), "5 bytes into a block of 100 bytes of malloc that was freed"),
        (100000, [("drop", 0)], ("use", 5), "5 bytes into a block of 100000 bytes of malloc that was freed"),
        (100, [], ("use_late", 0), "3 bytes into a block of 100 bytes of malloc that was freed"),
        (100, [("drop", 0)], ("drop", 0), "which malloc did not return, or which was freed"),
        (100, [], ("drop", 1), "which malloc did not return, or which was freed"),
    ],
)
def test_heap_errors_are_found(play, size, before, last, end):
    """Each error has its own process, because a fault is the last thing that the device does for a process."""
    calls = "\n".join(f"ok(run{call})" for call in (("keep", size), *before))
    done = play(f"{calls}\nassert run{last} == 700\n")
    assert done.returncode == 0, done.stderr
    (fact,) = done.stderr.splitlines()
    assert fact.endswith(f", {end}")
