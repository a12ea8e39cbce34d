"""Regular expressions with possessive quantifiers, `(...)*+`, that mean the same in every Python from 3.11 on."""

from __future__ import annotations

import re
import sys
from typing import AnyStr

_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\)(?:([*+?]|\{\d*,?\d*\})\+)?|.", re.DOTALL)


def compiled(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Compile a pattern.

    Until Python 3.11.5 (Debian 12 has 3.11.2) a possessive group matches wrongly if its own parts backtrack:
    https://github.com/python/cpython/issues/106052. For these versions it's rewritten as an atomic group, 5 % slower.
    """
    if sys.version_info >= (3, 11, 5):
        return re.compile(pattern, flags)
    if isinstance(pattern, bytes):
        return re.compile(atomic(pattern.decode("latin-1")).encode("latin-1"), flags)
    return re.compile(atomic(pattern), flags)


def atomic(pattern: str) -> str:
    """Return the pattern with `(?>(...)*)` in place of `(...)*+`."""
    made: list[str] = []
    opened: list[int] = []  # where in `made` the open groups begin
    for part in _PARTS.finditer(pattern):
        if part[0] == "(":
            opened.append(len(made))
        elif part[0][0] == ")":
            start = opened.pop()
            if part[1]:
                made[start] = "(?>" + made[start]
                made.append(f"){part[1]})")
                continue
        made.append(part[0])
    return "".join(made)
