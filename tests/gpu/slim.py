"""Compare slimmed runtime programs with the original on a real GPU, in every mode, with lazy and eager loading.

Run by tests/gpu/run.sh. Needs nvcc (with a C++ compiler) on PATH and a GPU; uses torch if it's installed. It also finds
out how the driver behaves in cases that the formats don't define, and prints that as facts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("GPT_GPU_OUT", "build/gpu")).resolve()
MODES = ("fill", "hole", "compact")
LOADING = ("LAZY", "EAGER")

# Three sources: a used kernel, an unused one, and a variable that the host reads by name. `empty.cu` has neither kernel
# nor variable.
SOURCES = {
    "used.cu": """
        #include <cstdio>
        __constant__ float scale[4] = {1, 2, 3, 4};
        __global__ void used(float *x, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            if (i < n) x[i] = x[i] * scale[i & 3] + i;
        }
        extern "C" void run_used(float *x, int n) { used<<<(n + 127) / 128, 128>>>(x, n); }
    """,
    "unused.cu": """
        template <int N> __global__ void unused(float *x, int n) {
            int i = blockIdx.x * blockDim.x + threadIdx.x;
            for (int k = 0; k < N; ++k) if (i < n) x[i] = x[i] / (k + 2.0f) + sinf(x[i]);
        }
        extern "C" int run_unused(float *x, int n) {
            unused<3><<<(n + 127) / 128, 128>>>(x, n); unused<5><<<(n + 127) / 128, 128>>>(x, n);
            unused<7><<<(n + 127) / 128, 128>>>(x, n); unused<9><<<(n + 127) / 128, 128>>>(x, n);
            return cudaGetLastError();
        }
    """,
    "variable.cu": """
        __device__ int answer = 42;
        extern "C" int read_variable() {
            int value = 0;
            return cudaMemcpyFromSymbol(&value, answer, sizeof value) == cudaSuccess ? value : -1;
        }
    """,
    "empty.cu": 'extern "C" int nothing() { return 0; }',
}
MAIN = """
    #include <cstdio>
    #include <cstring>
    #include <cuda_runtime.h>
    extern "C" { void run_used(float *, int); int run_unused(float *, int); int read_variable(); int nothing(); }
    int main(int argc, char **argv) {
        const int n = 1 << 16;
        static float host[1 << 16];
        for (int i = 0; i < n; ++i) host[i] = i * 0.5f;
        float *x;
        if (cudaMalloc(&x, sizeof host)) return 3;
        cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
        run_used(x, n);
        int unused = argc > 1 && !strcmp(argv[1], "all") ? run_unused(x, n) : 0;
        cudaError_t error = cudaDeviceSynchronize();
        if (unused) error = (cudaError_t)unused;
        if (!error) error = cudaGetLastError();
        cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost);
        double sum = nothing();
        for (int i = 0; i < n; ++i) sum += host[i];
        printf("%s sum %.6e answer %d\\n", cudaGetErrorString(error), sum, read_variable());
        return error != cudaSuccess;
    }
"""
GENCODE = [
    "-gencode=arch=compute_75,code=sm_75",
    "-gencode=arch=compute_80,code=sm_80",
    "-gencode=arch=compute_90,code=[sm_90,compute_90]",
]
BUILDS = {  # name -> nvcc options
    "plain": [],
    "zstd": ["-Xfatbin", "-compress-all", "--compress-mode=size"],
    "lz4": ["-Xfatbin", "-compress-all", "--compress-mode=speed"],
    "none": ["--compress-mode=none"],
    "rdc": ["-rdc=true"],
}
USED = "_Z4usedPfi"


def sh(*command: str | Path, env: dict[str, str] | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        check=False,
    )
    if check and done.returncode:
        raise RuntimeError(f"{command}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def stage(name: str) -> str:
    return f"{sys.executable} -c 'from gpt.stages.{name} import main; raise SystemExit(main())'"


def slim(library: Path, folder: Path, mode: str, *, arch: str = "sm_90", extra: str = "") -> dict[str, object]:
    """Run the pipeline as a user types it; return the `patched` record."""
    names = folder.with_suffix(".txt")
    names.parent.mkdir(parents=True, exist_ok=True)
    names.write_text(USED + "\n")
    line = (
        f"set -o pipefail; {stage('extract')} {library} | {stage('locate')} --used {names} --arch {arch} {extra}"
        f" | {stage('patch')} -o {folder} --mode {mode} --json"
    )
    done = sh("bash", "-c", line, env={"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"})
    return next(r for r in map(json.loads, done.stdout.splitlines()) if r["kind"] == "patched")


def build(work: Path, name: str, options: list[str]) -> tuple[Path, Path]:
    """Build a shared library and a program that links to it, and then the same code as one program: non-PIC, and with
    relocatable device code.
    """
    folder = work / name
    folder.mkdir()
    for file, text in SOURCES.items():
        (folder / file).write_text(text)
    (folder / "main.cu").write_text(MAIN)
    common = ["nvcc", "-O2", *GENCODE, *options]
    sources = [folder / file for file in SOURCES]
    sh(*common, "-shared", "-Xcompiler", "-fPIC", *sources, "-o", folder / "libk.so")
    sh("nvcc", "-O2", "-arch=sm_90", folder / "main.cu", "-o", folder / "main", f"-L{folder}", "-lk")
    return folder / "libk.so", folder / "main"


def main() -> int:
    rows: list[tuple[str, ...]] = []
    facts: list[str] = []
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for build_name, options in BUILDS.items():
            library, program = build(work, build_name, options)
            want = sh(program, env={"LD_LIBRARY_PATH": str(library.parent)}).stdout
            for mode in MODES:
                slimmed = library.parent / mode
                patched = slim(library, slimmed, mode)
                for loading in LOADING:
                    env = {"LD_LIBRARY_PATH": str(slimmed), "CUDA_MODULE_LOADING": loading}
                    got = sh(program, env=env, check=False)
                    good = got.returncode == 0 and got.stdout == want
                    missing = sh(program, "all", env=env, check=False)
                    loud = missing.returncode != 0 or build_name == "rdc"  # linked into one cubin, so all kernels stay
                    failed += not good or not loud
                    rows.append((
                        build_name, mode, loading, str(patched["mode"]),
                        f"{patched['size_before']}", f"{patched['size_after']}", f"{patched['gpu_after']}",
                        "same" if good else f"DIFFERS {got.stdout.strip()} {got.stderr.strip()}",
                        missing.stdout.split(" sum")[0] if loud else "RAN", str(patched.get("reason", "")),
                    ))  # fmt: skip
        failed += programs(work, rows)
        facts += experiments(work)
        failed += torch(work, rows, facts)
    text = "\n".join(["\t".join(row) for row in rows] + facts)
    OUT.mkdir(parents=True, exist_ok=True)
    driver = sh("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader").stdout.strip()
    columns = "build mode loading written file_before file_after gpu_after output unused_kernel reason"
    head = f"# {driver}\n# " + columns.replace(" ", "\t")
    (OUT / "slim.tsv").write_text(f"{head}\n{text}\n")
    print(driver)
    print(text)
    print(f"{len(rows)} runs, {failed} failed")
    return 1 if failed else 0


def programs(work: Path, rows: list[tuple[str, ...]]) -> int:
    """Check fatbins in the program itself, both position-independent and at a fixed address."""
    failed = 0
    folder = work / "plain"
    sources = [*(folder / file for file in SOURCES), folder / "main.cu"]
    for kind, flag in (("pie", "-pie"), ("fixed", "-no-pie")):
        compile_flag = "-fPIE" if kind == "pie" else "-fno-pie"
        program = folder / kind
        sh(
            "nvcc",
            "-O2",
            *GENCODE,
            "-Xcompiler",
            compile_flag,
            "-Xlinker",
            flag if kind == "pie" else "-no-pie",
            *sources,
            "-o",
            program,
        )
        want = sh(program).stdout
        patched = slim(program, folder / f"{kind}.slim", "compact")
        for loading in LOADING:
            got = sh(folder / f"{kind}.slim" / kind, env={"CUDA_MODULE_LOADING": loading}, check=False)
            good = got.returncode == 0 and got.stdout == want
            failed += not good
            rows.append((kind, "compact", loading, str(patched["mode"]), f"{patched['size_before']}",
                         f"{patched['size_after']}", f"{patched['gpu_after']}",
                         "same" if good else f"DIFFERS {got.returncode} {got.stdout} {got.stderr}",
                         str(patched.get("reason", ""))))  # fmt: skip
    return failed


def experiments(work: Path) -> list[str]:
    """Check the driver behavior that decides how careful gpt-locate must be."""
    facts = [*relocatable(work)]
    # If one region has sm_90 and sm_90a, which one does an sm_90 device take?
    source = work / "arch.cu"
    source.write_text("""
        #include <cstdio>
        __global__ void which(int *out) {
        #ifdef __CUDA_ARCH_FEAT_SM90_ALL
            *out = 1;
        #elif defined __CUDA_ARCH__
            *out = __CUDA_ARCH__;
        #endif
        }
        int main() { int *p, v; cudaMalloc(&p, 4); which<<<1, 1>>>(p); cudaMemcpy(&v, p, 4, cudaMemcpyDeviceToHost);
            printf("%d %s", v, cudaGetErrorString(cudaGetLastError())); }
    """)
    for label, codes in {
        "sm_90,sm_90a": ["90:sm_90", "90a:sm_90a"],
        "sm_90a,sm_90": ["90a:sm_90a", "90:sm_90"],
        "sm_80,sm_86": ["80:sm_80", "86:sm_86"],
        "sm_80,compute_80": ["80:[sm_80,compute_80]"],
        "compute_75,compute_80": ["75:compute_75", "80:compute_80"],
        "compute_80,compute_90a": ["80:compute_80", "90a:compute_90a"],
    }.items():
        gencode = [f"-gencode=arch=compute_{a},code={c}" for a, c in (code.split(":") for code in codes)]
        done = sh("nvcc", *gencode, source, "-o", work / "arch", check=False)
        got = sh(work / "arch", check=False).stdout if not done.returncode else done.stderr[:80]
        facts.append(f"fact: region with {label} on this device: {got.strip()}")
    return facts


def relocatable(work: Path) -> list[str]:
    """Check whether a program needs the contents of __nv_relfatbin if the linked code has a cubin for the device."""
    library = work / "rdc" / "libk.so"
    env = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    listed = sh("bash", "-c", f"{stage('extract')} {library} --json", env=env).stdout
    elements = [r for r in map(json.loads, listed.splitlines()) if r["kind"] == "element"]
    spans = []
    for element in elements:
        if element["section"] == "__nv_relfatbin":
            start = element["offset"] + element["header_size"]
            spans.append({"start": start, "end": start + element["payload_size"]})
    folder = work / "spans"
    folder.mkdir()
    (folder / "libk.so.json").write_text(json.dumps({"so_path": str(library), "spans": spans}))
    facts = []
    want = sh(work / "rdc" / "main", env={"LD_LIBRARY_PATH": str(library.parent)}).stdout
    for mode in MODES:
        out = work / f"relocatable.{mode}"
        given = f"{stage('locate')} --spans-json {folder}"
        line = f"{stage('extract')} {library} | {given} | {stage('patch')} -o {out} --mode {mode}"
        sh("bash", "-c", f"set -o pipefail; {line} >/dev/null", env=env)
        for loading in LOADING:
            got = sh(
                work / "rdc" / "main",
                env={"LD_LIBRARY_PATH": str(out), "CUDA_MODULE_LOADING": loading},
                check=False,
            )
            outcome = "same" if got.stdout == want else got.stdout
            facts.append(f"fact: rdc without {len(spans)} relocatable elements, {mode}, {loading}: {outcome}")
    return facts


TORCH = """
import json, sys, time
start = time.perf_counter()
import torch
torch.manual_seed(0)
x = torch.randn(512, 512, device="cuda")
y = torch.nn.functional.gelu(x @ x).softmax(-1).sum(0).sort().values
z = torch.nn.Conv2d(3, 8, 3).cuda()(torch.randn(2, 3, 64, 64, device="cuda")).relu().mean()
torch.cuda.synchronize()
maps = [l.split()[-1] for l in open("/proc/self/maps") if "libtorch_cuda.so" in l]
print(json.dumps([float(y.double().sum()), float(z.double()), maps[0], time.perf_counter() - start]))
"""


def torch(work: Path, rows: list[tuple[str, ...]], facts: list[str]) -> int:
    """Cut the other architectures from libtorch_cuda.so in place, then restore it."""
    found = sh(
        "python3",
        "-c",
        "import torch, os; print(os.path.dirname(torch.__file__), torch.__version__)",
        check=False,
    )
    if found.returncode:
        facts.append("skipped: no torch here")
        return 0
    folder, version = found.stdout.split()
    library = Path(folder, "lib", "libtorch_cuda.so")
    digest = sh("sha256sum", library).stdout
    failed = 0
    want: list[float] = []
    env = {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"}
    for mode in ("-", *MODES):
        patched: dict[str, object] = {}
        if mode != "-":
            line = (
                f"set -o pipefail; {stage('extract')} {library}"
                f" | {stage('locate')} --used /dev/null --arch sm_90 --keep ."
                f" | {stage('patch')} --in-place --mode {mode} --json"
            )
            done = sh("bash", "-c", line, env=env)
            patched = next(r for r in map(json.loads, done.stdout.splitlines()) if r["kind"] == "patched")
        for loading in LOADING:
            got = sh("python3", "-c", TORCH, env={"CUDA_MODULE_LOADING": loading}, check=False)
            try:
                value = json.loads(got.stdout)
                want = want or value[:2]
                good = value[:2] == want
            except ValueError:
                value, good = [got.stderr[-200:]], False
            failed += not good
            rows.append((f"torch {version}", mode, loading, str(patched.get("mode")), str(patched.get("size_before")),
                         str(patched.get("size_after")), str(patched.get("gpu_after")),
                         "same" if good else f"DIFFERS {value}", f"{value[-1]:.2f} s" if good else ""))  # fmt: skip
        if mode != "-":
            sh("bash", "-c", f"{stage('patch')} --restore {library}", env=env)
            failed += sh("sha256sum", library).stdout != digest
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
