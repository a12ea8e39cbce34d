"""Measure the memory and time that analyses need, for traces of two and ten million calls.

    python -m tests.bench.memory [--calls N ...] [--output FILE]

The traces have calls from four threads, GPU times for three quarters of them, and an NVTX range per 50,000 calls.
Analyses that read a trace in one pass may use at most SLACK more memory for the longest trace than for the shortest;
the others keep the whole trace in memory, and are measured only on the shortest. The exit status is 1 if that limit was
exceeded. The raw figures go to docs/figures/bench/memory.json.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.run import BIN, measure, median
from tests.trace.long import write_long

CALLS, RUNS, RANGE = (2_000_000, 10_000_000), 3, 50_000
SLACK = 50e6
PASSES = ("gaps", "stages", "nvtx")
WHOLE = ("graphs", "memory")
BEFORE = Path(__file__).parents[2] / "docs/figures/bench/memory-before.json"  # measured at commit 97f1967


def table(result: dict[str, Any], before: dict[str, Any]) -> list[str]:
    """Return the table of docs/measured.md: medians now, and from when whole traces were kept in memory."""
    lines = ["| analysis | calls | CPU s | before | MB | before |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, found in result["runs"].items():
        for calls, mine in found.items():
            then = before["runs"].get(name, {}).get(calls)
            cpu, rss = (f"{median(then, 'cpu'):.1f}", f"{median(then, 'rss') / 1e6:,.0f}") if then else ("", "")
            now = f"{median(mine, 'cpu'):.1f} | {cpu} | {median(mine, 'rss') / 1e6:,.0f} | {rss}"
            lines.append(f"| `{name}` | {int(calls):,} | {now} |")
    return lines


def main() -> int:
    """Write the traces, measure, and print; return the exit status."""
    options = argparse.ArgumentParser()
    options.add_argument("--calls", type=int, nargs="+", default=CALLS)
    options.add_argument("--output", type=Path)
    given = options.parse_args()
    runs: dict[str, dict[int, list[dict[str, float]]]] = {name: {} for name in (*PASSES, *WHOLE)}
    with tempfile.TemporaryDirectory() as folder:
        for calls in sorted(given.calls):
            trace = Path(folder, f"{calls}.mp")
            write_long(trace, calls, ranges=calls // RANGE)
            for _ in range(RUNS):
                for name in (*PASSES, *(WHOLE if calls == min(given.calls) else ())):
                    runs[name].setdefault(calls, []).append(_measure(name, trace))
            trace.unlink()
    result = {"cores": os.cpu_count(), "load": os.getloadavg(), "runs": runs}
    print(*table(json.loads(json.dumps(result)), json.loads(BEFORE.read_text())), sep="\n")
    if given.output:
        given.output.write_text(json.dumps(result, indent=1) + "\n")
    grown = {name: median(runs[name][max(given.calls)], "rss") - median(runs[name][min(given.calls)], "rss")
             for name in PASSES}  # fmt: skip
    held = max(grown.values()) <= SLACK
    print(f"bound: {SLACK / 1e6:.0f} MB more of the longest trace: {'held' if held else 'MISSED'}")
    return 0 if held else 1


def _measure(name: str, trace: Path) -> dict[str, float]:
    """Run the analysis once; it may have nothing to report."""
    return measure("sh", "-c", '"$0" "$1" "$2" || [ $? = 1 ]', BIN / "gpt-analyze", name, trace)


if __name__ == "__main__":
    raise SystemExit(main())
