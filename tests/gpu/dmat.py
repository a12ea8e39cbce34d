"""Measure what a complete DMAT costs: six kernels of dmat.cu, with and without the probe `dmat`, one after the other.

    dmat.py            on the first GPU: needs libcuda, numpy, and nvcc or NVRTC with ptxas
    dmat.py --host     the same at small sizes on the simulated device (set LD_LIBRARY_PATH), without times

Each kernel first runs with a log of the size that the probe declares. The column `kept` has the share of accesses that
fitted. The next launch gets a log of the size that the first one needed, as with gpt-hook, so it must be complete: its
accesses are compared with the closed form. `room` is the bytes of rooms per access, and `B/acc.` the bytes of records.
Times are medians of ROUNDS rounds, in which the plain and the probed kernel alternate. `floor` is the time that writing
the records would take at the speed of a memory copy, if the GPU did nothing else.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.probe.plan.maps import make_map  # noqa: E402
from gpt.probe.ptx.weave import weave  # noqa: E402
from gpt.probe.read.load import load_all  # noqa: E402
from gpt.ptx.prune import prune  # noqa: E402
from gpt.ptx.scan import scan_module  # noqa: E402
from gpt.stream.rooms import HEAD, SECTOR, count_arenas, make_number  # noqa: E402
from gpt.trace.buffers import MapLayout, SavedBuffer  # noqa: E402
from gpt.trace.rooms import Entries, pack_arenas  # noqa: E402
from tests.gpu.weave import Gpu, assemble, compile_ptx  # noqa: E402

ROUNDS = 30
COPIED = 1 << 30  # bytes, to measure the speed of a copy


class Case(NamedTuple):
    """A kernel, and its launch for a size: grid, block and argument; and its accesses."""

    name: str
    grid: Callable[[int], tuple[int, int, int]]
    block: tuple[int, int, int]
    accesses: Callable[[int], int]
    words: Callable[[int], int]  # the words of x and y
    sizes: tuple[int, int]  # on a GPU, and on the simulated device


def by_thread(n: int) -> tuple[int, int, int]:
    return -(-n // 256), 1, 1


def by_row(n: int) -> tuple[int, int, int]:
    return (8 * n if n > 500 else 3), 1, 1


def by_tile(side: int) -> Callable[[int], tuple[int, int, int]]:
    return lambda n: (n // side, n // side, 1)


CASES = [
    Case("vadd", by_thread, (256, 1, 1), lambda n: 3 * n, lambda n: n, (1 << 24, 3000)),
    Case("gather", by_thread, (256, 1, 1), lambda n: 3 * n, lambda n: n, (1 << 24, 3000)),
    Case("softmax", by_row, (256, 1, 1), lambda n: 4 * n * by_row(n)[0], lambda n: n * by_row(n)[0], (1000, 300)),
    Case("strided", by_row, (256, 1, 1), lambda n: 3 * n * by_row(n)[0], lambda n: 2 * n * by_row(n)[0], (1000, 300)),
    Case("transpose", by_tile(32), (32, 8, 1), lambda n: 2 * n * n, lambda n: n * n, (4096, 64)),
    Case("matmul", by_tile(16), (16, 16, 1), lambda n: n * n * (2 * n // 16 + 1), lambda n: n * n, (512, 32)),
]  # fmt: skip


class Timed:
    """A loaded kernel that's launched with the same arguments each time."""

    def __init__(self, gpu: Gpu, cubin: bytes, case: Case, n: int, values: list[Any]) -> None:
        self.gpu, self.case, self.n, self.values = gpu, case, n, values
        module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        gpu.call("cuModuleLoadData", ctypes.byref(module), cubin)
        gpu.call("cuModuleGetFunction", ctypes.byref(self.function), module, case.name.encode())
        self.pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.events = ctypes.c_void_p(), ctypes.c_void_p()
        for event in self.events:
            gpu.call("cuEventCreate", ctypes.byref(event), 0)

    def run(self) -> float:
        """Launch it, wait, and return its time in microseconds."""
        gpu, shape = self.gpu, (*self.case.grid(self.n), *self.case.block)
        gpu.call("cuEventRecord", self.events[0], None)
        gpu.call("cuLaunchKernel", self.function, *shape, 0, None, self.pointers, None)
        gpu.call("cuEventRecord", self.events[1], None)
        gpu.call("cuEventSynchronize", self.events[1])
        ms = ctypes.c_float()
        gpu.call("cuEventElapsedTime", ctypes.byref(ms), *self.events)
        return ms.value * 1000


class Log:
    """A log in device memory, `doublings` times twice as large as its map's."""

    def __init__(self, gpu: Gpu, layout: MapLayout, blocks: int, doublings: int) -> None:
        self.gpu, self.layout, self.blocks = gpu, layout, blocks
        self.number = make_number(blocks, doublings)
        self.size = HEAD + (layout.capacity * SECTOR << doublings)
        self.address = ctypes.c_uint64()
        gpu.call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(self.size))
        self.clear(self.size)
        self.argument = ctypes.c_uint64(self.address.value | self.number)

    def clear(self, size: int) -> None:
        self.gpu.call("cuMemsetD8_v2", self.address, ctypes.c_ubyte(0), ctypes.c_size_t(size))

    def read(self, threads: int) -> tuple[SavedBuffer, int, int, int]:
        """Return the log's entries, the bytes claimed and written in it, and how many doublings of its size would have
        been enough.
        """
        data = ctypes.create_string_buffer(self.size)
        self.gpu.call("cuMemcpyDtoH_v2", data, self.address, ctypes.c_size_t(self.size))
        claimed = np.frombuffer(data.raw[:HEAD], "<u8")[:: SECTOR // 8]
        packed = pack_arenas(memoryview(data).cast("B"), self.layout.capacity, self.number)
        needed, doublings = int(claimed.max()) * count_arenas(self.blocks), 0
        while (self.layout.capacity * SECTOR << doublings) / 9 * 8 < needed:
            doublings += 1
        assert self.layout.rooms
        written = Entries(np.frombuffer(packed, np.uint8), self.layout.rooms).written
        return self.layout.read(packed, self.blocks, threads), len(packed) - HEAD, written, doublings

    def free(self) -> None:
        self.gpu.call("cuMemFree_v2", self.address)


def measure_copy(gpu: Gpu) -> float:
    """Return the bytes that a copy reads and writes in a microsecond."""
    places = ctypes.c_uint64(), ctypes.c_uint64()
    events = ctypes.c_void_p(), ctypes.c_void_p()
    for place, event in zip(places, events, strict=True):
        gpu.call("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(COPIED))
        gpu.call("cuEventCreate", ctypes.byref(event), 0)
    times = []
    for _ in range(10):
        gpu.call("cuEventRecord", events[0], None)
        gpu.call("cuMemcpyDtoDAsync_v2", places[0], places[1], ctypes.c_size_t(COPIED), None)
        gpu.call("cuEventRecord", events[1], None)
        gpu.call("cuEventSynchronize", events[1])
        ms = ctypes.c_float()
        gpu.call("cuEventElapsedTime", ctypes.byref(ms), *events)
        times.append(ms.value * 1000)
    for place in places:
        gpu.call("cuMemFree_v2", place)
    return 2 * COPIED / statistics.median(times)


def measure(gpu: Gpu, module: Any, case: Case, host: bool, speed: float) -> tuple[str, float]:
    """Return a row of the table, and the ratio of the times."""
    n = case.sizes[host]
    original = prune(module, [case.name])
    woven = weave(original, case.name, load_all(["dmat"]), "dmat.cu")
    (plain, before), (probed, after) = assemble(original, gpu.arch), assemble(woven.data, gpu.arch)
    layout = MapLayout(make_map(0, woven.maps[0]))
    x, y, blocks = case.words(n), case.words(n), int(np.prod(case.grid(n)))
    threads = int(np.prod(case.block))
    at = np.random.default_rng(1).permutation(n).astype(np.int32)
    places = [gpu.put(np.arange(x, dtype=np.float32).tobytes()), gpu.put(bytes(4 * y)), gpu.put(at.tobytes())]
    values = [*places, ctypes.c_int(n)]
    first = Log(gpu, layout, blocks, 0)
    Timed(gpu, probed, case, n, [*values, first.argument]).run()
    saved, _, _, doublings = first.read(threads)
    share = 100 * len(saved.slots) / (len(saved.slots) + saved.dropped)
    first.free()
    log = Log(gpu, layout, blocks, doublings)
    with_probe, without = Timed(gpu, probed, case, n, [*values, log.argument]), Timed(gpu, plain, case, n, values)
    with_probe.run()
    saved, used, written, _ = log.read(threads)
    wanted = case.accesses(n)
    assert not saved.dropped and len(saved.slots) == wanted, f"{len(saved.slots)} accesses of {wanted}"
    said = (
        f"{case.name:10} {wanted:12,} {share:6.1f} % {used / wanted:6.2f} {written / wanted:6.2f} {before:4} {after:4}"
    )
    if host:
        return said, 0.0
    times: dict[Timed, list[float]] = {with_probe: [], without: []}
    for number in range(2 * ROUNDS):
        one = (with_probe, without)[number % 2]
        log.clear(HEAD)
        times[one].append(one.run())
    log.free()
    some, none = statistics.median(times[with_probe]), statistics.median(times[without])
    floor = 1 + written / speed / none
    return f"{said} {none:9.1f} {some:9.1f} {some / none:6.2f} {floor:6.2f}", some / none


def main() -> int:
    """Measure all kernels and print a table."""
    host = "--host" in sys.argv
    gpu = Gpu()
    module = scan_module(compile_ptx(gpu.arch, "dmat.cu"), "dmat.cu")
    speed = 0.0 if host else measure_copy(gpu)
    if not host:
        print(f"{gpu.arch}: a copy reads and writes {speed / 1e3:,.0f} GB/s")
    heads = f"{'kernel':10} {'accesses':>12} {'kept':>8} {'room':>6} {'B/acc.':>6} {'regs':>9}"
    print(f"{heads} {'plain us':>9} {'dmat us':>9}  ratio  floor")
    ratios = []
    for case in CASES:
        row, ratio = measure(gpu, module, case, host, speed)
        print(row, flush=True)
        ratios.append(ratio)
    if not host:
        print(f"mean {statistics.mean(ratios):.2f}, worst {max(ratios):.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
