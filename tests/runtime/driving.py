"""The driver through ctypes, for scripts that run on the simulated device in a new process."""

from __future__ import annotations

import ctypes
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

cu = ctypes.CDLL("libcuda.so.1")


def ok(status: int) -> None:
    """Make a call that must succeed."""
    assert status == 0, status


def begin() -> None:
    """Make the primary context current, emptied."""
    context = c_void_p()
    ok(cu.cuInit(0))
    cu.cuDevicePrimaryCtxReset_v2(0)
    ok(cu.cuDevicePrimaryCtxRetain(byref(context), 0))
    ok(cu.cuCtxSetCurrent(context))


def load(image: bytes | str) -> c_void_p:
    """Load a module from an image, or from a file."""
    module = c_void_p()
    data = Path(image).read_bytes() if isinstance(image, str) else image
    ok(cu.cuModuleLoadData(byref(module), data))
    return module


def function(module: c_void_p, name: str) -> c_void_p:
    """Return a kernel of a module."""
    found = c_void_p()
    ok(cu.cuModuleGetFunction(byref(found), module, name.encode()))
    return found


class Memory(c_uint64):
    """Device memory of u32."""

    def __init__(self, count: int, fill: int = 0) -> None:
        c_uint64.__init__(self)
        self.count = count
        ok(cu.cuMemAlloc_v2(byref(self), c_size_t(4 * count)))
        ok(cu.cuMemsetD32_v2(self, c_uint32(fill), c_size_t(count)))
        ok(cu.cuCtxSynchronize())

    def read(self) -> list[int]:
        """Return its contents, after all work."""
        values = (c_uint32 * self.count)()
        ok(cu.cuMemcpyDtoH_v2(values, self, c_size_t(4 * self.count)))
        return list(values)

    def write(self, values: list[int]) -> None:
        """Write values to the beginning of the buffer."""
        ok(cu.cuMemcpyHtoD_v2(self, (c_uint32 * len(values))(*values), c_size_t(4 * len(values))))


def launch(kernel, grid, block, *arguments, shared=0, stream=None, cooperative=False) -> int:
    """Launch a kernel; a number is an 8-byte argument. Returns the status."""
    values = [v if isinstance(v, ctypes._SimpleCData) else c_uint64(v) for v in arguments]
    pointers = (c_void_p * max(len(values), 1))(*[ctypes.addressof(v) for v in values])
    sizes = [[*(v if isinstance(v, tuple) else (v,)), 1, 1][:3] for v in (grid, block)]
    if cooperative:
        return cu.cuLaunchCooperativeKernel(kernel, *sizes[0], *sizes[1], shared, stream, pointers)
    return cu.cuLaunchKernel(kernel, *sizes[0], *sizes[1], shared, stream, pointers, None)


def synchronize() -> int:
    """Wait for all work; return the status."""
    return cu.cuCtxSynchronize()
