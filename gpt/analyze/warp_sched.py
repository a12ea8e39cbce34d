"""gpt-analyze warp_sched: how long warps run, with and without other kernels at the same time, and how long the last
warps of a launch take.

Times are in ns, on a clock that all SMs share, so launches can be compared. A launch is `shared` if its warps ran at
the same time as the warps of another launch on the same GPU; otherwise it ran `alone`. The run times of each launch's
warps are stored as a histogram (gpt/trace/durations.py), because which launches were shared is known only at the end.

The *tail* of a launch is the time at its end during which at most half as many warps ran as at its peak.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, make_array_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.map_analysis import LAUNCH, MapAnalysis, launch_row
from gpt.screen.units import amount

if TYPE_CHECKING:
    from gpt.trace.buffers import Buffer, SavedBuffer
    from gpt.trace.durations import Durations
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums

WARPS = (
    Column("warps", "u64"),
    *(Column(name, "u64?", "ns") for name in ("p50", "p99", "longest")),
    Column("tail_share", "f64?", "%", "tail"),
    Column("mean", "u64", "ns"),
    Column("span", "u64", "ns"),
    Column("tail", "u64?", "ns", "tail time"),
    Column("silent", "u64", title="warps lost", shown="any"),
)
KERNELS = (
    Column("name", "text", "kernel", "kernel"),
    Column("how", "text"),
    Column("launches", "u64"),
    *WARPS,
)
LAUNCHES = (*LAUNCH, Column("how", "text"), *WARPS)
TIMES = (
    Column("time", "u64", "ns", "run time of a warp"),
    Column("alone", "u64", title="warps alone"),
    Column("shared", "u64", title="warps shared"),
)
TOP, TOP_LAUNCHES, TOP_TIMES = 30, 10, 24  # rows that tables show
MOST_LAUNCHES = 100_000  # launches listed at most
PARTS = 8  # number of bins, in the answer, from each time to its double
ALONE, SHARED = "alone", "shared"


class _Run(NamedTuple):
    """A launch: when its first warp began and its last one ended, on the GPU's clock, and the run times of its warps.

    If only sums were kept, `tail` is None and `times` are empty.
    """

    where: Hashable  # the GPU
    kernel: str
    begin: int
    end: int
    tail: int | None
    silent: int
    warps: int
    total: float  # sum of its warps' run times in ns
    times: Durations
    row: tuple[Any, ...]  # values of the columns LAUNCH


class WarpSched(MapAnalysis):
    """An analysis of how long the warps of each launch run."""

    name = "warp_sched"
    summed = "launches, warps, means and spans"
    fields = ("start", "end")

    def __init__(self) -> None:
        super().__init__()
        self.kinds |= {"device"}  # its UUID identifies the GPU in all processes
        self._runs: list[_Run] = []

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Add the warps of a launch."""
        import numpy as np

        from gpt.trace.durations import Durations

        here = saved.counts > 0
        slots = saved.slots[:, :, 0][here]
        start, end = slots["start"], np.maximum(slots["end"], slots["start"])
        times = Durations()
        times.add((end - start).astype(np.float64))
        where, row = process.gpu(buffer.launch.device), launch_row(len(self._runs) + 1, process, buffer)
        edges = (int(start.min()), int(end.max()), _find_tail(start, end)) if len(start) else (0, 0, 0)
        silent = int((~here).sum())
        self._runs.append(_Run(where, buffer.kernel, *edges, silent, times.count, times.total, times, row))

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add the warps of a launch for which only sums were kept."""
        from gpt.trace.durations import Durations

        launch, start, end = buffer.launch, sums.fields["start"], sums.fields["end"]
        where, row = process.gpu(launch.device), launch_row(len(self._runs) + 1, process, buffer)
        silent = launch.blocks * buffer.map.units(launch.threads) - sums.records
        total = (int(end.total) - int(start.total)) % (1 << 64)
        edges = int(start.least), int(end.greatest), None
        self._runs.append(_Run(where, buffer.kernel, *edges, silent, sums.records, float(total), Durations(), row))

    def merge(self, other: WarpSched) -> None:
        """Merge an analysis of later traces."""
        rows = [(run.row[0], run.row[1] + len(self._runs), *run.row[2:]) for run in other._runs]
        self._runs += [run._replace(row=row) for run, row in zip(other._runs, rows, strict=True)]
        self.merge_launches(other)

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield kernels, alone and shared, then launches and the distribution of run times."""
        shared = _find_shared(self._runs)
        groups: dict[tuple[str, str], list[_Run]] = {}
        for run, how in zip(self._runs, shared, strict=True):
            groups.setdefault((run.kernel, how), []).append(run)
        rows = [(*key, len(runs), *_values(runs)) for key, runs in groups.items()]
        rows.sort(key=lambda row: (-row[3] * row[8], row[0], row[1]))
        warps = sum(row[3] for row in rows)
        tails = [run.tail / (run.end - run.begin or 1) for run in self._runs if run.tail is not None]
        told = (
            f"{amount(warps, 'warp')} of {amount(len(self._runs), 'launch')}, {shared.count(SHARED):,} sharing the GPU"
        )
        told += f"; tail: {100 * sum(tails) / len(tails):.1f} % of a launch on average" if tails else ""
        yield make_answer("kernels", KERNELS, rows, [told, *verdict], top=TOP)
        listed = zip(self._runs[:MOST_LAUNCHES], shared, strict=False)
        more = len(self._runs) - MOST_LAUNCHES
        verdict = [f"{more:,} more launches are only in the sums"] if more > 0 else []
        yield make_answer(
            "launches", LAUNCHES, [(*run.row, how, *_values([run])) for run, how in listed], verdict, top=TOP_LAUNCHES
        )
        yield _make_times(self._runs, shared)


def _find_tail(start: Any, end: Any) -> int:
    """Return for how long at the end at most half as many warps ran as at the peak."""
    import numpy as np

    times = np.concatenate((start, end))
    change = np.repeat(np.array([1, -1]), len(start))
    order = np.lexsort((-change, times))  # at equal times, begins come first
    running = np.cumsum(change[order])
    above = np.flatnonzero(running > running.max() // 2)
    return int(times.max()) - int(times[order][above[-1] + 1])


def _find_shared(runs: list[_Run]) -> list[str]:
    """For each launch, return whether another launch ran on its GPU at the same time."""
    found = [ALONE] * len(runs)
    last: dict[Hashable, int] = {}  # by GPU, the earlier launch that ends last
    for number in sorted(range(len(runs)), key=lambda number: runs[number].begin):
        run = runs[number]
        before = last.get(run.where)
        if before is not None and run.begin < runs[before].end:
            found[number] = found[before] = SHARED
        if before is None or run.end >= runs[before].end:
            last[run.where] = number
    return found


def _values(runs: list[_Run]) -> tuple[Any, ...]:
    """Return values for the columns WARPS. For several launches, span and tail are means; launches without a tail don't
    count for the latter.
    """
    from gpt.trace.durations import Durations

    times = Durations()
    for run in runs:
        times.merge(run.times)
    span = sum(run.end - run.begin for run in runs) / len(runs)
    warps, silent = sum(run.warps for run in runs), sum(run.silent for run in runs)
    tails = [(run.tail, run.end - run.begin) for run in runs if run.tail is not None]
    mean = sum(run.total for run in runs) / (warps or 1)
    if not tails:
        return warps, None, None, None, None, mean, span, None, silent
    share = 100 * sum(tail for tail, _ in tails) / (sum(time for _, time in tails) or 1)
    shown = times.percentile(0.5), times.percentile(0.99), times.largest, share
    return warps, *shown, mean, span, sum(tail for tail, _ in tails) / len(tails), silent


def _make_times(runs: list[_Run], shared: list[str]) -> dict[str, Any]:
    """Return a histogram of the run times of warps of all kernels, alone and shared."""
    import numpy as np

    from gpt.trace.durations import BINS, BITS, Durations, edges

    both = {ALONE: Durations(), SHARED: Durations()}
    for run, how in zip(runs, shared, strict=True):
        both[how].merge(run.times)
    counts = np.stack([times.counts() for times in both.values()])
    within = np.rint((2.0 ** (np.arange(PARTS) / PARTS) - 1) * (1 << BITS)).astype(np.int64)
    starts = (
        np.arange(0, BINS, 1 << BITS)[:, None] + within
    ).ravel()  # their widths are equal between a time and its double
    sums = np.add.reduceat(counts, starts, axis=1)
    here = np.flatnonzero(sums.any(axis=0))
    here = np.arange(here[0], here[-1] + 1) if len(here) else here
    middles = edges()[starts][here] * 2 ** (0.5 / PARTS)
    drawn = plot("lines", "time", ALONE, SHARED, title="histogram of warp run times")
    return make_array_answer("times", TIMES, [middles, *sums[:, here]], top=TOP_TIMES, plots=[drawn])


ANALYSIS = Analysis("Show how long warps run, and their tail.", WarpSched)
