"""Lines that are inserted into a module's text, each with a mark behind it by which they are found again.

A piece of the text may also be replaced by a line, in whose mark it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

MARK = "//@"
_WOVEN = re.compile(rf"\n(?:[^\n]*{re.escape(MARK)}[^\n]*\n)+")
# What stands in one place, in order: what probes want to know from before, probes, what calls and exits need.
# The last one is a piece that is replaced.
(DECLARE, STATE_IN, ENTRY, CALL_OUT, AFTER, LABEL, BEFORE, KEEP, STATE_OUT, LEAVE, KERNEL_EXIT, CALL_IN) = range(12)
ADDRESS, _REPLACE = 12, 13


class _Insertion(NamedTuple):
    """Lines that go in front of the character at `offset`; `order` and then `number` tell which come first.

    What stands between `offset` and `end` is left out.
    """

    offset: int
    order: int
    number: int
    end: int
    lines: list[str]


class Insertions:
    """What goes into one text."""

    def __init__(self) -> None:
        self._all: list[_Insertion] = []

    def add(self, offset: int, order: int, lines: Iterable[str]) -> None:
        """Lines in front of the character at `offset`."""
        self.add_from("", offset, order, ((line, 0) for line in lines))

    def add_from(self, path: str, offset: int, order: int, lines: Iterable[tuple[str, int]]) -> None:
        """Lines of a probe file, each with its number there."""
        place = "".join(c for c in path if c.isprintable())
        marked = [f"\t{text} {MARK}{f' {place}:{line}' if place else ''}" for text, line in lines]
        if marked:
            self._all.append(_Insertion(offset, order, len(self._all), offset, marked))

    def replace(self, start: int, end: int, line: str) -> None:
        """A line in place of what stands between two offsets."""
        self._all.append(_Insertion(start, _REPLACE, len(self._all), end, [f"\t{line} {MARK}="]))

    def text(self, text: str) -> bytes:
        """The text with the lines in it."""
        parts, at = [], 0
        for offset, _, _, end, lines in sorted(self._all):
            kept = text[offset:end].encode("unicode_escape").decode() if end > offset else ""
            parts += [text[at:offset], "\n", "".join(f"{line}{kept}\n" for line in lines)]
            at = end
        return "".join([*parts, text[at:]]).encode("latin-1", "replace")


def unweave(data: bytes) -> bytes:
    """The program without what was inserted, and with what was replaced."""
    return _WOVEN.sub(_original, data.decode("latin-1")).encode("latin-1")


def _original(woven: re.Match[str]) -> str:
    marks = (line.partition(MARK)[2] for line in woven[0].split("\n"))
    return "".join(mark[1:].encode("latin-1").decode("unicode_escape") for mark in marks if mark[:1] == "=")
