"""What a person reads while a tool runs: messages and progress, on standard error."""

from __future__ import annotations

import os
import time

from gpt.base.printable import printable, shorten

PROGRESS_WIDTH = 60  # columns of a name: a line that is folded could not be removed


def say(tool: str, level: str, where: str, fact: str) -> None:
    """`tool: level: where: fact` on standard error, on one line whatever the fact holds."""
    text = ": ".join(part for part in (tool, level, where, fact) if part)
    write(printable(text) + "\n")


def write(text: str) -> None:
    """Writes lines that are safe for a terminal. Errors are ignored."""
    try:
        os.write(2, text.encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody reads


class Progress:
    """`done/total` on standard error, from the first second on, when it is a terminal."""

    def __init__(self, what: str) -> None:
        self._what = what  # shortened when it is shown, which needs modules that a quick run does not
        self._next = time.monotonic() + 1 if os.isatty(2) else float("inf")
        self._shown = False

    def show(self, done: int, total: int) -> None:
        """Redraws the line, at most ten times a second."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.1
            self._shown = True
            write(f"\r\x1b[K{shorten(printable(self._what), PROGRESS_WIDTH)}: {100 * done // max(total, 1)} %")

    def clear(self) -> None:
        """Removes the line."""
        if self._shown:
            write("\r\x1b[K")
