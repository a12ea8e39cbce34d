"""PTX as text: what a module is called for and what it defines, without parsing it."""

from __future__ import annotations

import re

from gpt.formats.cubin import Contents, Symbol

_NAME = rb"([A-Za-z_$%][\w$]*)"
_ENTRY = re.compile(rb"\.entry\s+" + _NAME)
_FUNCTION = re.compile(rb"\.func\s+(?:\([^)]*\)\s*)?" + _NAME)
_VARIABLE = re.compile(rb"^\s*(?:\.(?:visible|weak|common)\s+)*\.(?:global|const)\s", re.MULTILINE)
_BLOCK_COMMENT = re.compile(rb"/\*.*?\*/", re.DOTALL)
_TARGET = re.compile(rb"^\s*\.target\s+(sm_\d+[af]?)", re.MULTILINE)
_START = re.compile(rb"(?:\s|//[^\n]*\n|/\*.*?\*/)*\.version\s+\d+\.\d+", re.DOTALL)


def is_ptx(head: bytes) -> bool:
    """Whether the beginning of a file is that of a PTX module: `.version` after comments."""
    return _START.match(head) is not None


def find_target(text: bytes) -> str | None:
    """The compute capability of the `.target` directive."""
    found = _TARGET.search(text)
    return found[1].decode() if found else None


def parse_ptx(text: bytes) -> Contents:
    """Entry functions, device functions and the number of variables of a module."""
    if b"/*" in text:
        text = _BLOCK_COMMENT.sub(b"", text)
    return Contents(_names(_ENTRY, text), _names(_FUNCTION, text), len(_VARIABLE.findall(text)))


def _names(pattern: re.Pattern[bytes], text: bytes) -> list[Symbol]:
    """Names in order, once each: a function may be declared before it is defined."""
    names: dict[str, Symbol] = {}
    for found in pattern.finditer(text):
        line = text.rfind(b"\n", 0, found.start()) + 1
        if b"//" not in text[line : found.start()]:
            name = found[1].decode()
            names.setdefault(name, Symbol(name, None))
    return list(names.values())
