"""GPU code outside of the fatbin sections: which bytes of it can leave the file of a library.

Such code lies among the host's data, and what leads to it is not known: tables with sizes, addresses in code, offsets
from some start. So none of it moves in memory. But where all of a region is dead, or a bare cubin is, its bytes can
be zeros, which no file need hold: a loadable segment ends before them in the file and after them in memory, as it
does where zero-initialised data begins, and the loader maps zeros. Ranges with only zeros between them are one.

A region that a relocation or an exported symbol leads to keeps its header, which says that the region is empty:
whoever walks over a table of regions, or hands all of them to the driver, finds what a fatbin section leaves of one.
A region in which something stays is left to the caller, who makes holes.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import groupby

from gpt.formats import elf, fatbin
from gpt.formats.elf import Elf
from gpt.formats.image import iter_sections
from gpt.formats.pointers import find_pointed
from gpt.formats.source import Source
from gpt.patch.plan import Doomed, Span

EMPTY = fatbin.REGION.pack(fatbin.MAGIC, 1, fatbin.REGION.size, 0)
MAX_GAP = 4096  # bytes between two ranges, all of them zeros, that are one range


@dataclass(frozen=True)
class Gone:
    """`ranges` of the file that become zeros, in order; `emptied` are the headers in front of them that stay."""

    ranges: list[Span]
    emptied: list[tuple[int, bytes]]


def find_gone(source: Source, tables: Elf, doomed: Doomed) -> Gone:
    """What of the dead code outside of the fatbin sections a shared library can be without."""
    if not doomed.scanned or tables.type != "shared":
        return Gone([], [])
    edges = _edges(tables)
    loaded = [s for s in tables.segments if s.type == elf.PT_LOAD and s.filesz]
    dead: dict[int, tuple[Span, bool]] = {}  # by address
    for start, end, bare in _dead_regions(tables, doomed):
        segment = next((s for s in loaded if s.offset <= start and end <= s.offset + s.filesz), None)
        if segment and bisect_right(edges, start) == bisect_left(edges, end):
            dead[segment.vaddr + start - segment.offset] = (start, end), bare
    pointed = find_pointed(source, tables, dead.keys())
    ranges: list[Span] = []
    emptied = []
    for address, ((start, end), bare) in dead.items():
        if address in pointed and not bare:
            emptied.append((start, EMPTY))
            start += len(EMPTY)
        if ranges and _only_zeros(source, ranges[-1][1], start, edges):
            ranges[-1] = ranges[-1][0], end
        elif start < end:
            ranges.append((start, end))
    return Gone(ranges, emptied)


def _dead_regions(tables: Elf, doomed: Doomed) -> list[tuple[int, int, bool]]:
    """Start and end of each region outside of the sections of which nothing stays, and whether it is a bare cubin."""
    sections = [(s.offset, s.end) for s in iter_sections(tables)]
    found = []
    for region, group in groupby(doomed.all, key=lambda element: element.region):
        elements = list(group)
        inside = any(start <= region < end for start, end in sections)
        if not inside and all(e.dead or e.offset in doomed.dead for e in elements):
            found.append((region, elements[-1].end, elements[0].header_size == 0))
    return found


def _edges(tables: Elf) -> list[int]:
    """Every offset at which something of the file begins or ends."""
    spans = [(s.offset, s.end) for s in tables.sections if s.in_file]
    spans += [(s.offset, s.offset + s.filesz) for s in tables.segments]
    spans.append((tables.phoff, tables.phoff + elf.PHDR_SIZE * len(tables.segments)))
    spans.append((tables.shoff, tables.shoff + elf.SHDR_SIZE * len(tables.sections)))
    return sorted({edge for span in spans for edge in span})


def _only_zeros(source: Source, start: int, end: int, edges: list[int]) -> bool:
    near = end - start <= MAX_GAP and bisect_left(edges, start) == bisect_right(edges, end)
    return near and not any(source.pread(start, end - start))
