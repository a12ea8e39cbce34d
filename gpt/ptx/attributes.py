"""Parse the launch attributes after a kernel's parameters: `.maxntid 256`, `.blocksareclusters`."""

from __future__ import annotations

from gpt.base.errors import MalformedError
from gpt.ptx import tree
from gpt.ptx.quick import parse_function
from gpt.ptx.scan import Item, Module
from gpt.ptx.types import integer


def read_attributes(head: tree.FunctionNode | tree.Prototype) -> dict[str, list[int]]:
    """Return the attributes of a function with their numbers: `{".reqntid": [128, 1, 1]}`. Raises MalformedError."""
    return {
        one.word: [_number(one, value) for value in one.values]
        for one in head.attributes
        if isinstance(one, tree.Attribute)
    }


def cluster_of(module: Module, kernel: Item) -> list[int] | None:
    """Return the size of a cluster in blocks (x, y, z) if the grid of this kernel counts clusters, or None if it counts
    blocks.
    """
    if ".blocksareclusters" not in module.skeleton[kernel.start : kernel.body or kernel.end]:
        return None
    found = read_attributes(parse_function(module, kernel))
    return ([*found.get(".reqnctapercluster", []), 1, 1, 1])[:3] if ".blocksareclusters" in found else None


def block_of(module: Module, kernel: Item) -> dict[str, int]:
    """Return the special registers that `.reqntid` makes constant: `%ntid.x` to z, and `%tid.y` if it's 0 because y has
    an extent of 1.
    """
    if ".reqntid" not in module.skeleton[kernel.start : kernel.body or kernel.end]:
        return {}
    found = read_attributes(parse_function(module, kernel)).get(".reqntid", [])
    extents = dict(zip("xyz", [*found, 1, 1, 1], strict=False)) if found else {}
    places = {f"%tid.{axis}": 0 for axis, extent in extents.items() if extent == 1}
    return {f"%ntid.{axis}": extent for axis, extent in extents.items()} | places


def _number(attribute: tree.Attribute, text: str) -> int:
    value = integer(text)
    if value is None:
        raise MalformedError(f"'{attribute}' with '{text}'")
    return value
