"""Run the forward pass of a compiled 8-layer Llama, for toggle.py.

Each line of its input is `BATCH TOKENS STEPS`. It answers with the time of each step in us, from the call to the GPU's
completion, and then a digest of the last step's result. Attention and matrix products use PyTorch's and cuBLAS's own
kernels; the others are Triton kernels made by torch.compile.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.nn import functional

WIDTH, HEADS, INNER, WORDS = 1024, 16, 2816, 8192


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.float()
        return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * self.weight


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return x * cos + torch.cat((-b, a), -1) * sin


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = Norm(), Norm()
        shapes = ((WIDTH, 3 * WIDTH), (WIDTH, WIDTH), (WIDTH, INNER), (WIDTH, INNER), (INNER, WIDTH))
        self.qkv, self.out, self.gate, self.up, self.down = (nn.Linear(*shape, bias=False) for shape in shapes)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        b, t, _ = x.shape
        q, k, v = (y.view(b, t, HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        y = functional.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        y = self.norm2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm, self.out = nn.Embedding(WORDS, WIDTH), Norm(), nn.Linear(WIDTH, WORDS, bias=False)
        self.layers = nn.ModuleList(Layer() for _ in range(8))

    def forward(self, tokens: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.out(self.norm(x))


def make_inputs(batch: int, tokens: int) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(batch)
    half = WIDTH // HEADS // 2
    angle = torch.arange(tokens, device="cuda")[:, None] / 10000 ** (torch.arange(half, device="cuda").repeat(2) / half)
    words = torch.randint(WORDS, (batch, tokens), device="cuda")
    return words, angle.cos().bfloat16(), angle.sin().bfloat16()


def main() -> None:
    from probe_workload import digest  # it needs Triton; other programs import the model from here

    torch.manual_seed(0)
    model = torch.compile(Llama().cuda().bfloat16(), dynamic=False)
    inputs: dict[tuple[int, int], tuple[torch.Tensor, ...]] = {}
    print("ready", flush=True)
    with torch.inference_mode():
        for line in sys.stdin:
            batch, tokens, steps = map(int, line.split())
            given = inputs.setdefault((batch, tokens), make_inputs(batch, tokens))
            times = []
            for _ in range(steps):
                torch.cuda.synchronize()
                start = time.perf_counter()
                found = model(*given)
                torch.cuda.synchronize()
                times.append(1e6 * (time.perf_counter() - start))
            print(*(f"{us:.1f}" for us in times), digest(found), flush=True)


if __name__ == "__main__":
    main()
