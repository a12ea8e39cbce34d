"""Recognize unexpected input by its first bytes, and say which tool reads it."""

from __future__ import annotations

import re

_MAGIC = {
    b"\x7fELF": "an ELF file (gpt-extract reads it)",
    b"!<arch>\n": "an archive (gpt-extract reads it)",
    b"\x50\xed\x55\xba": "a fatbin (gpt-extract reads it)",
    b"PK\3\4": "a zip file or wheel (gpt-extract -r reads it)",
    b"\x1f\x8b": "a gzip file (unpack it first)",
    b"BZh": "a bzip2 file (unpack it first)",
    b"\xfd7zXZ\0": "an xz file (unpack it first)",
    b"\x28\xb5\x2f\xfd": "a zstd file (unpack it first)",
    b"\xff\xfe": "UTF-16 (make it UTF-8 first)",
    b"\xfe\xff": "UTF-16 (make it UTF-8 first)",
}
_PTX = re.compile(rb"(?s:\s|//[^\n]*+|/\*.*?\*/)*+\.version\s")
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")  # don't occur in text


def find_form(head: bytes) -> str | None:
    """Return the format of a file or stream with these first bytes, and what to do with it.

    Returns None for a stream or an unknown format.
    """
    for magic, form in _MAGIC.items():
        if head.startswith(magic):
            return form
    text = head.lstrip()
    if text.startswith((b"{", b"[")):
        return "JSON lines (add --from-json)" if b'"kind"' in text else "other JSON"
    if is_stream(head):
        return "a stream in msgpack (leave out --from-json)"
    if _PTX.match(text):
        return "PTX (gpt-extract --ptx reads it)"
    if text and not _CONTROL.search(text):
        return "text"
    return None


def is_stream(head: bytes) -> bool:
    """Return whether this may be the beginning of a stream: a msgpack map, perhaps after padding."""
    first = head.lstrip(b"\0")[:1]
    if head.startswith(b"\x89PNG"):  # would be a map of 9 entries with a number as its first key
        return False
    return b"\x80" <= first <= b"\x8f" or first in (b"\xde", b"\xdf")
