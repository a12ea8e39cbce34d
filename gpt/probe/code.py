"""Pieces of PTX for one function: new registers, and instructions that share them.

A temporary is written once and read behind that; ptxas places it. A Condition is a predicate, maybe negated; None
always holds.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class Condition(NamedTuple):
    """A predicate register, and whether it must not hold."""

    register: str
    negated: bool = False

    def __str__(self) -> str:
        return f"@{'!' * self.negated}{self.register} "


class Code:
    """Registers of one function that begin with `prefix`, and the lines that are being written.

    `redux` says that the target adds over the lanes of a warp.
    """

    def __init__(self, prefix: str, redux: bool = False) -> None:
        self.prefix, self.redux = prefix, redux
        self.lines: list[str] = []
        self._counts: Counter[str] = Counter()

    def take(self) -> list[str]:
        """The lines so far, which are then no longer here."""
        lines, self.lines = self.lines, []
        return lines

    def new(self, type_: str) -> str:
        """A register of type pred, b16, b32 or b64."""
        self._counts[type_] += 1
        return f"%{self.prefix}{type_}_{self._counts[type_] - 1}"

    def declarations(self) -> list[str]:
        """What declares all registers that were asked for."""
        return [f".reg .{type_} %{self.prefix}{type_}_<{count}>;" for type_, count in sorted(self._counts.items())]

    def put(self, text: str, condition: Condition | None = None) -> None:
        """An instruction, without semicolon."""
        self.lines.append(f"{condition or ''}{text};")

    def make(self, type_: str, opcode: str, *operands: object) -> str:
        """A new register with what an instruction makes of operands."""
        result = self.new(type_)
        self.put(f"{opcode} {', '.join(map(str, (result, *operands)))}")
        return result

    def positive(self, condition: Condition | None) -> str:
        """A register that holds where the condition does."""
        if condition is None:
            return self.make("pred", "setp.eq.u32", 0, 0)
        return self.make("pred", "not.pred", condition.register) if condition.negated else condition.register

    def both(self, one: Condition | None, other: Condition | None) -> Condition | None:
        """The condition that both hold."""
        if one is None or other is None or one == other:
            return one or other
        return Condition(self.make("pred", "and.pred", self.positive(one), self.positive(other)))

    def group(self, condition: Condition | None) -> tuple[str, str]:
        """The lanes that are here, and those of them where the condition holds."""
        here = self.make("b32", "activemask.b32")
        if condition is None:
            return here, here
        return here, self.make("b32", "vote.sync.ballot.b32", self.positive(condition), here)

    # Where in the grid

    def thread(self) -> str:
        """The number of this thread in its block."""
        x, y, z = (self.make("b32", "mov.u32", f"%tid.{axis}") for axis in "xyz")
        width, height = (self.make("b32", "mov.u32", f"%ntid.{axis}") for axis in "xy")
        row = self.make("b32", "mad.lo.u32", z, height, y)
        return self.make("b32", "mad.lo.u32", row, width, x)

    def block(self) -> str:
        """The number of this block in the grid, 64 bits; y and z are below 65536."""
        x, y, z = (self.make("b32", "mov.u32", f"%ctaid.{axis}") for axis in "xyz")
        width, height = (self.make("b32", "mov.u32", f"%nctaid.{axis}") for axis in "xy")
        row = self.make("b32", "mad.lo.u32", z, height, y)
        wide = self.make("b64", "cvt.u64.u32", x)
        return self.make("b64", "mad.wide.u32", row, width, wide)

    def unit(self, level: str) -> str:
        """The number of this thread, warp or block in the grid, 64 bits."""
        block = self.block()
        if level == "block":
            return block
        x, y, z = (self.make("b32", "mov.u32", f"%ntid.{axis}") for axis in "xyz")
        count = self.make("b32", "mul.lo.u32", self.make("b32", "mul.lo.u32", x, y), z)
        number = self.thread()
        if level == "warp":
            number = self.make("b32", "shr.u32", number, 5)
            count = self.make("b32", "shr.u32", self.make("b32", "add.u32", count, 31), 5)
        wide = self.make("b64", "cvt.u64.u32", number)
        return self.make("b64", "mad.lo.u64", block, self.make("b64", "cvt.u64.u32", count), wide)
