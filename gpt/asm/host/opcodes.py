"""The tables of all topics, as one."""

from __future__ import annotations

from gpt.asm.host import control, integer, memory
from gpt.asm.host.table import Table

TABLE = Table([*control.ROWS, *integer.ROWS, *memory.ROWS])
