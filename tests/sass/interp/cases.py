"""Kernels and launches to compare: the interpreter runs their machine code, the simulated device their PTX, and a GPU
can run them, too.

Every kernel takes (const unsigned *in, unsigned *out, int n). `close` allows for MUFU's approximations: it's the
relative error that a float may have.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

KERNELS = Path(__file__).with_name("kernels")
IN_WORDS, OUT_WORDS = 1040, 1 << 14
Words = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Case:
    """A launch."""

    file: str
    kernel: str
    grid: int = 2
    block: int = 64
    n: int = 5
    dynamic: int = 0  # bytes of shared memory
    close: float = 0
    kind: str = "u4"  # type of the results, if they may be approximate

    @property
    def name(self) -> str:
        """For test reports."""
        return f"{self.kernel}-{self.grid}x{self.block}-{self.n}"


def _cases() -> list[Case]:
    found = [
        Case("integers", name) for name in ("arithmetic", "wide", "division", "bits", "packed", "carries", "uniform")
    ]
    found += [
        Case("floats", name) for name in ("single", "flush", "quotients", "doubles", "conversions", "halfs", "brains16")
    ]
    found += [Case("floats", "functions", close=2e-3, kind="f4")]
    found += [Case("warps", name, block=96) for name in ("votes", "shuffles", "globals", "shared", "groups")]
    found += [
        Case("warps", "reduction", block=256),
        Case("warps", "blockwide", block=160),
        Case("warps", "groups", block=50),
    ]
    names = ("nested", "meeting", "leaving", "crowded", "choices", "calls", "pointers", "stack")
    found += [Case("control", name, block=block) for name in names for block in (96, 64 if name == "meeting" else 33)]
    found += [Case("control", "choices", n=n) for n in (3, 4, 6, 7, 8, 9)]
    found += [Case("control", "locks", grid=3, block=40)]
    found += [Case("memory", "widths"), Case("memory", "generic", block=96), Case("memory", "copies", block=128)]
    found += [Case("memory", "tiles", block=128, dynamic=512), Case("memory", "matrices", block=128)]
    found += [Case("memory", "bulk", block=256)]
    return [*found, Case("memory", "products", block=64)]


CASES = _cases()


def inputs(case: Case) -> tuple[Words, Words]:
    """Return `in`, and the initial contents of `out`."""
    rng = np.random.default_rng(list(case.kernel.encode()))
    words = rng.integers(0, 1 << 32, IN_WORDS, np.uint32)
    out = np.zeros(OUT_WORDS, np.uint32)
    if case.kernel == "globals":
        out[16:32], out[48:52] = 0x7FFFFFFF, 0xFFFFFFFF
    return words, out


def differences(case: Case, one: Words, other: Words) -> list[int]:
    """Return the indices of words in `out` that differ by more than the case allows."""
    different = one != other
    if case.close:
        x, y = one.view(case.kind).astype(float), other.view(case.kind).astype(float)
        near = (np.abs(x - y) <= case.close * np.maximum(np.abs(x), 1)) | (np.isnan(x) & np.isnan(y)) | (x == y)
        different = different.reshape(len(x), -1).any(axis=1) & ~near
    return np.flatnonzero(different).tolist()
