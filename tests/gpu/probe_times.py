"""Test gpt-hook --benchmark and --memusage on a real GPU: times, results and memory use of a known kernel.

    python tests/gpu/probe_times.py [--sim]

The measured kernel time must be within 10 % of the time that the program measures with events, the results must equal
the plain program's, and memory use must equal the closed form. --sim uses the simulated device, whose times mean
nothing. Needs nvcc and g++.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.stream import jsonl, packed  # noqa: E402

RUNTIME = ROOT / "gpt" / "_runtime"
HOOK = RUNTIME / "gpt-hook"
OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
SIM = "--sim" in sys.argv[1:]
ITEMS, TIMES = (1 << 12, 3) if SIM else (1 << 26, 20)
LAUNCHES = TIMES + 1  # launches of `copy`
NEEDS = {
    "gmem_bytes": ITEMS // 256 * 32,  # a record for each block
    "dmat": 8 + (2 * ITEMS + 2) * (8 + 24),  # a log: each thread's accesses, and two extra by the first thread
}
Row = dict[str, Any]


def build(folder: Path) -> Path:
    program, source = folder / "program", ROOT / "tests" / "gpu" / "probe_times.cu"
    if SIM:
        from tests.runtime import simulated

        return simulated.compile_cuda(folder, source)
    nvcc = Path(os.environ.get("GPT_CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
    code = ["-gencode", "arch=compute_90,code=[sm_90,compute_90]"]
    subprocess.run([nvcc, *code, "-O2", source, "-o", program], check=True)
    return program


def run(folder: Path, program: Path, *options: str) -> tuple[str, float | None, Path]:
    """Return the program's output, the kernel's time in ms by its own events, and the trace."""
    trace = folder / "t.mp"
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    if SIM:
        env |= {"GPT_SIM_RUN": "all", "LD_LIBRARY_PATH": str(RUNTIME / "sim")}
    hook = [HOOK, "run", "-q", "-f", "-o", trace, "--device", "sim" if SIM else "real", *options, "--"]
    line = [*(hook if options else []), program, str(ITEMS), str(TIMES)]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=400, check=False)
    found = re.search(r"ms ([\d.]+)", done.stderr)
    output = done.stdout if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-500:]}"
    return output, float(found[1]) if found else None, trace


def ask(analysis: str, trace: Path) -> dict[str, list[Row]]:
    """Return the rows of the trace's answers, by answer name."""
    done = subprocess.run([ROOT / "bin" / "gpt-analyze", analysis, "--json", trace], capture_output=True, check=True)
    found: dict[str, list[Row]] = {}
    for record in jsonl.read_lines(io.BytesIO(done.stdout), "out"):
        if record["kind"] == "answer":
            fields, rows = packed.unpack_rows(record)
            named = [dict(zip((field.name for field in fields), row, strict=True)) for row in rows]
            found[record["name"]] = named
    return found


def of_copy(rows: list[Row]) -> Row:
    return next(row for row in rows if "copy" in row["name"])


def check_benchmark(folder: Path, program: Path, plain: tuple[str, float | None, Path]) -> Row:
    output, _, trace = run(folder, program, "-p", "gmem_bytes", "--benchmark")
    row: Row = {"output": output.strip(), "plain_ms": plain[1], "wrong": []}
    wrong = row["wrong"]
    if output != plain[0]:
        wrong.append(f"the output differs: {output} {plain[0]}")
        return row
    kernel = of_copy(ask("overhead", trace)["kernels"])
    row |= {key: kernel[key] for key in ("launches", "compared", "original", "probed", "slowdown", "prologue",
                                         "epilogue", "registers_before", "registers")}  # fmt: skip
    if kernel["compared"] != LAUNCHES:
        wrong.append(f"{kernel['compared']} launches compared, not {LAUNCHES}")
    if SIM:
        return row
    if not plain[1] or abs(kernel["original"] / 1e6 / plain[1] - 1) > 0.1:
        wrong.append(f"original {kernel['original'] / 1e6:.3f} ms, by the program's events {plain[1]} ms")
    if not 0.95 < kernel["slowdown"] < 50:
        wrong.append(f"slowdown {kernel['slowdown']}")
    if not kernel["registers"] > kernel["registers_before"] > 0:
        wrong.append(f"registers {kernel['registers_before']} {kernel['registers']}")
    return row


def check_needs(folder: Path, program: Path, plain: str, probe: str) -> Row:
    output, _, trace = run(folder, program, "-p", probe, "--memusage", "-k", "copy")
    row: Row = {"probe": probe, "wrong": [] if output == plain else [f"the output differs: {output} {plain}"]}
    found = ask("memusage", trace)
    kernel, (process,) = of_copy(found["kernels"]), found["processes"]
    row |= {"launches": kernel["launches"], "most": kernel["most"], "total": kernel["total"], "peak": process["peak"]}
    wanted = {"launches": LAUNCHES, "most": NEEDS[probe], "total": LAUNCHES * NEEDS[probe], "peak": 2 * 4 * ITEMS}
    row["wrong"] += [f"{key} {row[key]}, not {value}" for key, value in wanted.items() if row[key] != value]
    return row


def main() -> int:
    """Run all checks and print a table; return 1 if any fails."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder)
        run(folder, program)  # warm
        plain = run(folder, program)
        rows = [check_benchmark(folder, program, plain)]
        rows += [check_needs(folder, program, plain[0], probe) for probe in NEEDS]
    (OUT / "probe_times.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        told = ", ".join(f"{key} {value}" for key, value in row.items() if key != "wrong")
        print(f"{told}: {'; '.join(row['wrong']) or 'ok'}")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
