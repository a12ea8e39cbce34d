"""gpt-analyze exposed_latency: compare the time of a probed launch (prologue, kernel and epilogue) with an unprobed
one.

It can also show another tool's figures, from a file of comma-separated values (read_figures).
"""

from __future__ import annotations

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.timed_launches import NO_ORIGINAL, Samples, TimedFold, TimedLaunches, divide
from gpt.base.errors import MalformedError
from gpt.base.numbers import parse_float
from gpt.base.options import Option
from gpt.screen.brief import fit_names
from gpt.screen.demangle import readable

if TYPE_CHECKING:
    from gpt.trace.process import Process

LATENCY = (
    Column("name", "text?", "kernel", "kernel"),
    Column("probe", "text", title="probes"),
    Column("tool", "text"),
    Column("exposed", "f64?"),
    Column("prologue", "u64?", "ns"),
    Column("kernel", "u64?", "ns", "on GPU"),
    Column("epilogue", "u64?", "ns"),
    Column("total", "u64?", "ns"),
    Column("original", "u64?", "ns"),
    Column("launches", "u64?"),
    Column("bar", "text", shown="never"),
    *(Column(f"of_{part}", "f64?", title=part, shown="never") for part in ("prologue", "kernel", "epilogue", "whole")),
)
TOOL, EXPOSED = 2, 3  # indexes of columns
PARTS = ("prologue", "kernel", "epilogue")
OURS = "gpt-hook"
NO_PROBE = "-"
TOP = 30  # rows that tables show
KERNEL = 30  # width of the kernel's name next to a bar
MOST = 1000  # limit for the number of rows in a file
LONGEST = 1 << 20  # size limit for such a file, in bytes
RANGE = 1e-30, 1e30  # limits for nonzero times

Beside = Annotated[Path | None, Option("--beside", metavar="FILE", help="Also show another tool's figures: a .csv.")]


class Figure(NamedTuple):
    """A tool's time with a probe, relative to the time without, and the parts of it that the file has."""

    probe: str
    name: str | None
    tool: str
    exposed: float
    parts: tuple[float | None, ...]


def read_figures(path: Path) -> list[Figure]:
    """Read the rows of a file, whose format is described in gpt-analyze-exposed_latency(1).

    Raises OSError if the file can't be read, and MalformedError with the number of a malformed line.
    """
    with open(path, "rb") as file:
        data = file.read(LONGEST + 1)
    if len(data) > LONGEST:
        raise MalformedError(f"more than {LONGEST:,} bytes", str(path))
    try:
        rows = list(csv.reader(data.decode("utf-8-sig").splitlines(), skipinitialspace=True, strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise MalformedError(f"not comma-separated values: {error}", str(path)) from None
    header = [title.strip() for title in rows[0]] if rows else []
    tools = [title for title in header if title not in ("probe", "name", "original", *PARTS)]
    odd = [title for title in ("probe", "original") if title not in header]
    if odd or not tools or len(set(header)) < len(header) or len(rows) > MOST:
        why = f"no column '{odd[0]}'" if odd else "no column of a tool" if not tools else "two columns with one name"
        raise MalformedError(f"more than {MOST:,} rows" if len(rows) > MOST else why, str(path))
    return [
        figure
        for number, row in enumerate(rows[1:], 2)
        if any(row)
        for figure in _read_row(header, tools, row, f"{path}:{number}")
    ]


def _read_row(header: list[str], tools: list[str], row: list[str], where: str) -> Iterator[Figure]:
    if len(row) != len(header):
        raise MalformedError(f"{len(row)} values, of {len(header)} columns", where)
    cells = {title: cell.strip() for title, cell in zip(header, row, strict=True)}
    times: dict[str, float | None] = {}
    for title in header:
        if title not in ("probe", "name"):
            times[title] = _read_time(cells[title], where) if cells[title] else None
    original = times["original"]
    if not original:
        raise MalformedError("no time in column 'original'", where)
    for tool in tools:
        if (time := times[tool]) is not None:
            parts = tuple(divide(times.get(part), original) for part in PARTS) if tool == tools[-1] else (None,) * 3
            yield Figure(cells["probe"], cells.get("name") or None, tool, time / original, parts)


def _read_time(cell: str, where: str) -> float:
    try:
        time = parse_float(cell)
    except ValueError:
        time = math.nan
    if not (time == 0 or RANGE[0] <= time <= RANGE[1]):
        raise MalformedError(f"not a time: '{cell}'", where)
    return time


class Bar:
    """The times of the launches of a kernel with the same probes, in ns."""

    def __init__(self) -> None:
        self.samples = Samples()

    def add(self, times: dict[str, Any], on_gpu: float | None) -> None:
        """Add a launch. With --benchmark, a launch doesn't wait for buffers, but it also has a time without probes."""
        compared = "original" in times and "kernel" in times
        how = "compared" if compared else "plain"
        self.samples.add(**{f"{how}_{name}": times[name] for name in ("prologue", "epilogue")})
        if compared:
            self.samples.add(original=times["original"], with_probes=times["kernel"])
        elif on_gpu is not None:
            self.samples.add(on_gpu=on_gpu)

    def merge(self, other: Bar) -> None:
        """Add the times of another run."""
        self.samples.merge(other.samples)

    @property
    def launches(self) -> int:
        """Return the number of launches, both with and without --benchmark."""
        return sum(self.samples.count(f"{how}_prologue") for how in ("plain", "compared"))

    def times(self) -> dict[str, float | None]:
        """Return the medians `prologue`, `kernel`, `epilogue`, their sum `total`, and `original`; None stands for
        unknown.
        """
        median = self.samples.median
        how = "plain" if self.samples.count("plain_prologue") else "compared"
        found = {name: median(f"{how}_{name}") for name in ("prologue", "epilogue")}
        found["original"] = median("original")
        found["kernel"] = median("with_probes" if self.samples.count("with_probes") else "on_gpu")
        parts = [found[part] for part in PARTS]
        found["total"] = None if None in parts else sum(part for part in parts if part is not None)
        return found


Key = tuple[str, str]  # probes and kernel


class ExposedLatency(TimedFold[Key, Bar]):
    """An analysis that shows a bar for each kernel in the traces, and the bars in another tool's file."""

    def __init__(self, beside: Path | None = None) -> None:
        super().__init__()
        self._figures = read_figures(beside) if beside else []

    def new(self) -> Bar:
        """Return a bar without launches."""
        return Bar()

    def add_up(self, process: Process, launches: TimedLaunches) -> dict[Key, Bar]:
        """Return the bars of a process so far."""
        found: dict[Key, Bar] = defaultdict(Bar)
        for name, launch, times, gpu in launches.joined():
            found["+".join(process.probes.maps_of(launch.kernel)) or NO_PROBE, name].add(times, gpu)
        return found

    def tell(self, costs: dict[Key, Bar], coverage: list[str]) -> Answers:
        """Yield the bars, grouped by probe; ours come first."""
        names = list(dict.fromkeys(name for _, name in costs))
        labels = dict(zip(names, fit_names(readable(names), KERNEL), strict=True)) if len(names) > 1 else {}
        several = len({probes for probes, _ in costs} | {figure.probe for figure in self._figures}) > 1
        beside = several or bool(self._figures) or not labels
        rows = [_our_row(*key, bar, labels.get(key[1]), beside) for key, bar in costs.items()]
        known = any(row[EXPOSED] is not None for row in rows)
        rows += [_their_row(figure) for figure in self._figures]
        rows.sort(key=lambda row: (row[1], row[TOOL] != OURS, row[0] or "", row[TOOL]))
        verdict = [*_means(rows), *([] if known else [NO_ORIGINAL]), *coverage]
        y = [f"of_{part}" for part in (*PARTS, "whole")] if known or self._figures else list(PARTS)
        title = "a launch, in multiples of its kernel without probes" if known else "what a launch takes"
        drawn = plot("bars", "bar", *y, end="exposed", title=title)
        yield make_answer("latency", LATENCY, rows, verdict, top=TOP, plots=[drawn])


def _our_row(probes: str, name: str, bar: Bar, label: str | None, beside: bool) -> tuple[Any, ...]:
    times, launches = bar.times(), bar.launches
    original = times["original"]
    shares = [divide(times[part], original) for part in PARTS]
    values = [times[title] for title in (*PARTS, "total", "original")]
    exposed = divide(times["total"], original)
    bar_of = ", ".join([*([label] if label else []), *([probes, OURS] if beside else [])])
    return name, probes, OURS, exposed, *values, launches, bar_of, *shares, None


def _their_row(figure: Figure) -> tuple[Any, ...]:
    whole = figure.exposed if None in figure.parts else None
    parts = figure.parts if whole is None else (None,) * 3
    label = f"{figure.probe}, {figure.tool}"
    return figure.name, figure.probe, figure.tool, figure.exposed, *[None] * 6, label, *parts, whole


def _means(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """Yield the mean of each tool; ours comes first."""
    tools: dict[str, list[float]] = {OURS: []}
    for row in rows:
        if row[EXPOSED] is not None:
            tools.setdefault(row[TOOL], []).append(row[EXPOSED])
    told = [f"{tool} {sum(of) / len(of):.2f} (mean of {len(of):,})" for tool, of in tools.items() if of]
    if told:
        yield f"exposed, as a multiple of the kernel alone: {', '.join(told)}"


ANALYSIS = Analysis("Show what launches with probes cost.", ExposedLatency, {"beside": Beside})
