"""PTX as tokens, by one pattern of its own: what the grammar prints is held against it."""

from __future__ import annotations

import re

BLANK = r'//[^\n]*|/\*.*?\*/|\s+|#[^"\n]*"[^"\n]*"[\d \t]*'
WORD = r'"[^"]*"|[A-Za-z_$%][\w$]*|\.\w+(?:::\w+)*|\d+\.?\d*[eE][-+]\d+|\d[\w.]*|<<|>>|[<>=!]=|.'
TOKEN = re.compile(f"{BLANK}|({WORD})", re.DOTALL | re.ASCII)


def tokens(text: str) -> list[str]:
    """All but blanks, comments and `#line`s."""
    return [token for token in TOKEN.findall(text) if token]
