"""Check on a real GPU that woven kernels and other kernels of a module see each other's writes to variables.

A module's kernels are launched in turn: first unchanged, then with some or all of them woven and loaded separately,
with address tables filled and constants copied as in gpt-stream(5). The program writes to variables in between. All
work is queued on one stream, and nothing waits before the end. Every result and every variable must be bit-identical.
`--assemble` doesn't use the GPU.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.probe.ptx.weave import Woven, unweave, weave  # noqa: E402
from gpt.ptx.prune import prune  # noqa: E402
from gpt.ptx.scan import scan_module  # noqa: E402
from tests.gpu.weave import Case, Gpu, assemble, buffer_size, compile_ptx, probe_files, rows, same  # noqa: E402

GRID, BLOCK = 7, 100
SIZE = 4 * GRID * BLOCK  # bytes of a result
ADDRESSES = ("where", "pointer")  # their contents differ from run to run
SETS = [("block_sched",), ("gmem_bytes", "thread_slots")]


def numbers(count: int, step: int) -> bytes:
    return np.arange(0, count * step, step, dtype=np.int32).tobytes()


# The program's steps: a kernel with its argument n, or a variable with the bytes written to it.
PLAN: list[tuple[str, int | bytes]] = [
    ("produce", 3),
    ("consume", 1),
    ("factors", numbers(64, 5)),
    ("consume", 2),
    ("through", 5),
    ("follow", 9),
    ("consume", 0),
    ("factors", numbers(64, -7)),
    ("consume", 3),
    ("table", numbers(256, 11)),
    ("follow", 2),
    ("produce", 11),
    ("consume", 4),
    ("factors", numbers(64, 1)),
    ("follow", 4),
    ("through", 8),
    ("consume", 7),
]


@dataclass
class Loaded:
    """A module on the GPU."""

    gpu: Gpu
    handle: ctypes.c_void_p
    copied: set[str] = field(default_factory=set)

    @classmethod
    def load(cls, gpu: Gpu, cubin: bytes) -> Loaded:
        handle = ctypes.c_void_p()
        gpu.call("cuModuleLoadData", ctypes.byref(handle), cubin)
        return cls(gpu, handle)

    def function(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        self.gpu.call("cuModuleGetFunction", ctypes.byref(function), self.handle, name.encode())
        return function

    def find(self, name: str) -> tuple[ctypes.c_uint64, int]:
        """Return the address and size of a variable."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.gpu.call(
            "cuModuleGetGlobal_v2", ctypes.byref(address), ctypes.byref(size), self.handle, name.encode()
        )  # fmt: skip
        return address, size.value

    def read(self, name: str) -> bytes:
        address, size = self.find(name)
        data = ctypes.create_string_buffer(size)
        self.gpu.call("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(size))
        return data.raw


def load_alone(original: Loaded, woven: Woven, cubin: bytes) -> Loaded:
    """Load a woven kernel, with the addresses of its module's variables."""
    gpu, alone = original.gpu, Loaded.load(original.gpu, cubin)
    for variable in woven.variables:
        address, size = original.find(variable.name)
        assert variable.size in (None, size), f"{variable.name}: {size} bytes, not {variable.size}"
        if variable.offset is not None:
            assert woven.table
            table, room = alone.find(woven.table)
            assert variable.offset + 8 <= room
            there = ctypes.c_uint64(table.value + variable.offset)
            gpu.call("cuMemcpyHtoD_v2", there, struct.pack("<Q", address.value), ctypes.c_size_t(8))
            gpu.call("cuCtxSynchronize")
    return alone


def copy_constants(original: Loaded, alone: Loaded, woven: Woven, taken: set[str], stream: ctypes.c_void_p) -> None:
    """Make the copies that the record lists before a launch, in stream order."""
    for variable in woven.variables:
        name, first = variable.name, variable.copy == "always" and variable.name not in alone.copied
        if variable.copy and (first or name in taken):
            (to, size), (source, _) = alone.find(name), original.find(name)
            original.gpu.call("cuMemcpyDtoDAsync_v2", to, source, ctypes.c_size_t(size), stream)
            alone.copied.add(name)


@dataclass
class Program:
    """The unchanged module, and its woven kernels. `names` are all of its variables."""

    cubin: bytes
    alone: dict[str, tuple[Woven, bytes]]
    names: list[str]

    @classmethod
    def build(cls, arch: str, probes: tuple[str, ...]) -> Program:
        data = compile_ptx(arch, "variables.cu")
        module = scan_module(data, "variables.cu")
        alone = {}
        for entry in module.entries:
            original = prune(module, [entry.name])
            woven = weave(original, entry.name, probe_files(probes), "variables.cu")
            assert unweave(woven.data) == original
            alone[entry.name] = woven, assemble(woven.data, arch)[0]
        return cls(assemble(data, arch)[0], alone, sorted({v.name for w, _ in alone.values() for v in w.variables}))

    def run(self, gpu: Gpu, is_woven: Callable[[int], bool], copying: bool = True) -> tuple[list[bytes], str]:
        """Return the results of the launches, the variables at the end, and the probes' records.

        Without `copying`, a constant that the program writes to isn't copied, and the check must detect that.
        """
        original, stream = Loaded.load(gpu, self.cubin), ctypes.c_void_p()
        alone = {name: load_alone(original, *pair) for name, pair in self.alone.items()}
        gpu.call("cuStreamCreate", ctypes.byref(stream), 1)
        results, maps, kept, taken = [], [], [], set[str]()
        for number, (name, value) in enumerate(PLAN):
            if isinstance(value, bytes):
                taken.add(name)
                kept.append(ctypes.create_string_buffer(value, len(value)))
                gpu.call("cuMemcpyHtoDAsync_v2", original.find(name)[0], kept[-1], ctypes.c_size_t(len(value)), stream)
                continue
            woven, _ = self.alone[name]
            values: list[Any] = [gpu.put(bytes(SIZE)), ctypes.c_int(value)]
            results.append(values[0])
            function = original.function(name)
            if is_woven(number):
                function = alone[name].function(name)
                case = Case(name, (GRID, 1, 1), (BLOCK, 1, 1), value, same(0), same(0))
                sizes = [buffer_size(woven, place, case) for place in range(len(woven.maps))]
                maps.append((woven, sizes, [gpu.put(bytes(size)) for size in sizes]))
                values += maps[-1][2]
                copy_constants(original, alone[name], woven, taken if copying else set(), stream)
            pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(one) for one in values))
            gpu.call("cuLaunchKernel", function, GRID, 1, 1, BLOCK, 1, 1, 0, stream, pointers, None)
        gpu.call("cuStreamSynchronize", stream)
        ranges = [original.find(name) for name in self.names]
        spans = [(address.value, address.value + size) for address, size in ranges]
        spans += [(address.value, address.value + SIZE) for address in results]
        said = [see(woven, [gpu.take(*pair, "map") for pair in zip(buffers, sizes, strict=True)], spans)
                for woven, sizes, buffers in maps]  # fmt: skip
        found = [gpu.take(address, SIZE, "y") for address in results]
        found += [original.read(name) for name in self.names if name not in ADDRESSES]
        for module in (original, *alone.values()):
            gpu.call("cuModuleUnload", module.handle)
        gpu.call("cuStreamDestroy_v2", stream)
        return found, f"{sum(said)} addresses, all of the program's" if any(said) else ""


def see(woven: Woven, buffers: list[bytes], spans: list[tuple[int, int]]) -> int:
    """Return how many addresses a probe saw, after checking that all lie in the program's variables and buffers."""
    seen = 0
    for number, placed in enumerate(woven.maps):
        case = Case(woven.kernel, (GRID, 1, 1), (BLOCK, 1, 1), 0, same(0), same(0))
        counts, records = rows(woven, number, buffers[number], case)
        assert counts.any(), f"{woven.kernel}: {placed.map.name} is empty"
        if placed.map.name == "thread_slots":
            addresses = records["address"][records["address"] != 0]
            inside = sum(((addresses >= start) & (addresses < end)) for start, end in spans)
            assert (inside == 1).all(), f"{woven.kernel}: addresses of no variable"
            seen += len(addresses)
    return seen


def main() -> int:
    """Weave, assemble, run, compare, and print a line for each combination; return 1 if anything differs."""
    gpu = None if "--assemble" in sys.argv else Gpu()
    arch = gpu.arch if gpu else "sm_90"
    mixes: list[tuple[str, Callable[[int], bool]]] = [
        ("all woven", lambda i: True), ("even ones woven", lambda i: i % 2 == 0),
        ("odd ones woven", lambda i: i % 2 == 1), ("first ones woven", lambda i: i < 8),
    ]  # fmt: skip
    failed = 0
    for probes in SETS:
        program = Program.build(arch, probes)
        shared = {name: len(woven.variables) for name, (woven, _) in program.alone.items()}
        print(f"{'+'.join(probes)}: variables shared: {shared}", flush=True)
        if gpu is None:
            continue
        expected, _ = program.run(gpu, lambda i: False)
        for what, is_woven in mixes:
            try:
                found, said = program.run(gpu, is_woven)
                differ = [n for n, (one, other) in enumerate(zip(found, expected, strict=True)) if one != other]
                assert not differ, f"results {differ} of {len(found)} differ"
            except AssertionError as error:
                failed, said = failed + 1, f"FAILED: {error}"
            print(f"{'+'.join(probes):24} {what:17} {said}", flush=True)
        if program.run(gpu, lambda i: True, copying=False)[0] == expected:
            failed += 1
            print("FAILED: constants that nobody copies make no difference")
    print(f"variables on {arch}, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
