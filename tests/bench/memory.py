"""Measure the memory and time that analyses need, for traces of two and ten million calls, next to plain reading.

    python -m tests.bench.memory [--calls N ...] [--only NAME ...] [--output FILE]

The traces have calls from four threads, GPU times for three quarters of them, and an NVTX range per 50,000 calls.
Analyses that read a trace in one pass may use at most SLACK more memory for the longest trace than for the shortest,
and those in BOUND at most that many bytes for either. `summary` may take at most RATIO times as much CPU time as
reading the columns that it needs, for the longest trace. WHOLE keep the whole trace in memory, and are measured only on
the shortest. The exit status is 1 if a limit was exceeded. `reading` only decodes every record; `columns` also makes
arrays of those columns. The raw figures go to docs/figures/bench/memory.json.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.bench.analyze import COLUMNS, READ
from tests.bench.run import BIN, measure, median
from tests.trace.long import write_long

CALLS, RUNS, RANGE = (2_000_000, 10_000_000), 3, 50_000
SLACK = 50e6
READING = {"reading": READ, "columns": COLUMNS}
RATIO = 1.5
BOUND = {"summary": 300e6, "timeline": 200e6}
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
    options.add_argument("--only", nargs="+", default=(*READING, *BOUND, *PASSES, *WHOLE))
    options.add_argument("--output", type=Path)
    given = options.parse_args()
    every = [name for name in given.only if name not in WHOLE]
    runs: dict[str, dict[int, list[dict[str, float]]]] = {name: {} for name in given.only}
    with tempfile.TemporaryDirectory() as folder:
        for calls in sorted(given.calls):
            trace = Path(folder, f"{calls}.mp")
            write_long(trace, calls, ranges=calls // RANGE)
            for _ in range(RUNS):
                for name in given.only if calls == min(given.calls) else every:
                    runs[name].setdefault(calls, []).append(_measure(name, trace))
            trace.unlink()
    result = {"cores": os.cpu_count(), "load": os.getloadavg(), "runs": runs}
    print(*table(json.loads(json.dumps(result)), json.loads(BEFORE.read_text())), sep="\n")
    if given.output:
        given.output.write_text(json.dumps(result, indent=1) + "\n")
    grown = {name: median(runs[name][max(given.calls)], "rss") - median(runs[name][min(given.calls)], "rss")
             for name in PASSES if name in runs}  # fmt: skip
    most = {name: max(run["rss"] for found in runs[name].values() for run in found) for name in BOUND if name in runs}
    held = all(more <= SLACK for more in grown.values()) and all(most[name] <= BOUND[name] for name in most)
    for name in READING.keys() & runs.keys() if "summary" in runs else ():
        cpu, wall = (
            median(runs["summary"][max(given.calls)], key) / median(runs[name][max(given.calls)], key)
            for key in ("cpu", "seconds")
        )
        held &= cpu <= RATIO or name != "columns"
        print(f"summary takes {cpu:.2f} times as much CPU time as {name}, and {wall:.2f} times as long")
    bounds = ", ".join(f"{name} {bound / 1e6:.0f} MB" for name, bound in BOUND.items())
    print(f"bounds: {RATIO}, {SLACK / 1e6:.0f} MB more of the longest trace, {bounds}: {'held' if held else 'MISSED'}")
    return 0 if held else 1


def _measure(name: str, trace: Path) -> dict[str, float]:
    """Run the analysis once; it may have nothing to report."""
    if name in READING:
        return measure(sys.executable, "-c", READING[name], trace)
    return measure("sh", "-c", '"$0" "$1" "$2" || [ $? = 1 ]', BIN / "gpt-analyze", name, trace)


if __name__ == "__main__":
    raise SystemExit(main())
