"""Bind helpers to an instruction: determine what OUT, IN1, ADDR, BYTES and FLOPS mean for it.

The first operand is OUT: the result of the instruction, or the memory that it writes. IN1 is then the second operand,
and so on: IN1 of a store is the value, and IN2 of `cp.async` is the size. If an instruction has no result and writes no
memory, such as a barrier, its first operand is IN1. OUT doesn't exist `before` an instruction.

BYTES and FLOPS are the share of one lane, so that the sum over all lanes is the total: `ldmatrix.x4` moves 16 bytes per
lane, `mma.m16n8k16` performs 2 * 16 * 8 * 16 / 32 operations per lane, `wgmma` is spread over 128 lanes, and
`tcgen05.mma` belongs to a single lane. A multiply-add counts as two operations, and so does an operation on a packed
pair. A copy by tensor map doesn't say how much it moves, but the `mbarrier` that waits for it does, so BYTES belong to
the mbarrier.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from gpt.ptx import tree
from gpt.ptx.types import SIZES, integer, types_of

# Opcodes whose first operand isn't a result, but the number of a barrier, a target, or a value to send.
_NO_RESULT = {
    *("bar", "barrier", "bra", "brx", "call", "ret", "exit", "trap", "brkpt", "nanosleep", "setmaxnreg", "pmevent"),
    *("griddepcontrol", "membar", "fence", "wgmma", "tcgen05", "cp", "discard", "prefetch", "prefetchu", "st", "red"),
    *("applypriority", "stmatrix", "clusterlaunchcontrol", "tensormap", "multimem", "sust", "sured", "wmma"),
    "stackrestore",
}
_RESULT = {
    *("wmma.load", "wmma.mma", "tcgen05.ld", "wgmma.mma_async", "multimem.ld_reduce", "bar.red", "barrier.red"),
    *("bar.cta.red", "barrier.cta.red", "clusterlaunchcontrol.query_cancel"),
}
# Asynchronous operations that write registers, and the instruction that waits for each. The others write to memory:
# cp.async, cp.async.bulk, cp.reduce.async.bulk, st.async, red.async, tcgen05.mma, .cp and .st,
# clusterlaunchcontrol.try_cancel.
_PENDING = {"wgmma.mma_async": "wgmma.wait_group", "tcgen05.ld": "tcgen05.wait::ld"}
_FRAGMENTS = {"ldmatrix", "stmatrix", "movmatrix", "mma", "wmma", "wgmma"}  # their registers hold several elements
PARTS = (".x", ".y", ".z", ".w")
_SPACES = ("global", "shared", "local", "const", "param")
_TYPE = re.compile(
    r"\.([busf])(8|16|32|64|128)|\.(f16x2|bf16x2|f32x2|f16|bf16|tf32|e\dm\d(?:x[24])?|ue8m0x2|pred|[bus]16x2|[bus]8x4"
    r"|[us]4|b1)"
)
_SHAPE = re.compile(r"\.m(\d+)n(\d+)k(\d+)")
_MATRIX = re.compile(r"\.m(\d+)n(\d+)")
_BITS = {
    **dict.fromkeys(("e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "e2m1x2"), 8),
    **dict.fromkeys(("f16", "bf16", "e4m3x2", "e5m2x2", "e3m2x2", "e2m3x2", "ue8m0x2", "e2m1x4"), 16),
    "f32x2": 64,
    **dict.fromkeys(("u4", "s4"), 4),
    "b1": 1,
}
_TENSOR_K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}
_TYPED = {  # instructions whose operands have the types that types_of returns
    *("ld", "st", "atom", "red", "add", "sub", "mul", "mad", "fma", "div", "rem", "min", "max", "abs", "neg", "and"),
    *("or", "xor", "not", "shl", "shr", "setp", "set", "selp", "slct", "cvt", "mov", "popc", "clz", "bfe", "bfi"),
    *("rcp", "sqrt", "rsqrt", "sin", "cos", "lg2", "ex2", "tanh", "lop3", "prmt", "brev", "bfind", "copysign"),
    *("ldu", "suld", "sust"),
}
_WIDER = {"ld", "ldu", "st", "cvt", "suld", "sust"}  # only these take registers wider than their type (tested)
_ONLY_READ = {"prefetch", "prefetchu", "discard", "applypriority"}  # these don't write to their memory
_GOES = {"bra": 0, "call": 0, "brx": 1}  # jumps, with the number of operands that have values
_FIXED = {  # results whose type isn't part of the opcode
    **dict.fromkeys(("setp", "testp", "isspacep", "mbarrier.try_wait", "mbarrier.test_wait"), ("pred", 1)),
    **dict.fromkeys(("popc", "clz", "bfind"), ("u32", 32)),
}
_SCALAR = {
    "fma": 2,
    "mad": 2,
    "add": 1,
    "sub": 1,
    "mul": 1,
    "div": 1,
    "rcp": 1,
    "sqrt": 1,
    "rsqrt": 1,
    "min": 1,
    "max": 1,
}


@dataclass(frozen=True, slots=True)
class Descriptor:
    """FLOPS that depend on an instruction descriptor: 2 * M * N * k, with M = bits 24-28 * 16 and N = bits 17-22
    * 8.
    """

    register: tree.Operand
    k: int


@dataclass(frozen=True, slots=True)
class Partial:
    """The BYTES of a `cp.async` that pads with zeros. `read` is either the number of bytes that the instruction reads,
    or a predicate. If the predicate is true, none of the `size` bytes are read.
    """

    size: int | tree.Operand
    read: tree.Operand


class LowBits(NamedTuple):
    """The low `bits` of a register, which are extended with the sign or with zeros, depending on the type of the
    instruction.
    """

    bits: int
    signed: bool

    @property
    def kind(self) -> str:
        """The first letter of the integer types that are extended in this way."""
        return "s" if self.signed else "u"


@dataclass(frozen=True, slots=True)
class Bound:
    """The operands of an instruction, as helpers. A helper is None if the instruction doesn't have it.

    - `types` are the types of `ins`, or for vectors, the types of their elements. `widths` are the widths of `ins` in
      bits, where the opcode determines them.
    - `bits` is the width of `out`, per element. If `wider`, registers may have more bits, of which only the low ones
      count.
    - `type` is the type of the value that's moved or computed (`u32`, `f16x2`, ..).
    - `address` is the operand in brackets, which may include an offset. `space` is its state space as written, or
      generic.
    - `bytes` is a number, the operand that holds it, or a Partial for a copy that may read less. `flops` is a number,
      or the descriptor that contains it.
    - `pending` is the instruction after which the result of an asynchronous operation exists. Such a result isn't
      `out`.
    """

    out: tree.Operand | None
    ins: tuple[tree.Operand, ...]
    widths: tuple[int | None, ...]
    types: tuple[str | None, ...]
    wider: bool
    type: str | None
    bits: int | None
    address: tree.Address | None
    space: str | None
    bytes: int | tree.Operand | Partial | None
    flops: int | Descriptor | None
    pending: str = ""

    def operand(self, helper: str, part: str = "") -> tree.Operand | None:
        """Return the operand for OUT or IN1 to IN4. `part` selects the element `.x`, `.y`, `.z` or `.w` of a vector."""
        number = int(helper[2:]) - 1 if helper != "OUT" else 0
        found = self.out if helper == "OUT" else self.ins[number] if number < len(self.ins) else None
        if not part:
            return found
        if part not in PARTS:
            return None
        items = found.items if isinstance(found, tree.Vector) else (found,)
        return items[PARTS.index(part)] if PARTS.index(part) < len(items) else None

    def width(self, helper: str, part: str = "") -> int | None:
        """Return the width of this operand in bits, or None if the opcode doesn't determine it. For a whole vector,
        it's the width of all elements together.
        """
        whole = self.operand(helper)
        count = len(whole.items) if isinstance(whole, tree.Vector) else 1
        if helper == "OUT":
            return self.bits and self.bits * (1 if part else count)
        number = int(helper[2:]) - 1
        bits = self.widths[number] if number < len(self.widths) else None
        return bits and bits // (count if part else 1)

    def low(self, helper: str) -> LowBits | None:
        """Return which low bits of OUT or IN1 to IN4 the instruction uses. None means that it uses all of them."""
        if helper == "OUT":
            return LowBits(self.bits, (self.type or "").startswith("s")) if self.wider and self.bits else None
        number = int(helper[2:]) - 1
        type_ = self.types[number] if number < len(self.types) else None
        return LowBits(SIZES[type_] * 8, type_[0] == "s") if self.wider and type_ else None

    def has(self, helper: str) -> bool:
        """Return whether the instruction has this helper."""
        match helper:
            case "ADDR":
                return self.address is not None
            case "BYTES":
                return self.bytes is not None
            case "FLOPS":
                return self.flops is not None
            case "OUT" | "IN1" | "IN2" | "IN3" | "IN4":
                return self.operand(helper) is not None
        return True


def bind(instruction: tree.Instruction) -> Bound:
    """Bind the helpers to the operands of an instruction."""
    opcode = instruction.opcode
    pending = _PENDING.get(_family(instruction), "")
    result, ins = _result_and_ins(instruction)
    out = None if pending else result
    types = _types(instruction, len(ins))
    is_whole = opcode == "mov"  # its type refers to all elements together
    type_, bits = _type(instruction)
    address, space = _address(instruction)
    return Bound(
        out=out,
        ins=ins,
        widths=tuple(_width(operand, one, is_whole) for operand, one in zip(ins, types, strict=True)),
        types=types,
        wider=opcode in _WIDER,
        type=type_,
        bits=_element_bits(opcode, out, type_, bits),
        address=address,
        space=space,
        bytes=_bytes(instruction, instruction.name, bits),
        flops=_flops(instruction, instruction.name, type_),
        pending=pending,
    )


def _family(instruction: tree.Instruction) -> str:
    """Return the opcode, with the modifier that distinguishes its variants: `wgmma.wait_group`, `bar.cta.red`."""
    words = [modifier[1:] for modifier in instruction.modifiers]
    return ".".join([instruction.opcode, *words[: 2 if words[:1] == ["cta"] else 1]])


def _result_and_ins(instruction: tree.Instruction) -> tuple[tree.Operand | None, tuple[tree.Operand, ...]]:
    """Return the result (None if there's none or it's `_`), and the operands that are read."""
    opcode, operands = instruction.opcode, tuple(map(_element, instruction.operands))
    first = operands[0] if operands else None
    is_memory = isinstance(first, tree.Address)
    if _family(instruction) in _RESULT or not (is_memory or opcode in _NO_RESULT):
        if isinstance(first, tree.Expression) and set(first.operators) == {"|"}:  # %r1|%p1
            first = first.operands[0]
        result = None if first == tree.Name("_") else first
        ins = operands[1:]
    elif is_memory and opcode not in _ONLY_READ:
        result, ins = None, operands[1:]
    else:
        result, ins = None, operands[: _GOES.get(opcode)]
    if any(modifier[1:].split("::")[0] == "param" for modifier in instruction.modifiers):
        ins = tuple(operand for operand in ins if not isinstance(operand, tree.Address))  # parameters are not memory
    return result, ins


def _types(instruction: tree.Instruction, count: int) -> tuple[str | None, ...]:
    """Return the types of the last `count` operands. A type is None if the opcode doesn't determine it."""
    if instruction.opcode not in _TYPED:
        return (None,) * count
    types = types_of(instruction)
    return tuple(types[len(types) - count :])


def _element_bits(opcode: str, out: tree.Operand | None, type_: str | None, bits: int | None) -> int | None:
    """Return the width of a register in the result. `bits` is the width of its type."""
    if opcode in _FRAGMENTS:
        return 64 if type_ == "f64" else 32
    if opcode == "mov" and bits and isinstance(out, tree.Vector):
        return bits // len(out.items)
    return bits


def _element(operand: tree.Operand) -> tree.Operand:
    """If the operand is a vector with one element, as Triton writes in loads and stores, return that element."""
    return operand.items[0] if isinstance(operand, tree.Vector) and len(operand.items) == 1 else operand


def _width(operand: tree.Operand, type_: str | None, whole: bool) -> int | None:
    """Return the width of an operand in bits: 64 for an address, the sum for a vector, and None for a constant, which
    fits any width. The type belongs to the `whole` vector, or to each element.
    """
    match operand:
        case tree.Address():
            return 64
        case tree.Number():
            return None
        case tree.Vector(items) if type_:
            return SIZES[type_] * 8 * (1 if whole else len(items))
    return (SIZES[type_] * 8 or 1) if type_ else None


def _type(instruction: tree.Instruction) -> tuple[str | None, int | None]:
    """Return the type of the value. It's the last type in the opcode, or for conversions, comparisons and matrices, the
    first.
    """
    if fixed := _FIXED.get(instruction.opcode) or _FIXED.get(_family(instruction)):
        return fixed
    if instruction.name.startswith("cvt.pack."):
        return "b32", 32
    found = [match for modifier in instruction.modifiers if (match := _TYPE.fullmatch(modifier))]
    if not found:
        return None, None
    first = instruction.opcode in ("cvt", "mma", "wmma", "set", "wgmma", "tex", "tld4", "suld")
    chosen = found[0 if first else -1]
    if chosen[1]:
        bits = int(chosen[2])
        wide = "wide" in [modifier[1:] for modifier in instruction.modifiers]
        return f"{chosen[1]}{bits * 2 if wide else bits}", bits * 2 if wide else bits
    return chosen[3], _BITS.get(chosen[3], 1 if chosen[3] == "pred" else 32)


def _address(instruction: tree.Instruction) -> tuple[tree.Address | None, str | None]:
    """Return the address (for a copy, the global one) and its state space, which is generic unless the opcode names
    one.
    """
    found = [operand for operand in instruction.operands if isinstance(operand, tree.Address)]
    if not found or instruction.opcode in ("tex", "tld4", "txq", "suld", "sust", "sured", "suq", "tensormap"):
        return None, None
    spaces = [m[1:] for m in instruction.modifiers if m[1:].split("::")[0] in _SPACES]
    if instruction.opcode == "cp" and spaces and len(found) > 1:
        place = 0 if spaces[0] == "global" else 1
        return found[place], "global" if "global" in spaces else "shared"
    if instruction.opcode in ("tcgen05", "wgmma") or "param" in {space.split("::")[0] for space in spaces}:
        return None, None
    return found[0], spaces[0] if spaces else "generic"


def _bytes(instruction: tree.Instruction, name: str, bits: int | None) -> int | tree.Operand | Partial | None:
    words, operands = instruction.modifiers, instruction.operands
    match instruction.opcode:
        case "cp" | "multimem" if ".tensor" in words or ".wait_group" in words:
            return None  # the size is only in the tensor map
        case "cp" | "multimem" | "st" if ".bulk" in words or ".reduce" in words:
            return next((_number(o) for o in operands if not isinstance(o, tree.Address)), None)
        case "cp" if words[:1] == (".async",) and len(operands) > 2:
            rest = operands[3:-1] if ".L2::cache_hint" in words else operands[3:]
            return Partial(_number(operands[2]), rest[0]) if rest else _number(operands[2])
        case "mbarrier" if ".expect_tx" in words or ".complete_tx" in words:
            return _number(operands[-1]) if operands else None
        case "ld" | "ldu" | "st" | "atom" | "red" | "multimem" if bits:
            return bits // 8 * _count(words)
        case "ldmatrix" | "stmatrix":
            shape = _MATRIX.search(name)
            if shape:
                times = next((int(word[2:]) for word in words if re.fullmatch(r"\.x[124]", word)), 1)
                size = 2 if int(shape[2]) == 8 and ".b8" not in words else 1
                return int(shape[1]) * int(shape[2]) * size * times // 32
        case "wmma" if words[:1] in ((".load",), (".store",)) and (shape := _SHAPE.search(name)) and bits:
            m, n, k = map(int, shape.groups())
            elements = m * k if ".a" in words else k * n if ".b" in words else m * n
            return elements * bits // 8 // 32
    return None


def _number(operand: tree.Operand) -> int | tree.Operand:
    value = integer(operand.text) if isinstance(operand, tree.Number) else None
    return operand if value is None else value


def _count(words: tuple[str, ...]) -> int:
    return next((int(word[2:]) for word in words if re.fullmatch(r"\.v[248]", word)), 1)


def _flops(instruction: tree.Instruction, name: str, type_: str | None) -> int | Descriptor | None:
    shape = _SHAPE.search(name)
    match instruction.opcode:
        case "mma" if shape:  # m8n8k4 is four products per warp, except with .f64
            times = 4 if shape[0] == ".m8n8k4" and ".f64" not in instruction.modifiers else 1
            return times * _product(shape) // 32
        case "wmma" if shape and ".mma" in instruction.modifiers:
            return _product(shape) // 32
        case "wgmma" if shape:
            return _product(shape) // 128
        case "tcgen05" if instruction.modifiers[:1] == (".mma",):
            kind = next((m.split("::")[1] for m in instruction.modifiers if m.startswith(".kind::")), "")
            plain = [operand for operand in instruction.operands if not isinstance(operand, tree.Address)]
            place = 2 if instruction.operands[1:2] == tuple(plain[:1]) else 1  # A is described, or in memory
            if kind in _TENSOR_K and len(plain) > place:
                return Descriptor(plain[place], _TENSOR_K[kind] * (2 if ".sp" in instruction.modifiers else 1))
            return None
    if type_ and type_.startswith(("f", "bf")) and instruction.opcode in _SCALAR:
        return _SCALAR[instruction.opcode] * (2 if type_.endswith("x2") else 1)
    return None


def _product(shape: re.Match[str]) -> int:
    m, n, k = map(int, shape.groups())
    return 2 * m * n * k
