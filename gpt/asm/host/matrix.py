"""Matrix products of a warp: mma and wmma. runtime/host/matrix.h defines the fragments, and the order in which products
are added.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from gpt.asm.host.memory import CHECKED, SPACES, bracketed, checked
from gpt.asm.host.names import Unsupported
from gpt.asm.host.table import TYPES, Row
from gpt.asm.host.use import InstructionUse
from gpt.ptx import tree

BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "f64": 64, "e4m3": 8, "e5m2": 8}
BITS |= {"s8": 8, "u8": 8, "s4": 4, "u4": 4, "b1": 1, "s32": 32}
_INTEGERS = ("s8", "u8", "s4", "u4", "b1", "s32")
_MMA: dict[tuple[str, ...], tuple[tuple[int, int, int], ...]] = {  # shapes (m, n, k), by the types of the factors
    ("f16",): ((16, 8, 8), (16, 8, 16)),
    ("bf16",): ((16, 8, 8), (16, 8, 16)),
    ("tf32",): ((16, 8, 4), (16, 8, 8)),
    ("f64",): ((8, 8, 4), (16, 8, 4), (16, 8, 8), (16, 8, 16)),
    ("e4m3", "e5m2"): ((16, 8, 16), (16, 8, 32)),
    ("s8", "u8"): ((8, 8, 16), (16, 8, 16), (16, 8, 32)),
    ("s4", "u4"): ((8, 8, 32), (16, 8, 32), (16, 8, 64)),
    ("b1",): ((8, 8, 128), (16, 8, 128), (16, 8, 256)),
}
_MMA_NEEDS: dict[
    object, str
] = {  # targets and versions, by type of the factors and shape, or if all shapes have the same, only by type
    ("f16", (16, 8, 16)): ": sm_80",
    ("f16", (16, 8, 8)): ": sm_75; : 6.5",
    ("f64", (8, 8, 4)): ": sm_80",
    "f64": ": sm_90; : 7.8",
    "bf16": ": sm_80",
    "tf32": ": sm_80",
    **dict.fromkeys((("e4m3", (16, 8, 16)), ("e5m2", (16, 8, 16))), ": sm_89; : 8.7"),
    **dict.fromkeys(("e4m3", "e5m2"), ": sm_89; : 8.4; f16: 8.7"),
    ("s8", (8, 8, 16)): ": sm_75; : 6.5",
    ("u8", (8, 8, 16)): ": sm_75; : 6.5",
    "s8": ": sm_80",
    "u8": ": sm_80",
    ("s4", (8, 8, 32)): ": sm_75; : 6.5",
    ("u4", (8, 8, 32)): ": sm_75; : 6.5",
    "s4": ": sm_80",
    "u4": ": sm_80",
    ("b1", (8, 8, 128)): ": sm_75; : 7.0; and: sm_80",
    "b1": ": sm_80",
}
_WMMA_NEEDS = {
    **dict.fromkeys(("bf16", "tf32", "f64"), ": sm_80"),
    "f16": ": sm_70; : 6.3",
    **dict.fromkeys(("s8", "u8"), ": sm_72"),
    **dict.fromkeys(("s4", "u4"), ": sm_75"),
    "b1": ": sm_75; and: sm_80",
}
_TALL = ((16, 16, 16), (8, 32, 16), (32, 8, 16))
_WMMA: dict[str, tuple[tuple[int, int, int], ...]] = {
    **dict.fromkeys(("f16", "bf16", "s8", "u8"), _TALL),
    "tf32": ((16, 16, 8),),
    "f64": ((8, 8, 4),),
    "s4": ((8, 8, 32),),
    "u4": ((8, 8, 32),),
    "b1": ((8, 8, 128),),
}
_REGISTERS = {"f16": "f16x2", "bf16": "bf16x2", "tf32": "tf32", "f32": "f32", "f64": "f64", "s32": "u32"}


class MatrixShape(NamedTuple):
    """A matrix product: its size, and the types of A, B, C and D."""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    d: str
    layout: str = "mma"
    more: str = ""  # initializers

    @property
    def name(self) -> str:
        """The shape as PTX writes it."""
        return f"m{self.m}n{self.n}k{self.k}"

    def elements(self, matrix: str) -> int:
        """Return how many elements of a matrix each lane has."""
        if self.layout == "quarters":
            return 4 if matrix in "ab" else 8
        if self.layout == "wmma" and self.a == "f16" and matrix in "ab":
            return 16
        return {"a": self.m * self.k, "b": self.n * self.k}.get(matrix, self.m * self.n) // 32

    def slot(self, matrix: str) -> str:
        """Return the operand for a fragment in a signature: 32-bit registers, or doubles."""
        type_ = getattr(self, matrix)
        count = self.elements(matrix) * BITS[type_] // (64 if type_ == "f64" else 32)
        return f"{matrix}:{_REGISTERS.get(type_, 'b32')}[{count}]"

    @property
    def code(self) -> str:
        """The declaration of the shape in C, as a template."""
        types = ", ".join(f"{'ELEMENT' if one in _INTEGERS else 'FORMAT'}_{one}" for one in self[3:7])
        counts = "".join(f", .elements_{matrix} = {self.elements(matrix)}" for matrix in "abc")
        return (
            f"static const struct host_shape s_ = {{{{{self.m}, {self.n}, {self.k}, LAYOUT_{self.layout}, {types}"
            f"{self.more}{counts}}}}};"
        )

    def row(self, form: str, **sets: str) -> Row:
        """Return the row of the product."""
        return Row(
            form,
            f"{self.slot('d')} = {self.slot('a')} {self.slot('b')} {self.slot('c')}",
            f"{self.code} struct host_product x_ = {{{{&s_, {{a}}, {{b}}, {{c}}, d_}}}};"
            " t->services->meet({thread}, {site}, ~0u, host_multiply, &x_);",
            **sets,
        )


def _sums(type_: str) -> list[str]:
    """Return the types that C and D can have if the factors have this type."""
    if type_ in ("f16", "e4m3", "e5m2"):
        return ["f16", "f32"]
    return ["s32" if type_ in _INTEGERS else "f64" if type_ == "f64" else "f32"]


def _mma() -> Iterator[Row]:
    head = "mma.sync.aligned"
    for types, shapes in _MMA.items():
        for (m, n, k), a, b in product(shapes, types, types):
            for d in _sums(a):
                shape = MatrixShape(m, n, k, a, b, d, d)
                needs = _MMA_NEEDS.get((a, (m, n, k)), _MMA_NEEDS.get(a, ""))
                ends = f"{d}.{a}.{b}.{d}"
                if a == "b1":
                    for name, value in (("xor", 0), ("and", 1)):
                        one = shape._replace(more=f", .conjunction = {value}")
                        yield one.row(f"{head}.{shape.name}.row.col.{ends}.{name}.popc", needs=f"{needs}; and: 7.1")
                elif d == "s32":
                    for clamps in ("", ".satfinite"):
                        one = shape._replace(more=f", .clamps = {int(bool(clamps))}")
                        yield one.row(f"{head}.{shape.name}.row.col{clamps}.{ends}", needs=needs)
                else:
                    yield shape.row(
                        f"{head}.{shape.name}.row.col{'{.R}' if d == 'f64' else ''}.{ends}", needs=needs, R="rn"
                    )
    for c, d, a, b in product(_sums("f16"), _sums("f16"), ("row", "col"), ("row", "col")):
        if (c, d) == ("f32", "f16"):
            continue
        more = f", .column_a = {int(a == 'col')}, .column_b = {int(b == 'col')}"
        shape = MatrixShape(8, 8, 4, "f16", "f16", c, d, "quarters", more)
        yield shape.row(f"{head}.m8n8k4.{a}.{b}.{d}.f16.f16.{c}", needs=": sm_70; : 6.4")


def _wmma() -> Iterator[Row]:
    seen = set()
    for type_, shapes in _WMMA.items():
        narrow = type_ in ("s4", "u4", "b1")
        sets = {"L": "row", "M": "col"} if narrow else {"L": "row col", "M": "row col"}
        sets["needs"] = _WMMA_NEEDS.get(type_, "")
        for m, n, k in shapes:
            for c, d in product(_sums(type_), repeat=2):
                shape = MatrixShape(m, n, k, type_, type_, c, d, "wmma")
                if type_ == "f16":
                    yield shape.row(f"wmma.mma.sync.aligned.L.M.{shape.name}.{d}.{c}", **sets)
                ends = f"{d}.{type_}.{type_}.{c}"
                if type_ == "f16":
                    pass
                elif type_ == "b1":
                    for name, value in (("xor", 0), ("and", 1)):
                        one = shape._replace(more=f", .conjunction = {value}")
                        more = {"needs": f"{sets['needs']}; and: 7.1"}
                        yield one.row(f"wmma.mma.{name}.popc.sync.aligned.L.M.{shape.name}.{ends}", **sets | more)
                elif d == "s32":
                    for clamps in ("", ".satfinite"):
                        one = shape._replace(more=f", .clamps = {int(bool(clamps))}")
                        yield one.row(f"wmma.mma.sync.aligned.L.M.{shape.name}.{ends}{clamps}", **sets)
                else:
                    rounds = "{.R}" * (type_ == "f64")
                    yield shape.row(f"wmma.mma.sync.aligned.L.M.{shape.name}{rounds}.{ends}", **sets, R="rn")
                for matrix, kind in (("a", type_), ("b", type_), ("c", c)):
                    if (matrix, shape.name, kind, shape.elements(matrix)) not in seen:
                        seen.add((matrix, shape.name, kind, shape.elements(matrix)))
                        layouts = "row col" if matrix == "c" else sets["L" if matrix == "a" else "M"]
                        yield from _moves(shape, matrix, kind, layouts, sets["needs"])


_WHERE = {word: SPACES[word] for word in ("global", "shared", "shared::cta")}


def _moves(shape: MatrixShape, matrix: str, type_: str, layouts: str, needs: str) -> Iterator[Row]:
    """Yield the rows that load a matrix, and for C, the rows that store D."""
    words = f"sync.aligned.L.{shape.name}{{.W}}.{type_}"
    layout = {word: str(int(word == "row")) for word in layouts.split()}
    for stride in ("", " stride:u32"):
        fragment = shape.slot(matrix)[2:]
        load = f"wmma.load.{matrix}.{words}", f"d:{fragment} = a:address{stride}"
        yield Row(*load, lambda use: _move(use, shape, matrix, type_), needs=needs, L=layout, W=_WHERE)
        if matrix == "c":
            store = f"wmma.store.d.{words}", f"= a:address d:{fragment}{stride}"
            yield Row(*store, lambda use: _move(use, shape, matrix, type_), needs=needs, L=layout, W=_WHERE)


def _move(use: InstructionUse, shape: MatrixShape, matrix: str, type_: str) -> str:
    """Write a load or store of a matrix. Each lane moves its elements one by one."""
    load = ".load" in use.instruction.modifiers
    fragment, address = use.operands[:2] if load else reversed(use.operands[:2])
    by_rows, rows, columns = (
        str(use.words["L"]),
        *{"a": (shape.m, shape.k), "b": (shape.k, shape.n)}.get(matrix, (shape.m, shape.n)),
    )
    stride = use.value(use.operands[2], TYPES["u32"]) if len(use.operands) > 2 else columns if by_rows == "1" else rows
    space = str(use.words["W"])
    place = use.place(bracketed(address))
    if space not in CHECKED or (place and place.space != space):
        raise Unsupported("a matrix there")
    bits, count = BITS[type_], shape.elements(matrix)
    registers = TYPES[type_ if type_ in ("f32", "f64") else "b32"]
    items = use.vector(fragment, count * bits // registers.bits)
    if len(items) == 1 and not isinstance(fragment, tree.Vector):
        raise Unsupported(f"'{fragment}' where a vector in braces is expected")
    given = "0" if load else ", ".join(use.value(item, registers) for item in items)
    check = checked(use, space, f"from_ + at_ * {bits} / 8", max(bits // 8, 1))
    does = "host_put(d_, {0}, i_, {1}, at_);" if load else "memcpy({1}, (char *)d_ + i_ * {0} / 8, {0} / 8);"
    lines = [
        shape.code.format(),
        f"{registers} d_[{len(items)}] = {{{given}}};",
        f"uint64_t from_ = {use.address_of(bracketed(address), 32)}, stride_ = {stride};",
        f"for (unsigned i_ = 0; i_ < {count}; i_++) {{",
        f"uint64_t at_ = host_wmma_at(&s_, '{matrix}', {by_rows}, t->laneid, i_, stride_);",
        does.format(bits, check),
        "}",
    ]
    if load:
        lines += [use.assign(item, registers, f"d_[{number}]") for number, item in enumerate(items)]
    return " ".join(["{", *lines, "}"])


ROWS = [*_mma(), *_wmma()]
