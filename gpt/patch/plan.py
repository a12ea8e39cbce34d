"""Plan the output, as a list of pieces that are written one after the other.

There are three modes. *fill* overwrites each dead payload, and changes its header so that readers skip the element.
*hole* also leaves whole pages unwritten, so that they take no space on the disk. *compact* (compact.py) moves the
elements that are kept together. A plan doesn't change anything: it says which bytes of the original go where, and which
few words are new.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache, partial
from operator import itemgetter

from gpt.base.errors import MalformedError
from gpt.formats import fatbin
from gpt.formats.elf import EHDR_SIZE, PHDR_SIZE, SHDR_SIZE
from gpt.formats.fatbin import Element
from gpt.formats.image import Image
from gpt.formats.source import Source
from gpt.patch import cut_names
from gpt.patch.trim import Trimmed

PAGE = 4096  # granularity of holes

Span = tuple[int, int]


@dataclass(frozen=True)
class Copy:
    """Copy bytes `start` to `end` of the original."""

    start: int
    end: int

    @property
    def size(self) -> int:
        """Return the size in the output."""
        return self.end - self.start


@dataclass(frozen=True)
class Data:
    """Write these bytes."""

    data: bytes | memoryview

    @property
    def size(self) -> int:
        """Return the size in the output."""
        return len(self.data)


@dataclass(frozen=True)
class Fill:
    """Write one byte repeatedly. With `hole`, zeros are left unwritten."""

    size: int
    byte: int = 0
    hole: bool = False


Piece = Copy | Data | Fill
Laid = tuple[int, int, list[Piece]]  # start and end in the original, and the pieces that replace this range


@dataclass(frozen=True)
class Plan:
    """The output: its `pieces`, and the elements that are `kept` in it.

    `changed` are ranges of the original that have different bytes in the output. `trimmed` has the elements that are
    kept, but trimmed or compressed again, by offset.
    """

    mode: str
    pieces: list[Piece]
    kept: list[Element]
    changed: list[Span]
    trimmed: dict[int, Trimmed]
    scanned: bool = False  # True if some elements are outside of the fatbin sections
    reason: str | None = None  # why it's a different mode than requested

    @property
    def size(self) -> int:
        """Return the size of the output."""
        return sum(piece.size for piece in self.pieces)


@dataclass(frozen=True)
class Doomed:
    """The elements of a library, and which of them, or of their parts, are to be removed."""

    all: list[Element]  # in file order, including elements that are already dead
    dead: frozenset[int]  # offsets of the elements to remove
    parts: list[Span]  # ranges to overwrite in the payloads of uncompressed elements that are kept
    scanned: bool  # True if some elements are outside of the fatbin sections
    trimmed: dict[int, Trimmed] = field(default_factory=dict)  # elements that are trimmed or recompressed, by offset
    names: dict[int, tuple[list[str], int]] = field(default_factory=dict)  # lost kernels by region: names, number

    @property
    def live(self) -> list[Element]:
        """Return the live elements before the cut."""
        return [e for e in self.all if not e.dead]

    @property
    def changed(self) -> list[Span]:
        """Return the ranges whose bytes change."""
        gone = [(e.offset, e.end) for e in self.all if e.offset in self.dead]
        return gone + self.parts + [(t.element.offset, t.element.end) for t in self.trimmed.values()]

    @property
    def kept(self) -> list[Element]:
        """Return the live elements after the cut."""
        return [e for e in self.all if not e.dead and e.offset not in self.dead]

    def not_recompressed(self) -> Doomed:
        """Return a copy without elements that would only be compressed again."""
        return replace(self, trimmed={offset: t for offset, t in self.trimmed.items() if t.loses})

    @property
    def kept_size(self) -> int:
        """Return the bytes of the elements after the cut, including headers."""
        return sum(self.trimmed[e.offset].size if e.offset in self.trimmed else e.end - e.offset for e in self.kept)

    def overwritten(self, holes: bool, byte: int) -> list[Laid]:
        """Return what replaces parts of uncompressed elements. Code is replaced by zeros, which are always holes."""
        laid: list[Laid] = [(start, end, list(_filled(start, end, holes, byte))) for start, end in self.parts]
        zeroed = [span for trimmed in self.trimmed.values() for span in trimmed.zeroed]
        laid += [(start, end, [Fill(end - start, 0, hole=True)]) for start, end in zeroed]
        return sorted(laid, key=itemgetter(0))


def find_doomed(image: Image, spans: list[Span]) -> Doomed:
    """Find the elements that are covered by spans. Raises MalformedError if spans overlap, or contain anything except
    GPU code.

    A span covers whole payloads (with or without their headers, possibly several in a row), or is inside the payload of
    an uncompressed element. It can't begin inside a header, or include bytes of the ELF tables of a cubin.
    """
    ordered = sorted(spans)
    following_starts = [start for start, _ in ordered[1:]] + [image.source.size]
    for (start, end), following in zip(ordered, following_starts, strict=False):
        where = image.source.at(max(start, 0))
        if not 0 <= start < end <= image.source.size:
            raise MalformedError(f"span {start:#x}-{end:#x} is not a range of the file", where)
        if end > following:
            raise MalformedError(f"span {start:#x}-{end:#x} overlaps the next", where)
    elements = [placed.element for placed in image.iter_all()]
    scanned = _uncovered(elements, ordered) is not None
    if scanned:
        elements = [placed.element for placed in image.iter_all(scan=True)]
    if stray := _uncovered(elements, ordered):
        raise MalformedError(f"span {stray[0]:#x}-{stray[1]:#x} is not GPU code", image.source.at(stray[0]))
    starts = [element.offset for element in elements]
    dead: set[int] = set()
    parts: list[Span] = []
    tables = cache(partial(_tables, image.source))
    for start, end in ordered:
        index = bisect_right(starts, start) - 1
        while index < len(elements) and elements[index].offset < end:
            element = elements[index]
            if element.offset < start < element.payload:
                where = image.source.at(element.offset)
                raise MalformedError(f"span {start:#x}-{end:#x} begins inside the header of an element", where)
            if start <= element.payload and element.end <= end:
                dead.add(element.offset)
            elif element.dead:
                pass
            elif element.codec == "none" and element.payload <= start and end <= element.end:
                if any(start < last and first < end for first, last in tables(element)):
                    where = image.source.at(element.payload)
                    raise MalformedError(f"span {start:#x}-{end:#x} holds headers of a cubin that stays", where)
                parts.append((start, end))
            else:
                raise MalformedError(
                    f"span {start:#x}-{end:#x} cuts through an element", image.source.at(element.offset)
                )
            index += 1
    return Doomed(elements, frozenset(dead), parts, scanned)


def _tables(source: Source, element: Element) -> list[Span]:
    """Return the ranges of the headers in an uncompressed cubin. Without these, nothing in it can be found."""
    if element.type != "cubin" or element.end - element.payload < EHDR_SIZE:
        return []
    head = source.pread(element.payload, EHDR_SIZE)
    found = [(element.payload, element.payload + EHDR_SIZE)]
    for table, number, size in ((32, 56, PHDR_SIZE), (40, 60, SHDR_SIZE)):
        (offset,), (count,) = struct.unpack_from("<Q", head, table), struct.unpack_from("<H", head, number)
        if offset:
            found.append((element.payload + offset, element.payload + offset + max(count, 1) * size))
    return found


def _uncovered(elements: list[Element], spans: list[Span]) -> Span | None:
    """Return the first span with a byte that isn't in an element, or None. Headers of regions aren't in elements."""
    starts = [element.offset for element in elements]
    for start, end in spans:
        position = start
        while position < end:
            index = bisect_right(starts, position) - 1
            if index < 0 or elements[index].end <= position:
                return start, end
            position = elements[index].end
    return None


def plan_in_place(image: Image, doomed: Doomed, mode: str, byte: int) -> Plan:
    """Plan an output in which no offset changes: `fill`, or `hole`, which leaves whole pages unwritten."""
    new = list(replacements(image.source, doomed, mode == "hole", byte))
    pieces = splice(Copy(0, image.source.size), new)
    return Plan(mode, pieces, doomed.kept, doomed.changed, doomed.trimmed, doomed.scanned)


def replacements(source: Source, doomed: Doomed, holes: bool, byte: int) -> Iterator[Laid]:
    """Yield, in order, what replaces dead and trimmed elements that don't move."""
    found: list[Laid] = []
    unnamed = set(doomed.names)  # regions for which the names of removed kernels haven't been written yet
    for element in doomed.all:
        if element.offset in doomed.dead and not element.dead:
            pieces: list[Piece] = []
            if element.header_size:
                head = source.pread(element.offset, element.header_size)
                pieces.append(Data(fatbin.dead_header(head)))
            block = b""
            if element.header_size and element.region in unnamed:
                block = cut_names.pack(*doomed.names[element.region], element.payload_size)
            if block:
                pieces.append(Data(block))
                unnamed.remove(element.region)
            pieces += _filled(element.payload + len(block), element.end, holes, byte)
            found.append((element.offset, element.end, pieces))
        elif (trimmed := doomed.trimmed.get(element.offset)) and trimmed.payload:
            found.append((element.offset, element.end, _shortened(trimmed, holes, byte)))
    found += doomed.overwritten(holes, byte)
    yield from sorted(found, key=itemgetter(0))


def _shortened(trimmed: Trimmed, holes: bool, byte: int) -> list[Piece]:
    """Return the pieces of an element that has become shorter, followed by a dead element."""
    element = trimmed.element
    start = element.offset + trimmed.size
    dead = fatbin.dead_element(trimmed.header, element.end - start)
    new = [Data(trimmed.header), Data(trimmed.payload), Data(dead)]
    return [*new, *_filled(start + len(dead), element.end, holes, byte)]


def _filled(start: int, end: int, holes: bool, byte: int) -> Iterator[Piece]:
    first, last = start + -start % PAGE, end - end % PAGE
    if not holes or first >= last:
        yield Fill(end - start, byte)
        return
    yield Fill(first - start, byte)
    yield Fill(last - first, 0, hole=True)
    yield Fill(end - last, byte)


def splice(whole: Copy, new: Iterable[Laid]) -> list[Piece]:
    """Return the pieces for the range `whole` of the original, with the sorted replacements `new` in it."""
    pieces: list[Piece] = []
    position = whole.start
    for start, end, laid in new:
        if start < position:
            raise MalformedError(f"two parts of the file overlap at {start:#x}")
        pieces += [Copy(position, start), *laid]
        position = end
    return [piece for piece in [*pieces, Copy(position, whole.end)] if piece.size]
