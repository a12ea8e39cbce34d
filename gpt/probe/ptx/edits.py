"""Insert lines into the text of a module, each marked with a comment so that it can be removed later.

A line can also replace a piece of the text. Then its mark contains the original.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

MARK = "//@"
_WOVEN = re.compile(rf"\n(?:[^\n]*{re.escape(MARK)}[^\n]*\n)+")
# the order of insertions at one offset
(DECLARE, STATE_IN, ENTRY, CALL_OUT, AFTER, LABEL, BEFORE, KEEP, STATE_OUT, LEAVE, KERNEL_EXIT, CALL_IN) = range(12)
ADDRESS, _REPLACE = 12, 13  # these are last: the addresses in an instruction, and replacements


class _Insertion(NamedTuple):
    """Lines to insert before the character at `offset`. They're sorted by `order`, then by `number`.

    If `end` is greater than `offset`, the lines replace the text up to there.
    """

    offset: int
    order: int
    number: int
    text: str
    end: int


class Insertions:
    """The insertions into a text."""

    def __init__(self) -> None:
        self._all: list[_Insertion] = []
        self.size = 0  # number of characters in the lines
        self._offsets: list[int] = []

    def add(self, offset: int, order: int, lines: Iterable[str]) -> None:
        """Mark lines, and insert them before the character at `offset`."""
        self.put(offset, order, "".join(map(marked, lines)))

    def put(self, offset: int, order: int, text: str) -> None:
        """Insert lines that are already marked."""
        if text:
            self.size += len(text)
            self._all.append(_Insertion(offset, order, len(self._all), text, offset))

    def replace(self, start: int, end: int, line: str) -> None:
        """Replace the text between two different offsets by a line."""
        self._all.append(_Insertion(start, _REPLACE, len(self._all), f"\t{line} {MARK}=", end))

    def are_within(self, start: int, end: int) -> bool:
        """Return whether anything is inserted between two offsets."""
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
    """Append the mark to a line. It can name a line of a probe file."""
    return f"\t{line} {MARK} {_plain(path)}:{number}\n" if path else f"\t{line} {MARK}\n"


@cache
def _plain(path: str) -> str:
    """Return a path as one line of ASCII, because ptxas accepts nothing else in comments."""
    return path.encode("unicode_escape").decode()


def unweave(data: bytes) -> bytes:
    """Restore the program's text: remove the lines that were inserted, and put back the text that was replaced."""
    return _WOVEN.sub(_original, data.decode("latin-1")).encode("latin-1")


def _original(woven: re.Match[str]) -> str:
    marks = (line.partition(MARK)[2] for line in woven[0].split("\n"))
    return "".join(mark[1:].encode("latin-1").decode("unicode_escape") for mark in marks if mark[:1] == "=")
