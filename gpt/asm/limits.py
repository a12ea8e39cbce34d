"""PTX whose kernels may use so many registers and no more.

ptxas ignores `--maxrregcount` for a kernel that says its block size (`.maxntid`, `.reqntid`) or its own limit; of two
`.maxnreg` the last one holds (both tried, ptxas 12.9). So the limit is written into the text.
"""

from __future__ import annotations

from gpt.base.patterns import compiled
from gpt.ptx.scan import Module

MOST = 255  # of any GPU
_LIMIT = compiled(r"\.maxnreg\s+(\d{1,9})\b")


def limit_registers(module: Module, most: int) -> bytes:
    """The module's text with `.maxnreg` at each kernel, in the same lines."""
    text, at = [], 0
    most = min(most, MOST)
    for item in module.entries:
        own = [int(found[1]) for found in _LIMIT.finditer(module.skeleton, item.start, item.body)]
        text += [module.text[at : item.body], f" .maxnreg {min([most, *own])} "]
        at = item.body
    return "".join([*text, module.text[at:]]).encode("latin-1")
