"""Programs for tests/gpu/probe_suites.py, run with and without probes: `python probe_programs.py NAME`.

Each prints digests of its results, using only operations that give the same bits in every run.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

STEPS = 6


def say(name: str, *arrays: Any) -> None:
    """Print a line with the digest of some arrays, and their first numbers."""
    parts = [np.ascontiguousarray(np.asarray(array)) for array in arrays]
    digest = hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()[:16]
    print(name, digest, *(float(x) for x in parts[0].reshape(-1)[:3]), flush=True)


def run_jax() -> None:
    """Run matrix products, elementwise code, reductions, a scan, a sort, and training steps."""
    import jax
    import jax.numpy as jnp
    from jax import lax

    keys = jax.random.split(jax.random.key(3), 6)
    a, b = (jax.random.normal(key, (384, 256)) for key in keys[:2])
    say("elementwise", jax.jit(lambda x, y: jnp.tanh(x) * jnp.exp(-y * y) + jnp.where(x > 0, x, y))(a, b))
    say("product", jax.jit(lambda x, y: jax.nn.relu(x @ y.T + 1).sum(0))(a, b))
    say("softmax", jax.jit(lambda x: jax.nn.softmax(x, 1) - jax.nn.logsumexp(x, 1, keepdims=True))(a))
    say("scan", *jax.jit(lambda x: lax.scan(lambda c, r: (c * 0.9 + r, c.sum()), jnp.zeros(256), x))(a))
    say("cumulated", jax.jit(lambda x: jnp.cumsum(x, 0)[::-1])(a))
    say("sorted", jax.jit(lambda x: jnp.sort(x, 1))(a))
    integers = jax.random.randint(keys[2], (1000,), 0, 1 << 20)
    say("integers", jax.jit(lambda x: (x * jnp.uint32(2654435761) ^ x >> 7) % 1000)(integers.astype("uint32")))
    say("loop", jax.jit(lambda x: lax.fori_loop(0, 20, lambda i, y: jnp.roll(y, i) * 0.5 + x, x))(a))
    say(
        "while",
        *jax.jit(lambda x: lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 1, s[1] + s[1] / 7), (0, x)))(a),
    )

    def loss(weights: Any, x: Any) -> Any:
        return ((jnp.tanh(x @ weights[0]) @ weights[1]) ** 2).mean()

    weights = [jax.random.normal(keys[3], (256, 128)) * 0.1, jax.random.normal(keys[4], (128, 8)) * 0.1]
    step = jax.jit(lambda w, x: [v - 0.1 * g for v, g in zip(w, jax.grad(loss)(w, x), strict=True)])
    for _ in range(STEPS):
        weights = step(weights, a)
    say("trained", *weights)


RAW = r"""
extern "C" __global__ void mix(const float *x, unsigned *y, unsigned n) {
    __shared__ float tile[128];
    unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
    tile[threadIdx.x] = i < n ? x[i] : 0;
    __syncthreads();
    if (i < n)
        y[i] = __float_as_uint(tile[127 - threadIdx.x]) * 2654435761u ^ i;
}
"""


def run_cupy() -> None:
    """Run raw, elementwise, fused and reduction kernels, matrix products, and sorts."""
    import cupy as cp

    random = np.random.default_rng(5)
    a, b = (cp.asarray(random.standard_normal((300, 200), dtype=np.float32)) for _ in range(2))
    y = cp.zeros(1000, cp.uint32)
    cp.RawKernel(RAW, "mix")((8,), (128,), (a.reshape(-1), y, np.uint32(1000)))
    say("raw", y.get())
    square = cp.ElementwiseKernel("T x, T y", "T z", "z = x * x - y", "square_less")
    say("elementwise", square(a, b).get())
    say("ufuncs", (cp.sqrt(cp.abs(a)) + cp.sin(b) // 2).get(), cp.maximum(a, b).get())
    l1 = cp.ReductionKernel("T x", "T y", "abs(x)", "a + b", "y = a", "0", "l1norm")
    say("reduced", l1(a, axis=1).get(), a.sum(axis=0).get(), b.max().get().reshape(1))
    say("fused", cp.fuse(kernel_name="fused")(lambda x, y: x * 2 + cp.exp(-y))(a, b).get())
    say("product", (a @ b.T).get())
    say("sorted", cp.sort(a, axis=1).get(), cp.argsort(b, axis=1).get())
    say("cumulated", cp.cumsum((a * 100).astype(cp.int32), axis=0).get())


def run_numba() -> None:
    """Run kernels with shared memory, atomics, a shuffle reduction, and a tiled matrix product."""
    from numba import cuda, float32

    @cuda.jit  # type: ignore[misc]
    def histogram(values: Any, bins: Any) -> None:
        for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
            cuda.atomic.add(bins, values[i] % bins.size, 1)

    @cuda.jit  # type: ignore[misc]
    def product(a: Any, b: Any, c: Any) -> None:
        one, two = cuda.shared.array((16, 16), float32), cuda.shared.array((16, 16), float32)
        x, y, column, row = cuda.threadIdx.x, cuda.threadIdx.y, *cuda.grid(2)
        total = float32(0)
        for k in range(0, a.shape[1], 16):
            one[y, x], two[y, x] = a[row, k + x], b[k + y, column]
            cuda.syncthreads()
            for i in range(16):
                total += one[y, i] * two[i, x]
            cuda.syncthreads()
        c[row, column] = total

    random = np.random.default_rng(6)
    values, bins = random.integers(0, 1 << 30, 5000, np.int32), np.zeros(64, np.int32)
    histogram[4, 128](values, bins)
    say("histogram", bins)
    a, b, c = random.standard_normal((64, 48), np.float32), random.standard_normal((48, 32), np.float32), None
    c = np.zeros((64, 32), np.float32)
    product[(2, 4), (16, 16)](a, b, c)
    say("product", c)


def run_train() -> None:
    """Run training steps of a compiled model that uses only deterministic operations; the losses are compared."""
    os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    import torch
    from torch import nn

    torch.use_deterministic_algorithms(True)
    torch.manual_seed(2)

    class Block(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)
            self.mlp = nn.Sequential(
                nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
            x = x + self.out((q @ k.transpose(1, 2) / q.shape[-1] ** 0.5).softmax(-1) @ v)
            return x + self.mlp(x)

    device = os.environ.get("PROGRAM_DEVICE", "cuda")
    model = nn.Sequential(*(Block(128) for _ in range(3)), nn.Linear(128, 16)).to(device)
    compiled = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    x, y = torch.randn(4, 64, 128, device=device), torch.randn(4, 64, 16, device=device)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(compiled(x), y)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        print("loss", loss.item())
    say("weights", *(p.detach().cpu().numpy() for p in model.parameters()))


def run_triton() -> None:
    """Run the kernels of probe_workload.py."""
    import probe_workload

    probe_workload.run_triton()


def run_nccl() -> None:
    """Run collective operations on one or two GPUs in one process, through the C functions of PyTorch's NCCL."""
    import torch

    gpus = min(2, torch.cuda.device_count())
    torch.zeros(1, device="cuda")
    folders = [Path(torch.__file__).parent / "lib", *(Path(p) / "nvidia" / "nccl" / "lib" for p in sys.path)]
    library = next((str(f / "libnccl.so.2") for f in folders if (f / "libnccl.so.2").exists()), "libnccl.so.2")
    nccl = ctypes.CDLL(library)

    def ok(status: int) -> None:
        assert status == 0, f"NCCL: {status}"

    comms = (ctypes.c_void_p * gpus)()
    ok(nccl.ncclCommInitAll(comms, gpus, (ctypes.c_int * gpus)(*range(gpus))))
    values = [torch.arange(100_000, dtype=torch.float32, device=f"cuda:{i}") % 1000 + i for i in range(gpus)]
    address = ctypes.c_void_p
    FLOAT, SUM, MAX, HOST = 7, 0, 2, 1  # from nccl.h

    def all_of(call: Any) -> list[torch.Tensor]:
        out = [torch.zeros_like(v) for v in values]
        for i in range(gpus):
            torch.cuda.synchronize(i)
        ok(nccl.ncclGroupStart())
        for i in range(gpus):
            call(i, address(values[i].data_ptr()), address(out[i].data_ptr()), address(comms[i]))
        ok(nccl.ncclGroupEnd())
        for i in range(gpus):
            torch.cuda.synchronize(i)
        return out

    count, none = ctypes.c_size_t(values[0].numel()), ctypes.c_void_p()
    scale, operation = ctypes.c_float(3), [ctypes.c_int() for _ in range(gpus)]
    for i in range(gpus):
        ok(
            nccl.ncclRedOpCreatePreMulSum(
                ctypes.byref(operation[i]), ctypes.byref(scale), FLOAT, HOST, address(comms[i])
            )
        )
    calls = {
        "sum": lambda i, x, y, comm: ok(nccl.ncclAllReduce(x, y, count, FLOAT, SUM, comm, none)),
        "max": lambda i, x, y, comm: ok(nccl.ncclAllReduce(x, y, count, FLOAT, MAX, comm, none)),
        "scaled": lambda i, x, y, comm: ok(nccl.ncclAllReduce(x, y, count, FLOAT, operation[i], comm, none)),
        "broadcast": lambda i, x, y, comm: ok(nccl.ncclBroadcast(x, y, count, FLOAT, 0, comm, none)),
    }
    both = sum(v.cpu().double() for v in values)
    wanted = {"sum": both, "max": values[-1].cpu(), "scaled": 3 * both, "broadcast": values[0].cpu()}
    for name, call in calls.items():
        for _ in range(3):
            found = all_of(call)
        assert all(torch.equal(one.cpu().double(), wanted[name].double()) for one in found), name
        say(name, *(one.cpu().numpy() for one in found))
    for comm in comms:
        ok(nccl.ncclCommDestroy(address(comm)))


PROGRAMS = {name[4:]: value for name, value in list(globals().items()) if name.startswith("run_")}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]]()
