"""Translate names and constants of PTX to C."""

from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add

from gpt.asm.host.table import PtxType
from gpt.ptx import tree
from gpt.ptx.types import FLOAT, integer

WITHOUT_ABI = "which ptxas refuses in a module with a function that has several results"

SPECIAL = {  # special registers: type, and value in C
    **{
        f"%{name}.{axis}": ("u32", f"t->{name}[{number}]")
        for name in ("tid", "ntid", "ctaid", "nctaid")
        for number, axis in enumerate("xyz")
    },
    **{f"%{name}.w": ("u32", "0u") for name in ("tid", "ctaid")},
    **{f"%{name}.w": ("u32", "1u") for name in ("ntid", "nctaid")},
    **{name: ("u32", f"t->{name[1:]}") for name in ("%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid")},
    "%gridid": ("u64", "t->gridid"),
    "%lanemask_eq": ("u32", "(1u << t->laneid)"),
    "%lanemask_le": ("u32", "(~0u >> (31 - t->laneid))"),
    "%lanemask_lt": ("u32", "((1u << t->laneid) - 1)"),
    "%lanemask_ge": ("u32", "(~0u << t->laneid)"),
    "%lanemask_gt": ("u32", "(~1u << t->laneid)"),
    "%clock": ("u32", "(uint32_t)*t->clock"),
    "%clock_hi": ("u32", "(uint32_t)(*t->clock >> 32)"),
    "%clock64": ("u64", "*t->clock"),
    "%globaltimer": ("u64", "host_time()"),
    "%globaltimer_lo": ("u32", "(uint32_t)host_time()"),
    "%globaltimer_hi": ("u32", "(uint32_t)(host_time() >> 32)"),
    "%dynamic_smem_size": ("u32", "t->dynamic_shared"),
    "%total_smem_size": ("u32", "((t->shared_size + 127) & ~127u)"),  # as it's allocated, in units of 128 bytes
    "%aggr_smem_size": ("u32", "((t->shared_size + 127) & ~127u)"),
    # a cluster always consists of one block
    **{f"%clusterid.{axis}": ("u32", f"t->ctaid[{number}]") for number, axis in enumerate("xyz")},
    **{f"%nclusterid.{axis}": ("u32", f"t->nctaid[{number}]") for number, axis in enumerate("xyz")},
    **dict.fromkeys(("%clusterid.w", "%nclusterid.w", "%cluster_nctaid.w"), ("u32", "0u")),  # as in ptxas
    **{f"%cluster_ctaid.{axis}": ("u32", "0u") for axis in "xyzw"},
    **{f"%cluster_nctaid.{axis}": ("u32", "1u") for axis in "xyz"},
    "%cluster_ctarank": ("u32", "0u"),
    "%cluster_nctarank": ("u32", "1u"),
    "%is_explicit_cluster": ("pred", "(t->cluster != 0)"),
    "%reserved_smem_offset_begin": ("u32", "0u"),
    "%reserved_smem_offset_end": ("u32", "0u"),
    "%reserved_smem_offset_cap": ("u32", "0u"),
    **{f"%reserved_smem_offset_{number}": ("u32", "0u") for number in range(2)},
    # Performance counters stay at 0, and graphs can't launch themselves.
    **{f"%pm{number}": ("u32", "0u") for number in range(8)},
    **{f"%pm{number}_64": ("u64", "0ull") for number in range(8)},
    "%current_graph_exec": ("u64", "0ull"),
    # The address of a workspace that cooperative groups use to synchronize the grid.
    **{f"%envreg{number}": ("b32", "0u") for number in range(32)},
    "%envreg1": ("b32", "(uint32_t)(t->workspace >> 32)"),
    "%envreg2": ("b32", "(uint32_t)t->workspace"),
}
SPECIAL |= {name[:-1] + "rgba"["xyzw".index(name[-1])]: SPECIAL[name] for name in [*SPECIAL] if name[-2] == "."}
_CLUSTERS, _RESERVED = ": sm_90; : 7.8", ": 7.6"
SPECIAL_NEEDS = {  # the .target and .version that newer special registers need, in the notation of a row's needs
    **dict.fromkeys(("%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"), _CLUSTERS),
    **dict.fromkeys(("%cluster_ctarank", "%cluster_nctarank", "%is_explicit_cluster"), _CLUSTERS),
    **{name: _RESERVED for name in SPECIAL if name.startswith("%reserved_smem")},
    "%current_graph_exec": ": 8.0",
    "%aggr_smem_size": ": 8.1",
}
_SUFFIX = {8: "u", 16: "u", 32: "u", 64: "ull"}
_PRECEDENCE = (
    ("||",),
    ("&&",),
    ("|",),
    ("^",),
    ("&",),
    ("==", "!="),
    ("<", "<=", ">", ">="),
    ("<<", ">>"),
    "+-",
    "*/%",
)


@dataclass(frozen=True)
class CRegister:
    """A register: its name and type in C, and its type in PTX. A vector has `width` components, NAME_0, NAME_1, ..."""

    name: str
    type: PtxType
    declared: str
    width: int = 1


@dataclass(frozen=True)
class CVariable:
    """A variable, parameter or function: its address within its space, in C, and its size in bytes if that's known.

    `element` is the size in bytes of an element (for arrays) or of a component (for vectors), and 0 for everything
    else. `pointer` is the host address in C; it's empty if it has to be looked up at run time. For a parameter, `shape`
    is its type, or if it's an array, its size and alignment.
    """

    space: str  # global, const, shared, local, param, function
    address: str
    size: int = 0
    element: int = 0
    pointer: str = ""
    shape: str = ""


@dataclass(frozen=True)
class CLabel:
    """A label: its name in C, and the number of its statement."""

    name: str
    index: int


class Unsupported(Exception):
    """Raised if an instruction or a declaration can't be translated to C. The message says why."""


def c_function(name: str) -> str:
    """Return the C name of a function."""
    return f"f_{name.replace('$', '$$').replace('%', '$P')}"  # unique


def literal(value: int, type_: PtxType) -> str:
    """Return an integer, or the bits of a float, as a C constant of a type. PTX constants have 64 bits."""
    value &= (1 << min(type_.bits, 64)) - 1
    if type_.name == "f32":
        return _float_literal(struct.unpack("<f", struct.pack("<I", value))[0], f"as_f32({value:#x}u)", "f")
    if type_.name == "f64":
        return _float_literal(struct.unpack("<d", struct.pack("<Q", value))[0], f"as_f64({value:#x}ull)", "")
    if type_.bits == 128:
        return f"(({type_}){value:#x}ull)"
    text = f"{value:#x}" if value > 9 else str(value)
    return f"({type_}){text}{_SUFFIX[type_.bits]}"


def _float_literal(value: float, bits: str, suffix: str) -> str:
    if not math.isfinite(value):
        return bits
    text = f"{value.hex()}{suffix}"
    return f"({text})" if text.startswith("-") else text


def constant(text: str, type_: PtxType) -> str:
    """Return a PTX number as a C constant of a type. Raises Unsupported."""
    if FLOAT.fullmatch(text):
        return literal(float_bits(text, type_), type_)
    value = integer(text)
    if value is None or type_.is_float:
        raise Unsupported(f"constant {text} of type .{type_.name}")
    return literal(value, type_)


def float_bits(text: str, type_: PtxType) -> int:
    """Return the bits of a float constant in a type: for `0f3F800000`, as they're written; otherwise, the constant is
    rounded.

    Raises Unsupported.
    """
    if text[:2] in ("0f", "0F"):
        bits = int(text[2:], 16)
        if type_.name != "f64":
            return bits
        return int.from_bytes(struct.pack("<d", struct.unpack("<f", struct.pack("<I", bits))[0]), "little")
    return _round_float(_decimal(text), type_, text)


def _decimal(text: str) -> float:
    """Parse `1.5e3` or `0d3FF8000000000000`. Like ptxas, reject numbers that don't fit in a normal double
    (Unsupported).
    """
    if text[:2] in ("0d", "0D"):
        return float(struct.unpack("<d", struct.pack("<Q", int(text[2:], 16)))[0])
    value = float(text)
    if math.isinf(value) or (abs(value) < sys.float_info.min and re.search("[1-9]", re.split("[eE]", text)[0])):
        raise Unsupported(f"constant {text}, which isn't a normal 64-bit float")
    return value


def _round_float(value: float, type_: PtxType, text: str) -> int:
    if type_.bits == 64:
        return int.from_bytes(struct.pack("<d", value), "little")
    if type_.bits != 32:
        raise Unsupported(f"constant {text} of type .{type_.name}")
    try:
        return int.from_bytes(struct.pack("<f", value), "little")
    except OverflowError:
        return 0x7F800000 | (value < 0) << 31


def evaluate_float(node: tree.Operand, type_: PtxType) -> int:
    """Evaluate a constant expression of floats in 64 bits, like ptxas, and return the bits of the result. Raises
    Unsupported.
    """
    return _round_float(_compute(node), type_, str(node))


def _compute(node: tree.Operand) -> float:
    match node:
        case tree.Number(text) if FLOAT.fullmatch(text) and text[:2] not in ("0f", "0F"):
            return _decimal(text)
        case tree.OperandGroup((item,)):
            return _compute(item)
        case tree.Prefixed(prefixes, operand) if set(prefixes) <= {"+", "-"}:
            value = _compute(operand)
            return -value if prefixes.count("-") % 2 else value
        case tree.Expression(operands, operators) if set(operators) <= {*"+-*/"}:
            terms = [_compute(operands[0])]
            for operator, operand in zip(operators, operands[1:], strict=True):
                value = _compute(operand)
                if operator == "/" and not value:
                    raise Unsupported(f"'{node}' divides by zero")
                match operator:
                    case "*":
                        terms[-1] *= value
                    case "/":
                        terms[-1] /= value
                    case _:
                        terms.append(value if operator == "+" else -value)
            return reduce(add, terms)
    raise Unsupported(f"operand '{node}'")


def evaluate(node: tree.Operand | None) -> int:
    """Evaluate a constant expression of integers. Raises Unsupported."""
    match node:
        case tree.Number(text) if (value := integer(text)) is not None:
            return value
        case tree.Name("WARP_SZ", ()):
            return 32
        case tree.OperandGroup((item,)):
            return evaluate(item)
        case tree.Prefixed(prefixes, operand):
            value = evaluate(operand)
            for prefix in reversed(prefixes):
                operation = _PREFIXES.get(re.sub(r"\s", "", prefix))
                if not operation:
                    raise Unsupported(f"'{prefix}' in a constant")
                value = operation(value)
            return value
        case tree.Expression(operands, operators):
            return _binary(list(operands), list(operators))
    raise Unsupported(f"'{node}' where a constant is expected")


def _binary(operands: list[tree.Operand], operators: list[str]) -> int:
    if len(operands) != len(operators) + 1:
        raise Unsupported("a constant without an operand")
    if not operators:
        return evaluate(operands[0])
    if "?" in operators:
        first = operators.index("?")
        depth = 0
        for at in range(first, len(operators)):
            depth += (operators[at] == "?") - (operators[at] == ":")
            if not depth:
                break
        condition = _binary(operands[: first + 1], operators[:first])
        if condition:
            return _binary(operands[first + 1 : at + 1], operators[first + 1 : at])
        return _binary(operands[at + 1 :], operators[at + 1 :])
    for level in _PRECEDENCE:
        for at in range(len(operators) - 1, -1, -1):
            if operators[at] in level:
                left = _binary(operands[: at + 1], operators[:at])
                right = _binary(operands[at + 1 :], operators[at + 1 :])
                if operators[at] in "/%" and not right:
                    raise Unsupported("a division by zero in a constant")
                return _OPERATORS[operators[at]](left, right)
    raise Unsupported(f"'{operators[0]}' in a constant")


_PREFIXES: dict[str, Callable[[int], int]] = {
    "-": lambda a: -a,
    "+": lambda a: a,
    "~": lambda a: ~a,
    "!": lambda a: int(not a),
    "(.s64)": lambda a: (a + (1 << 63)) % (1 << 64) - (1 << 63),
    "(.u64)": lambda a: a % (1 << 64),
}
_OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "%": lambda a, b: abs(a) % abs(b) * (-1 if a < 0 else 1),
    "<<": lambda a, b: a << (b & 63),
    ">>": lambda a, b: a >> (b & 63),
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "&&": lambda a, b: int(bool(a and b)),
    "||": lambda a, b: int(bool(a or b)),
    "<": lambda a, b: int(a < b),
    "<=": lambda a, b: int(a <= b),
    ">": lambda a, b: int(a > b),
    ">=": lambda a, b: int(a >= b),
    "==": lambda a, b: int(a == b),
    "!=": lambda a, b: int(a != b),
}
