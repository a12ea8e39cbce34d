"""Lay out a cubin again after the contents of its sections have changed.

After its ELF header, the file is a sequence of *parts*: the bytes of a section, the section header table, the program
header table, and bytes to which nothing refers. `build` writes them in their original order, with their current
contents, each aligned as its section requires. ptxas and nvlink lay out cubins in the same way. So a cubin without
edits is reproduced byte for byte, and a kernel with an added parameter gets the file offsets that ptxas would have
chosen.

    part            old        new (`.text.a` grew by 256)
    .nv.info.a      0x9d0      0x9d0
    padding         ...        as much as the next alignment needs
    .text.a         0xb00      0xb00
    .text.b         0xd80      0xe80
    .nv.constant0.a 0xf00      0x1000
    headers         0x1120     0x1220

- Bytes between two sections are padding if they're zeros, and there are no more of them than the alignment needs. Other
  bytes (nvcc leaves some before `.strtab`) are a part of their own, and are kept unless `tight` is set.
- Sections that name the same bytes (`.nv.constant4` and its Mercury counterpart) are one part. If they overlap in any
  other way, or if only one of them is edited, the cubin is refused.
- Sections without bytes in the file, and segments without sections, follow the part before them. All other segments
  begin and end where parts do.

The sizes of tables are checked before anything is read, and no byte belongs to two parts, so a malicious cubin costs no
more than its size. `CannotEdit` says what isn't understood.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from gpt.base.errors import GptError
from gpt.formats import elftables
from gpt.formats.cubin import Data
from gpt.formats.elf import EHDR_SIZE, PHDR_SIZE, SHT_NOBITS

SECTION, SEGMENT = elftables.SECTION.dtype, elftables.SEGMENT.dtype
Contents = Mapping[int, bytes | bytearray]  # the sections that were edited
SHT_NULL = 0
# `.nv.global`, `.nv.local.K`, `.nv.shared.K` and `.nv.shared.reserved.0` in relocatable code. In linked code, they're
# NOBITS.
NO_BYTES = SHT_NULL, SHT_NOBITS, 0x70000007, 0x70000009, 0x7000000A, 0x70000015
SHF_MERCURY = 1 << 28  # the flag of `.nv.merc.*`; there, even reserved shared memory has bytes
MAX_SEGMENTS = 64  # 6 are common
MAX_ALIGN = 1 << 12  # code requires 128
HEADERS_ALIGN = 8


class CannotEdit(GptError):
    """Raised if a cubin, or one of its kernels, can't be edited. The message says why."""


def find_in_file(sections: np.ndarray) -> np.ndarray:
    """Return which of these sections have bytes in the file."""
    types = sections["type"]
    is_mercury = (sections["flags"] & SHF_MERCURY != 0) & (types > SHT_NOBITS)
    has_none = types == NO_BYTES[0]
    for number in NO_BYTES[1:]:
        has_none |= types == number
    found: np.ndarray = (~has_none | is_mercury) & (sections["size"] > 0)
    return found


@dataclass
class _Part:
    """A range of the original file, and where it's in the output. `sections` are the sections in it."""

    offset: int
    size: int
    sections: tuple[int, ...] = ()
    start: int = 0
    end: int = 0

    @property
    def old_end(self) -> int:
        """Return the end of the range in the original."""
        return self.offset + self.size


class Layout:
    """The parts of a cubin. `original` has its section headers, and `in_file` says which sections have bytes in the
    file.
    """

    def __init__(self, data: memoryview, original: np.ndarray) -> None:
        self.data = data
        self.original = original
        self.in_file = find_in_file(original)
        room = np.uint64(len(data))
        beyond = (original["offset"] > room) | (original["size"] > room - original["offset"])
        if (beyond & self.in_file).any():
            raise CannotEdit("a section ends beyond the cubin")
        self._find_tables()
        self._parts = self._find_parts()

    def content(self, number: int) -> Data:
        """Return the bytes of a section as they are in the file. Empty if it has none."""
        if not self.in_file[number]:
            return b""
        offset, size = int(self.original["offset"][number]), int(self.original["size"][number])
        return self.data[offset : offset + size]

    def build(self, sections: np.ndarray, contents: Contents, tight: bool) -> bytes:
        """Return the cubin with these section headers, whose offsets and sizes are updated, and these contents."""
        out = bytearray(self.data[:EHDR_SIZE])
        aligns, types = sections["align"].tolist(), sections["type"].tolist()
        offsets, sizes = sections["offset"].tolist(), sections["size"].tolist()
        removed = {number for number, content in contents.items() if types[number] == SHT_NULL and not content}
        for part in self._parts:
            if len(part.sections) == 1 and part.sections[0] in removed:  # most parts, if a cubin is cut to a kernel
                part.start = part.end = len(out)
                continue
            content = b"" if tight and self._is_unnamed(part) else self._content(part, contents)
            out += bytes(-len(out) % self._align(part, aligns))
            part.start = len(out)
            out += content
            part.end = len(out)
            for number in part.sections:
                if types[number] != SHT_NULL:
                    offsets[number], sizes[number] = part.start, part.end - part.start
        sections["offset"], sections["size"] = offsets, sizes
        self._place_empty(sections)
        segments = self._segments.copy()
        for segment in segments:
            self._move(segment)
        if len(sections):
            struct.pack_into("<Q", out, 40, self._headers.start)
        out[self._headers.start : self._headers.end] = sections.tobytes()
        if len(segments):
            struct.pack_into("<Q", out, 32, self._program_headers.start)
            out[self._program_headers.start : self._program_headers.end] = segments.tobytes()
        return bytes(out)

    def _find_tables(self) -> None:
        phoff, shoff = struct.unpack_from("<QQ", self.data, 32)
        phentsize, phnum = struct.unpack_from("<HH", self.data, 54)
        if phnum > MAX_SEGMENTS or (phnum and phentsize != PHDR_SIZE):
            raise CannotEdit("unknown program headers")
        if phoff + phnum * PHDR_SIZE > len(self.data) and phnum:
            raise CannotEdit("program headers end beyond the cubin")
        table = self.data[phoff : phoff + phnum * PHDR_SIZE] if phnum else b""
        self._segments = np.frombuffer(table, SEGMENT)
        self._headers = _Part(shoff, self.original.nbytes)
        self._program_headers = _Part(phoff, phnum * PHDR_SIZE)

    def _find_parts(self) -> list[_Part]:
        """Return all parts in file order, including bytes to which nothing refers. Raises CannotEdit if any overlap."""
        ranges: dict[tuple[int, int], list[int]] = {}
        offsets, sizes = self.original["offset"].tolist(), self.original["size"].tolist()
        for number in np.flatnonzero(self.in_file).tolist():
            key = offsets[number], sizes[number]
            ranges.setdefault(key, []).append(number)
        named = [_Part(offset, size, tuple(numbers)) for (offset, size), numbers in ranges.items()]
        named += [table for table in (self._headers, self._program_headers) if table.size]
        named.sort(key=lambda part: part.offset)
        if any(a.old_end > b.offset for a, b in pairwise(named)) or (named and named[0].offset < EHDR_SIZE):
            raise CannotEdit("sections overlap")
        parts: list[_Part] = []
        end = EHDR_SIZE
        aligns = self.original["align"].tolist()
        for part in [*named, _Part(len(self.data), 0)]:
            gap = self.data[end : part.offset]
            if len(gap) != (-end % self._align(part, aligns) if part.size else 0) or any(gap):
                parts.append(_Part(end, len(gap)))
            if part.size:
                parts.append(part)
            end = part.old_end
        return parts

    def _is_unnamed(self, part: _Part) -> bool:
        return not part.sections and part is not self._headers and part is not self._program_headers

    def _align(self, part: _Part, aligns: list[int]) -> int:
        """Return the alignment of a part in the output. It's what its sections require, if the original complied with
        that.
        """
        if not part.sections:
            return 1 if self._is_unnamed(part) or part.offset % HEADERS_ALIGN else HEADERS_ALIGN
        align = max(aligns[number] for number in part.sections)
        if align > MAX_ALIGN:
            raise CannotEdit(f"an alignment of {align}")
        return align if align and part.offset % align == 0 else 1

    def _content(self, part: _Part, contents: Contents) -> Data:
        """Return the bytes of a part, with edits."""
        original = self.data[part.offset : part.old_end]
        edited = [contents[number] for number in part.sections if number in contents]
        if not edited:
            return original
        others = edited[1:] if len(edited) == len(part.sections) else [*edited[1:], bytes(original)]
        if any(other != edited[0] for other in others):
            raise CannotEdit("two sections share their bytes, and one of them changes")
        return edited[0]

    def _place_empty(self, sections: np.ndarray) -> None:
        """Set the offsets of sections that have no bytes in the file."""
        empty = ~self.in_file & (sections["type"] != SHT_NULL)
        for number in np.flatnonzero(empty).tolist():
            offset, align = int(self.original["offset"][number]), int(self.original["align"][number])
            sections["offset"][number] = self._place(offset, align)

    def _place(self, offset: int, align: int = 1) -> int:
        """Return the new offset of something without bytes. Its distance from the part before it, or around it, stays
        the same.
        """
        index = bisect_right(self._parts, offset, key=lambda part: part.offset) - 1
        if index < 0 or offset > len(self.data):
            return offset
        part = self._parts[index]
        if offset < part.old_end:
            return part.start + min(offset - part.offset, part.end - part.start)
        if 0 < align <= MAX_ALIGN and offset - part.old_end == -part.old_end % align:
            return part.end + -part.end % align
        return part.end + offset - part.old_end

    def _move(self, segment: np.void) -> None:
        """Update a segment so that it contains the same parts as before."""
        start, size = int(segment["offset"]), int(segment["filesz"])
        rest = int(segment["memsz"]) - size
        if not 0 <= rest < 1 << 48:
            raise CannotEdit("a segment takes more bytes in the file than in memory")
        if not size:
            segment["offset"] = self._place(start)
            return
        first = bisect_left(self._parts, start, key=lambda part: part.offset)
        last = bisect_right(self._parts, start + size, key=lambda part: part.old_end)
        around = self._parts[max(0, first - 1) : first] + self._parts[last : last + 1]
        if any(part.offset < edge < part.old_end for part in around for edge in (start, start + size)):
            raise CannotEdit("a segment cuts through a section")
        inside = self._parts[first:last]
        if all((part.start, part.end) == (part.offset, part.old_end) for part in inside):
            return
        filled = [part for part in inside if part.start < part.end] or inside
        segment["offset"] = filled[0].start
        segment["filesz"] = filled[-1].end - filled[0].start
        segment["memsz"] = segment["filesz"] + np.uint64(rest)
