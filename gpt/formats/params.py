"""The parameters of a kernel in memory, and more of them for addresses."""

from __future__ import annotations

from typing import NamedTuple


class Param(NamedTuple):
    """A parameter: offset and size in bytes, type with dimensions (`b8[16]`) if known, and the space of a `.ptr`."""

    offset: int
    size: int
    type: str | None
    space: str | None = None


def addresses_after(params: list[Param], count: int) -> list[Param]:
    """Return `count` more parameters, which are addresses, after these."""
    end = params[-1].offset + params[-1].size if params else 0
    first = -(-end // 8) * 8
    return [Param(first + 8 * number, 8, "u64") for number in range(count)]
