"""Find out whether a kernel leaves alone what's below its stack pointer, so that probes can keep values there.

A kernel loads R1 at its entry. If it has a frame of its own, it lowers R1 once, in the first block. ptxas addresses the
stack upwards from there, so what's below is free, and stays so as long as nothing called lowers R1 further: functions
in its own section don't if no other instruction writes R1. Code outside may, if it returns (gpt/sass/kernels.py).

Values stay where they are if R1 changes, so a slot's offset differs in front of the instruction that lowers R1.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.probe.lower.fetch import CannotProbe
from gpt.probe.sass import glue
from gpt.sass.kernels import Kernel
from gpt.sass.words import CONTROL, NO_BARRIER, bits, with_control

STACK_POINTER = 1


class Frame(NamedTuple):
    """The bytes by which a kernel lowers the stack pointer, and the instruction that does; -1 if none does."""

    size: int
    lowered: int


NO_FRAME = Frame(0, -1)


def find_frame(kernel: Kernel) -> Frame:
    """Return a kernel's frame. Raises CannotProbe if something may use the stack below it."""
    code = kernel.code
    if kernel.graph.calls_out and kernel.returns:
        raise CannotProbe("calls functions elsewhere, and only a register could keep the probe's values")
    found = [code[index] for index, masks in enumerate(code.masks) if masks.writes >> STACK_POINTER & 1][1:]
    if not found:
        return NO_FRAME
    one = found[0]
    size = -(bits(one.word, 32, 32) - (bits(one.word, 63, 1) << 32))
    is_add = not (one.word ^ glue.add(STACK_POINTER, STACK_POINTER, -size)) & ~CONTROL or one.name == "VIADD"
    if len(found) > 1 or not is_add or size <= 0 or one.index >= kernel.graph.blocks[0].end:
        raise CannotProbe("has a stack that isn't understood")
    return Frame(size, one.index)


def announce_stack_pointer(kernel: Kernel) -> Kernel:
    """Return a kernel whose first instruction, which loads the stack pointer, has a barrier.

    ptxas leaves it out if the kernel doesn't use the pointer. We take the barrier that the first block waits for first:
    it does so soon, for values it loads at its beginning, and later places needn't wait again.
    """
    code = kernel.code
    first = code[0]
    if first.name != "LDC" or first.control.write_barrier != NO_BARRIER:
        return kernel
    waits = [wait for wait in code.controls.waits[1 : kernel.graph.blocks[0].end] if wait]
    barrier = (waits[0] & -waits[0]).bit_length() - 1 if waits else 0
    stall = max(2, first.control.stall)  # a barrier takes a moment to show that something is in flight
    word = with_control(first.word, first.control._replace(write_barrier=barrier, stall=stall))
    return kernel.with_controls({0: word})
