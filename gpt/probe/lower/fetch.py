"""Fetch the values that a snippet reads at a site, which are helpers and operands, into registers of the required
types.

If an instruction overwrites a value that the snippet `after` it needs, the value is copied before the instruction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.model import names_of
from gpt.probe.operands import Descriptor, LowBits, Partial
from gpt.probe.plan.function import PlacedSnippet
from gpt.ptx import tree
from gpt.ptx.types import FLOAT, SIZES, SPECIAL, integer

Types = Callable[[str], str | None]  # types of the program's registers


class CannotProbe(Exception):
    """Raised if a snippet can't run at a site, which is then left alone. The message says why."""


class _Held(NamedTuple):
    """A register that holds the value of an operand, and its type."""

    type: str
    register: str


class Fetcher:
    """Fetches values for one snippet at one site. `code` gets the code of the snippet, `outer` the code that copies
    values before the instruction.
    """

    def __init__(self, code: Emitter, outer: Emitter, types: Types, use: PlacedSnippet) -> None:
        self.code, self.outer, self.types, self.use = code, outer, types, use
        self.bound = use.face.bound if use.face else None
        self.condition: Condition | None = None  # when the snippet runs
        self.copies: dict[str, str] = {}  # registers as they were before the instruction

    # Before the instruction

    def keep(self) -> None:
        """Copy the values that the instruction overwrites and the snippet after it needs."""
        if self.use.when == "before" or not self.use.face:
            return
        for name in self.use.face.find_overwritten(self.use.snippet):
            type_ = self._type(name)
            kind = "pred" if type_ == "pred" else f"b{max(16, SIZES[type_] * 8)}"
            self.copies[name] = self.outer.make(kind, "cvt.u16.u8" if SIZES[type_] == 1 else f"mov.{kind}", name)

    def guard(self) -> Condition | None:
        """Return the guard of the instruction, with its value from before the instruction. The snippet runs under this
        guard.
        """
        guard = self.use.face.instruction.guard if self.use.face else None
        if not guard:
            return None
        return Condition(self.copies.get(guard.register, guard.register), guard.negated != self.use.inverts_guard)

    # Helpers

    def helper(self, name: str) -> str:
        """Return a register or a constant that has the value of a helper whose type doesn't depend on the
        instruction.
        """
        code, bound = self.code, self.bound
        match name:
            case "SMID" | "LANEID":
                return code.special(f"%{name.lower()}")
            case "WARPID":
                return code.warp()
            case "BLOCK":
                return code.block()
            case "ACTIVE":
                return code.make("b32", "popc.b32", code.group(self.condition)[1])
            case "ADDR" if bound and bound.address:
                return self._address(bound.address)
            case "BYTES" if bound and bound.bytes is not None:
                return self._bytes(bound.bytes)
            case "FLOPS" if bound and bound.flops is not None:
                return str(bound.flops) if isinstance(bound.flops, int) else self._described(bound.flops)
        raise CannotProbe(f"has no {name}")

    def _bytes(self, count: int | tree.Operand | Partial) -> str:
        """Return a constant or a 32-bit register."""
        if isinstance(count, int):
            return str(count)
        if not isinstance(count, Partial):
            return self.sized(count, "u32")
        names = list(names_of(count.read))
        if not names or self.types(names[0]) != "pred":
            return self.sized(count.read, "u32")
        ignored = Condition(self.copies.get(names[0], names[0]), isinstance(count.read, tree.Prefixed))
        return self.code.make("b32", "selp.u32", 0, self._bytes(count.size), self.code.positive(ignored))

    def _described(self, flops: Descriptor) -> str:
        """Compute 2 * M * N * k from a descriptor, which has M / 16 in bits 24 to 28, and N / 8 in bits 17 to 22."""
        code, value = self.code, self.sized(flops.register, "u32")
        rows = code.make("b32", "bfe.u32", value, 24, 5)
        columns = code.make("b32", "bfe.u32", value, 17, 6)
        return code.make("b32", "mul.lo.u32", code.make("b32", "mul.lo.u32", rows, columns), 2 * 16 * 8 * flops.k)

    def _address(self, address: tree.Address) -> str:
        """Return the 64-bit address in brackets. For an access through a tensor map, that's the address of the map."""
        code, operand = self.code, next(iter(address.items), None)
        base, offset = _base_and_offset(operand)
        if isinstance(base, tree.Number):
            return code.make("b64", "mov.u64", operand)
        type_ = self.types(base.name) if isinstance(base, tree.Name) and not base.parts else ""
        if type_ == "":
            raise CannotProbe(f"has the address '{address}'")
        assert isinstance(base, tree.Name)
        name = self.copies.get(base.name, base.name)
        if type_ is None:  # a variable
            name = code.make("b64", "mov.u64", name)
        elif SIZES[type_] < 8:
            name = code.make("b32", "cvt.u32.u16", name) if SIZES[type_] == 2 else name
            low = code.make("b32", "add.u32", name, offset) if offset else code.make("b32", "mov.b32", name)
            return code.make("b64", "cvt.u64.u32", low)
        if offset:
            return code.make("b64", "add.s64", name, offset)
        return code.make("b64", "mov.b64", name)

    def _type(self, name: str) -> str:
        type_ = self.types(name)
        if not type_:
            raise CannotProbe(f"has '{name}', which is not a register of a plain type")
        return type_

    def sized(
        self,
        operand: tree.Operand,
        wanted: str | None,
        *,
        fresh: bool = False,
        width: int | None = None,
        low: LowBits | None = None,
        cut: bool = True,
    ) -> str:
        """Return an operand of the program in a register of the same size as `wanted`, of any type with that size.

        `width` is the size of a vector in bits; None stands for the size of `wanted`. If a register has more bits than
        `low` (which `st.u8` allows), only the low ones are used. If a value is larger than `wanted`, CannotProbe is
        raised unless `cut` is set. With `fresh`, the value is read after the instruction.
        """
        held: _Held | None
        if isinstance(operand, tree.Vector) and wanted:
            whole = width or SIZES[wanted] * 8
            held = _Held(f"b{whole}", self._packed(operand.items, whole, fresh, 8 if width else 16, low))
            low = None
        else:
            held = self._held(operand, wanted, fresh)
        if held is None:
            return _constant(str(operand), wanted, low)
        if held.type == "pred" or wanted is None:
            return held.register
        bits, room = SIZES[held.type] * 8, max(16, SIZES[wanted] * 8)
        if low is None or low.bits >= bits:
            if bits == room:
                return held.register
            if bits > room and not cut:
                raise CannotProbe(f"has '{operand}' of {bits} bits, where {room} are expected")
            low = LowBits(bits, wanted[0] == "s")
        return self.code.make(f"b{room}", f"cvt.{low.kind}{room}.{low.kind}{low.bits}", held.register)

    def _held(self, operand: tree.Operand, wanted: str | None, fresh: bool) -> _Held | None:
        """Return an operand in a register of the operand's size, or None if it's a constant. Predicates aren't
        copied.
        """
        code = self.code
        match operand:
            case tree.Name("_"):
                raise CannotProbe("has '_' where the probe reads")
            case tree.Name(name) if name in SPECIAL:
                type_ = SPECIAL[name]
                return _Held(type_, code.make(f"b{SIZES[type_] * 8}", f"mov.{type_}", operand))
            case tree.Name(name, parts) if name.startswith("%") or self.types(name) is not None:
                type_ = self._type(str(operand) if parts else name)
                register = name if fresh else self.copies.get(name, name)
                if type_ == "pred":
                    if wanted not in (None, "pred"):
                        raise CannotProbe(f"has predicate '{name}', where .{wanted} is expected")
                    return _Held(type_, register)
                if wanted == "pred":
                    raise CannotProbe(f"has '{name}', where a predicate is expected")
                bits = SIZES[type_] * 8
                if bits == 8:  # PTX has no mov for bytes
                    kind = "s" if wanted and wanted[0] == "s" else "u"
                    return _Held("b16", code.make("b16", f"cvt.{kind}16.{kind}8", register))
                return _Held(type_, code.make(f"b{bits}", f"mov.b{bits}", register))
            case tree.Address():
                return _Held("b64", self._address(operand))
            case tree.Name() | tree.Expression():
                return _Held("b64", code.make("b64", "mov.u64", operand))
        return None

    def _packed(self, items: tuple[tree.Operand, ...], bits: int, fresh: bool, least: int, low: LowBits | None) -> str:
        """Pack a vector into one register of `bits` bits. Each element must have at least `least` bits."""
        each = bits // len(items)
        if each * len(items) != bits or each not in (8, 16, 32) or each < least or bits > 64:
            raise CannotProbe(f"has a vector of {len(items)}, where {bits} bits are expected")
        if each == 8:
            return self._bytewise(items, bits, fresh)
        parts = []
        for item in items:
            longer = isinstance(item, tree.Name) and item.name != "_" and SIZES[self._type(item.name)] * 8 != each
            if longer and (low is None or low.bits != each):
                raise CannotProbe(f"has '{item}' in a vector, where {each} bits are expected")
            part = self.sized(item, f"b{each}", fresh=fresh, low=low)
            parts.append(part if part.startswith("%") else self.code.make(f"b{each}", f"mov.b{each}", part))
        return self.code.make(f"b{bits}", f"mov.b{bits}", "{" + ", ".join(parts) + "}")

    def _bytewise(self, items: tuple[tree.Operand, ...], bits: int, fresh: bool) -> str:
        """Like `_packed`, for up to four elements of a byte each."""
        code, whole = self.code, "0"
        for number, item in enumerate(items):
            whole = code.make("b32", "bfi.b32", self.sized(item, "u32", fresh=fresh), whole, 8 * number, 8)
        return whole if bits == 32 else code.make("b16", "cvt.u16.u32", whole)


def _base_and_offset(operand: tree.Operand | None) -> tuple[tree.Operand | None, str]:
    """Split an address into its base and the constant added to it, which is empty if there's none."""
    if not isinstance(operand, tree.Expression):
        return operand, ""
    base, *rest = operand.operands
    return base, str(replace(operand, operands=(tree.Number("0"), *rest)))


def _constant(text: str, wanted: str | None, low: LowBits | None) -> str:
    """Write a constant of the program as a constant of another type with the same bits (or with its `low` bits). Raises
    CannotProbe.
    """
    digits = text.removeprefix("-")
    is_float = FLOAT.fullmatch(digits) is not None
    if wanted is None or (wanted in ("f32", "f64") and is_float):
        return text
    is_bits = is_float and text[1] in "dDfF"
    value = int(text[2:], 16) if is_bits else integer(digits)
    bits = SIZES[wanted] * 8
    misfit = CannotProbe(f"has '{text}', where .{wanted} is expected")
    if value is None or not bits or wanted == "f16":
        raise misfit
    if digits != text:
        value = -value
    if low:
        value %= 1 << low.bits
        is_signed = low.signed or (low.bits >= 32 and wanted[0] == "s")
        if is_signed and value >> (low.bits - 1):
            value -= 1 << low.bits
    if abs(value) >> bits:
        raise misfit
    value %= 1 << bits
    return f"0{'f' if bits == 32 else 'd'}{value:0{bits // 4}X}" if wanted[0] == "f" else str(value)
