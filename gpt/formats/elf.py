"""ELF files of the host: which sections and segments there are.

Read here and not with pyelftools, which tests compare it to: that follows links between sections, rereads names
and believes a note's sizes, so that a hostile file of some megabytes keeps it busy for hours or fills the memory.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from gpt.errors import MalformedError
from gpt.formats.source import Source

MAGIC = b"\x7fELF"
MACHINES = {62: "x86_64", 183: "aarch64", 190: "cuda"}
TYPES = {1: "object", 2: "program", 3: "shared"}
MAX_NOTE = 1 << 12  # bytes of a note section that is read
MAX_TABLE = 1 << 18  # sections; an object with one for each function has 100,000
MAX_NAMES = 64 << 20  # bytes of their names, each counted with its end
SHDR = struct.Struct("<IIQQQQIIQQ")
PHDR = struct.Struct("<IIQQQQQQ")
NHDR = struct.Struct("<III")
SHN_XINDEX = 0xFFFF

SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL, SHT_DYNSYM, SHT_RELR = 2, 4, 8, 9, 11, 19
SHF_ALLOC, SHF_EXECINSTR = 2, 4
PT_LOAD, PT_INTERP, PT_PHDR = 1, 3, 6
NT_GNU_BUILD_ID = 3


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


def machine_of(head: bytes) -> int | None:
    """The machine number of a 64-bit little-endian ELF file from its first 20 bytes, else None."""
    if len(head) < 20 or head[:6] != MAGIC + b"\x02\x01":
        return None
    number: int = struct.unpack_from("<H", head, 18)[0]
    return number


def parse_elf(source: Source) -> Elf:
    """Reads the tables. Raises MalformedError where they do not fit the file or each other."""
    head = source.pread(0, min(64, source.size))
    machine = machine_of(head)
    if machine not in MACHINES or len(head) < 64:
        raise MalformedError("no ELF file of a machine that runs CUDA", source.name)
    (kind,) = struct.unpack_from("<H", head, 16)
    phoff, shoff = struct.unpack_from("<QQ", head, 32)
    phentsize, phnum, shentsize, shnum, shstrndx = struct.unpack_from("<HHHHH", head, 54)
    if shoff and not shnum:  # more than 65,279 sections: the number is in the first header
        (shnum,) = struct.unpack("<Q", source.pread(shoff + 32, 8))
    if phnum and (phentsize != PHDR.size or phoff + phnum * PHDR.size > source.size):
        raise MalformedError("program headers do not fit the file", source.at(phoff))
    if shoff and (shentsize != SHDR.size or shoff + shnum * SHDR.size > source.size):
        raise MalformedError("section headers do not fit the file (is it truncated?)", source.at(shoff))
    if shnum > MAX_TABLE:
        raise MalformedError(f"{shnum} sections; the limit is {MAX_TABLE}", source.at(shoff))
    headers = source.pread(phoff, phnum * PHDR.size) if phnum else b""
    segments = [Segment(type_, flags, *rest) for type_, flags, *rest in PHDR.iter_unpack(headers)]
    sections = _sections(source, shoff, shnum if shoff else 0, shstrndx)
    build_id = _find_build_id(source, sections)
    return Elf(MACHINES[machine], TYPES.get(kind, f"type {kind}"), phoff, shoff, sections, segments, build_id)


def _sections(source: Source, shoff: int, shnum: int, shstrndx: int) -> list[Section]:
    headers = list(SHDR.iter_unpack(source.pread(shoff, shnum * SHDR.size))) if shnum else []
    if shstrndx == SHN_XINDEX and headers:
        shstrndx = headers[0][6]
    table = b""
    if 0 < shstrndx < len(headers):
        _, _, _, _, offset, size, *_ = headers[shstrndx]
        if offset + size > source.size:
            raise MalformedError("names of sections lie beyond the file", source.at(offset))
        table = source.pread(offset, min(size, MAX_NAMES))
        table = table[: table.rfind(b"\0") + 1]
    names: dict[int, str] = {}
    room = MAX_NAMES
    sections = []
    for index, (name, type_, flags, addr, offset, size, link, _, _, entsize) in enumerate(headers):
        if name not in names:
            end = max(name, table.find(b"\0", name))
            room -= end - name + 1
            if room < 0:
                raise MalformedError("names of sections overlap", source.at(shoff))
            names[name] = table[name:end].decode(errors="backslashreplace")
        section = Section(index, names[name], type_, flags, addr, offset, size, link, entsize)
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
    while position + NHDR.size <= len(data):
        name_size, size, type_ = NHDR.unpack_from(data, position)
        name = position + NHDR.size
        start = name + name_size + -name_size % 4
        if type_ == NT_GNU_BUILD_ID and data[name : name + name_size] == b"GNU\0":
            return data[start : start + size].hex() or None
        position = start + size + -size % 4
    return None
