"""Draw a roofline: points under the roofs of devices, with two logarithmic axes.

`x` is operations per byte. `y` are three rates: of the point, and of its roof for operations (both 10^12 a second) and
for bytes (10^9 a second). Points that such axes can't show are left out. Points below the dashed line, LOW of the roof,
are limited by latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOW = 0.1
MARKERS = "osD^v<>PX*"  # several points may coincide
NAMED = 16  # limit of points in the legend
WIDER = 8.0  # axes extend this factor beyond the outermost point or ridge
GRAY = "#4a5568"


def draw_roofs(axes: Any, plot: Mapping[str, Any], columns: Mapping[str, Any], labels: Mapping[str, str]) -> None:
    """Draw points and roofs; `labels` has the legend text of each name."""
    import numpy as np

    from gpt.screen.marks import hue, legend

    point, flat, slope = (np.asarray(columns[name]) for name in plot["y"])
    x, names = np.asarray(columns[plot["x"]]), columns[plot["color"]]
    places = np.flatnonzero((x > 0) & (point > 0) & np.isfinite(x * point))
    roofs = sorted({(a, b) for a, b in zip(flat.tolist(), slope.tolist(), strict=True) if a > 0 and b > 0})
    ends = np.concatenate((x[places], [1000 * a / b for a, b in roofs]))
    left, right = ends.min() / WIDER, ends.max() * WIDER
    for number, (peak, rate) in enumerate(roofs):
        ridge = 1000 * peak / rate
        roof = np.array([left * rate / 1000, peak, peak])
        axes.plot([left, ridge, right], roof, color=GRAY, lw=1.5)
        below = {"label": f"below: latency-bound, under {100 * LOW:g} % of the roof"} if not number else {}
        axes.plot([left, ridge, right], LOW * roof, color=GRAY, lw=1, ls="--", **below)
        axes.annotate(
            f"{peak:,.4g} TFLOP/s", (right, peak), (-4, 4), textcoords="offset points", ha="right", fontsize=8
        )
        start = (left * 1.5, left * 1.5 * rate / 1000)
        axes.annotate(f"{rate:,.4g} GB/s", start, (10, -4), textcoords="offset points", va="top", fontsize=8)
    for number, at in enumerate(places):
        told = {"label": labels[names[at]]} if number < NAMED else {}
        form: Any = {"color": hue(number), "marker": MARKERS[number % len(MARKERS)], "zorder": 3}
        axes.scatter(x[at], point[at], s=36, **form, **told)
    if len(places) > NAMED:
        axes.scatter([], [], label=f"and {len(places) - NAMED:,} more", color="none")
    axes.set(xscale="log", yscale="log", xlim=(left, right), xlabel="FLOPs a byte", ylabel="TFLOP/s")
    axes.grid(which="major", lw=0.3)
    legend(axes)
