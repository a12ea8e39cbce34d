"""Choose which pages to remove from a library's file, and compute the new offsets of everything else."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from operator import attrgetter

from gpt.formats.elf import PHDR_SIZE, SHDR_SIZE, Elf, Section
from gpt.formats.source import Source
from gpt.patch.plan import Piece

MAX_SEGMENTS = 1000  # 13 are common; each relocation is looked up in them
SHN_LORESERVE = 0xFF00


class CannotCompact(Exception):
    """Raised if a library can't be compacted, and gets holes instead. The message says why."""


@dataclass(frozen=True)
class Cut:
    """A range of the original to remove. It begins and ends on page boundaries. Either `zeros` are mapped in its place,
    or nothing is.
    """

    start: int
    end: int
    zeros: bool


@dataclass(frozen=True)
class Block:
    """A range of the original that's replaced by `pieces` of `size` bytes. The rest of it is free."""

    start: int
    end: int
    pieces: list[Piece]
    size: int
    zeros: bool

    @property
    def free(self) -> int:
        """Return the offset of the free space."""
        return self.start + self.size


class Cuts:
    """The cuts in all blocks, in file order. There's one in each block with free whole pages, or if there are many,
    only in the largest blocks.

    One block also gets the new program header table: `table_block`, at `table_offset` in the original. Raises
    CannotCompact if no block has room for it.
    """

    def __init__(self, blocks: list[Block], segments: int, page: int) -> None:
        self.blocks = sorted(blocks, key=attrgetter("start"))
        self.table_block: Block | None = None
        self.table_offset = 0
        self._cuts: dict[int, Cut] = {}  # by the start of the block
        worth = [block for block in self.blocks if _cut(block, block.free, page)]
        worth = sorted(worth, key=lambda block: block.free - block.end)
        fit = (worth[0].end - worth[0].free - page) // PHDR_SIZE if worth else 0  # headers in the largest
        worth = worth[: max(1, min(MAX_SEGMENTS, fit) - segments)]
        room = (segments + len(worth)) * PHDR_SIZE
        for block in sorted(worth, key=attrgetter("start")):
            table = block.free + -block.free % 8
            if cut := _cut(block, block.free if self.table_block else table + room, page):
                self._cuts[block.start] = cut
                if not self.table_block:
                    self.table_block, self.table_offset = block, table
        if not self._cuts:
            raise CannotCompact("less than a page would go")
        self._all = list(self._cuts.values())
        self._gone = [0, *accumulate(cut.end - cut.start for cut in self._all)]

    def __iter__(self) -> Iterator[Cut]:
        return iter(self._all)

    @property
    def size(self) -> int:
        """Return the number of bytes removed."""
        return self._gone[-1]

    def of(self, block: Block) -> Cut | None:
        """Return the cut in a block, or None."""
        return self._cuts.get(block.start)

    def new_offset(self, offset: int) -> int:
        """Return the offset of a byte of the original in the output. Raises CannotCompact if it's inside a cut."""
        index = bisect_right(self._all, offset, key=attrgetter("end"))
        if index < len(self._all) and self._all[index].start < offset:
            raise CannotCompact(f"something begins or ends at {offset:#x}, inside of a fatbin")
        return offset - self._gone[index]


def _cut(block: Block, start: int, page: int) -> Cut | None:
    """Return the whole pages of a block from `start` on, or None."""
    cut = Cut(start + -start % page, block.end - block.end % page, block.zeros)
    return cut if cut.start < cut.end else None


def section_headers(source: Source, tables: Elf, sizes: Mapping[int, int], cuts: Cuts) -> bytes:
    """Return the section headers of the output. `sizes` has the new sizes of packed sections, by the number of the
    section.

    If any other section contains a cut, the part after the cut gets a header of its own, after all other headers.
    Raises CannotCompact.
    """
    first, rest = bytearray(), bytearray()
    zeros = [cut for cut in cuts if cut.zeros]
    raw = source.pread(tables.shoff, SHDR_SIZE * len(tables.sections))
    for section in tables.sections:
        head = raw[section.index * SHDR_SIZE :][:SHDR_SIZE]
        if not section.index:
            first += head
            continue
        start, headers = section.offset, first
        if section.in_file and section.index not in sizes:
            for cut in zeros[bisect_left(zeros, start, key=attrgetter("start")) :]:
                if section.end < cut.end:
                    break
                headers += _part(head, section, start, cut.start - start, cuts)
                start, headers = cut.end, rest
        size = sizes.get(section.index, section.offset + section.size - start)
        headers += _part(head, section, start, size, cuts)
    if rest and len(first + rest) >= SHN_LORESERVE * SHDR_SIZE:
        raise CannotCompact(f"{len(first + rest) // SHDR_SIZE} sections")
    return bytes(first + rest)


def _part(head: bytes, section: Section, start: int, size: int, cuts: Cuts) -> bytes:
    """Return the header for a part of a section. `start` is its offset in the original."""
    address = section.addr + start - section.offset
    return head[:16] + struct.pack("<QQQ", address, cuts.new_offset(start), size) + head[40:]
