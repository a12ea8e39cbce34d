"""Compute attention with a Triton kernel of our own that works like FlashAttention: a tile of rows, a running maximum
and sum.

    python tests/lab/attention.py [LAUNCHES]

12 heads of 64, 512 tokens, half precision; tensors are named with gpt.tensors. Prints whether the result equals
PyTorch's. Used once, for the pictures of attention in docs/figures/analyses (pictures.py).
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import gpt.tensors

HEADS, TOKENS, WIDTH = 12, 512, 64


@triton.jit
def attention(q, k, v, out, tokens, scale, TILE: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def] # Triton's
    base = tl.program_id(1) * tokens * WIDTH
    rows, lanes = tl.program_id(0) * TILE + tl.arange(0, TILE), tl.arange(0, WIDTH)
    mine = tl.load(q + base + rows[:, None] * WIDTH + lanes[None, :])
    most = tl.full((TILE,), -1e30, dtype=tl.float32)
    total, sums = tl.zeros((TILE,), dtype=tl.float32), tl.zeros((TILE, WIDTH), dtype=tl.float32)
    for start in range(0, (tl.program_id(0) + 1) * TILE, TILE):  # no row sees later rows
        columns = start + tl.arange(0, TILE)
        keys = tl.load(k + base + columns[None, :] * WIDTH + lanes[:, None])
        scores = tl.dot(mine, keys) * scale
        scores = tl.where(rows[:, None] >= columns[None, :], scores, -1e30)
        higher = tl.maximum(most, tl.max(scores, 1))
        shares, fade = tl.exp(scores - higher[:, None]), tl.exp(most - higher)
        values = tl.load(v + base + columns[:, None] * WIDTH + lanes[None, :])
        total, most = total * fade + tl.sum(shares, 1), higher
        sums = sums * fade[:, None] + tl.dot(shares.to(tl.float16), values)
    tl.store(out + base + rows[:, None] * WIDTH + lanes[None, :], (sums / total[:, None]).to(tl.float16))


def main() -> None:
    torch.manual_seed(1)
    query, key, value = (torch.randn(HEADS, TOKENS, WIDTH, device="cuda", dtype=torch.float16) for _ in range(3))
    out = torch.empty_like(query)
    gpt.tensors.record(query=query, key=key, value=value, out=out)
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
        attention[(TOKENS // 64, HEADS)](query, key, value, out, TOKENS, WIDTH**-0.5, TILE=64, WIDTH=WIDTH)
    right = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
    print("same" if torch.allclose(out, right, atol=2e-3) else "different")


if __name__ == "__main__":
    main()
