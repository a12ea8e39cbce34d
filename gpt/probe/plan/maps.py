"""The maps of a kernel: where each buffer is, and how its contents are laid out. gpt-stream(5), PROBE BUFFERS, has the
formats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from gpt.probe.model import OPS, Field, Map, layout, round_up
from gpt.stream import records
from gpt.stream.rooms import HEAD, SECTOR, RecordLayout, lay_out, ring_bytes

COPIES = 64  # copies of a histogram or table: a power of two. If there are more SMs, several share a copy
BUDGET = 64 << 20  # default bytes of a log
RING_BUDGET = 1 << 20  # ... with a ring: a launch gets more if its units need it
KINDS = {"b": "u", "u": "u", "s": "i", "f": "f"}  # first letter of a type in model.SIZES -> first letter in records


class Room(NamedTuple):
    """The place of a histogram in shared memory, if a launch has room for it: at this `offset` in the last `size` bytes
    of the dynamic shared memory, which begins at `symbol`.
    """

    symbol: str
    size: int
    offset: int


@dataclass(frozen=True, slots=True)
class PlacedMap:
    """A map of a kernel. The parameter `param` contains the address of its buffer. If `counted`, records are only
    counted.
    """

    map: Map
    param: str
    counted: bool = False
    callback: str | None = None
    may_fill: bool = False  # True if the array may be full when a record is saved
    once: bool = False  # True if no thread saves twice
    idle: frozenset[str] = frozenset()  # fields of a total to which this kernel adds only zeros
    room: Room | None = None  # for a histogram; some launches may not have the room
    stored: tuple[str, ...] = ()  # how a log stores each field (gpt/stream/rooms.py)

    @property
    def type(self) -> str:
        """array, total, histogram, table or log."""
        return "log" if self.map.capacity is None else self.map.type

    @property
    def capacity(self) -> int:
        """The number of records per unit, or of sectors in the log."""
        return 0 if self.counted else self.wanted

    @property
    def keeps(self) -> str | None:
        """The value of `keeps` in a `map` record. It says which records a buffer keeps if the low bits of its address
        are set.
        """
        if self.type == "log":
            return "all" if self.capacity else None
        if self.type == "total":
            return "sum" if self.once and self.map.level != "block" and not self.counted else None
        return "last" if self.may_fill and self.type == "array" and not self.counted else None

    @property
    def wanted(self) -> int:
        """The capacity that the map asks for, even if records are only counted. For a log, it's in sectors."""
        if self.map.capacity is None:
            return max(0, ((self.map.budget or (RING_BUDGET if self.map.ring else BUDGET)) - HEAD) // SECTOR)
        return self.map.capacity

    @property
    def layout(self) -> RecordLayout:
        """The layout of a log's records."""
        return lay_out([(field.size, stored) for field, stored in zip(self.map.fields, self.stored, strict=True)])

    @property
    def ring_size(self) -> int | None:
        """The bytes of a ring's room, if the size of the log depends on how many a launch needs."""
        ring = self.map.ring if self.stored and not self.map.budget else None
        return ring_bytes(self.layout, ring) if ring else None

    @property
    def copies(self) -> int | None:
        """The number of copies of a histogram or table."""
        return COPIES if self.type in ("histogram", "table") else None

    @property
    def bins(self) -> int:
        """The number of bins of a histogram."""
        return self.stride // 8

    @property
    def fields(self) -> tuple[Field, ...]:
        """The fields of a record. If a total has no count, this excludes the idle ones."""
        if not self.idle or self.map.counts:
            return self.map.fields
        kept = [(field.name, field.type) for field in self.map.fields if field.name not in self.idle]
        return layout(kept, {field.name: field.op for field in self.map.fields})[0]

    @property
    def stride(self) -> int:
        """The size of a slot in bytes."""
        fields = self.fields
        if len(fields) == len(self.map.fields):
            return self.map.stride
        return round_up(max((field.offset + field.size for field in fields), default=0), self.map.counts)

    @property
    def head(self) -> int:
        """The bytes before the slots of a unit, which are its count if it has one."""
        return 8 if self.map.counts else 0

    @property
    def unit_size(self) -> int:
        """The size of a unit in bytes, which consists of its count and its slots."""
        return 8 if self.counted else self.head + self.capacity * self.stride


def make_map(id_: int, placed: PlacedMap) -> dict[str, Any]:
    """Return the record that describes the map of a woven kernel."""
    scale = placed.map.scale if placed.map.scale and placed.map.scale.step else None
    return records.make(
        "map",
        id=id_,
        name=placed.map.name,
        type=placed.type,
        level=placed.map.level,
        capacity=placed.capacity,
        stride=placed.stride,
        fields=[{"name": f.name, "type": KINDS[f.type[0]] + f.type[1:], "offset": f.offset} for f in placed.fields],
        wanted=placed.wanted if placed.counted and placed.type != "log" else None,
        callback=placed.callback,
        keeps=placed.keeps,
        **{op: [field.name for field in placed.fields if field.op == op] or None for op in (*OPS, "key")},
        copies=placed.copies,
        low=scale.low if scale else None,
        step=scale.step if scale else None,
        head=placed.head if placed.head != 8 else None,
        room=placed.room.offset if placed.room else None,
        stored=list(placed.stored) or None,
        ring=placed.map.ring,
        ring_size=placed.ring_size,
        ranges=list(placed.map.ranges) or None,
    )
