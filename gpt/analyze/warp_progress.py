"""gpt-analyze warp_progress: how fast warps compute in tensor cores, from their first operation to their last one.

A record is what a warp has computed until a clock of its SM; two of a warp, one after the other, are a rate. *Progress*
is the share of what the warp computes in all, so that warps of different speed compare: a rate counts where the middle
of its two records is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gpt.analyze.answer import Answers, Column, make_answer, make_array_answer, plot
from gpt.analyze.command import Analysis
from gpt.analyze.maps import MapAnalysis

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, Saved
    from gpt.trace.process import Process

KERNELS = (
    Column("name", "text", "kernel", "kernel"),
    Column("launches", "u64"),
    Column("warps", "u64"),
    Column("records", "u64"),
    Column("flops", "u64", title="FLOPs"),
    Column("rate", "f64", title="FLOPs a clock"),
    Column("first", "f64", title="in the first 10th"),
    Column("last", "f64", title="in the last"),
    Column("dropped", "u64", title="lost", shown="any"),
)
RATES = (
    Column("name", "text", "kernel", "rates of"),
    Column("progress", "f64", "%"),
    Column("rate", "f64", title="FLOPs a clock of a warp"),
)
LINES = (
    Column("warp", "u64", "id", "progress of warp"),
    Column("sm", "u64", "id", "SM"),
    Column("clock", "u64", "cycles"),
    Column("progress", "f64", "%"),
)
BINS = 100  # of progress
EDGE = 1e-6  # what is so near to the next bin is in it
TOP, TOP_RATES, TOP_LINES = 30, 10, 5  # rows that tables show
DRAWN = 5  # kernels whose rates are drawn
WARPS, POINTS = 64, 100_000  # whose progress is listed, of one launch, and records of them

Number = Annotated[int | None, typer.Option("--launch", metavar="NUMBER", min=1, help="Show this launch.")]


class _Totals:
    """The sums of a kernel; `flops` and `clocks` are by progress."""

    def __init__(self) -> None:
        import numpy as np

        self.launches = self.warps = self.records = self.done = self.dropped = 0
        self.flops, self.clocks = np.zeros(BINS), np.zeros(BINS)

    def row(self) -> tuple[Any, ...]:
        """From `launches` on."""
        tenth = BINS // 10
        rates = self.rate(), self.rate(0, tenth), self.rate(-tenth)
        return self.launches, self.warps, self.records, self.done, *rates, self.dropped

    def rate(self, first: int = 0, last: int = BINS) -> float:
        """FLOPs a clock of a warp, in some of the bins."""
        return float(self.flops[first:last].sum() / (self.clocks[first:last].sum() or 1))


class _Shown(NamedTuple):
    number: int
    values: list[Any]  # the columns LINES
    records: int


class WarpProgress(MapAnalysis):
    """The rates of kernels, and the progress of the warps of one launch: number `launch`, or that with most records."""

    name = "warp_progress"
    fields = ("clock", "flops", "sm")
    log = True

    def __init__(self, launch: int | None = None) -> None:
        super().__init__()
        self._wanted = launch
        self._number = 0
        self._kernels: dict[str, _Totals] = {}
        self._shown: _Shown | None = None

    def add(self, process: Process, buffer: Buffer, saved: Saved) -> None:
        """Takes in the records of a launch."""
        import numpy as np

        assert saved.units is not None
        self._number += 1
        totals = self._kernels.setdefault(buffer.kernel, _Totals())
        totals.launches += 1
        totals.dropped += saved.dropped
        if not len(saved.slots):
            return
        order = np.lexsort((saved.slots["flops"], saved.slots["clock"], saved.units))
        warp, slots = saved.units[order], saved.slots[order]
        opens = np.flatnonzero(np.concatenate(([True], warp[1:] != warp[:-1])))
        which = np.repeat(np.arange(len(opens)), np.diff(np.append(opens, len(warp))))
        last = np.append(opens[1:], len(warp)) - 1
        whole = np.maximum(slots["flops"][last].astype(float), 1.0)
        progress = slots["flops"] / whole[which]
        same = which[1:] == which[:-1]
        flops = (slots["flops"][1:].astype(float) - slots["flops"][:-1])[same]
        clocks = (slots["clock"][1:] - slots["clock"][:-1]).astype(float)[same]
        middle = np.clip((progress[1:] + progress[:-1])[same] / 2 * BINS + EDGE, 0, BINS - 1).astype(int)
        totals.flops += np.bincount(middle, flops, BINS)
        totals.clocks += np.bincount(middle, clocks, BINS)
        totals.warps += len(opens)
        totals.records += len(warp)
        totals.done += int(whole.sum())
        if self._is_shown(len(warp)):
            listed = which % -(-len(opens) // WARPS) == 0
            sms, where = np.unique(slots["sm"], return_inverse=True)
            zero = np.full(len(sms), np.iinfo(np.uint64).max)
            np.minimum.at(zero, where, slots["clock"])
            since = slots["clock"] - zero[where]
            values = [array[listed][:POINTS] for array in (warp, slots["sm"], since, 100 * progress)]
            self._shown = _Shown(self._number, values, len(warp))

    def _is_shown(self, records: int) -> bool:
        if self._wanted is not None:
            return self._wanted == self._number
        return self._shown is None or records > self._shown.records

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Kernels, their rates by progress, and the progress of warps of one launch."""
        ordered = sorted(self._kernels.items(), key=lambda kernel: (-kernel[1].done, kernel[0]))
        rows = [(name, *kernel.row()) for name, kernel in ordered]
        yield make_answer("kernels", KERNELS, rows, ["of the warps that are sampled", *verdict], top=TOP)
        rates = [
            (name, 100 * (at + 0.5) / BINS, kernel.flops[at] / kernel.clocks[at])
            for name, kernel in ordered[:DRAWN]
            for at in kernel.clocks.nonzero()[0].tolist()
        ]
        drawn = plot("lines", "progress", "rate", color="name", title="rate over progress")
        yield make_answer("rates", RATES, rates, top=TOP_RATES, plots=[drawn])
        if self._shown:
            number, values, _ = self._shown
            said = f"launch {number}" + (", that with most records: --launch shows another" if not self._wanted else "")
            drawn = plot("lines", "clock", "progress", color="warp", title=f"progress of warps, launch {number}")
            yield make_array_answer("warps", LINES, values, [said], top=TOP_LINES, plots=[drawn])


ANALYSIS = Analysis("Show how fast warps compute in tensor cores.", WarpProgress, {"launch": Number})
