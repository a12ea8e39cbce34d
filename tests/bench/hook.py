"""What a hooked call costs: ns over the bare call, recorded and quiet, side by side in one run.

`python -m tests.bench.hook [FOLDER]`: the traces go to FOLDER (a temporary one), which sets the price of a page.
The driver is the simulated one, so the call itself is next to nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.runtime import hooked

ROUNDS = 7
CALLS = 200_000  # a burst: what a program sends between two waits for the device
SOURCE = r"""
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
#define TIME(name, call) do { \
    double start = now(); \
    for (long i = 0; i < CALLS; i++) \
        call; \
    printf("%s %f\n", name, (now() - start) / CALLS); \
} while (0)
int main(void) {
    begin();
    int (*copy)(uint64_t, const void *, size_t, void *) = dlsym(driver, "cuMemcpyHtoDAsync_v2");
    int version;
    void *function = kernel("foo");
    for (int i = 0; i < 1000; i++)
        cuDriverGetVersion(&version), copy(0, 0, 0, 0), launch(function);
    TIME("cuDriverGetVersion", cuDriverGetVersion(&version));
    TIME("cuMemcpyHtoDAsync", copy(0, 0, 0, 0));
    TIME("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0));
}
"""
WAYS = {"bare": None, "recorded": "all", "quiet": "none"}


def main() -> None:
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        program = hooked.compile_c(Path(folder, "client"), SOURCE, f"-DCALLS={CALLS}")
        found: dict[str, dict[str, list[float]]] = {}
        for _ in range(ROUNDS):
            for way, calls in WAYS.items():
                env = os.environ | {"LD_LIBRARY_PATH": str(hooked.runtime() / "sim")}
                line = [str(program)]
                if calls:
                    line = hooked.command("run", "-f", "-o", f"{folder}/t.mp", "--calls", calls, "--", program)
                text = subprocess.run(line, env=env, capture_output=True, text=True, check=True).stdout
                for name, ns in re.findall(r"(\w+) ([\d.]+)", text):
                    found.setdefault(name, {}).setdefault(way, []).append(float(ns))
        print(f"{'ns a call, median of ' + str(ROUNDS):28}{'bare':>8}{'recorded':>10}{'quiet':>8}")
        for name, ways in found.items():
            bare, recorded, quiet = (median(ways[way]) for way in WAYS)
            print(f"{name:28}{bare:8.1f}{recorded - bare:+10.1f}{quiet - bare:+8.1f}")


if __name__ == "__main__":
    main()
