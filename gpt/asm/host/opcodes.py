"""The tables of all topics combined."""

from __future__ import annotations

from gpt.asm.host import asynchronous, atomics, control, floating, integer, matrix, memory, threads, video
from gpt.asm.host.table import InstructionTable

_TOPICS = (asynchronous, atomics, control, floating, integer, matrix, memory, threads, video)
TABLE = InstructionTable([row for topic in _TOPICS for row in topic.ROWS])
