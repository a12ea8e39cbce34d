"""Forged traces in gpt-hook's encoding, with contents chosen by a test."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from gpt.stream import records, wire

CHUNK = 512 << 10
ROOM = CHUNK - 36  # bytes of records
CALL = {"start": "u64", "duration": "u64", "api": "u32", "result": "i32"}
OBJECT = CALL | {"object": "u64", "stream": "u64"}
MEMORY = CALL | {"to": "u64", "from": "u64", "bytes": "u64", "stream": "u64"}
LAUNCH = CALL | {
    "stream": "u64", "function": "u32", "shared": "u32", "grid_x": "u32", "grid_y": "u32", "grid_z": "u32",
    "block_x": "u16", "block_y": "u16", "block_z": "u16",
    "cluster_x": "u8", "cluster_y": "u8", "cluster_z": "u8", "cooperative": "u8", "pad": "u16",
}  # fmt: skip
COUNTS = {"count": "u64", "first": "u64", "function": "u32", "pad": "u32"}
QUERIES = {"count": "u64", "first": "u64", "api": "u32", "pad": "u32"}
GPU_TIMES = {"begin": "u64", "duration": "u64", "call": "u64", "stream": "u64", "api": "u32", "function": "u32",
             "thread": "u32", "pad": "u32"}  # fmt: skip
BLOCK_SCHED = {"start": "u64", "end": "u64", "elapsed": "u32", "sm": "u32"}  # fields of the probes' maps
GMEM_BYTES = dict.fromkeys(("read", "written", "async", "bulk", "expected"), "u64")
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "f32": "f"}

TYPES = {  # name -> type, op
    "cuMemAlloc": ("memory", "alloc"),
    "cuMemcpyHtoD": ("memcpy", "HtoD"),
    "cuMemcpyDtoH": ("memcpy", "DtoH"),
    "cuMemsetD8": ("memset", "set"),
    "cuLaunchKernel": ("kernel", "launch"),
    "cuStreamSynchronize": ("sync", "stream"),
    "cuStreamQuery": ("stream", "query"),
    "cuGraphLaunch": ("graph", "launch"),
    "cuModuleLoadData": ("module", "load"),
    "cuCtxSetCurrent": ("context", "set"),
    "cuCtxPushCurrent": ("context", "push"),
    "cuCtxPopCurrent": ("context", "pop"),
}


def packing(layout: dict[str, str]) -> struct.Struct:
    return struct.Struct("<" + "".join(CODES[type_] for type_ in layout.values()))


def layout_of(layout: dict[str, str]) -> dict:
    """Return `fields` and `stride` of a record."""
    fields, offset = [], 0
    for name, type_ in layout.items():
        if name != "pad":
            fields.append({"name": name, "type": type_, "offset": offset})
        offset += struct.calcsize("<" + CODES[type_])
    return {"fields": fields, "stride": offset}


def rows(values: Iterable[tuple], layout: dict[str, str]) -> dict:
    """Return the three keys of a record with rows."""
    pack = packing(layout).pack
    return layout_of(layout) | {"rows": b"".join(pack(*row) for row in values)}


def calls(values: Iterable[tuple], layout: dict[str, str] = CALL, thread: int = 1) -> dict:
    return records.make("calls", thread=thread, **rows(values, layout))


def launches(counts: dict[int, int]) -> dict:
    return records.make("launches", **rows([(n, 5, id_, 0) for id_, n in counts.items()], COUNTS))


def gpu_times(values: Iterable[tuple[int, int, int, int]]) -> dict:
    """Make GPU times of (begin, duration, api, function)."""
    packed = [(begin, duration, begin, 0, api_, function) for begin, duration, api_, function in values]
    return records.make("gpu_times", **rows([(*row, 1, 0) for row in packed], GPU_TIMES))


def probed_times(values: Iterable[tuple[int, int, int, int, int]]) -> dict:
    """Make GPU times of (begin, duration, api, function, whether it had probes)."""
    fields = {"probed" if name == "pad" else name: type_ for name, type_ in GPU_TIMES.items()}
    packed = [
        (begin, duration, begin, 0, api_, function, 1, probed) for begin, duration, api_, function, probed in values
    ]
    return records.make("gpu_times", **rows(packed, fields))


def probe_map(
    name: str, id_: int = 1, type_: str = "array", level: str = "warp", capacity: int = 1, **fields: str
) -> dict:
    """Return a `map` with these fields."""
    told = layout_of(fields)
    told["stride"] = max(8, -(-told["stride"] // 8) * 8)
    return records.make("map", id=id_, name=name, type=type_, level=level, capacity=capacity, **told)


def kernel(id_: int, function: int, name: str, *maps: int) -> dict:
    """Return a probed kernel."""
    return records.make("kernel", id=id_, name=name, function=function, maps=list(maps))


def probed(id_: int, kernel_: int, function: int, blocks: int, threads: int) -> dict:
    """Return a launch of it."""
    return records.make("probed", id=id_, kernel=kernel_, function=function, thread=1, start=1000 + id_, device=0,
                        stream=7, grid=[blocks, 1, 1], block=[threads, 1, 1], shared=0)  # fmt: skip


def buffer(launch_: int, data: bytes, map_: int = 1, **keys: object) -> dict:
    """Return the launch's buffer."""
    inside = {} if keys else {"data": data}
    return records.make("buffer", launch=launch_, map=map_, size=len(data), **inside, **keys)


def launch(start: int, duration: int, api_: int, function: int, stream_: int = 0) -> tuple:
    return (start, duration, api_, 0, stream_, function, 128, 1, 2, 3, 32, 4, 1, 0, 0, 0, 0, 0)


def api(id_: int, name: str, symbol: str = "") -> dict:
    type_, op = TYPES.get(name, ("other", name[2:].lower()))
    return records.make("api", id=id_, symbol=symbol or name, name=name, type=type_, op=op)


def trace(*inner: dict, end: bool = True, **header: object) -> list[dict]:
    """Return a segment: header, the records, end. Time stamps are ns, the epoch is at 10^18."""
    first = records.make("header", version="1.0", tool="gpt-hook", argv=["app"], host="here", pid=10, boot_id="b",
                         realtime=10**18, monotonic=0, via=[])  # fmt: skip
    return [first | header, *inner, *([records.make("end", records=len(inner), status=0)] if end else [])]


def pack(*segments: list[dict]) -> bytes:
    return b"".join(wire.pack(record) for segment in segments for record in segment)


def chunk(data: bytes) -> bytes:
    """Return records as a chunk of a file. Texts have a longer form than they need, so that `used` is aligned."""
    head = b"\x83\xd9\x04kind\xd9\x05chunk\xa4used\xce" + struct.pack(">I", len(data))
    assert len(data) <= ROOM
    return head + b"\xda\0\x04data\xc6" + struct.pack(">I", ROOM) + data.ljust(ROOM, b"\0")
