"""Run decode steps of layers_llama.py's Llama, eagerly and then captured: `node_times_llama.py [PROFILE]`.

Recording starts before the eager steps, as in layers_llama.py. Each step is waited for. The last line of the output is
a JSON object: digests of the eager and of the replayed step's results, and the median us of a replay on the host. With
PROFILE, all of it runs under PyTorch's profiler, and the GPU work of each eager step and each replay goes to that file,
in order: names and ns.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from layers_llama import make, start_recording, starts, tell_hook
from probe_workload import digest
from toggle_llama import make_inputs

EAGER, REPLAYS, BATCH = 40, 300, 4


def decode() -> dict[str, Any]:
    """Run the steps, and return what to print."""
    model, _ = make()
    given = make_inputs(BATCH, 1)
    side = torch.cuda.Stream()
    with torch.inference_mode():
        with torch.cuda.stream(side):
            for _ in range(EAGER):
                eager = model(*given)
        start_recording()
        for _ in range(EAGER):
            eager = model(*given)
            torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            replayed = model(*given)
        times = []
        for _ in range(REPLAYS):
            start = time.perf_counter()
            graph.replay()
            torch.cuda.synchronize()
            times.append(1e6 * (time.perf_counter() - start))
    tell_hook("disable")
    return {"eager": digest(eager), "replayed": digest(replayed), "replay_us": statistics.median(times[10:])}


def split(events: list[dict[str, Any]]) -> dict[str, list[list[tuple[str, float]]]]:
    """Return the GPU work of each eager step and each replay, from a Chrome trace of PyTorch's profiler."""
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")]
    work.sort(key=lambda event: event["ts"])
    calls = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    names = {event.get("args", {}).get("correlation"): event["name"] for event in calls}
    replays: dict[int, list[tuple[str, float]]] = defaultdict(list)
    eager: list[tuple[str, float]] = []
    for event in work:
        correlation = event["args"].get("correlation")
        one = event["name"], 1000 * event["dur"]
        if "GraphLaunch" in names.get(correlation, ""):
            replays[correlation].append(one)
        elif not replays:
            eager.append(one)
    each = len(eager) // EAGER
    steps = [eager[at : at + each] for at in range(0, each * EAGER, each)] if each else []
    return {"eager": steps, "replays": list(replays.values())}


def profile(path: Path) -> dict[str, Any]:
    """Run the steps under the profiler, and write the file."""
    kinds = torch.profiler.ProfilerActivity
    profiler = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA])
    starts.append(profiler.start)
    found = decode()
    profiler.stop()
    trace = path.with_suffix(".trace.json")
    profiler.export_chrome_trace(str(trace))
    path.write_text(json.dumps(split(json.loads(trace.read_text())["traceEvents"])))
    return found


if __name__ == "__main__":
    print(json.dumps(profile(Path(sys.argv[1])) if sys.argv[1:] else decode()))
