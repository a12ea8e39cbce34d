"""Parse text with the grammar (grammar.lark), and return a syntax tree.

Each function raises MalformedError with line and column. For a part of a module, they're relative to the whole module.
"""

from __future__ import annotations

import os
import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from importlib import resources
from typing import IO, TYPE_CHECKING, Any

from gpt.base.cache import Cache, default_folder, key_of
from gpt.ptx import tree
from gpt.ptx.scan import Item, Module, Statement, unscanned

if TYPE_CHECKING:
    from lark import Lark


def parse_module(data: bytes, name: str = "PTX") -> tree.ModuleNode:
    """Parse a whole module."""
    module = unscanned(data.rstrip(b"\0").decode("latin-1"), name)
    result: tree.ModuleNode = _parse("module", module, 0, len(module.text))
    return result


def parse_statements(text: str, name: str = "PTX") -> list[tree.Statement]:
    """Parse some statements of a function's body."""
    result: list[tree.Statement] = _parse("statements", unscanned(text, name), 0, len(text))
    return result


def parse_statement(module: Module, statement: Statement) -> list[tree.Statement]:
    """Parse a statement that Module.statements returned."""
    result: list[tree.Statement] = _parse("statements", module, statement.start, statement.end)
    return result


def parse_item(module: Module, item: Item) -> tree.Item:
    """Parse an item of a scanned module."""
    result: tree.ModuleNode = _parse("module", module, item.start, item.end)
    return result.items[0]


def parse_head(module: Module, function: Item) -> tree.FunctionNode:
    """Parse the head of a function, without its body."""
    end = function.body + 1 if function.body else function.end
    result: tree.FunctionNode = _parse("declared", module, function.start, end)
    return result


def _parse(start: str, module: Module, begin: int, end: int) -> Any:
    from lark import UnexpectedToken

    from gpt.ptx.grammar import Piece

    try:
        return parser().parse(Piece(module, begin, end), start)
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise module.fault(end, "unexpected end") from None
        word = error.token.partition("\n")[0][:40]
        raise module.fault(error.token.start_pos or 0, f"unexpected '{word}'") from None


@cache
def parser() -> Lark:
    """Return the parser. It's created once, which takes about 70 ms, or 15 ms from tables that lark has saved earlier.

    lark saves them as a pickle, so if attackers could write that file, they could run code here. So the tables are in
    our cache, to which only this user can write (gpt/base/cache.py), and are passed to lark as an in-memory file.
    """
    import lark
    from lark import Lark

    from gpt.ptx.grammar import BUILD, PtxLexer

    grammar = resources.files("gpt.ptx").joinpath("grammar.lark").read_text()
    starts = ["module", "statements", "declared"]
    kept, key = (
        Cache(default_folder("ptx")),
        key_of([grammar.encode(), lark.__version__.encode(), sys.version.encode()]),
    )
    with _memory() as file:
        before = kept.get(key) if file else None
        if file and before:
            file.write(before)
        made = Lark(
            grammar,
            parser="lalr",
            lexer=PtxLexer,
            start=starts,
            maybe_placeholders=True,
            transformer=BUILD,
            cache=f"/proc/self/fd/{file.fileno()}" if file else False,
        )
        if file:
            file.seek(0)
            if (after := file.read()) != before:
                kept.put(key, after)
    return made


def _memory() -> AbstractContextManager[IO[bytes] | None]:
    """Open an in-memory file, or return None if the system doesn't support them."""
    try:
        return open(os.memfd_create("ptx-tables"), "w+b", buffering=0)
    except (AttributeError, OSError):
        return nullcontext()
