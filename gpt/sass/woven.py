"""The declaration in which a weaver says what it did to a kernel, for `gpt/sass/check.py` to prove.

The checker doesn't trust it. It only says where to look: where the trampolines are, which words each of their parts was
made from, and which register stands for which. Instructions are numbered from the start of their section: `source` in
the original kernel, everything else in the rewritten one.

    original              rewritten                        a trampoline
      k  LDG R4, [R2]       k  BRA t                          t  part: a snippet, its registers renamed
      k+1                   k+1  (as it was)                     part: the LDG, moved
                            ...                                  part: another snippet
                            t  the trampoline                    BRA k+1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gpt.sass.masks import NO_REGISTERS, Registers
from gpt.sass.words import Guard

Names = Mapping[str, Mapping[int, int]]  # by register file: the snippet's register number -> the kernel's


@dataclass(frozen=True)
class Snippet:
    """Code to insert, compiled by ptxas or written by the weaver.

    `inputs` are the registers whose values it gets. Its jumps stay inside it, or lead to the word right after it. A RET
    stands for a jump to the word right after it, and a YIELD for a NOP.
    """

    words: tuple[int, ...]
    inputs: Registers = NO_REGISTERS


@dataclass(frozen=True)
class Inserted:
    """A snippet in its place. If there's a guard, each of its words gets that guard."""

    start: int
    snippet: Snippet
    names: Names
    guard: Guard | None = None

    @property
    def length(self) -> int:
        """Its number of words."""
        return len(self.snippet.words)


@dataclass(frozen=True)
class Moved:
    """An instruction of the kernel that was moved into a trampoline."""

    start: int
    source: int
    length: int = field(default=1, init=False)


@dataclass(frozen=True)
class Trampoline:
    """A trampoline: its parts in order, then the branch back, unless execution never continues after the last part.

    The branch to it replaces the first moved instruction. The others follow that one in the kernel, and also remain at
    their old place.
    """

    start: int
    end: int
    parts: tuple[Inserted | Moved, ...]
    reads: Registers = NO_REGISTERS  # the kernel's registers that are inputs of snippets
    saved: Registers = NO_REGISTERS  # live registers that snippets overwrite; saved before and restored after

    @cached_property
    def sources(self) -> list[int]:
        """The instructions that are moved to it."""
        return [part.source for part in self.parts if isinstance(part, Moved)]


@dataclass(frozen=True)
class Declaration:
    """Everything that was done to a kernel."""

    trampolines: tuple[Trampoline, ...] = ()
    amended: frozenset[int] = frozenset()  # instructions that weren't moved but wait, stall or announce more
    persistent: Registers = NO_REGISTERS  # registers that keep a probe's values from one trampoline to another
    registers: int = 0  # the count in the file, including the two that the hardware reserves
    stack: int = 0  # bytes below the stack pointer for saved registers
