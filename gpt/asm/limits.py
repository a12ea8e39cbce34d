"""Limit the registers of kernels in PTX.

ptxas ignores `--maxrregcount` for a kernel that declares its block size (`.maxntid`, `.reqntid`) or its own limit, so
the limit has to go into the text. If a kernel has two `.maxnreg`, the last one is used (both tried with ptxas 12.9).
"""

from __future__ import annotations

from gpt.base.patterns import compiled
from gpt.ptx.scan import Module

MOST = 255  # on any GPU
_LIMIT = compiled(r"\.maxnreg\s+(\d{1,9})\b")


def limit_registers(module: Module, most: int) -> bytes:
    """Return the module's text with `.maxnreg` added to each kernel; line numbers stay the same."""
    text, at = [], 0
    most = min(most, MOST)
    for item in module.entries:
        own = [int(found[1]) for found in _LIMIT.finditer(module.skeleton, item.start, item.body)]
        text += [module.text[at : item.body], f" .maxnreg {min([most, *own])} "]
        at = item.body
    return "".join([*text, module.text[at:]]).encode("latin-1")
