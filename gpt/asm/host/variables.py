"""Variables of a module: their state space, size and initial value."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import prod

from gpt.asm.host.names import Unsupported, evaluate, evaluate_float, float_bits
from gpt.asm.host.table import TYPES
from gpt.ptx import tree
from gpt.ptx.types import FLOAT, SIZES, STORED, integer

LINKING = {".extern", ".visible", ".weak", ".common"}
WIDTHS = {".v2": 2, ".v4": 4}
_DECLARED = {*SIZES, "f16x2", "b128", "texref", "samplerref", "surfref"}  # types that a declaration may have
_ORDER = re.compile(  # the order of the words in a declaration
    r"(?:\.(?:visible|extern|weak|common) )*"
    r"(?:\.(?:align|attribute) )*\.(?:global|const|shared|local|param|reg) (?:\.(?:align|attribute) )*(?:\.v\d+ )?"
    r"\.[a-z]+[a-z\d]* "
    r"(?:\.ptr )?(?:\.(?:global|const|shared|local) )?(?:\.align )?"  # only for parameters of kernels
)
_MAX_VECTOR = 16  # bytes
_MAX_VALUE = 64 << 20  # bytes in an initial value: a list may leave out any number of elements


@dataclass(frozen=True)
class AddressValue:
    """An address in an initial value; see host_address in abi.h."""

    offset: int
    symbol: str
    addend: int
    size: int
    shift: int
    generic: bool


@dataclass
class ModuleVariable:
    """A variable of the module, in global or constant memory. `size` is 0 if it's defined elsewhere."""

    name: str
    space: str
    size: int
    align: int
    external: bool
    element: int = 0  # see CVariable
    initial: bytes = b""
    pointers: list[AddressValue] = field(default_factory=list)


def check_declaration(specifiers: Iterable[tree.Specifier], declarator: tree.Declarator) -> None:
    """Raise Unsupported for a register, parameter or variable that ptxas rejects."""
    specifiers = tuple(specifiers)
    words = {specifier.word: specifier.argument for specifier in specifiers}
    name, type_ = declarator.name, type_of(words, declarator)
    vector = next((word for word in words if word[:2] == ".v" and word[2:].isdecimal()), "")
    if type_ not in _DECLARED:
        raise Unsupported(f"'{name}' of type .{type_}, which only instructions have: declare .b{8 * STORED[type_]}")
    if type_ == "pred" and (vector or ".reg" not in words):
        raise Unsupported(f"'{name}' of type .pred, which only single registers have")
    if vector and (vector not in WIDTHS or STORED[type_] * WIDTHS[vector] > _MAX_VECTOR):
        raise Unsupported(f"'{name}' as {vector} .{type_}: vectors have 2 or 4 elements and at most 128 bits")
    if ".param" in words and (vector or type_ == "f16x2"):
        raise Unsupported(f"parameter '{name}' of type {vector or '.' + type_}: declare an array of .b8 with .align")
    if ".align" in words and (integer(words[".align"]) or 0).bit_count() != 1:
        raise Unsupported(f"'{name}' with '.align {words['.align'] or ''}': an alignment is a power of two")
    if any(dimension is not None and evaluate(dimension) < 1 for dimension in declarator.dimensions):
        raise Unsupported(f"array '{name}' without elements")
    attribute = words.get(".attribute")
    order = [specifier.word for specifier in specifiers]
    ends = ".param" in words or order[-1:] == [f".{type_}"]
    if not ends or not _ORDER.fullmatch(" ".join([*order, ""])):
        raise Unsupported(f"'{name}' with its words in another order than linking, space and alignment, vector, type")
    if attribute and not re.fullmatch(r"\(?\s*\.managed(\s*,\s*\.managed)*\s*\)?", attribute):
        known = "needs ptxas --compile-only" if ".unified" in attribute else "PTX doesn't have"
        raise Unsupported(f"'{name}' with '.attribute{attribute}', which {known}")
    if attribute and ".global" not in words:
        raise Unsupported(f"'{name}' as '.managed', which only .global variables are")
    if len(linking := [word for word in words if word in LINKING]) > 1:
        raise Unsupported(f"'{name}' as {' and '.join(linking)}")
    if ".common" in words and ".global" not in words:
        raise Unsupported(f"'{name}' as '.common', which only .global variables are")
    if declarator.value is not None and (".extern" in words or not {".global", ".const"} & set(words)):
        raise Unsupported(f"'{name}' with an initial value: only .global and .const variables defined here have one")
    if None in declarator.dimensions and declarator.value is None and not {".extern", ".param"} & set(words):
        raise Unsupported(f"array '{name}' without a size: only .extern arrays have none")


def size_of(specifiers: Iterable[tree.Specifier], declarator: tree.Declarator) -> tuple[int, int]:
    """Return the size of a variable in bytes, which is 0 if its first dimension is open, and its alignment. Raises
    Unsupported.
    """
    specifiers = tuple(specifiers)
    check_declaration(specifiers, declarator)
    words = {specifier.word: specifier.argument for specifier in specifiers}
    element = STORED[type_of(words, declarator)] * _width(words)
    align = (integer(words[".align"]) or 1) if ".align" in words and ".ptr" not in words else element
    size = element
    for dimension in declarator.dimensions:
        size *= 0 if dimension is None else evaluate(dimension)
    return size, align


def element_of(specifiers: Iterable[tree.Specifier], declarator: tree.Declarator) -> int:
    """Return the size of an element of an array in bytes, or 0 if the variable isn't an array. Raises Unsupported."""
    words = [specifier.word for specifier in specifiers]
    return STORED[type_of(words, declarator)] if declarator.dimensions else 0


def shape_of(specifiers: Iterable[tree.Specifier], declarator: tree.Declarator) -> str:
    """Return what an argument and its parameter must have in common: the type, or for arrays, the size and alignment.

    Return "" for an array of any size, and for a vector. Raises Unsupported.
    """
    specifiers = tuple(specifiers)
    if any(specifier.word in WIDTHS for specifier in specifiers):
        return ""
    size, align = size_of(specifiers, declarator)
    if declarator.dimensions:
        return f"{size} bytes aligned to {align}" if size else ""
    return type_of((specifier.word for specifier in specifiers), declarator)


def type_of(words: Iterable[str], declarator: tree.Declarator) -> str:
    """Return the type of a variable's elements. Raises Unsupported for textures and the like."""
    types = [word[1:] for word in words if word[1:] in STORED]
    if len(types) != 1 or types[0] in ("texref", "samplerref", "surfref"):
        raise Unsupported(f"variable '{declarator.name}' of type {types[0] if types else 'unknown'}")
    return types[0]


def _width(words: Iterable[str]) -> int:
    return next((WIDTHS[word] for word in words if word in WIDTHS), 1)


def declared(specifiers: tuple[tree.Specifier, ...], declarator: tree.Declarator, name: str) -> ModuleVariable:
    """Return the variable that's declared in global or constant memory. Raises Unsupported."""
    words = {specifier.word: specifier.argument for specifier in specifiers}
    size, align = size_of(specifiers, declarator)
    made = ModuleVariable(name, "const" if ".const" in words else "global", size, align, ".extern" in words)
    made.element = element_of(specifiers, declarator)
    if declarator.value is None:
        return made
    type_ = type_of(words, declarator)
    if type_ in ("f16", "f16x2"):
        raise Unsupported(f"'{name}' of type .{type_} with an initial value: declare .b{8 * STORED[type_]}")
    if isinstance(declarator.value, tree.Vector) != (bool(declarator.dimensions) or _width(words) > 1):
        raise Unsupported(f"'{name}' with a value {'in braces' if not declarator.dimensions else 'without braces'}")
    step = STORED[type_]
    if None in declarator.dimensions[:1]:
        count = len(declarator.value.items) if isinstance(declarator.value, tree.Vector) else 1
        made.size = step * _width(words) * count
        for dimension in declarator.dimensions[1:]:
            made.size *= evaluate(dimension)
    data = bytearray()
    items = len(declarator.value.items) if isinstance(declarator.value, tree.Vector) else 1
    shape = [evaluate(dimension) for dimension in declarator.dimensions[1:]]
    shape += [_width(words)] if _width(words) > 1 and declarator.dimensions else []
    if shape and items * prod(shape) * step > _MAX_VALUE:
        raise Unsupported(f"variable '{name}' with an initial value of over {_MAX_VALUE >> 20} MiB")
    for value in _flat(declarator.value, shape, bool(declarator.dimensions) or _width(words) > 1):
        data += _datum(made, value, type_, len(data)) if value is not None else bytes(step)
    if len(data) > made.size:
        raise Unsupported(f"variable '{name}' has more values than elements")
    made.initial = bytes(data).rstrip(b"\0")
    return made


def _flat(value: tree.Operand, shape: list[int], array: bool) -> Iterator[tree.Operand | None]:
    """Yield the elements of an initial value. If an inner list leaves out an element, yield None for it."""
    if not isinstance(value, tree.Vector) or not array:
        yield value
        return
    for item in value.items:
        if isinstance(item, tree.Vector) != bool(shape):
            raise Unsupported(f"'{item}' in '{value}': each dimension has braces of its own")
        if isinstance(item, tree.Vector):
            room = 1
            for dimension in shape:
                room *= dimension
            for element in _flat(item, shape[1:], True):
                yield element
                room -= 1
            yield from [None] * room
        else:
            yield item


def _datum(variable: ModuleVariable, value: tree.Operand, type_: str, offset: int) -> bytes:
    """Return the bytes of an element. If it's an address, return zeros, and add it to the variable's pointers."""
    size = STORED[type_]
    float_ = value.operand if isinstance(value, tree.Prefixed) else value
    if isinstance(float_, tree.Number) and FLOAT.fullmatch(float_.text) and (type_[0] in "us" or size < 4):
        raise Unsupported(f"'{value}' as a value of type .{type_}")
    match value:
        case tree.Number(text) if FLOAT.fullmatch(text):
            return float_bits(text, TYPES[type_]).to_bytes(size, "little")
        case tree.Prefixed(("-",), tree.Number(text)) if FLOAT.fullmatch(text):
            return (float_bits(text, TYPES[type_]) ^ 1 << 8 * size - 1).to_bytes(size, "little")
        case tree.Prefixed() | tree.Expression() | tree.OperandGroup() if type_ in ("f32", "f64"):
            return evaluate_float(value, TYPES[type_]).to_bytes(size, "little")
    if found := _symbol(value):
        symbol, addend, shift, generic = found
        masked = isinstance(value, tree.Apply) and isinstance(value.function, tree.Number)
        if type_[0] != "u" or size == 2 or (size == 1 and not masked):
            raise Unsupported(f"address '{value}' as a value of type .{type_}")
        variable.pointers.append(AddressValue(offset, symbol, addend, size, shift, generic))
        return bytes(size)
    number = evaluate(value)
    if type_ in ("f32", "f64", "f16"):
        raise Unsupported(f"'{value}' as a value of type .{type_}")
    return (number & (1 << 8 * size) - 1).to_bytes(size, "little")


def _symbol(value: tree.Operand) -> tuple[str, int, int, bool] | None:
    """Return the name in an address, the number that's added, the shift of its mask, and whether the address is
    generic.
    """
    match value:
        case tree.Name(name, ()) if name != "WARP_SZ":
            return name, 0, 0, False
        case tree.Apply(tree.Name("generic", ()), tree.OperandGroup((inner,))) if found := _symbol(inner):
            return found[0], found[1], found[2], True
        case tree.Apply(tree.Number(mask), tree.OperandGroup((inner,))) if found := _symbol(inner):
            bits = integer(mask) or 1
            return found[0], found[1], (bits & -bits).bit_length() - 1, found[3]
        case tree.OperandGroup((inner,)):
            return _symbol(inner)
        case tree.Prefixed((prefix,), inner) if prefix.startswith("("):
            return _symbol(inner)
        case tree.Expression((base, *rest), (("+" | "-") as sign, *signs)) if found := _symbol(base):
            addend = evaluate(tree.Expression((tree.Number("0"), *rest), (sign, *signs)))
            return found[0], found[1] + addend, found[2], found[3]
    return None
