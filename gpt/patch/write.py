"""Write the file that a plan describes, and check the result before it gets its name."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpt.base.errors import GptError
from gpt.base.outputs import replacing
from gpt.formats import elf
from gpt.formats.elf import Elf, Section
from gpt.formats.image import FATBIN_SECTIONS, Image, parse_image
from gpt.formats.source import BLOCK, Source
from gpt.patch.backup import REPLACED
from gpt.patch.plan import Copy, Data, Fill, Plan
from gpt.patch.trim import check_trimmed


@contextmanager
def written(path: Path, source_fd: int, plan: Plan, in_place: bool = False) -> Iterator[int]:
    """Write the file that a plan describes, readable only for its owner, and yield its descriptor for checks.

    If the block ends without an exception, the file gets the name `path`; otherwise, it's removed. With `in_place`, it
    replaces the source and nothing else. Raises GptError.
    """
    try:
        with replacing(path, 0o600, source_fd if in_place else None) as file:
            _write(file.fileno(), source_fd, plan)
            yield file.fileno()
    except OSError as error:
        if in_place and error.errno == errno.ESTALE:  # after the checks of backup.py
            raise GptError(REPLACED, str(path)) from None
        raise GptError.of(error, path) from None


def append(path: Path, data: bytes) -> None:
    """Append bytes to a file. Raises GptError."""
    try:
        with open(path, "ab") as file:
            file.write(data)
    except OSError as error:
        raise GptError.of(error, path) from None


def _write(out: int, source: int, plan: Plan) -> None:
    position = 0
    for piece in plan.pieces:
        match piece:
            case Copy():
                for start, end in _iter_data(source, piece.start, piece.end):
                    _copy(source, start, out, position + start - piece.start, end - start)
            case Data():
                _put(out, piece.data, position)
            case Fill(size, byte, hole) if not hole:
                block = bytes([byte]) * min(size, BLOCK)
                for done in range(0, size, BLOCK):
                    _put(out, block[: size - done], position + done)
        position += piece.size
    os.truncate(out, position)


def _put(out: int, data: bytes | memoryview, position: int) -> None:
    while data:
        count = os.pwrite(out, data, position)
        data, position = data[count:], position + count


def _iter_data(file: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the parts of a range that aren't holes, so that holes from earlier patches remain holes."""
    while start < end:
        try:
            start = os.lseek(file, start, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return  # nothing but a hole up to the end
        stop = min(end, os.lseek(file, start, os.SEEK_HOLE))
        if start < stop:
            yield start, stop
        start = max(start, stop)


def _copy(source: int, start: int, out: int, position: int, size: int) -> None:
    """Copy inside the kernel; blocks are shared if the file systems support that."""
    while size:
        try:
            count = os.copy_file_range(source, out, size, start, position)
        except OSError as error:
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                raise
            data = os.pread(source, min(size, BLOCK), start)
            _put(out, data, position)
            count = len(data)
        if not count:
            raise GptError("shrinks while it is copied", f"+{start:#x}")
        start, position, size = start + count, position + count, size - count


def check_output(original: Image, plan: Plan, fd: int, name: str) -> None:
    """Read the output, and compare everything that must not have changed. Raises GptError if something has.

    Every kept element must have the same kind and payload. Every section of the host must have the same name and
    address, and the same bytes except for planned changes. Everything with an address must be mapped there.
    """
    output = parse_image(Source(name, fd))
    found = [placed.element for placed in output.iter_elements(scan=plan.scanned)]
    if len(plan.kept) != len(found):
        raise GptError(f"check failed: {len(found)} elements instead of {len(plan.kept)}", name)
    changed = _Ranges(plan.changed)
    for before, after in zip(plan.kept, found, strict=True):
        trimmed = plan.trimmed.get(before.offset)
        flags = trimmed.flags if trimmed else before.flags
        same = (before.type, before.arch, flags, before.header_size) == (
            after.type, after.arch, after.flags, after.header_size,
        )  # fmt: skip
        sizes = before.end - before.offset, after.end - after.offset
        if same and trimmed:
            check_trimmed(original.source, trimmed, output.source, after)
        elif (
            not same
            or before.size != after.size
            or sizes[0] != sizes[1]
            or not _equal(original.source, before.offset, output.source, after.offset, sizes[0], changed)
        ):
            raise GptError(f"check failed: the element at {before.offset:#x} changed", name)
    if original.elf and output.elf:
        if len(original.elf.sections) > len(output.elf.sections):
            raise GptError("check failed: sections are missing", name)
        for old, new in zip(original.elf.sections, output.elf.sections, strict=False):
            if (old.name, old.type, old.addr) != (new.name, new.type, new.addr) or not _mapped(output.elf, new):
                raise GptError(f"check failed: section '{old.name}' is not where it was", name)
            if not old.in_file or old.name in FATBIN_SECTIONS:
                continue
            parts = [(new.offset, old.size)] if new.size == old.size else _parts(output.elf, old)
            position = old.offset
            for offset, size in parts:
                if not _equal(original.source, position, output.source, offset, size, changed):
                    raise GptError(f"check failed: section '{old.name}' changed", name)
                position += size
            if position != old.end:
                raise GptError(f"check failed: a part of section '{old.name}' is lost", name)


class _Ranges:
    """Ranges that include their start, but not their end, and may overlap. Many offsets can be looked up at once."""

    def __init__(self, ranges: list[tuple[int, int]]) -> None:
        array = np.array(sorted(ranges), np.int64).reshape(-1, 2)
        self._starts, self._ends = array[:, 0], np.maximum.accumulate(array[:, 1])

    def hold_all(self, offsets: np.ndarray) -> bool:
        """Return whether every offset is in one of the ranges."""
        if not len(offsets):
            return True
        index = np.searchsorted(self._starts, offsets, side="right") - 1
        return bool((index >= 0).all() and (offsets < self._ends[index]).all())


def _equal(a: Source, start_a: int, b: Source, start_b: int | None, size: int, changed: _Ranges) -> bool:
    """Return whether two ranges are equal, except at offsets (in `a`) that were meant to change. If `start_b` is None,
    compare with zeros.
    """
    for done in range(0, size, BLOCK):
        count = min(BLOCK, size - done)
        block_a = a.pread(start_a + done, count)
        block_b = bytes(count) if start_b is None else b.pread(start_b + done, count)
        if block_a != block_b:
            differ = np.flatnonzero(np.frombuffer(block_a, "u1") != np.frombuffer(block_b, "u1"))
            if not changed.hold_all(differ + start_a + done):
                return False
    return True


def _parts(tables: Elf, section: Section) -> Iterator[tuple[int | None, int]]:
    """Yield the offset and size of each part of a section of the original, up to the first byte that isn't mapped.

    Zeros that aren't in the file have no offset.
    """
    address, end = section.addr, section.addr + section.size
    for segment in sorted((s for s in tables.segments if s.type == elf.PT_LOAD), key=lambda s: s.vaddr):
        file_end = segment.vaddr + segment.filesz
        if segment.vaddr <= address < min(end, file_end):
            yield segment.offset + address - segment.vaddr, min(end, file_end) - address
            address = min(end, file_end)
        if max(segment.vaddr, file_end) <= address < min(end, segment.vaddr + segment.memsz):
            yield None, min(end, segment.vaddr + segment.memsz) - address
            address = min(end, segment.vaddr + segment.memsz)


def _mapped(tables: Elf, section: Section) -> bool:
    """Return whether a loadable segment maps the bytes of a section to its address."""
    if not section.in_file or not section.size or not section.flags & elf.SHF_ALLOC or not tables.segments:
        return True
    return any(
        s.type == elf.PT_LOAD
        and s.vaddr <= section.addr
        and section.addr + section.size <= s.vaddr + s.filesz
        and section.offset - s.offset == section.addr - s.vaddr
        for s in tables.segments
    )
