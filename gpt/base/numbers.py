"""Numbers as people type them, in options and files.

int() and float() accept more: spaces around them, underscores, a plus, digits of all scripts, `nan` and `inf`. A value
with any of these is a mistake in a script, such as a variable with another one pasted into it, so it's rejected.
"""

from __future__ import annotations

import math
import re

_INT = re.compile(r"-?[0-9]+")
_FLOAT = re.compile(r"-?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")


def parse_int(text: str | int) -> int:
    """Parse a decimal number, or return an int unchanged. Raises ValueError."""
    if isinstance(text, str) and not _INT.fullmatch(text):
        raise ValueError(f"not a whole number: '{text}'")
    return int(text)


def parse_float(text: str | float) -> float:
    """Parse a decimal fraction, which may have an exponent, or convert a number to a float. Raises ValueError."""
    if isinstance(text, str) and not (_FLOAT.fullmatch(text) and math.isfinite(float(text))):
        raise ValueError(f"not a number: '{text}'")
    return float(text)
