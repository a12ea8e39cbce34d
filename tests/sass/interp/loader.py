"""Load a cubin into the interpreter's memory: code, constants and variables, placed as a driver would.

Each code section gets its own address. Variables are put into global memory when a run begins; constants that name one
are 64-bit relocations (type 2). If a kernel uses anything with another kind of relocation, it's refused.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass, field

import numpy as np
from elftools.elf.elffile import ELFFile

from gpt.sass.tables import Table, table_of
from gpt.sass.words import parse_words
from tests.sass.interp.decode import Run, Unimplemented, make
from tests.sass.interp.memory import GlobalMemory
from tests.sass.interp.timing import Issue, issue_of

CODE = 0x1000_0000
_ADDRESS_64 = 2


@dataclass
class Section:
    """The parts of a section that are needed here. `relocations` are tuples of offset, symbol, addend, type."""

    name: str
    data: bytes
    size: int
    relocations: list[tuple[int, int, int, int]] = field(default_factory=list)
    start: int = 0


@dataclass
class LoadedCubin:
    """Code by address, decoded when it's first executed."""

    table: Table
    sections: list[Section]
    symbols: list[tuple[str, int, int]]  # name, section, value
    words: dict[int, int]  # by address
    made: dict[int, Run] = field(default_factory=dict)
    issues: dict[int, Issue] = field(default_factory=dict)

    def find(self, name: str) -> Section | None:
        """Return the section of that name."""
        return next((one for one in self.sections if one.name == name), None)

    def entry(self, kernel: str) -> int:
        """Return the address where a kernel begins."""
        section = self.find(f".text.{kernel}")
        if section is None:
            raise KeyError(kernel)
        return section.start

    def run(self, address: int) -> Run:
        """Return the function that executes the word at an address."""
        made = self.made.get(address)
        if made is None:
            word = self.words[address]
            made = self.made[address] = make(word, self.table.opcode(word), self.table)
        return made

    def issue(self, address: int) -> Issue:
        """Return what the word at an address always does."""
        found = self.issues.get(address)
        if found is None:
            found = self.issues[address] = issue_of(self.table, self.words[address])
        return found

    def shared_size(self, kernel: str) -> int:
        """Return the size of the shared memory that a kernel declares."""
        section = self.find(f".nv.shared.{kernel}")
        return section.size if section else 0

    def place_variables(self, memory: GlobalMemory) -> dict[int, int]:
        """Put the program's variables into memory. Return the address of each section with variables."""
        placed = {}
        for index, section in enumerate(self.sections):
            if section.name.startswith(".nv.global"):
                data = section.data if section.name == ".nv.global.init" else bytes(section.size)
                placed[index] = memory.allocate(section.size, data)
        return placed

    def place_constants(self, memory: GlobalMemory) -> int:
        """Put a copy of the program's constants into memory, for generic addresses. Return its address, or 0."""
        section = self.find(".nv.constant3")
        return memory.allocate(section.size, section.data) if section else 0

    def constant(self, name: str, placed: dict[int, int]) -> bytes:
        """Return the contents of a constant section, with addresses filled in."""
        section = self.find(name)
        if section is None:
            return b""
        data = bytearray(section.data)
        for offset, symbol, addend, kind in section.relocations:
            _, index, value = self.symbols[symbol]
            if kind != _ADDRESS_64 or index not in placed:
                raise Unimplemented(f"{name}: a relocation of type {kind}")
            struct.pack_into("<Q", data, offset, placed[index] + value + addend)
        return bytes(data)


def load(image: bytes, arch: str = "sm_90") -> LoadedCubin:
    """Read a cubin."""
    elf = ELFFile(io.BytesIO(image))
    found, words = [], {}
    start = CODE
    for section in elf.iter_sections():
        nobits = section["sh_type"] == "SHT_NOBITS"
        one = Section(section.name, b"" if nobits else section.data(), section["sh_size"])
        if one.name.startswith(".text."):
            one.start = start
            words |= {start + 16 * index: word for index, word in enumerate(parse_words(one.data))}
            start += one.size + 0x1000
        found.append(one)
    for section in elf.iter_sections():
        if section["sh_type"] in ("SHT_RELA", "SHT_REL"):
            target = found[section["sh_info"]]
            width = 24 if section["sh_type"] == "SHT_RELA" else 16
            for offset, info, *addend in struct.iter_unpack("<QQq" if width == 24 else "<QQ", section.data()):
                target.relocations.append((offset, info >> 32, addend[0] if addend else 0, info & 0xFFFFFFFF))
            if target.name.startswith(".text.") and section["sh_size"]:
                raise Unimplemented(f"{target.name}: relocations of code")
    table = elf.get_section_by_name(".symtab")
    symbols = [
        (one.name, one["st_shndx"] if isinstance(one["st_shndx"], int) else 0, one["st_value"])
        for one in table.iter_symbols()
    ]
    return LoadedCubin(table_of(arch), found, symbols, words)


def constants(
    cubin: LoadedCubin,
    kernel: str,
    placed: dict[int, int],
    bank0: bytes,
) -> dict[int, np.ndarray]:
    """Return the constant banks that a kernel sees; `bank0` has its parameters."""
    names = {2: f".nv.constant2.{kernel}", 3: ".nv.constant3", 4: ".nv.constant4"}
    banks = {number: np.frombuffer(cubin.constant(name, placed), np.uint8) for number, name in names.items()}
    return banks | {0: np.frombuffer(bank0, np.uint8)}
