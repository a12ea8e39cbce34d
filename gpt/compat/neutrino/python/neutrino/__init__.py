"""The names that programs and analyses import from Neutrino, for runs by gpt-neutrino."""

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
    """The place of a probe's records: bytes per thread or warp, offset of the first.

    In files of the second generation, the number of threads per unit comes between them, so readers pass three values.
    """

    def __new__(cls, *values: int) -> Any:
        """Return a tuple of two or three, depending on the generation of the reader."""
        return _Second(*values) if len(values) > 2 else _First(*values)


def Map(**options: Any) -> Any:
    """Mark a class as a map of a probe file, which gpt-ptx-probe compiles; here it stays unchanged."""
    return lambda found: found
