"""Find the stretches of a PTX function that ptxas compiles without a branch, and which statements write and read
registers.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gpt.ptx import tree
from gpt.ptx.quick import parse_instruction
from gpt.ptx.scan import Module, Statement

WORD = re.compile(r"[\w$%]+")
MOST_STEPS = 1_000_000  # between jumps, for all searches in a function together
_OPCODE = re.compile(r"(?:bra|brx|ret|exit|trap)\b")
# Instructions whose first operand isn't a result, and instructions that both read and write their accumulator.
_NO_RESULT = {"bra", "brx", "bar", "barrier", "call", "nanosleep", "setmaxnreg", "pmevent"}
_BOTH = {"wgmma", "tcgen05"}
_DECLARED = re.compile(r"([\w$%]+)(<)?")
_ENDS = {"bra", "brx", "ret", "exit", "trap", "brkpt", "pmevent", "call", "membar", "fence"}
_SLOW = re.compile(r"(?:div|sqrt|rcp)\.r[nzmp]\b|(?:div|rem)\.[su]64$")
# Instructions that ptxas branches around if they have a guard. It predicates all others.
_BRANCHED = {
    *("ld", "ldu", "st", "atom", "red", "bar", "barrier", "shfl", "vote", "match", "redux", "cp", "tex"),
    *("suld", "sust", "prefetch", "multimem", "mbarrier", "wmma", "mma", "ldmatrix", "stmatrix", "nanosleep"),
}  # fmt: skip


class Access(NamedTuple):
    """The registers that an instruction writes and reads."""

    written: frozenset[str]
    read: frozenset[str]
    is_guarded: bool


class Flow:
    """Finds the statements that write and read each register."""

    def __init__(self, module: Module, statements: Sequence[Statement]) -> None:
        self._module, self._statements = module, statements
        self._known: dict[int, Access] = {}
        self._mentions: dict[str, list[int]] = {}
        for number, statement in enumerate(statements):
            if statement.kind == "instruction":
                for word in set(WORD.findall(module.text[statement.start : statement.end])):
                    self._mentions.setdefault(word, []).append(number)
        self._jumps = [
            number for number, s in enumerate(statements) if s.kind == "instruction" and _OPCODE.match(s.head)
        ]
        self._steps = 0
        self._labels = {s.head: number for number, s in enumerate(statements) if s.kind == "label"}

    def mentions(self, name: str, first: int = 0, end: int | None = None) -> Sequence[int]:
        """Return the instructions from `first` up to `end` that contain this name, in order."""
        found = self._mentions.get(name, [])
        return found[bisect_left(found, first) : None if end is None else bisect_left(found, end)]

    def access(self, number: int) -> Access:
        """Return the registers that an instruction writes and reads."""
        found = self._known.get(number)
        if found is None:
            node = parse_instruction(self._module.source(self._statements[number]))
            first = node.operands[:1] if _has_result(node) else ()
            written = frozenset(name for operand in first for name in names_in(operand))
            read = {
                name
                for operand in node.operands[0 if node.opcode in _BOTH else len(first) :]
                for name in names_in(operand)
            }
            read |= {node.guard.register} if node.guard else set()
            found = self._known[number] = Access(written, frozenset(read), node.guard is not None)
        return found

    def find_writer(self, name: str, first: int, end: int) -> int | None:
        """Return the last instruction from `first` up to `end` that writes a name, or None."""
        found = self._mentions.get(name, [])
        at = bisect_left(found, end)
        while at and found[at - 1] >= first:
            at -= 1
            if name in self.access(found[at]).written:
                return found[at]
        return None

    def is_read_after(self, name: str, first: int, last: int) -> bool:
        """Return whether there's a path from the end of a stretch on which a register is read before it's written. If
        the search takes too long, assume that there is.
        """
        mentions = self._mentions.get(name, [])
        if not mentions:  # not a single word; happens with malformed text
            return True
        begin = self.access(mentions[0])
        is_local = first <= mentions[0] and mentions[-1] <= last
        if is_local and name in begin.written and name not in begin.read and not begin.is_guarded:
            return False
        seen: set[int] = set()
        todo = [last + 1]
        while todo:
            at = todo.pop()
            while at < len(self._statements) and at not in seen:
                seen.add(at)
                self._steps += 1
                if self._steps > MOST_STEPS:
                    return True
                jump = _next(self._jumps, at, len(self._statements))
                mention = _next(mentions, at, len(self._statements))
                if mention <= jump < len(self._statements) or mention < jump:
                    access = self.access(mention)
                    if name in access.read:
                        return True
                    if name in access.written and not access.is_guarded:
                        break
                    if mention < jump:
                        at = mention + 1
                        continue
                if jump == len(self._statements) or not self._follow(jump, todo):
                    break
                at = jump + 1
        return False

    def _follow(self, number: int, todo: list[int]) -> bool:
        """Add the targets of a jump to `todo`. Return whether execution can also continue after it."""
        statement = self._statements[number]
        opcode = statement.head.partition(".")[0]
        if opcode == "brx":
            todo += self._labels.values()
        elif opcode == "bra":
            words = WORD.findall(self._module.text[statement.start : statement.end])
            todo += [self._labels[word] for word in words if word in self._labels]
        return bool(statement.guard)


def _next(numbers: Sequence[int], at: int, end: int) -> int:
    """Return the first number that's at least `at`, or `end`."""
    place = bisect_left(numbers, at)
    return numbers[place] if place < len(numbers) else end


def _has_result(node: tree.Instruction) -> bool:
    """Return whether the first operand is a result."""
    if not node.operands or isinstance(node.operands[0], tree.Address):
        return False
    return node.opcode not in _NO_RESULT or ".red" in node.modifiers


def names_in(operand: tree.Operand) -> Iterator[str]:
    """Yield the names in an operand."""
    if isinstance(operand, tree.Name):
        yield operand.name
    else:
        yield from WORD.findall(str(operand))


def inner_names(module: Module, statements: Sequence[Statement]) -> Callable[[str], bool]:
    """Return a function that says whether an inner scope declares a register with this name."""
    depth = 0
    plain: set[str] = set()
    counted: set[str] = set()
    for statement in statements:
        depth += (statement.kind == "{") - (statement.kind == "}")
        if depth and statement.head == ".reg":
            for name, has_count in _DECLARED.findall(module.text[statement.start : statement.end]):
                (counted if has_count else plain).add(name)
    return lambda name: name in plain or name.rstrip("0123456789") in counted


def stretches_of(module: Module, statements: Sequence[Statement]) -> Iterator[list[int]]:
    """Yield the numbers of the instructions in each stretch without branches."""
    targets = _targets(module, statements)
    stretch: list[int] = []
    for number, statement in enumerate(statements):
        is_end = statement.kind == "label" and statement.head in targets
        if statement.kind == "instruction":
            opcode = statement.head.partition(".")[0]
            is_end = opcode in _ENDS or bool(_SLOW.match(statement.head))
            is_end = is_end or (bool(statement.guard) and opcode in _BRANCHED)
            if not is_end:
                stretch.append(number)
        if is_end and stretch:
            yield stretch
            stretch = []
    if stretch:
        yield stretch


def _targets(module: Module, statements: Sequence[Statement]) -> set[str]:
    """Return all labels that are named by branches or lists of targets."""
    return {
        word
        for statement in statements
        if statement.head.startswith(("bra", "brx", ".branchtargets"))
        for word in WORD.findall(module.text[statement.start : statement.end])
    }
