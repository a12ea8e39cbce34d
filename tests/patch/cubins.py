"""A cubin of kernels and device functions, its trimmed versions, and forged ones."""

from __future__ import annotations

import io
import struct

from elftools.elf.elffile import ELFFile
from hypothesis import strategies as st

from tests.formats import forge

ARCHS = ("sm_75", "sm_90")


# Each kernel, with the functions that only it needs.
KERNELS = {"direct": {"callee", "deep"}, "pointer": {"pointed", "other"}, "alone": {"lonely"}, "plain": set()}


def code_of(data):
    """Return the code of each function, from pyelftools."""
    sections = ELFFile(io.BytesIO(data)).iter_sections()
    return {s.name.removeprefix(".text."): s.data() for s in sections if s.name.startswith(".text.")}


def cut_out(data, cut):
    """Return the cubin with the code zeroed, and the names of the functions that lost it."""
    out = bytearray(data)
    for start, end in cut.spans:
        out[start:end] = bytes(end - start)
    return bytes(out), {name for name, code in code_of(out).items() if not any(code)}


def forged(sections, symbols, size=8 << 20):
    """Return a cubin of `sections` overlapping sections, each a table of 8 MiB of relocations, or code."""
    table = b"".join(struct.pack("<IBBHQQ", 1, 0x12, 0x10, 1, 0, 16) for _ in range(symbols))
    body = bytes(64) + table + b"\0k\0".ljust(8, b"\0")
    rows = [forge.section(0, 0), forge.section(0, 1, offset=64, size=16, flags=6)]
    rows += [forge.section(0, 2, offset=64, size=len(table), link=3), forge.section(0, 3, offset=len(body) - 8, size=8)]
    start = len(body)
    body += struct.pack("<II", 0, 0xFFFFFFFF) + bytes(size)
    rows.append(forge.section(0, 0x70000001, offset=start, size=8))
    row = bytearray(forge.section(0, 4, offset=start, size=size - size % 24))
    struct.pack_into("<I", row, 44, 1)
    rows += [bytes(row)] * sections
    head = forge.elf_header(shoff=len(body), shnum=len(rows), machine=190, type_=2, osabi=0x33)
    return head + body[64:] + b"".join(rows)


def damaged(data: bytes, draw: st.DataObject) -> bytearray:
    """Return one of the linked cubins with up to four bytes of its headers and tables changed."""
    out = bytearray(data)
    shoff = struct.unpack_from("<Q", out, 40)[0]
    for _ in range(draw.draw(st.integers(1, 4))):
        place = draw.draw(st.one_of(st.integers(0, 63), st.integers(0x700, 0x15FF), st.integers(shoff, len(out) - 1)))
        out[place] = draw.draw(st.integers(0, 255))
    return out
