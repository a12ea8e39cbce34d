"""The names that programs and analyses import from Neutrino, for runs of gpt-neutrino."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeVar

_Class = TypeVar("_Class", bound=type)


class TraceHeader(NamedTuple):
    """The header of a `.bin`: the launch, and the number of sections."""

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
    """The place of a probe's records: the bytes per thread or warp, and the offset of the first one.

    In files of the second generation, the number of threads per unit is between these two, so readers pass three
    values.
    """

    def __new__(cls, *values: int) -> Any:
        """Return a tuple of two or three values, depending on the generation for which the reader was generated."""
        return _Second(*values) if len(values) > 2 else _First(*values)


def Map(**options: Any) -> Any:
    """Mark a class as a map of a probe file. gpt-ptx-probe compiles it; if it's executed, the class doesn't change."""
    return lambda found: found
