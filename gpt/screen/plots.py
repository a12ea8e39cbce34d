"""Answers as pictures: what an answer says of its `plots` is drawn, whatever analysis it is of.

A form of plot is a function from the columns that a `plot` names to what is drawn in a panel; FORMS names them. An
answer without plots has bars: its first column of numbers with a unit, for each text of its first column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpt import packed
from gpt.errors import GptError, MissingError, UsageError
from gpt.outputs import replacing
from gpt.printable import printable, shorten
from gpt.screen.demangle import readable
from gpt.screen.units import TIMES

SUFFIXES = (".png", ".svg")
WIDTH, DPI = 11.0, 150  # inches, dots an inch
ROW, MARGIN, LEAST, MOST = 0.16, 1.6, 3.0, 14.0  # inches: of a row, above and below; height of a panel
FILLED = 0.35  # how opaque a histogram is
GROWS, WIDE = 8, 1000  # ratios of the columns of a histogram, in width and height, with which an axis is logarithmic
HEAT = 6.0  # inches: height of a heat map
BARS = 30  # that are drawn
LABELS = 40  # of rows, at most
MANY = 20_000  # spans that an .svg has as shapes; of more it has a picture
BAR = 0.9  # height of the bars of a row
COLORS, EDGES = "viridis", 1 / 200  # spans have edges where half of them are so long, of all the time
LARGEST, TICKS = 4096, 12  # columns of a heat map; labels of its rows
HUES, PALEST = 24, 0.25  # names in its legend; how much of its color the least has
NAME, LABEL, SENTENCE = 90, 48, 140  # columns of a title, of a label, of a line below a title
GRAY = "#4a5568"
BYTES = ("bytes", "KiB", "MiB", "GiB", "TiB")

Record = Mapping[str, Any]
Columns = dict[str, Any]  # an array each, NaN for no value; of text a list


def check(path: Path) -> None:
    """Raises UsageError if the name is not that of a picture, MissingError without matplotlib."""
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"the name of a plot ends in {' or '.join(SUFFIXES)}", str(path))
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingError("matplotlib: pip install 'gpu-probe-toolchain[plot]'") from None


def draw(path: Path, answers: Sequence[Record]) -> None:
    """Draws the answers that say how, or the first. Raises OSError if that cannot be written.

    Raises GptError if there is nothing to draw.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    told = [(answer, plot) for answer in answers for plot in answer.get("plots", ())]
    panels = told or [(answer, plot) for answer in answers[:1] for plot in _bars_of(answer)]
    panels = [(answer, plot) for answer, plot in panels if answer["rows"] and plot["form"] in FORMS]
    if not panels:
        raise GptError("nothing to draw", str(path))
    columns = [_choose(_read(answer), answer, plot) for answer, plot in panels]
    heights = [_height(plot, of) for (_, plot), of in zip(panels, columns, strict=True)]
    size = (WIDTH, min(MOST * len(panels), sum(heights)))
    figure, axes = pyplot.subplots(
        len(panels), figsize=size, dpi=DPI, layout="constrained", squeeze=False, height_ratios=heights
    )
    for (answer, plot), of, place in zip(panels, columns, axes[:, 0], strict=True):
        FORMS[plot["form"]](place, plot, of, {told["name"]: told for told in answer["columns"]})
        _title(place, plot.get("title") or "\n".join([answer["name"], *answer["verdict"][:1]]))
    if missing := [line for answer in answers[:1] for line in answer.get("incomplete", ())]:
        figure.supxlabel(
            "\n".join(_text(f"incomplete: {line}", SENTENCE) for line in missing), fontsize=8, color="#b91c1c"
        )
    with replacing(path) as file:
        figure.savefig(file, format=path.suffix[1:].lower())
    pyplot.close(figure)


def _bars_of(answer: Record) -> list[Record]:
    """How an answer is drawn that does not say it."""
    text = [told["name"] for told in answer["columns"] if told["type"].rstrip("?") == packed.TEXT]
    numbers = [told for told in answer["columns"] if told["type"].rstrip("?") != packed.TEXT]
    shown = [told for told in numbers if told.get("unit") != "id" and told.get("shown") != "never"]
    best = [told["name"] for told in shown if told.get("unit") in ("ns", "cycles", "bytes")]
    best += [told["name"] for told in shown]
    return [{"form": "bars", "x": text[0], "y": best[:1]}] if text and best else []


def _read(answer: Record) -> Columns:
    """The columns of an answer."""
    import numpy as np

    fields, rows = packed.unpack_rows(answer)
    if any(field.type == packed.TEXT for field in fields):
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
    """The rows that a plot is of."""
    if "of" not in plot:
        return columns
    first = next(told["name"] for told in answer["columns"] if told["type"].rstrip("?") == packed.TEXT)
    here = [at for at, text in enumerate(columns[first]) if text == plot["of"]]
    return {
        name: [column[at] for at in here] if isinstance(column, list) else column[here]
        for name, column in columns.items()
    }


def _height(plot: Record, columns: Columns) -> float:
    """Inches of a panel."""
    name = plot["x"] if plot["form"] == "bars" else plot["y"][0]
    rows = len(set(columns[name])) if plot["form"] in ("bars", "spans") else 0
    rows = min(rows, BARS) * 2 if plot["form"] == "bars" else rows
    if plot["form"] in ("heat", "roofs"):
        return HEAT
    return min(MOST, max(LEAST, MARGIN + ROW * rows))


def _draw_bars(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    import numpy as np

    places = [at for at, label in enumerate(columns[plot["x"]]) if label is not None][:BARS]  # the others are sums
    labels = [columns[plot["x"]][at] for at in places]
    labels = readable(labels) if told[plot["x"]].get("unit") == "kernel" else labels
    values = np.stack([columns[name][places] for name in plot["y"]])
    unit, scale = _unit(told[plot["y"][0]].get("unit", ""), float(np.nanmax(values, initial=0)))
    left = np.zeros(len(labels))
    for name, row in zip(plot["y"], values, strict=True):
        axes.barh(range(len(labels)), row / scale, left=left, height=0.8, label=told[name].get("title", name))
        left += np.nan_to_num(row) / scale
    for at, value in enumerate(columns[plot["end"]][places] if "end" in plot else ()):
        axes.annotate(f" {value:.4g}x" if value == value else "", (left[at], at), va="center", fontsize=8)
    axes.set_yticks(range(len(labels)), [_text(label, LABEL) for label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(_axis(told[plot["y"][0]] if len(plot["y"]) == 1 else {}, unit))
    if len(plot["y"]) > 1:
        axes.legend(fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _draw_levels(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    """Lines of values that stay until the next one."""
    _draw_lines(axes, plot, columns, told)
    for line in axes.get_lines():
        line.set_drawstyle("steps-post")


def _draw_lines(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    import numpy as np

    unit_x, scale_x = _unit(told[plot["x"]].get("unit", ""), float(np.nanmax(columns[plot["x"]], initial=0)))
    most = max(float(np.nanmax(columns[name], initial=0)) for name in plot["y"])
    unit_y, scale_y = _unit(told[plot["y"][0]].get("unit", ""), most)
    x = columns[plot["x"]] / scale_x
    if "color" in plot:  # a line for each of its values
        series, value = columns[plot["color"]], columns[plot["y"][0]] / scale_y
        for name in dict.fromkeys(series if isinstance(series, list) else series.tolist()):
            here = np.array([one == name for one in series]) if isinstance(series, list) else series == name
            label = _text(readable([name])[0], LABEL) if isinstance(name, str) else None
            axes.plot(x[here], value[here], lw=1, label=label)
        if isinstance(series, list):
            axes.legend(fontsize=8, frameon=False)
    for name in () if "color" in plot else plot["y"]:
        axes.plot(x, columns[name] / scale_y, lw=1, label=told[name].get("title", name))
    axes.margins(x=0)
    axes.set_xlabel(_axis(told[plot["x"]], unit_x))
    axes.set_ylabel(_axis(told[plot["y"][0]] if len(plot["y"]) == 1 else {}, unit_y))
    if len(plot["y"]) > 1:
        axes.legend(fontsize=8, frameon=False)


def _draw_histogram(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    """Columns from `x` to `end`: a histogram, for each value of `color`. Where columns grow, so does the axis."""
    import numpy as np

    left, right, height = columns[plot["x"]], columns[plot["end"]], columns[plot["y"][0]]
    grows = left.min() >= 0 and (right - left).max() > GROWS * (right - left).min()
    unit = told[plot["x"]].get("unit", "")
    unit, scale = (unit, 1.0) if grows else _unit(unit, float(right.max()))
    series = columns[plot["color"]] if "color" in plot else [None] * len(left)
    names = list(dict.fromkeys(series))
    for number, name in enumerate(names):
        here = np.array([one == name for one in series])
        edges, hue = np.unique(np.concatenate((left[here], right[here]))) / scale, f"C{number}"
        heights = np.zeros(len(edges) - 1)  # 0 between columns
        heights[np.searchsorted(edges, left[here] / scale)] = height[here]
        label = _text(readable([name])[0], LABEL) if isinstance(name, str) else None
        axes.stairs(heights, edges, fill=True, alpha=FILLED, color=hue, label=label)
        axes.stairs(heights, edges, color=hue, lw=1)
    if grows:
        axes.set_xscale("symlog" if not left.min() else "log", **({} if left.min() else {"linthresh": right.min()}))
    if height.max() > WIDE * height[height > 0].min(initial=np.inf):
        axes.set_yscale("log")
    axes.set_xlabel(_text(plot["of"], LABEL) if "of" in plot else _axis(told[plot["x"]], unit))
    axes.set_ylabel(_axis(told[plot["y"][0]], ""))
    if "color" in plot:
        axes.legend(fontsize=8, frameon=False)


def _draw_spans(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    import numpy as np
    from matplotlib.collections import PolyCollection

    row = plot["y"][0]
    if isinstance(columns[row], list):
        names, number = list(dict.fromkeys(columns[row])), {}
        number = {name: at for at, name in enumerate(names)}
        rows = np.array([number[name] for name in columns[row]])
        labels = [_text(name or "-", LABEL) for name in names]
    else:
        values, rows = np.unique(columns[row], return_inverse=True)
        labels = [f"{value:g}" for value in values]
    count = len(labels)
    start, end = columns[plot["x"]], columns[plot["end"]]
    unit, scale = _unit(told[plot["x"]].get("unit", ""), float(np.nanmax(end, initial=0)))
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
    drawn.set_snap(False)  # of bars narrower than a pixel each is to be seen as what it is
    drawn.set_rasterized(len(rows) > MANY)
    axes.add_collection(drawn)
    first = left.min() if left.min() > right.max() / 2 else 0
    axes.set_xlim(first, right.max() + (right.max() - first) / 200)
    axes.set_ylim(count - 0.4, -0.6)
    step = -(-count // LABELS)
    axes.set_yticks(range(0, count, step), labels[::step], fontsize=8)
    axes.set_ylabel(told[row].get("title", row))
    axes.set_xlabel(f"time since the first began ({unit or 'clocks'})")
    if "color" not in plot:
        return
    color = columns[plot["color"]]
    if isinstance(color, list):
        hues = _hues(sorted(color, key=str))
        drawn.set_facecolor([hues[name] for name in color])
        if not edge:
            drawn.set_edgecolor("face")
        _name_hues(axes, hues)
    else:
        drawn.set_array(color)
        label = told[plot["color"]].get("title", plot["color"])
        axes.figure.colorbar(drawn, ax=axes, label=label, pad=0.01, aspect=40)


def _draw_heat(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    """Rows are dense: one for each value of y that is there."""
    import numpy as np
    from matplotlib.colors import LogNorm

    x, color, row = columns[plot["x"]], columns[plot["color"]], plot["y"][0]
    values, y = np.unique(columns[row], return_inverse=True)
    places = np.unique(x)
    step = float(np.diff(places).min()) if len(places) > 1 else 1.0
    column = np.rint((x - x.min()) / step).astype(np.int64)
    column = np.minimum(column, LARGEST - 1)
    shape = len(values), int(column.max()) + 1
    unit, scale = _unit(told[plot["x"]].get("unit", ""), float(x.max()))
    sides = (x.min() / scale, (x.min() + step * shape[1]) / scale, len(values) - 0.5, -0.5)
    form: Any = {"aspect": "auto", "interpolation": "nearest", "extent": sides}
    if "lane" in plot:
        _draw_hues(axes, columns[plot["lane"]], (y, column), color, np.zeros((*shape, 4)), form)
    else:
        image = np.full(shape, np.nan)
        image[y, column] = color
        drawn = axes.imshow(image, cmap=COLORS, norm=LogNorm(), **form)
        label = told[plot["color"]].get("title", plot["color"])
        axes.figure.colorbar(drawn, ax=axes, label=label, pad=0.01, aspect=40)
    axes.invert_yaxis()
    ticks = np.unique(np.linspace(0, len(values) - 1, min(TICKS, len(values))).astype(int))
    number = hex if told[row].get("unit") == "address" else str
    axes.set_yticks(ticks, [number(int(values[tick])) for tick in ticks], fontsize=8)
    axes.set_xlabel(_axis(told[plot["x"]], unit))
    axes.set_ylabel(told[row].get("title", row))


def _draw_hues(axes: Any, names: Sequence[str | None], places: Any, values: Any, image: Any, form: Any) -> None:
    """Each name has a hue, and what is less is paler."""
    import numpy as np

    hues = _hues(names)
    image[(*places, slice(0, 3))] = [hues[name] for name in names]
    image[(*places, 3)] = PALEST + (1 - PALEST) * np.log1p(values) / np.log1p(values.max())
    axes.imshow(image, **form)
    _name_hues(axes, hues)


def _hues(names: Sequence[str | None]) -> dict[str | None, Any]:
    """A hue for each name, in the order in which they come; what has none is gray."""
    from matplotlib import colormaps

    hues = colormaps["tab10"]
    known = dict.fromkeys(name for name in names if name is not None)
    found: dict[str | None, Any] = {name: hues(at % hues.N)[:3] for at, name in enumerate(known)}
    return found | ({None: (0.5, 0.5, 0.5)} if None in names else {})


def _name_hues(axes: Any, hues: Mapping[str | None, Any]) -> None:
    """A legend of the first HUES names."""
    from matplotlib.patches import Patch

    names = [name for name in hues if name is not None][:HUES]
    patches = [Patch(color=hues[name], label=_text(name, LABEL)) for name in names]
    patches += [Patch(color=hues[None], label="no name")] if None in hues else []
    axes.legend(handles=patches, fontsize=7, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _draw_roofs(axes: Any, plot: Record, columns: Columns, told: Mapping[str, Record]) -> None:
    from gpt.screen.roofs import draw_roofs

    del told  # its units are those of the form
    draw_roofs(axes, plot, columns, lambda name: _text(readable([name])[0], LABEL))


FORMS: dict[str, Callable[[Any, Record, Columns, Mapping[str, Record]], None]] = {
    "bars": _draw_bars,
    "lines": _draw_lines,
    "levels": _draw_levels,
    "histogram": _draw_histogram,
    "spans": _draw_spans,
    "heat": _draw_heat,
    "roofs": _draw_roofs,
}


def _title(axes: Any, text: str) -> None:
    """The first line above a panel, the others smaller below it."""
    first, *more = text.split("\n")
    axes.set_title("\n".join(_text(line, SENTENCE) for line in more), fontsize=9, loc="left", color=GRAY)
    axes.annotate(
        _text(first, NAME),
        (0, 1),
        (0, 8 + 13 * len(more)),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=12,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _axis(told: Record, unit: str) -> str:
    """What stands beside an axis."""
    name: str = told.get("title", told.get("name", ""))
    if not unit or unit in ("id", "address", "kernel"):
        return name
    return f"{name} ({unit})" if name else unit


def _text(text: str, width: int) -> str:
    """A text that matplotlib takes as it is."""
    return shorten(printable(text), width, middle=False).replace("$", r"\$")


def _unit(unit: str, most: float) -> tuple[str, float]:
    """The unit of an axis that goes up to `most`, and how many of `unit` it is."""
    import numpy as np

    if unit == "bytes":
        power = min(len(BYTES) - 1, int(np.log2(max(most / 2, 1))) // 10)
        return BYTES[power], float(1 << 10 * power)
    if unit != "ns":
        return unit, 1.0
    name, scale = next((u for u in reversed(TIMES) if most >= 2 * u[1]), TIMES[0])
    return name.replace("us", "\N{MICRO SIGN}s"), float(scale)
