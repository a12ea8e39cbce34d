"""Atomics in global, shared and generic memory. Each lane reads, computes and writes in turn; the order of lanes is
random.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.sass.interp.accesses import SPACES, address, load, store
from tests.sass.interp.decode import Array, Run, Word, operation
from tests.sass.interp.integers import U32

_TYPES = {0: "u4", 1: "i4", 2: "u8", 3: "i8"}
_FLOATS = {9: "f4", 15: "f8", 0: "f2", 3: "bf"}
_INTEGERS: dict[int, Callable[[int, int], int]] = {
    0: lambda old, new: old + new,
    1: min,
    2: max,
    3: lambda old, new: 0 if old >= new else old + 1,
    4: lambda old, new: new if old == 0 or old > new else old - 1,
    5: lambda old, new: old & new,
    6: lambda old, new: old | new,
    7: lambda old, new: old ^ new,
    8: lambda old, new: new,
}
_ADD = 0
Change = Callable[[Array, list[Array]], Array]


def _number(row: Array, kind: str) -> int:
    return int.from_bytes(row.tobytes(), "little", signed=kind[0] == "i")


def _bytes(value: int, size: int) -> Array:
    return np.frombuffer((value & (1 << 8 * size) - 1).to_bytes(size, "little"), np.uint8)


def _float_sum(old: Array, new: Array, kind: str) -> Array:
    with np.errstate(all="ignore"):
        return np.frombuffer((old.view(kind) + new.view(kind)).tobytes(), np.uint8)


def each(word: Word, size: int, change: Change, sources: list, outcome: Change | None = None) -> Run:
    """Return a function that updates memory for some lanes. `change` gets the old bytes and the operands' bytes, and
    returns the new bytes.

    The result is the old bytes or, if `outcome` is given, what it computes from the same arguments.
    """
    where, space = address(word), SPACES[word.name]
    write = word.results(size // 4) if word.name != "REDG" else None

    def run(warp, mask):
        lanes = np.flatnonzero(mask)
        addresses = where(warp)
        operands = [np.stack([np.broadcast_to(one(warp), (32,)) for one in source], axis=1) for source in sources]
        found = np.zeros((32, size), np.uint8)
        for lane in warp.rng.permutation(lanes):
            at, me = addresses[lane : lane + 1], np.array([lane])
            old = load(warp, space, at, me, size)
            rows = [np.ascontiguousarray(operand[lane]).view(np.uint8) for operand in operands]
            store(warp, space, at, me, change(old[0], rows).reshape(1, size))
            found[lane] = outcome(old[0], rows) if outcome else old[0]
        if write:
            numbers = found.view(U32)
            write(warp, mask, [numbers[:, index] for index in range(size // 4)])

    return run


def _source(word: Word, place: int, size: int) -> list:
    return [word.at(place, index) for index in range(size // 4)]


@operation("REDG", "ATOMG", "ATOM", "ATOMS")
def _atomic(word: Word) -> Run:
    number = word.operation
    if number in (0x1A9, 0x18B, 0x18D):
        return _swap(word)
    if word.entry.number == 0xF8C:  # ATOMS.POPC.INC: every lane adds one
        if word.field(87, 4) != 11 or word.field(73, 3):
            raise word.refuse("an unknown count")
        one = np.ones(1, U32)
        return each(word, 4, lambda old, new: _bytes(_number(old, "u4") + _number(new[0], "u4"), 4), [[lambda w: one]])
    code = word.field(87, 3 if word.name == "REDG" else 4)
    if number in (0x1A6, 0x1A3, 0x1A2):
        kind = _FLOATS.get(word.field(73, 4), "")
        if kind not in ("f4", "f8") or code != _ADD:
            raise word.refuse("an unknown sum")
        size = int(kind[1])
        return each(word, size, lambda old, new: _float_sum(old, new[0], kind), [_source(word, 32, size)])
    kind, change = _TYPES.get(word.field(73, 3), ""), _INTEGERS.get(code)
    if not kind or change is None:
        raise word.refuse("an unknown type or operation")
    size = int(kind[1])
    return each(
        word,
        size,
        lambda old, new: _bytes(change(_number(old, kind), _number(new[0], kind)), size),
        [_source(word, 32, size)],
    )


def _swap(word: Word) -> Run:
    size = {0: 4, 2: 8}.get(word.field(73, 3))
    if size is None:
        raise word.refuse("an unknown size")
    casts = word.name == "ATOMS" and word.bit(87)  # ATOMS.CAST its result is whether it swapped
    word.ignore(88)  # .SPIN

    def change(old: Array, rows: list[Array]) -> Array:
        return rows[1] if old.tobytes() == rows[0].tobytes() else old

    def outcome(old: Array, rows: list[Array]) -> Array:
        return _bytes(int(old.tobytes() == rows[0].tobytes()), size)

    return each(word, size, change, [_source(word, 32, size), _source(word, 64, size)], outcome if casts else None)
