"""The annotations of plots: units, ticks, labels and colors of axes and legends."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gpt.base.printable import printable, shorten
from gpt.screen.brief import fit_names
from gpt.screen.demangle import readable
from gpt.screen.units import TIMES, UNITS, human_count, human_time

NAMES, LABEL, SMALL = 24, 48, 8  # names in a legend, columns of a label, font size
BYTES = ("bytes", "KiB", "MiB", "GiB", "TiB")
MICRO = "\N{MICRO SIGN}s"
SMALLEST = 1e-4  # numbers outside of these limits are in scientific notation
LARGE, FAR = 1e9, 1000  # axis numbers this large, and this many times the axis length, become distances

Record = Mapping[str, Any]


def axis(told: Record, unit: str) -> str:
    """Return the label of an axis."""
    name: str = told.get("title", told.get("name", ""))
    if not unit or unit in ("id", "address", "kernel"):
        return name
    return f"{name} ({unit})" if name else unit


def unit_of(unit: str, most: float) -> tuple[str, float]:
    """Return the unit for an axis that goes up to `most`, and its size in multiples of `unit`."""
    import numpy as np

    if unit == "bytes":
        power = min(len(BYTES) - 1, int(np.log2(max(most / 2, 1))) // 10)
        return BYTES[power], float(1 << 10 * power)
    if unit != "ns":
        return unit, 1.0
    name, scale = next((u for u in reversed(TIMES) if most >= 2 * u[1]), TIMES[0])
    return name.replace("us", MICRO), float(scale)


def number_ticks(side: Any, told: Record, scale: float = 1.0) -> None:
    """Write readable numbers along a linear axis. If the column has only integers, the numbers are integers, too."""
    from matplotlib.ticker import MaxNLocator

    whole = scale == 1 and told.get("type", "f64")[0] in "iu"
    side.set_major_locator(MaxNLocator("auto", integer=whole, steps=[1, 2, 2.5, 5, 10] if not whole else [1, 2, 5, 10]))
    side.set_major_formatter(_make_formatter())


def _make_formatter() -> Any:
    """Return the function that formats the numbers on an axis.

    Large numbers that are close together are shown as distances from the first, which becomes the offset of the axis.
    """
    from matplotlib.ticker import Formatter

    class Numbers(Formatter):
        first = 0.0

        def set_locs(self, locs: Any) -> None:
            near = len(locs) > 1 and max(map(abs, locs)) >= FAR * (max(locs) - min(locs)) > 0
            self.first = float(min(locs)) if near and max(map(abs, locs)) >= LARGE else 0.0

        def __call__(self, value: float, _: int | None = None) -> str:
            return _number(value - self.first)

        def get_offset(self) -> str:
            return f"from {self.first:,.0f}" if self.first else ""

    return Numbers()


def logarithmic_ticks(axes: Any, told: Record, scale: float, from_zero: float = 0) -> None:
    """Make the horizontal axis logarithmic, with a unit after each number. `from_zero` is the first number after 0."""
    from matplotlib.ticker import FuncFormatter

    axes.set_xscale("symlog" if from_zero else "log", **({"linthresh": from_zero} if from_zero else {}))
    human = human_of(told)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: re.sub(r"\.0+(?=\D|$)", "", human(value * scale))))


def human_of(told: Record) -> Callable[[Any], str]:
    """Return the function that formats a single number of a column. Small shares get enough digits to differ."""
    unit = told.get("unit", "")
    if unit == "%":
        return lambda share: f"{share:.3g} %"
    if unit == "ns":
        return lambda ns: human_time(ns).replace("us", MICRO)
    return UNITS.get(unit, human_count)


def _number(value: float) -> str:
    if value and not SMALLEST <= abs(value) < 1e12:
        return f"{value:.3g}"
    return f"{value:,.10g}"


def text_of(text: str, width: int, middle: bool = False) -> str:
    """Escape text for matplotlib, where `$` begins a formula, and `_` at the beginning hides it from legends.

    Text that's too long is shortened at its end, or with `middle`, in the middle.
    """
    text = shorten(printable(text), width, middle=middle).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def labels_of(names: Iterable[Any]) -> dict[Any, str]:
    """Return a label for each name on an axis or in a legend. Some of them may be kernels."""
    found = [name for name in dict.fromkeys(names) if isinstance(name, str)]
    fitted = fit_names([printable(name) for name in readable(found)], LABEL)
    return {name: text_of(label, LABEL) for name, label in zip(found, fitted, strict=True)}


def hues_of(names: Sequence[str | None]) -> dict[str | None, Any]:
    """Return a color for each name, in the order in which they first occur. None is gray."""
    known = dict.fromkeys(name for name in names if name is not None)
    found: dict[str | None, Any] = {name: hue(at) for at, name in enumerate(known)}
    return found | ({None: (0.5, 0.5, 0.5)} if None in names else {})


def hue(number: int) -> Any:
    """Return a color: the first ten are strong, the next ten are paler versions of these, and then they're repeated."""
    from matplotlib import colormaps

    return colormaps["tab20"](2 * number % 20 + number // 10 % 2)[:3]


def name_hues(axes: Any, hues: Mapping[str | None, Any]) -> None:
    """Draw a legend with the first NAMES names."""
    from matplotlib.patches import Patch

    names = [name for name in hues if name is not None]
    labels = labels_of(names)
    patches = [Patch(color=hues[name], label=labels[name]) for name in names[:NAMES]]
    patches += [Patch(color="none", label=f"and {len(names) - NAMES:,} more")] if len(names) > NAMES else []
    patches += [Patch(color=hues[None], label="no name")] if None in hues else []
    legend(axes, handles=patches)


def legend(axes: Any, **more: Any) -> None:
    """Draw a legend next to a panel, where it doesn't hide anything."""
    axes.legend(fontsize=SMALL, frameon=False, loc="upper left", bbox_to_anchor=(1, 1), **more)
