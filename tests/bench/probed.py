"""Measure what a launch with probes costs its thread, compared with a recorded one: ns of CPU time.

    python -m tests.bench.probed [--before RUNTIME] [--rounds N] [--output FILE]

RUNTIME is the gpt/_runtime of an older build, measured interleaved with this one. The device is simulated and runs no
kernels, so the driver returns almost at once. Launches come in bursts of 200, each followed by a synchronization that
isn't timed; a round's figure is the median of its bursts. The median and the lowest round are printed. One program
launches a module's function, the other one a library's kernel. FILE gets the figures of all rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from tests.bench.run import machine
from tests.runtime import hooked
from tests.runtime.probing import PTX
from tests.runtime.simulated import build

PROBE = "block_sched"
FORMS = ("function", "kernel")
SOURCE = r"""
#include <time.h>
static char text[1 << 16];
static double spent[BURSTS];
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}
static int compare(const void *a, const void *b) {
    return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b);
}
int main(int argc, char **argv) {
    begin();
    CUdeviceptr items = 0;
    unsigned added = 5, count = 400;
    void *module, *function, *stream, *params[] = {&items, &added, &count};
    FILE *file = fopen(argv[1], "r");
    assert(file && fread(text, 1, sizeof(text) - 1, file));
    OK(D(cuStreamCreate)(&stream, 1));
    OK(D(cuMemAlloc_v2)(&items, (size_t)4096));
    if (argc > 2) {
        OK(D(cuLibraryLoadData)(&module, text, NULL, NULL, 0, NULL, NULL, 0));
        OK(D(cuLibraryGetKernel)(&function, module, "scale"));
    } else {
        OK(cuModuleLoadData(&module, text));
        OK(cuModuleGetFunction(&function, module, "scale"));
    }
    for (int burst = -20; burst < BURSTS; burst++) {
        double start = now();
        for (int i = 0; i < 200; i++)
            cuLaunchKernel(function, 6, 1, 1, 70, 1, 1, 0, stream, params, NULL);
        if (burst >= 0)
            spent[burst] = (now() - start) / 200;
        OK(D(cuStreamSynchronize)(stream));
    }
    qsort(spent, BURSTS, sizeof(*spent), compare);
    printf("%f\n", spent[BURSTS / 2]);
    return 0;
}
"""


def run(runtime: Path, folder: Path, program: Path, options: list[str], form: str) -> float:
    """Return ns per launch."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # for the pipeline
    env = os.environ | {"GPT_SIM_RUN": "none", "XDG_CACHE_HOME": str(folder / "cache"), "PATH": path}
    line = [runtime / "gpt-hook", "run", "-f", "--calls", "all", "-o", folder / "t.mp", "--device", "sim"]
    line += [*options, "--", program, PTX, *(["library"] if form == "kernel" else [])]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    if done.returncode or (options and "launches with probes, 0 without" not in done.stderr):
        raise RuntimeError(f"exit {done.returncode}: {done.stderr}{done.stdout}")
    return float(done.stdout)


def table(figures: dict[str, list[float]]) -> list[str]:
    """Return the rows of the table in docs/measured.md, from the figures by form, runtime and way."""
    titles = {"function": "a function of a module", "kernel": "a kernel of a library"}
    rows = []
    for form, title in titles.items():
        recorded, probed, *before = (
            median(figures[f"{form} {key}"])
            for key in ("now recorded", "now probed", "before recorded", "before probed")
        )
        numbers = recorded, probed, probed - recorded, before[1] - before[0]
        rows.append(f"| {title} | {' | '.join(f'{number:,.0f}' for number in numbers)} |")
    return rows


def main() -> int:
    """Measure all ways, interleaved, and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--before", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bursts", type=int, default=300)
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    runtimes = {"now": hooked.runtime()} | ({"before": chosen.before} if chosen.before else {})
    found: dict[tuple[str, str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = build(folder / "client", SOURCE.replace("BURSTS", str(chosen.bursts)))
        for _ in range(chosen.rounds):
            for form in FORMS:
                for runtime in runtimes:
                    for way, options in (("recorded", []), ("probed", ["-p", PROBE])):
                        ns = run(runtimes[runtime], folder, program, options, form)
                        found.setdefault((form, runtime, way), []).append(ns)
    if chosen.output:
        raw = {" ".join(key): [round(ns) for ns in figures] for key, figures in found.items()}
        chosen.output.write_text(json.dumps({"machine": machine(), "ns": raw}, indent=1) + "\n")
    print(f"{'ns a launch':20}{'recorded':>10}{'probed':>10}{'more':>10}{'lowest':>10}")
    for form in FORMS:
        for runtime in runtimes:
            recorded, probed = (found[form, runtime, way] for way in ("recorded", "probed"))
            middle, least = median(probed) - median(recorded), min(probed) - min(recorded)
            print(f"{form + ' ' + runtime:20}{median(recorded):10.0f}{median(probed):10.0f}{middle:10.0f}{least:10.0f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
