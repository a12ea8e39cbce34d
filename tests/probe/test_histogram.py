"""A histogram's bins are found without division: a multiplication is used, whose result must be
right for every value.
"""

import random

import pytest

from gpt.probe.lower.histogram import find_divisor
from gpt.probe.read.maps import MAX_BINS


def divide(number, by, bits):
    return (number * by.factor >> bits if by.factor else number) >> by.shift


def steps_of(bits):
    rng = random.Random(bits)
    largest = (1 << bits) - 1 if bits == 32 else (1 << 63) - 1
    yield from (step for step in (*range(1, 40), 999, 1000, 1001) for _ in (0,))
    for size in range(2, largest.bit_length() + 1):
        yield from (
            1 << size - 1,
            (1 << size - 1) + 1,
            min((1 << size) - 1, largest),
            rng.randrange(1 << size - 1, 1 << size),
        )


@pytest.mark.parametrize("bits", [32, 64])
def test_quotients_are_exact(bits):
    """A quotient grows with the number, so it's right for all numbers if it's right where the true quotient changes."""
    most = (1 << bits) - 1 if bits == 32 else (1 << 63) - 1
    inexact = 0
    for step in steps_of(bits):
        for bins in {1, 2, 7, MAX_BINS}:
            span = min(step * bins, most // step * step)
            by = find_divisor(step, span, bits)
            if by is None:
                assert span >> bits - 1, "a number below half of the range"
                inexact += 1
                continue
            assert by.factor < 1 << bits
            for quotient in range(span // step + 1):
                first = quotient * step
                assert divide(first, by, bits) == quotient
                assert divide(min(first + step - 1, span), by, bits) == min(first + step - 1, span) // step
    assert (inexact > 0) == (bits == 32), "it takes a product of 64 bits"
