"""Test gpt-hook -p with CUDA graphs on a real GPU: results stay the same, each launch of a graph is recorded for each
kernel, and costs are measured.

    python tests/gpu/probe_graphs.py [forms|plain|many|graphed ...]

`forms` checks graphs in many forms, and counts all bytes. `plain` replays a million kernels, without and with gpt-hook
(but no probes). `many` replays 25 million kernels with probes, and checks that device memory stays constant; its trace
takes about 6 GB, and the test more than 4 minutes. `graphed` runs a decode step of a compiled transformer, captured in
a graph, without and with block_sched, alone and after other graphs.

GPT_GPU_ROUNDS is the number of timed runs (default 3; 0 only fills the caches of `graphed`). GPT_GPU_REPLAYS is the
number of times that `many` launches its graph of 1,000 kernels (default 25,000). GPT_GPU_KEEP is a folder that's kept,
so that `graphed` can continue after an interruption. These take less than three minutes each:

    GPT_GPU_REPLAYS=2000 python tests/gpu/probe_graphs.py many
    export GPT_GPU_KEEP=build/graphed
    GPT_GPU_ROUNDS=0 python tests/gpu/probe_graphs.py graphed
    GPT_GPU_ROUNDS=1 python tests/gpu/probe_graphs.py graphed

Run by tests/gpu/run.sh; needs nvcc and g++, and PyTorch for `graphed`.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from probe import HOOK, NVCC, OUT, Row, read, run, step_of

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.stream import wire  # noqa: E402
from gpt.stream.reasons import find_reason  # noqa: E402

ROUNDS = int(os.environ.get("GPT_GPU_ROUNDS", 3))  # timed runs; the result is their median
NODES, REPLAYS, MANY = 1000, 1000, 25000
FORMS = 99 + 220  # launches
Line = list[str | Path]


def build(folder: Path) -> Path:
    program = folder / "graphs"
    line: Line = [NVCC, "-gencode", "arch=compute_90,code=[sm_90,compute_90]", "probe_graphs.cu", "-o", program]
    subprocess.run(line, check=True, cwd=ROOT / "tests/gpu")
    return program


def environment(folder: Path) -> dict[str, str]:
    places = {"XDG_CACHE_HOME": "cache", "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor"}
    return os.environ | {name: str(folder / place) for name, place in places.items()}


def hooked(trace: Path, *options: str) -> Line:
    return [HOOK, "run", "-q", "-f", "-o", trace, *options, "--"]


def number_of(pattern: str, said: str) -> float:
    found = re.search(pattern, said)
    return float(found[1]) if found else float("nan")


def measure_forms(folder: Path) -> Row:
    program, trace, env = build(folder), folder / "forms.mp", environment(folder)
    bare, _, _ = run([program], env)
    probed, said, _ = run([*hooked(trace, "-p", "gmem_bytes"), program], env)
    found, sums = read(trace, "gmem_bytes")
    fields = {field: sum(value for key, value in sums.items() if key.endswith(field)) for field in ("read", "written")}
    wrong = []
    if bare != probed or not bare.count("\n") > 5:
        wrong.append(f"the output differs: {bare!r} {probed!r} {said[-300:]!r}")
    if sum(found["probed"].values()) != FORMS or found["unprobed"]:
        wrong.append(f"{dict(found['probed'])} with probes, not {FORMS}; without: {dict(found['unprobed'])}")
    if set(fields.values()) != {FORMS * 4 * (1 << 14)}:
        wrong.append(f"bytes: {fields}")
    return {"probed": sum(found["probed"].values()), "unprobed": dict(found["unprobed"]), "wrong": wrong}


def measure_plain(folder: Path) -> Row:
    program, env = build(folder), environment(folder)
    ways: dict[str, Line] = {"bare": [], "hooked": hooked(folder / "plain.mp")}
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, before in ways.items():
            _, said, _ = run([*before, program, "replay", str(NODES), str(REPLAYS)], env)
            seconds[way].append(number_of(r"seconds ([\d.]+)", said))
    bare, with_hook = (statistics.median(seconds[way]) for way in ways)
    wrong = [] if with_hook <= 1.02 * bare else [f"{with_hook} s under gpt-hook, {bare} s bare"]
    return {"seconds": seconds, "wrong": wrong}


def count_in(data: bytes) -> tuple[Counter[str], int]:
    """Count launches with and without probes, lost buffers, and bytes read, in a group of records."""
    found, total = Counter[str](), 0
    for record in wire.read_packed(io.BytesIO(data), "chunk"):
        match record["kind"]:
            case "probed":
                found["probed"] += 1
            case "unprobed":
                found[str(find_reason(record))] += record["launches"]
            case "buffer" if "lost" in record:
                found["lost"] += 1
            case "buffer":  # a single unit, a warp: the number of lanes, then a slot whose first field is `read`
                found["buffers"] += 1
                total += int.from_bytes(record["data"][8:16], "little")
    return found, total


def count(trace: Path) -> tuple[Counter[str], int]:
    """Make the same counts for a trace, on all cores, which is much faster than `read`."""
    found, total = Counter[str](), 0
    with open(trace, "rb") as file, multiprocessing.Pool() as pool:
        records = wire.read_packed(file, str(trace))
        pieces = (record["data"][: record["used"]] if record["kind"] == "chunk" else record.raw for record in records)
        for some, read_there in pool.imap_unordered(count_in, pieces):
            found += some
            total += read_there
    return found, total


def measure_many(folder: Path) -> Row:
    program, trace, env = build(folder), folder / "many.mp", environment(folder)
    replays = int(os.environ.get("GPT_GPU_REPLAYS", MANY))
    options = ("-p", "gmem_bytes", "--complete", "--max-memory", "128M", "--calls", "none")
    words = ["replay", str(NODES), str(replays)]
    bare, plain, _ = run([program, *words], env)
    probed, said, seconds = run([*hooked(trace, *options), program, *words], env)
    found, total = count(trace)
    free = [int(text) for text in re.findall(r"free MB (\d+)", said)]
    nodes = NODES * replays
    wrong = []
    if bare != probed:
        wrong.append(f"the output differs: {bare!r} {probed!r} {said[-300:]!r}")
    if found != {"probed": nodes, "buffers": nodes} or total != nodes * 32 * 4:
        wrong.append(f"{dict(found)}, {total} bytes read, of {nodes} nodes")
    if len(free) != 3 or max(free) - min(free) > 64:
        wrong.append(f"free MB on the way: {free}")
    row = {"nodes": nodes, "seconds": number_of(r"seconds ([\d.]+)", said), "all_seconds": seconds, "free_mb": free}
    bare_seconds = number_of(r"seconds ([\d.]+)", plain)
    return row | {"bare_seconds": bare_seconds, "trace_bytes": trace.stat().st_size, "wrong": wrong}


def measure_graphed(folder: Path) -> Row:
    trace, env = folder / "graphed.mp", environment(folder)
    program: Line = [sys.executable, "probe_workload.py", "graphed"]
    others: Line = [*program[:-1], "others"]
    with_probes = hooked(trace, "-p", "block_sched")
    ready = folder / "ready"
    if not ready.exists():
        run(program, env)  # fills PyTorch's caches
        run([*with_probes, *program], env)  # fills gpt-hook's cache
        ready.touch()
    if not ROUNDS:
        return {"wrong": []}
    ways: dict[str, Line] = {
        "bare": program,
        "hooked": [*hooked(folder / "plain.mp"), *program],
        "probed": [*with_probes, *program],
        "bare_others": others,
        "probed_others": [*hooked(folder / "others.mp", "-p", "block_sched"), *others],
    }
    outputs, steps = set(), {way: list[float]() for way in ways}
    for _ in range(ROUNDS):
        for way, line in ways.items():
            output, said, _ = run(line, env)
            outputs.add(output)
            steps[way].append(step_of(said) or float("nan"))
    found, _ = read(trace, "block_sched")
    medians = {way: statistics.median(times) for way, times in steps.items()}
    ratio, of_others = medians["probed"] / medians["bare"], medians["probed_others"] / medians["bare_others"]
    wrong = [] if len(outputs) == 1 else [f"the output differs: {outputs}"]
    if not ratio <= 1.05:
        wrong.append(f"a step takes {ratio:.3f} times as long with probes")
    launches, without = sum(found["probed"].values()), dict(found["unprobed"])
    return {
        "step_ms": steps,
        "ratio": ratio,
        "ratio_others": of_others,
        "probed": launches,
        "unprobed": without,
        "wrong": wrong,
    }


PARTS: dict[str, Callable[[Path], Row]] = {
    "forms": measure_forms, "plain": measure_plain, "graphed": measure_graphed, "many": measure_many,
}  # fmt: skip


def main() -> int:
    """Print a line for each part; return 1 if one is wrong."""
    OUT.mkdir(parents=True, exist_ok=True)
    rows = []
    for part in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(os.environ.get("GPT_GPU_KEEP") or name).absolute()
            folder.mkdir(parents=True, exist_ok=True)
            rows.append(row := {"part": part, **PARTS[part](folder)})
        print(json.dumps(row), flush=True)
        (OUT / "probe_graphs.json").write_text(json.dumps(rows, indent=1) + "\n")
    for row in rows:
        print(f"{row['part']:10}{'; '.join(row['wrong']) or 'ok'}")
    return int(any(row["wrong"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
