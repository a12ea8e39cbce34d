"""Draw a density map: how often each row is accessed over time, in tones from pale to dark.

Rows are in order. Neighboring rows with the same name, such as a tensor's, form a band, which is separated
from the next one by a line. The name is to the left of the band. If names would overlap, they're moved apart, and a
line leads from each name to its band.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpt.screen.marks import LABEL, SMALL, axis, number_ticks, text_of, unit_of

COLORS, PALEST = "Blues", 0.28  # share of the colors that are too pale on white
FEW = 20  # with more accesses than this, colors are logarithmic
WIDE = 100  # if the values differ by a larger factor, the scale has only powers of ten
CELL = 1 / 16  # maximum width of a cell, as a share of the axis
LARGEST = 4096  # limit of columns
ROW, LEAST, MOST = 0.3, 1.2, 5.0  # in inches: maximum height of a row, minimum and maximum height of all rows
LINE = 0.145  # inches from one name to the next
ROOM = 0.05  # share of the axis between names and rows, for the lines that lead to bands
GRAY, EMPTY = "#a0aec0", "#f4f6f9"

Record = Mapping[str, Any]
Columns = dict[str, Any]


def height_of(rows: int, names: int) -> float:
    """Return the height in inches of a map with this number of rows and names."""
    return min(MOST, max(LEAST, ROW * rows, LINE * min(names, MOST / LINE)))


def draw_density(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    """Draw cells from `x` to `end`, with a row for each value of `y` that occurs, and bands named by `lane`."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import LinearSegmentedColormap, LogNorm, Normalize

    x, color, row = columns[plot["x"]], columns[plot["color"]], plot["y"][0]
    values, first, y = np.unique(columns[row], return_index=True, return_inverse=True)
    step = float((columns[plot["end"]] - x).max())
    column = np.minimum(np.rint((x - x.min()) / step).astype(np.int64), LARGEST - 1)
    shape = len(values), int(column.max()) + 1
    image = np.full(shape, np.nan)
    image[y, column] = color
    unit, scale = unit_of(told[plot["x"]].get("unit", ""), float(x.max()))
    begin, end = x.min() / scale, (x.min() + step * shape[1]) / scale
    tones = LinearSegmentedColormap.from_list("tones", colormaps[COLORS](np.linspace(PALEST, 1, 256)))
    least, most = float(np.nanmin(image)), float(np.nanmax(image))
    norm = (LogNorm if most > FEW else Normalize)(least if least < most else most / 2, most)  # a single value is dark
    drawn = axes.imshow(
        image,
        cmap=tones,
        norm=norm,
        aspect="auto",
        interpolation="nearest",
        extent=(begin, end, -0.5, len(values) - 0.5),
        origin="lower",
    )
    axes.set_facecolor(EMPTY)
    axes.set_xlim(begin, max(end, begin + step / scale / CELL))
    _draw_scale(axes, drawn, told[plot["color"]], least, most)
    if "lane" in plot:
        names = columns[plot["lane"]]
        _name_bands(axes, [names[at] for at in first], image)
    else:
        axes.set_ylabel(told[row].get("title", row))
    axes.set_yticks([])
    number_ticks(axes.xaxis, told[plot["x"]], scale)
    axes.set_xlabel(axis(told[plot["x"]], unit))


def _draw_scale(axes: Any, drawn: Any, told: Record, least: float, most: float) -> None:
    """Draw the scale of tones next to the map, with plain numbers."""
    side = axes.figure.colorbar(drawn, ax=axes, label=told.get("title", told["name"]), pad=0.01, aspect=40)
    number_ticks(side.ax.yaxis, told)
    if least == most:
        side.set_ticks([most])
    elif most > FEW:
        firsts = (1,) if most > WIDE * least else (1, 2, 5)
        ticks = [first * 10**power for power in range(20) for first in firsts if least <= first * 10**power <= most]
        side.set_ticks(ticks if len(ticks) > 1 else [least, most])
        side.formatter = "{x:,.0f}"
    side.ax.minorticks_off()


def _name_bands(axes: Any, names: Sequence[str], image: Any) -> None:
    """Separate the bands by lines. Name as many as there's room for; bands with more accesses come first."""
    import numpy as np

    opens = [at for at, name in enumerate(names) if not at or name != names[at - 1]]
    ends = [*opens[1:], len(names)]
    for at in opens[1:]:
        axes.axhline(at - 0.5, color=GRAY, lw=0.6)
    weights = [float(np.nansum(image[begin:end])) for begin, end in zip(opens, ends, strict=True)]
    apart = LINE / height_of(len(names), len(opens)) * len(names)  # in rows
    room = max(1, int(len(names) / apart))
    kept = sorted(sorted(range(len(opens)), key=lambda at: -weights[at])[:room])
    middles = [(opens[at] + ends[at] - 1) / 2 for at in kept]
    places = spread(middles, apart, -0.5, len(names) - 0.5)
    for at, middle, place in zip(kept, middles, places, strict=True):
        axes.annotate(
            text_of(names[opens[at]], LABEL, middle=True),
            (0, middle),
            (-ROOM, place),
            xycoords=("axes fraction", "data"),
            textcoords=("axes fraction", "data"),
            ha="right",
            va="center",
            fontsize=SMALL,
            arrowprops={"arrowstyle": "-", "color": GRAY, "lw": 0.6, "shrinkA": 1, "shrinkB": 0, "relpos": (1, 0.5)},
        )
    if more := len(opens) - len(kept):
        axes.annotate(
            f"and {more:,} more", (0, 1), (-ROOM, 1), xycoords="axes fraction", ha="right", va="bottom", fontsize=SMALL
        )


def spread(middles: Sequence[float], apart: float, low: float, high: float) -> list[float]:
    """Return places near these `middles`, which are sorted, with a distance of at least `apart` between them, within
    two limits.

    Places that are too close form a group around their common middle.
    """
    groups: list[tuple[float, int]] = []  # middle and number
    for middle in middles:
        groups.append((middle, 1))
        while True:
            groups[-1] = _inside(*groups[-1], apart, low, high)
            if len(groups) < 2 or groups[-1][0] - groups[-2][0] >= apart * (groups[-1][1] + groups[-2][1]) / 2:
                break
            (one, few), (other, more) = groups[-2:]
            groups[-2:] = [((one * few + other * more) / (few + more), few + more)]
    return [middle + apart * (at - (count - 1) / 2) for middle, count in groups for at in range(count)]


def _inside(middle: float, count: int, apart: float, low: float, high: float) -> tuple[float, int]:
    """Move a group between the limits."""
    half = apart * count / 2
    return min(max(middle, low + half), max(high - half, low + half)), count
