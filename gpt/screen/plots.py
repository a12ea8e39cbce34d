"""Draw answers as pictures, according to their `plots`, so no analysis is treated specially here.

Each plot is a panel of a certain form (forms.py). An answer without plots is drawn as bars: the first numeric column
with a unit, for each text in the first column.
"""

from __future__ import annotations

import logging
import math
import os
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gpt.base.cache import default_folder, make_private
from gpt.base.errors import GptError, UsageError
from gpt.base.install import missing_package
from gpt.base.outputs import replacing
from gpt.base.printable import printable
from gpt.base.scratch import enter_scratch
from gpt.screen.density import height_of
from gpt.screen.flame import depth_of
from gpt.screen.forms import FORMS, GRAY, Columns, Record, choose_bars
from gpt.screen.marks import SMALL, text_of
from gpt.stream import packed

SUFFIXES = (".png", ".svg")
WIDTH, DPI = 11.0, 150  # inches, dots per inch
ROW, MARGIN, LEAST, MOST = 0.16, 1.6, 3.0, 14.0  # inches: height of a row, margins, limits of a panel's height
ROOFS = 6.0  # height of a roofline in inches
MISSING = "#b91c1c"  # color of the text about missing data
OVER_TIME = ("spans", "lines", "levels")  # forms
SAME_END = 0.02  # two axes with the same time may differ by this much at their ends, because some have a margin
NAME, SENTENCE = 90, 105  # columns of a title, and of a line below it


def check(path: Path) -> None:
    """Raise UsageError if the file name isn't a picture's, and MissingError without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"the name of a plot ends in {' or '.join(SUFFIXES)}", str(path))
    if not find_spec("matplotlib"):
        raise missing_package("matplotlib")


@contextmanager
def _private_settings() -> Iterator[None]:
    """Have matplotlib keep its settings and its list of fonts in a private folder, or in a temporary one.

    It would write the list through a link, which another user may have put into the usual folder: as root, HOME may be
    that user's.
    """
    with ExitStack() as kept:
        folder = default_folder("matplotlib")
        try:
            if not folder:
                raise FileNotFoundError
            make_private(folder)
        except OSError:
            folder = enter_scratch(kept, "gpt-fonts-").path
        os.environ["MPLCONFIGDIR"] = str(folder)
        yield


def draw(path: Path, answers: Sequence[Record]) -> None:
    """Draw the answers that have plots. If none has any, draw the first answer. Raises OSError if the picture can't be
    written.

    Raises GptError if there's nothing to draw.
    """
    with _private_settings():
        _draw(path, answers)


def _draw(path: Path, answers: Sequence[Record]) -> None:
    try:
        import matplotlib
    except ImportError:  # something that it needs isn't installed
        raise missing_package("matplotlib") from None

    # A matplotlibrc in the working directory can make matplotlib run LaTeX or any module, and it may belong to another
    # user.
    matplotlib.rcdefaults()
    matplotlib.use("Agg")
    logging.getLogger("matplotlib").setLevel(logging.CRITICAL)  # it warns if listing fonts is slow, or can't be kept
    from matplotlib import pyplot

    told = [(answer, plot) for answer in answers for plot in answer.get("plots", ())]
    panels = told or [(answer, plot) for answer in answers[:1] for plot in _bars_of(answer)]
    panels = [(answer, plot) for answer, plot in panels if answer["rows"] and plot["form"] in FORMS]
    if not panels:
        raise GptError("nothing to draw (a script can pass plots=[...] to make_answer)", str(path))
    chosen = [(_choose(_read(answer), answer, plot), plot) for answer, plot in panels]
    kept = [at for at, one in enumerate(chosen) if _differs(*one)] or [0]  # one of them rather than none
    panels, columns = [panels[at] for at in kept], [chosen[at][0] for at in kept]
    heights = [_height(plot, of) for (_, plot), of in zip(panels, columns, strict=True)]
    size = (WIDTH, min(MOST * len(panels), sum(heights)))
    figure = pyplot.figure(figsize=size, dpi=DPI, layout="constrained")
    parts = figure.subfigures(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]  # each as wide as possible
    over_time: list[list[Any]] = []  # groups of panels with the same time axis
    for (answer, plot), of, part in zip(panels, columns, parts, strict=True):
        axes, known = part.subplots(), {told["name"]: told for told in answer["columns"]}
        FORMS[plot["form"]](axes, plot, of, known)
        if plot["form"] in OVER_TIME and known[plot["x"]].get("unit") == "ns":
            end = axes.get_xlim()[1]
            same = (group for group in over_time if math.isclose(group[0].get_xlim()[1], end, rel_tol=SAME_END))
            if group := next(same, None):
                group.append(axes)
            else:
                over_time.append([axes])
        title = plot.get("title") or "\n".join([answer["name"], *answer["verdict"][:1]])
        _title(axes, title if _differs(of, plot) else f"{title}\n{_describe_equal(of, plot, known)}")
    if missing := [line for answer in answers[:1] for line in answer.get("incomplete", ())]:
        told_lines = "\n".join(text_of(f"incomplete: {line}", SENTENCE) for line in missing)
        parts[-1].supxlabel(told_lines, fontsize=SMALL, color=MISSING)
    with replacing(path) as file, warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph ")  # matplotlib draws a box for a missing glyph
        if together := [group for group in over_time if len(group) > 1]:
            figure.draw_without_rendering()  # computes the layout
            figure.set_layout_engine("none")
            for group in together:
                _align(group)
        figure.savefig(file, format=path.suffix[1:].lower())
    pyplot.close(figure)


def _align(panels: Sequence[Any]) -> None:
    """Align panels that have the same time axis, even if some of them have a scale of colors next to them."""
    places = [axes.get_position() for axes in panels]
    left, right = max(place.x0 for place in places), min(place.x1 for place in places)
    edges = [axes.get_xlim() for axes in panels]
    for axes, place in zip(panels, places, strict=True):
        axes.set_position((left, place.y0, right - left, place.height))
        axes.set_xlim(min(edge[0] for edge in edges), max(edge[1] for edge in edges))


def _bars_of(answer: Record) -> list[Record]:
    """Return a plot for an answer that has none."""
    text = [told["name"] for told in answer["columns"] if told["type"].rstrip("?") == packed.TEXT]
    numbers = [told for told in answer["columns"] if told["type"].rstrip("?") != packed.TEXT]
    shown = [told for told in numbers if told.get("unit") != "id" and told.get("shown") != "never"]
    best = [told["name"] for told in shown if told.get("unit") in ("ns", "cycles", "bytes")]
    best += [told["name"] for told in shown]
    return [{"form": "bars", "x": text[0], "y": best[:1]}] if text and best else []


def _read(answer: Record) -> Columns:
    """Return the columns of an answer, in which infinite values are replaced by NaN."""
    found = _read_all(answer)
    return {name: column if isinstance(column, list) else _finite(column) for name, column in found.items()}


def _finite(column: Any) -> Any:
    import numpy as np

    return np.where(np.isfinite(column), column, np.nan)


def _read_all(answer: Record) -> Columns:
    import numpy as np

    fields, rows = packed.unpack_rows(answer)
    if any(field.type in (packed.TEXT, packed.NUMBER) for field in fields):
        values = list(zip(*rows, strict=True))
        return {
            field.name: list(column) if field.type == packed.TEXT else np.array(
                [np.nan if value is None else value for value in column], float
            )
            for field, column in zip(fields, values, strict=True)
        }  # fmt: skip
    found: Columns = {}
    for field in fields:
        count = len(answer["rows"]) // answer["stride"]
        array = np.ndarray((count,), "<" + field.code, answer["rows"], field.offset, (answer["stride"],))
        none = array == np.array(field.none, array.dtype) if field.optional else False
        found[field.name] = np.where(none, np.nan, array.astype(float))
    return found


def _choose(columns: Columns, answer: Record, plot: Record) -> Columns:
    """Return the rows that a plot selects."""
    if "of" not in plot:
        return columns
    first = next(told["name"] for told in answer["columns"] if told["type"].rstrip("?") == packed.TEXT)
    here = [at for at, text in enumerate(columns[first]) if text == plot["of"]]
    return {
        name: [column[at] for at in here] if isinstance(column, list) else column[here]
        for name, column in columns.items()
    }


def _differs(columns: Columns, plot: Record) -> bool:
    """Return False if a panel shows a single value: a histogram with one column, or lines of one point each."""
    import numpy as np

    if plot["form"] == "histogram":
        return len(np.unique(columns[plot["x"]][columns[plot["y"][0]] > 0])) > 1
    if plot["form"] == "lines" and "color" in plot:
        return len(set(columns[plot["color"]])) < len(columns[plot["x"]])
    return True


def _describe_equal(columns: Columns, plot: Record, known: Mapping[str, Record]) -> str:
    """Return a sentence about a panel that shows a single value."""
    if plot["form"] != "histogram":
        return "one point per line"
    low, high = columns[plot["x"]][0], columns[plot["end"]][0]
    whole, unit = columns[plot["y"][0]].sum(), known[plot["x"]].get("unit", "")
    what = known[plot["y"][0]].get("title", plot["y"][0])
    return f"all {whole:,.0f} {what}: from {low:,g} to {high:,g}{f' {unit}' if unit else ''}"


def _height(plot: Record, columns: Columns) -> float:
    """Return the height of a panel in inches."""
    if plot["form"] == "roofs":
        return ROOFS
    if plot["form"] == "heat":
        names = len(set(columns[plot["lane"]])) if "lane" in plot else 0
        return MARGIN + height_of(len(set(columns[plot["y"][0]])), names)
    rows = 0
    if plot["form"] == "bars":
        places, rest = choose_bars(plot, columns)
        rows = 2 * (len(places) + bool(rest))
    elif plot["form"] == "flame":
        rows = 2 * depth_of(columns[plot["y"][0]])
    elif plot["form"] == "spans":
        rows = len(set(columns[plot["y"][0]]))
    return min(MOST, max(LEAST, MARGIN + ROW * rows))


def _title(axes: Any, text: str) -> None:
    """Write the first line as the title of a panel, and the others below it, smaller.

    The layout doesn't depend on their length.
    """
    first, *rest = text.split("\n")
    more = [line for one in rest for line in textwrap.wrap(printable(one), SENTENCE, break_on_hyphens=False)]
    axes.set_title(text_of(first, NAME), fontsize=12, loc="left", pad=8 + 13 * len(more))
    for at, line in enumerate(more):
        place = {"xycoords": "axes fraction", "textcoords": "offset points", "fontsize": 9}
        told = axes.annotate(text_of(line, SENTENCE), (0, 1), (0, 6 + 13 * (len(more) - 1 - at)), **place)
        told.set(color=MISSING if line.startswith("incomplete: ") else GRAY, in_layout=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
