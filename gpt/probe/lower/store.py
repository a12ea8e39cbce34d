"""Store the fields of a record in as few instructions as their alignment allows."""

from __future__ import annotations

from typing import NamedTuple

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.plan.maps import PlacedMap


class Stored(NamedTuple):
    """A field to store: its offset from an address, its size in bytes, and the register that holds its value."""

    at: int
    size: int
    value: str


def store_record(
    code: Emitter,
    placed: PlacedMap,
    address: str,
    offset: int,
    apart: int,
    values: list[str],
    condition: Condition | None,
    count: str | None = None,
) -> None:
    """Store the values of a record, and `count` if it's given.

    The count is stored at the address itself, and the values `offset` bytes after it. The address is a multiple of
    `apart` bytes from the start of the buffer.
    """
    fields = [Stored(0, 8, count)] if count else []
    fields += [
        Stored(offset + field.offset, field.size, value) for field, value in zip(placed.map.fields, values, strict=True)
    ]
    store(code, fields, address, apart, condition)


def store(
    code: Emitter, fields: list[Stored], address: str, apart: int, condition: Condition | None, cached: str = ""
) -> None:
    """Store fields, sorted by offset. The address is a multiple of `apart` bytes from the start of the buffer. `cached`
    is a modifier that says how to cache them.
    """
    while fields:
        sizes = [size for size in (16, 8) if apart % size == fields[0].at % size == 0]
        together = next(filter(None, (_filling(fields, size) for size in sizes)), fields[:1])
        fields = fields[len(together) :]
        _store_together(code, together, address, condition, cached)


def _filling(fields: list[Stored], size: int) -> list[Stored]:
    """If two or more of the first 4- and 8-byte fields fill `size` bytes exactly, return these; otherwise return
    nothing.
    """
    for count in range(2, size // 4 + 1):
        some = fields[:count]
        sizes = [field.size for field in some]
        if set(sizes) <= {4, 8} and some[-1].at + some[-1].size - some[0].at == sum(sizes) == size:
            return some
    return []


def _store_together(
    code: Emitter, fields: list[Stored], address: str, condition: Condition | None, cached: str
) -> None:
    size, values = min(field.size for field in fields), []
    for field in fields:
        if field.size > size:
            values += code.halves(field.value)
        elif len(fields) > 1:  # a vector can't contain both floats and integers
            values.append(code.make(f"b{size * 8}", f"mov.b{size * 8}", field.value))
        else:
            values.append(field.value)
    vector, text = (f".v{len(values)}", f"{{{', '.join(values)}}}") if len(values) > 1 else ("", values[0])
    code.put(f"st.global{cached}{vector}.b{size * 8} [{address}+{fields[0].at}], {text}", condition)
