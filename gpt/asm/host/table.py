"""The form of the tables of instructions: a row says, as the PTX manual does, how an instruction is written, and in C
what it does.

    Row("mul.hi.T", "d = a b", "({T})(({T.wide}){a} * {b} >> {T.bits})", T="u16 s16 u32 s32")
    Row("add{.sat}.s32", "d:s32 = a:s32 b:s32", "add_s32({a}, {b}, FLAG{sat})")
    Row("setp.C.T", "p:pred q:pred = a b", "{p} = {a} {C} {b}; {q} = !{p};", C={"lt": "<", ...}, T="s32 u32")

The form: words as they stand; `{.sat}` may be absent; one that names a set, by a capital letter, is any word of it,
`{.R}` any or none. The first row that fits the instruction, modifiers and number of operands, is taken.

The signature: what the instruction writes, then what it reads, each `name:type`. The type is a PTX type, a set with
types, or one derived of it (`T.wide`, `T.signed`, `T.unsigned`); without one it is T. `a[4]` is a vector of four
operands, `a[]` of any number: an array in C. What is written may be `_` or left out (`p|q`); what is read may not.

The code: a C expression, the value of the one thing that is written; or statements, which have a `;` and set
variables of the names of what is written. `{a}` is an operand, of its type in C. `{T}` is the C type of a word that is
a PTX type, `{T.name}` the word, `{T.bits}` its size. Any other word that is there is `_` and the word, nothing if it
is absent, so that `ROUND{R}` and `FLAG{sat}` name constants of device.h; of a set given as a dict it is the value.
`{thread}` and `{site}` are the first arguments of services; an instruction that uses `{site}` gets one.

A row whose code is a function writes what no template can: it is called with the Use (use.py) of the instruction.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpt.ptx.types import PACKED, SIZES

_FLOATS = {"f32": "float", "f64": "double"}
_PART = re.compile(r"\{\.([\w:]+)\}|\.([\w:]+)")
_SLOT = re.compile(r"(\w+)(?::([\w.]+))?(?:(\[)(\d*)\])?")


@dataclass(frozen=True)
class Type:
    """A PTX type; its text is the C type. Types of 16 bits and fewer that are no integers are plain bits in C."""

    name: str
    bits: int  # 8 for a predicate, as C has it

    def __str__(self) -> str:
        if self.name in _FLOATS:
            return _FLOATS[self.name]
        if self.name == "pred":
            return "bool"
        return f"{'' if self.is_signed else 'u'}int{self.bits}_t"

    @property
    def is_signed(self) -> bool:
        """Whether it is a signed integer."""
        return self.name[0] == "s"

    @property
    def sign(self) -> int:
        """1 of a signed integer, else 0, as C takes it."""
        return int(self.is_signed)

    @property
    def is_float(self) -> bool:
        """Whether its C type is float or double."""
        return self.name in _FLOATS

    @property
    def size(self) -> int:
        """Bytes."""
        return self.bits // 8

    @property
    def wide(self) -> Type:
        """The integer of twice the size."""
        return TYPES[f"{self.name[0]}{2 * self.bits}"]

    @property
    def signed(self) -> Type:
        """The signed integer of its size."""
        return TYPES[f"s{self.bits}"]

    @property
    def unsigned(self) -> Type:
        """The unsigned integer of its size."""
        return TYPES[f"u{self.bits}"]


TYPES = {
    **{name: Type(name, 8 * size or 8) for name, size in SIZES.items()},
    **{name: Type(name, 8 * SIZES[plain]) for name, plain in PACKED.items()},
    **{f"{kind}128": Type(f"{kind}128", 128) for kind in "bus"},
}
Word = Type | str  # what stands for a word of an instruction in code


@dataclass(frozen=True)
class Slot:
    """An operand in a signature. `count` is None of one that is no vector, 0 of a vector of any size."""

    name: str
    type: str
    count: int | None


@dataclass(frozen=True)
class Match:
    """A row with the words that an instruction has."""

    row: Row
    words: Mapping[str, Word]

    def type_of(self, slot: Slot) -> Type:
        """The type of an operand."""
        first, *derived = slot.type.split(".")
        found: Word = self.words.get(first) or TYPES[first]
        for name in derived:
            found = getattr(found, name)
        assert isinstance(found, Type)
        return found


class Row:
    """How instructions of a form are written in C."""

    def __init__(
        self, form: str, signature: str, code: str | Callable[[Any], str], **sets: str | Mapping[str, str]
    ) -> None:
        self.form = form
        self.opcode = re.split(r"[.{]", form, maxsplit=1)[0]
        self.code = code
        written, _, read = signature.rpartition("=")
        self.written = tuple(_slots(written))
        self.read = tuple(_slots(read))
        self._sets = {name: _words(given) for name, given in sets.items()}

    def match(self, modifiers: str, count: int) -> Match | None:
        """The words of an instruction with these modifiers and so many operands; None if it is another one."""
        if count != len(self.read) + bool(self.written):
            return None
        found = self._pattern.fullmatch(modifiers)
        if not found:
            return None
        words: dict[str, Word] = {}
        for name, word in found.groupdict().items():
            known = self._sets.get(name)
            words[name] = "" if word is None else known[word[1:]] if known else f"_{_c_name(word[1:])}"
        return Match(self, words)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("".join(map(self._piece, _PART.finditer(self.form))))

    def _piece(self, part: re.Match[str]) -> str:
        word = part[1] or part[2]
        if not part[1] and word not in self._sets:
            return re.escape(part[0])
        texts = map(re.escape, self._sets[word]) if word in self._sets else [re.escape(word)]
        return rf"(?P<{_c_name(word)}>\.(?:{'|'.join(texts)})){'?' if part[1] else ''}"


def _c_name(word: str) -> str:
    return word.replace("::", "_")


def _slots(text: str) -> Iterable[Slot]:
    for name, type_, bracket, count in _SLOT.findall(text):
        yield Slot(name, type_ or "T", int(count or 0) if bracket else None)


def _words(given: str | Mapping[str, str]) -> dict[str, Word]:
    if isinstance(given, str):
        return {word: TYPES.get(word, f"_{_c_name(word)}") for word in given.split()}
    return dict(given)


class Table:
    """Rows by opcode."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self._rows: dict[str, list[Row]] = {}
        for row in rows:
            self._rows.setdefault(row.opcode, []).append(row)
        self._known: dict[tuple[str, str, int], Match | None] = {}

    def find(self, opcode: str, modifiers: str, count: int) -> Match | None:
        """The first row for an instruction with so many operands, None if there is none."""
        key = opcode, modifiers, count
        if key not in self._known:
            fits = (row.match(modifiers, count) for row in self._rows.get(opcode, ()))
            self._known[key] = next((match for match in fits if match), None)
        return self._known[key]
