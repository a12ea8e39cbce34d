"""Decode the parameters of a launch: the bytes are in a `probed` record, their types in the `kernel` record.

Many parameters are declared as plain bits, so an integer of type `b32` or `u64` may be anything. Addresses can only be
recognized if the parameter is declared as a pointer (`.ptr`, in `space`).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from typing import Any, NamedTuple

from gpt.base.errors import MalformedError

_CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "s8": "b", "s16": "h", "s32": "i", "s64": "q",
          "b8": "B", "b16": "H", "b32": "I", "b64": "Q", "f16": "e", "f32": "f", "f64": "d", "pred": "B"}  # fmt: skip
_TYPE = re.compile(r"(\w+)((?:\[\d+\])*)", re.ASCII)
MOST_TEXT = 200  # limit for the text about a launch

Value = int | float | bytes | list[int] | list[float]


class ArgumentValue(NamedTuple):
    """The value of a parameter in a launch: a number, for arrays a list of numbers, or bytes.

    The value is bytes if the parameter is an array of `b8`, which is how structs are declared, or has a type that isn't
    decoded.
    """

    type: str
    space: str | None
    value: Value

    def __str__(self) -> str:
        """Format the argument like `u32 400` or `u64 global 0x7f0000000000`."""
        value = self.value
        if isinstance(value, bytes):
            text = "0x" + value[::-1].hex()
        elif isinstance(value, int) and (self.space or self.type == "u64" or self.type[:1] == "b"):
            text = f"{value:#x}"
        else:
            text = str(value)
        return " ".join(word for word in (self.type, self.space, text) if word)


def parse_arguments(described: Sequence[dict[str, Any]], data: bytes) -> list[ArgumentValue]:
    """Return the arguments in a block of parameters. An argument whose type isn't recorded is returned as bytes.

    Raises MalformedError if the block is too short.
    """
    found = []
    for param in described:
        start, size, type_ = param["offset"], param["size"], param.get("type", "")
        if start + size > len(data):
            raise MalformedError(f"parameters of {len(data)} bytes; one ends at {start + size}")
        found.append(ArgumentValue(type_, param.get("space"), _read(type_, data[start : start + size])))
    return found


def _read(type_: str, data: bytes) -> Value:
    match = _TYPE.fullmatch(type_)
    code = _CODES.get(match[1]) if match else None
    if not match or code is None or (match[2] and match[1] == "b8") or not data or len(data) % struct.calcsize(code):
        return data
    values = list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))
    return values if match[2] or len(values) != 1 else values[0]


def to_text(arguments: Sequence[ArgumentValue]) -> str:
    """Join arguments to one line of limited length."""
    line = ", ".join(map(str, arguments))
    return line if len(line) <= MOST_TEXT else line[: MOST_TEXT - 3] + "..."
