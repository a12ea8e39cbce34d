"""Instruction words: 128 bits, represented as an integer whose bit 0 is the lowest.

Every word has these parts; the rest belongs to the opcode (gpt/sass/tables.py):

     0 -  11   opcode; the upper three bits give the kind of operand at bit 32
    12 -  15   guard: a predicate, and whether it's negated. P7 is PT, always true
   105 - 125   control: what the hardware must wait for
   126 - 127   zero

The hardware doesn't check whether an operand is ready; the compiler says so in the control part.

   105 - 108   stall: cycles until the next instruction may issue
   109         hint: for the scheduler; what it does wasn't established. ptxas clears it if the stall is 12 or more
   110 - 112   write barrier: 0-5, counted down when the result has arrived; 7 for none
   113 - 115   read barrier: the same for when the operands have been read
   116 - 121   wait mask: barriers that must be zero before this instruction issues
   122 - 125   reuse: operands to keep in the register cache

An instruction with a fixed latency needs only stalls. One whose latency varies (memory, special functions) sets a
barrier, and an instruction that reads the result waits for that barrier. Barriers are counters: if two instructions
share one, waiting for it waits for both.

Jumps contain the distance from the next instruction, in one of three forms: `split` (units of 4 bytes, the low 8 bits
at bit 16, 48 more from bit 34 on), `whole` (units of 4 bytes, 48 bits from bit 34 on) and `imm32` (bytes, at bit 32).
The table says which one an opcode has.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from gpt.base.errors import MalformedError

SIZE = 16  # bytes per word
PT = 7  # the predicate that is always true
NO_BARRIER = 7
BARRIERS = 6

CONTROL = (1 << 126) - (1 << 105)
_LOW = (1 << 64) - 1

# The parts of a jump's distance: (bit in the word, bits), lowest part first, and the bytes per unit.
TARGETS: dict[str, tuple[tuple[tuple[int, int], ...], int]] = {
    "split": (((16, 8), (34, 48)), 4),
    "whole": (((34, 48),), 4),
    "imm32": (((32, 32),), 1),
}


def _layout(form: str) -> tuple[list[tuple[int, int, int]], int, int]:
    """Return for each part of a distance its bit in the word, a mask of its width, and its bit in the distance; then
    the bits of the distance, and the bytes per unit.
    """
    parts, unit = TARGETS[form]
    found, width = [], 0
    for low, count in parts:
        found.append((low, (1 << count) - 1, width))
        width += count
    return found, width, unit


_FORMS = {form: _layout(form) for form in TARGETS}


class Control(NamedTuple):
    """The control part of a word; the reuse bits are one number."""

    stall: int
    hint: bool
    write_barrier: int
    read_barrier: int
    wait: int
    reuse: int


class Guard(NamedTuple):
    """The predicate that says which lanes execute."""

    predicate: int
    negated: bool

    @property
    def always(self) -> bool:
        """True if all lanes execute."""
        return self.predicate == PT and not self.negated


def bits(word: int, low: int, width: int) -> int:
    """Return a part of a word as an unsigned number."""
    return word >> low & (1 << width) - 1


def with_bits(word: int, low: int, width: int, value: int) -> int:
    """Return the word with a part replaced. Raises ValueError if the value doesn't fit."""
    if value >> width:
        raise ValueError(f"{value} doesn't fit {width} bits")
    return word & ~((1 << width) - 1 << low) | value << low


def opcode_of(word: int) -> int:
    """Return the opcode, including the kind of its operands."""
    return word & 0xFFF


def guard_of(word: int) -> Guard:
    """Return the guard of a word."""
    return Guard(word >> 12 & 7, bool(word >> 15 & 1))


def with_guard(word: int, guard: Guard) -> int:
    """Return the word with another guard."""
    return with_bits(word, 12, 4, guard.predicate | guard.negated << 3)


def control_of(word: int) -> Control:
    """Return the control part of a word."""
    high = word >> 105
    return Control(high & 15, bool(high >> 4 & 1), high >> 5 & 7, high >> 8 & 7, high >> 11 & 63, high >> 17 & 15)


def with_control(word: int, control: Control) -> int:
    """Return the word with its control part replaced. Raises ValueError if a number doesn't fit."""
    stall, hint, write, read, wait, reuse = control
    for value, width in ((stall, 4), (write, 3), (read, 3), (wait, 6), (reuse, 4)):
        if value >> width:
            raise ValueError(f"{value} doesn't fit {width} bits of the control part")
    part = stall | hint << 4 | write << 5 | read << 8 | wait << 11 | reuse << 17
    return word & ~CONTROL | part << 105


def target_of(word: int, form: str, offset: int) -> int:
    """Return the target of a jump at `offset`, in bytes from the start of its section."""
    parts, width, unit = _FORMS[form]
    value = 0
    for low, mask, shift in parts:
        value |= (word >> low & mask) << shift
    return offset + SIZE + unit * (value - (value >> width - 1 << width))


def with_target(word: int, form: str, offset: int, target: int) -> int:
    """Return the jump at `offset` with another target. Raises ValueError if it's too far or no multiple of a unit."""
    parts, width, unit = _FORMS[form]
    value, rest = divmod(target - offset - SIZE, unit)
    if rest or not -(1 << width - 1) <= value < 1 << width - 1:
        raise ValueError(f"a jump of {target - offset} bytes can't be encoded")
    for low, mask, shift in parts:
        word = word & ~(mask << low) | (value >> shift & mask) << low
    return word


def parse_words(code: bytes | bytearray | memoryview) -> list[int]:
    """Return the words of a section of code. Raises MalformedError if its size isn't a multiple of 16."""
    return [low | high << 64 for low, high in words_array(code).tolist()]


def words_array(code: bytes | bytearray | memoryview) -> npt.NDArray[np.uint64]:
    """Return the words of a section as rows of two numbers, low half first. Raises MalformedError."""
    if len(code) % SIZE:
        raise MalformedError(f"code of {len(code)} bytes, which is not a multiple of {SIZE}")
    return np.frombuffer(code, "<u8").reshape(-1, 2)


def dump_words(words: Iterable[int]) -> bytes:
    """Return words as bytes."""
    return b"".join([word.to_bytes(SIZE, "little") for word in words])
