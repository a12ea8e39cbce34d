"""ELF files of the host: which sections and segments there are.

pyelftools knows the layouts. Its own walk over a file is not used: it follows links between sections, reads names
again and again and believes a note's sizes, so that a hostile file of some megabytes keeps it busy for hours or
fills the memory. Here each table is read once, within limits.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpt.errors import MalformedError
from gpt.formats.source import Source

MAGIC = b"\x7fELF"
MACHINES = {62: "x86_64", 183: "aarch64", 190: "cuda"}
TYPES = {1: "object", 2: "program", 3: "shared"}
MAX_NOTE = 1 << 12  # bytes of a note section that is read
MAX_TABLE = 1 << 18  # sections; an object with one for each function has 100,000
MAX_NAMES = 64 << 20  # bytes of their names, each counted with its end
EHDR_SIZE, SHDR_SIZE, PHDR_SIZE, NHDR_SIZE = 64, 64, 56, 12
SHN_XINDEX = 0xFFFF

SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL, SHT_DYNSYM, SHT_RELR = 2, 4, 8, 9, 11, 19
SHF_ALLOC, SHF_EXECINSTR = 2, 4
PT_LOAD, PT_DYNAMIC, PT_INTERP, PT_PHDR = 1, 2, 3, 6
PF_W = 2
NT_GNU_BUILD_ID = "NT_GNU_BUILD_ID"


@dataclass(frozen=True)
class Section:
    """A section header. Offsets are file offsets, `addr` is a virtual address."""

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
        """Whether it takes bytes in the file."""
        return self.type not in (0, SHT_NOBITS)

    @property
    def end(self) -> int:
        """File offset of its end."""
        return self.offset + self.size


@dataclass(frozen=True)
class Segment:
    """A program header, its fields named as in the ELF specification."""

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
    """The tables of an ELF file. `type` is object, program or shared, or `type N`."""

    machine: str
    type: str
    phoff: int
    shoff: int
    sections: list[Section]
    segments: list[Segment]
    build_id: str | None

    def named(self, *names: str) -> list[Section]:
        """The sections of these names that have bytes in the file, in file order."""
        found = [s for s in self.sections if s.name in names and s.in_file and s.size]
        return sorted(found, key=lambda s: s.offset)


def file_offset(tables: Elf, address: int, size: int = 8) -> int | None:
    """Where in the file the bytes at a virtual address lie; None if they lie in no loaded part of it."""
    for segment in tables.segments:
        inside = segment.vaddr <= address and address + size <= segment.vaddr + segment.filesz
        if segment.type == PT_LOAD and inside:
            return segment.offset + address - segment.vaddr
    return None


def address_of(tables: Elf, offset: int) -> int | None:
    """The virtual address of the byte at a file offset; None if it is not loaded."""
    for segment in tables.segments:
        if segment.type == PT_LOAD and segment.offset <= offset < segment.offset + segment.filesz:
            return segment.vaddr + offset - segment.offset
    return None


def machine_of(head: bytes) -> int | None:
    """The machine number of a 64-bit little-endian ELF file from its first 20 bytes, else None."""
    if len(head) < 20 or head[:6] != MAGIC + b"\x02\x01":
        return None
    number: int = struct.unpack_from("<H", head, 18)[0]
    return number


def parse_elf(source: Source) -> Elf:
    """Reads the tables. Raises MalformedError if they do not fit the file or each other."""
    head = source.pread(0, min(EHDR_SIZE, source.size))
    machine = machine_of(head)
    if machine not in MACHINES or len(head) < EHDR_SIZE:
        raise MalformedError("not an ELF file for a machine that runs CUDA", source.name)
    (kind,) = struct.unpack_from("<H", head, 16)
    ehdr = _structs().Elf_Ehdr.parse(head)
    phoff, phnum, shoff, shnum = ehdr.e_phoff, ehdr.e_phnum, ehdr.e_shoff, ehdr.e_shnum
    if shoff and not shnum:  # more than 65,279 sections: the number is in the first header
        shnum = next(_iter_table(source, "Elf_Shdr", shoff, 1, SHDR_SIZE)).sh_size
    if phnum and (ehdr.e_phentsize != PHDR_SIZE or phoff + phnum * PHDR_SIZE > source.size):
        raise MalformedError("program headers do not fit the file", source.at(phoff))
    if shoff and (ehdr.e_shentsize != SHDR_SIZE or shoff + shnum * SHDR_SIZE > source.size):
        raise MalformedError("section headers do not fit the file (is it truncated?)", source.at(shoff))
    if shnum > MAX_TABLE:
        raise MalformedError(f"{shnum} sections; the limit is {MAX_TABLE}", source.at(shoff))
    segments = [_segment(p) for p in _iter_table(source, "Elf_Phdr", phoff, phnum, PHDR_SIZE)]
    sections = _sections(source, shoff, shnum if shoff else 0, ehdr.e_shstrndx)
    build_id = _find_build_id(source, sections)
    return Elf(MACHINES[machine], TYPES.get(kind, f"type {kind}"), phoff, shoff, sections, segments, build_id)


@cache
def _structs() -> Any:
    """The layouts of 64-bit little-endian ELF files."""
    from elftools.elf.structs import ELFStructs

    structs = ELFStructs(little_endian=True, elfclass=64)
    structs.create_basic_structs()
    structs.create_advanced_structs()
    return structs


def _iter_table(source: Source, layout: str, offset: int, count: int, size: int) -> Iterator[Any]:
    """The entries of a table, as pyelftools reads them."""
    table = source.pread(offset, count * size) if count else b""
    parse = getattr(_structs(), layout).parse
    for start in range(0, len(table), size):
        yield parse(table[start : start + size])


def _number(value: str | int) -> int:
    """A type as a number: pyelftools returns names for those that it knows."""
    from elftools.elf.enums import ENUM_P_TYPE_BASE, ENUM_SH_TYPE_BASE

    if isinstance(value, int):
        return value
    number: int = ENUM_SH_TYPE_BASE[value] if value.startswith("SHT_") else ENUM_P_TYPE_BASE[value]
    return number


def _segment(p: Any) -> Segment:
    return Segment(_number(p.p_type), p.p_flags, p.p_offset, p.p_vaddr, p.p_paddr, p.p_filesz, p.p_memsz, p.p_align)


def _sections(source: Source, shoff: int, shnum: int, shstrndx: int) -> list[Section]:
    headers = list(_iter_table(source, "Elf_Shdr", shoff, shnum, SHDR_SIZE))
    if shstrndx == SHN_XINDEX and headers:
        shstrndx = headers[0].sh_link
    table = b""
    if 0 < shstrndx < len(headers):
        offset, size = headers[shstrndx].sh_offset, headers[shstrndx].sh_size
        if offset + size > source.size:
            raise MalformedError("names of sections lie beyond the file", source.at(offset))
        table = source.pread(offset, min(size, MAX_NAMES))
        table = table[: table.rfind(b"\0") + 1]
    names: dict[int, str] = {}
    room = MAX_NAMES
    sections = []
    for index, head in enumerate(headers):
        name = head.sh_name
        if name not in names:
            end = max(name, table.find(b"\0", name))
            room -= end - name + 1
            if room < 0:
                raise MalformedError("names of sections overlap", source.at(shoff))
            names[name] = table[name:end].decode(errors="backslashreplace")
        section = Section(
            index,
            names[name],
            _number(head.sh_type),
            head.sh_flags,
            head.sh_addr,
            head.sh_offset,
            head.sh_size,
            head.sh_link,
            head.sh_entsize,
            head.sh_info,
        )
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
        head = _structs().Elf_Nhdr.parse(data[position : position + NHDR_SIZE])
        name = position + NHDR_SIZE
        start = name + head.n_namesz + -head.n_namesz % 4
        if head.n_type in (NT_GNU_BUILD_ID, 3) and data[name : name + head.n_namesz] == b"GNU\0":
            return data[start : start + head.n_descsz].hex() or None
        position = start + head.n_descsz + -head.n_descsz % 4
    return None
