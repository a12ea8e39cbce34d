"""Run a Llama with 8 layers in one of several ways, for layers.py: `layers_llama.py MODE [PROFILE]`.

It sets up and warms up, then starts recording, under `gpt-hook run --disabled`, and runs the steps. The last line of
its output is a JSON object: a digest of the results, and what the mode measures. With PROFILE, the
steps run under PyTorch's profiler, with a range per module, and the GPU time of each module goes to that file.
"""

from __future__ import annotations

import bisect
import json
import os
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from module_calls import find_original, find_vectorcall
from probe_workload import digest
from toggle_llama import Llama, make_inputs
from torch import nn

STEPS, PAIRS, TOKENS = 30, 60, 512


def make() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    return Llama().cuda().bfloat16(), make_inputs(4, TOKENS)


def tell_hook(order: str) -> None:
    torch.cuda.synchronize()
    if hook := os.environ.get("LAYERS_HOOK"):
        subprocess.run([hook, "ctl", str(os.getpid()), order], check=True)


starts: list[Callable[[], None]] = []


def start_recording() -> None:
    """Start to record what follows."""
    tell_hook("enable")
    for start in starts:
        start()


def eager() -> dict[str, Any]:
    """Run forward passes."""
    model, given = make()
    with torch.inference_mode():
        model(*given)
        start_recording()
        for _ in range(STEPS):
            found = model(*given)
    tell_hook("disable")  # copying the result takes as long as many steps
    return {"digest": digest(found)}


def train() -> dict[str, Any]:
    """Run forward and backward passes; the loss is the mean, of one kernel."""
    model, given = make()
    for number in range(STEPS):
        model.zero_grad()
        if number == 1:
            start_recording()
        model(*given).float().mean().backward()
    tell_hook("disable")
    gradients = [parameter.grad.float().sum() for parameter in model.parameters() if parameter.grad is not None]
    return {"digest": digest(torch.stack(gradients))}


def compiled() -> dict[str, Any]:
    """Run a compiled model, and count what Dynamo did."""
    import torch._dynamo

    model, given = make()
    step = torch.compile(model, dynamic=False)
    with torch.inference_mode():
        for number in range(STEPS):
            if number == 2:
                start_recording()
            found = step(*given)
    tell_hook("disable")
    counters = torch._dynamo.utils.counters
    counts = {name: dict(counters[name]) for name in ("frames", "stats", "graph_break", "recompiles")}
    return {"digest": digest(found), "counts": counts}


def graphed() -> dict[str, Any]:
    """Run a decode step once, capture it, and replay it outside of all modules."""
    model, _ = make()
    given = make_inputs(4, 1)
    side = torch.cuda.Stream()
    with torch.inference_mode():
        with torch.cuda.stream(side):
            for _ in range(STEPS):
                model(*given)
        start_recording()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = model(*given)
        for _ in range(10 * STEPS):
            graph.replay()
    tell_hook("disable")
    return {"digest": digest(found)}


def overhead() -> dict[str, Any]:
    """Time steps alternately with Python's own module calls and with ours. Return us per module call and launch."""
    slot, original = find_vectorcall(), find_original()
    ours = slot.value
    assert ours != original, "torch.nn.Module.__call__ is as always"
    model, _ = make()
    given = make_inputs(1, 1)
    modules = sum(1 for one in model.modules() if not isinstance(one, nn.ModuleList))
    start_recording()
    result: dict[str, Any] = {"modules": modules}

    def forward() -> None:
        with torch.inference_mode():
            model(*given)

    def backward() -> None:
        model(*given).float().mean().backward()

    for name, run in (("forward", forward), ("training", backward)):
        times: dict[Any, list[float]] = {ours: [], original: []}
        for _ in range(PAIRS):
            for function in (ours, original):
                slot.value = function
                torch.cuda.synchronize()
                start = time.perf_counter()
                run()
                times[function].append(time.perf_counter() - start)
                torch.cuda.synchronize()
        slot.value = ours
        more = 1e6 * (statistics.median(times[ours]) - statistics.median(times[original]))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
        launches = sum(event.count for event in profiler.key_averages() if event.device_type.name == "CUDA")
        result[name] = {"us_per_call": more / modules, "us_per_launch": more / launches, "launches": launches}
    return result


def profile(run: Any, path: Path) -> dict[str, Any]:
    """Run the steps with a profiler range around each module call, and write each module's GPU time in ns."""
    before, after = nn.modules.module.register_module_forward_pre_hook, nn.modules.module.register_module_forward_hook
    names: dict[int, str] = {}
    ranges: list[Any] = []

    def enter(module: nn.Module, _: Any) -> None:
        if id(module) not in names:
            names.update((id(one), name or type(one).__name__) for name, one in module.named_modules())
        ranges.append(torch.profiler.record_function("module " + names[id(module)]))
        ranges[-1].__enter__()

    def leave(*_: Any) -> None:
        ranges.pop().__exit__(None, None, None)

    hooks = before(enter), after(leave)
    kinds = torch.profiler.ProfilerActivity
    profiler = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA])
    starts.append(profiler.start)
    result: dict[str, Any] = run()
    torch.cuda.synchronize()
    profiler.stop()
    for hook in hooks:
        hook.remove()
    trace = path.with_suffix(".trace.json")
    profiler.export_chrome_trace(str(trace))
    path.write_text(json.dumps(sum_by_module(json.loads(trace.read_text())["traceEvents"])))
    return result


def sum_by_module(events: list[dict[str, Any]]) -> dict[str, float]:
    """Return the GPU time in ns of each module, by the innermost range around the launching call."""
    ranges: dict[Any, list[tuple[float, float, str]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "user_annotation" and event["name"].startswith("module "):
            ranges[event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"][len("module ") :]))
    for own in ranges.values():
        own.sort()
    launching = [event for event in events if event.get("cat") in ("cuda_runtime", "cuda_driver")]
    calls = {event["args"].get("correlation"): event for event in launching if "args" in event}
    found: dict[str, float] = defaultdict(float)
    for event in events:
        if event.get("cat") not in ("kernel", "gpu_memcpy", "gpu_memset"):
            continue
        call, name = calls.get(event["args"].get("correlation")), "(unknown)"
        if call:
            own = ranges[call["tid"]]
            before = own[: bisect.bisect(own, (call["ts"], float("inf"), ""))]
            for begin, end, module in reversed(before):
                if begin <= call["ts"] < end:
                    name = module
                    break
        found[name] += 1000 * event["dur"]
    return dict(found)


if __name__ == "__main__":
    mode = {"eager": eager, "train": train, "compiled": compiled, "graphed": graphed, "overhead": overhead}[sys.argv[1]]
    print(json.dumps(profile(mode, Path(sys.argv[2])) if sys.argv[2:] else mode()))
