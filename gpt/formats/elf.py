"""ELF files of the host: which sections and segments there are. Read by pyelftools, with the limits that it lacks."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

from gpt.errors import GptError, MalformedError
from gpt.formats.source import Source

MAGIC = b"\x7fELF"
MACHINES = {62: "x86_64", 183: "aarch64", 190: "cuda"}
TYPES = {1: "object", 2: "program", 3: "shared"}
MAX_NOTE = 1 << 20  # bytes of a note section that is read

SHT_SYMTAB, SHT_RELA, SHT_NOBITS, SHT_REL, SHT_DYNSYM, SHT_RELR = 2, 4, 8, 9, 11, 19
SHF_ALLOC, SHF_EXECINSTR = 2, 4
PT_LOAD, PT_INTERP, PT_PHDR = 1, 3, 6


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
    from elftools.elf.elffile import ELFFile

    head = source.pread(0, min(64, source.size))
    machine = machine_of(head)
    if machine not in MACHINES or len(head) < 64:
        raise MalformedError("no ELF file of a machine that runs CUDA", source.name)
    _check_tables(source, head)
    try:
        with source.open() as file:
            elf = ELFFile(file)
            sections = [_section(i, s) for i, s in enumerate(elf.iter_sections())]
            segments = [_segment(s.header) for s in elf.iter_segments()]
            build_id = _find_build_id(elf, sections)
    except GptError:
        raise
    except Exception as error:  # pyelftools has no common base for what it raises on nonsense
        raise MalformedError(f"ELF: {type(error).__name__}: {error}", source.name) from error
    for section in sections:
        if section.in_file and section.end > source.size:
            raise MalformedError(f"section '{section.name}' ends beyond the file", source.at(section.offset))
    kind = struct.unpack_from("<H", head, 16)[0]
    phoff, shoff = struct.unpack_from("<QQ", head, 32)
    return Elf(MACHINES[machine], TYPES.get(kind, f"type {kind}"), phoff, shoff, sections, segments, build_id)


def _check_tables(source: Source, head: bytes) -> None:
    """The two tables must lie in the file: pyelftools would walk on for ever."""
    phoff, shoff = struct.unpack_from("<QQ", head, 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", head, 54)
    if shoff and not shnum:  # more than 65,279 sections: the number is in the first header
        shnum = struct.unpack("<Q", source.pread(shoff + 32, 8))[0]
    if phnum and (phentsize != 56 or phoff + phnum * 56 > source.size):
        raise MalformedError("program headers do not fit the file", source.at(phoff))
    if shoff and (shentsize != 64 or shoff + shnum * 64 > source.size):
        raise MalformedError("section headers do not fit the file (is it truncated?)", source.at(shoff))


def _section(index: int, section: Any) -> Section:
    head = section.header
    return Section(
        index,
        section.name,
        _number(head["sh_type"]),
        head["sh_flags"],
        head["sh_addr"],
        head["sh_offset"],
        head["sh_size"],
        head["sh_link"],
        head["sh_entsize"],
    )


def _segment(head: Any) -> Segment:
    names = ("p_flags", "p_offset", "p_vaddr", "p_paddr", "p_filesz", "p_memsz", "p_align")
    return Segment(_number(head["p_type"]), *(head[name] for name in names))


def _number(value: str | int) -> int:
    """pyelftools gives names for the types that it knows, numbers for the rest."""
    from elftools.elf.enums import ENUM_P_TYPE_BASE, ENUM_SH_TYPE_BASE

    if isinstance(value, int):
        return value
    number: int = {**ENUM_SH_TYPE_BASE, **ENUM_P_TYPE_BASE}.get(value, 0xFFFFFFFF)
    return number


def _find_build_id(elf: Any, sections: list[Section]) -> str | None:
    for section in sections:
        if section.name == ".note.gnu.build-id" and section.in_file and section.size <= MAX_NOTE:
            for note in elf.get_section(section.index).iter_notes():
                if note["n_type"] == "NT_GNU_BUILD_ID":
                    return str(note["n_desc"])
    return None
