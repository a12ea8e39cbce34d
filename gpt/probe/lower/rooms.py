"""Lower SAVE to a log: write one record for all lanes that save together into the room of the lowest of them.

gpt/stream/rooms.py explains rooms. Two registers per thread belong to a log. `cursor` is the address of the next
record, or 0 if the arena was full when this lane claimed its last room. `left` has the bytes left in the room, a
multiple of 16, and in its lowest four bits the number of the lane's next room. Both are 0 at first.

Two rare cases need a branch: claiming a room, and writing values that differ between lanes. Both branches are uniform:
all lanes that get here vote, and take the same path.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from gpt.probe.lower.emit import Condition, Emitter, Value
from gpt.probe.lower.leader import find_leader
from gpt.probe.lower.store import Stored, store
from gpt.probe.plan.maps import PlacedMap
from gpt.stream.rooms import (
    ARENAS,
    DROPPED,
    FORMED,
    FORMS,
    HEAD,
    LAST,
    NARROW,
    ROOM_HEAD,
    SECTOR,
    UNIT,
    WIDE,
    WORD,
    StoredField,
)

NUMBER = 15  # the bits of `left` with the number of the next room
STREAMED = ".cs"  # drop it from the cache early: this launch doesn't read it again


class Room(NamedTuple):
    """The registers with a lane's place in a log."""

    cursor: str
    left: str


class _Lanes(NamedTuple):
    """Lanes that save together: the lanes `here`, and the `group` among them that saves. `first` is the number of the
    group's lowest lane, `rank` this lane's place in it, and `number` its size.
    """

    here: str
    group: str
    first: str
    rank: str
    number: str
    saves: Condition | None


class _Compared(NamedTuple):
    """A field of the record: the register with its form (if that isn't fixed), the values that the leader stores, and
    the 32-bit words that each lane stores, each with its condition. `is_lane` says that the field has a form.
    """

    form: str
    shared: list[Stored]
    columns: list[tuple[str, Condition | None]]
    is_lane: bool = True


def append(
    code: Emitter,
    placed: PlacedMap,
    base: str,
    values: list[str],
    constant: list[bool],
    condition: Condition | None,
    room: Room,
    label: Callable[[], str],
) -> None:
    """Append a record if the condition holds. `constant` says which values are the same in all threads. `label` makes a
    label.
    """
    fields = placed.layout.fields
    bits = {
        number: _as_bits(code, value, field)
        for number, (value, field) in enumerate(zip(values, fields, strict=True))
        if field.stored != "sm"
    }
    if code.functions is None or not code.functions.many:
        _append(code, placed, base, bits, constant, condition, room, label)
        return
    saves = [code.make("b32", "selp.b32", 1, 0, code.positive(condition))] if condition else []
    given = [Value(base, "b64"), *(Value(one, f"b{8 * max(WORD, fields[n].size)}") for n, one in bits.items())]
    given += [Value(one, "b32") for one in saves]
    same = "".join(str(int(one)) for one in constant)
    name = f"save_{placed.param}_{same}{'_if' * len(saves)}"

    def write(inner: Emitter, given: list[str], changed: list[str]) -> None:
        labels = (f"$L_{number}" for number in itertools.count())
        guard = Condition(inner.make("pred", "setp.ne.u32", given[-1], 0)) if saves else None
        known = dict(zip(bits, given[1:], strict=False))
        _append(inner, placed, given[0], known, constant, guard, Room(*changed), lambda: next(labels))

    code.share(name, given, [Value(room.cursor, "b64"), Value(room.left, "b32")], write)


def _append(
    code: Emitter,
    placed: PlacedMap,
    base: str,
    values: dict[int, str],
    constant: list[bool],
    condition: Condition | None,
    room: Room,
    label: Callable[[], str],
) -> None:
    """Append a record with values as bits, by the number of the field."""
    fields = {number: placed.layout.fields[number] for number in values}
    clock = next((values[number] for number, field in fields.items() if field.stored == "clock"), "")
    clock = clock or code.make("b64", "mov.u64", "%clock64")
    here, group = code.group(condition)
    shared = [
        Stored(field.at, max(WORD, field.size), values[number])
        for number, field in fields.items()
        if field.stored == "shared"
    ]
    if placed.map.level != "thread":
        leader = find_leader(code, placed.map, condition)
        one = code.once("b32", "mov.b32", 1)
        head = code.once("b32", "mov.b32", placed.layout.size // UNIT)
        _make_room(code, placed, base, one, here, leader, room, label())
        record = _filled(code, [Stored(0, WORD, one), Stored(WORD, WORD, head), Stored(8, 8, clock), *sorted(shared)])
        _write(code, placed, placed.layout.size, record, leader, room)
        return
    first = _lowest(code, group)
    rank = code.once("b32", "popc.b32", code.below(group))
    count = code.once("b32", "popc.b32", group)
    lanes = _Lanes(here, group, first, rank, count, condition)
    leader = code.both(code.first(group), condition) or code.first(group)
    _make_room(code, placed, base, count, here, leader, room, label())
    compared = [
        _compare(code, lanes, field, values[number], constant[number])
        for number, field in fields.items()
        if field.stored in (*FORMED, "each")
    ]
    shared += [one for found in compared for one in found.shared]
    size, head, number = _measure(code, placed, compared, count)
    record = _filled(code, [Stored(0, WORD, group), Stored(WORD, WORD, head), Stored(8, 8, clock), *sorted(shared)])
    at = _write(code, placed, size, record, leader, room)
    if number and not placed.counted:
        columns = [column for found in compared for column in found.columns]
        _write_columns(code, columns, placed.layout.size, at, number, lanes, label())


def _lowest(code: Emitter, group: str) -> str:
    """Compute the number of a group's lowest lane; 32 if it's empty."""
    return code.once("b32", "clz.b32", code.once("b32", "brev.b32", group))


def _as_bits(code: Emitter, value: str, field: StoredField) -> str:
    """Return a value as a register of 32 or 64 bits."""
    if field.size >= WORD:
        return code.make(f"b{field.size * 8}", f"mov.b{field.size * 8}", value)
    return code.make("b32", "cvt.u32.u16", code.make("b16", "mov.b16", value))


def _compare(code: Emitter, lanes: _Lanes, field: StoredField, value: str, same: bool) -> _Compared:
    """Find out how the lanes' values of a field differ."""
    wide = field.size == 2 * WORD
    if field.stored == "each":
        return _Compared("", [], [(word, None) for word in (code.halves(value) if wide else [value])], is_lane=False)
    shared = [Stored(field.at, max(WORD, field.size), value)]
    if same:
        return _Compared(
            "", shared + ([Stored(field.step, WORD, code.once("b32", "mov.b32", 0))] if field.step else []), []
        )
    bits = "64" if wide else "32"
    halves = code.halves(value) if wide else [value]
    first = [_read_lane(code, half, lanes.first, lanes.here) for half in halves]
    distance = code.make(f"b{bits}", f"sub.u{bits}", value, _join(code, *first) if wide else first[0])
    low, *high = code.halves(distance) if wide else [distance]
    line = "0"
    if field.step:
        others = code.once("b32", "and.b32", lanes.group, code.once("b32", "sub.u32", lanes.group, 1))
        alone = code.once("pred", "setp.eq.u32", others, 0)
        second = code.once("b32", "selp.b32", lanes.first, _lowest(code, others), alone)
        step = _read_lane(code, low, second, lanes.here)
        shared.append(Stored(field.step, WORD, step))
        line = code.make(f"b{bits}", "mul.wide.s32" if wide else "mul.lo.s32", step, lanes.rank)
    even = _all(code, lanes, code.make("pred", f"setp.eq.s{bits}", distance, line))
    if not wide:
        form = code.make("b32", "selp.b32", 0, NARROW, even)
        return _Compared(form, shared, [(low, Condition(even, negated=True))])
    extended = code.make("b32", "shr.s32", low, 31)
    narrow = _all(code, lanes, code.make("pred", "setp.eq.u32", high[0], extended))
    form = code.make("b32", "selp.b32", 0, code.make("b32", "selp.b32", NARROW, WIDE, narrow), even)
    is_wide = code.make("pred", "setp.eq.u32", form, WIDE)
    return _Compared(form, shared, [(low, Condition(even, negated=True)), (high[0], Condition(is_wide))])


def _read_lane(code: Emitter, value: str, lane: str, here: str) -> str:
    return code.make("b32", "shfl.sync.idx.b32", value, lane, 31, here)


def _join(code: Emitter, low: str, high: str) -> str:
    return code.make("b64", "mov.b64", f"{{{low}, {high}}}")


def _all(code: Emitter, lanes: _Lanes, holds: str) -> str:
    """Return whether something holds in all lanes that save."""
    if lanes.saves:
        holds = code.make("pred", "or.pred", holds, code.make("pred", "not.pred", code.positive(lanes.saves)))
    return code.make("pred", "vote.sync.all.pred", holds, lanes.here)


def _measure(
    code: Emitter, placed: PlacedMap, compared: list[_Compared], count: str
) -> tuple[int | str, str, str | None]:
    """Return a record's size in bytes, the word with its forms and size, and its number of columns if it can have
    any.
    """
    least = placed.layout.size
    fixed = sum(len(found.columns) for found in compared if not found.form)
    forms, number = "", str(fixed) if fixed else ""
    for place, found in enumerate(found for found in compared if found.is_lane):
        if found.form:
            form = code.make("b32", "shl.b32", found.form, FORMS + 2 * place)
            forms = code.make("b32", "or.b32", forms, form) if forms else form
            number = code.make("b32", "add.u32", found.form, number) if number else found.form
    if not number:
        return least, code.make("b32", "mov.b32", least // UNIT), None
    number = number if number[0] == "%" else code.make("b32", "mov.b32", number)
    size = code.make("b32", "mul.lo.u32", number, count)
    size = code.make("b32", "mad.lo.u32", size, WORD, least + UNIT - 1)
    size = code.make("b32", "and.b32", size, 0x100000000 - UNIT)
    head = code.make("b32", "shr.u32", size, UNIT.bit_length() - 1)
    return size, code.make("b32", "or.b32", head, forms) if forms else head, number


def _make_room(
    code: Emitter, placed: PlacedMap, base: str, count: str, here: str, leader: Condition, room: Room, go_on: str
) -> None:
    """Claim a room if the leader's may be too small for a record. If none is free, count the entries as dropped."""
    known = code.known_values()
    short = code.make("pred", "setp.lt.u32", room.left, placed.layout.most)
    stuck = code.make("pred", "setp.eq.or.u64", room.cursor, 0, short)
    stuck = code.make("pred", "and.pred", stuck, code.positive(leader))
    somebody = code.make("pred", "vote.sync.any.pred", stuck, here)
    code.skip(go_on, Condition(somebody, negated=True))

    leads = code.make("b32", "selp.b32", 1, 0, code.positive(leader))
    given = [Value(base, "b64"), Value(count, "b32"), Value(leads, "b32")]

    def claim(code: Emitter, given: list[str], changed: list[str]) -> None:
        base, count, leads = given
        _claim(code, placed, base, count, leads, Room(*changed))

    code.share(f"room_{placed.param}", given, [Value(room.cursor, "b64"), Value(room.left, "b32")], claim)
    code.lines.append(f"{go_on}:")
    code.forget(known)


def _claim(code: Emitter, placed: PlacedMap, base: str, count: str, leads: str, room: Room) -> None:
    """Claim a room for a leader whose room may be too small. If none is free, count the entries as dropped."""
    leader = code.make("pred", "setp.ne.u32", leads, 0)
    claims = Condition(code.make("pred", "setp.lt.and.u32", room.left, placed.layout.most, leader))
    base, arena, size = _find_arena(code, placed, base)
    sector = code.make("b64", "mad.wide.u32", arena, SECTOR, base)
    number = code.make("b32", "and.b32", room.left, NUMBER)
    doubled = code.make("b32", "shr.u32", number, 1)
    wanted = code.make("b32", "shl.b32", code.make("b32", "mov.b32", placed.layout.first), doubled)
    wide = code.make("b64", "cvt.u64.u32", wanted)
    before = code.make("b64", "mov.u64", 0)
    code.put(f"atom.global.add.u64 {before}, [{sector}], {wide}", claims)
    end = code.make("b64", "add.u64", before, wide)
    fits = Condition(code.make("pred", "setp.le.and.u64", end, size, claims.register))
    place = code.make("b64", "mad.lo.u64", code.make("b64", "cvt.u64.u32", arena), size, base)
    place = code.make("b64", "add.u64", place, before)
    if not placed.counted:
        _write_head(code, placed, place, wanted, fits)
    number = code.make("b32", "min.u32", code.make("b32", "add.u32", number, 1), LAST)
    left = code.make("b32", "or.b32", code.make("b32", "sub.u32", wanted, ROOM_HEAD), number)
    code.put(f"mov.b32 {room.left}, {left}", claims)
    code.put(f"mov.b64 {room.cursor}, 0", claims)
    code.put(f"add.u64 {room.cursor}, {place}, {HEAD + ROOM_HEAD}", fits)
    missing = code.make("pred", "setp.eq.and.u64", room.cursor, 0, leader)
    entries = code.make("b64", "cvt.u64.u32", count)
    code.put(f"red.global.add.u64 [{sector}+{DROPPED}], {entries}", Condition(missing))


def _write_head(code: Emitter, placed: PlacedMap, place: str, size: str, fits: Condition) -> None:
    """Write a room's head, in pairs of words: that takes fewer registers, and speed doesn't matter here."""
    unit = code.unit(placed.map.level)
    if placed.map.level == "thread":
        unit = code.make("b64", "sub.u64", unit, code.make("b64", "cvt.u64.u32", code.special("%laneid")))
    store(code, [Stored(HEAD, 4, size), Stored(HEAD + 4, 4, code.special("%smid"))], place, 8, fits, STREAMED)
    store(code, [Stored(HEAD + 8, 8, unit)], place, 8, fits, STREAMED)
    for at, name in ((HEAD + 16, "%clock64"), (HEAD + 24, "%globaltimer")):
        store(code, [Stored(at, 8, code.make("b64", "mov.u64", name))], place, 8, fits, STREAMED)


def _find_arena(code: Emitter, placed: PlacedMap, base: str) -> tuple[str, str, str]:
    """Return a log's address, the number of this block's arena, and the bytes of an arena: gpt-stream(5), Rooms."""
    number = code.make("b32", "and.b32", code.make("b32", "cvt.u32.u64", base), 255)
    base = code.make("b64", "and.b64", base, 0xFFFFFFFFFFFFFF00)
    arenas = code.make("b32", "shr.u32", number, 5)
    mask = code.make("b32", "shl.b32", -1, arenas)
    block = code.once("b32", "cvt.u32.u64", code.block())
    arena = code.make("b32", "and.b32", block, code.make("b32", "not.b32", mask))
    doublings = code.make("b32", "and.b32", number, 31)
    doublings = code.make("b32", "sub.u32", code.make("b32", "add.u32", doublings, ARENAS.bit_length() - 1), arenas)
    least = code.make("b64", "mov.u64", placed.capacity // ARENAS * SECTOR)
    return base, arena, code.make("b64", "shl.b64", least, doublings)


def _filled(code: Emitter, record: list[Stored]) -> list[Stored]:
    """Fill the last 8 bytes with a zero, so that one vector store can write them."""
    end = record[-1].at + record[-1].size
    return [*record, Stored(end, WORD, code.once("b32", "mov.b32", 0))] if end % 8 else record


def _write(
    code: Emitter, placed: PlacedMap, size: int | str, record: list[Stored], leader: Condition, room: Room
) -> str:
    """Write the values that the lanes share, advance to the next record, and return a register with the old address."""
    at = code.make("b64", "mov.b64", room.cursor)
    there = Condition(code.make("pred", "setp.ne.and.u64", at, 0, code.positive(leader)))
    if not placed.counted:
        store(code, record, at, UNIT, there, STREAMED)
    wide = str(size) if isinstance(size, int) else code.make("b64", "cvt.u64.u32", size)
    code.put(f"add.u64 {room.cursor}, {at}, {wide}", there)
    code.put(f"sub.u32 {room.left}, {room.left}, {size}", leader)
    return at


def _write_columns(
    code: Emitter,
    columns: list[tuple[str, Condition | None]],
    after: int,
    at: str,
    number: str,
    lanes: _Lanes,
    done: str,
) -> None:
    """Write values that differ between lanes, one column after the other. They begin `after` bytes into the record."""
    known = code.known_values()
    code.skip(done, Condition(code.make("pred", "setp.eq.u32", number, 0)))
    at = _join(code, *(_read_lane(code, half, lanes.first, lanes.here) for half in code.halves(at)))
    there = code.both(Condition(code.make("pred", "setp.ne.u64", at, 0)), lanes.saves)
    place = code.make("b64", "mad.wide.u32", lanes.rank, WORD, at)
    apart = code.make("b64", "mul.wide.u32", lanes.number, WORD)
    for place_in_order, (value, is_stored) in enumerate(columns):
        code.put(f"st.global{STREAMED}.b32 [{place}+{after}], {value}", code.both(there, is_stored))
        if place_in_order < len(columns) - 1:
            code.put(f"add.u64 {place}, {place}, {apart}", is_stored)
    code.lines.append(f"{done}:")
    code.forget(known)
