"""Check the probe sync_wait on a real GPU, at barriers with known waiting times.

    python tests/gpu/sync_wait.py [--all]

Warps of sync_wait.cu arrive at a barrier 10,000 clocks apart, for each kind of barrier that the probe supports. The
line for a kernel shows the median clocks that warps 0 to 3 waited, next to the expected values; for clusters, these are
the second block's. Exits with 1 if one is off by more than 200 clocks per barrier, or if the output differs. --all also
measures other ways to read the second clock, which may be wrong: it shows what the hardware lets pass a barrier. Needs
nvcc.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import numpy as np  # noqa: E402

import gpt.trace  # noqa: E402

HOOK = ROOT / "gpt" / "_runtime" / "gpt-hook"
NVCC = Path(os.environ.get("GPT_CUDA_HOME", "/usr/local/cuda")) / "bin" / "nvcc"
OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
APART, WARPS, TURNS, TIMES = 10_000, 4, 8, 3  # as in sync_wait.cu
OFF = 200  # tolerance in clocks per barrier
IN_ORDER = [(WARPS - 1 - warp) * APART for warp in range(WARPS)]
KNOWN = dict.fromkeys(("bar_sync", "counted", "barrier_sync", "bar_red", "shared", "masked", "cluster"), IN_ORDER)
KNOWN |= dict.fromkeys(("turns", "rolled", "crowded"), [(TURNS - TURNS // WARPS) * APART] * WARPS)
BEGIN = "after = "  # starts the wait's snippet in the probe file
SPENT = ".reg .u64 %spent;\n.reg .u32 %mask;\n.reg .pred %left;\n"
VOTE = "activemask.b32 %mask;\nsetp.ne.u32 %left, %mask, 0;\n"
AGAIN = "@%left activemask.b32 %mask;\nsetp.ne.u32 %left, %mask, 0;\n"
GUARDED = "mov.u64 %spent, %arrived;\n@%left mov.u64 %spent, CLOCK;\n"
PARITY = "mov.u64 %spent, CLOCK;\ncvt.u32.u64 %mask, %spent;\nand.b32 %mask, %mask, 1;\nsetp.ne.u32 %left, %mask, 0;\n"
SUMS = "sub.u64 %spent, %spent, %arrived;\nadd.u64 %clocks, %clocks, %spent;\nadd.u32 %waits, %waits, 1;\n"
# Other ways to read the second clock, each too early or too costly for one of the kernels: immediately; after the
# parity of another reading, one or more votes, or the time is known; after arithmetic on the votes; after their number
# is compared; after a store.
OTHERS = {
    "plain": "mov.u64 %spent, CLOCK;\n",
    "parity": f"{PARITY}@%left mov.u64 %spent, CLOCK;\n@!%left mov.u64 %spent, CLOCK;\n",
    "vote": f"{VOTE}{GUARDED}",
    "count": "activemask.b32 %mask;\npopc.b32 %mask, %mask;\nmin.u32 %mask, %mask, 1;\nadd.u32 %waits, %waits, %mask;\n"
    "sub.u32 %waits, %waits, 1;\nmov.u64 %spent, CLOCK;\n",
    "lanes": f"activemask.b32 %mask;\npopc.b32 %mask, %mask;\nsetp.ne.u32 %left, %mask, 0;\n{GUARDED}",
    "votes2": f"{VOTE}{AGAIN}{GUARDED}",
    "votes3": f"{VOTE}{AGAIN * 2}{GUARDED}",
    "timer": f"mov.u64 %spent, TIME;\nsetp.ne.u64 %left, %spent, 0;\n{GUARDED}",
    "store": "SAVE [touched] {%waits};\nmov.u64 %spent, CLOCK;\n",
}
TOUCHED = '[map.touched]\nlevel = "warp"\ncap = 1\ndata = {waits = "u32"}\n\n'
Row = dict[str, Any]


def make_probe(folder: Path, way: str) -> Path:
    """Return the probe's file, changed to read the second clock in a different way."""
    text = (ROOT / "probes" / "sync_wait.toml").read_text()
    start = text.index(BEGIN, text.index("[probe.wait]"))
    end = text.index("[probe.end]")
    file = folder / f"{way}.toml"
    touched = TOUCHED if "[touched]" in OTHERS[way] else ""
    file.write_text(f'{text[:start]}after = """{SPENT}{OTHERS[way]}{SUMS}"""\n\n{touched}{text[end:]}')
    return file


def run(line: list[str | Path], env: dict[str, str]) -> str:
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout.strip() if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-500:]}"


def read(trace: Path) -> dict[str, list[int]]:
    """Return the clocks that each warp of a middle block waited, by kernel."""
    found: dict[str, list[Any]] = {}
    model = gpt.trace.open(trace)
    for launch in model.launches:
        if "sync_wait" not in launch.maps:
            continue
        clocks = launch.maps["sync_wait"]["clocks"][:, :WARPS, 0]  # by block and warp
        name = next(name for name in KNOWN if name in launch.kernel)
        found.setdefault(name, []).append(clocks[1::2] if name == "cluster" else clocks)
    return {name: np.median(np.concatenate(all_), axis=0).astype(int).tolist() for name, all_ in found.items()}


def measure(way: str, probe: str | Path, program: Path, folder: Path, output: str) -> Row:
    trace = folder / f"{way}.mp"
    env = os.environ | {"XDG_CACHE_HOME": str(folder / "cache")}
    said = run([HOOK, "run", "-q", "-f", "-o", trace, "-p", probe, "--", program, str(APART)], env)
    row: Row = {"way": way, "known": KNOWN, "found": {}, "wrong": []}
    if said != output:
        row["wrong"].append(f"the output differs: {said} {output}")
    if trace.exists():
        row["found"] = read(trace)
    for name, known in KNOWN.items():
        waited = row["found"].get(name)
        if waited is None:
            row["wrong"].append(f"{name}: not probed")
        elif max(map(abs, np.subtract(waited, known))) > OFF * (TURNS if known[0] == known[1] else 1):
            row["wrong"].append(f"{name}: {waited}, not {known}")
    return row


def main() -> int:
    """Print each warp's wait and the expected one; return 1 if the probe is wrong."""
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="gpt-wait-") as name:
        folder = Path(name)
        program = folder / "sync_wait"
        code = ["-gencode", "arch=compute_90,code=[sm_90,compute_90]"]
        subprocess.run([NVCC, "-std=c++17", "-O2", *code, ROOT / "tests/gpu/sync_wait.cu", "-o", program], check=True)
        output = run([program, str(APART)], dict(os.environ))
        rows = [measure("sync_wait", "sync_wait", program, folder, output)]
        if "--all" in sys.argv[1:]:
            rows += [measure(way, make_probe(folder, way), program, folder, output) for way in OTHERS]
    (OUT / "sync_wait.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        for name, known in KNOWN.items():
            waited = row["found"].get(name, [])
            print(f"{row['way']:9} {name:12} {' '.join(f'{one:7,}' for one in waited):31}  known {known}")
        print(f"{row['way']:9} {'ok' if not row['wrong'] else 'not ok'}")
    print("; ".join(rows[0]["wrong"]) or f"output {output}: the same with probes")
    return int(bool(rows[0]["wrong"]))


if __name__ == "__main__":
    sys.exit(main())
