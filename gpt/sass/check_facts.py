"""Compare what the file says about a rewritten kernel with its words and with what the file said before.

The driver reads these numbers, not the words: a kernel with too small a register count or stack would use registers or
memory that it doesn't have.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpt.formats.kernel_edit import MAX_REGISTERS
from gpt.sass.kernels import Facts, Kernel, Relocation
from gpt.sass.words import SIZE
from gpt.sass.woven import Declaration, Inserted


class Version(NamedTuple):
    """A kernel, before or after, and what the file says about it."""

    kernel: Kernel
    facts: Facts


def iter_wrong_facts(original: Version, new: Version, declaration: Declaration) -> Iterator[str]:
    """Yield the facts that don't fit the words or the declaration."""
    was, now = original.facts, new.facts
    moved = {
        SIZE * part.source: SIZE * part.start
        for trampoline in declaration.trampolines
        for part in trampoline.parts
        if not isinstance(part, Inserted)
    }
    for text, is_right in (
        (f"{now.registers} registers", MAX_REGISTERS >= now.registers == declaration.registers >= was.registers),
        ("the bound on registers", now.bound is None or now.bound >= now.registers),
        ("registers in the section's header", now.in_section == (now.registers if was.in_section else 0)),
        ("relocations", now.relocations == tuple(sorted(_moved_relocations(was.relocations, moved)))),
        ("the list of exits", now.exits == tuple(moved.get(offset, offset) for offset in was.exits)),
        (f"{now.barriers} barriers", now.barriers == was.barriers and now.flags == was.flags),
        (f"a frame of {now.frame} bytes", now.frame == was.frame),
        (f"a stack of {now.stack} bytes", now.stack == was.stack + declaration.stack and declaration.stack >= 0),
        ("jump tables", new.kernel.jump_tables == original.kernel.jump_tables),
    ):
        if not is_right:
            yield f"{text}: the declaration or the words need something else"


def _moved_relocations(relocations: tuple[Relocation, ...], moved: Mapping[int, int]) -> Iterator[Relocation]:
    """Yield the relocations, with offsets adjusted for the instructions that were moved."""
    for one in relocations:
        within = one.offset % SIZE
        yield one._replace(offset=moved.get(one.offset - within, one.offset - within) + within)
