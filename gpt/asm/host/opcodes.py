"""The tables of all topics, as one."""

from __future__ import annotations

from gpt.asm.host import asynchronous, atomics, control, floating, integer, matrix, memory, threads
from gpt.asm.host.table import Table

TABLE = Table(
    [
        *asynchronous.ROWS,
        *atomics.ROWS,
        *control.ROWS,
        *floating.ROWS,
        *integer.ROWS,
        *matrix.ROWS,
        *memory.ROWS,
        *threads.ROWS,
    ]
)
