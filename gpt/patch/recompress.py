"""Compress elements again with zstd, whatever their codec was.

By default, nvcc compresses with LZ4 or not at all; zstd at level 19 takes half to a fifth of that. The driver chooses
the codec by the header of an element, and has supported zstd since CUDA 12.4 (driver 550). The level affects the size,
and the time for compression, but not readers: the window always stays below their limit (128 MiB).

Only elements of known types in fatbin sections are compressed again. Elsewhere, the library itself may unpack them,
with a codec that it knows. An element isn't changed unless it becomes smaller by at least the size of a header.
"""

from __future__ import annotations

import mmap
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import IO

from gpt.base.workers import run_all
from gpt.formats.fatbin import KINDS, Element, Unpacker
from gpt.formats.source import Source
from gpt.patch.trim import ZSTD_LEVEL, Trimmed, packed_as

LEVELS = (1, 22)  # for zstd


@dataclass(frozen=True)
class Recompressed:
    """An element after compressing it again, and the CPU time that this took, in ns."""

    done: Trimmed
    time: int


def recompress_all(
    source: Source, elements: Iterable[Element], level: int, jobs: int, folder: Path
) -> list[Recompressed]:
    """Compress elements again in `jobs` processes, and return them in file order.

    The new payloads are stored in a temporary file in `folder`, because they may take as much memory as the library.
    Raises MalformedError if an element is corrupt.
    """
    packer = _Packer(source, level)
    # Otherwise one process may end long after the others.
    largest_first = sorted(elements, key=attrgetter("size"), reverse=True)
    found: list[tuple[Recompressed, int]] = []
    if not largest_first:
        return []
    with _open_temporary(folder) as file:
        for one in run_all([partial(packer.pack, element) for element in largest_first], jobs):
            found.append((one, file.tell()))
            file.write(one.done.payload)
        size = file.tell()
        file.flush()
        view = memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) if size else b"")
    stored = [
        replace(one, done=replace(one.done, payload=view[start : start + len(one.done.payload)]))
        for one, start in found
    ]
    return sorted(stored, key=lambda one: one.done.element.offset)


def _open_temporary(folder: Path) -> IO[bytes]:
    try:
        return tempfile.TemporaryFile(dir=folder)
    except OSError as error:
        error.filename = str(folder)  # instead of the temporary file, whose name nobody knows
        raise


def measure_all(source: Source, elements: Iterable[Element], jobs: int) -> dict[int, int]:
    """Return, by offset, the size of each element packed with zstd at ZSTD_LEVEL, or its current size if that's
    smaller.
    """
    packer = _Packer(source, ZSTD_LEVEL)
    largest_first = sorted(elements, key=attrgetter("size"), reverse=True)
    tasks = [partial(packer.measure, element) for element in largest_first]
    sizes = run_all(tasks, jobs) if tasks else []
    return {element.offset: size for element, size in zip(largest_first, sizes, strict=True)}


def can_recompress(element: Element) -> bool:
    """Return True if the type of an element is known, and it has a header that can name the codec."""
    return element.type in KINDS.values() and element.header_size > 0 and element.payload_size > 0


class _Packer:
    def __init__(self, source: Source, level: int) -> None:
        self._source = source
        self._level = level
        self._unpacker = Unpacker()

    def pack(self, element: Element) -> Recompressed:
        start = time.process_time_ns()
        data = self._unpacker.unpack(self._source, element)
        done = packed_as(self._source, element, data, "zstd", self._level)
        return Recompressed(done, time.process_time_ns() - start)

    def measure(self, element: Element) -> int:
        return self.pack(element).done.size
