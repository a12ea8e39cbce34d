"""Find a kernel's control flow: stretches of code that run from start to end, and which can follow which.

A kernel is one section of code. The section may also hold functions that the kernel calls.

Warps make this harder than on a CPU. Lanes that diverge at a branch wait for each other at a BSYNC:

        BSSY B0, L      remember in B0 which lanes are here; they'll meet at L
    @P0 BRA M           some lanes jump,
        ...             the others don't
        BSYNC B0        wait until each of B0's lanes has come to a BSYNC B0 (or left by EXIT or BREAK)
    L:                  all continue together

Lanes continue after the BSYNC. The label that a BSSY names is usually there, but the hardware doesn't look at it
(docs/sass-rules.md), so a BSYNC has one successor.

An indirect jump leads to the targets in its own table, which is in the file (kernels.py).

A RET returns to the instruction after any call of a function that it ends. If no call in this section leads to the RET,
it may return to the instruction after any call.

`Graph.successors` has every edge that the hardware can take, and maybe others. Code that can't be bounded raises
UnboundedError: an indirect jump without a table, a jump out of the section, or more calls and returns than a compiler
generates.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple

from gpt.base.errors import GptError
from gpt.sass.code import Code, Instruction
from gpt.sass.words import CONTROL, PT, SIZE, TARGETS

_CALLS = {"CALL"}
_INDIRECT = {"BRX", "BRXU", "JMX", "JMXU", "JMP"}
_LEAVING = {"EXIT", "RET", "KILL", *_INDIRECT}
_ENDING = {"BRA", *_CALLS, *_LEAVING}  # and WARPSYNC with a target
_SECOND = (87, 15)  # the second predicate of EXIT, BRA and RET, with its sign
_COLLECT = "ENDCOLLECTIVE"
_UNUSUAL = {  # the bits of a branch outside its opcode, guard, control part and distance, by the form of the distance
    form: sum(1 << bit for bit in range(16, 128))
    & ~(CONTROL | sum((1 << width) - 1 << start for start, width in parts))
    for form, (parts, _) in TARGETS.items()
}
MAX_RETURNS = 1 << 16  # edges that returns add, plus the blocks visited to find the returns
NO_TABLES: Mapping[int, Collection[int]] = MappingProxyType({})


class UnboundedError(GptError):
    """The code jumps somewhere that can't be determined from its words."""


class Block(NamedTuple):
    """Instructions from `start` up to `end`, numbered from the start of the section; only the last one can jump."""

    start: int
    end: int


@dataclass(frozen=True)
class Graph:
    """Blocks in code order, and the blocks that can follow each. The kernel begins with block 0."""

    blocks: tuple[Block, ...]
    successors: tuple[tuple[int, ...], ...]
    calls_out: frozenset[int]  # blocks that end with a call of code that isn't in this section, or isn't known

    @cached_property
    def predecessors(self) -> list[list[int]]:
        """The blocks that each block can follow."""
        found: list[list[int]] = [[] for _ in self.blocks]
        for number, followers in enumerate(self.successors):
            for follower in followers:
                found[follower].append(number)
        return found

    @cached_property
    def _starts(self) -> list[int]:
        return [block.start for block in self.blocks]

    def block_at(self, index: int) -> int:
        """Return the number of the block that contains an instruction."""
        return bisect.bisect_right(self._starts, index) - 1

    @cached_property
    def _reached(self) -> set[int]:
        return self.reachable()

    def reaches(self, index: int) -> bool:
        """Return whether an instruction is reachable."""
        return self.block_at(index) in self._reached

    def reachable(self, start: int = 0) -> set[int]:
        """Return the blocks that can run once `start` does."""
        seen: set[int] = set()
        left = [start]
        while left:
            block = left.pop()
            if block not in seen:
                seen.add(block)
                left += self.successors[block]
        return seen


def is_conditional(one: Instruction) -> bool:
    """Return whether an EXIT, RET or jump may also continue with the next instruction.

    A branch with any unusual bit counts as conditional: BRA.DIV, for example, or a branch on a uniform predicate.
    """
    word, entry = one.word, one.entry
    if word >> 12 & 15 != PT:
        return True
    low, mask = _SECOND
    if entry.name == "BRA" and entry.target:
        return word & _UNUSUAL[entry.target] != PT << low
    return entry.name in ("EXIT", "RET") and word >> low & mask != PT


def make_graph(code: Code, tables: Mapping[int, Collection[int]] = NO_TABLES, where: str = "") -> Graph:
    """Find the blocks of a section, and which can follow each.

    `tables` has the offsets that each indirect jump can lead to, by its own offset. Raises UnboundedError.
    """
    return _Builder(code, tables, where).build()


class _Builder:
    def __init__(self, code: Code, tables: Mapping[int, Collection[int]], where: str) -> None:
        if not len(code):
            raise UnboundedError("there is no code", where)
        self.code = code
        self.where = where
        self.tables = {branch: sorted({self._index(offset) for offset in found}) for branch, found in tables.items()}
        collecting = {index for index in code.find({"WARPSYNC"}) if code[index].target is not None}
        self.ending = sorted({*code.find(_ENDING), *collecting})
        starts = {0, *(index + 1 for index in self.ending)}
        starts |= {self._index(target) for target in code.targets}
        starts.update(*self.tables.values())
        ordered = sorted(start for start in starts if start < len(code))
        self.blocks = [*map(Block._make, zip(ordered, [*ordered[1:], len(code)], strict=True))]
        self.at = {block.start: number for number, block in enumerate(self.blocks)}
        self.ends = {block.end - 1: number for number, block in enumerate(self.blocks)}
        self.calls_out: set[int] = set()
        self.past_end: set[int] = set()

    def _index(self, offset: int) -> int:
        index, rest = divmod(offset, SIZE)
        if rest or not 0 <= index < len(self.code):
            raise UnboundedError(f"a jump leads to {offset:#x}, where no instruction is", self.where)
        return index

    def _target(self, one: Instruction) -> int:
        assert one.target is not None
        return self.at[self._index(one.target)]

    def build(self) -> Graph:
        ending, last = set(self.ending), len(self.blocks) - 1
        successors = [
            {number + 1} if end - 1 not in ending and number < last else set(self._follow(number))
            for number, (_, end) in enumerate(self.blocks)
        ]
        self._add_returns(successors)
        made = tuple(tuple(sorted(one)) for one in successors)
        graph = Graph(tuple(self.blocks), made, frozenset(self.calls_out))
        if past := self.past_end & graph.reachable():  # the padding is never reached
            offset = SIZE * (self.blocks[min(past)].end - 1)
            raise UnboundedError(f"the code runs past its end at {offset:#x}", self.where)
        return graph

    def _follow(self, number: int) -> Iterator[int]:
        """Yield the blocks that follow a block, except where a RET leads."""
        end = self.blocks[number].end
        one = self.code[end - 1]
        jumps = one.name == "BRA" or (one.name in _CALLS and one.target is not None)
        if one.name in _CALLS and not jumps:
            self.calls_out.add(number)
        if not (jumps or one.name in _LEAVING) or is_conditional(one):
            if end in self.at:
                yield self.at[end]
            else:
                self.past_end.add(number)
        if jumps:
            yield self._target(one)
        elif one.name == "WARPSYNC" and one.target is not None:
            target = self._target(one)
            if self.code[self.blocks[target].start - 1].name != _COLLECT:  # otherwise the block before it leads there
                yield target
        elif one.name in _INDIRECT:
            if not self.tables.get(one.offset):
                raise UnboundedError(f"an indirect jump at {one.offset:#x} without a table of targets", self.where)
            yield from (self.at[index] for index in self.tables[one.offset])

    def _add_returns(self, successors: list[set[int]]) -> None:
        returns = {self.ends[index] for index in self.code.find({"RET"})}
        calls = [index for index in self.ending if self.code[index].name in _CALLS and index + 1 in self.at]
        backs: dict[int, set[int]] = defaultdict(set)  # function -> blocks that it returns to
        for index in calls:
            if self.code[index].target is not None:
                backs[self._target(self.code[index])].add(self.at[index + 1])
        found: dict[int, set[int]] = defaultdict(set)
        room = MAX_RETURNS
        for function, back in backs.items():
            blocks = self._blocks_of(function, successors, room)
            room -= len(blocks) + len(blocks & returns) * len(back)
            self._check_room(room)
            for number in blocks & returns:
                found[number] |= back
        anywhere = {self.at[index + 1] for index in calls}
        self._check_room(room - len(returns - found.keys()) * len(anywhere))
        for number in returns:
            successors[number] |= found[number] or anywhere

    def _check_room(self, room: int) -> None:
        if room < 0:
            raise UnboundedError("too many calls and returns", self.where)

    def _blocks_of(self, function: int, successors: list[set[int]], most: int) -> set[int]:
        """Return the blocks of a function, but not of the functions that it calls. Stop once there are more
        than `most`.
        """
        seen: set[int] = set()
        left = [function]
        while left and len(seen) <= most:
            number = left.pop()
            if number in seen:
                continue
            seen.add(number)
            end = self.blocks[number].end
            calls = self.code[end - 1].name in _CALLS
            left += [self.at[end]] if calls and end in self.at else [] if calls else successors[number]
        return seen
