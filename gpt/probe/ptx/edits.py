"""Insert lines into a module's text, each marked with a comment so that it can be removed again.

A line can also replace a piece of the text; the mark then holds the original.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

MARK = "//@"
_WOVEN = re.compile(rf"\n(?:[^\n]*{re.escape(MARK)}[^\n]*\n)+")
# The order of insertions at the same offset.
(DECLARE, STATE_IN, ENTRY, CALL_OUT, AFTER, LABEL, BEFORE, KEEP, STATE_OUT, LEAVE, KERNEL_EXIT, CALL_IN) = range(12)
ADDRESS, _REPLACE = 12, 13  # last: an instruction's addresses, and replacements


class _Insertion(NamedTuple):
    """Lines to insert before the character at `offset`, sorted by `order` and then by `number`.

    If `end` is after `offset`, the lines replace the text up to there.
    """

    offset: int
    order: int
    number: int
    text: str
    end: int


class Insertions:
    """The insertions into one text."""

    def __init__(self) -> None:
        self._all: list[_Insertion] = []
        self.size = 0  # characters of lines
        self._offsets: list[int] = []

    def add(self, offset: int, order: int, lines: Iterable[str]) -> None:
        """Insert lines before the character at `offset`, and mark them."""
        self.put(offset, order, "".join(map(marked, lines)))

    def put(self, offset: int, order: int, text: str) -> None:
        """Insert lines that are already marked."""
        if text:
            self.size += len(text)
            self._all.append(_Insertion(offset, order, len(self._all), text, offset))

    def replace(self, start: int, end: int, line: str) -> None:
        """Replace the text between two different offsets with a line."""
        self._all.append(_Insertion(start, _REPLACE, len(self._all), f"\t{line} {MARK}=", end))

    def are_within(self, start: int, end: int) -> bool:
        """Return whether something is inserted between two offsets."""
        if len(self._offsets) != len(self._all):
            self._offsets = sorted(insertion.offset for insertion in self._all)
        at = bisect_right(self._offsets, start)
        return at < len(self._offsets) and self._offsets[at] < end

    def text(self, text: str) -> bytes:
        """Return the text with all insertions."""
        parts, at = [], 0
        for offset, _, _, lines, end in sorted(self._all):
            parts += [text[at:offset], "\n", lines]
            if end > offset:
                parts += [text[offset:end].encode("unicode_escape").decode(), "\n"]
            at = end
        return "".join([*parts, text[at:]]).encode("latin-1", "replace")


def marked(line: str, path: str = "", number: int = 0) -> str:
    """Append the mark to a line; it names a line of a probe file."""
    return f"\t{line} {MARK} {_plain(path)}:{number}\n" if path else f"\t{line} {MARK}\n"


@cache
def _plain(path: str) -> str:
    """Write a path as one line of ASCII, because ptxas accepts nothing else in a comment."""
    return path.encode("unicode_escape").decode()


def unweave(data: bytes) -> bytes:
    """Restore the program: remove inserted lines, and put replaced text back."""
    return _WOVEN.sub(_original, data.decode("latin-1")).encode("latin-1")


def _original(woven: re.Match[str]) -> str:
    marks = (line.partition(MARK)[2] for line in woven[0].split("\n"))
    return "".join(mark[1:].encode("latin-1").decode("unicode_escape") for mark in marks if mark[:1] == "=")
