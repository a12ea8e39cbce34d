"""Parse the sections and segments of ELF files for the host.

Each table is read once, within limits. pyelftools would follow links between sections, read names again, and trust the
sizes in notes, so a malicious file of a few megabytes could keep it busy for hours or fill the memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from gpt.base.errors import MalformedError
from gpt.formats.elftables import HEADER, NOTE, SECTION, SEGMENT, Table
from gpt.formats.source import Source

MAGIC = b"\x7fELF"
MACHINES = {62: "x86_64", 183: "aarch64", 190: "cuda"}
TYPES = {1: "object", 2: "program", 3: "shared"}
MAX_NOTE = 1 << 12  # limit for reading a note section
MAX_TABLE = 1 << 18  # sections; an object with one section per function has 100,000
MAX_NAMES = 64 << 20  # bytes of all section names, with their NULs
EHDR_SIZE, SHDR_SIZE, PHDR_SIZE, NHDR_SIZE = (table.struct.size for table in (HEADER, SECTION, SEGMENT, NOTE))
SHN_XINDEX = 0xFFFF

SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL, SHT_DYNSYM, SHT_RELR = 2, 4, 8, 9, 11, 19
SHF_ALLOC, SHF_EXECINSTR = 2, 4
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_PHDR = 1, 2, 3, 6
PF_W = 2
NT_GNU_BUILD_ID = 3


@dataclass(frozen=True)
class Section:
    """A section header. Offsets are in the file; `addr` is a virtual address."""

    index: int
    name: str
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    entsize: int
    info: int = 0

    @property
    def in_file(self) -> bool:
        """True if the section occupies bytes in the file."""
        return self.type not in (0, SHT_NOBITS)

    @property
    def end(self) -> int:
        """File offset of its end."""
        return self.offset + self.size


@dataclass(frozen=True)
class Segment:
    """A program header. Its fields have the names of the ELF specification."""

    type: int
    flags: int
    offset: int
    vaddr: int
    paddr: int
    filesz: int
    memsz: int
    align: int


@dataclass(frozen=True)
class Elf:
    """The tables of an ELF file. `type` is object, program or shared, or else `type N`."""

    machine: str
    type: str
    phoff: int
    shoff: int
    sections: list[Section]
    segments: list[Segment]
    build_id: str | None

    def named(self, *names: str) -> list[Section]:
        """Return the sections with these names that have bytes in the file, in file order."""
        found = [s for s in self.sections if s.name in names and s.in_file and s.size]
        return sorted(found, key=lambda s: s.offset)


def file_offset(tables: Elf, address: int, size: int = 8) -> int | None:
    """Return the file offset of a virtual address, or None if nothing in the file is loaded there."""
    for segment in tables.segments:
        inside = segment.vaddr <= address and address + size <= segment.vaddr + segment.filesz
        if segment.type == PT_LOAD and inside:
            return segment.offset + address - segment.vaddr
    return None


def address_of(tables: Elf, offset: int) -> int | None:
    """Return the virtual address of a file offset, or None if that byte isn't loaded."""
    for segment in tables.segments:
        if segment.type == PT_LOAD and segment.offset <= offset < segment.offset + segment.filesz:
            return segment.vaddr + offset - segment.offset
    return None


def machine_of(head: bytes) -> int | None:
    """Return the machine number of an ELF file, which must be 64-bit and little-endian, from its first 20 bytes.
    Otherwise, return None.
    """
    if len(head) < 20 or head[:6] != MAGIC + b"\x02\x01":
        return None
    number: int = struct.unpack_from("<H", head, 18)[0]
    return number


def parse_elf(source: Source) -> Elf:
    """Read the tables. Raises MalformedError if they contradict the file or each other."""
    head = source.pread(0, min(EHDR_SIZE, source.size))
    machine = machine_of(head)
    if machine not in MACHINES or len(head) < EHDR_SIZE:
        raise MalformedError("not an ELF file for a machine that runs CUDA", source.name)
    _, kind, _, _, _, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, shstrndx = HEADER.struct.unpack(head)
    if shoff and not shnum:  # with more than 65,279 sections, the number is in the first header
        shnum = next(_iter_table(source, SECTION, shoff, 1))[5]
    if phnum and (phentsize != PHDR_SIZE or phoff + phnum * PHDR_SIZE > source.size):
        raise MalformedError("program headers do not fit the file", source.at(phoff))
    if shoff and (shentsize != SHDR_SIZE or shoff + shnum * SHDR_SIZE > source.size):
        raise MalformedError("section headers do not fit the file (is it truncated?)", source.at(shoff))
    if shnum > MAX_TABLE:
        raise MalformedError(f"{shnum} sections; the limit is {MAX_TABLE}", source.at(shoff))
    segments = [Segment(*fields) for fields in _iter_table(source, SEGMENT, phoff, phnum)]
    sections = _sections(source, shoff, shnum if shoff else 0, shstrndx)
    build_id = _find_build_id(source, sections)
    return Elf(MACHINES[machine], TYPES.get(kind, f"type {kind}"), phoff, shoff, sections, segments, build_id)


def _iter_table(source: Source, table: Table, offset: int, count: int) -> Iterator[tuple[int, ...]]:
    """Yield the entries of a table, each with its fields in order."""
    yield from table.struct.iter_unpack(source.pread(offset, count * table.struct.size) if count else b"")


def _sections(source: Source, shoff: int, shnum: int, shstrndx: int) -> list[Section]:
    headers = list(_iter_table(source, SECTION, shoff, shnum))
    if shstrndx == SHN_XINDEX and headers:
        shstrndx = headers[0][6]
    table = b""
    if 0 < shstrndx < len(headers):
        offset, size = headers[shstrndx][4:6]
        if offset + size > source.size:
            raise MalformedError("names of sections lie beyond the file", source.at(offset))
        table = source.pread(offset, min(size, MAX_NAMES))
        table = table[: table.rfind(b"\0") + 1]
    names: dict[int, str] = {}
    room = MAX_NAMES
    sections = []
    for index, (name, type_, flags, addr, offset, size, link, info, _, entsize) in enumerate(headers):
        if name not in names:
            end = max(name, table.find(b"\0", name))
            room -= end - name + 1
            if room < 0:
                raise MalformedError("names of sections overlap", source.at(shoff))
            names[name] = table[name:end].decode(errors="backslashreplace")
        section = Section(index, names[name], type_, flags, addr, offset, size, link, entsize, info)
        if section.in_file and section.end > source.size:
            raise MalformedError(f"section '{section.name}' ends beyond the file", source.at(section.offset))
        sections.append(section)
    return sections


def _find_build_id(source: Source, sections: list[Section]) -> str | None:
    note = next((s for s in sections if s.name == ".note.gnu.build-id" and s.in_file), None)
    if note is None:
        return None
    data = source.pread(note.offset, min(note.size, MAX_NOTE))
    position = 0
    while position + NHDR_SIZE <= len(data):
        name_size, size, type_ = NOTE.struct.unpack_from(data, position)
        name = position + NHDR_SIZE
        start = name + name_size + -name_size % 4
        if type_ == NT_GNU_BUILD_ID and data[name : name + name_size] == b"GNU\0":
            return data[start : start + size].hex() or None
        position = start + size + -size % 4
    return None
