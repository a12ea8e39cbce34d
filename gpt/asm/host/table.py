"""Define the format of the instruction tables.

A row has the syntax of an instruction, in the notation of the PTX manual, and its effect in C.

    Row("mul.hi.T", "d = a b", "({T})(({T.wide}){a} * {b} >> {T.bits})", T="u16 s16 u32 s32")
    Row("add{.sat}.s32", "d:s32 = a:s32 b:s32", "add_s32({a}, {b}, FLAG{sat})")
    Row("setp.C.T", "p:pred q:pred = a b", "{p} = {a} {C} {b}; {q} = !{p};", C={"lt": "<", ...}, T="s32 u32")

The form is the opcode with its modifiers. `{.sat}` is optional. A capital letter is the name of a set, and stands for
any word in it; `{.R}` is optional. The first row that matches the modifiers and the number of operands is used. If
there's none, modifiers may be in any order, as ptxas allows, but types and state spaces must be in order.

The signature lists the operands that the instruction writes, then the operands that it reads, each as `name:type`. The
type is a PTX type, a set of types, or derived from one (`T.wide`, `T.signed`, `T.unsigned`); the default is T. `a[4]`
is a vector of four operands, and `a[]` a vector of any length; both are arrays in C. An operand that's written may be
`_`, or missing (`p|q`). `a:address` is an address in brackets, `n:number` a constant, and `size:128` this very
constant. In a row without T, an operand without a type can be anything.

The code is either a C expression for the value of the only result, or statements that end with `;` and set variables
with the names of the results. `{a}` is an operand with its type in C. If a word is a PTX type, `{T}` is the type in C,
`{T.name}` the word, and `{T.bits}` the size. For other words, it's `_` and the word, or nothing if the word is absent,
so `ROUND{R}` and `FLAG{sat}` are names of constants in device.h. If a set is a dict, it's the value. `{thread}` and
`{site}` are the first arguments of services; an instruction that uses `{site}` gets a site.

A row's `needs` say which of its words can be combined, and which need a later target (needs.py).

If an instruction can't be expressed by a template, the code is a function. It gets the InstructionUse (use.py), checks
what the signature doesn't, raises Unsupported with a reason, and returns the statements. memory.py has functions for
addresses.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpt.asm.host.needs import Dialect, parse_rules
from gpt.ptx.types import PACKED, SIZES

_FLOATS = {"f32": "float", "f64": "double"}
_PART = re.compile(r"\{\.([\w:]+)\}|\.([\w:]+)")
_TYPE = re.compile(r"(?:[busf]|bf|tf)\d+(?:x\d)?|u?e\d+m\d+(?:x\d)?")
_ORDERED = {"mma", "wmma"}  # the order of words shows to which operand each belongs
_PHRASES = {
    "bar",
    "barrier",
    "cp",
    "createpolicy",
    "fence",
    "mbarrier",
    "red",
    "st",
}  # the first words are part of the opcode
_FIRST = {  # words that come before all others, in this order
    **dict.fromkeys(("mul", "mad", "mul24", "mad24", "madc"), (".lo", ".hi", ".wide")),
    **dict.fromkeys(("bar", "barrier"), (".cta", ".cluster", ".arrive", ".red")),
    "div": (".full",),
    "dp2a": (".lo", ".hi"),
    "cvta": (".to",),
    "cvt": (".pack",),
    "shf": (".l", ".r"),
    "membar": (".proxy",),
}
_SPACE = re.compile(r"\.(?:global|local|const|(?:shared|param)(?:::\w+)?)")  # a copy has two, and their order counts
_SLOT = re.compile(r"(\w+)(?::([\w.]+))?(?:(\[)(\d*)\])?")


@dataclass(frozen=True)
class PtxType:
    """A PTX type. `str` returns the type in C. In C, other types of at most 16 bits are unsigned integers."""

    name: str
    bits: int  # 8 for a predicate, as in C

    def __str__(self) -> str:
        if self.name in _FLOATS:
            return _FLOATS[self.name]
        if self.name == "pred":
            return "bool"
        return f"{'' if self.is_signed else 'u'}int{self.bits}_t"

    @property
    def is_signed(self) -> bool:
        """True for signed integers."""
        return self.name[0] == "s"

    @property
    def sign(self) -> int:
        """1 for a signed integer, 0 for anything else, for use in C."""
        return int(self.is_signed)

    @property
    def is_float(self) -> bool:
        """True if the C type is float or double."""
        return self.name in _FLOATS

    @property
    def size(self) -> int:
        """The size in bytes."""
        return self.bits // 8

    @property
    def wide(self) -> PtxType:
        """The integer of twice the size."""
        return TYPES[f"{self.name[0]}{2 * self.bits}"]

    @property
    def signed(self) -> PtxType:
        """The signed integer of its size."""
        return TYPES[f"s{self.bits}"]

    @property
    def unsigned(self) -> PtxType:
        """The unsigned integer of its size."""
        return TYPES[f"u{self.bits}"]


TYPES = {
    **{name: PtxType(name, 8 * size or 8) for name, size in SIZES.items()},
    **{name: PtxType(name, 8 * SIZES[plain]) for name, plain in PACKED.items()},
    **{f"{kind}128": PtxType(f"{kind}128", 128) for kind in "bus"},
}
Code = str | Callable[[Any], str]
Word = PtxType | str  # the value of a word in code


@dataclass(frozen=True)
class Slot:
    """An operand in a signature. `count` is the number of elements of a vector, or 0 if it can have any number; it's
    None for a single operand.
    """

    name: str
    type: str
    count: int | None


@dataclass(frozen=True)
class Match:
    """A row that matches an instruction, and the words of the instruction."""

    row: Row
    words: Mapping[str, Word]
    texts: frozenset[str]  # the words, and each of them after the name of its set: `T=f32`, `T=*`

    def refusal(self, dialect: Dialect) -> str:
        """Return why a module with this target and version can't contain the instruction, or "" if it can."""
        return next(filter(None, (rule.broken(self.texts, dialect) for rule in self.row.rules)), "")

    def find_type(self, slot: Slot) -> PtxType | None:
        """Return the type of an operand, or None if the row doesn't specify it."""
        first = slot.type.partition(".")[0]
        return self.type_of(slot) if first in TYPES or isinstance(self.words.get(first), PtxType) else None

    def type_of(self, slot: Slot) -> PtxType:
        """Return the type of an operand."""
        first, *derived = slot.type.split(".")
        found: Word = self.words.get(first) or TYPES[first]
        for name in derived:
            found = getattr(found, name)
        assert isinstance(found, PtxType)
        return found


class Row:
    """The translation of one form of an instruction to C."""

    def __init__(
        self, form: str, signature: str, code: Code, *, needs: str = "", **sets: str | Mapping[str, str]
    ) -> None:
        self.form = form
        self.opcode = re.split(r"[.{]", form, maxsplit=1)[0]
        self.code = code
        written, _, read = signature.rpartition("=")
        self.written = tuple(_slots(written))
        self.read = tuple(_slots(read))
        self.rules = parse_rules(needs)
        self.words = {name: _words(given) for name, given in sets.items()}

    def takes(self, count: int) -> bool:
        """Return whether the form has this number of operands."""
        return count == len(self.read) + bool(self.written)

    def match(self, modifiers: tuple[str, ...]) -> Match | None:
        """Match modifiers in this order. Return None if they don't fit the form."""
        if not self._spellings.issuperset(modifiers):  # spares most rows their pattern, which takes long to compile
            return None
        found = self._pattern.fullmatch("".join(modifiers))
        if not found:
            return None
        words = {_c_name(part): part for part, _ in self.parts}
        given = {words[name]: text and text[1:] for name, text in found.groupdict().items()}
        return self._match(given)

    def match_any_order(self, modifiers: tuple[str, ...]) -> Match | None:
        """Match modifiers in any order, except that types and state spaces must be in order."""
        first = tuple(word for word in _FIRST.get(self.opcode, ()) if word in modifiers)
        if modifiers[: len(first)] != first:
            return None
        if self.opcode in _PHRASES and modifiers[: len(self._phrase)] != self._phrase:
            return None
        types = [word for word in modifiers if _is_type(word[1:])]
        spaces = [word for word in modifiers if _SPACE.fullmatch(word)]
        others = [word for word in modifiers if word not in types and word not in spaces]
        given: dict[str, str | None] = {}
        for part, optional in self.parts:
            fits = self.words.get(part) or {part: ""}
            if types and types[0][1:] in fits:
                text: str | None = types.pop(0)
            elif spaces and spaces[0][1:] in fits:
                text = spaces.pop(0)
            elif text := next((other for other in others if other[1:] in fits), None):
                others.remove(text)
            elif not optional:
                return None
            if optional or part in self.words:
                given[part] = text and text[1:]
        return None if types or spaces or others else self._match(given)

    def _match(self, given: Mapping[str, str | None]) -> Match:
        words = {_c_name(part): self._word(part, text) for part, text in given.items()}
        texts = {text for part, word in given.items() if word for text in (word, f"{part}={word}", f"{part}=*")}
        fixed = {part for part, optional in self.parts if not optional and part not in self.words}
        return Match(self, words, frozenset(texts | fixed))

    def _word(self, part: str, text: str | None) -> Word:
        known = self.words.get(part)
        return "" if text is None else known[text] if known else f"_{_c_name(text)}"

    @cached_property
    def parts(self) -> list[tuple[str, bool]]:
        """The words of the form, and whether each of them is optional."""
        return [(part[1] or part[2], bool(part[1])) for part in _PART.finditer(self.form)]

    @cached_property
    def _phrase(self) -> tuple[str, ...]:
        """Return the words with which every form of this row begins."""
        fixed = itertools.takewhile(lambda part: not part[1] and part[0] not in self.words, self.parts)
        return tuple(f".{part}" for part, _ in fixed)

    @cached_property
    def _spellings(self) -> frozenset[str]:
        """Return all modifiers that forms of this row can have, with their dots."""
        texts = {text for part, _ in self.parts for text in self.words.get(part, [part])}
        return frozenset(f".{text}" for whole in texts for text in (whole, *whole.split(".")))

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("".join(itertools.starmap(self._piece, self.parts)))

    def _piece(self, part: str, optional: bool) -> str:
        if not optional and part not in self.words:
            return rf"\.{re.escape(part)}"
        texts = map(re.escape, self.words.get(part, [part]))
        return rf"(?P<{_c_name(part)}>\.(?:{'|'.join(texts)})){'?' if optional else ''}"


def _is_type(word: str) -> bool:
    return word in TYPES or bool(_TYPE.fullmatch(word))


def _c_name(word: str) -> str:
    return word.replace("::", "_")


def _slots(text: str) -> Iterable[Slot]:
    for name, type_, bracket, count in _SLOT.findall(text):
        yield Slot(name, type_ or "T", int(count or 0) if bracket else None)


def _words(given: str | Mapping[str, str]) -> dict[str, Word]:
    if isinstance(given, str):
        return {word: TYPES.get(word, f"_{_c_name(word)}") for word in given.split()}
    return dict(given)


class InstructionTable:
    """Rows by opcode."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows: dict[str, list[Row]] = {}
        for row in rows:
            self.rows.setdefault(row.opcode, []).append(row)
        self._known: dict[tuple[str, tuple[str, ...], int, Dialect], Match | str] = {}

    def find(self, opcode: str, modifiers: tuple[str, ...], count: int, dialect: Dialect) -> Match | str:
        """Return the first row that matches an instruction with `count` operands. The modifiers include their dots.

        If there's none, return the reason: the rule that's broken in the first row with these words, if there's such a
        row.
        """
        key = opcode, modifiers, count, dialect
        if key not in self._known:
            self._known[key] = self._find(opcode, modifiers, count, dialect)
        return self._known[key]

    def _find(self, opcode: str, modifiers: tuple[str, ...], count: int, dialect: Dialect) -> Match | str:
        if modifiers.count(".xorsign") == modifiers.count(".abs") == 1:  # the table treats them as one word
            at = modifiers.index(".xorsign")
            modifiers = (*modifiers[:at], ".xorsign.abs", *modifiers[at + 1 :])
            modifiers = tuple(word for word in modifiers if word != ".abs")
        rows = [row for row in self.rows.get(opcode, ()) if row.takes(count)]
        refused = ""
        for way in (Row.match,) if opcode in _ORDERED else (Row.match, Row.match_any_order):
            for row in rows:
                if match := way(row, modifiers):
                    refusal = match.refusal(dialect)
                    if not refusal:
                        return match
                    refused = refused or refusal
        return refused or self._reason(opcode, modifiers, count)

    def _reason(self, opcode: str, modifiers: tuple[str, ...], count: int) -> str:
        """Return a sentence that compares an instruction with the most similar forms in the table."""
        rows = self.rows.get(opcode, ())
        if not rows:
            return "not supported"
        for at, word in enumerate(modifiers):
            fewer = modifiers[:at] + modifiers[at + 1 :]
            if any(row.takes(count) and row.match_any_order(fewer) for row in rows):
                return f"'{word}' doesn't go with the rest"
        for row in rows:
            for part, optional in row.parts:
                if not optional and row.takes(count):
                    for word in row.words.get(part, {part: ""}):
                        if row.match_any_order((*modifiers, f".{word}")):
                            return f"needs one of {' '.join('.' + one for one in row.words.get(part, {part: ''}))}"
        counts = {len(row.read) + bool(row.written) for row in rows if row.match_any_order(modifiers)}
        if counts:
            return f"{count} operands, not {' or '.join(map(str, sorted(counts)))}"
        known = {word for row in rows for part, _ in row.parts for word in row.words.get(part, {part: ""})}
        strange = [word for word in modifiers if word[1:] not in known]
        return f"'{strange[0]}' of '{opcode}' isn't supported" if strange else "not supported"
