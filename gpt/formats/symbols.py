"""The functions and variables that an element defines, whatever its type."""

from __future__ import annotations

from typing import NamedTuple, NotRequired, TypedDict

SPACE = 1 << 16  # limit for names and functions if the file that defines them is small


class Symbol(TypedDict):
    """A function, as the struct `symbol` in gpt/stream/records.py. In PTX, it has no size."""

    name: str
    size: NotRequired[int]


class Contents(NamedTuple):
    """Kernels, device functions, and the number of device variables."""

    kernels: list[Symbol]
    functions: list[Symbol]
    variables: int
