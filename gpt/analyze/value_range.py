"""gpt-analyze value_range: the range of the single-precision results that kernels compute, and whether any are infinite
or NaN.

Each thread records its smallest and its largest result. Threads with results beyond the range of half precision are
counted as well: they show whether the kernel could compute in half precision.
"""

from __future__ import annotations

import math
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.map_analysis import LAUNCH, MapAnalysis, launch_row
from gpt.base.printable import printable, shorten
from gpt.screen.brief import brief_name
from gpt.screen.units import amount

if TYPE_CHECKING:
    from gpt.analyze.lib.values import Distribution
    from gpt.trace.buffers import Buffer, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums

THREADS = (
    Column("least", "f64?"),
    Column("greatest", "f64?"),
    Column("computed", "u64", title="threads"),
    Column("with_nan", "u64", title="with NaN"),
    Column("with_infinity", "u64", title="with infinity"),
    Column("beyond_half", "u64", title="beyond f16"),
    Column("nans", "u64", title="NaNs", shown="any"),
    Column("idle", "u64", title="without result", shown="any"),
)
KERNELS = (Column("name", "text", "kernel", "kernel"), Column("launches", "u64"), *THREADS)
LAUNCHES = (*LAUNCH, *THREADS)
SIZES = (
    Column("name", "text", "kernel", "largest results of"),
    Column("low", "f64", title="result"),
    Column("high", "f64", title="up to"),
    Column("threads", "u64"),
)
HALF = 65504.0  # largest number in half precision
TOP, TOP_LAUNCHES = 30, 10  # rows that tables show
MOST_LAUNCHES = 100_000  # limit for the number of launches in the answer
BINS, DRAWN = 20, 5  # bins of the histogram; kernels in it
NAMED = 60  # width of a name in a sentence


class _Range:
    """The results of the threads of a kernel or a launch."""

    def __init__(self) -> None:
        from gpt.analyze.lib.values import Distribution

        self.least: float | None = None
        self.greatest: float | None = None
        self.sums = Counter[str]()
        self.sizes: Distribution = Distribution()  # sizes of each thread's largest result
        self.first: tuple[int, str] | None = None  # first launch with NaN or infinity, and which of the two

    def add(self, slots: Any) -> None:
        """Add the threads of a launch."""
        import numpy as np

        least, greatest, nans = (slots[name].ravel() for name in ("least", "greatest", "nans"))
        with np.errstate(invalid="ignore"):
            here = least <= greatest
        size = np.maximum(np.abs(least[here]), np.abs(greatest[here]))
        endless = np.isinf(size)
        self.sums.update(
            computed=int((here | (nans > 0)).sum()),
            with_nan=int((nans > 0).sum()),
            with_infinity=int(endless.sum()),
            beyond_half=int(((size > HALF) & ~endless).sum()),
            nans=int(nans.sum()),
            idle=int((~here & (nans == 0)).sum()),
        )
        self.sizes.add(size[~endless])
        if here.any():
            low, high = float(least[here].min()), float(greatest[here].max())
            self.least = low if self.least is None else min(low, self.least)
            self.greatest = high if self.greatest is None else max(high, self.greatest)

    def merge(self, other: _Range, number: int) -> None:
        """Add the range of launches that come after launch `number`."""
        self.sums.update(other.sums)
        self.sizes.merge(other.sizes)
        if other.least is not None and other.greatest is not None:
            self.least = other.least if self.least is None else min(other.least, self.least)
            self.greatest = other.greatest if self.greatest is None else max(other.greatest, self.greatest)
        if self.first is None and other.first:
            self.first = other.first[0] + number, other.first[1]

    def row(self) -> tuple[Any, ...]:
        """Return values for the columns THREADS."""
        return self.least, self.greatest, *(self.sums[column.name] for column in THREADS[2:])


class ValueRange(MapAnalysis):
    """An analysis of the range of results, by kernel and launch."""

    name = "value_range"
    summed = "least and greatest values, and NaNs"
    fields = ("nans",)
    floats = ("least", "greatest")

    def __init__(self) -> None:
        super().__init__()
        self._kernels: dict[str, _Range] = {}
        self._rows: list[tuple[Any, ...]] = []

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add the threads of a launch."""
        self._number += 1
        slots = saved.slots[saved.counts > 0]
        kernel, one = self._kernels.setdefault(buffer.kernel, _Range()), _Range()
        kernel.add(slots)
        kernel.sums["launches"] += 1
        one.add(slots)
        wrong = [what for what, sum_ in (("NaN", "with_nan"), ("infinity", "with_infinity")) if one.sums[sum_]]
        if wrong and kernel.first is None:
            kernel.first = self._number, " and ".join(wrong)
        if len(self._rows) < MOST_LAUNCHES:
            self._rows.append((*launch_row(self._number, process, buffer), *one.row()))

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept. These don't have the ranges of single threads."""
        self._number += 1
        kernel = self._kernels.setdefault(buffer.kernel, _Range())
        nans = sums.fields["nans"]
        without = nans.bins[0] if nans.bins and not nans.first else 0
        kernel.sums.update(launches=1, nans=int(nans.total), with_nan=sums.records - without)
        least, greatest = float(sums.fields["least"].least), float(sums.fields["greatest"].greatest)
        if least <= greatest:
            kernel.least = least if kernel.least is None else min(least, kernel.least)
            kernel.greatest = greatest if kernel.greatest is None else max(greatest, kernel.greatest)
        endless = least <= greatest and math.isinf(max(abs(least), abs(greatest)))
        wrong = [what for what, there in (("NaN", nans.total), ("infinity", endless)) if there]
        if wrong and kernel.first is None:
            kernel.first = self._number, " and ".join(wrong)

    def merge(self, other: ValueRange) -> None:
        """Merge an analysis of later traces."""
        for name, kernel in other._kernels.items():
            self._kernels.setdefault(name, _Range()).merge(kernel, self._number)
        self._rows += islice(self.renumbered(other._rows), MOST_LAUNCHES - len(self._rows))
        self.merge_launches(other)

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield kernels, those with NaN or infinity first, launches, and the distribution of the results' sizes."""
        ordered = sorted(
            self._kernels.items(),
            key=lambda one: (
                -one[1].sums["with_nan"],
                -one[1].sums["with_infinity"],
                -(one[1].sizes.greatest or 0),
                one[0],
            ),
        )
        told = [*self._say(ordered), *verdict]
        rows = [(name, kernel.sums["launches"], *kernel.row()) for name, kernel in ordered]
        yield make_answer("kernels", KERNELS, rows, told, top=TOP)
        more = self._number - len(self._rows)
        lines = [f"{more:,} more launches are only in the sums"] if more else []
        yield make_answer("launches", LAUNCHES, self._rows, lines, top=TOP_LAUNCHES)
        yield self._make_sizes(ordered[:DRAWN])

    def _say(self, ordered: list[tuple[str, _Range]]) -> list[str]:
        total = sum((kernel.sums for _, kernel in ordered), Counter[str]())
        counts = " ".join(f"{name} {total[name]}" for name in ("computed", "with_nan", "with_infinity", "beyond_half"))
        name, first = ordered[0]
        name = shorten(printable(brief_name(name)), NAMED, middle=False)
        if not total["computed"] and not first.first:
            return [f"{self.name}:{counts}", "no thread computed in single precision"]
        if first.first:
            number, what = first.first
            threads = max(first.sums["with_nan"], first.sums["with_infinity"])
            share = f", {threads:,} of its {amount(first.sums['computed'], 'thread')}" * (not self._details[True])
            line = f"{what} in {name}{share}, first in launch {number}"
        elif total["beyond_half"]:
            line = f"no NaN, no infinity; largest result {first.sizes.greatest:.4g} in {name}, beyond half precision"
        else:
            line = f"no NaN, no infinity; largest result {first.sizes.greatest:.4g} in {name}: half precision holds it"
        return [f"{self.name}:{counts}", line]

    def _make_sizes(self, kernels: list[tuple[str, _Range]]) -> dict[str, Any]:
        from gpt.analyze.lib.values import iter_columns

        rows = iter_columns({name: kernel.sizes for name, kernel in kernels}, BINS)
        drawn = plot("histogram", "low", "threads", end="high", color="name", title="largest result of each thread")
        return make_answer("sizes", SIZES, rows, top=BINS, plots=[drawn])


ANALYSIS = Analysis("Show the range of the values that kernels compute.", ValueRange)
