"""More programs with one planted cause each, for causes.py. They were written without looking at the rules that
gpt-analyze has.
"""

from __future__ import annotations

import subprocess
import threading
import time
from typing import Any


def _model(width: int, layers: int) -> Any:
    import torch
    from torch import nn

    torch.manual_seed(0)
    return nn.Sequential(*[one for _ in range(layers) for one in (nn.Linear(width, width), nn.GELU())]).cuda()


def metrics() -> None:
    """Copy the outputs to the host in each step, and compute a metric there."""
    import numpy as np
    import torch

    model, x, seen = _model(2048, 6), torch.randn(4096, 2048, device="cuda"), []
    with torch.no_grad():
        for _ in range(25):
            for _ in range(3):
                out = model(x)
            values = out[:2048, :1024].cpu().numpy()
            seen.append(float(np.sort(values, axis=1)[:, -5:].mean()))


def logger() -> None:
    """Synchronize after each block of the model, to log the time."""
    import torch

    blocks, x, log = [_model(2048, 2) for _ in range(8)], torch.randn(2048, 2048, device="cuda"), []
    with torch.no_grad():
        for _ in range(80):
            y = x
            for block in blocks:
                y = block(y)
                torch.cuda.synchronize()
                log.append(time.time())


def events() -> None:
    """Time each step with events, and wait for the second one before the next step."""
    import torch

    model, x, times = _model(1024, 4), torch.randn(1024, 1024, device="cuda"), []
    with torch.no_grad():
        for _ in range(600):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            model(model(x))
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last))
            sum(number * number for number in range(3000))


def gil() -> None:
    """Keep the GIL in a thread that preprocesses in Python."""
    import torch

    model, x, done = _model(512, 4), torch.randn(512, 512, device="cuda"), threading.Event()

    def preprocess() -> None:
        while not done.is_set():
            sum(ord(letter) for letter in "some text to tokenize " * 2000)

    thread = threading.Thread(target=preprocess)
    thread.start()
    end = time.time() + 2
    with torch.no_grad():
        while time.time() < end:
            for _ in range(5):
                model(x)
            torch.cuda.synchronize()
    done.set()
    thread.join()


def child() -> None:
    """Run another program in each step."""
    import torch

    model, x = _model(2048, 4), torch.randn(2048, 2048, device="cuda")
    with torch.no_grad():
        for _ in range(30):
            for _ in range(5):
                model(x)
            subprocess.run(["sh", "-c", "sleep 0.04"], check=True)


def starved() -> None:
    """Wait for a queue that a slow thread fills."""
    import queue

    import torch

    model, batches = _model(1024, 4), queue.Queue[Any](2)

    def work() -> None:
        for _ in range(80):
            time.sleep(0.02)
            batches.put(torch.randn(1024, 1024))

    threading.Thread(target=work).start()
    with torch.no_grad():
        for _ in range(80):
            model(batches.get().to("cuda"))


def selection() -> None:
    """Replay a graph in which a selection takes far longer than the layers before and after it."""
    import torch

    model, x = _model(512, 6), torch.randn(256, 512, device="cuda")
    big = torch.randn(1 << 21, device="cuda")
    with torch.no_grad():
        model(x), torch.kthvalue(big, big.numel() // 2)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            model(x)
            torch.kthvalue(big, big.numel() // 2)
            model(x)
        for _ in range(200):
            graph.replay()
        torch.cuda.synchronize()


def shapes() -> None:
    """Let cuDNN try its algorithms for a new shape in each step."""
    import torch
    from torch import nn

    torch.backends.cudnn.benchmark = True
    layers = nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3)
    model = nn.Sequential(*layers).cuda()
    with torch.no_grad():
        for step in range(12):
            model(torch.randn(16, 3, 64 + 8 * step, 96, device="cuda"))
