"""Slim stock PyTorch and JAX to the code of a workload; compare sizes, output, start-up time and memory on a real GPU.

    python3 tests/gpu/debloat.py [--seconds 560] [--rounds 3] [--quick] [mlp generate resnet train compile jax apply]

Run this by hand where torch is installed. Each workload is recorded once. Its libraries are then slimmed in three ways:
by removing whole elements (as Negativa-ML does), by zeroing kernels, and by removing kernels in all places (--scan).
The workload runs with each set in place of the installed libraries (gpt-hook --replace), loading code lazily and
eagerly, interleaved with runs of the original, and its output is compared with the original's. Finally, `gpt-debloat
--check` does it all from the start. `apply` slims a copy of the environment in place and undoes that
(tests/gpu/inplace.py).

Results are written to GPT_GPU_OUT/debloat.json after every step. A workload's rows replace its old ones; other rows
stay, and initially come from docs/figures/gpu, so each call can measure one workload. If time runs out (`--seconds`,
counted from the start), the row says what's missing. `--quick` only measures the original and the last set, and keeps
the row's other figures. The recorded traces are kept next to the results.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Import these files by name alone: another package called `tests` may be installed.
sys.path[:0] = [str(ROOT), str(HERE)]

import inplace  # noqa: E402
from table import sizes  # noqa: E402

from gpt.screen.units import human  # noqa: E402

COMMITTED = ROOT / "docs/figures/gpu/debloat-h200.json"
WORKLOADS = {  # name -> command; apply is not a workload
    name: [sys.executable, f"{HERE}/workload.py", name]
    for name in ("mlp", "generate", "resnet", "train", "compile", "jax")
}
KINDS = {  # options of gpt-extract, gpt-locate and gpt-patch
    "element": ("", "--granularity element", ""),
    "zero": ("", "--granularity kernel", "--kernels zero"),
    "drop": ("--scan", "--granularity kernel", "--kernels drop"),
}

# Keep torch.compile's results between runs of the original and of the slimmed sets, because this measures libraries,
# not the compiler. gpt-debloat --check compiles again, both times.
ANEW = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TRITON_ALWAYS_COMPILE": "1"}

Facts = dict[str, Any]


class OutOfTime(Exception):
    """Raised when time is up; completed steps are kept."""


class Bench:
    """Runs commands with this checkout's executables on PATH, until time is up."""

    def __init__(self, folder: Path, seconds: float, device: str, keep: Path) -> None:
        self.folder, self.device, self.keep = folder, device, keep
        self._start = time.monotonic()
        self._seconds = seconds
        path = folder / "bin"
        path.mkdir()
        for stage in ("extract", "locate", "patch"):
            code = f"import sys; sys.argv[0] = 'gpt-{stage}'; from gpt.stages.{stage} import main; sys.exit(main())"
            (path / f"gpt-{stage}").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
            (path / f"gpt-{stage}").chmod(0o755)
        (path / "gpt-hook").symlink_to(ROOT / "gpt" / "_runtime" / "gpt-hook")
        shutil.copy(ROOT / "bin" / "gpt-debloat", path)
        self.env = os.environ | {
            "PATH": f"{path}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
            "XDG_STATE_HOME": str(folder / "state"),
            "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"),
            "TRITON_CACHE_DIR": str(folder / "triton"),
            "TORCHINDUCTOR_COMPILE_THREADS": "1",  # no worker processes, which take seconds to start
        }

    def say(self, fact: str) -> None:
        print(f"{time.monotonic() - self._start:6.1f} s  {fact}", flush=True)

    def run(self, line: list[str], env: dict[str, str] | None = None, what: str = "") -> tuple[str, str]:
        """Return standard output and error. Raises OutOfTime, and RuntimeError if a command fails."""
        left = self._seconds - (time.monotonic() - self._start)
        try:
            if left <= 0:
                raise OutOfTime(what or line[0])
            done = subprocess.run(line, capture_output=True, text=True, env=self.env | (env or {}), timeout=left)
        except subprocess.TimeoutExpired:
            raise OutOfTime(what or line[0]) from None
        if done.returncode:
            raise RuntimeError(f"{' '.join(line[:6])}: exit {done.returncode}: {(done.stderr or done.stdout)[-1000:]}")
        return done.stdout, done.stderr

    def hook(self, name: str, *options: str) -> list[str]:
        return ["gpt-hook", "run", "-f", "-o", str(self.folder / name), "--device", self.device, *options, "--"]


def slim(bench: Bench, trace: Path, folder: Path, kind: str) -> dict[str, Any]:
    """Run the pipeline; return the byte counts in its records, before and after."""
    extract, locate, patch = KINDS[kind]
    line = (
        f"gpt-extract {extract} --loaded '{trace}' | gpt-locate --used '{trace}' {locate} | "
        f"gpt-patch -o '{folder}' --json {patch}"
    )
    out, err = bench.run(["bash", "-o", "pipefail", "-c", line], what=f"slimming, {kind}")
    patched = [r for r in map(json.loads, out.splitlines()) if r["kind"] == "patched"]
    keys = ("size_before", "size_after", "gpu_before", "gpu_after")
    libraries = {Path(r["library"]).name: {key: r[key] for key in keys} for r in patched}
    return {key: sum(r[key] for r in patched) for key in keys} | {"libraries": libraries, "warnings": err[-2000:]}


def measure(bench: Bench, command: list[str], options: list[str], loading: str, what: str) -> tuple[str, Facts]:
    """Run a workload; return its output and the figures that it prints."""
    line = [*bench.hook("measured.mp", "--calls", "none", *options), *command]
    out, err = bench.run(line, {"CUDA_MODULE_LOADING": loading.upper()}, what)
    return out, next((json.loads(text) for text in err.splitlines() if text.startswith('{"seconds"')), {})


def medians(runs: list[Facts]) -> Facts:
    """Return the median of each figure, and the seconds of each run."""
    middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
    return middle | {"each": [run["seconds"] for run in runs]}


def workload(bench: Bench, name: str, row: dict[str, Any], rounds: int, quick: bool) -> Iterator[None]:
    """Run all steps of one workload, and add each result to its row. When all code is loaded eagerly, there's a single
    round.
    """
    command = WORKLOADS[name]
    trace = bench.folder / f"{name}.mp"
    out, _ = bench.run([*bench.hook(trace.name), *command], what="the recorded run")
    for path in (trace, *bench.folder.glob(f"{trace.name}.*")):  # including the traces of other processes
        with gzip.open(bench.keep / f"{path.name}.gz", "wb", 1) as kept:
            kept.write(path.read_bytes())
    row |= {"runs": {}, "sizes": {}, "same": True}
    sets: dict[str, list[str]] = {"original": []}
    for kind in ("drop",) if quick else KINDS:
        row["sizes"][kind] = slim(bench, trace, bench.folder / kind, kind)
        sets[kind] = ["--replace", str(bench.folder / kind)]
        bench.say(f"{name}: slimmed, {kind}")
        yield
    for loading, times in (("lazy", rounds), ("eager", 1)):
        found: dict[str, list[Facts]] = {kind: [] for kind in sets}
        for _ in range(times):
            for kind, options in sets.items():
                said, facts = measure(bench, command, options, loading, f"{kind} {loading}")
                row["same"] &= said == out
                found[kind].append(facts)
        for kind, runs in found.items():
            row["runs"][f"{kind} {loading}"] = facts = medians(runs)
            bench.say(f"{name}: {kind} {loading}: " + " ".join(shown(facts)))
        yield
    for kind in sets:
        shutil.rmtree(bench.folder / kind, ignore_errors=True)
    if quick:
        return
    check = ["gpt-debloat", "--device", bench.device, "--check", "--granularity", "kernel", "--scan"]
    out, _ = bench.run([*check, "-o", str(bench.folder / "slim"), "--", *command], ANEW, "gpt-debloat --check")
    row["check"] = next(line for line in out.splitlines() if line.startswith("check:"))
    shutil.rmtree(bench.folder / "slim")


def shown(facts: dict[str, Any]) -> list[str]:
    """Return a run's figures in words."""
    words = [f"{key} {human(int(facts[key]))}" for key in ("resident", "mapped", "gpu") if key in facts]
    return [f"seconds {facts['seconds']:.2f}", *words]


def merge(rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Replace the row with this name, or append it. Figures that the new row lacks are kept."""
    names = [old["name"] for old in rows]
    place = names.index(row["name"]) if row["name"] in names else len(rows)
    for old in rows[place : place + 1]:
        kept = {key: old[key] for key in ("check",) if key in old}
        kept |= {key: old.get(key, {}) | row[key] for key in ("runs", "sizes") if key in row}
        row = row | kept
    rows[place : place + 1] = [row]


def one(bench: Bench, name: str, rounds: int, quick: bool, save: Callable[[dict[str, Any]], None]) -> bool:
    """Measure one workload; return whether every step succeeded and was right."""
    row: dict[str, Any] = {"name": name, "same": False}
    try:
        for _ in inplace.check(bench, row) if name == "apply" else workload(bench, name, row, rounds, quick):
            save(row)
    except OutOfTime as error:
        row["unfinished"] = f"no time for {error}"
    except Exception as error:
        row |= {"same": False, "error": str(error)[-1500:]}
    save(row)
    bench.say(" ".join([name, "ok" if row["same"] else "FAILED", row.get("error", row.get("unfinished", ""))]))
    return bool(row["same"]) and "unfinished" not in row


def main(words: list[str] | None = None) -> int:
    """Slim libraries for each workload, and print a table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(WORKLOADS)}, apply; all but apply")
    options.add_argument("--seconds", type=float, default=560, help="how long all of it may take")
    options.add_argument("--rounds", type=int, default=3, help="runs of which the median is taken")
    options.add_argument("--device", choices=("real", "sim"), default="real", help="as in gpt-hook")
    options.add_argument("--results", type=Path, help="the file to add to")
    options.add_argument("--quick", action="store_true", help="the original and dropped kernels alone")
    args = options.parse_args(words)
    names = args.names or list(WORKLOADS)
    if unknown := [name for name in names if name not in (*WORKLOADS, "apply")]:
        options.error(f"no such workload: '{unknown[0]}'")
    results = args.results or Path(os.environ.get("GPT_GPU_OUT", "build/gpu")).resolve() / "debloat.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    rows = json.loads((results if results.exists() else COMMITTED).read_text())

    def save(row: dict[str, Any]) -> None:
        merge(rows, row)
        results.with_suffix(".part").write_text(json.dumps(rows, indent=1) + "\n")
        results.with_suffix(".part").replace(results)

    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Path(temporary), args.seconds, args.device, results.parent)
        good = [one(bench, name, args.rounds, args.quick, save) for name in names]
    print(*sizes(rows), sep="\n")
    return not all(good)


if __name__ == "__main__":
    raise SystemExit(main())
