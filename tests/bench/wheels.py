"""Measure how small published wheels become without a trace: recompressed, reduced to one architecture, and both.

    python -m tests.bench.wheels [--arch SM] [--with REQUIREMENT] ... [--output FILE] [--imports | --table] [WHEEL ...]

WHEELS were chosen before any of them was measured, one of each kind that people install: a tracker, trainers, kernels
for attention, NVIDIA's own. You can name any other wheel on PyPI instead, as NAME or NAME==VERSION. Each is downloaded,
measured, and removed. Its figures replace its old ones in the output file, docs/figures/bench/wheels.json by default,
before the next one is downloaded. --imports keeps the sizes and times of a wheel and repeats all checks, with zstd at
level 3, which takes a twentieth of the time; the decompressed code is the same at any level. --table prints the table
of docs/measured.md from the output file.

Every new wheel is unpacked again: its RECORD must be right, pip must install it, importing it must end as with the
original, and it must list the same kernels, or a subset of them for one architecture. The packages that a wheel
requires are installed with it from PyPI, about 5 GB if PyTorch is among them; --with adds packages that its METADATA
doesn't name. The import runs on the simulated device, so libraries find a libcuda.so.1. The Python is the first one, of
the running one and the PYTHONS on PATH, for which pip finds the wheel.

Times cover the whole pipeline: seconds, and CPU seconds, which a busy machine affects less.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from gpt.screen.units import human, percent
from tests.bench.run import BIN

WHEELS = (
    "nvidia-curand==10.4.5.25",
    "ctranslate2==4.8.5",
    "bitsandbytes==0.50.2",
    "faiss-gpu-cu12==1.14.1.post1",
    "xformers==0.0.35",
    "cupy-cuda12x==14.2.0",
    "xgboost==3.4.1",
    "nvidia-nccl-cu13==2.32.3",
    "nvidia-cusparse==12.9.4.2",
    "sgl-kernel==0.3.21",
)
UNSAID = {"sgl-kernel==0.3.21": ("torch==2.9.1",)}  # requirements that are only in a wheel's description
ARCH = "sm_90"  # used unless a wheel has no code for it
MOST = 600_000_000  # bytes of a wheel
PYTHONS = (f"python{sys.version_info.major}.{sys.version_info.minor}", "python3.12", "python3.13", "python3.10")
TIMEOUT = 300  # s of an import
IMPORT = "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]"
LOAD = "import ctypes, sys; [ctypes.CDLL(path) for path in sys.argv[1:]]"
OUTPUT = Path(__file__).parents[2] / "docs/figures/bench/wheels.json"
WAYS = {  # name -> options of gpt-locate (None: don't run it) and of gpt-patch
    "recompressed": (None, "--recompress={level}"),
    "architecture": ("--arch {arch}", "--label {label}"),
    "both": ("--arch {arch}", "--recompress={level} --label {label}"),
}
LEVEL, FAST_LEVEL = 19, 3  # zstd levels; the fast one is for --imports


def pip(python: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run pip for a Python that may have no pip of its own."""
    line = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "--python", python, *words]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def fetch(name: str, folder: Path) -> tuple[Path, str]:
    """Download a wheel; return it and its Python version. Exits if there's none, or if it's too large."""
    said = ""
    for word in PYTHONS:
        python = shutil.which(word)
        if not python:
            continue
        done = pip(python, "download", "--no-deps", "--only-binary=:all:", "-d", folder, name)
        if not done.returncode:
            break
        said += f"\n{word}: {done.stderr.strip()}"
    else:
        raise SystemExit(f"bench: error: {name}: pip finds no wheel for a Python that is here{said}")
    (wheel,) = folder.glob("*.whl")
    if wheel.stat().st_size > MOST:
        raise SystemExit(f"bench: error: {name}: {wheel.stat().st_size} bytes; the limit is {MOST}")
    return wheel, python


def install_needs(wheel: Path, python: str, more: Sequence[str], folder: Path) -> None:
    """Install a wheel's requirements, and the additional packages, into a folder. Exits if pip fails."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = [n for n in file.namelist() if n.count("/") == 1 and n.endswith(".dist-info/METADATA")]
        metadata = HeaderParser().parsestr(file.read(name).decode())
    needs = [need for need in metadata.get_all("Requires-Dist", []) if not re.search(r";.*\bextra\b", need)]
    if not needs and not more:
        return
    done = pip(python, "install", "--only-binary=:all:", "--no-compile", "--target", folder, *needs, *more)
    if done.returncode:
        raise SystemExit(f"bench: error: {wheel.name}: pip can't install {', '.join([*needs, *more])}: {done.stderr}")


def kernels_of(wheel: Path) -> Counter[tuple[str, str, str]]:
    """Count the kernels in a wheel by name, and by their element's type and architecture."""
    done = subprocess.run([BIN / "gpt-extract", "--json", "-r", wheel], capture_output=True, check=True)
    found: Counter[tuple[str, str, str]] = Counter()
    for line in done.stdout.splitlines():
        if b'"element"' in line and (record := json.loads(line))["kind"] == "element":
            found.update((record["type"], record["arch"], kernel["name"]) for kernel in record["kernels"])
    return found


def check_record(wheel: Path) -> None:
    """Fail if a line of RECORD is wrong, or if METADATA has another version than the file name."""
    with zipfile.ZipFile(wheel) as file:
        (name,) = [n for n in file.namelist() if n.count("/") == 1 and n.endswith(".dist-info/RECORD")]
        for path, digest, _ in csv.reader(io.StringIO(file.read(name).decode())):
            if digest:
                found = base64.urlsafe_b64encode(hashlib.sha256(file.read(path)).digest()).decode().rstrip("=")
                assert digest == f"sha256={found}", path
        metadata = file.read(name.replace("RECORD", "METADATA")).decode()
    version = next(line.partition(": ")[2] for line in metadata.splitlines() if line.startswith("Version: "))
    assert wheel.name.split("-")[1] == version, wheel.name


def install(wheel: Path, python: str, needs: Path) -> str:
    """Return the outcome of importing a wheel after installing it with pip. Exits if pip fails."""
    with tempfile.TemporaryDirectory() as site:
        done = pip(python, "install", "--no-deps", "--no-index", "--no-compile", "--target", site, wheel)
        if done.returncode:
            raise SystemExit(f"bench: error: pip can't install {wheel.name}: {done.stderr}")
        return load(Path(site), python, needs)


def load(site: Path, python: str, needs: Path) -> str:
    """Return "imported", or the reason why a package in a folder can't be imported.

    For a package without Python, such as NVIDIA's own, load each shared library.
    """
    packages = sorted(file.parent.name for file in site.glob("*/__init__.py") if file.parent.name != "nvidia")
    libraries = sorted(str(file) for file in site.rglob("*.so*") if not file.is_symlink())
    environment = {**os.environ, "PYTHONPATH": f"{site}:{needs}"}
    if not packages:  # the dynamic loader must find libraries of other packages
        environment["LD_LIBRARY_PATH"] = ":".join(sorted({str(file.parent) for file in needs.rglob("*.so*")}))
    line = [BIN / "gpt-hook", "run", "-q", "--calls", "none", "--device", "sim", "-o", site / "trace.mp", "--"]
    line += [python, "-c", IMPORT if packages else LOAD, *(packages or libraries)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, env=environment, cwd=site, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return f"no end within {TIMEOUT} s"
    if not done.returncode:
        return "imported" if packages else "loaded"
    said = done.stderr.strip().rpartition("\n")[2].replace(str(site), "").replace(str(needs), "")
    return said[:200] or f"status {done.returncode}"


def measure(wheel: Path, arch: str, way: str, level: int, out: Path) -> tuple[Path, dict[str, Any]]:
    """Make a wheel as a user does; return it with its size and the time that this took."""
    locate, patch = WAYS[way]
    settings = {"arch": arch, "label": arch.replace("_", ""), "level": level}
    line = f"gpt-extract -r '{wheel}' | "
    line += f"gpt-locate {locate.format(**settings)} | " if locate else ""
    line += f"gpt-patch --json -o '{out}' {patch.format(**settings)} | grep -v '\"element\"'"
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, env=environment)
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"bench: error: {line}: {done.stderr.decode()}")
    records = [json.loads(text) for text in done.stdout.splitlines()]
    patched = [record for record in records if record["kind"] == "patched"]
    (new,) = out.glob("*.whl")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    figures = {"size": new.stat().st_size, "seconds": round(seconds, 2), "cpu": round(cpu, 2)}
    figures |= {key: sum(record[key] for record in patched) for key in ("gpu_before", "gpu_after")}
    return new, figures


def measure_all(name: str, arch: str, more: Sequence[str], level: int = LEVEL) -> dict[str, Any]:
    """Return the figures of one wheel. Fails if a new wheel is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        wheel, python = fetch(name, Path(folder))
        before = kernels_of(wheel)
        if not before:
            raise SystemExit(f"bench: error: {wheel.name}: gpt-extract finds no kernels")
        needs = Path(folder, "needs")
        install_needs(wheel, python, more, needs)
        found: dict[str, Any] = {"file": wheel.name, "arch": arch, "shipped": wheel.stat().st_size}
        found["kernels"] = before.total()
        found["import"] = install(wheel, python, needs)
        for way in WAYS:
            new, figures = measure(wheel, arch, way, level, Path(folder, way))
            check_record(new)
            imported = install(new, python, needs)
            assert imported == found["import"], f"{name}: {way}: {imported}; the original: {found['import']}"
            after = kernels_of(new)
            assert after == before if way == "recompressed" else after <= before, f"{name}: {way}: other kernels"
            found[way] = {**figures, "kernels": after.total()}
            new.unlink()
        assert found["architecture"]["kernels"] == found["both"]["kernels"]
    return found


def table(figures: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table in docs/measured.md."""
    yield "| wheel | shipped | recompressed | less | one arch | less | both | less than recompressed | CPU s | import |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
    for name, found in figures["wheels"].items():
        shipped, again, one, both = found["shipped"], *(found[way]["size"] for way in WAYS)
        cells = [human(shipped), human(again), percent(shipped - again, shipped), human(one)]
        cells += [percent(shipped - one, shipped), human(both), percent(again - both, again)]
        cpu, imported = f"{found['recompressed']['cpu']:.0f}", found["import"]
        for_ = f", for {found['arch']}" if found["arch"] != ARCH else ""
        yield f"| {name}{for_} | {' | '.join([*cells, cpu, imported.replace('|', '/')])} |"


def main() -> None:
    """Run the benchmark as described above."""
    parser = argparse.ArgumentParser(prog="tests.bench.wheels")
    parser.add_argument("--arch", default=ARCH)
    parser.add_argument("--with", dest="more", metavar="REQUIREMENT", action="append", default=[])
    parser.add_argument("--output", type=Path, default=OUTPUT)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--imports", action="store_true")
    only.add_argument("--table", action="store_true")
    parser.add_argument("wheels", nargs="*", default=WHEELS)
    options = parser.parse_args()
    figures = json.loads(options.output.read_text()) if options.output.exists() else {"wheels": {}}
    for name in () if options.table else options.wheels:
        more = [*UNSAID.get(name, ()), *options.more]
        if options.imports:
            if not (old := figures["wheels"].get(name)):
                raise SystemExit(f"bench: error: {name}: {options.output} has no figures of it: leave --imports out")
            new = measure_all(name, old["arch"], more, FAST_LEVEL)
            figures["wheels"][name] = {**old, "import": new["import"]}
        else:
            figures["machine"] = {"cores": len(os.sched_getaffinity(0)), "python": platform.python_version()}
            figures["wheels"][name] = measure_all(name, options.arch, more)
        ordered = sorted(figures["wheels"].items(), key=lambda item: item[1]["shipped"])
        figures["wheels"] = dict(ordered)
        options.output.write_text(json.dumps(figures, indent=1) + "\n")
        print(name, figures["wheels"][name], flush=True)
    print("\n".join(table(figures)))


if __name__ == "__main__":
    main()
