"""Stock PyTorch slimmed to what a workload uses: sizes, identical output, start-up and memory, on a real GPU.

Run by hand where torch is installed. For each workload: recorded once; its libraries slimmed by whole elements (what
Negativa-ML does), by kernels, and with unused kernels dropped; each set run in place of the installed ones (gpt-hook
--replace), lazily and eagerly loaded, its output held against the original's. Raw figures go to debloat.json.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("GPT_GPU_OUT", "build/gpu")).resolve()
WORKLOADS = sys.argv[1:] or ["mlp", "generate", "resnet", "train", "compile"]
KINDS = {  # options of gpt-locate and gpt-patch
    "element": ("--granularity element", ""),
    "kernel": ("--granularity kernel", ""),
    "drop": ("--granularity kernel", "--kernels drop"),
}
ROUNDS = 3
HERE = str(Path(__file__).parent)


def tools(folder: Path) -> dict[str, str]:
    """An environment with the executables of this checkout on PATH, whatever Python is called here."""
    path = folder / "bin"
    path.mkdir()
    for stage in ("extract", "locate", "patch"):
        code = f"import sys; sys.argv[0] = 'gpt-{stage}'; from gpt.stages.{stage} import main; sys.exit(main())"
        (path / f"gpt-{stage}").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
        (path / f"gpt-{stage}").chmod(0o755)
    (path / "gpt-hook").symlink_to(ROOT / "gpt" / "_runtime" / "gpt-hook")
    shutil.copy(ROOT / "bin" / "gpt-debloat", path)
    python = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    return {**os.environ, "PATH": f"{path}:{os.environ['PATH']}", "PYTHONPATH": python}


def command(name: str) -> list[str]:
    if name == "generate":
        return [sys.executable, f"{HERE}/generate.py"]
    return [sys.executable, f"{HERE}/workload.py", name]


def run(line: list[str], env: dict[str, str]) -> tuple[str, str]:
    done = subprocess.run(line, capture_output=True, text=True, env=env, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line[:6])}: exit {done.returncode}: {done.stderr[-1000:]}")
    return done.stdout, done.stderr


def slim(trace: Path, folder: Path, kind: str, env: dict[str, str]) -> dict[str, Any]:
    """The pipeline; its records in numbers: bytes before and after."""
    line = (
        f"gpt-extract --loaded '{trace}' | gpt-locate --used '{trace}' {KINDS[kind][0]} | "
        f"gpt-patch -o '{folder}' --json {KINDS[kind][1]}"
    )
    out, err = run(["bash", "-o", "pipefail", "-c", line], env)
    patched = [r for r in map(json.loads, out.splitlines()) if r["kind"] == "patched"]
    keys = ("size_before", "size_after", "gpu_before", "gpu_after")
    libraries = {Path(r["library"]).name: {key: r[key] for key in keys} for r in patched}
    return {key: sum(r[key] for r in patched) for key in keys} | {"libraries": libraries, "warnings": err[-2000:]}


def measure(name: str, options: list[str], loading: str, env: dict[str, str], rounds: int) -> dict[str, Any]:
    """Runs a workload; the medians of what it says of itself."""
    found = []
    hook = ["gpt-hook", "run", "-f", "-o", f"{env['WORK']}/measured.mp", "--calls", "none", *options, "--"]
    for _ in range(rounds):
        out, err = run([*hook, *command(name)], env | {"CUDA_MODULE_LOADING": loading})
        facts = next((json.loads(text) for text in err.splitlines() if text.startswith('{"seconds"')), {})
        found.append({"out": out, **facts})
    keys = [key for key in found[0] if key != "out"]
    return {key: statistics.median(run[key] for run in found) for key in keys} | {"out": found[0]["out"]}


def workload(name: str, folder: Path, env: dict[str, str]) -> dict[str, Any]:
    """All of one workload."""
    trace = folder / f"{name}.mp"
    out, _ = run(["gpt-hook", "run", "-f", "-o", str(trace), "--", *command(name)], env)
    row: dict[str, Any] = {"name": name, "runs": {}, "sizes": {}, "same": True}
    for kind in ("original", *KINDS):
        options: list[str] = []
        if kind != "original":
            row["sizes"][kind] = slim(trace, folder / kind, kind, env)
            options = ["--replace", str(folder / kind)]
        for loading in ("LAZY", "EAGER"):
            facts = measure(name, options, loading, env, ROUNDS if loading == "LAZY" else 1)
            row["same"] &= facts.pop("out") == out
            row["runs"][f"{kind} {loading.lower()}"] = facts
        if kind != "original":
            shutil.rmtree(folder / kind)
    return row


def main() -> int:
    """Slims for each workload, prints the table."""
    sys.path.insert(0, str(ROOT))
    from gpt.tables import human

    OUT.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        env = tools(folder) | {"WORK": temporary}
        for name in WORKLOADS:
            try:
                rows.append(workload(name, folder, env))
            except Exception as error:
                rows.append({"name": name, "same": False, "error": str(error)[-1500:]})
            (OUT / "debloat.json").write_text(json.dumps(rows, indent=1))
        whole = [str(folder / "bin" / "gpt-debloat"), "-o", str(folder / "slim"), "--check", "--", *command("mlp")]
        done = subprocess.run(whole, capture_output=True, text=True, env=env)
        print(done.stdout[-3000:], done.stderr[-1500:])
    failed = done.returncode != 0
    for row in rows:
        failed |= not row["same"]
        print(f"{'ok' if row['same'] else 'FAILED':7}{row['name']}", row.get("error", ""))
        for kind, size in row.get("sizes", {}).items():
            file = f"{size['size_before'] / 1e6:.0f} -> {size['size_after'] / 1e6:.0f} MB"
            gpu = f"{size['gpu_before'] / 1e6:.0f} -> {size['gpu_after'] / 1e6:.1f} MB"
            less = 100 * (1 - size["size_after"] / size["size_before"])
            code = 100 * (1 - size["gpu_after"] / size["gpu_before"])
            print(f"       {kind:9} files {file} (-{less:.1f} %), GPU code {gpu} (-{code:.1f} %)")
        for kind, facts in row.get("runs", {}).items():
            shown = {key: f"{value:.2f}" if key == "seconds" else human(int(value)) for key, value in facts.items()}
            words = [f"{key} {value}" for key, value in shown.items()]
            print(f"       {kind:15}", *words)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
