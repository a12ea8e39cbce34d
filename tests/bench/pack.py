"""Measure how well and how fast the hook compresses the buffers of a trace: `python -m tests.bench.pack TRACE...`.

Each method compresses all buffers of a map, interleaved with the other methods, in 4 MiB parts like the hook. Figures
are median CPU times of this thread. `write` also writes the result to a file in the folder `--out`. Before the hook
split buffers into columns, it used zstd alone, for buffers of more than 64 KiB; smaller ones weren't compressed.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gpt.base.errors import GptError
from gpt.stream import wire
from gpt.trace.buffers import COUNT
from gpt.trace.probes import Probes
from tests.runtime import packing

KINDS = "map", "kernel", "probed", "buffer"
SIZES = (0, 512, 4096, 64 << 10, 1 << 62)  # groups of buffers
LEVEL = 1
Bytes = npt.NDArray[np.uint8]
Part = tuple[Bytes, int]  # (bytes, size of a row)


def read_buffers(path: Path) -> dict[str, list[Part]]:
    """Return the buffers of a trace by map. Buffers that are missing from its files are left out."""
    probes, found = Probes(path.parent), dict[str, list[Part]]()
    with path.open("rb") as file:
        for record in wire.read_records(file, str(path)):
            if record["kind"] in KINDS:
                probes.add(record)
    for buffer in probes.take():
        try:
            data, at = buffer._parts.read(buffer.map.unit, buffer._files)
        except GptError:
            continue
        held = np.frombuffer(data, np.uint8)[at : at + buffer._parts.size].copy()
        row = packing.library().hook_pack_row(ctypes.c_uint64(buffer.map.unit or COUNT + buffer.map.stride))
        found.setdefault(buffer.map.name, []).append((held, row))
    return found


def make_ways(file: int) -> dict[str, Callable[[Bytes, int], int]]:
    """Return the methods by name. Each is a function that returns the compressed size. `write` appends to `file`."""

    def write(data: Bytes, size: int) -> int:
        return os.write(file, data[:size])

    def kept(data: Bytes, size: int) -> int:
        return size or data.nbytes

    return {
        "zstd": lambda data, row: kept(data, packing.pack(data, 0, quick=False)),
        "columns": lambda data, row: kept(data, packing.pack(data, row, quick=True)),
        "columns+zstd": lambda data, row: kept(data, packing.pack(data, row, quick=False)),
        "raw, write": lambda data, row: write(data, data.nbytes),
        "columns, write": lambda data, row: write(data, kept(data, packing.pack(data, row, quick=True))),
        "columns+zstd, write": lambda data, row: write(data, kept(data, packing.pack(data, row, quick=False))),
    }


def measure(parts: list[Part], rounds: int, folder: str) -> dict[str, dict[str, float]]:
    """Return MB/s on one core, and the compression ratio, for each method."""
    size = sum(data.nbytes for data, _ in parts)
    with tempfile.TemporaryFile(dir=folder) as file:
        ways = make_ways(file.fileno())
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        left = dict.fromkeys(ways, 0)
        for _ in range(rounds):
            for way, run in ways.items():
                os.ftruncate(file.fileno(), os.lseek(file.fileno(), 0, os.SEEK_SET))
                began = time.thread_time()
                left[way] = sum(run(data, row) for data, row in parts)
                seconds[way].append(time.thread_time() - began)
    return {way: {"mb_per_s": size / 1e6 / statistics.median(seconds[way]), "ratio": size / left[way]} for way in ways}


def main() -> None:
    """Print a line for each map and size group, and write all figures."""
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("pack.json"))
    options = parser.parse_args()
    rows = []
    for path in options.traces:
        for name, buffers in read_buffers(path).items():
            for least, most in pairwise(SIZES):
                chosen = [one for one in buffers if least <= one[0].nbytes < most]
                parts = [(data[at : at + packing.MOST], row) for data, row in chosen
                         for at in range(0, data.nbytes, packing.MOST)]  # fmt: skip
                if not parts:
                    continue
                size = sum(data.nbytes for data, _ in parts)
                ways = measure(parts, options.rounds, str(options.out.absolute().parent))
                rows.append({"trace": path.name, "map": name, "least": least, "buffers": len(chosen), "bytes": size,
                             "ways": ways})  # fmt: skip
                told = ", ".join(f"{way} {one['mb_per_s']:.0f} MB/s {one['ratio']:.2f}" for way, one in ways.items())
                print(f"{name}, from {least} bytes on: {len(chosen)} buffers, {size / 1e6:.1f} MB: {told}", flush=True)
    options.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
