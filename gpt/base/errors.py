"""What can go wrong, and the exit status that each kind of fault ends with (gpt(7), EXIT STATUS)."""

from __future__ import annotations

from typing import Self


class GptError(Exception):
    """Understood, and the answer is bad (exit 1). `where` is a location, printed before the fact."""

    status = 1

    def __init__(self, fact: str, where: str = "") -> None:
        super().__init__(f"{where}: {fact}" if where else fact)
        self.fact = fact
        self.where = where

    @classmethod
    def of(cls, error: OSError, where: object = "") -> Self:
        """An error of the system as one of these."""
        return cls(error.strerror or str(error), str(where))


class UsageError(GptError):
    """The command line asks for something that makes no sense (exit 2)."""

    status = 2


class MalformedError(GptError):
    """The input is not what its format says (exit 3). Nothing was written for it."""

    status = 3


class TruncatedError(MalformedError):
    """The input ends in the middle of something (exit 3)."""


class EmptyPipeError(MalformedError):
    """Nothing came through a pipe (exit 3). The program before has failed and said why: one fault is one error."""


class OutputError(GptError):
    """What was to be written cannot be (exit 1). Whatever is read next changes nothing about that."""


class MissingError(GptError):
    """A file, tool or device that is needed is not there (exit 4)."""

    status = 4


def at(place: str, offset: int) -> str:
    """A location as messages print it: `libfoo.so+0x1c40`."""
    return f"{place}+{offset:#x}"
