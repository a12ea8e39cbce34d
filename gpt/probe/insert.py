"""Lines that are inserted into a module's text, each with a mark behind it by which they are found again."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

MARK = "//@"
_WOVEN = re.compile(rf"\n(?:[^\n]*{re.escape(MARK)}[^\n]*\n)+")
# What stands in one place, in order: what probes want to know from before, probes, what calls and exits need.
(DECLARE, STATE_IN, ENTRY, CALL_OUT, AFTER, LABEL, BEFORE, KEEP, STATE_OUT, LEAVE, KERNEL_EXIT, CALL_IN) = range(12)


class _Insertion(NamedTuple):
    """Lines that go in front of the character at `offset`; `order` and then `number` tell which come first."""

    offset: int
    order: int
    number: int
    text: str


class Insertions:
    """What goes into one text."""

    def __init__(self) -> None:
        self._all: list[_Insertion] = []

    def add(self, offset: int, order: int, lines: Iterable[str]) -> None:
        """Lines in front of the character at `offset`."""
        self.put(offset, order, "".join(map(marked, lines)))

    def put(self, offset: int, order: int, text: str) -> None:
        """Lines that have their marks."""
        if text:
            self._all.append(_Insertion(offset, order, len(self._all), text))

    def text(self, text: str) -> bytes:
        """The text with the lines in it."""
        parts, at = [], 0
        for offset, _, _, lines in sorted(self._all):
            parts += [text[at:offset], "\n", lines]
            at = offset
        return "".join([*parts, text[at:]]).encode("latin-1", "replace")


def marked(line: str, path: str = "", number: int = 0) -> str:
    """A line with its mark, which names a line of a probe file."""
    return f"\t{line} {MARK} {path}:{number}\n" if path else f"\t{line} {MARK}\n"


def unweave(data: bytes) -> bytes:
    """The program without what was inserted."""
    return _WOVEN.sub("", data.decode("latin-1")).encode("latin-1")
