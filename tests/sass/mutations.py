"""Damage woven kernels at random, and say of what the checker lets pass why it does no harm.

    python -m tests.sass.mutations 10000        counts by kind, and what passed

A mutation changes the rewritten words, the declaration, or what the file says, at one place. KINDS are the kinds. What
passes must be explained by one of EQUIVALENT: each has a proof in words, and a function that checks by other means than
the checker's that the mutation is of that class.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpt.base.errors import GptError
from gpt.sass.check import Finding, Version, check
from gpt.sass.check_words import NOP
from gpt.sass.code import Code
from gpt.sass.kernels import Kernel
from gpt.sass.masks import EVERY_REGISTER, Registers, pack
from gpt.sass.stalls import safe_cycles
from gpt.sass.tables import Operand
from gpt.sass.words import BARRIERS, PT, SIZE, Control, bits, control_of, dump_words, with_bits, with_control
from gpt.sass.woven import Declaration, Inserted, Moved, Trampoline
from tests.sass.weaver import Woven


@dataclass
class Mutation:
    """A damaged kernel. `at` is the word that was changed, if it's one; `other` a second register, if there's one."""

    kind: str
    woven: Woven
    words: list[int]
    declaration: Declaration
    facts: dict[str, Any]
    at: int | None = None
    registers: tuple[int, int] | None = None

    @property
    def is_change(self) -> bool:
        """False if the mutation happens to leave everything as it was."""
        same = self.words == self.woven.new.kernel.code.words and self.declaration == self.woven.declaration
        now = self.woven.new.facts
        return not same or any(getattr(now, name) != value for name, value in self.facts.items())

    def find(self) -> list[Finding]:
        """Return what the checker says."""
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
    """Return the place of a word of a snippet."""
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
    """Return the place of a branch: to a trampoline, in it, or back."""
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
        one.words[one.at] ^= 4 << 16 + 2 * rnd.randrange(3)  # the low part of the distance
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
    """Map a register of a snippet to another one in the declaration alone; often one that another is mapped to."""
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
    """Use another register for one of a snippet's, in all its words and in the declaration, as a weaver may."""
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
    """Change a word of a snippet in the kernel and in the declaration: what ptxas or the weaver made is bad itself."""
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
    """Save to another place than the one that's loaded again, or beyond what's there."""
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
    ))  # fmt: skip
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


# Why a mutation that passes does no harm.


def _only_control(one: Mutation) -> tuple[int, int] | None:
    """Return the word before and after, if one word's control part is all that was changed."""
    old = one.woven.new.kernel.code.words
    changed = [index for index, word in enumerate(one.words) if word != old[index]]
    if len(changed) != 1 or one.facts or one.declaration != one.woven.declaration:
        return None
    was, now = old[changed[0]], one.words[changed[0]]
    return (was, now) if not (was ^ now) & (1 << 105) - 1 and was >> 126 == now >> 126 else None


def _changes_only(one: Mutation, *parts: str) -> tuple[Control, Control] | None:
    """Return the control parts before and after, if only these parts of one word differ."""
    words = _only_control(one)
    if words is None:
        return None
    was, now = control_of(words[0]), control_of(words[1])
    zero: dict[str, Any] = dict.fromkeys(parts, 0)
    return (was, now) if was._replace(**zero) == now._replace(**zero) else None


def _stalls_more(one: Mutation) -> bool:
    changed = _changes_only(one, "stall")
    return (
        changed is not None and changed[1].stall > changed[0].stall and (changed[1].stall < 12 or not changed[1].hint)
    )


def _waits_more(one: Mutation) -> bool:
    changed = _changes_only(one, "wait")
    return changed is not None and not changed[0].wait & ~changed[1].wait


def _forgets_an_operand(one: Mutation) -> bool:
    changed = _changes_only(one, "reuse")
    return changed is not None and not changed[1].reuse & ~changed[0].reuse


def _has_another_hint(one: Mutation) -> bool:
    changed = _changes_only(one, "hint")
    return changed is not None and (changed[1].stall < 12 or not changed[1].hint)


def _around(one: Mutation) -> Trampoline | None:
    """Return the trampoline in which a word was changed."""
    old = one.woven.new.kernel.code.words
    changed = [index for index, word in enumerate(one.words) if word != old[index]]
    for trampoline in one.declaration.trampolines:
        if changed and trampoline.start <= changed[0] < trampoline.end:
            return trampoline
    return None


def _distances_suffice(one: Mutation) -> bool:
    """Whether every result of fixed latency is there before another part uses its register, going by straight line."""
    trampoline = _around(one)
    if trampoline is None:
        return False
    code = Code(dump_words(one.words), one.woven.new.kernel.code.table)
    part_of = {p.start + k: n for n, p in enumerate(trampoline.parts) for k in range(p.length)}
    live = one.woven.original.kernel.live[trampoline.sources[-1] + 1] if code[trampoline.end - 1].name == "BRA" else 0
    for writer in range(trampoline.start, trampoline.end):
        written, passed = code.masks[writer].writes, 0
        for reader in range(writer + 1, trampoline.end):
            passed += code.controls.stalls[reader - 1]
            used = code.masks[reader].reads | code.masks[reader].writes
            if reader == trampoline.end - 1 and reader not in part_of:  # the way back
                used, passed = live, passed + 10
            other = part_of.get(reader) != part_of[writer] if writer in part_of else False
            if other and written & used and passed < safe_cycles(code[writer].entry, written):
                return False
    return True


def _stalls_less(one: Mutation) -> bool:
    return bool(_changes_only(one, "stall")) and _given_control(one) and _distances_suffice(one)


def _given_control(one: Mutation) -> bool:
    """Whether the changed word still stalls and waits as its snippet does."""
    trampoline = _around(one)
    old = one.woven.new.kernel.code.words
    (at,) = [index for index, word in enumerate(one.words) if word != old[index]]
    if trampoline is None:
        return False
    for part in trampoline.parts:
        if isinstance(part, Inserted) and part.start <= at < part.start + part.length:
            given, now = control_of(part.snippet.words[at - part.start]), control_of(one.words[at])
            return now.stall >= given.stall and not given.wait & ~now.wait
    return at == trampoline.end - 1  # the way back


def _waits_enough(one: Mutation) -> bool:
    """Whether what the word no longer waits for was awaited before, or concerns no register that's used here."""
    words, trampoline = _only_control(one), _around(one)
    if words is None or trampoline is None or not _changes_only(one, "wait") or not _given_control(one):
        return False
    lost = control_of(words[0]).wait & ~control_of(words[1]).wait
    code = Code(dump_words(one.words), one.woven.new.kernel.code.table)
    old = one.woven.new.kernel.code.words
    (at,) = [index for index, word in enumerate(one.words) if word != old[index]]
    flight = one.woven.original.kernel.flight[trampoline.sources[0]]
    assert flight is not None
    moved = {part.start for part in trampoline.parts if isinstance(part, Moved)}
    for barrier in (number for number in range(BARRIERS) if lost >> number & 1):
        writing, reading, is_ours = flight.writes[barrier], flight.reads[barrier], False
        for index in range(trampoline.start, at):
            if code.controls.waits[index] >> barrier & 1:
                writing = reading = 0
                is_ours = False
            sets_it = code.controls.write_barriers[index], code.controls.read_barriers[index]
            if barrier in sets_it:
                is_ours |= index not in moved
                writing |= code.masks[index].writes if sets_it[0] == barrier else 0
                reading |= code.masks[index].reads
        if is_ours:
            return False
        for index in range(at, trampoline.end):
            if index in moved or (index > at and code.controls.waits[index] >> barrier & 1):
                break
            masks = code.masks[index]
            if masks.reads & writing or masks.writes & (writing | reading):
                return False
    return True


def _is_site_branch(one: Mutation) -> bool:
    old = one.woven.new.kernel.code.words
    changed = [index for index, word in enumerate(one.words) if word != old[index]]
    sites = [trampoline.sources[0] for trampoline in one.declaration.trampolines]
    return bool(_changes_only(one, "stall", "wait", "hint")) and changed[0] in sites


def _declares_what_is_not_there(one: Mutation) -> bool:
    same = one.words == one.woven.new.kernel.code.words and not one.facts
    was, now = one.woven.declaration, one.declaration
    extra = now.amended - was.amended
    return same and bool(extra) and replace(now, amended=was.amended) == was


def _keeps_nothing(one: Mutation) -> bool:
    """Whether all that a snippet reads of the registers that no longer keep values is its own, but for the entry's."""
    same = one.words == one.woven.new.kernel.code.words and not one.facts
    was, now = one.woven.declaration, one.declaration
    lost = pack(was.persistent) & ~pack(now.persistent)
    if not same or not lost or now.persistent.R & ~was.persistent.R:
        return False
    masks = one.woven.new.kernel.code.masks
    places = [k for tramp in now.trampolines if tramp.sources[0] for k in range(tramp.start, tramp.end)]
    return not any(masks[k].reads & lost for k in places)


def _names_what_is_not_there(one: Mutation) -> bool:
    table = one.woven.new.kernel.code.table
    for old, new in zip(one.woven.declaration.trampolines, one.declaration.trampolines, strict=True):
        for was, now in zip(old.parts, new.parts, strict=True):
            if was == now or not isinstance(was, Inserted) or not isinstance(now, Inserted):
                continue
            named = 0
            for word in was.snippet.words:
                masks = table.decoder(word).masks(word)
                named |= masks.reads | masks.writes
            for file, names in now.names.items():
                for key, value in names.items():
                    mask = pack(Registers(**{file: 1 << key}))
                    if was.names.get(file, {}).get(key) != value and mask & named:
                        return False
    return one.kind == "a name" and one.words == one.woven.new.kernel.code.words


def _takes_another_free_register(one: Mutation) -> bool:
    """Whether the other register is dead wherever the trampoline runs, with nothing in flight, or the probe's own."""
    if one.registers is None or one.at is None:
        return False
    new = 1 << one.registers[1]
    kernel = one.woven.original.kernel
    (trampoline,) = [t for t in one.declaration.trampolines if t.start <= one.at < t.end]
    following = [p.source for p in trampoline.parts if isinstance(p, Moved) and p.start > one.at]
    live = [*kernel.live, 0][following[0] if following else trampoline.sources[-1] + 1]
    (part,) = [p for p in trampoline.parts if p.start == one.at]
    assert isinstance(part, Inserted)
    written = 0
    code = Code(dump_words(one.words), kernel.code.table)
    for index in range(part.start, part.start + part.length):
        written |= code.masks[index].writes
    if not written & new:
        return False
    flight = kernel.flight[trampoline.sources[0]]
    assert flight is not None
    busy = flight.unawaited | flight.after_waiting(
        code.controls.waits[part.start] | code.controls.waits[trampoline.start]
    )
    saved = pack(trampoline.saved)
    return not new & busy & EVERY_REGISTER and (not new & live or bool(new & saved))


EQUIVALENT: tuple[tuple[str, str, Callable[[Mutation], bool]], ...] = (
    (
        "stalls longer",
        "What comes after issues later. Nothing has to come early: results stay, and who waits goes on waiting.",
        _stalls_more,
    ),
    (
        "waits for more",
        "Scoreboards are counted down by what's in flight, which needs nothing of this warp, so the wait ends.",
        _waits_more,
    ),
    (
        "keeps less in the register cache",
        "An operand that isn't kept is read from its register, which has the same value.",
        _forgets_an_operand,
    ),
    (
        "another hint to the scheduler",
        "Which warp issues next changes no result (docs/sass-rules.md: bit 109 is harmless).",
        _has_another_hint,
    ),
    (
        "the branch to a trampoline stalls or waits otherwise",
        "It reads no register, and counts for 10 cycles or more whatever its stall. What a snippet needs is asked for "
        "at the snippet, with this branch counted as 10.",
        _is_site_branch,
    ),
    (
        "stalls shorter, but as long as its snippet, and long enough",
        "The weaver stalled longer than it had to: no other part uses a result before it's there.",
        _stalls_less,
    ),
    (
        "waits for less, but for enough",
        "The weaver waited for a barrier that nothing in flight uses here, or that was awaited already.",
        _waits_enough,
    ),
    (
        "declares as amended what wasn't",
        "The word is the original's; a declaration allows a change, and there's none.",
        _declares_what_is_not_there,
    ),
    (
        "declares that a register keeps no value, and none is read",
        "Only the trampoline at the entry writes it, and the kernel has no such register.",
        _keeps_nothing,
    ),
    (
        "names a register that the snippet doesn't have",
        "No word has a field to which the name applies.",
        _names_what_is_not_there,
    ),
    (
        "takes another register that's as good",
        "The other one is dead on all ways from here, or saved as well, nothing is in flight for it, and the snippet "
        "writes it before it reads it.",
        _takes_another_free_register,
    ),
)


def explain(one: Mutation) -> str | None:
    """Return the class of a mutation that does no harm, or None."""
    return next((name for name, _, holds in EQUIVALENT if holds(one)), None)


@dataclass
class Tally:
    """Counts of mutations: all by kind, found by rule, passed by kind and class; and what passed without a reason."""

    kinds: Counter[str]
    rules: Counter[str]
    passed: Counter[tuple[str, str]]
    unexplained: list[Mutation]


def run(pool: list[Woven], count: int, seed: int = 1) -> Tally:
    """Make mutations and check them."""
    tally = Tally(Counter(), Counter(), Counter(), [])
    rnd = random.Random(seed)
    for _, one in zip(range(count), mutate(rnd, pool, list(KINDS)), strict=False):
        tally.kinds[one.kind] += 1
        if findings := one.find():
            tally.rules[findings[0].rule] += 1
        elif reason := explain(one):
            tally.passed[one.kind, reason] += 1
        else:
            tally.unexplained.append(one)
    return tally


def main() -> None:
    """Print the counts."""
    from tests.sass.corpus import make_pool

    tally = run(make_pool(), int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
    for kind, number in sorted(tally.kinds.items()):
        print(f"{number:6} {kind}")
    print("found by rule:", dict(tally.rules.most_common()))
    for (kind, reason), number in sorted(tally.passed.items()):
        print(f"{number:6} {kind}: {reason}")
    print(len(tally.unexplained), "unexplained")
    for one in tally.unexplained[:20]:
        print(one.kind, one.woven.original.kernel.name, one.at, one.registers)


if __name__ == "__main__":
    main()
