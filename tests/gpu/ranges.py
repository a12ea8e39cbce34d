"""Check ranges of warps on a GPU: their lengths at barriers with known waits, and what the probe warp_ranges costs.

    python tests/gpu/ranges.py [--device sim]

1. Warps of sync_wait.cu arrive at barriers 10,000 clocks apart. A probe with a RANGE around each barrier is woven into
   PTX and into machine code, and each warp's ranges are compared with the known waits. Needs nvcc.
2. The warp-specialized kernel of tests/runtime/warp_roles.ptx runs with and without warp_ranges. Prints the time of the
   kernel, and checks that all warps recorded the same tiles, and that the ends of their waits are in order.

Exits with 1 if a range is off by more than 400 clocks per barrier, or anything else is wrong. With --device sim, only
the second part runs, and its times mean nothing.
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
APART, WARPS, TURNS = 10_000, 4, 8  # as in sync_wait.cu
OFF = 400  # tolerance in clocks per barrier
CLAIM = 1000  # ... and for a room: a cluster's warps get theirs after they have arrived
IN_ORDER = [(WARPS - 1 - warp) * APART for warp in range(WARPS)]
KNOWN = dict.fromkeys(("bar_sync", "counted", "barrier_sync", "bar_red", "shared", "masked", "cluster"), IN_ORDER)
KNOWN |= dict.fromkeys(("turns", "rolled", "crowded"), [(TURNS - TURNS // WARPS) * APART] * WARPS)
LEFT_ALONE = {("sass", "bar_red")}  # too few predicates are free between a BAR.RED and the B2R that reads its result
CODE = {"ptx": "[sm_90,compute_90]", "sass": "sm_90"}
BARRIERS = """
[map.waits]
level = "warp"
ring = 64

[probe.wait]
position = "bar.sync:bar.red:barrier.sync:barrier.red:barrier.cluster.wait"
level = "warp"
before = "RANGE begin barrier;"
after = "RANGE end barrier;"
"""
ROLES = 3  # warps per block of warp_roles.ptx
PARTS = {"real": (264, 2000), "sim": (8, 41)}  # blocks and tiles
Row = dict[str, Any]


def run(line: list[str | Path], cache: Path) -> str:
    env = os.environ | {"XDG_CACHE_HOME": str(cache), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(line, env=env, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    return done.stdout.strip() if done.returncode == 0 else f"status {done.returncode}: {done.stderr[-500:]}"


def find_waits(trace: Path) -> dict[str, list[int]]:
    """Return the clocks in the ranges of each warp of a middle block, by kernel."""
    found: dict[str, list[Any]] = {}
    for launch in gpt.trace.open(trace).launches:
        if "waits" not in launch.maps:
            continue
        saved = launch.saved("waits")
        name = next(name for name in KNOWN if name in launch.kernel)
        clocks = np.zeros((launch.blocks, launch.launch.threads // 32), np.int64)
        signs = np.where(saved.slots["range"] % 2, 1, -1)
        np.add.at(clocks.reshape(-1), saved.units.astype(np.intp), signs * saved.slots["clock"].astype(np.int64))
        rows = clocks[:, :WARPS]
        found.setdefault(name, []).append(rows[1::2] if name == "cluster" else rows)
    return {name: np.median(np.concatenate(all_), axis=0).astype(int).tolist() for name, all_ in found.items()}


def allowed(name: str) -> int:
    """Return by how many clocks a kernel's ranges may be off."""
    return OFF * (TURNS if name in ("turns", "rolled", "crowded") else 1) + CLAIM * (name == "cluster")


def check_waits(form: str, folder: Path) -> Row:
    """Compare the ranges around barriers with the known waits."""
    program, trace, probe = folder / form, folder / f"{form}.mp", folder / "waits.toml"
    probe.write_text(BARRIERS)
    code = ["-gencode", f"arch=compute_90,code={CODE[form]}"]
    subprocess.run([NVCC, "-std=c++17", "-O2", *code, ROOT / "tests/gpu/sync_wait.cu", "-o", program], check=True)
    output = run([program, str(APART)], folder / "cache")
    said = run([HOOK, "run", "-qf", "-o", trace, "-p", probe, "--", program, str(APART)], folder / "cache")
    row: Row = {"form": form, "known": KNOWN, "found": find_waits(trace) if trace.exists() else {}, "wrong": []}
    if said != output:
        row["wrong"].append(f"the output differs: {said} {output}")
    for name, known in KNOWN.items():
        waited = row["found"].get(name)
        if waited is None:
            row["wrong"] += [] if (form, name) in LEFT_ALONE else [f"{name}: not probed"]
        elif max(map(abs, np.subtract(waited, known))) > allowed(name):
            row["wrong"].append(f"{name}: {waited}, not {known}")
    return row


def find_times(trace: Path) -> list[int]:
    """Return how long each launch of the kernel ran, in ns."""
    model = gpt.trace.open(trace)
    rows = model.gpu_times()
    return [int(row["duration"]) for row in rows if row["function"] and model.kernel(row) == "roles"]


def check_roles(device: str, folder: Path) -> Row:
    """Run the warp-specialized kernel with and without the probe."""
    blocks, tiles = PARTS[device]
    traces = {name: folder / f"{name}.mp" for name in ("plain", "probed")}
    where = ["--device", "sim"] if device == "sim" else []
    row: Row = {"blocks": blocks, "tiles": tiles, "wrong": []}
    for name, trace in traces.items():
        probes = ["-p", "warp_ranges"] if name == "probed" else []
        program = [sys.executable, "-m", "tests.runtime.warp_roles", str(blocks), str(tiles)]
        if said := run(
            [HOOK, "run", "-qf", "-o", trace, "--gpu-time", *where, *probes, "--", *program], folder / "cache"
        ):
            row["wrong"].append(f"{name}: {said}")
            return row
        row[name] = find_times(trace)
    launches = [one for one in gpt.trace.open(traces["probed"]).launches if "warp_ranges" in one.maps]
    row["launches"] = len(launches)
    for launch in launches:
        saved = launch.saved("warp_ranges")
        row["records"], row["overwritten"], row["dropped"] = len(saved.slots), saved.overwritten, saved.dropped
        names = launch.buffers["warp_ranges"].map.ranges
        ends = saved.slots["range"] == 2 * names.index("mbarrier") + 1
        for block in np.unique(saved.units // ROLES).tolist():
            warps = [ends & (saved.units == ROLES * block + warp) for warp in range(ROLES)]
            fill, *takes = ({int(one["number"]): int(one["clock"]) for one in saved.slots[warp]} for warp in warps)
            if not fill or any(take.keys() != fill.keys() or set(fill) - {*range(0, tiles, 4)} for take in takes):
                row["wrong"].append(f"block {block}: the warps recorded different tiles")
            elif any(fill[tile] >= take[tile] for take in takes for tile in fill):
                row["wrong"].append(f"block {block}: a tile was full before it was copied")
    if not launches:
        row["wrong"].append("not probed")
    return row


def main() -> int:
    """Print the waits, the times, and what's wrong."""
    OUT.mkdir(parents=True, exist_ok=True)
    device = "sim" if "sim" in sys.argv[1:] else "real"
    with tempfile.TemporaryDirectory(prefix="gpt-ranges-") as name:
        waits = [check_waits(form, Path(name)) for form in CODE] if device == "real" else []
        roles = check_roles(device, Path(name))
    (OUT / "ranges.json").write_text(json.dumps({"waits": waits, "roles": roles}, indent=1) + "\n")
    for row in waits:
        for kernel, known in KNOWN.items():
            waited = row["found"].get(kernel, [])
            print(f"{row['form']:5} {kernel:12} {' '.join(f'{one:7,}' for one in waited):31}  known {known}")
    print(" ".join(f"{key} {value}" for key, value in roles.items() if key != "wrong"))
    wrong = [fault for row in (*waits, roles) for fault in row["wrong"]]
    print("\n".join(wrong) or "ok")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
