"""Text that others chose, as it goes to a terminal: names of files, members, kernels and modules, reasons, messages.

Such a name can hold anything: escape sequences, line feeds, characters that reverse the text around them. Whatever
prints one asks here first; nothing else decides what is safe.
"""

from __future__ import annotations

import re

_FORMULA = re.compile("(^|;)([ \"']*[=+\\-@\uff1d\uff0b\uff0d\uff20])")  # Excel in Japan takes the wide forms too


def printable(text: str) -> str:
    r"""The text on one line: whatever moves the cursor, hides or reorders text stands as Python writes it, `\x1b`."""
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def as_cell(text: str) -> str:
    """Return a text for a cell of CSV that no spreadsheet takes for a formula.

    A single quote goes before a beginning that would make it one (OWASP, CSV injection), behind blanks and quotes too,
    which spreadsheets drop; and behind a semicolon, which separates cells where a comma is in numbers.
    """
    return _FORMULA.sub("\\1'\\2", printable(text))


def valid(text: str) -> str:
    """The text with U+FFFD for what UTF-8 does not have: bytes that were none, halves of pairs."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def shorten(text: str, width: int, middle: bool = True) -> str:
    """The text in at most `width` columns, cut in the middle or at its end.

    A path is always cut in the middle, and its last part stays whole if there is room.
    """
    from rich.cells import cell_len, set_cell_size  # knows which characters take two columns

    if cell_len(text) <= width:
        return text
    end = text[text.rfind("/") :] if "/" in text else text
    tail = cell_len(end) if cell_len(end) <= width - 5 else width // 2 if middle or end is not text else 0
    return set_cell_size(text, width - 1 - tail).rstrip() + "…" + set_cell_size(text[::-1], tail)[::-1].lstrip()


def printable_json(line: str) -> str:
    r"""The same for a line of JSON, which still reads back as what it was: `\u001b`."""
    return line if line.isprintable() else re.sub(r"[^ -~]", _json_escape, line)


def _json_escape(found: re.Match[str]) -> str:
    character = found[0]
    if character.isprintable():
        return character
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
