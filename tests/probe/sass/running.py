"""Run kernels of tests/sass/interp on the interpreter, plain and woven, and return their buffers."""

from __future__ import annotations

import os
import struct
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpt.probe.model import ProbeFile
from gpt.probe.plan.maps import PlacedMap, make_map
from gpt.probe.plan.woven import Woven
from gpt.probe.read.load import load_all
from gpt.probe.sass.snippets import Compiler
from gpt.probe.sass.weave import weave
from gpt.sass.tables import table_of
from gpt.stream.rooms import HEAD, SECTOR
from gpt.trace.buffers import MapLayout, SavedBuffer
from gpt.trace.rooms import pack_arenas
from tests import cuda
from tests.sass.interp.cases import KERNELS, Case, Words, inputs
from tests.sass.interp.launch import Launch
from tests.sass.interp.loader import LoadedCubin, load
from tests.sass.interp.memory import GlobalMemory
from tests.stream.totals_reader import read_bins, read_table, read_unit

ARCH = "sm_90"
LOG = 1 << 20  # bytes of a log, which no case fills; no case has enough blocks for a second arena


@cache
def compiler() -> Compiler:
    """Return the compiler that all tests share."""
    return Compiler(ARCH, table_of(ARCH))


@cache
def probe(name: str) -> ProbeFile:
    """Return a built-in probe, or one from a file."""
    (found,) = load_all([name])
    return found


@cache
def image(file: str) -> bytes:
    """Compile a file of kernels, or take it from the folder GPT_TEST_CUBINS. Raises FileNotFoundError without NVRTC."""
    if folder := os.environ.get("GPT_TEST_CUBINS"):
        return Path(folder, f"{file}.cubin").read_bytes()
    return cuda.nvrtc_compile((KERNELS / f"{file}.cu").read_text(), ARCH)


@cache
def loaded(file: str) -> LoadedCubin:
    """Return the file for the interpreter."""
    return load(image(file))


def woven(case: Case, *probes: str, count: bool = False) -> Woven:
    """Weave. Raises LeftAlone."""
    return weave(image(case.file), case.kernel, ARCH, [probe(name) for name in probes], compiler(), count=count)


def _with_addresses(made: Woven, memory: GlobalMemory) -> bytes:
    """Return a woven cubin into which the addresses of shared variables have been written, as a loader does it."""
    data, cubin = bytearray(made.data), load(made.data)
    shared = [one for one in made.variables if one.offset is not None]
    placed = cubin.place_variables(memory) if shared else {}
    for one in shared:
        assert one.offset is not None
        index, value = next((index, value) for name, index, value in cubin.symbols if name == one.name)
        (distance,) = struct.unpack_from("<Q", data, one.offset)
        struct.pack_into("<Q", data, one.offset, placed[index] + value + distance)
    return bytes(data)


class Result(NamedTuple):
    """The results of a launch: `out`, the bytes of each map's buffer, and the registers that were read too early."""

    out: Words
    buffers: list[bytes]
    early: list[str]


def units(case: Case, level: str) -> int:
    """Return how many threads, warps or blocks a case has."""
    each = {"thread": case.block, "warp": -(-case.block // 32), "block": 1}[level]
    return case.grid * each


def buffer_size(case: Case, placed: PlacedMap) -> int:
    """Return the bytes of a map's buffer."""
    if placed.type == "log":
        return min(LOG, HEAD + placed.capacity * SECTOR)
    return (placed.copies or units(case, placed.map.level)) * placed.unit_size


def run(
    case: Case, made: Woven | None = None, seed: int = 1, strict: bool = True, before: Result | None = None
) -> Result:
    """Run a case, with or without probes. `before` is the launch that this one repeats: the buffers begin with its
    records, and the lowest bit of their addresses says so if the map asks for it (gpt-stream(5), PROBE BUFFERS).
    """
    rng = np.random.default_rng(seed)
    memory = GlobalMemory(rng, 1 << 21)
    words, out = inputs(case)
    places = memory.allocate(words.nbytes, words.tobytes()), memory.allocate(out.nbytes, out.tobytes())
    parameters = struct.pack("<QQi", *places, case.n)
    buffers = []
    for number, (placed, added) in enumerate(zip(made.maps, made.added, strict=True) if made else ()):
        size = buffer_size(case, placed)
        buffers.append((memory.allocate(size, before.buffers[number] if before else bytes(size)), size))
        address = buffers[-1][0] | (before is not None and placed.keeps is not None)
        parameters = parameters.ljust(added.offset, b"\0") + struct.pack("<Q", address)
    cubin = load(_with_addresses(made, memory)) if made else loaded(case.file)
    launch = Launch(
        cubin, case.kernel, memory, grid=(case.grid, 1, 1), block=(case.block, 1, 1), parameters=parameters,
        rng=rng, dynamic=case.dynamic, strict=strict,
    )  # fmt: skip
    launch.run(limit=2_000_000)
    left = np.frombuffer(memory.read(places[1], out.nbytes), np.uint32)
    return Result(left, [memory.read(*one) for one in buffers], launch.early)


def saved(case: Case, placed: PlacedMap, data: bytes) -> SavedBuffer:
    """Return the contents of a log."""
    return MapLayout(make_map(0, placed)).read(pack_arenas(data, placed.capacity), case.grid, case.block)


def entries(case: Case, placed: PlacedMap, data: bytes) -> list[dict[str, int]]:
    """Return the entries of a log, one warp after the other."""
    found = saved(case, placed, data)
    names = found.slots.dtype.names or ()
    assert found.units is not None and not found.dropped
    rows = zip(found.units, found.slots, strict=True)
    return [{"unit": int(unit), **{name: row[name].item() for name in names}} for unit, row in rows]


def _dtype(placed: PlacedMap, head: int) -> np.dtype:
    """Return the type of a record with `head` bytes in front of its fields."""
    return np.dtype({
        "names": [field.name for field in placed.map.fields],
        "formats": [f"<{field.type[0].replace('s', 'i').replace('b', 'u')}{field.size}" for field in placed.map.fields],
        "offsets": [head + field.offset for field in placed.map.fields],
        "itemsize": head + placed.map.stride,
    })  # fmt: skip


def records(case: Case, placed: PlacedMap, data: bytes) -> list[tuple[int | None, list[dict[str, Any]]]]:
    """Return each unit's count, if it has one, and its records, with fields by name; for a histogram, its bins.

    For a table, the first count is the number of values that didn't fit; then follows a record for each key.
    """
    if placed.type == "histogram":
        bins = read_bins(make_map(0, placed), data)
        return [(None, [{"low": low, "high": high, "count": count} for low, high, count in bins])]
    if placed.type == "table":
        rows, dropped = read_table(make_map(0, placed), data)
        return [(dropped, []), *((count, [{"key": key, **fields}]) for key, (count, fields) in sorted(rows.items()))]
    units = [data[start : start + placed.unit_size] for start in range(0, len(data), placed.unit_size)]
    if placed.type == "total":
        found = [read_unit(make_map(0, placed), unit) or (None, {}) for unit in units]
        return [(count, [fields] if fields else []) for count, fields in found]
    dtype = _dtype(placed, 0)
    rows = [np.frombuffer(unit, dtype, placed.capacity, placed.head) for unit in units]
    values = [[{name: row[name].item() for name in dtype.names or ()} for row in some] for some in rows]
    return [(int.from_bytes(unit[:8], "little"), some) for unit, some in zip(units, values, strict=True)]
