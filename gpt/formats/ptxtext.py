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
MAX_DIRECTIVES = 1 << 18  # that define functions and variables; 2,600 are the most ever seen

_NAME = rb"([A-Za-z_$%][\w$]*+)"
_DEFINED = re.compile(rb"\.(?:(entry|func)\s++(?:\([^()]*+\)\s*+)?" + _NAME + rb"|(?:global|const)\s)")
_DIRECTIVE = re.compile(rb"\.(?:entry|func|global|const)\s")  # three times as fast: nothing is captured
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
    for at in _iter_directives(text):
        found = _DEFINED.match(text, at)
        if found and found[1]:
            name = found[2].decode()
            if name not in functions[found[1]]:
                functions[found[1]][name] = {"name": name}
                room -= FUNCTION
                if room < 0:
                    raise MalformedError("PTX: more functions than its text can define")
        elif found and text[max(0, at - 32) : at].rstrip(b" \t").endswith(_BEFORE_VARIABLE):
            variables += 1
    return Contents(list(functions[b"entry"].values()), list(functions[b"func"].values()), variables)


def _iter_directives(text: bytes) -> Iterator[int]:
    """Where `.entry`, `.func`, `.global` and `.const` stand outside of comments, and a blank after them.

    Compilers write few block comments but a line comment for each inline `asm`: where there are no block comments,
    it is seen to only whether a line that has a directive has a comment before it.
    """
    if b"*" in text and b"/*" in text:  # the first is the quicker search
        yield from _iter_outside(text, _iter_comments(text))
        return
    line = done = 0  # where the line begins; how far it was searched for comments
    comment = False  # whether one began on it
    for at in _iter_candidates(text):
        start = text.rfind(b"\n", done, at) + 1
        if start:
            line, comment = start, False
        comment = comment or text.find(b"//", max(line, done), at) >= 0
        done = at
        if not comment:
            yield at


def _iter_candidates(text: bytes) -> Iterator[int]:
    """The same, those in comments too."""
    for count, found in enumerate(_DIRECTIVE.finditer(text)):
        if count >= MAX_DIRECTIVES:
            raise MalformedError(f"PTX: over {MAX_DIRECTIVES} functions and variables")
        yield found.start()


def _iter_outside(text: bytes, comments: Iterator[tuple[int, int]]) -> Iterator[int]:
    """Those that are in none of the comments."""
    start, end = next(comments, (len(text), len(text)))
    for at in _iter_candidates(text):
        while end <= at:
            start, end = next(comments, (len(text), len(text)))
        if start > at:
            yield at


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
