"""If ptxas accepts a whole module, it also assembles each of its kernels alone, with or without probes."""

from __future__ import annotations

import random
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from gpt.probe.ptx.weave import LeftAlone, unweave, weave
from gpt.probe.read.load import find_probe, load_probes
from gpt.ptx.prune import blanked, prune, pruned
from gpt.ptx.scan import scan_module
from tests import cuda
from tests.probe.ptx import modules
from tests.tiers import full

POINTERS = {"pointers", "targets"}  # kernels that call through a pointer are left alone
SOURCE = """
__device__ __constant__ int factor = 3;
__device__ int counter;
static __device__ __forceinline__ int scale(int x) { return x * factor + 1; }
static __device__ __forceinline__ int twice(int x) { return scale(x) + scale(x + 1); }
static __device__ __noinline__ int far(int x) { atomicAdd(&counter, x); return twice(x); }
__global__ void one(int *p) { p[threadIdx.x] = twice(p[threadIdx.x]); }
__global__ void two(int *p) { p[threadIdx.x] = far(p[threadIdx.x]) + scale(2); }
template <typename T> __global__ void three(T *p) {
    __shared__ T t[32]; t[threadIdx.x] = p[threadIdx.x]; __syncthreads();
    p[threadIdx.x] = twice(t[31 - threadIdx.x]); }
template __global__ void three<int>(int *);
template __global__ void three<float>(float *);
"""


def faults(parts, folder, *options):
    """Return ptxas's messages about the texts that it rejects, by name."""

    def assemble(number, name, data):
        path = folder / f"{number}.ptx"
        path.write_bytes(data)
        command = [cuda.tool("ptxas"), *options, "-arch=sm_90", path, "-o", f"{path}.cubin"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return f"{name}: {done.stdout}{done.stderr}" if done.returncode else ""

    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda one: assemble(one[0], *one[1]), enumerate(parts))
    return [fault for fault in found if fault]


def parts(text, probes):
    """Return a module, each of its kernels alone and with probes, and the reasons why the others have no probes."""
    whole = scan_module(text, "m")
    found, left = [("whole", text)], {}
    names = [item.name for item in whole.entries]
    found += [("all but the first", prune(whole, names[1:]))] if names[1:] else []
    for name in names:
        alone = pruned(whole, [name])
        found += [(f"{name} alone", alone.text.encode("latin-1")), (f"{name} in place", blanked(whole, [name]))]
        for probe in probes:
            try:
                woven = weave(alone, name, [load_probes(find_probe(probe))])
            except LeftAlone as error:
                left[name, probe] = error.reason.detail
                continue
            assert unweave(woven.data).decode("latin-1") == alone.text
            found.append((f"{name} with {probe}", woven.data))
    return found, left


def test_every_feature(tmp_path):
    """All features are in one module with two kernels that are woven; the other kernels are left alone for the right
    reason.
    """
    names = [name for name in modules.FEATURES if name not in {*POINTERS, "shadows"}]
    uses = {"kernel1": names[::2], "kernel2": names[1::2], "kernel3": sorted(POINTERS), "kernel4": ["shadows"]}
    found, left = parts(modules.module(uses, random.Random(2)).encode(), ["block_sched", "gmem_bytes"])
    assert not faults(found, tmp_path)
    pointer = "it calls through a pointer, so what it needs when loaded alone is not known"
    assert left == {
        ("kernel3", "block_sched"): pointer,
        ("kernel3", "gmem_bytes"): pointer,
        ("kernel4", "gmem_bytes"): "'shadow', whose name is in 'kernel4', not in a call",
    }


@pytest.mark.parametrize("seed", [1, *map(full, range(2, 60))])
def test_random_modules(tmp_path, seed):
    chance = random.Random(seed)
    text = modules.module(modules.random_uses(chance), chance).encode()
    assert not faults(parts(text, ["dmat", "gmem_bytes"])[0], tmp_path)


@pytest.mark.parametrize("option", ["-lineinfo", full("-G")])
def test_debug_information_of_a_compiler(tmp_path, option):
    text = cuda.nvrtc_compile(SOURCE, "compute_90", [option])
    found, left = parts(text, ["block_sched", "gmem_bytes"])
    assert not faults(found, tmp_path, *(["-g"] if option == "-G" else []))
    assert not left


def test_position_only_in_another_kernel():
    text = modules.module({"kernel1": ["inlined"]}, random.Random(1))
    alone = prune(scan_module(text.encode()), ["kernel1"]).decode()
    assert alone.count("inlined_at") == 1  # with its own position
    assert alone.count("\n.loc 2 8 1 , /* , */ function_name $L__name0+2,\n inlined_at 2 7 1 add") == 1
    both = prune(scan_module(text.encode()), ["kernel0", "kernel1"]).decode()
    assert both.count("inlined_at") == 2
