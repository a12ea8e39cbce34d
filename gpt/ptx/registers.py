"""Find the types of a function's registers in its `.reg` directives."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from gpt.ptx.quick import parse_declaration
from gpt.ptx.scan import Module, Statement
from gpt.ptx.types import SIZES, integer


class Registers(dict[str, str | None]):
    """The types of a function's registers, such as `b32`, by name.

    For a name that isn't a register, the type is None. It's empty if scopes declare the register with different sizes,
    or with a type that isn't in SIZES, such as a vector. If they declare different types of the same size, it's untyped
    bits.
    """

    def __init__(self, module: Module, declarations: Iterable[Statement]) -> None:
        """Raises MalformedError."""
        self._plain: dict[str, str] = {}
        self._counted: dict[str, list[tuple[int, str]]] = {}
        places: dict[str, int] = {}  # texts seen so far: inlined assembly often repeats them
        for statement in declarations:
            places.setdefault(module.skeleton[statement.start : statement.end], statement.start)
        for text, place in places.items():
            node = parse_declaration(text, partial(module.where, place))
            words = [specifier.word[1:] for specifier in node.specifiers[1:]]
            type_ = words[0] if len(words) == 1 else ""
            for one in node.declarators if words else ():
                if one.count is None:
                    self._plain[one.name] = _common({type_, self._plain.get(one.name, type_)})
                else:
                    self._counted.setdefault(one.name, []).append((integer(one.count) or 0, type_))

    def __missing__(self, name: str) -> str | None:
        found = {self._plain[name]} if name in self._plain else set()
        base = name.rstrip("0123456789")
        if base in self._counted and 0 < len(name) - len(base) < 10:
            number = int(name[len(base) :])
            found |= {type_ for count, type_ in self._counted[base] if number < count}
        self[name] = type_ = _common(found) if found else None
        return type_


def _common(types: set[str]) -> str:
    """Return the type that registers have in common: untyped bits if only their sizes agree, or empty if not even these
    do.
    """
    known = {_OTHER.get(type_, type_) for type_ in types}
    if len(known) > 1:
        known = {f"b{SIZES[type_] * 8}" if SIZES.get(type_) else "" for type_ in known}
    type_ = known.pop()
    return type_ if not known and type_ in SIZES else ""


_OTHER = {"f16x2": "b32", "bf16x2": "b32", "bf16": "b16"}
