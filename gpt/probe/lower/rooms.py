"""Write the code for a SAVE to a log: the lowest of the lanes that save together writes one record for all of them into
its room.

gpt/stream/rooms.py explains rooms, and claim.py how a lane finds its room.

The size of a record depends on how the values of the lanes differ. Usually, all 32 lanes save values at equal
distances. This case comes first and takes only a few instructions, none of which counts or finds bits, which would be
slow. For all other cases, there's a branch. All branches are uniform: the lanes that execute this code vote, and then
take the same path.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import NamedTuple

from gpt.probe.lower.claim import ABSENT, STREAMED, Place, Room, make_room
from gpt.probe.lower.emit import Condition, Emitter, Value
from gpt.probe.lower.leader import find_leader
from gpt.probe.lower.store import Stored, store
from gpt.probe.plan.maps import PlacedMap
from gpt.stream.rooms import (
    EQUAL,
    FORMED,
    FORMS,
    LANES,
    NARROW,
    STEPS,
    TILED,
    UNIT,
    WIDE,
    WORD,
    StoredField,
)

ALL = (1 << LANES) - 1  # the mask of all lanes


class _Lanes(NamedTuple):
    """Lanes that save together. `here` is the mask of the lanes that execute this code, and `group` has the saving
    lanes. `first` is the number of the lowest lane in the group, `rank` is this lane's position in it, and `number` its
    size.
    """

    here: str
    group: str
    first: str
    rank: str
    number: str
    saves: Condition | None


class _Compared(NamedTuple):
    """A field with values that may differ between lanes.

    `form` is the register with the form of the field, unless that's fixed. `shared` is what the leader stores;
    `columns` are the 32-bit words that each lane stores, each with its condition. `is_lane` is True if the field has a
    form, and `tiled` is the predicate that this form is TILED.
    """

    form: str
    shared: list[Stored]
    columns: list[tuple[str, Condition | None]]
    is_lane: bool = True
    tiled: str = ""


class _Inspected(NamedTuple):
    """The contents of a record: its lanes, their leader, and its fields with a form or columns.

    `size`, `head` and `words` are registers with the number of bytes in the record, the word that has its forms and its
    size, and the number of words in its columns (None if it can't have any).
    """

    lanes: _Lanes
    leader: Condition
    fields: list[_Compared]
    size: str
    head: str
    words: str | None


class _Save(NamedTuple):
    """A SAVE to a log.

    `base` is the register with the address of the log. `values` are the registers with the values, by the number of the
    field. `constant` says which values are the same in all threads. `label` makes labels.
    """

    placed: PlacedMap
    base: str
    values: dict[int, str]
    constant: list[bool]
    condition: Condition | None
    room: Room
    label: Callable[[], str]

    @property
    def place(self) -> Place:
        """The lane's position in the log."""
        return Place(self.placed, self.base, self.room, self.label)

    @property
    def fields(self) -> dict[int, StoredField]:
        """The fields that have a value."""
        return {number: self.placed.layout.fields[number] for number in self.values}

    @property
    def words(self) -> int:
        """The maximum number of words that each lane stores."""
        return sum(
            field.words
            for number, field in self.fields.items()
            if field.stored == "each" or (field.stored in FORMED and not self.constant[number])
        )

    @property
    def shared(self) -> list[Stored]:
        """Return the values of fields that have the same value in all lanes that save together."""
        return [
            Stored(field.at, max(WORD, field.size), self.values[number])
            for number, field in self.fields.items()
            if field.stored == "shared"
        ]

    def clock(self, code: Emitter) -> str:
        """Return the register with the time that's saved, or read it now."""
        saved = next((self.values[number] for number, field in self.fields.items() if field.stored == "clock"), None)
        return saved or code.make("b64", "mov.u64", "%clock64")


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
    """Append a record if the condition holds. `constant` says which values are the same in all threads. `label` makes
    labels. If the value of the clock is empty, it's read as late as possible.
    """
    bits = {
        number: _as_bits(code, value, field)
        for number, (value, field) in enumerate(zip(values, placed.layout.fields, strict=True))
        if field.stored != "sm" and value
    }
    save = _Save(placed, base, bits, constant, condition, room, label)
    if placed.map.level != "thread":
        _append_one(code, save)
    elif code.functions and code.functions.many:
        _share_append(code, save, "save", _append)
    else:
        _append(code, save)


def _share(
    code: Emitter,
    save: _Save,
    name: str,
    body: Callable[[Emitter, _Save, list[str]], None],
    changed: list[Value],
) -> None:
    """Call `body` to write a function that several places share, and that changes some registers.

    The function reads the clock itself. If the clock were a parameter, ptxas would keep it in uniform registers, which
    takes four more instructions.
    """
    fields = save.fields
    passed = [number for number, field in fields.items() if field.stored != "clock"]
    given = [Value(save.base, "b64")]
    given += [Value(save.values[number], f"b{8 * max(WORD, fields[number].size)}") for number in passed]
    if save.condition:
        given.append(Value(code.make("b32", "selp.b32", 1, 0, code.positive(save.condition)), "b32"))

    def write(inner: Emitter, given: list[str], changed: list[str]) -> None:
        labels = (f"$L_{number}" for number in itertools.count())
        guard = Condition(inner.make("pred", "setp.ne.u32", given[-1], 0)) if save.condition else None
        values = dict(zip(passed, given[1:], strict=False))
        place = _Save(save.placed, given[0], values, save.constant, guard, save.room, lambda: next(labels))
        body(inner, place, changed)

    same = "".join(str(int(one)) for one in save.constant)
    code.share(f"{name}_{save.placed.param}_{same}{'_if' if save.condition else ''}", given, changed, write)


def _share_append(code: Emitter, save: _Save, name: str, append: Callable[[Emitter, _Save], None]) -> None:
    """Append a record by calling a function that several places share."""
    room = [Value(save.room.cursor, "b64"), Value(save.room.left, "b32")]
    _share(code, save, name, lambda inner, one, changed: append(inner, one._replace(room=Room(*changed))), room)


def _append_one(code: Emitter, save: _Save) -> None:
    """Append a record for one lane, which saves for its warp or block."""
    layout = save.placed.layout
    here, _ = code.group(save.condition)
    leader = find_leader(code, save.placed.map, save.condition)
    one = code.once("b32", "mov.b32", 1)
    size = code.once("b32", "mov.b32", layout.size)
    head = code.once("b32", "mov.b32", layout.size // UNIT)
    make_room(code, save.place, one, size, here, leader)
    clock = save.clock(code)
    _write(
        code, save, size, [Stored(0, WORD, one), Stored(WORD, WORD, head), Stored(8, 8, clock), *save.shared], leader
    )


def _append(code: Emitter, save: _Save) -> None:
    """Append a record for all lanes that save. The usual case is handled here, the others in a function."""
    if not code.functions:  # in machine code, each place has its own code, so there's only one path
        _append_any(code, save)
        return
    layout, fields = save.placed.layout, save.fields
    clock = save.clock(code)
    here, group = code.group(save.condition)
    lane = code.special("%laneid")
    usual = code.make("pred", "setp.eq.u32", group, ALL)
    shared = save.shared
    for number, field in fields.items():
        if field.stored in FORMED:
            stored, even = _continue_line(code, here, lane, field, save.values[number], save.constant[number])
            shared += stored
            usual = code.make("pred", "and.pred", usual, even) if even else usual
    simple = all(field.stored != "each" for field in fields.values())
    usual = code.make("pred", "vote.sync.all.pred", usual, here) if simple else code.make("pred", "setp.ne.u32", 0, 0)
    done = code.make("pred", "setp.eq.or.u32", group, 0, usual) if save.condition else usual
    after = save.label()
    known = code.known_values()
    code.jump(after, Condition(done))
    _share_any(code, save, here, group)
    code.lines.append(f"{after}:")
    code.forget(known)
    if not simple:
        return
    leader = Condition(code.make("pred", "setp.eq.and.u32", lane, 0, usual))
    size = code.make("b32", "mov.b32", layout.size)
    make_room(code, save.place, group, size, here, leader)
    head = code.make("b32", "mov.b32", layout.size // UNIT)
    _write(code, save, size, [Stored(0, WORD, group), Stored(WORD, WORD, head), Stored(8, 8, clock), *shared], leader)


def _continue_line(
    code: Emitter, here: str, lane: str, field: StoredField, value: str, same: bool
) -> tuple[list[Stored], str | None]:
    """Return what lane 0 stores of a field, and the predicate that this lane's value can be computed from it.

    If that's always the case, the predicate is None. The results are only valid if all lanes save.
    """
    shared = [Stored(field.at, max(WORD, field.size), value)]
    if same:
        return shared + ([Stored(field.step, WORD, code.once("b32", "mov.b32", 0))] if field.step else []), None
    wide = field.size == 2 * WORD
    bits = "64" if wide else "32"
    first = [_read_lane(code, half, "0", here) for half in (code.halves(value) if wide else [value])]
    distance = code.make(f"b{bits}", f"sub.u{bits}", value, _join(code, *first) if wide else first[0])
    line = "0"
    if field.step:
        low = code.make("b32", "cvt.u32.u64", distance) if wide else distance
        step = _read_lane(code, low, "1", here)
        shared.append(Stored(field.step, WORD, step))
        line = code.make(f"b{bits}", "mul.wide.s32" if wide else "mul.lo.s32", step, lane)
    return shared, code.make("pred", f"setp.eq.s{bits}", distance, line)


def _share_any(code: Emitter, save: _Save, here: str, group: str) -> None:
    """Append a record by calling functions that several places share.

    If the room may be too small, a separate function first computes the size of the record. In a single function, ptxas
    would keep everything that has been computed for the record in registers while the room is claimed.
    """
    known = code.known_values()
    leader = code.both(code.first(group), save.condition) or code.first(group)
    number = code.once("b32", "popc.b32", group)
    most = code.make("b32", "mad.lo.u32", number, save.words * WORD, save.placed.layout.size + UNIT)
    short = code.make("pred", "setp.lt.and.u32", save.room.left, most, code.positive(leader))
    go_on = save.label()
    code.jump(go_on, Condition(code.make("pred", "vote.sync.any.pred", short, here), negated=True))
    size = code.make("b32", "mov.b32", 0)
    _share(code, save, "size", _find_size, [Value(size, "b32")])
    make_room(code, save.place, group, size, here, leader)
    code.lines.append(f"{go_on}:")
    code.forget(known)
    _share_append(code, save, "unusual", _append_any)


def _find_size(code: Emitter, save: _Save, changed: list[str]) -> None:
    """Write the code that computes the size of a record."""
    code.put(f"mov.b32 {changed[0]}, {_inspect(code, save).size}")


def _append_any(code: Emitter, save: _Save) -> None:
    """Append a record for any set of lanes and any values."""
    clock = save.clock(code)
    most = code.make("b32", "mov.b32", save.placed.layout.size + LANES * WORD * save.words)
    if not code.functions:
        here, group = code.group(save.condition)
        leader = code.both(code.first(group), save.condition) or code.first(group)
        make_room(code, save.place, group, most, here, leader)
    found = _inspect(code, save)
    lanes = found.lanes
    at = code.make("b64", "mov.b64", save.room.cursor)
    shared = save.shared + [one for field in found.fields for one in field.shared]
    record = [Stored(0, WORD, lanes.group), Stored(WORD, WORD, found.head), Stored(8, 8, clock), *shared]
    there = _write(code, save, found.size, record, found.leader)
    if not code.functions:  # return the unused bytes to a room that isn't there
        absent = code.make("pred", "setp.lt.and.u64", save.room.cursor, ABSENT, code.positive(found.leader))
        less = code.make("b64", "cvt.u64.u32", code.make("b32", "sub.u32", most, found.size))
        code.put(f"add.u64 {save.room.cursor}, {save.room.cursor}, {less}", Condition(absent))
    if found.words and not save.placed.counted:
        _write_columns(code, found, save.placed.layout.size, at, there, save.label())


def _inspect(code: Emitter, save: _Save) -> _Inspected:
    """Write the code that determines what the record contains."""
    here, group = code.group(save.condition)
    rank = code.once("b32", "popc.b32", code.below(group))
    count = code.once("b32", "popc.b32", group)
    lanes = _Lanes(here, group, _lowest(code, group), rank, count, save.condition)
    leader = code.both(code.first(group), save.condition) or code.first(group)
    compared = [
        _compare(code, lanes, field, save.values[number], save.constant[number])
        for number, field in save.fields.items()
        if field.stored in (*FORMED, "each")
    ]
    return _Inspected(lanes, leader, compared, *_measure(code, save.placed, compared, count))


def _lowest(code: Emitter, group: str) -> str:
    """Compute the number of the lowest lane in a group, or 32 if it's empty."""
    return code.once("b32", "clz.b32", code.once("b32", "brev.b32", group))


def _as_bits(code: Emitter, value: str, field: StoredField) -> str:
    """Return a value as a register of 32 or 64 bits."""
    if field.size >= WORD:
        return code.make(f"b{field.size * 8}", f"mov.b{field.size * 8}", value)
    return code.make("b32", "cvt.u32.u16", code.make("b16", "mov.b16", value))


def _compare(code: Emitter, lanes: _Lanes, field: StoredField, value: str, same: bool) -> _Compared:
    """Write the code that determines how the values of a field differ between the lanes."""
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
    form = code.make("b32", "mov.b32", NARROW)
    if wide:
        narrow = code.make("pred", "setp.eq.u32", high[0], code.make("b32", "shr.s32", low, 31))
        form = code.make("b32", "selp.b32", NARROW, WIDE, _all(code, lanes, narrow))
    if field.step:
        form = code.make("b32", "selp.b32", TILED, form, _is_tiled(code, lanes, low, narrow if wide else None))
    form = code.make("b32", "selp.b32", EQUAL, form, even)
    columns: list[tuple[str, Condition | None]] = [(low, Condition(code.make("pred", "setp.ne.u32", form, EQUAL)))]
    if wide:
        columns.append((high[0], Condition(code.make("pred", "setp.eq.u32", form, WIDE))))
    return _Compared(form, shared, columns, tiled=code.make("pred", "setp.eq.u32", form, TILED) if field.step else "")


def _is_tiled(code: Emitter, lanes: _Lanes, distance: str, narrow: str | None) -> str:
    """Return the predicate that all lanes save, and that their distances are tiled: each is the sum of one term for
    each bit in the number of the lane.

    To test this, split the number of a lane into its lowest bit and the other bits. The lane's distance must be the sum
    of the distances of the two lanes with these numbers.
    """
    low, rest = _split(code)
    terms = [_read_lane(code, distance, one, lanes.here) for one in (low, rest)]
    same = code.make("pred", "setp.eq.u32", distance, code.make("b32", "add.u32", *terms))
    same = code.make("pred", "and.pred", same, narrow) if narrow else same
    same = code.make("pred", "setp.eq.and.u32", lanes.group, ALL, same)
    return code.make("pred", "vote.sync.all.pred", same, lanes.here)


def _split(code: Emitter) -> tuple[str, str]:
    """Return the lowest bit that's set in this lane's number, and its other bits."""
    lane = code.special("%laneid")
    low = code.once("b32", "and.b32", lane, code.once("b32", "neg.s32", lane))
    return low, code.once("b32", "xor.b32", lane, low)


def _read_lane(code: Emitter, value: str, lane: str, here: str) -> str:
    return code.make("b32", "shfl.sync.idx.b32", value, lane, 31, here)


def _join(code: Emitter, low: str, high: str) -> str:
    return code.make("b64", "mov.b64", f"{{{low}, {high}}}")


def _all(code: Emitter, lanes: _Lanes, holds: str) -> str:
    """Return the predicate that something holds in all lanes that save."""
    if lanes.saves:
        holds = code.make("pred", "or.pred", holds, code.make("pred", "not.pred", code.positive(lanes.saves)))
    return code.make("pred", "vote.sync.all.pred", holds, lanes.here)


def _measure(code: Emitter, placed: PlacedMap, compared: list[_Compared], count: str) -> tuple[str, str, str | None]:
    """Return the size of a record, the word with its forms and its size, and the number of words in its columns (None
    if it can't have any).
    """
    least = placed.layout.size
    fixed = sum(len(found.columns) for found in compared if not found.form)
    forms, number = "", code.make("b32", "mul.lo.u32", count, fixed) if fixed else ""
    for place, found in enumerate(found for found in compared if found.is_lane):
        if not found.form:
            continue
        form = code.make("b32", "shl.b32", found.form, FORMS + 2 * place)
        forms = code.make("b32", "or.b32", forms, form) if forms else form
        words = code.make("b32", "mul.lo.u32", found.form, count)
        words = code.make("b32", "selp.b32", STEPS, words, found.tiled) if found.tiled else words
        number = code.make("b32", "add.u32", words, number) if number else words
    if not number:
        return code.make("b32", "mov.b32", least), code.make("b32", "mov.b32", least // UNIT), None
    size = code.make("b32", "mad.lo.u32", number, WORD, least + UNIT - 1)
    size = code.make("b32", "and.b32", size, 0x100000000 - UNIT)
    head = code.make("b32", "shr.u32", size, UNIT.bit_length() - 1)
    return size, code.make("b32", "or.b32", head, forms) if forms else head, number


def _filled(code: Emitter, record: list[Stored]) -> list[Stored]:
    """If the record doesn't fill its last 8 bytes, add a zero, so that a single vector store can write them."""
    end = record[-1].at + record[-1].size
    return [*record, Stored(end, WORD, code.once("b32", "mov.b32", 0))] if end % 8 else record


def _write(code: Emitter, save: _Save, size: str, record: list[Stored], leader: Condition) -> str:
    """If the leader has room, write what the lanes share and advance to the next record.

    Return the predicate that the leader has room.
    """
    cursor, left = save.room
    there = code.make("pred", "setp.ge.and.u32", left, size, code.positive(leader))
    if not save.placed.counted:
        store(code, _filled(code, sorted(record)), cursor, UNIT, Condition(there), STREAMED)
    code.put(f"add.u64 {cursor}, {cursor}, {code.make('b64', 'cvt.u64.u32', size)}", Condition(there))
    code.put(f"sub.u32 {left}, {left}, {size}", Condition(there))
    return there


def _write_columns(code: Emitter, found: _Inspected, after: int, at: str, there: str, done: str) -> None:
    """Write the values that differ between lanes, one column after the other. They begin `after` bytes into the
    record.
    """
    known, lanes = code.known_values(), found.lanes
    has_room = code.make("pred", "vote.sync.any.pred", there, lanes.here)
    code.jump(
        done, Condition(code.make("pred", "setp.eq.or.u32", found.words, 0, code.make("pred", "not.pred", has_room)))
    )
    place = _join(code, *(_read_lane(code, half, lanes.first, lanes.here) for half in code.halves(at)))
    columns = [(field, value, is_stored) for field in found.fields for value, is_stored in field.columns]
    for number, (field, value, is_stored) in enumerate(columns):
        index, end, stored = lanes.rank, lanes.number, code.both(lanes.saves, is_stored)
        if field.tiled:  # only at the field's first column; the second one has another condition
            index = code.make("b32", "selp.b32", _bit_of_lane(code), index, field.tiled)
            end = code.make("b32", "selp.b32", STEPS, end, field.tiled)
            stored = code.both(stored, Condition(_is_needed(code, field.tiled)))
        code.put(
            f"st.global{STREAMED}.b32 [{code.make('b64', 'mad.wide.u32', index, WORD, place)}+{after}], {value}", stored
        )
        if number < len(columns) - 1:
            code.put(f"mad.wide.u32 {place}, {end}, {WORD}, {place}", is_stored)
    code.lines.append(f"{done}:")
    code.forget(known)


def _bit_of_lane(code: Emitter) -> str:
    """Return the position of the lowest bit that's set in this lane's number."""
    return code.once("b32", "popc.b32", code.once("b32", "sub.u32", _split(code)[0], 1))


def _is_needed(code: Emitter, tiled: str) -> str:
    """Return the predicate that this lane stores its distance. In a tile, only lanes whose number has a single bit set
    do.
    """
    low, rest = _split(code)
    several = code.make("pred", "setp.ne.u32", rest, 0)
    spared = code.make("pred", "setp.eq.or.u32", low, 0, several)
    return code.make("pred", "not.pred", code.make("pred", "and.pred", spared, tiled))
