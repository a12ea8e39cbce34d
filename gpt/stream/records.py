"""All kinds of records in a GPT stream, each declared once: its keys in canonical order, with their types and units.

The kinds are in record_code.py and record_runs.py. Structs that several of them use are here.

`make` generates `runtime/abi/records.h` from these tables. Tests compare them with gpt-stream(5), and with the bytes
that C writes, so if you change something here, change it there, too.

Types: `u64` is an unsigned integer, `u32` one below 2^32, `str` UTF-8 text, `bin` bytes, `bool`, `[T]` an array of T,
and the name of a struct in STRUCTS is a nested map. Times are in nanoseconds, sizes and offsets in bytes. A key whose
type ends with `?` may be absent, but it's never nil.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpt.stream.record_code import CODE, Keys
from gpt.stream.record_runs import RUNS

VERSION = (1, 2)
MAX_RECORD = 64 << 20  # bytes of one encoded record
MAX_ENTRIES = 1 << 20  # entries of one array or map

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
        "type": ("str", "as in field, or text, or number; ends in a question mark if rows may lack a value"),
        "offset": ("u64", "bytes from the start of the row"),
        "unit": ("str?", "ns, cycles, bytes, %, id, address; of names: kernel, function; absent otherwise"),
        "title": ("str?", "heading in a table; absent if it is the name"),
        "shown": ("str?", "when a table shows it: never, any, under, line, exact; absent for always"),
    },
    "plot": {
        "form": ("str", "bars, stack, lines, levels, histogram, spans, heat, roofs or flame"),
        "x": ("str?", "column for the horizontal axis; for spans, their beginning"),
        "y": ("[str]", "columns for the vertical axis; for spans and heat, the row; for roofs, three"),
        "end": (
            "str?",
            "for spans, histograms and heat, column of the end; for bars, a number to print at the end",
        ),
        "lane": ("str?", "for spans, column of the position within a row; for heat, the name of a row"),
        "color": ("str?", "column that selects the color"),
        "of": ("str?", "draw only rows whose first text is this"),
        "title": ("str?", "heading; absent for the first line of the verdict"),
        "log": ("u64?", "for bars: 1 for a logarithmic axis"),
    },
    "param": {
        "offset": ("u64", "bytes from the start of the parameters"),
        "size": ("u64", "bytes"),
        "type": ("str?", "type in the PTX declaration: u64, f32, b8[16]"),
        "space": ("str?", "for a pointer declared with .ptr: global, const, shared, local or generic"),
        "map": ("u64?", "id of the map whose buffer address is passed here"),
    },
    "variable": {
        "name": ("str", "name in its module"),
        "space": ("str", "global or const"),
        "size": ("u64?", "bytes; absent if the module does not declare it"),
        "offset": (
            "u64?",
            "for global: where its address goes, in bytes from the start of the table or, without one, of the cubin",
        ),
        "copy": ("str?", "for const: always, or taken (copy only after the program took its address)"),
    },
    "entry": {
        "name": ("str", "mangled name"),
        "params": ("[param]", "its parameters, in order"),
        "threads": ("u64", "maximum threads per block, from .maxntid or .reqntid; 0 for no limit"),
        "registers": ("u64", "maximum registers per thread, from .maxnreg; 0 for no limit"),
        "shared": ("u64", "bytes of static shared memory that it uses"),
        "local": ("u64", "bytes of local memory that it and its functions declare"),
    },
    "address": {
        "offset": ("u64", "bytes from the start of the variable"),
        "symbol": ("str", "the variable or function"),
        "addend": ("u64", "added to the address, modulo 2^64"),
        "size": ("u64", "bytes that are stored"),
        "shift": ("u64", "number of bits by which the address is shifted right, as in 0xff00(x)"),
        "generic": ("bool", "a generic address instead of one in the variable's space"),
    },
    "global": {
        "name": ("str", "name in its module"),
        "space": ("str", "global or const"),
        "size": ("u64", "bytes"),
        "align": ("u64", "bytes"),
        "data": ("bin?", "its initial value, without zeros at the end; absent if that is zero"),
        "addresses": ("[address]?", "addresses in its initial value"),
    },
    "frame": {
        "path": ("str?", "file that contains the code; absent if none does; for a Python frame, the source file"),
        "offset": ("u64", "return address as an offset in that file; without a file, the address; 0 for Python"),
        "function": ("str?", "for a Python frame: the qualified name of its function"),
        "line": ("u64?", "for a Python frame: the line that it executes; absent if unknown"),
    },
    "operation": {
        "type": ("str", "as in api: memcpy, memset, memory, or stream for a host function"),
        "op": ("str", "as in api: HtoD, DtoH, DtoD, HtoH, any, set, alloc, free, host"),
        "nodes": ("u64", "number of nodes that do it, each once per replay"),
        "bytes": ("u64", "total bytes per replay"),
        "address": ("u64?", "for memory: its address"),
    },
    "site": {
        "probe": ("str", "name of the probe"),
        "position": ("str", "position in the probe file"),
        "matched": ("u64", "number of places in the program that the position matches"),
        "woven": ("u64", "number of places into which the probe was woven"),
    },
}

KINDS: dict[str, Keys] = {**CODE, **RUNS}

ROWS = {  # kinds of packed rows, and the kind of a single row in JSON
    "launches": "launch",
    "counts": "count",
    "calls": "call",
    "gpu_times": "gpu_time",
}
ANSWER_ROW = "row"  # kind of a row of an answer in JSON; it's put back into the answer when it's read


def make(kind: str, **values: Any) -> dict[str, Any]:
    """Make a record of this kind, with its keys in canonical order. A key whose value is None is left out.

    Raises TypeError for a key that isn't declared, or if a required one is missing. Both are bugs of the caller, and
    never caused by input.
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
    """Return what's wrong with a record that was read, or None. Unknown kinds and keys are allowed."""
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


_BITS = {"u64": 64, "u32": 32}
_PYTHON: dict[str, type] = {"str": str, "bin": bytes, "bool": bool}


def _check_type(value: Any, type_: str, name: str) -> str | None:
    if type_.startswith("["):
        if not isinstance(value, list):
            return f"{name} is not an array"
        return next((f for v in value if (f := _check_type(v, type_[1:-1], name))), None)
    if type_ in STRUCTS:
        return _check(value, STRUCTS[type_], name) if isinstance(value, dict) else f"{name} is not a map"
    if type_ in _BITS:
        return None if type(value) is int and 0 <= value < 1 << _BITS[type_] else f"{name} is not of type {type_}"
    return None if isinstance(value, _PYTHON[type_]) else f"{name} is not of type {type_}"
