"""The grammar (grammar.lark) over text, and the tree that comes of it."""

from __future__ import annotations

import os
import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpt.errors import MalformedError
from gpt.ptx import tree
from gpt.ptx.scan import Item, Module, Statement, blank

if TYPE_CHECKING:
    from lark import Lark

MAX_NESTING = 64  # brackets of any kind; what walks the tree may recurse
_BRACKET = re.compile(r"[(\[{]|([)\]}])")

Nodes = list[Any]


def parse_module(data: bytes, name: str = "PTX") -> tree.Module:
    """A whole module. Raises MalformedError with line and column."""
    result: tree.Module = _parse("module", data.rstrip(b"\0").decode("latin-1"), name)
    return result


def parse_statements(text: str, name: str = "PTX") -> list[tree.Statement]:
    """Some statements of a function's body. Raises MalformedError with the line and column in `text`."""
    result: list[tree.Statement] = _parse("statements", text, name)
    return result


def parse_statement(module: Module, statement: Statement) -> list[tree.Statement]:
    """A statement of a function that was cut. Raises MalformedError with its place in the module."""
    result: list[tree.Statement] = _parse("statements", module.source(statement), module.name, module, statement.start)
    return result


def parse_item(module: Module, item: Item) -> tree.Item:
    """An item of a module that was scanned. Raises MalformedError with its place in the module."""
    result: tree.Module = _parse("module", module.source(item), module.name, module, item.start)
    return result.items[0]


def parse_head(module: Module, function: Item) -> tree.Function:
    """A function as it is declared: without its body."""
    if not function.body:
        found = parse_item(module, function)
    else:
        text = module.text[function.start : function.body] + ";"
        found = _parse("module", text, module.name, module, function.start).items[0]
    assert isinstance(found, tree.Function)
    return found


def _parse(start: str, text: str, name: str, module: Module | None = None, offset: int = 0) -> Any:
    from lark import UnexpectedCharacters, UnexpectedToken

    def fault(fact: str, at: int) -> MalformedError:
        place = module or Module(name, text, "", ())
        return MalformedError(f"PTX: {fact}", place.where(offset + min(at, len(text))))

    depth = 0
    for found in _BRACKET.finditer(blank(text, name)):
        depth += -1 if found[1] else 1
        if depth > MAX_NESTING:
            raise fault(f"brackets nested more than {MAX_NESTING} deep", found.start())
    try:
        return parser().parse(text, start)
    except UnexpectedCharacters as error:
        at = error.pos_in_stream or 0
        raise fault(f"unexpected {text[at]!r}", at) from None
    except UnexpectedToken as error:
        if error.token.type == "$END":
            raise fault("unexpected end", len(text)) from None
        word = error.token.partition("\n")[0][:40]
        raise fault(f"unexpected '{word}'", error.token.start_pos or 0) from None


@cache
def parser() -> Lark:
    """The parser, made once: some 70 ms, or 15 from the tables that lark keeps in the user's cache."""
    from lark import Lark

    grammar = resources.files("gpt.ptx").joinpath("grammar.lark").read_text()
    starts = ["module", "statements"]
    return Lark(
        grammar, parser="lalr", start=starts, maybe_placeholders=True, transformer=_transformer(), cache=_tables()
    )


def _tables() -> str | bool:
    """Where lark keeps its tables, keyed by the grammar and its own version; False where there is no place."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpt"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home
        return False
    return str(folder / "ptx-tables")


def _transformer() -> Any:
    from lark import Token, Transformer

    def texts(nodes: Nodes) -> tuple[str, ...]:
        return tuple(map(str, nodes))

    class Build(Transformer[Any, Any]):
        """A method a rule; what it gets are the children, tokens or what came of a rule."""

        def module(self, nodes: Nodes) -> tree.Module:
            return tree.Module(tuple(nodes))

        def statements(self, nodes: Nodes) -> list[tree.Statement]:
            return nodes

        # Items

        def version(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(".version", str(nodes[0]))

        def target(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(".target", ", ".join(nodes))

        def address_size(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(".address_size", str(nodes[0]))

        def file(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(".file", " ".join([*nodes[:1], ", ".join(nodes[1:])]))

        def section(self, nodes: Nodes) -> tree.Section:
            return tree.Section(str(nodes[0]), tuple(nodes[1:]))

        def data(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(str(nodes[0]), ", ".join(nodes[1:]))

        def datum(self, nodes: Nodes) -> str:
            return "".join(nodes)

        def function(self, nodes: Nodes) -> tree.Function:
            at = next(at for at, node in enumerate(nodes) if isinstance(node, Token))
            before, kind, rest = nodes[:at], str(nodes[at]), nodes[at + 1 :]
            more = [node for node in rest if isinstance(node, tree.Specifier)]
            returns, name, params, attributes, *body = rest[len(more) :]
            return tree.Function(
                tuple(before), kind, tuple(more), returns, str(name), params, attributes, body[0] if body else None
            )

        def params(self, nodes: Nodes) -> tuple[tree.Parameter, ...]:
            return tuple(nodes)

        def param(self, nodes: Nodes) -> tree.Parameter:
            return tree.Parameter(tuple(nodes[:-1]), nodes[-1])

        def attributes(self, nodes: Nodes) -> tuple[tree.Attribute | tree.Directive, ...]:
            return tuple(nodes)

        def attribute(self, nodes: Nodes) -> tree.Attribute:
            return tree.Attribute(str(nodes[0]), tuple(nodes[1:]))

        def quantity(self, nodes: Nodes) -> str:
            return " ".join(nodes)

        # Statements

        def label(self, nodes: Nodes) -> tree.Label:
            return tree.Label(str(nodes[0]))

        def scope(self, nodes: Nodes) -> tree.Scope:
            return tree.Scope(tuple(nodes))

        def pragma(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(".pragma", ", ".join(nodes), ";")

        def alias(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(".alias", ", ".join(nodes), ";")

        def targets(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(str(nodes[0]), ", ".join(nodes[1:]), ";")

        def prototype(self, nodes: Nodes) -> tree.Prototype:
            returns, name, params, attributes = nodes
            return tree.Prototype(returns, str(name), params, attributes)

        def loc(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(".loc", " ".join(nodes).replace(" ,", ","))

        def inlined(self, nodes: Nodes) -> str:
            return f", function_name {nodes[0]}, inlined_at {' '.join(nodes[1:])}"

        def dwarf(self, nodes: Nodes) -> tree.Directive:
            return tree.Directive(str(nodes[0]), "")

        def declaration(self, nodes: Nodes) -> tree.Declaration:
            count = sum(isinstance(node, tree.Specifier) for node in nodes)
            return tree.Declaration(tuple(nodes[:count]), tuple(nodes[count:]))

        def word(self, nodes: Nodes) -> tree.Specifier:
            return tree.Specifier(str(nodes[0]))

        def counted(self, nodes: Nodes) -> tree.Specifier:
            return tree.Specifier(*texts(nodes))

        def attributed(self, nodes: Nodes) -> tree.Specifier:
            return tree.Specifier(str(nodes[0]), f"({', '.join(nodes[1:])})")

        def banked(self, nodes: Nodes) -> tree.Specifier:
            return tree.Specifier(str(nodes[0]), f"[{nodes[1]}]")

        def unified(self, nodes: Nodes) -> str:
            values = [str(node) for node in nodes[1:] if node is not None]
            return str(nodes[0]) + (f"({', '.join(values)})" if values else "")

        def declarator(self, nodes: Nodes) -> tree.Declarator:
            name, *rest = nodes
            parts: dict[str, Any] = {"count": None, "value": None}
            parts.update(part for part in rest if part[0] != "dimension")
            dimensions = tuple(part[1] for part in rest if part[0] == "dimension")
            return tree.Declarator(str(name), parts["count"], dimensions, parts["value"])

        def count(self, nodes: Nodes) -> tuple[str, str]:
            return "count", str(nodes[0])

        def dimension(self, nodes: Nodes) -> tuple[str, tree.Operand | None]:
            return "dimension", nodes[0] if nodes else None

        def value(self, nodes: Nodes) -> tuple[str, tree.Operand]:
            return "value", nodes[0]

        def instruction(self, nodes: Nodes) -> tree.Instruction:
            guard = nodes.pop(0) if isinstance(nodes[0], tree.Guard) else None
            words = [str(node) for node in nodes if isinstance(node, Token)]
            return tree.Instruction(words[0], tuple(words[1:]), tuple(nodes[len(words) :]), guard)

        def guard(self, nodes: Nodes) -> tree.Guard:
            return tree.Guard(str(nodes[-1]), len(nodes) > 1)

        # Operands

        def expression(self, nodes: Nodes) -> tree.Expression:
            return tree.Expression(tuple(nodes[::2]), texts(nodes[1::2]))

        def prefixed(self, nodes: Nodes) -> tree.Prefixed:
            return tree.Prefixed(texts(nodes[:-1]), nodes[-1])

        def cast(self, nodes: Nodes) -> str:
            return f"({nodes[0]})"

        def name(self, nodes: Nodes) -> tree.Name:
            return tree.Name(str(nodes[0]), texts(nodes[1:]) if len(nodes) > 1 else ())

        def number(self, nodes: Nodes) -> tree.Number:
            return tree.Number(str(nodes[0]))

        def string(self, nodes: Nodes) -> tree.String:
            return tree.String(nodes[0][1:-1])

        def group(self, nodes: Nodes) -> tree.Group:
            return tree.Group(tuple(nodes))

        def vector(self, nodes: Nodes) -> tree.Vector:
            return tree.Vector(tuple(nodes))

        def address(self, nodes: Nodes) -> tree.Address:
            return tree.Address(tuple(nodes))

        def apply(self, nodes: Nodes) -> tree.Apply:
            return tree.Apply(*nodes)

        def mask(self, nodes: Nodes) -> tree.Apply:
            return tree.Apply(tree.Number(str(nodes[0])), nodes[1])

        def index(self, nodes: Nodes) -> tree.Index:
            return tree.Index(nodes[0], tuple(nodes[1:]))

        def setting(self, nodes: Nodes) -> tree.Setting:
            return tree.Setting(*nodes)

    return Build()
