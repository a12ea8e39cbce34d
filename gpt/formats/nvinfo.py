"""Read `.nv.info`, which lists what the kernels of a cubin need: registers, stack, constant memory, parameters.

Entries are u8 format, u8 attribute, u16 value. In format 4, the value is the size of the payload that follows.
cuobjdump prints the name of each attribute. The payload of these attributes is the index of a symbol, and a number:

    0x2f  registers of a thread       0x11  bytes of the function's own stack frame
    0x12  bytes of stack of an entry and all that it calls; 0xffffffff if not known

Before sm_90, the register count is also in bits 24 to 31 of the sh_info of `.text.K`. `.nv.constantN.K` are the
constant banks that belong to K: bank 0 contains the driver's part and the parameters, bank 2 literals. The size of
`.nv.shared.K` isn't the size that the kernel declares: from sm_90 on, it includes 1,024 bytes that the system reserves.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.formats.cubin import SECTION, STO_CUDA_ENTRY, STT_FUNC, SYMBOL, Data, section_headers
from gpt.formats.elf import SHT_SYMTAB

ENTRY = struct.Struct("<BBH")
PAIR = struct.Struct("<II")
SIZED = 4  # the format with a payload
REGISTERS = 0x2F
_FRAME, _STACK = 0x11, 0x12
COUNTS = {REGISTERS, _FRAME, _STACK}  # attributes with a symbol and a number
_UNKNOWN = 0xFFFFFFFF
_CONSTANT = b".nv.constant"


class Attribute(NamedTuple):
    """An entry at an offset in the section. If its format has a `payload`, `value` is the size of it; otherwise,
    `payload` is empty.
    """

    at: int
    form: int
    kind: int
    value: int
    payload: memoryview

    @property
    def end(self) -> int:
        """Return the offset of the next entry."""
        return self.at + ENTRY.size + len(self.payload)


def iter_attributes(content: Data) -> Iterator[Attribute]:
    """Yield the entries in a `.nv.info` section. Raises MalformedError if the last one is incomplete."""
    view = memoryview(content)
    at = 0
    while at < len(view):
        if at + ENTRY.size > len(view):
            raise MalformedError("cubin: .nv.info ends within an entry")
        form, kind, value = ENTRY.unpack_from(view, at)
        start = at + ENTRY.size
        end = start + (value if form == SIZED else 0)
        if end > len(view):
            raise MalformedError("cubin: .nv.info ends within an entry")
        yield Attribute(at, form, kind, value, view[start:end])
        at = end


@dataclass
class Needs:
    """The needs of a kernel: registers per thread, bytes of stack, and bytes in its constant banks."""

    registers: int = 0
    stack: int = 0
    constant: int = 0


def read_needs(data: Data) -> dict[str, Needs]:
    """Return the needs of each kernel in a cubin, in the order of the symbol table. Raises MalformedError."""
    view = memoryview(data)
    headers = list(SECTION.iter_unpack(section_headers(data)))
    (shstrndx,) = struct.unpack_from("<H", data, 62)
    tables = [header for header in headers if header[1] == SHT_SYMTAB]
    if not tables:
        return {}
    if max(shstrndx, tables[0][6]) >= len(headers):
        raise MalformedError("cubin: names are missing")
    names, symbol_names = bytes(_part(view, headers[shstrndx])), bytes(_part(view, headers[tables[0][6]]))
    symbols = _part(view, tables[0])
    kernels: dict[int, tuple[str, Needs]] = {}
    for index, symbol in enumerate(SYMBOL.iter_unpack(symbols[: len(symbols) - len(symbols) % SYMBOL.size])):
        name, info, other, shndx, _, _ = symbol
        if info & 15 == STT_FUNC and other & STO_CUDA_ENTRY and shndx:
            kernels[index] = _name(symbol_names, name), Needs()
    by_name = dict(kernels.values())
    for header in headers:
        if names.startswith(b".nv.info\0", header[0]):
            _read_info(_part(view, header), kernels)
        elif names.startswith(_CONSTANT, header[0]):
            _, _, kernel = _name(names, header[0])[len(_CONSTANT) :].partition(".")
            if kernel in by_name:
                by_name[kernel].constant += header[5]
    return by_name


def _read_info(entries: memoryview, kernels: dict[int, tuple[str, Needs]]) -> None:
    for entry in iter_attributes(entries):
        if entry.kind in COUNTS and len(entry.payload) >= PAIR.size:
            symbol, number = PAIR.unpack_from(entry.payload)
            needs = kernels[symbol][1] if symbol in kernels else Needs()
            if entry.kind == REGISTERS:
                needs.registers = number
            elif number != _UNKNOWN:
                needs.stack = max(needs.stack, number)


def _part(view: memoryview, header: tuple[int, ...]) -> memoryview:
    offset, size = header[4], header[5]
    if offset + size > len(view):
        raise MalformedError("cubin: section beyond its end")
    return view[offset : offset + size]


def _name(names: bytes, start: int) -> str:
    end = names.find(0, start)
    if end < 0:
        raise MalformedError("cubin: symbol without a name")
    return names[start:end].decode("utf-8", "surrogateescape")
