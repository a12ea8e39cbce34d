"""A trampoline while it's being written (trampoline.py): its words and parts, and which results are pending or in
flight at its end.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from gpt.sass.check_words import NOP, make_branch
from gpt.sass.code import Instruction
from gpt.sass.flow import NOTHING, InFlight
from gpt.sass.masks import STARTS, Registers, unpack
from gpt.sass.stalls import BRANCH_CYCLES, iter_safe
from gpt.sass.tables import Opcode, Table
from gpt.sass.words import (
    PT,
    SIZE,
    Guard,
    control_of,
    guard_of,
    target_of,
    with_bits,
    with_control,
    with_guard,
    with_target,
)
from gpt.sass.woven import Inserted, Moved, Snippet

LONG = 15  # the longest possible stall
_HINTED = 11  # the longest stall with the hint for the scheduler
_CONTROL = ((1 << 21) - 1) << 105


@dataclass
class Draft:
    """The words so far. `pending` lists results of fixed latency that haven't arrived: their registers, the cycles
    left, and whether a word of a snippet or of our own wrote them.
    """

    table: Table
    start: int
    own: int  # registers that hold values of the kernel
    pending: list[tuple[int, int, bool]]
    words: list[int] = field(default_factory=list)
    parts: list[Inserted | Moved] = field(default_factory=list)
    waits: int = 0  # our own barriers for which the next word has to wait
    reads: int = 0  # registers of the site that snippets read
    saved: int = 0
    _flight: tuple[InFlight, int] = (NOTHING, 0)  # the last one, and its registers

    @property
    def at(self) -> int:
        """The index of the next word."""
        return self.start + len(self.words)

    def glue(self, words: list[int], flight: InFlight) -> None:
        """Add a part that consists of our own words, which don't depend on each other."""
        known = self.table.memo("glue")
        key = tuple(words)
        found: tuple[Snippet, dict[str, dict[int, int]], Renamed] | None = known.get(key)
        if found is None:
            snippet, names = _as_snippet(key, self.table)
            found = known[key] = snippet, names, _rename(key, names, None, self.table)
        self._insert(*found, flight, None)

    def insert(self, snippet: Snippet, names: dict[str, dict[int, int]], flight: InFlight, guard: Guard | None) -> None:
        """Add a snippet as a part."""
        known = self.table.memo("rename")
        key = (snippet.words, guard, *((file, *some.items()) for file, some in names.items()))
        renamed: Renamed | None = known.get(key)
        if renamed is None:
            renamed = known[key] = _rename(snippet.words, names, guard, self.table)
        self._insert(snippet, names, renamed, flight, guard)

    def _insert(
        self,
        snippet: Snippet,
        names: dict[str, dict[int, int]],
        renamed: Renamed,
        flight: InFlight,
        guard: Guard | None,
    ) -> None:
        self._settle(renamed.named, renamed.stalls)
        start = self.at
        wait = self.waits
        reads, writes = renamed.reads, renamed.writes
        if (reads | writes) & self._in_flight(flight):
            for barrier in range(6):
                if flight.writes[barrier] & (reads | writes) or flight.reads[barrier] & writes:
                    wait |= 1 << barrier
        self.waits = 0
        self.own &= ~writes
        self.parts.append(Inserted(start, snippet, names, guard))
        self.words += renamed.words
        if wait:
            self.wait(start - self.start, wait)
        self._age(renamed.done, True)

    def _in_flight(self, flight: InFlight) -> int:
        if flight is not self._flight[0]:
            self._flight = flight, flight.after_waiting(0)
        return self._flight[1]

    def move(self, one: Instruction, is_guarded_exit: bool) -> None:
        """Add an instruction of the kernel."""
        word, stall = one.word & ~(15 << 122), one.word >> 105 & 15  # without reuse
        self._settle([one.masks.reads | one.masks.writes], [stall], is_moved=True)
        if one.name == "BRA" and one.entry.target:
            target = target_of(one.word, one.entry.target, one.offset)
            word = with_target(word, one.entry.target, SIZE * self.at, target)
        if is_guarded_exit:
            word = with_bits(with_bits(word, 12, 4, PT), 87, 4, PT)
        self.own |= one.masks.writes
        self.parts.append(Moved(self.at, one.index))
        self.words.append(word)
        self.wait(len(self.words) - 1, self.waits)
        self.waits = 0
        self._age([_done(one.entry, one.masks.writes, stall)], False)

    def end(self, to: int) -> None:
        """Add the branch back to the kernel."""
        self._stall(max((cycles - BRANCH_CYCLES for _, cycles, is_ours in self.pending if is_ours), default=0))
        self.words.append(make_branch(self.at, to, "split") | 5 << 105 | 7 << 110 | 7 << 113)
        self.wait(len(self.words) - 1, self.waits)

    def pause(self) -> None:
        """Add a NOP with the longest stall."""
        self.parts.append(Inserted(self.at, _PAUSE, _NO_NAMES))
        self.words += _PAUSE.words
        if self.waits:
            self.wait(len(self.words) - 1, self.waits)
            self.waits = 0
        self._pass(LONG)

    def wait(self, index: int, mask: int) -> None:
        """Make a word wait for these barriers."""
        self.words[index] |= mask << 116
        if mask and index:  # it takes a moment until a barrier shows that something is in flight
            before = self.words[index - 1]
            if before >> 105 & 15 < 2:
                self.words[index - 1] = before & ~(15 << 105) | 2 << 105

    def _settle(self, named: list[int], stalls: list[int], is_moved: bool = False) -> None:
        """Wait until the words of a part can read results of fixed latency, as ptxas makes the kernel's own words
        wait.
        """
        if not self.pending:
            return
        ours = 0
        for mask, _, is_ours in self.pending:
            ours |= mask if is_ours or not is_moved else 0
        need = passed = 0
        for mask, stall in zip(named, stalls, strict=True):
            for pending, left, is_ours in self.pending if mask & ours else ():
                if pending & mask and (is_ours or not is_moved):
                    need = max(need, left - passed)
            passed += stall
        self._stall(need)

    def _stall(self, need: int) -> None:
        """Let this many cycles pass: stall the last word longer if it belongs to a snippet, and add NOPs if that isn't
        enough.
        """
        if need > 0 and self.words and isinstance(self.parts[-1], Inserted):
            stall = self.words[-1] >> 105 & 15
            longer = min(LONG, stall + need)
            self.words[-1] = with_change(self.words[-1], stall=longer)
            need -= longer - stall
            self._pass(longer - stall)
        while need > 0:
            self.pause()
            need -= LONG

    def _pass(self, cycles: int) -> None:
        self.pending = [(mask, left - cycles, ours) for mask, left, ours in self.pending if left > cycles]

    def _age(self, done: list[Done], is_ours: bool) -> None:
        """Update the pending results after these words."""
        pending = self.pending
        for written, stall, fresh in done:
            if pending:
                pending = [(mask & ~written, left - stall, ours) for mask, left, ours in pending if left > stall]
                pending = [one for one in pending if one[0]]
            if fresh:
                pending = [*pending, *((mask, left, is_ours) for mask, left in fresh)]
        self.pending = pending


_PAUSE = Snippet((NOP & ~_CONTROL | LONG << 105 | 7 << 110 | 7 << 113,))
_NO_NAMES: dict[str, dict[int, int]] = {file: {} for file in Registers._fields}


def _as_snippet(words: tuple[int, ...], table: Table) -> tuple[Snippet, dict[str, dict[int, int]]]:
    """Return our own words as a snippet whose registers keep their names."""
    reads = writes = 0
    for word in words:
        masks = table.decoder(word).masks(word)
        reads, writes = reads | masks.reads, writes | masks.writes
    names = {
        file: {number: number for number in range(mask.bit_length()) if mask >> number & 1}
        for file, mask in zip(Registers._fields, unpack(reads | writes), strict=True)
    }
    return Snippet(words, unpack(reads)), names


class Done(NamedTuple):
    """A word: the registers that it writes, its stall, and its results that are pending after that."""

    written: int
    stall: int
    fresh: list[tuple[int, int]]


def _done(entry: Opcode, written: int, stall: int) -> Done:
    if entry.variable or not written:
        return Done(written, stall, [])
    return Done(
        written, stall, [(mask, cycles - stall) for mask, cycles in iter_safe(entry, written) if cycles > stall]
    )


class Renamed(NamedTuple):
    """A snippet with the names of a place. It doesn't matter where that place is, because jumps are relative."""

    words: list[int]
    named: list[int]  # by word: the registers that occur in it
    stalls: list[int]
    reads: int
    writes: int
    done: list[Done]


class _Form(NamedTuple):
    """A word of a snippet: its bits outside the fields to rename, and these fields: file, number, position, and the
    bits to invert. `become` is what replaces it in a trampoline, apart from its guard, if something does.
    """

    word: int
    fields: tuple[tuple[str, int, int, int], ...]
    entry: Opcode
    become: int | None
    stall: int


def _make_forms(words: tuple[int, ...], table: Table) -> list[_Form]:
    forms = []
    for index, old in enumerate(words):
        word, entry, become = old, table.opcode(old), None
        if entry.name == "YIELD":
            become = NOP & ~_CONTROL | old >> 105 << 105
        elif entry.name == "RET":
            become = make_branch(index, len(words), "split") | old >> 105 << 105
        fields = []
        for operand, low, none, turn, number, count in table.fields(old):
            if count and (number != none or operand.file == "B"):
                word &= ~(none << low)
                fields.append((operand.file, number, low, turn))
        forms.append(
            _Form(word, tuple(fields), entry if become is None else table.opcode(become), become, old >> 105 & 15)
        )
    return forms


def _rename(words: tuple[int, ...], names: dict[str, dict[int, int]], guard: Guard | None, table: Table) -> Renamed:
    known = table.memo("forms")
    forms: list[_Form] | None = known.get(words)
    if forms is None:
        forms = known[words] = _make_forms(words, table)
    found, named, done = [], [], []
    reads = 1 << STARTS.P + guard.predicate if guard else 0
    writes, also = 0, reads
    for word, fields, entry, become, stall in forms:
        for file, number, low, turn in fields:
            word |= (names[file][number] ^ turn) << low
        masks = table.decoder(word).masks(word)
        if become is not None:
            word = with_guard(become, guard_of(word)) if entry.name == "BRA" else become
        found.append(with_guard(word, guard) if guard else word)
        named.append(masks.reads | masks.writes | also)
        reads, writes = reads | masks.reads, writes | masks.writes
        done.append(_done(entry, masks.writes, stall))
    return Renamed(found, named, [form.stall for form in forms], reads, writes, done)


def with_change(word: int, stall: int | None = None, **values: int) -> int:
    """Return a word with a different stall or different barriers."""
    return _with_change(word, stall, *values.items())


@lru_cache(1 << 12)
def _with_change(word: int, stall: int | None, *values: tuple[str, int]) -> int:
    control = control_of(word)._replace(**dict(values))  # type: ignore[arg-type]
    if stall is not None:
        control = control._replace(stall=stall, hint=control.hint and stall <= _HINTED)
    return with_control(word, control)
