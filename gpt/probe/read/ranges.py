"""Give ranges their numbers.

`RANGE begin NAME, %n` is `SAVE [RING] {CLOCK, SMID, 2 * N, %n}`: RING is the map of the file with a `ring`, and N is
the index of the name in its `ranges`. `RANGE end NAME` saves 2 * N + 1. The lowering decides when the clock is read.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpt.base.errors import GptError, MalformedError
from gpt.probe.model import EDGES, Map, Probe, Save
from gpt.ptx import tree
from gpt.stream.rooms import RANGE_FIELDS

MAX_NAME = 64  # characters
MAX_RANGES = 256  # names in a file
_NUMBER = 2  # index of the field with the number of the range


def make_range(
    edge: str, name: str, number: tree.Operand | None, guard: tree.Guard | None, what: str, where: str
) -> Save:
    """Make a RANGE, whose map and number aren't known yet. Raises MalformedError for a name that can't be quoted."""
    if not 0 < len(name) <= MAX_NAME or not name.isprintable() or '"' in name or "\\" in name:
        fact = f"the name of a range has 1 to {MAX_NAME} printable characters, without quotes and backslashes"
        raise MalformedError(f"{what}: {fact}", where)
    zero = tree.Number("0")
    values = (tree.Name("CLOCK"), tree.Name("SMID"), zero, number or zero)
    return Save("", values, (), guard=guard, mark=(edge, name))


def find_ring(maps: Collection[Map], what: str, where: str) -> str:
    """Return the name of the map for ranges. Raises GptError."""
    found = [map_.name for map_ in maps if is_for_ranges(map_)]
    if len(found) != 1:
        fields = ", ".join(name for name, _ in RANGE_FIELDS)
        raise GptError(f"{what}: RANGE needs one map with 'ring' and the fields {fields}, not {len(found)}", where)
    return found[0]


def is_for_ranges(map_: Map) -> bool:
    """Return whether RANGE can save to a map."""
    return map_.ring is not None and tuple((field.name, field.type) for field in map_.fields) == RANGE_FIELDS


def refuse_ranges(probe: Probe, path: str) -> None:
    """Raise GptError if a probe that has no table for its map has a RANGE."""

    def refuse(save: Save, line: int) -> Save:
        if save.mark:
            raise GptError(f"probe '{probe.name}': RANGE needs a map with 'ring', in a table [map.*]", f"{path}:{line}")
        return save

    probe.with_saves(refuse)


def number_ranges(probes: list[Probe], maps: list[Map], path: str) -> tuple[list[Map], list[Probe]]:
    """Return the maps with the names of their ranges, and the probes with the numbers of these. Raises GptError."""
    names: dict[str, int] = {}

    def place(save: Save, line: int) -> Save:
        if not save.mark:
            return save
        edge, name = save.mark
        number = 2 * names.setdefault(name, len(names)) + EDGES.index(edge)
        if len(names) > MAX_RANGES:
            raise GptError(f"more than {MAX_RANGES} ranges", f"{path}:{line}")
        values = (*save.values[:_NUMBER], tree.Number(str(number)), *save.values[_NUMBER + 1 :])
        return replace(save, values=values)

    placed = [probe.with_saves(place) for probe in probes]
    return [replace(map_, ranges=tuple(names)) if names and is_for_ranges(map_) else map_ for map_ in maps], placed
