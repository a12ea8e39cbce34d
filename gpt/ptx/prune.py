"""The part of a module that some entries need.

An item is needed when a needed item names it, in a body, an initialiser or a declaration, be it a call, an address
taken or an alias; a function's prototypes come with it. Items keep their order and their text. Debug sections stay
as long as every label they name does: of a module made with `-lineinfo` all, of one made with `-G` the strings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpt.errors import GptError
from gpt.ptx.scan import Item, Module

_WORD = re.compile(r"(?<!::)[.%]?[A-Za-z_$][\w$]*+", re.ASCII)
_BETWEEN = {c: " " for c in map(chr, range(256)) if not (c.isascii() and c.isalnum()) and c not in "_$.%:"}
_SPLIT = str.maketrans(_BETWEEN)  # what stands between names, and words that hold none: %r1, mov.b32, .shared::cta
_LABEL = re.compile(r"([A-Za-z_$][\w$]*+)\s*+:(?!:)", re.ASCII)
_NAMING = {"entry", "func", "variable", "prototype", "alias"}  # what is left out where nobody names it


def prune(module: Module, entries: Iterable[str]) -> bytes:
    """The text of `pruned`."""
    return pruned(module, entries).text.encode("latin-1")


def pruned(module: Module, entries: Iterable[str]) -> Module:
    """The module with only what these entries need. Raises GptError for a name that is no kernel with a body."""
    wanted = list(entries)
    kernels = {item.name for item in module.entries}
    for name in wanted:
        if name not in kernels:
            raise GptError(f"no kernel '{name}'", module.name)
    named = needed(module, wanted)
    kept = [item for item in module.items if item.kind not in _NAMING or not named.isdisjoint(item.names)]
    kept = _without_torn_sections(module, kept)
    items, at = [], 0
    for item in kept:
        moved = at - item.start
        items.append(item._replace(start=at, end=item.end + moved, body=item.body and item.body + moved))
        at = items[-1].end + 1
    text, skeleton = ("".join(s[i.start : i.end] + "\n" for i in kept) for s in (module.text, module.skeleton))
    pieces = tuple((here.start, there.start) for here, there in zip(items, kept, strict=True))
    return Module(module.name, text, skeleton, tuple(items), module, pieces)


def needed(module: Module, names: Iterable[str]) -> set[str]:
    """These names and all that they lead to, of those that the module declares or defines."""
    items: dict[str, list[Item]] = {}
    for item in module.items:
        if item.kind in _NAMING:
            for name in item.names:
                items.setdefault(name, []).append(item)
    found: set[str] = set()
    waiting = [name for name in names if name in items]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            for item in items[name]:
                words = set(module.skeleton[item.start : item.end].translate(_SPLIT).split())
                waiting += (words & items.keys()) - found
    return found


def _without_torn_sections(module: Module, items: list[Item]) -> list[Item]:
    sections = [item for item in items if item.kind == "section"]
    if not sections:
        return items
    defined = {item: {*item.names, *_LABEL.findall(module.skeleton, item.start, item.end)} for item in module.items}
    lost = {name for item in set(module.items).difference(items) for name in defined[item]}
    while True:
        torn = {s for s in sections if not lost.isdisjoint(_WORD.findall(module.skeleton, s.start, s.end))}
        if not torn:
            return items
        lost |= {name for section in torn for name in defined[section]}
        sections = [section for section in sections if section not in torn]
        items = [item for item in items if item not in torn]
