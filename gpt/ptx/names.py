"""Find the names that a module defines without splitting it: gigabytes of text per second, to list libraries.

Compilers write few block comments, but a line comment for each inline `asm`; strings hold only paths. So for most texts
the search finds a directive first, and then checks its line for a line comment or a string before it. Where that could
be wrong, comments, `#line`s and strings are blanked first, as in the scanner.

Patterns never backtrack (possessive repetition, no repetition over lines), so even hostile text, or C with many
comments, takes linear time.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.base.errors import MalformedError
from gpt.base.patterns import compiled
from gpt.formats.symbols import SPACE, Contents, Symbol
from gpt.ptx.tokens import ARGUMENT, LINE, LINE_COMMENT, NAME, RETURNS, STRING, WORD

FUNCTION = 64  # bytes of text for each function, at least, beyond SPACE
MAX_STRINGS = 1 << 16  # checked one by one
MAX_DIRECTIVES = 1 << 18  # definitions in a module; the most ever seen is 2,600

_WORDS = r"\.(?:entry|func|global|const)(?=[\s(/#])"
_DIRECTIVE = compiled(_WORDS.encode())  # three times as fast: nothing is captured
_DEFINED = compiled(
    rf"\.(?:(entry|func)\s*+(?:{WORD}{ARGUMENT}\s*+){{0,12}}+(?:{RETURNS}\s*+)?+({NAME})|(?:global|const)\s)".encode()
)
_BEFORE_VARIABLE = (b"\n", b"\r", b";", b"}", b'"', b".visible", b".weak", b".common")
_HIDDEN = compiled(rf"{STRING}|{LINE_COMMENT}|/\*(?s:.*?)\*/|/\*(?s:.*)|{LINE}".encode())  # an open comment is one


def parse_names(text: bytes) -> Contents:
    """Return a module's entry functions, device functions and number of variables. Raises MalformedError.

    Functions come once each: they may be declared before they are defined.
    """
    block_comment = b"*" in text and b"/*" in text  # the first search is faster
    if not block_comment and not _has_long_string(text):
        try:
            return _parse(text)
        except _HiddenNameError:
            pass
    return _parse(_HIDDEN.sub(lambda found: b'""' if found[0].startswith(b'"') else b"\n", text), blanked=True)


def _has_long_string(text: bytes) -> bool:
    """Return whether a string goes on after the end of its line, or there are too many strings to tell soon.

    bytes.find() is four times as fast as a pattern that looks for one byte.
    """
    end = -1
    for _ in range(MAX_STRINGS):
        start = text.find(b'"', end + 1)
        if start < 0:
            return False
        end = text.find(b'"', start + 1)
        if end < 0 or text.find(b"\n", start, end) >= 0:
            return True
    return True


class _HiddenNameError(Exception):
    """A directive may be in a string, or there's something between it and its name, perhaps a comment."""


def _parse(text: bytes, blanked: bool = False) -> Contents:
    """Return the names in a text that has line comments at most. Raises _HiddenNameError if they were not blanked."""
    functions: dict[bytes, dict[str, Symbol]] = {b"entry": {}, b"func": {}}
    variables, room = 0, SPACE + len(text)
    for at in _iter_directives(text, blanked):
        found = _DEFINED.match(text, at)
        if found and found[1]:
            name = found[2].decode()
            if name not in functions[found[1]]:
                functions[found[1]][name] = {"name": name}
                room -= FUNCTION
                if room < 0:
                    raise MalformedError("PTX: more functions than its text can define")
        elif found:
            variables += text[max(0, at - 32) : at].rstrip(b" \t").endswith(_BEFORE_VARIABLE)
        elif not blanked:
            raise _HiddenNameError
    return Contents(list(functions[b"entry"].values()), list(functions[b"func"].values()), variables)


def _iter_directives(text: bytes, blanked: bool) -> Iterator[int]:
    """Yield where `.entry`, `.func`, `.global` and `.const` stand outside of line comments.

    Raises _HiddenNameError if one may be in a string of its line.
    """
    line = done = 0  # start of the line; end of the search for comments
    comment = False  # True if one began on this line
    for count, found in enumerate(_DIRECTIVE.finditer(text)):
        if count >= MAX_DIRECTIVES:
            raise MalformedError(f"PTX: over {MAX_DIRECTIVES} functions and variables")
        at = found.start()
        start = text.rfind(b"\n", done, at) + 1
        if start:
            line, comment = start, False
        if not blanked and text.find(b'"', max(line, done), at) >= 0:
            raise _HiddenNameError
        comment = comment or text.find(b"//", max(line, done), at) >= 0
        done = at
        if not comment:
            yield at
