"""Regular expressions with possessive groups, `(...)*+`, that mean the same in every Python from 3.11 on."""

from __future__ import annotations

import re
from typing import AnyStr

_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\)(?:([*+?]|\{\d*,?\d*\})\+)?|.", re.DOTALL)


def compiled(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """A pattern whose possessive groups are written as atomic ones, `(?>(...)*)`, which are the same.

    Until Python 3.11.5 (and Debian 12 has 3.11.2) the possessive form goes wrong where the group's own parts go back
    over what they read: https://github.com/python/cpython/issues/106052.
    """
    if isinstance(pattern, bytes):
        return re.compile(_atomic(pattern.decode("latin-1")).encode("latin-1"), flags)
    return re.compile(_atomic(pattern), flags)


def _atomic(pattern: str) -> str:
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
