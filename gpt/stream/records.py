"""Every kind of record in a GPT stream, declared once: its keys in canonical order, their types and units.

The kinds stand in record_code.py and record_runs.py, what several of them share stands here.

`gpt-stream(5)` says the same in prose, `make` generates `runtime/abi/records.h` from it, and tests hold the page
and the bytes that C writes equal to what stands here.

Types: `u64` an unsigned integer, `u32` one below 2^32, `str` UTF-8 text, `bin` bytes, `bool`, `[T]` an array of T, and
the name of a struct in STRUCTS for a nested map. Time is in nanoseconds, sizes and offsets in bytes. A key whose type
ends in `?` may be absent; it is never nil.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpt.stream.record_code import CODE, Keys
from gpt.stream.record_runs import RUNS

VERSION = (1, 0)
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
        "type": ("str", "as of a field, text, or number; with ? where a row may have no value"),
        "offset": ("u64", "bytes from the start of the row"),
        "unit": ("str?", "ns, cycles, bytes, %, id, address, and of text kernel; absent for counts and plain text"),
        "title": ("str?", "what stands above it in a table; absent if that is the name"),
        "shown": ("str?", "in tables for people: never, any, under, line, exact; absent for always"),
    },
    "plot": {
        "form": ("str", "bars, stack, lines, levels, histogram, spans, heat or roofs"),
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
    "operation": {
        "type": ("str", "as of an api: memcpy, memset, memory, or stream for a function of the host"),
        "op": ("str", "what it does within its type: HtoD, set, alloc, free, host, ..."),
        "nodes": ("u64", "that do it, each once a launch"),
        "bytes": ("u64", "of all of them, in one launch"),
        "address": ("u64?", "of memory: where it is"),
    },
    "site": {
        "probe": ("str", "name of the probe"),
        "position": ("str", "as the probe file says it"),
        "matched": ("u64", "places in the program that it means"),
        "woven": ("u64", "those that the probe was woven into"),
    },
}

KINDS: dict[str, Keys] = {**CODE, **RUNS}

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
