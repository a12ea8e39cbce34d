"""Try cubins with cut, zeroed or dropped unused kernels on a real driver.

    python tests/lab/drop.py build DIR     # anywhere: compiles, and cuts by the stages in each codec and mode
    python3 tests/lab/drop.py run DIR      # on the GPU (sm_90): Python's standard library and libcuda, nothing else

Without arguments it does both. Every case is loaded in its own process, lazily and eagerly. Kept kernels must leave the
same bytes in memory as the original's. A dropped kernel must not be found. A zeroed kernel must fail when it's
launched. For the large case, load time and device memory of the loaded module are compared with the original's, because
dropping kernels should reduce them. Run once: docs/figures/gpu/drop-h200.tsv.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("GPT_GPU_OUT", "build/gpu"))
ARCH = "sm_90"
BYTES = 1 << 16  # size of the buffer passed to every kernel
TIMES = 15  # number of loads; the median counts

MIXED = """
extern "C" __device__ int printf(const char *, ...);
__constant__ int table[8] = {1, 2, 3, 5, 8, 13, 21, 34};
__device__ int total = 7;
__device__ __noinline__ int helper(int x) { return x * table[x & 7]; }
extern "C" __global__ void shared(int *x, int n) {
    __shared__ int part[64];
    part[threadIdx.x] = helper(x[threadIdx.x]);
    __syncthreads();
    x[threadIdx.x] = part[63 - threadIdx.x] + total;
}
extern "C" __global__ void stack(int *x, int n) {
    int local[64];
    for (int i = 0; i < 64; ++i) local[i] = x[i] ^ (i + n);
    x[threadIdx.x] = local[x[threadIdx.x] & 63];
}
extern "C" __global__ void jumps(int *x, int n) {
    int v = x[threadIdx.x];
    switch (v & 15) {
    case 0: v += 3; break; case 1: v *= 7; break; case 2: v ^= 99; break; case 3: v -= n; break;
    case 4: v <<= 2; break; case 5: v = v / 3; break; case 6: v = helper(v); break; case 7: v = ~v; break;
    case 8: v += total; break; case 9: v %= 11; break; default: v = -v;
    }
    x[threadIdx.x] = v;
}
extern "C" __global__ void prints(int *x, int n) { if (x[threadIdx.x] == -12345) printf("%d\\n", n); x[0] = 4; }
extern "C" __global__ void writes(int *x, int n) { total = n; x[threadIdx.x] = total + table[threadIdx.x & 7]; }
"""
RECURSIVE = """
extern "C" __device__ int turn(int x, int n);
extern "C" __device__ __noinline__ int down(int x, int n) { return n ? turn(x + n, n - 1) : x; }
extern "C" __device__ __noinline__ int turn(int x, int n) { return n ? down(x ^ n, n - 1) : x; }
extern "C" __global__ void recursive(int *x, int n) { x[threadIdx.x] = down(x[threadIdx.x], 9); }
extern "C" __global__ void never(int *x, int n) { x[threadIdx.x] = turn(x[threadIdx.x], 4); }
"""
LARGE = """
template <int N> __device__ __forceinline__ float step(float v, int n) {
    #pragma unroll
    for (int k = 0; k < 24; ++k) v = v * (N + k) + __sinf(v + n) / (k + N + 1.5f);
    return v;
}
template <int N> __global__ void large(float *x, int n) {
    float v = x[threadIdx.x];
    for (int i = 0; i < n; ++i) v = step<N>(v, i) - step<N + 1>(v, n);
    x[threadIdx.x] = v;
}
""" + "".join(f"template __global__ void large<{number}>(float *, int);\n" for number in range(400))
LARGE_USED = "_Z5largeILi7EEvPfi"

# name -> (sources, linked together, kernels used in the first case, and in the second)
SOURCES = {
    "linked": ("users", [["direct"], ["pointer"], ["alone", "plain"]]),
    "mixed": ("mixed", [["shared"], ["stack", "jumps"], ["prints"]]),
    "recursive": ("recursive", [["recursive"]]),
    "large": ("large", [[LARGE_USED]]),
}


# Building


def build(folder: Path) -> None:
    """Write the originals, the stages' results, and cases.json, which lists the cases."""
    sys.path.insert(0, str(ROOT))
    from tests import cuda
    from tests.formats import samples

    folder.mkdir(parents=True, exist_ok=True)
    cubins = {
        "users": samples.linked(ARCH, samples.USERS, samples.FUNCTIONS),
        "mixed": cuda.nvrtc_compile(MIXED, ARCH),
        "recursive": samples.linked(ARCH, RECURSIVE),
        "large": cuda.nvrtc_compile(LARGE, ARCH),
    }
    cases = []
    for name, (source, uses) in SOURCES.items():
        for codec in ("zstd",) if name == "large" else ("none", "lz4", "zstd"):
            original = folder / f"{name}.{codec}.fatbin"
            original.write_bytes(cuda.fatbin([(ARCH, "cubin", cubins[source])], codec))
            for number, used in enumerate(uses):
                cases.append(case(name, codec, "original", original, original, used, number))
                for mode in ("compact",) if name == "large" else ("compact", "hole"):
                    for how in ("zero", "drop"):
                        path = cut(original, folder / f"{name}{number}.{codec}.{mode}.{how}", used, mode, how)
                        # The stages leave a file unchanged if cutting it would save nothing.
                        if path.read_bytes() != original.read_bytes():
                            cases.append(case(name, codec, f"{how} {mode}", path, original, used, number))
                if codec == "none":
                    path = folder / f"{name}{number}.weak.cubin"
                    path.write_bytes(weak(cubins[source], used))
                    cases.append(case(name, codec, "drop weak", path, original, used, number))
    (folder / "cases.json").write_text(json.dumps(cases, indent=1))
    print(f"{len(cases)} cases in {folder}, {sum(f.stat().st_size for f in folder.iterdir()) >> 10} KiB")


def case(name: str, codec: str, how: str, path: Path, original: Path, used: list[str], number: int) -> dict[str, Any]:
    from gpt.formats.cubin import parse_cubin
    from gpt.formats.fatbin import Unpacker
    from gpt.formats.image import parse_image
    from gpt.formats.source import Source

    source = Source(str(original), original.read_bytes())
    (placed,) = parse_image(source).iter_elements()
    kernels = [k["name"] for k in parse_cubin(Unpacker().unpack(source, placed.element)).kernels]
    unused = sorted(set(kernels) - set(used))[number % 2]
    return {"case": f"{name}{number}", "codec": codec, "how": how, "file": path.name, "used": used, "unused": unused,
            "size": path.stat().st_size}  # fmt: skip


def cut(original: Path, out: Path, used: list[str], mode: str, how: str) -> Path:
    """Run the pipeline as a user types it; return the new file."""
    with tempfile.TemporaryDirectory() as work:
        names = Path(work, "names")
        names.write_text("\n".join(used))
        stages = {stage: f"{sys.executable} -c 'from gpt.stages.{stage} import main; raise SystemExit(main())'"
                  for stage in ("extract", "locate", "patch")}  # fmt: skip
        line = (
            f"set -o pipefail; {stages['extract']} {original} |"
            f" {stages['locate']} --used {names} --arch {ARCH} --granularity kernel |"
            f" {stages['patch']} -o {work}/out --mode {mode} --kernels {how} >{work}/patched"
        )
        subprocess.run(["bash", "-c", line], env={**os.environ, "PYTHONPATH": str(ROOT)}, check=True)
        out.write_bytes(Path(work, "out", original.name).read_bytes())
    return out


def weak(cubin: bytes, used: list[str]) -> bytes:
    """Drop kernels, and make their symbols weak and undefined instead of empty: an alternative in case empty symbols
    fail.
    """
    import numpy as np

    from gpt.formats import callgraph
    from gpt.formats import cubin_drop as drop
    from gpt.formats.cubin import parse_cubin

    names = {k["name"] for k in parse_cubin(cubin).kernels}
    sections = callgraph.find_cut(cubin, names - set(used)).sections
    left = bytearray(drop.without(cubin, sections))
    rows = [np.frombuffer(drop.section_headers(data), callgraph.SECTION) for data in (cubin, left)]
    (table,) = np.flatnonzero(rows[0]["type"] == 2).tolist()
    before, after = (
        np.frombuffer(data, callgraph.SYMBOL, int(r[table]["size"]) // 24, int(r[table]["offset"])).copy()
        for data, r in zip((cubin, bytes(left)), rows, strict=True)
    )
    after["info"][(before["info"] >> 4 != 0) & (before != after)] = 0x20
    start = int(rows[1][table]["offset"])
    left[start : start + after.nbytes] = after.tobytes()
    return bytes(left)


# Running


def run(folder: Path) -> int:
    """Try all cases and print the table. Return 1 if the driver doesn't behave as we need."""
    cases = json.loads((folder / "cases.json").read_text())
    rows, wanted, bad = [], {}, 0
    todo = [(one, loading) for one in cases for loading in ("LAZY", "EAGER")]
    timed = [item for item in todo if item[0]["case"] == "large0"]  # run these one after the other
    with ThreadPoolExecutor(8) as pool:
        rest = [item for item in todo if item not in timed]
        answers = list(zip(rest, pool.map(lambda item: child(folder, *item), rest), strict=True))
    answers += [(item, child(folder, *item)) for item in timed]
    for (one, loading), found in answers:
        key = one["case"], one["codec"], loading
        wanted.setdefault(key, found)
        same = bool(found.get("results")) and found["results"] == wanted[key].get("results")
        lookup, launch = found.get("lookup"), found.get("launch")
        how = one["how"].partition(" ")[0]
        ok = same and {"original": launch == 0, "zero": lookup == 0 and launch != 0, "drop": lookup != 0}[how]
        bad += not ok and one["how"] != "drop weak"
        rows.append(
            [*key, one["how"], one["size"], found.get("count", "-"), "same" if same else "DIFFERENT",
             f"{lookup}/{launch}", found.get("load_us", "-"), found.get("memory_kib", "-"),
             "ok" if ok else f"BAD {found.get('error', '')}".splitlines()[0]]
        )  # fmt: skip
    head = ["case", "codec", "loading", "how", "bytes", "kernels", "results", "unused lookup/launch", "load us",
            "memory KiB", "verdict"]  # fmt: skip
    text = "\n".join("\t".join(map(str, row)) for row in [head, *rows]) + "\n"
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "drop.tsv").write_text(text)
    for row in [head, *(row for row in rows if row[0] == "large0" or row[-1] != "ok")]:
        print(
            "  ".join(
                f"{cell!s:<{width}}" for cell, width in zip(row, (10, 5, 7, 12, 8, 7, 9, 20, 8, 10, 9), strict=True)
            )
        )
    print(f"{len(rows)} runs, {bad} bad; all in {OUT / 'drop.tsv'}")
    return 1 if bad else 0


def child(folder: Path, one: dict[str, Any], loading: str) -> dict[str, Any]:
    """Run a case in its own process."""
    command = [sys.executable, __file__, "child", folder / one["file"], one["unused"], *one["used"]]
    done = subprocess.run(
        [str(part) for part in command], env={**os.environ, "CUDA_MODULE_LOADING": loading},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": f"exit {done.returncode} {done.stderr.strip().rpartition(chr(10))[2][:200]}"}


def try_case(path: Path, unused: str, used: list[str]) -> dict[str, Any]:
    """Load the image and time that; run the used kernels, and finally the unused one."""
    driver = ctypes.CDLL("libcuda.so.1")
    word, pointer = ctypes.c_size_t, ctypes.c_void_p

    def call(name: str, *args: Any) -> None:
        if status := getattr(driver, name)(*args):
            raise RuntimeError(f"{name}: {status}")

    def free_memory() -> int:
        free, total = word(), word()
        call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    context, buffer = pointer(), word()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(buffer), word(BYTES))
    image = ctypes.create_string_buffer(path.read_bytes() + bytes(64))
    start = bytes(range(1, 129)) * (BYTES // 128)
    size = ctypes.c_int(5)
    cells = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), ctypes.addressof(size))

    def launch(kernel: ctypes.c_void_p) -> int:
        call("cuMemcpyHtoD_v2", buffer, start, word(BYTES))
        status: int = driver.cuLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, None, cells, None)
        return status or int(driver.cuCtxSynchronize())

    library, module, count = pointer(), pointer(), ctypes.c_uint()
    call("cuLibraryLoadData", ctypes.byref(library), image, None, None, 0, None, None, 0)
    out: dict[str, Any] = {"results": {}}
    counts = getattr(driver, "cuLibraryGetKernelCount", None)  # since CUDA 12.4
    if counts and not counts(ctypes.byref(count), library):
        out["count"] = count.value
    for name in used:
        kernel, data = pointer(), ctypes.create_string_buffer(BYTES)
        call("cuLibraryGetKernel", ctypes.byref(kernel), library, name.encode())
        if status := launch(kernel):
            raise RuntimeError(f"{name}: {status}")
        call("cuMemcpyDtoH_v2", data, buffer, word(BYTES))
        out["results"][name] = zlib.crc32(data.raw)
    times, used_memory = [], []
    for _ in range(TIMES if "large" in path.name else 3):
        before, begin = free_memory(), time.perf_counter()
        call("cuModuleLoadData", ctypes.byref(module), image)
        function = pointer()
        call("cuModuleGetFunction", ctypes.byref(function), module, used[0].encode())
        times.append((time.perf_counter() - begin) * 1e6)
        used_memory.append(before - free_memory())
        call("cuModuleUnload", module)
    out["load_us"] = round(statistics.median(times))
    out["memory_kib"] = max(used_memory) >> 10
    kernel = pointer()
    out["lookup"] = driver.cuLibraryGetKernel(ctypes.byref(kernel), library, unused.encode())
    out["launch"] = launch(kernel) if not out["lookup"] else "-"
    return out


def main() -> int:
    """Run the part named on the command line."""
    match sys.argv[1:]:
        case ["child", path, unused, *used]:
            print(json.dumps(try_case(Path(path), unused, used)))
            return 0
        case ["build", folder]:
            build(Path(folder))
            return 0
        case ["run", folder]:
            return run(Path(folder))
        case []:
            build(OUT / "drop")
            return run(OUT / "drop")
    print("usage: drop.py [build DIR | run DIR]", file=sys.stderr)
    return 2


if __name__ == "__main__":
    raise SystemExit(main())
