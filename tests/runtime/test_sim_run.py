"""The simulated device runs kernels: objects of `gpt-asm --arch host`, here written in C."""

import os
import subprocess
import sys
from textwrap import dedent

import pytest

from tests import cuda
from tests.runtime import hooked

CONVERGE = r"""
static void sum(void *const data[HOST_WARP], uint32_t mask) {
    uint32_t total = 0;
    for (uint32_t rest = mask; rest; rest &= rest - 1)
        total += *(uint32_t *)data[__builtin_ctz(rest)];
    for (uint32_t rest = mask; rest; rest &= rest - 1)
        *(uint32_t *)data[__builtin_ctz(rest)] = total;
}
"""


@pytest.fixture
def play(tmp_path):
    """Builds kernels in C, and runs a script on the simulated device: it must end with 0. Gives what it wrote."""

    def build_and_run(kernels, script, **env):
        source, made = tmp_path / "kernels.c", tmp_path / "kernels.so"
        source.write_text(f'#include "kernels.h"\n{CONVERGE}{kernels}')
        flags = ["-std=gnu11", "-O1", "-shared", "-fPIC", "-w", f"-I{hooked.ROOT}/runtime"]
        cuda.c_compiler(*flags, f"-I{hooked.ROOT}/tests/runtime", source, "-o", made)
        text = "from ctypes import *\nfrom tests.runtime.driving import *\nbegin()\n"
        text += f"module = load({str(made)!r})\n{dedent(script)}"
        env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "GPT_SIM_RUN": "all"} | env
        done = subprocess.run(
            [sys.executable, "-c", text], env=env, cwd=hooked.ROOT, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr
        return done

    return build_and_run


def test_threads_blocks_barriers_and_warps(play):
    kernels = r"""
    VARIABLES()
    KERNEL(fill) {
        ARGUMENT(uint64_t, to, 0);
        ARGUMENT(uint64_t, count, 8);
        uint64_t threads = t->ntid[0] * t->ntid[1] * t->ntid[2], at = CTAID * threads + TID;
        if (at < count)
            GLOBAL(to + 4 * at) += at;
    }
    KERNEL(reduce) { // of the numbers of threads, a block
        ARGUMENT(uint64_t, to, 0);
        SHARED(TID) = TID;
        BARRIER();
        for (uint32_t half = t->ntid[0] / 2; half; half /= 2) {
            if (TID < half)
                SHARED(TID) += SHARED(TID + half);
            BARRIER();
        }
        if (!TID)
            GLOBAL(to + 4 * CTAID) = SHARED(0);
    }
    KERNEL(warps) { // sums of warps, of halves of them, of what has not exited
        ARGUMENT(uint64_t, to, 0);
        uint32_t whole = TID, half = TID, rest = TID;
        MEET(UINT32_MAX, sum, &whole);
        MEET(TID % 2 ? 0xaaaaaaaa : 0x55555555, sum, &half);
        if (t->laneid == 5)
            return;
        MEET(UINT32_MAX, sum, &rest);
        GLOBAL(to + 12 * TID) = whole, GLOBAL(to + 12 * TID + 4) = half, GLOBAL(to + 12 * TID + 8) = rest;
    }
    KERNEL(barriers) { // two at once, of halves of the block; threads that exit; a count of values
        ARGUMENT(uint64_t, to, 0);
        uint32_t half = t->ntid[0] / 2, upper = TID >= half;
        if (TID == 3)
            return;
        for (int i = 0; i < 5; i++)
            t->services->barrier(t, 0, HOST_BARRIER_SYNC, 1 + upper, half, false);
        uint32_t count = t->services->barrier(t, 0, HOST_BARRIER_POPC, 0, 0, TID % 3 == 0);
        uint32_t all = t->services->barrier(t, 0, HOST_BARRIER_AND, 3, 0, TID != 7);
        uint32_t any = t->services->barrier(t, 0, HOST_BARRIER_OR, 3, 0, TID == 7);
        GLOBAL(to + 4 * TID) = count << 2 | all << 1 | any;
    }
    KERNEL(produce) { // one warp arrives, the others wait for it
        ARGUMENT(uint64_t, to, 0);
        for (int i = 0; i < 3; i++)
            if (t->warpid == 0) {
                if (!TID)
                    SHARED(0) = i + 1;
                t->services->barrier(t, 0, HOST_BARRIER_ARRIVE, 4, t->ntid[0], false);
                t->services->barrier(t, 0, HOST_BARRIER_SYNC, 5, t->ntid[0], false);
            } else {
                t->services->barrier(t, 0, HOST_BARRIER_SYNC, 4, t->ntid[0], false);
                GLOBAL(to + 4 * TID) += SHARED(0);
                t->services->barrier(t, 0, HOST_BARRIER_ARRIVE, 5, t->ntid[0], false);
            }
    }
    KERNEL(active) { // who is there
        ARGUMENT(uint64_t, to, 0);
        uint32_t all = MEET(0, NULL, NULL), some = 0;
        if (t->laneid % 4 == 1)
            some = t->services->meet(t, 3, 0, NULL, NULL);
        GLOBAL(to + 8 * TID) = all, GLOBAL(to + 8 * TID + 4) = some;
    }
    MODULE(HAS(fill, 2), HAS(reduce, 1, .shared_size = 4096), HAS(warps, 1), HAS(barriers, 1),
           HAS(produce, 1, .shared_size = 4), HAS(active, 1))
    """
    script = r"""
    memory = Memory(5000)
    ok(launch(function(module, "fill"), (3, 2, 5), (7, 5, 4), memory, 4190))
    assert memory.read() == [*range(4190), *[0] * 810]
    ok(launch(function(module, "reduce"), 300, 1024, memory))
    assert memory.read()[:300] == [1023 * 512] * 300
    ok(launch(function(module, "warps"), 1, 64, memory))
    found = memory.read()
    for thread in set(range(64)) - {5, 37}:
        warp = range(thread & 32, (thread & 32) + 32)
        sums = [sum(warp), sum(warp[thread % 2 :: 2]), sum(warp) - warp[5]]
        assert found[3 * thread :][:3] == sums, thread
    ok(launch(function(module, "barriers"), 20, 128, memory))
    assert [v for i, v in enumerate(memory.read()[:128]) if i != 3] == [(42 << 2 | 1)] * 127
    ok(cu.cuMemsetD32_v2(memory, 0, c_size_t(128)))
    ok(launch(function(module, "produce"), 1, 128, memory))
    assert memory.read()[:128] == [0] * 32 + [6] * 96
    ok(launch(function(module, "active"), 1, 40, memory))
    found = memory.read()[:80]
    assert found[::2] == [0xFFFFFFFF] * 32 + [0xFF] * 8
    assert found[1::2] == ([0, 0x22222222, 0, 0] * 8 + [0, 0x22, 0, 0] * 2)
    """
    play(kernels, script)


def test_spin_locks_and_grid_barriers(play):
    kernels = r"""
    VARIABLES()
    static uint32_t *lock_of(T, uint64_t to) { return global(t, 3, to, 8); }
    KERNEL(spin) { // a counter that is guarded by a lock of all threads
        ARGUMENT(uint64_t, to, 0);
        uint32_t *lock = lock_of(t, to);
        while (__atomic_exchange_n(lock, 1, __ATOMIC_ACQUIRE))
            BRANCH();
        uint32_t was = lock[1];
        t->services->turn(t, 2);
        lock[1] = was + 1;
        __atomic_store_n(lock, 0, __ATOMIC_RELEASE);
    }
    KERNEL(chain) { // each block waits for the one that comes after it
        ARGUMENT(uint64_t, to, 0);
        uint32_t *turn = global(t, 3, to, 4);
        while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != t->nctaid[0] - 1 - t->ctaid[0])
            BRANCH();
        __atomic_fetch_add(turn, 1, __ATOMIC_RELEASE);
    }
    KERNEL(grid) { // all threads of all blocks wait for each other
        ARGUMENT(uint64_t, to, 0);
        for (uint32_t i = 1; i <= 3; i++) {
            BARRIER();
            uint32_t *count = global(t, 3, to, 4);
            if (!TID) {
                __atomic_fetch_add(count, 1, __ATOMIC_ACQ_REL);
                while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < i * t->nctaid[0])
                    BRANCH();
            }
            BARRIER();
        }
    }
    MODULE(HAS(spin, 1), HAS(chain, 1), HAS(grid, 1))
    """
    script = r"""
    memory = Memory(2)
    ok(launch(function(module, "spin"), 6, 96, memory))
    assert memory.read() == [0, 6 * 96]
    memory.write([0])
    ok(launch(function(module, "chain"), 20, 1, memory))
    assert memory.read()[0] == 20
    memory.write([0])
    most = c_int()
    ok(cu.cuDeviceGetAttribute(byref(most), 16, 0))
    ok(launch(function(module, "grid"), 32 * most.value, 64, memory, cooperative=True))
    assert memory.read()[0] == 3 * 32 * most.value
    """
    play(kernels, script)
