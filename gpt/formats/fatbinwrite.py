"""Write a fatbin: one region with cubins and PTX, in the format that gpt/formats/fatbin.py reads.

fatbinary from CUDA 13.0 writes the same output; a test compares all bytes except the output of zstd. Each
element has the flags 0x11 and the bits for its codec and its suffix; cubins from sm_100 on also have 0x1000000. The
version is 1.8 for a cubin, and `.version` for PTX. After the header, PTX has an empty list of options, and a cubin from
sm_100 on has a zero byte and its section `.nv.compat` without the last byte. Both are stored as a u32 offset, a u32
length, and then the bytes. PTX ends with one NUL, and payloads are padded to 8 bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from gpt.base.errors import MalformedError
from gpt.formats.cubin import SECTION, section_headers
from gpt.formats.elf import SHDR_SIZE
from gpt.formats.fatbin import ELEMENT, FLAG_A, FLAG_F, FLAG_ZSTD, KINDS, MAGIC, MAX_UNPACKED, REGION
from gpt.formats.ptxtext import find_head

Codec = Literal["none", "zstd"]

_KIND_OF = {name: kind for kind, name in KINDS.items()}
_MARK, _ALWAYS, _MERCURY = 0x101, 0x11, 0x1000000
_CUBIN_VERSION = (1, 8)
_OPTIONS = struct.Struct("<II")
_ARCH = re.compile(r"sm_(\d+)([af]?)")
_LEVEL = 3  # the default of zstd


@dataclass(frozen=True)
class Payload:
    """An element to write. `type` is cubin or ptx, and `arch` is an architecture such as sm_90a."""

    type: str
    arch: str
    data: bytes


def pack_fatbin(images: Iterable[Payload], codec: Codec) -> bytes:
    """Return a region with an element for each image. Raises MalformedError if an image can't be an element."""
    body = b"".join(_pack_element(image, codec) for image in images)
    return REGION.pack(MAGIC, 1, REGION.size, len(body)) + body


def _pack_element(image: Payload, codec: Codec) -> bytes:
    found = _ARCH.fullmatch(image.arch)
    if not found:
        raise MalformedError(f"'{image.arch}' is not an architecture of a fatbin element")
    sm, suffix = int(found[1]), found[2]
    flags = _ALWAYS | {"a": FLAG_A, "f": FLAG_F}.get(suffix, 0)
    version, options, data = _CUBIN_VERSION, None, image.data
    if image.type == "ptx":
        version, options, data = _ptx_version(data), b"", data.rstrip(b"\0") + b"\0"
    elif sm >= 100:
        flags |= _MERCURY
        options = _compat(data)
    if len(data) > MAX_UNPACKED:
        raise MalformedError(f"element of {len(data)} bytes; the limit is {MAX_UNPACKED}")
    packed = unpacked = 0
    if codec == "zstd":
        import zstandard

        unpacked = len(data)
        data = zstandard.ZstdCompressor(level=_LEVEL).compress(data)
        packed, flags = len(data), flags | FLAG_ZSTD
    extra = b"" if options is None else _OPTIONS.pack(ELEMENT.size + _OPTIONS.size, len(options)) + options
    if options == b"":
        extra += bytes(_OPTIONS.size)
    extra, data = _padded(extra), _padded(data)
    header = ELEMENT.pack(
        _KIND_OF[image.type], _MARK, ELEMENT.size + len(extra), len(data), packed, ELEMENT.size if extra else 0,
        version[1], version[0], sm, 0, 0, flags, 0, unpacked,
    )  # fmt: skip
    return header + extra + data


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 8)


def _ptx_version(text: bytes) -> tuple[int, int]:
    head = find_head(text)
    if head is None:
        raise MalformedError("PTX without .version")
    return head.version


def _compat(cubin: bytes) -> bytes | None:
    """Return the section that says on which GPUs a cubin can run, which exists from sm_100 on. None if there's none."""
    headers = section_headers(cubin)
    (shstrndx,) = struct.unpack_from("<H", cubin, 62)
    if shstrndx * SHDR_SIZE >= len(headers):
        return None
    names = SECTION.unpack_from(headers, shstrndx * SHDR_SIZE)[4]
    for name, _, _, _, offset, size, *_ in SECTION.iter_unpack(headers):
        if cubin.startswith(b".nv.compat\0", names + name):
            return (b"\0" + cubin[offset : offset + size])[:size]
    return None
