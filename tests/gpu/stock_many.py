"""Run ten million launches of stock PyTorch's kernels with probes: `python tests/gpu/stock_many.py [--quick]`.

The program adds one to 64 integers in a CUDA graph of 1,000 kernels, 9,000 times, and launches a million such kernels
without a graph. Each integer must be ten million at the end. It runs plain, with block_sched and all its details, and,
with a tenth of the launches, with gmem_bytes and `--detail 16`. Each launch must have probes, and gmem_bytes's sums
must be the bytes that these kernels read and write.
"""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

NODES, SIZE = 1000, 64
RUNS: dict[str, tuple[int, tuple[str, ...]]] = {  # millions of launches, and options
    "plain": (10, ()),
    "block_sched": (10, ("-p", "block_sched")),
    "gmem_bytes": (1, ("-p", "gmem_bytes", "--detail", "16")),
}
REPORT = re.compile(r"(\d+) launches with probes, (\d+) without")


def work(millions: int) -> None:
    """Be the program: print whether the sums are right, the seconds that each part took, and the GPU's memory."""
    import torch

    sums = torch.zeros(SIZE, dtype=torch.int64, device="cuda")
    sums.add_(1)
    torch.cuda.synchronize()
    sums.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(NODES):
            sums.add_(1)
    used = []
    times = [time.perf_counter()]
    for part in range(10):
        if part == 9:
            for _ in range(millions * 100_000):
                sums.add_(1)
        else:
            for _ in range(millions * 100):
                graph.replay()
        torch.cuda.synchronize()
        free, whole = torch.cuda.mem_get_info()
        used.append((whole - free) // 1_000_000)
        times.append(time.perf_counter())
    print(int((sums == millions * 1_000_000).sum()), f"{times[9] - times[0]:.2f}", f"{times[10] - times[9]:.2f}", *used)


def add_up(trace: Path, folder: Path) -> tuple[int, int, int]:
    """Return the launches of the kernel that the program repeats, and the bytes that it read and wrote."""
    from tests.gpu import accounts

    line = [ROOT / ".venv/bin/gpt-analyze", "gmem_bytes", "--format", "csv", trace]
    done = accounts.run(line, accounts.environment(folder, "real"), 200)
    rows = csv.DictReader(io.StringIO(done.output.split("\n\n")[0]))
    found = [(int(row["launches"]), int(row["read"]), int(row["written"])) for row in rows]
    return max(found, default=(0, 0, 0))


def main() -> int:
    """Run the command."""
    from tests.gpu import accounts

    given = accounts.arguments(__doc__).parse_args()
    rows: list[dict[str, Any]] = []
    faults = []
    folder = accounts.OUT / "many"
    folder.mkdir(parents=True, exist_ok=True)
    print(f"{'':13}{'graph, s':>10}{'stream, s':>10}{'GPU MB':>16}{'with probes':>14}{'without':>9}{'trace MB':>10}")
    for name, (millions, options) in RUNS.items():
        millions = 1 if given.quick else millions
        trace = folder / f"{name}.mp"
        before = [accounts.HOOK, "run", "-f", "-o", trace, *options, "--"] if options else []
        program = [sys.executable, __file__, "work", str(millions)]
        done = accounts.run([*before, *program], accounts.environment(folder, "real"), given.patience)
        right, in_graph, in_stream, *used = done.output.split() or ["0"] * 4
        found = REPORT.search(done.said)
        probed, without = (int(found[1]), int(found[2])) if found else (0, 0)
        size = sum(path.stat().st_size for path in folder.glob(f"{name}.mp*")) / 1e6
        rows.append({"run": name, "right": right, "graph": in_graph, "stream": in_stream, "MB": used, "probed": probed,
                     "without": without, "trace": size, "status": done.status, "said": done.said[-2000:]})  # fmt: skip
        print(f"{name:13}{in_graph:>10}{in_stream:>10}{used[0] + ' to ' + used[-1]:>16}", end="")
        print(f"{probed:14,}{without:9}{size:10.1f}", flush=True)
        if done.status or int(right) != SIZE:
            faults.append(f"{name}: status {done.status}, {right} sums are right: {done.said[-300:]}")
        if options and (probed < millions * 1_000_000 or without):
            faults.append(f"{name}: {probed:,} launches have probes, {without} have none")
        if name == "gmem_bytes":
            launches, *moved = add_up(trace, folder)
            rows[-1] |= {"launches": launches, "bytes": moved}
            print(f"{launches:,} launches of a kernel read {moved[0]:,} bytes and wrote {moved[1]:,}")
            if launches < millions * 1_000_000 or moved != [launches * SIZE * 8] * 2:
                faults.append(f"{name}: the sums are wrong")
        accounts.keep("stock_many", rows)
    print("stock_many: " + ("; ".join(faults) or "nothing wrong"))
    return bool(faults)


if __name__ == "__main__":
    if sys.argv[1:2] == ["work"]:
        sys.exit(work(int(sys.argv[2])))
    sys.exit(main())
