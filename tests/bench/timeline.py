"""Measure how fast a timeline of a million spans is written, compared with pandas, which writes the same JSON, and HTA,
which loads it.

    python -m tests.bench.timeline [--spans N] [--python FILE] [--output FILE]

Half of the spans are launches in two threads, the others their kernels in two streams, with an arrow for each. pandas
writes the same events as JSON from columns that are arrays already; HTA (HolisticTraceAnalysis) reads the file that
gpt-analyze wrote. Both run in the Python given by `--python`, because HTA has other dependencies than we do. The tools
are timed interleaved; the raw figures go to docs/figures/bench/timeline.json. Exits with 1 if we exceed our limit.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpt.stream import records
from tests.bench.run import BIN, measure, median
from tests.trace import forge

SPANS, RUNS, SECONDS = 1_000_000, 3, 5.0  # the limit is CPU time for SPANS spans
ROWS, STEP, START = 5000, 5000, 10**9  # rows per record; step and start in ns
FORMS = ("chrome", "perfetto", "html")
RESULT = Path(__file__).parents[2] / "docs/figures/bench/timeline.json"
PANDAS = """import sys, numpy, pandas
columns = dict(numpy.load(sys.argv[1], allow_pickle=True))
args = columns.pop("correlation"), columns.pop("bytes")
frame = pandas.DataFrame(columns)
frame["args"] = [{"correlation": c, "bytes": b} for c, b in zip(*map(numpy.ndarray.tolist, args))]
frame.to_json(sys.argv[2], orient="records")"""
HTA = """import sys
from hta.trace_analysis import TraceAnalysis
found = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/").t.get_trace(0)
assert len(found) >= int(sys.argv[2]), len(found)"""
COLUMNS = """import sys, json, gzip, numpy
found = [e for e in json.load(open(sys.argv[1]))["traceEvents"] if e["ph"] in "Xsf"]
keys = ("ph", "cat", "name", "pid", "tid", "ts", "dur")
columns = {key: numpy.array([e.get(key) for e in found]) for key in keys}
for key in ("correlation", "bytes"):
    columns[key] = numpy.array([e.get("args", {}).get(key, 0) for e in found])
numpy.savez(sys.argv[2], **columns)"""
NAMES = {"chrome": "Chrome's JSON", "perfetto": "Perfetto's protobuf", "html": "the page",
         "pandas": "pandas, the same events as JSON", "hta": "HTA, loading Chrome's JSON"}  # fmt: skip


def iter_records(spans: int) -> Iterator[dict[str, Any]]:
    """Make a trace with this many spans."""
    yield forge.api(1, "cuLaunchKernel")
    for number in range(1, 4):
        yield records.make("function", id=number, name=f"_Z6kernelIfLi{number}EEvPT_PKS0_i")
    for thread in (1, 2):
        for first in range(0, spans // 4, ROWS):
            starts = [START + (first + row) * STEP + thread for row in range(ROWS)]
            rows = [forge.launch(start, 3000, 1, 1 + row % 3, thread * 7) for row, start in enumerate(starts)]
            yield forge.calls(rows, forge.LAUNCH, thread)
            times = [(s + 4000, 4000, s, thread * 7, 1, 1 + row % 3, thread, 0) for row, s in enumerate(starts)]
            yield records.make("gpu_times", **forge.rows(times, forge.GPU_TIMES))


def find_ways(trace: Path, folder: Path, python: Path, spans: int) -> dict[str, list[str | Path]]:
    """Return the commands, including other tools' if they're installed."""
    tool = BIN / "gpt-analyze"
    ways: dict[str, list[str | Path]] = {
        form: [tool, "timeline", "--format", form, "-o", folder / f"t.{form}", trace] for form in FORMS
    }
    subprocess.run(list(map(str, ways["chrome"])), check=True)
    for name, module in (("pandas", "pandas"), ("hta", "hta")):
        if not subprocess.run([python, "-c", f"import {module}"], capture_output=True, check=False).returncode:
            ways[name] = [python, "-c", HTA, folder / "t.json", str(spans)]
    if "pandas" in ways:
        subprocess.run([python, "-c", COLUMNS, folder / "t.chrome", folder / "t.npz"], check=True)
        ways["pandas"] = [python, "-c", PANDAS, folder / "t.npz", folder / "p.json"]
    (folder / "t.json").symlink_to(folder / "t.chrome")
    return ways


def table(result: dict[str, Any]) -> list[str]:
    """Return the table in docs/measured.md: medians, also as multiples of the page's first row."""
    lines = ["| what | s | CPU s | of Chrome's JSON | file |", "| --- | ---: | ---: | ---: | ---: |"]
    first = median(result["runs"]["chrome"], "cpu")
    for way, runs in result["runs"].items():
        cpu, size = median(runs, "cpu"), result["sizes"].get(way)
        told = f"{size / 1e6:,.1f} MB" if size else ""
        lines.append(f"| {NAMES[way]} | {median(runs, 'seconds'):.1f} | {cpu:.1f} | {cpu / first:.2f} | {told} |")
    return lines


def main() -> int:
    """Forge the trace, measure, and print; return the exit status."""
    options = argparse.ArgumentParser()
    options.add_argument("--spans", type=int, default=SPANS)
    options.add_argument("--python", type=Path, default=Path(sys.executable))
    options.add_argument("--output", type=Path)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        trace = folder / "t.mp"
        trace.write_bytes(forge.pack(forge.trace(*iter_records(given.spans))))
        ways = find_ways(trace, folder, given.python, given.spans)
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
        for _ in range(RUNS):
            for way, command in ways.items():
                runs[way].append(measure(*command))
        files = {form: folder / f"t.{form}" for form in FORMS} | {"pandas": folder / "p.json"}
        sizes = {way: path.stat().st_size for way, path in files.items() if path.exists()}
    result = {"spans": given.spans, "cores": os.cpu_count(), "load": os.getloadavg(), "sizes": sizes, "runs": runs}
    print(*table(result), sep="\n")
    if given.output:
        given.output.write_text(json.dumps(result, indent=1) + "\n")
    if missing := {"pandas", "hta"} - runs.keys():
        print(f"not installed in {given.python}: {', '.join(sorted(missing))}")
    allowed = SECONDS * max(1.0, given.spans / SPANS)
    held = all(median(runs[form], "cpu") <= allowed for form in FORMS)
    print(f"bound: {allowed:.0f} s CPU each: {'held' if held else 'MISSED'}")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
