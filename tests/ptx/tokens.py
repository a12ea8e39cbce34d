"""Tokens of PTX from an independent pattern, to check what the grammar prints."""

from __future__ import annotations

import re

from gpt.ptx import tokens as forms
from gpt.ptx.scan import Module

BLANK = r'//[^\n]*|/\*.*?\*/|\s+|#[^"\n]*"[^"\n]*"[\d \t]*'
WORD = r'"[^"]*"|[A-Za-z_$%][\w$]*|\.\w+(?:::\w+)*|\d+\.?\d*[eE][-+]\d+|\d[\w.]*|<<|>>|[<>=!]=|.'
TOKEN = re.compile(f"{BLANK}|({WORD})", re.DOTALL | re.ASCII)


def tokens(text: str) -> list[str]:
    """Return all tokens but blanks, comments and `#line`s."""
    return [token for token in TOKEN.findall(text) if token]


def assert_same_cuts(module: Module) -> None:
    """Check that the scanner splits text only between the tokens of the grammar's lexer."""
    matches = [match for match in forms.TOKEN.finditer(module.skeleton) if match.lastgroup]
    found = [(match.start(match.lastgroup), match.end()) for match in matches]
    texts = [module.text[start:end] for start, end in found]
    assert texts == tokens(module.text)
    starts = {start: number for number, (start, _) in enumerate(found)}
    ends = {end for _, end in found}
    assert all(item.start in starts and item.end in ends for item in module.items)
    for function in module.functions:
        for kind, head, guard, start, end in module.statements(function):
            first = starts[start]
            assert end in ends
            if kind == "instruction":
                first += len(tokens(guard))
                words = tokens(head)
                assert texts[first : first + len(words) + 1] == [*words, texts[first + len(words)]]
                assert texts[first + len(words)][0] != "."


def assert_whole_bodies(module: Module) -> None:
    """Check that a function's statements make up its whole body."""
    for function in module.functions:
        at = function.body + 1
        for statement in module.statements(function):
            assert not module.skeleton[at : statement.start].strip()
            at = statement.end
        assert not module.skeleton[at : function.end - 1].strip()
