"""Add parameters to a kernel."""

from __future__ import annotations

from gpt.formats.params import Param
from gpt.probe.plan.left_alone import LeftAlone
from gpt.probe.plan.woven import addresses_after
from gpt.probe.ptx.edits import DECLARE, Insertions
from gpt.ptx.params import layout, limit, reserved, room
from gpt.ptx.quick import parse_params
from gpt.ptx.scan import Item, Module


def extended(module: Module, entry: Item, count: int) -> tuple[list[Param], list[Param]]:
    """Return the parameters of a kernel, and `count` additional ones. Raises LeftAlone if there's no room for them."""
    own, where = parse_params(module, entry) or (), module.where(entry.start)
    params, plain = layout(own, reserved(module.target), where), layout(own, where=where)
    if count and addresses_after(plain, count)[-1].offset + 8 > limit(module.version):
        raise LeftAlone("too_large", f"no room for {count} more parameters", entry.name)
    return params, addresses_after(params, count)


def declare(module: Module, entry: Item, names: list[str], to: Insertions) -> None:
    """Add parameters for addresses to every declaration of a kernel."""
    for item in module.items if names else ():
        if item.kind == "entry" and item.name == entry.name:
            at, before, after = room(module, item)
            lines = [f"{', ' if number else before}.param .u64 {name}" for number, name in enumerate(names)]
            lines[-1] += after
            to.add(at, DECLARE, lines)
