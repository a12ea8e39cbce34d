"""Integers, bits and predicates. Instructions of the uniform datapath have the same names with a U prefix."""

from __future__ import annotations

import numpy as np

from tests.sass.interp.decode import Array, Fetch, Run, Word, operation

U32, U64, I32, I64 = np.uint32, np.uint64, np.int32, np.int64
LOW = U64(0xFFFFFFFF)
ONES = U32(0xFFFFFFFF)


def long(value: Array) -> Array:
    """Return 32 bits as an unsigned 64-bit number."""
    return value.astype(U64)


def high(value: Array) -> Array:
    """Return the upper half of 64 bits."""
    return (value >> U64(32)).astype(U32)


def low(value: Array) -> Array:
    """Return the lower half of 64 bits."""
    return (value & LOW).astype(U32)


def extended(value: Array, signed: bool) -> Array:
    """Extend 32 bits to 64, signed or unsigned."""
    return value.view(I32).astype(I64).view(U64) if signed else long(value)


def signed_source(word: Word, slot: str, complement: bool = False) -> Fetch:
    """Return an operand, negated if its minus sign is set; with `complement`, the sign means bitwise complement."""
    fetch = word.raw(slot)
    if not word.is_negated(slot):
        return fetch
    return (lambda warp: ~fetch(warp)) if complement else lambda warp: U32(0) - fetch(warp)


def shifted_left(value: Array, count: Array) -> Array:
    """Shift 64 bits by 0 to 64 places."""
    return np.where(count > 63, U64(0), value << np.minimum(count, U64(63)))


def shifted_right(value: Array, count: Array, signed: bool) -> Array:
    """Shift 64 bits by 0 to 64 places."""
    least = np.minimum(count, U64(63))
    if signed:
        return (value.view(I64) >> least.view(I64)).view(U64)
    return np.where(count > 63, U64(0), value >> least)


@operation("IADD3", "UIADD3")
def _add3(word: Word) -> Run:
    extends = word.bit(74)
    sources = [signed_source(word, slot, True) for slot in "abc"]
    plus = U64(0 if extends else sum(word.is_negated(slot) for slot in "abc"))  # -x is ~x + 1, which may carry
    carries = [word.predicate(87), word.predicate(77)] if extends else []
    write, first, second = word.result(), word.decide(81), word.decide(84)

    def run(warp, mask):
        total = plus + sum(long(source(warp)) for source in sources)
        for carry in carries:
            total = total + carry(warp).astype(U64)
        over = total >> U64(32)
        write(warp, mask, low(total))
        first(warp, mask, over > 0)
        second(warp, mask, over > 1)

    return run


@operation("VIADD")
def _vector_add(word: Word) -> Run:
    a, b, write = word.raw("a"), signed_source(word, "b"), word.result()
    if word.bit(73):
        minus, b = word.is_negated("b"), word.raw("b")

        def halves(warp, mask):
            x, y = np.broadcast_arrays(a(warp), b(warp))
            x, y = np.ascontiguousarray(x).view(np.uint16), np.ascontiguousarray(y).view(np.uint16)
            write(warp, mask, (x - y if minus else x + y).view(U32))

        return halves
    return lambda warp, mask: write(warp, mask, a(warp) + b(warp))


@operation("IMAD", "UIMAD")
def _multiply_add(word: Word) -> Run:
    kind = {0x24: "low", 0x25: "wide", 0x27: "high", 0xA4: "low", 0xA5: "wide"}.get(word.operation & 0xFF)
    if kind is None:
        raise word.refuse("not a known product")
    signed, extends = word.bit(73), word.bit(74)
    a, b = word.raw("a"), signed_source(word, "b")
    carry = word.predicate(87) if extends else None
    minus = word.is_negated("c")
    if kind == "low":
        c, write = signed_source(word, "c", extends), word.result()

        def run(warp, mask):
            total = a(warp) * b(warp) + c(warp)
            write(warp, mask, total + carry(warp).astype(U32) if carry else total)

        return run
    if word.place("c") == 32 and 32 not in word.places:
        raise word.refuse("a constant of 64 bits")
    addend = word.pair("c")
    write64, write, out = word.result64(), word.result(), word.decide(81)

    def run_wide(warp, mask):
        product = extended(a(warp), signed) * extended(b(warp), signed)
        more = addend(warp)
        if minus:
            more = ~more if extends else U64(0) - more
        total = product + more
        over = total < product
        if carry:
            with_carry = total + carry(warp).astype(U64)
            over = over | (with_carry < total)
            total = with_carry
        if kind == "wide":
            write64(warp, mask, total)
        else:
            write(warp, mask, high(total))
        out(warp, mask, over)

    return run_wide


COMPARISONS = {
    0: lambda less, equal: less & False,
    1: lambda less, equal: less,
    2: lambda less, equal: equal,
    3: lambda less, equal: less | equal,
    4: lambda less, equal: ~(less | equal),
    5: lambda less, equal: ~equal,
    6: lambda less, equal: ~less,
    7: lambda less, equal: less | True,
}


def combine(kind: int, one: Array, other: Array) -> Array:
    """Combine two predicates with AND, OR or XOR."""
    return one & other if kind == 0 else one | other if kind == 1 else one ^ other


@operation("ISETP", "UISETP")
def _set_predicate(word: Word) -> Run:
    comparison, joined, signed = word.field(76, 3), word.field(74, 2), word.bit(73)
    if joined == 3:
        raise word.refuse("no known way to join")
    a, b, also = word.raw("a"), word.raw(word.other), word.predicate(87)
    before = word.predicate(68) if word.bit(72) else None  # the comparison of the lower halves
    first, second = word.decide(81), word.decide(84)

    def run(warp, mask):
        x, y = a(warp), b(warp)
        less, equal = (x.view(I32) < y.view(I32) if signed else x < y), x == y
        found = COMPARISONS[comparison](less, equal)
        if before:
            found = np.where(equal, before(warp), found)
        first(warp, mask, combine(joined, found, also(warp)))
        second(warp, mask, combine(joined, ~found, also(warp)))

    return run


@operation("LEA", "ULEA")
def _address(word: Word) -> Run:
    shift, is_high, extends, sign_extends = U64(word.field(75, 5)), word.bit(80), word.bit(74), word.bit(73)
    if word.bit(72) or (sign_extends and not is_high):
        raise word.refuse("a negated or extended index")
    a, b, write, out = word.raw("a"), word.raw("b"), word.result(), word.decide(81)
    minus = word.is_negated("b")
    c = word.raw("c") if is_high and not sign_extends else None
    carry = word.predicate(87) if extends else None

    def run(warp, mask):
        x = extended(a(warp), sign_extends)
        if c:
            x = x | long(c(warp)) << U64(32)
        x = shifted_left(x, shift)
        base = long(b(warp))
        if minus:
            base = long(~b(warp)) if extends else long(~b(warp)) + U64(1)
        total = (x >> U64(32) if is_high else x & LOW) + base
        if carry:
            total = total + carry(warp).astype(U64)
        write(warp, mask, low(total))
        out(warp, mask, total >> U64(32) > 0)

    return run


def by_table(table: int, a: Array, b: Array, c: Array) -> Array:
    """Evaluate a function of three bits, given as the truth table `table`, for each bit of the operands."""
    found = (a ^ a) & b & c
    for index in range(8):
        if table >> index & 1:
            found = found | (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
    return found


@operation("LOP3", "ULOP3")
def _logic(word: Word) -> Run:
    table, joins_by_and = word.field(72, 8), word.bit(80)
    a, b, c, also = word.raw("a"), word.raw("b"), word.raw("c"), word.predicate(87)
    write, out = word.result(), word.decide(81)

    def run(warp, mask):
        found = by_table(table, a(warp), b(warp), c(warp))
        write(warp, mask, found)
        other = also(warp)
        out(warp, mask, (found != 0) & other if joins_by_and else (found != 0) | other)

    return run


@operation("PLOP3", "UPLOP3")
def _predicate_logic(word: Word) -> Run:
    table, second = word.field(64, 3) | word.field(72, 5) << 3, word.field(16, 8)
    a, b, c = word.predicate(87), word.predicate(77), word.predicate(68)
    if word.bit(67):
        number, negated = word.field(68, 3), word.bit(71)
        c = lambda warp: warp.UP[number] ^ negated  # noqa: E731
    first_out, second_out = word.decide(81), word.decide(84)

    def run(warp, mask):
        x, y, z = np.broadcast_arrays(a(warp), b(warp), c(warp))
        first_out(warp, mask, by_table(table, x, y, z))
        second_out(warp, mask, by_table(second, x, y, z))

    return run


@operation("SHF", "USHF")
def _shift(word: Word) -> Run:
    kind, wraps, right, is_high = word.field(73, 2), word.bit(75), word.bit(76), word.bit(80)
    width = 64 if kind < 2 else 32
    signed = kind in (0, 2)
    a, b, c, write = word.raw("a"), word.raw("b"), word.raw("c"), word.result()

    def run(warp, mask):
        value = long(a(warp)) | long(c(warp)) << U64(32)
        count = long(b(warp)) & U64(width - 1) if wraps else np.minimum(long(b(warp)), U64(width))
        found = shifted_right(value, count, signed) if right else shifted_left(value, count)
        write(warp, mask, high(found) if is_high else low(found))

    return run


@operation("MOV", "UMOV")
def _move(word: Word) -> Run:
    if word.field(72, 4) not in (0, 15):
        raise word.refuse("some bytes only")
    b, write = word.raw("b"), word.result()
    return lambda warp, mask: write(warp, mask, b(warp))


@operation("SEL", "USEL")
def _select(word: Word) -> Run:
    a, b, choice, write = word.raw("a"), word.raw(word.other), word.predicate(87), word.result()
    return lambda warp, mask: write(warp, mask, np.where(choice(warp), a(warp), b(warp)))


@operation("PRMT", "UPRMT")
def _permute(word: Word) -> Run:
    a, b, c, write = word.raw("a"), word.raw("b"), word.raw("c"), word.result()

    def run(warp, mask):
        value, selector = long(a(warp)) | long(c(warp)) << U64(32), long(b(warp))
        found = U64(0)
        for index in range(4):
            choice = selector >> U64(4 * index) & U64(15)
            byte = value >> (choice & U64(7)) * U64(8) & U64(255)
            sign = np.where(byte & U64(128), U64(255), U64(0))
            found = found | np.where(choice & U64(8), sign, byte) << U64(8 * index)
        write(warp, mask, low(found))

    return run
