"""Run `make bench`: produce the figures in docs/measured.md, measured side by side in one run.

    python -m tests.bench.run [--runs N] [--output FILE] [--reading] [--zstd NAME] ... [NAME=PATH ...]

The libraries come from pinned wheels on PyPI, downloaded once into XDG_CACHE_HOME/gpt-bench (3.7 GB); NAME=PATH uses
another file for one of them. The page cache is warm, the tools run interleaved, and figures are medians. Raw figures
and the machine's description go to docs/figures/bench/slim.json. --reading only measures the reading of ten libraries,
and prints the table of docs/measured.md. --zstd only measures sizes with zstd before and after the cut, and prints
their table. The exit status is 1 if a limit was exceeded.
"""

from __future__ import annotations

import compileall
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from gpt.screen.units import human, percent
from tests import cuda

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "gpt-bench")
CORES = 2  # the measured tools use only this many
LARGE = "libtorch_cuda.so"
WHEELS = {  # library -> wheel
    LARGE: "torch==2.11.0",
    "libnccl.so.2": "nvidia-nccl-cu12==2.27.5",
    "libcurand.so.10": "nvidia-curand==10.4.5.25",
    "libxgboost.so": "xgboost==3.4.1",
    "libbitsandbytes_cuda130.so": "bitsandbytes==0.50.2",
}
READ = {  # library -> wheel: ten different libraries, to measure reading speed
    **{name: wheel for name, wheel in WHEELS.items() if not name.startswith("libbits")},
    "libcudf.so": "libcudf-cu12==26.10.2",
    "libcublasLt.so.13": "nvidia-cublas==13.10.0.20",
    "libcusparse.so.12": "nvidia-cusparse==12.9.4.2",
    "libonnxruntime_providers_cuda.so": "onnxruntime-gpu==1.31.1",
    "thrust.cpython-312-x86_64-linux-gnu.so": "cupy-cuda12x==14.2.0",
    "libbitsandbytes_cuda128.so": "bitsandbytes==0.50.2",
}
WAYS = {  # method -> options of gpt-locate and gpt-patch
    "compact": ("", "--mode compact"),
    "hole": ("", "--mode hole"),
    "kernel": ("--granularity kernel", "--mode compact"),
}
PLATFORMS = ("2_28", "2_27", "2_24", "2_17")
CUOBJDUMP = "cuobjdump -lelf"
TOOLS = ("gpt-extract", "gpt-locate", "gpt-patch")
BIN = Path(sys.executable).parent


def fetch(name: str, wheel: str) -> Path:
    """Return a library from a wheel, downloading it unless it's in the cache."""
    path = CACHE / name
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as folder:
            tags = [f"--platform=manylinux_{p}_x86_64" for p in PLATFORMS] + ["--platform=manylinux2014_x86_64"]
            pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
            subprocess.run([*pip, "--python-version=3.12", *tags, "-d", folder, wheel], check=True)
            with zipfile.ZipFile(next(Path(folder).glob("*.whl"))) as wheel:
                member = next(m for m in wheel.namelist() if m.endswith(f"/{name}"))
                Path(wheel.extract(member, folder)).rename(path)
    return path


def measure(*command: str | Path) -> dict[str, float]:
    """Run a command with its output discarded; return seconds, CPU seconds, and peak resident bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - start
    assert process.stderr
    if status:
        raise SystemExit(f"bench: error: {command[0]}: {process.stderr.read().decode()}")
    process.stderr.close()
    process.returncode = 0
    return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss * 1024.0}


def peak(*command: str | Path) -> int:
    """Return the peak resident bytes of a command and its children together, sampled every 5 ms.

    Shared pages count once per process, so this is an upper bound.
    """
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, _resident(process.pid))
            time.sleep(0.005)
    return most


def _resident(pid: int) -> int:
    """Return the resident bytes of a process and its descendants; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE") + sum(_resident(int(child)) for child in children)


def median(runs: list[dict[str, float]], key: str) -> float:
    """Return the median of one figure over the runs."""
    return statistics.median(run[key] for run in runs)


def used_names(library: Path) -> list[str]:
    """Return the kernels that the benchmark treats as used: the first three of every twentieth element for sm_90."""
    done = subprocess.run([BIN / "gpt-extract", "--json", "--arch=sm_90", library], capture_output=True, check=True)
    elements = [r for r in map(json.loads, done.stdout.splitlines()) if r["kind"] == "element" and r["kernels"]]
    return sorted({kernel["name"] for element in elements[::20] for kernel in element["kernels"][:3]})


def slim(library: Path, names: Path, folder: Path, way: str, more: str = "") -> dict[str, Any]:
    """Run the pipeline as a user types it, with additional options for gpt-patch; return its `patched` record."""
    locate, patch = WAYS[way]
    return patched(
        f"gpt-extract '{library}' | gpt-locate --used '{names}' --arch sm_90 {locate}"
        f" | gpt-patch -o '{folder}' {patch} {more}"
    )


def patched(line: str) -> dict[str, Any]:
    """Run a pipeline that ends with gpt-patch; return its `patched` record."""
    bash = ["bash", "-c", f"set -o pipefail; {line} --json"]
    done = subprocess.run(bash, capture_output=True, env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"})
    if done.returncode:
        raise SystemExit(f"bench: error: {line}: {done.stderr.decode()}")
    record = next(r for r in map(json.loads, done.stdout.splitlines()) if r["kind"] == "patched")
    # Without paths, which belong to this machine.
    return {key: value for key, value in record.items() if key not in ("library", "output")}


def machine() -> dict[str, Any]:
    """Describe the machine."""
    cpus = [line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    packages = ("zstandard", "numpy", "msgpack", "typer", "nvidia-cuda-cuobjdump")
    return {
        "cpu": cpus[0] if cpus else platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
        **{package: version(package) for package in packages},
    }


def main() -> int:
    """Measure everything, print the table, and write the raw figures."""
    arguments = sys.argv[1:]
    runs, output, given, only_reading = 5, HERE.parents[1] / "docs/figures/bench/slim.json", {}, False
    packed: list[str] = []
    while arguments:
        word = arguments.pop(0)
        if word == "--runs":
            runs = int(arguments.pop(0))
        elif word == "--output":
            output = Path(arguments.pop(0))
        elif word == "--reading":
            only_reading = True
        elif word == "--zstd":
            packed.append(arguments.pop(0))
        else:
            name, _, path = word.partition("=")
            given[name] = Path(path)
    compileall.compile_dir(str(HERE.parents[1] / "gpt"), quiet=1)  # as pip does where it installs
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    if only_reading:
        result = json.loads(output.read_text())
        result["reading"] = time_all_reading(given, runs)
        output.write_text(json.dumps(result, indent=1) + "\n")
        print("\n".join(reading_table(result["reading"])))
        return 0
    if packed:
        result = json.loads(output.read_text())
        for name in packed:
            library = given.get(name) or fetch(name, WHEELS[name])
            result.setdefault("zstd", {})[name] = measure_zstd(library, WHEELS[name])
            output.write_text(json.dumps(result, indent=1) + "\n")
        print("\n".join(zstd_table(result["zstd"])))
        return 0
    libraries = {name: given.get(name) or fetch(name, wheel) for name, wheel in WHEELS.items()}
    result: dict[str, Any] = {"machine": machine(), "raw": {}, "bounds": [], "libraries": {}}
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        time_torch(libraries[LARGE], runs, Path(folder), result)
        for name, library in libraries.items():
            names = Path(folder, f"{name}.names")
            names.write_text("\n".join(used_names(library)) + "\n")
            ways = {way: slim(library, names, Path(folder, way), way) for way in WAYS}
            result["libraries"][name] = {"wheel": WHEELS[name], "names": len(names.read_text().split()), **ways}
            for way in ways:
                Path(folder, way, library.name).unlink()
    result["reading"] = time_all_reading(given, runs)
    result["zstd"] = json.loads(output.read_text()).get("zstd", {}) if output.exists() else {}
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(result, indent=1) + "\n")
    report(result)
    return 0 if all(bound["held"] for bound in result["bounds"]) else 1


def measure_zstd(library: Path, wheel: str) -> dict[str, Any]:
    """Return the size of the GPU code, as it is and compressed with zstd at level 19, for all code and for the code
    that each method keeps.

    The whole code is compressed only once; for each method, only the code that it keeps is compressed. With
    --zstd-sizes, everything would be compressed for each method, which takes a second per 2 to 4 MB at that level.
    """
    row: dict[str, Any] = {"wheel": wheel}
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        names, out = Path(folder, "names"), Path(folder, "out")
        names.write_text("\n".join(used_names(library)) + "\n")
        whole = patched(f"gpt-extract '{library}' | gpt-patch --recompress --dry-run -o '{out}'")
        row |= {"shipped": whole["gpu_before"], "before": whole["gpu_after"]}
        for way in ("compact", "kernel"):
            row[way] = slim(library, names, out, way, "--recompress")["gpu_after"]
    return row


def zstd_table(rows: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table in docs/measured.md."""
    yield "| library | GPU code | zstd 19 | cut, zstd 19 | less | by kernels, zstd 19 | less |"
    yield "| --- | ---: | ---: | ---: | ---: | ---: | ---: |"
    for name, row in rows.items():
        cells = [human(row["shipped"]), human(row["before"])]
        for way in ("compact", "kernel"):
            cells += [human(row[way]), percent(row["before"] - row[way], row["before"])]
        yield f"| {name} ({row['wheel']}) | {' | '.join(cells)} |"


def time_torch(library: Path, runs: int, folder: Path, result: dict[str, Any]) -> None:
    """Measure speed and memory on the large library, with the tools interleaved."""
    raw = result["raw"]
    names = folder / "names"
    names.write_text("\n".join(used_names(library)) + "\n")
    contenders = {
        "gpt-extract": [BIN / "gpt-extract", library],
        "unpack": [sys.executable, HERE / "unpack.py", library],
        "cuobjdump -lelf": [cuda.tool("cuobjdump"), "-lelf", library],
    }
    for number in range(runs):
        for name, command in contenders.items():
            if name != "cuobjdump -lelf" or number < 3:  # it's slow, and far behind the others
                raw.setdefault(name, []).append(measure(*command))
    for way, name in [("compact", "pipeline"), ("kernel", "pipeline, by kernels")] * runs:
        start = time.perf_counter()  # separately, because writing keeps the kernel busy for a while
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        slim(library, names, folder / "out", way)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        raw.setdefault(name, []).append({"seconds": time.perf_counter() - start, "cpu": cpu})
        (folder / "out" / library.name).unlink()
    for run in raw["gpt-extract"]:
        run["rss"] = peak(BIN / "gpt-extract", library)  # all of its processes together, not just the largest
    for tool in TOOLS:
        raw[f"{tool} --help"] = [measure(BIN / tool, "--help") for _ in range(20)]
    extract, unpack, cuobjdump = (raw[name] for name in contenders)
    seconds = median(extract, "seconds")
    bounds = [
        ("gpt-extract / cuobjdump -lelf, time", seconds / median(cuobjdump, "seconds"), 1 / 3),
        ("gpt-extract / unpacking alone, time", seconds / median(unpack, "seconds"), 1.5),
        ("gpt-extract, peak memory, MB", max(run["rss"] for run in extract) / 1e6, 300),
        ("extract | locate | patch --mode compact, s", median(raw["pipeline"], "seconds"), 6),
        *((f"{tool} --help, ms", 1000 * median(raw[f"{tool} --help"], "seconds"), 150) for tool in TOOLS),
    ]
    result["bounds"] = [{"what": w, "value": v, "at_most": m, "held": v <= m} for w, v, m in bounds]


def time_all_reading(given: dict[str, Path], runs: int) -> dict[str, Any]:
    """Run both tools on the ten libraries, and record the machine's other load."""
    rows = {name: time_reading(name, wheel, given, runs) for name, wheel in READ.items()}
    return {"machine": {**machine(), "load": os.getloadavg()[1]}, "libraries": rows}


def reading_table(reading: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of the table in docs/measured.md."""
    yield f"| library | `gpt-extract` | `{CUOBJDUMP}` | ratio | ratio of elapsed times |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, row in reading["libraries"].items():
        (cpu, other), (seconds, others) = (
            [median(row[tool], key) for tool in ("gpt-extract", CUOBJDUMP)] for key in ("cpu", "seconds")
        )
        yield f"| {name} ({row['wheel']}) | {cpu:.2f} | {other:.2f} | {cpu / other:.2f} | {seconds / others:.2f} |"


def time_reading(name: str, wheel: str, given: dict[str, Path], runs: int) -> dict[str, Any]:
    """Measure both tools on a library, interleaved. Other work on the machine affects CPU seconds least."""
    library = given.get(name) or fetch(name, wheel)
    row: dict[str, Any] = {"wheel": wheel, "size": library.stat().st_size, "gpt-extract": [], CUOBJDUMP: []}
    for _ in range(runs):
        row["gpt-extract"].append(measure(BIN / "gpt-extract", library))
        row[CUOBJDUMP].append(measure(cuda.tool("cuobjdump"), "-lelf", library))
    return row


def report(result: dict[str, Any]) -> None:
    """Print the figures as tables."""
    console, raw = Console(highlight=False), result["raw"]
    console.print(", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    table = Table("on libtorch_cuda.so", "seconds", "CPU seconds", "peak memory", "runs", box=None)
    for name, runs in raw.items():
        memory = human(int(max(run["rss"] for run in runs))) if "rss" in runs[0] else ""
        table.add_row(name, f"{median(runs, 'seconds'):.3f}", f"{median(runs, 'cpu'):.3f}", memory, str(len(runs)))
    console.print(table)
    table = Table("bound", "measured", "at most", "", box=None)
    for bound in result["bounds"]:
        held = "held" if bound["held"] else "MISSED"
        table.add_row(bound["what"], f"{bound['value']:.3g}", f"{bound['at_most']:.3g}", held)
    console.print(table)
    table = Table("read: library", "gpt-extract, s", "CPU s", "cuobjdump -lelf, s", "CPU s", "ratio", "CPU", box=None)
    for name, row in result["reading"]["libraries"].items():
        ours, theirs = ([median(row[tool], key) for key in ("seconds", "cpu")] for tool in ("gpt-extract", CUOBJDUMP))
        ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
        table.add_row(name, *(f"{value:.2f}" for value in (*ours, *theirs, *ratios)))
    console.print(table)
    heads = ["library", "file", "compact", "less", "GPU code", "compact", "less", "by kernels", "less", "hole, on disk"]
    table = Table(*heads, box=None)
    for name, row in result["libraries"].items():
        compact, hole, kernel = row["compact"], row["hole"], row["kernel"]
        cells = [human(compact[f"size_{when}"]) for when in ("before", "after")]
        cells.append(percent(compact["size_before"] - compact["size_after"], compact["size_before"]))
        cells += [human(compact[f"gpu_{when}"]) for when in ("before", "after")]
        cells.append(percent(compact["gpu_before"] - compact["gpu_after"], compact["gpu_before"]))
        cells += [human(kernel["gpu_after"]), percent(kernel["gpu_before"] - kernel["gpu_after"], kernel["gpu_before"])]
        table.add_row(name, *cells, human(hole["disk_after"]))
    console.print(table)


if __name__ == "__main__":
    raise SystemExit(main())
