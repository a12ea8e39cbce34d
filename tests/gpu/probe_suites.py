"""Run third-party programs under `gpt-hook run -p`: JAX, CUTLASS, NCCL, CuPy, numba-cuda, Triton, a compiled model.

    probe_suites.py [--cutlass WHEEL] [PART ...]

Each program runs plain, hooked, with two probes (first while kernels are compiled, then with cached ones), and with all
built-in probes in the first launches of each kernel. Its output must not change, and all launches must be accounted
for. Bytes and operations of CUTLASS's kernels are compared with closed forms. WHEEL is nvidia-cutlass's wheel, or a
folder with its headers. If it isn't given or found in build/, CUTLASS is skipped:

    pip download --no-deps -d build nvidia-cutlass==4.2.0.0      (6.4 MB)
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.probe.read import load  # noqa: E402
from tests.gpu import accounts  # noqa: E402
from tests.gpu.accounts import Account  # noqa: E402

TWO = ("-p", "gmem_bytes", "-p", "block_sched", "-p", "tensorop_count")
ALL = tuple(word for path in sorted(load.BUILTIN.glob("*.toml")) for word in ("-p", path.stem))
FEW = ("--launch-count", "2", "--max-memory", "6G")
M, N, K, TIMES = 256, 384, 192, 3  # sizes in probe_cutlass.cu
XLA = "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true --xla_gpu_enable_command_buffer="
DRIVER = (
    " --xla_gpu_unsafe_fallback_to_driver_on_ptxas_not_found=true --xla_gpu_cuda_data_dir=/nonexistent"
    " --xla_gpu_enable_libnvptxcompiler=false --xla_gpu_enable_libnvjitlink=false"
)


def check_cutlass(found: Account) -> list[str]:
    """Compare CUTLASS's products, on plain and tensor cores, and two products of our own, with closed forms."""
    forms = {
        ("cutlass6Kernel", "read"): M * N // 64**2 * 2 * 64 * K * 4 * TIMES,
        ("cutlass6Kernel", "async"): M * N // 128**2 * 2 * 128 * K * 2 * TIMES,
        ("cutlass6Kernel", "written"): 2 * 4 * M * N * TIMES,
        ("cutlass6Kernel", "flops"): 2 * M * N * K * TIMES,
        ("reference", "read"): 2 * M * N * K * (4 + 2),
        ("reference", "written"): 2 * 4 * M * N,
    }
    return compare(found, forms)


def check_wgmma(found: Account) -> list[str]:
    """Check the closed forms of the wgmma product: its operations, and the bytes that its barriers expect."""
    forms = {
        ("cutlass13device_kernel", "expected"): M * N // 128**2 * 2 * 128 * K * 2 * TIMES,
        ("cutlass13device_kernel", "flops"): 2 * M * N * K * TIMES,
        ("reference", "read"): 2 * M * N * K * 2,
    }
    return compare(found, forms)


def compare(found: Account, forms: dict[tuple[str, str], int]) -> list[str]:
    """Return the differences in words."""
    values = {key: found.total(*key) for key in forms}
    return [f"{kernel}: {name} {values[kernel, name]}, not {form}" for (kernel, name), form in forms.items()
            if values[kernel, name] != form]  # fmt: skip


@dataclass(frozen=True)
class Part:
    """A program to test: its package and environment, a function that checks its counts, and whether its kernels have
    PTX.
    """

    needs: str = ""
    env: dict[str, str] = field(default_factory=dict)
    check: Callable[[Account], list[str]] | None = None
    probed: bool = True
    program: str = ""  # its name in probe_programs.py, if that differs from the part's
    optional: bool = False  # some versions of the package can't run it


PARTS = {
    "cutlass": Part(check=check_cutlass),
    "wgmma": Part(check=check_wgmma),
    "jax": Part("jax", {"XLA_FLAGS": XLA}, probed=False),
    "jax driver": Part("jax", {"XLA_FLAGS": XLA + DRIVER}, probed=False, program="jax", optional=True),
    "nccl": Part("torch", probed=False),
    "cupy": Part("cupy", probed=False),
    "cupy ptx": Part("cupy", {"CUPY_COMPILE_WITH_PTX": "1"}, program="cupy"),
    "numba": Part("numba.cuda", optional=True),
    "triton": Part("triton"),
    "train": Part("torch"),
}
QUICK = ("cutlass", "jax", "cupy ptx", "train")
PYTHON_ENV = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "NUMBA_CUDA_ENABLE_MINOR_VERSION_COMPATIBILITY": "0"}


def include_of(cutlass: Path, folder: Path) -> list[str]:
    """Return compiler options for the headers in a wheel or a folder."""
    if cutlass.is_file():
        into = folder / "headers"
        with zipfile.ZipFile(cutlass) as wheel:
            wheel.extractall(into, [name for name in wheel.namelist() if "/include/" in name])
        cutlass = into
    found = [path.parent for path in sorted(cutlass.rglob("cutlass/gemm/device/gemm.h"))[:1]]
    includes = [found[0].parents[2]] if found else []
    includes += [path.parents[2] for path in sorted(cutlass.rglob("cutlass/util/packed_stride.hpp"))[:1]]
    return [f"-I{path}" for path in includes]


def build_cutlass(part: str, cutlass: Path, folder: Path, device: str) -> Path:
    """Build the program for SIMT and tensor cores, or the wgmma program."""
    source = ROOT / "tests/gpu/probe_cutlass.cu"
    flags = ["-w", "-std=c++17", "--expt-relaxed-constexpr", *include_of(cutlass, folder)]
    if device == "sim":
        from tests.runtime.simulated import compile_cuda

        (into := folder / "cutlass").mkdir()
        return compile_cuda(into, source, *flags)
    arch = "90a" if part == "wgmma" else "90"
    flags += ["-DWITH_WGMMA"] * (part == "wgmma")
    flags += ["-gencode", f"arch=compute_{arch},code=[sm_{arch},compute_{arch}]"]
    subprocess.run([accounts.NVCC, *flags, source, "-o", folder / part, "-lcuda"], check=True)
    return folder / part


def measure(name: str, part: Part, line: list[str | Path], device: str, folder: Path, quick: bool) -> dict[str, Any]:
    """Return a row for one program, run in all ways."""
    env = accounts.environment(folder, device, **PYTHON_ENV, **part.env)
    bare = {"LD_LIBRARY_PATH": str(accounts.SIMULATED)} if device == "sim" else {}
    row: dict[str, Any] = {"part": name, "wrong": []}
    ways: dict[str, tuple[str, ...] | None] = {"warm": None, "bare": None, "hooked": (), "made": TWO, "kept": TWO}
    if not quick:
        ways["all"] = (*ALL, *FEW)
    first = ""
    for way, options in ways.items():
        into = folder / "traces"
        for path in into.glob("*") if into.is_dir() else ():
            path.unlink()
        into.mkdir(exist_ok=True)
        before = [] if options is None else accounts.hooked(into / "t.mp", device, *options)
        done = accounts.run([*before, *line], env | (bare if options is None else {}), 240, ROOT / "tests/gpu")
        row[way] = {"seconds": done.seconds, "status": done.status}
        first = first or done.output
        if done.status:
            row["wrong"].append(f"{way}: status {done.status}: {done.said[-400:]}")
            if way in ("warm", "bare"):
                said = f"not run: without gpt-hook its status is {done.status}: {done.said[-400:]}"
                return row | {"wrong": [] if part.optional else [said], "note": said}
        elif done.output != first:
            pairs = zip(first.splitlines(), done.output.splitlines(), strict=False)
            differ = [f"{a} | {b}" for a, b in pairs if a != b]
            row["wrong"].append(f"{way}: the output differs: {differ[:3]}")
        if options:
            found = accounts.account_all(into)
            row[way] |= found.row()
            row["wrong"] += [f"{way}: {said}" for said in found.wrong]
            row["wrong"] += part.check(found) if part.check and way in ("made", "kept") else []
            if part.probed and not found.probed:
                row["wrong"].append(f"{way}: nothing was probed")
            row["bytes"] = sum(path.stat().st_size for path in into.iterdir())
    return row


def missing(part: Part) -> str:
    """Return the name of the missing package, or an empty string."""
    try:
        return "" if not part.needs or find_spec(part.needs) else part.needs
    except ImportError:
        return part.needs


def run_part(name: str, given: Any, folder: Path) -> dict[str, Any]:
    """Return a row for a part."""
    part = PARTS[name]
    if lack := missing(part):
        return {"part": name, "wrong": [], "note": f"not run: no {lack}"}
    line: list[str | Path] = [sys.executable, "probe_programs.py", part.program or name]
    if name in ("cutlass", "wgmma"):
        if not given.cutlass:
            return {"part": name, "wrong": [], "note": "not run: no --cutlass"}
        if name == "wgmma" and given.device == "sim":
            return {"part": name, "wrong": [], "note": "not run: not on the simulated device"}
        line = [build_cutlass(name, given.cutlass, folder, given.device)]
    return measure(name, part, line, given.device, folder, given.quick)


def main() -> int:
    """Print a line for each program; return 1 if one is wrong."""
    parser = accounts.arguments(__doc__)
    found = next(iter(sorted((ROOT / "build").glob("nvidia_cutlass-*.whl"))), None)
    parser.add_argument("--cutlass", type=Path, default=found, help="the wheel of nvidia-cutlass, or a folder")
    parser.add_argument("part", nargs="*", choices=[*PARTS, []])
    given = parser.parse_args()
    if given.device == "sim":
        os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    rows, end = [], time.monotonic() + given.patience
    for name in given.part or (QUICK if given.quick else PARTS):
        with tempfile.TemporaryDirectory() as folder:
            try:
                row = run_part(name, given, Path(folder)) if time.monotonic() < end else {
                    "part": name, "wrong": ["not run: no time was left"]}  # fmt: skip
            except (OSError, subprocess.SubprocessError) as error:
                row = {"part": name, "wrong": [f"{error!r}"]}
        rows.append(row)
        for said in row["wrong"]:
            print(f"{name}: {said}", flush=True)
        accounts.keep("probe_suites", rows)
    heads = "".join(f"{head:>9}" for head in ("launches", "probed", "kernels", "bare s", "made s", "kept s"))
    print(f"{'program':12}{heads}  without probes")
    for row in rows:
        if "kept" not in row or "probed" not in row["kept"]:
            print(f"{row['part']:12}{row.get('note') or '; '.join(row['wrong'])[:100]}")
            continue
        kept = row["kept"]
        seconds = "".join(f"{row[way]['seconds']:9.1f}" for way in ("bare", "made", "kept"))
        reasons = "; ".join(f"{count}: {reason}" for reason, count in kept["unprobed"].items())
        print(f"{row['part']:12}{kept['launched']:9}{kept['probed']:9}{kept['kernels']:9}{seconds}  {reasons or '-'}"
              f"{'  WRONG' if row['wrong'] else ''}")  # fmt: skip
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
