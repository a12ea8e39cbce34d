"""The types of PTX: their sizes, and the types of special registers and of instructions' operands."""

from __future__ import annotations

import re

from gpt.ptx import tree

SIZES = {  # size of each type of registers in bytes; a predicate has none
    **{f"{kind}{size * 8}": size for size in (1, 2, 4, 8) for kind in "bus"},
    "f16": 2,
    "f32": 4,
    "f64": 8,
    "pred": 0,
}

# Special registers that a probe may read. They say where and when it runs, and reading them changes nothing.
SPECIAL = {
    **dict.fromkeys(("%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid"), "u32"),
    **dict.fromkeys(("%cluster_ctaid", "%cluster_nctaid", "%cluster_ctarank", "%cluster_nctarank"), "u32"),
    **dict.fromkeys(("%laneid", "%warpid", "%nwarpid", "%smid", "%nsmid", "%clock", "%clock_hi"), "u32"),
    **dict.fromkeys((f"%lanemask_{which}" for which in ("eq", "le", "lt", "ge", "gt")), "u32"),
    **dict.fromkeys(("%globaltimer_lo", "%globaltimer_hi", "%dynamic_smem_size", "%total_smem_size"), "u32"),
    "%aggr_smem_size": "u32",
    **dict.fromkeys(("%clock64", "%globaltimer", "%gridid", "%current_graph_exec"), "u64"),
    **{f"%pm{number}": "u32" for number in range(8)},
    **{f"%pm{number}_64": "u64" for number in range(8)},
    **{f"%envreg{number}": "b32" for number in range(32)},
}
VECTORS = {"%tid", "%ntid", "%ctaid", "%nctaid", "%clusterid", "%nclusterid", "%cluster_ctaid", "%cluster_nctaid"}
_INTEGER = re.compile(r"(?:0[xX]([\da-fA-F]{1,32})|0[bB]([01]{1,99})|(0[0-7]{0,32})|([1-9]\d{0,32}))U?", re.ASCII)
FLOAT = re.compile(
    r"0[fF][\da-fA-F]{8}|0[dD][\da-fA-F]{16}|\.\d+([eE][-+]?\d+)?|\d+\.\d*([eE][-+]?\d+)?|\d+[eE][-+]?\d+"
)
BYTES = {"bfe": (2, 3), "bfi": (3, 4), "lop3": (4,)}  # operands for which constants must be from 0 to 255
PACKED = {  # types that have no constants, and the untyped registers that they accept
    **dict.fromkeys(("f16x2", "bf16x2", "tf32", "u16x2", "s16x2", "e4m3x4", "e5m2x4", "e3m2x4", "e2m3x4"), "b32"),
    **dict.fromkeys(("bf16", "e4m3x2", "e5m2x2", "e3m2x2", "e2m3x2", "ue8m0x2", "e2m1x4"), "b16"),
    "e2m1x2": "b8",
    "f32x2": "b64",
}
STORED = {  # size of each type of variables and parameters in bytes
    **SIZES,
    **{type_: SIZES[plain] for type_, plain in PACKED.items()},
    "pred": 1,
    "b128": 16,
    **dict.fromkeys(("texref", "samplerref", "surfref"), 8),
}


def types_of(instruction: tree.Instruction) -> list[str | None]:
    """Return the type of each operand, or None if the opcode doesn't say."""
    named = [PACKED.get(word, word) for word in (m[1:] for m in instruction.modifiers)]
    found = [word for word in named if word in SIZES]
    last = found[-1] if found else None
    count = len(instruction.operands)
    match instruction.opcode:
        case "cvt" if len(found) >= 2 and "pack" in named:
            listed: list[str | None] = ["b32", found[1], found[1], "b32"]
        case "cvt" if len(found) >= 2:
            listed = [found[0], *[found[1]] * (count - 1)]
        case "setp":
            listed = ["pred", last, last, "pred"]
        case "set" if len(found) >= 2:
            listed = [found[0], found[1], found[1], "pred"]
        case "selp":
            listed = [last, last, last, "pred"]
        case "slct" if len(found) >= 2:
            listed = [found[0], found[0], found[0], found[1]]
        case "mul" | "mad" if "wide" in named and last:
            wide = last[0] + str(SIZES[last] * 16)
            listed = [wide, last, last, wide]
        case "shl" | "shr":
            listed = [last, last, "u32"]
        case "shf":
            listed = [last, last, last, "u32"]
        case "popc" | "clz" | "bfind":
            listed = ["u32", last]
        case "bfe":
            listed = [last, last, "u32", "u32"]
        case "bfi":
            listed = [last, last, last, "u32", "u32"]
        case "testp":
            listed = ["pred", last]
        case "isspacep":
            listed = ["pred", "u64"]
        case "szext" | "bmsk":
            listed = [last, last or "u32", "u32"] if instruction.opcode == "szext" else ["u32"] * 3
        case "dp4a" | "dp2a":
            listed = ["u32"] * 4
        case "bra":
            listed = [None] * count
        case _:
            listed = [last] * count
    return [*listed, *[None] * count][:count]


def is_packed(instruction: tree.Instruction, place: int) -> bool:
    """Return whether the type of an operand has no constants in ptxas, and only accepts untyped registers."""
    found = [word for word in (m[1:] for m in instruction.modifiers) if word in SIZES or word in PACKED]
    first = place == 0 and instruction.opcode in ("cvt", "set")
    return bool(found) and found[0 if first else -1] in PACKED and types_of(instruction)[place] != "pred"


def takes_no_constant(instruction: tree.Instruction, place: int) -> bool:
    """Return whether ptxas rejects all or some constants of the size of an operand."""
    half = instruction.modifiers[-1:] == (".f16",) or ".tf32" in instruction.modifiers
    return half or is_packed(instruction, place) or place in BYTES.get(instruction.opcode, ())


def integer(text: str) -> int | None:
    """Parse an integer constant of PTX. Return None if it isn't one, or needs more than 64 bits."""
    found = _INTEGER.fullmatch(text)
    if not found:
        return None
    base, digits = next((base, digits) for base, digits in zip((16, 2, 8, 10), found.groups(), strict=True) if digits)
    value = int(digits, base)
    return value if value < 1 << 64 else None


def fits(opcode: str, wanted: str, given: str) -> bool:
    """Return whether an instruction that expects one type accepts an operand of another, according to ptxas's rules.

    Untyped bits match any type of the same size, and integers may have different signs. Only `cvt` accepts a register
    that's too large, and only if it doesn't contain a float.
    """
    if "pred" in (wanted, given):
        return wanted == given
    kinds = {wanted[0].replace("s", "u"), given[0].replace("s", "u")}
    if kinds == {"f", "u"}:
        return False
    return SIZES[wanted] == SIZES[given] or (opcode == "cvt" and SIZES[given] > SIZES[wanted] and given[0] != "f")


def takes(opcode: str, wanted: str, given: str) -> bool:
    """Return True if an instruction that names one type accepts a register of another; see `fits`.

    A type that registers can't have accepts untyped bits of its size. A register for .f16x2 has this type, or untyped
    bits.
    """
    if wanted in PACKED:
        return given in (wanted, PACKED[wanted])
    if "128" in wanted + given:
        return wanted[1:] == given[1:] or (given == "b128" and opcode in ("cvt", "ld", "ldu", "st"))
    if given in PACKED:
        larger = opcode in ("ld", "ldu", "st") and SIZES[PACKED[given]] > SIZES.get(wanted, 8)
        return wanted[0] in "bus" and (larger or fits(opcode, wanted, PACKED[given]))
    if opcode in ("ld", "ldu", "st") and "pred" not in (wanted, given):
        return SIZES[given] >= SIZES[wanted] if "b" in (given[0], wanted[0]) else fits("cvt", wanted, given)
    if SIZES[wanted] == 1 and opcode:  # 8-bit registers are rare
        return fits("cvt", wanted, given)
    return fits(opcode, wanted, given)


def takes_constant(wanted: str, text: str) -> bool:
    """Return True if ptxas accepts a constant as an operand of this type."""
    if wanted in PACKED or wanted == "f16":
        return False
    if FLOAT.fullmatch(text):
        same_size = {"0f": "b32"}.get(text[:2].lower(), "b64")
        return wanted in ("f32", "f64", same_size)
    return wanted[0] != "f"
