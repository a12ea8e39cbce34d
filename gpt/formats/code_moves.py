"""Update the tables of a cubin when code moves within its section.

The functions get `place`, which maps an old offset in the section to the new one, or raises CannotEdit if there's none.
These tables contain offsets of code:

- symbols of functions: offset and size;
- relocations of the code: the offset of the instruction that they change;
- relocations elsewhere that refer to a place in the code: a symbol and the distance from it;
- `.nv.info.K`: lists of the offsets of certain instructions, such as all EXITs;
- `.debug_frame`: the range of each function. An entry begins with `ffffffff | u64 size | u64 CIE | u64 address | u64
  range`, and there's a relocation for the address. Rows for a range keep their distances from its start.

`check_understood` refuses cubins with other tables of this kind, which aren't updated: jump tables (relative offsets in
constant bank 2), line numbers and other debug information, and attributes that may be lists.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Container, Iterable, Iterator

import numpy as np

from gpt.formats import elftables
from gpt.formats.cubin import Data
from gpt.formats.cubin_edit import CubinEditor, table_of
from gpt.formats.cubin_layout import CannotEdit
from gpt.formats.elf import SHF_ALLOC, SHT_REL, SHT_RELA
from gpt.formats.nvinfo import ENTRY, SIZED, Attribute, iter_attributes

Place = Callable[[int], int]
RELOCATION = {SHT_REL: elftables.REL.dtype, SHT_RELA: elftables.RELA.dtype}
FRAME = struct.Struct("<IQQQQ")
FRAME_ADDRESS = 20  # its offset in the entry
DWARF64 = 0xFFFFFFFF

# Attributes of `.nv.info.K`, by the format of their payload. cuobjdump prints these names with the prefix EIATTR_.
INDIRECT_BRANCH_TARGETS = 0x34  # for each branch: {u32 offset, u16, u16, u32 count, u32 targets[count]}
BRANCH = struct.Struct("<IHHI")
INSTRUCTION_OFFSETS = {  # attribute -> size of an entry, which begins with a u32 offset
    0x1C: 4,  # EXIT_INSTR_OFFSETS
    0x1D: 4,  # S2RCTAID_INSTR_OFFSETS
    0x28: 4,  # COOP_GROUP_INSTR_OFFSETS
    0x2E: 8,  # ATOM16_EMUL_INSTR_REG_MAP: then u32 register
    0x31: 4,  # INT_WARP_WIDE_INSTR_OFFSETS
    0x39: 16,  # MBARRIER_INSTR_OFFSETS: then u32 register, u32 address, u16 and u8 kind, u8 0
    0x44: 8,  # UNUSED_LOAD_BYTE_OFFSET: then u32, a bit for each byte that's used
    0x46: 4,  # SYSCALL_OFFSETS
}
NO_OFFSETS = {
    0x05,  # MAX_THREADS
    0x0A,  # PARAM_CBANK
    0x0F,  # EXTERNS
    0x10,  # REQNTID
    0x17,  # KPARAM_INFO
    0x1E,  # CRS_STACK_SIZE
    0x29,  # COOP_GROUP_MASK_REGIDS
    0x36,  # SW_WAR
    0x37,  # CUDA_API_VERSION
    0x3D,  # CTA_PER_CLUSTER
    0x45,  # KPARAM_INFO_V2
    0x66,  # LANGUAGE
}


def check_understood(cubin: CubinEditor, section: int, info: Data) -> None:
    """Raise CannotEdit if the code in this section can't be moved. `info` is the `.nv.info.K` of its kernel."""
    for entry in iter_attributes(bytes(info)):  # a copy, because the caller may edit the original afterwards
        if entry.kind == INDIRECT_BRANCH_TARGETS:
            raise CannotEdit("it has jump tables")
        if entry.form == SIZED and entry.kind not in INSTRUCTION_OFFSETS.keys() | NO_OFFSETS:
            raise CannotEdit(f"attribute {entry.kind:#x} is not understood")
    frames = cubin.numbers.get(b".debug_frame")
    for _, target, table in iter_relocations(cubin):
        refers = bool(len(_to(cubin, table, section)))
        if refers and target != frames and not cubin.sections["flags"][target] & SHF_ALLOC:
            raise CannotEdit("it has debug information")
        if refers and target != frames and not has_addends(table):
            raise CannotEdit("relocations without addends refer to it")


def check_moves(info: Data, moved: Container[int]) -> None:
    """Raise CannotEdit if an attribute that isn't understood may contain the offset of an instruction that moves."""
    for entry in iter_attributes(bytes(info)):
        known = entry.kind in INSTRUCTION_OFFSETS.keys() | NO_OFFSETS | {INDIRECT_BRANCH_TARGETS}
        words = entry.payload[: len(entry.payload) // 4 * 4].cast("I")
        if not known and any(word in moved for word in words):
            raise CannotEdit(f"attribute {entry.kind:#x} is not understood")


def follow_symbols(cubin: CubinEditor, section: int, place: Place) -> None:
    """Update the offsets and sizes of the functions in a section."""
    symbols = cubin.symbols
    for number in np.flatnonzero(symbols["shndx"] == section).tolist():
        start, size = int(symbols["value"][number]), int(symbols["size"][number])
        symbols["value"][number] = place(start)
        symbols["size"][number] = place(start + size) - place(start) if size else 0


def follow_instructions(cubin: CubinEditor, section: int, info: bytearray, place: Place) -> None:
    """Update the relocations of the code, and the lists of instructions in `.nv.info.K`."""
    for number, _, table in iter_relocations(cubin, section):
        moved = table.copy()
        moved["offset"] = [place(offset) for offset in table["offset"].tolist()]
        cubin.editable(number)[:] = moved.tobytes()
    for entry in iter_attributes(bytes(info)):
        for at in _listed(entry):
            start = entry.at + ENTRY.size + at
            (offset,) = struct.unpack_from("<I", info, start)
            struct.pack_into("<I", info, start, place(offset))


def _listed(entry: Attribute) -> Iterable[int]:
    """Return where the payload of an attribute has offsets of instructions, other than targets of branches."""
    size = len(entry.payload)
    if stride := INSTRUCTION_OFFSETS.get(entry.kind):
        if size % stride:
            raise CannotEdit(f"attribute {entry.kind:#x} ends within an entry")
        return range(0, size, stride)
    found = []
    if entry.kind == INDIRECT_BRANCH_TARGETS:
        at = 0
        while at < size:
            found.append(at)
            count = BRANCH.unpack_from(entry.payload, at)[3] if at + BRANCH.size <= size else size
            at += BRANCH.size + 4 * count
        if at != size:
            raise CannotEdit(f"attribute {entry.kind:#x} ends within an entry")
    return found


def follow_references(cubin: CubinEditor, section: int, place: Place) -> None:
    """Change references that consist of a symbol and a distance, so that they lead to the same instruction as
    before.
    """
    for number, _, table in iter_relocations(cubin):
        if not has_addends(table):
            continue  # resize_frames sets the addresses in frames
        moved = table.copy()
        for index in _to(cubin, table, section).tolist():
            start = int(cubin.symbols["value"][table["symbol"][index]])
            addend = int(table["addend"][index].astype("<i8"))
            moved["addend"][index] = np.array(place(start + addend) - place(start), "<i8").astype("<u8")
        if moved.tobytes() != table.tobytes():
            cubin.editable(number)[:] = moved.tobytes()


def resize_frames(cubin: CubinEditor, section: int, place: Place) -> None:
    """Update the ranges of functions in `.debug_frame`, and addresses for which the relocation has no addend (sm_80).

    Call this first, while relocations and symbols still have the old places of functions.
    """
    frames = cubin.numbers.get(b".debug_frame")
    if frames is None:
        return
    for _, _, table in iter_relocations(cubin, frames):
        content = cubin.editable(frames)
        for index in _to(cubin, table, section).tolist():
            at = int(table["offset"][index]) - FRAME_ADDRESS
            if not 0 <= at <= len(content) - FRAME.size:
                continue
            mark, size, cie, address, length = FRAME.unpack_from(content, at)
            if mark != DWARF64 or cie >= at or at + size > len(content):
                continue  # a different kind of entry
            base = int(cubin.symbols["value"][table["symbol"][index]])
            start = base + (int(table["addend"][index]) if has_addends(table) else address)
            if not has_addends(table):
                address = place(start) - place(base)
            FRAME.pack_into(content, at, mark, size, cie, address, place(start + length) - place(start))


def iter_relocations(cubin: CubinEditor, target: int | None = None) -> Iterator[tuple[int, int, np.ndarray]]:
    """Yield, for each relocation section that isn't empty, its number, the section that it changes, and its entries."""
    types, targets = cubin.sections["type"], cubin.sections["info"]
    wanted = (types == SHT_REL) | (types == SHT_RELA)
    if target is not None:
        wanted &= targets == target
    for number in np.flatnonzero(wanted & (targets < len(types))).tolist():
        if len(content := cubin.content(number)):
            yield number, int(targets[number]), table_of(content, RELOCATION[int(types[number])])


def has_addends(table: np.ndarray) -> bool:
    """Return whether relocations have explicit addends. If they don't, they add to the existing value."""
    return "addend" in (table.dtype.names or ())


def _to(cubin: CubinEditor, table: np.ndarray, section: int) -> np.ndarray:
    """Return the indexes of the relocations that refer to a section."""
    if int(table["symbol"].max()) >= len(cubin.symbols):
        raise CannotEdit("a symbol beyond the symbol table is used")
    return np.flatnonzero(cubin.symbols["shndx"][table["symbol"]] == section)
