"""Check gpt-analyze collectives on two GPUs, with a program that makes a rank late by a known time.

    python tests/gpu/collectives.py [late|turns|sizes ...]

Each program runs PyTorch under torchrun, with NCCL, on two GPUs of one host, and is recorded with --gpu-time, because
NCCL's kernels have no PTX for probes. In `late`, rank 1 spins on its GPU for LATE us before each all-reduce, so rank 0
waits that long. In `turns`, the ranks are late alternately, by different times. In `sizes`, no rank is late, and
transfer times are compared with CUDA events around the same all-reduces.

If the ranks share one GPU, results are only printed, not checked: the ranks' kernels take turns, so all are late.

Reported times must be within TOLERANCE of the real ones, and no collective may end before all ranks have begun it.
gpt-analyze's tables are left in GPT_GPU_OUT. Needs PyTorch; tests/gpu/run.sh runs this if there are two GPUs.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OUT = Path(os.environ.get("GPT_GPU_OUT", "build/gpu"))
HOOK, ANALYZE = ROOT / "gpt" / "_runtime" / "gpt-hook", ROOT / ".venv" / "bin" / "gpt-analyze"
LATE, ROUNDS, TOLERANCE = 2000, 100, 0.10  # us, number of collectives, relative error

PROGRAM = """
import json, os, sys, torch, torch.distributed as dist
case, late, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
from ranks import join
rank = join()
events = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(rounds)]

def spin_rate():  # cycles of torch.cuda._sleep in a us
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(10_000_000)
    begin.record(); torch.cuda._sleep(100_000_000); end.record(); end.synchronize()
    return 100_000_000 / (begin.elapsed_time(end) * 1000)

rate = spin_rate()
x = torch.ones((1 << 20) * (8 if case == "sizes" else 1), device="cuda")
dist.all_reduce(x); torch.cuda.synchronize()
spun = 0.0
for number in range(rounds):
    dist.barrier(); torch.cuda.synchronize()
    mine = {"late": rank == 1, "turns": number % 2 == rank, "sizes": False}[case]
    us = late * (1 + number % 3) // 2 if case == "turns" else late
    events[number][0].record()
    if mine:
        torch.cuda._sleep(int(us * rate))
        spun += us
    dist.all_reduce(x)
    events[number][1].record()
    torch.cuda.synchronize()
took = sum(a.elapsed_time(b) for a, b in events)
said = json.dumps({"rank": rank, "spun": spun * 1e3, "took": took * 1e6})
print(f"SAID {said}\\n", end="", flush=True)  # a single write, even if Python's output isn't buffered
dist.destroy_process_group()
"""


def run(folder: Path, case: str) -> dict[int, dict[str, float]]:
    """Record a program; its traces go to `folder`. Return the output of each rank."""
    (folder / "program.py").write_text(PROGRAM)
    env = os.environ | {"PYTHONPATH": f"{ROOT / 'tests' / 'gpu'}:{os.environ.get('PYTHONPATH', '')}"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [HOOK, "run", "-q", "--gpu-time", "-o", folder / "rank.mp", "--", *torchrun, folder / "program.py"]
    line = [str(word) for word in (*command, case, LATE, ROUNDS)]
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=400, check=False)
    if done.returncode:
        raise SystemExit(f"collectives: {case}: {done.stderr[-2000:]}")
    said = map(json.loads, re.findall(r"SAID (\{[^{}]*\})", done.stdout))  # ranks may share a line
    return {one["rank"]: one for one in said}


def ask(folder: Path, name: str) -> dict[str, list[dict[str, str]]]:
    """Return gpt-analyze's tables, and keep them as text files."""
    command = [str(ANALYZE), "collectives", str(folder / "rank.mp")]
    text = subprocess.run(command, capture_output=True, text=True, check=False)
    (OUT / f"collectives-{name}.txt").write_text(text.stdout + text.stderr)
    subprocess.run([*command, "--plot", str(OUT / f"collectives-{name}.png")], capture_output=True, check=False)
    done = subprocess.run([*command, "--format", "csv"], capture_output=True, text=True, check=True)
    blocks = [list(csv.DictReader(io.StringIO(block))) for block in done.stdout.split("\n\n")]
    return dict(zip(("ranks", "waits", "causes", "phases", "kernels", "around"), blocks, strict=False))


def near(value: float, wanted: float, most: float) -> bool:
    """Return whether a value is close enough to the wanted one; differences of up to `most` ns are always accepted."""
    return abs(value - wanted) <= max(TOLERANCE * wanted, most)


def main() -> int:
    """Run every case."""
    OUT.mkdir(parents=True, exist_ok=True)
    wanted = sys.argv[1:] or ["late", "turns", "sizes"]
    gpus = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    failed, shared = False, len(gpus.splitlines()) < 2
    for case in wanted:
        with tempfile.TemporaryDirectory() as name:
            said = run(Path(name), case)
            tables = ask(Path(name), case)
        reduces = [row for row in tables["kernels"] if "AllReduce" in row["name"]]
        waits = {(row["rank"], row["whom"]): float(row["waiting"]) for row in tables["waits"]}
        found = [waits.get(("rank 0", "rank 1"), 0.0), waits.get(("rank 1", "rank 0"), 0.0)]
        done = [said[1]["spun"], said[0]["spun"]]  # the rank that waits isn't the rank that spins
        room = 50e3 * ROUNDS
        good = all(near(a, b, room) for a, b in zip(found, done, strict=True))
        told = f"waited {found[0] / 1e6:.1f}, {found[1] / 1e6:.1f} ms of {done[0] / 1e6:.1f}, {done[1] / 1e6:.1f}"
        if case == "sizes":
            transfer = max(float(row["transfer"]) * int(row["collectives"]) for row in reduces)
            good = near(transfer, said[0]["took"], room)
            told = f"transferred {transfer / 1e6:.1f} ms, events say {said[0]['took'] / 1e6:.1f}"
        failed |= not good and not shared
        word = "one GPU" if shared else "good" if good else "WRONG"
        print(f"{case:6} {word}: {told}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
