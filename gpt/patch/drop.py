"""Drop unused kernels from a cubin: remove their sections and everything that refers to them, but keep all numbers.

Zeroed code (trim.py) still takes memory when a cubin is loaded. Here, the sections of a dropped function (`.text`,
`.nv.info`, `.nv.constant0`, `.nv.shared`, relocations and others with its name) become empty headers of type 0, and the
bytes after them move up. Other sections and symbols keep their numbers, so nothing that refers to them by number
changes. The symbol of a dropped function becomes a copy of symbol 0. Tables of functions lose its entries:

- `.nv.info` of the module: attributes {u8 4, u8 kind, u16 8, u32 symbol, u32 value} of the kinds in OF_SYMBOL;
- `.nv.callgraph` and `.nv.prototype`: pairs {u32 symbol, u32 other}, in the former either may be the function;
- relocations of debug information; dropped names become zeros, since these compress to nothing.

File offsets are recomputed, in the same order and with the alignment of each section, and segments follow the sections
inside them. `KeptWhole` is raised if a cubin isn't laid out like the cubins that we know; its code is zeroed instead.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

import numpy as np

from gpt.base.errors import MalformedError
from gpt.formats import elftables
from gpt.formats.cubin import STT_FUNC, parse_cubin, section_headers
from gpt.formats.elf import EHDR_SIZE, PHDR_SIZE, SHF_ALLOC, SHT_NOBITS, SHT_SYMTAB
from gpt.patch.callgraph import (
    CALLGRAPH,
    EDGES,
    NVIDIA_INFO,
    PROTOTYPE,
    RELOCATION,
    SECTION,
    SHF_INFO_LINK,
    SHT_NULL,
    SYMBOL,
    TAKES_ADDRESS,
    Data,
    KeptWhole,
)

OF_SYMBOL = {0x11, 0x12, 0x23, 0x2F}  # frame size, minimum and maximum stack size, registers
ATTRIBUTE = struct.Struct("<BBHI")
SHT_STRTAB = 3
SIZED = 4  # form of attributes whose third field is the size of a value after it; in other forms it's the value itself
SEGMENT = elftables.SEGMENT.dtype
PAIR = np.dtype([("first", "<u4"), ("second", "<u4")])
HEADERS_ALIGN = 8
MAX_ALIGN = 1 << 12  # code needs 128
MAX_SEGMENTS = 64  # 6 are usual


def without(data: Data, code: Iterable[int]) -> bytes:
    """Return the cubin without the functions in these code sections. Raises KeptWhole.

    The sections must come from find_cut for this cubin, which has checked that tables are inside of it.
    """
    return _Dropping(data, set(code)).build()


def find_fault(before: Data, after: Data, code: Iterable[int]) -> str | None:
    """Check the output of `without`, and return a fault or None.

    Every remaining section must have the same header except for offset and size, and the same bytes unless it lists
    functions. All that's missing must belong to `code`. Every remaining kernel and function must have its name and
    size.
    """
    old, new = (np.frombuffer(section_headers(data), SECTION) for data in (before, after))
    if len(old) != len(new):
        return "sections are lost"
    gone = np.flatnonzero((old["type"] != SHT_NULL) & (new["type"] == SHT_NULL)).tolist()
    owners = {number: int(old["info"][number]) for number in gone}
    cut = set(code)
    for number, owner in owners.items():
        if number not in cut and owner not in cut and owners.get(owner) not in cut:
            return f"section {number} is gone"
    if not cut <= set(gone):
        return "code that should be gone is there"
    same = [name for name in SECTION.names or () if name not in ("offset", "size")]
    for number in sorted(set(range(len(old))) - set(gone)):
        a, b = old[number], new[number]
        if any(a[name] != b[name] for name in same):
            return f"the header of section {number} changed"
        listing = a["type"] in (SHT_NULL, SHT_SYMTAB, SHT_STRTAB, CALLGRAPH, PROTOTYPE)
        listing |= a["type"] == NVIDIA_INFO and not a["flags"] & SHF_INFO_LINK
        listing |= a["type"] in RELOCATION and not old["flags"][a["info"]] & SHF_ALLOC
        if listing:
            continue
        if a["size"] != b["size"] or (a["type"] != SHT_NOBITS and _bytes(before, a) != _bytes(after, b)):
            return f"section {number} changed"
    (table,) = np.flatnonzero(old["type"] == SHT_SYMTAB).tolist()
    symbols, left = (np.frombuffer(_bytes(data, rows[table]), SYMBOL) for data, rows in ((before, old), (after, new)))
    if (
        len(symbols) != len(left)
        or ((symbols != left) & (~np.isin(symbols["shndx"], gone) | (left["info"] != 0))).any()
    ):
        return "the symbol table changed"
    try:
        was, now = parse_cubin(before), parse_cubin(after)
    except MalformedError as error:
        return error.fact
    names = [symbol["name"] for symbol in now.kernels + now.functions]
    kept = symbols[(symbols == left) & (symbols["info"] & 15 == STT_FUNC) & (symbols["shndx"] != 0)]
    if len(names) != len(kept) or not set(names) <= {symbol["name"] for symbol in was.kernels + was.functions}:
        return "names of functions changed"
    return None


def _bytes(data: Data, row: np.void) -> bytes:
    return bytes(memoryview(data)[int(row["offset"]) : int(row["offset"]) + int(row["size"])])


@dataclass
class _Part:
    """A range of the original file, `size` bytes at `offset`, and its range in the output.

    `section` is its section number, or None for a table of headers.
    """

    offset: int
    size: int
    section: int | None = None
    start: int = 0
    end: int = 0

    @property
    def old_end(self) -> int:
        """Return the end of the range in the original."""
        return self.offset + self.size


class _Dropping:
    """A cubin, and the code sections to drop."""

    def __init__(self, data: Data, code: set[int]) -> None:
        self.data = memoryview(data)
        self.sections = np.frombuffer(section_headers(data), SECTION).copy()
        in_file = ~np.isin(self.sections["type"], (SHT_NULL, SHT_NOBITS))
        if sum(self.sections["size"][in_file].tolist()) > len(self.data):
            raise KeptWhole("sections overlap")
        self.content = [self._content(number) for number in range(len(self.sections))]
        self.gone = self._owned(code)
        (self.table,) = np.flatnonzero(self.sections["type"] == SHT_SYMTAB).tolist()
        self.symbols = np.frombuffer(self.content[self.table], SYMBOL).copy()
        self.lost = np.isin(self.symbols["shndx"], sorted(self.gone)) & (self.symbols["shndx"] != 0)

    def build(self) -> bytes:
        """Implement without."""
        self._edit_lists()
        self._edit_names()
        self.symbols[self.lost] = np.zeros(1, SYMBOL)
        self.content[self.table] = self.symbols.tobytes()
        for number in self.gone:
            self.sections[number] = np.zeros(1, SECTION)
            self.content[number] = b""
        return self._lay_out()

    def _content(self, number: int) -> bytes:
        row = self.sections[number]
        if row["type"] in (SHT_NULL, SHT_NOBITS):
            return b""
        offset, size = int(row["offset"]), int(row["size"])
        if offset + size > len(self.data):
            raise KeptWhole("a section ends beyond the cubin")
        return bytes(self.data[offset : offset + size])

    def _owned(self, code: set[int]) -> set[int]:
        """Return the code sections, the sections that belong to them, and the relocations of all of these."""
        gone = set(code)
        for _ in range(2):
            linked = np.isin(self.sections["info"], sorted(gone)) & (self.sections["info"] != 0)
            linked &= self.sections["flags"] & SHF_INFO_LINK != 0
            gone |= set(np.flatnonzero(linked).tolist())
        return gone

    def _edit_lists(self) -> None:
        """Remove dropped functions from the tables that list functions."""
        for number in range(len(self.sections)):
            if number in self.gone:
                continue
            row = self.sections[number]
            type_, content = int(row["type"]), self.content[number]
            if type_ == NVIDIA_INFO and not row["flags"] & SHF_INFO_LINK:
                content = self._attributes(content)
            elif type_ in (CALLGRAPH, PROTOTYPE):
                content = self._pairs(content, type_ == CALLGRAPH)
            elif type_ in RELOCATION:
                entries = _entries(content, RELOCATION[type_])
                if len(entries) and int(entries["symbol"].max()) >= len(self.symbols):
                    raise KeptWhole("a symbol beyond the symbol table is used")
                lost = self.lost[entries["symbol"]]
                if lost.any() and self.sections["flags"][int(row["info"])] & SHF_ALLOC:
                    raise KeptWhole("a kept section refers to a dropped one")
                content = entries[~lost].tobytes()
            self.content[number] = content
            self.sections["size"][number] = len(content) if type_ != SHT_NOBITS else row["size"]

    def _attributes(self, content: bytes) -> bytes:
        out = bytearray()
        position = 0
        while position < len(content):
            if position + 4 > len(content):
                raise KeptWhole("attributes of the module are torn")
            form, kind, size = struct.unpack_from("<BBH", content, position)
            end = position + 4 + (size if form == SIZED else 0)
            if end > len(content):
                raise KeptWhole("attributes of the module are torn")
            symbol = None
            if form == SIZED:
                if kind not in OF_SYMBOL or size != 8:
                    raise KeptWhole(f"attribute {kind:#x} of the module is not understood")
                symbol = ATTRIBUTE.unpack_from(content, position)[3]
                if symbol >= len(self.lost):
                    raise KeptWhole("a symbol beyond the symbol table is used")
            if symbol is None or not self.lost[symbol]:
                out += content[position:end]
            position = end
        return bytes(out)

    def _pairs(self, content: bytes, graph: bool) -> bytes:
        pairs = _entries(content, PAIR)
        lost = self._is_lost(pairs["first"])
        if graph:
            marks = (pairs["first"] == 0) & (pairs["second"] >= TAKES_ADDRESS)
            group = pairs["second"][marks][np.cumsum(marks) - 1]  # find_cut checked that the first pair begins one
            lost |= np.isin(group, [mark for mark, edges in EDGES.items() if edges]) & self._is_lost(pairs["second"])
            lost &= ~marks
        out: bytes = pairs[~lost].tobytes()
        return out

    def _is_lost(self, numbers: np.ndarray) -> np.ndarray:
        """Return which of these symbol numbers are dropped. Numbers may be out of range."""
        lost: np.ndarray = (numbers < len(self.lost)) & self.lost[np.minimum(numbers, len(self.lost) - 1)]
        return lost

    def _edit_names(self) -> None:
        """Zero all names that no remaining section or symbol has."""
        stay = np.ones(len(self.sections), bool)
        stay[sorted(self.gone)] = False
        (shstrndx,) = struct.unpack_from("<H", self.data, 62)
        used: dict[int, list[int]] = {shstrndx: self.sections["name"][stay].tolist()}
        used.setdefault(int(self.sections["link"][self.table]), []).extend(self.symbols["name"][~self.lost].tolist())
        for number, starts in used.items():
            if not 0 < number < len(self.content):
                raise KeptWhole("no names of sections")
            others = np.flatnonzero(stay & (self.sections["link"] == number)).tolist()
            if set(others) - {self.table}:
                raise KeptWhole("another section has its names there")
            self.content[number] = _only(self.content[number], starts)

    def _lay_out(self) -> bytes:
        """Return the file.

        Everything after the header in its original order, with the alignment that each part needs.
        """
        phoff, shoff = struct.unpack_from("<QQ", self.data, 32)
        phentsize, phnum = struct.unpack_from("<HH", self.data, 54)
        if phnum > MAX_SEGMENTS or (phnum and phentsize != PHDR_SIZE):
            raise KeptWhole("unknown program headers")
        segments = np.frombuffer(self.data[phoff : phoff + phnum * PHDR_SIZE], SEGMENT).copy() if phnum else None
        old = np.frombuffer(section_headers(self.data), SECTION)
        in_file = np.flatnonzero(~np.isin(old["type"], (SHT_NULL, SHT_NOBITS)) & (old["size"] > 0)).tolist()
        contents = [_Part(int(old["offset"][number]), int(old["size"][number]), number) for number in in_file]
        headers = _Part(shoff, self.sections.nbytes)
        program_headers = _Part(phoff, phnum * PHDR_SIZE)
        parts = sorted(
            [headers, program_headers, *contents] if phnum else [headers, *contents], key=attrgetter("offset")
        )
        if parts[0].offset < EHDR_SIZE or any(a.old_end > b.offset for a, b in pairwise(parts)):
            raise KeptWhole("sections overlap")
        out = bytearray(self.data[:EHDR_SIZE])
        for part in parts:
            self._append(out, part)
        self._place_empty(old, parts)
        if segments is not None:
            for segment in segments:
                _move(segment, parts)
            struct.pack_into("<Q", out, 32, program_headers.start)
            out[program_headers.start : program_headers.end] = segments.tobytes()
        struct.pack_into("<Q", out, 40, headers.start)
        out[headers.start : headers.end] = self.sections.tobytes()
        return bytes(out)

    def _append(self, out: bytearray, part: _Part) -> None:
        """Append a part to the output: the bytes of a section, or zeros for a table of headers."""
        number = part.section
        content = bytes(part.size) if number is None else self.content[number]
        align = HEADERS_ALIGN if number is None else int(self.sections["align"][number])  # 0 if the section was dropped
        if align > MAX_ALIGN:
            raise KeptWhole(f"an alignment of {align}")
        out += bytes(-len(out) % max(align, 1))
        part.start = len(out)
        out += content
        part.end = len(out)
        if number is not None and number not in self.gone:
            self.sections["offset"][number] = part.start

    def _place_empty(self, old: np.ndarray, parts: list[_Part]) -> None:
        """Place sections without bytes at the end of the part that preceded them."""
        offsets = np.array([part.offset for part in parts])
        empty = (old["type"] != SHT_NULL) & ((old["type"] == SHT_NOBITS) | (old["size"] == 0))
        for number in np.flatnonzero(empty).tolist():
            before = int(np.searchsorted(offsets, min(int(old["offset"][number]), len(self.data))))
            if number not in self.gone:
                self.sections["offset"][number] = parts[before - 1].end if before else EHDR_SIZE


def _entries(content: bytes, dtype: np.dtype) -> np.ndarray:
    if len(content) % dtype.itemsize:
        raise KeptWhole("a table ends within an entry")
    return np.frombuffer(content, dtype)


def _only(names: bytes, starts: list[int]) -> bytes:
    """Return a string table in which only the strings at these offsets remain; the rest is zeros."""
    out = bytearray(len(names))
    room = 2 * len(names) + (1 << 16)  # strings may share their ends
    for start in set(starts):
        end = names.find(0, start)
        room -= end - start
        if end < 0 or room < 0:
            raise KeptWhole("names overlap")
        out[start:end] = names[start:end]
    return bytes(out)


def _move(segment: np.void, parts: list[_Part]) -> None:
    """Move a segment to the new place of its parts."""
    start, end = int(segment["offset"]), int(segment["offset"]) + int(segment["filesz"])
    if any(part.offset < edge < part.old_end for part in parts for edge in (start, end)):
        raise KeptWhole("a segment cuts through a section")
    inside = [part for part in parts if start <= part.offset and part.old_end <= end]
    filled = [part for part in inside if part.start < part.end]
    rest = int(segment["memsz"]) - int(segment["filesz"])
    if not 0 <= rest < 1 << 48:
        raise KeptWhole("a segment takes more bytes in the file than in memory")
    size = filled[-1].end - filled[0].start if filled else 0
    first = next(iter(filled or inside), None)
    segment["offset"] = first.start if first else EHDR_SIZE
    segment["filesz"] = size
    segment["memsz"] = size + rest
