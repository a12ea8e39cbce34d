"""Measure the latency of a launch: percentiles over many launches, plain and hooked, interleaved.

    python -m tests.bench.latency

The device is simulated, so a plain launch takes almost no time; tests/gpu/hook.py does the same on a real GPU. Launches
come in bursts of 500, each followed by a synchronization that isn't timed.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from statistics import median

from tests.runtime import hooked

ROUNDS = 7
LAUNCHES = 200_000
PERCENTILES = ("p50", "p99", "p99.99")
WAYS = {"bare": None, "default": "all,-query", "all calls": "all"}
SOURCE = r"""
#include <time.h>
static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static int compare(const void *a, const void *b) {
    return (*(uint32_t *)a > *(uint32_t *)b) - (*(uint32_t *)a < *(uint32_t *)b);
}
static uint32_t ns[LAUNCHES];
int main(void) {
    begin();
    int (*synchronize)(void *) = dlsym(driver, "cuStreamSynchronize");
    void *function = kernel("foo");
    for (int i = 0; i < 1000; i++)
        launch(function);
    OK(synchronize(0));
    memset(ns, 1, sizeof(ns));
    for (int i = 0; i < LAUNCHES; i++) {
        uint64_t start = now();
        launch(function);
        ns[i] = now() - start;
        if (i % 500 == 499)
            OK(synchronize(0));
    }
    qsort(ns, LAUNCHES, sizeof(*ns), compare);
    printf("p50 %u p99 %u p99.99 %u\n", ns[LAUNCHES / 2], ns[LAUNCHES / 100 * 99], ns[LAUNCHES / 10000 * 9999]);
}
"""


def measure(folder: Path, device: str, rounds: int = ROUNDS) -> dict[str, dict[str, list[float]]]:
    """Return ns per launch by percentile and method, one value per round; `device` is gpt-hook's, real or sim."""
    program = hooked.compile_c(folder / "latency", SOURCE, f"-DLAUNCHES={LAUNCHES}")
    paths = [str(hooked.runtime() / "sim")] if device == "sim" else []
    env = os.environ | {"LD_LIBRARY_PATH": ":".join([*paths, os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")}
    env["GPT_SIM_RUN"] = "none"
    found: dict[str, dict[str, list[float]]] = {name: {way: [] for way in WAYS} for name in PERCENTILES}
    for _ in range(rounds):
        for way, calls in WAYS.items():
            line = [str(program)]
            if calls:
                trace = folder / "latency.mp"
                line = hooked.command("run", "-f", "-o", trace, "--device", device, "--calls", calls, "--", program)
            done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300)
            if done.returncode:
                raise RuntimeError(f"{line[0]}: exit {done.returncode}: {done.stderr}{done.stdout}")
            for name, value in re.findall(r"(p[\d.]+) (\d+)", done.stdout):
                found[name][way].append(float(value))
    return found


def main() -> int:
    """Measure, and print the medians of the rounds."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder), "sim")
    print(f"{'ns a launch':12}" + "".join(f"{way:>12}" for way in WAYS))
    for name, ways in found.items():
        print(f"{name:12}" + "".join(f"{median(values):12.0f}" for values in ways.values()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
