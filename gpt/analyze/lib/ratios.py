"""The base of analyses of maps in which each warp has two sums: a number of events, and what they cost. They show the
ratio of the two.

The ratio of a kernel is computed from the sums over all of its warps. In distributions, each warp counts once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.map_analysis import LAUNCH, MapAnalysis, launch_row
from gpt.base.printable import printable, shorten
from gpt.screen.brief import brief_name
from gpt.screen.units import human_count, human_share

if TYPE_CHECKING:
    from gpt.analyze.lib.values import Distribution
    from gpt.trace.buffers import Buffer, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums

NAME = Column("name", "text", "kernel", "kernel")
LAUNCHES = Column("launches", "u64")
WARPS = Column("warps", "u64")
LOST = (
    Column("silent", "u64", title="warps lost", shown="any"),
    Column("dropped", "u64", title="lost", shown="any"),
)
PARTS = (("p50", 0.5), ("p95", 0.95), ("most", 1.0))  # percentiles over warps
TOP, TOP_LAUNCHES = 30, 10  # rows that tables show
MOST_LAUNCHES = 100_000  # limit for the number of launches in the answer
BINS, DRAWN = 20, 5  # bins of the histogram (a table shows only one kernel's), and number of kernels in it
NAMED = 60  # width of a name in a sentence


class Kernel:
    """The sums of a kernel, and the ratios of its warps."""

    def __init__(self, name: str) -> None:
        from gpt.analyze.lib.values import Distribution

        self.name = name
        self.sums = Counter[str]()
        self.ratios: Distribution = Distribution()


class Ratios(MapAnalysis):
    """An analysis of the `ratio` of the field `cost` to the field `number`, multiplied by `scale`.

    `sums` are the columns that show the sums of the fields; the line for scripts has them in the same order. Launches
    of which only sums were kept don't count in distributions.
    """

    ratio: Column
    scale = 1
    number: str
    cost: str
    nothing: str  # the verdict if no warp has any events
    sums: tuple[Column, ...]

    def __init__(self) -> None:
        super().__init__()
        self.kernels: dict[str, Kernel] = {}
        self._rows: list[tuple[Any, ...]] = []  # one per launch

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add a launch."""
        kernel = self.kernels.setdefault(buffer.kernel, Kernel(buffer.kernel))
        number, cost = saved.slots[self.number], saved.slots[self.cost]
        here = number > 0
        kernel.ratios.add(self.scale * cost[here].astype(float) / number[here])
        silent = int((saved.counts == 0).sum())
        sums = {name: int(saved.slots[name].sum()) for name in self.fields}
        sums |= {"warps": saved.counts.size - silent, "silent": silent, "dropped": saved.dropped}
        self._add(process, buffer, kernel, sums)

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept."""
        kernel = self.kernels.setdefault(buffer.kernel, Kernel(buffer.kernel))
        warps = buffer.launch.blocks * buffer.map.units(buffer.launch.threads)
        found = {name: int(sums.fields[name].total) for name in self.fields}
        found |= {"warps": sums.records, "silent": warps - sums.records, "dropped": sums.dropped}
        self._add(process, buffer, kernel, found)

    def _add(self, process: Process, buffer: Buffer, kernel: Kernel, sums: Mapping[str, int]) -> None:
        kernel.sums.update(sums, launches=1)
        self._number += 1
        if len(self._rows) < MOST_LAUNCHES:
            self._rows.append((*launch_row(self._number, process, buffer), *self._values(sums)))

    def merge(self, other: Self) -> None:
        """Merge an analysis of later traces."""
        for name, kernel in other.kernels.items():
            mine = self.kernels.setdefault(name, Kernel(name))
            mine.sums.update(kernel.sums)
            mine.ratios.merge(kernel.ratios)
        self._rows += islice(self.renumbered(other._rows), MOST_LAUNCHES - len(self._rows))
        self.merge_launches(other)

    def mean(self, sums: Mapping[str, int]) -> float | None:
        """Return the ratio of these sums, or None if there were no events."""
        return self.scale * sums[self.cost] / sums[self.number] if sums[self.number] else None

    def _values(self, sums: Mapping[str, int]) -> tuple[Any, ...]:
        """Return the columns of a launch that follow its name and number, beginning with the ratio."""
        return self.mean(sums), *(sums[column.name] for column in (*self.sums, WARPS, *LOST))

    def show(self, sums: Mapping[str, int]) -> str:
        """Format the ratio for use in a sentence."""
        mean = self.mean(sums) or 0
        return human_share(mean) if self.ratio.unit == "%" else f"{human_count(mean)} clocks"

    @abstractmethod
    def say(self, kernel: Kernel, total: Counter[str], where: str) -> Iterator[str]:
        """Yield parts of a sentence that describe the kernel with the highest cost. `total` has the sums over all
        kernels.

        `where` names the kernel, and its share of the cost.
        """

    def _where(self, kernel: Kernel, total: Counter[str]) -> str:
        name = shorten(printable(brief_name(kernel.name)), NAMED, middle=False)
        return f"{100 * kernel.sums[self.cost] / (total[self.cost] or 1):.0f} % of that in {name}"

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield a table of kernels by cost, descending, a table of launches, and the distribution of the warps'
        ratios.
        """
        ordered = sorted(self.kernels.items(), key=lambda one: (-one[1].sums[self.cost], one[0]))
        total = sum((kernel.sums for _, kernel in ordered), Counter[str]())
        told = [f"{self.name}:{' '.join(f'{name} {total[name]}' for name in self.fields)}"]
        _, first = ordered[0]
        if total[self.number]:
            told.append("; ".join(self.say(first, total, self._where(first, total))))
        else:
            told.append(self.nothing)
        parts = [self.ratio._replace(name=name, title="") for name, _ in PARTS]
        optional = [column._replace(type="f64?") for column in (self.ratio, *parts)]
        share = Column("share", "f64", "%")
        columns = (NAME, LAUNCHES, share, *optional, *self.sums, WARPS, *LOST)
        rows = [
            (
                name,
                kernel.sums["launches"],
                100 * kernel.sums[self.cost] / (total[self.cost] or 1),
                self.mean(kernel.sums),
                *(kernel.ratios.percentile(part) for _, part in PARTS),
                *self._values(kernel.sums)[1:],
            )
            for name, kernel in ordered
        ]
        yield make_answer("kernels", columns, rows, [*told, *verdict], top=TOP)
        more = self._number - len(self._rows)
        lines = [f"{more:,} more launches are only in the sums"] if more else []
        columns = (*LAUNCH, optional[0], *self.sums, WARPS, *LOST)
        yield make_answer("launches", columns, self._rows, lines, top=TOP_LAUNCHES)
        yield from self.iter_more(ordered)
        yield self._make_histogram(ordered[:DRAWN])

    def iter_more(self, ordered: list[tuple[str, Kernel]]) -> Answers:
        """Yield further answers; a subclass may have some."""
        return iter(())

    def _make_histogram(self, kernels: list[tuple[str, Kernel]]) -> dict[str, Any]:
        from gpt.analyze.lib.values import iter_columns

        title = self.ratio.title or self.ratio.name
        columns = (
            Column("name", "text", "kernel", "warps of"),
            Column("low", "f64", self.ratio.unit, title),
            Column("high", "f64", self.ratio.unit, "up to"),
            WARPS,
        )
        rows = iter_columns({kernel.name: kernel.ratios for _, kernel in kernels}, BINS)
        drawn = plot("histogram", "low", "warps", end="high", color="name", title=f"{title} of each warp")
        return make_answer("warps", columns, rows, top=BINS, plots=[drawn])
