"""The base of analyses of maps that log the progress of warps, and so show how fast warps work from beginning to end.

A record says how much work a warp had done at a clock of its SM, so two consecutive records of a warp give a rate.
*Progress* is the share of the warp's total work, which makes warps of different speed comparable. A rate is attributed
to the progress halfway between its two records. When the lanes of a warp diverge, each group of lanes logs its own
work, and the group that's furthest counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, make_array_answer, plot
from gpt.analyze.lib.map_analysis import MapAnalysis, find_blocks
from gpt.base.options import Option
from gpt.screen.units import kept_share

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums

NAME = Column("name", "text", "kernel", "kernel")
KERNELS = (Column("launches", "u64"), Column("warps", "u64"), Column("records", "u64"))
ENDS = (Column("first", "f64?", title="in the first 10th"), Column("last", "f64?", title="in the last"))
DROPPED = Column("dropped", "u64", title="lost", shown="any")
PROGRESS = Column("progress", "f64", "%")
LINES = (Column("warp", "u64", "id", "progress of warp"), Column("sm", "u64", "id", "SM"))
BINS = 100  # steps of progress
EDGE = 1e-6  # added to a position in bins, so that rounding doesn't move a boundary to the previous bin
TOP, TOP_RATES, TOP_LINES = 30, 10, 5  # rows that tables show
DRAWN = 5  # kernels whose rates are drawn
WARPS, POINTS = 64, 100_000  # for one launch: how many warps are listed, and how many of their records

Number = Annotated[int | None, Option("--launch", metavar="NUMBER", min=1, help="Show this launch.")]


class RateTotals:
    """The sums of a kernel. `amounts` and `clocks` are by progress; the rate is per `per` clocks."""

    def __init__(self, per: int) -> None:
        import numpy as np

        self.per = per
        self.launches = self.warps = self.records = self.done = self.dropped = 0
        self.amounts, self.clocks = np.zeros(BINS), np.zeros(BINS)

    def row(self) -> tuple[Any, ...]:
        """Return the columns from `launches` on."""
        tenth = BINS // 10
        rates = self.rate(), self.rate(0, tenth), self.rate(-tenth)
        return self.launches, self.warps, self.records, self.done, *rates, self.dropped

    def rate(self, first: int = 0, last: int = BINS) -> float | None:
        """Return the progress of a warp per `per` clocks within some bins, or None if no warp was recorded in them."""
        clocks = float(self.clocks[first:last].sum())
        return self.per * float(self.amounts[first:last].sum()) / clocks if clocks else None


class _Shown(NamedTuple):
    number: int
    values: list[Any]  # values of the columns LINES
    records: int
    dropped: int
    blocks: tuple[int, int] | None  # first and last block with records, if some were dropped


class ProgressFold(MapAnalysis):
    """An analysis of the rates of kernels, and of the progress of warps in one launch: number `launch`, or by default
    the one with the most records.

    `amount` is the column for the field that holds a warp's progress; `rate` is its growth per `per` clocks. Lines are
    drawn over the field `axis`. If that's the clock of an SM, it counts from the first record of the SM, otherwise from
    the first record of the launch.
    """

    amount: Column
    rate: Column
    axis = Column("clock", "u64", "cycles")
    per = 1
    log = True
    summed = "launches"

    def __init__(self, launch: int | None = None) -> None:
        super().__init__()
        self._wanted = launch
        self._number = 0
        self._kernels: dict[str, RateTotals] = {}
        self._shown: _Shown | None = None

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add the records of a launch."""
        import numpy as np

        assert saved.units is not None
        self._number += 1
        totals = self._kernels.setdefault(buffer.kernel, RateTotals(self.per))
        totals.launches += 1
        totals.dropped += saved.dropped
        if not len(saved.slots):
            return
        amount = self.amount.name
        order = np.lexsort((saved.slots[amount], saved.slots["clock"], saved.units))
        warp, slots = saved.units[order], saved.slots[order]
        opens = np.flatnonzero(np.concatenate(([True], warp[1:] != warp[:-1])))
        which = np.repeat(np.arange(len(opens)), np.diff(np.append(opens, len(warp))))
        last = np.append(opens[1:], len(warp)) - 1
        done = slots[amount].astype(float)
        if ((done[1:] < done[:-1]) & (which[1:] == which[:-1])).any():
            step = done.max() + 1  # larger than any amount, so that a warp can't seem to continue the previous one
            done = np.maximum.accumulate(done + which * step) - which * step
        whole = np.maximum(done[last], 1.0)
        progress = done / whole[which]
        same = which[1:] == which[:-1]
        more = (done[1:] - done[:-1])[same]
        clocks = (slots["clock"][1:] - slots["clock"][:-1]).astype(float)[same]
        middle = np.clip((progress[1:] + progress[:-1])[same] / 2 * BINS + EDGE, 0, BINS - 1).astype(int)
        totals.amounts += np.bincount(middle, more, BINS)
        totals.clocks += np.bincount(middle, clocks, BINS)
        totals.warps += len(opens)
        totals.records += len(warp)
        totals.done += int(whole.sum())
        if self._is_shown(len(warp)):
            listed = which % -(-len(opens) // WARPS) == 0
            sms, where = np.unique(slots["sm"] if self.axis.unit == "cycles" else 0 * slots["sm"], return_inverse=True)
            zero = np.full(len(sms), np.iinfo(np.uint64).max)
            np.minimum.at(zero, where, slots[self.axis.name])
            since = slots[self.axis.name] - zero[where]
            values = [array[listed][:POINTS] for array in (warp, slots["sm"], since, 100 * progress)]
            self._shown = _Shown(self._number, values, len(warp), saved.dropped, find_blocks(buffer, saved))

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add a launch for which only sums were kept, which don't show how a warp progressed."""
        self._number += 1
        totals = self._kernels.setdefault(buffer.kernel, RateTotals(self.per))
        totals.launches += 1
        totals.dropped += sums.dropped

    def _is_shown(self, records: int) -> bool:
        if self._wanted is not None:
            return self._wanted == self._number
        return self._shown is None or records > self._shown.records

    def say(self, ordered: list[tuple[str, RateTotals]]) -> list[str]:
        """Return sentences about the kernels, which are sorted by work done, descending."""
        return ["of the warps that are sampled"]

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield a table of kernels, their rates by progress, and the progress of one launch's warps."""
        ordered = sorted(self._kernels.items(), key=lambda kernel: (-kernel[1].done, kernel[0]))
        rows = [(name, *kernel.row()) for name, kernel in ordered]
        columns = (NAME, *KERNELS, self.amount, self.rate._replace(type="f64?"), *ENDS, DROPPED)
        yield make_answer("kernels", columns, rows, [*self.say(ordered), *verdict], top=TOP)
        rates = [
            (name, 100 * (at + 0.5) / BINS, self.per * kernel.amounts[at] / kernel.clocks[at])
            for name, kernel in ordered[:DRAWN]
            for at in kernel.clocks.nonzero()[0].tolist()
        ]
        drawn = plot("lines", "progress", "rate", color="name", title=self.titled("rate over progress"))
        rate_columns = (
            NAME._replace(title="rates of"),
            PROGRESS,
            self.rate._replace(title=f"{self.rate.title} of a warp"),
        )
        yield make_answer("rates", rate_columns, rates, top=TOP_RATES, plots=[drawn])
        if self._shown:
            number, values, records, dropped, blocks = self._shown
            said = f"launch {number}" + (", that with most records: --launch shows another" if not self._wanted else "")
            title = f"progress of warps, launch {number}"
            title += f"\n{kept_share(records, dropped, blocks=blocks)}" if dropped else ""
            drawn = plot("lines", self.axis.name, "progress", color="warp", title=title)
            yield make_array_answer(
                "warps", (*LINES, self.axis, PROGRESS), values, [said], top=TOP_LINES, plots=[drawn]
            )
