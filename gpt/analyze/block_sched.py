"""gpt-analyze block_sched: which blocks ran on each SM and when, what it cost to start them, and how full the SMs
were.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, Record, make_answer, make_array_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.map_analysis import LAUNCH, MapAnalysis, launch_row
from gpt.base.options import Option
from gpt.screen.units import amount, human_count

if TYPE_CHECKING:
    from gpt.analyze.lib.occupancy import Occupancy
    from gpt.analyze.lib.schedule import Schedule
    from gpt.trace.buffers import Buffer, ProbedLaunch, SavedBuffer
    from gpt.trace.process import Process
    from gpt.trace.sums import BufferSums

CYCLES = (
    Column("running", "u64", "cycles"),
    Column("scheduling", "u64", "cycles"),
    Column("share", "f64", "%"),
)
OCCUPANCY = (
    Column("warps", "f64?", title="resident warps"),
    Column("most_warps", "u64?", title="at most"),
    Column("occupancy", "f64?", "%", "of device"),
    Column("tail", "u64?", "ns"),
    Column("tail_share", "f64?", "%", "of launch"),
    Column("imbalance", "f64?"),
    Column("resident", "f64?", title="resident blocks", shown="never"),
    Column("most_blocks", "u64?", shown="never"),
    Column("holds", "u64?", title="device holds", shown="never"),
)
KERNELS = (
    Column("name", "text", "kernel", "kernel"),
    Column("launches", "u64"),
    Column("blocks", "u64"),
    Column("sms", "u64", title="SMs"),
    Column("slots", "u64"),
    *CYCLES,
    Column("silent", "u64", title="blocks lost", shown="any"),
    Column("clocks", "u64", "cycles", "of all blocks", "never"),
)
LAUNCHES = (
    *LAUNCH,
    *KERNELS[3:-1],
    Column("span", "u64?", "ns", "time"),
    *OCCUPANCY,
)
OCCUPANCIES = (Column("name", "text", "kernel", "occupancy by"), *OCCUPANCY)
SMS = (
    Column("sm", "u64", "id", "SM"),
    Column("blocks", "u64"),
    Column("slots", "u64"),
    *CYCLES,
    Column("began", "u64?", "ns", "first began"),
    Column("ended", "u64?", "ns", "last ended"),
    Column("busy", "u64", "cycles"),
)
RESIDENT = (
    Column("time", "f64", "ns", "since the first block"),
    Column("warps", "f64", title="resident warps"),
    Column("blocks", "f64", title="resident blocks"),
    Column("holds", "u64?", title="device holds", shown="never"),
)
BLOCKS = (
    Column("sm", "u64", "id", "SM"),
    Column("slot", "u64", "id"),
    Column("block", "u64", "id"),
    Column("begin", "u64", "cycles"),
    Column("running", "u64", "cycles"),
    Column("scheduling", "u64?", "cycles"),
    Column("began", "u64?", "ns"),
    Column("ended", "u64?", "ns"),
    Column("end", "u64", "cycles", shown="never"),
)
NONE = (1 << 64) - 1  # stands for a missing value of type u64?
TOP, TOP_LAUNCHES, TOP_SMS, TOP_BLOCKS = 30, 10, 10, 5  # rows that tables show
NEAR = 4  # the capacity of the device is drawn if it's at most this multiple of the peak of resident warps
MOST_LAUNCHES, MOST_BLOCKS = 100_000, 500_000  # limits for the number of launches and blocks in the answer

Number = Annotated[
    int | None, Option("--launch", metavar="NUMBER", min=1, help="Show the SMs and blocks of this launch.")
]


class _Totals:
    """The sums of a kernel or a launch. Cycles are means over the SMs that the launch used."""

    def __init__(self) -> None:
        from gpt.analyze.lib.occupancy import Occupancy

        self.launches = self.blocks = self.sms = self.slots = self.silent = 0
        self.clocks = 0  # clocks during which its blocks ran
        self.running = self.scheduling = 0.0
        self.occupancy = Occupancy()

    def add(self, other: _Totals) -> None:
        self.launches += other.launches
        self.blocks += other.blocks
        self.silent += other.silent
        self.clocks += other.clocks
        self.running += other.running
        self.scheduling += other.scheduling
        self.occupancy.add(other.occupancy)
        self.sms = max(self.sms, other.sms)
        self.slots = max(self.slots, other.slots)

    def row(self) -> tuple[Any, ...]:
        """Return values for the columns KERNELS, from `blocks` on."""
        cycles = self.running, self.scheduling, _share(self.running, self.scheduling)
        return self.blocks, self.sms, self.slots, *cycles, self.silent

    def line(self) -> str:
        """Return the line that's meant for scripts."""
        return f"No.block:{self.blocks} Running:{round(self.running)} Scheduling:{round(self.scheduling)}(cycle)"


def _find_clocks(sums: BufferSums) -> int:
    """Return the total number of clocks during which blocks ran."""
    fields = sums.fields
    if "stop" not in fields:
        return int(fields["elapsed"].total)
    return (int(fields["stop"].total) - int(fields["start"].total)) % (1 << 64)


def _share(running: float, scheduling: float) -> float:
    return 100 * scheduling / ((running + scheduling) or 1)


class Shown(NamedTuple):
    """The launch whose SMs and blocks are shown. `number` counts the launches of all traces, starting at 1."""

    number: int
    kernel: str
    launch: ProbedLaunch
    schedule: Schedule
    totals: _Totals


class BlockSched(MapAnalysis):
    """An analysis of all launches, and of the schedule of one: number `launch`, or by default the one with the most
    cycles.
    """

    name = "block_sched"
    summed = "launches and blocks"

    def __init__(self, launch: int | None = None) -> None:
        from gpt.analyze.lib.schedule import FIELDS, LENGTHS, TIME

        super().__init__()
        self.kinds |= {"device"}
        self.fields, self.optional = (*FIELDS, "|".join(LENGTHS)), (TIME,)
        self.shown: Shown | None = None
        self._wanted = launch
        self._kernels: dict[str, _Totals] = {}
        self._rows: list[tuple[Any, ...]] = []  # one per launch
        self._sums = Counter[str]()  # blocks and clocks of launches for which only sums were kept

    def add(self, process: Process, buffer: Buffer, saved: SavedBuffer) -> None:
        """Reconstruct the schedule of a launch."""
        from gpt.analyze.lib.occupancy import make_occupancy
        from gpt.analyze.lib.schedule import make_schedule

        launch, totals = buffer.launch, _Totals()
        totals.launches, totals.blocks = 1, launch.blocks
        card = process.cards.get(launch.device, {})
        schedule = make_schedule(saved, card)
        totals.silent = schedule.silent if schedule else launch.blocks
        totals.occupancy = make_occupancy(schedule, launch, card)
        totals.clocks = int(schedule.running.sum()) if schedule else 0
        span: float | None = None
        if schedule:
            totals.running, totals.scheduling = float(schedule.running.mean()), float(schedule.scheduling.mean())
            totals.sms, totals.slots = len(schedule.sms), int(schedule.slots.max())
            span = float(schedule.ended.max()) if schedule.ns_per_clock else None
        self._kernels.setdefault(buffer.kernel, _Totals()).add(totals)
        self._number += 1
        if schedule and self._is_shown(totals):
            self.shown = Shown(self._number, buffer.kernel, launch, schedule, totals)
        if len(self._rows) < MOST_LAUNCHES:
            row = *totals.row()[1:], span, *totals.occupancy.row()
            self._rows.append((*launch_row(self._number, process, buffer), *row))

    def add_sums(self, process: Process, buffer: Buffer, sums: BufferSums) -> None:
        """Add the blocks of a launch for which only sums were kept. They don't show which blocks ran at the same
        time.
        """
        launch, totals = buffer.launch, _Totals()
        totals.launches, totals.blocks = 1, launch.blocks
        if buffer.map.level == "block":
            totals.silent = launch.blocks - sums.records
            totals.clocks = _find_clocks(sums)
        self._kernels.setdefault(buffer.kernel, _Totals()).add(totals)
        self._number += 1
        self._sums.update(blocks=launch.blocks, clocks=totals.clocks)

    def _is_shown(self, totals: _Totals) -> bool:
        if self._wanted is not None or self.shown is None:
            return self._wanted in (None, self._number)
        best = self.shown.totals
        return totals.running + totals.scheduling > best.running + best.scheduling

    def iter_answers(self, verdict: list[str]) -> Answers:
        """Yield kernels, launches, and the SMs and blocks of one launch."""
        total = _Totals()
        for kernel in self._kernels.values():
            total.add(kernel)
        ordered = sorted(self._kernels.items(), key=lambda k: (-k[1].running - k[1].scheduling, k[0]))
        rows = [(name, kernel.launches, *kernel.row(), kernel.clocks) for name, kernel in ordered]
        if self._sums:
            share = f"{human_count(self._sums['clocks'])} clocks in {amount(self._sums['blocks'], 'block')}"
            verdict = [*verdict, f"launches without detail: {share}; cycles, SMs and occupancy leave them out"]
        yield make_answer("kernels", KERNELS, rows, [total.line(), *verdict], top=TOP)
        rows = [(name, *kernel.occupancy.row()) for name, kernel in ordered]
        yield make_answer("occupancy", OCCUPANCIES, rows, _describe_occupancy(total.occupancy, total.sms), top=TOP)
        more = self._number - len(self._rows)
        verdict = [f"only in the sums: {more:,} of the launches"] if more else []
        yield make_answer("launches", LAUNCHES, self._rows, verdict, top=TOP_LAUNCHES)
        if self.shown:
            yield from _iter_shown(self.shown, self._wanted is None)
        elif self._wanted:
            yield make_answer("sms", SMS, [], [f"no launch with the number {self._wanted} has blocks"])


def _iter_shown(shown: Shown, chosen: bool) -> Answers:
    """Yield the tables of a launch's SMs and blocks."""
    import numpy as np

    from gpt.analyze.lib.occupancy import find_busy
    from gpt.analyze.lib.sm_clocks import describe_bound

    schedule = shown.schedule
    known = schedule.ns_per_clock is not None
    running, scheduling = schedule.running, schedule.scheduling
    blocks = np.bincount(schedule.which)
    first = np.cumsum(blocks) - blocks
    verdict = [f"launch {shown.number}" + (", the longest: --launch shows another" if chosen else "")]
    aligned = describe_bound(schedule.step, schedule.bound) if known and len(schedule.sms) > 1 else ""
    if not known:
        verdict.append("no times: its warps' time stamps fit no single clock rate")
    elif aligned:
        verdict.append(aligned)
    values: list[Any] = [
        *(schedule.sms, blocks, schedule.slots, running, scheduling),
        100 * scheduling / np.maximum(running + scheduling, 1),
        schedule.began[first] if known else NONE,
        np.maximum.reduceat(schedule.ended, first) if known else NONE,
        find_busy(schedule),
    ]
    yield make_array_answer("sms", SMS, values, verdict, top=TOP_SMS)
    values = [
        *(schedule.sms[schedule.which], schedule.slot, schedule.block, schedule.begin),
        schedule.end - schedule.begin,
        np.where(schedule.gap < 0, NONE, schedule.gap.astype(np.uint64)),
        schedule.began if known else np.full(len(schedule.block), NONE, np.uint64),
        schedule.ended if known else np.full(len(schedule.block), NONE, np.uint64),
        schedule.end,
    ]
    more = len(schedule.block) - MOST_BLOCKS
    verdict = [f"not listed: {more:,} of the blocks"] if more > 0 else []
    values = [array[:MOST_BLOCKS] for array in values]
    when = ("began", "ended") if known else ("begin", "end")
    title = "\n".join(filter(None, [_describe(shown), aligned]))
    drawn = plot("spans", when[0], "sm", end=when[1], lane="slot", color="block", title=title)
    yield make_array_answer("blocks", BLOCKS, values, verdict, top=TOP_BLOCKS, plots=[drawn])
    if known:
        yield _make_resident(shown)


def _make_resident(shown: Shown) -> Record:
    """Return how many warps and blocks of a launch were resident over time."""
    import numpy as np

    from gpt.analyze.lib.occupancy import BINS, find_resident

    found, all_ = shown.totals.occupancy, find_resident(shown.schedule)
    edges = np.linspace(0, found.time, BINS + 1)
    blocks = np.append(all_.mean_between(edges), 0)  # nothing is resident after the last edge
    values = [edges, blocks * found.most_warps / found.most_blocks, blocks, found.holds or NONE]
    near = 0 < found.holds <= NEAR * found.most_warps
    title = "\n".join(
        [f"warps that were resident, launch {shown.number}", *_describe_occupancy(found, shown.totals.sms)]
    )
    drawn = plot("levels", "time", "warps", *(["holds"] if near else []), title=title)
    return make_array_answer("resident", RESIDENT, values, top=TOP_BLOCKS, plots=[drawn])


def _describe_occupancy(of: Occupancy, sms: int) -> list[str]:
    """Return lines that describe how well `sms` SMs were used, or an empty list if no launch has known times."""
    from gpt.screen.units import human_count, human_time

    if not of.time:
        return []
    warps, most, occupancy, tail, share, imbalance, *_ = of.row()
    whole = f"; the device holds {of.holds:,} ({occupancy:.1f} % used)" if of.holds else ""
    told = f"{human_count(warps)} warps resident on average, {most:,} at most{whole}"
    if sms == 1:
        return [told, "one SM ran all blocks"]
    mean = f", the mean of {of.launches:,} launches" if of.launches > 1 else ""
    ends = f"the first SM ran out of blocks {human_time(tail / of.launches)} before the end{mean}"
    ends += f" ({share:.1f} % of the time)"
    busy = f"the busiest SM was busy {imbalance:.2f} times as long as the average"
    return [told, ends if tail else "all SMs ended together", busy]


def _describe(shown: Shown) -> str:
    """Return the title of the picture."""
    from gpt.screen.brief import brief_name

    launch, totals = shown.launch, shown.totals
    shape = "x".join(map(str, launch.grid)), "x".join(map(str, launch.block))
    cycles = f"{totals.running:,.0f} cycles in blocks, {totals.scheduling:,.0f} between them"
    where = f"{amount(launch.blocks, 'block')} on {amount(totals.sms, 'SM')}; an SM spent {cycles}"
    return f"{brief_name(shown.kernel)}\ngrid {shape[0]}, block {shape[1]}: {where}"


ANALYSIS = Analysis("Show which blocks each SM ran when.", BlockSched, {"launch": Number})
