"""The forms of plots. For each form, there's a function that draws the columns of a `plot` in a panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gpt.screen.marks import (
    LABEL,
    NAMES,
    SMALL,
    axis,
    hue,
    hues_of,
    human_of,
    labels_of,
    legend,
    logarithmic_ticks,
    name_hues,
    number_ticks,
    text_of,
    unit_of,
)

FILLED = 0.35  # opacity of a histogram
GROWS, WIDE = 8, 1000  # a histogram gets a logarithmic axis above these ratios of column widths and heights
BARS = 30  # limit
SEEN = 1 / 500  # bars shorter than this share of the longest one are invisible
SIDE = 5  # margin of a histogram that has a single column, as a number of columns
ROOM = 0.1  # space for text after the longest bar
NARROW = 1 / 200  # narrower parts of a bar, as a share of it, are drawn as one
LABELS = 40  # limit for the labels of rows
NUMBER = 16  # columns of the text at a bar
MANY = 20_000  # with more spans than this, an .svg has a bitmap instead of shapes
BAR = 0.9  # total height of the bars in a row
COLORS, EDGES = "viridis", 1 / 200  # spans have edges if the median is longer than this share of the time
PALEST = 0.25  # opacity of the smallest value
GRAY = "#4a5568"

Record = Mapping[str, Any]
Columns = dict[str, Any]  # arrays in which NaN stands for no value, or lists of text


def choose_bars(plot: Record, columns: Columns) -> tuple[list[int], list[int]]:
    """Return the rows that get a bar of their own, and the rows that are combined in an additional bar.

    If each bar is a single value, the longest bars come first, rows without a value get no bar, and bars that would be
    invisible are combined. On a logarithmic axis, all bars are visible.
    """
    import numpy as np

    rows = [at for at, label in enumerate(columns[plot["x"]]) if label is not None]  # the others are sums
    if len(plot["y"]) > 1:
        return rows[:BARS], rows[BARS:]
    size = np.abs(np.nan_to_num(columns[plot["y"][0]]))
    known = sorted((at for at in rows if size[at]), key=lambda at: -size[at])
    if not known:
        return rows[:BARS], rows[BARS:]
    least = 0.0 if "log" in plot else SEEN * size[known[0]]
    seen = [at for at in known[:BARS] if size[at] >= least]
    return (seen, known[len(seen) :]) if len(known) > len(seen) + 1 else (known, [])


def _draw_bars(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    """Draw bars with names and values, and a pale bar for the rest, unless the values are ratios."""
    import numpy as np

    places, rest = choose_bars(plot, columns)
    names = _label_bars(plot, columns, told, places) + ([f"and {len(rest):,} more"] if rest else [])
    shown = [name for name in plot["y"] if np.nan_to_num(columns[name][places]).any()] or plot["y"][:1]
    values = np.stack([columns[name][places] for name in shown])
    first = told[plot["y"][0]]
    if rest:
        others = [np.nan if is_ratio(first) else np.nansum(columns[name][rest]) for name in shown]
        values = np.column_stack((values, others))
    unit, scale = unit_of(first.get("unit", ""), float(np.nanmax(np.abs(values), initial=0)))
    left = np.zeros(len(names))
    for number, (name, row) in enumerate(zip(shown, values, strict=True)):
        title = told[name].get("title", name)
        drawn = axes.barh(
            range(len(names)), np.nan_to_num(row) / scale, left=left, height=0.8, label=title, color=hue(number)
        )
        if rest:
            drawn[-1].set_alpha(PALEST)
        left += np.nan_to_num(row) / scale
    human = human_of(first)
    sums = np.where(np.isnan(values).all(axis=0), np.nan, np.nansum(values, axis=0))
    ends = [human(value) if value == value else "" for value in sums.tolist()]
    if "end" in plot:
        ends = [f"{value:.2f}x" if value == value else "" for value in columns[plot["end"]][places].tolist()]
        ends += [""] * bool(rest)
    for at, text in enumerate(text_of(end, NUMBER) for end in ends):
        back = left[at] < 0
        form: Any = {"va": "center", "ha": "right" if back else "left", "fontsize": SMALL - 1, "color": GRAY}
        axes.annotate(text, (left[at], at), (-3 if back else 3, 0), textcoords="offset points", **form)
    axes.set_yticks(range(len(names)), names, fontsize=SMALL)
    axes.set_ylim(len(names) - 0.4, -0.6)
    least, most = min(left.min(), 0), max(left.max(), 0)
    room = ROOM * (most - least)
    axes.set_xlim(least - room * (least < 0), most + room if most > least else 1)
    number_ticks(axes.xaxis, first, scale)
    axes.set_xlabel(axis(first if len(shown) == 1 else {}, unit))
    if "log" in plot and min(left, default=0) > 0 and max(left) > GROWS * min(left):
        logarithmic_ticks(axes, first, scale)
        axes.set_xlim(min(left) / 2, max(left) * (max(left) / min(left)) ** ROOM * 2)
        axes.set_xlabel(axis(first, ""))
    if len(shown) > 1:
        legend(axes)


def is_ratio(column: Record) -> bool:
    """Return whether a column's values can't be added up: floating-point numbers without a unit, or percentages."""
    return str(column.get("type", "")).startswith("f") and column.get("unit", "") in ("", "%")


def _draw_stack(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    """Draw one bar that is divided into parts, each with a name and a share. Parts too narrow to be seen share one."""
    import numpy as np

    values = np.nan_to_num(columns[plot["y"][0]])
    first = told[plot["y"][0]]
    unit, scale = unit_of(first.get("unit", ""), float(values.sum()))
    left, whole = 0.0, float(values.sum()) or 1.0
    parts = [(_cut(columns[plot["x"]][at] or ""), values[at]) for at in np.flatnonzero(values).tolist()]
    narrow = [value for _, value in parts if value < NARROW * whole]
    if len(narrow) > 1:
        parts = [part for part in parts if part[1] >= NARROW * whole] + [(f"{len(narrow)} others", sum(narrow))]
    for number, (name, value) in enumerate(parts):
        label = f"{name} {100 * value / whole:.1f} %"
        axes.barh(0, value / scale, left=left, height=0.5, label=label, color=hue(number), edgecolor="white")
        left += value / scale
    axes.set_yticks([])
    axes.set_ylim(-0.5, 0.5)
    axes.set_xlim(0, left or 1)
    number_ticks(axes.xaxis, first, scale)
    axes.set_xlabel(axis(first, unit))
    legend(axes)


def _label_bars(plot: Record, columns: Columns, told: Mapping[str, Record], places: Sequence[int]) -> list[str]:
    """Return the label of each bar. If a bar is part of the row above it, that's the name of the part."""
    texts = [columns[plot["x"]][at] for at in places]
    whole = told[plot["x"]].get("shown") == "never"  # the column is only for the picture
    under = next((name for name, of in told.items() if of.get("shown") == "under" and not whole), plot["x"])
    names = labels_of(texts) if told[plot["x"]].get("unit") == "kernel" else {name: _cut(name) for name in texts}
    parts = [columns[under][at] if under != plot["x"] else None for at in places]
    return [names[text] if part is None else _cut(part) for text, part in zip(texts, parts, strict=True)]


def _cut(text: str) -> str:
    return text_of(text, LABEL)


def _draw_levels(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    """Draw values over time. Each value is valid until the next one."""
    _draw_lines(axes, plot, columns, told)
    for line in axes.get_lines():
        line.set_drawstyle("steps-post")


def _draw_lines(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    import numpy as np

    x, first = columns[plot["x"]], told[plot["y"][0]]
    unit_x, scale_x = unit_of(told[plot["x"]].get("unit", ""), float(np.nanmax(x, initial=0)))
    most = max(float(np.nanmax(columns[name], initial=0)) for name in plot["y"])
    unit_y, scale_y = unit_of(first.get("unit", ""), most)
    if "color" in plot:  # a line for each value of this column
        series, value = columns[plot["color"]], columns[plot["y"][0]] / scale_y
        labels = labels_of(series)
        for number, name in enumerate(dict.fromkeys(series if isinstance(series, list) else series.tolist())):
            here = np.array([one == name for one in series]) if isinstance(series, list) else series == name
            label = labels.get(name) if number < NAMES else None
            axes.plot(x[here] / scale_x, value[here], label=label, color=hue(number), **_mark(int(here.sum())))
    for name in () if "color" in plot else plot["y"]:
        title = told[name].get("title", name)
        axes.plot(x / scale_x, columns[name] / scale_y, label=title, **_mark(len(x)))
    axes.margins(x=0 if len(x) > 1 else ROOM)
    number_ticks(axes.xaxis, told[plot["x"]], scale_x)
    number_ticks(axes.yaxis, first, scale_y)
    if _grows(x):
        logarithmic_ticks(axes, told[plot["x"]], scale_x)
        unit_x = ""
    if min(float(np.nanmin(columns[name], initial=0)) for name in plot["y"]) >= 0:
        axes.set_ylim(0, (1 + ROOM) * most / scale_y or 1)
    axes.set_xlabel(axis(told[plot["x"]], unit_x))
    axes.set_ylabel(axis(first if len(plot["y"]) == 1 else {}, unit_y))
    if axes.get_legend_handles_labels()[0] and (len(plot["y"]) > 1 or "color" in plot):
        legend(axes)


def _mark(points: int) -> dict[str, Any]:
    """Return the style of a line. A line with a single point needs a marker to be visible."""
    return {"lw": 1, "marker": "o" if points == 1 else None, "ms": 4}


def _grows(x: Any) -> bool:
    """Return whether values grow exponentially, like the bins of a logarithmic histogram."""
    import numpy as np

    if len(x) < GROWS or not (x > 0).all() or not (np.diff(x) > 0).all():
        return False
    ratios = x[1:] / x[:-1]
    return bool(ratios.max() < 1.5 * ratios.min() and x[-1] > WIDE * x[0])


def _draw_histogram(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    """Draw a histogram with columns from `x` to `end`, for each value of `color`.

    If widths grow, the axis is logarithmic.
    """
    import numpy as np

    left, right, height = columns[plot["x"]], columns[plot["end"]], columns[plot["y"][0]]
    grows = left.min() >= 0 and (right - left).max() > GROWS * (right - left).min()
    unit, scale = unit_of(told[plot["x"]].get("unit", ""), float(right.max()))
    whole = bool((left % 1 == 0).all() and (right % 1 == 0).all())
    if whole and (right - left == 1).all():  # a column for each integer, centered on it
        left, right = left - 0.5, right - 0.5
    series = columns[plot["color"]] if "color" in plot else [None] * len(left)
    labels = labels_of(series)
    for number, name in enumerate(dict.fromkeys(series)):
        here = np.array([one == name for one in series])
        edges, color = np.unique(np.concatenate((left[here], right[here]))) / scale, hue(number)
        heights = np.zeros(len(edges) - 1)  # 0 in gaps
        heights[np.searchsorted(edges, left[here] / scale)] = height[here]
        axes.stairs(heights, edges, fill=True, alpha=FILLED, color=color, label=labels.get(name))
        axes.stairs(heights, edges, color=color, lw=1)
    if left.min() == left.max():  # otherwise, a constant would be as wide as the picture
        width = (right[0] - left[0]) / scale
        axes.set_xlim(left[0] / scale - SIDE * width, right[0] / scale + SIDE * width)
    number_ticks(axes.xaxis, {"type": "u64"} if whole else told[plot["x"]], scale)
    number_ticks(axes.yaxis, told[plot["y"][0]])
    if grows:
        logarithmic_ticks(axes, told[plot["x"]], scale, from_zero=right.min() / scale if not left.min() else 0)
        unit = ""
    if height.max() > WIDE * height[height > 0].min(initial=np.inf):
        axes.set_yscale("log")
    axes.set_xlabel(text_of(plot["of"], LABEL) if "of" in plot else axis(told[plot["x"]], unit))
    axes.set_ylabel(axis(told[plot["y"][0]], ""))
    if any(name is not None for name in series):
        legend(axes)


def _draw_spans(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    import numpy as np
    from matplotlib.collections import PolyCollection

    row = plot["y"][0]
    if isinstance(columns[row], list):
        names, number = list(dict.fromkeys(columns[row])), {}
        number = {name: at for at, name in enumerate(names)}
        rows = np.array([number[name] for name in columns[row]])
        told_names = labels_of(names)
        labels = [told_names.get(name, "-") for name in names]
    else:
        values, rows = np.unique(columns[row], return_inverse=True)
        labels = [f"{value:g}" for value in values]
    count = len(labels)
    start, end = columns[plot["x"]], columns[plot["end"]]
    unit, scale = unit_of(told[plot["x"]].get("unit", ""), float(np.nanmax(end, initial=0)))
    lane = columns[plot["lane"]].astype(int) if "lane" in plot else np.zeros(len(rows), int)
    lanes = np.ones(count, np.int64)
    np.maximum.at(lanes, rows, lane + 1)
    height = BAR / lanes[rows]
    top = rows - BAR / 2 + lane * height
    left, right = start / scale, end / scale
    corners: Any = np.stack(
        [np.stack([left, left, right, right], 1), np.stack([top, top + height, top + height, top], 1)], 2
    )
    edge = 0.3 if np.median(right - left) > EDGES * right.max() else 0
    drawn = PolyCollection(corners, cmap=COLORS, edgecolors="white" if edge else "face", linewidths=edge)
    drawn.set_snap(False)  # bars that are narrower than a pixel are blended
    drawn.set_rasterized(len(rows) > MANY)
    axes.add_collection(drawn)
    first = left.min() if left.min() > right.max() / 2 else 0
    axes.set_xlim(first, right.max() + (right.max() - first) / 200)
    axes.set_ylim(count - 0.4, -0.6)
    step = -(-count // LABELS)
    axes.set_yticks(range(0, count, step), labels[::step], fontsize=SMALL)
    axes.set_ylabel(told[row].get("title", row))
    number_ticks(axes.xaxis, told[plot["x"]], scale)
    axes.set_xlabel(f"time since the first began ({unit or 'clocks'})")
    if "color" not in plot:
        return
    color = columns[plot["color"]]
    if isinstance(color, list):
        hues = hues_of(sorted(color, key=str))
        drawn.set_facecolor([hues[name] for name in color])
        if not edge:
            drawn.set_edgecolor("face")
        name_hues(axes, hues)
    else:
        drawn.set_array(color)
        if color.min() < color.max():
            _draw_scale(axes, drawn, told[plot["color"]])


def _draw_scale(axes: Any, drawn: Any, told: Record) -> None:
    """Draw the scale of colors next to a panel."""
    side = axes.figure.colorbar(drawn, ax=axes, label=told.get("title", told["name"]), pad=0.01, aspect=40)
    number_ticks(side.ax.yaxis, told)


def _draw_heat(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    from gpt.screen.density import draw_density

    draw_density(axes, plot, columns, told)


def _draw_roofs(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    from gpt.screen.roofs import draw_roofs

    titles = {name: column.get("title", name) for name, column in told.items()}
    draw_roofs(axes, plot, columns, labels_of(columns[plot["color"]]), titles)


def _draw_flame(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    from gpt.screen.flame import draw_flame

    draw_flame(axes, plot, columns, told[plot["x"]])


FORMS: dict[str, Callable[[Any, Record, Columns, Mapping[str, Record]], None]] = {
    "bars": _draw_bars,
    "stack": _draw_stack,
    "lines": _draw_lines,
    "levels": _draw_levels,
    "histogram": _draw_histogram,
    "spans": _draw_spans,
    "heat": _draw_heat,
    "roofs": _draw_roofs,
    "flame": _draw_flame,
}
