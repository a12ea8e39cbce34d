"""Write the code for a SAVE to a total. It combines each lane's values with the values of its unit, by sum, minimum or
maximum, or replaces them.

If the target has redux, one lane reduces the values of all lanes that save together. If these are all lanes of a warp,
the map has a record for each warp, and none of them saves again, nobody else writes to the record, so that lane stores
it without an atomic. In all other cases, atomics are used, even for a block of a single warp: to find out that it's one
takes longer than the atomics save. Buffers are filled with zeros at first, so a minimum or maximum is encoded such that
all values are above 0: some bits are inverted, and then the largest unsigned number is the one to keep.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.lower.leader import find_leader
from gpt.probe.lower.store import Stored, store
from gpt.probe.model import Field
from gpt.probe.plan.maps import PlacedMap


class _Value(NamedTuple):
    """A value for a field, in a register with the size of the field."""

    field: Field
    register: str


def find_flipped(field: Field) -> int:
    """Return the bits that are inverted in a minimum or maximum, and 0 for other operations."""
    if field.op not in ("min", "max"):
        return 0
    every = (1 << 8 * field.size) - 1
    sign = 1 << 8 * field.size - 1 if field.type[0] == "s" else 0
    return every ^ sign if field.op == "min" else sign


def take_in(
    code: Emitter, placed: PlacedMap, address: str, values: list[str], widths: list[int], saves: Condition | None
) -> None:
    """Combine the values of all lanes in which the condition holds with their units. A value may be narrower than its
    field, or empty.
    """
    map_ = placed.map
    given = () if placed.counted else zip(map_.fields, values, widths, strict=True)
    places = {field.name: field for field in placed.fields}
    rows = [ordered(code, places[field.name], value, width) for field, value, width in given if value]
    if map_.level == "thread":
        _merge(code, placed, address, widened(code, rows), code.one(), saves, None)
        return
    if saves and not map_.counts and all(field.op == "last" for field, _, _ in rows):  # the lanes may all store
        _merge(code, placed, address, widened(code, rows), code.one(), saves, Condition(""))
        return
    if map_.leader == "all" and not code.redux:
        _merge(code, placed, address, widened(code, rows), code.one(), saves, Condition(""))
        return
    here, group = code.group(saves)
    count = code.once("b32", "popc.b32", group)
    if map_.leader != "all":
        leader = find_leader(code, map_, saves)
        found = _spread(code, group, widened(code, rows))
        _merge(code, placed, address, found, code.one(), leader, _others(code, placed, group))
        return
    first = code.both(code.first(group), saves)
    floats = [row for row in rows if row[0].type[0] == "f" and row[0].op == "sum"]
    found = [_Value(row[0], _reduce(code, here, *row, saves)) for row in rows if row not in floats]
    found = _spread(code, group, found)
    others = Condition("") if floats else _others(code, placed, group)
    _merge(code, placed, address, found, code.spread(code.make("b64", "cvt.u64.u32", count), group), first, others)
    start = _split(code, placed, address)[0] if floats else address
    for field, value, _ in floats:
        code.put(f"red.global.add.{field.type} [{start}+{placed.head + field.offset}], {value}", saves)


def widened(code: Emitter, rows: list[tuple[Field, str, int]]) -> list[_Value]:
    """Widen each value to the size of its field."""
    return [
        _Value(field, code.make("b64", "cvt.u64.u32", value) if width < field.size else value)
        for field, value, width in rows
    ]


def _spread(code: Emitter, group: str, values: list[_Value]) -> list[_Value]:
    """Rewrite values that only one lane adds, so that ptxas doesn't compute their sum over all lanes first."""
    return [
        value._replace(register=code.spread(value.register, group)) if _is_added(value.field) else value
        for value in values
    ]


def _is_added(field: Field) -> bool:
    return field.op == "sum" and field.type[0] != "f" and field.size == 8


def ordered(code: Emitter, field: Field, value: str, width: int) -> tuple[Field, str, int]:
    """Encode a value such that the largest unsigned number is the one to keep. Return it with its size in bytes."""
    flipped = find_flipped(field)
    if not flipped:
        return field, value, width
    (wide,) = widened(code, [(field, value, width)])
    bits = 8 * field.size
    return field, code.make(f"b{bits}", f"xor.b{bits}", wide.register, hex(flipped)), field.size


def _others(code: Emitter, placed: PlacedMap, group: str) -> Condition:
    """Return the condition that lanes outside of this group save to the same unit. If that isn't known, assume it."""
    if not placed.once or placed.map.level == "block":
        return Condition("")
    return Condition(code.once("pred", "setp.ne.u32", group, "-1"))  # a warp may have fewer threads, but that's rare


def _merge(
    code: Emitter,
    placed: PlacedMap,
    address: str,
    values: list[_Value],
    count: str,
    condition: Condition | None,
    others: Condition | None,
) -> None:
    """Write values to a unit if the condition holds: with atomics if others write to it as well, otherwise with stores.
    `others` is the condition that they do. A Condition without a register stands for always, and None for never.
    """
    stored = None
    address, bit = _split(code, placed, address)
    if bit and (others is None or others.register):
        repeats = code.once("pred", "setp.ne.u64", bit, 0)
        if others:
            repeats = code.make("pred", "or.pred", repeats, code.positive(others))
        stored = code.both(Condition(repeats, True), condition)
        condition = code.both(Condition(repeats), condition)
    is_counted = placed.head or placed.counted
    fields = [Stored(0, 8, count)] if is_counted else []
    fields += [Stored(placed.head + value.field.offset, value.field.size, value.register) for value in values]
    if stored:
        store(code, fields, address, placed.unit_size, stored)
    if is_counted:
        code.put(f"red.global.add.u64 [{address}], {count}", condition)
    for field, register in values:
        if field.op != "last":
            combine(code, field, f"[{address}+{placed.head + field.offset}]", register, condition)
    lasts = {placed.head + value.field.offset for value in values if value.field.op == "last"}
    store(code, [one for one in fields if one.at in lasts], address, placed.unit_size, condition)


def _split(code: Emitter, placed: PlacedMap, address: str) -> tuple[str, str]:
    """Return where a unit's record is, and the lowest bit of its address, or "". With a repeated launch, the bit is
    set: the buffer has a record from earlier runs.
    """
    if not placed.keeps:
        return address, ""
    bit = code.once("b64", "and.b64", address, 1)
    return code.once("b64", "sub.u64", address, bit), bit


def combine(code: Emitter, field: Field, place: str, register: str, condition: Condition | None) -> None:
    """Combine a value with what others saved, using an atomic: add it, or keep the larger unsigned number."""
    type_ = field.type if field.type[0] == "f" else f"u{field.size * 8}"
    code.put(f"red.global.{'add' if field.op == 'sum' else 'max'}.{type_} {place}, {register}", condition)


def _reduce(code: Emitter, here: str, field: Field, value: str, width: int, saves: Condition | None) -> str:
    """Combine the values of the lanes in a new register with the size of the field, and return it."""
    if field.op == "last":
        return widened(code, [(field, value, width)])[0].register
    if field.op == "max" and width < field.size:
        value, width = widened(code, [(field, value, width)])[0].register, field.size
    kind = f"b{width * 8}"
    if saves:
        value = code.make(kind, f"selp.{kind}", value, 0, code.positive(saves))
    if field.op == "sum":
        return _sum(code, here, value, width, field.size)
    if width == 4:
        return code.make("b32", "redux.sync.max.u32", value, here)
    low, high = code.halves(value)
    most = code.make("b32", "redux.sync.max.u32", high, here)
    is_most = code.make("pred", "setp.eq.u32", high, most)
    rest = code.make("b32", "redux.sync.max.u32", code.make("b32", "selp.b32", low, 0, is_most), here)
    return code.make("b64", "mov.b64", f"{{{rest}, {most}}}")


def _sum(code: Emitter, here: str, value: str, width: int, size: int) -> str:
    """Return the sum of the lanes' values. The sum of 32 numbers with 27 bits fits in 32 bits; larger numbers are added
    in parts.
    """
    kind = f"b{width * 8}"
    if size == 4:
        return code.make("b32", "redux.sync.add.u32", value, here)
    total = ""
    for shift in range(0, width * 8, 27):
        part = code.make(kind, f"shr.u{width * 8}", value, shift) if shift else value
        if shift + 27 < width * 8:
            part = code.make(kind, f"and.{kind}", part, (1 << 27) - 1)
        if width == 8:
            part = code.make("b32", "cvt.u32.u64", part)
        part = code.make("b64", "cvt.u64.u32", code.make("b32", "redux.sync.add.u32", part, here))
        if shift:
            part = code.make("b64", "shl.b64", part, shift)
        total = code.make("b64", "add.u64", total, part) if total else part
    return total
