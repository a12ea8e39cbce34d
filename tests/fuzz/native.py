"""Fuzz the C code: each target has a harness (fuzz_NAME.c), built with sanitizers.

With clang and its libFuzzer, they're guided by coverage. Otherwise driver.c, built by the system's compiler, changes
inputs at random. `make test` always uses driver.c, whose inputs are the same each time.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import subprocess
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.fuzz.engine import ROOT, Result, Sample, saved

HERE = Path(__file__).parent
FLAGS = (
    "-std=gnu11", "-D_GNU_SOURCE", "-O1", "-g", f"-I{ROOT}/runtime", f"-I{ROOT}/runtime/arch/x86_64",
    "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-ffunction-sections", "-fno-pie", "-no-pie",
)  # fmt: skip
NOWHERE = 16  # the address of symbols that no input reaches: using one crashes


@dataclass(frozen=True)
class Harness:
    """A harness, its initial inputs, and how many inputs `make test` generates."""

    name: str
    seeds: Callable[[Sample], list[bytes]]
    quick: int = 2000


def build(harness: Harness, folder: Path, guided: bool) -> Path:
    """Build the executable; `guided` by libFuzzer. Raises CalledProcessError if it can't be built."""
    out = folder / f"{harness.name}{'.guided' if guided else ''}"
    compiler = ["clang", "-fsanitize=fuzzer"] if guided else [os.environ.get("CC", "cc")]
    source, made = HERE / f"fuzz_{harness.name[2:]}.c", out.with_suffix(f"{out.suffix}.o")
    _run(*compiler, *FLAGS, "-c", source, "-o", made)
    missing = re.findall(r"\b(?:gpt|hook)_\w+", _run("nm", "-u", made))
    stubs = [f"-Wl,--defsym={name}={NOWHERE}" for name in missing]
    _run(*compiler, *FLAGS, "-Wl,--gc-sections", made, *([] if guided else [HERE / "driver.c"]), *stubs, "-o", out)
    return out


def _run(*command: str | Path) -> str:
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout


@cache
def why_not(folder: Path, guided: bool = False) -> str | None:
    """Return the reason why no harness can be built here, or None if one can."""
    compiler = "clang" if guided else os.environ.get("CC", "cc")
    if not shutil.which(compiler):
        return f"no {compiler}" + (" (Debian: apt-get install clang libclang-rt-14-dev)" if guided else "")
    source = folder / "probe.c"
    source.write_text("int LLVMFuzzerTestOneInput(void) { return 0; }" if guided else "int main(void) { return 0; }")
    flags = ["-fsanitize=fuzzer,address,undefined" if guided else "-fsanitize=address,undefined"]
    command = [compiler, *flags, str(source), "-o", str(folder / "probe")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{compiler} has no {'libFuzzer' if guided else 'sanitizers'}" if done.returncode else None


def run(
    harness: Harness, sample: Sample, folder: Path, failures: Path, *, seed: str, guided: bool,
    count: int | None = None, seconds: float | None = None,
) -> Result:  # fmt: skip
    """Run `count` inputs, or as many as `seconds` allow, until one fails. The failing input is
    saved with its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    failures.mkdir(parents=True, exist_ok=True)
    corpus, grown = folder / "seeds", folder / "corpus"
    for path in (corpus, grown):
        path.mkdir(exist_ok=True)
    for number, data in enumerate(harness.seeds(sample)):
        (corpus / f"{number:03}").write_bytes(data)
    program = build(harness, folder, guided)
    result = Result(harness.name, corpus=len(list(corpus.iterdir())))
    number, end = int.from_bytes(seed.encode()[-6:], "little") % (1 << 31), time.monotonic() + (seconds or 0)
    while True:
        bound = [f"-runs={count or (-1 if guided else 20_000)}"]
        if guided and seconds:
            bound += [f"-max_total_time={max(1, int(end - time.monotonic()))}", "-print_final_stats=1", "-timeout=25"]
        prefix = f"-artifact_prefix={folder}/"
        command = [program, *bound, f"-seed={number}", prefix, *([grown] if guided else []), corpus]
        done = subprocess.run(list(map(str, command)), capture_output=True, check=False, cwd=folder)
        said = done.stderr.decode(errors="replace")
        _count(result, said, count or 20_000, guided, grown)
        if done.returncode:
            _save(harness, folder, failures, said or f"status {done.returncode}")
        number += 1
        if done.returncode or not seconds or time.monotonic() >= end:
            break
    result.failures = sorted(saved(harness.name, failures))
    return result


def _count(result: Result, said: str, count: int, guided: bool, grown: Path) -> None:
    if not guided:
        result.executions += count
        return
    result.executions += int((re.findall(r"number_of_executed_units: (\d+)", said) or re.findall(r"^#(\d+)", said, re.M)
                              or ["0"])[-1])  # fmt: skip
    result.lines = int((re.findall(r"cov: (\d+)", said) or ["0"])[-1])
    result.corpus = len(list(grown.iterdir()))


def _save(harness: Harness, folder: Path, failures: Path, said: str) -> None:
    """Save the failing input, named after the place of the failure."""
    found = re.findall(r"SUMMARY: .*|runtime error: .*|ERROR: .*", said) or [said[-200:]]
    name = f"{harness.name}-{zlib.crc32(found[-1].encode()):010x}"
    (failures / f"{name}.txt").write_text(said[-8000:])
    inputs = [path for path in folder.iterdir() if re.match(r"(crash|timeout|oom|leak)", path.name)]
    (failures / name).write_bytes(inputs[0].read_bytes() if inputs else b"")
    for path in inputs:
        path.unlink()


def repeat(harness: Harness, folder: Path, data: bytes) -> str | None:
    """Run one input again; return what's wrong, or None."""
    (folder / "input").write_bytes(data)
    program = build(harness, folder, guided=False)
    done = subprocess.run([program, folder / "input"], capture_output=True, text=True, check=False, cwd=folder)
    return done.stderr or f"status {done.returncode}" if done.returncode else None


# Inputs


def _small(sample: Sample) -> list[bytes]:
    return [sample(name).read_bytes()[: 1 << 16] for name in ("small", "cubin", "fatbin", "ptx")]


def _follow(sample: Sample) -> list[bytes]:
    """Return chunks of a trace, with rows aligned in one of eight ways."""
    from gpt.stream import records, wire
    from tests.trace import forge

    api, child = forge.api(1, "cuMemAlloc"), records.make("child", pid=3, how="fork", path="x")
    calls = forge.calls([(1000 + n, n % 2, 1, 0, 1, 2, 3, 4) for n in range(4)], forge.MEMORY)
    rest = [forge.launches({1: 3}), forge.gpu_times([(1001, 4, 2, 0)]), records.make("end", records=5, status=0)]
    first = forge.pack(forge.trace(end=False)) + wire.pack(api) + wire.pack(child)
    made = []
    for pad in range(8):
        chunks = [first + bytes(pad) + wire.pack(calls), bytes(pad) + b"".join(map(wire.pack, rest))]
        sized = b"".join(struct.pack("<H", len(chunk)) + chunk for chunk in chunks)
        made += [bytes([1, doing]) + sized for doing in (pad, 0x34, 0x3D)]
    for offset in ((1 << 32) - 8, (1 << 64) - 8, 8):  # a field that ends outside of its row
        field = {"name": "count", "type": "u64", "offset": offset}
        record = wire.pack({"kind": "x-counts", "fields": [field], "stride": 8, "rows": b"\1" * 64})
        chunk = first + bytes(-(34 + len(first) + len(record) - 64) % 8) + record
        made.append(bytes([0, 0]) + struct.pack("<H", len(chunk)) + chunk)
    return made


def _needs(sample: Sample) -> list[bytes]:
    """Return traces of a run with --memusage, in which the ids of one kernel differ between segments."""
    from gpt.stream import records
    from tests.trace import forge

    functions = [records.make("function", id=n, name=name) for n, name in ((1, "_Z3onePf"), (2, "two"), (3, "two"))]
    used = [records.make("memusage", function=n, launches=2, bytes=700 * n, most=400 * n) for n in (3, 2, 1)]
    plain, other = forge.trace(*functions, *used), forge.trace(*used[:1], {**functions[0], "id": 3}, end=False)
    chunk = records.make("chunk", used=len(forge.pack(plain)), data=forge.pack(plain) + bytes(20))
    cut = b"\x8a\xa4"  # ends before the first key, which is as long as "kind"
    return [cut, forge.pack(plain), forge.pack(other, plain), forge.pack([plain[0], chunk, *other])]


def _libraries(sample: Sample) -> list[bytes]:
    """Return files: program headers with the notes that they refer to."""
    note = struct.pack("<III", 4, 20, 3) + b"GNU\0" + bytes(range(20))
    headers = struct.pack("<IIQQQQQQ", 4, 4, 0, 56, 56, len(note), len(note), 4)
    return [*_small(sample), headers + note, headers + struct.pack("<III", 5, 3, 1) + b"abcde\0\0\0xyz\0" + note]


def _names(sample: Sample) -> list[bytes]:
    names = ["cuMemAlloc_v2", "cuMemcpyHtoDAsync_v2_ptsz", "cuLaunchKernelEx_ptsz", "cuNew_v", "%p-%h.%r%%", "x%",
             "all,-kernel,query,cuMem*,-cu[a-z]*", "-query"]  # fmt: skip
    return [name.encode() for name in names]


def _tables(sample: Sample) -> list[bytes]:
    """Yield the C library's unwind tables, from the search table on, together with addresses of functions that they
    cover.
    """
    from gpt.formats.elf import parse_elf
    from gpt.formats.source import Source

    path = next(line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libc.so" in line)
    data = Path(path).read_bytes()
    (table,) = parse_elf(Source(path, data)).named(".eh_frame_hdr")
    (frames,) = parse_elf(Source(path, data)).named(".eh_frame")
    (count,) = struct.unpack_from("<I", data, table.offset + 8)
    made = []
    for number in range(0, count, max(1, count // 12)):  # each table is for one function, with its two entries
        begin, at = struct.unpack_from("<ii", data, table.offset + 12 + 8 * number)
        place = table.offset + at
        length, back = struct.unpack_from("<II", data, place)
        common = place + 4 - back
        (size,) = struct.unpack_from("<I", data, common)
        first, second = data[common : common + 4 + size], data[place : place + 4 + length]
        head = struct.pack("<BBBBiIii", 1, 0x1B, 3, 0x3B, 0, 1, begin, 20 + len(first))
        second = second[:4] + struct.pack("<I", len(first) + 4) + second[8:]
        made += [struct.pack("<i", begin + far) + head + first + second for far in (0, 5, 40)]
    assert frames.size and made
    return made


def _woven(count: int) -> bytes:
    """Return a pipeline's answer about a kernel with this many maps."""
    from gpt.stream import records, wire

    field = {"name": "x", "type": "u64", "offset": 0}
    maps = [
        records.make(
            "map",
            id=4 + n,
            name="m",
            type=type_,
            level=level,
            capacity=2 * n,
            wanted=2,
            stride=8,
            fields=[field],
            stored=["each"] if type_ == "log" else None,
        )
        for n, (type_, level) in enumerate([("array", "warp"), ("log", "thread"), ("total", "block")][:count])
    ]
    added = [{"offset": 8 + 8 * n, "size": 8, "map": 4 + n} for n in range(count)]
    variables = [
        {"name": "a", "space": "global", "size": 4, "offset": 0},
        {"name": "b", "space": "const", "size": 4, "copy": "taken"},
    ]
    kernel = records.make(
        "kernel", id=1, name="foo", params=[{"offset": 0, "size": 4}], added=added, maps=[m["id"] for m in maps],
        sites=[], variables=variables, table="t", **({} if count else {"code": "no_place", "detail": "no site"}),
    )  # fmt: skip
    ptx = records.make("ptx", id=1, module="m#0", arch="sm_80", kernels=["foo"], data=b"x")
    cubin = records.make("cubin", id=1, module="m#0", arch="sm_90", kernels=["foo"], data=b"code", original=b"plain")
    numbers = records.make("kernel", id=1, name="foo", arch="sm_90", registers=7)
    diag = records.make("diag", level="error", where="m", text="no")
    return b"".join(map(wire.pack, [ptx, cubin, numbers, *maps, kernel, diag]))


HARNESSES = [
    Harness("c-follow", _follow, quick=300),
    Harness("c-images", _small),
    Harness("c-libs", _libraries),
    Harness("c-msgpack", lambda sample: [bytes([0, 1, n, 9]) + b"012345678" * 20 for n in range(8)]),
    Harness("c-names", _names),
    Harness("c-needs", _needs),
    Harness("c-refuse", lambda sample: [*_small(sample), b"#! /bin/sh -x\n", b"#!\n"]),
    Harness("c-replace", lambda sample: [*_small(sample), b"$ORIGIN/../libfoo.so.1", b"/x/${ORIGIN}/y"]),
    Harness("c-sim", _small),
    Harness("c-unwind", _tables),
    Harness("c-woven", lambda sample: [_woven(maps) for maps in (0, 1, 3)]),
]
