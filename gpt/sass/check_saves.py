"""Track the kernel's values that a trampoline saves elsewhere, and check that they're restored.

If a snippet needs more registers than are free, the weaver saves live ones. Four pairs of instructions are known:

    STL [R1-16], R4          LDL R4, [R1-16]      below the stack pointer: neither the kernel nor its callees use that
    MOV R9, R4               MOV R4, R9           in a register that's free
    P2R R9, PR, RZ, 0x7f     R2P PR, R9, 0x7f     predicates, one for each bit of the number
    IADD3 R9, RZ, UR4, RZ    R2UR UR4, R9         a uniform register

A copy is a place together with the register whose value it holds. It's lost when something else is written to the
place; a value saved under a guard isn't a copy. Loading a register's own copy restores the register; loading another's
doesn't.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpt.sass.code import Instruction
from gpt.sass.masks import STARTS
from gpt.sass.words import bits

Copy = tuple[str, int, int]  # "R" and a register or "stack" and an offset; the register whose value it holds
_STACK_POINTER = 1 << 1
_MODIFIERS = (1 << 41) - 1  # in the upper half of a word
_SLOTS = {0x387, 0x983}  # STL and LDL
KEEPERS = {0x387, 0x202, 0x803, 0xC10}  # these make copies: STL, MOV, P2R, and IADD3 with a uniform register
RESTORERS = {0x983, 0x202, 0x804, 0x2CA}  # these restore registers: LDL, MOV, R2P and R2UR
_WIDTH, _PLAIN = 7 << 9, {0, 1 << 20}  # in the upper half of these: [R1+offset], with the usual cache policy or none


def is_slot(one: Instruction, stack: int) -> bool:
    """Return whether an instruction leaves local memory alone, except for `stack` bytes below the stack pointer."""
    if one.memory != "local":
        return True
    depth = find_depth(one)
    return depth is not None and depth <= stack


def find_depth(one: Instruction) -> int | None:
    """Return how many bytes below the stack pointer an access to local memory begins, or None if it isn't a slot's."""
    offset, size = _slot(one.word)
    is_plain = bits(one.word, 24, 8) == 1 and one.opcode in _SLOTS and one.word >> 64 & _MODIFIERS & ~_WIDTH in _PLAIN
    return -offset if is_plain and size > 0 and offset <= -size and offset % size == 0 else None


def keep_copies(one: Instruction, copies: frozenset[Copy], own: int) -> frozenset[Copy]:
    """Return the copies after a snippet's instruction; `own` are the registers with the kernel's values before it."""
    if not copies and one.opcode not in KEEPERS:
        return copies
    kept = {*drop_overwritten(copies, one.masks.writes)}
    if one.name == "STL":
        offset, size = _slot(one.word)
        kept = {copy for copy in kept if not (copy[0] == "stack" and offset - 3 <= copy[1] < offset + size)}
        if one.guard.always:
            first = bits(one.word, 32, 8)
            kept |= {("stack", offset + 4 * k, first + k) for k in range(size // 4) if own >> first + k & 1}
    elif mask := find_copied(one) & own:
        kept |= {("R", bits(one.word, 16, 8), number) for number in range(mask.bit_length()) if mask >> number & 1}
    return frozenset(kept)


def find_copied(one: Instruction) -> int:
    """Return the registers of which an instruction makes copies, if they have the kernel's values."""
    if one.name == "STL":
        return (1 << _slot(one.word)[1] // 4) - 1 << bits(one.word, 32, 8) if one.guard.always else 0
    if _is_copy(one):
        return 1 << bits(one.word, 32, 8)
    if (uniform := _saved_uniform(one)) is not None:
        return 1 << uniform
    return _saved_predicates(one) << STARTS.P


def find_restored(one: Instruction, copies: frozenset[Copy]) -> int:
    """Return the registers whose old values a snippet's instruction restores."""
    if one.opcode not in RESTORERS:
        return 0
    found = 0
    register = bits(one.word, 16, 8)
    if one.name == "LDL" and one.guard.always:
        offset, size = _slot(one.word)
        for k in range(size // 4):
            found |= (("stack", offset + 4 * k, register + k) in copies) << register + k
    elif _is_copy(one):
        found |= (("R", bits(one.word, 32, 8), register) in copies) << register
    elif (uniform := _restored_uniform(one)) is not None:
        found |= (("R", bits(one.word, 24, 8), uniform) in copies) << uniform
    elif mask := _restored_predicates(one):
        for number in _iter_predicates(mask):
            found |= (("R", bits(one.word, 24, 8), number) in copies) << number
    return found


def outlive(copies: frozenset[Copy], written: int, shared: int) -> frozenset[Copy]:
    """Return the copies after an instruction of the kernel, during which other lanes may overwrite what's `shared`."""
    return frozenset(
        copy for copy in copies
        if not (written | shared) >> copy[2] & 1
        and not (written & _STACK_POINTER if copy[0] == "stack" else written >> copy[1] & 1)
    )  # fmt: skip


def drop_overwritten(copies: frozenset[Copy], written: int) -> frozenset[Copy]:
    """Return the copies that aren't in these registers."""
    return frozenset([copy for copy in copies if not (copy[0] == "R" and written >> copy[1] & 1)])


def holders(copies: frozenset[Copy]) -> int:
    """Return the registers that hold copies."""
    found = 0
    for place, number, _ in copies:
        found |= 1 << number if place == "R" else 0
    return found


def _slot(word: int) -> tuple[int, int]:
    """Return the offset and size in bytes of a local memory access."""
    offset = bits(word, 40, 24)
    return offset - (offset >> 23 << 24), (1, 1, 2, 2, 4, 8, 16, 0)[bits(word, 73, 3)]


def _is_copy(one: Instruction) -> bool:
    """Return whether an instruction is a MOV R, R that copies all lanes and all bytes."""
    return one.opcode == 0x202 and one.guard.always and one.word >> 64 & _MODIFIERS == 0xF00


def _saved_uniform(one: Instruction) -> int | None:
    """If an instruction is IADD3 R, RZ, UR, RZ, return the uniform register that it copies. Otherwise, return None."""
    if one.opcode != 0xC10:
        return None
    plain = one.guard.always and one.word >> 64 & _MODIFIERS == 0xFFFE0FF
    is_sum = plain and bits(one.word, 24, 8) == 255 and not bits(one.word, 38, 26)
    return STARTS.UR + bits(one.word, 32, 6) if is_sum else None


def _restored_uniform(one: Instruction) -> int | None:
    """If an instruction is R2UR UR, R, return the uniform register that it sets. Otherwise, return None."""
    if one.opcode != 0x2CA:
        return None
    plain = one.guard.always and one.word >> 64 & _MODIFIERS == 0xE0000
    is_plain = plain and not bits(one.word, 32, 32) and not bits(one.word, 22, 2)
    return STARTS.UR + bits(one.word, 16, 6) if is_plain else None


def is_saving(one: Instruction) -> bool:
    """Return whether an instruction only saves or restores registers."""
    return (
        one.name in {"STL", "LDL", "P2R", "R2P", "NOP", "MOV"}
        or _saved_uniform(one) is not None
        or _restored_uniform(one) is not None
    )


def _iter_predicates(mask: int) -> Iterator[int]:
    return (STARTS.P + number for number in range(7) if mask >> number & 1)


def _saved_predicates(one: Instruction) -> int:
    """If an instruction is P2R R, PR, RZ, MASK, return the predicates that it saves, one bit each. Otherwise,
    return 0.
    """
    if one.opcode != 0x803:
        return 0
    plain = one.guard.always and not one.word >> 64 & _MODIFIERS and bits(one.word, 24, 8) == 255
    return bits(one.word, 32, 7) if plain and not bits(one.word, 39, 25) else 0


def _restored_predicates(one: Instruction) -> int:
    """If an instruction is R2P PR, R, MASK, return the predicates that it sets, one bit each. Otherwise, return 0."""
    if one.opcode != 0x804:
        return 0
    plain = one.guard.always and not one.word >> 64 & _MODIFIERS
    return bits(one.word, 32, 7) if plain and not bits(one.word, 39, 25) else 0
