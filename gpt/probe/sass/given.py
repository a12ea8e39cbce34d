"""Pass values to snippets: from registers, stack slots and parameters, and operands of the site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpt.probe.lower.fetch import CannotProbe
from gpt.probe.sass.body import Member
from gpt.probe.sass.compiled import Compiled
from gpt.probe.sass.function import ADDRESS, GUARD, RZ, find_offset, find_source
from gpt.probe.sass.registers import usable
from gpt.sass.check_known import registers_named
from gpt.sass.code import Instruction
from gpt.sass.kernels import Kernel
from gpt.sass.words import Guard


@dataclass(frozen=True)
class Given:
    """A value for a register of a snippet. By `kind`, it comes from

    - kept: `register`, or else the stack, at `slot` below the stack pointer;
    - operand: the sum of `register`, `value` and the uniform register;
    - guard: the guard of the instruction;
    - zero: nothing, since it's 0.
    """

    kind: str
    at: int  # register of the snippet, or the first of two if `count` is 2
    count: int
    register: int | None = None
    slot: int | None = None
    value: int = 0
    guard: Guard | None = None
    uniform: int | None = None

    @property
    def is_computed(self) -> bool:
        """True if code is needed to compute an operand. False if it's already in the register."""
        return self.kind == "operand" and (bool(self.value) or self.uniform is not None)


@dataclass(frozen=True)
class Piece:
    """A snippet to insert at a place."""

    compiled: Compiled
    given: tuple[Given, ...]
    guard: Guard | None = None  # applies to each of its words
    returns: bool = True  # False if nothing needs the kept values after it

    @property
    def pairs(self) -> list[int]:
        """The first registers of 64-bit values that are passed by a single instruction."""
        return [one.at for one in self.given if one.count == 2 and one.kind != "kept"]


class Kept(NamedTuple):
    """The place where a value is kept: a register, or at an offset in bytes above the lowest slot."""

    register: int | None
    slot: int | None


def find_needed(pieces: Iterable[Piece]) -> set[Kept]:
    """Return where the kept values are that snippets read."""
    return {
        Kept(one.register, one.slot)
        for piece in pieces
        for one in piece.given
        if one.kind == "kept" and piece.compiled.snippet.inputs.R >> one.at & (1 << one.count) - 1
    }


def place_kept(kernel: Kernel, often: Counter[str], members: Iterable[Member]) -> tuple[dict[str, Kept], int, int]:
    """Decide where to keep each value. Return the places, how many of them are registers, and the bytes of slots.
    Values that are used most `often` get registers.
    """
    sizes = {member.name: member.count for member in members if member.kind == "kept"}
    named = registers_named(kernel) | 1 << 1
    free = [r for r in range(usable(kernel)) if not named >> r & 1]
    if kernel.graph.calls_out:
        free = []
    found: dict[str, Kept] = {}
    mask = slots = 0
    for name, _ in often.most_common():
        count = sizes[name]
        first = next((r for r in free if r % count == 0 and all(r + k in free for k in range(count))), None)
        if first is None:
            slots += -slots % (4 * count)
            found[name] = Kept(None, slots)
            slots += 4 * count
        else:
            found[name] = Kept(first, None)
            free = [r for r in free if not first <= r < first + count]
            mask |= ((1 << count) - 1) << first
    return found, mask, slots


def give_kept(member: Member, place: Kept) -> Given:
    """Return how to pass a kept value to a snippet."""
    return Given("kept", member.at, member.count, place.register, place.slot)


def give_operand(site: Instruction, head: str, when: str, member: Member) -> Given:
    """Return how to pass an operand of the instruction at a site, whose face begins with `head`. Raises CannotProbe."""
    if member.name == GUARD:
        return Given("guard", member.at, 1, guard=Guard(site.guard.predicate, False))
    source = find_source(site, head, member.name)
    if source is None or source.width != member.count:
        raise CannotProbe(f"has no register for '{member.name[1:]}', which the probe reads")
    mask = ((1 << source.width) - 1) << source.register
    if when == "after" and not member.name.startswith("%out") and site.masks.writes & mask:
        raise CannotProbe("overwrites what the probe reads after it")
    value = find_offset(site) if member.name == ADDRESS else 0
    if source.register == RZ and not value and source.uniform is None:
        return Given("zero", member.at, member.count)
    return Given("operand", member.at, member.count, source.register, value=value, uniform=source.uniform)
