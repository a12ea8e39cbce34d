"""Memory as the lanes see it: byte arrays that start with garbage. Accesses outside allocations are errors."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Addresses = npt.NDArray[np.uint64]

SHARED_WINDOW = 0x7E00_0000_0000  # generic addresses from here on are shared memory
LOCAL_WINDOW = 0x7D00_0000_0000
GLOBAL = 0x7F00_0000_0000
_OFFSETS = {size: np.arange(size) for size in (1, 2, 4, 8, 16)}


class MemoryFault(Exception):
    """Raised for an address outside allocated memory, or a misaligned one."""


class Space:
    """Some bytes from an address on."""

    def __init__(self, base: int, size: int, rng: np.random.Generator, name: str, allocated: bool = True) -> None:
        self.base = base
        self.name = name
        self.data: Bytes = rng.integers(0, 256, size, np.uint8)
        self.valid = np.full(size, allocated)

    def places(self, addresses: Addresses, size: int) -> npt.NDArray[np.int64]:
        """Return the positions of the bytes in `data`, one row per address. Raises MemoryFault."""
        at = (addresses - np.uint64(self.base)).astype(np.int64)
        outside = (at < 0) | (at > len(self.data) - size)
        if outside.any() or (at % size).any():
            bad = addresses[outside | (at % size != 0)][0]
            raise MemoryFault(f"{self.name} memory: {size} bytes at {int(bad):#x}")
        if not self.valid[at].all() or not self.valid[at + size - 1].all():
            bad = addresses[~(self.valid[at] & self.valid[at + size - 1])][0]
            raise MemoryFault(f"{self.name} memory: nothing is allocated at {int(bad):#x}")
        return at[:, None] + _OFFSETS[size]

    def load(self, addresses: Addresses, size: int) -> Bytes:
        """Return a row of bytes for each address."""
        return self.data[self.places(addresses, size)]

    def store(self, addresses: Addresses, values: Bytes) -> None:
        """Store rows of bytes. If lanes have the same address, the last one wins."""
        self.data[self.places(addresses, values.shape[1])] = values


class GlobalMemory(Space):
    """Memory that kernels share. Allocations are 256 bytes apart, so that overruns are detected."""

    def __init__(self, rng: np.random.Generator, size: int = 1 << 22) -> None:
        super().__init__(GLOBAL, size, rng, "global", allocated=False)
        self.top = 0

    def allocate(self, size: int, data: bytes = b"") -> int:
        """Allocate this many bytes and return the address. `data` comes first, then garbage."""
        start = self.top
        self.top += -(-size // 256) * 256 + 256
        if self.top > len(self.data):
            raise MemoryError("the interpreter's global memory is full")
        self.valid[start : start + size] = True
        self.data[start : start + len(data)] = np.frombuffer(data, np.uint8)
        return self.base + start

    def read(self, address: int, size: int) -> bytes:
        """Return what's there."""
        start = address - self.base
        return self.data[start : start + size].tobytes()
