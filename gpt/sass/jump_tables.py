"""Read a kernel's jump tables, which say where its indirect branches lead.

They're in the attribute 0x34 of `.nv.info.K`: for each indirect branch its offset, a zero, the number of its targets,
and their offsets, u32 each (as in the code that ptxas generates for a `switch`).
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator

from gpt.base.errors import MalformedError
from gpt.formats.code_moves import INDIRECT_BRANCH_TARGETS
from gpt.formats.cubin import Data
from gpt.formats.cubin_layout import CannotEdit
from gpt.formats.nvinfo import iter_attributes

_JUMP = struct.Struct("<III")
_MAX_TARGETS = 1 << 20  # the limit for all jump tables of a kernel together


def read_jump_tables(info: Data) -> dict[int, frozenset[int]]:
    """Return the targets of each indirect branch, all as offsets. Raises MalformedError, or CannotEdit if there are too
    many.
    """
    tables: dict[int, set[int]] = defaultdict(set)
    room = _MAX_TARGETS
    for branch, targets in _iter_tables(info):
        room -= len(targets)
        if room < 0:
            raise CannotEdit("jump tables that are too large")
        tables[branch].update(targets)
    return {branch: frozenset(targets) for branch, targets in tables.items()}


def _iter_tables(info: Data) -> Iterator[tuple[int, tuple[int, ...]]]:
    for entry in iter_attributes(info):
        if entry.kind != INDIRECT_BRANCH_TARGETS:
            continue
        at = 0
        while at < len(entry.payload):
            if at + _JUMP.size > len(entry.payload):
                raise MalformedError("cubin: a jump table ends within an entry")
            branch, _, count = _JUMP.unpack_from(entry.payload, at)
            at += _JUMP.size
            if 4 * count > len(entry.payload) - at:
                raise MalformedError("cubin: a jump table ends within an entry")
            yield branch, struct.unpack_from(f"<{count}I", entry.payload, at)
            at += 4 * count
