"""Set every field of every kind of record to the limits of its range, one at a time, for every reader.

Random mutation (streams.py) rarely produces a record with just one wrong number. Here each case is a complete trace or
stream in which one value of one record is changed, so code after the first check of a record is reached, too.
"""

from __future__ import annotations

import copy
import json
import os
import struct
import tomllib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import zstandard

from gpt.stages.analyze import ANALYSES
from gpt.stream import packed, records
from gpt.stream.rooms import RANGE_FIELDS
from tests.fuzz.engine import ROOT, Wrong
from tests.fuzz.stages import call, stage_main
from tests.fuzz.streams import to_json
from tests.trace import forge
from tests.trace.logs import Room, Saved, write_log

Record = dict[str, Any]
Place = tuple[int, tuple[Any, ...]]  # index of a record, and the keys that lead to a value in it
ABSENT = object()
NUMBERS = [0, 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]
WRONG = [-1, -(1 << 63), 1.5, float("nan"), float("inf"), True, None, b"\xff", {}, [], [[[1]], {}], "text", ABSENT]
TEXTS = ["", "\x1b[2J\u202e\n", "=1+1", "</script>", "x" * 3000, "\udcff", "9" * 400]
KINDS = {*records.KINDS} - {  # kinds in traces; the others are in streams of code
    "resume", "library_end", "element", "span", "trim", "trimmed", "recompressed", "tally", "repacked",
    "patched", "ptx", "cubin", "object", "outline", "fatbin",
}  # fmt: skip


def saves() -> list[Record]:
    """Return the data that every built-in probe saves in one launch, and buffers in each of their forms."""
    maps = [records.make("map", id=1, name="log", type="log", level="warp", capacity=4, wanted=1, callback="/c.py",
                         keeps="last", **forge.layout_of({"clock": "u64", "page": "u64"}))]  # fmt: skip
    for path in sorted((ROOT / "probes").glob("*.toml")):
        for name, told in tomllib.loads(path.read_text())["map"].items():
            is_log = told.get("cap") == "dynamic" or "ring" in told
            capacity, type_ = (4, "log") if is_log else (1, told.get("type", "array"))
            level, fields = told["level"], told.get("data", dict(RANGE_FIELDS))
            map_ = forge.probe_map(name, len(maps) + 1, type_, level, capacity, **fields)
            ops = {op: told[op] for op in ("min", "max", "last") if op in told}
            if type_ == "log":
                rest = "lane" if level == "thread" else "shared"
                ops = {"stored": [name if name in ("clock", "sm") else rest for name in fields]}
                ops |= {"ring": 1, "ring_size": 96, "ranges": ["wait"]} if "ring" in told else {}
            maps.append(map_ | ops | ({"head": 0} if told.get("counts") is False else {}))
    bins = forge.probe_map("bins", len(maps) + 1, "histogram", "thread", 1, value="u64")
    maps.append(bins | {"stride": 24, "copies": 2, "low": 5, "step": 2, "head": 0, "room": 0})
    table = forge.probe_map("table", len(maps) + 1, "table", "thread", 3, zone="u32", least="u32", sum="u64")
    places = [{"name": "zone", "type": "u32", "offset": 8}, {"name": "least", "type": "u32", "offset": 16},
              {"name": "sum", "type": "u64", "offset": 24}]  # fmt: skip
    maps.append(table | {"fields": places, "stride": 32, "copies": 2, "key": ["zone"], "min": ["least"]})
    param = {"offset": 0, "size": 8, "type": "u64", "space": "global", "map": 1}
    kernel = records.make(
        "kernel", id=1, name="_Z3onePf", function=1, params=[param], added=[param], cluster=[1, 1, 1],
        maps=[map_["id"] for map_ in maps],
        sites=[{"probe": "p", "position": "kernel", "matched": 2, "woven": 1}], table="t", verified=1, reason="why",
        code="other", detail="why",
        variables=[{"name": "v", "space": "global", "size": 4, "offset": 8, "copy": "taken"}], arch="sm_90",
        registers=32, spills=1, stack=2, shared=3, constant=4, registers_before=30, spills_before=0, stack_before=0,
        shared_before=0, constant_before=0, room=64,
    )  # fmt: skip
    plain = forge.probed(1, 1, 1, 2, 32) | {"start": 7000, "room": 64}
    node = forge.probed(2, 1, 1, 2, 32) | {"start": 5000, "params": bytes(8), "exec": 77, "node": 5, "repeats": 1}
    data = {map_["id"]: _saved(map_) for map_ in maps}
    total, histogram = (next(map_ for map_ in maps[3:] if map_["type"] == type_) for type_ in ("total", "histogram"))
    sums = {  # --detail adds these
        histogram["id"]: bytes(histogram["stride"]),
        total["id"]: struct.pack("<3Q", 2, 0, 2) + len(total["fields"]) * struct.pack("<5Q", 14, 7, 7, 3, 0),
    }
    packed_ = struct.pack("<Q", 1) + data[3][: len(data[3]) // 2]
    frame = zstandard.ZstdCompressor().compress(packed_)
    whole = len(data[3])
    return [
        *maps, kernel, plain, node, *(forge.buffer(1, data[map_["id"]], map_["id"]) for map_ in maps),
        *(forge.buffer(2, data[map_["id"]], map_["id"]) for map_ in maps[3:] if map_["id"] not in sums),
        *(forge.buffer(2, found, id_) | {"reduced": len(data[id_])} for id_, found in sums.items()),
        forge.buffer(2, data[1], 1, entries=3, dropped=2, blocks=[0, 1], path="absent", offset=0, packed=9,
                     codec="columns+zstd", row=16, quick=1),
        forge.buffer(2, data[2], 2, lost="no room"),
        records.make("buffer", launch=2, map=3, size=whole, at=0, length=whole, units=1, codec="zstd", data=frame),
    ]  # fmt: skip


def _saved(map_: Record) -> bytes:
    """Return a buffer of two blocks with one warp each: two records per unit if there's room, ordered by time."""
    fields, capacity = packed.parse_fields(map_), map_["capacity"]
    if "stored" in map_:
        types, stored = [field.type for field in fields], map_["stored"]
        lanes = (2, 7) if map_["level"] == "thread" else (0,)
        rows = [Saved(at, {n: [at if t == "u64" else 1 for t in types] for n in lanes}) for at in (5000, 5100)]
        return write_log(types, stored, [[Room(0, 1, rows)]])
    units = map_.get("copies", {"thread": 64, "warp": 2, "block": 2}[map_["level"]])
    slots = b""
    for number in range(capacity):
        slot = bytearray(map_["stride"])
        for field in fields:
            struct.pack_into(f"<{field.code}", slot, field.offset, 5000 + 100 * number if field.size == 8 else 1)
        for field in fields:
            if field.name in map_.get("key", ()):
                struct.pack_into("<II", slot, field.offset, number, 1)
        slots += slot if number < 2 else bytes(map_["stride"])
    if map_["type"] == "log":
        return struct.pack("<Q", 2) + b"".join(
            struct.pack("<Q", number % 2) + slots[number * map_["stride"] : (number + 1) * map_["stride"]]
            for number in range(capacity)
        )
    head = struct.pack("<Q", min(capacity, 2)) if map_.get("head", 8) else b""
    return (head + slots) * units


def trace() -> list[Record]:
    """Return a trace with every kind of record that a program's trace can have, and every key."""
    apis = [forge.api(number, name) for number, name in enumerate(forge.TYPES, 1)]
    memory = [(1000 + 9 * i, 5, 1 + i % 4, 0, 1 << 40, 2, 4096, 0) for i in range(9)]
    objects = [(5000 + 9 * i, 5, 8, 0, 77, 0) for i in range(3)]
    frames = [{"path": "/app", "offset": 64}, {"offset": 4096}]
    column = {"name": "n", "type": "u64", "offset": 0, "unit": "ns", "title": "t", "shown": "any"}
    plot = {"form": "bars", "x": "text", "y": ["n"], "end": "n", "lane": "n", "color": "n", "of": "one", "title": "t"}
    inner = [
        *apis, records.make("clock", monotonic=500, tsc=900), records.make("clock", monotonic=9000, tsc=9400),
        records.make("recording", on=True, at=900), records.make("dropped", count=2, what="events", reason="full"),
        records.make("library", path="zstd.so", type="elf", size=os.stat("zstd.so").st_size, build_id="ab", sha256="cd",
                     soname="libzstd.so.1",
                     machine="x86_64", gpu=1, replaces="/usr/lib/zstd.so"),
        records.make("device", index=0, name="H200", arch="sm_90", uuid="GPU-1", runs="sass", sms=132, warps=64,
                     blocks=32, clock_hz=1980000000, memory_hz=3201000000, bus_bits=6144),
        records.make("module", id=1, type="fatbin", sha256="ab", path="zstd.so", offset=4096, size=64, only=["k"],
                     arch="sm_90", registers=32, saved="m.fatbin", loader="/l.so", of="3:1", want="text"),
        records.make("module", id=2, type="ptx", data=b".version 7.0"),
        records.make("function", id=1, module=1, name="_Z3onePf"),
        records.make("function", id=2, module=1, name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)"),
        records.make("lookup", module=1, what="enumerate", name="v"),
        records.make("child", pid=11, how="fork", path="child.mp"),
        records.make("diag", level="warning", where="here", text="fact", ref="k"),
        forge.calls(memory, forge.MEMORY), forge.calls(objects, forge.OBJECT),
        forge.calls([forge.launch(7000, 9, 5, 1), forge.launch(7100, 9, 5, 2)], forge.LAUNCH), forge.launches({1: 3}),
        records.make("counts", **forge.rows([(3, 5, 12, 0)], forge.QUERIES)),
        forge.gpu_times([(1001, 4, 2, 0), (7005, 5, 5, 1), (7105, 5, 5, 2)]),
        records.make("graph", exec=77, at=1, nodes=1, functions=[1], launches=[2], unknown=1, device=1, operations=[
            {"type": "memcpy", "op": "HtoD", "nodes": 1, "bytes": 4096},
            {"type": "memory", "op": "alloc", "nodes": 1, "bytes": 4096, "address": 1 << 32},
        ]),
        records.make("graph_nodes", exec=77, at=1, functions=[1, 1], threads=[1, 0], calls=[7000, 0]),
        records.make("node_times", exec=77, thread=1, start=1001, begin=1002, pause=1, types=[0, 1], functions=[1, 0],
                     threads=[1, 0], calls=[7000, 0], early=[0, 1], begins=[0, 3], durations=[3, 1]),
        records.make("untimed", exec=77, at=2, code="nodes_parallel", detail="cuGraphClone: 801"),
        records.make("stack", id=1, frames=frames), records.make("call_site", thread=1, start=7000, stack=1, python=2),
        records.make("stack", id=2, frames=[{"path": "a.py", "offset": 0, "function": "f", "line": 3}]),
        records.make("sample", thread=1, at=7003, python=2, native=1, syscall=202, changed=1),
        records.make("ioctl", thread=1, parent=1000, device="/dev/nvidia0", request=7, name="NV_ESC_RM_CONTROL",
                     command=5, start=1100, duration=3, error=1),
        records.make("range", id=1, type="push", thread=1, domain="d", name="step", category=2, start=900),
        records.make("range_end", id=1, thread=1, end=1900),
        records.make("tensor", id=1, at=900, thread=1, name="w", address=4096, bytes=64, first=4096, dtype="float32",
                     shape=[4, 4], function="f", file="a.py", line=7),
        records.make("tensor_end", id=1, at=9000),
        *saves(),
        records.make("times", launch=1, prologue=800, epilogue=90, kernel=4000, original=3000),
        records.make("memusage", function=1, launches=2, bytes=700, most=400),
        records.make("refused", module=1, name="_Z3onePf", code="no_ptx", detail="here"),
        records.make("unprobed", function=1, launches=2, reason="no PTX", code="no_ptx", detail="here"),
        records.make("sync", id=1),
        records.make("answer", name="kernels", columns=[{"name": "text", "type": "text", "offset": 8}, column],
                     stride=12, texts=["one"], rows=struct.pack("<QI", 5, 0), top=1, verdict=["fact"],
                     incomplete=["what"], plots=[plot]),
        records.make("chunk", used=0, data=bytes(8)),
    ]  # fmt: skip
    return forge.trace(*inner, rank=0, tsc=900, tsc_hz=1_000_000_000, attached=1, captures=1)


def lines() -> list[Record]:
    """Return the same trace with rows in their JSON form, each as a separate record."""
    call_ = dict.fromkeys(("object", "stream", "to", "from", "bytes", "cooperative"), 1)
    grid = {f"{what}_{axis}": 1 for what in ("grid", "block", "cluster") for axis in "xyz"}
    inner: list[Record] = [
        *(forge.api(number, name) for number, name in enumerate(forge.TYPES, 1)),
        records.make("function", id=1, name="_Z3onePf"),
        {"kind": "call", "thread": 1, "start": 1000, "duration": 5, "api": 5, "result": 0, "function": 1, "shared": 0}
        | call_ | grid,
        {"kind": "gpu_time", "begin": 1005, "duration": 9, "api": 5, "function": 1, "thread": 1, "call": 1000,
         "stream": 1, "probed": 0, "device": 0},
        {"kind": "launch", "count": 2, "function": 1}, {"kind": "count", "count": 3, "api": 12},
    ]  # fmt: skip
    return forge.trace(*inner)


def iter_places(found: list[Record]) -> Iterator[Place]:
    """Yield every value of every record except its kind, including values inside arrays and maps."""

    def inside(value: Any, keys: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        if keys and keys != ("kind",):
            yield keys
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from inside(inner, (*keys, key))
        elif isinstance(value, list) and value:
            yield from inside(value[0], (*keys, 0))

    seen = set()
    for number, record in enumerate(found):
        for keys in inside(record, ()):
            form = record["kind"], record.get("name") if record["kind"] == "map" else "", keys
            if form not in seen:  # nine `api` records are one case
                seen.add(form)
                yield number, keys


def pack(record: Record) -> bytes:
    """Pack a record as it's written to a stream, whatever it contains."""
    data: bytes = msgpack.packb(record, unicode_errors="surrogateescape")
    return data


def changed(found: list[Record], place: Place, value: Any) -> list[Record]:
    """Return the records, with the value at one place replaced."""
    number, keys = place
    record = copy.deepcopy(dict(found[number]))
    holder: Any = record
    for key in keys[:-1]:
        holder = holder[key]
    if value is ABSENT:
        del holder[keys[-1]]
    else:
        holder[keys[-1]] = value
    return [*found[:number], record, *found[number + 1 :]]


def iter_row_changes(found: list[Record]) -> Iterator[Callable[[], list[Record]]]:
    """Yield a function for each number in packed rows and in probe data, and each limit of its type."""
    maps = {record["id"]: record for record in found if record["kind"] == "map"}
    for number, record in enumerate(found):
        kind, key = record["kind"], "data" if record["kind"] == "buffer" else "rows"
        if key not in record or (kind == "buffer" and record["launch"] != 1) or kind == "answer":
            continue
        layout = maps[record["map"]] if kind == "buffer" else record
        skip = 0 if kind != "buffer" else 8
        fields = [*packed.parse_fields(layout)]
        skip = 16 if kind == "buffer" and layout["type"] == "log" else skip
        spots = [(skip + field.offset, field.code) for field in fields]
        for offset, code in [*spots, *([(0, "Q")] if skip else [])]:
            size = struct.calcsize(code)
            for value in (0, 1, (1 << 8 * size - 1) - 1, 1 << 8 * size - 1, (1 << 8 * size) - 1):
                data = bytearray(record[key])
                data[offset : offset + size] = value.to_bytes(size, "little")
                yield partial(changed, found, (number, (key,)), bytes(data))


def iter_changes(found: list[Record]) -> Iterator[Callable[[], list[Record]]]:
    """Yield a function for each change, which returns the changed records."""
    for place in iter_places(found):
        number, keys = place
        old: Any = found[number]
        for key in keys:
            old = old[key]
        values = [*NUMBERS, *WRONG, *(TEXTS if isinstance(old, str) else [])]
        for value in values:
            if not (isinstance(keys[-1], int) and value is ABSENT):
                yield partial(changed, found, place, value)


ASKED: list[tuple[str, ...]] = [
    *((name,) for name in ANALYSES if name not in ("diff", "export", "timeline")),
    *((name, "--json") for name in ("summary", "events", "stages", "maps")),
    *(("summary", "--format", form) for form in ("md", "csv")), ("summary", "--stream"),
    ("summary", "--time", "0,1"), ("summary", "--gpu", "0"), ("summary", "--kernel", "*one*"), ("events", "--tid", "1"),
    ("timeline", "--format", "ascii", "-o", "-"),
    *(("timeline", "--format", form, "-o", f"out.{form}") for form in ("chrome", "html", "perfetto")),
    ("export", "--format", "sqlite", "-o", "out.db"), ("export", "--format", "parquet", "-o", "out.parquet"),
    ("diff", "before.mp", "in.mp"),
]  # fmt: skip


def ask(found: list[Record], *args: str) -> None:
    """Run gpt-analyze on a trace. Raises Wrong."""
    data = b"".join(map(pack, found))
    if args[0] == "diff":
        Path("in.mp").write_bytes(data)
        call(stage_main("analyze"), "gpt-analyze", *args)
        return
    call(stage_main("analyze"), "gpt-analyze", *args, data=data)
    if "chrome" in args and Path("out.chrome").exists():
        json.loads(Path("out.chrome").read_text(), parse_constant=_refuse)
        Path("out.chrome").unlink()


def ask_json(found: list[Record], *args: str) -> None:
    """Do the same with JSON lines."""
    call(stage_main("analyze"), "gpt-analyze", *args, "--from-json", data=to_json(found))


def locate(found: list[Record], *args: str) -> None:
    """Ask gpt-locate which code a trace used."""
    Path("used").write_bytes(b"".join(map(pack, found)))
    stream = Path("stream.mp").read_bytes()
    call(stage_main("locate"), "gpt-locate", "--used", "used", "--arch", "sm_90", *args, data=stream)


def pass_on(stage: str, found: list[Record], *args: str) -> None:
    """Run a stage on a stream of code."""
    call(stage_main(stage), f"gpt-{stage.replace('_', '-')}", *args, data=b"".join(map(pack, found)))


def _refuse(constant: str) -> None:
    raise Wrong(f"{constant} in JSON")
