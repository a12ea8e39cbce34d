"""Instructions of the usual shapes, read by regular expressions: twenty times as fast as the grammar.

What is parsed one statement at a time is mostly loads, stores and arithmetic with registers, constants, offsets and
vectors of registers. All else goes to the grammar, which a test holds this equal to.
"""

from __future__ import annotations

import re

from gpt.ptx import tree
from gpt.ptx.parse import parse_statements

_INSTRUCTION = re.compile(
    r"(?:@(?P<not>!?)(?P<guard>%\w++)\s++)?+(?P<opcode>[A-Za-z]\w*+)(?P<modifiers>(?:\.\w++(?:::\w++)*+)*+)"
    r"(?:\s++(?P<operands>[^;()\"/]*+))?+;",
    re.ASCII,
)
_MODIFIER = re.compile(r"\.\w+(?:::\w+)*", re.ASCII)
_OPERANDS = re.compile(
    r"\s*+(?:(?P<name>%[A-Za-z]\w*+|[A-Za-z_$][\w$]*+)(?P<parts>(?:\.\w++)*+)"
    r"|(?P<number>0[fF][\dA-Fa-f]{8}|0[dD][\dA-Fa-f]{16}|0[xX][\dA-Fa-f]++|\d++)"
    r"|-(?P<negative>[1-9]\d*+)"
    r"|\[\s*+(?P<base>%[A-Za-z]\w*+|[A-Za-z_$][\w$]*+)(?:\+(?P<minus>-?+)(?P<offset>\d++))?+\s*+\]"
    r"|\{(?P<items>\s*+%\w++(?:\s*+,\s*+%\w++)*+\s*+)\})\s*+(?P<more>,|\Z)",
    re.ASCII,
)


def parse_instruction(text: str, name: str = "PTX") -> tree.Instruction:
    """One instruction. Raises MalformedError."""
    found = _quick(text)
    if found is None:
        (parsed,) = parse_statements(text, name)
        assert isinstance(parsed, tree.Instruction)
        return parsed
    return found


def _quick(text: str) -> tree.Instruction | None:
    head = _INSTRUCTION.fullmatch(text)
    if head is None:
        return None
    operands = []
    rest = (head["operands"] or "").rstrip()
    at, more = 0, bool(rest)
    while more:
        found = _OPERANDS.match(rest, at)
        if found is None:
            return None
        operands.append(_operand(found))
        at, more = found.end(), bool(found["more"])
    guard = tree.Guard(head["guard"], bool(head["not"])) if head["guard"] else None
    return tree.Instruction(head["opcode"], tuple(_MODIFIER.findall(head["modifiers"])), tuple(operands), guard)


def _operand(found: re.Match[str]) -> tree.Operand:
    match found.lastgroup and next(key for key in ("name", "number", "negative", "base", "items") if found[key]):
        case "name":
            return tree.Name(found["name"], tuple(_MODIFIER.findall(found["parts"])))
        case "number":
            return tree.Number(found["number"])
        case "negative":
            return tree.Prefixed(("-",), tree.Number(found["negative"]))
        case "items":
            return tree.Vector(tuple(tree.Name(item.strip()) for item in found["items"].split(",")))
    base, offset = tree.Name(found["base"]), found["offset"]
    if offset is None:
        return tree.Address((base,))
    number: tree.Operand = tree.Number(offset)
    if found["minus"]:
        number = tree.Prefixed(("-",), number)
    return tree.Address((tree.Expression((base, number), ("+",)),))
