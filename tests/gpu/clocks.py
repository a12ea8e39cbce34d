"""Measure how well the clocks of SMs can be aligned, with the timer that all of them share.

    clocks.py          on the first GPU: needs libcuda, numpy, and nvcc or NVRTC with ptxas
    clocks.py --host   the same on the simulated device, to which LD_LIBRARY_PATH must lead: for trying the script

`step` is how far %globaltimer advances at once, and `read` the clock cycles that reading it takes. Then one block per
SM pairs its clock with the timer every APART ns. `rate` is the range of the SMs' clock rates between their first and
last pair. `error` is how far a time is off that's computed from a clock: from the first pair alone with the rate of all
SMs, and from the pairs at both ends. It can't be less than a step; `bound` is a step plus the largest drift between
pairs.
"""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from gpt.ptx.prune import prune  # noqa: E402
from gpt.ptx.scan import scan_module  # noqa: E402
from tests.gpu.weave import Gpu, assemble, compile_ptx  # noqa: E402

READS, PAIRS, APART = 200_000, 200, 50_000  # reads of the timer; pairs, and the ns between them


def measure_step(gpu: Gpu, cubin: bytes, reads: int) -> int:
    """Print how the timer advances, and return its usual step in ns."""
    out = gpu.put(bytes(16 * reads))
    gpu.launch(cubin, "steps", (1, 1, 1), (1, 1, 1), [out, ctypes.c_int(reads)])
    time, clock = np.frombuffer(gpu.take(out, 16 * reads, "steps"), "<u8").reshape(reads, 2).T.astype(np.int64)
    moved = np.diff(time)
    assert (moved >= 0).all(), "the timer went back"
    steps, counts = np.unique(moved[moved > 0], return_counts=True)
    usual = int(steps[counts.argmax()])
    print(
        f"step: {usual} ns in {100 * counts.max() / counts.sum():.1f} % of {counts.sum():,} steps, from {steps[0]} to "
        f"{steps[-1]} ns; read: {np.median(np.diff(clock)):.0f} cycles"
    )
    return usual


def measure_pairs(gpu: Gpu, cubin: bytes, pairs: int, step: int) -> None:
    """Print how well times can be computed from the clocks of SMs."""
    words = 3 * pairs + 1
    out = gpu.put(bytes(8 * words * gpu.sms))
    gpu.launch(cubin, "pairs", (gpu.sms, 1, 1), (1, 1, 1), [out, ctypes.c_int(pairs), ctypes.c_int(APART)])
    data = np.frombuffer(gpu.take(out, 8 * words * gpu.sms, "pairs"), "<u8").reshape(gpu.sms, words).astype(np.int64)
    before, time, after = data[:, 1:].reshape(gpu.sms, pairs, 3).transpose(2, 0, 1)
    clock = before + (after - before) / 2
    clock, time = clock - clock[:, :1], time - time[:, :1]  # since the first pair
    rate = clock[:, -1] / time[:, -1]
    common = np.abs(clock / rate.mean() - time)
    own = np.abs(clock / rate[:, None] - time)
    drift = np.abs(np.diff(clock, axis=1) / rate.mean() - np.diff(time, axis=1)).max()
    print(f"{len(np.unique(data[:, 0]))} SMs of {gpu.sms}, {pairs} pairs in {time[:, -1].mean() / 1e6:.1f} ms")
    print(f"rate: {rate.min():.6f} to {rate.max():.6f} cycles/ns; a pair takes {np.median(after - before):.0f} cycles")
    print(f"error: {common.max():.0f} ns from the first pair alone, {own.max():.0f} ns from both ends")
    print(f"bound: {step + drift:.0f} ns, a step plus a drift of {drift:.0f} ns")


def main() -> int:
    """Measure both and print them."""
    host = "--host" in sys.argv
    gpu = Gpu()
    module = scan_module(compile_ptx(gpu.arch, "clocks.cu"), "clocks.cu")
    steps, pairs = (assemble(prune(module, [name]), gpu.arch)[0] for name in ("steps", "pairs"))
    step = measure_step(gpu, steps, 2000 if host else READS)
    measure_pairs(gpu, pairs, 5 if host else PAIRS, step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
