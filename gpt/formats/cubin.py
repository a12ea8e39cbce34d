"""Cubins: the ELF files that the GPU runs (machine 190), and the PTX that Triton leaves in them.

From 21,080 cubins, we learned how to recognize a kernel: it's an entry in the section of type SHT_SYMTAB with type
STT_FUNC, st_other bit 0x10 (STO_CUDA_ENTRY), and a section other than 0. Its binding doesn't matter (a quarter of all
kernels are LOCAL). Names come from the string table that this section links to (sh_link), because relocation sections
in some public cubins link to the wrong table. A function without the bit is a device function. From sm_100 on, there's
a second symbol table of type 0x70000085, which describes Mercury code and is left alone.

A large library has 600,000 symbols. Reading their names takes as long as the loop over them.
"""

from __future__ import annotations

import struct

from gpt.base.errors import MalformedError
from gpt.formats import elftables
from gpt.formats.elf import MACHINES, SHDR_SIZE, SHT_SYMTAB, machine_of
from gpt.formats.source import Source
from gpt.formats.symbols import SPACE, Contents, Symbol

STT_OBJECT, STT_FUNC, STO_CUDA_ENTRY = 1, 2, 0x10

FUNCTION = 256  # a cubin has at least this many bytes per function; the minimum that we've seen is 1,951
SECTION, SYMBOL = elftables.SECTION.struct, elftables.SYMBOL.struct

Data = bytes | bytearray | memoryview


def section_headers(data: Data | Source) -> memoryview:
    """Return the section headers of a cubin as an array of SECTION. Raises MalformedError."""
    size = _size(data)
    head = _part(data, 0, min(64, size))
    if MACHINES.get(machine_of(bytes(head[:20])) or 0) != "cuda":
        raise MalformedError("no cubin")
    if size < 64:
        raise MalformedError("cubin shorter than its header")
    (shoff,) = struct.unpack_from("<Q", head, 40)
    shentsize, shnum = struct.unpack_from("<HH", head, 58)
    if shoff == 0:
        return memoryview(b"")
    if shoff + SHDR_SIZE > size:
        raise MalformedError("cubin: section headers beyond its end")
    if shnum == 0:
        shnum = SECTION.unpack(_part(data, shoff, SHDR_SIZE))[5]
    if shentsize != SHDR_SIZE or shoff + shnum * SHDR_SIZE > size:
        raise MalformedError("cubin: section headers beyond its end")
    return _part(data, shoff, shnum * SHDR_SIZE)


def parse_cubin(data: Data | Source) -> Contents:
    """Return the kernels and device functions of a cubin, in the order of the symbol table, and its number of
    variables.

    If it's a Source, only the tables are read, which are a few percent of the bytes.
    """
    headers = section_headers(data)
    types = headers.cast("I")[1 :: SHDR_SIZE // 4].tolist()
    if SHT_SYMTAB not in types:
        return Contents([], [], 0)
    *_, offset, size, link, _, _, _ = SECTION.unpack_from(headers, types.index(SHT_SYMTAB) * SHDR_SIZE)
    if link >= len(types):
        raise MalformedError("cubin: symbol table without names")
    *_, names_offset, names_size, _, _, _, _ = SECTION.unpack_from(headers, link * SHDR_SIZE)
    names = bytes(_part(data, names_offset, names_size))
    return contents_of(names, _part(data, offset, size - size % SYMBOL.size), _size(data))


def contents_of(names: bytes, symbols: Data, size: int) -> Contents:
    """Parse the symbol table of a cubin with `size` bytes; `names` is its string table. Raises MalformedError."""
    kernels: list[Symbol] = []
    functions: list[Symbol] = []
    variables = 0
    room = SPACE + size  # for names and functions, because malicious ones may share bytes
    for name, info, other, shndx, _, code in SYMBOL.iter_unpack(symbols):
        if not shndx:
            continue
        if info & 15 == STT_FUNC:
            end = names.find(0, name)
            room -= FUNCTION + end - name
            if end < 0:
                raise MalformedError("cubin: symbol without a name")
            if room < 0:
                raise MalformedError(f"cubin: more functions and names than {size} bytes can hold")
            symbol: Symbol = {"name": names[name:end].decode("utf-8", "surrogateescape"), "size": code}
            (kernels if other & STO_CUDA_ENTRY else functions).append(symbol)
        elif info & 15 == STT_OBJECT:
            variables += 1
    return Contents(kernels, functions, variables)


def _size(data: Data | Source) -> int:
    return data.size if isinstance(data, Source) else len(data)


def _part(data: Data | Source, offset: int, size: int) -> memoryview:
    if offset + size > _size(data):
        raise MalformedError("cubin: section beyond its end")
    if isinstance(data, Source):
        return memoryview(data.pread(offset, size))
    return memoryview(data)[offset : offset + size]


def arch_of(head: bytes) -> str:
    """Return the compute capability from the first 64 bytes of a cubin. Where it is in e_flags depends on the
    generation.
    """
    flags = int.from_bytes(head[48:52], "little")
    return f"sm_{flags >> 8 & 0xFF if head[7] == 0x41 else flags & 0xFF}"


def size_of_image(head: bytes) -> int:
    """Return the size of a cubin from its first 64 bytes. It ends with the last of its header tables."""
    phoff, shoff = struct.unpack_from("<QQ", head, 32)
    phentsize, phnum, shentsize, shnum = struct.unpack_from("<HHHH", head, 54)
    size: int = max(64, phoff + phentsize * phnum, shoff + shentsize * shnum)
    return size


def find_ptx(data: Data) -> bytes | None:
    """Return the PTX in the `.nv_debug_ptx_txt` of a cubin, whose lines end with NUL, or None if there's none."""
    headers = section_headers(data)
    (shstrndx,) = struct.unpack("<H", _part(data, 62, 2))
    if shstrndx * SHDR_SIZE >= len(headers):
        return None
    *_, offset, size, _, _, _, _ = SECTION.unpack_from(headers, shstrndx * SHDR_SIZE)
    names = bytes(_part(data, offset, size))
    for name, _, _, _, offset, size, *_ in SECTION.iter_unpack(headers):
        if names.startswith(b".nv_debug_ptx_txt\0", name):
            return bytes(_part(data, offset, size)).rstrip(b"\0").replace(b"\0", b"\n") + b"\n"
    return None
