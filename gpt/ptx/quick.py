"""Instructions and parameters of the usual shapes, read by regular expressions: twenty times as fast as the grammar.

What is parsed one statement at a time is mostly loads, stores and arithmetic with registers, constants, offsets and
vectors of registers. All else goes to the grammar, which a test holds this equal to.
"""

from __future__ import annotations

import re

from gpt.ptx import tree
from gpt.ptx.parse import parse_head, parse_statements
from gpt.ptx.scan import Item, Module

_INSTRUCTION = re.compile(
    r"(?:@(?P<not>!?)(?P<guard>%?[A-Za-z]\w*+)\s++)?+(?P<opcode>[A-Za-z]\w*+)(?P<modifiers>(?:\.\w++(?:::\w++)*+)*+)"
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

_HEAD = re.compile(
    r"(?:\.(?:visible|weak)\s++)?+\.(?:entry|func)\s++(?:\([^()]*+\)\s*+)?+[A-Za-z_$][\w$]*+\s*+"
    r"(?P<list>\((?P<params>[^()]*+)\)\s*+)?+(?:\.[a-z]++[\d\s,]*+)*+;?+",
    re.ASCII,
)
_PARAM = re.compile(
    r"\s*+(?P<words>(?:\.\w++(?:\s++\d++)?+\s++)++)(?P<name>[A-Za-z_$][\w$]*+)"
    r"(?:\s*+\[\s*+(?P<size>\d++)\s*+\])?+\s*+(?P<more>,|\Z)",
    re.ASCII,
)
_SPECIFIER = re.compile(r"(\.\w+)(?:\s+(\d+))?", re.ASCII)


def parse_instruction(text: str) -> tree.Instruction:
    """One instruction. Raises MalformedError."""
    found = _quick(text)
    if found is None:
        (parsed,) = parse_statements(text)
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


def parse_params(module: Module, function: Item) -> tuple[tree.Parameter, ...] | None:
    """The parameters of a function, None of one that has no list of them. Raises MalformedError."""
    found = _HEAD.fullmatch(module.skeleton[function.start : function.body or function.end].rstrip())
    params = _params((found["params"] or "").rstrip()) if found else None
    if found is None or params is None:
        return parse_head(module, function).params
    return params if found["list"] else None


def _params(text: str) -> tuple[tree.Parameter, ...] | None:
    params = []
    at, more = 0, bool(text)
    while more:
        found = _PARAM.match(text, at)
        if found is None:
            return None
        words = tuple(tree.Specifier(word, argument) for word, argument in _SPECIFIER.findall(found["words"]))
        dimensions = (tree.Number(found["size"]),) if found["size"] else ()
        params.append(tree.Parameter(words, tree.Declarator(found["name"], None, dimensions)))
        at, more = found.end(), bool(found["more"])
    return tuple(params)
