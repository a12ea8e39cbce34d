"""What programs and analyses import from Neutrino, for those that gpt-neutrino runs."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

_Class = TypeVar("_Class", bound=type)


class TraceHeader(NamedTuple):
    """How a `.bin` begins: the launch, and how many sections follow."""

    gridDimX: int
    gridDimY: int
    gridDimZ: int
    blockDimX: int
    blockDimY: int
    blockDimZ: int
    sharedMemBytes: int
    numProbes: int


class _First(NamedTuple):
    size: int
    offset: int


class _Second(NamedTuple):
    size: int
    warpDiv: int
    offset: int


class TraceSection:
    """Where the records of a probe are: bytes of those of a thread or warp, offset of the first.

    Between them stand the threads of that unit in files of the second generation, whose readers give three values.
    """

    def __new__(cls, *values: int) -> Any:
        """Return a tuple of two or of three, as a reader of either generation wants it."""
        return _Second(*values) if len(values) > 2 else _First(*values)


def Map(**options: Any) -> Any:
    """Marks a class as a map of a probe file, which gpt-ptx-probe compiles: here it stays what it is."""
    return lambda found: found
