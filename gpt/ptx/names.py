"""The names that a module defines, without cutting it: gigabytes of text in a second, for what lists libraries.

No pattern here goes back over what it has read (possessive repetition, no repetition over lines): hostile text,
and innocent C with its many comments, takes time in proportion to its size.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.errors import MalformedError
from gpt.formats.symbols import SPACE, Contents, Symbol
from gpt.patterns import compiled
from gpt.ptx.tokens import COMMENT, LINE_COMMENT, NAME

FUNCTION = 64  # bytes of text for each function, at least, beyond SPACE
MAX_DIRECTIVES = 1 << 18  # that define functions and variables; 2,600 are the most ever seen

_DEFINED = compiled(rf"\.(?:(entry|func)\s++(?:\([^()]*+\)\s*+)?({NAME})|(?:global|const)\s)".encode())
_DIRECTIVE = compiled(rb"\.(?:entry|func|global|const)\s")  # three times as fast: nothing is captured
_BEFORE_VARIABLE = (b"\n", b"\r", b";", b"}", b"*/", b".visible", b".weak", b".common")
_COMMENT = compiled(rf"{COMMENT}|/\*".encode())
_LINE_COMMENT = compiled(LINE_COMMENT.encode())


def parse_names(text: bytes) -> Contents:
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

    Compilers write few block comments but a line comment for each inline `asm`: if there are no block comments,
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
    for found in _COMMENT.finditer(text):
        if found[0] == b"/*":  # nor is a later one closed
            yield from (line.span() for line in _LINE_COMMENT.finditer(text, found.end()))
            return
        yield found.span()
