"""Plots of bars over time: what ran where, and when."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gpt.errors import MissingError, UsageError
from gpt.outputs import replacing
from gpt.printable import printable, shorten
from gpt.screen.units import TIMES

FORMS = (".png", ".svg")
WIDTH, DPI = 11.0, 150  # inches, dots an inch
ROW, MARGIN, LEAST, MOST = 0.16, 1.6, 3.0, 14.0  # inches: of a row, above and below; height of all
LABELS = 40  # of rows, at most
MANY = 20_000  # bars that an .svg has as shapes; of more it has a picture
BAR = 0.9  # height of the bars of a row
COLORS, EDGES = "viridis", 1 / 200  # bars have edges where half of them are so long, of all the time
NAME, SENTENCE = 90, 140  # columns of the titles


class Bars(NamedTuple):
    """Bars: in which row, in which lane of it, from when to when, and the value that has a colour. All are arrays."""

    labels: Sequence[str]  # of rows, from the top
    row: Any
    lane: Any
    start: Any
    end: Any
    value: Any


class Titles(NamedTuple):
    """What is written around the bars; `unit` is ns, or the name of another unit of time."""

    title: str
    subtitle: str
    unit: str
    rows: str
    value: str


def check(path: Path) -> None:
    """Raises UsageError if the name is not that of a picture, MissingError without matplotlib."""
    if path.suffix.lower() not in FORMS:
        raise UsageError(f"the name of a plot ends in {' or '.join(FORMS)}", str(path))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingError("matplotlib: pip install 'gpu-probe-toolchain[plot]'") from None


def draw(path: Path, bars: Bars, titles: Titles) -> None:
    """Writes the plot. Raises OSError if it cannot be written."""
    import matplotlib

    matplotlib.use("Agg")
    import numpy as np
    from matplotlib import pyplot
    from matplotlib.collections import PolyCollection

    rows = len(bars.labels)
    unit, scale = _unit(titles.unit, float(bars.end.max()))
    lanes = np.ones(rows, np.int64)
    np.maximum.at(lanes, bars.row, bars.lane + 1)
    height = BAR / lanes[bars.row]
    top = bars.row - BAR / 2 + bars.lane * height
    left, right = bars.start / scale, bars.end / scale
    corners: Any = np.stack(
        [np.stack([left, left, right, right], 1), np.stack([top, top + height, top + height, top], 1)], 2
    )
    figure, axes = pyplot.subplots(
        figsize=(WIDTH, min(MOST, max(LEAST, MARGIN + ROW * rows))), dpi=DPI, layout="constrained"
    )
    edge = 0.3 if np.median(right - left) > EDGES * right.max() else 0
    drawn = PolyCollection(corners, cmap=COLORS, edgecolors="white" if edge else "face", linewidths=edge)
    drawn.set_snap(False)  # of bars narrower than a pixel each is to be seen as what it is
    drawn.set_array(np.asarray(bars.value, float))
    drawn.set_rasterized(len(bars.row) > MANY)
    axes.add_collection(drawn)
    axes.set_xlim(0, right.max() * 1.005)
    axes.set_ylim(rows - 0.4, -0.6)
    step = -(-rows // LABELS)
    axes.set_yticks(range(0, rows, step), bars.labels[::step], fontsize=8)
    axes.set_ylabel(titles.rows)
    axes.set_xlabel(f"time since the first {titles.value} began ({unit})")
    figure.suptitle(_text(titles.title, NAME), fontsize=12, x=0.01, ha="left")
    axes.set_title(_text(titles.subtitle, SENTENCE), fontsize=9, loc="left", color="#4a5568")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.colorbar(drawn, ax=axes, label=titles.value, pad=0.01, aspect=40)
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())
    pyplot.close(figure)


def _text(text: str, width: int) -> str:
    """A text that matplotlib takes as it is."""
    return shorten(printable(text), width, middle=False).replace("$", r"\$")


def _unit(unit: str, most: float) -> tuple[str, float]:
    """The unit of an axis that goes up to `most`, and how many of `unit` it is."""
    if unit != "ns":
        return unit, 1.0
    name, scale = next((u for u in reversed(TIMES) if most >= 2 * u[1]), TIMES[0])
    return name.replace("us", "\N{MICRO SIGN}s"), float(scale)
