"""Format the lines of `event.log` from the records of a trace.

Neutrino prints pointers of modules and functions. Here, they're ids from the trace, so lines about the same module or
function have the same value. Allocations have their addresses. A trace doesn't say which call loaded a module, so if a
program uses several loaders, the line for a module names the loader that was called last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from gpt.compat.neutrino.results import ResultSection
from gpt.trace.apis import find_api
from gpt.trace.process import CAPTURED, Api, LoadedFunction, Process

Record = dict[str, Any]

SAID = ("memory", "memcpy", "memset", "module")  # types of calls for which there are lines
SECOND = frozenset(("cuMemAlloc", "cuMemAllocHost", "cuMemAllocPitch", "cuMemFree", "cuMemHostRegister"))
LOADERS = {"cuLibraryLoadData": "lib", "cuLibraryLoadFromFile": "lib"}  # all others load a module
READY = "[info] init success"
KINDS = {"fatbin": "fatbin", "cubin": "elf", "ptx": "ptx"}
GETTERS = ("cuModuleGetFunction", "cuLibraryGetKernel", "cuKernelGetFunction")


def one_line(text: str) -> str:
    """Escape line breaks, which names may contain."""
    return text.replace("\r", "\\r").replace("\n", "\\n")


def iter_head(header: Record) -> Iterator[str]:
    """Yield the first lines of a log."""
    yield f"[pid] {header['pid']}"
    size = sum(len(word.encode(errors="surrogateescape")) + 1 for word in header["argv"])
    yield f"[cmd] {size} {' '.join(header['argv'])}"


def iter_calls(process: Process) -> Iterator[tuple[int, str]]:
    """Yield the lines for the calls that have been collected, each with the time stamp at which it began."""
    apis = {id_: find_api(api.symbol) if api.type == CAPTURED else api for id_, api in process.apis.items()}
    wanted = [id_ for id_, api in apis.items() if api.type in SAID or api.name == "cuInit"]
    for _, rows in process.calls.take():
        names = set(rows.dtype.names or ())
        for row in rows[np.isin(rows["api"], wanted)]:
            if line := _call(apis[int(row["api"])], row, names):
                yield int(row["start"]), line


def _call(api: Api, row: Any, names: set[str]) -> str:
    symbol = f"{api.name}_v2" if api.name in SECOND else api.symbol or api.name
    result = int(row["result"])
    if api.name == "cuInit":
        return f"[info] init failed {result}" if result else READY
    if api.type == "module" and api.op == "load" and result:
        return f"[mod] {symbol} {result}"
    if not {"to", "bytes"} <= names:
        return ""
    to, size = int(row["to"]), int(row["bytes"])
    match api.type, api.op:
        case "memory", "alloc":
            return f"[mem] {symbol} {result} dptr {to:#x} bytesize {size}"
        case "memory", "free":
            return f"[mem] {symbol} {result} dptr {to:#x}"
        case "memcpy", _:
            return f"[mem] {symbol} {result} dst {to:#x} src {int(row['from']):#x} bytesize {size}"
        case "memset", _:
            return f"[mem] {symbol} {result} dptr {to:#x} bytesize {size}"
    return ""


def load_line(module: Record, apis: Iterator[Api]) -> str:
    """Return the line for a loaded module."""
    last = [api for api in apis if (api.type, api.op) == ("module", "load")][-1:]
    name = last[0].name if last else "cuModuleLoadData"
    return f"[mod] {name} 0 {LOADERS.get(name, 'mod')} {module['id']:#x} code {module.get('offset', 0):#x}"


def function_line(function: LoadedFunction, apis: Iterator[Api]) -> str:
    """Return the line for a kernel that was looked up."""
    last = [api.name for api in apis if api.name in GETTERS][-1:]
    name = last[0] if last else GETTERS[0]
    word = "lib" if name == "cuLibraryGetKernel" else "mod"
    return f"[mod] {name} func {function.id:#x} {word} {function.module or 0:#x} name {function.name}"


def iter_found(function: LoadedFunction, module: Record, folder: str) -> Iterator[str]:
    """Yield the lines for the first launch of a kernel."""
    size = module.get("size", len(module.get("data", b"")))
    yield f"[exec] funcmap-not-find {function.id:#x}"
    yield f"[bin] type {KINDS.get(module.get('type', ''), 'error')} size {size}"
    yield f"[jit] find {function.id:#x} name {function.name} bin {module.get('id', 0):#x} size {size}"
    yield f"[jit] rename {function.name} {folder}"
    yield f"[exec] subproc gpt-extract --ptx | gpt-ptx-probe | gpt-asm {folder} {function.name}"


def iter_launch(probed: Record, realtime: int, params: Sequence[Record]) -> Iterator[str]:
    """Yield the lines for a launch with probes: its arguments, its grid and its block."""
    data = probed.get("params", b"")
    ends = [(param["offset"], param["offset"] + param["size"]) for param in params if data]
    values = [hex(int.from_bytes(data[start:end], "little")) for start, end in ends]
    yield f"[exec] funcmap-find {probed['function']:#x} success"
    yield " ".join([f"[exec] {realtime} param", *values])
    grid, block = (" ".join(map(str, probed[key])) for key in ("grid", "block"))
    yield f"[exec] grid {grid} block {block} shared {probed['shared']}"


def iter_buffers(blocks: int, sections: Sequence[ResultSection]) -> Iterator[str]:
    """Yield the lines about the data that the probes of a launch saved."""
    for section in sections:
        size = section.size(blocks)
        yield f"[exec] grid {blocks} warp {section.units} probe {section.bytes} total {size}"
    yield from (f"[count] size: {section.capacity}" for section in sections if section.entries is not None)


def times_line(times: Record, kernel: float | None) -> str:
    """Return the line with the times of a launch with probes. `kernel` is its GPU time in ns, if it's known."""
    prologue, epilogue = times["prologue"] / 1e6, times["epilogue"] / 1e6
    if "original" in times and "kernel" in times:
        with_, without = times["kernel"] / 1e6, times["original"] / 1e6
        impact = with_ / without if without else 0.0
        more = f"original {without:.6f} impact {impact:.6f} 0"
        return f"[benchmark] prologue {prologue:.6f} kernel {with_:.6f} epilogue {epilogue:.6f} {more}"
    took = (kernel or 0) / 1e6
    ratio = (prologue + took + epilogue) / took if took else 0.0
    return f"[exec] prologue {prologue:.6f} kernel {took:.6f} epilogue {epilogue:.6f} ratio {ratio:.6f}"


def tensor_line(tensor: Record, realtime: int) -> str:
    """Return a line of `tensor.trace`, in the format of TensorTrace."""
    shape = f"torch.Size({tensor['shape']})"
    place = f"{tensor.get('file', '?')}:{tensor.get('line', 0)}"
    words = [realtime, shape, tensor["bytes"], tensor.get("first", tensor["address"]), tensor["name"]]
    found = ["[call]", *words, tensor.get("function", "?"), place]
    return "  ".join(re.sub("  +", " ", one_line(str(word))) for word in found)
