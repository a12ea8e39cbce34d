"""gpt-analyze diff: two traces, by function and by kernel, and which of their differences are noise.

A count that differs is a difference, and so are bytes. Times vary from call to call: with variances a and b of m and n
durations within the two traces, the difference of the means has a standard error of sqrt(a/m + b/n). What is within
NOISE of these is noise, and what is LITTLE of the mean too, for clocks and temperature differ from run to run and no
trace of one run can say by how much. Of fewer than FEW durations the variance is not known well enough.
"""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.answer import Answers, Column, make_answer, plot
from gpt.analyze.command import Analysis
from gpt.screen.units import amount, human_time

if TYPE_CHECKING:
    from gpt.analyze.totals import ProcessTotals, Totals
    from gpt.trace.process import Process

NUMBERS = (
    Column("differs", "text", title="differs in"),
    Column("count_a", "u64", title="in A"),
    Column("count_b", "u64", title="in B"),
    Column("change", "f64?", "ns"),
    Column("total_a", "u64?", "ns", "time A"),
    Column("total_b", "u64?", "ns", "time B"),
    Column("mean_a", "u64?", "ns", "mean A"),
    Column("mean_b", "u64?", "ns", "mean B"),
)
BYTES = (Column("bytes_a", "u64?", "bytes", "bytes A", "any"), Column("bytes_b", "u64?", "bytes", "bytes B", "any"))
FUNCTIONS = (Column("name", "text", title="function"), Column("type", "text", shown="never"), *NUMBERS, *BYTES)
KERNELS = (Column("name", "text", "kernel", "kernel"), *NUMBERS)
ONLY_A, ONLY_B, COUNT, SIZE, TIME, NOISE_ONLY, FEW_TIMES, NOT_TIMED, NOTHING = (
    "only in A", "only in B", "count", "bytes", "time", "noise", "too few", "not timed", "nothing",
)  # fmt: skip
REAL = (ONLY_A, ONLY_B, COUNT, SIZE, TIME)
NOISE = 3.0  # standard errors
LITTLE = 0.02  # of a mean
FEW = 5  # durations
TOP = 30  # rows that tables show


class Side(NamedTuple):
    """What one trace says: how often, ns of `timed` of these, their variance in square ns, and bytes."""

    number: int
    timed: int
    total: float
    variance: float
    bytes: int

    @property
    def mean(self) -> float:
        """ns."""
        return self.total / self.timed if self.timed else 0.0


ABSENT = Side(0, 0, 0.0, 0.0, 0)


def tell_difference(a: Side, b: Side) -> str:
    """In what they differ."""
    if not a.number or not b.number:
        return ONLY_B if b.number else ONLY_A
    if a.number != b.number:
        return COUNT
    if a.bytes != b.bytes:
        return SIZE
    if not a.timed and not b.timed:
        return NOTHING
    if not a.timed or not b.timed:
        return NOT_TIMED
    if a.mean == b.mean and a.variance == b.variance == 0:
        return NOTHING
    if min(a.timed, b.timed) < FEW:
        return FEW_TIMES
    error = math.sqrt(a.variance / a.timed + b.variance / b.timed)
    return TIME if abs(a.mean - b.mean) > max(NOISE * error, LITTLE * max(a.mean, b.mean)) else NOISE_ONLY


class Diff:
    """The sums of each of two traces."""

    streams = True
    apart = True

    def __init__(self) -> None:
        from gpt.analyze.totals import Totals
        from gpt.trace.kinds import COVERED, RUNS

        self.kinds = RUNS | COVERED
        self._done = Totals(), Totals()  # of processes that are over
        self._commands: tuple[list[str], list[str]] = [], []
        self._open: dict[Process, ProcessTotals] = {}

    def take(self, process: Process) -> None:
        """Sums up the rows that a process has collected."""
        from gpt.analyze.totals import ProcessTotals

        if process not in self._open:
            self._open[process] = ProcessTotals(process)
            self._commands[process.origin].append(shlex.join(process.header["argv"]))
        self._open[process].take()

    def end(self, process: Process) -> None:
        """Adds a process to those that are over."""
        self._done[process.origin].merge(self._open.pop(process).named())

    def find_lack(self, kinds: set[str]) -> str | None:
        """Which of them has no calls."""
        absent = [name for name, commands in zip("AB", self._commands, strict=True) if not commands]
        return f"no calls in trace {' and '.join(absent)}: 'gpt-hook run' records some" if absent else None

    def answer(self, incomplete: list[str]) -> Answers:
        """Functions and kernels, those that changed most first."""
        from gpt.analyze.totals import Totals

        both = Totals(), Totals()
        for totals, done in zip(both, self._done, strict=True):
            totals.merge(done)
        for process, current in self._open.items():
            both[process.origin].merge(current.named())
        if not all(self._commands):
            return
        sides = [{api: _of_function(function) for api, function in totals.functions.items()} for totals in both]
        compared = _compare(*sides)
        rows = [
            (api.name, api.type, *_row(differs, a, b), a.bytes or None, b.bytes or None)
            for api, differs, a, b in compared
        ]
        by_time = plot("bars", "name", "change", title="time in calls, B - A")
        verdict = [*self._describe(both), *_verdict("functions", compared)]
        yield make_answer("functions", FUNCTIONS, rows, verdict, top=TOP, plots=[by_time])
        kernels = [{name: _of_kernel(kernel) for name, kernel in totals.kernels.items()} for totals in both]
        if any(kernels):
            compared = _compare(*kernels)
            timed = [any(side.timed for side in one.values()) for one in kernels]
            drawn = [plot("bars", "name", "change", title="time on the GPU, B - A")] if all(timed) else []
            verdict = list(_verdict("kernels", compared))
            if not all(timed):
                said = f"trace {'AB'[timed.index(False)]} does not say" if any(timed) else "neither trace says"
                verdict.append(f"{said} how long kernels ran: 'gpt-hook run --gpu-time' records it")
            lines = [(name, *_row(differs, a, b)) for name, differs, a, b in compared]
            yield make_answer("kernels", KERNELS, lines, verdict, top=TOP, plots=drawn)

    def _describe(self, both: tuple[Totals, Totals]) -> Iterator[str]:
        """What is compared."""
        for name, commands, totals in zip("AB", self._commands, both, strict=True):
            calls = sum(function.calls + function.counted for function in totals.functions.values())
            took = human_time(sum(function.durations.total for function in totals.functions.values()))
            more = f" and {len(commands) - 1:,} more" if len(commands) > 1 else ""
            yield f"{name}: {commands[0]}{more}: {amount(calls, 'call')}, {took} in them"
            yield from (f"{name}: {line}" for line in list(totals.coverage.verdict())[:1])


def _of_function(function: Any) -> Side:
    took = function.durations
    size = function.moved["bytes"]
    return Side(function.calls + function.counted, took.count, took.total, took.variance, size)


def _of_kernel(kernel: Any) -> Side:
    gpu = kernel.gpu
    return Side(max(kernel.launches, gpu.count), gpu.count, gpu.total, gpu.variance, 0)


def _compare(a: dict[Any, Side], b: dict[Any, Side]) -> list[tuple[Any, str, Side, Side]]:
    """What each differs in, and both sides of it: first what differs, and of that what changed most."""
    sides: dict[Any, tuple[Side, Side]] = defaultdict(lambda: (ABSENT, ABSENT))
    for key in [*a, *b]:
        sides[key] = a.get(key, ABSENT), b.get(key, ABSENT)
    found = [(key, tell_difference(*both), *both) for key, both in sides.items() if any(side.number for side in both)]
    return sorted(found, key=_changed)


def _changed(row: tuple[Any, str, Side, Side]) -> tuple[Any, ...]:
    key, differs, a, b = row
    return differs not in REAL, -abs(b.total - a.total), -abs(b.number - a.number), key


def _row(differs: str, a: Side, b: Side) -> tuple[Any, ...]:
    """The columns NUMBERS."""
    times = (b.total - a.total, *(side.total if side.timed else None for side in (a, b)),
             *(side.mean if side.timed else None for side in (a, b)))  # fmt: skip
    known = all(side.timed or not side.number for side in (a, b)) and (a.timed or b.timed)
    return differs, a.number, b.number, times[0] if known else None, *times[1:]


def _verdict(what: str, compared: list[tuple[Any, str, Side, Side]]) -> Iterator[str]:
    counts: dict[str, int] = defaultdict(int)
    for _, differs, *_ in compared:
        counts[differs] += 1
    told = [
        f"{counts[kind]:,} {'differ in ' if kind in (COUNT, SIZE, TIME) else ''}{kind}" for kind in REAL if counts[kind]
    ]
    same = [f"{counts[NOISE_ONLY]:,} in what may be noise"] if counts[NOISE_ONLY] else []
    same += [f"{counts[FEW_TIMES]:,} with too few times to say"] if counts[FEW_TIMES] else []
    same += [f"{counts[NOT_TIMED]:,} in no count, and not timed in both"] if counts[NOT_TIMED] else []
    same += [f"{counts[NOTHING]:,} in nothing"] if counts[NOTHING] else []
    yield f"{what}: {', '.join(told) or 'none differs'}" + (f"; {', '.join(same)}" if same else "")
    if counts[NOISE_ONLY]:
        share = f"{100 * LITTLE:.0f} %"
        yield f"noise: means that are within {NOISE:.0f} standard errors, of the times within each trace, or {share}"


ANALYSIS = Analysis("Compare two traces by function and kernel.", Diff, two=True)
