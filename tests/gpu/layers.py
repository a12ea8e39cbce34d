"""Check 'gpt-hook run --layers' with PyTorch on the GPU: a Llama that runs eagerly, trained, compiled, and as a graph.

    python tests/gpu/layers.py

Run by tests/gpu/run.sh. Needs torch. It compares the GPU time of each layer with PyTorch's profiler, the layers of a
replay with each other, and results and Dynamo's counts with a run without --layers; and it measures the overhead.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "bin" / "gpt-hook"
PROGRAM = Path(__file__).with_name("layers_llama.py")
OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
MOST_UNKNOWN, NEAR, NEAR_NODES, MOST_US = 2.0, 2.0, 3.0, 1.0  # %, %, %, us per launch
failed = False


def expect(good: bool, what: str) -> None:
    global failed
    print("ok  " if good else "FAIL", what)
    failed |= not good


def run(*command: str | Path, **more: str) -> list[str]:
    """Run a command with additional environment variables, and return the lines of its output."""
    env = os.environ | more
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True, env=env)
    return done.stdout.splitlines()


def hooked(trace: Path, mode: str, *options: str) -> dict[str, Any]:
    """Run the program under gpt-hook and return what it measured."""
    command = [HOOK, "run", "-qf", "--disabled", "-o", trace, *options, "--", sys.executable, PROGRAM, mode]
    found: dict[str, Any] = json.loads(run(*command, LAYERS_HOOK=str(HOOK))[-1])
    return found


def sums(trace: Path, by: str) -> dict[str, dict[str, Any]]:
    """Return the rows of 'summary --by', by name."""
    command = [ROOT / "bin" / "gpt-analyze", "summary", "--json", "--by", by, trace]
    rows = [row for row in map(json.loads, run(*command)) if row.get("answer") == f"by_{by}" and "name" in row]
    (OUT / f"layers-{trace.stem}-{by}.json").write_text(json.dumps(rows, indent=1))
    return {row["name"]: row for row in rows}


def share(rows: dict[str, dict[str, Any]], *names: str) -> float:
    whole = sum(row["gpu_total"] or 0 for row in rows.values())
    return 100 * sum(rows[name]["gpu_total"] or 0 for name in names if name in rows) / whole


def compare(title: str, ours: dict[str, float], theirs: dict[str, float], near: float) -> None:
    """Compare each layer's share of the total time, because two runs aren't equally fast."""
    whole = sum(ours.values()), sum(theirs.values())
    worst = max(abs(100 * (ours.get(name, 0) / whole[0]) / (time / whole[1]) - 100) for name, time in theirs.items())
    expect(
        ours.keys() == theirs.keys() and worst <= near, f"{title}: {len(theirs)} layers, at most {worst:.2f} % apart"
    )


def per_layer(modules: dict[str, float]) -> dict[str, float]:
    """Add up times by layer. Modules outside of layers don't count."""
    found: dict[str, float] = {}
    for name, time in modules.items():
        layer = re.match(r"layers\.\d+", name)
        if layer:
            found[layer[0]] = found.get(layer[0], 0) + time
    return found


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        plain = {mode: hooked(work / f"plain-{mode}.mp", mode) for mode in ("eager", "train", "compiled", "graphed")}
        for mode, facts in plain.items():
            trace = work / f"{mode}.mp"
            nodes = ("--node-times", "1/10") if mode == "graphed" else ()
            found = hooked(trace, mode, "--gpu-time", "--layers", *nodes)
            expect(found == facts, f"{mode}: the same results{', and counts of Dynamo' if 'counts' in facts else ''}")
            rows = sums(trace, "layer")
            unknown = share(rows, "(unknown)", "(graphs, not split)")
            expect(unknown <= MOST_UNKNOWN, f"{mode}: {100 - unknown:.2f} % of the GPU time attributed to a module")
        run(sys.executable, PROGRAM, "eager", work / "profile.json")
        theirs = per_layer(json.loads((work / "profile.json").read_text()))
        ours = per_layer({name: row["gpu_total"] or 0 for name, row in sums(work / "eager.mp", "layer").items()})
        compare("eager and PyTorch's profiler", ours, theirs, NEAR)
        rows = sums(work / "graphed.mp", "layer")
        layers = [row for name, row in rows.items() if name.startswith("layers.")]
        took = [row["gpu_total"] for row in layers]
        mean = sum(took) / (len(took) or 1)
        worst = max((abs(100 * one / mean - 100) for one in took if mean), default=100.0)
        expect(worst <= NEAR_NODES, f"graphed: equal layers of a replay are at most {worst:.2f} % from their mean")
        for by in ("layer", "module"):  # for the documentation
            table = run(ROOT / "bin" / "gpt-analyze", "summary", "--by", by, work / "graphed.mp")
            (OUT / f"layers-decode-{by}.txt").write_text("\n".join(table) + "\n")
        found = hooked(work / "overhead.mp", "overhead", "--layers")
        (OUT / "layers-overhead.json").write_text(json.dumps(found, indent=1))
        for name in ("forward", "training"):
            us, calls = found[name]["us_per_launch"], found[name]["us_per_call"]
            expect(us <= MOST_US, f"{name}: {us:.2f} us per launch, {calls:.2f} us per module call")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
