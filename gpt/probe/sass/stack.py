"""Find out whether a kernel uses the memory below its stack pointer. If it doesn't, probes can keep values there.

A kernel loads R1 at its entry. If it has a frame, it lowers R1 once, in the first block. ptxas addresses the stack
upward from there, so everything below is free unless code that it calls lowers R1 further. If no other instruction
writes to R1, the functions in the kernel's section don't do that. Code outside might, unless it never returns
(gpt/sass/kernels.py).

Values stay where they are when R1 changes, so the offset of a slot is different before the instruction that lowers R1.
"""

from __future__ import annotations

from typing import NamedTuple

from gpt.probe.lower.fetch import CannotProbe
from gpt.probe.sass import glue
from gpt.sass.kernels import Kernel
from gpt.sass.words import CONTROL, NO_BARRIER, bits, with_control

STACK_POINTER = 1


class Frame(NamedTuple):
    """The number of bytes that a kernel subtracts from the stack pointer, and the index of the instruction that does
    it, or -1.
    """

    size: int
    lowered: int


NO_FRAME = Frame(0, -1)


def find_frame(kernel: Kernel, has_size: bool = True) -> Frame:
    """Return the frame of a kernel. Raises CannotProbe if something may use the stack below it, or if the file doesn't
    have the size of the stack, which then can't become larger.
    """
    code = kernel.code
    if not has_size:
        raise CannotProbe("has a stack of unknown size, and only a register could keep the probe's values")
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
    """Return the kernel with a barrier on its first instruction, which loads the stack pointer.

    ptxas omits that barrier if the kernel doesn't use the stack pointer. We use the first barrier for which the first
    block waits. That wait comes soon anyway, for values that are loaded at the beginning, and places after it needn't
    wait again.
    """
    code = kernel.code
    first = code[0]
    if first.name != "LDC" or first.control.write_barrier != NO_BARRIER:
        return kernel
    waits = [wait for wait in code.controls.waits[1 : kernel.graph.blocks[0].end] if wait]
    barrier = (waits[0] & -waits[0]).bit_length() - 1 if waits else 0
    stall = max(2, first.control.stall)  # it takes a moment until a barrier shows that something is in flight
    word = with_control(first.word, first.control._replace(write_barrier=barrier, stall=stall))
    return kernel.with_controls({0: word})
