"""Draw a flame graph: one box per frame, as wide as its number of samples, above the box of its caller.

`x` are numbers, such as samples. `y` are collapsed stacks: the frames from the outermost on, separated by semicolons.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DEEPEST, LEAST = 40, 1 / 400  # frames; boxes that are narrower, as a share of the whole, aren't drawn
CHARACTERS = 175  # this much text fits in the width of the picture
WARM = 20  # hues from red to yellow


def depth_of(stacks: list[str | None]) -> int:
    """Return how many rows of boxes the stacks need."""
    return min(DEEPEST, max((1 + (stack or "").count(";") for stack in stacks), default=1))


def draw_flame(axes: Any, plot: Mapping[str, Any], columns: Mapping[str, Any], column: Mapping[str, Any]) -> None:
    """Draw stacks, sorted so that equal outer frames are next to each other. `column` is the declaration of `x`."""
    from gpt.screen.marks import number_ticks, text_of

    pairs = zip(columns[plot["y"][0]], columns[plot["x"]].tolist(), strict=True)
    stacks = sorted((tuple((stack or "").split(";"))[:DEEPEST], count) for stack, count in pairs)
    whole = sum(count for _, count in stacks) or 1
    boxes: list[tuple[int, float, float, str]] = []  # depth, left, width, name
    open_: list[tuple[str, float]] = []
    left = 0.0

    def close(depth: int) -> None:
        while len(open_) > depth:
            name, begin = open_.pop()
            boxes.append((len(open_), begin, left - begin, name))

    for stack, count in stacks:
        same = 0
        while same < min(len(stack), len(open_)) and stack[same] == open_[same][0]:
            same += 1
        close(same)
        open_ += [(name, left) for name in stack[same:]]
        left += count
    close(0)
    for depth, begin, width, name in boxes:
        if width < LEAST * whole:
            continue
        axes.barh(depth, width, left=begin, height=1, align="edge", color=_color(name), edgecolor="white", lw=0.5)
        room = int(CHARACTERS * width / whole) - 1  # for the space before the text
        if room >= 3:
            form: Any = {"va": "center", "ha": "left", "fontsize": 7, "clip_on": True}
            axes.text(begin + whole / 400, depth + 0.5, text_of(name, room), **form)
    axes.set_yticks([])
    axes.set(xlim=(0, whole), ylim=(0, max(depth for depth, *_ in boxes) + 1 if boxes else 1))
    number_ticks(axes.xaxis, column)
    axes.set_xlabel(column.get("title") or column["name"])


def _color(name: str) -> Any:
    """Return a warm color for a name. It's always the same."""
    from zlib import crc32

    from matplotlib import colormaps

    return colormaps["YlOrRd"](0.15 + 0.4 * (crc32(name.encode(errors="backslashreplace")) % WARM) / WARM)
