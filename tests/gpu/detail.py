"""Check --detail and histograms in shared memory, and measure their cost: `python tests/gpu/detail.py [--device sim]`.

detail.cu launches one kernel, both directly and as graph nodes. It runs plain; with block_sched and gmem_bytes, in full
detail and with --detail 2; and with a histogram, with enough free shared memory for it and without. All sums must be
right in each launch. The table shows us per launch and per graph, the median of ROUNDS, and the size of the trace and
its buffers. The row "plain again" shows how much identical runs differ.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.stream import wire  # noqa: E402
from gpt.trace.probes import Probes  # noqa: E402
from tests.gpu import accounts  # noqa: E402

HERE = Path(__file__).parent
ROUNDS, THREADS = 3, 256
BOTH = ("-p", "block_sched", "-p", "gmem_bytes")
HISTOGRAM = ("-p", str(HERE / "light_histogram.toml"))
NONE = 49152  # bytes of dynamic shared memory, after which there's no room for a histogram
RUNS: dict[str, tuple[tuple[str, ...] | None, int]] = {
    "plain": (None, 0),
    "plain again": (None, 0),
    "full detail": (BOTH, 0),
    "detail 2": ((*BOTH, "--detail", "2"), 0),
    "histogram, shared": (HISTOGRAM, 0),
    "plain, 48 KiB": (None, NONE),
    "histogram, global": (HISTOGRAM, NONE),
}


def check(trace: Path, name: str, launches: int, blocks: int) -> list[str]:
    """Return what's wrong with a trace, given that each thread of the kernel reads and writes 4 bytes."""
    probes, found, rooms, wrong = Probes(trace.parent), 0, set[bool](), []
    reduced = 0
    with open(trace, "rb") as file:
        for record in wire.read_records(file, str(trace)):
            if record["kind"] == "probed":
                rooms.add("room" in record)
            if record["kind"] in ("map", "kernel", "probed", "buffer"):
                probes.add(record)
    for buffer in probes.take():
        threads = blocks * THREADS
        if buffer.map.name == "gmem_bytes":
            found += 1
            reduced += buffer.reduced
            sums = buffer.read_sums().fields if buffer.reduced else None
            slots = None if sums else buffer.read().slots
            for field in ("read", "written"):
                total = int(sums[field].total) if sums else int(slots[field].sum())  # type: ignore[index]
                if total != 4 * threads:
                    wrong.append(f"launch {buffer.launch.id}: {total} bytes {field}")
        if buffer.map.name == "light_histogram":
            found += 1
            bins = buffer.read().bins
            if bins is None or bins.sum() != 2 * threads or bins[3] != 2 * threads:
                wrong.append(f"launch {buffer.launch.id}: bins {bins}")
    if found != launches:
        wrong.append(f"{found} launches of {launches}")
    if name == "detail 2" and reduced != launches - 2:
        wrong.append(f"{reduced} launches have only sums")
    if name.startswith("histogram") and rooms != {name.endswith("shared")}:
        wrong.append(f"room: {rooms}")
    return wrong[:5]


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="real", choices=("real", "sim"))
    sim = parser.parse_args().device == "sim"
    # Many launches, so that the slabs' allocation, which takes milliseconds, is a small part of their time.
    launches, replays, nodes, blocks, rounds = (4, 4, 3, 100, 1) if sim else (4000, 200, 60, 4096, ROUNDS)
    shared = ("-cudart", "shared", "-cudadevrt", "none", "-L", accounts.SIMULATED) if sim else ()
    rows: list[dict[str, Any]] = [{"run": name, "launch": [], "graph": [], "wrong": []} for name in RUNS]
    with tempfile.TemporaryDirectory() as at:
        folder, program = Path(at), Path(at) / "detail"
        code = ("-std=c++17", "-gencode", "arch=compute_90,code=[sm_90,compute_90]")
        subprocess.run([accounts.NVCC, *code, *shared, HERE / "detail.cu", "-o", program], check=True)
        for _ in range(rounds):
            for row, (name, (options, bytes_)) in zip(rows, RUNS.items(), strict=True):
                trace = folder / "t.mp"
                line = [str(program), str(replays), str(nodes), str(bytes_), str(blocks), str(launches)]
                env = accounts.environment(folder, "sim" if sim else "real")
                if options or sim:
                    line = [*map(str, accounts.hooked(trace, "sim" if sim else "real", *(options or ()))), *line]
                done = accounts.run(line, env, 300)
                times = re.search(r"us a launch ([\d.]+), a graph ([\d.]+)", done.output)
                if done.status or not times:
                    row["wrong"].append(f"status {done.status}: {(done.output + done.said)[-300:]}")
                    continue
                row["launch"].append(float(times[1]))
                row["graph"].append(float(times[2]))
                if options:
                    row["bytes"] = sum(file.stat().st_size for file in folder.glob("t.mp*"))
                    row["wrong"] += check(trace, name, launches + replays * nodes, blocks)
                for file in folder.glob("t.mp*"):
                    file.unlink()
    for row in rows:
        medians = [f"{statistics.median(row[key]):10.2f}" if row[key] else "         -" for key in ("launch", "graph")]
        print(f"{row['run']:18}", *medians, f"{row.get('bytes', 0):12,}", "; ".join(row["wrong"]) or "right")
    accounts.OUT.mkdir(parents=True, exist_ok=True)
    (accounts.OUT / "detail.json").write_text(json.dumps(rows, indent=1) + "\n")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
