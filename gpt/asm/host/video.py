"""Video instructions: scalar ones on parts of words, and SIMD ones with two or four lanes."""

from __future__ import annotations

import re

from gpt.asm.host.names import Unsupported
from gpt.asm.host.table import TYPES, PtxType, Row
from gpt.asm.host.use import InstructionUse
from gpt.ptx import tree


def _types(use: InstructionUse) -> tuple[PtxType, PtxType, PtxType]:
    """Return the types of the result and of the first two operands. The result of a comparison is unsigned."""
    result, of_a, of_b = (use.words.get(name, TYPES["u32"]) for name in "DAB")
    assert isinstance(result, PtxType) and isinstance(of_a, PtxType) and isinstance(of_b, PtxType)
    return result, of_a, of_b


def _scalar(use: InstructionUse) -> str:
    """Write a scalar video instruction in the way in which ptxas compiles it, which isn't always what the manual says.

    Values have 64 bits. The results of vadd and vsub, and of shifts that saturate, are truncated to 32 bits and then
    sign-extended, even if they're unsigned. `.sat` clamps an unsigned result only at the lower limit, except in vshl.
    If the result names a part (`d.b1`), the value replaces that part of the third operand. In this case, `.sat` treats
    values below the lower limit as too large, and `d.h1` gets the upper half of the value. Shifts still saturate to 32
    bits.
    """
    words, (to, a, b, *rest) = use.words, use.operands
    result, of_a, of_b = _types(use)
    opcode, saturates, signed = use.instruction.opcode, bool(words.get("sat")), int(result.is_signed)
    first, second = _chosen(use, a, of_a), _chosen(use, b, of_b)
    value = f"{opcode}{words.get('C', '')}({first}, {second}, {int(words.get('M') == '_clamp')})"
    if opcode == "vset":
        result = of_a  # the second operation compares it with this
    if saturates and opcode == "vshl":
        value = f"video_34({value})"
    third = f"(int64_t){use.value(rest[0], result)}" if rest else "0"
    part = to.parts[-1][1:] if isinstance(to, tree.Name) and to.parts else ""
    if part:
        if not isinstance(to, tree.Name) or part not in _PARTS:
            raise Unsupported(f"'{to}' as a result")
        if not rest or words.get("Q"):
            raise Unsupported(f"'{to}' as a result, which takes a third operand and no second operation")
        size, shift = _PARTS[part]
        if saturates and opcode in _SHIFTS:
            value = f"saturate({value}, 32, {signed})"
        elif saturates:
            value = f"video_saturate({value}, {size - signed})"
        if part == "h1":
            value = f"({value}) >> 16"
        value = f"bfi((uint32_t)({value}), (uint32_t)({third}), {shift}, {size}, 32)"
        return use.assign(tree.Name(to.name), result, value)
    if saturates:
        limits_both = signed or opcode == "vshl"
        value = f"(int64_t)saturate({value}, 32, {signed})" if limits_both else f"MAX({value}, 0)"
    if opcode in ("vadd", "vsub") or (saturates and opcode in _SHIFTS):
        value = f"(int64_t)(int32_t)({value})"
    if words.get("Q"):
        value = f"VIDEO{words['Q']}(({'' if result.is_signed else 'u'}int64_t)({value}), {third})"
    return use.assign(to, result, value)


def _chosen(use: InstructionUse, operand: tree.Operand, type_: PtxType) -> str:
    """Return a word, or one of its bytes or halves."""
    match operand:
        case tree.Name(name, (part,)) if part[1:] in _PARTS:
            size, shift = _PARTS[part[1:]]
            word = use.value(tree.Name(name), TYPES["u32"])
            return f"(int64_t)({TYPES[type_.name[0] + str(size)]})({word} >> {shift})"
    return f"(int64_t){use.value(operand, type_)}"


def _mad(use: InstructionUse) -> str:
    """Write vmad in the way in which ptxas compiles it: a product of signed words, whatever their types, plus a third
    signed word, in 64 bits. The types decide how parts are extended, how the sum is shifted, and how `.sat` clamps it.
    A minus sign makes the result signed.
    """
    words, (to, *given) = use.words, use.operands
    result, of_a, of_b = _types(use)
    minus: list[bool] = []
    values: list[tree.Operand] = []
    for one in given:
        if isinstance(one, tree.Prefixed) and isinstance(one.operand, tree.Name):
            if one.prefixes != ("-",):
                raise Unsupported(f"'{one}': only '-' is possible")
            minus.append(True)
            values.append(one.operand)
        else:
            minus.append(False)
            values.append(one)
    a, b, c = values
    if (minus[0] != minus[1]) + minus[2] + bool(words["po"]) > 1:
        raise Unsupported("only one of '.po', a negated product and a negated third operand is possible")
    signed = int(of_a.is_signed or of_b.is_signed or any(minus))
    product = f"(int64_t)(int32_t){_chosen(use, a, of_a)} * (int32_t){_chosen(use, b, of_b)}"
    third = f"(int64_t){use.value(c, TYPES['s32'])}"
    sum_ = f"{'-' * (minus[0] != minus[1])}({product}) + {'-' * minus[2]}({third}) + {int(bool(words['po']))}"
    value = f"(int64_t)(({'u' * (not signed)}int64_t)({sum_}) >> {words['N'] or 0})"
    return use.assign(to, result, f"saturate({value}, 32, {signed})" if words["sat"] else f"({value})")


def _lanes(use: InstructionUse) -> str:
    """Write an operation on two or four lanes, each of which takes a part of `b:a`. The results are added to c, or
    inserted into it.
    """
    words, (to, a, b, c) = use.words, use.operands
    result, of_a, of_b = _types(use)
    opcode = use.instruction.opcode
    for operand in (a, b, c):
        if not isinstance(operand, tree.Name):
            raise Unsupported(f"'{operand}' where a register is expected")
    count = int(opcode[-1])
    target, places = _selected(to, count, "3210"[-count:])
    first, of_first = _selected(a, count, "3210"[-count:])
    second, of_second = _selected(b, count, "7654"[-count:] if count == 4 else "32")
    if sorted(set(places), reverse=True) != list(places) or int(places[0]) >= count:
        raise Unsupported(f"'{to}': a result lists each part once, the highest first")
    for operand, selected in ((a, of_first), (b, of_second)):
        if len(selected) != count or int(max(selected)) >= 2 * count:
            raise Unsupported(f"'{operand}': {count} parts are selected from 0 to {2 * count - 1}")
    mask = sum(1 << int(place) for place in set(places))
    word = TYPES["u32"]
    return use.assign(
        target,
        word,
        f"video_lanes({opcode[:-1]}{words.get('C', '')}, {count}, {use.value(first, word)}, {use.value(second, word)}, "
        f"{use.value(c, word)}, 0x{of_first}, 0x{of_second}, {mask}, {of_a.sign}, {of_b.sign}, {result.sign}, "
        f"{int(bool(words.get('sat')))}, {int(bool(words.get('add')))})",
    )


def _selected(operand: tree.Operand, count: int, default: str) -> tuple[tree.Operand, str]:
    """Return a word, and the numbers of the parts that are selected from it, highest lane first: `.b3120`."""
    if not isinstance(operand, tree.Name) or not operand.parts:
        return operand, default
    found = re.fullmatch(r"\.([bh])([0-7]+)", operand.parts[-1])
    if not found or found[1] != ("h" if count == 2 else "b"):
        raise Unsupported(f"'{operand}'")
    return tree.Name(operand.name), found[2]


_PARTS = {f"b{n}": (8, 8 * n) for n in range(4)} | {f"h{n}": (16, 16 * n) for n in range(2)}
_WORDS = "u32 s32"
_SECOND = "add min max"
_COMPARE = "eq ne lt le gt ge"
_TYPES = {"D": _WORDS, "A": _WORDS, "B": _WORDS}
_SHIFTS = ("vshl", "vshr")
_FIVE = ("vadd", "vsub", "vabsdiff", "vmin", "vmax")
_SIGNATURES = ("d:D = a:A b:B", "d:D = a:A b:B c:D")
_SET_SIGNATURES = ("d:u32 = a:A b:B", "d:u32 = a:A b:B c:u32")

ROWS = [
    *(
        Row(
            f"{opcode}.D.A.B{{.sat}}{mode}{'{.Q}' * (' c' in signature)}",
            signature,
            _scalar,
            needs=needs,
            M="clamp wrap",
            Q=_SECOND,
            **_TYPES,
        )
        for opcodes, mode, needs in ((_FIVE, "", ""), (_SHIFTS, ".M", ": B=u32"))
        for opcode in opcodes
        for signature in _SIGNATURES
    ),
    *(
        Row(f"vset.A.B.C{second}", signature, _scalar, A=_WORDS, B=_WORDS, C=_COMPARE, Q=_SECOND)
        for signature, second in zip(_SET_SIGNATURES, ("", "{.Q}"), strict=True)
    ),
    Row("vmad.D.A.B{.po}{.sat}{.N}", "d:D = a:A b:B c:D", _mad, N={"shr7": "7", "shr15": "15"}, **_TYPES),
    *(
        Row(f"{opcode}{count}.D.A.B{form}", "d:D = a:A b:B c:D", _lanes, needs=": sm_30", **_TYPES)
        for opcode in (*_FIVE, "vavrg")
        for count in (2, 4)
        for form in ("{.sat}", "{.add}")
    ),
    *(
        Row(f"vset{count}.A.B.C{{.add}}", _SET_SIGNATURES[1], _lanes, needs=": sm_30", A=_WORDS, B=_WORDS, C=_COMPARE)
        for count in (2, 4)
    ),
]
