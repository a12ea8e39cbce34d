"""Whether a loop in a snippet ends: its turns are counted, by running what moves its counter.

The count must be plain: a register is set to a constant before the label, one constant is added to it once in the
loop, and the branch back depends on its comparison with a constant after that. There are no other branches or labels
in the loop, and no other way to its label.
"""

from __future__ import annotations

import operator

from gpt.probe.model import Save, names_of
from gpt.ptx import tree
from gpt.ptx.types import SIZES, integer

MAX_TURNS = 1024
_HOLDS = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "ne": operator.ne,
    "eq": operator.eq,
}


Node = tree.Instruction | tree.Label | Save


def find_fault(lines: list[Node], begin: int, end: int) -> str | None:
    """What is wrong with the loop between a label and the branch back to it, None if it ends soon enough."""
    loop = _find_loop(lines, begin, end)
    if loop is None:
        return "loops without a static bound"
    value, step, compare, bound, type_ = loop
    for _ in range(MAX_TURNS):
        value = _wrap(value + step, type_)
        if not _HOLDS[compare](value, bound):
            return None
    return f"loops more than {MAX_TURNS} times"


def _find_loop(lines: list[Node], begin: int, end: int) -> tuple[int, int, str, int, str] | None:
    """Start, step, comparison, bound and type of the loop's counter."""
    node = lines[end]
    assert isinstance(node, tree.Instruction)
    body, label = lines[begin + 1 : end], lines[begin]
    plain = [line for line in body if isinstance(line, tree.Instruction)]
    others = [
        line for line in lines if isinstance(line, tree.Instruction) and line.opcode == "bra" and line is not node
    ]
    if not node.guard or node.guard.negated or any(isinstance(line, tree.Label) for line in body):
        return None
    if any(line.opcode == "bra" for line in plain) or any(str(line.operands[0]) == str(label)[:-1] for line in others):
        return None
    tests = [line for line in plain if node.guard.register in _written(line)]
    if len(tests) != 1 or tests[0].guard or tests[0].opcode != "setp" or len(tests[0].modifiers) != 2:
        return None
    if tests[0].operands[0] != tree.Name(node.guard.register):  # of two results one is the opposite
        return None
    compare, type_ = (modifier[1:] for modifier in tests[0].modifiers)
    _, counter, limit = tests[0].operands[:3]
    bound = _constant(limit)
    if compare not in _HOLDS or type_ not in ("u16", "u32", "u64", "s16", "s32", "s64") or bound is None:
        return None
    steps = [line for line in plain if str(counter) in _written(line)]
    if len(steps) != 1 or steps[0].guard or steps[0].opcode != "add" or plain.index(steps[0]) > plain.index(tests[0]):
        return None
    step = _constant(steps[0].operands[2]) if len(steps[0].operands) == 3 and steps[0].operands[1] == counter else None
    if step is None or len(steps[0].modifiers) != 1 or steps[0].modifiers[0][2:] != type_[1:]:
        return None
    start = None
    for line in lines[:begin]:
        if isinstance(line, tree.Label) or (isinstance(line, tree.Instruction) and line.opcode == "bra"):
            start = None
        elif isinstance(line, tree.Instruction) and str(counter) in _written(line):
            plainly = line.opcode == "mov" and not line.guard and line.operands[0] == counter
            start = _constant(line.operands[1]) if plainly else None
    return None if start is None else (_wrap(start, type_), step, compare, _wrap(bound, type_), type_)


def _wrap(value: int, type_: str) -> int:
    """A number as a register of the type holds it."""
    bits = SIZES[type_] * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if type_[0] == "s" and value >> (bits - 1) else value


def _written(node: tree.Instruction) -> set[str]:
    return set(names_of(node.operands[0])) if node.operands else set()


def _constant(operand: tree.Operand) -> int | None:
    sign = 1
    if isinstance(operand, tree.Prefixed) and operand.prefixes == ("-",):
        sign, operand = -1, operand.operand
    value = integer(operand.text) if isinstance(operand, tree.Number) else None
    return None if value is None else sign * value
