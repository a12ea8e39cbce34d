"""Check the elements of a matrix in mma and wmma.mma, as ptxas does.

ptxas replaces some forms by other instructions, which accept less than the form does: constants and unused results are
rejected there. Which forms it replaces depends on the target.
"""

from __future__ import annotations

from collections.abc import Collection

from gpt.asm.host.names import Unsupported
from gpt.ptx import tree
from gpt.ptx.types import FLOAT

_HALVES = {".f16", ".bf16", ".tf32"}
_BYTES = {".e4m3", ".e5m2"}
_ALIKE = {".m8n8k4", ".m8n8k128", ".m16n8k128"}  # shapes in which either all factors are .f16x2, or none is
_NO_HALVES = {".m8n8k16", ".m8n8k128", ".m16n8k128"}


def takes_no_halves(instruction: tree.Instruction) -> bool:
    """Return True for forms of mma with factors of at most 8 bits, which can't be registers of type .f16x2."""
    return not _NO_HALVES.isdisjoint(instruction.modifiers)


def check_fragment(
    instruction: tree.Instruction,
    vector: tree.Vector,
    wanted: str,
    declared: Collection[str],
    constants: Collection[str],
    target: int,
) -> None:
    """Raise Unsupported for elements that a form doesn't accept.

    `wanted` is the type that the form names; `declared` has the types of those elements that are registers, and
    `constants` the text of constants among them.
    """
    modifiers, kinds = {*instruction.modifiers}, {*declared}
    wmma, second = instruction.opcode == "wmma", vector is instruction.operands[2]
    narrow = wanted == "b32"  # factors of at most 8 bits
    emulated = bool(_BYTES & modifiers) and 90 <= target < 120
    single = (wmma and ".tf32" in modifiers) or (".f64" in modifiers and ".m8n8k4" not in modifiers and target >= 100)
    floats = bool(kinds & {"f32", "f64", "f16"}) or any(FLOAT.fullmatch(one) for one in constants)
    wide = next((one for one in constants if FLOAT.fullmatch(one) and one[:2].lower() != "0f"), "")
    if vector is instruction.operands[0] and tree.Name("_") in vector.items and (emulated or single):
        raise Unsupported(f"'{vector}': this form drops no result")
    untyped = "b32" in kinds and wmma
    if narrow and floats and not untyped and (wmma or ".m8n8k16" in modifiers):
        raise Unsupported(f"'{vector}' has elements of a floating-point type where integers are expected")
    native = ".m8n8k32" in modifiers and target >= 90
    registers = wmma and not native and (second or not kinds)
    registers |= bool(wide and emulated) or (not wmma and not kinds and not floats)
    if constants and registers and (narrow or wanted == "tf32"):
        raise Unsupported(f"'{next(iter(constants))}' where a register of .b32 is expected")
    if wanted == "f32" and wide and not kinds and (wmma or _HALVES & modifiers):
        raise Unsupported(f"'{wide}' has 64 bits where .f32 is expected: write it like 0f00000000")
    if emulated and wanted == "f16x2" and (constants or not kinds <= {"b32", "f16x2"}):
        raise Unsupported(f"'{vector}' where registers of .b32 or .f16x2 are expected")
    alike = (wmma and second and wanted == "tf32") or (not wmma and "f16x2" in kinds and _ALIKE & modifiers)
    if len(kinds) > 1 and alike:
        raise Unsupported(f"'{vector}' has elements of several types")
