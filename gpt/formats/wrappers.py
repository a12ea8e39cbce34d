"""Find wrappers, which tell the driver where the fatbins of a program are.

nvcc and clang write one for each region, in the section `.nvFatBinSegment`: `{u32 magic, u32 version, u64 data, u64
other}`. The constructors of the program register the addresses of wrappers, and the driver follows only `data`. If a
tool moves a fatbin section without its wrappers, the file looks intact, because its regions can be parsed, but no
launch finds its code. (patchelf 0.14 does that if the section is where it needs room.) So this module follows each
wrapper as the loader and the driver do: through the relocation of `data`, to the bytes there.

In a library or program, relocations are found in the same way as the loader finds them, through PT_DYNAMIC, whether
there are section headers or not. In an object file, they're found through its relocation section. Some addresses are
known only to the loader, such as the address of a symbol in another file; these are trusted.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.formats import elf, elftables, fatbin
from gpt.formats.elf import Elf, Section
from gpt.formats.image import iter_sections
from gpt.formats.source import BLOCK, Source

SECTION = ".nvFatBinSegment"
WRAPPER = struct.Struct("<IIQQ")
MAGIC = 0x466243B1
VERSIONS = (1, 2)  # 1 for plain or relocatable code; 2 for code from the device linker
DATA = 8  # offset of `data` in a wrapper
NONE = 0  # a relocation that was removed, on every machine
RELATIVE = {"x86_64": 8, "aarch64": 1027}  # types of relocations: load address plus addend
ABSOLUTE = {"x86_64": 1, "aarch64": 257}  # symbol plus addend
DT_SYMTAB, DT_RELA, DT_RELASZ, DT_RELRSZ, DT_RELR = 6, 7, 8, 35, 36
MAX_WRAPPERS = fatbin.MAX_REGIONS


class Wrapper(NamedTuple):
    """A wrapper at `place`, and the `value` of its `data` after relocation. Both are addresses, except in object files,
    where they're offsets: in the file, and in the section `where`. `target` is the file offset of the fatbin, or None
    if it isn't in the file.
    """

    place: int
    value: int
    target: int | None
    where: str = ""


def find_stray(source: Source, tables: Elf) -> tuple[list[Wrapper], set[int]]:
    """Return the wrappers of an ELF file that don't lead to a fatbin, and the file offsets of regions without a
    wrapper.
    """
    sections = list(iter_sections(tables))
    regions = {r.offset for s in sections for r in fatbin.iter_regions(source, s.offset, s.end)}
    wrappers = list(iter_wrappers(source, tables))
    stray = [wrapper for wrapper in wrappers if not _leads_to_fatbin(source, sections, regions, wrapper)]
    return stray, regions - {wrapper.target for wrapper in wrappers}


def _leads_to_fatbin(source: Source, sections: list[Section], regions: Collection[int], wrapper: Wrapper) -> bool:
    target = wrapper.target
    if target is None:
        return False
    if target in regions:
        return True
    if any(section.offset <= target < section.end for section in sections):
        return False  # inside a region
    with suppress(MalformedError):  # some libraries have fatbins elsewhere, and an image may be a cubin
        if source.pread(target, 4) == fatbin.MAGIC_BYTES:
            return next(fatbin.iter_regions(source, target, source.size), None) is not None
        return elf.MACHINES.get(elf.machine_of(source.pread(target, 20)) or 0) == "cuda"
    return False


def iter_wrappers(source: Source, tables: Elf) -> Iterator[Wrapper]:
    """Yield the wrappers of an ELF file whose `data` is known before it's loaded. Raises MalformedError."""
    places = list(_iter_places(source, tables))
    if len(places) > MAX_WRAPPERS:
        raise MalformedError(f"over {MAX_WRAPPERS} wrappers of fatbins", source.name)
    if tables.type == "object":
        yield from _iter_object(source, tables, places)
        return
    addresses = [elf.address_of(tables, place) for place in places]
    relocated = _read_relocated(source, tables, [a + DATA for a in addresses if a is not None])
    for place, address in zip(places, addresses, strict=True):
        if address is None:
            continue
        word = int.from_bytes(source.pread(place + DATA, 8), "little")
        value = relocated.get(address + DATA, word)
        if value is not None:
            yield Wrapper(address, value, elf.file_offset(tables, value, 4))


def _iter_places(source: Source, tables: Elf) -> Iterator[int]:
    """Yield the file offsets of wrappers: in their section, or if there's none, wherever data is writable."""
    named = [section for section in tables.sections if section.name.startswith(SECTION) and section.in_file]
    for section in named:
        yield from _iter_magic(source, section.offset, section.end, WRAPPER.size)
    if not named:
        for segment in tables.segments:
            if segment.type == elf.PT_LOAD and segment.flags & elf.PF_W:
                end = min(segment.offset + segment.filesz, source.size)
                yield from _iter_magic(source, segment.offset + -segment.offset % 8, end, 8)


def _iter_magic(source: Source, start: int, end: int, step: int) -> Iterator[int]:
    magic, heads = struct.pack("<I", MAGIC), {struct.pack("<II", MAGIC, version) for version in VERSIONS}
    for at in range(start, end - WRAPPER.size + 1, BLOCK):
        data = source.pread(at, min(BLOCK + WRAPPER.size - 1, end - at))
        found = data.find(magic)
        while 0 <= found < BLOCK:
            if (at + found - start) % step == 0 and data[found : found + 8] in heads:
                yield at + found
            found = data.find(magic, found + 1)


def _read_relocated(source: Source, tables: Elf, addresses: list[int]) -> dict[int, int | None]:
    """Return which values the loader writes to the words at these addresses, or None if only the loader knows. Other
    words aren't changed.
    """
    dynamic = _read_dynamic(source, tables)
    wanted, found = set(addresses), dict[int, int | None]()
    start, size = dynamic.get(DT_RELA), dynamic.get(DT_RELASZ, 0)
    if start is None or not size:
        return found
    entries = _read_table(source, tables, start, size)
    if entries is None:
        return dict.fromkeys(addresses)
    for address, type_, symbol, addend in (entry for entry in entries if entry[0] in wanted):
        if type_ == NONE:
            continue
        if type_ == RELATIVE[tables.machine]:
            found[address] = addend
        elif type_ == ABSOLUTE[tables.machine]:
            found[address] = _find_symbol(source, tables, dynamic.get(DT_SYMTAB), symbol, addend)
        else:
            found[address] = None
    return found


def _read_dynamic(source: Source, tables: Elf) -> dict[int, int]:
    segment = next((s for s in tables.segments if s.type == elf.PT_DYNAMIC), None)
    if segment is None or segment.offset + segment.filesz > source.size:
        return {}
    data = source.pread(segment.offset, segment.filesz & ~15)
    return dict(reversed([*struct.iter_unpack("<QQ", data)]))


def _read_table(source: Source, tables: Elf, address: int, size: int) -> Iterator[tuple[int, int, int, int]] | None:
    offset = elf.file_offset(tables, address, size)
    return None if offset is None or offset + size > source.size else _iter_rela(source, offset, size)


def _iter_rela(source: Source, offset: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the offset, type, symbol and addend of each relocation."""
    entry = elftables.RELA.struct
    return entry.iter_unpack(source.pread(offset, size - size % entry.size))


def _find_symbol(source: Source, tables: Elf, table: int | None, number: int, addend: int) -> int | None:
    size = elftables.SYMBOL.struct.size
    offset = None if table is None else elf.file_offset(tables, table + number * size, size)
    if offset is None or offset + size > source.size:
        return None
    _, _, _, section, value, _ = elftables.SYMBOL.struct.unpack(source.pread(offset, size))
    return (value + addend) % (1 << 64) if section else None


def _iter_object(source: Source, tables: Elf, places: list[int]) -> Iterator[Wrapper]:
    """Yield the wrappers of an object file. The symbol of a wrapper's relocation identifies the section."""
    for section in tables.sections:
        if not section.name.startswith(SECTION) or not section.in_file:
            continue
        inside = [place for place in places if section.offset <= place < section.end]
        found = dict(_iter_object_targets(source, tables, section))
        for place in inside:
            target = found.get(place - section.offset + DATA, (0, "", None))
            if target:
                yield Wrapper(place, target[0], target[2], target[1])


def _iter_object_targets(
    source: Source, tables: Elf, section: Section
) -> Iterator[tuple[int, tuple[int, str, int | None] | None]]:
    """Yield the offset of each word in a section that's relocated, and its target: an offset, its section, and where
    the section is in the file. The target is None if only the linker knows it.
    """
    size = elftables.SYMBOL.struct.size
    for rela in tables.sections:
        if rela.type != elf.SHT_RELA or rela.info != section.index or rela.link >= len(tables.sections):
            continue
        symbols = tables.sections[rela.link]
        for offset, type_, symbol, addend in _iter_rela(source, rela.offset, rela.size):
            if type_ == NONE:
                continue
            if type_ != ABSOLUTE[tables.machine] or (symbol + 1) * size > symbols.size or not symbols.in_file:
                yield offset, None
                continue
            entry = elftables.SYMBOL.struct.unpack(source.pread(symbols.offset + symbol * size, size))
            number, value = entry[3], (entry[4] + addend) % (1 << 64)
            if not 0 < number < len(tables.sections):
                yield offset, None
                continue
            there = tables.sections[number]
            inside = there.in_file and value < there.size
            yield offset, (value, there.name, there.offset + value if inside else None)
