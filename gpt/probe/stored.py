"""Determine how a log stores the fields of its records (gpt/stream/rooms.py), from the values that probes save in
them.
"""

from __future__ import annotations

from gpt.probe.model import COUNTS, Map, ProbeFile
from gpt.ptx import tree
from gpt.stream.rooms import FORMED, MOST_FORMED

SAME_IN_WARP = {"CLOCK", "TIME", "SMID", "WARPID", "BLOCK", "ACTIVE"}  # helpers, in lanes that save together


def find_stored(file: ProbeFile, map_: Map) -> tuple[str, ...]:
    """Return how a log stores each of its fields, judging by the values that the file's probes save."""
    given: list[set[str]] = [set() for _ in map_.fields]
    for _, snippet in (one for probe in file.probes for one in probe.snippets):
        for save in (save for save in snippet.saves if save.map == map_.name):
            for number, value in enumerate(save.values, save.first):
                name = value.name if isinstance(value, tree.Name) else ""
                given[number].add("" if name == "CLOCK" and not save.last else name)
    found: list[str] = []
    for field, names in zip(map_.fields, given, strict=True):
        if names == {"CLOCK"} and field.size == 8:
            found.append("clock" if "clock" not in found else "shared")
        elif names == {"SMID"} and field.size == 4:
            found.append("sm")
        elif map_.level != "thread" or names <= SAME_IN_WARP:
            found.append("shared")
        elif sum(one in FORMED for one in found) == MOST_FORMED:
            found.append("each")
        else:
            found.append("equal" if names <= COUNTS and field.size < 8 else "lane")
    return tuple(found)
