"""Change elements that are kept: remove unused kernels, use a different codec, or both.

Kernels are dropped if we understand the cubin, and the result passes a check (gpt/formats/cubin_drop.py). Otherwise, or
if nobody asked for dropping, their code is replaced by zeros. Zeros aren't an instruction, so launching such a kernel
ends with an error; the rest of the cubin doesn't change. A compressed element is compressed again with the same codec,
and its header gets the new sizes. An uncompressed element with zeroed code keeps its size, and the zeros become holes.
If a level for zstd is given, every changed element is compressed with zstd, whatever its codec was (recompress.py).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from gpt.base.errors import GptError, MalformedError
from gpt.base.workers import run_all
from gpt.formats import cubin_drop as drop
from gpt.formats import fatbin
from gpt.formats.callgraph import DeadCode, KeptWhole, Span, find_cut
from gpt.formats.fatbin import Element, Unpacker
from gpt.formats.source import Source
from gpt.locate.unused import KEPT, KERNEL_UNUSED

ZSTD_LEVEL, LZ4_LEVEL = 19, 12  # these give about the same sizes as NVIDIA's tools
SIZES = struct.Struct("<QI")  # sizes of payload and compressed payload, at an offset in an element's header
SIZES_AT = 8
FLAGS = struct.Struct("<Q")
FLAGS_AT = 40
UNPACKED = struct.Struct("<Q")
UNPACKED_AT = 56
NOTHING = DeadCode([], 0, 0)


@dataclass(frozen=True)
class Trimmed:
    """An element after trimming.

    `reason` says why it stays as it is, and `zeroed_for` why code was zeroed although kernels should have been dropped.
    `cut` has the ranges of the unpacked cubin that were removed. If the payload has changed, `header` and `payload`
    replace the original ones. `zstd` is the size of the element packed with zstd, or 0 if nobody asked for it.
    """

    element: Element
    cut: DeadCode = NOTHING
    header: bytes = b""
    payload: bytes | memoryview = b""
    codec: str = ""  # the new codec, if it has changed
    reason: str | None = None
    dropped: bool = False
    zeroed_for: str | None = None
    zstd: int = 0

    @property
    def size(self) -> int:
        """Return the bytes of header and payload in the output."""
        return len(self.header) + len(self.payload) or self.element.end - self.element.offset

    @property
    def flags(self) -> int:
        """Return the flags of its header in the output."""
        return fatbin.with_codec(self.element.flags, self.codec or self.element.codec)

    @property
    def loses(self) -> bool:
        """Return whether the element loses kernels. If it doesn't, it's only compressed again."""
        return bool(self.cut.spans) or self.dropped

    def left(self, wanted: Mapping[int, set[str]]) -> int:
        """Return how many of its unused kernels aren't removed. `wanted` has the unused kernels of all elements."""
        return max(0, len(wanted[self.element.offset]) - self.cut.kernels)

    @property
    def zeroed(self) -> list[Span]:
        """Return the ranges of the file to fill with zeros in place, if the element isn't replaced."""
        if self.payload:
            return []
        return [(self.element.payload + start, self.element.payload + end) for start, end in self.cut.spans]


@dataclass(frozen=True)
class Packing:
    """The compression of changed elements: with their own codec, or with zstd at `level`.

    With `measured`, their size packed with zstd at ZSTD_LEVEL is computed, too.
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
    """Trim the elements at the offsets in `wanted`, which has the unused kernels of each. Return them in file order.

    `elements` are all elements of the file; dead ones are skipped. The work is done by `jobs`
    processes. Raises MalformedError if there's no cubin at an offset, or if it's corrupt.
    """
    found = [element for element in elements if element.offset in wanted and not element.dead]
    if stray := wanted.keys() - {element.offset for element in elements if element.type in ("cubin", "dead")}:
        raise MalformedError("the stream trims a cubin here, but the file has something else", source.at(min(stray)))
    trimmer = _Trimmer(source, dropping, packing)
    tasks = [partial(trimmer.trim, element, wanted[element.offset]) for element in found]
    return list(run_all(tasks, jobs)) if tasks else []


def amended(
    tallies: Iterable[dict[str, Any]], trimmed: Iterable[Trimmed], wanted: Mapping[int, set[str]]
) -> Iterator[dict[str, Any]]:
    """Yield the tallies of a library, corrected according to the actual cut.

    Kernels that couldn't be removed count as kept, and bytes that trimming saved count as removed. Without trimmed
    elements, nothing changes.
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
            raise KeptWhole("it isn't in a fatbin")
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
    """Pack data as an element of `source` with this codec. If it doesn't become smaller, the result has a `reason`."""
    payload, size = _pack(data, codec, level)
    if len(payload) + fatbin.ELEMENT.size > element.payload_size:  # room for the header of the dead element after it
        return Trimmed(element, reason="not smaller when compressed again")
    header = bytearray(source.pread(element.offset, element.header_size))
    done = Trimmed(element, payload=payload, codec=codec)
    _set_sizes(header, done.flags, len(payload), size, len(data))
    return replace(done, header=bytes(header))


def _set_sizes(header: bytearray, flags: int, payload: int, packed: int, unpacked: int) -> None:
    """Set the flags and sizes in the header of an element. For an uncompressed element, `packed` is 0."""
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
    """Return the payload, padded to 8 bytes, and its compressed size without padding (0 for no compression)."""
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
    """Unpack both versions of an element, and compare them. Raises GptError if anything has changed besides the cut."""
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
