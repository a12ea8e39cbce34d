"""Cubins: the ELF files that the GPU runs (machine 190), and the PTX text that Triton leaves in them.

What names a kernel was established over 21,080 cubins: an entry of the section of type SHT_SYMTAB whose type
is STT_FUNC, whose st_other has bit 0x10 (STO_CUDA_ENTRY) and whose section is not 0; its binding says nothing
(a quarter of all kernels are LOCAL). The names come from that section's own sh_link: relocation sections of
some public cubins link wrongly. A function without the bit is a device function. From sm_100 on a second
symbol table of type 0x70000085 describes Mercury code and is left alone.

Symbols and names are read as numpy arrays: a large library has half a million of them.
"""

from __future__ import annotations

import struct

import numpy as np

from gpt.errors import MalformedError
from gpt.formats.elf import MACHINES, SHT_SYMTAB, machine_of
from gpt.formats.symbols import SPACE, Contents, Symbol

STT_OBJECT, STT_FUNC, STO_CUDA_ENTRY = 1, 2, 0x10

SECTION = np.dtype(
    [
        ("name", "<u4"), ("type", "<u4"), ("flags", "<u8"), ("addr", "<u8"), ("offset", "<u8"),
        ("size", "<u8"), ("link", "<u4"), ("info", "<u4"), ("align", "<u8"), ("entsize", "<u8"),
    ]
)  # fmt: skip
FUNCTION = 256  # bytes of a cubin for each function, at least; 1,951 are the least ever seen
SYMBOL = 24  # bytes: three words, of which the first is name | info << 32 | other << 40 | shndx << 48

Data = bytes | bytearray | memoryview


def parse_sections(data: Data) -> np.ndarray:
    """The section headers of a cubin, as an array of SECTION. Raises MalformedError."""
    if machine_of(bytes(data[:20])) is None or MACHINES.get(machine_of(bytes(data[:20])) or 0) != "cuda":
        raise MalformedError("no cubin")
    if len(data) < 64:
        raise MalformedError("cubin shorter than its header")
    (shoff,) = struct.unpack_from("<Q", data, 40)
    shentsize, shnum = struct.unpack_from("<HH", data, 58)
    if shoff == 0:
        return np.zeros(0, SECTION)
    if shoff + 64 > len(data):
        raise MalformedError("cubin: section headers beyond its end")
    if shnum == 0:
        shnum = int(np.frombuffer(data, SECTION, 1, shoff)["size"][0])
    if shentsize != SECTION.itemsize or shoff + shnum * SECTION.itemsize > len(data):
        raise MalformedError("cubin: section headers beyond its end")
    return np.frombuffer(data, SECTION, shnum, shoff)


def parse_cubin(data: Data) -> Contents:
    """Kernels, device functions and the number of variables of a cubin, in symbol table order."""
    sections = parse_sections(data)
    tables = np.flatnonzero(sections["type"] == SHT_SYMTAB)
    if not len(tables):
        return Contents([], [], 0)
    table = sections[tables[0]]
    if table["link"] >= len(sections):
        raise MalformedError("cubin: symbol table without names")
    names = bytes(_bytes_of(data, sections[table["link"]]))
    words = np.frombuffer(_bytes_of(data, table), "<u8", int(table["size"]) // SYMBOL * 3).reshape(-1, 3)
    head = words[:, 0]
    kind = head >> np.uint64(32) & np.uint64(15)
    defined = head >> np.uint64(48) != 0
    function = (kind == STT_FUNC) & defined
    entry = function & (head >> np.uint64(40) & np.uint64(STO_CUDA_ENTRY) != 0)
    count = int(np.count_nonzero(function))
    room = SPACE + len(data) - FUNCTION * count
    if room < 0:
        raise MalformedError(f"cubin: {count} functions in {len(data)} bytes")
    return Contents(
        _symbols(words[entry], names, room),
        _symbols(words[function & ~entry], names, room),
        int(np.count_nonzero((kind == STT_OBJECT) & defined)),
    )


def _bytes_of(data: Data, section: np.void) -> memoryview:
    start, size = int(section["offset"]), int(section["size"])
    if start + size > len(data):
        raise MalformedError("cubin: section beyond its end")
    return memoryview(data)[start : start + size]


def _symbols(words: np.ndarray, names: bytes, room: int) -> list[Symbol]:
    """The functions with their names, which take `room` bytes at most: hostile ones share their bytes."""
    starts, sizes = (words[:, 0] & np.uint64(0xFFFFFFFF)).tolist(), words[:, 2].tolist()
    symbols: list[Symbol] = []
    for start, size in zip(starts, sizes, strict=True):
        end = names.find(0, start)
        room -= end - start
        if end < 0 or room < 0:
            raise MalformedError("cubin: symbol without a name" if end < 0 else "cubin: names overlap")
        symbols.append({"name": names[start:end].decode("utf-8", "surrogateescape"), "size": size})
    return symbols


def size_of_image(head: bytes) -> int:
    """Bytes of a cubin from its first 64: to the end of whichever header table comes last."""
    phoff, shoff = struct.unpack_from("<QQ", head, 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", head, 54)
    size: int = max(64, phoff + phentsize * phnum, shoff + shentsize * shnum)
    return size


def find_ptx(data: Data) -> bytes | None:
    """The PTX text in a cubin's `.nv_debug_ptx_txt` (lines ended by NUL), if it holds one."""
    sections = parse_sections(data)
    (shstrndx,) = struct.unpack_from("<H", data, 62)
    if shstrndx >= len(sections):
        return None
    names = bytes(_bytes_of(data, sections[shstrndx]))
    wanted = b".nv_debug_ptx_txt\0"
    for section in sections:
        if names.startswith(wanted, int(section["name"])):
            return bytes(_bytes_of(data, section)).rstrip(b"\0").replace(b"\0", b"\n") + b"\n"
    return None
