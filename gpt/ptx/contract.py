"""Find the products and sums that ptxas fuses.

PTX allows ptxas to contract a `mul` and an `add` or `sub` without rounding modifiers to an fma, which rounds once
instead of twice. nvcc and NVRTC leave such pairs to ptxas: `a * b - c` becomes a `mul.f32` and a `sub.f32`. ptxas fuses
a pair only if no branch separates its instructions, so inserting a branch between them changes the last bit of the
result. Where the weaver inserts something, it therefore writes the pairs as fma itself. The simulated device rounds
every instruction as written, so it writes all pairs as fma.

ptxas 13.0 follows these rules for sm_90 (tests/ptx/test_contract.py compares random kernels):

- A product is fused if everything that reads it is an `add` or `sub` of its type in the same stretch, with the same
  `.ftz`. A sum may have a guard and may saturate, but a product may not. A sum of a product and itself isn't fused.
  Copies by `mov` and `neg` count as the product.
- If two products are added, the one with fewer readers is fused, or else the first one. The other is then read by an
  fma, and isn't fused anywhere after that.
- Sums are fused in the order of the text. For f32 and f64, sums with a product that's read only once come first.
- A stretch ends at a label that's the target of a branch; at a branch, exit, call, trap, `membar` or `fence`; at a
  division, square root or reciprocal with rounding, because these contain branches; and at an instruction with a guard
  that's more than arithmetic, because ptxas branches around it.

Not covered are registers declared in inner scopes, sums of two equal products whose factors are copies, and pairs that
come together only when ptxas inlines a function or unrolls a loop.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from gpt.ptx import tree
from gpt.ptx.flow import Flow, inner_names, names_in, stretches_of
from gpt.ptx.quick import parse_instruction
from gpt.ptx.scan import Item, Module, Statement, scan_module

_PRODUCT = re.compile(r"mul(\.ftz)?\.(f32|f64|f16|f16x2|bf16|bf16x2)")
_SUM = re.compile(r"(add|sub)(\.ftz)?(\.sat)?\.(f32|f64|f16|f16x2|bf16|bf16x2)")
_REGISTER = {"f32": "f32", "f64": "f64", "f16": "b16", "bf16": "b16", "f16x2": "b32", "bf16x2": "b32"}
_SIZES = {"f32": 32, "f64": 64, "f16": 16, "bf16": 16, "f16x2": 32, "bf16x2": 32}


class Edit(NamedTuple):
    """A piece of a function's text to replace. For an insertion, it's empty."""

    start: int
    end: int
    text: str


class _Product(NamedTuple):
    number: int  # its statement's number
    factors: tuple[str, str]
    written: tuple[int | None, ...]  # the statement that wrote each factor
    kind: tuple[str, bool]  # type and .ftz


class _Term(NamedTuple):
    """A product that's an operand of a sum."""

    product: _Product
    is_negative: bool


class _Sum(NamedTuple):
    number: int
    node: tree.Instruction
    terms: tuple[_Term | None, _Term | None]


def contracted(module: Module) -> Module:
    """Return the module with all pairs written as fma. The line numbers don't change."""
    prefix = next(p for n in itertools.count() if (p := f"fused{n}_") not in module.text)
    edits = [edit for item in module.functions for edit in find_edits(module, item, module.statements(item), prefix)]
    parts, at = [], 0
    for start, end, text in sorted(edits):
        parts += [module.text[at:start], text]
        at = end
    if not parts:
        return module
    return scan_module("".join([*parts, module.text[at:]]).encode("latin-1"), module.name)


def find_edits(
    module: Module,
    item: Item,
    statements: Sequence[Statement],
    prefix: str,
    wanted: Callable[[int, int], bool] = lambda start, end: True,
) -> Iterator[Edit]:
    """Yield the edits that write the pairs of a function as fma, in stretches whose start and end are `wanted`."""
    hidden = inner_names(module, statements)
    stretches = list(stretches_of(module, statements))
    flow: Flow | None = None
    for stretch in stretches:
        heads = [statements[number].head for number in stretch]
        if not (any(map(_PRODUCT.fullmatch, heads)) and any(map(_SUM.fullmatch, heads))):
            continue
        if not wanted(statements[stretch[0]].start, statements[stretch[-1]].end):
            continue
        flow = flow or Flow(module, statements)
        for sum_, place in _fuse(*_read(module, statements, stretch, flow, hidden)):
            yield from _edits(item, statements, sum_, place, f"{prefix}{sum_.number}_", flow, stretch[0])


def _edits(
    item: Item,
    statements: Sequence[Statement],
    sum_: _Sum,
    place: int,
    prefix: str,
    flow: Flow,
    first: int,
) -> Iterator[Edit]:
    """Yield the edits that fuse a sum with one of its terms."""
    term = sum_.terms[place]
    assert term
    product, is_negative = term.product, term.is_negative
    type_, is_flushed = product.kind
    declared, factors = f".reg .{_REGISTER[type_]} {prefix}", list(product.factors)
    for number, (factor, written) in enumerate(zip(factors, product.written, strict=True)):
        # A factor is overwritten before the sum, so keep the product.
        if flow.find_writer(factor, first, sum_.number) != written:
            factors[number] = f"{prefix}{number}"
            yield Edit(item.body + 1, item.body + 1, f" {declared}{number};")
            at = statements[product.number].start
            yield Edit(at, at, f"mov.{_move(type_)} {prefix}{number}, {factor}; ")
    result, *terms = map(str, sum_.node.operands)
    other = terms[1 - place]
    front = ""

    def minus(number: int, value: str) -> str:
        nonlocal front
        front += f"{declared}{number}; neg.{type_} {prefix}{number}, {value}; "
        return f"{prefix}{number}"

    if sum_.node.opcode == "sub" and place == 0:
        other = minus(2, other)
    if is_negative != (sum_.node.opcode == "sub" and place == 1):
        factors[0] = minus(3, factors[0])
    guard = f"{sum_.node.guard} " if sum_.node.guard else ""
    words = ".ftz" * is_flushed + ".sat" * (".sat" in sum_.node.modifiers)
    text = f"{guard}fma.rn{words}.{type_} {result}, {factors[0]}, {factors[1]}, {other};"
    place_of = statements[sum_.number]
    yield Edit(place_of.start, place_of.end, f"{{ {front}{text} }}" if front else text)


def _move(type_: str) -> str:
    """Return the type that mov uses to copy such a register."""
    return {"f16": "b16", "bf16": "b16"}.get(type_, _REGISTER[type_])


# Pairs

# For each product, the sums that read it, each with the number of the operand. None stands for any other use.
_Uses = dict[int, list["tuple[int, int] | None"]]


def _read(
    module: Module, statements: Sequence[Statement], stretch: list[int], flow: Flow, is_hidden: Callable[[str], bool]
) -> tuple[list[_Sum], _Uses]:
    """Return the sums in a stretch with their products, and the readers of each product."""
    first, last = stretch[0], stretch[-1]
    products: dict[int, _Product] = {}
    for number in stretch:
        statement = statements[number]
        if (match := _PRODUCT.fullmatch(statement.head)) and not statement.guard:
            node = parse_instruction(module.source(statement))
            names = [name for part in node.operands for name in names_in(part)]
            if len(node.operands) == 3 and _is_plain(node.operands[0]) and not any(map(is_hidden, names)):
                factors = (str(node.operands[1]), str(node.operands[2]))
                written = tuple(flow.find_writer(factor, first, number) for factor in factors)
                products[number] = _Product(number, factors, written, (match[2], bool(match[1])))
    uses: _Uses = {number: [] for number in products}
    terms: dict[int, list[_Term | None]] = {}
    inside = set(stretch)
    for number, product in products.items():
        (name,) = flow.access(number).written
        found, todo = uses[number], [(name, number, False)]
        while todo:  # the name of the product, and the names to which it's copied
            name, start, is_negative = todo.pop()
            for reader in flow.mentions(name, start + 1, last + 1):
                access = flow.access(reader)
                if name in access.read:
                    copy = _copy(statements[reader], product) if reader in inside else None
                    places = _places(module, statements[reader], name, product) if reader in inside else []
                    if copy and access.written:
                        todo.append((next(iter(access.written)), reader, is_negative != (copy == "neg")))
                    elif len(places) == 1:
                        found.append((reader, places[0]))
                        terms.setdefault(reader, [None, None])[places[0]] = _Term(product, is_negative)
                    else:
                        found.append(None)
                if name in access.written:  # from here on, the name has a different value
                    found += [None] * access.is_guarded
                    break
            else:
                found += [None] * flow.is_read_after(name, first, last)
    sums: list[_Sum] = []
    for number, (left, right) in sorted(terms.items()):
        if left and right and _is_same(left.product, right.product):
            for product in (left.product, right.product):
                uses[product.number].append(None)
        else:
            sums.append(_Sum(number, parse_instruction(module.source(statements[number])), (left, right)))
    return sums, uses


def _is_plain(operand: tree.Operand) -> bool:
    """Return whether an operand is a single register, not a vector or a pair of results."""
    return isinstance(operand, tree.Name) and not operand.parts and operand.name != "_"


def _is_same(left: _Product, right: _Product) -> bool:
    """Return whether two products have the same factors."""
    return left.kind == right.kind and sorted(zip(left.factors, map(str, left.written), strict=True)) == sorted(
        zip(right.factors, map(str, right.written), strict=True)
    )


def _copy(statement: Statement, product: _Product) -> str:
    """If an instruction only copies or negates a product, return `mov` or `neg`. Otherwise, return an empty string."""
    type_, is_flushed = product.kind
    if statement.guard:
        return ""
    if statement.head in (f"mov.{type_}", f"mov.{_move(type_)}", f"mov.b{_SIZES[type_]}"):
        return "mov"
    return "neg" * (statement.head == f"neg{'.ftz' * is_flushed}.{type_}")


def _places(module: Module, statement: Statement, name: str, product: _Product) -> list[int]:
    """If an instruction is a sum that may be fused with the product, return the numbers of its operands that name the
    product. Otherwise, return nothing.
    """
    found = _SUM.fullmatch(statement.head)
    if not found or (found[4], bool(found[2])) != product.kind:
        return []
    terms = parse_instruction(module.source(statement)).operands[1:]
    return [place for place, term in enumerate(terms) if str(term) == name] if len(terms) == 2 else []


def _fuse(sums: list[_Sum], uses: _Uses) -> Iterator[tuple[_Sum, int]]:
    """Yield each sum that's fused, with the number of the operand with which it's fused."""
    fused: dict[int, int] = {}

    def count(sum_: _Sum, place: int, only_once: bool) -> int:
        """Return how many instructions read the product, or 0 if it can't be fused now."""
        term = sum_.terms[place]
        if term is None or (only_once and term.product.kind[0] not in ("f32", "f64")):
            return 0
        found = uses[term.product.number]
        return len(found) * all(use and fused.get(use[0], use[1]) == use[1] for use in found)

    for only_once in (True, False):
        for sum_ in sums:
            found = [
                (n, place) for place in (0, 1) if (n := count(sum_, place, only_once)) and (n == 1 or not only_once)
            ]
            if found and sum_.number not in fused:
                fused[sum_.number] = min(found)[1]
                yield sum_, fused[sum_.number]
