"""Measure the CPU time that weaving a kernel's machine code takes, and compare it with an earlier version's.

    gpt-extract --type cubin --arch sm_90,sm_90a --payload libtorch_cuda.so >torch.mp
    python -m tests.bench.sass torch.mp [--every N] [--offset M] [--runs R] [-p PROBE[,PROBE]] ... [--against CHECKOUT]

Takes every Nth kernel of the stream. Workers (sass_worker.py) cut each kernel out of its cubin twice, the second time
with what's already known about the cubin, and weave it once, in a process that has already woven others.
With --against, the workers of two checkouts take turns kernel by kernel, so both see the same load, and their outcomes
have to be equal: the cubins, the places, the messages, or the reason why a kernel is left alone. Both need `make
runtime snippets`. Each run has new workers. The raw figures and the machine's description go to
docs/figures/bench/sass.json. The exit status is 1 if an outcome differs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from gpt.formats.cubin_edit import CubinEditor
from gpt.stream import wire
from tests.bench.run import HERE, machine

ROOT = HERE.parents[1]
PROBES = ("block_sched", "gmem_bytes")
STEPS = ("read and cut", "cut again", "weave")
WARM = 5  # kernels before the first that counts
GOAL = {"median": 10, "99th percentile": 100}  # ms

Kernel = tuple[bytes, str, str]  # cubin, architecture, name


class Worker:
    """A process that weaves with the code of a checkout."""

    def __init__(self, checkout: Path) -> None:
        command = [sys.executable, "-P", str(HERE / "sass_worker.py")]
        environment = os.environ | {"PYTHONPATH": str(checkout)}
        self._process = subprocess.Popen(
            command, bufsize=0, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
        )
        self._answers = msgpack.Unpacker(self._process.stdout)

    def weave(self, kernel: Kernel, probes: str) -> tuple[list[float], str]:
        """Return the seconds of each step, and the outcome."""
        assert self._process.stdin
        left = memoryview(msgpack.packb([*kernel, probes]))
        while left:
            left = left[self._process.stdin.write(left) :]
        *seconds, outcome = next(self._answers)
        return seconds, outcome

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()


def iter_kernels(path: str, every: int, offset: int) -> Iterator[Kernel]:
    """Yield every Nth kernel of a stream."""
    number = 0
    with open(path, "rb") as file:
        for record in wire.read_records(file, path):
            if record["kind"] != "element" or "data" not in record:
                continue
            for raw in CubinEditor(record["data"]).kernels:
                if number % every == offset:
                    yield record["data"], record["arch"], raw.decode()
                number += 1


def run(kernels: list[Kernel], probes: list[str], checkouts: dict[str, Path], differing: list[str]) -> dict[str, Any]:
    """Weave all kernels with new workers. Return the seconds by probes, version and step, and the number of kernels
    with probes. Add kernels whose outcomes differ to `differing`.
    """
    found: dict[str, Any] = {}
    for each in probes:
        workers = {version: Worker(checkout) for version, checkout in checkouts.items()}
        rows: dict[str, list[list[float]]] = {version: [] for version in workers}
        woven = 0
        for number, kernel in enumerate([*kernels[-WARM:], *kernels]):
            outcomes = []
            for version in sorted(workers, reverse=bool(number % 2)):
                seconds, outcome = workers[version].weave(kernel, each)
                outcomes.append(outcome)
                if number >= WARM:
                    rows[version].append([round(1000 * one, 2) for one in seconds])
            woven += number >= WARM and len(outcomes[0].split()[-1]) == 64
            if len(set(outcomes)) > 1:
                differing.append(f"{each}: {kernel[2]}: {outcomes}")
        for worker in workers.values():
            worker.close()
        found[each] = {"with probes": woven, ", ".join(STEPS) + ", ms": rows}
    return found


def summarize(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians and high percentiles in ms: by probes, step, version, and run."""
    key = ", ".join(STEPS) + ", ms"
    return {
        each: {
            step: {
                version: [_percentiles([row[number] for row in one[each][key][version]]) for one in runs]
                for version in runs[0][each][key]
            }
            for number, step in enumerate(STEPS)
        }
        for each in runs[0]
    }


def _percentiles(times: list[float]) -> dict[str, float]:
    ordered = sorted(times)
    last = len(ordered) - 1
    return {
        "median": round(statistics.median(ordered), 1),
        "nine in ten": round(ordered[9 * last // 10], 1),
        "99th percentile": round(ordered[99 * last // 100], 1),
        "most": round(ordered[-1], 1),
    }


def table(result: dict[str, Any]) -> list[str]:
    """Return the rows of the table in docs/measured.md, in ms. If there were several runs, each figure is their
    median.
    """
    lines = ["| probe | step | version | median | nine in ten | 99th percentile |"]
    lines.append("| --- | --- | --- | ---: | ---: | ---: |")
    for each, steps in summarize(result["runs"]).items():
        for step, versions in steps.items():
            for version, found in versions.items():
                middle = {key: statistics.median(one[key] for one in found) for key in found[0]}
                figures = " | ".join(f"{middle[key]:g}" for key in ("median", "nine in ten", "99th percentile"))
                lines.append(f"| {each} | {step} | {version} | {figures} |")
    return lines


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="tests.bench.sass")
    parser.add_argument("stream")
    parser.add_argument("--every", type=int, default=61)
    parser.add_argument("--offset", type=int, default=0)
    parser.add_argument("--runs", type=int, default=1)
    parser.add_argument("-p", dest="probes", action="append")
    parser.add_argument("--against", type=Path)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/figures/bench/sass.json")
    options = parser.parse_args()
    checkouts = {"before": options.against.absolute()} if options.against else {}
    checkouts["now"] = ROOT
    kernels = list(iter_kernels(options.stream, options.every, options.offset))
    differing: list[str] = []
    runs, loads = [], []
    for _ in range(options.runs):
        loads.append(round(os.getloadavg()[0], 1))
        runs.append(run(kernels, options.probes or list(PROBES), checkouts, differing))
    result = {"machine": machine(), "kernels": len(kernels), "every": options.every, "offset": options.offset}
    result |= {"load averages": loads, "differing": differing, "summary": summarize(runs), "runs": runs}
    options.output.write_text(json.dumps(result) + "\n")
    print("\n".join([*table(result), f"goal, ms: {GOAL}", f"load averages: {loads}", *differing]))
    return bool(differing)


if __name__ == "__main__":
    raise SystemExit(main())
