"""Check what surrounds the names and parameters of kernels and functions: `.maxntid`, `.noreturn`, pragmas.

Like ptxas, this checks every function of a module, whether a kernel needs it or not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping

from gpt.asm.host.names import Unsupported
from gpt.asm.host.needs import Dialect, parse_rules
from gpt.asm.host.pragmas import check_pragma
from gpt.base.errors import MalformedError
from gpt.ptx import tree
from gpt.ptx.attributes import read_attributes
from gpt.ptx.quick import parse_function
from gpt.ptx.scan import Item, Module

BLOCK = (".maxntid", ".reqntid")
_NUMBERS = {  # minimum and maximum of the numbers after each word
    "entry": {
        **dict.fromkeys((*BLOCK, ".reqnctapercluster"), (1, 3)),
        **dict.fromkeys((".maxnreg", ".minnctapersm", ".maxnctapersm", ".maxclusterrank"), (1, 1)),
        **dict.fromkeys((".explicitcluster", ".blocksareclusters"), (0, 0)),
    },
    "func": {".noreturn": (0, 0), ".abi_preserve": (1, 1), ".abi_preserve_control": (1, 1)},
}
_NEEDS = parse_rules(
    "reqnctapercluster maxclusterrank explicitcluster blocksareclusters: sm_90; blocksareclusters: 9.0;"
    "reqnctapercluster maxclusterrank explicitcluster: 7.8; maxnctapersm: <2.1;"
    "abi_preserve abi_preserve_control: sm_80; abi_preserve abi_preserve_control: 9.0"
)
_MOST = {".abi_preserve": 239, ".abi_preserve_control": 11}
_LARGEST = (1 << 32) - 1
_AFTER_KIND = re.compile(r"\.(?:entry|func)\s*\.")
_IN_HEAD = re.compile(r"\.pragma\b[^;]*;")


def iter_wrong(module: Module, dialect: Dialect) -> Iterator[tuple[int, str]]:
    """Yield (offset, reason) for each kernel or function that ptxas rejects because of the words in its head."""
    for item in module.items:
        if item.kind in ("entry", "func") and _may_be_wrong(module.skeleton[item.start : item.body or item.end]):
            name = f"{'kernel' if item.kind == 'entry' else 'function'} '{item.name}'"
            try:
                for text in _reasons(module, item, dialect):
                    yield item.start, f"{text}: {name}"
            except MalformedError as error:
                yield item.start, error.fact


def _may_be_wrong(head: str) -> bool:
    """Return whether a head has words that need a check: after the name and the parameters, or right after `.entry` or
    `.func`.
    """
    return "." in head[head.rfind(")") + 1 :] or ".attribute" in head or bool(_AFTER_KIND.search(head))


def _reasons(module: Module, item: Item, dialect: Dialect) -> Iterator[str]:
    node = parse_function(module, item)
    for specifier in node.more:
        compiled = ", which needs ptxas --compile-only" if ".unified" in specifier.argument else ""
        yield f"'{specifier}' after '{node.kind}'{compiled}"
    for found in _IN_HEAD.finditer(module.skeleton, item.start, item.body or item.end):
        if item.kind == "func" or not item.body:
            yield "a pragma without a kernel's body"
            continue
        try:
            check_pragma(module.text[found.start() : found.end()], "head", dialect.version)
        except Unsupported as error:
            yield str(error)
    yield from check_attributes(item.kind, node, dialect)
    if item.kind == "entry" and node.attributes and not item.body:
        yield f"'{node.attributes[0]}' of a declaration: only definitions have it"


def check_attributes(kind: str, node: tree.FunctionNode | tree.Prototype, dialect: Dialect) -> Iterator[str]:
    """Yield why ptxas rejects the words after the parameters of an `entry`, of a `func`, or of a prototype for one."""
    words = [one.word for one in node.attributes if isinstance(one, tree.Attribute)]
    values = read_attributes(node)
    yield from filter(None, (rule.broken([word[1:] for word in words], dialect) for rule in _NEEDS))
    for word, numbers in values.items():
        least, most = _NUMBERS[kind].get(word, (0, -1))
        if most < 0:
            yield f"'{word}', which {'kernels' if kind == 'entry' else 'functions'} don't have"
        elif not least <= len(numbers) <= most:
            yield f"'{word}' with {len(numbers)} numbers"
        elif max(numbers, default=0) > _MOST.get(word, _LARGEST):
            yield f"'{word}' with a number over {_MOST.get(word, _LARGEST)}"
    if kind == "func" and (len(values) < len(words) or ".noreturn" in words[1:]):
        yield f"'{words[-1]}' after '{words[-2]}'"
    if kind == "entry":
        yield from _bounds(values)


def _bounds(values: Mapping[str, list[int]]) -> Iterator[str]:
    """Check the launch bounds of a kernel."""
    if math.prod(values.get(".reqnctapercluster", [])) > 1:
        yield "clusters of several blocks are not supported"
    if all(word in values for word in BLOCK):
        yield "'.maxntid' and '.reqntid' together"
    if ".reqnctapercluster" in values and ".maxclusterrank" in values:
        yield "'.reqnctapercluster' and '.maxclusterrank' together"
    if ".blocksareclusters" in values and not {".reqntid", ".reqnctapercluster"} <= values.keys():
        yield "'.blocksareclusters' without '.reqntid' and '.reqnctapercluster'"
    for word in (*BLOCK, ".maxnreg", ".minnctapersm"):
        if word in values and not all(values[word]):
            yield f"'{word}' of 0"
