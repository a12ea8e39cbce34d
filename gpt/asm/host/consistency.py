"""Check that all declarations of a name in a module agree, as ptxas does, whether a kernel needs the name or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from gpt.asm.host.names import Unsupported, evaluate
from gpt.asm.host.variables import LINKING, size_of
from gpt.ptx import tree
from gpt.ptx.quick import parse_declaration, parse_function
from gpt.ptx.scan import Item, Module

_NAMED = {"entry", "func", "variable"}
_OPTIONAL = {".visible", ".weak"}  # words that a declaration may have even if the definition doesn't
_SYSTEM = {"free", "malloc", "vprintf", "vfprintf", "__assertfail", "cudaGraphSetConditional"}  # and __cuda_*
_NOT_SHAPE = {*LINKING, ".global", ".const", ".shared", ".align", ".attribute"}  # these may differ


@dataclass(frozen=True)
class _Declared:
    """The facts known about a name from its declarations so far. `shape` must be the same in all of them. A dimension
    may be missing (None).
    """

    kind: str
    shape: object
    linking: frozenset[str]
    defined: bool
    dimensions: tuple[int | None, ...] = ()


def iter_inconsistent(module: Module) -> Iterator[tuple[int, str]]:
    """Yield (offset, reason) for each declaration that ptxas rejects because of other declarations of the same name."""
    named = [item for item in module.items if item.kind in _NAMED]
    counts = Counter(name for item in named for name in item.names)
    known: dict[str, _Declared] = {}
    first: dict[str, int] = {}
    for item in named:
        text = module.skeleton[item.start : item.body or item.end]
        if item.body and counts[item.name] == 1:
            continue
        if item.kind == "variable" and not (".extern" in text or any(counts[name] > 1 for name in item.names)):
            continue
        for name, one in _declared(module, item):
            first.setdefault(name, item.start)
            try:
                known[name] = _merged(name, known[name], one) if name in known else one
            except Unsupported as error:
                yield item.start, str(error)
    for name, one in known.items():
        elsewhere = ".extern" in one.linking or name in _SYSTEM or name.startswith("__cuda_")
        if one.kind != "variable" and not (one.defined or elsewhere or name in module.aliases):
            yield first[name], f"'{name}' is declared, not '.extern', and defined nowhere"
        if one.kind == "variable" and None in one.dimensions and ".shared" not in _words(module, first[name]):
            yield first[name], f"array '{name}' has no size: only '.extern .shared' arrays have none"


def _words(module: Module, start: int) -> list[str]:
    return module.skeleton[start : module.skeleton.index(";", start)].split()


def _declared(module: Module, item: Item) -> Iterator[tuple[str, _Declared]]:
    """Yield the names that an item declares, each with its declaration."""
    where = lambda: module.where(item.start)  # noqa: E731
    if item.kind != "variable":
        node = parse_function(module, item)
        linking = frozenset(one.word for one in node.specifiers if one.word in LINKING)
        listed = frozenset(map(str, node.attributes)) if item.kind == "func" else frozenset()
        shape = *(tuple(map(_shape, group or ())) for group in (node.returns, node.params)), listed
        yield item.name, _Declared(item.kind, shape, linking, bool(item.body))
        return
    found = parse_declaration(module.skeleton[item.start : item.end], where)
    words = {one.word for one in found.specifiers}
    for one in found.declarators:
        try:
            dimensions = tuple(None if size is None else evaluate(size) for size in one.dimensions)
        except Unsupported:
            continue  # the declaration is rejected anyway
        if isinstance(one.value, tree.Vector) and None in dimensions[:1]:
            dimensions = len(one.value.items), *dimensions[1:]
        linking = frozenset(words & LINKING)
        yield one.name, _Declared("variable", words - _NOT_SHAPE, linking, ".extern" not in words, dimensions)


def _shape(parameter: tree.Parameter) -> tuple[object, ...]:
    words = [one.word for one in parameter.specifiers]
    if ".ptr" in words:  # what follows isn't compared
        words = words[: words.index(".ptr")]
    try:
        size: Iterable[int] = size_of(parameter.specifiers, parameter.declarator)
    except Unsupported:
        size = ()
    return frozenset(set(words) - {".align"}), tuple(size), len(parameter.declarator.dimensions)


def _merged(name: str, known: _Declared, one: _Declared) -> _Declared:
    """Combine a declaration with those before it. Raises Unsupported if they contradict each other."""
    if "variable" in (known.kind, one.kind) and known.kind != one.kind:
        raise Unsupported(f"'{name}' is a variable and a function")
    if known.kind != one.kind:
        raise Unsupported(f"'{name}' is a kernel and a function")
    if known.defined and (one.defined or one.kind != "variable"):
        raise Unsupported(f"'{name}' is {'declared' if one.kind == 'variable' else 'defined'} twice")
    pairs = list(zip(known.dimensions, one.dimensions, strict=False))
    differ = any(None not in pair and pair[0] != pair[1] for pair in pairs)
    if known.shape != one.shape or differ or len(known.dimensions) != len(one.dimensions):
        raise Unsupported(f"'{name}' differs from its first declaration")
    if one.kind == "variable":
        if one.defined and not one.linking:
            raise Unsupported(f"'{name}' is declared '.extern', and here it is neither '.visible' nor '.weak'")
    elif one.linking != known.linking and not (known.linking <= _OPTIONAL and not one.linking):
        raise Unsupported(
            f"'{name}' was declared with other linking words: {' '.join(sorted(known.linking)) or 'none'}"
        )
    dimensions = tuple(b if a is None else a for a, b in zip(known.dimensions, one.dimensions, strict=True))
    return replace(known, defined=known.defined or one.defined, dimensions=dimensions)
