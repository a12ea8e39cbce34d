"""Every kind of record in a GPT stream, declared once: its keys in canonical order, their types and units.

`gpt-stream(5)` says the same in prose, `make` generates `runtime/records.h` from it, and tests hold the page
and the bytes that C writes equal to what stands here.

Types: `u64` an unsigned integer, `str` UTF-8 text, `bin` bytes, `bool`, `[T]` an array of T, and the name of
a struct in STRUCTS for a nested map. Time is in nanoseconds, sizes and offsets in bytes. A key whose type ends
in `?` may be absent; it is never nil.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

VERSION = (1, 0)
MAX_RECORD = 64 << 20  # bytes of one encoded record
MAX_ENTRIES = 1 << 20  # entries of one array or map

Keys = dict[str, tuple[str, str]]  # key -> (type, meaning)

STRUCTS: dict[str, Keys] = {
    "symbol": {
        "name": ("str", "mangled name"),
        "size": ("u64?", "bytes of machine code; absent for PTX"),
    },
    "field": {
        "name": ("str", "name of the value"),
        "type": ("str", "u8 u16 u32 u64 i8 i16 i32 i64 f16 f32 f64"),
        "offset": ("u64", "bytes from the start of the row or slot"),
    },
    "column": {
        "name": ("str", "name of the value"),
        "type": ("str", "as of a field, or text; with ? where a row may have no value"),
        "offset": ("u64", "bytes from the start of the row"),
        "unit": ("str?", "ns, cycles, bytes, %, id, address, and of text kernel; absent for counts and plain text"),
        "title": ("str?", "what stands above it in a table; absent if that is the name"),
        "shown": ("str?", "in tables for people: never, any, under, line; absent for always"),
    },
    "plot": {
        "form": ("str", "bars, lines, levels, histogram, spans, heat or roofs"),
        "x": ("str?", "column along the horizontal axis; of spans, where one begins"),
        "y": ("[str]", "columns along the vertical axis; of spans and heat, that of rows; of roofs three"),
        "end": (
            "str?",
            "of spans and histogram: the column where one ends; of bars: of a number that stands at the end",
        ),
        "lane": ("str?", "of spans: the column of its place within a row; of heat: a text that has a hue"),
        "color": ("str?", "column that has a color"),
        "of": ("str?", "only rows whose first text is this"),
        "title": ("str?", "what stands above it; absent for the first line of the verdict"),
    },
    "param": {
        "offset": ("u64", "bytes from the start of the parameters"),
        "size": ("u64", "bytes"),
        "type": ("str?", "as PTX declares it: u64, f32, b8[16]"),
        "space": ("str?", "of a pointer that says so (.ptr): global, const, shared, local or generic"),
        "map": ("u64?", "id of the map whose buffer's address it takes"),
    },
    "variable": {
        "name": ("str", "as in its module"),
        "space": ("str", "global or const"),
        "size": ("u64?", "bytes; absent if the module does not say"),
        "offset": ("u64?", "of global: bytes from the start of the table, where its address goes"),
        "copy": ("str?", "of const: always, or taken, which is when the program took its address"),
    },
    "frame": {
        "path": ("str?", "the file that the code is in; absent: in none"),
        "offset": ("u64", "return address as an offset in that file; else as it is"),
    },
    "site": {
        "probe": ("str", "name of the probe"),
        "position": ("str", "as the probe file says it"),
        "matched": ("u64", "places in the program that it means"),
        "woven": ("u64", "those that the probe was woven into"),
    },
}

KINDS: dict[str, Keys] = {
    "header": {
        "version": ("str", "MAJOR.MINOR of this format"),
        "tool": ("str", "the source that wrote the segment"),
        "argv": ("[str]", "its command line"),
        "host": ("str", "host name"),
        "pid": ("u64", "process id"),
        "rank": ("u64?", "of the process in its job, if its environment has one"),
        "boot_id": ("str?", "the kernel's boot id; joins clocks of one machine"),
        "realtime": ("u64", "ns since the epoch"),
        "monotonic": ("u64", "CLOCK_MONOTONIC at the same moment, ns"),
        "tsc": ("u64?", "the time stamp counter at the same moment, where time stamps are its ticks"),
        "tsc_hz": ("u64?", "ticks a second of the time stamps, if they are not ns"),
        "via": ("[str]", "the filters that the segment came through, oldest first"),
    },
    "end": {
        "records": ("u64", "records of the segment between header and end"),
        "status": ("u64", "exit status of the source"),
    },
    "diag": {
        "level": ("str", "error or warning"),
        "where": ("str", "location"),
        "text": ("str", "the fact"),
        "ref": ("str?", "what it is about: a path, a kernel, an id"),
    },
    "resume": {"back": ("u64", "how many headers lie between that of the segment and here")},
    "sync": {"id": ("u64", "passed on and flushed after all that earlier records led to")},
    "child": {
        "pid": ("u64", "process id"),
        "how": ("str", "fork, vfork, exec or spawn"),
        "path": ("str?", "its trace, the name of a file in this one's folder"),
    },
    "library": {
        "path": ("str", "as given; /-joined member path inside a wheel"),
        "type": ("str?", "elf, archive, fatbin, cubin or ptx"),
        "size": ("u64", "bytes of the file"),
        "build_id": ("str?", "hexadecimal"),
        "sha256": ("str?", "hexadecimal, of the file"),
        "machine": ("str?", "x86_64, aarch64 or cuda"),
        "gpu": ("u64?", "bytes of its sections that hold GPU code; absent if a trace saw none"),
        "replaces": ("str?", "the path that the program knows, where gpt-hook put this file in its place"),
    },
    "library_end": {"path": ("str", "of the library that is complete with this record")},
    "element": {
        "library": ("str", "path of the library"),
        "section": ("str?", "section that holds it"),
        "member": ("str?", "member of the archive that holds it"),
        "region": ("u64", "file offset of its region, or its own offset outside of regions"),
        "index": ("u64", "position in the library, from 0"),
        "type": ("str", "cubin, ptx, ltoir, or unknown:KIND"),
        "arch": ("str", "compute capability, sm_90a"),
        "offset": ("u64", "file offset of its header"),
        "header_size": ("u64", "bytes; 0 for a bare cubin"),
        "payload_size": ("u64", "bytes in the file after the header"),
        "size": ("u64", "bytes unpacked"),
        "codec": ("str", "none, lz4 or zstd"),
        "flags": ("u64", "as in the header"),
        "kernels": ("[symbol]", "entry functions"),
        "functions": ("[symbol]", "device functions"),
        "variables": ("u64", "device variables defined"),
        "sha256": ("str?", "hexadecimal, of the unpacked bytes of a cubin that is in no region"),
        "data": ("bin?", "the unpacked bytes"),
    },
    "span": {
        "library": ("str", "path of the library"),
        "start": ("u64", "file offset"),
        "end": ("u64", "file offset, exclusive"),
        "reason": ("str", "why it is not needed"),
    },
    "trim": {
        "library": ("str", "path of the library"),
        "offset": ("u64", "file offset of the header of an element that stays, a cubin"),
        "kernels": ("[str]", "kernels of it that are not needed"),
        "reason": ("str", "why"),
    },
    "trimmed": {
        "library": ("str", "path of the library"),
        "offset": ("u64", "file offset of the header of the element, in the library that was read"),
        "kernels": ("u64", "kernels whose code is gone"),
        "functions": ("u64", "device functions that only these needed"),
        "code": ("u64", "bytes of their code, unpacked"),
        "size_before": ("u64", "bytes of the element in the file, header included"),
        "size_after": ("u64", "bytes of the element in the file, header included"),
        "left": ("u64?", "unused kernels that stay nevertheless"),
        "reason": ("str?", "why the element stays whole"),
        "zeroed": ("str?", "why code became zeros where kernels were to be dropped"),
    },
    "tally": {
        "library": ("str", "path of the library"),
        "reason": ("str", "kept, or why not"),
        "elements": ("u64", "elements"),
        "kernels": ("u64", "entry functions in them"),
        "bytes": ("u64", "bytes in the file, headers included"),
    },
    "repacked": {
        "wheel": ("str", "path of the wheel that was read"),
        "output": ("str", "path of the wheel that was written"),
        "size_before": ("u64", "bytes of the file"),
        "size_after": ("u64", "bytes of the file"),
    },
    "patched": {
        "library": ("str", "path of the library that was read"),
        "output": ("str", "path of the library that was written"),
        "mode": ("str", "fill, hole or compact; copy if nothing was unused"),
        "size_before": ("u64", "bytes of the file"),
        "size_after": ("u64", "bytes of the file"),
        "disk_before": ("u64", "bytes that it takes on disk"),
        "disk_after": ("u64", "bytes that it takes on disk"),
        "gpu_before": ("u64", "bytes of GPU code: headers and payloads of live elements"),
        "gpu_after": ("u64", "bytes of GPU code"),
        "reason": ("str?", "why the mode is not the one that was asked for"),
    },
    "device": {
        "index": ("u64", "ordinal in the process"),
        "name": ("str", "as the driver gives it"),
        "arch": ("str", "compute capability, sm_90"),
        "uuid": ("str?", "as nvidia-smi prints it"),
        "runs": ("str", "sass, or ptx for a device that takes PTX only"),
        "sms": ("u64?", "multiprocessors"),
        "warps": ("u64?", "that a multiprocessor holds at once"),
        "blocks": ("u64?", "the same of blocks"),
        "clock_hz": ("u64?", "highest rate of the clock of multiprocessors"),
        "memory_hz": ("u64?", "highest rate of the clock of its memory"),
        "bus_bits": ("u64?", "width of the bus to its memory"),
    },
    "module": {
        "id": ("u64", "number in the segment"),
        "type": ("str", "fatbin, cubin or ptx"),
        "sha256": ("str?", "hexadecimal, of the image"),
        "path": ("str?", "the file whose mapping holds the image"),
        "offset": ("u64?", "file offset of the image"),
        "size": ("u64?", "bytes of the image"),
        "data": ("bin?", "the image"),
        "only": ("[str]?", "kernels to make code of; absent: all"),
        "arch": ("str?", "of the device: each of these kernels is wanted once, in the PTX that it would run"),
        "registers": ("u64?", "most of a thread that its kernels may use; absent: as many as they take"),
        "saved": ("str?", "the file that gpt-hook --save-modules wrote it to"),
        "loader": ("str?", "the library whose code loaded an image that lies in no file"),
    },
    "function": {
        "id": ("u64", "number in the segment"),
        "module": ("u64?", "id of its module"),
        "name": ("str", "mangled name: it was looked up, so it is used"),
    },
    "lookup": {
        "module": ("u64", "id of the module; chunks of several threads may bring it later"),
        "what": ("str", "enumerate or variable: the module may need all that it holds"),
        "name": ("str?", "of the variable"),
    },
    "ptx": {
        "id": ("u64", "number in the segment"),
        "module": ("str", "where it came from: PATH#INDEX"),
        "arch": ("str", "its target"),
        "kernels": ("[str]", "entry functions"),
        "only": ("[str]?", "as in the module that it is of"),
        "registers": ("u64?", "the same"),
        "data": ("bin", "the text, without trailing NUL"),
        "original": ("bin?", "the text before probes were woven in"),
    },
    "cubin": {
        "id": ("u64", "of the ptx record that it was made from"),
        "module": ("str", "as there"),
        "arch": ("str", "compute capability, sm_90a"),
        "kernels": ("[str]", "entry functions"),
        "data": ("bin", "the cubin"),
        "original": ("bin?", "the same without probes"),
    },
    "object": {
        "id": ("u64", "of the ptx record that it was made from"),
        "module": ("str", "as there"),
        "arch": ("str", "host"),
        "kernels": ("[str]", "entry functions"),
        "data": ("bin", "the shared object"),
        "original": ("bin?", "the same without probes"),
    },
    "fatbin": {
        "id": ("u64", "of the ptx record that it was made from"),
        "module": ("str", "as there"),
        "archs": ("[str]", "compute capabilities of its cubins"),
        "kernels": ("[str]", "entry functions"),
        "data": ("bin", "one region: the cubins, then the PTX"),
    },
    "kernel": {
        "id": ("u64", "of the ptx record that it is in; in a trace a number in the segment"),
        "name": ("str", "mangled name"),
        "function": ("u64?", "in a trace: id of the function that it stands for"),
        "params": ("[param]?", "its own parameters"),
        "added": ("[param]?", "the parameters after them that probes need"),
        "cluster": ("[u64]?", "blocks of a cluster in x, y and z, where the grid of a launch counts clusters"),
        "maps": ("[u64]?", "ids of the maps that its probes save to"),
        "sites": ("[site]?", "where its probes are"),
        "variables": ("[variable]?", "variables of its module that it shares"),
        "table": ("str?", "variable of the probed module that takes the addresses of those in global memory"),
        "verified": ("u64?", "1 if its probes were proved harmless, 0 if that was not asked for"),
        "reason": ("str?", "why no probe is in it"),
        "arch": ("str?", "compute capability of the code that the numbers are about"),
        "registers": ("u64?", "of a thread"),
        "spills": ("u64?", "bytes that are spilled and filled again, added"),
        "stack": ("u64?", "bytes of a thread's stack"),
        "shared": ("u64?", "bytes of shared memory that it declares"),
        "constant": ("u64?", "bytes of its own constant banks, parameters included"),
        "registers_before": ("u64?", "the same without probes"),
        "spills_before": ("u64?", "the same without probes"),
        "stack_before": ("u64?", "the same without probes"),
        "shared_before": ("u64?", "the same without probes"),
        "constant_before": ("u64?", "the same without probes"),
    },
    "map": {
        "id": ("u64", "number in the segment"),
        "name": ("str", "as the probe file says it"),
        "type": ("str", "array, total or log"),
        "level": ("str", "thread, warp or block: a unit"),
        "capacity": ("u64", "records of a unit, of a log all in all; 0 if they are counted only"),
        "stride": ("u64", "bytes of a record"),
        "fields": ("[field]", "layout of a record"),
        "wanted": ("u64?", "of an array or total that is counted only: the capacity that it would have"),
        "callback": ("str?", "the file that its probe file wants to be run on each launch: an absolute path"),
        "keeps": ("str?", "last, of an array that keeps the last records if the lowest bit of its address is set"),
    },
    "clock": {
        "monotonic": ("u64", "CLOCK_MONOTONIC, ns"),
        "tsc": ("u64", "the time stamp counter at the same moment"),
    },
    "recording": {
        "on": ("bool", "whether calls are recorded from here on"),
        "at": ("u64", "time stamp"),
    },
    "api": {
        "id": ("u64", "number in the segment"),
        "symbol": ("str", "the driver function as the program asked for it"),
        "name": ("str", "without version and stream suffix"),
        "type": ("str", "context, memory, memcpy, memset, kernel, module, stream, event, sync, graph, device or other"),
        "op": ("str", "what it does within its type: alloc, free, HtoD, launch, ..."),
    },
    "graph": {
        "exec": ("u64", "handle of the graph that can be launched"),
        "at": ("u64", "time stamp: later launches of the handle mean this graph"),
        "nodes": ("u64", "nodes, those of graphs inside it included"),
        "functions": ("[u64]", "ids of the functions that its kernel nodes launch"),
        "launches": ("[u64]", "how often each is launched; 0: as a condition says, or not at all"),
    },
    "launches": {
        "fields": ("[field]", "layout of a row"),
        "stride": ("u64", "bytes of a row"),
        "rows": ("bin", "rows of zero bytes are padding"),
    },
    "counts": {
        "fields": ("[field]", "layout of a row"),
        "stride": ("u64", "bytes of a row"),
        "rows": ("bin", "rows of zero bytes are padding"),
    },
    "calls": {
        "thread": ("u64", "thread id"),
        "fields": ("[field]", "layout of a row"),
        "stride": ("u64", "bytes of a row"),
        "rows": ("bin", "packed little-endian rows; rows of zero bytes are padding"),
    },
    "stack": {
        "id": ("u64", "number in the segment"),
        "frames": ("[frame]", "callers, the innermost first; the last may have others"),
    },
    "call_site": {
        "thread": ("u64", "thread id"),
        "start": ("u64", "start of the row of the call"),
        "stack": ("u64", "id of the stack that it came from"),
    },
    "ioctl": {
        "thread": ("u64", "thread id"),
        "parent": ("u64?", "start of the row of the driver call that it is part of"),
        "device": ("str", "/dev/nvidia..."),
        "request": ("u64", "number of the ioctl"),
        "name": ("str", "of the escape, as NVIDIA's kernel modules name it; else the number"),
        "command": ("u64?", "of NV_ESC_RM_CONTROL, class of NV_ESC_RM_ALLOC, escape of NV_ESC_IOCTL_XFER_CMD"),
        "start": ("u64", "time stamp"),
        "duration": ("u64", "as of time stamps"),
        "error": ("u64?", "errno; absent if it worked"),
    },
    "range": {
        "id": ("u64?", "number in the process, for its range_end; absent for a mark"),
        "type": ("str", "push, start or mark"),
        "thread": ("u64", "thread id"),
        "domain": ("str?", "of NVTX; absent for the default one"),
        "name": ("str?", "what the program calls it"),
        "category": ("u64?", "of NVTX; absent for none"),
        "start": ("u64", "time stamp"),
    },
    "range_end": {
        "id": ("u64", "of the range; one that began before a fork is in the trace of the parent"),
        "thread": ("u64", "thread id"),
        "end": ("u64", "time stamp"),
    },
    "tensor": {
        "id": ("u64", "number in the segment; the same under another name"),
        "at": ("u64", "time stamp: it was there, by this name"),
        "thread": ("u64", "thread id"),
        "name": ("str", "of the variable that held it"),
        "address": ("u64", "of its lowest byte"),
        "bytes": ("u64", "from there to the end of its highest"),
        "first": ("u64?", "address of its first element, where that is not the lowest"),
        "dtype": ("str", "type of an element, as the program's library names it"),
        "shape": ("[u64]", "elements in each dimension"),
        "function": ("str?", "whose variable it was"),
        "file": ("str?", "source file of the function"),
        "line": ("u64?", "that was being run"),
    },
    "tensor_end": {
        "id": ("u64", "of the tensor"),
        "at": ("u64", "time stamp: the program gave it up"),
    },
    "gpu_times": {
        "fields": ("[field]", "layout of a row"),
        "stride": ("u64", "bytes of a row"),
        "rows": ("bin", "packed little-endian rows; rows of zero bytes are padding"),
    },
    "probed": {
        "id": ("u64", "number in the segment"),
        "kernel": ("u64", "id of the kernel record"),
        "function": ("u64", "id of the function that the program launched"),
        "thread": ("u64", "thread id"),
        "start": ("u64", "time stamp of the call"),
        "device": ("u64", "ordinal in the process"),
        "stream": ("u64", "handle"),
        "grid": ("[u64]", "blocks in x, y and z"),
        "block": ("[u64]", "threads of a block in x, y and z"),
        "shared": ("u64", "bytes of dynamic shared memory"),
        "params": ("bin?", "its own parameters, as the kernel got them"),
        "exec": ("u64?", "handle of the executable graph that launched it"),
        "node": ("u64?", "handle of its node in the graph that this was made from, or updated from"),
        "repeats": ("u64?", "1 in the body of a conditional node: buffers are of all its runs, or of none"),
    },
    "buffer": {
        "launch": ("u64", "id of the probed record"),
        "map": ("u64", "id of its map"),
        "size": ("u64", "bytes of the whole buffer"),
        "at": ("u64?", "the first of them that this record holds; absent for 0"),
        "length": ("u64?", "how many it holds; absent for all"),
        "units": ("u64?", "those of its units that are written, each after its number; the others are zero"),
        "codec": ("str?", "zstd, if what is written is a frame of that; neutrino, if it is of a result of Neutrino"),
        "path": ("str?", "the file that it is written to, in the folder of the trace"),
        "offset": ("u64?", "where it begins in that file"),
        "packed": ("u64?", "bytes of the frame in that file"),
        "data": ("bin?", "what is written, where it is in no file"),
        "lost": ("str?", "why the buffer is nowhere"),
    },
    "times": {
        "launch": ("u64", "id of the probed record"),
        "prologue": ("u64", "ns that the launch was held up for buffers, parameters and constants"),
        "epilogue": ("u64", "ns that the thread which writes took for its buffers"),
        "kernel": ("u64?", "ns of the kernel with probes on the GPU, with --benchmark"),
        "original": ("u64?", "ns of the kernel without probes, assembled alike"),
    },
    "memusage": {
        "function": ("u64", "id of the function"),
        "launches": ("u64", "how many of it"),
        "bytes": ("u64", "what their buffers would need, added"),
        "most": ("u64", "bytes of the launch that would need most"),
    },
    "unprobed": {
        "function": ("u64", "id of the function"),
        "launches": ("u64", "how many ran without probes for this reason"),
        "reason": ("str", "why"),
    },
    "answer": {
        "name": ("str", "what it is about: processes, functions, copies, kernels"),
        "columns": ("[column]", "values of a row, in order"),
        "stride": ("u64", "bytes of a row"),
        "texts": ("[str]", "what numbers in columns of text stand for, from 0"),
        "rows": ("bin", "packed little-endian rows; none is padding"),
        "top": ("u64?", "rows that a table for people shows, of many; absent for all"),
        "verdict": ("[str]", "what follows from the rows, or limits what they say: a line each"),
        "incomplete": ("[str]?", "what of the input is missing: a line each; absent if nothing is"),
        "plots": ("[plot]?", "how it is drawn; absent if nothing says so"),
    },
    "chunk": {
        "used": ("u64", "bytes of data that hold records"),
        "data": ("bin", "whole records; zero bytes between them are padding"),
    },
}

ROWS = {  # kinds of packed rows, and those that a row of theirs has in JSON
    "launches": "launch",
    "counts": "count",
    "calls": "call",
    "gpu_times": "gpu_time",
}
ANSWER_ROW = "row"  # and that of a row of an answer, which it is put back into


def make(kind: str, **values: Any) -> dict[str, Any]:
    """A record of `kind` with its keys in canonical order; None means absent.

    Raises TypeError on a key that the kind does not declare and on a required one that is missing: both are
    faults of the program, never of its input.
    """
    record: dict[str, Any] = {"kind": kind}
    for key, (type_, _) in KINDS[kind].items():
        value = values.pop(key, None)
        if value is not None:
            record[key] = value
        elif not type_.endswith("?"):
            raise TypeError(f"{kind} record without {key}")
    if values:
        raise TypeError(f"{kind} record has no {', '.join(values)}")
    return record


def check(record: Mapping[str, Any]) -> str | None:
    """What is wrong with a record that somebody else wrote, or None. Unknown kinds and keys are fine."""
    keys = KINDS.get(record["kind"], {})
    return _check(record, keys, str(record["kind"]))


def _check(value: Mapping[str, Any], keys: Keys, name: str) -> str | None:
    for key, (type_, _) in keys.items():
        if key not in value:
            if not type_.endswith("?"):
                return f"{name} without {key}"
            continue
        if fault := _check_type(value[key], type_.rstrip("?"), f"{name}.{key}"):
            return fault
    return None


_PYTHON: dict[str, type] = {"str": str, "bin": bytes, "bool": bool}


def _check_type(value: Any, type_: str, name: str) -> str | None:
    if type_.startswith("["):
        if not isinstance(value, list):
            return f"{name} is not an array"
        return next((f for v in value if (f := _check_type(v, type_[1:-1], name))), None)
    if type_ in STRUCTS:
        return _check(value, STRUCTS[type_], name) if isinstance(value, dict) else f"{name} is not a map"
    if type_ == "u64":
        return None if type(value) is int and 0 <= value < 1 << 64 else f"{name} is not of type {type_}"
    return None if isinstance(value, _PYTHON[type_]) else f"{name} is not of type {type_}"
