"""Check constants as ptxas does: numbers and constant expressions.

An integer expression may use all operators, but `/` and `%` only with a nonzero literal on the right: ptxas rejects 0,
and crashes on the smallest integer divided by -1. A float expression is a sum, difference, product or quotient of
decimals.
"""

from __future__ import annotations

from gpt.ptx import tree
from gpt.ptx.types import FLOAT, SIZES, integer

_LEAST = 2.2250738585072014e-308  # ptxas reports smaller nonzero numbers as an overflow


def find_fault(operand: tree.Operand, wanted: str | None) -> str | None:
    """Return why a constant can't be used for a type, or None."""
    match operand:
        case tree.Name():
            return None if wanted is None or wanted[0] in "usb" else f"'{operand}' where .{wanted} is expected"
        case tree.Number(text):
            return _number(text, wanted)
        case tree.Prefixed(prefixes, inner):
            fault = find_fault(inner, wanted)
            odd = {*prefixes} - ({"-", "+"} if _is_float(inner) else {"-", "+", "~", "!", "(.s64)", "(.u64)"})
            return fault or (f"'{operand}' is not a PTX constant" if odd or _is_hex_float(inner) else None)
        case tree.OperandGroup((inner,)):
            return find_fault(inner, wanted)
        case tree.Expression(operands, operators):
            if fault := next(filter(None, (find_fault(part, wanted) for part in operands)), None):
                return fault
            if _is_float(operand) and (any(map(_is_hex_float, operands)) or {*operators} - {*"+-*/"}):
                return f"'{operand}' is not a PTX constant"
            for operator, divisor in zip(operators, operands[1:], strict=True):
                if operator in "/%" and not (isinstance(divisor, tree.Number) and _value(divisor.text)):
                    return f"'{operand}' divides by 0 or by something that isn't a number"
            return None
    return f"'{operand}' is not a PTX constant"


def _number(text: str, wanted: str | None) -> str | None:
    if FLOAT.fullmatch(text):
        bits = {"f": "b32", "d": "b64"}.get(text[1:2].lower())
        is_fit = wanted in (None, "f32", "f64", bits)
        decimal = 0 if bits else float(text)
        is_zero = bits or not text.lower().partition("e")[0].strip("0.")
        if not is_zero and not _LEAST <= decimal < float("inf"):
            return f"'{text}' is not a number of 64 bits"
    else:
        value = integer(text)
        if value is None:
            return f"'{text}' is not a number of 64 bits"
        is_fit = wanted is None or (wanted[0] in "usb" and value < 1 << 8 * SIZES[wanted])
    return None if is_fit else f"'{text}' where .{wanted} is expected"


def _is_float(operand: tree.Operand) -> bool:
    match operand:
        case tree.Number(text):
            return bool(FLOAT.fullmatch(text))
        case tree.Prefixed(_, inner):
            return _is_float(inner)
        case tree.Expression(operands, _) | tree.OperandGroup(operands):
            return any(map(_is_float, operands))
    return False


def _is_hex_float(operand: tree.Operand) -> bool:
    match operand:
        case tree.Number(text):
            return bool(FLOAT.fullmatch(text)) and text[1:2] in "fFdD"
        case tree.Prefixed(_, inner) | tree.OperandGroup((inner,)):
            return _is_hex_float(inner)
    return False


def _value(text: str) -> int | float:
    return (0 if text[1:2] in "fFdD" else float(text)) if FLOAT.fullmatch(text) else integer(text) or 0
