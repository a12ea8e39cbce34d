"""Measure a program's first load of PTX on the simulated device, and its second run.

    python tests/lab/load.py [RUNTIME]

The texts are a kernel of 1 kB, one of 100 kB as Triton writes it, and 521 kernels with 5 MB in all. Each is loaded as
PTX, which is checked when it's loaded, and in a fatbin, from which one kernel is launched after the load. Each runs
with a new cache and then with the same cache, with and without gpt-hook. RUNTIME is a runtime to compare with
(GPT_RUNTIME), such as another commit's. Prints JSON: the fastest of two runs, in ms, as [load, launch]. Run once:
"Loading PTX" in docs/measured.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests import cuda  # noqa: E402

HEAD = ".version 8.5\n.target sm_90a\n.address_size 64\n"
STEPS = (
    "\t.loc\t1 {0} 5\n\tmul.wide.u32 %rd{1}, %r{1}, 4;\n\tadd.s64 %rd{2}, %rd1, %rd{1};\n"
    "\tfma.rn.f32 %f{1}, %f{2}, %f{2}, %f{1};\n\tadd.s32 %r{2}, %r{1}, {0};\n"
)
SCRIPT = """
import sys, time
from tests.runtime.driving import *
begin()
image = open(sys.argv[1], "rb").read() + bytes(1)
before = time.perf_counter()
module = load(image)
found = function(module, "k0")
between = time.perf_counter()
if sys.argv[2] == "launch":
    ok(launch(found, 1, 32, 0, 0, 0))
    ok(synchronize())
print(between - before, time.perf_counter() - between)
"""
RUNS = 2


def kernel(number: int, size: int) -> str:
    """Return a kernel of about `size` bytes that does arithmetic and stores nothing."""
    params = ", ".join(f".param .u64 .ptr .global .align 16 k{number}_param_{i}" for i in range(3))
    registers = "\t.reg .b32 %r<99>;\n\t.reg .f32 %f<99>;\n\t.reg .b64 %rd<99>;\n\t.shared .align 16 .b8 tile[4096];\n"
    count = max(1, size // 160)
    steps = "".join(STEPS.format(i % 500 + 1, i % 90 + 2, (i + 1) % 90 + 2) for i in range(count))
    return f".visible .entry k{number}({params}) .reqntid 32, 1, 1\n{{\n{registers}{steps}\tret;\n}}\n"


def texts() -> dict[str, str]:
    tables = "".join(f".global .align 4 .u32 v{i}[16] = {{{', '.join(map(str, range(16)))}}};\n" for i in range(50))
    return {
        "1 kB": HEAD + kernel(0, 500),
        "100 kB": HEAD + kernel(0, 100_000),
        "5 MB": HEAD + tables + "".join(kernel(i, 9300) for i in range(521)),
    }


def run(image: Path, what: str, cache: str, hook: bool, runtime: Path) -> list[float]:
    env = os.environ | {"XDG_CACHE_HOME": cache, "GPT_SIM_RUN": "all", "GPT_RUNTIME": str(runtime)}
    env |= {"LD_LIBRARY_PATH": str(runtime / "sim"), "PATH": f"{ROOT / 'bin'}:{os.environ['PATH']}"}
    line = [sys.executable, "-c", SCRIPT, str(image), what]
    if hook:
        line = [str(runtime / "gpt-hook"), "run", "--device", "sim", "-o", f"{cache}/t.mp", "-f", "--", *line]
    done = subprocess.run(line, env=env, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [1000 * float(word) for word in done.stdout.split()]


def main() -> None:
    runtimes = {"here": ROOT / "gpt" / "_runtime"} | ({"other": Path(sys.argv[1])} if len(sys.argv) > 1 else {})
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for size, text in texts().items():
            ptx, fatbin = Path(folder, "x.ptx"), Path(folder, "x.fatbin")
            ptx.write_text(text)
            fatbin.write_bytes(cuda.fatbin([("sm_90a", "ptx", text.encode())], "none"))
            for image, what in ((ptx, "load"), (fatbin, "load"), (fatbin, "launch")):
                if size == "5 MB" and image == ptx:
                    continue  # checking it takes most of a minute
                for hook in (True, False):
                    for _ in range(RUNS):
                        for name, runtime in runtimes.items():
                            with tempfile.TemporaryDirectory() as cache:
                                for when in ("new", "cached"):
                                    times = run(image, what, cache, hook, runtime)
                                    key = (
                                        f"{size} {image.suffix[1:]} {what} {'hook' if hook else 'alone'} {name} {when}"
                                    )
                                    found[key] = min(found.get(key, times), times, key=sum)
    print(json.dumps({key: [round(time, 1) for time in times] for key, times in found.items()}, indent=1))


if __name__ == "__main__":
    main()
