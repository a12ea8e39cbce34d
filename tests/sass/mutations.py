"""Damage a woven kernel in one random place: in the rewritten words, the declaration, or the attributes in the file.

KINDS are the kinds of damage. mutate.py runs them, and equivalent.py explains why the accepted ones do no harm.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpt.base.errors import GptError
from gpt.sass.check import Finding, Version, check
from gpt.sass.check_words import NOP
from gpt.sass.code import Code
from gpt.sass.kernels import Kernel, Relocation
from gpt.sass.masks import Registers
from gpt.sass.tables import Operand
from gpt.sass.words import PT, SIZE, bits, control_of, dump_words, with_bits, with_control
from gpt.sass.woven import Declaration, Inserted, Moved, Trampoline
from tests.sass.weaver import Woven


@dataclass
class Mutation:
    """A damaged kernel. `at` is the index of the changed word, if there's one; `other` a second register, if there's
    one.
    """

    kind: str
    woven: Woven
    words: list[int]
    declaration: Declaration
    facts: dict[str, Any]
    at: int | None = None
    registers: tuple[int, int] | None = None

    @property
    def is_change(self) -> bool:
        """Return False if the mutation happens to change nothing."""
        same = self.words == self.woven.new.kernel.code.words and self.declaration == self.woven.declaration
        now = self.woven.new.facts
        return not same or any(getattr(now, name) != value for name, value in self.facts.items())

    def find(self) -> list[Finding]:
        """Return the checker's findings."""
        old = self.woven.new
        table = old.kernel.code.table
        try:
            code = Code(dump_words(self.words), table)
        except GptError:
            return [Finding(0, "words", "an opcode that isn't in the table")]
        kernel = Kernel(old.kernel.name, code, old.kernel.registers, old.kernel.jump_tables)
        return check(self.woven.original, Version(kernel, replace(old.facts, **self.facts)), self.declaration)


Maker = Callable[[random.Random, Woven], Mutation | None]


def _start(kind: str, woven: Woven) -> Mutation:
    return Mutation(kind, woven, list(woven.new.kernel.code.words), woven.declaration, {})


def _trampoline(rnd: random.Random, woven: Woven) -> Trampoline:
    return rnd.choice(woven.declaration.trampolines)


def _inserted(rnd: random.Random, woven: Woven) -> int:
    """Return the index of a random word in a snippet."""
    parts = [part for one in woven.declaration.trampolines for part in one.parts if isinstance(part, Inserted)]
    part = rnd.choice(parts)
    return part.start + rnd.randrange(part.length)


def _flip(kind: str, pick: Callable[[random.Random, Woven], int], first: int, last: int) -> tuple[str, Maker]:
    def make(rnd: random.Random, woven: Woven) -> Mutation:
        one = _start(kind, woven)
        one.at = pick(rnd, woven)
        one.words[one.at] ^= 1 << rnd.randrange(first, last)
        return one

    return kind, make


def _control(kind: str, part: str, most: int) -> tuple[str, Maker]:
    def make(rnd: random.Random, woven: Woven) -> Mutation:
        one = _start(kind, woven)
        one.at = _inserted(rnd, woven)
        changed: dict[str, Any] = {part: rnd.randrange(most)}
        control = control_of(one.words[one.at])._replace(**changed)
        one.words[one.at] = with_control(one.words[one.at], control)
        return one

    return kind, make


def _operands(woven: Woven, at: int) -> list[Operand]:
    word = woven.new.kernel.code.words[at]
    operands = woven.new.kernel.code[at].entry.operands
    return [one for one in operands if max(one.writes.of(word), one.reads.of(word)) > 0 and one.low is not None]


def _register(rnd: random.Random, woven: Woven) -> Mutation | None:
    one = _start("a register", woven)
    one.at = _inserted(rnd, woven)
    operands = [operand for operand in _operands(woven, one.at) if "P" not in operand.file]
    if not operands:
        return None
    operand = rnd.choice(operands)
    width = woven.new.kernel.code.table.arch.register_bits[operand.file]
    assert operand.low is not None
    one.words[one.at] = with_bits(one.words[one.at], operand.low, width, rnd.randrange(1 << width))
    return one


def _predicate(rnd: random.Random, woven: Woven) -> Mutation | None:
    one = _start("a predicate", woven)
    one.at = _inserted(rnd, woven)
    operands = [operand for operand in _operands(woven, one.at) if operand.file in ("P", "UP")]
    operand = rnd.choice(operands)
    assert operand.low is not None
    one.words[one.at] = with_bits(one.words[one.at], operand.low, 3, rnd.randrange(8))
    return one


def _branch_place(rnd: random.Random, woven: Woven) -> int:
    """Return the index of a branch: to a trampoline, inside it, or back."""
    one = _trampoline(rnd, woven)
    code = woven.new.kernel.code
    return rnd.choice([one.sources[0], *(k for k in range(one.start, one.end) if code[k].entry.target)])


def _offset(rnd: random.Random, woven: Woven) -> Mutation:
    one = _start("an offset", woven)
    one.at = _branch_place(rnd, woven)
    form = woven.new.kernel.code[one.at].entry.target
    low, width = (32, 32) if form == "imm32" else (34, 48)
    value = bits(one.words[one.at], low, width)
    near = rnd.choice((16, 16, 32, 64, 1 << rnd.randrange(width)))
    if form == "split" and rnd.random() < 0.5:
        one.words[one.at] ^= 4 << 16 + 2 * rnd.randrange(3)  # the low bits of the distance
    else:
        one.words[one.at] = with_bits(one.words[one.at], low, width, (value + near) % (1 << width))
    return one


def _swapped(rnd: random.Random, woven: Woven) -> Mutation:
    one = _start("words swapped", woven)
    trampoline = _trampoline(rnd, woven)
    first = rnd.randrange(trampoline.start, trampoline.end - 1)
    other = rnd.choice([first + 1, rnd.randrange(trampoline.start, trampoline.end)])
    one.words[first], one.words[other] = one.words[other], one.words[first]
    return one


def _dropped(rnd: random.Random, woven: Woven) -> Mutation:
    one = _start("a word dropped", woven)
    trampoline = _trampoline(rnd, woven)
    at = rnd.randrange(trampoline.start, trampoline.end)
    if rnd.random() < 0.5:
        one.words[at] = NOP
    else:
        one.words[at : trampoline.end] = [*one.words[at + 1 : trampoline.end], NOP]
    return one


def _doubled(rnd: random.Random, woven: Woven) -> Mutation:
    one = _start("a word doubled", woven)
    trampoline = _trampoline(rnd, woven)
    at = rnd.randrange(trampoline.start, trampoline.end - 1)
    one.words[at + 1 : trampoline.end] = one.words[at : trampoline.end - 1]
    return one


def _with_trampoline(one: Mutation, old: Trampoline, new: Trampoline | None) -> Mutation:
    kept = [new if which is old else which for which in one.declaration.trampolines]
    one.declaration = replace(one.declaration, trampolines=tuple(which for which in kept if which is not None))
    return one


def _set(kind: str, name: str) -> tuple[str, Maker]:
    def make(rnd: random.Random, woven: Woven) -> Mutation:
        one = _start(kind, woven)
        old = _trampoline(rnd, woven)
        was: Registers = getattr(old, name)
        general = was.R ^ 1 << rnd.choice([k for k in range(64) if was.R >> k & 1] or range(32))
        if rnd.random() < 0.5:
            general = was.R ^ 1 << rnd.randrange(32)
        changed: dict[str, Any] = {name: was._replace(R=general)}
        return _with_trampoline(one, old, replace(old, **changed))

    return kind, make


def _names(rnd: random.Random, woven: Woven) -> Mutation:
    """Map a snippet's register to a different register, which is often in use, but only in the declaration."""
    one = _start("a name", woven)
    old = _trampoline(rnd, woven)
    number, part = rnd.choice([(n, part) for n, part in enumerate(old.parts) if isinstance(part, Inserted)])
    file = rnd.choice([file for file, names in part.names.items() if names] or ["R"])
    names = dict(part.names.get(file, {}))
    key = rnd.choice([*names, rnd.randrange(16)])
    names[key] = rnd.choice([*names.values(), rnd.randrange(16)])
    parts = list(old.parts)
    parts[number] = replace(part, names={**part.names, file: names})
    return _with_trampoline(one, old, replace(old, parts=tuple(parts)))


def _renamed(rnd: random.Random, woven: Woven) -> Mutation | None:
    """Replace one of a snippet's registers in all its words and in the declaration, as a weaver might."""
    one = _start("a register everywhere", woven)
    old = _trampoline(rnd, woven)
    number, part = rnd.choice([(n, part) for n, part in enumerate(old.parts) if isinstance(part, Inserted)])
    table = woven.new.kernel.code.table
    wide = {"R": 0, "P": 0}
    for word in part.snippet.words:
        for operand in table.opcode(word).operands:
            count = max(operand.writes.of(word), operand.reads.of(word))
            if count > 1 and operand.file in wide:
                low = word >> (operand.low or 0) & ((1 << table.arch.register_bits[operand.file]) - 1)
                wide[operand.file] |= (1 << count) - 1 << low
    file = rnd.choice(["R", "R", "P"])
    single = [key for key in part.names.get(file, {}) if not wide[file] >> key & 1]
    if not single:
        return None
    key = rnd.choice(single)
    was = part.names[file][key]
    now = rnd.randrange(woven.original.kernel.registers if file == "R" else 7)
    if now in part.names[file].values():
        return None
    for index in range(part.start, part.start + part.length):
        for operand in _operands(woven, index):
            width = table.arch.register_bits.get(operand.file, 0)
            low = operand.low or 0
            turn = (1 << width) - 1 if operand.inverted else 0
            if operand.file == file and bits(one.words[index], low, width) ^ turn == was:
                one.words[index] = with_bits(one.words[index], low, width, now ^ turn)
    one.registers = (was, now) if file == "R" else (was + 512, now + 512)
    one.at = part.start
    parts = list(old.parts)
    parts[number] = replace(part, names={**part.names, file: {**part.names[file], key: now}})
    return _with_trampoline(one, old, replace(old, parts=tuple(parts)))


def _with_given(one: Mutation, at: int, word: int) -> Mutation:
    """Change a word of a snippet both in the kernel and in the declaration, as if ptxas or the weaver had produced a
    bad one.
    """
    one.at = at
    one.words[at] = word
    for old in one.declaration.trampolines:
        for number, part in enumerate(old.parts):
            if isinstance(part, Inserted) and part.start <= at < part.start + part.length:
                words = list(part.snippet.words)
                words[at - part.start] = word
                parts = list(old.parts)
                parts[number] = replace(part, snippet=replace(part.snippet, words=tuple(words)))
                return _with_trampoline(one, old, replace(old, parts=tuple(parts)))
    raise ValueError(f"no snippet at {at}")


def _inserted_named(rnd: random.Random, woven: Woven, *names: str) -> int | None:
    code = woven.new.kernel.code
    found = [
        index
        for one in woven.declaration.trampolines
        for part in one.parts
        if isinstance(part, Inserted)
        for index in range(part.start, part.start + part.length)
        if code[index].name in names
    ]
    return rnd.choice(found) if found else None


def _instead(kind: str, names: tuple[str, ...], words: tuple[int, ...]) -> tuple[str, Maker]:
    def make(rnd: random.Random, woven: Woven) -> Mutation | None:
        at = _inserted_named(rnd, woven, *names)
        return None if at is None else _with_given(_start(kind, woven), at, rnd.choice(words))

    return kind, make


def _other_slot(rnd: random.Random, woven: Woven) -> Mutation | None:
    """Save a register to a slot that isn't restored, or beyond the stack space."""
    at = _inserted_named(rnd, woven, "STL", "LDL")
    if at is None:
        return None
    word = woven.new.kernel.code.words[at]
    offset = rnd.choice((4, 0, (1 << 24) - 1, *((1 << 24) - 4 * k for k in range(1, 9))))
    if offset == bits(word, 40, 24):
        return None
    return _with_given(_start("another slot", woven), at, with_bits(word, 40, 24, offset))


def _places(rnd: random.Random, woven: Woven) -> Mutation:
    one = _start("the list of places", woven)
    old = _trampoline(rnd, woven)
    by = rnd.choice((-1, 1, rnd.randrange(-20, 20)))
    match rnd.randrange(5):
        case 0:
            return _with_trampoline(one, old, None)
        case 1:
            return _with_trampoline(one, old, replace(old, start=old.start + by))
        case 2:
            return _with_trampoline(one, old, replace(old, end=old.end + by))
        case 3:
            parts = list(old.parts)
            number = rnd.randrange(len(parts))
            parts[number] = replace(parts[number], start=parts[number].start + by)
            return _with_trampoline(one, old, replace(old, parts=tuple(parts)))
    moved = tuple(replace(p, source=p.source + by) if isinstance(p, Moved) else p for p in old.parts)
    return _with_trampoline(one, old, replace(old, parts=moved))


def _numbers(rnd: random.Random, woven: Woven) -> Mutation:
    one = _start("declared numbers", woven)
    was = woven.declaration
    by = rnd.choice((-8, -4, -1, 1, 4, 8))
    change: dict[str, Any] = rnd.choice((
        {"registers": was.registers + by},
        {"stack": was.stack + by},
        {"persistent": was.persistent._replace(R=was.persistent.R ^ 1 << rnd.randrange(40))},
        {"amended": was.amended | {rnd.randrange(len(woven.original.kernel.code))}},
    ))  # fmt: skip
    one.declaration = replace(was, **change)
    return one


def _facts(rnd: random.Random, woven: Woven) -> Mutation:
    one = _start("facts of the file", woven)
    was = woven.new.facts
    by = rnd.choice((-8, -4, -1, 1, 4, 8))
    exits = list(was.exits)
    if exits:
        exits[rnd.randrange(len(exits))] += SIZE * by
    one.facts = rnd.choice((
        {"registers": was.registers + by},
        {"exits": tuple(exits)},
        {"exits": was.exits[:-1]},
        {"barriers": was.barriers + by},
        {"frame": was.frame + by},
        {"stack": was.stack + by},
        {"flags": was.flags ^ 1 << rnd.randrange(32)},
        {"bound": was.registers - 1},
        {"in_section": rnd.randrange(1, 256)},
        {"relocations": (*was.relocations, Relocation(SIZE * rnd.randrange(9), 56, 1, 0))},
    ))  # fmt: skip
    return one


def _amended(rnd: random.Random, woven: Woven) -> Mutation:
    """Change waits, stalls or barriers of an instruction that stays in place, and declare it as amended."""
    one = _start("an amended word", woven)
    kernel = woven.original.kernel
    moved = {source for trampoline in woven.declaration.trampolines for source in trampoline.sources}
    one.at = rnd.choice([k for k in range(len(kernel.code)) if k not in moved])
    was = kernel.code[one.at].control
    change: dict[str, Any] = rnd.choice((
        {"read_barrier": rnd.randrange(8)},
        {"read_barrier": rnd.randrange(6), "wait": was.wait | rnd.randrange(64)},
        {"write_barrier": rnd.randrange(8)},
        {"wait": rnd.randrange(64)},
        {"stall": rnd.randrange(16)},
        {"reuse": rnd.randrange(16)},
    ))  # fmt: skip
    one.words[one.at] = with_control(one.words[one.at], was._replace(**change))
    one.declaration = replace(one.declaration, amended=one.declaration.amended | {one.at})
    return one


def _moved(rnd: random.Random, woven: Woven) -> int:
    return rnd.choice([p.start for one in woven.declaration.trampolines for p in one.parts if isinstance(p, Moved)])


def _own(rnd: random.Random, woven: Woven) -> int:
    return rnd.randrange(len(woven.original.kernel.code))


_PLAIN = 7 << 12 | 15 << 105 | 7 << 110 | 7 << 113
_BAD = tuple(
    opcode | _PLAIN | PT << 87
    for opcode in (0x946, 0x95D, 0x948, 0x348, 0x94D, 0xB1D, 0x91A, 0x9C5, 0x942, 0x95C, 0x350, 0x950)
)

KINDS: dict[str, Maker] = dict((
    _instead("a snippet with a forbidden instruction", ("NOP", "VOTEU", "MOV", "IADD3"), _BAD),
    _instead("a snippet without its BSSY or BSYNC", ("BSSY", "BSYNC"), (NOP,)),
    _instead("a save or its loading left out", ("STL", "LDL"), (NOP,)),
    ("another slot", _other_slot),
    ("a register", _register),
    ("a predicate", _predicate),
    ("an offset", _offset),
    ("words swapped", _swapped),
    ("a word dropped", _dropped),
    ("a word doubled", _doubled),
    ("a name", _names),
    ("a register everywhere", _renamed),
    ("the list of places", _places),
    ("declared numbers", _numbers),
    ("facts of the file", _facts),
    ("an amended word", _amended),
    _set("the saved registers", "saved"),
    _set("the registers that are read", "reads"),
    _flip("a guard", _inserted, 12, 16),
    _flip("an opcode", _inserted, 0, 12),
    _flip("an immediate or a modifier", _inserted, 32, 105),
    _flip("a moved word", _moved, 0, 126),
    _flip("a word of the kernel", _own, 0, 128),
    _flip("a branch", _branch_place, 0, 128),
    _control("a stall", "stall", 16),
    _control("a barrier set by the result", "write_barrier", 8),
    _control("a barrier set by the reads", "read_barrier", 8),
    _control("the barriers awaited", "wait", 64),
    _control("reuse", "reuse", 16),
    _control("the hint", "hint", 2),
))  # fmt: skip


def mutate(rnd: random.Random, pool: list[Woven], kinds: list[str]) -> Iterator[Mutation]:
    """Yield mutations without end."""
    while True:
        one = KINDS[rnd.choice(kinds)](rnd, rnd.choice(pool))
        if one is not None and one.is_change:
            yield one
