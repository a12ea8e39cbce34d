"""Find the sites of a kernel: the instructions where probes can go, and the registers that are free there.

A site is the kernel's first instruction (the face `entry`), or an instruction with a face (faces.py). A probe's code
runs before or after it, in free registers: dead ones, with nothing in flight for them (flow.py). Everything that the
site itself waits for has arrived by then. Registers of the file R that the kernel doesn't name aren't counted, because
a kernel that needs more of them may lose warps. Registers of the other files exist anyway.

    R    below the kernel's register count (the lowest that setmaxnreg leaves), without R1, the stack pointer
    UR   all of them. The weaver decides whether one may be written where only some lanes of a warp are
    P    without PT; UP in the same way
    B    convergence barriers
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from gpt.base.errors import GptError
from gpt.sass.code import Instruction
from gpt.sass.faces import ARCH, find_face
from gpt.sass.flow import InFlight
from gpt.sass.kernels import Kernel
from gpt.sass.masks import EVERY_REGISTER, Registers, unpack

ENTRY = "entry"
_ALL_BARRIERS = 63
_GENERAL = (1 << 255) - 1
_STACK_POINTER = 1 << 1


class Site(NamedTuple):
    """An instruction where a probe can go.

    `face` is empty if it can't be shown to a probe; `free` is None if it's unreachable.
    """

    one: Instruction
    face: str
    free: Registers | None


def iter_sites(kernel: Kernel) -> Iterator[Site]:
    """Yield the sites of a kernel, in code order.

    Raises UnboundedError, and GptError for an architecture whose instructions have no faces.
    """
    code = kernel.code
    if code.table.arch.name != ARCH:
        raise GptError(f"no PTX instructions are known to stand for the instructions of {code.table.arch.name}")
    faces = [(one, face) for one in code if (face := find_face(one)) is not None]
    live, flight = kernel.live, kernel.flight
    for one, face in [(code[0], ENTRY), *faces]:
        state = flight[one.index]
        if state is not None:
            yield Site(one, face, _find_free(kernel, one, live[one.index], state))
        elif one.target != one.offset:  # a branch to itself is padding
            yield Site(one, face, None)


def _find_free(kernel: Kernel, one: Instruction, live: int, state: InFlight) -> Registers:
    wait = _ALL_BARRIERS if one.name == "EXIT" else one.control.wait  # a trampoline at an exit can wait for all
    named = (1 << min(kernel.kept, 255)) - 1 & ~_STACK_POINTER
    usable = EVERY_REGISTER & ~_GENERAL | named
    uniform = (1 << (1 << kernel.code.table.arch.uniform_bits) - 1) - 1
    free = unpack(usable & ~(live | state.after_waiting(wait) | state.unawaited))
    return free._replace(UR=free.UR & uniform)
