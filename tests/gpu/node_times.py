"""Check 'gpt-hook run --node-times' with a captured decode step of a Llama on the GPU.

    python tests/gpu/node_times.py [1/N]

Run by tests/gpu/run.sh. Needs torch. The results must be the same as without it. All nodes are compared with what a
replay takes in a run with --gpu-time alone, and each layer's share with its share of eager steps' kernels, as CUPTI
(PyTorch's profiler) measures them. The time of each node is compared with CUPTI's for eager steps and for replays, too.
For the cost, it times replays with and without the option.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HOOK = ROOT / "bin" / "gpt-hook"
PROGRAM = Path(__file__).with_name("node_times_llama.py")
OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
NEAR = 3.0  # %
failed = False


def expect(good: bool, what: str) -> None:
    global failed
    print("ok  " if good else "FAIL", what, flush=True)
    failed |= not good


def run(*command: str | Path, **more: str) -> list[str]:
    """Run a command with additional environment variables, and return the lines of its output."""
    env = os.environ | more
    done = subprocess.run(list(map(str, command)), stdout=subprocess.PIPE, text=True, check=True, env=env)
    return done.stdout.splitlines()


def hooked(trace: Path, *options: str) -> dict[str, Any]:
    """Run the program under gpt-hook and return what it measured."""
    command = [HOOK, "run", "-qf", "--disabled", "-o", trace, *options, "--", sys.executable, PROGRAM]
    found: dict[str, Any] = json.loads(run(*command, LAYERS_HOOK=str(HOOK))[-1])
    return found


def answers(analysis: str, trace: Path, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run(ROOT / "bin" / "gpt-analyze", analysis, "--json", *options, trace)]


def medians(steps: list[list[tuple[str, float]]]) -> list[float]:
    """Return the median time of each kernel of a step. Steps with an unusual number of kernels don't count."""
    usual = statistics.mode(map(len, steps))
    same = [step for step in steps if len(step) == usual]
    return [statistics.median(step[at][1] for step in same) for at in range(usual)]


def compare(title: str, ours: list[float], theirs: list[float]) -> dict[str, Any]:
    """Compare times node by node: the sums, the median and the largest difference in %, and the fitted line."""
    if len(ours) != len(theirs):
        return {"title": title, "nodes": [len(ours), len(theirs)]}
    apart = [100 * abs(one / other - 1) for one, other in zip(ours, theirs, strict=True)]
    fit = statistics.linear_regression(theirs, ours)
    rest = [one - fit.slope * other - fit.intercept for one, other in zip(ours, theirs, strict=True)]
    return {"title": title, "sum": 100 * (sum(ours) / sum(theirs) - 1), "median": statistics.median(apart),
            "worst": max(apart), "slope": fit.slope, "intercept_ns": fit.intercept,
            "residual_ns": statistics.pstdev(rest)}  # fmt: skip


def shares(modules: list[str], times: list[float]) -> dict[str, float]:
    """Return the percentage of each layer, or of a module outside of layers."""
    found: dict[str, float] = {}
    for module, time in zip(modules, times, strict=True):
        layer = (re.match(r"layers\.\d+", module) or [module])[0]
        found[layer] = found.get(layer, 0) + 100 * time / sum(times)
    return found


def compare_layers(modules: list[str], ours: list[float], theirs: list[float]) -> dict[str, tuple[float, float, float]]:
    """Return each layer's share in both, and the difference between the first and the second in %."""
    pairs = shares(modules, ours), shares(modules, theirs)
    return {name: (one, pairs[1][name], 100 * (one / pairs[1][name] - 1)) for name, one in pairs[0].items()}


def main() -> int:
    share = sys.argv[1] if sys.argv[1:] else "1/10"
    OUT.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        plain, timed = hooked(work / "plain.mp"), hooked(work / "gpu.mp", "--gpu-time")
        found = hooked(work / "nodes.mp", "--node-times", share, "--layers")
        for name in ("eager", "replayed"):
            expect(found[name] == plain[name] == timed[name], f"{name}: the same results")
        rows = answers("graphs", work / "nodes.mp")
        nodes = [row for row in rows if row.get("answer") == "nodes" and "node" in row]
        expect(bool(nodes), f"{len(nodes)} nodes timed, in {nodes[0]['timed'] if nodes else 0} replays")
        for form, command in (("graphs", ()), ("summary", ("--by", "layer")), ("summary", ("--by", "module"))):
            table = run(ROOT / "bin" / "gpt-analyze", form, *command, work / "nodes.mp")
            (OUT / f"node_times-{form}{'-' if command else ''}{''.join(command[1:])}.txt").write_text(
                "\n".join(table) + "\n"
            )
        if not nodes:
            print("\n".join(run(ROOT / "bin" / "gpt-analyze", "graphs", work / "nodes.mp")))
            return 1
        run(sys.executable, PROGRAM, work / "profile.json")
        profile = json.loads((work / "profile.json").read_text())
        ways = {"between stamps": [row["time"] + row["stamps"] for row in nodes],
                "less stamps": [row["time"] for row in nodes]}  # fmt: skip
        told = [
            compare(f"{way}, {name}", times, medians(profile[name]))
            for way, times in ways.items() for name in ("eager", "replays") if profile[name]
        ]  # fmt: skip
        same = medians(profile["eager"]), medians(profile["replays"])
        told.append(compare("CUPTI, replays, eager", same[1], same[0]))
        for one in told:
            print(*(f"{key} {value:.2f}" if isinstance(value, float) else value for key, value in one.items()))
        graphs = answers("graphs", work / "gpu.mp")
        (whole,) = [row["p50"] for row in graphs if row.get("answer") == "graphs" and "p50" in row]
        layers = {}
        if len(same[0]) == len(nodes):
            layers = compare_layers([row["module"] or "" for row in nodes], ways["less stamps"], same[0])
        facts = {"share": share, "plain": plain, "gpu_time": timed, "node_times": found,
                 "replay_ns": whole, "layers": layers, "compared": told, "nodes": nodes,
                 "eager": same[0], "replays": same[1],
                 "names": [name for name, _ in profile["eager"][0]]}  # fmt: skip
        (OUT / "node_times.json").write_text(json.dumps(facts, indent=1))
        print(f"a replay: {plain['replay_us']:.1f} us, with --gpu-time {timed['replay_us']:.1f} us, with --node-times"
              f" {share} {found['replay_us']:.1f} us (medians on the host)")  # fmt: skip
        apart = 100 * (sum(ways["less stamps"]) / whole - 1)
        expect(
            abs(apart) <= NEAR, f"all nodes: {apart:+.2f} % from the {whole / 1000:.1f} us of a replay with --gpu-time"
        )
        expect(bool(layers), f"{len(nodes)} nodes, {len(same[0])} kernels in an eager step")
        for name, (ours, theirs, off) in layers.items():
            what = f"{name}: {ours:.2f} % of the nodes' time, {theirs:.2f} % of eager's kernels, {off:+.2f} % apart"
            expect(abs(off) <= NEAR, what)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
