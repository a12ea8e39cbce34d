"""Generate tokens with a transformer of GPT-2's size. gpt-hook's cost is measured on this program; it's also an
example.

    gpt-hook run -o trace.mp -- python tests/gpu/generate.py [--tokens 20] [--passes 1] [--mode eager|graph|compile]
    gpt-analyze summary trace.mp

Weights are random, from a fixed seed (124 million parameters, half precision). Prints the tokens and, with --passes N,
the milliseconds per token: the median over N repetitions of the whole generation.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch
from torch import nn
from torch.nn import functional

LAYERS, WIDTH, HEADS, WORDS, CONTEXT = 12, 768, 12, 50257, 256


class Block(nn.Module):
    """Attention over a key-value cache, and the two dense layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("cache", torch.zeros(2, 1, HEADS, CONTEXT, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, at: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Compute the logits: `x` is [1, new tokens, WIDTH], `at` their positions, `mask` [new tokens, CONTEXT]."""
        q, k, v = self.qkv(self.norm1(x)).view(1, -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        self.cache[0].index_copy_(2, at, k)
        self.cache[1].index_copy_(2, at, v)
        y = functional.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(1, -1, WIDTH))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class Transformer(nn.Module):
    """A model that predicts the next token from tokens and their positions."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        """Return the [1, 1] token after the last of [1, n] tokens at [n] positions."""
        mask = torch.arange(CONTEXT, device=at.device)[None, :] <= at[:, None]
        x = self.words(tokens) + self.places(at)
        for block in self.blocks:
            x = block(x, at, mask)
        return (self.norm(x[:, -1:]) @ self.words.weight.T).argmax(-1)


def main(words: list[str] | None = None) -> None:
    """Generate as often as asked."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tokens", type=int, default=20)
    options.add_argument("--passes", type=int, default=0)
    options.add_argument("--mode", choices=("eager", "graph", "compile"), default="eager")
    options.add_argument("--device", default="cuda")
    args = options.parse_args(words)
    torch.manual_seed(1)
    model = Transformer().to(args.device, torch.float16).eval()
    prompt = torch.randint(WORDS, (1, 32), device=args.device)
    step = torch.compile(model) if args.mode == "compile" else model
    places = torch.arange(CONTEXT, device=args.device)
    token, at = torch.zeros(1, 1, dtype=torch.long, device=args.device), places[:1].clone()
    graph = torch.cuda.CUDAGraph() if args.mode == "graph" else None

    def generate() -> list[int]:
        found = [model(prompt, places[:32])]
        for i in range(32, 31 + args.tokens):
            token.copy_(found[-1])
            at.copy_(places[i : i + 1])
            if graph:
                graph.replay()
                found.append(result.clone())
            else:
                found.append(step(token, at).clone())
        return torch.cat(found).flatten().tolist()

    with torch.inference_mode():
        for _ in range(3):
            result = step(token, at)
        if graph:
            with torch.cuda.graph(graph):
                result = model(token, at)
        tokens = generate()
        print("tokens", *tokens)
        times = []
        for _ in range(args.passes):
            start = time.perf_counter()
            assert generate() == tokens
            times.append((time.perf_counter() - start) * 1000 / args.tokens)
    if times:
        print(f"ms a token {statistics.median(times):.4f}")


if __name__ == "__main__":
    main()
