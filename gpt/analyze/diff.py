"""gpt-analyze diff: compare two traces, or several runs of each side, by function and kernel. lib/differences.py has
the rules.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.differences import (
    COUNT,
    FEW,
    FEW_TIMES,
    LITTLE,
    MEDIAN,
    MUCH,
    NOISE,
    NOISE_ONLY,
    NOT_TIMED,
    NOTHING,
    ONLY_A,
    ONLY_B,
    REAL,
    RUNS,
    SIZE,
    SLOWEST,
    TIME,
    UNSURE,
    RunSums,
    Side,
    find_outliers,
    is_apart,
    make_side,
    mean_of,
    pair_names,
    tell_difference,
)
from gpt.analyze.lib.runs import RunSummary, answer_sides, describe_change
from gpt.screen.brief import brief_name
from gpt.screen.units import amount, human_count, human_time

if TYPE_CHECKING:
    from gpt.analyze.lib.totals import ProcessTotals
    from gpt.trace.process import Process

STATISTICS = ("median", "p99", "longest")
NUMBERS = (
    Column("differs", "text", title="differs in"),
    Column("count_a", "u64", title="in A"),
    Column("count_b", "u64", title="in B"),
    Column("change", "f64?", "ns"),
    Column("total_a", "u64?", "ns", "time A"),
    Column("total_b", "u64?", "ns", "time B"),
    Column("mean_a", "u64?", "ns", "mean A"),
    Column("mean_b", "u64?", "ns", "mean B"),
    *(Column(f"{name}_{side}", "u64?", "ns", f"{name} {side.upper()}") for name in STATISTICS for side in "ab"),
)
BYTES = (Column("bytes_a", "u64?", "bytes", "bytes A", "any"), Column("bytes_b", "u64?", "bytes", "bytes B", "any"))
FUNCTIONS = (Column("name", "text", "function", "function"), Column("type", "text", shown="never"), *NUMBERS, *BYTES)
KERNELS = (Column("name", "text", "kernel", "kernel"), *NUMBERS)
WHOLE = (
    Column("what", "text", title="time of"),
    Column("differs", "text", title="differs"),
    Column("a", "u64", "ns", "A"),
    Column("b", "u64", "ns", "B"),
    Column("change", "f64", "ns"),
    Column("ratio", "f64?", title="B / A"),
    Column("noise", "u64?", "ns"),
    Column("runs_a", "u64", title="runs A"),
    Column("runs_b", "u64", title="runs B"),
)
WALL, OFF, OUTSIDE, IN_CALLS, ON_GPU = "all of it", "not recorded", "outside of calls", "CUDA calls", "on the GPU"
ONE_THREAD = "in the thread that spends most time in calls, "
SEVERAL = (
    f"'{OUTSIDE}' is about the thread that spends most time in calls, and '{IN_CALLS}' about all threads of all "
    "processes: they don't add up"
)
NOT_KNOWN = "not known"  # there are too few runs to distinguish a difference from noise
MEANS = {  # explains the words in the column 'differs in'
    COUNT: "count: how often it was called or launched",
    UNSURE: "unsure: changed by over 1 % of the sum of this table, but no more than its calls vary: it may be noise",
    FEW_TIMES: f"few times: fewer than {FEW} have a time on a side, which can't tell a difference from noise",
    NOISE_ONLY: f"noise: means within {NOISE:.0f} standard errors of {{}}, or within {100 * LITTLE:.0f} %",
    SLOWEST: "slowest: p99 or the longest is over twice the other side's, and the time changed by over 1 % of the "
    "sum of this table",
    NOT_TIMED: "not timed: equal counts, and no times on one side",
}
SAID = {COUNT: "differ in count", SIZE: "differ in bytes", TIME: "differ in time", MEDIAN: "differ in the median",
        SLOWEST: "differ in slowest calls"}  # fmt: skip
TOP = 30  # rows that tables show


class Compared(NamedTuple):
    """A function or kernel that's compared, with its sums on both sides and how they differ."""

    name: str
    type: str
    differs: str
    a: Side
    b: Side

    @property
    def change(self) -> float:
        """Return how many ns longer B took than A, per run."""
        return self.b.total - self.a.total


class Diff:
    """Collects the runs of both sides. `runs` has the names of A's and of B's inputs, and `empty` the names of empty
    files in the same folders.
    """

    streams = True
    apart = True

    def __init__(self, runs: tuple[list[str], list[str]], empty: Sequence[list[str]] = ()) -> None:
        from gpt.trace.kinds import COVERED, RUNS

        self.kinds = RUNS | COVERED | {"device", "map"}
        self._first, self._empty = len(runs[0]), empty
        self._runs = [RunSummary(name) for side in runs for name in side]
        self._open: dict[Process, ProcessTotals] = {}

    def take(self, process: Process) -> None:
        """Add up the rows that a process has collected."""
        from gpt.analyze.lib.totals import ProcessTotals

        if process not in self._open:
            self._open[process] = ProcessTotals(process)
            self._runs[process.origin].begin(process)
        self._open[process].take()

    def end(self, process: Process) -> None:
        """Add the totals of an ended process to its run."""
        self._runs[process.origin].add(self._open.pop(process))

    @property
    def _sides(self) -> tuple[list[RunSummary], list[RunSummary]]:
        return self._runs[: self._first], self._runs[self._first :]

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return which traces have no calls, or None."""
        absent = [name for name, runs in zip("AB", self._sides, strict=True) if not all(run.commands for run in runs)]
        return f"no calls in trace {' and '.join(absent)}: 'gpt-hook run' records some" if absent else None

    def answer(self, incomplete: list[str]) -> Answers:
        """Yield the sides, whole runs, functions and kernels; the largest changes come first."""
        for process in [*self._open]:
            self.end(process)
        if not all(run.commands for run in self._runs):
            return
        a, b = self._sides
        in_calls = mean_of(run.in_calls for run in a).mean, mean_of(run.in_calls for run in b).mean
        on_gpu = mean_of(run.on_gpu for run in a).mean, mean_of(run.on_gpu for run in b).mean
        functions = _compare([run.functions for run in a], [run.functions for run in b], max(in_calls))
        names = pair_names({name for run in a for name in run.kernels}, {name for run in b for name in run.kernels})
        for run in self._runs:
            run.rename(names)
        kernels = _compare([run.kernels for run in a], [run.kernels for run in b], max(on_gpu))
        yield answer_sides(a, b, self._empty)
        work = _compare([run.work for run in a], [run.work for run in b], max(on_gpu))
        yield _answer_whole(a, b, functions, [*kernels, *work])
        rows = [(one.name, one.type, *_row(one), one.a.bytes or None, one.b.bytes or None) for one in functions]
        drawn = plot("bars", "name", "change", title="time in calls, B - A")
        yield make_answer("functions", FUNCTIONS, rows, [*_verdict("functions", functions)], top=TOP, plots=[drawn])
        if kernels:
            yield _answer_kernels(kernels, names)


def _compare(a: Sequence[Mapping[Any, RunSums]], b: Sequence[Mapping[Any, RunSums]], whole: float) -> list[Compared]:
    """Compare the functions or kernels of both sides. Kernels have no type. `whole` is the time of both sides in ns."""
    found = []
    for key in dict.fromkeys(key for run in (*a, *b) for key in run):
        one, other = (make_side([run[key] for run in runs]) for runs in (a, b))
        name, type_ = (key, "") if isinstance(key, str) else (key.title, key.type)
        found.append(Compared(name, type_, tell_difference(one, other, whole), one, other))
    return _order(found, whole)


def _order(found: list[Compared], whole: float) -> list[Compared]:
    """Sort by change, largest first. Whatever differs or changes much comes before the rest."""
    found = [one for one in found if one.a.number or one.b.number]
    return sorted(found, key=lambda one: (one.differs not in REAL and abs(one.change) <= MUCH * whole,
                                          -abs(one.change), -abs(one.b.number - one.a.number), one.name))  # fmt: skip


def _row(one: Compared) -> tuple[Any, ...]:
    """Return values for the columns NUMBERS."""
    sides = one.a, one.b
    timed = [side.times.count > 0 for side in sides]
    known = any(timed) and all(yes or not side.number for yes, side in zip(timed, sides, strict=True))
    times = [
        (side.total, side.times.mean, side.times.percentile(0.5), side.times.percentile(0.99), side.times.largest)
        if yes else (None,) * 5
        for yes, side in zip(timed, sides, strict=True)
    ]  # fmt: skip
    paired = [value for pair in zip(*times, strict=True) for value in pair]
    return one.differs, one.a.number, one.b.number, one.change if known else None, *paired


def _answer_whole(
    a: list[RunSummary], b: list[RunSummary], functions: list[Compared], work: list[Compared]
) -> dict[str, Any]:
    """Compare whole runs: how much longer B takes, whether that's more than noise, and what causes most of it."""
    sides = a, b
    values = {
        WALL: [[run.wall for run in runs] for runs in sides],
        OFF: [[float(run.unrecorded) for run in runs] for runs in sides],
        OUTSIDE: [[run.outside for run in runs] for runs in sides],
        IN_CALLS: [[run.in_calls for run in runs] for runs in sides],
        ON_GPU: [[run.on_gpu for run in runs] for runs in sides],
    }
    rows = [
        (what, *_compare_means(*both), len(a), len(b))
        for what, both in values.items()
        if (what != ON_GPU or all(map(any, both))) and (what != OFF or any(map(any, both)))
    ]
    changes = {row[0]: row[4] for row in rows}
    verdict = [_sum_up("", *rows[0][1:6])]
    if changes[WALL] and (why := describe_change(a, b)):
        verdict.append(why)
    if max(run.processes for run in (*a, *b)) > 1:
        verdict.append(SEVERAL)
    else:
        threads = max(run.threads for run in (*a, *b))
        parts = changes[OUTSIDE], changes.get(OFF, 0.0)
        verdict += _break_down(changes[WALL], *parts, ONE_THREAD if threads > 1 else "")
    if any(run.counted for run in (*a, *b)):
        verdict.append("calls that were not timed count as outside of calls")
    verdict += filter(None, (
        _find_most("in calls", functions, changes[IN_CALLS]),
        _find_most("on the GPU", work, changes.get(ON_GPU, 0.0)),
    ))  # fmt: skip
    verdict += _tell_outliers(a, b)
    return make_answer("whole", WHOLE, rows, verdict)


def _compare_means(
    a: Sequence[float], b: Sequence[float]
) -> tuple[str, float, float, float, float | None, float | None]:
    """Return values for the columns WHOLE, from `differs` to `noise`."""
    known = min(len(a), len(b)) >= RUNS
    means = mean_of(a), mean_of(b)
    change = means[1].mean - means[0].mean
    noise = NOISE * math.sqrt(means[0].error + means[1].error) if known else None
    differs = (TIME if is_apart(*means) else NOISE_ONLY) if known else NOT_KNOWN
    ratio = means[1].mean / means[0].mean if means[0].mean else None
    return differs, means[0].mean, means[1].mean, change, ratio, noise


def _tell_outliers(a: list[RunSummary], b: list[RunSummary]) -> Iterator[str]:
    """Name the runs that took far more or far less time than the others of their side, and compare the rest."""
    rest = []
    for name, runs in (("A", a), ("B", b)):
        far = find_outliers([run.wall for run in runs])
        rest.append([run for at, run in enumerate(runs) if at not in far])
        for at in far:
            yield _tell_outlier(name, runs[at], rest[-1], len(runs))
    gone = len(a) + len(b) - sum(map(len, rest))
    if gone:
        told = "without that run" if gone == 1 else "without those runs"
        yield _sum_up(f"{told}, ", *_compare_means(*([run.wall for run in runs] for runs in rest))[:5])


def _tell_outlier(name: str, run: RunSummary, others: list[RunSummary], runs: int) -> str:
    """Describe an outlier of the side `name`, and name the function whose time differs most from the other runs."""
    usual = mean_of(other.wall for other in others).mean
    told = f"{run.name}, one of {runs} runs of {name}, took {human_time(run.wall)}; the others {human_time(usual)}"
    changes = {
        api: run.functions[api].times.total - mean_of(other.functions[api].times.total for other in others).mean
        for api in {api for one in (run, *others) for api in one.functions}
    }
    api = max(changes, key=lambda one: (changes[one] * (1 if run.wall > usual else -1), one), default=None)
    if api and abs(changes[api]) > abs(run.wall - usual) / 2:
        told += (
            f"; most of that: {api.title}, {human_time(abs(changes[api]))} {'longer' if changes[api] > 0 else 'less'}"
        )
    return told


def _break_down(whole: float, outside: float, off: float, where_from: str) -> Iterator[str]:
    """Return a sentence that divides a difference into the time outside of calls, in calls, and not recorded, largest
    part first.

    `where_from` names the thread whose calls were used.
    """
    parts = {
        "outside of CUDA calls, in host code": outside,
        "in CUDA calls": whole - outside - off,
        "while recording was off": off,
    }
    parts = {where: part for where, part in parts.items() if abs(part) >= 1}
    if not whole:
        return
    if len(parts) == 1:
        yield f"{where_from}all of that is {next(iter(parts))}"
        return
    alike = all(part * whole >= 0 for part in parts.values())
    told = [
        human_time(abs(part))
        + (f" ({abs(100 * part / whole):.1f} %)" if alike else " longer" if part > 0 else " less")
        + f" {where}"
        for where, part in sorted(parts.items(), key=lambda one: -abs(one[1]))
    ]
    yield f"of that, {where_from}{', '.join(told[:-1])}, and {told[-1]}"


def _sum_up(told: str, differs: str, a: float, b: float, change: float, ratio: float | None) -> str:
    """Append to a sentence by how much B took longer than A, and whether that's noise."""
    more = f"{human_time(abs(change))} {'longer' if change > 0 else 'less'} than" if change else "as long as"
    told += f"B took {more} A"
    if ratio is not None and change:
        told += f" ({human_count(ratio)} times as long)" if ratio >= 2 else f" ({100 * abs(ratio - 1):.1f} %)"
    if differs == NOISE_ONLY:
        return f"{told}, which is within what runs of the same side differ by"
    if differs == TIME:
        return f"{told}, which is more than runs of the same side differ by"
    return f"{told}; folders of {RUNS} runs or more each, in place of A and B, show whether that is noise"


def _find_most(where: str, compared: list[Compared], whole: float) -> str | None:
    """Name the function or kernel that changed most, or return None if that's noise. `whole` is the total change
    in ns.
    """
    known = (one for one in compared if one.differs not in (NOISE_ONLY, NOTHING, NOT_TIMED))
    found = max(known, key=lambda one: abs(one.change), default=None)
    if not found or not found.change:
        return None
    rest = whole - found.change  # may be far larger than the change of the function, and of opposite sign
    most = "most of it" if 2 * abs(rest) < abs(whole) else "the largest change"
    told = f"{where}, {most}: {_tell_name(found)}, {human_time(abs(found.change))} "
    return told + ("longer" if found.change > 0 else "less") + _tell_how(found, compared)


def _tell_name(one: Compared) -> str:
    return brief_name(one.name) if one.type else f"kernel {brief_name(one.name)}"


def _tell_how(found: Compared, compared: list[Compared]) -> str:
    """Return how the calls or launches of a function or kernel changed, as the end of a sentence."""
    a, b = found.a, found.b
    unit = "call" if found.type else "launch"
    if found.differs in (ONLY_A, ONLY_B):
        told, other = f", {found.differs}", ONLY_B if found.differs == ONLY_A else ONLY_A
        most = max((one for one in compared if one.differs == other), key=lambda one: abs(one.change), default=None)
        return f"{told}; {other}: {_tell_name(most)}, {human_time(abs(most.change))}" if most else told
    if found.differs == COUNT:
        return f": {amount(round(a.number), unit)} in A, {amount(round(b.number), unit)} in B"
    if found.differs == FEW_TIMES:
        few = amount(round(min(side.timed for side in (a, b) if side.number)), unit)
        return f", with times of only {few}: too few to tell whether that's noise"
    if found.differs == SLOWEST:
        longest = human_time(a.times.largest), human_time(b.times.largest)
        return f", in few calls: the longest took {longest[0]} in A, {longest[1]} in B"
    middle, high = ([human_time(side.times.percentile(part)) for side in (a, b)] for part in (0.5, 0.99))
    told = f" (median {middle[0]} in A, {middle[1]} in B; p99 {high[0]}, {high[1]})"
    return told + (", which may be noise: its calls vary by as much" if found.differs == UNSURE else "")


def _answer_kernels(kernels: list[Compared], names: dict[str, str]) -> dict[str, Any]:
    timed = [any(one.a.times.count for one in kernels), any(one.b.times.count for one in kernels)]
    drawn = [plot("bars", "name", "change", title="time on the GPU, B - A")] if all(timed) else []
    verdict = [*_verdict("kernels", kernels)]
    if names:
        verdict.append(
            f"'#' stands for any number: {amount(len(names), 'kernel')} that differ in it are compared as one"
        )
    for name, sides in (("A", [one.a for one in kernels]), ("B", [one.b for one in kernels])):
        known, every = sum(side.timed for side in sides), sum(side.number for side in sides)
        if 0 < known < every:
            verdict.append(f"in {name} {known:,.0f} of {every:,.0f} launches have a time; those in graphs never do")
    if not all(timed):
        said = f"trace {'AB'[timed.index(False)]} does not say" if any(timed) else "neither trace says"
        verdict.append(f"{said} how long kernels ran: 'gpt-hook run --gpu-time' records it")
    return make_answer("kernels", KERNELS, [(one.name, *_row(one)) for one in kernels], verdict, top=TOP, plots=drawn)


def _verdict(what: str, compared: list[Compared]) -> Iterator[str]:
    counts = Counter(one.differs for one in compared)
    told = [
        f"{counts[kind]:,} {SAID[kind] if counts[kind] > 1 else SAID[kind].replace('differ', 'differs', 1)}"
        if kind in SAID
        else f"{counts[kind]:,} {kind}"
        for kind in REAL
        if counts[kind]
    ]
    told += [f"{counts[UNSURE]:,} unsure"] if counts[UNSURE] else []
    same = [f"{counts[kind]:,} {kind}" for kind in (NOISE_ONLY, FEW_TIMES, NOT_TIMED) if counts[kind]]
    same += [f"{counts[NOTHING]:,} equal"] if counts[NOTHING] else []
    none = "no known difference" if counts[FEW_TIMES] or counts[NOT_TIMED] else "no difference"
    yield f"{what}: {', '.join(told) or none}" + (f"; {', '.join(same)}" if same else "")
    several = compared and min(len(compared[0].a.runs), len(compared[0].b.runs)) >= RUNS
    yield from (MEANS[kind].format("runs" if several else "times within a run") for kind in MEANS if counts[kind])


ANALYSIS = Analysis("Compare two traces by function and kernel.", Diff, two=True)
