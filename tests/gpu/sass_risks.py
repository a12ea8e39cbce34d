"""Find out on a GPU which code can be added to a kernel safely. The counts support docs/sass-rules.md.

    python tests/gpu/sass_risks.py

Compiles sass_risks.cu, writes trampolines into copies of the cubin, and compares results. The trampolines of
sass_cases.py have one construct each, and the result must equal the unchanged kernel's. Those of sass_hazards.py and
sass_limits.py must leave a known word. Wrong code may fault or hang, so cases run in separate processes: a fault or
hang is recorded, and the remaining cases run in a new process. Prints a table of each kind, and writes the counts to
sass_risks.json in GPT_GPU_OUT. Takes a minute. Needs nvcc, nvdisasm and a GPU of compute capability 9.0.
"""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_int, c_size_t, c_uint, c_uint64, c_void_p
from functools import partial
from pathlib import Path
from typing import Any

import numpy

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import sass_cases  # noqa: E402
import sass_hazards  # noqa: E402
import sass_limits  # noqa: E402
import sass_report  # noqa: E402
from sass_words import Code, Kernel, Names, names_at, read_kernels, weave  # noqa: E402

BIN = Path(os.environ.get("GPT_CUDA_HOME", "/usr/local/cuda")) / "bin"
OUT = Path(os.environ.get("GPT_GPU_OUT", "build/gpu"))
UNTIL = time.monotonic() + float(os.environ.get("GPT_GPU_SECONDS", "300"))
INPUT, OUTPUT, SHARED = 1 << 23, 1 << 22, 2048  # bytes
REGISTERS, MORE = 40, 72  # register counts of kernels with a construct and with a sequence
BLOCKS, THREADS, LAUNCHES = 264, 64, 20
SMALL, BIG, TIMES = 1, 4224, 2  # blocks of the small and the big grid, and launches of each
# Seconds until a launch counts as hung, and failures until a construct is no longer tried in a kernel.
HANG_S, TRIES = 4.0, 3
LANES = {"1": 0x00002000, "7": 0x10428411, "31": 0xFFFEFFFF, "32": 0xFFFFFFFF, "half": 0x55555555}
Case = dict[str, Any]


class Device:
    """The driver, a context, an input and an output buffer."""

    def __init__(self) -> None:
        self.cu = ctypes.CDLL("libcuda.so.1")
        context = c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.input, self.output = c_uint64(), c_uint64()
        self.call("cuMemAlloc_v2", byref(self.input), c_size_t(INPUT))
        self.call("cuMemAlloc_v2", byref(self.output), c_size_t(OUTPUT))
        self.call("cuMemcpyHtoD_v2", self.input, random.Random(1).randbytes(INPUT), c_size_t(INPUT))

    def call(self, name: str, *args: Any) -> None:
        status = getattr(self.cu, name)(*args)
        if status:
            text = ctypes.c_char_p()
            self.cu.cuGetErrorName(status, byref(text))
            raise OSError(f"{name}: {text.value.decode() if text.value else status}")

    def load(self, image: bytes, name: str) -> tuple[c_void_p, c_void_p]:
        module, function = c_void_p(), c_void_p()
        self.call("cuModuleLoadData", byref(module), image)
        self.call("cuModuleGetFunction", byref(function), module, name.encode())
        return module, function

    def run(self, function: c_void_p, lanes: int, blocks: int, threads: int, each: int, shared: int = 0) -> bytes:
        """Launch a kernel, and return the bytes that its threads write. Raises TimeoutError if it hangs."""
        size = blocks * threads * each
        self.call("cuMemsetD8_v2", self.output, 0xA5, c_size_t(size))
        params = [self.input, self.output, c_uint(lanes), c_int(0)]
        pointers = (c_void_p * 4)(*[ctypes.cast(ctypes.pointer(p), c_void_p) for p in params])
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, shared, None, pointers, None)
        end = time.monotonic() + HANG_S
        while (status := self.cu.cuStreamQuery(None)) == 600:  # CUDA_ERROR_NOT_READY
            if time.monotonic() > end:
                raise TimeoutError
        if status:
            self.call("cuCtxSynchronize")
        result = (ctypes.c_char * size)()
        self.call("cuMemcpyDtoH_v2", result, self.output, c_size_t(size))
        return bytes(result)


def compare(device: Device, image: bytes, kernel: Kernel, case: Case) -> Case:
    """Run a kernel with and without a construct at one of its sites."""
    names = names_at(kernel, kernel.sites[0], REGISTERS)
    code = [*sass_cases.CONSTRUCTS[case["construct"]](names), names.word]
    plain_module, plain = device.load(image, kernel.name)
    woven_module, woven = device.load(weave(image, kernel, [(0, code)], case["place"], REGISTERS), kernel.name)
    run = partial(device.run, lanes=LANES[case["lanes"]], blocks=BLOCKS, threads=THREADS, each=16)
    expected = run(plain)
    unsteady = sum(run(plain) != expected for _ in range(3))
    different = sum(run(woven) != expected for _ in range(LAUNCHES))
    device.call("cuModuleUnload", plain_module)
    device.call("cuModuleUnload", woven_module)
    return {"unsteady": unsteady, "launches": LAUNCHES, "different": different}


def make(case: Case, n: Names, part: int) -> Code:
    """Return the code of a case. `part` selects one of the two parts of a warp to run it."""
    args = [*case["args"], part] if case["what"] == "uniform" else case["args"]
    module = sass_hazards if hasattr(sass_hazards, case["what"]) else sass_limits
    code: Code = getattr(module, case["what"])(n, *args)
    return code


def patient(case: Case) -> Case:
    """Return the same case with long enough delays everywhere."""
    what, args = case["what"], case["args"]
    slow: dict[str, tuple[str, list[Any]]] = {
        "overwritten": ("overwritten", [args[0], 900, False]),
        "covered": ("overwritten", [args[0], 900, False]),
        "matrix": ("matrix", [*args[:2], 300, *args[3:]]),
        "latency": ("latency", [*args[:2], 15, 0]),
        "group": ("group", ["nothing", 0]),
    }
    return case | {"what": slow[what][0], "args": slow[what][1]}


def weave_sequence(image: bytes, kernel: Kernel, case: Case) -> bytes:
    """Return the cubin with a case's sequence at each site of the kernel."""
    registers = case.get("registers", MORE)
    last = len(kernel.sites) - 1
    names = [names_at(kernel, site, registers) for site in kernel.sites]
    parts = [(number, make(case, n, int(number < last))) for number, n in enumerate(names)]
    return weave(image, kernel, parts, 0, registers)


def measure(device: Device, image: bytes, kernel: Kernel, case: Case) -> Case:
    """Count the threads that leave a wrong word, in a small and in a big grid."""
    threads = case.get("threads", THREADS)
    shared = SHARED if kernel.name == "lab" else 0
    module, function = device.load(weave_sequence(image, kernel, case), kernel.name)
    run = partial(device.run, lanes=LANES[case.get("lanes", "32")], threads=threads, each=4, shared=shared)
    if case["what"] == "count":
        block = b"".join(k.to_bytes(4, "little") for k in range(threads))
    elif case["right"] is None:
        other_module, other = device.load(weave_sequence(image, kernel, patient(case)), kernel.name)
        block = run(other, blocks=1)
        device.call("cuModuleUnload", other_module)
    else:
        block = case["right"].to_bytes(4, "little") * threads
    result = []
    for blocks in (SMALL, min(BIG, OUTPUT // 4 // threads)):
        wrong = 0
        for _ in range(TIMES):
            if (got := run(function, blocks=blocks)) != block * blocks:
                wrong += int((numpy.frombuffer(got, "<u4") != numpy.frombuffer(block * blocks, "<u4")).sum())
        result.append([wrong, TIMES * blocks * threads])
    device.call("cuModuleUnload", module)
    return {"wrong": result}


def iter_constructs(kernels: dict[str, Kernel]) -> list[Case]:
    """Return a case for every construct in every kernel, for few and many lanes, before and after the kernel's own
    code.
    """
    found = []
    for construct in sass_cases.CONSTRUCTS:
        for name in (name for name, kernel in kernels.items() if len(kernel.rooms) == 2):
            for lanes in ("1", "7", "31", "32"):
                if (construct != "BAR" or name == "together") and (name != "together" or lanes == "32"):
                    case = {"construct": construct, "kernel": name, "lanes": lanes}
                    found += [case | {"place": place} for place in (0, 1)]
    return found


def child(folder: Path) -> None:
    """Run the cases from stdin, and print a JSON line for each. Stop when a case hangs or faults."""
    image, listing = (folder / "risks.cubin").read_bytes(), (folder / "risks.txt").read_text()
    kernels = read_kernels(image, listing)
    device = Device()
    for line in sys.stdin:
        case = json.loads(line)
        try:
            result = (compare if "construct" in case else measure)(device, image, kernels[case["kernel"]], case)
        except TimeoutError:
            result = {"error": "hang"}
        except OSError as error:
            result = {"error": str(error)}
        print(json.dumps({**case, **result}), flush=True)
        if "error" in result:
            os._exit(1)


def run_cases(folder: Path, cases: list[Case]) -> list[Case]:
    """Run cases in processes, one after the other; start a new one when a case fails."""
    done: list[Case] = []
    while len(done) < len(cases) and time.monotonic() < UNTIL:
        rest = cases[len(done) :]
        line = [sys.executable, __file__, "--child", str(folder)]
        ran = subprocess.run(line, input="\n".join(map(json.dumps, rest)), capture_output=True, text=True, check=False)
        found = [json.loads(x) for x in ran.stdout.splitlines()]
        if len(found) < len(rest) and not (found and "error" in found[-1]):
            found.append({**rest[len(found)], "error": ran.stderr.strip()[-200:] or "no answer"})
        done += found
        failed = Counter(case["kernel"] for case in done if "error" in case and "construct" in case)
        cases = cases[: len(done)] + [c for c in cases[len(done) :] if failed[c["kernel"]] < TRIES]
    return done


def compile_kernels(folder: Path) -> dict[str, Kernel]:
    cubin = folder / "risks.cubin"
    subprocess.run([BIN / "nvcc", "-arch=sm_90a", "-cubin", "-o", cubin, HERE / "sass_risks.cu"], check=True)
    listing = subprocess.run([BIN / "nvdisasm", "-c", cubin], capture_output=True, text=True, check=True).stdout
    (folder / "risks.txt").write_text(listing)
    return read_kernels(cubin.read_bytes(), listing)


def main() -> int:
    OUT.mkdir(parents=True, exist_ok=True)
    kernels = compile_kernels(OUT)
    parts: dict[str, list[Case]] = {}
    for number, case in enumerate([*sass_hazards.iter_cases(), *sass_limits.iter_cases(), *iter_constructs(kernels)]):
        name = case.get("construct") or f"{case['what']} {number % 7}"
        parts.setdefault(name, []).append({"kernel": "lab", **case})
    last = parts.pop(sass_cases.MAY_HANG)  # run these last: a kernel that hangs blocks other processes' kernels
    with ThreadPoolExecutor(int(os.environ.get("JOBS", "8"))) as pool:
        ran = pool.map(partial(run_cases, OUT), sorted(parts.values(), key=len))
        results = [case for part in ran for case in part]
    results += run_cases(OUT, last)
    failed = sass_report.report(results, OUT / "sass_risks.json", BIN)
    for line in failed:
        print(f"sass_risks: error: contradicts docs/sass-rules.md: {line}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(Path(sys.argv[2]))
    else:
        sys.exit(main())
