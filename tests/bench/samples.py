"""Measure the cost of gpt-hook run --sample-host on the simulated device, alternating runs with and without it.

    python -m tests.bench.samples

The program has a Python stack of DEPTH frames and calls the driver. It prints how much processor time its own thread
and the sampling thread needed; other load on the machine hardly changes these times.

stalls.c counts interrupts of a native thread by their length, per second of its processor time. On a virtual machine,
these lengths include time in which the host ran something else.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from gpt.stream import wire
from tests.runtime import hooked

RATES, ROUNDS, DEPTH = (0, 50, 1000), 7, 30
STALLS, SECONDS, LENGTHS = Path(__file__).with_name("stalls.c"), 4, (5, 20, 50, 100)  # us, as in stalls.c
PROGRAM = f"""
import ctypes, json, os, time
cu = ctypes.CDLL("libcuda.so.1")
device, context, at = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
assert not cu.cuInit(0) and not cu.cuDeviceGet(ctypes.byref(device), 0)
assert not cu.cuCtxCreate_v2(ctypes.byref(context), 0, device)
def descend(depth):
    return descend(depth - 1) if depth else work()
def work():
    for step in range(400):
        cu.cuMemAlloc_v2(ctypes.byref(at), 4096)
        sum(number * number for number in range(20_000))
        cu.cuMemFree_v2(at)
def sampler():
    for task in os.listdir("/proc/self/task"):
        name, _, rest = open(f"/proc/self/task/{{task}}/stat").read().partition("(")[2].rpartition(")")
        if name == "gpt-sample":
            return (int(rest.split()[11]) + int(rest.split()[12])) / os.sysconf("SC_CLK_TCK")
    return 0
descend(1)
before, began = time.thread_time(), sampler()
descend({DEPTH})
print(json.dumps([time.thread_time() - before, sampler() - began]))
"""


def run(folder: Path, rate: int, *command: str) -> str:
    """Return the output of a program that's sampled `rate` times a second."""
    options = ["--sample-host", str(rate)] if rate else []
    line = ["gpt-hook", "run", "-q", "-f", "-o", str(folder / "t.mp"), "--device", "sim", *options, "--", *command]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout


def measure(folder: Path, rate: int) -> tuple[float, float, int]:
    """Return the seconds of the program's thread and of the sampling thread, and the number of samples."""
    out = run(folder, rate, sys.executable, "-c", PROGRAM)
    with open(folder / "t.mp", "rb") as file:
        samples = sum(record["kind"] == "sample" for record in wire.read_records(file, "t.mp"))
    own, sampling = json.loads(out)
    return own, sampling, samples


def count_stalls(folder: Path, program: Path, rate: int) -> list[float]:
    """Return the number of interrupts over each of LENGTHS, per second of the thread's processor time."""
    own, *counts = json.loads(run(folder, rate, str(program), str(SECONDS)))
    return [1e9 * count / own for count in counts]


def main() -> None:
    """Print the least time of the program at each rate, as other load only adds to it, and the median numbers of
    interrupts.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = hooked.compile_c(Path(folder, "stalls"), STALLS, "-O2")
        rounds = [[count_stalls(Path(folder), program, rate) for rate in RATES] for _ in range(ROUNDS)]
        found = [[measure(Path(folder), rate) for rate in RATES] for _ in range(ROUNDS)]
    for at, rate in enumerate(RATES):
        medians = [statistics.median(turn[at][length] for turn in rounds) for length in range(len(LENGTHS))]
        told = ", ".join(f"{median:.0f} over {length}" for median, length in zip(medians, LENGTHS, strict=True))
        print(f"{rate:5} Hz: interrupts per second, by their us: {told}")
    for at, rate in enumerate(RATES):
        least = [min(turn[one][0] for turn in found) for one in (at, 0)]
        count = sum(turn[at][2] for turn in found)
        each = 1e6 * sum(turn[at][1] for turn in found) / count if count else 0
        print(
            f"{rate:5} Hz: at least {least[0]:.3f} s, {least[0] / least[1]:.3f} times as long; {count} samples, "
            f"{each:.0f} us of the sampler each"
        )


if __name__ == "__main__":
    main()
