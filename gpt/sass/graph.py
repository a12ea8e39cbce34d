"""Control flow of a kernel: the stretches of code that run from start to end, and which can follow which.

A kernel is one section of code. The section may also hold functions that the kernel calls.

Warps make this harder than on a CPU. Lanes that part at a branch wait for each other at a BSYNC:

    BSSY B0, L      remember in B0 which lanes are here; they'll meet at L
    @P0 BRA M       some go this way,
    ...             some that
    BSYNC B0        wait until each of B0's lanes has come to a BSYNC B0 (or left by EXIT or BREAK)
    L:              go on together

A BSYNC goes on at the label of the BSSY that filled its barrier. Usually that's the next instruction, but not always.
Every BSSY on the same barrier that reaches the BSYNC may be the one, so each label counts. A barrier may also be saved
in a register and written back (BMOV); then any label is possible.

A RET goes back to behind the calls of the functions that it ends. Where no call in this section leads to it, it may go
back to behind any call.

Nothing is missing from `Graph.successors` that the hardware can do; there may be edges too many. What can't be bounded
raises UnboundedError: an indirect jump without a table, or a jump that leaves the section.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gpt.base.errors import GptError
from gpt.sass.code import Code, Instruction
from gpt.sass.words import CONTROL, PT, SIZE, TARGETS

_CALLS = {"CALL"}
_INDIRECT = {"BRX", "BRXU", "JMX", "JMXU", "JMP"}
_LEAVING = {"EXIT", "RET", "KILL", *_INDIRECT}
_ENDING = {"BRA", "BSSY", "BSYNC", *_CALLS, *_LEAVING}  # and WARPSYNC with a target
_SECOND = (87, 15)  # the second predicate of EXIT, BRA and RET, with its sign
_COLLECT = "ENDCOLLECTIVE"


class UnboundedError(GptError):
    """The code goes somewhere that can't be found from its words."""


@dataclass(frozen=True)
class Block:
    """Instructions from `start` to before `end`, numbered from the start of the section; only the last one can jump."""

    start: int
    end: int


@dataclass(frozen=True)
class Graph:
    """Blocks in the order of the code, and the blocks that can follow each. The kernel begins with block 0."""

    blocks: tuple[Block, ...]
    successors: tuple[tuple[int, ...], ...]
    calls_out: frozenset[int]  # blocks that end with a call of code that isn't in this section, or isn't known

    def block_at(self, index: int) -> int:
        """Return the number of the block that an instruction is in."""
        return bisect.bisect_right(self.blocks, index, key=lambda block: block.start) - 1

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
    """Return whether an EXIT, RET or jump may also go on to the next instruction.

    A branch with any unusual bit counts as conditional: BRA.DIV, for example, or a branch on a uniform predicate.
    """
    low, mask = _SECOND
    rest = one.word & ~(CONTROL | 0xFFFF)
    if one.name == "BRA" and one.entry.target:
        for start, width in TARGETS[one.entry.target][0]:
            rest &= ~((1 << width) - 1 << start)
        return not one.guard.always or rest != PT << low
    return not one.guard.always or (one.name in ("EXIT", "RET") and rest >> low & mask != PT)


def make_graph(code: Code, tables: Collection[int] = (), where: str = "") -> Graph:
    """Find the blocks of a section, and what can follow each. `tables`: offsets that indirect jumps lead to.

    Raises UnboundedError.
    """
    return _Builder(code, tables, where).build()


class _Builder:
    def __init__(self, code: Code, tables: Collection[int], where: str) -> None:
        if not len(code):
            raise UnboundedError("there is no code", where)
        self.code = code
        self.where = where
        self.tables = sorted({self._index(offset) for offset in tables})
        collecting = {index for index in code.find({"WARPSYNC"}) if code[index].target is not None}
        self.ending = sorted({*code.find(_ENDING), *collecting})
        starts = {0, *self.tables, *(index + 1 for index in self.ending)}
        starts |= {self._index(target) for target in code.targets}
        ordered = sorted(start for start in starts if start < len(code))
        self.blocks = [Block(start, end) for start, end in zip(ordered, [*ordered[1:], len(code)], strict=True)]
        self.at = {block.start: number for number, block in enumerate(self.blocks)}
        self.ends = {block.end - 1: number for number, block in enumerate(self.blocks)}
        self.opcodes = {code.opcodes[index] for index in self.ending}
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
        successors = [set(self._follow(number)) for number in range(len(self.blocks))]
        self._add_returns(successors)
        self._add_meetings(successors)
        made = tuple(tuple(sorted(one)) for one in successors)
        graph = Graph(tuple(self.blocks), made, frozenset(self.calls_out))
        if past := self.past_end & graph.reachable():  # what pads the code is never reached
            offset = SIZE * (self.blocks[min(past)].end - 1)
            raise UnboundedError(f"the code runs past its end at {offset:#x}", self.where)
        return graph

    def _follow(self, number: int) -> Iterator[int]:
        """Yield what follows a block, but not where a RET leads, and of a BSYNC only the next instruction."""
        end = self.blocks[number].end
        if self.code.opcodes[end - 1] not in self.opcodes and end in self.at:
            yield self.at[end]
            return
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
            if self.code[self.blocks[target].start - 1].name != _COLLECT:  # else the block before leads there
                yield target
        elif one.name in _INDIRECT:
            if not self.tables:
                raise UnboundedError(f"an indirect jump at {one.offset:#x} without a table of targets", self.where)
            yield from (self.at[index] for index in self.tables)

    def _add_returns(self, successors: list[set[int]]) -> None:
        returns = {number for end, number in self.ends.items() if self.code[end].name == "RET"}
        calls = [index for index in self.ending if self.code[index].name in _CALLS and index + 1 in self.at]
        backs: dict[int, set[int]] = defaultdict(set)  # by function: where it goes back to
        for index in calls:
            if self.code[index].target is not None:
                backs[self._target(self.code[index])].add(self.at[index + 1])
        found: dict[int, set[int]] = defaultdict(set)
        for function, back in backs.items():
            for number in self._blocks_of(function, successors) & returns:
                found[number] |= back
        anywhere = {self.at[index + 1] for index in calls}
        for number in returns:
            successors[number] |= found[number] or anywhere

    def _blocks_of(self, function: int, successors: list[set[int]]) -> set[int]:
        """Return the blocks of a function, without the functions that it calls."""
        seen: set[int] = set()
        left = [function]
        while left:
            number = left.pop()
            if number in seen:
                continue
            seen.add(number)
            end = self.blocks[number].end
            calls = self.code[end - 1].name in _CALLS
            left += [self.at[end]] if calls and end in self.at else [] if calls else successors[number]
        return seen

    def _add_meetings(self, successors: list[set[int]]) -> None:
        """Let each BSYNC lead to the label of every BSSY that can have filled its barrier."""
        pushes = [self.code[index] for index in self.ending if self.code[index].name == "BSSY"]
        labels = [self._target(one) for one in pushes]
        on_barrier: dict[int, int] = defaultdict(int)  # by barrier: a bit for each BSSY
        for bit, one in enumerate(pushes):
            on_barrier[one.writes.B] |= 1 << bit
        everyone = (1 << len(pushes)) - 1
        kills, fills = [0] * len(self.blocks), [0] * len(self.blocks)
        for bit, one in enumerate(pushes):
            number = self.ends[one.index]
            kills[number], fills[number] = on_barrier[one.writes.B], 1 << bit
        restores = False
        for index in self.code.find({"BMOV"}):
            if self.code[index].writes.B:
                number = bisect.bisect_right(self.blocks, index, key=lambda block: block.start) - 1
                restores, kills[number], fills[number] = True, 0, everyone
        meets = {self.ends[index]: self.code[index].reads.B for index in self.code.find({"BSYNC"})}
        reaching: list[int | None] = [None] * len(self.blocks)
        reaching[0] = 0
        changed = [True, *[False] * (len(self.blocks) - 1)]
        while any(changed):
            for number in [number for number, is_changed in enumerate(changed) if is_changed]:
                changed[number] = False
                state = (reaching[number] or 0) & ~kills[number] | fills[number]
                if number in meets:
                    filled = state & (everyone if restores else on_barrier[meets[number]])
                    successors[number] |= {labels[bit] for bit in _bits_of(filled)}
                for follower in successors[number]:
                    before = reaching[follower]
                    if before is None or state & ~before:
                        reaching[follower] = state | (before or 0)
                        changed[follower] = True


def _bits_of(mask: int) -> Iterator[int]:
    while mask:
        bit = mask.bit_length() - 1
        yield bit
        mask &= ~(1 << bit)
