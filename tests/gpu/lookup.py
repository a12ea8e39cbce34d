"""Time a kernel's first look-up under gpt-hook -p, with a cold, a warm and a cached pipeline, and time ptxas alone.

    python tests/gpu/lookup.py [--device sim]

Run by tests/gpu/run.sh. On the simulated device, the pipeline's cubins aren't loaded, so only the time until ptxas is
done is measured.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "gpt" / "_runtime" / "gpt-hook"
OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
SIM = "sim" in sys.argv
SIZES = (20, 200)  # KB of PTX
KERNELS = 8  # modules of each size, with one kernel each
PROBES = ("block_sched", "gmem_bytes")
SLOWER, CACHED = 150, 5  # limits in ms: a warm look-up beyond the time of ptxas itself, and a cached look-up
Row = dict[str, Any]

# Loads the module of each file and looks up its kernel; prints the milliseconds of each look-up.
PROGRAM = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def ok(status):
    assert status == 0, status
context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
ok(cuda.cuInit(0))
ok(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
ok(cuda.cuCtxSetCurrent(context))
for path in sys.argv[1:]:
    text = open(path, "rb").read() + b"\\0"
    ok(cuda.cuModuleLoadData(ctypes.byref(module), text))
    name = path.rpartition("/")[2].partition(".")[0].encode()
    start = time.perf_counter()
    ok(cuda.cuModuleGetFunction(ctypes.byref(function), module, name))
    print((time.perf_counter() - start) * 1e3)
"""


# Do this with modules linked by the driver, whose output has no PTX.
LINKED = PROGRAM.replace(
    "    ok(cuda.cuModuleLoadData(ctypes.byref(module), text))\n",
    "    state, image = ctypes.c_void_p(), ctypes.c_void_p()\n"
    "    ok(cuda.cuLinkCreate_v2(0, None, None, ctypes.byref(state)))\n"
    "    ok(cuda.cuLinkAddData_v2(state, 1, text, ctypes.c_size_t(len(text)), b'k', 0, None, None))\n"
    "    ok(cuda.cuLinkComplete(state, ctypes.byref(image), None))\n"
    "    ok(cuda.cuModuleLoadData(ctypes.byref(module), image))\n",
)


def write_kernel(path: Path, size: int, seed: int) -> None:
    """Write about `size` KB of PTX: loads and stores with arithmetic between, none of which can be optimized away."""
    lines = []
    while sum(map(len, lines)) < size << 10:
        n = len(lines)
        lines.append(
            f"    ld.global.f32 %f1, [%rd1+{4 * (n % 1000)}];\n    fma.rn.f32 %f2, %f1, %f2, 0f3F{seed:02X}{n:04X};\n"
            f"    mad.lo.s32 %r1, %r1, {2 * n + 3}, %r2;\n    xor.b32 %r2, %r2, %r1;\n"
            f"    st.global.f32 [%rd1+{4 * (n % 1000)}], %f2;\n"
        )
    path.write_text(
        f".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry {path.stem}(.param .u64 to)\n{{\n"
        "    .reg .b64 %rd<2>;\n    .reg .f32 %f<3>;\n    .reg .b32 %r<3>;\n"
        "    ld.param.u64 %rd1, [to];\n    mov.f32 %f2, 0f3F800000;\n    mov.u32 %r1, %tid.x;\n    mov.u32 %r2, 1;\n"
        + "".join(lines)
        + "    st.global.u32 [%rd1], %r2;\n    ret;\n}\n"
    )


def look_up(files: list[Path], probe: str, folder: Path, keep: str = "", program: str = PROGRAM) -> list[float]:
    """Return the time of each look-up in a run, in ms."""
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "GPT_KEEP": keep}
    env["PATH"] = f"{ROOT / 'bin'}{os.pathsep}{ROOT / '.venv' / 'bin'}{os.pathsep}{env['PATH']}"
    env |= {"GPT_SIM_RUN": "none"}  # don't measure the simulated device's compiler
    line = [HOOK, "run", "-q", "-f", "-o", folder / "t.mp", "--wait", "300"]
    if SIM:
        pipeline = f"gpt-extract --ptx | gpt-ptx-probe -p {probe} | gpt-asm --arch sm_90"
        line += ["--device", "sim", "--jit", pipeline]
    else:
        line += ["-p", probe]
    line += ["--", sys.executable, "-c", program, *files]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        raise SystemExit(f"lookup: error: status {done.returncode}: {done.stderr[-1000:]}")
    return [float(word) for word in done.stdout.split()]


def find_tool() -> tuple[str, str]:
    """Return the ptxas that gpt-asm uses, and the architecture."""
    which = subprocess.run([ROOT / "bin/gpt-asm", "--which"], capture_output=True, text=True, check=True)
    if SIM:
        return which.stdout.split(" (")[0], "sm_90"
    line = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    found = subprocess.run(line, capture_output=True, text=True, check=True).stdout.split()[0]
    return which.stdout.split(" (")[0], f"sm_{found.replace('.', '')}"


def time_ptxas(tool: str, arch: str, kept: Path, folder: Path) -> list[float]:
    """Return the time that ptxas itself takes per kernel with probes, run as in gpt-asm, in ms."""
    found = []
    for text in sorted(kept.glob("*/probed.ptx")):
        start = time.perf_counter()
        line = [tool, "-v", f"-arch={arch}", text, "-o", folder / "out.cubin"]
        subprocess.run(line, capture_output=True, check=True)
        found.append((time.perf_counter() - start) * 1e3)
    return found


def measure(probe: str, size: int, tool: tuple[str, str], folder: Path) -> Row:
    files = [folder / f"k{probe[0]}{size}_{n}.ptx" for n in range(KERNELS)]
    for n, path in enumerate(files):
        write_kernel(path, size, n)
    shutil.rmtree(folder / "cache", ignore_errors=True)
    first = look_up(files, probe, folder)
    again = look_up(files, probe, folder)
    look_up(files, probe, folder, str(folder / f"kept{probe}{size}"))
    ptxas = time_ptxas(*tool, folder / f"kept{probe}{size}", folder)
    return {
        "probe": probe,
        "kb": size,
        "cold_ms": first[0],
        "warm_ms": statistics.median(first[1:]),
        "warm_max_ms": max(first[1:]),
        "ptxas_ms": statistics.median(ptxas),
        "over_ms": statistics.median(first[1:]) - statistics.median(ptxas),
        "cached_ms": statistics.median(again[1:]),
        "cached_first_ms": again[0],
        "raw": {"first": first, "again": again, "ptxas": ptxas},
    }


def check_linked(folder: Path) -> bool:
    """Return whether the hook finds the PTX of a linked kernel."""
    path = folder / "linked.ptx"
    write_kernel(path, 1, 0)
    look_up([path], "block_sched", folder, str(folder / "kept"), LINKED)
    kept = [found.read_bytes() for found in (folder / "kept").glob("linked.*/original.ptx")]
    return kept == [path.read_bytes()]


def main() -> int:
    tool = find_tool()
    with tempfile.TemporaryDirectory(prefix="gpt-lookup-") as name:
        rows = [measure(probe, size, tool, Path(name)) for probe in PROBES for size in SIZES]
        linked = check_linked(Path(name))
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "lookup.json").write_text(json.dumps({"ptxas": tool[0], "arch": tool[1], "rows": rows}, indent=1) + "\n")
    heads = ("cold_ms", "warm_ms", "ptxas_ms", "over_ms", "cached_ms")
    print(f"{'probe':12} {'KB':>4} " + " ".join(f"{head:>9}" for head in heads))
    wrong = [] if linked else ["a linked kernel's PTX isn't found"]
    for row in rows:
        print(f"{row['probe']:12} {row['kb']:4} " + " ".join(f"{row[head]:9.1f}" for head in heads))
        if row["over_ms"] > SLOWER or row["cached_ms"] > CACHED:
            wrong.append(f"{row['probe']}, {row['kb']} KB")
    print(
        f"lookup: {len(rows)} rows"
        + (f", wrong: {'; '.join(wrong)}" if wrong else ", within the bounds, a linked kernel too")
    )
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
