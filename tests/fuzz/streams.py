"""Readers of streams, traces and other tools' files: the stages, each run as a whole."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpt.stages.analyze import ANALYSES
from gpt.stream import records, wire
from tests.asm import fake
from tests.fuzz import words
from tests.fuzz.engine import Sample, Target
from tests.fuzz.mutate import pack, record_mutator, text_mutator, unpack
from tests.fuzz.patched import patch
from tests.fuzz.stages import call, fits, stage_main


def furnish(sample: Sample) -> None:
    """Create files and other objects that paths in records may name."""
    if not Path("folder").exists():
        Path("folder").mkdir()
        os.mkfifo("fifo")
        with socket.socket(socket.AF_UNIX) as there:
            there.bind("socket")
        for name in ("zstd", "small", "relocatable"):
            shutil.copy(sample(name), f"{name}.so")
        Path("names.txt").write_text("_Z3onePf\n")
        shutil.copy(sample("cubin"), "one.cubin")


def extracted(sample: Sample, *args: str) -> bytes:
    furnish(sample)
    return call(stage_main("extract"), "gpt-extract", "-j1", *args).out


def extract_seeds(sample: Sample) -> list[bytes]:
    return [extracted(sample, "zstd.so"), extracted(sample, "small.so", "relocatable.so", "one.cubin")]


def module_seeds(sample: Sample) -> list[bytes]:
    furnish(sample)
    code, text = Path("one.cubin").read_bytes(), sample("ptx").read_bytes()
    digest = hashlib.sha256(code).hexdigest()
    found = [
        records.make("module", id=1, type="cubin", sha256=digest, data=code),
        records.make("module", id=2, type="cubin", path="one.cubin", offset=0, size=len(code)),
        records.make("module", id=3, type="ptx", data=text),
    ]
    return [b"".join(map(wire.pack, [wire.header("t", []), *found, records.make("end", records=3, status=0)]))]


def locate_seeds(sample: Sample, *args: str) -> list[bytes]:
    args = ("--used", "names.txt", "--arch", "sm_90", *args)
    return [call(stage_main("locate"), "gpt-locate", *args, data=data).out for data in extract_seeds(sample)]


def kernel_seeds(sample: Sample) -> list[bytes]:
    return locate_seeds(sample) + locate_seeds(sample, "--granularity", "kernel")


def ptx_stream_seeds(sample: Sample) -> list[bytes]:
    plain = extracted(sample, "--ptx", "zstd.so")
    return [plain, call(stage_main("ptx_probe"), "gpt-ptx-probe", "-p", "dmat", data=plain).out]


def cubin_stream_seeds(sample: Sample) -> list[bytes]:
    return [extracted(sample, "--payload", "--type", "cubin", name) for name in ("one.cubin", "zstd.so")]


def stage(name: str, *variants: tuple[str, ...]) -> Callable[[bytes], None]:
    """Return a filter for streams, run with one of several command lines."""

    def run(data: bytes) -> None:
        args = fits(data, *variants)
        call(stage_main(name), f"gpt-{name.replace('_', '-')}", *args, data=data)

    return run


DEEP = 1 << 20  # nesting limit for values that no record can have
ASM = ("--ptxas", "./ptxas", "--no-cache", "-j1", "--arch", "sm_90")


def asm_seeds(sample: Sample) -> list[bytes]:
    found = ptx_stream_seeds(sample)
    fake.ptxas(Path.cwd(), f'cp {Path.cwd()}/one.cubin "$out"')
    return found


def to_json(found: list[Any]) -> bytes:
    """Return records as JSON lines; values that no record can have are written as plain JSON."""
    import json

    from gpt.stream import jsonl

    return b"".join(json.dumps(jsonl.encode(value, DEEP)).encode() + b"\n" for value in found)


def json_mutate(rng: Any, data: bytes, corpus: Any) -> bytes:
    """Change lines as records or as text."""
    if rng.random() < 0.6:
        return _json_records(rng, data, corpus)
    lines = to_json(unpack(data))
    return json_text(rng, lines, [lines])


_json_records = record_mutator(to_json)
json_text = text_mutator(*words.JSON)


def trace_seeds(sample: Sample) -> list[bytes]:
    from tests.trace import forge

    furnish(sample)
    apis = [forge.api(n, name) for n, name in enumerate(forge.TYPES, 1)]
    memory = [(1000 + 9 * i, 5, 1 + i % 4, 0, 1, 2, 4096, 0) for i in range(9)]
    objects = [(5000 + 9 * i, 5, 8, 0, 77, 0) for i in range(3)]
    inner = [
        *apis, records.make("clock", monotonic=500, tsc=900),
        records.make("library", path="zstd.so", type="elf", size=os.stat("zstd.so").st_size, gpu=1),
        records.make("device", index=0, name="H200", arch="sm_90", runs="sass"),
        records.make("module", id=1, type="fatbin", path="zstd.so", offset=4096, size=64),
        records.make("function", id=1, module=1, name="_Z3onePf"),
        records.make("lookup", module=1, what="enumerate"),
        records.make("child", pid=11, how="fork", path="child.mp"),
        forge.calls(memory, forge.MEMORY), forge.calls(objects, forge.OBJECT),
        forge.calls([forge.launch(7000, 9, 5, 1)], forge.LAUNCH), forge.launches({1: 3}),
        forge.gpu_times([(1001, 4, 2, 0), (7005, 5, 5, 1)]),
        records.make("graph", exec=77, at=1, nodes=1, functions=[1], launches=[2], unknown=1, device=1, operations=[
            {"type": "memcpy", "op": "HtoD", "nodes": 1, "bytes": 4096},
            {"type": "memory", "op": "alloc", "nodes": 1, "bytes": 4096, "address": 1 << 32},
        ]),
        records.make("ioctl", thread=1, device="/dev/nvidia0", request=7, name="NV_ESC", start=1100, duration=3),
        records.make("range", id=1, type="push", thread=1, name="step", start=900),
        records.make("range_end", id=1, thread=1, end=1900),
        forge.probe_map("block_sched", 1, **forge.BLOCK_SCHED),
        forge.probe_map("gmem_bytes", 2, "total", **forge.GMEM_BYTES),
        forge.kernel(1, 1, "_Z3onePf", 1, 2), forge.probed(1, 1, 1, 3, 32),
        forge.buffer(1, struct.pack("<QQQII", 1, 5000, 900, 70, 4) * 3),
        forge.buffer(1, struct.pack("<6Q", 32, 1, 2, 3, 4, 5) * 3, 2),
        records.make("times", launch=1, prologue=800, epilogue=90, kernel=4000, original=3000),
        records.make("memusage", function=1, launches=2, bytes=700, most=400),
        records.make("unprobed", function=1, launches=2, code="no_ptx"), records.make("sync", id=1),
    ]  # fmt: skip
    inner += watched()
    plain = forge.pack(forge.trace(*inner))
    chunked = forge.pack(forge.trace(end=False)) + forge.chunk(forge.pack(inner))[: 34 + len(plain)]
    small = records.make("chunk", used=len(forge.pack(inner)), data=forge.pack(inner) + bytes(20))
    return [plain, chunked, forge.pack(forge.trace(small)), forge.pack(forge.trace(*inner), forge.trace(end=False))]


def watched() -> list[dict[str, Any]]:
    """Return what --node-times, --layers, --sample-host, --tensors and ranges of warps record."""
    from tests.trace import forge
    from tests.trace.logs import RingLane, write_ring

    nodes = {"functions": [1, 1], "threads": [1, 1], "calls": [900, 7000]}
    frames = [{"path": "/a.py", "offset": 0, "function": "f", "line": 3}, {"path": "zstd.so", "offset": 64}]
    fields = {"clock": "u64", "sm": "u32", "range": "u32", "number": "u32"}
    tiles = forge.probe_map("tiles", 3, "log", capacity=1 << 20, **fields)
    tiles |= {"stored": ["clock", "sm", "shared", "shared"], "ring": 4, "ranges": ["load", "barrier"]}
    lane = RingLane(0, 3, [(1000, 0, 0), (1200, 1, 0), (1300, 2, 0), (1400, 3, 0)], 499_500, 0.5)
    return [
        records.make("graph_nodes", exec=77, at=1, **nodes),
        records.make("node_times", exec=77, thread=1, start=5000, begin=5000, pause=1, types=[0, 1], early=[0, 1],
                     begins=[0, 9], durations=[8, 9], **nodes),
        records.make("untimed", exec=77, at=6000, code="nodes_parallel", detail="2"),
        records.make("range", id=2, type="push", thread=1, domain="gpt.layers", name="layers.0", start=900),
        records.make("range", id=3, type="push", thread=1, name="decode 1", start=4000),
        *(records.make("range_end", id=number, thread=1, end=8000) for number in (2, 3)),
        *(records.make("stack", id=number, frames=[frame]) for number, frame in enumerate(frames, 1)),
        records.make("call_site", thread=1, start=1000, stack=2, python=1),
        records.make("sample", thread=1, at=1500, python=1, native=2, syscall=202, changed=1),
        records.make("tensor", id=1, at=1000, thread=1, name="w", address=4096, bytes=64, dtype="f32", shape=[4, 4]),
        records.make("tensor_end", id=1, at=9000),
        records.make("recording", on=False, at=5500), records.make("recording", on=True, at=5600),
        records.make("dropped", count=3, what="events", reason="x"),
        tiles, forge.kernel(2, 1, "_Z3onePf", 3), forge.probed(2, 2, 1, 1, 32),
        forge.buffer(2, write_ring(4, [[lane]]), 3),
    ]  # fmt: skip


def locate_used(data: bytes) -> None:
    """Run gpt-locate on each form of a list of used kernels; the bytes choose the form."""
    Path("used").write_bytes(data)
    args = fits(data, (), ("--allow-incomplete",), ("--trace-json", "trace.json"), ("--granularity", "kernel"))
    arch = ("--arch", "sm_90") if len(data) % 2 else ()
    call(stage_main("locate"), "gpt-locate", "--used", "used", *arch, *args, data=Path("stream.mp").read_bytes())


def used_seeds(sample: Sample) -> list[bytes]:
    Path("stream.mp").write_bytes(extract_seeds(sample)[0])
    return trace_seeds(sample)


def negativa_seeds(sample: Sample) -> list[bytes]:
    Path("stream.mp").write_bytes(extract_seeds(sample)[0])
    return [b'{"loaded_sos": ["/a/b.so"], "detected_kernels": ["_Z3onePf", "two"]}\n', b"_Z3onePf\n# a comment\n two\n"]


def read_spans(data: bytes) -> None:
    Path("zstd.so.json").write_bytes(data)
    call(stage_main("locate"), "gpt-locate", "--spans-json", "zstd.so.json", data=Path("stream.mp").read_bytes())


def spans_seeds(sample: Sample) -> list[bytes]:
    Path("stream.mp").write_bytes(extract_seeds(sample)[0])
    return [b'{"so_path": "zstd.so", "spans": [{"start": 5000, "end": 6000}, {"start": 7000, "end": 9000}]}\n']


def extract_loaded(data: bytes) -> None:
    Path("loaded").write_bytes(data)
    call(stage_main("extract"), "gpt-extract", "-j1", "--loaded", "loaded")


def answer_seeds(sample: Sample) -> list[bytes]:
    seeds = trace_seeds(sample)
    return [call(stage_main("analyze"), "gpt-analyze", "summary", "--stream", data=data).out for data in seeds]


changed = record_mutator(pack)
TRACE = (("summary",), ("summary", "--json"), ("events", "--json"), ("summary", "--format", "md"),
         ("block_sched", "--json"), ("gmem_bytes",), ("overhead",), ("memusage",))  # fmt: skip
OTHERS = set(ANALYSES) - {name for name, *_ in TRACE} - {"diff", "export"}  # these two need arguments
MADE = (("timeline", "--format", "all", "-o", "made"), ("export", "--format", "sqlite", "-o", "made"),
        ("export", "--format", "parquet", "-o", "made.tables"), ("summary", "--plot", "made.svg"))  # fmt: skip
SHOWN = (("summary",), ("summary", "--json"), ("summary", "--format", "md"), ("summary", "--format", "csv"))
STREAMS = [
    Target("extract", module_seeds, stage("extract", *[
        ("-j1", *more) for more in ((), ("--ptx",), ("--json",))
    ]), changed, quick=150),
    Target("extract-loaded", trace_seeds, extract_loaded, changed, quick=60),
    Target("locate", extract_seeds, stage("locate", *[
        ("--used", "names.txt", "--arch", "sm_90", *more)
        for more in ((), ("--json",), ("--granularity", "kernel"), ("--spans-json", "spans"), ("--keep", "o"))
    ]), changed, quick=60),
    Target("locate-used", used_seeds, locate_used, changed, quick=100),
    Target("locate-names", negativa_seeds, locate_used, json_text, quick=60),
    Target("locate-spans", spans_seeds, read_spans, json_text, quick=60),
    Target("patch", kernel_seeds, patch, changed, quick=30),
    Target("patch-table", kernel_seeds, stage("patch", ("-n", "-o", "slim", "--table")), changed, quick=30),
    Target("ptx-probe", ptx_stream_seeds, stage("ptx_probe", ("-p", "dmat"), ("-p", "block_sched")), changed, quick=15),
    Target("sass-probe", cubin_stream_seeds, stage("sass_probe", *[
        ("--explain", *more) for more in ((), ("-p", "gmem_bytes"), ("--table",))
    ]), changed, quick=30),
    Target("asm", asm_seeds, stage("asm", ASM, (*ASM, "--fatbin", "--save", "made"), (*ASM, "--compare")), changed,
           quick=4),
    Target("analyze", trace_seeds, stage("analyze", *TRACE), changed, quick=100),
    Target("analyses", trace_seeds, stage("analyze", *[(name,) for name in sorted(OTHERS)]), changed, quick=100),
    Target("exports", trace_seeds, stage("analyze", *MADE), changed, quick=30),
    Target("answers", answer_seeds, stage("analyze", *SHOWN), changed, quick=60),
    Target("jsonl-answers", answer_seeds, stage("analyze", *[
        (*variant, "--from-json") for variant in SHOWN
    ]), json_mutate, quick=60),
    Target("jsonl", kernel_seeds, stage("patch", ("--from-json", "-n", "-o", "slim")), json_mutate, quick=60),
    Target("jsonl-trace", trace_seeds, stage("analyze", *[
        (*variant, "--from-json") for variant in TRACE
    ]), json_mutate, quick=60),
]  # fmt: skip
