"""Exact floating-point arithmetic on rationals, the reference for runtime/host."""

from __future__ import annotations

import random
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

NAN, INFINITY = "nan", "infinity"
Value = Fraction | str  # a number, NAN or INFINITY


@dataclass(frozen=True)
class Format:
    """A binary format: bits of its fraction and exponent; the finite numbers end at `greatest`."""

    name: str
    fraction: int
    exponent: int
    greatest: int
    nan: int
    infinity: bool = True

    @property
    def size(self) -> int:
        return 1 + self.fraction + self.exponent

    @property
    def bias(self) -> int:
        return (1 << (self.exponent - 1)) - 1

    @property
    def sign(self) -> int:
        return 1 << (self.size - 1)

    def decode(self, bits: int) -> tuple[bool, Value]:
        """Return the sign and the magnitude."""
        negative, magnitude = bool(bits & self.sign), bits & (self.sign - 1)
        if magnitude > self.greatest:
            return negative, INFINITY if self.infinity and magnitude == self.greatest + 1 else NAN
        exponent, fraction = divmod(magnitude, 1 << self.fraction)
        significand = fraction + (1 << self.fraction if exponent else 0)
        return negative, Fraction(significand) * Fraction(2) ** (max(exponent, 1) - self.bias - self.fraction)

    def number(self, bits: int) -> Fraction:
        """Return the value of a finite number."""
        negative, value = self.decode(bits)
        assert isinstance(value, Fraction)
        return -value if negative else value

    def is_nan(self, bits: int) -> bool:
        return self.decode(bits)[1] == NAN

    def flush(self, bits: int) -> int:
        """Return a subnormal number as 0 with its sign."""
        return bits if bits & (self.sign - 1) >> self.fraction << self.fraction else bits & self.sign

    def encode(self, negative: bool, value: Value, mode: str = "rn", ftz: bool = False, finite: bool = False) -> int:
        """Return the nearest number in a rounding mode. A zero gets the given sign."""
        sign = self.sign if negative else 0
        if value == NAN:
            return self.nan
        if value == INFINITY:
            return sign | (self.greatest + (self.infinity and not finite))
        assert isinstance(value, Fraction) and value >= 0
        if not value:
            return sign
        exponent = value.numerator.bit_length() - value.denominator.bit_length()
        exponent -= value < Fraction(2) ** exponent
        assert Fraction(2) ** exponent <= value < Fraction(2) ** (exponent + 1)
        least = 1 - self.bias
        unit = Fraction(2) ** ((exponent if ftz else max(exponent, least)) - self.fraction)
        kept, rest = divmod(value, unit)
        rest /= unit
        kept += {
            "rn": rest > Fraction(1, 2) or (rest == Fraction(1, 2) and kept % 2 == 1),
            "rna": rest >= Fraction(1, 2),
            "rz": False,
            "rm": negative and rest > 0,
            "rp": not negative and rest > 0,
        }[mode]
        rounded = kept * unit
        if ftz and rounded < Fraction(2) ** least:
            return sign
        number = int(rounded / Fraction(2) ** (least - self.fraction))
        if number >> self.fraction:
            extra = number.bit_length() - 1 - self.fraction
            number = (extra << self.fraction) + (number >> extra)
        if number <= self.greatest:
            return sign | number
        away = mode in ("rn", "rna") or mode == ("rm" if negative else "rp")
        return sign | (self.greatest + (away and self.infinity and not finite))

    def samples(self, count: int, source: random.Random) -> list[int]:
        """Return encodings in random order: a third are special ones, a third are any bits, and the others have values
        near 1.
        """
        fraction, inf = 1 << self.fraction, self.greatest + 1
        one = self.bias << self.fraction
        chosen = [0, 1, 2, 3, fraction // 2, fraction - 1, fraction, fraction + 1, 2 * fraction - 1, 2 * fraction]
        chosen += [one - 1, one, one + 1, one + fraction // 2, one + fraction, one + fraction - 1]
        chosen += [one + self.fraction * fraction + 1, self.greatest - 1, self.greatest]
        if self.infinity:
            chosen += [inf, inf + 1, inf + fraction // 2, inf + fraction - 1]
        chosen += [bits | self.sign for bits in chosen]
        found = [source.choice(chosen) for _ in range(count // 3)]
        found += [source.getrandbits(self.size) for _ in range(count // 3)]
        near = range(max(0, one - 40 * fraction), min(self.greatest, one + 40 * fraction))
        found += [source.choice(near) | source.choice((0, self.sign)) for _ in range(count - len(found))]
        source.shuffle(found)
        return found


F16 = Format("f16", 10, 5, 0x7BFF, 0x7FFF)
BF16 = Format("bf16", 7, 8, 0x7F7F, 0x7FFF)
TF32 = Format("tf32", 10, 8, 0x3FBFF, 0x3FFFF)
F32 = Format("f32", 23, 8, 0x7F7FFFFF, 0x7FFFFFFF)
F64 = Format("f64", 52, 11, 0x7FEFFFFFFFFFFFFF, 0x7FF8000000000000)
E5M2 = Format("e5m2", 2, 5, 0x7B, 0x7F)
E4M3 = Format("e4m3", 3, 4, 0x7E, 0x7F, False)
E3M2 = Format("e3m2", 2, 3, 0x1F, 0x1F, False)
E2M3 = Format("e2m3", 3, 2, 0x1F, 0x1F, False)
E2M1 = Format("e2m1", 1, 2, 7, 7, False)
FORMATS = {one.name: one for one in (F16, BF16, TF32, F32, F64, E5M2, E4M3, E3M2, E2M3, E2M1)}


def add(a: tuple[bool, Value], b: tuple[bool, Value], mode: str) -> tuple[bool, Value]:
    """Return an exact sum; opposite numbers give -0 only when rounding down."""
    (minus_a, x), (minus_b, y) = a, b
    if NAN in (x, y) or (x == y == INFINITY and minus_a != minus_b):
        return False, NAN
    if INFINITY in (x, y):
        return (minus_a if x == INFINITY else minus_b), INFINITY
    assert isinstance(x, Fraction) and isinstance(y, Fraction)
    total = (-x if minus_a else x) + (-y if minus_b else y)
    if not total:
        return (minus_a if minus_a == minus_b else mode == "rm"), total
    return total < 0, abs(total)


def multiply(a: tuple[bool, Value], b: tuple[bool, Value]) -> tuple[bool, Value]:
    """Return the exact product."""
    (minus_a, x), (minus_b, y) = a, b
    if NAN in (x, y) or (INFINITY in (x, y) and 0 in (x, y)):
        return False, NAN
    if INFINITY in (x, y):
        return minus_a != minus_b, INFINITY
    assert isinstance(x, Fraction) and isinstance(y, Fraction)
    return minus_a != minus_b, x * y


def divide(a: tuple[bool, Value], b: tuple[bool, Value]) -> tuple[bool, Value]:
    """Return the exact quotient."""
    (minus_a, x), (minus_b, y) = a, b
    if NAN in (x, y) or (x == y and x in (0, INFINITY)):
        return False, NAN
    negative = minus_a != minus_b
    if x == INFINITY or y == 0:
        return negative, INFINITY
    if y == INFINITY:
        return negative, Fraction(0)
    assert isinstance(x, Fraction) and isinstance(y, Fraction)
    return negative, x / y


def root(a: tuple[bool, Value]) -> tuple[bool, Value]:
    """Return the square root to 200 bits and, if it isn't exact, one more, so that it rounds like the exact root."""
    negative, value = a
    if value == NAN or (negative and value != 0):
        return False, NAN
    if value == INFINITY or value == 0:
        return a
    assert isinstance(value, Fraction)
    scale = 1 << (2 * (200 + 1100))
    found = isqrt(value.numerator * scale // value.denominator)
    exact = Fraction(found * found, scale) == value
    return False, Fraction(2 * found + (not exact), 1 << (200 + 1100 + 1))
