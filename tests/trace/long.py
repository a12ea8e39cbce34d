"""Traces of any length: calls of several threads with their GPU times, ranges, ioctls, and launches with probes.

A file is written like gpt-hook's, with chunks from each thread in turn. Time stamps are ns, so that each row's contents
follow from its number.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gpt.stream import records, wire
from tests.trace import forge

THREADS, KERNELS, BATCH, PERIOD, TOOK = 4, 50, 500, 1000, 600
NAMES = ("cuLaunchKernel", "cuMemcpyHtoD", "cuStreamSynchronize", "cuMemAlloc")
LAUNCHES, COPIES, WAITS, ALLOCATIONS = range(1, 5)
IOCTLS = 5  # ioctls per batch of calls
TIMES = forge.GPU_TIMES | {"probed": "u32", "device": "u32"}
CODES = {"u8": "u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i32": "<i4"}


def dtype_of(layout: dict[str, str]) -> np.dtype[np.void]:
    fields = forge.layout_of(layout)
    names = [field["name"] for field in fields["fields"]]
    formats = [CODES[field["type"]] for field in fields["fields"]]
    offsets = [field["offset"] for field in fields["fields"]]
    return np.dtype({"names": names, "formats": formats, "offsets": offsets, "itemsize": fields["stride"]})


def make_calls(first: int, thread: int) -> list[tuple[dict[str, str], Any]]:
    """Return a batch of a thread's calls, half of them launches, by layout."""
    starts = 1000 + np.arange(first, first + BATCH, dtype=np.uint64) * np.uint64(PERIOD) + np.uint64(thread)
    launches = np.zeros(BATCH // 2, dtype_of(forge.LAUNCH))
    launches["start"], launches["api"], launches["duration"] = starts[::2], LAUNCHES, TOOK
    launches["function"] = 1 + np.arange(first, first + BATCH, 2) % KERNELS
    launches["stream"] = 7
    for name in ("grid", "block"):
        for axis in "xyz":
            launches[f"{name}_{axis}"] = 1 + (axis == "x") * 31
    rest = np.zeros(BATCH // 2, dtype_of(forge.MEMORY))
    rest["start"], rest["duration"], rest["bytes"] = starts[1::2], TOOK, 4096
    rest["api"] = np.resize([COPIES, COPIES, ALLOCATIONS, WAITS], BATCH // 2)
    rest["to"] = np.uint64(0xFFFF_8000_0000_0000) + starts[1::2]
    return [(forge.LAUNCH, launches), (forge.MEMORY, rest)]


def make_gpu_times(calls: list[tuple[dict[str, str], Any]], thread: int) -> Any:
    (_, launches), (_, rest) = calls
    copies = rest[rest["api"] == COPIES]
    made = np.zeros(len(launches) + len(copies), dtype_of(TIMES))
    for place, rows in ((slice(0, len(launches)), launches), (slice(len(launches), None), copies)):
        made["call"][place], made["begin"][place] = rows["start"], rows["start"] + np.uint64(2000)
        made["api"][place] = rows["api"]
    made["function"][: len(launches)] = launches["function"]
    made["duration"], made["stream"], made["thread"] = 400, 7, thread
    return made


def write_long(path: Path, calls: int, ranges: int = 0, ioctls: bool = False, probed: int = 0, pid: int = 10) -> None:
    """Write a trace of this many calls, three quarters of which have GPU times, and of launches with a probe."""
    first = forge.trace(end=False, pid=pid)
    first += [forge.api(number, name) for number, name in enumerate(NAMES, 1)]
    first += [records.make("function", id=id_, name=f"_Z6kernelIfLi{id_}EEvPT_PKS0_i") for id_ in range(1, KERNELS + 1)]
    first += [records.make("device", index=0, name="H200", arch="sm_90", runs="sass", sms=132)]
    if probed:
        fields = forge.layout_of(forge.GMEM_BYTES)["fields"]
        first += [records.make("map", id=1, name="gmem_bytes", type="total", level="thread", capacity=1,
                               stride=40, fields=fields), forge.kernel(1, 1, "k", 1)]  # fmt: skip
    with open(path, "wb") as file:
        data = b"".join(map(wire.pack, first))
        for turn, at in enumerate(range(0, calls, BATCH)):
            thread = 1 + turn % THREADS
            made = make_calls(at, thread)
            told = [records.make("calls", thread=thread, **forge.layout_of(layout), rows=rows.tobytes())
                    for layout, rows in made]  # fmt: skip
            times = make_gpu_times(made, thread)
            told.append(records.make("gpu_times", **forge.layout_of(TIMES), rows=times.tobytes()))
            now = 1000 + at * PERIOD
            if ranges and turn % max(1, calls // BATCH // ranges) == 0:
                told.append(records.make("range", id=turn, type="push", thread=thread, name=f"step {turn}", start=now))
                told.append(records.make("range_end", id=turn, thread=thread, end=now + BATCH * PERIOD // 2))
            if ioctls:
                told += [
                    records.make("ioctl", thread=thread, device="/dev/nvidiactl", request=42, name="NV_ESC_RM_CONTROL",
                                 command=0x2080, start=now + one, duration=50)
                    for one in range(IOCTLS)
                ]  # fmt: skip
            for data_ in map(wire.pack, told):
                if len(data) + len(data_) > forge.ROOM:
                    file.write(forge.chunk(data))
                    data = b""
                data += data_
        file.write(forge.chunk(data))
        buffer = np.ones((64, 6), "<u8").tobytes()  # 2 blocks of 32 threads: count, five fields
        for number in range(1, probed + 1):
            file.write(wire.pack(forge.probed(number, 1, 1, 2, 32)) + wire.pack(forge.buffer(number, buffer)))
        file.write(wire.pack(records.make("end", records=0, status=0)))
