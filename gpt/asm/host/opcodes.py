"""The tables of all topics combined."""

from __future__ import annotations

from gpt.asm.host import asynchronous, atomics, control, floating, integer, matrix, memory, threads, video
from gpt.asm.host.table import InstructionTable

_TOPICS = (asynchronous, atomics, control, floating, integer, matrix, memory, threads, video)
TABLE = InstructionTable([row for topic in _TOPICS for row in topic.ROWS])

# Opcodes that the simulated device doesn't have: textures, surfaces, later tensor cores, memory of several GPUs.
ABSENT = {
    *("tex", "tld4", "txq", "istypep", "suld", "sust", "sured", "suq", "tensormap"),
    *("wgmma", "tcgen05", "multimem", "clusterlaunchcontrol"),
}
