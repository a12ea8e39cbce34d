"""Limit the registers of kernels in PTX.

ptxas ignores `--maxrregcount` for a kernel that declares its block size (`.maxntid`, `.reqntid`) or a limit of its own,
so the limit has to be in the text. If a kernel has two `.maxnreg`, the last one is used (we tried both with ptxas
12.9).
"""

from __future__ import annotations

from gpt.base.patterns import compiled
from gpt.ptx.scan import Module

MOST = 255  # on any GPU
_LIMIT = compiled(r"\.maxnreg\s+(\d{1,9})\b")


def limit_registers(module: Module, most: int) -> bytes:
    """Return the text of a module in which each kernel has `.maxnreg`. The line numbers stay the same."""
    text, at = [], 0
    most = min(most, MOST)
    for item in module.entries:
        own = [int(found[1]) for found in _LIMIT.finditer(module.skeleton, item.start, item.body)]
        text += [module.text[at : item.body], f" .maxnreg {min([most, *own])} "]
        at = item.body
    return "".join([*text, module.text[at:]]).encode("latin-1")
