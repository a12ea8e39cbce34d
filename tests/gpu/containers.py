"""Slim the GPU code that stock PyTorch's libraries keep in containers of their own; compare sizes and results on a real
GPU.

    python3 tests/gpu/containers.py [--seconds 560] [--results FILE] [--device sim]

Run this by hand where torch is installed. First it runs tests/gpu/operations.py (cuFFT, cuBLASLt, cuSPARSELt, cuSPARSE,
cuDNN, cuSOLVER) twice under gpt-hook; results that differ between these two runs aren't compared. Then it slims the
libraries with --scan, in three ways: keep the code that the device could run (`arch`), the used elements, or the used
kernels. The program runs with each set in place of the installed libraries, loading code lazily and eagerly. Raw
figures go to GPT_GPU_OUT/containers.json: size of each library, bytes on disk, cuts outside the usual sections, and
which images were recorded from memory.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from debloat import HERE, Bench, OutOfTime, measure, shown

from gpt.formats.image import FATBIN_SECTIONS
from gpt.trace.used import IN_MEMORY, read_used

COMMAND = [sys.executable, str(HERE / "operations.py")]
KINDS = {  # name -> options of gpt-locate and gpt-patch
    "arch": ("--keep .", ""),
    "element": ("", ""),
    "drop": ("--granularity kernel", "--kernels drop"),
}
SIZES = ("size_before", "size_after", "disk_before", "disk_after", "gpu_before", "gpu_after")


def used_by(trace: Path) -> list[str]:
    """Return gpt-locate's options. The trace of a CPU-only run names no device, so the architecture is given."""
    known = read_used([trace], allow_incomplete=False).devices
    return ["--used", str(trace), *([] if known else ["--arch", "sm_90"])]


def slim(bench: Bench, listing: Path, trace: Path, folder: Path, kind: str) -> dict[str, Any]:
    """Run the pipeline on gpt-extract's output; return each library's size and the total."""
    locate, patch = KINDS[kind]
    used = " ".join(used_by(trace))
    line = f"gpt-locate {used} {locate} '{listing}' | gpt-patch -o '{folder}' --json {patch}"
    out, err = bench.run(["bash", "-o", "pipefail", "-c", line], what=f"slimming, {kind}")
    patched = [r for r in map(json.loads, out.splitlines()) if r["kind"] == "patched"]
    libraries = {
        Path(r["library"]).name: {key: r[key] for key in (*SIZES, "mode", "reason") if key in r} for r in patched
    }
    return {key: sum(r[key] for r in patched) for key in SIZES} | {"libraries": libraries, "warnings": err[-2000:]}


def found_outside(bench: Bench, listing: Path, trace: Path) -> dict[str, Any]:
    """Return the elements outside fatbin sections by library, and the trace records that name them."""
    used = read_used([trace], allow_incomplete=False)
    out, _ = bench.run(["gpt-locate", "--json", *used_by(trace), str(listing)], what="listing")
    elements: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    images, names = set(), set()
    for record in map(json.loads, out.splitlines()):
        if record["kind"] != "element":
            continue
        kernels = {kernel["name"] for kernel in record["kernels"] if isinstance(kernel["name"], str)}
        names |= kernels & used.names.keys()
        if record.get("section") not in FATBIN_SECTIONS:
            key = f"{Path(record['library']).name} {record.get('section')} {record['type']} {record['arch']}"
            elements[key] += 1
            sizes[key] += record["header_size"] + record["payload_size"]
            images |= {record["sha256"]} & used.images.keys() if "sha256" in record else set()
    made = sorted(name for name, origin in used.names.items() if origin == IN_MEMORY and name not in names)
    return {
        "elements": {key: [elements[key], sizes[key]] for key in sorted(elements)},
        "images from memory": len(used.images),
        "of them found in a library": len(images),
        "kernels from memory that no library holds": made,
    }


def compare(row: dict[str, Any], what: str, first: str, lines: set[str], out: str) -> None:
    """Add the lines that should be the same as in the first run, but aren't."""
    pairs = zip(first.splitlines(), out.splitlines(), strict=False)
    differ = [new for old, new in pairs if old in lines and old != new]
    if len(out.splitlines()) != len(first.splitlines()):
        differ.append(f"{len(out.splitlines())} lines")
    if differ:
        row["differences"][what] = differ


def check(bench: Bench, row: dict[str, Any]) -> None:
    """Run all steps, and fill in the row."""
    trace, listing = bench.folder / "operations.mp", bench.folder / "listing.mp"
    first, _ = bench.run([*bench.hook(trace.name), *COMMAND], what="the recorded run")
    second, plain = measure(bench, COMMAND, [], "lazy", "the original, lazily")
    lines = set(first.splitlines()) & set(second.splitlines())
    row |= {"operations": len(first.splitlines()), "unsteady": sorted(set(first.splitlines()) - lines)}
    row |= {"errors": [line for line in first.splitlines() if "Error: " in line], "differences": {}, "sizes": {}}
    row["runs"] = {"original lazy": plain}
    bench.say(f"{row['operations']} operations, of which {len(row['unsteady'])} differ by themselves")
    line = f"gpt-extract --scan --loaded '{trace}' > '{listing}'"
    bench.run(["bash", "-c", line], what="gpt-extract")
    row["outside"] = found_outside(bench, listing, trace)
    bench.say(f"images from memory: {row['outside']['images from memory']}")
    for kind in ("original", *KINDS):
        options: list[str] = []
        if kind != "original":
            row["sizes"][kind] = slim(bench, listing, trace, bench.folder / kind, kind)
            sizes = row["sizes"][kind]
            less = 100 * (1 - sizes["size_after"] / sizes["size_before"])
            bench.say(f"{kind}: files {sizes['size_before']} to {sizes['size_after']} bytes (-{less:.1f} %)")
            options = ["--replace", str(bench.folder / kind)]
        for loading in ("lazy", "eager"):
            what = f"{kind} {loading}"
            out, facts = measure(bench, COMMAND, options, loading, what)
            compare(row, what, first, lines, out)
            row["runs"][what] = facts
            bench.say(f"{what}: {'DIFFERS' if what in row['differences'] else 'same'} " + " ".join(shown(facts)))


def main(words: list[str] | None = None) -> int:
    """Slim the containers, compare results, and print a table."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--seconds", type=float, default=560, help="how long all of it may take")
    options.add_argument("--results", type=Path, help="the file to write")
    options.add_argument("--device", choices=("real", "sim"), default="real", help="as in gpt-hook; sim: on the CPU")
    args = options.parse_args(words)
    results = args.results or Path(os.environ.get("GPT_GPU_OUT", "build/gpu")).resolve() / "containers.json"
    results.parent.mkdir(parents=True, exist_ok=True)
    row: dict[str, Any] = {"name": "containers"}
    with tempfile.TemporaryDirectory() as temporary:
        bench = Bench(Path(temporary), args.seconds, args.device, results.parent)
        if args.device == "sim":
            COMMAND.append("cpu")
            os.environ["GPT_SIM_RUN"] = "none"  # the libraries only have cubins
        try:
            check(bench, row)
        except (OutOfTime, RuntimeError) as error:
            row["error"] = f"{type(error).__name__}: {error}"
    results.write_text(json.dumps(row, indent=1) + "\n")
    print(*(f"{key}: {row[key]}" for key in ("unsteady", "errors", "differences", "error") if row.get(key)), sep="\n")
    for kind, sizes in row.get("sizes", {}).items():
        for name, size in sorted(sizes["libraries"].items()):
            words = [f"{size[key] / 1e6:9.1f}" for key in SIZES]
            print(f"{kind:8}{name:40}{' '.join(words)} MB {size['mode']} {size.get('reason', '')}")
    good = not row["differences"] and "error" not in row if "differences" in row else False
    print("ok" if good else "FAILED")
    return not good


if __name__ == "__main__":
    raise SystemExit(main())
