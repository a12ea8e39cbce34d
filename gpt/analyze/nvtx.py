"""gpt-analyze nvtx: sums of the calls and the GPU work in the ranges that a program marks with NVTX.

A call is within a range that was pushed if it began in the same thread while the range was open. A range that was
started belongs to no thread: any call of the process is within it that began while the range was open. GPU work is
counted with the call that launched it, no matter when it ran. If ranges of the same name are nested or overlap, each
call counts once; the durations of ranges are simply added.

If names in a domain differ only in numbers, such as `step 0` and `step 1`, they count as one name, `step N`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, Record, make_answer, plot
from gpt.analyze.lib.command import of_model
from gpt.analyze.lib.locations import WHO, tell_apart
from gpt.screen.units import amount, human_time
from gpt.trace.kinds import CALLS, GPU_TIMES, GRAPHS, RANGES

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpt.analyze.lib.range_contents import Within
    from gpt.trace.machines import Header
    from gpt.trace.model import TraceModel

    Whole = npt.NDArray[np.int64]
    Text = tuple[str | None, str]  # domain, name

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
NO_RANGES = "no NVTX range in the trace: the program sets none, or set none while it was recorded"
NO_TIMES = "no GPU times: 'gpt-hook run --gpu-time' records when kernels ran"


class _Key(NamedTuple):
    """The key for which ranges are added up."""

    name: str
    type: str
    domain: str | None


def nvtx(trace: TraceModel) -> Answers:
    """Yield ranges by name, nested ranges as a tree, the longest ranges, and marks."""
    totals = _Totals(len(trace.gpus()) > 0, _find_repeated(trace))
    for number in range(len(trace.processes)):
        totals.add(trace, number)
    yield from totals.answers()


def _find_repeated(trace: TraceModel) -> set[Text]:
    """Return the names, with their domains and with N in place of numbers, that stand for several names."""
    from gpt.trace.modules import fold

    texts = {text for number in range(len(trace.processes)) for text in trace.ranges(number).chosen_texts}
    counts = Counter((domain, fold(name)) for domain, name in texts)
    return {text for text, count in counts.items() if count > 1}


class _Totals:
    """The sums of all ranges of all processes. `repeated` has the names that stand for several."""

    def __init__(self, timed: bool, repeated: set[Text]) -> None:
        from gpt.analyze.lib.numbers import Numbers

        self._timed, self._repeated = timed, repeated
        self._times = Numbers()  # by key
        self._inside: dict[_Key, Any] = defaultdict(float)
        self._open: Counter[_Key] = Counter()
        self._paths: dict[tuple[str, ...], list[float]] = {}
        self._longest: list[tuple[Any, ...]] = []
        self._least = -1  # ranges of at most this many ns aren't among the longest
        self._marks: dict[tuple[str, str | None], tuple[int, int, int]] = {}
        self._launches = self._within = 0.0
        self._headers: list[Header] = []
        self._off = 0  # unrecorded ns

    def add(self, trace: TraceModel, number: int) -> None:
        """Add a process."""
        from gpt.analyze.lib.range_contents import Inside
        from gpt.analyze.lib.range_tree import Nested

        self._add_marks(trace, number)
        texts, process = trace.ranges(number).texts, trace.processes[number]
        folded, names = self._fold(texts)
        inside, nested = Inside(trace, number), Nested(folded, self._paths)
        for every in inside.iter_within():
            within = every._replace(ranges=every.ranges.copy())
            every_name = every.ranges["name"]
            within.ranges["name"] = names[every_name]
            if not self._headers or self._headers[-1] is not process.header:
                self._headers.append(process.header)
                self._off += process.unrecorded_until(0)
            took = within.ranges["end"] - within.ranges["begin"]
            self._within += nested.count_launches(within)
            for name, pushed, own, found in nested.iter_names(within):
                domain, text = folded[name]
                key = _Key(text, "push" if pushed else "start", domain)
                self._times.add(key, took[own])
                self._open[key] += int(within.ranges["open"][own].sum())
                self._inside[key] = self._inside[key] + found
            self._add_longest(texts, every, nested.nest(within))
        self._launches += inside.launches

    def _fold(self, texts: list[Text]) -> tuple[list[Text], npt.NDArray[np.uint32]]:
        """Return the names under which ranges are added up, and for each original name, the index of its new one."""
        import numpy as np

        from gpt.trace.modules import fold

        numbers: dict[Text, int] = {}
        names = ((text, (text[0], fold(text[1]))) for text in texts)
        found = [numbers.setdefault(one if one in self._repeated else text, len(numbers)) for text, one in names]
        return list(numbers), np.array(found, np.uint32)

    def _add_marks(self, trace: TraceModel, number: int) -> None:
        import numpy as np

        kept = trace.ranges(number)
        folded, names = self._fold(kept.texts)
        for name, (count, *stamps) in sorted(kept.marks.items(), key=lambda mark: mark[1][1]):
            domain, text = folded[names[name]]
            first, last = trace.times(trace.processes[number], np.array(stamps, np.uint64)).tolist()
            before = self._marks.get((text, domain), (0, first, last))
            self._marks[text, domain] = before[0] + count, min(before[1], first), max(before[2], last)

    def _add_longest(self, texts: list[tuple[str | None, str]], within: Within, depth: Whole) -> None:
        import numpy as np

        ranges, values = within.ranges, within.ends - within.begins
        took = ranges["end"] - ranges["begin"]
        longer = np.flatnonzero(took > self._least)
        chosen = np.sort(longer[np.argsort(-took[longer], kind="stable")[:LISTED]])
        for at in chosen.tolist():
            domain, text = texts[int(ranges["name"][at])]
            where = len(self._headers) - 1, int(ranges["thread"][at]), int(depth[at])
            times = max(0, int(ranges["begin"][at])), max(0, int(ranges["end"][at])), int(took[at])
            self._longest.append((text, domain, *where, *times, *self._shown(values[:, at])))
        if len(self._longest) > LISTED:
            self._longest.sort(key=lambda row: -row[7])
            del self._longest[LISTED:]
            self._least = self._longest[-1][7]

    def _shown(self, values: Any) -> tuple[Any, ...]:
        launches, gpu, copied, calls = values
        return launches, gpu if self._timed else None, copied, calls

    def answers(self) -> Answers:
        """Yield the answers."""
        if self._open:
            yield self._make_names()
        if any(len(path) > 1 for path in self._paths):
            yield self._make_nested()
        if self._longest:
            self._longest.sort(key=lambda row: -row[7])
            who = tell_apart(self._headers)
            rows = [(*row[:2], *who[row[2]], *row[3:]) for row in self._longest]
            drawn = plot("spans", "begin", "name", end="end", title="ranges over time")
            yield make_answer("longest", LONGEST, rows, top=TOP_LONGEST, plots=[drawn])
        if self._marks:
            rows = [(*name, count, max(0, first), max(0, last)) for name, (count, first, last) in self._marks.items()]
            yield make_answer("marks", MARKS, sorted(rows, key=lambda row: (-row[2], row[0], row[1] or "")), top=TOP)

    def _make_names(self) -> Record:
        rows = []
        for key, open_ in self._open.items():
            count, total = self._times.count(key), self._times.total(key)
            times = total, total / count, self._times.percentile(key, 50), self._times.most(key)
            rows.append((key.name, key.domain, key.type, count, open_, *times, *self._shown(self._inside[key])))
        rows.sort(key=lambda row: (-row[5], row[0], row[1] or "", row[2]))
        all_open, verdict = sum(self._open.values()), []
        if self._launches:
            share = 100 * self._within / self._launches
            verdict.append(f"{share:.1f} % of {amount(int(self._launches), 'launch')} within pushed ranges")
        if all_open:
            verdict.append(f"{amount(all_open, 'range')} had not ended: counted until the last record")
        if self._off:
            verdict.append(f"recording was off for {human_time(self._off)}: only the times of ranges include that")
        if len(self._headers) > 1:
            verdict.append(f"of {len(self._headers)} processes: --pid and --rank choose")
        if not self._timed:
            verdict.append(NO_TIMES)
        drawn = plot("bars", "name", "gpu_time" if self._timed else "total")
        return make_answer("ranges", NAMES, rows, verdict, top=TOP, plots=[drawn])

    def _make_nested(self) -> Record:
        """Return the tree of ranges: each one is followed by those inside it, longest time first."""
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


def _find_lack(kinds: set[str]) -> str | None:
    return None if kinds & (RANGES | {"child"}) else NO_RANGES


ANALYSIS = of_model(nvtx, "Sum up what happened within NVTX ranges.", CALLS | GRAPHS | RANGES | GPU_TIMES,
                   _find_lack, drains=True, sends=True)  # fmt: skip
