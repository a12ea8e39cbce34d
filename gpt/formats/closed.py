"""Recognize NVIDIA's closed code, which is never disassembled or probed, before anything in it is decoded.

A file's name isn't enough: a library may be renamed, or linked into a program (`-lcublas_static`). So each element is
judged by the kernel names in the container's symbol table, and then by the file that contains it: the file's name, the
name it was linked with (DT_SONAME, which renaming doesn't change), and its build ID. An element with one closed kernel
is rejected as a whole, since its other kernels were compiled with it.

closed.txt is the table of names. It has four kinds of lines, each with a name prefix. From it, `make` generates the
hook's list of files that are never passed to a stage. In a program that links a closed library, the table can't
recognize elements whose kernel names anybody may use, or templates from open libraries (CUB, CUTLASS) that the closed
library instantiates.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePath

from gpt.formats.elf import Elf
from gpt.formats.source import Source

REASON = "closed_library"  # the reason's code in records
TABLE = Path(__file__).with_name("closed.txt")
SHT_DYNAMIC, DT_SONAME = 6, 14
DYNAMIC = struct.Struct("<QQ")
MAX_DYNAMIC, MAX_NAME = 1 << 16, 1 << 8  # limits in bytes: all tables together, and one name
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
    """Return the first of these kernels, named as in the symbol table, that's from a closed library, or None."""
    match = _pattern().match
    return next((name for name in names if match(name)), None)


def is_closed_library(source: Source, tables: Elf | None) -> bool:
    """Return whether a file is a closed library. `tables` is None unless it's an ELF file."""
    soname = [find_soname(source, tables)] if tables else []
    return is_closed_name([source.name, *soname], tables.build_id if tables else None)


def is_closed_name(paths: Iterable[str], build_id: str | None) -> bool:
    """Return whether a file is a closed library, from its names and its build ID."""
    table = read_table()
    return build_id in table["build-id"] or any(PurePath(path).name.startswith(table["file"]) for path in paths)


def find_reason(kernels: Iterable[str], source: Source, tables: Elf | None) -> str | None:
    """Return the reason's code if an element with these kernels in this file is closed, or None if it isn't."""
    return REASON if find_closed_kernel(kernels) or is_closed_library(source, tables) else None


def find_soname(source: Source, tables: Elf) -> str:
    """Return the name that a shared library was linked with, or an empty string."""
    room = MAX_DYNAMIC  # hostile tables share their bytes
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
