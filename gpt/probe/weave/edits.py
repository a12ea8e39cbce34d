"""Lines that are inserted into a module's text, each with a mark after it by which they are found again.

A piece of the text may also be replaced by a line, in whose mark it is kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

MARK = "//@"
_WOVEN = re.compile(rf"\n(?:[^\n]*{re.escape(MARK)}[^\n]*\n)+")
# What stands in one place, in order: what probes want to know from before, probes, what calls and exits need.
(DECLARE, STATE_IN, ENTRY, CALL_OUT, AFTER, LABEL, BEFORE, KEEP, STATE_OUT, LEAVE, KERNEL_EXIT, CALL_IN) = range(12)
ADDRESS, _REPLACE = 12, 13  # then what an instruction cannot do without, and what stands for a piece of the program


class _Insertion(NamedTuple):
    """Lines that go in front of the character at `offset`; `order` and then `number` decide which come first.

    If `end` is after `offset`, the text up to there is left out, and kept at the end of the lines.
    """

    offset: int
    order: int
    number: int
    text: str
    end: int


class Insertions:
    """What goes into one text."""

    def __init__(self) -> None:
        self._all: list[_Insertion] = []
        self.size = 0  # characters of lines

    def add(self, offset: int, order: int, lines: Iterable[str]) -> None:
        """Lines in front of the character at `offset`."""
        self.put(offset, order, "".join(map(marked, lines)))

    def put(self, offset: int, order: int, text: str) -> None:
        """Lines that have their marks."""
        if text:
            self.size += len(text)
            self._all.append(_Insertion(offset, order, len(self._all), text, offset))

    def replace(self, start: int, end: int, line: str) -> None:
        """A line in place of the text between two offsets, which are not the same."""
        self._all.append(_Insertion(start, _REPLACE, len(self._all), f"\t{line} {MARK}=", end))

    def text(self, text: str) -> bytes:
        """The text with the lines in it."""
        parts, at = [], 0
        for offset, _, _, lines, end in sorted(self._all):
            parts += [text[at:offset], "\n", lines]
            if end > offset:
                parts += [text[offset:end].encode("unicode_escape").decode(), "\n"]
            at = end
        return "".join([*parts, text[at:]]).encode("latin-1", "replace")


def marked(line: str, path: str = "", number: int = 0) -> str:
    """A line with its mark, which names a line of a probe file."""
    return f"\t{line} {MARK} {_plain(path)}:{number}\n" if path else f"\t{line} {MARK}\n"


@cache
def _plain(path: str) -> str:
    """A path in ASCII, on one line: ptxas takes nothing else in a comment."""
    return path.encode("unicode_escape").decode()


def unweave(data: bytes) -> bytes:
    """The program without what was inserted, and with what was replaced."""
    return _WOVEN.sub(_original, data.decode("latin-1")).encode("latin-1")


def _original(woven: re.Match[str]) -> str:
    marks = (line.partition(MARK)[2] for line in woven[0].split("\n"))
    return "".join(mark[1:].encode("latin-1").decode("unicode_escape") for mark in marks if mark[:1] == "=")
