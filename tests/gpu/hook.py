"""Test gpt-hook on a real GPU: every framework gives the same output and is recorded completely. Measure its cost.

    python tests/gpu/hook.py [programs] [calls] [latency] [loop] [start]

Run by tests/gpu/run.sh; builds the runtime itself (with cc). Frameworks that aren't installed are skipped and reported
as skipped. Raw figures go to hook.json, and the trace of a generation to generate.mp.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("GPT_GPU_OUT", "build/gpu")).resolve()
sys.path.insert(0, str(ROOT))
HOOK = ROOT / "gpt" / "_runtime" / "gpt-hook"
GENERATE = [sys.executable, str(ROOT / "tests" / "gpu" / "generate.py")]
ENV = {**os.environ, "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}

RUNTIME = r"""
#include <cstdio>
#define AT (blockIdx.x * blockDim.x + threadIdx.x)
__global__ void scale(float *x, float by, int n) { if (AT < n) x[AT] *= by; }
__global__ void shift(float *x, float by, int n) { if (AT < n) x[AT] += by; }
int main() {
    const int n = 1 << 20;
    float *x, *y = new float[n];
    for (int i = 0; i < n; i++) y[i] = i;
    cudaMalloc(&x, n * sizeof(float));
    cudaMemcpy(x, y, n * sizeof(float), cudaMemcpyHostToDevice);
    cudaStream_t stream;
    cudaStreamCreate(&stream);
    for (int i = 0; i < 100; i++) {
        scale<<<n / 256, 256, 0, stream>>>(x, 1.01f, n);
        shift<<<n / 256, 256, 0, stream>>>(x, 1, n);
    }
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
    for (int i = 0; i < 10; i++) scale<<<n / 256, 256, 0, stream>>>(x, 0.99f, n);
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < 5; i++) cudaGraphLaunch(exec, stream);
    cudaMemcpyAsync(y, x, n * sizeof(float), cudaMemcpyDeviceToHost, stream);
    cudaStreamSynchronize(stream);
    double sum = 0;
    for (int i = 0; i < n; i++) sum += y[i];
    printf("%s %.8e\n", cudaGetErrorString(cudaDeviceSynchronize()), sum);
}
"""
TRITON = """
import torch, triton, triton.language as tl
@triton.jit
def add(x, y, out, n, B: tl.constexpr):
    i = tl.program_id(0) * B + tl.arange(0, B)
    tl.store(out + i, tl.load(x + i, i < n) + tl.load(y + i, i < n), i < n)
x = torch.arange(100000., device="cuda"); out = torch.empty_like(x)
for _ in range(10):
    add[(98,)](x, x, out, x.numel(), B=1024)
print(out.sum().item())
"""
JAX = """
import jax, jax.numpy as jnp
f = jax.jit(lambda x: jnp.tanh(x @ x).sum())
print(["%.4g" % float(f(jnp.full((256, 256), 0.001 * i))) for i in range(5)])  # XLA chooses its kernels by timing
"""
CUPY = """
import cupy
k = cupy.RawKernel('extern "C" __global__ void twice(float *x) { x[threadIdx.x] *= 2; }', "twice")
x = cupy.arange(128, dtype=cupy.float32)
for _ in range(10):
    k((1,), (128,), (x,))
print(float(x.sum()), float(cupy.sort(cupy.sin(x))[3]))
"""
LOADER = """
import torch
from torch.utils.data import DataLoader
data = [torch.full((64,), float(i)) for i in range(256)]
x = torch.ones(64, device="cuda")
total = 0.0
for batch in DataLoader(data, batch_size=16, num_workers=4, pin_memory=True):  # forked after CUDA began
    total += (batch.cuda(non_blocking=True) * x).sum().item()
print(total)
"""
RANKS = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
x = torch.ones(1000, device="cuda") * (dist.get_rank() + 1)
y = x.sum().cpu()
dist.all_reduce(y)
if dist.get_rank() == 0:
    print(y.item())
dist.destroy_process_group()
"""
CALLS = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdint.h>
#include <string.h>
#include <stdlib.h>
#include <time.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }
#define N 200000
static uint64_t seen;
static int (*stamp)(uint64_t *);
static struct { uint64_t start, duration; uint32_t id; int result; } rows[1 << 16];
static __thread uint64_t began;
struct data { int site; const char *function; const void *params; const int *result; };
// What a tracer does at least: a time stamp at entry and at return, and a row in memory that is used again.
static void callback(void *user, int domain, uint32_t id, const struct data *data) {
    uint64_t now = 1;
    if (stamp) {
        stamp(&now);
        if (data->site == 0)
            began = now;
        else {
            uint32_t at = seen & 0xffff;
            rows[at].start = began, rows[at].duration = now - began, rows[at].id = id, rows[at].result = *data->result;
        }
    }
    seen += now != 0;
}
int main(int argc, char **argv) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int (*init)(unsigned) = dlsym(cuda, "cuInit"), (*device)(int *) = dlsym(cuda, "cuCtxGetDevice");
    int (*retain)(void **, int) = dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = dlsym(cuda, "cuCtxSetCurrent");
    void *context;
    int number;
    if (init(0) || retain(&context, 0) || set(context)) return 1;
    if (argc > 1 && !strcmp(argv[1], "cupti")) {
        void *cupti = dlopen(argv[2], RTLD_NOW), *subscriber;
        if (!cupti) { fprintf(stderr, "%s\n", dlerror()); return 2; }
        int (*subscribe)(void **, void *, void *) = dlsym(cupti, "cuptiSubscribe");
        int (*enable)(uint32_t, void *, int) = dlsym(cupti, "cuptiEnableDomain");
        if (argc > 3) stamp = dlsym(cupti, "cuptiGetTimestamp");
        if (subscribe(&subscriber, (void *)callback, 0) || enable(1, subscriber, 1)) return 3; // the driver API
    }
    for (int i = 0; i < 1000; i++) device(&number);
    double best = 1e9;
    for (int round = 0; round < 5; round++) {
        double start = now();
        for (int i = 0; i < N; i++) device(&number);
        double each = (now() - start) / N;
        best = each < best ? each : best;
    }
    printf("ns %f\n", best);
    if (argc > 1 && !strcmp(argv[1], "cupti") && seen < N) { fprintf(stderr, "no callbacks\n"); return 4; }
}
"""
TOOLKIT = ("usr/local/cuda*/extras/CUPTI/lib64", "usr/local/cuda*/lib64")


def hooked(trace: Path, command: list[str], *options: str) -> list[str]:
    return [str(HOOK), "run", "-qf", "-o", str(trace), *options, "--", *command]


def execute(command: list[str], cores: set[int] | None = None) -> tuple[str, float]:
    start = time.perf_counter()
    pin = (lambda: os.sched_setaffinity(0, cores)) if cores else None
    done = subprocess.run(command, capture_output=True, text=True, env=ENV, timeout=300, preexec_fn=pin)
    seconds = time.perf_counter() - start
    if done.returncode:
        raise RuntimeError(f"{command[:3]}: exit {done.returncode}: {done.stderr[-800:]}")
    return done.stdout, seconds


def programs(folder: Path) -> dict[str, list[str]]:
    """Return the programs of all installed frameworks."""
    found: dict[str, list[str]] = {}
    if shutil.which("nvcc"):
        (folder / "runtime.cu").write_text(RUNTIME)
        for name in ("static", "shared"):
            flags = [f"-cudart={name}", "-arch=sm_90", "-o", str(folder / name)]
            subprocess.run(["nvcc", *flags, str(folder / "runtime.cu")], check=True)
            found[f"nvcc, {name} runtime"] = [str(folder / name)]
    if find_spec("torch"):
        for mode in ("eager", "graph", "compile"):
            found[f"PyTorch, {mode}"] = [*GENERATE, "--mode", mode]
        for name, text in (("loader", LOADER), ("ranks", RANKS)):
            (folder / f"{name}.py").write_text(text)
        found["PyTorch, DataLoader"] = [sys.executable, str(folder / "loader.py")]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--log-dir", str(folder)]
        found["PyTorch, torchrun"] = [*torchrun, str(folder / "ranks.py")]
    for name, package, text in (("Triton", "triton", TRITON), ("JAX", "jax", JAX), ("CuPy", "cupy", CUPY)):
        if find_spec(package):
            (folder / f"{package}_.py").write_text(text)
            found[name] = [sys.executable, str(folder / f"{package}_.py")]
    return found


def read(trace: Path) -> list[dict[str, Any]]:
    from gpt.stream import wire

    with open(trace, "rb") as file:
        return list(wire.read_records(file, str(trace)))


def processes(trace: Path) -> list[Path]:
    """Return a command's traces: NAME, and NAME.PID for its other processes."""
    return [trace, *trace.parent.glob(f"{trace.name}.*")]


def look(trace: Path) -> dict[str, Any]:
    """Return counts of the records in a command's traces."""
    from tests.runtime.hooked import Trace

    total: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    types: Counter[str] = Counter()
    paths = processes(trace)
    for path in paths:
        found = Trace(path)
        launches.update(found.launches)
        types.update(call["type"] for call in found.calls)
        kernels = [call for call in found.calls if call["type"] == "kernel" and call["op"] == "launch"]
        total["unnamed"] += sum(1 for call in kernels if call["result"] == 0 and not call.get("function"))
        total["functions"] += len(found.functions)
        total["ended"] += found.kinds["end"] > 0
        total["bytes"] += path.stat().st_size
    return {
        "calls": sum(types.values()), "launches": sum(launches.values()), "kernels": len(launches),
        "functions": total["functions"], "types": dict(types), "unnamed": total["unnamed"],
        "bytes": total["bytes"], "processes": len(paths), "ended": total["ended"] == len(paths),
    }  # fmt: skip


def look_at_times(trace: Path) -> dict[str, Any]:
    """Return how many rows of a trace should have GPU times, how many have them, and whether the times
    are plausible.
    """
    from tests.runtime.hooked import Trace, rows

    total: Counter[str] = Counter()
    ran_us, late_us = 0.0, []
    for path in processes(trace):
        found = Trace(path)
        us = found.of("header")[0].get("tsc_hz", 10**9) / 1e6
        times = [row for record in found.of("gpu_times") for row in rows(record)]
        total["timed"] += len(times)
        total["timeable"] += sum(
            call["result"] == 0 and (call["op"] == "launch" or call["type"] in ("memcpy", "memset"))
            for call in found.calls
        )
        ran_us += sum(row["duration"] for row in times) / us
        late_us += [(row["begin"] - row["call"]) / us for row in times]
        total["graph_nodes"] += sum(graph["nodes"] for graph in found.of("graph"))
        total["graph_kernels"] += sum(sum(graph["launches"]) for graph in found.of("graph"))
    late = [f(late_us) for f in (min, statistics.median, max)] if late_us else []
    return {
        **{key: total[key] for key in ("timed", "timeable", "graph_nodes", "graph_kernels")},
        "gpu_us": round(ran_us), "begins_us": [round(value, 1) for value in late],
    }  # fmt: skip


def see(folder: Path) -> Iterator[dict[str, Any]]:
    """Run each framework plain and under the hook; yield whether the output is equal, and the trace's counts."""
    for name, command in programs(folder).items():
        row: dict[str, Any] = {"program": name}
        traces = Path(tempfile.mkdtemp(dir=folder))
        try:
            bare, row["bare_s"] = execute(command)
            trace = OUT / "generate.mp" if name == "PyTorch, eager" else traces / "trace.mp"
            out, row["hooked_s"] = execute(hooked(trace, command))
            row |= look(trace)
            row["same"] = out == bare
            timed, _ = execute(hooked(traces / "timed.mp", command, "--gpu-time"))
            row |= look_at_times(traces / "timed.mp")
            quiet, _ = execute(hooked(traces / "quiet.mp", command, "--calls", "none"))
            row["quiet_launches"] = look(traces / "quiet.mp")["launches"]
            row["ok"] = row["same"] and bare == quiet == timed and row["kernels"] > 0 and row["ended"]
            row["ok"] &= row["unnamed"] == 0 and row["quiet_launches"] == row["launches"]
        except Exception as error:
            row |= {"ok": False, "error": str(error)[-500:]}
        yield row


def alternate(ways: dict[str, list[str]], pattern: str, rounds: int) -> dict[str, list[float]]:
    """Run the variants interleaved; return the matches of `pattern` in each run's output."""
    found: dict[str, list[float]] = {way: [] for way in ways}
    cores = set(sorted(os.sched_getaffinity(0))[:4])  # the same cores every time, for a loop that uses one of them
    for number in range(rounds):
        for way in list(ways) if number % 2 else list(ways)[::-1]:
            out, seconds = execute(ways[way], cores)
            match = re.search(pattern, out)
            found[way].append(float(match[1]) if match else seconds)
    return found


def cost_of_calls(folder: Path) -> Iterator[dict[str, dict[str, list[float]]]]:
    """Measure a driver call that does next to nothing, and a CUPTI callback."""
    (folder / "calls.c").write_text(CALLS)
    subprocess.run(["cc", "-O2", "-w", str(folder / "calls.c"), "-o", str(folder / "calls"), "-ldl"], check=True)
    bare = [str(folder / "calls")]
    ways = {
        "bare": bare,
        "recorded": hooked(folder / "t.mp", bare, "--calls=all"),
        "counted": hooked(folder / "t.mp", bare),
        "quiet": hooked(folder / "t.mp", bare, "--calls=none"),
    }
    places = [Path(p) for pattern in TOOLKIT for p in Path("/").glob(pattern)]
    places += [Path(p) / "nvidia" for p in sys.path if p]
    cupti = next((str(f) for p in places for f in sorted(p.glob("**/libcupti.so*"))), None)
    if cupti:
        ways["CUPTI, empty"] = [*bare, "cupti", cupti]
        ways["CUPTI, recorded"] = [*bare, "cupti", cupti, "stamps"]
    yield {"cuCtxGetDevice, ns": alternate(ways, r"ns ([\d.]+)", 7)}


def latency_of_a_launch(folder: Path) -> Iterator[dict[str, dict[str, list[float]]]]:
    """Measure percentiles of the latency of many launches, with a synchronization after every 500."""
    from tests.bench.latency import measure

    for name, ways in measure(folder, "real").items():
        yield {f"launch, {name}, ns": ways}


def cost_of_a_loop(folder: Path) -> Iterator[dict[str, dict[str, list[float]]]]:
    """Measure a decode loop of small launches."""
    if find_spec("torch"):
        bare = [*GENERATE, "--passes", "25"]
        ways = {
            "bare": bare,
            "default": hooked(folder / "t.mp", bare),
            "all calls": hooked(folder / "t.mp", bare, "--calls=all"),
            "with --gpu-time": hooked(folder / "t.mp", bare, "--gpu-time"),
            "quiet": hooked(folder / "t.mp", bare, "--calls=none"),
        }
        yield {"decode loop, ms a token": alternate(ways, r"ms a token ([\d.]+)", 9)}


def cost_of_a_start(folder: Path) -> Iterator[dict[str, dict[str, list[float]]]]:
    """Measure PyTorch's start-up time, up to the end of its first kernel."""
    if find_spec("torch"):
        bare = [sys.executable, "-c", "import torch; print(torch.ones(4, device='cuda').sum().item())"]
        ways = {"bare": bare, "recorded": hooked(folder / "t.mp", bare)}
        yield {"start-up of PyTorch, s": alternate(ways, "(?!)", 5)}


PARTS = {
    "programs": see, "calls": cost_of_calls, "latency": latency_of_a_launch, "loop": cost_of_a_loop,
    "start": cost_of_a_start,
}  # fmt: skip
SHOWN = ("calls", "launches", "kernels", "functions", "unnamed", "quiet_launches", "timed", "timeable", "gpu_us",
         "begins_us", "graph_nodes", "graph_kernels", "same", "error")  # fmt: skip


def show_costs(what: str, ways: dict[str, list[float]]) -> None:
    cost = {way: statistics.median(values) for way, values in ways.items()}
    bare = cost["bare"]
    for way, value in cost.items():
        print(f"{what:26}{way:16}{value:10.4f}  {value - bare:+10.4f}  {100 * (value / bare - 1):+7.2f} %")
        if way.startswith("CUPTI"):
            print(f"{'':26}{(value - bare) / (cost['recorded'] - bare):.1f} times what a recorded call costs")


def main() -> int:
    """Run the named parts, or all; print and save each result as soon as it's known."""
    OUT.mkdir(parents=True, exist_ok=True)
    subprocess.run(["make", "-s", "runtime"], cwd=ROOT, check=True) if not HOOK.exists() else None
    result: dict[str, Any] = {"programs": [], "costs": {}}
    with tempfile.TemporaryDirectory() as name:
        for part in sys.argv[1:] or PARTS:
            for found in PARTS[part](Path(name)):
                if part == "programs":
                    result["programs"].append(found)
                    facts = (f"{key} {found[key]}" for key in SHOWN if key in found)
                    print(f"{'ok' if found['ok'] else 'FAILED':7}{found['program']:22}", *facts)
                else:
                    result["costs"] |= found
                    for what, ways in found.items():
                        show_costs(what, ways)
                (OUT / "hook.json").write_text(json.dumps(result, indent=1))
                sys.stdout.flush()
    failed = sum(not row["ok"] for row in result["programs"])
    print(f"hook: {len(result['programs'])} programs, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    raise SystemExit(main())
