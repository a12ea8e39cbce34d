"""The part of a module that some entries need.

An item is needed when a needed item names it, in a body, an initialiser or a declaration, be it a call, an address
taken or an alias; a function's prototypes come with it. A call by a prototype may be one of any function whose address
the module takes, as another kernel may have stored it: all of them are needed then. Items keep their order and their
text.

Debug sections stay. What they say of a function that is gone, as those of a module made with `-G` do, is said of no
address, as linkers do it: in place of its labels stands 0, and in a list of ranges, which a pair of zeros would end, 1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpt.errors import GptError
from gpt.patterns import compiled
from gpt.ptx import tokens
from gpt.ptx.scan import NAME, Item, Module

_BETWEEN = {c: " " for c in map(chr, range(256)) if not (c.isascii() and c.isalnum()) and c not in "_$.%:"}
_SPLIT = str.maketrans(_BETWEEN)  # what stands between names, and words that hold none: %r1, mov.b32, .shared::cta
_LABEL = compiled(rf"({tokens.IDENTIFIER})\s*+:(?!:)", re.ASCII)
_RANGES = {".debug_loc", ".debug_ranges", ".debug_loclists", ".debug_rnglists"}
_TAKEN = compiled(rf"\bmov\.[bu]64\s+[^;,]+,\s*({tokens.IDENTIFIER})\s*;", re.ASCII)
INDIRECT = ".callprototype"  # has a function with calls of any address
_NAMING = {"entry", "func", "variable", "prototype", "alias"}  # left out unless something names it


def prune(module: Module, entries: Iterable[str]) -> bytes:
    """The text of `pruned`."""
    return pruned(module, entries).text.encode("latin-1")


def blanked(module: Module, entries: Iterable[str]) -> bytes:
    """The module with only what these entries need, all of it in its place: the rest is blank.

    Raises GptError for a name that is not a kernel with a body.
    """
    text, at = [], 0
    for item in _kept(module, entries):
        text += [re.sub(r"[^\n]", " ", module.text[at : item.start]), module.text[item.start : item.end]]
        at = item.end
    return "".join(text).encode("latin-1")


def pruned(module: Module, entries: Iterable[str]) -> Module:
    """The module with only what these entries need. Raises GptError for a name that is not a kernel with a body."""
    kept = _kept(module, entries)
    items, at = [], 0
    for item in kept:
        moved = at - item.start
        items.append(item._replace(start=at, end=item.end + moved, body=item.body and item.body + moved))
        at = items[-1].end + 1
    gone = _gone(module, kept)
    without = [(item, _places(module, item, gone)) for item in kept]
    text, skeleton = ("".join(_cut(s, *one) + "\n" for one in without) for s in (module.text, module.skeleton))
    pieces = tuple((here.start, there.start) for here, there in zip(items, kept, strict=True))
    return Module(module.name, text, skeleton, tuple(items), module, pieces)


def _kept(module: Module, entries: Iterable[str]) -> list[Item]:
    """The items that stay, in their order."""
    wanted = list(entries)
    kernels = {item.name for item in module.entries}
    for name in wanted:
        if name not in kernels:
            raise GptError(f"no kernel '{name}'", module.name)
    named = needed(module, wanted)
    return [item for item in module.items if item.kind not in _NAMING or not named.isdisjoint(item.names)]


def needed(module: Module, names: Iterable[str]) -> set[str]:
    """These names and all that they lead to, of those that the module declares or defines."""
    items: dict[str, list[Item]] = {}
    for item in module.items:
        if item.kind in _NAMING:
            for name in item.names:
                items.setdefault(name, []).append(item)
    found: set[str] = set()
    waiting = [name for name in names if name in items]
    indirect = False
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            for item in items[name]:
                words = _words(module, item)
                waiting += (words & items.keys()) - found
                if INDIRECT in words and not indirect:
                    indirect = True
                    waiting += _taken(module)
    return found


def _words(module: Module, item: Item) -> set[str]:
    return set(module.skeleton[item.start : item.end].translate(_SPLIT).split())


def _taken(module: Module) -> set[str]:
    """The functions whose address a variable has at first, or an instruction takes."""
    functions = {item.name for item in module.items if item.kind == "func"}
    found = set(_TAKEN.findall(module.skeleton))
    return functions & found.union(*(_words(module, item) for item in module.items if item.kind == "variable"))


def _gone(module: Module, kept: list[Item]) -> set[str]:
    """The names and labels that what is left out defines, as far as debug sections may name them."""
    if not any(item.kind == "section" for item in kept):
        return set()
    there = set(kept)
    found: tuple[set[str], set[str]] = set(), set()
    for item in module.items:
        labels = _LABEL.findall(module.skeleton, item.start, item.end)
        found[item in there].update(item.names, labels)
    return found[False] - found[True]


def _places(module: Module, item: Item, gone: set[str]) -> list[tuple[int, int]]:
    """Where a debug section names what is gone."""
    if item.kind != "section" or not gone:
        return []
    return [found.span() for found in NAME.finditer(module.skeleton, item.start, item.end) if found[0] in gone]


def _cut(text: str, item: Item, places: list[tuple[int, int]]) -> str:
    """An item of a text, with numbers in these places: it is as long as it was."""
    pieces, at = [], item.start
    for start, end in places:
        pieces += [text[at:start], ("1" if item.name in _RANGES else "0").ljust(end - start)]
        at = end
    return "".join([*pieces, text[at : item.end]])
