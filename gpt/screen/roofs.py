"""Draw a roofline: points below the roofs of devices, on two logarithmic axes.

`x` is operations per byte. `y` has these rates, in order: operations of the point, its roof for operations (both in
10^12 a second), its roof for bytes, bytes of the point (both in 10^9 a second), and the roofs for operations with other
precisions, which are named after the titles of their columns. Points below the dashed line, at LOW of the roof, are
limited by latency.

A point that performs no operations has no place on the axis of intensity. It's drawn as a hollow point in a strip at
the left, as far below the roof for bytes as its rate is. Other points that can't be shown on such axes are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOW = 0.1
MARKERS = "osD^v<>PX*"  # several points may coincide
NAMED = 16  # limit for the points in the legend
WIDER = 8.0  # axes extend beyond the outermost point or ridge by this factor
STRIP = 3.0  # width of the strip for points without operations, as a factor
GRAY, PALE = "#4a5568", "#a0aec0"
SMALL = 8
MAIN = "FP16, BF16"


def draw_roofs(
    axes: Any, plot: Mapping[str, Any], columns: Mapping[str, Any], labels: Mapping[str, str], titles: Mapping[str, str]
) -> None:
    """Draw points and roofs. `labels` has the text in the legend for each name, and `titles` has the title of each
    column.
    """
    import numpy as np

    from gpt.screen.marks import hue, legend

    point, flat, slope, *rest = (np.asarray(columns[name]) for name in plot["y"][:4])
    moved = rest[0] if rest else np.zeros(len(point))
    x, names = np.asarray(columns[plot["x"]]), columns[plot["color"]]
    usual = (x > 0) & (point > 0) & np.isfinite(x * point)
    idle = ~usual & (moved > 0) & ~(point > 0)
    roofs = sorted({(a, b) for a, b in zip(flat.tolist(), slope.tolist(), strict=True) if a > 0 and b > 0})
    ends = np.concatenate((x[usual], [1000 * a / b for a, b in roofs]))
    left, right = (ends.min() / WIDER, ends.max() * WIDER) if len(ends) else (0.1, 1000.0)
    edge = left
    if idle.any():
        left = edge / STRIP
        axes.axvspan(left, edge, color=PALE, alpha=0.2, lw=0)
        form: Any = {"textcoords": "offset points", "va": "top", "fontsize": SMALL}
        axes.annotate("no tensor\noperations", (left, 1), (3, -3), xycoords=axes.get_xaxis_transform(), **form)
    others = {name: np.asarray(columns[name]) for name in plot["y"][4:]}
    for number, (peak, rate) in enumerate(roofs):
        mine = (flat == peak) & (slope == rate)
        lower = sorted((float(value), name) for name, column in others.items()
                       for value in set(column[mine].tolist()) if value > 0)  # fmt: skip
        _draw_others(axes, lower, rate, right, titles)
        ridge, top = 1000 * peak / rate, max([peak, *(value for value, _ in lower)])
        axes.plot([left, 1000 * top / rate], [left * rate / 1000, top], color=GRAY, lw=1.5)
        axes.plot([ridge, right], [peak, peak], color=GRAY, lw=1.5)
        below = {"label": f"below: latency-bound, under {100 * LOW:g} % of the roof"} if not number else {}
        roof = LOW * np.array([left * rate / 1000, peak, peak])
        axes.plot([left, ridge, right], roof, color=GRAY, lw=1, ls="--", **below)
        axes.annotate(f"{MAIN if lower else ''} {peak:,.4g} TFLOP/s", (right, peak), (-4, 3),
                      textcoords="offset points", ha="right", fontsize=SMALL)  # fmt: skip
        start = (left * 1.2, left * 1.2 * rate / 1000)
        axes.annotate(f"{rate:,.4g} GB/s", start, (0, 12), textcoords="offset points", fontsize=SMALL)
    places = np.flatnonzero(usual | idle)
    for number, at in enumerate(places.tolist()):
        told_by: Any = {"label": labels[names[at]]} if number < NAMED else {}
        color, marker = hue(number), MARKERS[number % len(MARKERS)]
        where = (x[at], point[at])
        form = {"color": color}
        if idle[at]:
            middle = left * STRIP ** ((number % len(MARKERS) + 1) / (len(MARKERS) + 1))
            where, form = (middle, middle * moved[at] / 1000), {"facecolors": "none", "edgecolors": color}
        axes.scatter(*where, s=36, marker=marker, zorder=3, **form, **told_by)
    if len(places) > NAMED:
        axes.scatter([], [], label=f"and {len(places) - NAMED:,} more", color="none")
    axes.set(xscale="log", yscale="log", xlim=(left, right), xlabel="FLOPs a byte", ylabel="TFLOP/s")
    axes.grid(which="major", lw=0.3)
    legend(axes)


def _draw_others(
    axes: Any, lower: list[tuple[float, str]], rate: float, right: float, titles: Mapping[str, str]
) -> None:
    """Draw the roofs for other precisions. Precisions with the same rate share a line."""
    lines: dict[float, list[str]] = {}
    for value, name in lower:
        lines.setdefault(value, []).append(titles[name])
    for value, found in lines.items():
        axes.plot([1000 * value / rate, right], [value, value], color=PALE, lw=1)
        axes.annotate(f"{', '.join(found)} {value:,.4g}", (right, value), (-4, 3), textcoords="offset points",
                      ha="right", fontsize=SMALL - 1, color=GRAY)  # fmt: skip
