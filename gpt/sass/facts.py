"""The numbers that a cubin has for a kernel's code, which must fit its words."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gpt.base.errors import MalformedError
from gpt.formats.code_moves import has_addends, iter_relocations
from gpt.formats.cubin_edit import CubinEditor
from gpt.formats.kernel_edit import MAXREG_COUNT, KernelEditor
from gpt.formats.nvinfo import iter_attributes

EXITS, BARRIERS = 0x1C, 0x4C  # attributes of `.nv.info.K`: offsets of EXITs, u32 each; the number of barriers
FRAME, STACK = 0x11, 0x12  # attributes of the module by symbol: bytes of its own frame; of everything it calls, too


class Relocation(NamedTuple):
    """A place in a kernel's code that the driver fills in: an offset, and the symbol and number that go there."""

    offset: int
    kind: int
    symbol: int
    addend: int


@dataclass(frozen=True)
class Facts:
    """The numbers that the file has for a kernel's code."""

    registers: int  # the number in the file: the highest register + 3
    in_section: int  # the same number in the section's header, up to ELF ABI 7; 0 if it isn't there
    bound: int | None  # the file's limit on it, if there is one
    exits: tuple[int, ...]  # offsets of EXITs
    barriers: int
    frame: int
    stack: int
    flags: int  # the section's flags
    relocations: tuple[Relocation, ...]  # in order


def read_facts(cubin: CubinEditor, name: str) -> Facts:
    """Read what the file says about a kernel's code. Raises MalformedError, and CannotEdit if it isn't understood."""
    editor = KernelEditor(cubin, name)
    exits: tuple[int, ...] = ()
    barriers = 0
    bound = None
    for entry in iter_attributes(editor.info):
        if entry.kind == EXITS:
            if len(entry.payload) % 4:
                raise MalformedError("cubin: a list of exits ends within an entry")
            exits = struct.unpack(f"<{len(entry.payload) // 4}I", entry.payload)
        elif entry.kind == BARRIERS:
            barriers = entry.value
        elif entry.kind == MAXREG_COUNT:
            bound = entry.value
    frame, stack = (cubin.find_pair(kind, editor.symbol) or 0 for kind in (FRAME, STACK))
    flags, info = (int(cubin.sections[field][editor.section]) for field in ("flags", "info"))
    relocations = tuple(sorted(_iter_relocations(cubin, editor.section)))
    return Facts(
        editor.registers, info >> 24, bound, exits, barriers, frame, stack, flags, relocations
    )  # fmt: skip


def _iter_relocations(cubin: CubinEditor, section: int) -> Iterator[Relocation]:
    for _, _, table in iter_relocations(cubin, section):
        addends = table["addend"] if has_addends(table) else [0] * len(table)
        for one, addend in zip(table, addends, strict=True):
            yield Relocation(int(one["offset"]), int(one["type"]), int(one["symbol"]), int(addend))
