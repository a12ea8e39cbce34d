"""The memory layout of a kernel's parameters."""

from __future__ import annotations

from typing import NamedTuple


class Param(NamedTuple):
    """A parameter: its offset and size in bytes, its type with dimensions (`b8[16]`) if known, and if it's a `.ptr`,
    its space.
    """

    offset: int
    size: int
    type: str | None
    space: str | None = None
