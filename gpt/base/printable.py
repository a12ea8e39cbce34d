"""Make text from outside safe to print: names of files, members, kernels and modules, reasons, messages.

Such text can contain anything: escape sequences, line feeds, characters that reverse the text around them. Everything
that's printed goes through this module, so that a single place decides what's safe.
"""

from __future__ import annotations

import re

_FORMULA = re.compile("(^|;)([ \"']*[=+\\-@\uff1d\uff0b\uff0d\uff20])")  # Excel in Japan also accepts the wide forms


def printable(text: str) -> str:
    r"""Return the text on one line. Characters that move the cursor, or hide or reorder text, become escapes:
    `\x1b`.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def as_cell(text: str) -> str:
    """Return the text as a CSV cell that no spreadsheet mistakes for a formula.

    A single quote is inserted before anything that could begin a formula (OWASP, CSV injection): at the beginning,
    after blanks and quotes, which spreadsheets skip, and after a semicolon, which separates cells in countries with a
    decimal comma.
    """
    return _FORMULA.sub("\\1'\\2", printable(text))


def valid(text: str) -> str:
    """Return the text with U+FFFD in place of surrogates, which UTF-8 can't encode: invalid bytes, and halves of
    pairs.
    """
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def shorten(text: str, width: int, middle: bool = True) -> str:
    """Shorten the text to at most `width` columns, in the middle or at its end.

    A path is always shortened in the middle, and its last part is kept whole if there's room.
    """
    from rich.cells import cell_len, set_cell_size  # knows which characters take two columns

    if cell_len(text) <= width:
        return text
    end = text[text.rfind("/") :] if "/" in text else text
    tail = cell_len(end) if cell_len(end) <= width - 5 else width // 2 if middle or end is not text else 0
    return set_cell_size(text, width - 1 - tail).rstrip() + "…" + set_cell_size(text[::-1], tail)[::-1].lstrip()


def printable_json(line: str) -> str:
    r"""Do the same for a line of JSON. It can still be parsed to the original: `\u001b`."""
    return line if line.isprintable() else re.sub(r"[^ -~]", _json_escape, line)


def _json_escape(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
