"""Compaction: shrink the file without changing any address.

The problem: a library's fatbins are in the middle of its read-only data. Removing bytes there would move everything
after them. But code addresses data relative to itself, and thousands of tables hold addresses, so nothing may move *in
memory*. It may move *in the file*.

The choice: kept elements are packed together at the start of their section. The whole pages that this frees, `[hole,
hole_end)`, are removed from the file, and the loadable segment around them is split in two. The second part keeps its
addresses but gets a lower file offset. A hole begins and ends on page boundaries so that offsets and addresses stay
congruent. Nothing maps the pages in between any more.

    file before   | rodata | fatbins ........................... | eh_frame | data |
    file after    | rodata | kept |eh_frame | data |
    memory after  | rodata | kept |  (nothing)                   | eh_frame | data |

Each split needs another program header, and there's rarely room for one. So the table of program headers moves into the
free space after the kept fatbins. That part of the file keeps its offset, which matters because Linux before 5.18
computes the address of a program's table as load address plus offset.

Pointers to regions are updated (pointers.py). If something in a library isn't understood, or no whole page would be
freed, `CannotCompact` says why and the caller makes holes instead. Every region stays, at least as a header, because
its wrapper is registered when the library is loaded. A region that lost elements ends with an element of kind 0, which
holds the names of lost kernels (cut_names.py). From it gpt-hook can tell that a missing kernel may have been there, and
gpt-patch that the library isn't the original.

GPU code outside of the fatbin sections (outside.py) is surrounded by host data and never moves in memory. Whole pages
of dead code are removed from the file nevertheless, and zeros are mapped in their place. So a section with such code
may end up in several parts of the file. Its header describes the first part; additional headers with the same name,
after all others, describe the others.

Segments that move keep `p_align` if their new offset allows it; otherwise it becomes the page size. The first segment,
whose alignment loaders use for the whole library, always keeps it.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter

from gpt.formats import elf, elftables, fatbin
from gpt.formats.elf import SHDR_SIZE, Elf, Section, Segment, address_of
from gpt.formats.image import Image, iter_sections
from gpt.formats.pointers import NotUnderstood, Pointer, find_pointers
from gpt.formats.source import Source
from gpt.patch import cut_names
from gpt.patch.cuts import MAX_SEGMENTS, Block, CannotCompact, Cuts, section_headers
from gpt.patch.outside import find_gone
from gpt.patch.plan import Copy, Data, Doomed, Fill, Laid, Piece, Plan, replacements, splice

PAGE = {"x86_64": 0x1000, "aarch64": 0x10000}  # largest page size of each machine's kernels
PHDR = elftables.SEGMENT.struct
EHDR_PHOFF, EHDR_SHOFF, EHDR_PHNUM, EHDR_SHNUM = 32, 40, 56, 60


@dataclass(frozen=True)
class Compacted:
    """A packed fatbin section: its new contents, their size, and the new address of each region."""

    section: Section
    pieces: list[Piece]
    size: int
    moved: dict[int, int]  # old address of a region -> new address


def plan_compact(image: Image, doomed: Doomed, byte: int) -> Plan:
    """Plan a smaller file. Raises CannotCompact."""
    if image.type == "fatbin":
        return _plan_fatbin(image, doomed, byte)
    tables = image.elf
    if tables is None:
        raise CannotCompact(f"{image.type} files cannot shrink")
    if tables.type not in ("shared", "program"):
        raise CannotCompact(f"the relocations of an ELF {tables.type} are not moved")
    try:
        return _Compaction(image, tables, doomed, byte).plan()
    except NotUnderstood as error:
        raise CannotCompact(str(error)) from None


def _pack(source: Source, section: Section, doomed: Doomed, byte: int) -> Compacted:
    """Pack the elements that are kept, at the start of a section or of a fatbin file."""
    by_region: dict[int, list[fatbin.Element]] = {}
    for element in doomed.kept:
        by_region.setdefault(element.region, []).append(element)
    pieces: list[Piece] = []
    moved: dict[int, int] = {}
    trimmed = {offset: t for offset, t in doomed.trimmed.items() if t.payload}
    in_part = {offset for offset, t in doomed.trimmed.items() if t.loses}
    lost = {e.region: e for e in doomed.all if e.dead or e.offset in doomed.dead or e.offset in in_part}
    position = 0
    for region in fatbin.iter_regions(source, section.offset, section.end):
        elements = by_region.get(region.offset, [])
        size = sum(trimmed[e.offset].size if e.offset in trimmed else e.end - e.offset for e in elements)
        mark = b""
        if region.offset in lost and fatbin.REGION.size + size + fatbin.ELEMENT.size <= region.size:
            one = lost[region.offset]
            room = region.size - fatbin.REGION.size - size - fatbin.ELEMENT.size
            names, count = doomed.names.get(region.offset, ([], 0))
            block = cut_names.pack(names, count, room)
            head = source.pread(one.offset, one.header_size)
            mark = fatbin.dead_element(head, fatbin.ELEMENT.size + len(block)) + block
            size += len(mark)
        moved[section.addr + region.offset - section.offset] = section.addr + position
        pieces.append(Data(fatbin.REGION.pack(fatbin.MAGIC, 1, fatbin.REGION.size, size)))
        for element in elements:
            last = pieces[-1]
            if element.offset in trimmed:
                pieces += [Data(trimmed[element.offset].header), Data(trimmed[element.offset].payload)]
            elif isinstance(last, Copy) and last.end == element.offset:
                pieces[-1] = Copy(last.start, element.end)
            else:
                pieces.append(Copy(element.offset, element.end))
        pieces += [Data(mark)] if mark else []
        position += fatbin.REGION.size + size
    return Compacted(section, list(_without(pieces, doomed.overwritten(False, byte))), position, moved)


def _without(pieces: list[Piece], parts: list[Laid]) -> Iterator[Piece]:
    """Yield the pieces. In elements that are kept, dead parts are overwritten."""
    for piece in pieces:
        if isinstance(piece, Copy):
            yield from splice(piece, [part for part in parts if piece.start <= part[0] < piece.end])
        else:
            yield piece


def _plan_fatbin(image: Image, doomed: Doomed, byte: int) -> Plan:
    whole = Section(0, "", 1, 0, 0, 0, image.source.size, 0, 0)
    packed = _pack(image.source, whole, doomed, byte)
    return Plan("compact", packed.pieces, doomed.kept, doomed.changed, doomed.trimmed)


class _Compaction:
    """Performs the steps of compaction: pack, choose cuts, place the table, edit headers and pointers, lay out the
    pieces.
    """

    def __init__(self, image: Image, tables: Elf, doomed: Doomed, byte: int) -> None:
        self.source = image.source
        self.tables = tables
        self.doomed = doomed
        self.byte = byte
        self.page = PAGE[tables.machine]
        self.packed = [_pack(self.source, s, doomed, byte) for s in iter_sections(tables)]
        self._check_apart()
        self.gone = find_gone(self.source, self.tables, doomed)
        self.cuts = self._choose_cuts()

    def plan(self) -> Plan:
        """Do the work of plan_compact."""
        segments = self._split_segments()
        headers, last = self._headers(segments)
        edits = [*headers, *self._pointers(), *self.gone.emptied]
        changed = self.doomed.changed + self.gone.ranges + [(offset, offset + len(data)) for offset, data in edits]
        pieces = [*self._pieces(segments, edits), *last]
        return Plan("compact", pieces, self.doomed.kept, changed, self.doomed.trimmed, self.doomed.scanned)

    def _check_apart(self) -> None:
        """Raise CannotCompact if a section or a header table shares bytes with a fatbin section, or if headers are
        invalid.
        """
        tables = self.tables
        if len(tables.segments) > MAX_SEGMENTS:
            raise CannotCompact(f"{len(tables.segments)} program headers")
        ends = [s.addr + s.size for s in tables.sections] + [s.vaddr + s.memsz for s in tables.segments]
        ends += [s.paddr + s.memsz for s in tables.segments]
        if max(ends) >= 1 << 63:
            raise CannotCompact("addresses beyond 2^63")
        if any(s.type == elf.PT_LOAD and s.filesz > s.memsz for s in tables.segments):
            raise CannotCompact("a segment takes more bytes in the file than in memory")
        taken = [(s.offset, s.end, s.name) for s in tables.sections if s.in_file and s.size]
        taken.append((tables.phoff, tables.phoff + PHDR.size * len(tables.segments), "program headers"))
        taken.append((tables.shoff, tables.shoff + SHDR_SIZE * len(tables.sections), "section headers"))
        for start, end, name in taken:
            for packed in self.packed:
                section = packed.section
                if start < section.end and section.offset < end and (start, name) != (section.offset, section.name):
                    raise CannotCompact(f"'{name}' overlaps '{section.name}'")

    def _choose_cuts(self) -> Cuts:
        blocks = [Block(p.section.offset, p.section.end, p.pieces, p.size, zeros=False) for p in self.packed]
        blocks += [Block(start, end, [], 0, zeros=True) for start, end in self.gone.ranges]
        return Cuts(blocks, len(self.tables.segments), self.page)

    def _split_segments(self) -> list[Segment]:
        """Return the program headers of the output."""
        segments: list[Segment] = []
        for segment in self.tables.segments:
            rest = segment
            for cut in self.cuts:
                end = rest.offset + rest.filesz
                if cut.end <= rest.offset or end <= cut.start or rest.filesz == 0:
                    continue
                if rest.type != elf.PT_LOAD or cut.start < rest.offset or end < cut.end:
                    raise CannotCompact(f"a segment of type {rest.type:#x} lies across a fatbin")
                if (rest.offset - rest.vaddr) % self.page:
                    raise CannotCompact("a segment's offset and address do not differ by whole pages")
                before = cut.start - rest.offset
                gone = cut.end - rest.offset
                segments.append(replace(rest, filesz=before, memsz=gone if cut.zeros else before))
                rest = replace(
                    rest,
                    offset=cut.end,
                    vaddr=rest.vaddr + gone,
                    paddr=rest.paddr + gone,
                    filesz=rest.filesz - gone,
                    memsz=rest.memsz - gone,
                )
            if rest is segment or rest.memsz:
                segments.append(rest)
        return [self._place(segment, len(segments)) for segment in segments]

    def _place(self, segment: Segment, count: int) -> Segment:
        """Return a segment with its offset in the output."""
        if segment.type == elf.PT_PHDR:
            address, size = self._table_address(), count * PHDR.size
            return replace(
                segment, offset=self.cuts.new_offset(self.cuts.table_offset), vaddr=address, paddr=address,
                filesz=size, memsz=size,
            )  # fmt: skip
        offset = self.cuts.new_offset(segment.offset)
        align = segment.align
        if segment.type == elf.PT_LOAD and align > self.page and (offset - segment.vaddr) % align:
            align = self.page
        return replace(segment, offset=offset, align=align)

    def _table_address(self) -> int:
        found = address_of(self.tables, self.cuts.table_offset)
        if found is None:
            raise CannotCompact("no memory holds the program headers")
        return found

    def _headers(self, segments: list[Segment]) -> tuple[list[tuple[int, bytes]], list[Piece]]:
        """Return the edits of the ELF header and the header tables, and the pieces to append to the file.

        The old program headers become zeros. If there are more section headers than before, all of them move to the end
        of the file, and the old ones become zeros, too.
        """
        tables = self.tables
        if any(s.type == elf.PT_INTERP for s in segments):
            first = next(s for s in segments if s.type == elf.PT_LOAD)
            if self._table_address() - self.cuts.new_offset(self.cuts.table_offset) != first.vaddr - first.offset:
                raise CannotCompact("no room where an older kernel would look for the program headers")
        headers = section_headers(self.source, tables, {p.section.index: p.size for p in self.packed}, self.cuts)
        count = len(headers) // SHDR_SIZE
        shoff, last = self.cuts.new_offset(tables.shoff), list[Piece]()
        edits = [(EHDR_PHNUM, struct.pack("<H", len(segments)))]
        if count > len(tables.sections):
            end = self.source.size - self.cuts.size
            shoff, last = end + -end % 8, [Fill(-end % 8), Data(headers)]
            edits.append((EHDR_SHNUM, struct.pack("<H", count)))
            headers = bytes(SHDR_SIZE * len(tables.sections))
        edits += [
            (EHDR_PHOFF, struct.pack("<Q", self.cuts.new_offset(self.cuts.table_offset))),
            (EHDR_SHOFF, struct.pack("<Q", shoff)),
            (tables.phoff, bytes(PHDR.size * len(tables.segments))),
            (tables.shoff, headers),
        ]
        return edits, last

    def _pointers(self) -> list[tuple[int, bytes]]:
        """Return the edits of words that contain the address of a region."""
        moved = {old: new for packed in self.packed for old, new in packed.moved.items()}
        sections = [packed.section for packed in self.packed]
        found: list[Pointer] = find_pointers(self.source, self.tables, sections, set(moved))
        return [(p.at, struct.pack("<Q", moved[p.value])) for p in found]

    def _pieces(self, segments: list[Segment], edits: list[tuple[int, bytes]]) -> list[Piece]:
        """Return the pieces of the output: the original, with blocks replaced, cuts left out, and edits applied."""
        laid = [(block.start, block.end, self._content(block, segments)) for block in self.cuts.blocks]
        laid += [(offset, offset + len(data), [Data(data)]) for offset, data in edits]
        for new in replacements(self.source, self.doomed, True, self.byte):
            before = bisect_right(self.cuts.blocks, new[0], key=attrgetter("start")) - 1
            if before < 0 or self.cuts.blocks[before].end <= new[0]:
                laid.append(new)
        return splice(Copy(0, self.source.size), sorted(laid, key=itemgetter(0, 1)))

    def _content(self, block: Block, segments: list[Segment]) -> list[Piece]:
        """Return the pieces that replace a block."""
        content, free = [*block.pieces], block.free
        if block is self.cuts.table_block:
            table = b"".join(_pack_segment(s) for s in segments)
            content += [Fill(self.cuts.table_offset - free), Data(table)]
            free = self.cuts.table_offset + len(table)
        if cut := self.cuts.of(block):
            content += [Fill(cut.start - free, 0, block.zeros), Fill(block.end - cut.end, 0, block.zeros)]
        else:
            content.append(Fill(block.end - free, 0, block.zeros))
        return content


def _pack_segment(s: Segment) -> bytes:
    return PHDR.pack(s.type, s.flags, s.offset, s.vaddr, s.paddr, s.filesz, s.memsz, s.align)
