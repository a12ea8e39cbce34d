"""Run kernels with probes in their machine code on a GPU, and check them: `python tests/gpu/sass.py`.

Each case of tests/sass/interp/cases.py is combined with each of PROBES. The woven kernel is launched LAUNCHES times,
and must leave the same bits in memory as the plain kernel. The interpreter runs the same woven kernel, and the probe's
counts must be equal. Times must be in order, and each warp must have its records.

The table has a line for each pair that fails, and a summary line for each probe. Exits with 1 if any pair fails.
`--cubins` names a folder of cubins that were compiled elsewhere; `--out` is the JSON file for all results
(GPT_GPU_OUT/sass.json).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import struct
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.woven import Woven
from tests.probe.sass import running
from tests.sass.interp.cases import CASES, Case, differences, inputs

LAUNCHES = 20
PROBES = ("block_sched", "warp_sched", "gmem_bytes", "tensorop_count", "sync_wait", "dmat")
SPINNING = {"locks"}  # kernels in which the number of accesses depends on how long a lock is held
COUNTED = {"gmem_bytes": None, "tensorop_count": None, "sync_wait": ("waits",)}  # fields with exact expected values


class Job(NamedTuple):
    """A case with a probe: the woven kernel, or the reason why it couldn't be woven, and the interpreter's buffer."""

    number: int
    probe: str
    woven: Woven | None
    reason: str
    buffer: bytes


def prepare(number: int, probe: str) -> Job:
    """Weave and interpret."""
    case = CASES[number]
    try:
        made = running.woven(case, probe)
    except LeftAlone as error:
        return Job(number, probe, None, str(error.reason), b"")
    except Exception as error:
        return Job(number, probe, None, f"FAILS: {type(error).__name__}: {error}", b"")
    if probe not in COUNTED and probe != "dmat":
        return Job(number, probe, made, "", b"")
    try:
        return Job(number, probe, made, "", running.run(case, made, strict=False).buffers[0])
    except Exception as error:
        return Job(number, probe, made, f"not interpreted: {error}", b"")


class Device:
    """A GPU, by the driver's functions."""

    def __init__(self) -> None:
        self.cu = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.ok("cuInit", 0)
        self.ok("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.ok("cuCtxSetCurrent", context)
        self.places = [self.allocate(words.nbytes) for words in inputs(CASES[0])]
        self.buffer = self.allocate(running.LOG)

    def ok(self, name: str, *arguments: object) -> None:
        """Call a function that must succeed."""
        status = getattr(self.cu, name)(*arguments)
        if status:
            raise RuntimeError(f"{name} fails: {status}")

    def allocate(self, size: int) -> ctypes.c_uint64:
        """Allocate bytes; return their address."""
        place = ctypes.c_uint64()
        self.ok("cuMemAlloc_v2", ctypes.byref(place), ctypes.c_size_t(size))
        return place

    def load(self, image: bytes, kernel: str) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Load a cubin; return it and its kernel."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.ok("cuModuleLoadData", ctypes.byref(module), image)
        self.ok("cuModuleGetFunction", ctypes.byref(function), module, kernel.encode())
        return module, function

    def find(self, module: ctypes.c_void_p, name: str) -> tuple[ctypes.c_uint64, ctypes.c_size_t]:
        """Return the address and size of a variable."""
        place, size = ctypes.c_uint64(), ctypes.c_size_t()
        self.ok("cuModuleGetGlobal_v2", ctypes.byref(place), ctypes.byref(size), module, name.encode())
        return place, size

    def load_woven(self, woven: Woven, plain: ctypes.c_void_p, kernel: str) -> tuple[ctypes.c_void_p, ctypes.c_void_p]:
        """Load a woven cubin that uses variables of the plain cubin, as gpt-hook does; return it and its kernel."""
        image = bytearray(woven.data)
        for variable in woven.variables:
            if variable.offset is not None:
                (distance,) = struct.unpack_from("<Q", image, variable.offset)
                struct.pack_into("<Q", image, variable.offset, self.find(plain, variable.name)[0].value + distance)
        module, function = self.load(bytes(image), kernel)
        for variable in woven.variables:
            if variable.offset is None:
                (source, _), (to, size) = self.find(plain, variable.name), self.find(module, variable.name)
                self.ok("cuMemcpyDtoD_v2", to, source, size)
        return module, function

    def run(self, function: ctypes.c_void_p, case: Case, size: int = 0) -> tuple[np.ndarray, bytes]:
        """Launch a kernel; return its `out` buffer, and its probe's buffer of `size` bytes."""
        values = inputs(case)
        for place, words in zip(self.places, values, strict=True):
            self.ok("cuMemcpyHtoD_v2", place, ctypes.c_void_p(words.ctypes.data), ctypes.c_size_t(words.nbytes))
        self.ok("cuMemsetD8_v2", self.buffer, ctypes.c_ubyte(0), ctypes.c_size_t(running.LOG))
        arguments = [*self.places, ctypes.c_int(case.n), *([self.buffer] if size else [])]
        pointers = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(one) for one in arguments))
        dimensions = case.grid, 1, 1, case.block, 1, 1, case.dynamic
        self.ok("cuLaunchKernel", function, *dimensions, None, pointers, None)
        self.ok("cuCtxSynchronize")
        out, saved = values[1], ctypes.create_string_buffer(max(size, 1))
        self.ok("cuMemcpyDtoH_v2", ctypes.c_void_p(out.ctypes.data), self.places[1], ctypes.c_size_t(out.nbytes))
        self.ok("cuMemcpyDtoH_v2", saved, self.buffer, ctypes.c_size_t(max(size, 1)))
        return out, saved.raw[:size]


def judge(case: Case, job: Job, data: bytes) -> str:
    """Return the errors in a buffer."""
    assert job.woven
    if case.kernel in SPINNING:
        return ""
    (placed,) = job.woven.maps
    if placed.type == "log":
        there, wanted = (len(running.entries(case, placed, one)) for one in (data, job.buffer))
        return "" if there == wanted else f"{there} records, not {wanted}"
    found = running.records(case, placed, data)
    if job.probe in COUNTED:
        if not job.buffer:
            return ""
        names = COUNTED[job.probe]
        wanted = running.records(case, placed, job.buffer)
        for unit, (one, other) in enumerate(zip(found, wanted, strict=True)):
            rows = [[{k: v for k, v in row.items() if not names or k in names} for row in rs[1]] for rs in (one, other)]
            if one[0] != other[0] or rows[0] != rows[1]:
                return f"unit {unit}: {one}, not {other}"
        return ""
    for unit, (count, rows) in enumerate(found):
        last = "stop" if rows and "stop" in rows[0] else "end"
        if count == 0 or not rows or not 0 < rows[0]["start"] <= rows[0][last] or rows[0]["sm"] > 1000:
            return f"unit {unit}: {count} {rows[0]}"
    return ""


def compare(device: Device, job: Job, plain: dict[int, np.ndarray]) -> dict[str, Any]:
    """Launch a woven kernel, and return a row."""
    case = CASES[job.number]
    row: dict[str, Any] = {"case": case.name, "probe": job.probe, "note": job.reason, "different": 0, "wrong": ""}
    if job.woven is None:
        return row | {"left": job.reason}
    sites = job.woven.sites
    row |= {"matched": sum(site.matched for site in sites), "woven": sum(site.woven for site in sites)}
    row |= job.woven.needs
    original, _ = device.load(running.image(case.file), case.kernel)
    module, function = device.load_woven(job.woven, original, case.kernel)
    size = running.buffer_size(case, job.woven.maps[0])
    for _ in range(LAUNCHES):
        out, data = device.run(function, case, size)
        row["different"] += bool((out != plain[job.number]).any())
        row["wrong"] = row["wrong"] or judge(case, job, data)
    for one in (module, original):
        device.ok("cuModuleUnload", one)
    return row


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="sass.py")
    parser.add_argument("--cubins", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--probes", default=",".join(PROBES))
    options = parser.parse_args()
    if options.cubins:
        os.environ["GPT_TEST_CUBINS"] = str(options.cubins.resolve())
    probes = options.probes.split(",")
    for probe in probes:  # fills the cache of snippets, which the others then share
        prepare(0, probe)
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        pairs = [(number, probe) for probe in probes for number in range(len(CASES))]
        jobs = list(pool.map(prepare, *zip(*pairs, strict=True)))
    device, plain, unsteady = Device(), dict[int, np.ndarray](), set[int]()
    for number, case in enumerate(CASES):
        module, function = device.load(running.image(case.file), case.kernel)
        runs = [device.run(function, case)[0] for _ in range(5)]
        plain[number] = runs[0]
        if any(differences(case, runs[0], other) for other in runs):
            unsteady.add(number)
        device.ok("cuModuleUnload", module)
    rows = []
    for job in jobs:
        try:
            rows.append(compare(device, job, plain))
        except RuntimeError as error:  # the context is lost
            rows.append({"case": CASES[job.number].name, "probe": job.probe, "wrong": str(error), "different": 0})
            print(f"{job.probe} {CASES[job.number].name}: {error}")
            break
    folder = os.environ.get("GPT_GPU_OUT")
    if out := options.out or (Path(folder, "sass.json") if folder else None):
        out.write_text(json.dumps({"rows": rows, "unsteady": sorted(unsteady)}, indent=1) + "\n")
    return report(rows, len(jobs), [CASES[number].name for number in sorted(unsteady)])


def report(rows: list[dict[str, Any]], wanted: int, unsteady: list[str]) -> int:
    """Print the table; return the status."""
    for row in rows:
        note = row.get("note", "")
        if row["wrong"] or row["different"] or "FAILS" in note:
            print(f"{row['probe']:15} {row['case']:22} different {row['different']:3} {row['wrong']} {note}")
    print(f"{'probe':15} {'woven':>6} {'left':>5} {'sites':>11} {'different':>9} {'wrong':>6}")
    for probe in dict.fromkeys(row["probe"] for row in rows):
        some = [row for row in rows if row["probe"] == probe]
        made = [row for row in some if "woven" in row]
        sites = f"{sum(row['woven'] for row in made)}/{sum(row['matched'] for row in made)}"
        bad = sum(bool(row["different"]) for row in some), sum(bool(row["wrong"]) for row in some)
        print(f"{probe:15} {len(made):6} {len(some) - len(made):5} {sites:>11} {bad[0]:9} {bad[1]:6}")
    print(f"plain kernels that differ by themselves: {', '.join(unsteady) or 'none'}")
    return int(len(rows) < wanted or any(row["wrong"] or row["different"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
