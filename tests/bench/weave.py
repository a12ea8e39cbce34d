"""Measure the cost of weaving: the engine's time compared with ptxas's, and the additional resources of woven kernels.

    python -m tests.bench.weave [--kernels N]

The kernels come from this repository and from pinned wheels on PyPI: at most N (24) per library, chosen by digest, with
at most 256 KiB of PTX each. For each kernel, we time ptxas on its module; the engine (scan, prune, verify, weave,
print) with each built-in probe on the same module, in CPU time, taking the fastest of a few runs; and ptxas on the
woven text. Finally, a gpt-ptx-probe process selects one kernel from a module of 35 MB. The raw figures and the
machine's description go to docs/figures/bench/weave.json. The exit status is 1 if a limit was exceeded.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from gpt.probe import verify
from gpt.probe.model import ProbeFile
from gpt.probe.ptx.weave import LeftAlone, Woven, weave
from gpt.probe.read import load
from gpt.ptx import scan
from gpt.ptx.prune import pruned
from gpt.stream import wire
from tests import cuda
from tests.bench.run import BIN, CACHE, HERE, fetch, machine, measure, median

LIBRARIES = {  # library -> wheel
    "libxgboost.so": "xgboost==3.4.1",
    "libbitsandbytes_cuda130.so": "bitsandbytes==0.50.2",
    "_C.so": "xformers==0.0.35",
}
SOURCES = [HERE.parent / "gpu" / "weave.cu", HERE.parent / "probe/ptx/tensor.cu"]
# Limits for the median number of registers that probes add.
REGISTERS = {"block_sched": 4, "gmem_bytes": 3, "tensorop_count": 3}
PROBES = sorted(path.stem for path in load.BUILTIN.glob("*.toml"))
LARGEST = 256 << 10  # bytes of a module
LEAST, SHARE = 0.015, 0.1  # the engine may take this many seconds, or this share of ptxas's time if that's more
MODULE, SECONDS, RUNS = 35_000_000, 1.5, 5
NEWEST = b".version 9.0"  # newest PTX version for the wheels' ptxas

Kernel = tuple[str, str, str, bytes]  # library, name, target, module


def iter_kernels(count: int) -> Iterator[Kernel]:
    """Yield the kernels, each in a module with everything that it needs."""
    for source in SOURCES:
        module = scan.scan_module(cuda.nvrtc_compile(source.read_text(), "compute_90a"), source.name)
        for entry in module.entries:
            yield source.name, entry.name, "sm_90a", pruned(module, [entry.name]).text.encode("latin-1")
    for library, wheel in LIBRARIES.items():
        found: dict[str, Kernel] = {}
        for module in modules(library, wheel):
            target = re.search(r"\.target\s+(\w+)", module.skeleton)
            assert target
            for entry in module.entries:
                if entry.end - entry.start < LARGEST:
                    order = hashlib.sha256(entry.name.encode()).hexdigest()
                    found[order] = (wheel, entry.name, target[1], pruned(module, [entry.name]).text.encode("latin-1"))
        yield from [found[order] for order in sorted(found) if len(found[order][3]) <= LARGEST][:count]


def modules(library: str, wheel: str) -> Iterator[scan.Module]:
    """Yield the PTX modules of a library."""
    command = [BIN / "gpt-extract", "--ptx", fetch(library, wheel)]
    with subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE) as process:
        assert process.stdout
        for record in wire.read_records(process.stdout, library):
            if record["kind"] == "ptx":
                yield scan.scan_module(re.sub(rb"\.version 9\.[1-9]", NEWEST, record["data"]), record["module"])


def assemble(data: bytes, target: str, folder: Path) -> dict[str, float] | None:
    """Return ptxas's CPU seconds, and the registers and spilled bytes that it reports, or None if it
    refuses the text.
    """
    path = folder / "k.ptx"
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [cuda.tool("ptxas"), f"-arch={target}", "-v", path, "-o", folder / "k.cubin"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        return None
    return {
        "seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "registers": max(map(int, re.findall(r"Used (\d+) registers", done.stderr))),
        "spills": sum(map(int, re.findall(r"(\d+) bytes spill", done.stderr))),
    }


def engine(data: bytes, kernel: str, file: ProbeFile) -> Woven:
    """Do all of the engine's work for a module, except reading the probe file."""
    verify.verify(file)
    return weave(pruned(scan.scan_module(data), [kernel]), kernel, [file])


def fastest(work: Callable[[], Any], runs: int) -> float:
    """Return the CPU seconds of the fastest run."""
    found = []
    for _ in range(runs):
        start = time.process_time()
        work()
        found.append(time.process_time() - start)
    return min(found)


def measure_kernel(kernel: Kernel, files: dict[str, ProbeFile], folder: Path) -> dict[str, Any] | None:
    """Return the figures of one kernel, or None if ptxas refuses the original."""
    where, name, target, data = kernel
    plain = [assemble(data, target, folder) for _ in range(2)]
    if plain[0] is None or plain[1] is None:
        return None
    row: dict[str, Any] = {"from": where, "kernel": name, "target": target, "size": len(data), "probes": {}}
    row |= plain[0] | {"seconds": min(plain[0]["seconds"], plain[1]["seconds"])}
    for probe, file in files.items():
        try:
            woven = engine(data, name, file)
        except LeftAlone:
            continue
        found: dict[str, float] = {"seconds": fastest(partial(engine, data, name, file), 9)}
        found["sites"] = sum(site.woven for site in woven.sites)
        probed = assemble(woven.data, target, folder)
        if probed is None:
            raise SystemExit(f"bench: error: ptxas refuses {name} with {probe}")
        found |= {key: probed[key] - row[key] for key in ("registers", "spills")}
        row["probes"][probe] = found
    return row


def large_module(folder: Path) -> tuple[Path, str]:
    """Return a stream with one 35 MB module of a library's kernels, and the name of one of them."""
    parts: list[bytes] = []
    size, names = 0, set[str]()
    library, wheel = next(iter(LIBRARIES.items()))
    for module in modules(library, wheel):
        for item in module.items:
            text = module.source(item).encode("latin-1")
            if size < MODULE and not names & set(item.names) and (item.names or not names):
                names |= set(item.names)
                parts.append(text)
                size += len(text) + 1
    data = b"\n".join(parts)
    kernels = [item for item in scan.scan_module(data).entries if item.end - item.start < LARGEST]
    (folder / "large.ptx").write_bytes(data)
    path = folder / "large.mp"
    with open(path, "wb") as file:
        subprocess.run([BIN / "gpt-extract", "--ptx", folder / "large.ptx"], stdout=file, check=True)
    return path, kernels[len(kernels) // 2].name


def of_probe(rows: list[dict[str, Any]], probe: str) -> list[tuple[float, dict[str, float]]]:
    """Return a probe's figures for each kernel that it applies to, preceded by the time that ptxas takes for the
    kernel.
    """
    return [(row["seconds"], row["probes"][probe]) for row in rows if probe in row["probes"]]


def within(found: list[tuple[float, dict[str, float]]]) -> int:
    """Count the kernels for which the engine met its limit."""
    return sum(one["seconds"] <= max(LEAST, SHARE * seconds) for seconds, one in found)


def bounds(rows: list[dict[str, Any]], large: list[dict[str, float]]) -> list[dict[str, Any]]:
    """Return the figures that have bounds."""
    found: list[tuple[str, float, float]] = []
    for probe in PROBES:
        shares = [one["seconds"] / max(LEAST, SHARE * seconds) for seconds, one in of_probe(rows, probe)]
        found.append((f"{probe}: engine, of its bound", statistics.median(shares), 1))
    for probe, most in REGISTERS.items():
        added = statistics.median(one["registers"] for _, one in of_probe(rows, probe))
        found.append((f"{probe}: registers added", added, most))
    found.append((f"gpt-ptx-probe, one kernel of {MODULE / 1e6:.0f} MB, CPU s", median(large, "cpu"), SECONDS))
    return [{"what": w, "value": v, "at_most": m, "held": v <= m} for w, v, m in found]


def table(rows: list[dict[str, Any]]) -> Table:
    """Return the figures of each probe, for a terminal and for docs/measured.md."""
    made = Table(box=box.MARKDOWN)
    for title in ("probe", "kernels", "ms: median", "most", "ptxas, ms", "within the bound"):
        made.add_column(title, justify="left" if title == "probe" else "right")
    for title in ("registers added: median", "nine of ten", "most", "kernels that spill more"):
        made.add_column(title, justify="right")
    for probe in PROBES:
        found = of_probe(rows, probe)
        if not found:  # a probe that's newer than the figures
            continue
        engine = [1000 * one["seconds"] for _, one in found]
        added = sorted(one["registers"] for _, one in found)
        made.add_row(
            probe,
            str(len(found)),
            f"{statistics.median(engine):.1f}",
            f"{max(engine):.1f}",
            f"{1000 * statistics.median(seconds for seconds, _ in found):.0f}",
            str(within(found)),
            f"{statistics.median(added):g}",
            f"{added[len(added) * 9 // 10]:g}",
            f"{added[-1]:g}",
            str(sum(one["spills"] > 0 for _, one in found)),
        )
    return made


def main() -> int:
    """Measure, print, and write the raw figures; return the exit status."""
    count = int(sys.argv[sys.argv.index("--kernels") + 1]) if "--kernels" in sys.argv else 24
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    files = {name: load.load_probes(load.find_probe(name)) for name in PROBES}
    rows, refused = [], 0
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        for kernel in iter_kernels(count):
            row = measure_kernel(kernel, files, folder)
            refused += row is None
            rows += [row] if row else []
        path, name = large_module(folder)
        large = [measure(BIN / "gpt-ptx-probe", "-p", "gmem_bytes", "-k", name, path) for _ in range(RUNS)]
    result: dict[str, Any] = {
        "machine": machine(),
        "refused": refused,
        "large": large,
        "bounds": bounds(rows, large),
        "kernels": rows,
    }
    (HERE.parents[1] / "docs/figures/bench/weave.json").write_text(json.dumps(result, indent=1) + "\n")
    report(result)
    return 0 if all(bound["held"] for bound in result["bounds"]) else 1


def report(result: dict[str, Any]) -> None:
    """Print the figures as tables."""
    console = Console(highlight=False, width=160)
    console.print(", ".join(f"{key} {value}" for key, value in result["machine"].items()))
    console.print(table(result["kernels"]))
    held = Table("bound, of medians", "measured", "at most", "", box=None)
    for bound in result["bounds"]:
        state = "held" if bound["held"] else "MISSED"
        held.add_row(bound["what"], f"{bound['value']:.3g}", f"{bound['at_most']:.3g}", state)
    console.print(held)


if __name__ == "__main__":
    raise SystemExit(main())
