"""What a hooked call costs: ns over the bare call, recorded and quiet, and of a uprobe pair, side by side in one run.

    python -m tests.bench.hook [--output FILE] [FOLDER]

The traces go to FOLDER (a temporary one), which sets the price of a page. The driver is the simulated one, so the
call itself is next to nothing. uprobes need root and bpftrace; without them that row is left out.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from tests.bench.run import machine
from tests.runtime import hooked

RESULT = Path(__file__).parents[2] / "docs/figures/bench/hook.json"
ROUNDS = 7
STARTS = 300
CALLS, BURST = 200_000, 1_000  # what a program sends between two waits for the device; 1,023 fit into a stream
SOURCE = r"""
#include <semaphore.h>
#include <stdlib.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static int compare(const void *a, const void *b) {
    return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b);
}
static sem_t ends;
static void wait_for_end(void *nothing) { sem_wait(&ends); }
#define TIME(name, call) do { \
    static double spent[CALLS / BURST]; \
    for (long burst = 0; burst < CALLS / BURST; burst++) { \
        OK(host_function(0, wait_for_end, 0)); /* the stream's own thread sleeps meanwhile */ \
        double start = now(); \
        for (long i = 0; i < BURST; i++) \
            call; \
        spent[burst] = now() - start; \
        sem_post(&ends); \
        OK(synchronize(0)); \
    } \
    qsort(spent, CALLS / BURST, sizeof(*spent), compare); \
    printf("%s %f\n", name, spent[CALLS / BURST / 2] / BURST); \
} while (0)
int main(void) {
    sem_init(&ends, 0, 0);
    begin();
    int (*copy)(uint64_t, const void *, size_t, void *) = dlsym(driver, "cuMemcpyHtoDAsync_v2");
    int (*synchronize)(void *) = dlsym(driver, "cuStreamSynchronize"), version;
    int (*host_function)(void *, void (*)(void *), void *) = dlsym(driver, "cuLaunchHostFunc");
    void *function = kernel("foo");
    for (int i = 0; i < 1000; i++)
        cuDriverGetVersion(&version), copy(0, 0, 0, 0), launch(function);
    TIME("cuDriverGetVersion", cuDriverGetVersion(&version));
    TIME("cuMemcpyHtoDAsync", copy(0, 0, 0, 0));
    TIME("cuLaunchKernel", cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0));
}
"""
WAYS: dict[str, list[str] | None] = {  # options of a run
    "bare": None,
    "recorded": ["--calls", "all"],
    "quiet": ["--calls", "none"],
    "counted": ["--calls", "all,-query"],
    "disabled": ["--calls", "all", "--disabled"],
}
UPROBE = """
uprobe:{0}:cuDriverGetVersion {{ @start[tid] = nsecs; }}
uretprobe:{0}:cuDriverGetVersion {{ @total = sum(nsecs - @start[tid]); delete(@start[tid]); }}
"""


def run(line: list[str], env: dict[str, str]) -> dict[str, float]:
    """ns a call by function, as the client prints them."""
    done = subprocess.run(line, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{line[0]}: exit {done.returncode}: {done.stderr}{done.stdout}")
    return {name: float(ns) for name, ns in re.findall(r"(cu\w+) ([\d.]+)", done.stdout)}


def uprobes(program: Path, driver: Path, env: dict[str, str]) -> list[float] | str:
    """ns a call of cuDriverGetVersion between a uprobe and a uretprobe of bpftrace; or why there are none."""
    if not shutil.which("bpftrace"):
        return "no bpftrace (Debian: apt-get install bpftrace)"
    try:
        text = UPROBE.format(driver / "libcuda.so.1")
        return [run(["bpftrace", "-e", text, "-c", str(program)], env)["cuDriverGetVersion"] for _ in range(3)]
    except (RuntimeError, KeyError) as error:
        return f"bpftrace may not run: {str(error).strip()[:200]}"


def starts() -> dict[str, list[float]]:
    """ms that /bin/true takes, bare and with the library, by turns."""
    bare = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    ways = {"bare": bare, "hooked": bare | {"LD_PRELOAD": f"{hooked.runtime()}/libgpthook.so"}}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(STARTS):
        for way, env in ways.items():
            start = time.perf_counter()
            subprocess.run(["/bin/true"], env=env, check=True)
            found[way].append((time.perf_counter() - start) * 1e3)
    return found


def main() -> int:
    """Measures, prints the table, writes the raw figures; 1 if a bound is missed."""
    arguments = sys.argv[1:]
    output = RESULT
    if arguments[:1] == ["--output"]:
        output, arguments = Path(arguments[1]), arguments[2:]
    driver = hooked.runtime() / "sim"
    env = os.environ | {"LD_LIBRARY_PATH": str(driver), "GPT_SIM_RUN": "none"}
    with tempfile.TemporaryDirectory(dir=arguments[0] if arguments else None) as folder:
        trace = Path(folder, "t.mp")
        program = hooked.compile_c(Path(folder, "client"), SOURCE, f"-DCALLS={CALLS}", f"-DBURST={BURST}")
        raw: dict[str, dict[str, list[float]]] = {}
        for _ in range(ROUNDS):
            for way, options in WAYS.items():
                line = [str(program)]
                if options:
                    line = hooked.command("run", "-f", "-o", trace, *options, "--", program)
                for name, ns in run(line, env).items():
                    raw.setdefault(name, {}).setdefault(way, []).append(ns)
                if way == "recorded":
                    each = trace.stat().st_size / (3 * CALLS + 3000 + 6 * CALLS // BURST)
        probed = uprobes(program, driver, env)
    bare = {name: min(ways["bare"]) for name, ways in raw.items()}  # on shared cores the fastest run says most
    cost = {name: {way: min(ways[way]) - bare[name] for way in WAYS} for name, ways in raw.items()}
    bounds = [(f"{name}, recorded, ns", ways["recorded"], 60.0) for name, ways in cost.items()]
    for way in "quiet", "disabled":
        bounds += [(f"{name}, {way}, ns", ways[way], max(5.0, bare[name] / 10)) for name, ways in cost.items()]
    bounds.append(("bytes a call", each, 64.0))
    started = starts()
    bounds.append(("a process that uses no driver, ms", median(started["hooked"]) - median(started["bare"]), 1.0))
    if isinstance(probed, list):
        pair = min(probed) - bare["cuDriverGetVersion"]
        bounds.append(
            ("recorded / uprobe pair, cuDriverGetVersion", cost["cuDriverGetVersion"]["recorded"] / pair, 1 / 20)
        )
    result = {
        "machine": machine(),
        "raw_ns": raw,
        "uprobe_ns": probed,
        "start_ms": started,
        "bounds": [{"what": w, "value": v, "at_most": m, "held": v <= m} for w, v, m in bounds],
    }
    output.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{'over the bare call':46}{'measured':>10}{'at most':>10}")
    for what, value, most in bounds:
        print(f"{what:46}{value:10.4g}{most:10.4g}  {'held' if value <= most else 'MISSED'}")
    if isinstance(probed, str):
        print(f"no uprobes: {probed}")
    return any(value > most for _, value, most in bounds)


if __name__ == "__main__":
    raise SystemExit(main())
