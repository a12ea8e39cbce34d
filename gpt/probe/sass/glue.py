"""Encode the instructions around snippets, which copy, save, load and wait.

The encodings are copied from what ptxas generated for our own code (sm_90). tests/probe/sass/test_glue.py checks that
the interpreter and nvdisasm agree about them. None of these instructions has a guard.
"""

from __future__ import annotations

from gpt.sass.words import PT, Guard, with_bits

PLAIN = PT << 12 | 1 << 105 | 7 << 110 | 7 << 113  # no guard, a stall of 1, no barriers
_ALL = 0xF << 72  # MOV: all bytes
_RZ = 255
OFFSET = 40, 14  # the bits of a load from the bank of constants that hold its offset, in units of 4 bytes


def move(to: int, source: int) -> int:
    """MOV R, R."""
    return 0x202 | PLAIN | to << 16 | source << 32 | _ALL


def set_to(to: int, value: int) -> int:
    """MOV R, value."""
    return 0x802 | PLAIN | to << 16 | (value & 0xFFFFFFFF) << 32 | _ALL


def save_uniform(to: int, uniform: int) -> int:
    """IADD3 R, RZ, UR, RZ."""
    return add_uniform(to, _RZ, uniform)


def restore_uniform(uniform: int, source: int) -> int:
    """R2UR UR, R."""
    return 0x2CA | PLAIN | uniform << 16 | source << 24 | 0xE << 80


def add(to: int, source: int, value: int) -> int:
    """Encode IADD3 R, R, value, RZ."""
    return 0x810 | PLAIN | to << 16 | source << 24 | (value & 0xFFFFFFFF) << 32 | 0x7FFE0FF << 64


def add_uniform(to: int, source: int, uniform: int) -> int:
    """Encode IADD3 R, R, UR, RZ."""
    return 0xC10 | PLAIN | to << 16 | source << 24 | uniform << 32 | 0xFFFE0FF << 64


def add_wide(to: int, source: int, value: int) -> int:
    """Encode IMAD.WIDE R, R, value, R. Before it, `to` must hold 1; after it, `to` holds the 64-bit sum of `source` and
    `value`.
    """
    return 0x825 | PLAIN | to << 16 | to << 24 | (value & 0xFFFFFFFF) << 32 | source << 64 | 0x78E02 << 72


def select(to: int, guard: Guard) -> int:
    """Encode SEL R, RZ, 1, P, which gives 1 if the guard holds, and else 0."""
    return 0x807 | PLAIN | to << 16 | _RZ << 24 | 1 << 32 | guard.predicate << 87 | (not guard.negated) << 90


def load_parameter(to: int, offset: int) -> int:
    """LDC.64 R, c[0][offset]."""
    return 0xB82 | PLAIN | to << 16 | _RZ << 24 | offset // 4 << 40 | 5 << 73


def load_descriptor(uniform: int, offset: int) -> int:
    """ULDC.64 UR, c[0][offset]."""
    return 0xAB9 | PLAIN | uniform << 16 | offset // 4 << 40 | 5 << 73


def load_constant(to: int, offset: int) -> int:
    """LDC R, c[0][offset]."""
    return load_parameter(to, offset) & ~(1 << 73)


def store_stack(source: int, offset: int) -> int:
    """STL [R1+offset], R."""
    return with_bits(0x387 | PLAIN | 1 << 24 | 4 << 73 | 1 << 84 | source << 32, 40, 24, offset & 0xFFFFFF)


def load_stack(to: int, offset: int) -> int:
    """LDL R, [R1+offset]."""
    return with_bits(0x983 | PLAIN | 1 << 24 | 4 << 73 | 1 << 84 | to << 16, 40, 24, offset & 0xFFFFFF)


def save_predicates(to: int, mask: int) -> int:
    """Encode P2R R, PR, RZ, mask."""
    return 0x803 | PLAIN | _RZ << 24 | mask << 32 | to << 16


def restore_predicates(source: int, mask: int) -> int:
    """Encode R2P PR, R, mask."""
    return 0x804 | PLAIN | mask << 32 | source << 24
