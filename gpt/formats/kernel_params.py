"""Add a parameter to a kernel, after its other parameters.

Two sections describe the parameters of a kernel. `.nv.constant0.K` has space for them, after the part of constant bank
0 that belongs to the driver (0x160 bytes on sm_80, 0x210 on sm_90, 0x380 on sm_100 and sm_120). `.nv.info.K` has

    0x0a  PARAM_CBANK      {u32 symbol of `.nv.constant0.K`, u16 offset of the first in the bank, u16 bytes of all}
    0x19  CBANK_PARAM_SIZE  bytes of all, as the entry's value
    0x17  KPARAM_INFO      {u32 0, u16 ordinal, u16 offset, u32 size << 18 | 0x1f000}, the last parameter first
    0x45  KPARAM_INFO_V2   {u32 0, u16 ordinal, u16 offset, u32 size}

A kernel has entries of only one version; the driver rejects a mixture. ptxas writes version 2 for kernels with more
than 4,352 bytes of parameters, and it writes neither of the first two attributes for a kernel without parameters. This
module writes the same bytes as ptxas does for the kernel with an additional `unsigned long long` at the end.

If there's no space for the parameter in the constant bank, launches fail with "out of resources". If a launch doesn't
pass it, the kernel reads whatever is there.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np

from gpt.formats.cubin import arch_of
from gpt.formats.cubin_layout import CannotEdit
from gpt.formats.elf import EHDR_SIZE
from gpt.formats.kernel_edit import KernelEditor
from gpt.formats.nvinfo import ENTRY, SIZED, iter_attributes
from gpt.formats.params import Param

MIN_STACK_SIZE = 0x12  # in the module's `.nv.info`: {u32 symbol, u32 bytes}
UNKNOWN_STACK = 0xFFFFFFFF
SIZE = 8  # bytes of the added parameter
PARAM_CBANK, CBANK_PARAM_SIZE, KPARAM_INFO, KPARAM_INFO_V2 = 0x0A, 0x19, 0x17, 0x45
BEFORE = 0x35, 0x37, 0x5A  # ptxas writes these before the parameters; 0x37 is CUDA_API_VERSION
# From sm_90 on, ptxas writes these last, after the bank. Before sm_90, the bank comes before the parameters.
LAST = 0x36, 0x6B, 0x6D  # SW_WAR, and two without a name that are written by ptxas of CUDA 13.5
BANK_LAST = 90
HALF = 3  # the format of entries whose value is a 16-bit number
BANK = struct.Struct("<IHH")
KPARAM = struct.Struct("<IHHI")
FLAGS, SIZE_SHIFT = 0x1F000, 18
MAX_V1 = 4352
MAX_BYTES = 32764  # the limit of ptxas for sm_70 and later
STT_SECTION = 3

Entry = tuple[int, int, int, bytes]  # format, attribute, value, payload


class FullError(CannotEdit):
    """Raised if a kernel has as many parameters as it can have."""


class Parameter(NamedTuple):
    """A parameter: its number, its offset from the first parameter, and its offset in constant bank 0."""

    ordinal: int
    offset: int
    bank_offset: int


def add_parameter(kernel: KernelEditor) -> Parameter:
    """Add a parameter of 8 bytes. If it raises CannotEdit or FullError, nothing has been changed."""
    cubin = kernel.cubin
    number = cubin.numbers.get(b".nv.constant0." + kernel.name)
    if number is None or int(cubin.sections["info"][number]) != kernel.section:
        raise CannotEdit("a kernel without a constant bank")
    bank = cubin.editable(number)
    old = _entries(kernel.info)
    used = next((value for _, kind, value, _ in old if kind == CBANK_PARAM_SIZE), 0)
    banks = [payload for _, kind, _, payload in old if kind == PARAM_CBANK and len(payload) == BANK.size]
    first = BANK.unpack(banks[0])[1] if banks else len(bank)
    if first + used != len(bank) or first > 0xFFFF:
        raise CannotEdit(f"{len(bank)} bytes of constant bank, but {used} of parameters at {first:#x}")
    offset = used + -used % SIZE
    if offset + SIZE > MAX_BYTES:
        raise FullError(f"{offset + SIZE} bytes of parameters, of {MAX_BYTES} at most")
    ordinals = [KPARAM.unpack(entry[3])[1] for entry in old if _is_parameter(entry)]
    new = Parameter(max(ordinals, default=-1) + 1, offset, first + offset)
    if new.ordinal > 0xFFFF:
        raise FullError(f"{new.ordinal} parameters")
    bank_entry = BANK.pack(_symbol_of(kernel, number), first, offset + SIZE)
    is_last = int(arch_of(bytes(cubin.data[:EHDR_SIZE])).removeprefix("sm_")) >= BANK_LAST
    twin = cubin.numbers.get(b".nv.merc.nv.info." + kernel.name)
    edited = {kernel.info_section: _with_bank(_with_parameter(old, new), bank_entry, offset + SIZE, is_last)}
    if twin is not None:
        edited[twin] = _with_parameter(_entries(cubin.editable(twin)), new)
    for section, entries in edited.items():
        cubin.editable(section)[:] = b"".join(ENTRY.pack(*entry) + payload for *entry, payload in entries)
    bank.extend(bytes(first + offset + SIZE - len(bank)))
    return new


def list_parameters(kernel: KernelEditor) -> list[Param]:
    """Return the parameters of a kernel, in order. Their types aren't known."""
    found = []
    for entry in iter_attributes(bytes(kernel.info)):
        if entry.kind in (KPARAM_INFO, KPARAM_INFO_V2) and len(entry.payload) == KPARAM.size:
            _, _, offset, size = KPARAM.unpack(entry.payload)
            found.append(Param(offset, size >> SIZE_SHIFT if entry.kind == KPARAM_INFO else size, None))
    return sorted(found, key=lambda one: one.offset)


def has_known_stack(kernel: KernelEditor) -> bool:
    """Return whether the file says how large the stack of a kernel is. It doesn't if the kernel recurses."""
    return kernel.cubin.find_pair(MIN_STACK_SIZE, kernel.symbol) not in (None, UNKNOWN_STACK)


def raise_stack(kernel: KernelEditor, size: int) -> None:
    """Make the stack of a kernel larger by `size` bytes, if the file says how large it is."""
    cubin = kernel.cubin
    if has_known_stack(kernel):
        was = cubin.find_pair(MIN_STACK_SIZE, kernel.symbol) or 0
        cubin.write_pair(MIN_STACK_SIZE, kernel.symbol, was + size)


def _entries(info: bytearray) -> list[Entry]:
    return [(entry.form, entry.kind, entry.value, bytes(entry.payload)) for entry in iter_attributes(bytes(info))]


def _is_parameter(entry: Entry) -> bool:
    return entry[1] in (KPARAM_INFO, KPARAM_INFO_V2) and len(entry[3]) == KPARAM.size


def _with_parameter(entries: list[Entry], new: Parameter) -> list[Entry]:
    """Return the attributes with one more parameter, all in the version that's necessary."""
    is_v2 = new.offset + SIZE > MAX_V1 or any(kind == KPARAM_INFO_V2 for _, kind, _, _ in entries)
    version = KPARAM_INFO_V2 if is_v2 else KPARAM_INFO
    out = list(entries)
    for index, entry in enumerate(entries):
        if _is_parameter(entry) and entry[1] != version:
            zero, ordinal, offset, size = KPARAM.unpack(entry[3])
            out[index] = SIZED, version, KPARAM.size, KPARAM.pack(zero, ordinal, offset, size >> SIZE_SHIFT)
    kinds = [kind for _, kind, _, _ in out]
    at = kinds.index(version) if version in kinds else _start(out)
    size = SIZE if is_v2 else SIZE << SIZE_SHIFT | FLAGS
    out.insert(at, (SIZED, version, KPARAM.size, KPARAM.pack(0, new.ordinal, new.offset, size)))
    return out


def _with_bank(entries: list[Entry], bank: bytes, size: int, is_last: bool) -> list[Entry]:
    """Return the attributes with PARAM_CBANK and CBANK_PARAM_SIZE, added if necessary, in the order that ptxas uses."""
    new = {PARAM_CBANK: (SIZED, PARAM_CBANK, BANK.size, bank), CBANK_PARAM_SIZE: (HALF, CBANK_PARAM_SIZE, size, b"")}
    out = [new.pop(entry[1], entry) for entry in entries]
    missing = list(new.values())
    if not is_last:
        at = _start(out)
        return out[:at] + missing + out[at:]
    at = len(out)
    while at and out[at - 1][1] in LAST:
        at -= 1
    return out[:at] + missing[::-1] + out[at:]


def _start(entries: list[Entry]) -> int:
    """Return the index of the first attribute after those in BEFORE."""
    return max((index + 1 for index, entry in enumerate(entries) if entry[1] in BEFORE), default=0)


def _symbol_of(kernel: KernelEditor, section: int) -> int:
    """Return the index of the symbol of a section."""
    symbols = kernel.cubin.symbols
    found = np.flatnonzero((symbols["shndx"] == section) & (symbols["info"] & 15 == STT_SECTION))
    if not len(found):
        raise CannotEdit("a constant bank without a symbol")
    return int(found[0])
