"""Measure the cost of probes in six Triton kernels that they weren't tuned for: each kernel runs with and without each
probe.

    light.py make OUT NAME=CHECKOUT...    weaves with the probes and weaver of each checkout; needs triton, but no GPU
    light.py run OUT                      runs the results on the first GPU, prints a table, and leaves all times in
                                          light.json; needs only numpy

Kernels and shapes are fixed here. A time covers 20 launches in a row, between two events. Each round times all
versions of a kernel one after the other, in varying order; the result is the median over the rounds. The plain kernel
is loaded twice, and differences smaller than the one between its two medians mean nothing.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import random
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
THREE = ("block_sched", "gmem_bytes", "tensorop_count")
# These are also measured with most blocks or warps left out.
SAMPLED = (("bank_conflict",), ("program_progress",), ("warp_progress",))
MAPS = tuple((str(Path(__file__).with_name(f"light_{kind}.toml")),) for kind in ("histogram", "table"))
PROBES = (("block_sched",), ("warp_sched",), ("gmem_bytes",), ("tensorop_count",), THREE, *SAMPLED, *MAPS)
ROUNDS, TIMES = 40, 20
N = 1 << 24
SHAPES: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {  # grid, and arguments; `p` is a buffer of N elements
    "vadd": ((N // 1024,), ("p", "p", "p", N)),
    "gather": ((N // 256,), ("p", "i", "p", N)),
    "softmax": ((8192,), ("p", "p", 1024, 1000)),
    "layer_norm": ((4096,), ("p", "p", "p", "p", "p", 2048, 2048, 1e-5)),
    "transpose": ((32, 32), ("p", "p", 2048, 2048)),
    "matmul": ((16, 16), ("p", "p", "p", 1024, 1024, 1024, 1024, 1024, 1024)),
}
WEAVE = """
import sys, pickle
from gpt.base.errors import GptError
from gpt.probe.plan.maps import make_map
from gpt.probe.ptx.weave import weave
from gpt.probe.read import load
from gpt.trace.buffers import MapLayout
ptx, name, probes = pickle.load(sys.stdin.buffer)
files = [load.load_probes(load.find_probe(probe)) for probe in probes]
try:
    woven = weave(ptx, name, files)
    made = woven.data, [make_map(n, m) for n, m in enumerate(woven.maps)], len(woven.params)
except GptError:  # a kernel without what the probe looks for, or a checkout without such maps
    made = None
pickle.dump(made, sys.stdout.buffer)
"""


def size_of(one: dict[str, Any]) -> tuple[str | None, int]:
    """Return the level of a map's units and the size of one in bytes, or no level and the size of the whole buffer."""
    if "stored" in one:
        return None, 512 + one["capacity"] * 32
    if one["type"] == "log":
        return None, 8 + one["capacity"] * (8 + one["stride"])
    unit = one.get("head", 8) + one["capacity"] * one["stride"]
    return (None, one["copies"] * unit) if "copies" in one else (one["level"], unit)


def told_as(probe: str) -> str:
    """Return the name of a probe, or of a probe's file."""
    return Path(probe).stem


def is_aligned(argument: Any) -> bool:
    """Return whether Triton's launcher would mark this argument as a multiple of 16 for the compiler."""
    return isinstance(argument, str) or (isinstance(argument, int) and argument % 16 == 0)


def make(out: Path, checkouts: dict[str, str]) -> None:
    """Compile the kernels, weave the probes, and save the cubins and their buffer sizes."""
    sys.path.insert(0, str(ROOT))
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from tests import cuda
    from tests.gpu.light_gather import gather
    from tests.tally.triton_kernels import JOBS, P32

    jobs = {
        "vadd": JOBS["add"],
        "gather": (gather, {"x": P32, "at": "*i32", "out": P32, "n": "i32"}, {"BLOCK": 256}, {}, 90),
        **{name: JOBS[name] for name in ("softmax", "layer_norm", "transpose")},
        "matmul": JOBS["matmul_half"],
    }
    made: dict[str, Any] = {}
    for job, (kernel, types, constants, options, _) in jobs.items():
        names = list(kernel.arg_names)
        given = dict(zip(types, SHAPES[job][1], strict=True))
        aligned = {(names.index(key),): [["tt.divisibility", 16]] for key, one in given.items() if is_aligned(one)}
        source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants, aligned)
        compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
        meta = compiled.metadata
        ptx = compiled.asm["ptx"].encode()
        threads, versions = 32 * meta.num_warps, {}

        def assemble(text: bytes) -> bytes:
            (out / "k.ptx").write_bytes(text)
            cuda.run("ptxas", "-arch=sm_90a", out / "k.ptx", "-o", out / "k.cubin")
            return (out / "k.cubin").read_bytes()

        versions["plain", ()] = versions["plain2", ()] = (assemble(ptx), [])
        for probes in PROBES:
            for name, checkout in checkouts.items():
                env = os.environ | {"PYTHONPATH": checkout}  # has precedence over the installed package
                task = pickle.dumps((ptx, meta.name, probes))
                line = [sys.executable, "-c", WEAVE]
                done = subprocess.run(line, input=task, capture_output=True, env=env, check=True, cwd=checkout)
                if (woven := pickle.loads(done.stdout)) is None:
                    continue
                data, maps, params = woven
                versions[name, probes] = (assemble(data), [size_of(one) for one in maps])
        made[job] = (meta.name, threads, meta.shared, params, versions)
    (out / "light.pkl").write_bytes(pickle.dumps(made))


class Gpu:
    """The first GPU, used through the driver API alone."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()

    def call(self, name: str, *args: Any) -> None:
        if status := getattr(self.lib, name)(*args):
            raise RuntimeError(f"{name}: {status}")

    def memory(self, size: int) -> ctypes.c_uint64:
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 256)))
        self.call("cuMemsetD8_v2", address, ctypes.c_ubyte(0), ctypes.c_size_t(max(size, 256)))
        return address

    def load(self, cubin: bytes, name: str, shared: int) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        self.call("cuFuncSetAttribute", function, 8, shared)
        return function

    def time(self, launch: Any, times: int = TIMES, stream: Any = None) -> float:
        """Return the microseconds of a launch, over several launches in a row after another one."""
        events = ctypes.c_void_p(), ctypes.c_void_p()
        for event in events:
            self.call("cuEventCreate", ctypes.byref(event), 0)
        launch()
        self.call("cuEventRecord", events[0], stream)
        for _ in range(times):
            launch()
        self.call("cuEventRecord", events[1], stream)
        self.call("cuEventSynchronize", events[1])
        ms = ctypes.c_float()
        self.call("cuEventElapsedTime", ctypes.byref(ms), *events)
        for event in events:
            self.call("cuEventDestroy_v2", event)
        return ms.value * 1000 / times


def measure(gpu: Gpu, job: str, made: Any, data: dict[str, ctypes.c_uint64]) -> dict[Any, list[float]]:
    """Return the time of each version of a kernel in each round, in us."""
    name, threads, shared, params, versions = made
    grid, given = SHAPES[job]
    blocks = grid[0] * (grid[1] if len(grid) > 1 else 1)
    values: list[Any] = []
    launches: dict[Any, Any] = {}
    for number, one in enumerate(given):
        buffer = {"i": "index", "p": f"p{number}"}.get(str(one))
        kind = ctypes.c_float if isinstance(one, float) else ctypes.c_int32
        values.append(data[buffer] if buffer else kind(one))
    values += [ctypes.c_uint64(0)] * (params - len(values))
    for key, (cubin, sizes) in versions.items():
        function = gpu.load(cubin, name, shared)
        units = {"thread": threads, "warp": threads // 32, "block": 1}
        added = [gpu.memory((blocks * units[level] if level else 1) * unit) for level, unit in sizes]
        every = [*values, *added]
        pointers = (ctypes.c_void_p * len(every))(*(ctypes.addressof(value) for value in every))

        def launch(function: Any = function, pointers: Any = pointers, every: Any = every) -> None:
            gpu.call("cuLaunchKernel", function, *(*grid, 1, 1)[:3], threads, 1, 1, shared, None, pointers, None)

        launches[key] = launch
    found: dict[Any, list[float]] = {key: [] for key in launches}
    for _ in range(ROUNDS):
        order = list(launches)
        random.shuffle(order)
        for key in order:
            found[key].append(gpu.time(launches[key]))
    return found


def run(out: Path) -> None:
    """Measure all kernels and print a table of ratios."""
    import numpy as np

    gpu, made = Gpu(), pickle.loads((out / "light.pkl").read_bytes())
    data = {f"p{number}": gpu.memory(4 * N) for number in range(6)} | {"index": gpu.memory(4 * N)}
    index = np.random.default_rng(1).permutation(N).astype(np.int32).tobytes()
    gpu.call("cuMemcpyHtoD_v2", data["index"], index, ctypes.c_size_t(len(index)))
    ratios: dict[Any, list[float]] = {}
    raw: dict[str, dict[str, list[float]]] = {}
    print(f"{gpu.name}: {ROUNDS} rounds of {TIMES} launches; ratio to plain")
    for job in SHAPES:
        measured = measure(gpu, job, made[job], data)
        raw[job] = {" ".join([key[0], *map(told_as, key[1])]): rounds for key, rounds in measured.items()}
        times = {key: statistics.median(rounds) for key, rounds in measured.items()}
        plain = times["plain", ()]
        names = [key for key in times if key[0] != "plain"]
        for key in names:
            ratios.setdefault(key, []).append(times[key] / plain)
        told = "  ".join(f"{key[0]}:{'+'.join(map(told_as, key[1]))[:22]} {times[key] / plain:.3f}" for key in names)
        print(f"{job:12} {plain:8.2f} us  {told}", flush=True)
    for key, found in ratios.items():
        name = f"{key[0]} {', '.join(map(told_as, key[1]))}"
        print(f"{name:60} mean {statistics.mean(found):.4f}  worst {max(found):.4f}")
    path = Path(os.environ.get("GPT_GPU_OUT", out)) / "light.json"
    path.write_text(json.dumps({"gpu": gpu.name, "us": raw}, indent=1) + "\n")


if __name__ == "__main__":
    folder = Path(sys.argv[2])
    if sys.argv[1] == "make":
        make(folder, dict(word.split("=", 1) for word in sys.argv[3:]))
    else:
        run(folder)
