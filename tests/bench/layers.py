"""Measure what 'gpt-hook run --layers' costs on the host, with PyTorch on the CPU.

    bin/gpt-hook run -qf -o /tmp/layers.mp --layers --device sim -- PYTHON tests/bench/layers.py [-n PAIRS]

PYTHON has PyTorch. Steps of a narrow Llama run with --layers and without it in turn, as the script changes the function
by which Python calls modules. It prints a JSON object: for forward passes and training, CPU time in us per call of a
module (medians), and the time of each step. On a GPU, tests/gpu/layers.py measures the same model at its full width.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "gpu"))
import toggle_llama
from module_calls import find_original, find_vectorcall

WIDTH, HEADS, INNER, WORDS = 32, 2, 64, 64
WARM_UP = 5


def make_steps() -> tuple[nn.Module, dict[str, Callable[[], Any]]]:
    """Return a Llama of 8 layers, and its steps by name."""
    toggle_llama.WIDTH, toggle_llama.HEADS, toggle_llama.INNER, toggle_llama.WORDS = WIDTH, HEADS, INNER, WORDS
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = toggle_llama.Llama()
    half = WIDTH // HEADS // 2
    given = torch.randint(WORDS, (1, 1)), torch.ones(1, 2 * half), torch.zeros(1, 2 * half)

    def forward() -> None:
        with torch.inference_mode():
            model(*given)

    return model, {"forward": forward, "training": lambda: model(*given).mean().backward()}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=100, help="steps with and without it")
    pairs: int = parser.parse_args().n
    assert not ctypes.CDLL("libcuda.so.1").cuInit(0)  # without a driver, nothing is recorded
    model, steps = make_steps()
    modules = sum(1 for one in model.modules() if not isinstance(one, nn.ModuleList))
    slot, original = find_vectorcall(), find_original()
    ours = slot.value
    assert ours != original, "torch.nn.Module.__call__ is as always: run it under 'gpt-hook run --layers'"
    result: dict[str, Any] = {"torch": torch.__version__, "modules": modules}
    for name, step in steps.items():
        times: dict[Any, list[float]] = {ours: [], original: []}
        for number in range(-WARM_UP, pairs):
            for function, found in times.items():
                slot.value = function
                begin = time.process_time_ns()
                step()
                if number >= 0:
                    found.append((time.process_time_ns() - begin) / 1000)
        slot.value = ours
        on, off = (statistics.median(times[function]) for function in (ours, original))
        result[name] = {"us_per_call": (on - off) / modules, "with": times[ours], "without": times[original]}
    print(json.dumps(result))


if __name__ == "__main__":
    main()
