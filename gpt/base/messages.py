"""Messages and progress on standard error."""

from __future__ import annotations

import os
import time

from gpt.base.printable import printable, shorten

PROGRESS_WIDTH = 60  # columns of a name: a line that wraps couldn't be erased


def say(tool: str, level: str, where: str, fact: str) -> None:
    """Print `tool: level: where: fact` to standard error, on one line whatever the texts contain."""
    text = ": ".join(part for part in (tool, level, where, fact) if part)
    write(printable(text) + "\n")


def write(text: str) -> None:
    """Write lines that are safe for a terminal. Ignores errors."""
    try:
        os.write(2, text.encode(errors="backslashreplace"))
    except OSError:
        pass  # nobody reads


class Progress:
    """A progress display, `done/total`, on standard error: only on a terminal, and only after a second."""

    def __init__(self, what: str) -> None:
        self._what = what  # shortened when it's shown, since that imports modules that quick runs don't need
        self._next = time.monotonic() + 1 if os.isatty(2) else float("inf")
        self._shown = False

    def show(self, done: int, total: int) -> None:
        """Redraw the line, at most ten times a second."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + 0.1
            self._shown = True
            write(f"\r\x1b[K{shorten(printable(self._what), PROGRESS_WIDTH)}: {100 * done // max(total, 1)} %")

    def clear(self) -> None:
        """Erase the line."""
        if self._shown:
            write("\r\x1b[K")
