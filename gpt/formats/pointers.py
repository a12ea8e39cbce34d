"""Find every word in a library that contains an address inside its fatbins.

nvcc writes one kind of pointer: a wrapper in `.nvFatBinSegment`, `{u32 magic, u32 version, u64 data, u64 other}`. A
relative relocation sets its `data` to the start of a region. Linkers and strip also leave a symbol (`fatbinData`) at
the start of regions. So we support only words that contain the start of a region: the addend of a relative relocation
(RELA), a word that a packed relative relocation (RELR) moves, the value of a symbol, or in a program at a fixed
address, a wrapper. For anything else that points into a fatbin, `NotUnderstood` is raised, and the code of the library
isn't moved.

Regions without a wrapper are common, because nvcc drops the wrapper of a source without kernels, but keeps the region.
Host code could take the address of such a region, though. So we search host code for displacements and immediates that
would lead to its start; for these, `NotUnderstood` is raised, too.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np

from gpt.formats import elf, elftables, fatbin, wrappers
from gpt.formats.elf import Elf, Section, address_of, file_offset
from gpt.formats.source import BLOCK, Source

SHN_ABS = 0xFFF1
STT_SECTION = 3
MAX_POINTERS = fatbin.MAX_REGIONS  # in one section
MAX_ADDRESS = 1 << 62  # no process has memory there, and what code adds to an address still fits in 64 bits
OVERLAP = 16  # bytes by which blocks overlap, so that the end of any instruction is completely in one of them
RELA, SYMBOL = elftables.RELA.dtype, elftables.SYMBOL.dtype


class NotUnderstood(Exception):
    """Raised if something points into a fatbin and we don't know how to move it safely."""


@dataclass(frozen=True)
class Pointer:
    """An 8-byte word at file offset `at`, which contains the address `value`."""

    at: int
    value: int


def find_pointers(source: Source, tables: Elf, fatbins: list[Section], regions: set[int]) -> list[Pointer]:
    """Return all words that contain the start of a region. `regions` are addresses.

    Raises NotUnderstood if a word points elsewhere into `fatbins`, or if host code may refer to a region.
    """
    _check_addresses(tables)
    if stray := wrappers.find_stray(source, tables)[0]:
        raise NotUnderstood(f"the wrapper at {stray[0].place:#x} leads to no fatbin")
    ranges = [(s.addr, s.addr + s.size) for s in fatbins]
    pointers = _wrappers(source, tables, ranges)
    for section in tables.sections:
        if section.in_file and section.flags & elf.SHF_ALLOC:
            if section.type == elf.SHT_RELA:
                pointers += _rela(source, tables, section, ranges)
            elif section.type == elf.SHT_RELR:
                pointers += _relr(source, tables, section, ranges)
            elif section.type == elf.SHT_REL:
                raise NotUnderstood(f"relocations without addends in '{section.name}'")
    if unseen := regions - {pointer.value for pointer in pointers}:
        _check_code(source, tables, unseen)
    pointers += _symbols(source, tables, fatbins, ranges)
    for pointer in pointers:
        if pointer.value not in regions:
            raise NotUnderstood(f"the word at {pointer.at:#x} points into the middle of a region ({pointer.value:#x})")
    return sorted(set(pointers), key=lambda pointer: pointer.at)


def find_pointed(source: Source, tables: Elf, addresses: Collection[int]) -> set[int]:
    """Return the addresses in relative relocations and exported symbols.

    Raises NotUnderstood for addresses that no process can have.
    """
    _check_addresses(tables)
    wanted = np.array(sorted(addresses), np.uint64)
    found: set[int] = set()
    for section in tables.sections:
        if not (section.in_file and section.flags & elf.SHF_ALLOC):
            continue
        match section.type:
            case elf.SHT_RELA:
                values = _read(source, section, RELA)["addend"]
            case elf.SHT_DYNSYM:
                values = _read(source, section, SYMBOL)["value"]
            case elf.SHT_RELR:
                words = (_word(source, tables, place) for place in _iter_relr(source, section))
                values = np.fromiter((word[1] for word in words if word), np.uint64)
            case _:
                continue
        found |= set(wanted[np.isin(wanted, values)].tolist())
    return found


def find_unreferenced(source: Source, tables: Elf, regions: Collection[int]) -> list[int]:
    """Return the regions of a library to which nothing refers, neither a wrapper nor anything else, in file order.

    All values are file offsets. For a program at a fixed address, the list is empty, because any word may be an
    address.
    """
    if tables.type != "shared":
        return []
    places = {address: region for region in regions if (address := address_of(tables, region)) is not None}
    left = places.keys() - find_pointed(source, tables, places)
    return sorted(places[address] for address in left if not _is_used_by_code(source, tables, address))


def _check_addresses(tables: Elf) -> None:
    """Raise NotUnderstood if the file can't be loaded, because addresses are computed with 64 bits here."""
    for part in tables.sections:
        if part.addr + part.size > MAX_ADDRESS:
            raise NotUnderstood(f"section '{part.name}' has the address {part.addr:#x}")
    for segment in tables.segments:
        if segment.vaddr + max(segment.filesz, segment.memsz) > MAX_ADDRESS:
            raise NotUnderstood(f"a segment has the address {segment.vaddr:#x}")


def _is_used_by_code(source: Source, tables: Elf, address: int) -> bool:
    try:
        _check_code(source, tables, {address})
    except NotUnderstood:
        return True
    return False


def _inside(values: np.ndarray, ranges: list[tuple[int, int]]) -> np.ndarray:
    found = np.zeros(len(values), bool)
    for start, end in ranges:
        found |= (values >= np.uint64(start)) & (values < np.uint64(end))
    return found


def _indices(found: np.ndarray, section: Section) -> list[int]:
    indices: list[int] = np.flatnonzero(found).tolist()
    if len(indices) > MAX_POINTERS:
        raise NotUnderstood(f"'{section.name}' points into fatbins {len(indices)} times")
    return indices


def _read(source: Source, section: Section, dtype: np.dtype) -> np.ndarray:
    count = section.size // dtype.itemsize
    return np.frombuffer(source.pread(section.offset, count * dtype.itemsize), dtype)


def _word(source: Source, tables: Elf, address: int) -> tuple[int, int] | None:
    """Return the file offset and the value of the word at an address, or None."""
    offset = file_offset(tables, address)
    return None if offset is None else (offset, int.from_bytes(source.pread(offset, 8), "little"))


def _wrappers(source: Source, tables: Elf, ranges: list[tuple[int, int]]) -> list[Pointer]:
    """Return the wrappers that already contain their address: all of them in a program at a fixed address, and those
    from some linkers in other files.
    """
    pointers = []
    for section in tables.named(wrappers.SECTION):
        data = source.pread(section.offset, section.size)
        for start in range(0, len(data) - wrappers.WRAPPER.size + 1, wrappers.WRAPPER.size):
            magic, _, value, _ = wrappers.WRAPPER.unpack_from(data, start)
            if magic != wrappers.MAGIC:
                raise NotUnderstood(f"'{wrappers.SECTION}' holds no wrapper at {section.offset + start:#x}")
            if any(low <= value < high for low, high in ranges):
                pointers.append(Pointer(section.offset + start + 8, value))
    return pointers


def _rela(source: Source, tables: Elf, section: Section, ranges: list[tuple[int, int]]) -> list[Pointer]:
    entries = _read(source, section, RELA)
    if _inside(entries["offset"], ranges).any():
        raise NotUnderstood(f"'{section.name}' relocates words inside a fatbin")
    relative = entries["type"] == wrappers.RELATIVE[tables.machine]
    pointing = _inside(entries["addend"], ranges)
    for_symbols = pointing & ~relative & (entries["symbol"] == 0)
    if for_symbols.any():
        raise NotUnderstood(f"'{section.name}' points into a fatbin by a relocation of another kind")
    pointers = []
    for index in _indices(pointing & relative, section):
        value = int(entries["addend"][index])
        pointers.append(Pointer(section.offset + index * RELA.itemsize + 16, value))
        word = _word(source, tables, int(entries["offset"][index]))
        if word and word[1] == value:
            pointers.append(Pointer(*word))
    return pointers


def _relr(source: Source, tables: Elf, section: Section, ranges: list[tuple[int, int]]) -> list[Pointer]:
    pointers = []
    for place in _iter_relr(source, section):
        word = _word(source, tables, place)
        if word is None:
            raise NotUnderstood(f"'{section.name}' relocates a word outside the file")
        if any(low <= word[1] < high for low, high in ranges):
            pointers.append(Pointer(*word))
    return pointers


def _iter_relr(source: Source, section: Section) -> Iterator[int]:
    """Yield the addresses of words that are relocated. In RELR, an even entry is an address, and an odd entry is a
    bitmap of the next 63 words.

    Addresses ascend, so there can't be more of them than words in the file.
    """
    address = 0
    for entry in _read(source, section, np.dtype("<u8")).tolist():
        if entry & 1 == 0:
            if entry < address:
                raise NotUnderstood(f"'{section.name}' goes back")
            yield entry
            address = entry + 8
        else:
            yield from (address + 8 * bit for bit in range(63) if entry >> (bit + 1) & 1)
            address += 63 * 8


def _check_code(source: Source, tables: Elf, addresses: set[int]) -> None:
    """Raise NotUnderstood if host code may contain one of the addresses, relative or absolute."""
    wanted = np.array(sorted(addresses), np.int64)
    for section in tables.sections:
        if not (section.in_file and section.flags & elf.SHF_EXECINSTR):
            continue
        for start in range(0, section.size, BLOCK - OVERLAP):
            code = np.frombuffer(source.pread(section.offset + start, min(BLOCK, section.size - start)), "u1")
            place = section.addr + start
            if tables.machine == "aarch64":
                found = _arm_refers(code, place, wanted)
            else:
                found = _x86_refers(code, place, wanted, tables.type == "program")
            if found:
                raise NotUnderstood(f"code near {place:#x} may refer to a region that has no wrapper")


def _x86_refers(code: np.ndarray, place: int, wanted: np.ndarray, fixed: bool) -> bool:
    """Return whether code may refer to one of these addresses.

    x86 code can use a displacement from the end of the instruction, after the ModRM byte 00xxx101 and possibly followed
    by an immediate. In a program at a fixed address, any four bytes can be the address.
    """
    words = np.lib.stride_tricks.sliding_window_view(code, 5) if len(code) >= 5 else np.empty((0, 5), "u1")
    relative = np.flatnonzero((words[:, 0] & 0xC7) == 0x05)
    values = np.ascontiguousarray(words[relative, 1:]).view("<i4")[:, 0].astype(np.int64) + place + relative + 5
    if any(np.isin(values + immediate, wanted).any() for immediate in (0, 1, 2, 4)):
        return True
    return fixed and any(code.tobytes().find(struct.pack("<I", a)) >= 0 for a in wanted.tolist() if a < 1 << 32)


def _arm_refers(code: np.ndarray, address: int, wanted: np.ndarray) -> bool:
    """Return whether an ADRP leads to the page of a region, or an ADR to its start."""
    words = code[: len(code) & ~3].view("<u4").astype(np.int64)
    place = address + 4 * np.arange(len(words))
    offset = (words >> 5 & 0x7FFFF) << 2 | words >> 29 & 3
    offset -= (offset >> 20 & 1) << 21
    adr, adrp = (words & 0x9F000000) == 0x10000000, (words & 0x9F000000) == 0x90000000
    pages = (place >> 12) + offset
    return bool(np.isin(place + offset, wanted)[adr].any() or np.isin(pages, wanted >> 12)[adrp].any())


def _symbols(source: Source, tables: Elf, fatbins: list[Section], ranges: list[tuple[int, int]]) -> list[Pointer]:
    pointers = []
    for section in tables.sections:
        if section.type not in (elf.SHT_SYMTAB, elf.SHT_DYNSYM):
            continue
        symbols = _read(source, section, SYMBOL)
        pointing = _inside(symbols["value"], ranges) & (symbols["shndx"] != 0) & (symbols["shndx"] != SHN_ABS)
        pointing &= (symbols["info"] & 15) != STT_SECTION
        for fatbin_section in fatbins:
            end = np.uint64(fatbin_section.addr + fatbin_section.size)
            if ((symbols["value"] == end) & (symbols["shndx"] == fatbin_section.index)).any():
                raise NotUnderstood(f"a symbol of '{section.name}' marks the end of '{fatbin_section.name}'")
        for index in _indices(pointing, section):
            at = section.offset + index * SYMBOL.itemsize + 8
            pointers.append(Pointer(at, int(symbols["value"][index])))
    return pointers
