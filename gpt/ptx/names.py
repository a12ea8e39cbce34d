"""Find the names that a module defines without splitting it. That's for listing libraries, at gigabytes of text per
second.

Compilers write few block comments, but one line comment for each inline `asm`; strings contain only paths. So for most
texts, the search finds a directive first, and then checks whether it's in a line comment or a string. If that could be
wrong, comments, `#line`s and strings are blanked first, as in the scanner.

The patterns don't backtrack (possessive repetition, no repetition across lines), so even malicious text, or C with many
comments, takes linear time.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.base.errors import MalformedError
from gpt.base.patterns import compiled
from gpt.formats.symbols import SPACE, Contents, Symbol
from gpt.ptx.tokens import ARGUMENT, LINE, LINE_COMMENT, NAME, RETURNS, STRING, WORD

FUNCTION = 64  # minimum bytes of text per function, beyond SPACE
MAX_STRINGS = 1 << 16  # these are checked one by one
MAX_DIRECTIVES = 1 << 18  # definitions in a module; the maximum that we've seen is 2,600

_WORDS = r"\.(?:entry|func|global|const)(?=[\s(/#])"
_DIRECTIVE = compiled(_WORDS.encode())  # captures nothing, which makes it three times as fast
_DEFINED = compiled(
    rf"\.(?:(entry|func)\s*+(?:{WORD}{ARGUMENT}\s*+){{0,12}}+(?:{RETURNS}\s*+)?+({NAME})|(?:global|const)\s)".encode()
)
_BEFORE_VARIABLE = (b"\n", b"\r", b";", b"}", b'"', b".visible", b".weak", b".common")
_HIDDEN = compiled(rf"{STRING}|{LINE_COMMENT}|/\*(?s:.*?)\*/|/\*(?s:.*)|{LINE}".encode())  # or an unclosed comment


def parse_names(text: bytes) -> Contents:
    """Return the entry functions and the device functions of a module, and its number of variables. Raises
    MalformedError.

    A function is listed once, even if it's declared before it's defined.
    """
    block_comment = b"*" in text and b"/*" in text  # the first search is faster
    if not block_comment and not _has_long_string(text):
        try:
            return _parse(text)
        except _HiddenNameError:
            pass
    return _parse(_HIDDEN.sub(lambda found: b'""' if found[0].startswith(b'"') else b"\n", text), blanked=True)


def _has_long_string(text: bytes) -> bool:
    """Return whether a string extends beyond the end of its line, or there are too many strings to check quickly.

    bytes.find() is four times as fast as a pattern that searches for a single byte.
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
    """Raised if a directive may be in a string, or if something separates it from its name, such as a comment."""


def _parse(text: bytes, blanked: bool = False) -> Contents:
    """Return the names in a text that has no comments other than line comments. Raises _HiddenNameError if it has
    others, and they haven't been blanked.
    """
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
    """Yield the offsets of `.entry`, `.func`, `.global` and `.const` outside of line comments.

    Raises _HiddenNameError if one of them may be in a string on its line.
    """
    line = done = 0  # start of the line; end of the search for comments
    comment = False  # True if a comment began on this line
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
