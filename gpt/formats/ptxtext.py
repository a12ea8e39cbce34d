"""PTX as text: what a module is called for and what it defines, without parsing it.

No pattern here goes back over what it has read (possessive repetition, no repetition over lines): hostile text,
and innocent C with its many comments, takes time in proportion to its size.
"""

from __future__ import annotations

import re

from gpt.errors import MalformedError
from gpt.formats.symbols import SPACE, Contents, Symbol

FUNCTION = 64  # bytes of text for each function, at least, beyond SPACE

_NAME = rb"([A-Za-z_$%][\w$]*+)"
_ENTRY = re.compile(rb"\.entry\s++" + _NAME)
_FUNCTION = re.compile(rb"\.func\s++(?:\([^()]*+\)\s*+)?" + _NAME)
_VARIABLE = re.compile(rb"^[ \t]*+(?:\.(?:visible|weak|common)[ \t]++)*+\.(?:global|const)\s", re.MULTILINE)
_LINE_COMMENT = re.compile(rb"//[^\n]*+")
_COMMENT = re.compile(rb"//[^\n]*+|/\*(?>.*?\*/)", re.DOTALL)
_TARGET = re.compile(rb"^[ \t]*+\.target\s++(sm_\d{1,4}[af]?)", re.MULTILINE)
_START = re.compile(rb"(?>\s++|//[^\n]*+\n|/\*.*?\*/)*+\.version\s++\d++\.\d", re.DOTALL)


def is_ptx(head: bytes) -> bool:
    """Whether the beginning of a file is that of a PTX module: `.version` after comments."""
    return _START.match(head) is not None


def find_target(text: bytes) -> str | None:
    """The compute capability of the `.target` directive."""
    found = _TARGET.search(text)
    return found[1].decode() if found else None


def parse_ptx(text: bytes) -> Contents:
    """Entry functions, device functions and the number of variables of a module. Raises MalformedError."""
    code = _without_comments(text)
    room = SPACE + len(text)
    return Contents(_names(_ENTRY, code, room), _names(_FUNCTION, code, room), len(_VARIABLE.findall(code)))


def _without_comments(text: bytes) -> bytes:
    closed = text.rfind(b"*/") + 2  # what is opened behind it is not closed: no comment
    if closed >= 2:
        text = _COMMENT.sub(b" ", text[:closed]) + text[closed:]
    return _LINE_COMMENT.sub(b"", text)


def _names(pattern: re.Pattern[bytes], code: bytes, room: int) -> list[Symbol]:
    """Names in order, once each: a function may be declared before it is defined."""
    names: dict[str, Symbol] = {}
    for found in pattern.finditer(code):
        name = found[1].decode()
        names.setdefault(name, {"name": name})
        if FUNCTION * len(names) > room:
            raise MalformedError("PTX: more functions than its text can define")
    return list(names.values())
