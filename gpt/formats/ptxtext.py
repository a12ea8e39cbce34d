"""PTX text as a file: it is recognised by its head, which says the version and the target.

The rest is read in gpt/ptx, which a test holds this against. The pattern does not backtrack (its repetitions are
possessive), so that hostile text, and C source with many comments, takes time in proportion to its size.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from gpt.patterns import compiled

_LINE = rb'#[ \t]*+(?:line\b)?+[ \t]*+\d++[ \t]++"[^"\n]*+"(?:[ \t]++\d++)*+'  # as a preprocessor leaves it
_BLANKS = rb"(?>\s++|//[^\n]*+|/\*.*?\*/|%b)*+" % _LINE
_HEAD = compiled(
    rb"%b\.version\s++(\d{1,4})\.(\d{1,4})(?!\w)(?:%b\.target(?!\w)%b(sm_\d{1,4}[af]?))?+" % ((_BLANKS,) * 3),
    re.DOTALL,
)


class Head(NamedTuple):
    """The PTX version of a module, 8.5 as (8, 5), and the compute capability that it is for, if it says one."""

    version: tuple[int, int]
    target: str | None


def find_head(text: bytes) -> Head | None:
    """What a module begins with, after comments. None of text that is not PTX."""
    found = _HEAD.match(text)
    return Head((int(found[1]), int(found[2])), found[3].decode() if found[3] else None) if found else None
