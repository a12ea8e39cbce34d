"""Regular expressions with possessive groups, `(...)*+`, that mean the same in every Python from 3.11 on."""

from __future__ import annotations

import re
import sys
from typing import AnyStr

_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\)(?:([*+?]|\{\d*,?\d*\})\+)?|.", re.DOTALL)


def compiled(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """A pattern, compiled.

    Until Python 3.11.5 (Debian 12 has 3.11.2) a possessive group goes wrong if its own parts go back over what they
    read: https://github.com/python/cpython/issues/106052. There it is written as an atomic one, which is slower by 5 %.
    """
    if sys.version_info >= (3, 11, 5):
        return re.compile(pattern, flags)
    if isinstance(pattern, bytes):
        return re.compile(atomic(pattern.decode("latin-1")).encode("latin-1"), flags)
    return re.compile(atomic(pattern), flags)


def atomic(pattern: str) -> str:
    """The same pattern with `(?>(...)*)` in place of `(...)*+`."""
    made: list[str] = []
    opened: list[int] = []  # where in `made` the groups begin that are open
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
