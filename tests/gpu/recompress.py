"""Check that recompressed libraries still compute the same results, and time how fast they load.

    python tests/gpu/recompress.py [--rounds N] [--arch SM] [--packages DIR] [--dry-run] [WHEEL ...]

Builds recompress.cu for two architectures, compressed with LZ4 and uncompressed. Recompresses each at level 19, with
all of its code and with only this GPU's, and runs all six versions in separate processes, with eager and lazy loading
interleaved. Prints sizes, the median times of the first call (which creates the context and loads code) and of the
second, and the resulting sum. Fails unless all sums are equal.

Given paths of wheels, it does the same with them (wheels.py): as shipped, recompressed, reduced to this GPU's
architecture, and both. Each needs a script in wheel_uses. --packages is a folder with the wheels that they depend on,
if this Python doesn't have these packages. --dry-run does everything on the CPU, where the scripts support it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import wheels

HERE = Path(__file__).resolve().parent
BIN = HERE.parents[1] / "bin"
OUT = Path(os.environ.get("GPT_GPU_OUT", "build/gpu"))
BUILDS = {"lz4": ("--compress-mode=speed", "-Xfatbin", "-compress-all"), "raw": ("--compress-mode=none",)}
TIMES = 5
USE = """
import ctypes, sys, time
start = time.perf_counter()
library = ctypes.CDLL(sys.argv[1])
library.work.restype = ctypes.c_uint64
library.work(1)
first = time.perf_counter()
total = library.work(1 << 16)
print(f"{total:016x}", first - start, time.perf_counter() - first)
"""


def build(name: str, arch: str, folder: Path) -> Path:
    """Compile the library for the GPU at hand and for sm_80."""
    library = folder / f"{name}.so"
    targets = [f"-gencode=arch=compute_{sm},code=sm_{sm}" for sm in sorted({arch, "80"})]
    options = ["-O2", "-DCOUNT=80", "--shared", "-Xcompiler", "-fPIC", "-cudart", "static", *BUILDS[name], *targets]
    subprocess.run(["nvcc", *options, "-o", library, HERE / "recompress.cu"], check=True)
    return library


def pack(library: Path, arch: str, folder: Path) -> list[Path]:
    """Write the recompressed library in two versions: with all code, and with one architecture's code."""
    made = []
    for name, stage in (("whole", ""), ("one", f"| {BIN}/gpt-locate --arch sm_{arch}")):
        line = f"{BIN}/gpt-extract {shlex.quote(str(library))} {stage} | {BIN}/gpt-patch --recompress -o {name}"
        subprocess.run(["bash", "-o", "pipefail", "-c", f"{line} >{name}.mp"], cwd=folder, check=True)
        made.append(folder / name / library.name)
    return made


def use(library: Path, loading: str) -> tuple[str, float, float]:
    """Run it in a new process; return the sum, and the seconds of the first and the second call."""
    env = {**os.environ, "CUDA_MODULE_LOADING": loading}
    words = subprocess.run(
        [sys.executable, "-c", USE, library], env=env, capture_output=True, text=True, check=True
    ).stdout.split()
    return words[0], float(words[1]), float(words[2])


def find_arch() -> str:
    """Return the GPU's compute capability as a number, such as 90."""
    query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip().replace(".", "")


def try_wheels(options: argparse.Namespace) -> int:
    """Compare the versions of each wheel. Returns the exit status."""
    arch = options.arch or ("sm_90" if options.dry_run else f"sm_{find_arch()}")
    device = "cpu" if options.dry_run else "cuda"
    found = []
    for wheel in options.wheels:
        with tempfile.TemporaryDirectory() as folder:
            one = wheels.compare(wheel.resolve(), arch, device, options.packages, options.rounds, Path(folder))
        print("\n".join(wheels.lines(one)), flush=True)
        found.append(one)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "recompress-wheels.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(one["same"] for one in found) else 1


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="recompress")
    parser.add_argument("--rounds", type=int, default=TIMES)
    parser.add_argument("--arch")
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--dry-run", action="store_true")
    parser.add_argument("wheels", nargs="*", type=Path)
    options = parser.parse_args(argv)
    if options.wheels:
        return try_wheels(options)
    arch = find_arch()
    found = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        libraries = []
        for build_ in BUILDS:
            library = build(build_, arch, folder)
            libraries += [library, *pack(library, arch, folder)]
        cases = [(library, loading) for library in libraries for loading in ("EAGER", "LAZY")]
        runs = [[use(*case) for case in cases] for _ in range(TIMES)]
        for number, (library, loading) in enumerate(cases):
            sums, first, second = zip(*(run[number] for run in runs), strict=True)
            found.append(
                {"library": str(library.relative_to(folder)), "loading": loading, "bytes": library.stat().st_size,
                 "sums": sorted(set(sums)), "first": first, "second": second}
            )  # fmt: skip
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "recompress.json").write_text(json.dumps(found, indent=1) + "\n")
    for one in found:
        first, second = (1000 * statistics.median(one[key]) for key in ("first", "second"))
        name, size = f"{one['library']:14} {one['loading']:5}", f"{one['bytes']:9,} bytes"
        print(f"{name} {size}  first call {first:5.0f} ms  second {second:5.1f} ms  {' '.join(one['sums'])}")
    same = len({total for one in found for total in one["sums"]}) == 1
    print("recompress: the same sum everywhere" if same else "recompress: sums differ")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
