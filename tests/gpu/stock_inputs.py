"""Inputs for stock_programs.py and stock_more.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Program = Callable[[], Iterable[Tensor]]


def draw(*shape: int) -> Tensor:
    """Return random numbers that are the same in each run."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


def numbers(most: int, *shape: int) -> Tensor:
    """Return random integers that are the same in each run."""
    return torch.randint(0, most, shape, generator=torch.Generator().manual_seed(most)).to(DEVICE)
