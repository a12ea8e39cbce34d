"""Stress probe buffers: use threads, streams and graphs at random while recording and probes are switched on and off.

    python tests/gpu/pool_attack.py [--device sim] [--seconds S] [--seed N]

Runs pool_attack.c again and again with varying options, until time is up. In each round, results must be right, and
each launch in a recorded period must have its buffers or be counted with a reason; none may be lost. The table has one
row per set of options. If a round goes wrong, its seed is printed.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.stream.reasons import find_reason  # noqa: E402
from tests.gpu import accounts  # noqa: E402
from tests.runtime import controlling, hooked, probing  # noqa: E402

NODES = 3  # kernels of each graph
MEMORY = ((), ("--max-memory", "64M"), ("--max-memory", "2M"), ("--max-memory", "100K"))
WAYS = {
    "steady": ("-p", "gmem_bytes"),
    "complete": ("-p", "gmem_bytes", "--complete"),
    "both": ("-p", "gmem_bytes", "-p", "block_sched"),
    "timed": ("-p", "block_sched", "--gpu-time"),
    "toggled": ("-p", "gmem_bytes", "--disabled"),
    "toggled, complete": ("-p", "gmem_bytes", "--disabled", "--complete"),
}


def order(pid: int, *words: str) -> None:
    done = controlling.ctl(pid, *words)
    if done.returncode or done.stderr:
        raise RuntimeError(f"gpt-hook ctl {' '.join(words)}: {done.returncode}: {done.stderr}")


def toggle(server: controlling.Server, dice: random.Random, seconds: float) -> None:
    """Turn recording on and off, and change the probes now and then."""
    end, on = time.monotonic() + seconds, False
    while time.monotonic() < end and server.process.poll() is None:
        on = not on
        order(server.pid, "enable" if on else "disable")
        if dice.random() < 0.2:
            order(server.pid, "probe", dice.choice(("gmem_bytes", "block_sched")))
        time.sleep(dice.uniform(0, 0.3))
    if on:
        order(server.pid, "disable")


def examine(trace: hooked.Trace, made: int, replayed: int, toggled: bool) -> dict[str, Any]:
    """Compare a trace with the program's own counts."""
    probed, reasons = trace.of("probed"), probing.unprobed(trace)
    launched = sum(trace.launches.values())
    replays = sum(trace.names[name] for name in ("cuGraphLaunch", "cuGraphLaunch_ptsz"))
    saved = {record["launch"] for record in trace.of("buffer")}
    lost = [str(find_reason({"code": record["lost"]})) for record in trace.of("buffer") if "lost" in record]
    wrong = []
    if not toggled and (launched, replays) != (made, replayed):
        wrong.append(f"{made} launches and {replayed} replays, but {launched} and {replays} are in the trace")
    if len(probed) + sum(reasons.values()) != launched + NODES * replays:
        wrong.append(f"{launched} launches, {replays} replays: {len(probed)} with probes, without: {reasons}")
    if saved != {record["id"] for record in probed}:
        wrong.append(f"{len(probed)} launches with probes, {len(saved)} with buffers")
    if lost:
        wrong.append(f"{len(lost)} buffers are lost: {set(lost)}")
    return {"launches": launched, "replays": replays, "probed": len(probed), "reasons": reasons, "wrong": wrong}


def attack(folder: Path, program: Path, device: str, seed: int, seconds: float) -> dict[str, Any]:
    """Run one round."""
    dice = random.Random(seed)
    name = dice.choice(list(WAYS))
    memory, threads = dice.choice(MEMORY), dice.choice((1, 2, 8, 16))
    options = (*WAYS[name], *memory)
    toggled, out = "--disabled" in options, folder / "t.mp"
    most = (60_000 if device == "real" else 1_500) // threads
    row = {"seed": seed, "way": name, "memory": memory[1] if memory else "", "threads": threads}
    try:
        server = controlling.Server(
            out, program, *options, arguments=(probing.PTX, seed, threads, most), device=device,
            **accounts.environment(folder, device),
        )  # fmt: skip
        try:
            if toggled:
                toggle(server, dice, seconds)
            else:
                time.sleep(seconds)
            # The program has been told to stop, or has made enough launches.
            output, said = server.process.communicate(timeout=seconds + 120)
        finally:
            server.process.kill()
        if server.process.returncode:
            return row | {"wrong": [f"status {server.process.returncode}: {said[-500:]}"]}
        made, replayed = map(int, output.split())
        return row | examine(hooked.Trace(out), made, replayed, toggled)
    except (AssertionError, RuntimeError, subprocess.TimeoutExpired) as error:
        return row | {"wrong": [f"{type(error).__name__}: {str(error)[:300]}"]}


def main() -> int:
    parser = accounts.arguments(__doc__)
    parser.add_argument("--seconds", type=float, help="of the attack: 30, or 10 with --quick")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20), help="of the first round")
    given = parser.parse_args()
    rows: list[dict[str, Any]] = []
    end = time.monotonic() + (given.seconds or (10 if given.quick else 30))
    with tempfile.TemporaryDirectory(prefix="gpt-attack-") as name:
        program = hooked.compile_c(Path(name, "attack"), ROOT / "tests/gpu/pool_attack.c", f"-I{ROOT}/runtime", "-w")
        while not rows or time.monotonic() < end:
            rows.append(attack(Path(name), program, given.device, given.seed + len(rows), 4))
            accounts.keep("pool_attack", rows)
            for wrong in rows[-1]["wrong"]:
                print(f"seed {rows[-1]['seed']}, {rows[-1]['way']} {rows[-1]['memory']}: {wrong}", flush=True)
    print(f"{'options':24}{'rounds':>8}{'launches':>10}{'replays':>9}{'probed':>10}{'without':>10}{'wrong':>7}")
    for way in WAYS:
        of = [row for row in rows if row["way"] == way]
        sums = [sum(row.get(key, 0) for row in of) for key in ("launches", "replays", "probed")]
        without = sum(sum(row.get("reasons", {}).values()) for row in of)
        print(
            f"{way:24}{len(of):8}{sums[0]:10}{sums[1]:9}{sums[2]:10}{without:10}{sum(bool(r['wrong']) for r in of):7}"
        )
    return any(row["wrong"] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
