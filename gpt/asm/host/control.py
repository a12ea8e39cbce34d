"""Branches and calls."""

from __future__ import annotations

from gpt.asm.host.names import Unsupported
from gpt.asm.host.table import Row
from gpt.asm.host.use import Use
from gpt.ptx import tree


def _branch(use: Use) -> str:
    """A branch, which counts if it is a backward one."""
    (target,) = use.operands
    if not isinstance(target, tree.Name) or not (label := use.body.find_label(target.name)):
        raise Unsupported(f"no label '{target}'")
    if label.index > use.body.index:
        return f"goto {label.name};"
    return f"host_back(t, {use.site}); goto {label.name};"


def _exit(use: Use) -> str:
    return "return;" if use.body.is_kernel else "t->services->exit(t);"


ROWS = [
    Row("bra{.uni}", "= a", _branch),
    Row("ret{.uni}", "", lambda _: "goto leave;"),
    Row("exit", "", _exit),
    Row("trap", "", lambda use: f"t->services->fault(t, {use.site}, HOST_FAULT_TRAP, 0);"),
    Row("brkpt", "", lambda use: f"t->services->fault(t, {use.site}, HOST_FAULT_TRAP, 0);"),
]
