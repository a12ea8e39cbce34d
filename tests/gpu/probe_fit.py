"""Test gpt-hook -p on a real GPU: if a launch doesn't fit with probes, its kernel is assembled again with fewer
registers.

    python tests/gpu/probe_fit.py [block|grid|spin|cluster ...]

Run by tests/gpu/run.sh; needs nvcc and g++. `block` uses blocks of 1024 threads; `grid` a cooperative grid that fills
the device; `spin` a grid of the size that the driver reported as the maximum, whose blocks wait for each other;
`cluster` clusters of 8 blocks of 1024 threads. Each kernel uses the maximum number of registers. Results must stay the
same. In the second run, which finds the kernels in the cache, all launches but the first must have probes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.stream import wire  # noqa: E402
from gpt.stream.reasons import find_reason  # noqa: E402

HOOK = ROOT / "gpt" / "_runtime" / "gpt-hook"
NVCC = Path(os.environ.get("GPT_CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
PARTS = ("block", "grid", "spin", "cluster")
TIMES = 300  # launches, 20 ms apart
PROBE = "probe_fit.toml"
Row = dict[str, Any]


def run(line: list[str | Path], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line, env=env, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT / "tests/gpu"
    )


def read(trace: Path) -> tuple[list[int], Counter[str], list[tuple[int, int]]]:
    """Return the kernels of probed launches, the reasons of the other launches, and register counts with and without
    probes.
    """
    probed, reasons, registers = [], Counter[str](), []
    with open(trace, "rb") as file:
        for record in wire.read_records(file, str(trace)):
            if record["kind"] == "probed":
                probed.append(record["kernel"])
            elif record["kind"] == "unprobed":
                reasons[str(find_reason(record))] += record["launches"]
            elif record["kind"] == "kernel" and "registers" in record:
                registers.append((record["registers"], record.get("registers_before", 0)))
    return probed, reasons, registers


def measure(part: str, program: Path, folder: Path) -> Row:
    """Run a program plain and in three ways with probes: without waiting for them, with cached ones, and waiting for
    them.
    """
    line: list[str | Path] = [program, part, str(TIMES)]
    trace = folder / f"{part}.mp"
    hooked: list[str | Path] = [HOOK, "run", "-q", "-f", "-o", trace, "-p", PROBE]
    ways: dict[str, list[str | Path]] = {"bare": [], "late": [*hooked, "--wait", "0", "--"], "kept": [*hooked, "--"]}
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    row: Row = {"part": part, "wrong": []}
    outputs = {}
    for way, before in ways.items():
        try:
            done = run([*before, *line], env)
        except subprocess.TimeoutExpired:
            row["wrong"].append(f"{way}: hangs")
            continue
        outputs[way] = done.stdout if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-500:]}"
        if not before:
            row["said"] = done.stderr.strip()
            continue
        probed, reasons, registers = read(trace)
        row[way] = {"kernels": dict(Counter(probed)), "unprobed": dict(reasons), "registers": registers}
        if len(probed) + sum(reasons.values()) != TIMES:
            row["wrong"].append(f"{way}: {len(probed)} launches with probes, {dict(reasons)} without")
        if not probed or (way == "kept" and len(probed) < TIMES - 2):
            row["wrong"].append(f"{way}: only {len(probed)} launches have probes")
    if len(set(outputs.values())) != 1 or outputs["bare"].startswith("status"):
        row["wrong"].append(f"the output differs: {outputs}")
    return row


def main() -> int:
    """Print a line for each part; return 1 if one is wrong."""
    OUT.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory(prefix="gpt-fit-") as name:
        folder = Path(name)
        program = folder / "fit"
        line = [NVCC, "-std=c++17", "-gencode", "arch=compute_90,code=[sm_90,compute_90]"]
        subprocess.run([*line, "probe_fit.cu", "-o", program], check=True, cwd=ROOT / "tests/gpu")
        for part in sys.argv[1:] or PARTS:
            row = measure(part, program, folder)
            rows.append(row)
            kept = row.get("kept", {"kernels": {}, "registers": []})
            count, verdict = sum(kept["kernels"].values()), "; ".join(row["wrong"]) or "ok"
            print(f"{part:8} {count:4} of {TIMES} with probes, registers {kept['registers']}: {verdict}")
    (OUT / "probe_fit.json").write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
