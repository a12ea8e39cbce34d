"""List the symbols of a packed cubin from its first bytes, without unpacking the rest.

nvcc and ptxas write `.shstrtab`, `.strtab` and `.symtab` first, then the code, which is nine tenths of a large cubin,
and finally the section headers, which say where everything is. So we unpack a compressed cubin only up to the end of
its symbols, provided that the bytes can't be anything else:

- the first table of names begins as `.shstrtab` does, right after the ELF header;
- `.symtab` begins with the first 24 zero bytes at a multiple of 8 that are followed by a symbol whose name is in the
  bytes before;
- it ends, after a whole number of symbols, where `.debug_frame`, `.nv.info` or NVIDIA's note begins; none of these
  looks like a symbol;
- all symbols have valid types and sections;
- `.strtab` begins at the last possible NUL such that every name, counted from there, follows a NUL and isn't empty; and
  there are at least four names.

If in doubt, we unpack the whole cubin. The headers may still disagree: no compiler writes such a cubin, but somebody
could edit one. Since the driver uses the headers, gpt-patch parses them before it cuts a cubin with unused kernels
(`contents.check_names`). For 15,444 cubins from 65 public libraries, both methods find the same names.
"""

from __future__ import annotations

import re
import struct

from gpt.formats.cubin import STT_FUNC, STT_OBJECT, SYMBOL, contents_of
from gpt.formats.elf import EHDR_SIZE, MACHINES, SHDR_SIZE, machine_of
from gpt.formats.symbols import Contents

LEAST = 1 << 17  # smaller cubins are unpacked completely
LEAST_NAMES = 4  # with fewer, it may only look like a table of names
STT_SECTION, STT_CUDA = 3, (10, 13)
TYPES = {0, STT_OBJECT, STT_FUNC, STT_SECTION, *STT_CUDA}
SHN_LORESERVE = 0xFF00

NULL = bytes(SYMBOL.size)
_ZEROS = re.compile(rb"\0*")
_NV_INFO = b"\x04\x2f\x08\0", b"\x04\x12\x08\0", b"\x04\x11\x08\0"  # about 530,000 if they were offsets of names
_MARKS = [  # how the section after the symbols begins: the bytes, and their offset in it
    *((b"\xff\xff\xff\xff%c\0\0\0\0\0\0\0\xff\xff\xff\xff" % size, 0) for size in (0x24, 0x2C)),
    (b"NVIDIA Corp\0", 12),
    *((mark, 0) for mark in _NV_INFO),
]
MAX_PLACES = 64  # offsets to try for the table of names


def find_contents(head: bytes, size: int) -> Contents | None:
    """Return the contents of a cubin with `size` bytes from its first bytes, or None if there's any doubt.

    Raises MalformedError if there are more names than possible.
    """
    if len(head) < EHDR_SIZE or MACHINES.get(machine_of(head) or 0) != "cuda":
        return None
    (shoff,) = struct.unpack_from("<Q", head, 40)
    shentsize, shnum = struct.unpack_from("<HH", head, 58)
    if not head.startswith(b"\0.shstrtab\0", EHDR_SIZE) or shentsize != SHDR_SIZE:
        return None
    start = _find_symbols(head)
    end = start and _find_end(head, start)
    if not start or not end or not end < shoff <= size - shnum * SHDR_SIZE:
        return None
    symbols = memoryview(head)[start:end]
    types, sections = set(symbols[4 :: SYMBOL.size]), set(symbols.cast("H")[3 :: SYMBOL.size // 2])
    if {info & 15 for info in types} - TYPES or any(shnum <= section < SHN_LORESERVE for section in sections):
        return None
    names = _find_names(head[EHDR_SIZE : start + 1], set(symbols.cast("I")[:: SYMBOL.size // 4]))
    return contents_of(names, symbols, size) if names else None


def _find_symbols(head: bytes) -> int | None:
    at = EHDR_SIZE
    while (at := head.find(NULL, at)) >= 0:
        end = _ZEROS.match(head, at).end()  # type: ignore[union-attr]
        first = end & ~7  # the symbol after the zeros
        if first - SYMBOL.size >= at and 0 < int.from_bytes(head[first : first + 4], "little") < first:
            return first - SYMBOL.size
        at = end
    return None


def _find_end(head: bytes, start: int) -> int | None:
    end = len(head)
    for mark, before in _MARKS:
        at = head.find(mark, start + before, end + before) - before
        if at >= start and (mark not in _NV_INFO or int.from_bytes(mark, "little") >= start):
            end = at
    return end if end < len(head) and (end - start) % SYMBOL.size == 0 else None


def _find_names(tables: bytes, named: set[int]) -> bytes | None:
    """Return the string table among `tables` that has the names at these offsets. If several do, it's the last one.
    None if none does.
    """
    named.discard(0)
    if len(named) < LEAST_NAMES or max(named) >= len(tables):
        return None
    view, end = memoryview(tables), len(tables) - max(named)
    for _ in range(MAX_PLACES):
        at = tables.rfind(b"\0\0", 0, end) + 1
        if not at:
            return None
        before, firsts = view[at - 1 :], view[at:]
        if tables[at + 1] and all(map(firsts.__getitem__, named)) and not any(map(before.__getitem__, named)):
            return tables[at:]
        end = len(tables[:at].rstrip(b"\0")) + 1
    return None
