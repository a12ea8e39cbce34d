"""Test gpt-hook ctl on a GPU: what it costs a program to accept commands, and whether commands disturb 8 threads and
graphs.

    python tests/gpu/control.py [--device sim]

Run by tests/gpu/run.sh. The program checks its kernels' results while recording is turned on and off ten times a
second, and probes are exchanged.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.runtime import controlling, graphing, hooked, probing  # noqa: E402

OUT = Path(os.environ.get("GPT_GPU_OUT", ROOT / "build" / "gpu"))
DEVICE = "sim" if "sim" in sys.argv else "real"
ROUNDS, TURNS = 9, 100
WAYS: dict[str, list[str] | None] = {"bare": None, "--calls none": ["--calls", "none"], "--disabled": ["--disabled"]}
SLOWER = 20  # extra ns allowed per launch while disabled, compared with --calls none
TIMES = r"""
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
#define TIME(call, count) do { \
    double best = 1e18; \
    for (int burst = 0; burst < 200; burst++) { \
        double start = now(); \
        for (int i = 0; i < (count); i++) \
            call; \
        double took = (now() - start) / (count); \
        best = took < best ? took : best; \
        OK(synchronize()); \
    } \
    printf("%s %f\n", #call, best); \
} while (0)
int main(void) {
    int version;
    begin();
    int (*synchronize)(void) = dlsym(driver, "cuCtxSynchronize");
    void *function = kernel("foo");
    TIME(cuDriverGetVersion(&version), 1000);
    TIME(cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, 0, 0, 0), 200);
}
"""


def run(line: list[str]) -> dict[str, float]:
    env = os.environ | ({"LD_LIBRARY_PATH": str(hooked.runtime() / "sim")} if DEVICE == "sim" else {})
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=True)
    return {name: float(ns) for name, ns in re.findall(r"(cu\w+)\(.*\) ([\d.]+)", done.stdout)}


def costs(folder: Path) -> dict[str, dict[str, list[float]]]:
    """Return the ns per call for each function and mode, one value per round."""
    program = hooked.compile_c(folder / "times", TIMES)
    found: dict[str, dict[str, list[float]]] = {}
    for _ in range(ROUNDS):
        for way, options in WAYS.items():
            line = [str(program)]
            if options:
                line = hooked.command("run", "-f", "-o", folder / "c.mp", "--device", DEVICE, *options, "--", program)
            for name, ns in run(line).items():
                found.setdefault(name, {}).setdefault(way, []).append(ns)
    return found


def stress(folder: Path, source: str, check: Callable[[hooked.Trace, dict], list[str]]) -> dict[str, Any]:
    """Toggle probes during a run. Return the number of launches, the faults, and when the first probes were in use."""
    program = probing.build(folder, source)
    more = {"arguments": (probing.PTX,), "device": DEVICE, "XDG_CACHE_HOME": str(folder / "cache")}
    server = controlling.Server(folder / "t.mp", program, "--disabled", **more)
    controlling.order(server.pid, "probe", "gmem_bytes", "-k", "scale")
    controlling.order(server.pid, "enable")
    start = time.monotonic()
    while not controlling.status(server.pid)["with_probes"] and time.monotonic() < start + 60:
        time.sleep(0.01)
    first = time.monotonic() - start
    controlling.order(server.pid, "disable")
    state = controlling.toggle(server, TURNS)
    wrong = check(server.end(), state)
    keys = ("periods", "launches", "with_probes", "without_probes")
    return {"first_probes_s": first, **{key: state[key] for key in keys}, "wrong": wrong}


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="gpt-control-") as name:
        raw = costs(Path(name))
        found = stress(Path(name), controlling.STRESS, controlling.check)
        graphs = stress(Path(name), graphing.STRESS, controlling.check_graphs)
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / "control.json").write_text(
        json.dumps({"device": DEVICE, "raw_ns": raw, **found, "graphs": graphs}, indent=1) + "\n"
    )
    wrong = found["wrong"] + graphs["wrong"]
    print(f"{'ns, fastest of ' + str(ROUNDS):24}" + "".join(f"{way:>14}" for way in WAYS))
    for function, ways in raw.items():
        best = {way: min(times) for way, times in ways.items()}
        print(f"{function:24}" + "".join(f"{best[way]:14.1f}" for way in WAYS))
        if best["--disabled"] > best["--calls none"] + SLOWER and DEVICE == "real":
            wrong.append(f"{function} costs more disabled than with --calls none")
    print(
        f"{found['launches']:,} launches in {found['periods']} periods, {found['with_probes']:,} with probes, ", end=""
    )
    print(f"the first {found['first_probes_s']:.1f} s after they were named")
    print(f"graphs: {graphs['with_probes']:,} launches with probes, {graphs['without_probes']:,} without")
    print("control: " + ("; ".join(wrong) or "nothing wrong"))
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
