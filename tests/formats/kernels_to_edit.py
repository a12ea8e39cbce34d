"""Kernels whose cubins are edited by tests, compiled by ptxas of CUDA 13 and 12, and nvdisasm's listing of a cubin."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from tests import cuda
from tests.packages import Package, fetch

ARCHS = ("sm_80", "sm_90", "sm_100", "sm_120")
CUDA_12 = Package("nvidia-cuda-nvcc-cu12==12.9.86", "nvidia/cuda_nvcc/bin/ptxas", "sm_90")
PTX_12 = b".version 8.8"  # the newest version that ptxas of CUDA 12 reads

# Bodies that don't use the last parameter, and their other parameters.
KERNELS = {
    "none": ("", "counter = 1;"),
    "one": ("float *p", "p[threadIdx.x] *= 2;"),
    "two": ("float *p, int n", "if ((int)threadIdx.x < n) p[threadIdx.x] *= 2;"),
    "mixed": ("Mixed m, float *p, char c", "if ((int)threadIdx.x < m.a[3]) p[threadIdx.x] *= m.c + c;"),
    "large": ("Large m, float *p", "p[threadIdx.x] = m.a[threadIdx.x];"),
    "sync": (
        "float *p, int n",
        "__shared__ float s[64]; s[threadIdx.x] = p[threadIdx.x]; __syncthreads();"
        "for (int i = 0; i < n; i++) { s[threadIdx.x] += __shfl_xor_sync(~0u, s[threadIdx.x ^ 1], 1);"
        "__syncthreads(); } p[threadIdx.x] = s[threadIdx.x];",
    ),
    "calls": ("int *p", "p[0] = f(p[0]); for (int i = 0; i < p[1]; i++) p[i] = f(p[i]) / p[7];"),
    "maths": ("double *p", "p[0] = sin(p[1]) / p[2];"),
    "jumps": (
        "int *p, int k",
        "int v = p[9]; switch (k) { case 0: v += p[3]; break; case 1: v *= p[7]; break; case 2: v ^= 85;"
        "__syncthreads(); p[3] = v; break; case 3: v /= p[9]; break; case 4: v = __popc(v); p[4] = v; break;"
        "case 5: v = p[v]; break; case 6: v = atomicAdd(p, v); break; case 7: v = __clz(v) * p[11]; break; }"
        "p[threadIdx.x] = v;",
    ),
}
STRAIGHT = ("none", "one")  # kernels without branches, except the last one, to itself
HEAD = """
struct Mixed { int a[5]; char c; };
struct Large { float a[1084]; };
__device__ int counter;
__device__ __noinline__ int f(int x) { return x * x + 1; }
"""


def source(last: str = "") -> str:
    """Return the CUDA C++ of all kernels, each with a last parameter."""
    return HEAD + "\n".join(
        f'extern "C" __global__ void {name}({", ".join(filter(None, (params, last)))}) {{ {body} }}'
        for name, (params, body) in KERNELS.items()
    )


@cache
def compiled(arch: str, last: str = "", old: bool = False) -> bytes:
    """Return the cubin of all kernels, from ptxas of CUDA 13, or 12 if `old`. Skips the test without one."""
    ptx = cuda.nvrtc_compile(source(last), arch.replace("sm", "compute"))
    tool = cuda.tool("ptxas")
    if old:
        tool = fetch(CUDA_12)
        tool.chmod(0o755)
        ptx = re.sub(rb"\.version \S+", PTX_12, ptx)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "in.ptx").write_bytes(ptx)
        subprocess.run([tool, f"-arch={arch}", "in.ptx", "-o", "out"], cwd=folder, check=True)
        return Path(folder, "out").read_bytes()


@cache
def instructions(data: bytes) -> dict[str, list[str]]:
    """Return the instructions of each code section as nvdisasm lists them, without their offsets."""
    text = cuda.disassemble(data)
    found: dict[str, list[str]] = {}
    for part in text.split("//--------------------- .text.")[1:]:
        found[part.split()[0]] = re.findall(r"/\*[0-9a-f]{4,}\*/ +(.*?) *;", part)
    return found
