"""gpt-analyze nvtx: what happened within the ranges that a program sets with NVTX.

A call is within a pushed range if it began on the thread of the range while that was open, and within a range that
was started and ended, which belongs to no thread, if any thread of the process made it then. What it put on the GPU
counts where the call does, whenever it ran. Of ranges of one name that lie within each other, or overlap, each call
counts once; times of ranges are added as they are.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any

from gpt.analyze.answer import Answers, Column, Record, make_answer, plot
from gpt.analyze.command import of_model
from gpt.analyze.places import WHO, tell_apart
from gpt.screen.units import amount
from gpt.trace.kinds import CALLS, GPU_TIMES, RANGES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpt.trace.machines import Header
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process
    from gpt.trace.ranges import Ranges

    Whole = npt.NDArray[np.int64]

INSIDE = (
    Column("launches", "u64"),
    Column("gpu_time", "u64?", "ns", "GPU time", "any"),
    Column("copied", "u64", "bytes", shown="any"),
    Column("calls", "u64"),
)
NAMES = (
    Column("name", "text", title="range"),
    Column("domain", "text?", shown="any"),
    Column("type", "text", shown="never"),
    Column("count", "u64"),
    Column("open", "u64", shown="any"),
    *(Column(name, "u64", "ns") for name in ("total", "mean")),
    Column("p50", "u64", "ns", shown="never"),
    Column("longest", "u64", "ns"),
    *INSIDE,
)
NESTED = (
    Column("name", "text", title="nested"),
    Column("path", "text", shown="never"),
    Column("count", "u64"),
    Column("total", "u64", "ns"),
    Column("own", "u64", "ns"),
    Column("share", "f64?", "%", "of outer"),
    *INSIDE,
)
LONGEST = (
    Column("name", "text", title="longest ranges"),
    Column("domain", "text?", shown="never"),
    *WHO[:2],
    WHO[2]._replace(shown="never"),
    Column("thread", "u64", "id"),
    Column("depth", "u64", shown="never"),
    Column("begin", "u64", "ns", "at"),
    Column("end", "u64", "ns", shown="never"),
    Column("time", "u64", "ns"),
    *INSIDE,
)
MARKS = (
    Column("name", "text", title="mark"),
    Column("domain", "text?", shown="any"),
    Column("count", "u64"),
    Column("first", "u64", "ns"),
    Column("last", "u64", "ns"),
)
TOP, TOP_LONGEST, LISTED = 30, 10, 20_000
DEEPEST = 64
NO_RANGES = (
    "no NVTX range in the trace: the program sets none, or not in the time that was recorded; "
    "'gpt-hook run' records those that are set"
)
NO_TIMES = "when kernels ran is not recorded: 'gpt-hook run --gpu-time' does"


def nvtx(trace: TraceModel) -> Answers:
    """Ranges by name, those within each other as a tree, the longest, and marks."""
    import numpy as np

    from gpt.trace.ranges import read_ranges

    calls, gpu = trace.calls("bytes"), trace.gpu_times()
    totals = _Totals(len(gpu) > 0)
    for number, process in enumerate(trace.processes):
        mine = calls[calls["process"] == number]
        last = int((mine["start"] + mine["duration"].astype(np.int64)).max(initial=0))
        totals.add(process, read_ranges(trace, process, last), _Inside(trace, mine, gpu[gpu["process"] == number]))
    yield from totals.answers()


class _Inside:
    """What calls did, as sums of all that began before a time: of each thread, and of all."""

    def __init__(self, trace: TraceModel, calls: npt.NDArray[np.void], gpu: npt.NDArray[np.void]) -> None:
        """Of the calls and GPU times of one process, the calls in order of time."""
        import numpy as np

        from gpt.analyze.sequence import LAUNCHES

        driver = calls[~trace.chosen(calls, type="ioctl")]
        launch = np.zeros(len(driver), bool)
        for type_, op in LAUNCHES:
            launch |= trace.chosen(driver, type=type_, op=op)
        good = driver["result"] == 0
        copied = np.where(trace.chosen(driver, type="memcpy") & good, driver["bytes"].astype(float), 0)
        self.launches = int((launch & good).sum())
        gpu = gpu[np.argsort(gpu["call"], kind="stable")]
        values = np.stack([np.ones(len(driver)), launch & good, copied])
        self._calls = _sums(driver["start"], driver["thread"], values)
        self._gpu = _sums(gpu["call"], gpu["thread"], gpu["duration"][None, :])

    def count(self, thread: int | None, begins: Whole, ends: Whole) -> tuple[npt.NDArray[np.float64], ...]:
        """Of each interval the columns INSIDE; of all threads if `thread` is None."""
        import numpy as np

        found = []
        for sums in (self._calls, self._gpu):
            times, values = sums.get(thread, sums[-1])
            first, last = (np.searchsorted(times, edges) for edges in (begins, ends))
            found.append(values[:, last] - values[:, first])
        (calls, launches, copied), (gpu,) = found
        return launches, gpu, copied, calls


def _sums(times: Whole, threads: npt.NDArray[np.uint64], values: Any) -> dict[int | None, tuple[Whole, Any]]:
    """Of each thread, and of all (None), the times and what there was before each; -1 is a thread without any."""
    import numpy as np

    def before(mask: Any) -> tuple[Whole, Any]:
        return times[mask], np.pad(np.cumsum(values[:, mask], axis=1), ((0, 0), (1, 0)))

    found: dict[int | None, tuple[Whole, Any]] = {int(one): before(threads == one) for one in np.unique(threads)}
    return found | {None: before(slice(None)), -1: before(slice(0))}


class _Totals:
    """The sums of the ranges of all processes."""

    def __init__(self, timed: bool) -> None:
        self._timed = timed
        self._times: dict[tuple[str, str, str | None], list[Whole]] = defaultdict(list)  # by name, type, domain
        self._inside: dict[tuple[str, str, str | None], Any] = defaultdict(float)
        self._open: Counter[tuple[str, str, str | None]] = Counter()
        self._paths: dict[tuple[str, ...], list[float]] = {}
        self._longest: list[tuple[Any, ...]] = []
        self._marks: dict[tuple[str, str | None], list[int]] = defaultdict(list)
        self._launches = self._within = 0.0
        self._headers: list[Header] = []

    def add(self, process: Process, ranges: Ranges, inside: _Inside) -> None:
        """Adds a process."""
        import numpy as np

        from gpt.analyze.intervals import unite

        self._launches += inside.launches
        for name, time, _ in ranges.marks:
            domain, text = ranges.texts[name]
            self._marks[text, domain].append(time)
        if not len(ranges.begins):
            return
        self._headers.append(process.header)
        took = ranges.ends - ranges.begins
        for name, pushed in {*zip(ranges.names.tolist(), ranges.pushed.tolist(), strict=True)}:
            own = (ranges.names == name) & (ranges.pushed == pushed)
            domain, text = ranges.texts[name]
            key = text, "push" if pushed else "start", domain
            self._times[key].append(took[own])
            self._open[key] += int(ranges.open[own].sum())
            threads = ranges.threads[own] if pushed else np.zeros(int(own.sum()), np.uint64)
            self._inside[key] = self._inside[key] + _count(
                inside, threads, ranges.begins[own], ranges.ends[own], pushed
            )
        every = np.unique(ranges.threads[ranges.pushed])
        for thread in every.tolist():
            mine = ranges.pushed & (ranges.threads == thread)
            _, begins, ends = unite(np.zeros(int(mine.sum())), ranges.begins[mine], ranges.ends[mine])
            self._within += float(inside.count(thread, begins, ends)[0].sum())
        self._add_each(process, ranges, inside)

    def _add_each(self, process: Process, ranges: Ranges, inside: _Inside) -> None:
        """Adds each range to its place in the tree, and to the longest."""
        import numpy as np

        depth = np.zeros(len(ranges.begins), np.int64)
        values = np.zeros((4, len(ranges.begins)))
        for thread in [None, *np.unique(ranges.threads[ranges.pushed]).tolist()]:
            mine = np.flatnonzero(~ranges.pushed if thread is None else ranges.pushed & (ranges.threads == thread))
            values[:, mine] = inside.count(thread, ranges.begins[mine], ranges.ends[mine])
            if thread is not None:
                self._nest(ranges, mine, values, depth)
        took = ranges.ends - ranges.begins
        for at in np.argsort(-took, kind="stable")[:LISTED].tolist():
            domain, text = ranges.texts[ranges.names[at]]
            where = len(self._headers) - 1, int(ranges.threads[at]), int(depth[at])
            times = max(0, int(ranges.begins[at])), max(0, int(ranges.ends[at])), int(took[at])
            self._longest.append((text, domain, *where, *times, *self._shown(values[:, at])))

    def _nest(self, ranges: Ranges, mine: Whole, values: Any, depth: Whole) -> None:
        """Adds the pushed ranges of a thread to the tree; one lies within those that began before and end after it.

        When one that is open ends is not known: it stands alone.
        """
        stack: list[tuple[int, tuple[str, ...]]] = []  # the end and path of each that is open
        columns = zip(
            mine.tolist(), ranges.begins[mine].tolist(), ranges.ends[mine].tolist(), values[:, mine].T.tolist(),
            strict=True,
        )  # fmt: skip
        for at, begin, end, inside in columns:
            is_open = bool(ranges.open[at])
            while stack and not is_open and (stack[-1][0] <= begin or stack[-1][0] < end):
                stack.pop()
            depth[at] = 0 if is_open else len(stack)
            domain, text = ranges.texts[ranges.names[at]]
            name = f"{domain}: {text}" if domain else text
            path = (f"(open) {name}",) if is_open else (*(stack[-1][1] if stack else ()), name)
            sums = self._paths.setdefault(path, [0.0] * 7)
            for place, value in enumerate((1, end - begin, end - begin, *inside)):
                sums[place] += value
            if is_open:
                continue
            if stack:
                self._paths[stack[-1][1]][2] -= end - begin
            if len(stack) < DEEPEST:
                stack.append((end, path))

    def _shown(self, values: Any) -> tuple[Any, ...]:
        launches, gpu, copied, calls = values
        return launches, gpu if self._timed else None, copied, calls

    def answers(self) -> Answers:
        """All that there is to say."""
        if self._times:
            yield self._make_names()
        if any(len(path) > 1 for path in self._paths):
            yield self._make_nested()
        if self._longest:
            self._longest.sort(key=lambda row: -row[7])
            who = tell_apart(self._headers)
            rows = [(*row[:2], *who[row[2]], *row[3:]) for row in self._longest[:LISTED]]
            drawn = plot("spans", "begin", "name", end="end", title="ranges over time")
            yield make_answer("longest", LONGEST, rows, top=TOP_LONGEST, plots=[drawn])
        if self._marks:
            rows = [(*name, len(times), max(0, min(times)), max(0, max(times))) for name, times in self._marks.items()]
            yield make_answer("marks", MARKS, sorted(rows, key=lambda row: (-row[2], row[0])), top=TOP)

    def _make_names(self) -> Record:
        import numpy as np

        rows = []
        for key, parts in self._times.items():
            name, type_, domain = key
            took = np.concatenate(parts)
            p50 = int(np.percentile(took, 50, method="inverted_cdf"))
            times = took.sum(dtype=float), took.mean(), p50, int(took.max())
            rows.append((name, domain, type_, len(took), self._open[key], *times, *self._shown(self._inside[key])))
        rows.sort(key=lambda row: (-row[5], row[0]))
        open_, verdict = sum(self._open.values()), []
        if self._launches:
            share = 100 * self._within / self._launches
            verdict.append(f"{share:.1f} % of {amount(int(self._launches), 'launch')} within pushed ranges")
        if open_:
            verdict.append(f"{amount(open_, 'range')} had not ended: counted until the last record")
        if len(self._headers) > 1:
            verdict.append(f"of {len(self._headers)} processes: --pid and --rank choose")
        if not self._timed:
            verdict.append(NO_TIMES)
        drawn = plot("bars", "name", "gpu_time" if self._timed else "total")
        return make_answer("ranges", NAMES, rows, verdict, top=TOP, plots=[drawn])

    def _make_nested(self) -> Record:
        """The tree: each range after the one that it lies in, that with the longest time first."""
        order: dict[tuple[str, ...], tuple[Any, ...]] = {}
        for path in sorted(self._paths, key=len):
            order[path] = (*order.get(path[:-1], ()), -self._paths[path][1], path[-1])
        rows = []
        for path in sorted(order, key=lambda path: order[path]):
            count, total, own, *inside = self._paths[path]
            outer = self._paths[path[:-1]][1] if len(path) > 1 else None
            share = None if outer is None else 100 * total / (outer or 1)
            text = "  " * (len(path) - 1) + path[-1]
            rows.append((text, "/".join(path), count, total, max(0.0, own), share, *self._shown(inside)))
        return make_answer("nested", NESTED, rows, top=TOP)


def _count(
    inside: _Inside, threads: npt.NDArray[np.uint64], begins: Whole, ends: Whole, pushed: bool
) -> npt.NDArray[np.float64]:
    """The columns INSIDE of ranges of one name together: what is within several of a thread counts once."""
    import numpy as np

    from gpt.analyze.intervals import unite

    every, found = np.unique(threads), np.zeros(4)
    group, low, high = unite(threads, begins, ends)
    for number, thread in enumerate(every.tolist()):
        own = group == number
        counts = inside.count(thread if pushed else None, low[own], high[own])
        found += np.array([values.sum() for values in counts])
    return found


def _find_lack(kinds: set[str]) -> str | None:
    return None if kinds & (RANGES | {"child"}) else NO_RANGES


ANALYSIS = of_model(nvtx, "Sum up what happened within NVTX ranges.", CALLS | RANGES | GPU_TIMES, _find_lack)
