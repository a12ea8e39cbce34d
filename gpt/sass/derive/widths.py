"""Find out how many registers each operand has, and which other bits of the word determine that.

A word is measured with a different number in each field, far from the others, so that the registers that nvdisasm lists
from there on belong to that field. The text says whether this form of the instruction has the field at all. A listed
register that belongs to no field is an error, since the table would miss something.

The bits that aren't operands are modifiers. `find_counts` looks for the modifiers that the number of registers depends
on (the selectors), and asks for each of their values. It flips each modifier of a few words, and then tries random
combinations, to find modifiers that only matter in combination.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from gpt.sass.derive.fields import FIRST, LAST, Field, registers_of
from gpt.sass.derive.oracle import Effect, Oracle
from gpt.sass.tables import UNKNOWN, Count

# Numbers for fields, by their lowest bit. Their lower six bits, which uniform registers have, are far apart as well,
# and there's room for the 128 registers that a warp group reads at 64, and for 8 uniform ones at 48. The 128 that it
# writes at 16 include all numbers that follow (_run). None is 0: nvdisasm doesn't list UR0.
SPREAD = {16: 16, 24: 40, 32: 72, 64: 120, 40: 96, 48: 44}
MOST_SELECTORS = 9
TURNED = 2  # words per opcode in which every modifier is flipped
FEW = 5  # up to this many selectors, every value is tried with several words
TRIES = 24  # random words per opcode


@dataclass
class Unexplained:
    """A word for which nvdisasm lists registers that no field names."""

    word: int
    text: str
    registers: str


@dataclass
class Samples:
    """Measured words of one opcode: the registers written and read through each field, by modifiers."""

    fields: list[Field]
    sizes: dict[str, int]  # bits of a register number, by register file
    call: bool
    hidden: list[Field] = field(default_factory=list)  # fields in `fields` that some or all texts don't name
    each: bool = False  # words with the same text may differ in their registers
    modifiers: int = 0  # mask of the bits that aren't operands
    known: dict[int, tuple[tuple[int, int], ...] | None] = field(default_factory=dict)
    unexplained: list[Unexplained] = field(default_factory=list)
    unplaced: list[Unexplained] = field(default_factory=list)  # texts that name RZ or PT, but no field is known for it
    queue: list[int] = field(default_factory=list)
    neighbours: list[tuple[int, int, int]] = field(default_factory=list)  # a bit, and two keys that differ in it

    def __post_init__(self) -> None:
        operands = 0
        for one in self.fields:
            operands |= one.mask
        self.modifiers = ((1 << LAST + 1) - (1 << FIRST)) & ~operands

    def want(self, words: Iterable[int]) -> None:
        """Queue words for `measure`; operands don't matter."""
        self.queue += [key for word in words if (key := self.key(word)) not in self.known]

    def key(self, word: int) -> int:
        """Return the word without its operands."""
        return word & (self.modifiers | 0xFFF)

    def spread(self, key: int) -> int:
        """Return the word with numbers in its fields."""
        predicates = iter((1, 2, 3, 4, 5, 6, 0))  # P0 last: bits that no field has yet are often zero
        narrow = {one.low for one in self.fields if one.file == "UR"}  # nvdisasm lists none above UR63
        taken = 0
        word = key
        # Register numbers first: in another form, the same bits may be a predicate.
        for one in sorted(self.fields, key=lambda one: (one.width < 6, one.low)):
            if not one.mask & taken:
                value = next(predicates) if one.width < 6 else SPREAD.get(one.low, one.low) & one.none
                value &= 63 if one.low in narrow and self.sizes["UR"] > 6 else one.none
                word |= (value ^ one.flip) << one.low
                taken |= one.mask
        return word

    def read(self, word: int, effect: Effect | None) -> tuple[tuple[int, int], ...] | None:
        """Return the registers written and read through each field, or None if nvdisasm rejected the word."""
        if effect is None or "???" in effect.text:  # a modifier value without a name
            return None
        named = set(registers_of(effect.text, self.sizes))
        shape = []
        for one in self.fields:
            number = one.number(word)
            there = one in self.hidden or (one.file, number) in named
            writes, reads = (_run(listed.get(one.file, 0), number, one) if there else 0 for listed in effect[1:])
            shape.append((writes, reads))
        if self.call:  # anything else in the list is a guess about the called function
            return tuple((0, reads) for _, reads in shape)
        left = _left(effect, word, self.fields, shape)
        ours = {
            (one.file, one.number(word) + more)
            for one, counts in zip(self.fields, shape, strict=True)
            for more in range(max(1, *counts))
        }
        unplaced = ""
        for file, number in sorted(named):  # nvdisasm doesn't list UR0, but prints it
            if (file, number) in ours:
                continue
            if number == (1 << self.sizes[file]) - 1:
                unplaced += f" names {file}, no register"
            else:
                left += f" names {file}{number}"
        if left:
            self.unexplained.append(Unexplained(word, effect.text, left))
        elif unplaced:
            self.unplaced.append(Unexplained(word, effect.text, unplaced))
        return tuple(shape)


def _run(mask: int, number: int, one: Field) -> int:
    """Return how many consecutive registers from a number on are in the mask. If the one before is, too, they belong to
    a field with a lower number.
    """
    if one.width < 6:
        return mask >> number & 1
    if number and mask >> number - 1 & 1:
        return 0
    mask >>= number
    return (~mask & mask + 1).bit_length() - 1


def _left(effect: Effect, word: int, fields: list[Field], shape: Sequence[Sequence[int]]) -> str:
    left = []
    for role, listed in enumerate((effect.writes, effect.reads)):
        for file, mask in listed.items():
            for one, counts in zip(fields, shape, strict=True):
                if one.file == file:
                    mask &= ~((1 << counts[role]) - 1 << one.number(word))
            if mask:
                left.append(f"{('writes', 'reads')[role]} {file} {mask:#x}")
    return ", ".join(left)


def measure(oracle: Oracle, every: Iterable[Samples]) -> None:
    """Measure the queued words of all opcodes in one run."""
    asked = []
    for samples in every:
        new = [key for key in dict.fromkeys(samples.queue) if key not in samples.known]
        asked += [(samples, key, samples.spread(key)) for key in new]
        samples.queue.clear()
    oracle.ask([word for samples, _, word in asked if not samples.each])
    oracle.ask([word for samples, _, word in asked if samples.each], each=True)
    effects = [oracle.ask([word], each=samples.each)[0] for samples, _, word in asked]
    for (samples, key, word), effect in zip(asked, effects, strict=True):
        samples.known[key] = shape = samples.read(word, effect)
        if shape is not None:
            others = ((bit, key ^ 1 << bit) for bit in range(FIRST, LAST + 1) if samples.modifiers >> bit & 1)
            samples.neighbours += [(bit, key, other) for bit, other in others if samples.known.get(other) is not None]


def modifiers_of(samples: Samples) -> list[int]:
    """Return the bits of an opcode that aren't operands."""
    return [bit for bit in range(FIRST, LAST + 1) if samples.modifiers >> bit & 1]


def find_counts(oracle: Oracle, every: Sequence[tuple[Samples, Sequence[int]]]) -> None:
    """Measure opcodes, each with words that ptxas made, until the selectors of all their fields are known."""
    for samples, seeds in every:
        chance = random.Random(seeds[0])  # the same on every run
        modifiers = modifiers_of(samples)
        samples.want([*seeds, *(seed ^ 1 << bit for seed in seeds[:TURNED] for bit in modifiers)])
        for _ in range(TRIES if modifiers else 0):
            word = chance.choice(seeds)
            for _ in range(chance.randint(2, 4)):
                word ^= 1 << chance.choice(modifiers)
            samples.want([word])
    left = list(every)
    while left:
        measure(oracle, [samples for samples, _ in left])
        for samples, seeds in left:
            for index in range(len(samples.fields)):
                for role in range(2):
                    selectors = _selectors(samples, index, role)
                    samples.want(_missing(samples, seeds, selectors, index, role))
                    samples.want(_pairs(samples, seeds, selectors, index, role))
        left = [(samples, seeds) for samples, seeds in left if samples.queue]


def _pairs(samples: Samples, seeds: Sequence[int], selectors: Sequence[int], index: int, role: int) -> Iterator[int]:
    """Yield words in which a selector is flipped together with another bit, which may matter only then: bits 73 and 74
    of ULDC do where 75 is set. There's a word of ptxas for each number of registers.
    """
    shapes = ((samples.known.get(samples.key(seed)), seed) for seed in seeds)
    for seed in {shape[index][role]: seed for shape, seed in shapes if shape}.values():
        for one in selectors:
            yield from (seed ^ 1 << one ^ 1 << other for other in modifiers_of(samples) if other != one)


def counts_of(samples: Samples) -> list[tuple[Count, Count]]:
    """Return how many registers each field writes and reads. All samples must have been measured."""
    return [
        (
            _count(samples, _selectors(samples, index, 0), index, 0),
            _count(samples, _selectors(samples, index, 1), index, 1),
        )
        for index in range(len(samples.fields))
    ]


def _values(samples: Samples, index: int, role: int) -> dict[int, int]:
    return {key: shape[index][role] for key, shape in samples.known.items() if shape is not None}


def _selectors(samples: Samples, index: int, role: int) -> list[int]:
    """Return the fewest bits that determine the number of registers in all samples."""
    values = _values(samples, index, role)
    if len(set(values.values())) < 2:
        return []
    chosen = sorted({bit for bit, one, other in samples.neighbours if values[one] != values[other]})
    while not _decides(chosen, values):
        left = [bit for bit in range(FIRST, LAST + 1) if samples.modifiers >> bit & 1 and bit not in chosen]
        if not left:
            break
        chosen.append(min(left, key=lambda bit: _conflicts([*chosen, bit], values)))
    seen = {bit for bit, one, other in samples.neighbours if values[one] != values[other]}
    for bit in sorted(chosen, key=lambda bit: (bit in seen, -bit)):  # first drop bits that never seemed to matter
        fewer = [other for other in chosen if other != bit]
        if _decides(fewer, values):
            chosen = fewer
    return sorted(chosen)


def _groups(bits: Sequence[int], values: dict[int, int]) -> dict[int, set[int]]:
    mask = sum(1 << bit for bit in bits)
    groups: dict[int, set[int]] = {}
    for key, value in values.items():
        groups.setdefault(key & mask, set()).add(value)
    return groups


def _decides(bits: Sequence[int], values: dict[int, int]) -> bool:
    mask = sum(1 << bit for bit in bits)
    seen: dict[int, int] = {}
    return all(seen.setdefault(key & mask, value) == value for key, value in values.items())


def _conflicts(bits: Sequence[int], values: dict[int, int]) -> int:
    return sum(len(group) - 1 for group in _groups(bits, values).values())


def _missing(samples: Samples, seeds: Sequence[int], selectors: list[int], index: int, role: int) -> list[int]:
    """Return three words for each value of the selectors that no sample has, or for every value if there are few."""
    if len(selectors) > MOST_SELECTORS:
        return []
    have = _groups(selectors, _values(samples, index, role))
    mask = sum(1 << bit for bit in selectors)
    return [
        seed & ~mask | value
        for value in (_scatter(number, selectors) for number in range(1 << len(selectors)))
        if value not in have or len(selectors) <= FEW
        for seed in seeds[:3]
    ]


def _scatter(number: int, bits: Sequence[int]) -> int:
    return sum((number >> index & 1) << bit for index, bit in enumerate(bits))


def _count(samples: Samples, selectors: list[int], index: int, role: int) -> Count:
    groups = _groups(selectors, _values(samples, index, role))
    numbers = [max(groups.get(_scatter(number, selectors), {UNKNOWN})) for number in range(1 << len(selectors))]
    return Count(tuple(selectors), tuple(numbers))
