"""Where operands stand in a word, by turning one bit at a time.

If bit 18 is the third bit of a register number, turning it makes nvdisasm name the register 4 higher or lower, in
place of the one before. So for each bit that moves registers, the distance says which bit of a number it is, and
the number begins that many bits below. Nothing is assumed about where fields are or how wide they are.

A field may be there in some forms of an instruction and not in others; `find_fields` returns all that were seen in any
of the words. Convergence barriers (B0-B15) have no column in nvdisasm's listing, so they are read from the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gpt.sass.derive.oracle import Effect, Oracle

FIRST, LAST = 12, 104  # bits between opcode and control
_BARRIER = re.compile(r"\bB(\d+)\b")


class Field(NamedTuple):
    """A register number in a word: register file, lowest bit, bits."""

    file: str
    low: int
    width: int

    @property
    def none(self) -> int:
        """The number that means no register: RZ, URZ, PT and UPT have all bits set."""
        return (1 << self.width) - 1

    @property
    def mask(self) -> int:
        """The bits of the word that it takes."""
        return self.none << self.low


def find_fields(oracle: Oracle, words: Sequence[int], sizes: dict[str, int]) -> list[Field]:
    """Return the operand fields of words with one opcode. `sizes` has the bits of a register number of each file."""
    turned = [word ^ 1 << bit for word in words for bit in range(FIRST, LAST + 1)]
    oracle.ask([*words, *turned])
    votes: set[tuple[str, int, int]] = set()  # file, lowest bit of the number, which of its bits
    legal: set[int] = set()
    for word in words:
        before = oracle.ask([word])[0]
        for bit in range(FIRST, LAST + 1):
            after = oracle.ask([word ^ 1 << bit])[0]
            if before and after:
                legal.add(bit)
                votes.update((file, bit - place, place) for file, place in _moves(before, after, sizes))
    return sorted(
        (
            Field(file, low, sizes[file])
            for file, low in {vote[:2] for vote in votes}
            if _is_number(low, sizes[file], [place for place in range(sizes[file]) if (file, low, place) in votes], legal)
        ),
        key=lambda field: (field.low, field.file),
    )


def _is_number(low: int, size: int, seen: list[int], legal: set[int]) -> bool:
    """Whether bits that were seen to move registers make a number: one may be missing, and those always refused."""
    refused = sum(low + place not in legal for place in range(size))
    return low >= FIRST and len(seen) + refused >= size - (size > 4) and len(seen) > size // 2


def _moves(before: Effect, after: Effect, sizes: dict[str, int]) -> Iterable[tuple[str, int]]:
    """Yield (file, bit of the register number) for each set of registers that moved by a power of two."""
    seen = set()
    for old, new in ((before.writes, after.writes), (before.reads, after.reads)):
        for file in {*old, *new}:
            seen.update((file, place) for place in _moved(old.get(file, 0), new.get(file, 0), sizes[file]))
    return seen


def _moved(old: int, new: int, size: int) -> list[int]:
    """Return which bits of a register number may have been turned."""
    gone, come = old & ~new, new & ~old
    if gone and come:
        # A group of n registers that moved by s: min(n, s) of them are gone, and the first gone and the first that came
        # are max(n, s) apart. Which of the two was s is decided by the votes of other bits.
        apart = abs((come & -come).bit_length() - (gone & -gone).bit_length())
        steps = {apart, gone.bit_count()} if gone.bit_count() == come.bit_count() else set()
    elif gone or come:  # from or to the number that means no register
        lowest = (gone or come) & -(gone or come)
        steps = {(1 << size) - 1 ^ lowest.bit_length() - 1}
    else:
        steps = set()
    return [step.bit_length() - 1 for step in steps if step and step & step - 1 == 0 and step < 1 << size]


def barriers_of(text: str) -> list[int]:
    """Return the convergence barriers that an instruction's text names."""
    return [int(number) for number in _BARRIER.findall(text)]
