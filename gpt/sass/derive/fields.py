"""Find the operands of an instruction word by flipping one bit at a time.

If bit 18 is bit 2 of a register number, flipping it makes nvdisasm print `R8` instead of `R12`, or vice versa. The
difference is 4, or 1 << 2, so the number begins two bits lower, at bit 16. This assumes nothing about where fields are.

Some forms of an instruction have fields that others don't; `find_fields` returns all fields seen in any of the words.

For sm_80 to sm_89, nvdisasm leaves the descriptor of global memory out of the text (`LDG.E R5, [R2.64]`), but lists its
registers. `find_hidden` examines those in the same way. It's slower, so it's used only for opcodes with such registers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gpt.sass.derive.oracle import Oracle

FIRST, LAST = 12, 104  # bits between opcode and control

# The mnemonic may look like a register: R2UR.
_PARTS = re.compile(r"(@!?U?P\w+)? *\S+(.*)")
_REGISTER = re.compile(r"(?<![\w.])!?(UR|UP|R|P|B)(Z|T|\d+)\b")


class Field(NamedTuple):
    """A register number in a word: the register file, the lowest bit, and how many bits."""

    file: str
    low: int
    width: int
    inverted: bool = False  # the bits hold the number's complement

    @property
    def flip(self) -> int:
        """Return a mask to XOR bits and number with."""
        return self.none if self.inverted else 0

    def number(self, word: int) -> int:
        """Return the register number in a word."""
        return (word >> self.low & self.none) ^ self.flip

    @property
    def none(self) -> int:
        """The number that means no register: RZ, URZ, PT and UPT have all bits set."""
        return (1 << self.width) - 1

    @property
    def mask(self) -> int:
        """The bits of the word that it occupies."""
        return self.none << self.low


def registers_of(text: str, sizes: dict[str, int]) -> list[tuple[str, int]]:
    """Return the registers that an instruction's text names, in order."""
    parts = _PARTS.match(text)
    if not parts:
        return []
    return [
        (file, int(number) if number.isdigit() else (1 << sizes[file]) - 1)
        for file, number in _REGISTER.findall(f"{parts[1] or ''} {parts[2]}")
    ]


def find_fields(oracle: Oracle, words: Sequence[int], sizes: dict[str, int]) -> list[Field]:
    """Return the operand fields of words with one opcode. `sizes` has the bits of each file's register numbers."""
    votes: set[tuple[str, int, int]] = set()  # file, lowest bit of the number, which of its bits
    straight: dict[tuple[str, int], list[int]] = {}  # how often setting a bit makes the number larger, or smaller
    legal: set[int] = set()
    for word in words:
        before, *turned = oracle.texts([word, *(word ^ 1 << bit for bit in range(FIRST, LAST + 1))])
        for bit, after in enumerate(turned, FIRST):
            if before is not None and after is not None:
                legal.add(bit)
                found = _moved(registers_of(before, sizes), registers_of(after, sizes), sizes)
                for file, place, up in found:
                    votes.add((file, bit - place, place))
                    straight.setdefault((file, bit - place), [0, 0])[up == (not word >> bit & 1)] += 1
    fields = []
    for file, low in sorted({vote[:2] for vote in votes}, key=lambda vote: (vote[1], vote[0])):
        places = [(file, low, place) in votes for place in range(sizes[file])]
        refused = [low + place not in legal for place in range(sizes[file])]
        # One bit may be missing. Bits that are always rejected count: a number may have to be a multiple of 8.
        if low >= FIRST and sum(places) > sizes[file] // 2 and sum(map(max, places, refused)) >= sizes[file] - 1:
            wrong, right = straight[file, low]
            fields.append(Field(file, low, sizes[file], wrong > right))
    return fields


def _moved(
    before: list[tuple[str, int]], after: list[tuple[str, int]], sizes: dict[str, int]
) -> Iterator[tuple[str, int, bool]]:
    """Yield each register that another one replaces: its file, the bit that differs, and whether the number grew."""
    if len(before) == len(after):
        changed = {(old, new) for old, new in zip(before, after, strict=True) if old != new}  # it may be printed twice
        # A number may stand for several operands: `tmem[UR4], idesc[UR5]`. All of them move together.
        if len({(old[0], new[0], new[1] - old[1]) for old, new in changed}) != 1:
            return
        (file, old), (other, new) = min(changed)
        if file != other:
            return
    else:  # an operand that's printed only if it's a register
        more, fewer = sorted((before, after), key=len, reverse=True)
        if len(more) != len(fewer) + 1:
            return
        extra = next(
            (index for index, pair in enumerate(zip(more, fewer, strict=False)) if pair[0] != pair[1]), len(fewer)
        )
        file, number = more[extra]
        none = (1 << sizes[file]) - 1
        old, new = (number, none) if more is before else (none, number)
    difference = old ^ new
    if difference and difference & difference - 1 == 0:
        yield file, difference.bit_length() - 1, new > old


def find_hidden(oracle: Oracle, words: Sequence[int], sizes: dict[str, int], known: Sequence[Field]) -> list[Field]:
    """Return the fields that show only in the lists of registers. The text of other forms may show a known one."""
    votes: set[tuple[str, int, int]] = set()
    for word in words:
        before = oracle.ask([word], each=True)[0]
        if before is None:
            continue
        named = registers_of(before.text, sizes)
        shown = [one for one in known if one.number(word) == one.none or (one.file, one.number(word)) in named]
        operands = sum({one.low: one.mask for one in shown}.values())
        bits = [bit for bit in range(FIRST, LAST + 1) if not operands >> bit & 1]
        for bit, after in zip(bits, oracle.ask([word ^ 1 << bit for bit in bits], each=True), strict=True):
            if after is None:
                continue
            for old, new in zip(before[1:], after[1:], strict=True):
                for file in {*old, *new}:
                    gone, come = old.get(file, 0) & ~new.get(file, 0), new.get(file, 0) & ~old.get(file, 0)
                    if gone and gone.bit_count() == come.bit_count():
                        # If n registers move by s, min(n, s) of them are gone, and the first of the old and new ones
                        # are max(n, s) apart.
                        apart = abs(come.bit_length() - gone.bit_length())
                        for step in {apart, gone.bit_count()}:
                            if step & step - 1 == 0:
                                votes.add((file, bit - step.bit_length() + 1, step.bit_length() - 1))
    return [
        Field(file, low, sizes[file])
        for file, low in sorted({vote[:2] for vote in votes}, key=lambda vote: (vote[1], vote[0]))
        if low >= FIRST and sum((file, low, place) in votes for place in range(sizes[file])) >= sizes[file] - 1
    ]
