"""Parse common forms of instructions, declarations and parameters without the grammar, six times as fast.

Most statements are loads, stores and arithmetic, with registers, constants, offsets and vectors of registers.
Everything else is left to the grammar, which uses the same tokens. A test checks that both produce the same trees.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpt.base.errors import MalformedError
from gpt.ptx import tree
from gpt.ptx.parse import parse_head, parse_statements
from gpt.ptx.scan import Item, Module
from gpt.ptx.tokens import TEXT

Stack = list[str]  # the next token is the last element


class _Unusual(LookupError):
    """Raised for text with an uncommon form, which the grammar has to parse. Text that ends early raises IndexError,
    with the same effect.
    """


def parse_instruction(text: str) -> tree.Instruction:
    """Parse an instruction. Raises MalformedError."""
    try:
        return _instruction(_tokens(text))
    except LookupError:
        (parsed,) = parse_statements(text)
        assert isinstance(parsed, tree.Instruction)
        return parsed


def parse_statement(text: str) -> list[tree.Statement]:
    """Parse a statement of a body, like parse_statements. A label with its list is two statements. Raises
    MalformedError.
    """
    try:
        is_register = text.startswith(".reg") and text[4:5].isspace()
        return [_declaration(_tokens(text)) if is_register else _instruction(_tokens(text))]
    except LookupError:
        return parse_statements(text, "")


def parse_declaration(text: str, where: Callable[[], str] = str) -> tree.Declaration:
    """Parse a declaration of variables or registers. Raises MalformedError; `where` returns its location."""
    try:
        return _declaration(_tokens(text))
    except LookupError:
        try:
            (parsed,) = parse_statements(text)
        except MalformedError as error:
            raise MalformedError(error.fact, where()) from None
    if not isinstance(parsed, tree.Declaration):
        raise MalformedError(f"PTX: not a declaration: '{text[:40]}'", where())
    return parsed


def parse_params(module: Module, function: Item) -> tuple[tree.Parameter, ...] | None:
    """Parse the parameters of a function. Return None if it has no parameter list. Raises MalformedError."""
    try:
        return _params(_tokens(module.skeleton[function.start : function.body or function.end]))
    except LookupError:
        return parse_head(module, function).params


def parse_function(module: Module, function: Item) -> tree.FunctionNode:
    """Parse the head of a function, like parse_head. Raises MalformedError."""
    try:
        return _function(_tokens(module.skeleton[function.start : function.body or function.end]))
    except LookupError:
        return parse_head(module, function)


def _tokens(text: str) -> Stack:
    _check(text.isascii())
    return TEXT.findall(text)[::-1]


def _take(tokens: Stack, wanted: str) -> bool:
    """If the next token is `wanted`, remove it. Return whether it was."""
    found = tokens[-1] == wanted
    if found:
        tokens.pop()
    return found


def _check(usual: bool) -> None:
    if not usual:
        raise _Unusual


def _list(tokens: Stack, end: str, read: Callable[[Stack], Any]) -> tuple[Any, ...]:
    """Parse items separated by commas, up to the token `end`."""
    found: list[Any] = []
    if _take(tokens, end):
        return ()
    while True:
        found.append(read(tokens))
        separator = tokens.pop()
        if separator == end:
            return tuple(found)
        _check(separator == ",")


def _instruction(tokens: Stack) -> tree.Instruction:
    guard = None
    if _take(tokens, "@"):
        negated = _take(tokens, "!")
        guard = tree.Guard(_name(tokens), negated)
    opcode = tokens.pop()
    _check(opcode.isidentifier())
    node = tree.Instruction(opcode, _words(tokens), _list(tokens, ";", _operand), guard)
    _check(not tokens)
    return node


def _operand(tokens: Stack) -> tree.Operand:
    if _take(tokens, "["):
        return tree.Address(_list(tokens, "]", _sum))
    if _take(tokens, "{"):
        return tree.Vector(_list(tokens, "}", _plain))
    return tree.OperandGroup(_list(tokens, ")", _plain)) if _take(tokens, "(") else _plain(tokens)


def _sum(tokens: Stack) -> tree.Operand:
    first = _plain(tokens)
    return tree.Expression((first, _plain(tokens)), ("+",)) if _take(tokens, "+") else first


def _plain(tokens: Stack) -> tree.Operand:
    """Parse a name or a number."""
    if _take(tokens, "-"):
        return tree.Prefixed(("-",), _number(tokens))
    return _number(tokens) if tokens[-1][0].isdecimal() else tree.Name(_name(tokens), _words(tokens))


def _number(tokens: Stack) -> tree.Number:
    text = tokens.pop()
    _check(text[0].isdecimal())
    return tree.Number(text)


def _name(tokens: Stack) -> str:
    text = tokens.pop()
    _check(text[0].isalpha() or (text[0] in "%_$" and text != "%"))
    return text


def _word(tokens: Stack) -> str:
    text = tokens.pop()
    _check(text[0] == "." and text[1:2].isalpha())  # `.5` may be a number
    return text


def _words(tokens: Stack) -> tuple[str, ...]:
    words = []
    while tokens[-1][0] == ".":
        words.append(_word(tokens))
    return tuple(words)


def _declaration(tokens: Stack) -> tree.Declaration:
    node = tree.Declaration(_specifiers(tokens), _list(tokens, ";", _declarator))
    _check(not tokens)
    return node


def _specifiers(tokens: Stack) -> tuple[tree.Specifier, ...]:
    found: list[tree.Specifier] = []
    while tokens[-1][0] == "." or not found:
        found.append(tree.Specifier(_word(tokens), tokens.pop() if tokens[-1].isdecimal() else ""))
    return tuple(found)


def _declarator(tokens: Stack) -> tree.Declarator:
    name, count = _name(tokens), None
    if _take(tokens, "<"):
        count = _number(tokens).text
        _check(tokens.pop() == ">")
    dimensions: list[tree.Operand | None] = []
    while _take(tokens, "["):
        dimensions.append(None if tokens[-1] == "]" else _plain(tokens))
        _check(tokens.pop() == "]")
    return tree.Declarator(name, count, tuple(dimensions), _value(tokens) if _take(tokens, "=") else None)


def _value(tokens: Stack) -> tree.Operand:
    """Parse an initial value: lists in braces, nested as deeply as there are dimensions."""
    return tree.Vector(_list(tokens, "}", _value)) if _take(tokens, "{") else _plain(tokens)


def _parameter(tokens: Stack) -> tree.Parameter:
    return tree.Parameter(_specifiers(tokens), _declarator(tokens))


def _params(tokens: Stack) -> tuple[tree.Parameter, ...] | None:
    """Parse the parameters in the head of a function. Attributes must consist of words, numbers and commas."""
    while tokens.pop() not in (".entry", ".func"):
        pass
    if _take(tokens, "("):  # the results
        _list(tokens, ")", _parameter)
    _name(tokens)
    tokens.insert(0, ";")  # a sentinel, so that there's always a next token
    params = _list(tokens, ")", _parameter) if _take(tokens, "(") else None
    _check(tokens[-1][0] in ".;" and all(text[0] == "." or text.isdecimal() or text in ",;" for text in tokens))
    return params


def _function(tokens: Stack) -> tree.FunctionNode:
    """Parse the head of a function, up to its body. Attributes must be words with plain values."""
    _check(bool(tokens))
    if tokens[0] != ";":
        tokens.insert(0, ";")  # a sentinel, so that there's always a next token
    before = []
    while tokens[-1] not in (".entry", ".func"):
        before.append(tree.Specifier(_word(tokens), ""))
    kind = tokens.pop()
    returns = _list(tokens, ")", _parameter) if _take(tokens, "(") else None
    name = _name(tokens)
    params = _list(tokens, ")", _parameter) if _take(tokens, "(") else None
    attributes = []
    while tokens[-1] != ";":
        attributes.append(tree.Attribute(_word(tokens), _values(tokens)))
    _check(len(tokens) == 1)
    return tree.FunctionNode(tuple(before), kind, (), returns, name, params, tuple(attributes))


def _values(tokens: Stack) -> tuple[str, ...]:
    if not tokens[-1][0].isdecimal():
        return ()
    values = [_number(tokens).text]
    while _take(tokens, ","):
        values.append(_number(tokens).text)
    return tuple(values)
