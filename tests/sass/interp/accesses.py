"""Loads, stores and atomics. Where it matters, lanes act one after the other, in order."""

from __future__ import annotations

import numpy as np

from tests.sass.interp.decode import Array, Fetch, Run, Word, operation
from tests.sass.interp.integers import I64, U32, U64, long
from tests.sass.interp.memory import LOCAL_WINDOW, SHARED_WINDOW, MemoryFault

_SIZES = (1, 1, 2, 2, 4, 8, 16)
_WINDOW = U64(32)
SHARED_START = 0x400  # a kernel's variables begin here, after the driver's


def address(word: Word, place: int = 24) -> Fetch:
    """Return a function that computes each lane's address.

    An address is the sum of a register of 32 or 64 bits (bit 72), a constant of 24 bits and, in some forms, a uniform
    register, unless that register has the descriptor.
    """
    word.ignore(70, (77, 80), (84, 86), 90)  # scope, order and policy
    space = SPACES[word.name.rstrip("G") if word.name in ("REDG",) else word.name]
    wide = space in ("global", "generic") and word.bit(72)
    constant, scale = word.signed(40, 24), 0
    described = word.bit(71) if word.name in ("ATOM", "ATOMG", "REDG") else word.bit(76)
    if space in ("shared", "local"):
        has_scale = space == "shared" and word.name not in ("LDSM", "STSM", "SYNCS")
        described, scale = False, word.field(78, 2) if has_scale else 0
    if scale == 1:
        raise word.refuse("an unknown scale")
    base = word.at(place) if place in word.places else None
    if base and wide and word.number(place) is not None:
        upper = word.at(place, 1)
        lower = base
        base = lambda warp: long(lower(warp)) | long(upper(warp)) << _WINDOW  # noqa: E731
    uniform = next((one for one in (32, 64) if one in word.places and word.places[one].file == "UR"), None)
    more = more_high = None
    if uniform and not described and word.bit(91):
        more = word.at(uniform)
        more_high = word.at(uniform, 1) if wide else None
    limit = U64((1 << 64) - 1 if wide else (1 << 32) - 1)
    factor, offset = U64((1, 1, 4, 8)[scale]), U64(constant & (1 << 64) - 1)

    def get(warp):
        value = long(base(warp)) * factor if base else U64(0)
        if more:
            value = value + long(more(warp))
            if more_high:
                value = value + (long(more_high(warp)) << _WINDOW)
        return np.broadcast_to(value + offset & limit, (32,))

    return get


SPACES = {
    **dict.fromkeys(("LDG", "STG", "RED", "REDG", "ATOMG"), "global"),
    **dict.fromkeys(("LDS", "STS", "ATOMS", "LDSM", "STSM", "SYNCS"), "shared"),
    **dict.fromkeys(("LDL", "STL"), "local"),
    **dict.fromkeys(("LD", "ST", "ATOM", "QSPC"), "generic"),
}


def _split(warp, addresses: Array, lanes: Array) -> list[tuple[str, Array, Array]]:
    """For generic addresses, return each space with its lanes and their addresses in it."""
    top = addresses >> _WINDOW
    shared, local = top == U64(SHARED_WINDOW >> 32), top == U64(LOCAL_WINDOW >> 32)
    kinds = (("shared", shared), ("local", local), ("global", ~(shared | local)))
    low = U64((1 << 32) - 1)
    found = [(name, lanes[which], addresses[which]) for name, which in kinds]
    return [(name, which, at if name == "global" else at & low) for name, which, at in found if len(which)]


def load(warp, space: str, addresses: Array, lanes: Array, size: int) -> Array:
    """Return a row of bytes for each of `lanes`."""
    if space == "generic":
        found = np.zeros((32, size), np.uint8)
        for name, which, at in _split(warp, addresses, lanes):
            found[which] = load(warp, name, at, which, size)
        return found[lanes]
    if space == "local":
        at = warp.local.places(addresses, size)
        return warp.local_data[lanes[:, None], at]
    return (warp.block.shared if space == "shared" else warp.memory).load(addresses, size)


def store(warp, space: str, addresses: Array, lanes: Array, values: Array) -> None:
    """Store a row of bytes of each of `lanes`."""
    if space == "generic":
        rows = np.zeros((32, values.shape[1]), np.uint8)
        rows[lanes] = values
        for name, which, at in _split(warp, addresses, lanes):
            store(warp, name, at, which, rows[which])
    elif space == "local":
        at = warp.local.places(addresses, values.shape[1])
        warp.local_data[lanes[:, None], at] = values
    else:
        (warp.block.shared if space == "shared" else warp.memory).store(addresses, values)


@operation("LDG", "LD", "LDS", "LDL")
def _load(word: Word) -> Run:
    kind, where, space = word.field(73, 3), address(word), SPACES[word.name]
    word.ignore(68, 69)
    size = _SIZES[kind]
    write = word.results(max(1, size // 4))
    if kind == 7 or (word.name == "LDG" and word.field(64, 4)):
        raise word.refuse("a predicate or size")

    def run(warp, mask):
        lanes = np.flatnonzero(mask)
        if not len(lanes):
            return
        rows = load(warp, space, where(warp)[lanes], lanes, size)
        values = np.zeros((32, max(4, size)), np.uint8)
        values[lanes, :size] = rows
        if kind in (1, 3):
            values[lanes, size:] = np.where(rows[:, size - 1 :] & 128, 255, 0)
        numbers = values.view(U32)
        write(warp, mask, [numbers[:, index] for index in range(numbers.shape[1])])

    return run


@operation("STG", "ST", "STS", "STL")
def _store(word: Word) -> Run:
    kind, where, space = word.field(73, 3), address(word), SPACES[word.name]
    if kind == 7:
        raise word.refuse("a size")
    size = _SIZES[kind]
    data = [word.at(32, index) for index in range(max(1, size // 4))]

    def run(warp, mask):
        lanes = np.flatnonzero(mask)
        if len(lanes):
            columns = [np.broadcast_to(one(warp), (32,))[lanes] for one in data]
            rows = np.ascontiguousarray(np.stack(columns, axis=1)).view(np.uint8)
            store(warp, space, where(warp)[lanes], lanes, rows[:, :size])

    return run


@operation("LDC", "ULDC")
def _load_constant(word: Word) -> Run:
    kind, bank, offset = word.field(73, 3), word.field(54, 5), word.signed(38, 16)
    if kind not in (0, 1, 2, 3, 4, 5) or word.field(78, 2):
        raise word.refuse("a size")
    size = _SIZES[kind]
    index = word.at(24) if 24 in word.places else None
    write = word.results(max(1, size // 4))

    def run(warp, mask):
        at = offset + (index(warp).view(np.int32).astype(I64) if index else np.zeros(1, I64))
        at = np.where(np.broadcast_to(mask, np.broadcast_shapes(at.shape, mask.shape)), at, 0)
        data = warp.constants(bank)
        if (at < 0).any() or (at > len(data) - size).any() or (at % size).any():
            raise MemoryFault(f"constant bank {bank}: {size} bytes at {at.tolist()}")
        rows = data[at[:, None] + np.arange(size)]
        values = np.zeros((len(at), max(4, size)), np.uint8)
        values[:, :size] = rows
        if kind in (1, 3):
            values[:, size:] = np.where(rows[:, size - 1 :] & 128, 255, 0)
        numbers = values.view(U32)
        write(warp, mask, [numbers[:, column] for column in range(numbers.shape[1])])

    return run


@operation("QSPC")
def _which_space(word: Word) -> Run:
    kind, out = word.field(73, 2), word.decide(81)
    word.ignore(72)
    low, high = word.at(24), word.at(24, 1)

    def run(warp, mask):
        top = high(warp)
        shared, local = top == U32(SHARED_WINDOW >> 32), top == U32(LOCAL_WINDOW >> 32)
        low(warp)
        out(warp, mask, (~(shared | local), local, shared)[kind])

    return run


@operation("LDGSTS")
def _copy(word: Word) -> Run:
    """Copy to shared memory. With ZFILL, lanes whose predicate is false write zeros. In other lanes, the misalignment
    of the address is the number of trailing bytes that become zero.
    """
    size, fills = _SIZES[word.field(73, 3)], word.bit(82)
    word.ignore((70, 72), 76, (77, 81), (84, 86), 90)
    if word.predicates.get(87) is None:
        raise word.refuse("no predicate")
    also, to = word.predicate(87), word.at(16)
    low, high = word.at(24), word.at(24, 1)
    from_offset, to_offset = (U64(word.signed(*field) & (1 << 64) - 1) for field in ((32, 12), (44, 20)))

    def run(warp, mask):
        lanes = np.flatnonzero(mask)
        if not len(lanes):
            return
        reads = np.broadcast_to(also(warp), (32,))[lanes]
        sources = (long(low(warp)) | long(high(warp)) << _WINDOW) + from_offset
        rows = np.zeros((len(lanes), size), np.uint8)
        if reads.any():
            at = sources[lanes[reads]]
            missing = at & U64(size - 1) if fills else U64(0)
            rows[reads] = load(warp, "global", at - missing, lanes[reads], size)
            if fills:
                rows[reads] *= (np.arange(size) < size - missing.astype(I64)[:, None]).astype(np.uint8)
        if not fills:
            lanes, rows = lanes[reads], rows[reads]
        store(warp, "shared", (long(to(warp)) + to_offset)[lanes], lanes, rows)

    return run
