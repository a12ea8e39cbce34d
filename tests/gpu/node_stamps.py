"""Compare ways to time the nodes of a graph, with a captured decode step of a Llama.

    python tests/gpu/node_stamps.py

Run by tests/gpu/run.sh. Needs torch. It doesn't use gpt-hook. Copies of the graph have something that notes the time
between any two nodes: an event, or a kernel of one thread that stores %globaltimer, in the GPU's memory or in the
host's. They alternate with the graph itself, and then CUPTI (PyTorch's profiler) measures eager steps
and replays. A node's time is the time between the two notes, less the time between two notes without a node.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from layers_llama import make
from toggle_llama import make_inputs

OUT = Path(os.environ.get("GPT_GPU_OUT", Path(__file__).resolve().parents[2] / "build" / "gpu"))
ROUNDS, EAGER, BATCH, PAUSES = 80, 20, 4, 20
PTX = b"""
.version 7.0
.target sm_70
.address_size 64
.visible .entry stamp(.param .u64 to)
{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [to];
    mov.u64 %rd2, %globaltimer;
    st.volatile.global.u64 [%rd1], %rd2;
    ret;
}
"""
driver = ctypes.CDLL("libcuda.so.1")
Pointer = ctypes.c_void_p


class KernelNode(ctypes.Structure):  # CUDA_KERNEL_NODE_PARAMS_v2
    _fields_ = [("func", Pointer), ("shape", ctypes.c_uint * 7), ("params", Pointer), ("extra", Pointer),
                ("kern", Pointer), ("ctx", Pointer)]  # fmt: skip


def call(name: str, *args: Any) -> None:
    status = getattr(driver, name)(*args)
    if status:
        raise RuntimeError(f"{name}: {status}")


def list_edges(graph: Pointer, room: int) -> tuple[Any, Any, Any, ctypes.c_size_t]:
    begins, ends, count = (Pointer * room)(), (Pointer * room)(), ctypes.c_size_t(room)
    data = (ctypes.c_char * 8 * room)()
    call("cuGraphGetEdges_v2", graph, begins, ends, data, ctypes.byref(count))
    return begins, ends, data, count


def order_nodes(graph: Pointer) -> list[int]:
    """Return the nodes of a linear graph."""
    count = ctypes.c_size_t()
    call("cuGraphGetNodes", graph, None, ctypes.byref(count))
    nodes = (Pointer * count.value)()
    call("cuGraphGetNodes", graph, nodes, ctypes.byref(count))
    begins, ends, _, edges = list_edges(graph, 2 * count.value + 16)
    after = {begins[at]: ends[at] for at in range(edges.value)}
    (one,) = {*nodes} - {*after.values()}
    found = [one]
    while one in after:
        found.append(one := after[one])
    assert len(found) == len(nodes), "the graph isn't linear"
    return found


class Copy:
    """A copy of a graph with notes between its nodes, and PAUSES more notes at the end."""

    def __init__(self, source: Pointer, nodes: list[int]) -> None:
        self.notes = len(nodes) + 1 + PAUSES
        graph, self.exec, last, node = Pointer(), Pointer(), Pointer(), Pointer()
        call("cuGraphClone", ctypes.byref(graph), source)
        begins, ends, data, count = list_edges(graph, 2 * len(nodes) + 16)
        call("cuGraphRemoveDependencies_v2", graph, begins, ends, data, count)
        for at in range(self.notes):
            last = self.add(graph, last, at)
            if at < len(nodes):
                call("cuGraphNodeFindInClone", ctypes.byref(node), Pointer(nodes[at]), graph)
                one = (Pointer * 1)(node.value)
                call("cuGraphAddDependencies_v2", graph, (Pointer * 1)(last.value), one, None, ctypes.c_size_t(1))
                last = Pointer(node.value)
        call("cuGraphInstantiateWithFlags", ctypes.byref(self.exec), graph, ctypes.c_ulonglong(0))

    def add(self, graph: Pointer, last: Pointer, at: int) -> Pointer:
        raise NotImplementedError

    def read(self) -> list[float]:
        """Return the ns between notes in the last replay."""
        raise NotImplementedError


class Events(Copy):
    def __init__(self, source: Pointer, nodes: list[int]) -> None:
        self.events = [Pointer() for _ in range(len(nodes) + 1 + PAUSES)]
        for one in self.events:
            call("cuEventCreate", ctypes.byref(one), 0)
        super().__init__(source, nodes)

    def add(self, graph: Pointer, last: Pointer, at: int) -> Pointer:
        node, before = Pointer(), (Pointer * 1)(last.value)
        call("cuGraphAddEventRecordNode", ctypes.byref(node), graph, before, ctypes.c_size_t(at > 0), self.events[at])
        return node

    def read(self) -> list[float]:
        found, ms = [], ctypes.c_float()
        for one, other in pairwise(self.events):
            call("cuEventElapsedTime", ctypes.byref(ms), one, other)
            found.append(1e6 * ms.value)
        return found


class Stamps(Copy):
    def __init__(self, source: Pointer, nodes: list[int], function: Pointer, on_host: bool) -> None:
        self.function = function
        size = len(nodes) + 1 + PAUSES
        made = torch.zeros(size, dtype=torch.int64)
        self.memory = made.pin_memory() if on_host else made.cuda()
        super().__init__(source, nodes)

    def add(self, graph: Pointer, last: Pointer, at: int) -> Pointer:
        node, before = Pointer(), (Pointer * 1)(last.value)
        place = ctypes.c_uint64(self.memory.data_ptr() + 8 * at)
        params = (Pointer * 1)(ctypes.addressof(place))
        made = KernelNode(self.function, (ctypes.c_uint * 7)(1, 1, 1, 1, 1, 1, 0), ctypes.addressof(params))
        call("cuGraphAddKernelNode_v2", ctypes.byref(node), graph, before, ctypes.c_size_t(at > 0), ctypes.byref(made))
        return node

    def read(self) -> list[float]:
        found: list[float] = np.diff(self.memory.cpu().numpy().astype(np.float64)).tolist()
        return found


def average(values: Any) -> Any:
    """Return the mean of each column without outliers. A median would be as coarse as the timer, which advances in
    steps of 32 to 256 ns.
    """
    times = np.array(values, float)
    middle = np.median(times, axis=0)
    return times.mean(axis=0, where=np.abs(times - middle) <= np.maximum(middle / 4, 2000))


def profile(model: Any, given: Any, replay: Any) -> dict[str, Any]:
    """Return names, starts and durations in ns of the kernels of eager steps and of replays, as CUPTI measures them."""
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as profiler:
        for _ in range(EAGER):
            model(*given)
            torch.cuda.synchronize()
        for _ in range(ROUNDS):
            replay()
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    calls = {one.get("args", {}).get("correlation"): one["name"] for one in events
             if one.get("cat") in ("cuda_runtime", "cuda_driver")}  # fmt: skip
    replays: dict[int, list[Any]] = {}
    eager = []
    for one in sorted((one for one in events if one.get("cat") == "kernel"), key=lambda one: one["ts"]):
        correlation, row = one["args"]["correlation"], (1000 * one["ts"], 1000 * one["dur"])
        if "GraphLaunch" in calls.get(correlation, ""):
            replays.setdefault(correlation, []).append(row)
        else:
            eager.append((one["name"], *row))
    return {"eager": eager, "replays": [*replays.values()]}


def name_nodes(model: Any, given: Any) -> list[str]:
    """Return the layer of each kernel of a step, by counting kernels with hooks around a profiled step per module."""
    found: list[str] = []
    names = {id(one): name for name, one in model.named_modules()}

    def count(run: Any) -> int:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            run()
            torch.cuda.synchronize()
        return sum(one.count for one in profiler.key_averages() if one.device_type.name == "CUDA")

    x = model.words(given[0])
    found += ["words"] * count(lambda: model.words(given[0]))
    for layer in model.layers:
        found += [names[id(layer)]] * count(lambda layer=layer: layer(x, *given[1:]))
    found += ["norm"] * count(lambda: model.norm(x)) + ["out"] * count(lambda: model.out(x))
    return found


def tell(name: str, ours: Any, theirs: Any, layers: list[str]) -> dict[str, Any]:
    apart = 100 * np.abs(ours / theirs - 1)
    fit = np.polyfit(theirs, ours, 1)
    rest = ours - np.polyval(fit, theirs)
    shares = {}
    for layer in dict.fromkeys(layers):
        mine = np.array(layers) == layer
        shares[layer] = round(100 * (ours[mine].sum() / ours.sum() / (theirs[mine].sum() / theirs.sum()) - 1), 2)
    row = {"compared": name, "sum_us": round(ours.sum() / 1000, 1), "of_us": round(theirs.sum() / 1000, 1),
           "apart": round(100 * (ours.sum() / theirs.sum() - 1), 2), "median_apart": round(float(np.median(apart)), 2),
           "within_3": round(100 * float((apart <= 3).mean()), 1), "slope": round(float(fit[0]), 4),
           "intercept_ns": round(float(fit[1]), 1), "residual_ns": round(float(rest.std()), 1),
           "layers": shares}  # fmt: skip
    print(json.dumps(row), flush=True)
    return row


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    model, _ = make()
    given = make_inputs(BATCH, 1)
    with torch.inference_mode():
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(5):
                model(*given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        with torch.cuda.graph(graph):
            model(*given)
        graph.instantiate()
        source = Pointer(graph.raw_cuda_graph())
        nodes = order_nodes(source)
        module, function = Pointer(), Pointer()
        call("cuModuleLoadData", ctypes.byref(module), PTX)
        call("cuModuleGetFunction", ctypes.byref(function), module, b"stamp")
        ways = {"events": Events(source, nodes), "stamps": Stamps(source, nodes, function, False),
                "stamps_on_host": Stamps(source, nodes, function, True)}  # fmt: skip
        stream = Pointer(torch.cuda.current_stream().cuda_stream)
        times: dict[str, list[Any]] = {name: [] for name in ways}
        whole: dict[str, list[float]] = {name: [] for name in ("plain", *ways)}
        edges = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        for number in range(-5, ROUNDS):
            for name in whole:
                edges[0].record()
                if name == "plain":
                    graph.replay()
                else:
                    call("cuGraphLaunch", ways[name].exec, stream)
                edges[1].record()
                torch.cuda.synchronize()
                if number >= 0:
                    whole[name].append(1e6 * edges[0].elapsed_time(edges[1]))
                    if name != "plain":
                        times[name].append(ways[name].read())
        layers = name_nodes(model, given)
        cupti = profile(model, given, graph.replay)
    replays = np.array([one for one in cupti["replays"] if len(one) == len(nodes)])
    each = len(cupti["eager"]) // EAGER
    steps = np.array([[row[2] for row in cupti["eager"][at : at + each]] for at in range(0, each * EAGER, each)])
    kernels, eager = average(replays[:, :, 1]), average(steps)
    ends = replays.sum(axis=2)
    with_gaps = np.append(kernels[:1], average(np.diff(ends, axis=1)))
    print(len(nodes), "nodes;", len(layers), "named;", each, "kernels in an eager step")
    if len(layers) != len(nodes):
        layers = ["all"] * len(nodes)
    print({name: round(statistics.median(found) / 1000, 1) for name, found in whole.items()}, "us a replay")
    rows = [tell("CUPTI, with the gap before, and without", with_gaps, kernels, layers)]
    if each == len(nodes):
        rows.append(tell("CUPTI replays, eager", kernels, eager, layers))
    for name, found in times.items():
        between = average(found)
        pauses = between[len(nodes) :]
        own = between[: len(nodes)] - pauses[2:].mean()
        print(name, "pause", round(pauses[2:].mean(), 1), "+-", round(pauses[2:].std(), 1), "spread in a node, ns:",
              round(float(np.median(np.array(found)[:, : len(nodes)].std(axis=0))), 1))  # fmt: skip
        rows += [tell(f"{name}, CUPTI with gaps", own, with_gaps, layers), tell(f"{name}, CUPTI", own, kernels, layers)]
        fit = own - (own.sum() - kernels.sum()) / len(own)
        rows.append(tell(f"{name} scaled to CUPTI's sum, CUPTI", fit, kernels, layers))
        if each == len(nodes):
            rows.append(tell(f"{name}, eager", fit, eager, layers))
    facts = {"nodes": len(nodes), "layers": layers, "names": [row[0] for row in cupti["eager"][:each]], "whole": whole,
             "compared": rows, "times": {name: np.rint(found).astype(int).tolist() for name, found in times.items()},
             "replays": [[[round(a - one[0][0]), round(b)] for a, b in one] for one in replays.tolist()],
             "eager": np.rint(steps).astype(int).tolist()}  # fmt: skip
    (OUT / "node_stamps.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main()
