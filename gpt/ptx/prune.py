"""Extract the part of a module that some entries need.

An item is needed if a needed item names it, in a body, an initialiser or a declaration, be it as a call, an address
taken or an alias. A needed function's prototypes are needed too. A call through a prototype can reach any function
whose address the module takes, as another kernel may have stored it, so all of them are needed then. Items keep their
order and text.

Debug sections are kept, as a module compiled with `-G` has them. In them, the address of a removed item becomes 0, as
linkers do for functions that they drop, or 1 in a list of ranges, which a pair of zeros would end. A `.loc` may say
that its code was inlined at a position that an earlier `.loc` defines. If only a removed function defined it, ptxas
would reject the rest, so the `.loc` loses that part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from gpt.base.errors import GptError
from gpt.base.patterns import compiled
from gpt.ptx import tokens
from gpt.ptx.scan import NAME, Item, Module
from gpt.ptx.types import integer

_BETWEEN = {c: " " for c in map(chr, range(256)) if not (c.isascii() and c.isalnum()) and c not in "_$.%"}
_SPLIT = str.maketrans(_BETWEEN)  # characters between names, and words without names: %r1, mov.b32
_INK = compiled(r"[^\n]")
_LABEL = compiled(rf"({tokens.IDENTIFIER})\s*+:(?!:)", re.ASCII)
_RANGES = {".debug_loc", ".debug_ranges", ".debug_loclists", ".debug_rnglists"}
_POSITION = r"\s++(\w++)\s++(\w++)\s++(\w++)"  # file, line, column
_LOC = compiled(rf"\.loc{_POSITION}(\s*+,\s*+function_name\b[^,]*+,\s*+inlined_at{_POSITION})?+", re.ASCII)
_SUM = compiled(rf"(?<![\w$%.]){tokens.NAME}(?:\s*+[-+]\s*+[\w$%]++)*+", re.ASCII)
_TAKEN = compiled(rf"\bmov\.[bu]64\s+[^;,]+,\s*({tokens.IDENTIFIER})\s*;", re.ASCII)
INDIRECT = ".callprototype"  # marks functions that call through an arbitrary address
_NAMING = {"entry", "func", "variable", "prototype", "alias"}  # left out unless something names them


class _Cut(NamedTuple):
    """A piece of text to blank out; `put` overwrites its beginning."""

    start: int
    end: int
    put: str


def prune(module: Module, entries: Iterable[str]) -> bytes:
    """Return the text of `pruned`."""
    return pruned(module, entries).text.encode("latin-1")


def blanked(module: Module, entries: Iterable[str]) -> bytes:
    """Blank out everything that these entries don't need; the rest keeps its offsets.

    Raises GptError for a name that isn't a kernel with a body.
    """
    text, at = [], 0
    for item, cuts in _cuts(module, _kept(module, entries)):
        text += [_blank(module.text[at : item.start]), _cut(module.text, item, cuts)]
        at = item.end
    return "".join(text).encode("latin-1")


def pruned(module: Module, entries: Iterable[str]) -> Module:
    """Keep only the items that these entries need. Raises GptError for a name that isn't a kernel with a body."""
    return _reduced(module, _kept(module, entries))


def with_needed(module: Module, names: Iterable[str]) -> Module:
    """Keep only these functions and the items that they need."""
    return _reduced(module, _needing(module, names))


def _reduced(module: Module, kept: list[Item]) -> Module:
    items, at = [], 0
    for item in kept:
        moved = at - item.start
        items.append(item._replace(start=at, end=item.end + moved, body=item.body and item.body + moved))
        at = items[-1].end + 1
    cuts = _cuts(module, kept)
    text, skeleton = ("".join(_cut(s, *one) + "\n" for one in cuts) for s in (module.text, module.skeleton))
    pieces = tuple((here.start, there.start) for here, there in zip(items, kept, strict=True))
    return Module(module.name, text, skeleton, tuple(items), module, pieces)


def _kept(module: Module, entries: Iterable[str]) -> list[Item]:
    """Return the items that these entries need, in order."""
    wanted = list(entries)
    kernels = {item.name for item in module.entries}
    for name in wanted:
        if name not in kernels:
            raise GptError(f"no kernel '{name}'", module.name)
    return _needing(module, wanted)


def _needing(module: Module, names: Iterable[str]) -> list[Item]:
    found = needed(module, names)
    return [item for item in module.items if item.kind not in _NAMING or not found.isdisjoint(item.names)]


def needed(module: Module, names: Iterable[str]) -> set[str]:
    """Return these names and everything that they use, directly or not, if the module declares or defines it."""
    return Uses(module).needed(names)


class Uses:
    """Finds what a module's items use, for many kernels, without reading an item twice."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._items: dict[str, list[Item]] = {}
        self._known: dict[str, set[str]] = {}
        for item in module.items:
            if item.kind in _NAMING:
                for name in item.names:
                    self._items.setdefault(name, []).append(item)

    def needed(self, names: Iterable[str]) -> set[str]:
        """Return these names and everything they use, directly or not, if the module declares or defines it."""
        found: set[str] = set()
        waiting = [name for name in names if name in self._items]
        indirect = False
        while waiting:
            name = waiting.pop()
            if name not in found:
                found.add(name)
                words = self._words(name)
                waiting += (words & self._items.keys()) - found
                if INDIRECT in words and not indirect:
                    indirect = True
                    waiting += self._taken
        return found

    def is_recursive(self, name: str) -> bool:
        """Return whether a function uses itself, directly or indirectly."""
        bodies = [item._replace(start=item.body) for item in self._items[name] if item.body]
        words = set[str]().union(*(_words(self._module, body) for body in bodies))
        return name in words or name in self.needed(words & self._items.keys())

    def _words(self, name: str) -> set[str]:
        """Return the names mentioned by the items that define a name; INDIRECT is one of them."""
        if name not in self._known:
            words = set[str]().union(*(_words(self._module, item) for item in self._items[name]))
            self._known[name] = {word for word in words if word in self._items or word == INDIRECT}
        return self._known[name]

    @cached_property
    def _taken(self) -> set[str]:
        """Return the functions whose address is in an initial value or taken by an instruction."""
        module = self._module
        functions = {item.name for item in module.items if item.kind == "func"}
        found = set(_TAKEN.findall(module.skeleton))
        return functions & found.union(*(_words(module, item) for item in module.items if item.kind == "variable"))


def _words(module: Module, item: Item) -> set[str]:
    return set(module.skeleton[item.start : item.end].translate(_SPLIT).split())


def _gone(module: Module, kept: list[Item]) -> set[str]:
    """Return the names and labels that removed items define, if there are debug sections that may use them."""
    if not any(item.kind == "section" for item in kept):
        return set()
    there = set(kept)
    found: tuple[set[str], set[str]] = set(), set()
    for item in module.items:
        labels = _LABEL.findall(module.skeleton, item.start, item.end)
        found[item in there].update(item.names, labels)
    return found[False] - found[True]


def _cuts(module: Module, kept: list[Item]) -> list[tuple[Item, list[_Cut]]]:
    """Return the kept items, each with the pieces to cut because they refer to removed ones."""
    gone, known = _gone(module, kept), set[tuple[int, ...]]()
    inlined = "inlined_at" in module.skeleton
    found: list[tuple[Item, list[_Cut]]] = []
    for item in kept:
        cuts: list[_Cut] = []
        if item.kind == "section" and gone:
            number = "1" if item.name in _RANGES else "0"
            cuts = [_Cut(start, end, number) for start, end in iter_sums(module, item, gone)]
        elif item.body and inlined:
            cuts = [_Cut(start, end, "") for start, end in _orphans(module, item, known)]
        found.append((item, cuts))
    return found


def iter_sums(module: Module, section: Item, names: Collection[str]) -> Iterator[tuple[int, int]]:
    """Find the address expressions in a debug section that contain one of these names: `a`, `a+4`, `b-a`.

    A number has to replace the whole expression, because ptxas accepts no offset to a number.
    """
    for found in _SUM.finditer(module.skeleton, section.start, section.end):
        if any(name in names for name in NAME.findall(found[0])):
            yield found.span()


def _orphans(module: Module, function: Item, known: set[tuple[int, ...]]) -> Iterator[tuple[int, int]]:
    """Find the parts of a function's `.loc`s that refer to a position without an earlier `.loc`. Add the function's own
    positions to `known`.
    """
    for loc in _LOC.finditer(module.skeleton, function.body, function.end):
        if loc[4] and _numbers(loc, 5) not in known:
            yield loc.span(4)
        known.add(_numbers(loc, 1))


def _numbers(loc: re.Match[str], first: int) -> tuple[int, ...]:
    """Return a position, which is in three groups of a match."""
    return tuple(-1 if (number := integer(text)) is None else number for text in loc.groups()[first - 1 : first + 2])


def _cut(text: str, item: Item, cuts: list[_Cut]) -> str:
    """Return an item's text with the pieces cut; its length and number of lines don't change."""
    pieces, at = [], item.start
    for start, end, put in cuts:
        pieces += [text[at:start], put, _blank(text[start + len(put) : end])]
        at = end
    return "".join([*pieces, text[at : item.end]])


def _blank(text: str) -> str:
    return _INK.sub(" ", text)
