"""Run gpt-hook -p on a real GPU: programs compute the same with probes, counts are right, and costs are measured.

    python tests/gpu/probe.py [runtime|triton|train|decode ...]

Run by tests/gpu/run.sh; needs nvcc and g++ for `runtime`, PyTorch and Triton for the rest.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.stream import wire  # noqa: E402
from gpt.stream.reasons import find_reason  # noqa: E402
from gpt.trace.probes import Probes  # noqa: E402

HOOK = ROOT / "gpt" / "_runtime" / "gpt-hook"
NVCC = Path(os.environ.get("GPT_CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
PARTS = ("runtime", "triton", "train", "decode")
Row = dict[str, Any]


def run(line: list[str | Path], env: dict[str, str]) -> tuple[str, str, float]:
    """Return standard output, standard error, and seconds."""
    start = time.monotonic()
    done = subprocess.run(
        line, env=env, capture_output=True, text=True, timeout=400, check=False, cwd=ROOT / "tests/gpu"
    )
    output = done.stdout if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-500:]}"
    return output, done.stderr, time.monotonic() - start


def step_of(said: str) -> float | None:
    found = re.search(r"ms a step ([\d.]+)", said)
    return float(found[1]) if found else None


def read(trace: Path, wanted: str) -> tuple[Row, Counter[str]]:
    """Return the number of launches with probes, and a map's sums by kernel and field."""
    probes, reasons, sums = Probes(trace.parent), Counter[str](), Counter[str]()
    launches: Counter[str] = Counter()
    with open(trace, "rb") as file:
        for record in wire.read_records(file, str(trace)):
            if record["kind"] in ("map", "kernel", "probed", "buffer"):
                probes.add(record)
            if record["kind"] == "unprobed":
                reasons[str(find_reason(record))] += record["launches"]
            if probes.full or record["kind"] == "end":
                for buffer in probes.take():
                    if buffer.lost:
                        reasons[f"lost: {buffer.lost}"] += 1
                        continue
                    if buffer.map.name == wanted:
                        launches[buffer.kernel] += 1
                        saved = buffer.read()
                        for field in saved.slots.dtype.names or ():
                            sums[f"{buffer.kernel}.{field}"] += int(saved.slots[field].sum())
    return {"probed": launches, "unprobed": reasons}, sums


def check_runtime(found: Row, sums: Counter[str]) -> list[str]:
    """Compare the counts for `scale` with closed forms: each of 2^16 threads reads and writes 8 bytes
    of global memory.
    """
    wrong = []
    (name,) = {key.rsplit(".", 1)[0] for key in sums if "scale" in key}
    launches = found["probed"][name]
    if launches != 5 + 3 + 8 * 100:
        wrong.append(f"{launches} launches of scale with probes, not 808")
    bytes_ = launches * 8 * (1 << 16)
    told = {field: sums[f"{name}.{field}"] for field in ("read", "written")}
    if told != {"read": bytes_, "written": bytes_}:
        wrong.append(f"{told}, not {bytes_}")
    if found["unprobed"]:
        wrong.append(f"unprobed: {dict(found['unprobed'])}")
    return wrong


def measure(part: str, folder: Path) -> Row:
    """Measure one program plain, under gpt-hook, and twice with probes; the second time, everything is cached."""
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "TRITON_CACHE_DIR": str(folder / "triton"),
                        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor")}  # fmt: skip
    program: list[str | Path] = [sys.executable, "probe_workload.py", part]
    if part == "runtime":
        program = [folder / "runtime"]
        line = [NVCC, "-gencode", "arch=compute_90,code=[sm_90,compute_90]", "-rdc=false", "probe.cu", "-o", *program]
        subprocess.run(line, check=True, cwd=ROOT / "tests/gpu")
    trace = folder / f"{part}.mp"
    hooked: list[str | Path] = [HOOK, "run", "-q", "-f", "-o", trace]
    probe = "gmem_bytes" if part == "runtime" else "block_sched"
    row: Row = {"part": part}
    ways: dict[str, list[str | Path]] = {"warm": [], "bare": [], "hooked": hooked, "made": [*hooked, "-p", probe],
                                         "kept": [*hooked, "-p", probe]}  # fmt: skip
    outputs = {}
    for way, before in ways.items():
        outputs[way], said, seconds = run([*before, *(["--"] if before else []), *program], env)
        row[way] = {"seconds": seconds, "step_ms": step_of(said)}
    row["same"] = len(set(outputs.values())) == 1 and not outputs["bare"].startswith("status")
    found, sums = read(trace, probe)
    row["probed"], row["unprobed"] = sum(found["probed"].values()), dict(found["unprobed"])
    row["kernels"] = len(found["probed"])
    row["bytes"] = sum(path.stat().st_size for path in folder.glob(f"{part}.mp*"))
    row["wrong"] = check_runtime(found, sums) if part == "runtime" else []
    if not row["same"]:
        row["wrong"].append(f"the output differs: {outputs}")
    return row


def main() -> int:
    """Print a line for each program; return 1 if one is wrong."""
    OUT.mkdir(parents=True, exist_ok=True)
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for part in sys.argv[1:] or PARTS:
            rows.append(row := measure(part, Path(name)))
            print(json.dumps(row), flush=True)
            (OUT / "probe.json").write_text(json.dumps(rows, indent=1) + "\n")
    heads = ("probed", "without", "bare s", "made s", "kept s", "step ms", "hooked", "with probes")
    print(f"{'program':10}{''.join(f'{head:>12}' for head in heads)}")
    for row in rows:
        steps = [f"{row[way]['step_ms'] or 0:.2f}" for way in ("bare", "hooked", "kept")]
        seconds = [f"{row[way]['seconds']:.1f}" for way in ("bare", "made", "kept")]
        values = [row["probed"], sum(row["unprobed"].values()), *seconds, *steps]
        print(f"{row['part']:10}{''.join(f'{value:>12}' for value in values)}  {'; '.join(row['wrong']) or 'ok'}")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
