"""Preserve the results of a kernel in places where ptxas would have fused a product and a sum, but a probe now
separates them.
"""

from __future__ import annotations

from gpt.probe.ptx.edits import DECLARE, KEEP, Insertions
from gpt.probe.ptx.function import PtxFunction
from gpt.ptx.contract import find_edits
from gpt.ptx.scan import Module


def fuse(module: Module, function: PtxFunction, insertions: Insertions, prefix: str) -> None:
    """Rewrite such pairs as fma, if something is inserted into their stretch of code (gpt/ptx/contract.py)."""
    item = function.item
    for start, end, text in list(find_edits(module, item, function.statements, prefix, insertions.are_within)):
        if end > start:
            insertions.replace(start, end, text)
        else:
            insertions.add(start, DECLARE if start == item.body + 1 else KEEP, [text.strip()])
