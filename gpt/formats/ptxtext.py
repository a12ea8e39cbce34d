"""PTX as text: what a module is called for and what it defines, without parsing it.

No pattern here goes back over what it has read (possessive repetition, no repetition over lines): hostile text,
and innocent C with its many comments, takes time in proportion to its size.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpt.errors import MalformedError
from gpt.formats.symbols import SPACE, Contents, Symbol

FUNCTION = 64  # bytes of text for each function, at least, beyond SPACE

_NAME = rb"([A-Za-z_$%][\w$]*+)"
_DEFINED = re.compile(rb"\.(?:(entry|func)\s++(?:\([^()]*+\)\s*+)?" + _NAME + rb"|(?:global|const)\s)")
_BEFORE_VARIABLE = (b"\n", b"\r", b";", b"}", b"*/", b".visible", b".weak", b".common")
_COMMENT, _LINE_COMMENT = re.compile(rb"//|/\*"), re.compile(rb"//")
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
    """Entry functions, device functions and the number of variables of a module. Raises MalformedError.

    Functions come once each: they may be declared before they are defined.
    """
    functions: dict[bytes, dict[str, Symbol]] = {b"entry": {}, b"func": {}}
    variables, room = 0, SPACE + len(text)
    comments = _iter_comments(text)
    start, end = next(comments, (len(text), len(text)))
    for found in _DEFINED.finditer(text):
        at = found.start()
        while end <= at:
            start, end = next(comments, (len(text), len(text)))
        if start <= at:
            continue
        if found[1]:
            name = found[2].decode()
            if name not in functions[found[1]]:
                functions[found[1]][name] = {"name": name}
                room -= FUNCTION
                if room < 0:
                    raise MalformedError("PTX: more functions than its text can define")
        elif text[max(0, at - 32) : at].rstrip(b" \t").endswith(_BEFORE_VARIABLE):
            variables += 1
    return Contents(list(functions[b"entry"].values()), list(functions[b"func"].values()), variables)


def _iter_comments(text: bytes) -> Iterator[tuple[int, int]]:
    """Where each comment begins and ends. One that is never closed is none."""
    position, opening = 0, _COMMENT
    while found := opening.search(text, position):
        start = found.start()
        if found[0] == b"//":
            position = text.find(b"\n", start)
            position = len(text) if position < 0 else position
        else:
            position = text.find(b"*/", start + 2) + 2
            if position < 2:  # nor is any behind it
                position, opening = start + 2, _LINE_COMMENT
                continue
        yield start, position
