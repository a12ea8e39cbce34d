"""Read what a module declares: its kernels with their parameters and memory, and its variables with their initial
values.

The simulated device asks for this when a program loads PTX, and uses it to answer the program's queries. Code is only
generated when a kernel is launched. So only declarations are read, instructions aren't checked, and no C compiler is
needed.

The shared memory of a kernel contains the variables that it uses, directly or through functions, one after another, as
in the code that's generated for that kernel alone. Variables for which no code can be generated are listed without a
value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

from gpt.asm.host.names import Unsupported
from gpt.asm.host.variables import ModuleVariable, declared, size_of
from gpt.base.errors import MalformedError
from gpt.base.patterns import compiled
from gpt.ptx import params, tree
from gpt.ptx.head import NEWEST, VERSIONS
from gpt.ptx.prune import Uses
from gpt.ptx.quick import parse_declaration, parse_params
from gpt.ptx.scan import TO_SEMICOLON, Item, Module, scan_module
from gpt.ptx.types import integer

_SPACE = compiled(r"\.(?:global|const|shared|local)\s")
_DECLARATION = compiled(TO_SEMICOLON)
_VERSION = compiled(r"\.version\s+([\d.]+)")
_TARGET = compiled(r"\.target\s+(\w+)")
_LIMIT = compiled(r"\.(maxntid|reqntid|maxnreg)\s++(\w++(?:\s*+,\s*+\w++)*+)")
_MAX_SIZE = 1 << 40  # bytes per variable; larger ones are left out
_MAX_PARAMS = 1 << 20  # bytes
_MAX_NUMBER = (1 << 31) - 1
_BEFORE = 64  # bytes to search for the end of the statement before a declaration


class _Memory(NamedTuple):
    """A variable in shared or local memory. `owner` is the function that declares it, or the name of the variable
    itself.
    """

    owner: str
    local: bool
    size: int
    align: int


def read_outline(data: bytes, name: str) -> dict[str, Any]:
    """Return the keys of an `outline` record, except the id. Raises MalformedError if the text isn't PTX."""
    module = scan_module(data, name)
    variables: list[dict[str, Any]] = []
    memory: list[_Memory] = []
    for function, start, end in _iter_declarations(module):
        node = parse_declaration(module.skeleton[start:end], lambda at=start: module.where(at))  # type: ignore[misc]
        words = {specifier.word for specifier in node.specifiers}
        for one in node.declarators if ".extern" not in words else ():
            if words & {".global", ".const"}:
                full = f"{function}.{one.name}" if function else one.name
                variables += _outline_variable(node.specifiers, one, full)
            elif words & {".shared", ".local"}:
                memory += _measure(node.specifiers, one, function, ".local" in words)
    kernel_names = {item.name for item in module.entries}
    uses = Uses(module) if any(one.owner not in kernel_names for one in memory) else None
    kernels = [_outline_kernel(module, item, memory, uses) for item in module.entries]
    return {"module": name, **_outline_head(module), "kernels": kernels, "variables": variables}


def _iter_declarations(module: Module) -> Iterator[tuple[str, int, int]]:
    """Yield each declaration of variables: the function that contains it (or ""), its start and its end."""
    text = module.skeleton
    for item in module.items:
        if item.kind == "variable":
            yield "", item.start, item.end
        elif item.body:
            for found in _SPACE.finditer(text, item.body, item.end):
                start = found.start()
                end = _DECLARATION.match(text, start)
                if end and text[max(item.body, start - _BEFORE) : start].rstrip()[-1:] in "{};:":
                    yield item.name, start, end.end()


def _outline_head(module: Module) -> dict[str, Any]:
    """Return the first `.target` and `.version`, with their lines. If there's no such version, return the newest
    one.
    """
    found: dict[str, Any] = {}
    for item in module.items:
        text = module.skeleton[item.start : item.end]
        if item.kind == "version" and "version" not in found and (version := _VERSION.match(text)):
            found |= {"version": version[1], "version_line": _line(module, item)}
            if version[1] not in VERSIONS:
                found["newest"] = "{}.{}".format(*NEWEST)
        elif item.kind == "target" and "target" not in found and (target := _TARGET.match(text)):
            found |= {"target": target[1], "target_line": _line(module, item)}
    return found


def _line(module: Module, item: Item) -> int:
    """Return the line of one of the first items. Module.line would read the whole text."""
    return module.text.count("\n", 0, item.start) + 1


def _outline_variable(specifiers: tuple[tree.Specifier, ...], one: tree.Declarator, name: str) -> list[dict[str, Any]]:
    try:
        made = declared(specifiers, one, name)
    except Unsupported:
        try:
            size, align = size_of(specifiers, one)
        except Unsupported:
            return []
        space = "const" if any(specifier.word == ".const" for specifier in specifiers) else "global"
        made = ModuleVariable(name, space, size, align, external=False)
    if not 0 < made.size <= _MAX_SIZE:
        return []
    addresses = [
        {
            "offset": pointer.offset,
            "symbol": pointer.symbol,
            "addend": pointer.addend % (1 << 64),
            "size": pointer.size,
            "shift": pointer.shift,
            "generic": pointer.generic,
        }
        for pointer in made.pointers
    ]
    found = {"name": name, "space": made.space, "size": made.size, "align": made.align}
    return [found | ({"data": made.initial} if made.initial else {}) | ({"addresses": addresses} if addresses else {})]


def _measure(
    specifiers: tuple[tree.Specifier, ...], one: tree.Declarator, function: str, local: bool
) -> Iterable[_Memory]:
    try:
        size, align = size_of(specifiers, one)
    except Unsupported:
        return []
    return [_Memory(function or one.name, local, size, align)] if 0 < size <= _MAX_SIZE else []


def _outline_kernel(module: Module, item: Item, memory: list[_Memory], uses: Uses | None) -> dict[str, Any]:
    used = uses.needed([item.name]) if uses else {item.name}
    shared = local = 0
    for one in memory:
        if one.owner in used and one.local:
            local += one.size
        elif one.owner in used:
            shared = -(-shared // one.align) * one.align + one.size
    try:
        found = params.layout(parse_params(module, item) or ())
    except MalformedError as error:
        raise MalformedError(error.fact, error.where or module.where(item.start)) from None
    if found and found[-1].offset + found[-1].size > _MAX_PARAMS:
        raise module.fault(item.start, f"kernel '{item.name}' has over {_MAX_PARAMS >> 20} MiB of parameters")
    numbers: dict[str, list[int]] = {}
    for limit in _LIMIT.finditer(module.skeleton, item.start, item.body):
        numbers[limit[1]] = [integer(word.strip()) or 0 for word in limit[2].split(",")]
    threads = [prod(numbers[word]) for word in ("maxntid", "reqntid") if word in numbers]
    return {
        "name": item.name,
        "params": [{"offset": one.offset, "size": one.size} for one in found],
        "threads": min(*threads, _MAX_NUMBER) if threads else 0,
        "registers": min(max(numbers.get("maxnreg", [0])), _MAX_NUMBER),
        "shared": min(shared, _MAX_NUMBER),
        "local": min(local, _MAX_NUMBER),
    }
