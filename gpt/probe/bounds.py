"""Check that a loop in a snippet ends, by simulating its counter.

Only simple loops are accepted: a register is set to a constant before the label; in each iteration, the loop adds the
same constant to it once; and the loop ends with a branch back that compares the register with a constant. There are no
other branches or labels in the loop, and no other branch leads into it.
"""

from __future__ import annotations

import operator
from typing import NamedTuple

from gpt.probe.model import Save, names_of
from gpt.ptx import tree
from gpt.ptx.types import SIZES, integer

MAX_TURNS = 1024
_HOLDS = {
    ".lt": operator.lt,
    ".le": operator.le,
    ".gt": operator.gt,
    ".ge": operator.ge,
    ".ne": operator.ne,
    ".eq": operator.eq,
}
_TYPES = {".u16", ".u32", ".u64", ".s16", ".s32", ".s64"}

Node = tree.Instruction | tree.Label | Save


class _Test(NamedTuple):
    """The condition for another iteration: `counter` is compared with `limit`, and both have this type."""

    node: tree.Instruction
    counter: tree.Operand
    compare: str
    limit: int
    type: str


def find_fault(lines: list[Node], begin: int, end: int) -> str | None:
    """Return why the loop from a label to the branch back may not end, or None if it ends soon enough."""
    body = _find_body(lines, begin, end)
    test = _find_test(body, lines[end]) if body else None
    step = _find_step(body, test) if body and test else None
    value = _find_start(lines[:begin], test.counter) if test else None
    if test is None or step is None or value is None:
        return "loops without a static bound"
    holds, limit = _HOLDS[test.compare], _wrap(test.limit, test.type)
    for _ in range(MAX_TURNS):
        value = _wrap(value + step, test.type)
        if not holds(value, limit):
            return None
    return f"loops more than {MAX_TURNS} times"


def _find_body(lines: list[Node], begin: int, end: int) -> list[tree.Instruction] | None:
    """Return the instructions of a loop, or None if it has inner branches, or can be entered anywhere but at the
    top.
    """
    label, inside = lines[begin], lines[begin + 1 : end]
    assert isinstance(label, tree.Label)
    if any(isinstance(node, tree.Label) for node in inside):
        return None
    body = [node for node in inside if isinstance(node, tree.Instruction)]
    if any(node.opcode == "bra" for node in body):
        return None
    others = (node for node in lines[:begin] + lines[end + 1 :] if isinstance(node, tree.Instruction))
    if any(node.opcode == "bra" and str(node.operands[0]) == label.name for node in others):
        return None
    return body


def _find_test(body: list[tree.Instruction], branch: Node) -> _Test | None:
    """Return the condition of the branch back, or None unless it's a single comparison with a constant."""
    assert isinstance(branch, tree.Instruction)
    if branch.guard is None or branch.guard.negated:
        return None
    flag = tree.Name(branch.guard.register)
    match _find_writer(body, flag):
        case tree.Instruction("setp", (compare, type_), (target, counter, limit, *_)) as node:
            bound = _constant(limit)
            if target == flag and compare in _HOLDS and type_ in _TYPES and bound is not None:
                return _Test(node, counter, compare, bound, type_)  # the second result of setp is the opposite
    return None


def _find_step(body: list[tree.Instruction], test: _Test) -> int | None:
    """Return the constant that's added to the counter in each iteration, before the test, or None if there isn't
    one.
    """
    node = _find_writer(body, test.counter)
    match node:
        case tree.Instruction("add", (type_,), (_, source, step)) if source == test.counter:
            if type_[2:] == test.type[2:] and body.index(node) < body.index(test.node):
                return _constant(step)
    return None


def _find_start(lines: list[Node], counter: tree.Operand) -> int | None:
    """Return the constant that a register holds after these lines, or None if it isn't the same on every path."""
    for node in reversed(lines):
        match node:
            case tree.Label() | tree.Instruction("bra"):
                return None
            case tree.Instruction("mov", _, (target, value), None) if target == counter:
                return _constant(value)
            case tree.Instruction() if str(counter) in _written(node):
                return None
    return None


def _find_writer(body: list[tree.Instruction], register: tree.Operand) -> tree.Instruction | None:
    """Return the instruction that writes a register, or None if several do or if it's conditional."""
    found = [node for node in body if str(register) in _written(node)]
    return found[0] if len(found) == 1 and not found[0].guard else None


def _wrap(value: int, type_: str) -> int:
    """Wrap a number around as a register of this type (such as `.s32`) does."""
    bits = SIZES[type_[1:]] * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_[1] == "s" and value >> (bits - 1) else value


def _written(node: tree.Instruction) -> set[str]:
    return set(names_of(node.operands[0])) if node.operands else set()


def _constant(operand: tree.Operand) -> int | None:
    sign = 1
    if isinstance(operand, tree.Prefixed) and operand.prefixes == ("-",):
        sign, operand = -1, operand.operand
    value = integer(operand.text) if isinstance(operand, tree.Number) else None
    return None if value is None else sign * value
