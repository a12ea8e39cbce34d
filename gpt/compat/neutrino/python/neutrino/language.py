"""The names that probes in Python use. gpt-ptx-probe compiles them; if they're executed, they do nothing."""

from __future__ import annotations

from typing import Any, NoReturn


class _Type:
    """A type of a register or field."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, value: Any) -> NoReturn:
        _refuse()

    def __repr__(self) -> str:
        return f"nl.{self.name}"


class _Operand(_Type):
    """A value of the instruction that's being probed."""


def _refuse(*values: Any) -> NoReturn:
    raise TypeError("a probe is compiled into GPU code by gpt-ptx-probe, and does not run in Python")


u16, u32, u64, s32, s64, f32, f64, b32, b64 = map(
    _Type, ("u16", "u32", "u64", "s32", "s64", "f32", "f64", "b32", "b64")
)
out, in1, in2, in3, in4, addr, bytes, flops, pred = map(
    _Operand, ("out", "in1", "in2", "in3", "in4", "addr", "bytes", "flops", "pred")
)
clock = time = cuid = warpid = laneid = block = active = _refuse
