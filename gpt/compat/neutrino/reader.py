"""Generate Python code that reads the `.bin` of a kernel, for process.log and read.py.

`parse(path)` returns the header, the sections and the records. With one map, `records[block][unit]` is a record, or a
list of records if a unit can have several. With more maps, `records` is a dictionary of these, by the name of the map.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

BEGIN, END = "# Neutrino Generated Code for Reading Trace", "# END OF GENERATED CODE"

_HEAD = """\
{begin}
import struct
from typing import NamedTuple


class TraceHeader(NamedTuple):
    gridDimX: int
    gridDimY: int
    gridDimZ: int
    blockDimX: int
    blockDimY: int
    blockDimZ: int
    sharedMemBytes: int
    numProbes: int


class TraceSection(NamedTuple):
    size: int  # bytes of a unit: a thread, a warp
    {more}offset: int
"""

_PARSE = """

def parse(path: str):
    with open(path, "rb") as f:
        header = TraceHeader(*struct.unpack("<8I", f.read(32)))
        sections = [TraceSection(*struct.unpack("<SECTION", f.read(16))) for _ in range(header.numProbes)]
        gridSize = header.gridDimX * header.gridDimY * header.gridDimZ
        blockSize = header.blockDimX * header.blockDimY * header.blockDimZ
        records = {}
"""

_MAP = """
        # Read {name}
        f.seek(sections[{index}].offset)
        record = struct.Struct("{format}")
        whole, units = {whole}, {units}  # per block; partial warps come after the whole ones
        blocks = [[] for _ in range(gridSize)]
        for count in (whole, units - whole):
            for block in blocks:
                for _ in range(count):
                    unit = f.read(sections[{index}].size)
                    block.append({value})
        records["{name}"] = blocks
"""

# Names that the generated text itself uses. If a map has such a name, it's renamed.
_USED = frozenset(
    ("NamedTuple", "TraceHeader", "TraceSection", "at", "block", "blockSize", "blocks", "count", "f", "gridSize",
     "header", "int", "len", "open", "parse", "path", "range", "record", "records", "sections", "struct", "unit",
     "units", "whole")
)  # fmt: skip

_COUNTS = {
    "thread": ("blockSize", "blockSize"),
    "warp": ("blockSize // 32", "(blockSize + 31) // 32"),
    "block": ("1", "1"),
}


class ReadMap(NamedTuple):
    """A map in the form that a reader needs: its level, its fields with the letters of `struct`, and the bytes per
    record.

    `single` is True if a unit has only one record.
    """

    name: str
    level: str
    fields: Sequence[tuple[str, str]]
    bytes: int
    single: bool


def make_reader(maps: Sequence[ReadMap], second: bool = False) -> str:
    """Return the text of a reader, for results of the first generation, or with `second`, of the second."""
    more = "warpDiv: int  # threads of a unit\n    " if second else ""
    parts = [_HEAD.format(begin=BEGIN, more=more)]
    reads = []
    names = _identify((found.name for found in maps), _USED)
    for index, (name, found) in enumerate(zip(names, maps, strict=True)):
        parts.append(f"\n\nclass {name}(NamedTuple):\n")
        fields = zip(_identify(field for field, _ in found.fields), found.fields, strict=True)
        parts += [f"    {field}: {_type(letter)}\n" for field, (_, letter) in fields] or ["    pass\n"]
        format_ = "<" + "".join(letter for _, letter in found.fields)
        whole, units = _COUNTS[found.level]
        one = f"{name}(*record.unpack_from(unit))"
        several = f"[{name}(*record.unpack_from(unit, at)) for at in range(0, len(unit), {found.bytes})]"
        value = one if found.single else several
        reads.append(_MAP.format(name=name, index=index, format=format_, whole=whole, units=units, value=value))
    answer = f'records["{names[0]}"]' if len(maps) == 1 else "records"
    return "".join(
        [
            *parts,
            _PARSE.replace("SECTION", "IIQ" if second else "QQ"),
            *reads,
            f"    return header, sections, {answer}\n\n\n{END}\n",
        ]
    )


def _identify(names: Iterable[str], taken: Collection[str] = ()) -> list[str]:
    """Convert names to unique Python identifiers that aren't `taken`."""
    found: list[str] = []
    for name in map(_identifier, names):
        while name in taken or name in found:
            name += "_"
        found.append(name)
    return found


def _identifier(name: str) -> str:
    """Convert a name to a Python identifier."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII).lstrip("_") or "field"
    return f"n{found}" if found[0].isdigit() else f"{found}_" if keyword.iskeyword(found) else found


def _type(letter: str) -> str:
    return "float" if letter in "efd" else "int"
