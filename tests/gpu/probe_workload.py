"""Programs for tests/gpu/probe.py, run with and without probes: `python probe_workload.py NAME [STEPS [WARM]]`.

NAME is triton, train, decode, graphed or others. Each prints a digest of its results. All but `triton` print the median
time of a step on standard error, without the first WARM steps.
"""

from __future__ import annotations

import hashlib
import statistics
import sys
import time

import torch
import triton
import triton.language as tl
from generate import CONTEXT, WORDS, Transformer
from torch import nn
from torch.nn import functional


@triton.jit
def softmax(out, x, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def] # Triton's
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * n + column, mask=column < n, other=-float("inf"))
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * n + column, value / tl.sum(value, 0), mask=column < n)


@triton.jit
def product(a, b, c, n, TILE: tl.constexpr):  # type: ignore[no-untyped-def] # Triton's
    rows, columns = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.program_id(1) * TILE + tl.arange(0, TILE)
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for k in range(0, n, TILE):
        inner = k + tl.arange(0, TILE)
        left = tl.load(a + rows[:, None] * n + inner[None, :])
        right = tl.load(b + inner[:, None] * n + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * n + columns[None, :], total)


def digest(*tensors: torch.Tensor) -> str:
    """Return a digest of all bytes."""
    return hashlib.sha256(b"".join(t.detach().float().cpu().numpy().tobytes() for t in tensors)).hexdigest()[:16]


def run_triton() -> None:
    torch.manual_seed(1)
    x = torch.randn(4096, 1000, device="cuda")
    out = torch.empty_like(x)
    a, b = (torch.randn(512, 512, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty(512, 512, device="cuda")
    for _ in range(50):
        softmax[(4096,)](out, x, 1000, BLOCK=1024)
        product[(8, 8)](a, b, c, 512, TILE=64)
    print("triton", digest(out, c))


class Layer(nn.Module):
    """A transformer layer of GPT-2's size, with causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(768), nn.LayerNorm(768)
        self.qkv, self.out, self.up, self.down = (
            nn.Linear(*shape) for shape in ((768, 2304), (768, 768), (768, 3072), (3072, 768))
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, 12, 64).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, 768))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


def run_train(steps: int = 30, warm: int = 8) -> None:
    """Run training steps (forward, backward and AdamW) on 8 sequences of 512 tokens."""
    torch.manual_seed(1)
    words, layers = nn.Embedding(WORDS, 768), nn.Sequential(*(Layer() for _ in range(12)))
    model = nn.ModuleList([words, layers]).to("cuda", torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    tokens = torch.randint(WORDS, (8, 513), device="cuda")

    @torch.compile
    def loss_of(given: torch.Tensor) -> torch.Tensor:
        logits = layers(words(given[:, :-1])) @ words.weight.T
        return functional.cross_entropy(logits.float().flatten(0, 1), given[:, 1:].flatten())

    times, first = [], None  # only the first loss is compared: gradients are added with atomics, so later ones vary
    for step in range(warm + steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(tokens)
        first = first if first is not None else loss.item()
        loss.backward()  # type: ignore[no-untyped-call] # PyTorch's
        optimizer.step()
        torch.cuda.synchronize()
        if step >= warm:
            times.append(time.perf_counter() - start)
    print(f"train {first}")
    print(f"ms a step {1000 * statistics.median(times):.3f}", file=sys.stderr)


def run_decode(tokens: int = 100, warm: int = 20) -> None:
    """Decode one sequence, a token at a time, compiled without graphs."""
    torch.manual_seed(1)
    model = Transformer().to("cuda", torch.float16).eval()
    step = torch.compile(model)
    token, places, times, found = (
        torch.zeros(1, 1, dtype=torch.long, device="cuda"),
        torch.arange(CONTEXT, device="cuda"),
        [],
        [],
    )
    with torch.inference_mode():
        for i in range(warm + tokens):
            start = time.perf_counter()
            token = step(token, places[i : i + 1])
            found.append(token.item())
            if i >= warm:
                times.append(time.perf_counter() - start)
    print("decode", *found)
    print(f"ms a step {1000 * statistics.median(times):.3f}", file=sys.stderr)


def run_graphed(tokens: int = 200, warm: int = 20, others: int = 0) -> None:
    """Decode with the compiled step in a CUDA graph, after capturing and replaying other graphs of the same step.

    From the third graph on, the kernels of all graphs in the process begin 0.3 us later (on an H200).
    """
    torch.manual_seed(1)
    model = Transformer().to("cuda", torch.float16).eval()
    step, graph = torch.compile(model), torch.cuda.CUDAGraph()
    places = torch.arange(CONTEXT, device="cuda")
    token, at = torch.zeros(1, 1, dtype=torch.long, device="cuda"), places[:1].clone()
    times, found = [], []
    with torch.inference_mode():
        for _ in range(3):
            step(token, at)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            following = step(token, at)
        for _ in range(others):
            other = torch.cuda.CUDAGraph()
            with torch.cuda.graph(other):
                step(token, at)
            for _ in range(20):
                other.replay()
            torch.cuda.synchronize()
        for i in range(warm + tokens):
            start = time.perf_counter()
            at.copy_(places[i : i + 1])
            graph.replay()
            token.copy_(following)
            found.append(token.item())
            if i >= warm:
                times.append(time.perf_counter() - start)
    print("graphed", *found)
    print(f"ms a step {1000 * statistics.median(times):.4f}", file=sys.stderr)


if __name__ == "__main__":
    runs = {"triton": run_triton, "train": run_train, "decode": run_decode, "graphed": run_graphed}
    runs["others"] = lambda: run_graphed(others=4)
    runs[sys.argv[1]](*map(int, sys.argv[2:]))
