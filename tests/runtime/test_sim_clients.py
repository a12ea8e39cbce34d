"""Third-party programs on the simulated device: cuda.core, tinygrad, numba-cuda and Triton from PyPI."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.gpu import accounts
from tests.packages import CACHE
from tests.runtime import hooked

TINYGRAD = ("tinygrad==0.14.0",)
BINDINGS = ("cuda-bindings==13.5.0", "cuda-core==1.2.2")
NUMBA = (*BINDINGS, "numba==0.68.1", "numba-cuda==0.30.4")
STOCK = ("numba-cuda[cu13]==0.30.4", "cuda-toolkit==13.5.0")  # the version on PyPI, with nvjitlink
TRITON = ("triton==3.9.0",)
PROLOGUE = """
import site, sys
site.addsitedir(sys.argv[1])  # numba-cuda takes its place in numba by a .pth file
import numpy as np

def same(found, expected):
    print(np.asarray(found).tobytes().hex())
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
"""
PROBES = ("-p", "gmem_bytes", "-p", "block_sched")


def install(packages: tuple[str, ...]) -> Path:
    """Return a folder with the packages, for PYTHONPATH; NVIDIA's compiler is the tests' own."""
    folder = CACHE / "-".join(package.replace("==", "-") for package in packages)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".done").exists():
            pip = [sys.executable, "-m", "pip", "install", "--retries=1", "--timeout=15", "-qq", "--target", folder]
            done = subprocess.run([*pip, *packages], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"no packages: {done.stderr.strip().rpartition(chr(10))[2][:200]}")
            (folder / ".done").touch()
    return folder


@pytest.fixture
def play(tmp_path):
    """Run a script with packages; it must exit with 0. With probes it runs again, and must compute the same."""

    def run(packages: tuple[str, ...], script: str, probes: bool = False, **env: str) -> None:
        folder = install(packages)
        driver = {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim"), "PYTHONPATH": str(folder), "GPT_SIM_RUN": "all"}
        env = os.environ | driver | {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)} | env
        file = tmp_path / "script.py"  # numba reads the source of functions
        file.write_text(PROLOGUE + dedent(script))
        line = [sys.executable, "-W", "ignore", file, folder]
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
        if probes:
            before = hooked.command("run", "-o", tmp_path / "t.mp", "--device", "sim", *PROBES, "--")
            again = subprocess.run([*before, *line], env=env, capture_output=True, text=True, timeout=600, check=False)
            assert (again.returncode, again.stdout) == (0, done.stdout), again.stderr
            found = accounts.account_all(tmp_path)
            assert found.probed and not found.wrong and not found.lost, found
            assert not found.unprobed, found.unprobed

    return run


@pytest.mark.full
def test_cuda_core(play):
    script = """
    from cuda.bindings import driver
    from cuda.core import Device, EventOptions, LaunchConfig, Program, ProgramOptions, launch
    device = Device(0)
    device.set_current()
    properties = [getattr(device.properties, name) for name in dir(device.properties) if name[0] != "_"]
    assert len(properties) > 100 and device.compute_capability == (9, 0)
    code = 'extern "C" __global__ void add(float *a, float b) { a[threadIdx.x] += b; }'
    program = Program(code, "c++", ProgramOptions(arch="sm_90"))
    kernel = program.compile("ptx").get_kernel("add")
    assert kernel.num_arguments == 2 and kernel.attributes.max_threads_per_block == 1024
    assert kernel.occupancy.max_active_blocks_per_multiprocessor(256, 0) == 8
    stream = device.create_stream()
    buffer = device.allocate(128, stream=stream)
    buffer.fill(0, stream=stream)
    before, after = (stream.record(options=EventOptions(timing_enabled=True)) for _ in range(2))
    launch(stream, LaunchConfig(grid=1, block=32), kernel, buffer, np.float32(2))
    after.sync()
    assert after - before >= 0
    graph = device.create_graph_builder().begin_building()
    for _ in range(3):
        launch(graph, LaunchConfig(grid=1, block=32), kernel, buffer, np.float32(2))
    graph.end_building().complete().launch(stream)
    values = np.zeros(32, np.float32)
    assert driver.cuMemcpyDtoHAsync(values, buffer.handle, 128, stream.handle) == (0,)
    stream.sync()
    same(values, np.full(32, 8))
    buffer.close(stream)
    """
    play(BINDINGS, script, probes=True)


@pytest.mark.full
def test_a_product_of_tinygrad(play):
    script = """
    from tinygrad import Tensor
    a, b = (np.arange(start, start + 64, dtype=np.float32).reshape(8, 8) for start in (0, 5))
    same((Tensor(a) @ Tensor(b)).numpy(), a @ b)
    """
    play(TINYGRAD, script, DEV="CUDA:PTX")


@pytest.mark.full
def test_tinygrad(play):
    play(
        TINYGRAD,
        """
    from tinygrad import Tensor, TinyJit, nn
    Tensor.manual_seed(1)
    random = np.random.default_rng(1)
    a, b = (random.standard_normal((40, 40), dtype=np.float32) for _ in range(2))
    same((Tensor(a) @ Tensor(b)).numpy(), a @ b)
    softmax = np.exp(a - a.max(1, keepdims=True))
    same(Tensor(a).softmax().numpy(), softmax / softmax.sum(1, keepdims=True))
    image, weights = random.standard_normal((3, 9, 9), np.float32), random.standard_normal((4, 3, 3, 3), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (1, 2))
    same(Tensor(image[None]).conv2d(Tensor(weights)).numpy()[0], np.einsum("cyxij,ocij->oyx", windows, weights))

    @TinyJit
    def twice(x):
        return (x + x).realize()

    for _ in range(4):  # the last ones launch a graph
        same(twice(Tensor(a).realize()).numpy(), a + a)

    class Block:
        def __init__(self, size):
            self.norm, self.first, self.last = nn.LayerNorm(size), nn.Linear(size, 3 * size), nn.Linear(size, size)

        def __call__(self, x):
            q, k, v = self.first(self.norm(x)).chunk(3, dim=-1)
            return x + self.last(q.scaled_dot_product_attention(k, v))

    def reference(block, x):
        get = lambda tensor: tensor.numpy().astype(np.float64)
        y = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
        y = y * get(block.norm.weight) + get(block.norm.bias)
        q, k, v = np.split(y @ get(block.first.weight).T + get(block.first.bias), 3, axis=-1)
        scores = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
        y = scores / scores.sum(-1, keepdims=True) @ v
        return x + y @ get(block.last.weight).T + get(block.last.bias)

    block, x = Block(16), random.standard_normal((1, 5, 16), dtype=np.float32)
    same(block(Tensor(x)).numpy(), reference(block, x.astype(np.float64)))

    weight = Tensor(a[:4])  # one step of w -= 0.1 * d(mean((x w^T)^2))/dw
    optimizer = nn.optim.SGD([weight], lr=0.1)
    (Tensor(b) @ weight.T).square().mean().backward()
    optimizer.step()
    same(weight.numpy(), a[:4] - 0.1 * 2 * (b @ a[:4].T).T @ b / (40 * 4))
    """,
        probes=True,
        DEV="CUDA:PTX",
        TRAINING="1",
    )


@pytest.mark.full
def test_numba_cuda(play):
    script = """
    from numba import cuda, float32
    assert "numba_cuda" in cuda.__file__
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free <= total and cuda.get_current_device().compute_capability == (9, 0)

    @cuda.jit
    def reverse_and_sum(values, reversed_, sums):
        shared = cuda.shared.array(64, float32)
        thread = cuda.threadIdx.x
        shared[thread] = values[thread]
        cuda.syncthreads()
        value = shared[63 - thread]
        reversed_[thread] = value
        for step in (16, 8, 4, 2, 1):
            value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
        if thread % 32 == 0:
            cuda.atomic.add(sums, 0, value)

    values = np.arange(64, dtype=np.float32)
    stream, before, after = cuda.stream(), cuda.event(), cuda.event()
    with cuda.pinned(values):
        on_device = cuda.to_device(values, stream=stream)
        reversed_, sums = cuda.device_array_like(values), cuda.to_device(np.zeros(1, np.float32))
        before.record(stream)
        reverse_and_sum[1, 64, stream](on_device, reversed_, sums)
        after.record(stream)
        after.synchronize()
    assert before.elapsed_time(after) >= 0
    same(reversed_.copy_to_host(), values[::-1])
    same(sums.copy_to_host(), [values.sum()])
    managed = cuda.managed_array(8, np.float32)
    managed[:] = 3
    same(cuda.to_device(np.array(managed)).copy_to_host(), np.full(8, 3))
    """
    play(NUMBA, script, probes=True)


@pytest.mark.full
def test_numba_cuda_as_pypi_has_it_says_what_to_do(tmp_path):
    """numba-cuda runs in its own environment, where nvjitlink can be found."""
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [python, "-m", "pip"]
    done = subprocess.run([*pip, "install", "--retries=1", "-qq", *STOCK], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no packages: {done.stderr.strip().rpartition(chr(10))[2][:200]}")
    file = tmp_path / "saxpy.py"
    file.write_text(PROLOGUE + dedent(SAXPY))
    env = os.environ | {"GPT_SIM_RUN": "all", "HOME": str(tmp_path)}
    line = hooked.command(
        "run", "-f", "-o", tmp_path / "t.mp", "--device", "sim", "--", python, "-W", "ignore", file, tmp_path
    )
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)
    said = [line for line in done.stderr.splitlines() if line.startswith("libcuda.so.1: ")]
    assert done.returncode and len(said) == 1, done.stderr
    assert "only code for sm_90; --device sim runs PTX (" in said[0]
    assert "numba-cuda: pip uninstall nvidia-nvjitlink" in said[0]
    subprocess.run([*pip, "uninstall", "-qq", "-y", "nvidia-nvjitlink"], check=True)
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr


SAXPY = """
    import math
    from numba import cuda, float32, int32, vectorize
    from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

    @cuda.jit
    def saxpy(a, x, y):
        i = cuda.grid(1)
        if i < x.size:
            y[i] = a * x[i] + y[i]

    x, y = np.arange(100, dtype=np.float32), np.ones(100, dtype=np.float32)
    saxpy[4, 32](np.float32(2), x, y)
    same(y, 2 * x + 1)

    @cuda.jit(device=True)
    def power(value, exponent):
        return math.exp(exponent * math.log(value))

    @cuda.jit(fastmath=True)
    def squares(values, count):
        for i in range(cuda.grid(1), values.size, cuda.gridsize(1)):
            values[i] = power(values[i], 2.0)
            cuda.atomic.add(count, 0, 1)

    values, count = np.arange(1, 200, dtype=np.float64), np.zeros(1, np.int32)
    squares[2, 64](values, count)
    same(values, np.arange(1, 200, dtype=np.float64) ** 2)
    same(count, [199])

    @cuda.reduce
    def total(a, b):
        return a + b

    assert total(np.arange(1000, dtype=np.int64)) == 499500

    @vectorize([float32(float32, float32)], target="cuda")
    def hypotenuse(a, b):
        return math.sqrt(a * a + b * b)

    same(hypotenuse(x, x + 1), np.hypot(x, x + 1))

    @cuda.jit
    def tile(a, b, c):
        left, right = cuda.shared.array((8, 8), float32), cuda.shared.array((8, 8), float32)
        row, column = cuda.grid(2)
        i, j = cuda.threadIdx.x, cuda.threadIdx.y
        sum_ = float32(0)
        for k in range(a.shape[1] // 8):
            left[i, j], right[i, j] = a[row, 8 * k + j], b[8 * k + i, column]
            cuda.syncthreads()
            for n in range(8):
                sum_ += left[i, n] * right[n, j]
            cuda.syncthreads()
        c[row, column] = sum_

    a, b = (np.random.default_rng(seed).random((16, 16), dtype=np.float32) for seed in (1, 2))
    c = np.zeros((16, 16), np.float32)
    tile[(2, 2), (8, 8)](a, b, c)
    same(c, a @ b)

    @cuda.jit
    def draw(states, out):
        out[cuda.grid(1)] = xoroshiro128p_uniform_float32(states, cuda.grid(1))

    out = cuda.device_array(64, np.float32)
    draw[2, 32](create_xoroshiro128p_states(64, seed=1), out)
    assert 0.3 < out.copy_to_host().mean() < 0.7
"""


@pytest.mark.full
def test_triton(play):
    script = """
    from tests.runtime import triton_kernels
    triton_kernels.main()
    """
    play(TRITON, script, probes=True, PYTHONPATH=f"{install(TRITON)}:{hooked.ROOT}")
