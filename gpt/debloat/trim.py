"""Cubins that stay in part: the code of their unused kernels becomes zeros, and they are packed again.

Zeros are no instruction, so that a launch of such a kernel ends with an error that names it; everything else of
the cubin stays where and as it is. What was packed is packed again by the same codec, and its header says the new
sizes; a driver takes either (tests/gpu). What was not packed keeps its size: the zeros become holes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from gpt.debloat.kernels import Cut, KeptWhole, Span, find_cut
from gpt.errors import GptError, MalformedError
from gpt.formats import fatbin
from gpt.formats.fatbin import Element, Unpacker
from gpt.formats.source import Source
from gpt.workers import run_all

ZSTD_LEVEL, LZ4_LEVEL = 19, 12  # about the sizes that NVIDIA's tools reach
SIZES = struct.Struct("<QI")  # of payload and packed payload, in an element's header at
SIZES_AT = 8
NOTHING = Cut([], 0, 0)


@dataclass(frozen=True)
class Trimmed:
    """What became of an element. `reason` says why it stays whole; then nothing is cut.

    `cut` has ranges of the unpacked cubin. Where it was packed `header` and `payload` take the place of its own.
    """

    element: Element
    cut: Cut = NOTHING
    header: bytes = b""
    payload: bytes = b""
    reason: str | None = None

    @property
    def size(self) -> int:
        """Bytes of header and payload in the output."""
        return len(self.header) + len(self.payload) or self.element.end - self.element.offset

    @property
    def zeroed(self) -> list[Span]:
        """Ranges of the file that become zeros where they are, of an element that is not packed."""
        if self.payload:
            return []
        return [(self.element.payload + start, self.element.payload + end) for start, end in self.cut.spans]


def trim_all(source: Source, wanted: Mapping[int, set[str]], elements: list[Element], jobs: int) -> list[Trimmed]:
    """What becomes of the elements at the offsets `wanted`, each with its unused kernels, in file order.

    `elements` are those of the file; one that is dead already is passed over. The work is shared by `jobs`
    processes. Raises MalformedError where no cubin is there, or it is corrupt.
    """
    found = [element for element in elements if element.offset in wanted and not element.dead]
    if stray := wanted.keys() - {element.offset for element in elements if element.type in ("cubin", "dead")}:
        raise MalformedError("kernels of a cubin shall go, and no cubin is here", source.at(min(stray)))
    trimmer = _Trimmer(source)
    tasks = [partial(trimmer.trim, element, wanted[element.offset]) for element in found]
    return list(run_all(tasks, jobs)) if tasks else []


class _Trimmer:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._unpacker = Unpacker()

    def trim(self, element: Element, unused: set[str]) -> Trimmed:
        data = self._unpacker.unpack(self._source, element)
        try:
            cut = find_cut(data, unused)
        except KeptWhole as error:
            return Trimmed(element, reason=str(error))
        except MalformedError as error:
            raise MalformedError(error.fact, self._source.at(element.offset)) from None
        if not cut.spans or element.codec == "none":
            return Trimmed(element, cut)
        payload, size = _pack(bytes(_zeroed(data, cut.spans)), element.codec)
        if len(payload) + fatbin.ELEMENT.size > element.payload_size:  # room for what marks the rest as dead
            return Trimmed(element, reason="packed again it takes no less")
        header = bytearray(self._source.pread(element.offset, element.header_size))
        SIZES.pack_into(header, SIZES_AT, len(payload), size)
        return Trimmed(element, cut, bytes(header), payload)


def _zeroed(data: memoryview, spans: list[Span]) -> bytearray:
    out = bytearray(data)
    for start, end in spans:
        out[start:end] = bytes(end - start)
    return out


def _pack(data: bytes, codec: str) -> tuple[bytes, int]:
    """The payload, padded to 8 bytes, and its size without padding."""
    if codec == "lz4":
        import lz4.block

        packed: bytes = lz4.block.compress(data, mode="high_compression", compression=LZ4_LEVEL, store_size=False)
    else:
        import zstandard

        packed = zstandard.ZstdCompressor(level=ZSTD_LEVEL).compress(data)
    return packed.ljust(len(packed) + -len(packed) % 8, b"\0"), len(packed)


def check_trimmed(source: Source, trimmed: Trimmed, output: Source, element: Element) -> None:
    """Unpacks both again: all bytes but those of the cut are equal, and those are zeros. Raises GptError."""
    before = bytes(Unpacker().unpack(source, trimmed.element))
    after = bytes(Unpacker().unpack(output, element))
    if after != bytes(_zeroed(memoryview(before), trimmed.cut.spans)):
        raise GptError(f"check failed: the element at {trimmed.element.offset:#x} changed where it should not")
    head = bytearray(source.pread(trimmed.element.offset, trimmed.element.header_size))
    if head:
        SIZES.pack_into(head, SIZES_AT, element.payload_size, 0 if element.codec == "none" else element.packed_size)
        if head != output.pread(element.offset, element.header_size):
            raise GptError(f"check failed: the header of the element at {trimmed.element.offset:#x} changed")
