"""Recognize any file that may contain GPU code by its content, and find its regions and the cubins outside of regions.

| begins with | is | GPU code is in | | --- | --- | --- | | `7f ELF`, x86-64 or aarch64 | shared library, program,
object | sections `.nv_fatbin`, `__nv_relfatbin` | | `!<arch>` | static archive | the same of each member | | `50 ed 55
ba` | fatbin | all of it | | `7f ELF`, machine 190 | cubin | all of it | | `10 ff 10 ad` | offload binary of LLVM | all
of it; in an ELF file the section `.llvm.offloading` | | comments and `.version` | PTX text | all of it |

Some libraries have regions and cubins elsewhere: cuFFT in `.ldata`, cuSPARSE in `.rodata`, cuBLASLt in `.cask_resource`
and, packed in a way of its own, in `.ldata`; and onnxruntime has cubins outside of regions in `.rodata`. `scan` looks
for their magic numbers at every 8-byte boundary outside of the usual sections, and accepts what can be parsed to its
end (for a frame, the end according to its header and its blocks: frames.py). In a Rust or Julia program, PTX can be
text anywhere (ptxtext.py).

To add a format, add a file to this folder and an entry to FORMS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpt.base import wrong_input
from gpt.base.errors import MalformedError
from gpt.formats import archive, cubin, elf, fatbin, frames, offload, ptxtext
from gpt.formats.foreign import find_other
from gpt.formats.source import Source

FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
MAX_RATIO = 64  # a file may unpack to MAX_UNPACKED, and this many times its size; the maximum that we've seen is 14
HEAD = 1 << 16  # PTX text must have its .version within these bytes
WASTE = 4 * fatbin.MAX_UNPACKED  # bytes that a scan may read without finding code, in addition to the size of the file
MAX_NESTED = 8  # depth of archives in archives
MIN_WASTE = 4096  # trying a magic number, or reading a header, counts as reading this many bytes


@dataclass(frozen=True, slots=True)
class Placed:
    """An element, with the section and the member of an archive that contain it. Offsets are in the file."""

    element: fatbin.Element
    section: str | None = None
    member: str | None = None
    index: int = 0  # index among the file's elements that aren't dead


@dataclass(frozen=True)
class Image:
    """A file that may contain GPU code. If it's an ELF file for the host, `elf` has its tables."""

    source: Source
    type: str
    machine: str | None = None
    elf: elf.Elf | None = None

    @property
    def build_id(self) -> str | None:
        """The build id of the file in hexadecimal, or None."""
        return self.elf.build_id if self.elf else None

    @property
    def has_fatbins(self) -> bool:
        """True for an ELF file with a fatbin section, even if everything in the section has been removed."""
        return self.elf is not None and bool(self.elf.named(*FATBIN_SECTIONS))

    def iter_elements(self, scan: bool = False) -> Iterator[Placed]:
        """Yield every element in file order, except dead ones. Raises MalformedError."""
        live = (placed for placed in self.iter_all(scan) if not placed.element.dead)
        for index, placed in enumerate(live):
            yield replace(placed, index=index)

    def find_foreign(self) -> list[offload.OffloadImage]:
        """Return the images in its offload binaries that are neither cubins nor PTX. Raises MalformedError."""
        source = self.source
        ranges = [(0, source.size)] if self.type == "offload" else []
        if self.elf:
            ranges = [(section.offset, section.end) for section in self.elf.named(offload.SECTION)]
        images = (image for start, end in ranges for image in offload.iter_images(source, start, end))
        return [image for image in images if not any(_iter_image(source, image))]

    def iter_all(self, scan: bool = False) -> Iterator[Placed]:
        """Yield every element, including dead ones, which have no index."""
        size, most = 0, fatbin.MAX_UNPACKED + MAX_RATIO * self.source.size
        for count, placed in enumerate(self._iter_all(scan)):
            where = self.source.at(placed.element.offset)
            if count >= fatbin.MAX_ELEMENTS:
                raise MalformedError(f"over {fatbin.MAX_ELEMENTS} elements", where)
            size += 0 if placed.element.dead else placed.element.size
            if size > most:
                raise MalformedError(f"elements unpack to over {most} bytes, the limit for a file of its size", where)
            yield placed

    def _iter_all(self, scan: bool, depth: int = 0) -> Iterator[Placed]:
        return FORMS[self.type].elements(self, scan, depth)


def iter_sections(tables: elf.Elf) -> Iterator[elf.Section]:
    """Yield the sections that can contain fatbins."""
    yield from tables.named(*FATBIN_SECTIONS)


def find_image(source: Source) -> Image | None:
    """Recognize a file. Returns None if it can't contain GPU code. Raises MalformedError."""
    head = source.pread(0, min(HEAD, source.size))
    type_ = _type_of(head)
    if type_ is None:
        return None
    return Image(source, type_, FORMS[type_].machine(head), elf.parse_elf(source) if type_ == "elf" else None)


def may_be_image(head: bytes) -> bool:
    """Return whether `find_image` would recognize a file, judging by its first HEAD bytes."""
    return _type_of(head) is not None


def _type_of(head: bytes) -> str | None:
    return next((type_ for type_, form in FORMS.items() if form.begins(head)), None)


def parse_image(source: Source) -> Image:
    """Like `find_image`, but if nothing is found, raise a MalformedError that says why."""
    image = find_image(source)
    if image:
        return image
    head = source.pread(0, min(20, source.size))
    if not head:
        raise MalformedError("empty file", source.name)
    if other := find_other(source):
        raise MalformedError(other, source.name)
    if head.startswith(elf.MAGIC):
        raise MalformedError("ELF file for a machine that does not run CUDA (or 32-bit)", source.name)
    if head.startswith(archive.THIN):
        raise MalformedError("thin archive: name its members instead", source.name)
    if head.startswith(b"PK\3\4"):
        raise MalformedError("zip file or wheel: read it with -r", source.name)
    form = wrong_input.find_form(source.pread(0, min(HEAD, source.size)))
    fact = f"not an ELF file, archive, fatbin, cubin or PTX{f', but {form}' if form else ''}"
    raise MalformedError(fact, source.name)


def _iter_range(source: Source, start: int, end: int) -> Iterator[fatbin.Element]:
    for region in fatbin.iter_regions(source, start, end):
        yield from fatbin.iter_elements(source, region)


def _move(element: fatbin.Element, by: int) -> fatbin.Element:
    return element._replace(region=element.region + by, offset=element.offset + by)


def _bare(source: Source, offset: int, size: int) -> fatbin.Element:
    """Return a cubin that isn't in a region."""
    head = source.pread(offset, min(64, source.size - offset))
    if len(head) < 64:
        raise MalformedError("cubin shorter than its header", source.at(offset))
    if size > fatbin.MAX_UNPACKED:
        raise MalformedError(f"cubin of {size} bytes; the limit is {fatbin.MAX_UNPACKED}", source.at(offset))
    return fatbin.Element(offset, offset, "cubin", cubin.arch_of(head), 0, size, size, size, "none", 0)


def _ptx_file(source: Source) -> fatbin.Element:
    head = ptxtext.find_head(source.pread(0, min(HEAD, source.size)))
    if source.size > fatbin.MAX_UNPACKED:
        raise MalformedError(f"PTX of {source.size} bytes; the limit is {fatbin.MAX_UNPACKED}", source.name)
    return _bare_ptx(0, source.size, (head and head.target) or "sm_0")


def _bare_ptx(offset: int, size: int, target: str) -> fatbin.Element:
    """Return PTX that isn't in a region."""
    return fatbin.Element(offset, offset, "ptx", target, 0, size, size, size, "none", 0)


def _iter_offload(source: Source, start: int, end: int) -> Iterator[fatbin.Element]:
    """Yield the elements with CUDA code in offload binaries."""
    for image in sorted(offload.iter_images(source, start, end), key=lambda image: image.offset):
        yield from _iter_image(source, image)


def _iter_image(source: Source, image: offload.OffloadImage) -> Iterator[fatbin.Element]:
    """Yield the elements of an image according to its content: an object for CUDA is a cubin."""
    head = source.pread(image.offset, min(HEAD, image.size))
    if head.startswith(fatbin.MAGIC_BYTES):
        yield from _iter_range(source, image.offset, image.offset + image.size)
    elif _machine(head) == "cuda":
        yield _bare(source, image.offset, image.size)
    elif found := ptxtext.find_head(head):
        yield _bare_ptx(image.offset, image.size, found.target or image.arch)


def _section_at(tables: elf.Elf, offset: int) -> elf.Section | None:
    return next((s for s in tables.sections if s.in_file and s.offset <= offset < s.end), None)


def _scan(source: Source, tables: elf.Elf, known: list[tuple[int, int]]) -> list[fatbin.Element]:
    """Return elements in regions, cubins, and PTX text outside of the known ranges.

    After bytes that can't be parsed, the scan continues at the next magic number. A malicious file could make this take
    forever, so WASTE limits how many bytes may be read without finding anything.
    """
    found: list[fatbin.Element] = []
    done = 0  # where the last element found ends
    wasted = 0
    for offset in _candidates(source, known):
        if offset < done:
            continue
        here: list[fatbin.Element] = []
        size = 0
        try:
            for element, read in _iter_found(source, tables, offset, done):
                here += [element] if element else []
                size += read
        except MalformedError:
            wasted += size + MIN_WASTE  # the magic number was a coincidence
            if wasted > WASTE + source.size:
                raise MalformedError("too many places that only begin like GPU code", source.at(offset)) from None
            continue
        found += here
        if len(found) > fatbin.MAX_ELEMENTS:
            break  # the caller reports this
        done = here[-1].end if here else done
    return found


def _iter_found(source: Source, tables: elf.Elf, offset: int, done: int) -> Iterator[tuple[fatbin.Element | None, int]]:
    """Yield the elements of the image at `offset`, each with its cost, and then None with the cost of the rest.

    The bytes before `done` belong to other elements.
    """
    head = source.pread(offset, min(64, source.size - offset))
    if head.startswith(fatbin.MAGIC_BYTES):
        region = next(fatbin.iter_regions(source, offset, source.size), None)
        if region:
            yield from ((element, MIN_WASTE) for element in fatbin.iter_elements(source, region))
    elif len(head) == 64 and elf.MACHINES.get(elf.machine_of(head) or 0) == "cuda":
        size = cubin.size_of_image(head)
        if offset + size <= source.size and size <= fatbin.MAX_UNPACKED:
            yield None, size
            cubin.parse_cubin(source.pread(offset, size))
            yield _bare(source, offset, size), 0
    elif head.startswith(frames.MAGIC) and (frame := frames.find_frame(source, offset)):
        yield None, frame.cost
        yield frames.parse_cubin(source, offset, frame), 0
    elif head.startswith(ptxtext.VERSION):
        section = _section_at(tables, offset)
        end = min(section.end if section else source.size, offset + fatbin.MAX_UNPACKED)
        text, read = ptxtext.find_text(source, offset, max(done, section.offset if section else 0), end)
        yield None, read
        if not text:
            raise MalformedError("PTX without an end, or not PTX", source.at(offset))
        yield _bare_ptx(text.start, text.end - text.start, text.target), 0


def _candidates(source: Source, known: list[tuple[int, int]]) -> Iterator[int]:
    """Yield, in ascending order, the offsets of magic numbers at 8-byte boundaries, and of PTX, outside of known ranges
    and after the start of the file.
    """
    position = 8
    for start, end in [*sorted(known), (source.size, source.size)]:
        while position + 8 <= start:
            stop = min(start, position + (4 << 20))
            block = source.pread(position, min(stop + len(ptxtext.VERSION) - 1, start) - position)
            for magic in sorted(_find_all(block)):
                text = block.startswith(ptxtext.VERSION, magic)
                if position + magic < stop and (text or (position + magic) % 8 == 0):
                    yield position + magic
            position = stop - stop % 8 if stop < start else stop
        position = max(position, end + -end % 8)


def _find_all(block: bytes) -> Iterator[int]:
    for magic in (fatbin.MAGIC_BYTES, elf.MAGIC, frames.MAGIC, ptxtext.VERSION):
        at = block.find(magic)
        while at >= 0:
            yield at
            at = block.find(magic, at + 1)


# The forms of files


def _machine(head: bytes) -> str | None:
    return elf.MACHINES.get(elf.machine_of(head) or 0)


def _iter_elf(image: Image, scan: bool, depth: int) -> Iterator[Placed]:
    source, tables = image.source, image.elf
    assert tables
    found: list[elf.Section | fatbin.Element] = [*iter_sections(tables), *tables.named(offload.SECTION)]
    if scan:
        found += _scan(source, tables, [(s.offset, s.end) for s in found])
    done = 0
    for part in sorted(found, key=lambda f: f.offset):
        if part.offset < done:
            raise MalformedError("fatbin sections overlap", source.at(part.offset))
        done = part.end
        if isinstance(part, elf.Section) and part.name == offload.SECTION:
            yield from (Placed(e, part.name) for e in _iter_offload(source, part.offset, part.end))
        elif isinstance(part, elf.Section):
            yield from (Placed(e, part.name) for e in _iter_range(source, part.offset, part.end))
        else:
            section = _section_at(tables, part.offset)
            yield Placed(part, section.name if section else None)


def _iter_archive(image: Image, scan: bool, depth: int) -> Iterator[Placed]:
    source = image.source
    if depth > MAX_NESTED:
        raise MalformedError(f"archives nested over {MAX_NESTED} deep", source.at(0))
    for name, member in archive.iter_members(source):
        if inner := find_image(member):
            for placed in FORMS[inner.type].elements(inner, scan, depth + 1):
                yield Placed(_move(placed.element, member.base - source.base), placed.section, name)


class ImageFormat(NamedTuple):
    """A file format: how to recognize it by the first bytes of a file, for which machine its code is, and how to list
    its elements.

    `elements` gets three arguments: an image, whether to search outside of the usual sections, and the number of
    archives that contain the image.
    """

    begins: Callable[[bytes], bool]
    elements: Callable[[Image, bool, int], Iterator[Placed]]
    machine: Callable[[bytes], str | None] = lambda head: "cuda"


FORMS = {  # by type; the first match is used
    "cubin": ImageFormat(
        lambda head: _machine(head) == "cuda",
        lambda image, scan, depth: iter([Placed(_bare(image.source, 0, image.source.size))]),
    ),
    "elf": ImageFormat(lambda head: _machine(head) is not None, _iter_elf, _machine),
    "archive": ImageFormat(lambda head: head.startswith(archive.MAGIC), _iter_archive, lambda head: None),
    "fatbin": ImageFormat(
        lambda head: head.startswith(fatbin.MAGIC_BYTES),
        lambda image, scan, depth: map(Placed, _iter_range(image.source, 0, image.source.size)),
    ),
    "offload": ImageFormat(
        lambda head: head.startswith(offload.MAGIC),
        lambda image, scan, depth: (
            Placed(element, offload.SECTION) for element in _iter_offload(image.source, 0, image.source.size)
        ),
    ),
    "ptx": ImageFormat(
        lambda head: ptxtext.find_head(head) is not None,
        lambda image, scan, depth: iter([Placed(_ptx_file(image.source))]),
    ),
}
