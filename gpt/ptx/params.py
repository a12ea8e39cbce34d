"""Lay out the parameters of a kernel, and find room for more of them.

Parameters are in a constant bank, after the driver's own data, and the alignment applies to the address in this bank.
On sm_90, 528 bytes come before them, so a parameter aligned to 64 begins at offset 48. ptxas reports the offsets in
EIATTR_KPARAM_INFO; its limit for the size doesn't count such gaps.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpt.base.errors import MalformedError
from gpt.formats.params import Param as Param
from gpt.ptx import tree
from gpt.ptx.quick import parse_params
from gpt.ptx.scan import Item, Module, find_name
from gpt.ptx.types import STORED, integer

LIMIT, LIMIT_BEFORE_8_1 = 32764, 4352  # bytes of parameters
SPACES = ("global", "const", "shared", "local")  # spaces that a pointer may name
_RESERVED = {100: 0x380, 90: 0x210, 70: 0x160, 0: 0x140}  # bytes before the parameters, by first target


def reserved(target: int) -> int:
    """Return the number of bytes before the parameters of a kernel for a target (90 stands for sm_90)."""
    return next(size for first, size in _RESERVED.items() if target >= first)


def layout(params: Iterable[tree.Parameter], front: int = 0, where: str = "") -> list[Param]:
    """Return the layout of a kernel's parameters after `front` bytes, each aligned according to its type or `.align`.

    Raises MalformedError, with the location `where`, for sizes that aren't numbers.
    """
    found: list[Param] = []
    end = 0
    for parameter in params:
        words = [specifier.word[1:] for specifier in parameter.specifiers]
        type_ = next((word for word in words if word in STORED), "b64")
        size = align = STORED[type_]
        if "ptr" not in words:  # for pointers, .align is about the memory that they point to
            given = [specifier.argument for specifier in parameter.specifiers if specifier.word == ".align"]
            align = (integer(given[0]) or 0) if given else align
        for dimension in parameter.declarator.dimensions:
            count = (integer(str(dimension)) or 0) if dimension != tree.Name("WARP_SZ") else 32
            size, type_ = size * count, f"{type_}[{count}]"
        if not size or align.bit_count() != 1:
            raise MalformedError(f"PTX: '{parameter}' has no size or no alignment", where)
        offset = -(-(front + end) // align) * align - front
        space = next((word for word in words if word in SPACES), "generic") if "ptr" in words else None
        found.append(Param(offset, size, type_, space))
        end = offset + size
    return found


def limit(version: tuple[int, int]) -> int:
    """Return the maximum size of a kernel's parameters in bytes."""
    return LIMIT if version >= (8, 1) else LIMIT_BEFORE_8_1


def room(module: Module, function: Item) -> tuple[int, str, str]:
    """Return the offset at which parameters can be added to a function, and the text to insert before and after
    them.
    """
    params = parse_params(module, function)
    end = function.body or function.end
    after = find_name(module.skeleton, function.name, function.start, end) + len(function.name)
    if params is None:
        return after, "(", ")"
    depth = 0
    for bracket in re.compile(r"[()]").finditer(module.skeleton, after):
        depth += 1 if bracket[0] == "(" else -1
        if not depth:
            break
    return bracket.start(), ", " if params else "", ""
