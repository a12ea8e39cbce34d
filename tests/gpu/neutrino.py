"""Run the commands of Neutrino's notebooks on the GPU, with Triton kernels and kernels made by torch.compile.

    python tests/gpu/neutrino.py [PART ...]

Run by tests/gpu/run.sh; needs torch and triton. Programs print digests of their results, which must be the same with
and without probes. Each result folder is read by its own generated reader, and its sums must equal closed forms.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.compat.neutrino.command import PACKAGE, TOOLS  # noqa: E402

OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
BIN = Path(sys.executable).parent
WORKLOAD = ROOT / "tests" / "gpu" / "probe_workload.py"
ZEROS = """
import os
import torch
import triton
import triton.language as tl
from neutrino.utils.tensortrace import TensorTrace

@triton.jit
def zeros(out, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.zeros([BLOCK], dtype=tl.float16))

def fill(out):
    zeros[(out.numel() // 1024,)](out, BLOCK=1024)

with TensorTrace() as t:
    a = torch.empty((4096, 4096), dtype=torch.float16, device="cuda")
    for _ in range(3):
        fill(a)
torch.cuda.synchronize()
print("max memory:", torch.cuda.max_memory_allocated())
"""
BLOCKS = 4096 * 4096 // 1024
FILTERED = "distribution:copy"


def run(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command of the notebook, in its folder."""
    env = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "TRITON_CACHE_DIR": str(folder / "cache")}
    line = [str(word) for word in words]
    return subprocess.run(line, cwd=folder, env=env, capture_output=True, text=True, timeout=1800, check=False)


def read(folder: Path) -> list[Any]:
    """Return the header and records of each result, from the generated reader. All kernels have the same maps."""
    names: dict[str, Any] = {}
    exec(next(folder.glob("kernel/*/read.py")).read_text(), names)
    return [names["parse"](path) for path in sorted((folder / "result").iterdir(), key=lambda path: float(path.stem))]


def events(folder: Path, begin: str) -> list[str]:
    return [line for line in (folder / "event.log").read_text().splitlines() if line.startswith(begin)]


class Checks:
    """The results of the checks so far."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, what: str, holds: bool, **found: Any) -> None:
        self.rows.append({"what": what, "holds": holds, **found})
        print(f"{'holds' if holds else 'WRONG':6} {what:44} {found}", flush=True)


def first_steps(folder: Path, checks: Checks) -> None:
    """Run section 1: block_sched."""
    (folder / "block_sched").mkdir()
    (folder / "block_sched" / "raw.py").write_text(ZEROS)
    done = run(
        folder, "neutrino", "-p", "block_sched", "--tracedir", "block_sched", sys.executable, "block_sched/raw.py"
    )
    names = os.listdir(folder / "block_sched" / "trace")
    if len(names) != 1:
        raise SystemExit(f"neutrino: {len(names)} folders, not one: {done.stderr[-2000:]}")
    (name,) = names
    trace = folder / "block_sched" / "trace" / name
    lines = [line for line in done.stdout.splitlines() if line.startswith("No.block")]
    said = done.stderr.strip().split(" ")[-1] == f"block_sched/trace/{name}"
    checks.add("block_sched: a line a launch, the folder last", said and len(lines) == 3, lines=lines[:1])
    launches = read(trace)
    whole = all(len(blocks) == BLOCKS and header.gridDimX == BLOCKS for header, _, blocks in launches)
    checks.add("block_sched: all warps are in the results", whole and len(launches) == 3)
    log = next(trace.glob("kernel/*/process.log")).read_text()
    used = re.findall(r"Used (\d+) registers", log)
    checks.add("process.log: ptxas on both", len(used) == 2, registers=used)
    tensors = (trace / "tensor.trace").read_text().splitlines()
    known = {f"{int(line.split('  ')[4]):#x}" for line in tensors}
    addresses = {line.split()[3] for line in events(trace, "[exec]") if " param " in line}
    checks.add("TensorTrace: the tensor of each launch", addresses <= known, tensors=len(tensors))


def sums(folder: Path, checks: Checks) -> None:
    """Run gmem_bytes on a kernel that writes a matrix, and plot its accesses."""
    (folder / "zeros.py").write_text(ZEROS)
    done = run(folder, "neutrino", "-p", "gmem_bytes", "-k", "zeros", sys.executable, "zeros.py")
    found = [line for line in done.stdout.splitlines() if line.startswith("gmem_bytes")]
    checks.add("gmem_bytes: the matrix", found == [f"gmem_bytes:{2 * 4096 * 4096}"] * 3, found=found[:1])
    done = run(folder, "neutrino", "-t", "dmat", "-k", "zeros", sys.executable, "zeros.py")
    picture = folder / done.stdout.splitlines()[-1]
    checks.add("dmat: a picture", picture.suffix == ".png" and picture.exists(), picture=picture.name)


def slowdown(folder: Path, checks: Checks) -> None:
    """Run the notebook's loop over METRICS and COMMANDS."""
    for metric in ("block_sched", "tensorop_count", "gmem_bytes"):
        shutil.copy(TOOLS / f"{metric}.toml", folder)
        words = ["--benchmark", "-p", f"./{metric}.toml", "--filter", FILTERED, sys.executable, WORKLOAD, "triton"]
        done = run(folder, "neutrino", *words)
        tracedir = done.stderr.strip().split(" ")[-1]
        os.rename(folder / tracedir, folder / f"trace-{metric}")
        lines = [line.split() for line in events(folder / f"trace-{metric}", "[benchmark]")]
        impacts = sorted(float(words[10]) for words in lines)
        checks.add(f"--benchmark -p ./{metric}.toml", bool(lines), launches=len(lines),
                   impact=impacts[len(impacts) // 2] if impacts else None)  # fmt: skip


def memory(folder: Path, checks: Checks) -> None:
    """Run the notebook's loop over MODELS and TESTS, on modules compiled by torch.compile."""
    for test in ("block_sched", "gmem_bytes", "tensorop_count", "dmat"):
        done = run(folder, "neutrino", "-p", test, "--memusage", sys.executable, WORKLOAD, "decode")
        most = 0
        for line in done.stderr.split("\n"):
            path = folder / line.strip().split(" ")[-1]
            if "[info] trace in" in line:
                most = max([most, *(int(found.split(" ")[2]) for found in events(path, "[exec] probe-mem"))])
        needs = test != "tensorop_count"  # here only cuBLAS multiplies matrices
        checks.add(f"-p {test} --memusage", done.returncode == 0 and (most > 0) == needs, most=most)


def results(folder: Path, checks: Checks) -> None:
    """Check that programs compute the same with probes."""
    for what, *steps in (("triton",), ("decode", "4", "4")):  # each probed launch becomes a file
        program = sys.executable, WORKLOAD, what, *steps
        bare = run(folder, *program)
        done = run(folder, "neutrino", "-p", "block_sched", "--trace", f"same-{what}", *program)
        kept = [line for line in done.stdout.splitlines() if line.startswith(what)]
        traces = list((folder / f"same-{what}").iterdir())
        saved = sum(len(list((trace / "result").iterdir())) for trace in traces)
        backup = sum(len(events(trace, "[exec] backup")) for trace in traces)
        same = kept == [line for line in bare.stdout.splitlines() if line.startswith(what)] != []
        checks.add(f"{what}: the same results", same and saved > 0, launches=saved, unprobed=backup)


PARTS = {part.__name__: part for part in (first_steps, sums, slowdown, memory, results)}


def main() -> int:
    """Run the parts named on the command line, or all; return 1 if anything is wrong."""
    checks = Checks()
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or PARTS:
            (here := Path(folder, name)).mkdir()
            PARTS[name](here, checks)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "neutrino.json").write_text(json.dumps({"package": str(PACKAGE), "rows": checks.rows}, indent=1))
    return int(not all(row["holds"] for row in checks.rows))


if __name__ == "__main__":
    sys.exit(main())
