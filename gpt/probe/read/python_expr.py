"""Compile the Python expressions of a probe to PTX: to a constant, a register, or an instruction with a new
register.
"""

from __future__ import annotations

import ast
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpt.base.errors import GptError
from gpt.probe.model import MAX_LINES, Line, Map, Register, Save
from gpt.ptx import tree


@dataclass(frozen=True, slots=True)
class LanguageType:
    """A type of the language: its kind (u, s, f, b) and width in bits."""

    name: str
    kind: str
    bits: int

    def constant(self, value: int | float) -> str:
        """Return a constant of this type in PTX syntax. Raises ValueError if it doesn't fit."""
        if self.kind == "f":
            try:
                data = struct.pack(">f" if self.bits == 32 else ">d", float(value))
            except OverflowError:
                raise ValueError(f"{value} does not fit {self.name}") from None
            return ("0f" if self.bits == 32 else "0d") + data.hex().upper()
        if isinstance(value, float) or not -(1 << (self.bits - 1)) <= value < 1 << self.bits:
            raise ValueError(f"{value} does not fit {self.name}")
        return str(value)


TYPES = {
    name: LanguageType(name, name[0], int(name[1:]))
    for name in ("u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64", "b16", "b32", "b64")
} | {"i32": LanguageType("s32", "s", 32), "i64": LanguageType("s64", "s", 64)}
PRED = LanguageType("pred", "p", 1)
# What nl.NAME or nl.NAME() stands for: a helper and its type. An operand of the instruction has no type until it's
# used.
SOURCES: dict[str, tuple[str, str | None]] = {
    **{name: (name.upper(), None) for name in ("out", "in1", "in2", "in3", "in4")},
    "addr": ("ADDR", "u64"),
    "bytes": ("BYTES", "u32"),
    "flops": ("FLOPS", "u32"),
    "active": ("ACTIVE", "u32"),
    "pred": ("PRED", "pred"),
    "clock": ("CLOCK", "u64"),
    "time": ("TIME", "u64"),
    "cuid": ("SMID", "u32"),
    "smid": ("SMID", "u32"),
    "warpid": ("WARPID", "u32"),
    "laneid": ("LANEID", "u32"),
    "block": ("BLOCK", "u64"),
}
_BINARY: dict[type, tuple[str, str]] = {  # PTX opcodes, for integers and for floats
    ast.Add: ("add.{t}", "add.{t}"),
    ast.Sub: ("sub.{t}", "sub.{t}"),
    ast.Mult: ("mul.lo.{t}", "mul.{t}"),
    ast.Div: ("", "div.rn.{t}"),
    ast.FloorDiv: ("div.{t}", ""),
    ast.Mod: ("rem.{t}", ""),
    ast.BitAnd: ("and.b{n}", ""),
    ast.BitOr: ("or.b{n}", ""),
    ast.BitXor: ("xor.b{n}", ""),
}
_COMPARE: dict[type, str] = {
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}


@dataclass(frozen=True, slots=True)
class Value:
    """An operand and its type. The type is None for an operand of the instruction. A constant only has a `number`."""

    operand: tree.Operand | None
    type: LanguageType | None
    number: int | float | None = None


def number(node: ast.expr | None, constants: Mapping[str, int | float]) -> int | float | None:
    """Evaluate an expression that consists of constants; return None for others. Integers must fit in 64 bits."""
    match node:
        case ast.Constant(int() | float() as value) if not isinstance(value, bool):
            found: int | float = value
        case ast.Name(name) if name in constants:
            return constants[name]
        case ast.UnaryOp(ast.USub(), operand) if (inner := number(operand, constants)) is not None:
            found = -inner
        case ast.BinOp(left, op, right):
            a, b = number(left, constants), number(right, constants)
            if a is None or b is None:
                return None
            match op:
                case ast.Add():
                    found = a + b
                case ast.Sub():
                    found = a - b
                case ast.Mult():
                    found = a * b
                case ast.LShift() if isinstance(a, int) and isinstance(b, int) and 0 <= b < 64:
                    found = a << b
                case _:
                    return None
        case _:
            return None
    return found if isinstance(found, float) or -(1 << 63) <= found < 1 << 64 else None


class ExpressionLines:
    """Compiles the expressions of a probe. The code is added to `lines`, and the registers that it needs to
    `registers`.

    Errors have the line of `node`, which is the current statement.
    """

    def __init__(
        self,
        name: str,
        shared: Mapping[str, Register],
        constants: Mapping[str, int | float],
        maps: Mapping[str, Map],
        fault: Callable[[ast.AST, str], GptError],
    ) -> None:
        self.name, self.shared, self.constants, self.maps, self.fault = name, shared, dict(constants), maps, fault
        self.registers: list[Register] = []
        self.own: dict[str, Value] = {}
        self.lines: list[Line] = []
        self.node: ast.AST = ast.Pass()
        self.last = ""  # the temporary that the last line wrote
        self.temporaries = 0
        self.turns = 0  # iterations of all loops so far

    # Emitting

    def _emit(self, opcode: str, *operands: tree.Operand, guard: tree.Guard | None = None) -> None:
        word, *modifiers = opcode.split(".")
        self._append(tree.Instruction(word, tuple(f".{modifier}" for modifier in modifiers), operands, guard))

    def _append(self, node: tree.Instruction | Save) -> None:
        if len(self.lines) >= MAX_LINES:
            raise self.fault(self.node, f"more than {MAX_LINES} statements")
        self.lines.append(Line(node, getattr(self.node, "lineno", 1)))
        self.last = ""

    def _new(self, type_: LanguageType, name: str = "") -> tree.Name:
        if not name:
            self.temporaries += 1
        register = f"%{self.name}${name or self.temporaries}"  # Python names can't contain $
        self.registers.append(Register(register, type_.name, None, getattr(self.node, "lineno", 1)))
        return tree.Name(register)

    def _compute(self, opcode: str, type_: LanguageType, *operands: tree.Operand) -> Value:
        """Emit an instruction, and return the temporary that holds its result."""
        result = self._new(type_)
        self._emit(opcode, result, *operands)
        self.last = result.name
        return Value(result, type_)

    # Expressions

    def _value(self, node: ast.expr) -> Value:
        """Return the value of an expression. Emit code unless it's a constant or a register."""
        constant = number(node, self.constants)
        if constant is not None:
            return Value(None, None, constant)
        match node:
            case ast.Constant(bool(truth)):
                return self._compute("setp.eq.u32", PRED, tree.Number("0"), tree.Number("0" if truth else "1"))
            case ast.Name(name) if name in self.own:
                return self.own[name]
            case ast.Name(name) if name in self.shared:
                return Value(tree.Name(self.shared[name].name), TYPES[self.shared[name].type])
            case ast.Attribute(ast.Name(), name) | ast.Call(ast.Attribute(ast.Name(), name), [], []) if name in SOURCES:
                helper, type_ = SOURCES[name]
                return Value(tree.Name(helper), PRED if type_ == "pred" else TYPES[type_] if type_ else None)
            case ast.Call(ast.Attribute(ast.Name(), name) | ast.Name(name), [inner], []) if name in TYPES:
                return self._convert(self._value(inner), TYPES[name])
            case ast.Call(ast.Name("min" | "max" as name), [left, right], []):
                a, b, type_of = self._common(self._value(left), self._value(right))
                return self._compute(f"{name}.{_arithmetic(type_of)}", type_of, a, b)
            case ast.Call(ast.Name("abs"), [inner], []):
                value = self._typed(self._value(inner))
                assert value.type
                if value.type.kind in "ub":
                    return value
                return self._compute(f"abs.{value.type.name}", value.type, self._operand(value))
            case ast.BinOp(left, op, right):
                return self._binary(op, self._value(left), self._value(right))
            case ast.UnaryOp(op, inner):
                return self._unary(op, self._value(inner))
            case ast.Compare(left, ops, rights):
                found: Value | None = None
                before = self._value(left)
                for comparison, right in zip(ops, rights, strict=True):
                    after = self._value(right)
                    one = self._compare(comparison, before, after)
                    found = one if found is None else self._both("and", found, one)
                    before = after
                assert found
                return found
            case ast.BoolOp(op, values):
                result = Value(self._predicate(self._value(values[0])), PRED)
                for inner in values[1:]:
                    result = self._both("and" if isinstance(op, ast.And) else "or", result, self._value(inner))
                return result
            case ast.IfExp(test, yes, no):
                held = self._predicate(self._value(test))
                a, b, type_of = self._common(self._value(yes), self._value(no))
                return self._compute(f"selp.b{type_of.bits}", type_of, a, b, held)
            case ast.Name(name):
                raise self.fault(node, f"'{name}' is not set")
        raise self.fault(node, f"a probe cannot compute '{ast.unparse(node)}'")

    def _type(self, node: ast.expr) -> LanguageType:
        match node:
            case ast.Attribute(ast.Name(), name) | ast.Name(name) if name in TYPES:
                return TYPES[name]
        raise self.fault(node, f"'{ast.unparse(node)}' is not a type, as nl.u64")

    def _binary(self, op: ast.operator, left: Value, right: Value) -> Value:
        if isinstance(op, ast.LShift | ast.RShift):
            left = self._typed(left)
            assert left.type
            if left.type.kind not in "usb":
                raise self.fault(self.node, "shifts a value that is not an integer")
            shift = self._operand(self._convert(right, TYPES["u32"]))
            name = f"shl.b{left.type.bits}" if isinstance(op, ast.LShift) else f"shr.{left.type.name}"
            return self._compute(name, left.type, self._operand(left), shift)
        if PRED in (left.type, right.type):
            names = {ast.BitAnd: "and", ast.BitOr: "or", ast.BitXor: "xor"}
            if type(op) not in names:
                raise self.fault(self.node, "computes with a condition")
            return self._both(names[type(op)], left, right)
        a, b, type_ = self._common(left, right)
        if isinstance(op, ast.Div) and type_.kind != "f":
            raise self.fault(self.node, "'/' of integers; '//' divides them")
        opcode = _BINARY.get(type(op), ("", ""))[type_.kind == "f"]
        if not opcode:
            raise self.fault(self.node, f"no such operation on {type_.name}")
        return self._compute(opcode.format(t=_arithmetic(type_), n=type_.bits), type_, a, b)

    def _unary(self, op: ast.unaryop, value: Value) -> Value:
        if isinstance(op, ast.Not):
            return self._compute("not.pred", PRED, self._predicate(value))
        value = self._typed(value)
        assert value.type
        if isinstance(op, ast.UAdd):
            return value
        if isinstance(op, ast.Invert) and value.type.kind in "usb":
            return self._compute(f"not.b{value.type.bits}", value.type, self._operand(value))
        if isinstance(op, ast.USub) and value.type.kind in "usbf":
            name = value.type.name if value.type.kind == "f" else f"s{value.type.bits}"
            return self._compute(f"neg.{name}", value.type, self._operand(value))
        raise self.fault(self.node, f"no such operation on {value.type.name}")

    def _compare(self, op: ast.cmpop, left: Value, right: Value) -> Value:
        if type(op) not in _COMPARE:
            raise self.fault(self.node, "a comparison that a probe cannot make")
        a, b, type_ = self._common(left, right)
        name = _COMPARE[type(op)]
        if name == "ne" and type_.kind == "f":
            name = "neu"  # NaN is different from everything, as in Python
        return self._compute(f"setp.{name}.{_arithmetic(type_)}", PRED, a, b)

    def _both(self, name: str, left: Value, right: Value) -> Value:
        return self._compute(f"{name}.pred", PRED, self._predicate(left), self._predicate(right))

    def _predicate(self, value: Value) -> tree.Operand:
        """Return a value as a predicate: numbers are true unless they're 0."""
        if value.type is PRED:
            return self._operand(value)
        value = self._typed(value)
        assert value.type
        zero = tree.Number(value.type.constant(0))
        name = f"setp.{'neu' if value.type.kind == 'f' else 'ne'}.{_arithmetic(value.type)}"
        return self._operand(self._compute(name, PRED, self._operand(value), zero))

    def _common(self, left: Value, right: Value) -> tuple[tree.Operand, tree.Operand, LanguageType]:
        """Convert two operands to their common type, and return them and the type."""
        types = [value.type for value in (left, right) if value.type]
        if PRED in types:
            raise self.fault(self.node, "computes with a condition")
        if not types:
            if left.number is None or right.number is None:
                raise self.fault(self.node, "an operand has no type; say one, as nl.u32(...)")
            types = [TYPES["f64" if float in (type(left.number), type(right.number)) else "s64"]]
        if float in (type(left.number), type(right.number)) and types[0].kind != "f":
            types = [TYPES["f64" if types[0].bits == 64 else "f32"]]
        type_ = max(types, key=lambda t: (t.kind == "f", t.bits, t.kind != "s"))
        return self._operand(self._convert(left, type_)), self._operand(self._convert(right, type_)), type_

    def _typed(self, value: Value) -> Value:
        if value.type is PRED:
            raise self.fault(self.node, "computes with a condition")
        if value.type is None and value.number is None:
            raise self.fault(self.node, "an operand has no type; say one, as nl.u32(...)")
        if value.type is None:
            return self._convert(value, TYPES["f64" if isinstance(value.number, float) else "s64"])
        return value

    def _convert(self, value: Value, to: LanguageType) -> Value:
        """Convert a value to another type."""
        if value.number is not None:
            try:
                text = to.constant(value.number)
            except ValueError as error:
                raise self.fault(self.node, str(error)) from None
            constant = tree.Number(text.lstrip("-"))
            return Value(tree.Prefixed(("-",), constant) if text[0] == "-" else constant, to)
        given = value.type
        if given is to:
            return value
        if given is PRED or to is PRED:
            raise self.fault(self.node, "computes with a condition")
        operand = self._operand(value)
        if given is None:  # an operand of the program gets the type that the probe says
            return self._compute(f"mov.b{to.bits}", to, operand)
        if given.bits == to.bits and "f" not in (given.kind, to.kind):
            return Value(operand, to)
        a, b = _arithmetic(to), _arithmetic(given)
        if given.kind == "f" and to.kind != "f":
            return self._compute(f"cvt.rzi.{a}.{b}", to, operand)
        rounds = to.kind == "f" and (given.kind != "f" or given.bits > to.bits)
        return self._compute(f"cvt{'.rn' if rounds else ''}.{a}.{b}", to, operand)

    def _operand(self, value: Value) -> tree.Operand:
        assert value.operand is not None
        return value.operand


def _arithmetic(type_: LanguageType) -> str:
    """Return the type in which to compute. Bits without a type count as unsigned."""
    return f"u{type_.bits}" if type_.kind == "b" else type_.name
