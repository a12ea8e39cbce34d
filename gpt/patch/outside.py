"""Remove dead GPU code outside of the fatbin sections from the file of a library.

Such code is surrounded by host data, and we don't know what refers to it: tables with sizes, addresses in code, offsets
from some start. So nothing moves in memory. But if a whole region, or a cubin outside of regions, is dead, its bytes
can be zeros that aren't in the file: a loadable segment ends before these bytes in the file, but after them in memory,
just as it does before zero-initialised data, and the loader maps zeros. Ranges with only zeros between them are merged.

If a relocation or an exported symbol refers to a region, its header is kept, and says that the region is empty. So if
code walks over a table of regions, or passes all of them to the driver, it sees the same as in a fatbin section. If
only part of a region is dead, the caller makes holes.
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
MAX_GAP = 4096  # ranges with at most this many zeros between them are merged


@dataclass(frozen=True)
class Gone:
    """Dead code that's removed: `ranges` of the file that become zeros, in order, and the headers of regions before
    them that are changed (`emptied`).
    """

    ranges: list[Span]
    emptied: list[tuple[int, bytes]]


def find_gone(source: Source, tables: Elf, doomed: Doomed) -> Gone:
    """Find the dead code outside of the fatbin sections that can be removed from a shared library."""
    if not doomed.scanned or tables.type != "shared":
        return Gone([], [])
    edges = _edges(tables)
    loaded = [s for s in tables.segments if s.type == elf.PT_LOAD and s.filesz]
    dead: dict[int, tuple[Span, bool]] = {}  # spans by address
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
    """Return the start and end of each dead region outside of the fatbin sections, and whether it's a cubin without a
    region.
    """
    sections = [(s.offset, s.end) for s in iter_sections(tables)]
    found = []
    for region, group in groupby(doomed.all, key=lambda element: element.region):
        elements = list(group)
        inside = any(start <= region < end for start, end in sections)
        if not inside and all(e.dead or e.offset in doomed.dead for e in elements):
            found.append((region, elements[-1].end, elements[0].header_size == 0))
    return found


def _edges(tables: Elf) -> list[int]:
    """Return all offsets at which a part of the file begins or ends."""
    spans = [(s.offset, s.end) for s in tables.sections if s.in_file]
    spans += [(s.offset, s.offset + s.filesz) for s in tables.segments]
    spans.append((tables.phoff, tables.phoff + elf.PHDR_SIZE * len(tables.segments)))
    spans.append((tables.shoff, tables.shoff + elf.SHDR_SIZE * len(tables.sections)))
    return sorted({edge for span in spans for edge in span})


def _only_zeros(source: Source, start: int, end: int, edges: list[int]) -> bool:
    near = end - start <= MAX_GAP and bisect_left(edges, start) == bisect_right(edges, end)
    return near and not any(source.pread(start, end - start))
