"""Forged files: each table written by hand, as no tool would write it."""

from __future__ import annotations

import struct


def elf_header(
    *, shoff: int = 0, shnum: int = 0, shstrndx: int = 0, phoff: int = 0, phnum: int = 0, machine: int = 62,
    type_: int = 3, osabi: int = 0,
) -> bytes:  # fmt: skip
    head = b"\x7fELF\2\1\1" + bytes([osabi]) + bytes(8)
    return head + struct.pack(
        "<HHIQQQIHHHHHH", type_, machine, 1, 0, phoff, shoff, 0, 64, 56, phnum, 64, shnum, shstrndx
    )


def section(name: int, type_: int, *, offset: int = 0, size: int = 0, link: int = 0, flags: int = 0) -> bytes:
    return struct.pack("<IIQQQQIIQQ", name, type_, flags, 0, offset, size, link, 0, 1, 0)


def cubin(symbols: int, names: bytes = b"\0a\0", *, name: int = 1) -> bytes:
    """A cubin whose symbol table says `symbols` times that there is a kernel, with the name at `name`."""
    table = struct.pack("<IBBHQQ", name, 0x12, 0x10, 1, 0, 16) * symbols
    end = 64 + len(table) + len(names)
    shoff = end + -end % 8
    head = elf_header(shoff=shoff, shnum=3, machine=190, type_=2, osabi=0x33)
    sections = section(0, 0) + section(0, 2, offset=64, size=len(table), link=2)
    sections += section(0, 3, offset=64 + len(table), size=len(names))
    return (head + table + names).ljust(shoff, b"\0") + sections


def region(body: bytes, size: int | None = None, *, version: int = 1, header: int = 16) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, version, header, len(body) if size is None else size) + body


def element(
    payload: bytes, *, kind: int = 2, flags: int = 0x11, packed: int = 0, unpacked: int = 0, header: int = 64,
    size: int | None = None, arch: int = 90,
) -> bytes:  # fmt: skip
    """An element; `size` is the payload size that its header claims."""
    claimed = len(payload) if size is None else size
    return (
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, header, claimed, packed, 0, 0, 0, arch, 0, 0, flags, 0, unpacked)
        + payload
    )


def zstd(data: bytes, claimed: int | None = None, *, kind: int = 2) -> bytes:
    """An element with `data` packed by zstd, its header claiming another unpacked size."""
    import zstandard

    packed = zstandard.compress(data)
    padded = packed + bytes(-len(packed) % 8)
    size = len(data) if claimed is None else claimed
    return element(padded, kind=kind, flags=0x8011, packed=len(packed), unpacked=size)


def lz4(data: bytes, claimed: int | None = None) -> bytes:
    """The same by LZ4."""
    import lz4.block

    packed = lz4.block.compress(data, store_size=False)
    padded = packed + bytes(-len(packed) % 8)
    return element(padded, flags=0x2011, packed=len(packed), unpacked=len(data) if claimed is None else claimed)
