"""Forged files, with hand-written tables that no tool would write."""

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
    """Return a cubin whose symbol table names `symbols` kernels, all with the name at `name`."""
    table = struct.pack("<IBBHQQ", name, 0x12, 0x10, 1, 0, 16) * symbols
    end = 64 + len(table) + len(names)
    shoff = end + -end % 8
    head = elf_header(shoff=shoff, shnum=3, machine=190, type_=2, osabi=0x33)
    sections = section(0, 0) + section(0, 2, offset=64, size=len(table), link=2)
    sections += section(0, 3, offset=64 + len(table), size=len(names))
    return (head + table + names).ljust(shoff, b"\0") + sections


def compiled(kernels: list[bytes], code: bytes, *, real: list[bytes] | None = None, gap: int = 0) -> bytes:
    """Return a cubin in nvcc's layout, with `gap` zeros after each table of names.

    `real` are the kernels that its headers name, if these differ from the names in the first bytes.
    """
    texts = [b".text." + kernel for kernel in kernels]
    sections = [b".shstrtab", b".strtab", b".symtab", b".debug_frame", *texts]
    shstrtab, strtab = _strings(sections), _strings([*sections, *kernels])
    symtab = _symbols(strtab, texts, kernels)
    at = 64 + len(shstrtab) + gap
    strings = at, len(strtab)
    at += len(strtab) + gap
    table = at + -at % 8, len(symtab)
    front = shstrtab + bytes(gap) + strtab + bytes(gap + -at % 8) + symtab
    frame = b"\xff\xff\xff\xff\x24" + bytes(7) + b"\xff" * 8
    body = front + frame + code + bytes(-len(front + frame + code) % 8)
    if real is not None:
        strings = 64 + len(body), len(_strings(real))
        body += _strings(real) + bytes(-len(_strings(real)) % 8)
        table = 64 + len(body), 24 * (1 + len(real))
        body += _symbols(_strings(real), [], real)
    headers = section(0, 0) + section(1, 3, offset=64, size=len(shstrtab))
    headers += section(11, 3, offset=strings[0], size=strings[1])
    headers += section(19, 2, offset=table[0], size=table[1], link=2) + section(27, 1) * (1 + len(kernels))
    count = 5 + len(kernels)
    head = elf_header(shoff=64 + len(body), shnum=count, shstrndx=1, machine=190, type_=2, osabi=0x33)
    return head + body + headers


def _strings(names: list[bytes]) -> bytes:
    return b"".join(b"\0" + name for name in names) + b"\0"


def _symbols(strtab: bytes, texts: list[bytes], kernels: list[bytes]) -> bytes:
    """Return a section symbol for each of `texts`, and the kernels."""
    named = [(name, 3, 0, index, 0) for index, name in enumerate(texts, 5)]
    named += [(name, 0x12, 0x10, index, 16) for index, name in enumerate(kernels, 5 if texts else 1)]
    place = {name: strtab.index(b"\0" + name + b"\0") + 1 for name, *_ in named}
    return bytes(24) + b"".join(
        struct.pack("<IBBHQQ", place[n], info, other, at, 0, size) for n, info, other, at, size in named
    )


def region(body: bytes, size: int | None = None, *, version: int = 1, header: int = 16) -> bytes:
    return struct.pack("<IHHQ", 0xBA55ED50, version, header, len(body) if size is None else size) + body


def element(
    payload: bytes, *, kind: int = 2, flags: int = 0x11, packed: int = 0, unpacked: int = 0, header: int = 64,
    size: int | None = None, arch: int = 90,
) -> bytes:  # fmt: skip
    """Return an element; `size` is the payload size that its header claims."""
    claimed = len(payload) if size is None else size
    return (
        struct.pack("<HHIQIIHHIIIQQQ", kind, 0x101, header, claimed, packed, 0, 0, 0, arch, 0, 0, flags, 0, unpacked)
        + payload
    )


def zstd(data: bytes, claimed: int | None = None, *, kind: int = 2) -> bytes:
    """Return an element with `data` packed by zstd; its header claims another unpacked size."""
    import zstandard

    packed = zstandard.compress(data)
    padded = packed + bytes(-len(packed) % 8)
    size = len(data) if claimed is None else claimed
    return element(padded, kind=kind, flags=0x8011, packed=len(packed), unpacked=size)


def lz4(data: bytes, claimed: int | None = None) -> bytes:
    """Return the same, packed by LZ4."""
    import lz4.block

    packed = lz4.block.compress(data, store_size=False)
    padded = packed + bytes(-len(packed) % 8)
    return element(padded, flags=0x2011, packed=len(packed), unpacked=len(data) if claimed is None else claimed)
