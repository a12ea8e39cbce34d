"""The memory layout of a kernel's parameters."""

from __future__ import annotations

from typing import NamedTuple


class Param(NamedTuple):
    """A parameter: offset and size in bytes, type with dimensions (`b8[16]`) if known, and the space of a `.ptr`."""

    offset: int
    size: int
    type: str | None
    space: str | None = None
