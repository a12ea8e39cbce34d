"""Run an 8-layer Llama in eager PyTorch, for toggle.py. Its kernels have no PTX.

Each line of its input is `PROGRAM BATCH TOKENS STEPS`. It answers with two times of each step in us, from the call to
the GPU's completion and on the GPU, and then a digest of the last step's result. `train` is a forward, a backward and
an AdamW step, always from the same weights; `decode` is a forward step; `graph` is the same forward step in a CUDA
graph, captured again for each line.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
from probe_workload import digest
from toggle_llama import WORDS, Llama, make_inputs
from torch.nn import functional

Step = Callable[[], torch.Tensor]


def make_train(model: Llama, inputs: tuple[torch.Tensor, ...]) -> Step:
    """Return a training step."""
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(*inputs).float().view(-1, WORDS), inputs[0].view(-1))
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def make_decode(model: Llama, inputs: tuple[torch.Tensor, ...]) -> Step:
    """Return a forward."""

    def step() -> torch.Tensor:
        with torch.inference_mode():
            return model(*inputs)

    return step


def make_graph(model: Llama, inputs: tuple[torch.Tensor, ...]) -> Step:
    """Return a forward in a graph."""
    forward, side = make_decode(model, inputs), torch.cuda.Stream()
    with torch.cuda.stream(side):
        forward()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = forward()

    def step() -> torch.Tensor:
        graph.replay()
        return found

    return step


def main() -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.manual_seed(0)
    model = Llama().cuda().bfloat16()
    weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    inputs: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}
    makers = {"train": make_train, "decode": make_decode, "graph": make_graph}
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    print("ready", flush=True)
    for line in sys.stdin:
        program, *numbers = line.split()
        batch, tokens, steps = map(int, numbers)
        given = inputs.setdefault((batch, tokens), make_inputs(batch, tokens))
        model.load_state_dict(weights)
        step = makers[program](model, given)
        step()
        times = []
        for _ in range(steps):
            torch.cuda.synchronize()
            start = time.perf_counter()
            begun.record()
            found = step()
            ended.record()
            torch.cuda.synchronize()
            times += [1e6 * (time.perf_counter() - start), 1e3 * begun.elapsed_time(ended)]
        print(*(f"{us:.1f}" for us in times), digest(found), flush=True)


if __name__ == "__main__":
    main()
