"""Measure how fast traces are summed up: ten million calls on one core, in a forged trace in gpt-hook's format.

    python -m tests.bench.analyze [--calls N] [--events] [--alone] [--output FILE]

`--alone` leaves out everything but reading and `summary`. The raw figures go to FILE.

Eight threads write chunks in turn, with the calls of a PyTorch decode loop: launches, driver queries, some copies and
waits, with 27 functions and 200 kernels in all. For comparison, the table has the time for reading alone, and the time
that jq and pandas take to compute count and time per function from JSON lines, which `events` made from a tenth of the
calls. `export` writes all data of these calls to a database, `sqlite` five columns of the JSON lines.

`reading` decodes every record, but leaves its rows packed. `columns` also makes arrays of the fields that `summary`
needs, which no reader of calls can do without, and `summary` may take RATIO times as long as that. These three run
interleaved. The exit status is 1 if a limit was exceeded.
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import numpy as np

import gpt
from gpt.stream import records, wire
from tests.bench.run import machine, measure, median
from tests.trace import forge

CALLS = 10_000_000
THREADS, KERNELS, BATCH, HZ = 8, 200, 512, 2_500_000_000
RUNS = 5
RATIO, MEMORY = 1.5, 300e6  # bounds
PART = 10  # jq and pandas get one in PART calls, because all of them would be 1.5 GB of JSON
READ = "import sys; from gpt.stream import wire; print(sum(1 for _ in wire.read_records(open(sys.argv[1], 'rb'), '')))"
COLUMNS = """import sys
from gpt.stream import wire
from gpt.trace.rows import ARGUMENTS, CALL, GPU_CALLS, GPU_TIMES, Collector
names = {"start", "begin", "duration", "api", "result", "function", "object", "bytes", "thread", "call"}
kinds = {"calls": Collector("calls", CALL | ARGUMENTS, CALL),
         "gpu_times": Collector("gpu_times", GPU_TIMES | GPU_CALLS, GPU_TIMES)}
def take(rows):
    return len([rows[name].copy() for name in names & {*rows.dtype.names}][0])
count = 0
for record in wire.read_records(open(sys.argv[1], "rb"), ""):
    if found := kinds.get(record["kind"]):
        found.add(record)
        if found.full:
            count += sum(take(rows) for _, rows in found.take())
print(count + sum(take(rows) for found in kinds.values() for _, rows in found.take()))"""
JQ = """reduce inputs as $c ({}; .[$c.name].calls += 1 | .[$c.name].time += ($c.duration_us // 0))"""
PANDAS = """import sys, pandas
parts = pandas.read_json(sys.argv[1], lines=True, chunksize=200_000)
sums = [part.groupby("name").duration_us.agg(["count", "sum", "max"]) for part in parts]
print(pandas.concat(sums).groupby("name").agg({"count": "sum", "sum": "sum", "max": "max"}))"""
SQLITE = """import json, sqlite3, sys
columns = "ts", "name", "tid", "duration_us", "result"
database = sqlite3.connect(sys.argv[2])
database.executescript("DROP TABLE IF EXISTS calls; CREATE TABLE calls (ts, name, tid, duration_us, result)")
rows = (tuple(map(json.loads(line).get, columns)) for line in open(sys.argv[1]))
database.executemany("INSERT INTO calls VALUES (?, ?, ?, ?, ?)", rows)
database.commit()"""

MIX = (  # (layout, functions, batches per round); a batch has 512 calls
    (forge.LAUNCH, ("cuLaunchKernel", "cuLaunchKernelEx"), 5),
    (forge.CALL, tuple(f"cuCtxGet{i}" for i in range(15)), 8),
    (forge.OBJECT, ("cuStreamSynchronize", "cuEventRecord", "cuEventQuery", "cuStreamIsCapturing"), 3),
    (forge.MEMORY, ("cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemAlloc", "cuMemFree",
                    "cuMemsetD8Async"), 4),
)  # fmt: skip


def make_rows(layout: dict[str, str], apis: list[int], random: np.random.Generator) -> np.ndarray:
    """Return a batch of calls to these functions; `start` counts from 0 and advances with each use."""
    names = [name for name in layout if name != "pad"]
    fields = forge.layout_of(layout)
    formats = [f"<{f['type'][0]}{int(f['type'][1:]) // 8}" for f in fields["fields"]]
    offsets = [f["offset"] for f in fields["fields"]]
    dtype = np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": fields["stride"]})
    rows = np.zeros(BATCH, dtype)
    rows["duration"] = random.lognormal(8, 1.5, BATCH) + 1
    rows["start"] = np.cumsum(rows["duration"] + 500)
    rows["api"] = random.choice(apis, BATCH)
    if "bytes" in names:
        rows["bytes"] = random.integers(1, 1 << 20, BATCH)
    if "function" in names:
        rows["function"] = random.integers(1, KERNELS + 1, BATCH)
        rows["grid_x"], rows["block_x"] = 100, 256
    return rows


def write_trace(path: Path, calls: int) -> None:
    """Write a complete trace of `calls` calls."""
    random = np.random.default_rng(1)
    functions = [name for _, names, _ in MIX for name in names]
    ids = {name: number for number, name in enumerate(functions, 1)}
    batches = []
    for layout, names, weight in MIX:
        batches += [(layout, make_rows(layout, [ids[n] for n in names], random)) for _ in range(weight)]
    header = forge.trace(tsc=1000, tsc_hz=HZ)[0]
    kernels = [records.make("function", id=i, name=f"_Z6kernelIfLi{i}EEvPT_PKS0_i") for i in range(1, KERNELS + 1)]
    apis = [forge.api(ids[name], name) for name in functions]
    pending = [wire.pack(record) for record in (header, *kernels, *apis)]
    now, written, turn = [2000] * THREADS, 0, 0
    with open(path, "wb") as file:
        while written < calls:
            thread = turn % THREADS
            clock = records.make("clock", monotonic=(now[thread] - 1000) * 10**9 // HZ, tsc=now[thread])
            pending.append(wire.pack(clock))
            size = sum(map(len, pending))
            while written < calls:
                layout, rows = batches[random.integers(len(batches))]
                rows = rows[: calls - written].copy()
                rows["start"] += np.uint64(now[thread])
                call = records.make("calls", thread=1000 + thread, **forge.layout_of(layout), rows=rows.tobytes())
                size += len(data := wire.pack(call))
                if size > forge.ROOM:
                    break
                now[thread] = int(rows["start"][-1]) + 5000
                written += len(rows)
                pending.append(data)
            file.write(forge.chunk(b"".join(pending)))
            pending.clear()
            turn += 1
        counts = forge.launches(dict.fromkeys(range(1, KERNELS + 1), written // KERNELS // 4))
        file.write(forge.chunk(wire.pack(counts) + wire.pack(records.make("end", records=0, status=0))))


def check(trace: Path, calls: int) -> None:
    """Raise SystemExit if the summary's counts are wrong."""
    done = subprocess.run(["gpt-analyze", "summary", "--json", trace], capture_output=True, check=True, text=True)
    found = [record for record in map(json.loads, done.stdout.splitlines()) if record["kind"] == "row"]
    counts = [row["calls"] for row in found if row["answer"] == "processes"]
    parts = [row["calls"] for row in found if row["answer"] == "functions" and "name" in row]
    if counts != [calls] or sum(parts) != calls:
        raise SystemExit(f"bench: error: {counts} calls, {sum(parts)} of functions, where {calls} were made")


def others(folder: Path, calls: int) -> dict[str, list[str | Path]]:
    """Return commands that sum up some of the calls, or write them to a database, if their tools are installed."""
    trace, lines = folder / "part.mp", folder / "part.jsonl"
    write_trace(trace, calls // PART)
    with open(lines, "wb") as file:
        subprocess.run(["gpt-analyze", "events", "--json", trace], stdout=file, check=True)
    ways: dict[str, list[str | Path]] = {"a part": ["gpt-analyze", "summary", trace]}
    ways["export"] = ["gpt-analyze", "export", "--format", "sqlite", "-o", folder / "tables.sqlite", trace]
    ways["sqlite"] = [sys.executable, "-c", SQLITE, lines, folder / "lines.sqlite"]
    if shutil.which("jq"):
        ways["jq"] = ["jq", "-n", JQ, lines]
    if find_spec("pandas"):
        ways["pandas"] = [sys.executable, "-c", PANDAS, lines]
    return ways


def main() -> int:
    """Forge the trace, measure, and print; return the exit status."""
    calls = int(sys.argv[sys.argv.index("--calls") + 1]) if "--calls" in sys.argv else CALLS
    compileall.compile_dir(str(Path(gpt.__file__).parent), quiet=1)  # as pip does where it installs
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "t.mp")
        write_trace(trace, calls)
        check(trace, calls)
        print(f"{calls:,} calls, {trace.stat().st_size / calls:.1f} bytes each, one core, median of {RUNS}")
        ways = {"reading": [sys.executable, "-c", READ, trace], "columns": [sys.executable, "-c", COLUMNS, trace]}
        ways["summary"] = ["gpt-analyze", "summary", trace]
        found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
        for _ in range(RUNS):
            for name, command in ways.items():
                found[name].append(measure(*command))
        more: dict[str, list[str | Path]] = {}
        if "--events" in sys.argv:
            more["events"] = ["gpt-analyze", "events", "--json", trace]
        if "--alone" not in sys.argv:
            more |= others(Path(folder), calls)
        found |= {name: [measure(*command) for _ in range(RUNS)] for name, command in more.items()}
    for name, runs in found.items():
        seconds, rss = median(runs, "seconds"), max(run["rss"] for run in runs)
        print(f"{name:8} {seconds:6.2f} s {median(runs, 'cpu'):6.2f} s CPU {rss / 1e6:6.0f} MB")
    ratios = {name: median(found["summary"], "cpu") / median(found[name], "cpu") for name in ("columns", "reading")}
    held = ratios["columns"] <= RATIO and max(run["rss"] for run in found["summary"]) <= MEMORY
    if "--alone" not in sys.argv:
        print(f"'a part', export, sqlite, jq and pandas: a {PART}th of the calls")
        if missing := {"jq", "pandas"} - found.keys():
            print(f"not installed: {', '.join(sorted(missing))}")
    print("CPU time of summary: " + ", ".join(f"{value:.2f} times {name}" for name, value in ratios.items()))
    print(f"bounds: {RATIO} times columns, {MEMORY / 1e6:.0f} MB: {'held' if held else 'MISSED'}")
    if "--output" in sys.argv:
        result = {"machine": machine(), "load": os.getloadavg(), "calls": calls, "runs": found}
        Path(sys.argv[sys.argv.index("--output") + 1]).write_text(json.dumps(result, indent=1) + "\n")
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
