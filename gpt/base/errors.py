"""Exceptions for expected errors, and the exit status of each (gpt(7), EXIT STATUS)."""

from __future__ import annotations

from typing import Self


class GptError(Exception):
    """The request was understood, but failed (exit 1). `where` is a location, printed before the fact."""

    status = 1

    def __init__(self, fact: str, where: str = "") -> None:
        super().__init__(f"{where}: {fact}" if where else fact)
        self.fact = fact
        self.where = where

    @classmethod
    def of(cls, error: OSError, where: object = "") -> Self:
        """Convert an OSError to an exception of this class."""
        return cls(error.strerror or str(error), str(where))


class UsageError(GptError):
    """The command line makes no sense (exit 2)."""

    status = 2


class MalformedError(GptError):
    """The input violates its format (exit 3). Nothing was written for it."""

    status = 3


class TruncatedError(MalformedError):
    """The input ends too early (exit 3)."""


class EmptyPipeError(MalformedError):
    """A pipe was empty (exit 3). The program before it failed and has said why, so nothing more is printed."""


class OutputError(GptError):
    """An output can't be written (exit 1), so there's no point in reading on."""


class MissingError(GptError):
    """A file, tool or device is missing (exit 4)."""

    status = 4


def at(place: str, offset: int) -> str:
    """Return a location for messages: `libfoo.so+0x1c40`."""
    return f"{place}+{offset:#x}"
