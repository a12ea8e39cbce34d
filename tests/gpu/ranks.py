"""Train a transformer of GPT-2's size in two ranks, with NVTX ranges:

    torchrun --nproc-per-node=2 ranks.py [STEPS [digest]]

With `digest`, each rank also prints a digest of its weights at the end, and PyTorch uses deterministic algorithms.

Each rank has its own GPU, or both share the only one. NCCL doesn't let ranks of one host share a GPU, so each rank then
claims to be on its own host. Data goes through sockets in that case, and the ranks' kernels take turns.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from probe_workload import WORDS, Layer, digest
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator


def join() -> int:
    """Choose the rank's GPU, initialize NCCL, and return the rank."""
    rank, gpus = int(os.environ["RANK"]), torch.cuda.device_count()
    if gpus < int(os.environ["WORLD_SIZE"]):
        os.environ |= {"NCCL_HOSTID": f"rank{rank}", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    torch.cuda.set_device(rank % gpus)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank % gpus))
    return rank


@contextmanager
def named(name: str) -> Iterator[None]:
    """Open an NVTX range."""
    torch.cuda.nvtx.range_push(name)  # type: ignore[no-untyped-call] # PyTorch's
    yield
    torch.cuda.nvtx.range_pop()  # type: ignore[no-untyped-call] # PyTorch's


class Model(nn.Module):
    """A model that computes the loss of predicting each next token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.layers = nn.Embedding(WORDS, 768), nn.Sequential(*(Layer() for _ in range(12)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.layers(self.words(tokens[:, :-1])) @ self.words.weight.T
        return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def main(steps: int, exact: bool) -> None:
    """Train on the rank's own tokens, and print the loss of each step."""
    torch.use_deterministic_algorithms(exact, warn_only=True)
    torch.manual_seed(1)
    rank = join()
    model = nn.parallel.DistributedDataParallel(Model().to("cuda", torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    torch.manual_seed(rank)
    for step in range(steps):
        with named(f"step {step}"):
            tokens = torch.randint(WORDS, (8, 257), device="cuda")
            with named("forward"):
                loss = model(tokens)
            with named("backward"):
                loss.backward()
            with named("update"):
                optimizer.step()
                optimizer.zero_grad()
            with named("loss"):
                print(f"rank {rank} step {step} loss {loss.item():.4f}", flush=True)
    if exact:
        print(f"rank {rank} weights {digest(*model.parameters())}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else 4, "digest" in sys.argv)
