"""Scalar video instructions, but for vmad and vset."""

from __future__ import annotations

from gpt.asm.host.table import TYPES, Row, Type
from gpt.asm.host.use import Use
from gpt.ptx import tree


def _video(use: Use) -> str:
    """Scalar video instructions: parts of words, a result that may be saturated, then one more operation.

    The third operand is merged into by what a part of the result names (`d.b1`), or combined by the second operation.
    """
    words, (to, a, b, *rest) = use.words, use.operands
    result, of_a, of_b = (words[name] for name in "DAB")
    assert isinstance(result, Type) and isinstance(of_a, Type) and isinstance(of_b, Type)
    first, second = _chosen(use, a, of_a), _chosen(use, b, of_b)
    name = use.instruction.opcode
    third = f"(int64_t){use.value(rest[0], result)}" if rest else "0"
    value = f"{name}({first}, {second}, {int(words.get('M') == '_clamp')})"
    if words.get("sat"):
        value = f"saturate({value}, 32, {result.sign})"
    if words.get("Q"):
        value = f"VIDEO{words['Q']}((int64_t)({result}){value}, {third})"
    part = to.parts[-1][1:] if isinstance(to, tree.Name) and to.parts else ""
    if part:
        assert isinstance(to, tree.Name)
        number, size = int(part[1:]), {"b": 8, "h": 16}[part[0]]
        narrow = f"saturate({value}, {size}, {result.sign})" if words.get("sat") else value
        value = f"bfi((uint32_t)({narrow}), (uint32_t)({third}), {number * size}, {size}, 32)"
        to = tree.Name(to.name)
    return use.assign(to, result, value)


def _chosen(use: Use, operand: tree.Operand, type_: Type) -> str:
    """A word, or a byte or half of it."""
    match operand:
        case tree.Name(name, (part,)) if part[1:] in _PARTS:
            size, shift = _PARTS[part[1:]]
            word = use.value(tree.Name(name), TYPES["u32"])
            return f"(int64_t)({TYPES[type_.name[0] + str(size)]})({word} >> {shift})"
    return f"(int64_t){use.value(operand, type_)}"


_PARTS = {f"b{n}": (8, 8 * n) for n in range(4)} | {f"h{n}": (16, 16 * n) for n in range(2)}
_WORDS = "u32 s32"
_SECOND = "add min max"

ROWS = [
    *(
        Row(
            f"{opcode}.D.A.B{{.sat}}{mode}{{.Q}}",
            signature,
            _video,
            D=_WORDS,
            A=_WORDS,
            B=_WORDS,
            M="clamp wrap",
            Q=_SECOND,
        )
        for opcodes, mode in ((("vadd", "vsub", "vabsdiff", "vmin", "vmax"), ""), (("vshl", "vshr"), ".M"))
        for opcode in opcodes
        for signature in ("d = a b", "d = a b c")
    ),
]
