"""Run Triton kernels through the pipeline on a real GPU: results are bit-identical, and counts equal closed forms.

    python3 tests/gpu/weave_triton.py [--assemble]

Triton compiles kernels of tests/tally; `gpt-extract --ptx | gpt-ptx-probe | gpt-asm` makes the probed cubins. Each is
launched on the same inputs as Triton's own cubin. Map sizes come from the records alone, as in gpt-stream(5). Global
memory bytes and tensor core operations must equal the closed forms for the shapes. `--assemble` doesn't use the GPU.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import triton  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from gpt.stream import wire  # noqa: E402
from gpt.trace.buffers import MapLayout  # noqa: E402
from tests.gpu.weave import Gpu, find  # noqa: E402
from tests.tally.triton_kernels import JOBS  # noqa: E402

PROBES = ("block_sched", "gmem_bytes", "tensorop_count")
TYPES = {"*fp32": np.float32, "*fp16": np.float16, "*i32": np.int32}
SCALARS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}
SIZE = 1 << 20  # elements of each buffer
Record = dict[str, Any]


@dataclass(frozen=True)
class Launch:
    """A job of tests/tally: its grid and scalars, the bytes that all threads load and store, and the operations."""

    job: str
    grid: tuple[int, ...]
    scalars: dict[str, int | float]
    loaded: int  # by themselves or asynchronously
    stored: int
    flops: int = 0


def product(job: str, m: int, n: int, k: int, tile: int, size: int, stored: int) -> Launch:
    """Multiply matrices whose shapes are multiples of the tiles."""
    scalars = {"m": m, "n": n, "k": k, "sam": k, "sbk": n, "scm": n}
    across, down = n // tile, m // tile
    loaded = across * down * 2 * tile * k * size
    return Launch(job, (down, across), scalars, loaded, m * n * stored, 2 * m * n * k)


def attention(job: str, length: int, heads: int, block: int, width: int) -> Launch:
    """Attend: each tile of rows reads its query and all keys and values."""
    blocks = length // block
    loaded = heads * blocks * (1 + 2 * blocks) * block * width * 2
    flops = heads * 2 * 2 * length * length * width
    return Launch(job, (blocks, heads), {"length": length, "scale": 0.1}, loaded, heads * length * width * 2, flops)


LAUNCHES = [
    Launch("add", (10,), {"n": 10_001}, 8 * 10_001, 4 * 10_001),
    Launch("add_half", (3,), {"n": 8_195}, 4 * 8_195, 2 * 8_195),
    Launch("copy", (5,), {}, 4 * 5 * 2048, 4 * 5 * 2048),
    Launch("softmax", (100,), {"stride": 1000, "n": 781}, 4 * 781 * 100, 4 * 781 * 100),
    Launch("softmax_wide", (30,), {"stride": 8192, "n": 7001}, 2 * 7001 * 30, 2 * 7001 * 30),
    Launch("layer_norm", (50,), {"stride": 2000, "n": 1501, "eps": 1e-5}, 50 * 1501 * (3 * 2 + 2 * 4),
           50 * (2 * 1501 + 4)),
    product("matmul_half", 256, 320, 128, 64, 2, 2),
    product("matmul_single", 192, 128, 96, 64, 4, 4),
    attention("attention", 256, 3, 64, 64),
    Launch("reduce_rows", (70,), {"n": 1777}, 4 * 70 * 1777, 8 * 70),
    Launch("reduce_columns", (1,), {}, 4 * 64 * 128, 4 * (64 + 128)),
    Launch("scans", (6,), {}, 8 * 6 * 512, 8 * 6 * 512),
    Launch("dropout", (9,), {"seed": 7, "p": 0.25, "n": 9001}, 4 * 9001, 4 * 9001),
    Launch("transpose", (8, 5), {"m": 500, "n": 300}, 2 * 500 * 300, 2 * 500 * 300),
    Launch("math", (11,), {"n": 5555}, 8 * 5555, 4 * 5555),
    Launch("interleave", (4,), {}, 8 * 4 * 512, 12 * 4 * 512),
    Launch("early", (9,), {"n": 3333, "limit": 100}, 4 * 3333, 4 * 3333),
]  # fmt: skip


def compile_jobs(folder: Path, arch: int) -> dict[str, Any]:
    """Compile each job with Triton, and write its cubin to JOB.cubin in the folder."""
    made = {}
    for launch in LAUNCHES:
        kernel, types, constants, options, _ = JOBS[launch.job]
        names = list(kernel.arg_names)
        aligned = {(names.index(key),): [["tt.divisibility", 16]] for key, type_ in types.items() if type_[0] == "*"}
        source = ASTSource(kernel, types | dict.fromkeys(constants, "constexpr"), constants, aligned)
        made[launch.job] = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
        (folder / f"{launch.job}.cubin").write_bytes(made[launch.job].asm["cubin"])
    return made


def pipeline(folder: Path, arch: str) -> dict[str, list[Record]]:
    """Return the records of each cubin with probes, made by this checkout's executables."""
    script = "import sys; sys.argv[0] = 'gpt-{0}'; from gpt.stages.{1} import main; sys.exit(main())"
    for stage in ("extract", "ptx-probe", "asm"):
        code = script.format(stage, stage.replace("-", "_"))
        (folder / f"gpt-{stage}").write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
        (folder / f"gpt-{stage}").chmod(0o755)
    probes = " ".join(f"-p {name}" for name in PROBES)
    line = f"gpt-extract --ptx *.cubin | gpt-ptx-probe {probes} | gpt-asm --arch {arch} --compare >probed.mp"
    env = os.environ | {
        "PATH": f"{folder}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}",
        "XDG_CACHE_HOME": str(folder / "cache"),
        "GPT_PTXAS": str(find("ptxas")),
    }
    subprocess.run(["bash", "-o", "pipefail", "-c", line], check=True, cwd=folder, env=env)
    found: dict[str, list[Record]] = {}
    with open(folder / "probed.mp", "rb") as file:
        for record in wire.read_records(file, "probed.mp"):
            if record["kind"] == "library":
                inside = found.setdefault(Path(record["path"]).stem, [])
            elif record["kind"] in ("cubin", "kernel", "map"):
                inside.append(record)
    return found


def arguments(gpu: Gpu, launch: Launch, params: int) -> tuple[list[Any], list[Any]]:
    """Return a kernel's arguments, including Triton's additional ones, and the buffers among them."""
    kernel, types, _, _, _ = JOBS[launch.job]
    random = np.random.default_rng(len(launch.job))
    values, buffers = [], []
    for name in kernel.arg_names:
        if name not in types:
            continue  # a constant
        if types[name] not in TYPES:
            values.append(SCALARS[types[name]](launch.scalars[name]))
            continue
        data = random.standard_normal(SIZE) if TYPES[types[name]] != np.int32 else random.integers(1, 1000, SIZE)
        buffers.append((gpu.put(data.astype(TYPES[types[name]]).tobytes()), SIZE * TYPES[types[name]]().itemsize))
        values.append(buffers[-1][0])
    return values + [ctypes.c_uint64(0)] * (params - len(values)), buffers


def sums(record: Record, data: bytes, blocks: int, threads: int) -> dict[str, int]:
    """Return the sum of each field of a map over all units. In a map without counts, zeros don't count as a record."""
    saved = MapLayout(record).read(data, blocks, threads)
    assert not record.get("head", 8) or (saved.counts >= 1).all(), f"{record['name']}: units without a record"
    return {name: int(saved.slots[name].astype(np.uint64).sum()) for name in saved.slots.dtype.names or ()}


def check(gpu: Gpu, launch: Launch, made: Any, records: list[Record]) -> str:
    """Run a kernel without and with probes. Raises AssertionError if a result is wrong."""
    cubin = next(record["data"] for record in records if record["kind"] == "cubin")
    woven = next(record for record in records if record["kind"] == "kernel" and "maps" in record)
    grid = (*launch.grid, 1, 1)[:3]
    block = (32 * made.metadata.num_warps, 1, 1)
    blocks = grid[0] * grid[1] * grid[2]
    outs = []
    found: dict[str, dict[str, int]] = {}
    for code, maps in ((made.asm["cubin"], []), (cubin, woven["maps"])):
        values, buffers = arguments(gpu, launch, len(woven["params"]))
        descriptions = [next(r for r in records if r["kind"] == "map" and r["id"] == number) for number in maps]
        sizes = [MapLayout(record).size(blocks, block[0]) for record in descriptions]
        places = [gpu.put(bytes(size)) for size in sizes]
        gpu.launch(code, woven["name"], grid, block, [*values, *places], made.metadata.shared)
        outs.append([gpu.take(*buffer, "a buffer") for buffer in buffers])
        for record, place, size in zip(descriptions, places, sizes, strict=True):
            found[record["name"]] = sums(record, gpu.take(place, size, record["name"]), blocks, block[0])
    assert outs[0] == outs[1], "the results differ"
    counted = found["gmem_bytes"]
    for what, count, right in (
        ("bytes loaded", counted.get("read", 0) + counted.get("async", 0), launch.loaded),
        ("bytes stored", counted["written"], launch.stored),
        ("operations", found.get("tensorop_count", {"flops": 0})["flops"], launch.flops),
    ):
        assert count == right, f"{what}: {count:,} instead of {right:,}"
    asked = f", {launch.flops:,} FLOP" if launch.flops else ""
    clocks = (found["block_sched"]["stop"] - found["block_sched"]["start"]) // blocks
    added = next(r["registers"] - r["registers_before"] for r in records if "registers_before" in r)
    said = f"{launch.loaded:,} B loaded, {launch.stored:,} B stored{asked}"
    return f"{said}, {clocks:,} clocks a block, {added:+} registers"


def main() -> int:
    """Compile, weave, run, compare, and print a table; return 1 if anything differs."""
    begin = time.monotonic()
    gpu = None if "--assemble" in sys.argv else Gpu()
    arch = int(gpu.arch[3:]) if gpu else 90
    failed = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
        made = compile_jobs(folder, arch)
        records = pipeline(folder, f"sm_{arch}")
        for launch in LAUNCHES:
            try:
                said = check(gpu, launch, made[launch.job], records[launch.job]) if gpu else "assembled"
            except AssertionError as error:
                failed, said = failed + 1, f"FAILED: {error}"
            print(f"{launch.job:14} {'x'.join(map(str, launch.grid)):6} {said}", flush=True)
    print(f"{len(LAUNCHES)} kernels of Triton {triton.__version__} on sm_{arch}, {failed} failed, "
          f"{time.monotonic() - begin:.0f} s")  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
