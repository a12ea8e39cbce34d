"""Recognize programs and GPU code from other systems by name; they contain no CUDA code."""

from __future__ import annotations

import struct

from gpt.formats import elf
from gpt.formats.source import Source

AMD = "code for AMD GPUs ({}): only NVIDIA's is read"
EM_AMDGPU = 224
HIP_SECTIONS = (".hip_fatbin", ".hipFatBinSegment")
HEADS = {
    b"__CLANG_OFFLOAD_BUNDLE__": AMD.format("a clang offload bundle"),
    b"CCOB": AMD.format("a packed clang offload bundle"),
    b"\xcf\xfa\xed\xfe": "Mach-O file (macOS): only ELF files are read",
    b"\xce\xfa\xed\xfe": "Mach-O file (macOS): only ELF files are read",
}


def find_other(source: Source) -> str | None:
    """Return a sentence that names the format of a file and the formats that we support, or None if the format isn't
    known.
    """
    head = source.pread(0, min(64, source.size))
    for magic, what in HEADS.items():
        if head.startswith(magic):
            return what
    if len(head) == 64 and head[:2] == b"MZ":
        (at,) = struct.unpack_from("<I", head, 60)
        is_pe = at + 4 <= source.size and source.pread(at, 4) == b"PE\0\0"
        return f"{'PE file (Windows)' if is_pe else 'DOS program'}: only ELF files are read"
    # In a universal binary, this is the number of its parts; in a Java class, it's the version, which is at least 45.
    if head[:4] == b"\xca\xfe\xba\xbe" and 0 < int.from_bytes(head[4:8], "big") < 40:
        return "Mach-O file (macOS): only ELF files are read"
    return AMD.format("an AMD ELF file") if elf.machine_of(head) == EM_AMDGPU else None


def find_other_in(tables: elf.Elf | None) -> str | None:
    """Return what other kind of GPU code is in an ELF file for the host, judging by its sections, or None."""
    return AMD.format(f"section '{HIP_SECTIONS[0]}'") if tables and tables.named(*HIP_SECTIONS) else None
