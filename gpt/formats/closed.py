"""Recognize NVIDIA's closed code before anything in it is decoded. Such code is never disassembled or probed.

The name of a file isn't enough: a library may be renamed, or linked into a program (`-lcublas_static`). So each element
is judged by the names of kernels in the symbol table of its container, and then by the file that contains it: the name
of the file, the name with which it was linked (DT_SONAME, which renaming doesn't change), and its build ID. An element
that contains one closed kernel is rejected as a whole, because its other kernels were compiled together with it.

closed.txt is the table of names. There are four kinds of lines, each with the prefix of a name. From this table, `make`
also generates the hook's list of files that are never passed to a stage. If a program links a closed library, the table
can't recognize elements whose kernels have names that anybody may use, or that are instances of templates from open
libraries (CUB, CUTLASS).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePath

from gpt.formats.elf import Elf
from gpt.formats.source import Source

REASON = "closed_library"  # the code of the reason in records
TABLE = Path(__file__).with_name("closed.txt")
SHT_DYNAMIC, DT_SONAME = 6, 14
DYNAMIC = struct.Struct("<QQ")
MAX_DYNAMIC, MAX_NAME = 1 << 16, 1 << 8  # limits in bytes: for all tables together, and for a name
KINDS = ("file", "word", "kernel", "build-id")
_MANGLED = r"_ZN?K?[0-9]+"


@cache
def read_table() -> dict[str, tuple[str, ...]]:
    """Return the name prefixes of each kind."""
    lines = [line.split() for line in TABLE.read_text().splitlines() if line and not line.startswith("#")]
    return {kind: tuple(text for found, text in lines if found == kind) for kind in KINDS}


@cache
def _pattern() -> re.Pattern[str]:
    table = read_table()
    words = "|".join(map(re.escape, table["word"]))
    kernels = "|".join(re.escape(text).replace(r"\#", "[0-9]+") for text in table["kernel"])
    return re.compile(f"(?:{_MANGLED})?(?:{kernels})|(?:.*[0-9])?(?:{words})", re.DOTALL)


def find_closed_kernel(names: Iterable[str]) -> str | None:
    """Return the first of these kernels that's from a closed library, or None. Their names are those in the symbol
    table.
    """
    match = _pattern().match
    return next((name for name in names if match(name)), None)


def is_closed_library(source: Source, tables: Elf | None) -> bool:
    """Return whether a file is a closed library. `tables` is None if it isn't an ELF file."""
    soname = [find_soname(source, tables)] if tables else []
    return is_closed_name([source.name, *soname], tables.build_id if tables else None)


def is_closed_name(paths: Iterable[str], build_id: str | None) -> bool:
    """Return whether a file is a closed library, judging by its names and its build ID."""
    table = read_table()
    return build_id in table["build-id"] or any(PurePath(path).name.startswith(table["file"]) for path in paths)


def find_reason(kernels: Iterable[str], source: Source, tables: Elf | None) -> str | None:
    """Return the code of the reason if an element with these kernels, in this file, is closed. Otherwise, return
    None.
    """
    return REASON if find_closed_kernel(kernels) or is_closed_library(source, tables) else None


def find_soname(source: Source, tables: Elf) -> str:
    """Return the name with which a shared library was linked, or an empty string."""
    room = MAX_DYNAMIC  # the tables in a malicious file may share bytes
    for dynamic in tables.sections:
        if dynamic.type != SHT_DYNAMIC or not 0 < dynamic.link < len(tables.sections):
            continue
        strings = tables.sections[dynamic.link]
        entries = source.pread(dynamic.offset, min(dynamic.size, room) // DYNAMIC.size * DYNAMIC.size)
        room -= len(entries)
        for tag, value in DYNAMIC.iter_unpack(entries):
            if tag == DT_SONAME and strings.in_file and value < strings.size:
                raw = source.pread(strings.offset + value, min(MAX_NAME, strings.size - value))
                return raw.partition(b"\0")[0].decode(errors="backslashreplace")
    return ""
