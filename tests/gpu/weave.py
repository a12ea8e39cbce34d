"""Run woven kernels on a real GPU: results are bit-identical, and probe counts are right for the kernels.

Kernels of weave.cu are compiled to PTX, woven with the built-in probes and with some that overflow their maps,
assembled by ptxas, and run on the same inputs as the unprobed kernel. A guard area after every buffer must stay
unchanged. Nothing but libcuda and a compiler is needed; `--assemble` doesn't use the GPU. `--host` generates code for
the simulated device; LD_LIBRARY_PATH must then lead to its libcuda.so.1.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.asm.backend import Options  # noqa: E402
from gpt.asm.host.backend import Host, HostTarget  # noqa: E402
from gpt.probe import verify  # noqa: E402
from gpt.probe.model import ProbeFile  # noqa: E402
from gpt.probe.plan.maps import make_map  # noqa: E402
from gpt.probe.ptx.weave import Woven, unweave, weave  # noqa: E402
from gpt.probe.read import load  # noqa: E402
from gpt.ptx.prune import prune  # noqa: E402
from gpt.ptx.scan import scan_module  # noqa: E402
from gpt.trace.buffers import MapLayout, SavedBuffer  # noqa: E402
from gpt.trace.rooms import pack_arenas  # noqa: E402

STRIP = 4096  # size of the guard area after a buffer
FILL = 0xA5

# Maps that are too small: records that don't fit are dropped and counted.
SMALL = """
[map.{name}]
level = "{level}"
{bound}
data = {{address = "u64", lane = "u32", active = "u32"}}
[probe.access]
position = "ld.global"
level = "{level}"
before = "SAVE [{name}] {{ADDR, LANEID, ACTIVE}};"
"""
TOTAL = """
[map.{level}_total]
type = "total"
level = "{level}"
data = {{bytes = "u32", wide = "u64", parts = "f32"}}
[probe.access]
position = "ld.global"
level = "{level}"
before = \"\"\".reg .f32 %half;
mov.f32 %half, 0.5;
SAVE [{level}_total] {{BYTES, BYTES, %half}};\"\"\"
"""
PROBES = {
    "block_sched": "block_sched",
    "gmem_bytes": "gmem_bytes",
    "thread_slots": SMALL.format(name="thread_slots", level="thread", bound="cap = 3"),
    "warp_slots": SMALL.format(name="warp_slots", level="warp", bound="cap = 3"),
    "block_slots": SMALL.format(name="block_slots", level="block", bound="cap = 3"),
    "thread_log": SMALL.format(name="thread_log", level="thread", bound='cap = "dynamic"\nbudget = 8000'),
    "warp_log": SMALL.format(name="warp_log", level="warp", bound='cap = "dynamic"\nbudget = 8000'),
    "sampled": SMALL.format(name="sampled", level="thread", bound="cap = 64").replace(
        "before =", 'sample = "block/3"\nbefore ='
    ),
    "thread_total": TOTAL.format(level="thread"),
    "warp_total": TOTAL.format(level="warp"),
    "block_total": TOTAL.format(level="block"),
}


@dataclass(frozen=True)
class Case:
    """A kernel, its launch, and the bytes that each thread reads, writes, copies asynchronously, and copies in bulk.

    The formulas take the thread's number in the grid, its number in the block, and the launch.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    n: int
    read: Callable[[Any, Any, Case], Any]
    written: Callable[[Any, Any, Case], Any]
    copied: Callable[[Any, Any, Case], Any] = lambda i, t, c: 0 * i
    bulk: Callable[[Any, Any, Case], Any] = lambda i, t, c: 0 * i
    expected: Callable[[Any, Any, Case], Any] | None = None  # formula, if it isn't `bulk`

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def warps(self) -> int:
        return -(-self.threads // 32)

    def numbers(self) -> tuple[Any, Any]:
        i = np.arange(self.blocks * self.threads)
        return i, i % self.threads


def same(size: int) -> Callable[[Any, Any, Case], Any]:
    return lambda i, t, c: size + 0 * i


CASES = [
    Case("saxpy", (7, 1, 1), (100, 1, 1), 613, lambda i, t, c: 8 * (i < c.n), lambda i, t, c: 4 * (i < c.n)),
    Case("saxpy", (5000, 1, 1), (1, 1, 1), 4999, lambda i, t, c: 8 * (i < c.n), lambda i, t, c: 4 * (i < c.n)),
    Case("reverse", (11, 1, 1), (257, 1, 1), 0, same(4), same(4)),
    Case("diverge", (9, 1, 1), (77, 1, 1), 0, lambda i, t, c: 4 * (t & 31), lambda i, t, c: 4 + 4 * (i & 1)),
    Case("device_function", (5, 1, 1), (50, 1, 1), 6, lambda i, t, c: 4 + 16 * c.n + 0 * i, same(4)),
    Case("exit_in_function", (6, 1, 1), (99, 1, 1), 0, same(4), same(4)),
    Case("recursive", (3, 1, 1), (65, 1, 1), 9, lambda i, t, c: 4 * (1 + i % c.n), same(4)),
    Case("three_dimensions", (3, 4, 5), (5, 3, 3), 0, same(4), same(4)),
    Case("three_dimensions", (2, 3, 2), (33, 2, 7), 0, same(4), same(4)),
    Case("vectors", (4, 1, 1), (130, 1, 1), 0, same(16), same(16)),
    Case("atomics", (8, 1, 1), (95, 1, 1), 0, same(4), lambda i, t, c: 8 + 4 * (t == 0)),
    Case("generic", (5, 1, 1), (321, 1, 1), 0, lambda i, t, c: 4 * (i % 3 > 0), lambda i, t, c: 4 * (i % 3 > 0)),
    Case("cluster", (6, 1, 1), (70, 1, 1), 0, same(4), same(4)),
    Case("asynchronous", (6, 1, 1), (96, 1, 1), 0, same(0), same(4), same(4)),
    Case("filled_up", (6, 1, 1), (96, 1, 1), 3, same(0), same(4), lambda i, t, c: 4 * (i % c.n > 0)),
    Case("bulk", (6, 1, 1), (96, 1, 1), 0, same(0), same(4), same(0), lambda i, t, c: 4 * c.threads * (t == 0)),
    Case("many", (2, 1, 1), (64, 1, 1), 140_000, same(0), same(4), same(0), lambda i, t, c: 32768 * c.n * (t == 0)),
    Case("shared_copy", (6, 1, 1), (96, 1, 1), 0, same(4), same(4), expected=lambda i, t, c: 4 * c.threads * (t == 0)),
    Case("tiles", (6, 1, 1), (96, 1, 1), 0, same(32), same(32)),
    Case("guarded", (4, 1, 1), (150, 1, 1), 333, lambda i, t, c: 4 * (i < c.n),
         lambda i, t, c: 4 * (i >= c.n) + 4 * (i % 4 != 3)),
    Case("grid_stride", (3, 1, 1), (64, 1, 1), 5001, lambda i, t, c: 4 * ((c.n - 1 - i) // 192 + 1),
         lambda i, t, c: 4 * ((c.n - 1 - i) // 192 + 1)),
    Case("loads", (7, 1, 1), (75, 1, 1), 8, lambda i, t, c: 4 * (t % c.n), same(4)),
]  # fmt: skip
WORDS = 1 << 16  # words in each of x and y


def compile_ptx(arch: str, name: str = "weave.cu") -> bytes:
    """Compile a source in this folder to PTX, with nvcc if it finds a host compiler, else with NVRTC."""
    source = Path(__file__).with_name(name)
    nvcc = find("nvcc")
    if nvcc and shutil.which("g++"):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "weave.ptx")
            command = [nvcc, "-ptx", f"-arch=compute_{arch[3:]}", "-O3", str(source), "-o", str(out)]
            subprocess.run(command, check=True, stdout=sys.stderr)
            return out.read_bytes()
    from tests import cuda

    return cuda.nvrtc_compile(source.read_text(), f"compute_{arch[3:]}")


def find(tool: str) -> str | None:
    """Return the path of a tool of the CUDA toolkit."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    if found := shutil.which(tool) or shutil.which(tool, path=f"{home}/bin"):
        return found
    from tests import cuda

    try:
        return str(cuda.tool(tool))
    except FileNotFoundError:
        return None


def assemble(ptx: bytes, arch: str) -> tuple[bytes, int]:
    """Return the cubin and the register count that ptxas reports; with `--host`, return an object and 0."""
    if "--host" in sys.argv:
        return Host(Options()).make(ptx, "weave.cu", HostTarget()).image, 0
    ptxas = find("ptxas")
    if not ptxas:
        sys.exit("weave.py: error: no ptxas")
    with tempfile.TemporaryDirectory() as folder:
        text, out = Path(folder, "k.ptx"), Path(folder, "k.cubin")
        text.write_bytes(ptx)
        done = subprocess.run([ptxas, f"-arch={arch}", "-v", text, "-o", out], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"weave.py: error: {done.stderr}")
        used = [int(line.split("Used ")[1].split()[0]) for line in done.stderr.splitlines() if "Used " in line]
        return out.read_bytes(), max(used)


def probe_files(names: tuple[str, ...]) -> list[ProbeFile]:
    """Parse the built-in probes, and the texts in PROBES."""
    files = []
    for name in names:
        text = PROBES[name]
        file = load.parse_toml(text, f"{name}.toml") if "\n" in text else load.load_probes(load.find_probe(text))
        verify.verify(file)
        files.append(file)
    return files


class Gpu:
    """The first GPU, used through the driver API alone."""

    def __init__(self) -> None:
        self.lib = ctypes.CDLL("libcuda.so.1")
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.device = device
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        # ptxas can't know the depth of a recursion, and probes enlarge each of its stack frames.
        self.call("cuCtxSetLimit", 0, ctypes.c_size_t(16 << 10))
        self.arch = f"sm_{self.attribute(75)}{self.attribute(76)}"
        self.sms = self.attribute(16)

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self.lib, name)(*args)
        if status:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(status, ctypes.byref(text))
            raise RuntimeError(f"{name}: {(text.value or b'?').decode()}")

    def attribute(self, number: int) -> int:
        value = ctypes.c_int()
        self.call("cuDeviceGetAttribute", ctypes.byref(value), number, self.device)
        return value.value

    def put(self, data: bytes) -> ctypes.c_uint64:
        """Allocate a buffer with these bytes, and a guard area after them."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(len(data) + STRIP))
        self.call("cuMemcpyHtoD_v2", address, data + bytes([FILL]) * STRIP, ctypes.c_size_t(len(data) + STRIP))
        # The copy may return before the bytes arrive, and other streams don't wait for it.
        self.call("cuCtxSynchronize")
        return address

    def take(self, address: ctypes.c_uint64, size: int, what: str) -> bytes:
        """Read and free a buffer. The guard area after it must be unchanged."""
        data = ctypes.create_string_buffer(size + STRIP)
        self.call("cuMemcpyDtoH_v2", data, address, ctypes.c_size_t(size + STRIP))
        self.call("cuMemFree_v2", address)
        assert data.raw[size:] == bytes([FILL]) * STRIP, f"{what}: written out of bounds"
        return data.raw[:size]

    def launch(
        self, cubin: bytes, name: str, grid: tuple[int, ...], block: tuple[int, ...], values: list[Any], shared: int = 0
    ) -> None:
        """Load a module, run one of its kernels with these arguments, and wait for it."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), cubin)
        self.call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        self.call("cuFuncSetAttribute", function, 8, shared)  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        pointers = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        self.call("cuLaunchKernel", function, *grid, *block, shared, None, pointers, None)
        self.call("cuCtxSynchronize")
        self.call("cuModuleUnload", module)

    def run(self, cubin: bytes, case: Case, sizes: list[int]) -> tuple[bytes, list[bytes]]:
        """Run a kernel; return the contents of y, and the maps' buffers, which have these sizes."""
        x = self.put(np.arange(WORDS, dtype=np.int32).tobytes())
        y = self.put(np.arange(WORDS, dtype=np.int32)[::-1].tobytes())
        buffers = [self.put(bytes(size)) for size in sizes]
        self.launch(cubin, case.kernel, case.grid, case.block, [x, y, ctypes.c_int(case.n), *buffers])
        self.take(x, 4 * WORDS, "x")
        out = self.take(y, 4 * WORDS, "y")
        return out, [self.take(*pair, "map") for pair in zip(buffers, sizes, strict=True)]


def buffer_size(woven: Woven, number: int, case: Case) -> int:
    """Return the bytes of a map's buffer for a launch, as in gpt-stream(5)."""
    return layout(woven, number).size(case.blocks, case.threads)


def layout(woven: Woven, number: int) -> MapLayout:
    """Return the layout of a map's buffer."""
    return MapLayout(make_map(number, woven.maps[number]))


def rows(woven: Woven, number: int, data: bytes, case: Case) -> tuple[Any, Any]:
    """Return the counts in a buffer, and its records: the slots of each unit, or a log's entries with their units."""
    map_ = layout(woven, number)
    assert len(data) == map_.size(case.blocks, case.threads)
    if map_.rooms:
        data = pack_arenas(data, map_.capacity)
    return table(map_.read(data, case.blocks, case.threads))


def table(saved: SavedBuffer) -> tuple[Any, Any]:
    """Return counts and slots as the buffer's reader returns them."""
    if saved.units is None:
        return saved.counts.ravel(), saved.slots.reshape(-1, saved.slots.shape[-1])
    types = [(name, saved.slots.dtype[name]) for name in saved.slots.dtype.names]
    entries = np.empty(len(saved.slots), [("unit", "<u8"), *types])
    entries["unit"] = saved.units
    for name, _ in types:
        entries[name] = saved.slots[name]
    return saved.counts, entries


# What the buffers must hold


def by_warp(values: Any, case: Case) -> Any:
    """Return the sums per warp of a value per thread."""
    values = values.reshape(case.blocks, case.threads)
    padded = np.zeros((case.blocks, case.warps * 32), dtype=np.int64)
    padded[:, : case.threads] = values
    return padded.reshape(-1, 32).sum(axis=1)


def check_gmem_bytes(counts: Any, slots: Any, case: Case) -> str:
    i, t = case.numbers()
    slots = slots[:, 0]
    formulas = {"read": case.read, "written": case.written, "async": case.copied, "bulk": case.bulk}
    for name, formula in (formulas | {"expected": case.expected or case.bulk}).items():
        expected = formula(i, t, case).reshape(case.blocks, -1).sum(axis=1)
        # Left out, because the kernel can't have it.
        found = slots[name] if name in slots.dtype.names else np.zeros(case.blocks)
        assert (found == expected).all(), f"{name}: {slots[name]} is not {expected}"
    return ", ".join(f"{slots[name].sum()} B {name}" for name in slots.dtype.names)


def check_block_sched(counts: Any, slots: Any, case: Case, sms: int) -> str:
    slots = slots[:, 0]
    assert (counts == 1).all(), f"blocks without a record: {counts}"
    assert (slots["sm"] < sms).all()
    assert (slots["start"] > 0).all() and (slots["start"] < slots["stop"]).all()
    assert np.ptp(slots["end"].astype(np.int64)) < 10**9, "ends of blocks are more than a second apart"
    return f"{len(set(slots['sm']))} SMs, {int((slots['stop'] - slots['start']).mean())} clocks a block"


def check_slots(counts: Any, slots: Any, case: Case, level: str, capacity: int) -> str:
    """Check that every load was counted once per thread or group, and that exactly the first records are there."""
    i, t = case.numbers()
    loads = case.read(i, t, case) // 4
    if level == "thread":
        assert (counts == loads).all()
    else:
        least = loads.reshape(case.blocks, -1).max(axis=1) if level == "block" else np.ceil(by_warp(loads, case) / 32)
        assert (counts >= least).all()
    kept = np.minimum(counts, capacity)
    filled = slots["address"] != 0
    assert (filled.sum(axis=1) == kept).all(), "slots filled and counted"
    assert (slots["active"][filled] >= 1).all() and (slots["active"][filled] <= 32).all()
    return f"{int(kept.sum())} kept, {int((counts - kept).sum())} dropped"


def check_log(counts: Any, entries: Any, case: Case, level: str) -> str:
    i, t = case.numbers()
    loads = case.read(i, t, case) // 4
    total = int(counts[0])
    if level == "thread":
        assert total == loads.sum(), f"{total} appended, {loads.sum()} loads"
    kept = min(total, len(entries))
    assert (entries["address"] != 0).all()
    units = np.bincount(entries["unit"][:kept].astype(np.int64), minlength=1)
    if level == "thread":
        assert len(units) <= len(loads) and (units <= loads[: len(units)]).all()
        if kept == total:
            assert (units == loads[: len(units)]).all()
        check_pieces(entries[:kept], case)
    else:
        assert len(units) <= case.blocks * case.warps
    return f"{kept} kept, {total - kept} dropped"


def check_pieces(entries: Any, case: Case) -> None:
    """Check that entries saved together are adjacent and ordered by lane. Only the last group may be incomplete, for
    lack of room.
    """
    at = 0
    while at < len(entries):
        piece = entries[at : at + int(entries["active"][at])]
        thread = piece["unit"] % case.threads
        assert (thread % 32 == piece["lane"]).all() and (np.diff(piece["lane"].astype(int)) > 0).all(), "lanes"
        assert len(set(piece["unit"] // case.threads)) == len(set(thread // 32)) == 1, "a piece of several warps"
        assert (piece["active"] == piece["active"][0]).all(), "a piece of several groups"
        at += len(piece)


def check_sampled(counts: Any, slots: Any, case: Case) -> str:
    i, t = case.numbers()
    loads = case.read(i, t, case) // 4 * (i // case.threads % 3 == 0)
    assert (counts == loads).all()
    return f"{int(loads.sum())} of {int((case.read(i, t, case) // 4).sum())}"


def check_total(counts: Any, slots: Any, case: Case, level: str) -> str:
    i, t = case.numbers()
    loads = case.read(i, t, case) // 4
    if level != "thread":
        loads = by_warp(loads, case) if level == "warp" else loads.reshape(case.blocks, -1).sum(axis=1)
    assert (counts == loads).all()
    for name, each in {"bytes": 4, "wide": 4, "parts": 0.5}.items():
        assert (slots[name][:, 0] == each * loads).all(), f"{name}: {slots[name][:, 0]} is not {each * loads}"
    return f"{int(loads.sum())} loads"


def check(name: str, counts: Any, records: Any, case: Case, sms: int) -> str:
    level = name.partition("_")[0]
    if name == "block_sched":
        return check_block_sched(counts, records, case, sms)
    if name == "gmem_bytes":
        return check_gmem_bytes(counts, records, case)
    if name == "sampled":
        return check_sampled(counts, records, case)
    if name.endswith("_total"):
        return check_total(counts, records, case, level)
    if name.endswith("_slots"):
        return check_slots(counts, records, case, level, 3)
    return check_log(counts, records, case, level)


def plan() -> list[tuple[Case, tuple[str, ...]]]:
    """Return each case with each set of probes that it supports."""
    small = [name for name in PROBES if name not in ("block_sched", "gmem_bytes")]
    found = [
        (case, names) for case in CASES for names in [("block_sched",), ("gmem_bytes",), ("block_sched", "gmem_bytes")]
    ]
    loops = [case for case in CASES if case.kernel in ("loads", "diverge", "device_function", "recursive")]
    return found + [(case, (name,)) for case in loops for name in small]


def main() -> int:
    """Weave, assemble, run, compare, and print a table; return 1 if anything differs."""
    begin = time.monotonic()
    dry = "--assemble" in sys.argv
    gpu = None if dry else Gpu()
    arch = gpu.arch if gpu else "sm_90"
    module = scan_module(compile_ptx(arch), "weave.cu")
    plain: dict[str, tuple[bytes, int]] = {}
    cubins: dict[tuple[str, tuple[str, ...]], tuple[Woven, bytes, int]] = {}
    failed = done = 0
    added: dict[tuple[str, ...], list[int]] = {}
    known = {entry.name for entry in module.entries}
    for case, names in plan():
        if case.kernel not in known:  # clusters need sm_90
            continue
        original = prune(module, [case.kernel])
        if "--host" in sys.argv and b".reqnctapercluster" in original:  # the simulated device has no clusters
            continue
        if case.kernel not in plain:
            plain[case.kernel] = assemble(original, arch)
        if (case.kernel, names) not in cubins:
            woven = weave(original, case.kernel, probe_files(names), "weave.cu")
            assert unweave(woven.data) == original
            cubin, registers = assemble(woven.data, arch)
            cubins[case.kernel, names] = woven, cubin, registers
            added.setdefault(names, []).append(registers - plain[case.kernel][1])
        woven, cubin, _ = cubins[case.kernel, names]
        if gpu is None:
            continue
        shape = f"{'x'.join(map(str, case.grid))} {'x'.join(map(str, case.block))}"
        try:
            expected, _ = gpu.run(plain[case.kernel][0], case, [])
            sizes = [buffer_size(woven, number, case) for number in range(len(woven.maps))]
            out, buffers = gpu.run(cubin, case, sizes)
            assert out == expected, "the result differs"
            said = "; ".join(
                check(name, *rows(woven, number, buffers[number], case), case, gpu.sms)
                for number, name in enumerate(names)
            )
        except AssertionError as error:
            failed, said = failed + 1, f"FAILED: {error}"
        done += 1
        print(f"{case.kernel:17} {shape:18} {'+'.join(names):24} {said}", flush=True)
    for names, counts in added.items() if "--host" not in sys.argv else ():
        print(f"registers added by {'+'.join(names)}: median {int(np.median(counts))}, {sorted(counts)}")
    print(f"{done} launches on {arch}, {failed} failed, {time.monotonic() - begin:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
