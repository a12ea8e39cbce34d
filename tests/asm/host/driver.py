"""The driver API through ctypes, for a GPU or the simulated device: enough to run PTX."""

from __future__ import annotations

import ctypes
from typing import Any


class CudaError(Exception):
    """A call failed with `code`."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name}: {code}")
        self.code = code


class Driver:
    """A context on the first device of a libcuda.so.1."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self._library = ctypes.CDLL(library)
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *values: Any) -> None:
        """Call a driver function. Raises CudaError."""
        code = getattr(self._library, name)(*values)
        if code:
            raise CudaError(name, code)

    def module(self, text: str) -> ctypes.c_void_p:
        """Load PTX."""
        return self.load(text.encode() + b"\0")

    def load(self, image: bytes) -> ctypes.c_void_p:
        """Load an image of any kind."""
        module = ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), image)
        return module

    def function(self, module: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        """Return a kernel of a module."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return function

    def allocate(self, data: bytes | int) -> int:
        """Allocate device memory with these bytes, or this many zeros."""
        size = data if isinstance(data, int) else len(data)
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(size))
        if isinstance(data, int):
            self.call("cuMemsetD8_v2", memory, ctypes.c_ubyte(0), ctypes.c_size_t(size))
        else:
            self.call("cuMemcpyHtoD_v2", memory, data, ctypes.c_size_t(size))
        return memory.value

    def free(self, memory: int) -> None:
        """Free the memory."""
        self.call("cuMemFree_v2", ctypes.c_uint64(memory))

    def read(self, memory: int, size: int) -> bytes:
        """Read bytes from device memory, after all work is done."""
        buffer = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", buffer, ctypes.c_uint64(memory), ctypes.c_size_t(size))
        return buffer.raw

    def variable(self, module: ctypes.c_void_p, name: str) -> tuple[int, int]:
        """Return the address and size of a variable of a module."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.call("cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), module, name.encode())
        return address.value, size.value

    def write(self, memory: int, data: bytes) -> None:
        """Write bytes to device memory."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(memory), data, ctypes.c_size_t(len(data)))

    def launch(
        self,
        function: ctypes.c_void_p,
        grid: int | tuple[int, int, int],
        block: int | tuple[int, int, int],
        *values: Any,
        shared: int = 0,
        cooperative: bool = False,
    ) -> None:
        """Launch a kernel; int arguments are addresses, others ctypes."""
        kept = [ctypes.c_uint64(v) if isinstance(v, int) else v for v in values]
        pointers = (ctypes.c_void_p * max(1, len(kept)))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in kept))
        shape = [size for one in (grid, block) for size in ((one, 1, 1) if isinstance(one, int) else one)]
        if cooperative:
            self.call("cuLaunchCooperativeKernel", function, *shape, shared, None, pointers)
        else:
            self.call("cuLaunchKernel", function, *shape, shared, None, pointers, None)

    def wait(self) -> None:
        """Wait until all work is done."""
        self.call("cuCtxSynchronize")
