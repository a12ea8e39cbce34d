"""The tables of an export and their columns, with the names that Nsight Systems uses in its exports.

Nsight Systems exports a table for each type of event (its documentation: SQLite Export Schema Reference). Driver calls
are in CUPTI_ACTIVITY_KIND_RUNTIME there, too, and are distinguished by `eventClass`. These tables have the columns for
which our traces have data. Everything else is in tables GPT_*, which Nsight Systems doesn't have.

A column is declared with its type: i64, u64 and smaller ones, f32, f64 or text. Any value may be NULL.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

MOST_NAME = 100  # limit for names of tables or columns that come from a trace


class TableColumn(NamedTuple):
    """A column."""

    name: str
    type: str


class ExportTable(NamedTuple):
    """A table. `rows` are fixed rows, which it always contains."""

    name: str
    fields: tuple[TableColumn, ...]
    rows: tuple[tuple[int | str, ...], ...] = ()


def make_fields(text: str) -> tuple[TableColumn, ...]:
    """Parse columns from `TYPE NAME NAME ...; TYPE NAME ...`."""
    parts = (part.split() for part in text.split(";"))
    return tuple(TableColumn(name, type_) for type_, *names in parts for name in names)


def make_names(names: Iterable[str], taken: Iterable[str] = ()) -> list[str]:
    """Convert names from a trace to unique names of tables or columns. SQLite ignores case."""
    used, found = {name.lower() for name in taken}, []
    for name in names:
        plain = re.sub(r"\W", "_", name, flags=re.ASCII)[:MOST_NAME] or "_"
        one, number = plain, 1
        while one.lower() in used:
            number += 1
            one = f"{plain}_{number}"
        used.add(one.lower())
        found.append(one)
    return found


SHAPE = "u32 gridX gridY gridZ; u16 blockX blockY blockZ; u32 dynamicSharedMemory; u8 clusterX clusterY clusterZ"
NAMES = "i64 demangledName shortName mangledName"
WORK = "i64 start end; u32 deviceId contextId; u64 streamId; i64 correlationId globalPid"
CALL = "i64 start end; u8 eventClass; i64 globalTid correlationId nameId; i32 returnValue"
ENUM = make_fields("i64 id; text name label")
DRIVER, OS_RUNTIME = 1, 27  # from ENUM_NSYS_EVENT_CLASS
MARK, PUSHED, STARTED, DOMAIN = 34, 59, 60, 75  # from ENUM_NSYS_EVENT_TYPE
WARNING, ERROR = 2, 3  # from ENUM_DIAGNOSTIC_SEVERITY_LEVEL
COPIES = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "peer": 10}  # from ENUM_CUDA_MEMCPY_OPER; 0 for all others
REGULAR, COOPERATIVE = 1, 2  # from ENUM_CUDA_KERNEL_LAUNCH_TYPE

RUNTIME = ExportTable("CUPTI_ACTIVITY_KIND_RUNTIME", make_fields(CALL))
# These are always NULL, but queries written for Nsight Systems expect them.
UNSAID = "u32 greenContextId registersPerThread staticSharedMemory localMemoryPerThread localMemoryTotal"
KERNEL = ExportTable("CUPTI_ACTIVITY_KIND_KERNEL", make_fields(f"{WORK}; {NAMES}; u8 launchType; {SHAPE}; {UNSAID}"))
MEMCPY = ExportTable("CUPTI_ACTIVITY_KIND_MEMCPY", make_fields(f"{WORK}; u64 bytes; u8 copyKind"))
MEMSET = ExportTable("CUPTI_ACTIVITY_KIND_MEMSET", make_fields(f"{WORK}; u64 bytes"))
GRAPH = ExportTable("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", make_fields(f"{WORK}; u64 graphExecId"))
IOCTLS = ExportTable("OSRT_API", make_fields(f"{CALL}; text device; u64 request command"))
NVTX = ExportTable(
    "NVTX_EVENTS",
    make_fields(
        "i64 start end; u8 eventType; u64 rangeId; u32 category; text text; i64 globalTid endGlobalTid domainId"
    ),
)
STRINGS = ExportTable("StringIds", make_fields("i64 id; text value"))
PROCESSES = ExportTable(
    "PROCESSES", make_fields("i64 globalPid; u64 pid; text name host; u64 rank; text bootId; i64 start; u64 status")
)
THREADS = ExportTable("ThreadNames", make_fields("i64 nameId globalTid"))
GPUS = ExportTable(
    "TARGET_INFO_GPU",
    make_fields("u32 id; text name uuid; u32 smCount computeMajor computeMinor; u64 clockRate memoryBandwidth"),
)
DEVICES = ExportTable(
    "TARGET_INFO_CUDA_DEVICE", make_fields("u32 gpuId cudaId; u64 pid; text uuid; u32 numMultiprocessors")
)
SESSION = ExportTable("TARGET_INFO_SESSION_START_TIME", make_fields("u64 utcEpochNs; text utcTime; u64 systemClockNs"))
SYSTEM = ExportTable("TARGET_INFO_SYSTEM_ENV", make_fields("text name value"))
CAPTURED = ExportTable("META_DATA_CAPTURE", make_fields("text name value"))
EXPORTED = ExportTable("META_DATA_EXPORT", make_fields("text name value"))
DIAGNOSTICS = ExportTable("DIAGNOSTIC_EVENT", make_fields("u8 severity; text text; i64 globalPid"))
ARGUMENTS = ExportTable(
    "GPT_CALL_ARGUMENTS",
    make_fields(f"i64 correlationId globalTid; u64 streamId object dst src bytes; {NAMES}; u8 launchType; {SHAPE}"),
)
CALL_RANGES = ExportTable("GPT_CALL_RANGES", make_fields("i64 correlationId globalTid layer range"))
LAUNCH_COUNTS = ExportTable("GPT_LAUNCH_COUNTS", make_fields(f"i64 globalPid; {NAMES}; u64 launches"))
NODES = ExportTable(
    "GPT_GRAPH_NODES",
    make_fields(
        f"i64 start end correlationId globalTid; u64 graphExecId node; text type; {NAMES}; i64 layer range; u8 waited; "
        "f64 betweenEvents eventCost"
    ),
)
GRAPH_WORK = ExportTable("GPT_GRAPH_WORK", make_fields("i64 globalPid; text type op; u64 count bytes"))
CALL_COUNTS = ExportTable("GPT_CALL_COUNTS", make_fields("i64 globalPid nameId; u64 calls"))
PROBED = ExportTable(
    "GPT_PROBED_LAUNCHES",
    make_fields(
        f"u64 launchId; i64 globalPid globalTid start correlationId; u32 deviceId; u64 streamId; {NAMES}; "
        "u32 gridX gridY gridZ blockX blockY blockZ; u64 graphExecId"
    ),
)
UNPROBED = ExportTable("GPT_UNPROBED_LAUNCHES", make_fields(f"i64 globalPid; {NAMES}; text reason; u64 launches"))
TIMES = ExportTable(
    "GPT_PROBE_TIMES", make_fields("u64 launchId; i64 globalPid; u64 prologue epilogue kernel original")
)
NEEDS = ExportTable("GPT_PROBE_MEMORY", make_fields(f"i64 globalPid; {NAMES}; u64 launches bytes most"))
ENUMS = (
    ExportTable(
        "ENUM_NSYS_EVENT_CLASS",
        ENUM,
        (
            (0, "TRACE_PROCESS_EVENT_CUDA_RUNTIME", "CUDA runtime"),
            (DRIVER, "TRACE_PROCESS_EVENT_CUDA_DRIVER", "CUDA driver"),
            (OS_RUNTIME, "TRACE_PROCESS_EVENT_OS_RUNTIME", "OSRT runtime"),
        ),
    ),
    ExportTable(
        "ENUM_NSYS_EVENT_TYPE",
        ENUM,
        (
            (MARK, "NvtxMark", "NvtxMark"),
            (PUSHED, "NvtxPushPopRange", "NvtxPushPopRange"),
            (STARTED, "NvtxStartEndRange", "NvtxStartEndRange"),
            (DOMAIN, "NvtxDomainCreate", "NvtxDomainCreate"),
        ),
    ),
    ExportTable(
        "ENUM_CUDA_MEMCPY_OPER",
        ENUM,
        (
            (0, "CUDA_MEMCPY_KIND_UNKNOWN", "Unknown"),
            (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
            (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
            (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
            (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
        ),
    ),
    ExportTable(
        "ENUM_CUDA_KERNEL_LAUNCH_TYPE",
        ENUM,
        (
            (REGULAR, "CUDA_KERNEL_LAUNCH_TYPE_REGULAR", "Regular"),
            (COOPERATIVE, "CUDA_KERNEL_LAUNCH_TYPE_COOPERATIVE_SINGLE_DEVICE", "Coop Single Device"),
        ),
    ),
    ExportTable(
        "ENUM_DIAGNOSTIC_SEVERITY_LEVEL",
        ENUM,
        ((1, "Info", "Info"), (WARNING, "Warning", "Warning"), (ERROR, "Error", "Error")),
    ),
)
TABLES = (
    RUNTIME, KERNEL, MEMCPY, MEMSET, GRAPH, IOCTLS, NVTX, STRINGS, PROCESSES, THREADS, GPUS, DEVICES, SESSION, SYSTEM,
    CAPTURED, EXPORTED, DIAGNOSTICS, ARGUMENTS, CALL_RANGES, LAUNCH_COUNTS, NODES, GRAPH_WORK, CALL_COUNTS, PROBED,
    UNPROBED, TIMES, NEEDS, *ENUMS,
)  # fmt: skip
MAP = "u64 launchId; i64 globalPid; u64 block unit"  # columns of a table GPT_MAP_*, before the fields of its records
