"""Make the table of an architecture: compile the test kernels, and ask nvdisasm about every opcode in them.

An opcode for which nvdisasm lists a register that no operand names is left out: rejecting it is better than a wrong
entry. So is one if nvdisasm lists no registers for any of its words that were tried. The table's head names both.

Opcodes that differ only in the kind of an operand (a register, a constant, a uniform register: bits 9 to 11) are forms
of one instruction. ptxas uses only some of them, so the others are tried as well, in words made from a known form.
"""

from __future__ import annotations

import re
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from gpt.sass.arch import SassArch, arch_of
from gpt.sass.derive.fields import FIRST, LAST, Field, find_fields, find_hidden
from gpt.sass.derive.kernels import compile_ptx, iter_modules
from gpt.sass.derive.oracle import STALL, Oracle
from gpt.sass.derive.widths import Samples, Unexplained, counts_of, find_counts
from gpt.sass.tables import NEVER, Count, Opcode, Operand, Table
from gpt.sass.words import (
    CONTROL,
    NO_BARRIER,
    SIZE,
    TARGETS,
    control_of,
    parse_words,
    target_of,
    with_bits,
    with_target,
)

SEEDS = 16  # words measured per opcode
ROUNDS = 4
SEEN = 3  # words in which every bit is flipped
OTHER = 6  # words of a form that no test kernel has
TURNS = (0, *(1 << bit for bit in range(FIRST, LAST + 1)))
JUMPS = ("BRA", "CALL", "BSSY", "WARPSYNC", "JMP")  # their text has the target, not the distance

_NAME = re.compile(r"(?:@!?U?P\w+ +)?(\w+)")
_DISTANCE = re.compile(r"\.([-+]0x[0-9a-f]+)$")
_PREDICATES = re.compile(r"\b(U?PR)\b(?:, U?RZ, (0x[0-9a-f]+))?")


def iter_code(cubin: bytes) -> Iterator[int]:
    """Yield the words of a cubin that ptxas made."""
    (shoff,) = struct.unpack_from("<Q", cubin, 40)
    count, names = struct.unpack_from("<HH", cubin, 60)
    headers = [struct.unpack_from("<IIQQQQIIQQ", cubin, shoff + 64 * index) for index in range(count)]
    for name, _, _, _, offset, size, *_ in headers:
        if cubin.startswith(b".text.", headers[names][4] + name):
            yield from parse_words(cubin[offset : offset + size])


class Derivation:
    """The derivation of one table, and what it found on the way."""

    def __init__(self, arch: str, ptxas: str, nvdisasm: str) -> None:
        self.facts: SassArch = arch_of(arch)
        self.unexplained: list[Unexplained] = []
        self.left_out: list[int] = []
        self.seeds: dict[int, list[int]] = defaultdict(list)
        self._variable: set[int] = set()
        cubin = compile_ptx(ptxas, arch, "".join(text for _, text in iter_modules(arch)))
        self.oracle = Oracle(nvdisasm, arch, cubin[:64])
        for word in iter_code(cubin):
            control = control_of(word)
            if NO_BARRIER not in (control.write_barrier, control.read_barrier) or (
                control.write_barrier != control.read_barrier
            ):
                self._variable.add(word & 0x1FF)
            self.seeds[word & 0xFFF].append(word & ~CONTROL | STALL)

    def opcodes(self) -> dict[int, Opcode]:
        """Derive every opcode of the test kernels, and their other forms."""
        seeds = {number: _choose(words) for number, words in self.seeds.items()}
        self._ask_texts(seeds)  # ask for everything at once, here and below, so that later steps find it in the cache
        seeds.update(self._other_forms(seeds))
        self._ask_texts(seeds)
        forms = {}
        for number, words in seeds.items():
            seeds[number], forms[number] = self._aim(words)
        self._ask_texts(seeds)
        every = self._measure(seeds)
        self.unexplained = [one for samples in every.values() for one in samples.unexplained]
        self.left_out = [
            number
            for number, samples in sorted(every.items())
            if samples.unexplained or not any(shape is not None for shape in samples.known.values())
        ]
        return {
            number: self._opcode(number, samples, seeds[number], forms[number])
            for number, samples in sorted(every.items())
            if number not in self.left_out
        }

    def _measure(self, seeds: dict[int, list[int]]) -> dict[int, Samples]:
        """Find the fields and widths of every opcode, in rounds: a form may have operands that no earlier one had."""
        sizes = self.facts.register_bits
        turned = {number: words[:SEEN] for number, words in seeds.items()}
        hidden: dict[int, list[int]] = defaultdict(list)
        left = sorted(seeds)
        every: dict[int, Samples] = {}
        for turn in range(ROUNDS):
            self.oracle.texts([word ^ bit for number in left for word in turned[number] for bit in TURNS])
            self.oracle.ask([word ^ bit for words in hidden.values() for word in words for bit in TURNS], each=True)
            for number in left:
                fields = _with_others(number, find_fields(self.oracle, turned[number], sizes), every)
                more = find_hidden(self.oracle, hidden[number], sizes, fields)
                call = any(_name(text) == "CALL" for text in self.oracle.texts(seeds[number]) if text)
                every[number] = Samples(sorted({*fields, *more}, key=_order), sizes, call, more, each=turn > 0)
            find_counts(self.oracle, [(every[number], seeds[number]) for number in left])
            # A text that names RZ or PT may just say so always. Turning bits, once, shows whether there's a field.
            left = [number for number in left if every[number].unexplained or (every[number].unplaced and not turn)]
            for number in left:
                words = _one_of_each(every[number].unexplained or every[number].unplaced)
                turned[number] = turned[number] + words
                if turn:  # flipping those bits didn't make the text show the operand
                    hidden[number] += words
        return every

    def _ask_texts(self, words: Mapping[int, Sequence[int]]) -> None:
        self.oracle.texts([word for some in words.values() for word in some])

    def _other_forms(self, seeds: dict[int, list[int]]) -> dict[int, list[int]]:
        """Return words for opcodes that the test kernels have only in another form."""
        names: dict[int, set[str]] = defaultdict(set)
        for number, words in seeds.items():
            names[number & 0x1FF].update(_name(text) for text in self.oracle.texts(words) if text)
        tried: dict[int, list[int]] = defaultdict(list)
        for number, words in seeds.items():
            for form in range(8):
                other = number & 0x1FF | form << 9
                if other not in seeds:
                    for low, value in (
                        (0, other),
                        (32, 4),
                        (64, 0),
                    ):  # the second for a uniform register, the last for none
                        words = [with_bits(word, low, 8 if low else 12, value) for word in words]
                        tried[other] += [with_bits(word, 90, 2, kind) for word in words for kind in range(4)]
        self._ask_texts(tried)
        found = {}
        for number, words in tried.items():
            pairs = zip(words, self.oracle.texts(words), strict=True)
            fit = [word for word, text in pairs if text and _name(text) in names[number & 0x1FF]]
            if fit:
                found[number] = _choose(fit)[:OTHER]
        return found

    def _aim(self, words: list[int]) -> tuple[list[int], str | None]:
        """Find the form in which words with jumps store the distance, and return them with the next word as target."""
        texts = [text or "" for text in self.oracle.texts(words)]
        found = [(word, text, _DISTANCE.search(text)) for word, text in zip(words, texts, strict=True)]
        jumps = [(word, text, int(distance[1], 16)) for word, text, distance in found if distance]
        forms = [
            form for form in TARGETS
            if jumps and all(target_of(word, form, 0) == distance for word, _, distance in jumps)
        ]  # fmt: skip
        # The forms that fit may differ in how wide they are, which only a jump backward shows.
        backward = [with_target(jumps[0][0], form, 0, -SIZE) for form in forms] if len(forms) > 1 else []
        for word, text in zip(backward, self.oracle.texts(backward), strict=True):
            if found_distance := _DISTANCE.search(text or ""):
                forms = [form for form in forms if target_of(word, form, 0) == int(found_distance[1], 16)]
        for form in forms:
            names = {_name(text) for _, text, _ in jumps}
            return [with_target(word, form, 0, SIZE) for word in words], form if names & {*JUMPS} else None
        return words, None

    def _opcode(self, number: int, samples: Samples, words: Sequence[int], target: str | None) -> Opcode:
        texts = [text for text in self.oracle.texts(words) if text]
        names = "/".join(dict.fromkeys(_name(text) for text in texts))
        operands = []
        for one, (writes, reads) in zip(samples.fields, counts_of(samples), strict=True):
            if one.file == "B":
                operands.append(_barrier_operand(names, texts, one.low))
            elif (writes, reads) != (NEVER, NEVER):
                operands.append(Operand(one.file, one.low, writes, reads, one.inverted))
        operands += _predicate_masks(texts)
        return Opcode(number, names, number & 0x1FF in self._variable, target, tuple(operands))


def _one_of_each(unexplained: list[Unexplained]) -> list[int]:
    """Return a few words with different operands."""
    kinds: dict[str, int] = {}
    for one in unexplained:
        kinds.setdefault(
            f"{re.sub(r'[0-9]+', '#', one.text.partition(' ')[2])} {one.registers.split('0x')[0]}", one.word
        )
    return list(kinds.values())[:SEEN]


def _choose(words: list[int]) -> list[int]:
    """Return words with different modifiers, the most different first."""
    by_modifiers: dict[int, int] = {}
    for word in sorted(set(words)):
        key = word >> 72
        by_modifiers[key] = max(by_modifiers.get(key, word), word, key=_variety)
    left = sorted(by_modifiers.values(), key=_variety)
    chosen = [left.pop()]
    while left and len(chosen) < SEEDS:
        chosen.append(max(left, key=lambda word: min((word >> 72 ^ one >> 72).bit_count() for one in chosen)))
        left.remove(chosen[-1])
    return chosen


def _variety(word: int) -> int:
    """Count the distinct bytes in the usual places of registers."""
    return len({word >> low & 0xFF for low in (16, 24, 32, 64)} - {0xFF, 0})


def _with_others(number: int, fields: list[Field], every: Mapping[int, Samples]) -> list[Field]:
    """Add predicates that were seen in another form of the instruction."""
    for other, samples in every.items():
        if other & 0x1FF == number & 0x1FF:
            taken = sum({field.low: field.mask for field in fields}.values())
            fields = fields + [one for one in samples.fields if one.file in ("P", "UP") and not one.mask & taken]
    return sorted(fields, key=_order)


def _order(one: Field) -> tuple[int, str]:
    return one.low, one.file


def _name(text: str) -> str:
    found = _NAME.match(text)
    return found[1] if found else text


def _predicate_masks(texts: list[str]) -> list[Operand]:
    """Return the operand that is a mask of predicates. nvdisasm doesn't list these as written or read."""
    found = next((found for text in texts if (found := _PREDICATES.search(text))), None)
    if not found:
        return []
    once = Count((), (1,))
    first = any(re.match(r"(?:@!?U?P\w+ +)?\S+ U?PR\b", text) for text in texts)
    masked = any(re.search(r"0x[0-9a-f]+$", text) for text in texts)
    return [Operand(found[1], 32 if masked else None, once if first else NEVER, NEVER if first else once)]


def _barrier_operand(name: str, texts: list[str], low: int) -> Operand:
    """Return the operand that is a convergence barrier, for which nvdisasm has no column.

    BSSY sets a barrier and BSYNC reads it. BREAK takes lanes out of one; BMOV moves it to a register and may clear it.
    """
    once = Count((), (1,))
    if name == "BSSY" or (name == "BMOV" and any(re.search(r"BMOV\S* B\d", text) for text in texts)):
        return Operand("B", low, once, NEVER)
    return Operand("B", low, NEVER if name == "BSYNC" else once, once)


def derive_table(arch: str, ptxas: str, nvdisasm: str, made_with: str) -> tuple[Table, Derivation]:
    """Return the table of an architecture, and the derivation that found it."""
    derivation = Derivation(arch, ptxas, nvdisasm)
    return Table(derivation.facts, made_with, derivation.opcodes()), derivation
