"""The maps of a kernel: where each one's buffer is, and how it is laid out. gpt-stream(5), PROBE BUFFERS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gpt.probe.model import Map
from gpt.stream import records

BUDGET = 64 << 20  # default bytes of a log
KINDS = {"b": "u", "u": "u", "s": "i", "f": "f"}  # of model.SIZES, as records have them


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """A map of a kernel; the parameter `param` has its buffer's address. With `counted`, records are only counted."""

    map: Map
    param: str
    counted: bool = False
    callback: str | None = None
    may_fill: bool = False  # the array may be full when a record is saved

    @property
    def type(self) -> str:
        """array, total or log."""
        return "log" if self.map.capacity is None else self.map.type

    @property
    def capacity(self) -> int:
        """The number of records per unit, or in the log."""
        return 0 if self.counted else self.wanted

    @property
    def keeps(self) -> str | None:
        """The value for a `map` record: what an array or log keeps if the lowest bits of its address ask for it."""
        if self.type == "log":
            return "all" if self.capacity else None
        return "last" if self.may_fill and self.type == "array" and not self.counted else None

    @property
    def wanted(self) -> int:
        """The same, or None if records are only counted."""
        if self.map.capacity is None:
            return max(0, ((self.map.budget or BUDGET) - 8) // (8 + self.map.stride))
        return self.map.capacity

    @property
    def unit_size(self) -> int:
        """The size of a unit in bytes: its count and its slots."""
        return 8 + self.capacity * self.map.stride

    def fields(self) -> list[dict[str, object]]:
        """Return the fields for a `map` record."""
        return [{"name": f.name, "type": KINDS[f.type[0]] + f.type[1:], "offset": f.offset} for f in self.map.fields]


def make_map(id_: int, placed: PlacedMap) -> dict[str, Any]:
    """Make the record of a woven kernel's map."""
    return records.make(
        "map",
        id=id_,
        name=placed.map.name,
        type=placed.type,
        level=placed.map.level,
        capacity=placed.capacity,
        stride=placed.map.stride,
        fields=placed.fields(),
        wanted=placed.wanted if placed.counted and placed.type != "log" else None,
        callback=placed.callback,
        keeps=placed.keeps,
    )
