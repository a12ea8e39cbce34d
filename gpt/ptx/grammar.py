"""The lark side of grammar.lark: a lexer that uses TOKEN, and a function per rule that builds its node.

Loading lark is slow, so parse.py imports this file only when there's something to parse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from lark import Token
from lark.common import LexerConf
from lark.lexer import Lexer

from gpt.ptx import tree
from gpt.ptx.scan import Module
from gpt.ptx.tokens import TOKEN

MAX_NESTING = 64  # brackets of any kind; code that walks the tree may recurse
_UNARY = ("-", "+", "!", "~")
_BINARY = ("<<", ">>", "<=", ">=", "==", "!=", "&&", "||", *"-+*/%<>&|^?:")
_MEANT = {kind: [kind] for kind in TOKEN.groupindex} | {  # terminals by kind, if the text isn't a terminal itself
    "OPCODE": ["OPCODE", "NAME"],
    "DECIMAL": ["WORD", "FRACTION"],
    "MARK": [],
}


class Piece(NamedTuple):
    """The input of the parser: a module between two offsets."""

    module: Module
    start: int
    end: int


class PtxLexer(Lexer):
    """Yields the scanner's tokens for a Piece, with types for the grammar. If the text can be several terminals, it's
    the first that the grammar accepts at that point. Raises MalformedError.
    """

    __future_interface__ = 2  # lex gets the state of the parser

    def __init__(self, conf: LexerConf) -> None:
        terminals: defaultdict[str, list[str]] = defaultdict(list)  # names by text
        for terminal in conf.terminals:
            terminals[terminal.pattern.value].append(terminal.name)
        for name, texts in ("UNARY", _UNARY), ("OP", _BINARY):
            for text in texts:
                terminals[text].append(name)
        for text, names in terminals.items():
            names += _MEANT[_kind(text)]
        self._terminals = dict(terminals)

    def lex(self, lexer_state: Any, parser_state: Any) -> Iterator[Token]:
        """Yield the tokens of `lexer_state.text`, a Piece."""
        module, start, end = lexer_state.text
        states, stack, text = parser_state.parse_conf.states, parser_state.state_stack, module.text
        depth = 0
        for found in TOKEN.finditer(module.skeleton, start, end):
            kind = found.lastgroup
            if kind is None:  # blanks at the end
                return
            at = found.start(kind)
            value = text[at : found.end()]  # strings are blank in the skeleton
            if kind == "MARK":
                depth += (value in "([{") - (value in ")]}")
                if depth > MAX_NESTING:
                    raise module.fault(at, f"brackets nested more than {MAX_NESTING} deep")
            elif kind == "BAD":
                raise module.fault(at, f"unexpected {value!r}")
            names = self._terminals.get(value) or _MEANT[kind]
            expected = states[stack[-1]]
            for name in names:
                if name in expected:
                    break
            else:
                name = names[0]
            yield Token(name, value, at)


def _kind(text: str) -> str:
    found = TOKEN.match(text)
    assert found and found.lastgroup
    return found.lastgroup


def _directive(word: str, *rest: str) -> tree.Directive:
    """Make a directive from its tokens: `.loc` `1` `2` `3`, `.pragma` `"a"` `,` `"b"` `;`."""
    end = ";" if rest[-1:] == (";",) else ""
    text = "".join(token if token == "," else f" {token}" for token in rest[: len(rest) - len(end)])
    return tree.Directive(word, text.strip(), end)


def _joined(*nodes: object) -> str:
    """Join tokens: `(.unified(1, 2))`, `a+4`, `16`."""
    return "".join(", " if node == "," else str(node) for node in nodes)


def _row(*nodes: Any) -> tuple[Any, ...]:
    return nodes


RULES: dict[str, Callable[..., Any]] = {  # rule -> function that makes its node from its children (tokens are strings)
    "module": lambda *items: tree.ModuleNode(items),
    "head": _directive,
    "section": lambda name, *lines: tree.SectionNode(name, lines),
    "data": _directive,
    "datum": _joined,
    "function": lambda before, kind, more, *rest: tree.FunctionNode(before or (), kind, more or (), *rest),
    "declared": lambda before, kind, more, *rest: tree.FunctionNode(before or (), kind, more or (), *rest),
    "params": _row,
    "param": lambda specifiers, declarator: tree.Parameter(specifiers or (), declarator),
    "attributes": _row,
    "attribute": lambda word, *values: tree.Attribute(word, values),
    "quantity": lambda *tokens: " ".join(tokens),
    "statements": lambda *statements: list(statements),
    "label": tree.Label,
    "scope": lambda *statements: tree.Scope(statements),
    "pragma": _directive,
    "directive": _directive,
    "prototype": tree.Prototype,
    "declaration": lambda specifiers, *declarators: tree.Declaration(specifiers, declarators),
    "specifiers": _row,
    "specifier": lambda word, *argument: tree.Specifier(word, _joined(*argument)),
    "unified": lambda word, values: word + (str(tree.OperandGroup(values)) if values else ""),
    "declarator": tree.Declarator,
    "dimensions": _row,
    "instruction": lambda guard, opcode, words, operands: tree.Instruction(opcode, words or (), operands or (), guard),
    "guard": lambda negation, register: tree.Guard(register, bool(negation)),
    "modifiers": _row,
    "operands": _row,
    "expression": lambda *nodes: tree.Expression(nodes[::2], nodes[1::2]),
    "prefixed": lambda *nodes: tree.Prefixed(nodes[:-1], nodes[-1]),
    "cast": _joined,
    "string": lambda quoted: tree.String(quoted[1:-1]),
    "apply": tree.Apply,
    "index": lambda base, *indexes: tree.Index(base, indexes),
    "name": lambda name, *parts: tree.Name(name, parts),
    "number": tree.Number,
    "group": lambda *items: tree.OperandGroup(items),
    "vector": lambda *items: tree.Vector(items),
    "address": lambda *items: tree.Address(items),
    "setting": tree.Setting,
}


def _of_children(make: Callable[..., Any]) -> Callable[[Sequence[Any]], Any]:
    return lambda nodes: make(*[str(node) if type(node) is Token else node for node in nodes])


BUILD = SimpleNamespace(**{rule: _of_children(make) for rule, make in RULES.items()})  # in the form that lark expects
