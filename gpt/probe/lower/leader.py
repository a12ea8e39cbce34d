"""Find the lane that saves for a group of lanes."""

from __future__ import annotations

from gpt.probe.lower.emit import Condition, Emitter
from gpt.probe.model import Map


def find_leader(code: Emitter, map_: Map, condition: Condition | None = None) -> Condition:
    """Return the condition that this lane saves for its group."""
    if map_.leader == "lane0":
        first = Condition(code.once("pred", "setp.eq.u32", code.special("%laneid"), 0))
    else:
        first = code.first(code.group(condition)[1])
    both = code.both(first, condition)
    assert both
    return both
