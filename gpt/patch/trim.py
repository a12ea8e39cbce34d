"""Elements that stay, but not as they were: without unused kernels, packed by another codec, or both.

Kernels are dropped where the cubin is understood and what is left stands up to a second look (drop.py). Elsewhere,
and where nothing else is asked for, their code becomes zeros, which are not an instruction, so that a launch of such a
kernel ends with an error; everything else of the cubin stays where and as it is. What was packed is packed again by
the same codec, and its header says the new sizes. What was not packed keeps its size if code is zeroed: the zeros
become holes. With a level for zstd all of it is packed by that instead, whatever it was packed by (recompress.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpt.base.errors import GptError, MalformedError
from gpt.base.workers import run_all
from gpt.formats import fatbin
from gpt.formats.fatbin import Element, Unpacker
from gpt.formats.source import Source
from gpt.locate.unused import KEPT, KERNEL_UNUSED
from gpt.patch import drop
from gpt.patch.callgraph import DeadCode, KeptWhole, Span, find_cut

ZSTD_LEVEL, LZ4_LEVEL = 19, 12  # about the sizes that NVIDIA's tools reach
SIZES = struct.Struct("<QI")  # of payload and packed payload, in an element's header at
SIZES_AT = 8
FLAGS = struct.Struct("<Q")
FLAGS_AT = 40
UNPACKED = struct.Struct("<Q")
UNPACKED_AT = 56
NOTHING = DeadCode([], 0, 0)


@dataclass(frozen=True)
class Trimmed:
    """What became of an element. `reason` says why it stays whole; then nothing is cut. `zeroed_for` says why code
    became zeros where kernels were to be dropped.

    `cut` has ranges of the unpacked cubin. Where it was packed, kernels were dropped, or its codec is another now,
    `header` and `payload` take the place of its own. `zstd` is the size that the element would have if it were packed
    with zstd, 0 if nobody asked.
    """

    element: Element
    cut: DeadCode = NOTHING
    header: bytes = b""
    payload: bytes | memoryview = b""
    codec: str = ""  # that it has now, if that is another
    reason: str | None = None
    dropped: bool = False
    zeroed_for: str | None = None
    zstd: int = 0

    @property
    def size(self) -> int:
        """Bytes of header and payload in the output."""
        return len(self.header) + len(self.payload) or self.element.end - self.element.offset

    @property
    def flags(self) -> int:
        """Flags of its header in the output."""
        return fatbin.with_codec(self.element.flags, self.codec or self.element.codec)

    @property
    def loses(self) -> bool:
        """Whether kernels of it are gone, and not only packed otherwise."""
        return bool(self.cut.spans) or self.dropped

    def left(self, wanted: Mapping[int, set[str]]) -> int:
        """How many of its unused kernels stay, `wanted` being those of each element."""
        return max(0, len(wanted[self.element.offset]) - self.cut.kernels)

    @property
    def zeroed(self) -> list[Span]:
        """Ranges of the file that become zeros where they are, of an element that is not packed."""
        if self.payload:
            return []
        return [(self.element.payload + start, self.element.payload + end) for start, end in self.cut.spans]


@dataclass(frozen=True)
class Packing:
    """How elements that stay are packed: by their own codec, or with zstd at `level`. `measured`: say what they would
    take packed with zstd at ZSTD_LEVEL.
    """

    level: int | None = None
    measured: bool = False


def trim_all(
    source: Source,
    wanted: Mapping[int, set[str]],
    elements: list[Element],
    dropping: bool,
    jobs: int,
    packing: Packing = Packing(),
) -> list[Trimmed]:
    """What becomes of the elements at the offsets `wanted`, each with its unused kernels, in file order.

    `elements` are those of the file; one that is dead already is passed over. The work is shared by `jobs`
    processes. Raises MalformedError if no cubin is there, or it is corrupt.
    """
    found = [element for element in elements if element.offset in wanted and not element.dead]
    if stray := wanted.keys() - {element.offset for element in elements if element.type in ("cubin", "dead")}:
        raise MalformedError("no cubin here, but a trim record", source.at(min(stray)))
    trimmer = _Trimmer(source, dropping, packing)
    tasks = [partial(trimmer.trim, element, wanted[element.offset]) for element in found]
    return list(run_all(tasks, jobs)) if tasks else []


def amended(
    tallies: Iterable[dict[str, Any]], trimmed: Iterable[Trimmed], wanted: Mapping[int, set[str]]
) -> Iterator[dict[str, Any]]:
    """The tallies of a library with what was cut in place of what was to be: kernels that stay are among the kept,
    what trimming freed is not. Without any trimmed element they are passed on as they are.
    """
    done = list(trimmed)
    stay = sum(one.left(wanted) for one in done)
    freed = sum(one.element.end - one.element.offset - one.size for one in done)
    for tally in tallies:
        change = {KERNEL_UNUSED: (-stay, freed), KEPT: (stay, -freed)}.get(tally["reason"])
        if not done or not change:
            yield tally
        elif tally["reason"] == KEPT or tally["kernels"] > stay:
            yield {**tally, "kernels": tally["kernels"] + change[0], "bytes": tally["bytes"] + change[1]}


class _Trimmer:
    def __init__(self, source: Source, dropping: bool, packing: Packing) -> None:
        self._source = source
        self._dropping = dropping
        self._packing = packing
        self._unpacker = Unpacker()

    def trim(self, element: Element, unused: set[str]) -> Trimmed:
        if element.codec != "none" and not element.header_size:
            return Trimmed(element, reason="packed by the library itself, which may know its size")
        data = self._unpacker.unpack(self._source, element)
        try:
            cut = find_cut(data, unused)
        except KeptWhole as error:
            return Trimmed(element, reason=str(error))
        except MalformedError as error:
            raise MalformedError(error.fact, self._source.at(element.offset)) from None
        why = None
        if self._dropping and cut.sections:
            try:
                return self._dropped(element, cut, data)
            except KeptWhole as error:
                why = str(error)
        try:
            return replace(self._zeroed(element, cut, data), zeroed_for=why if cut.spans else None)
        except KeptWhole as error:
            return Trimmed(element, reason=str(error))

    def _dropped(self, element: Element, cut: DeadCode, data: memoryview) -> Trimmed:
        if not element.header_size:
            raise KeptWhole("it stands in no fatbin")
        left = drop.without(data, cut.sections)
        if fault := drop.find_fault(data, left, cut.sections):
            raise KeptWhole(fault)
        return replace(self._replaced(element, cut, left), dropped=True)

    def _zeroed(self, element: Element, cut: DeadCode, data: memoryview) -> Trimmed:
        if not cut.spans:
            return Trimmed(element, cut)
        if element.codec == "none" and (self._packing.level is None or not element.header_size):
            return Trimmed(element, cut, zstd=self._measure(element, _zeroed(data, cut.spans)))
        return self._replaced(element, cut, bytes(_zeroed(data, cut.spans)))

    def _replaced(self, element: Element, cut: DeadCode, data: bytes) -> Trimmed:
        codec = element.codec if self._packing.level is None else "zstd"
        done = packed_as(self._source, element, data, codec, self._packing.level or ZSTD_LEVEL)
        if done.reason:
            raise KeptWhole(done.reason)
        return replace(done, cut=cut, zstd=self._measure(element, data))

    def _measure(self, element: Element, data: bytes | bytearray) -> int:
        if not self._packing.measured:
            return 0
        size = element.header_size + len(_pack(data, "zstd", ZSTD_LEVEL)[0])
        return min(size, element.end - element.offset)


def packed_as(source: Source, element: Element, data: bytes | memoryview, codec: str, level: int) -> Trimmed:
    """Return an element of `source` with this content, packed by this codec; or why that's no use."""
    payload, size = _pack(data, codec, level)
    if len(payload) + fatbin.ELEMENT.size > element.payload_size:  # room for what marks the rest as dead
        return Trimmed(element, reason="compressed again it is not smaller")
    header = bytearray(source.pread(element.offset, element.header_size))
    done = Trimmed(element, payload=payload, codec=codec)
    _set_sizes(header, done.flags, len(payload), size, len(data))
    return replace(done, header=bytes(header))


def _set_sizes(header: bytearray, flags: int, payload: int, packed: int, unpacked: int) -> None:
    """Puts flags and sizes into an element's header; the latter two are those of packed elements, or 0 is packed."""
    FLAGS.pack_into(header, FLAGS_AT, flags)
    SIZES.pack_into(header, SIZES_AT, payload, packed)
    if packed:
        UNPACKED.pack_into(header, UNPACKED_AT, unpacked)


def _zeroed(data: memoryview, spans: list[Span]) -> bytearray:
    out = bytearray(data)
    for start, end in spans:
        out[start:end] = bytes(end - start)
    return out


def _pack(data: bytes | bytearray | memoryview, codec: str, level: int) -> tuple[bytes, int]:
    """The payload, padded to 8 bytes, and its size without padding (0 if it is not compressed)."""
    if codec == "none":
        return bytes(data).ljust(len(data) + -len(data) % 8, b"\0"), 0
    if codec == "lz4":
        import lz4.block

        packed: bytes = lz4.block.compress(data, mode="high_compression", compression=LZ4_LEVEL, store_size=False)
    else:
        import zstandard

        packed = zstandard.ZstdCompressor(level=level).compress(data)
    return packed.ljust(len(packed) + -len(packed) % 8, b"\0"), len(packed)


def check_trimmed(source: Source, trimmed: Trimmed, output: Source, element: Element) -> None:
    """Unpacks both again: all bytes but those of the cut are equal, and those are zeros, or what is left of it is as
    it was. Raises GptError.
    """
    where = f"check failed: the element at {trimmed.element.offset:#x}"
    before = bytes(Unpacker().unpack(source, trimmed.element))
    after = bytes(Unpacker().unpack(output, element))
    if trimmed.dropped:
        if fault := drop.find_fault(before, after, trimmed.cut.sections):
            raise GptError(f"{where}: {fault}", output.name)
    elif after != bytes(_zeroed(memoryview(before), trimmed.cut.spans)):
        raise GptError(f"{where} changed where it should not", output.name)
    head = bytearray(source.pread(trimmed.element.offset, trimmed.element.header_size))
    if head:
        packed = 0 if element.codec == "none" else element.packed_size
        _set_sizes(head, trimmed.flags, element.payload_size, packed, element.size)
        if head != output.pread(element.offset, element.header_size):
            raise GptError(f"{where} has another header", output.name)
