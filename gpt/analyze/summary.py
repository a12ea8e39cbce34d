"""gpt-analyze summary: which calls a program makes, how long they take, how much it copies in each direction, and which
kernels it launches.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

from gpt.analyze.lib import base
from gpt.analyze.lib.answer import Answers, Column, Record, Rows, make_answer, plot
from gpt.analyze.lib.command import Analysis, of_model
from gpt.analyze.lib.locations import PROGRAM, WHO, name_program, tell_apart
from gpt.base import cli
from gpt.base.errors import UsageError
from gpt.base.options import Option
from gpt.screen.units import amount, human_time

if TYPE_CHECKING:
    from gpt.analyze.lib.next_step import Hints
    from gpt.analyze.lib.questions import InferenceFacts
    from gpt.analyze.lib.slowest import SlowCall, SlowestCalls
    from gpt.analyze.lib.totals import FunctionTotals, ProcessTotals, Totals
    from gpt.trace.machines import Header
    from gpt.trace.process import Process

PROCESSES = (
    *PROGRAM,
    *WHO,
    Column("start", "u64", "ns", shown="never"),
    Column("calls", "u64"),
    Column("threads", "u64", title="in threads"),
    Column("duration", "u64", "ns", "time"),
    Column("recorded", "u64?", "ns", shown="any"),
    Column("status", "u64?", "id", "exit"),
)
FUNCTIONS = (
    Column("type", "text", "function", "type, function"),
    Column("op", "text?", shown="never"),
    Column("name", "text?", shown="under"),
    Column("calls", "u64"),
    Column("timed", "u64?", shown="any"),  # if not all calls are timed
    Column("counted", "u64", shown="never"),
    Column("open", "u64", shown="never"),
    Column("failed", "u64", shown="any"),
    Column("at_exit", "u64", shown="never"),
    *(Column(name, "u64?", "ns") for name in ("total", "mean", "p50", "p99", "slowest")),
    Column("slowest_start", "u64?", "ns", shown="never"),
    Column("slowest_pid", "u64?", "id", shown="never"),
    Column("slowest_thread", "u64?", "id", shown="never"),
    Column("label", "text?", shown="never"),  # for the picture
)
COPIES = (
    Column("op", "text", title="copies"),
    Column("calls", "u64"),
    Column("bytes", "u64", "bytes"),
    Column("mean_bytes", "u64", "bytes", "each"),
    Column("total", "u64", "ns", "time in calls"),
    Column("gpu_calls", "u64?", shown="never"),
    Column("gpu_total", "u64?", "ns", "GPU time", "any"),
    Column("in_graphs", "u64", title="in graphs", shown="any"),
)
KERNELS = (
    Column("name", "text", "kernel", "kernel"),
    Column("launches", "u64"),
    Column("share", "f64", "%"),
    Column("gpu_launches", "u64?", title="timed", shown="never"),  # shown if not all launches are timed
    Column("gpu_total", "u64?", "ns", "GPU time", "any"),
    Column("gpu_share", "f64?", "%", "share", "any"),
    Column("gpu_mean", "u64?", "ns", "mean", "any"),
    Column("captured", "u64", shown="any"),
)
MUCH = 0.05  # minimum share of the GPU time to be worth a sentence
IOCTL = "ioctl"  # the type of requests to the Linux kernel, which are parts of calls
GRAPHS = "graph", "launch"  # type and op of functions that launch graphs
TOP = 30  # kernels shown in tables


class Summary:
    """The sums of all records so far."""

    streams = True

    def __init__(self, top: int | None = None, verbose: bool = False) -> None:
        from gpt.analyze.lib.totals import Totals
        from gpt.trace.kinds import COVERED, RANGES, RUNS

        self._top, self._verbose = top, verbose
        self.kinds = RUNS | COVERED | {"module"} | (RANGES if top else frozenset())
        self.drains = top is not None
        self._slowest: list[SlowCall] = []  # calls of processes that have ended
        self._done = Totals()  # sums for processes that have ended
        self._processes: list[tuple[Header, tuple[Any, ...]]] = []  # ended processes, with the columns after WHO
        self._facts: list[tuple[InferenceFacts, Hints | None]] = []  # for processes that have ended
        self._open: dict[Process, ProcessTotals] = {}  # the records of several processes may be interleaved

    def take(self, process: Process) -> None:
        """Add up the rows that a process has collected."""
        from gpt.analyze.lib.totals import ProcessTotals

        current = self._open.pop(process, None) or ProcessTotals(process, self._make_slowest(process))
        current.take()
        if current.slowest:
            current.slowest.take_ranges()
        self._open[process] = current  # removed again if its rows make no sense, since it doesn't count then

    def _make_slowest(self, process: Process) -> SlowestCalls | None:
        from gpt.analyze.lib.slowest import SlowestCalls

        return SlowestCalls(process, self._top) if self._top else None

    def end(self, process: Process) -> None:
        """Add the sums of a process that has ended."""
        if current := self._open.pop(process, None):
            self._facts.append(_find_facts(current))
            self._done.merge(current.named())
            self._processes.append(_process_row(current))
            self._slowest = self._keep_slowest(_iter_slowest([current]))

    def _keep_slowest(self, more: Iterable[SlowCall]) -> list[SlowCall]:
        """Return the slowest calls: some may be in ended processes, others among these."""
        if not self._top:
            return []
        from gpt.analyze.lib.slowest import keep_slowest

        return keep_slowest([*self._slowest, *more], self._top)

    def merge(self, other: Summary) -> None:
        """Merge a summary of later traces."""
        self._facts += other._facts
        self._done.merge(other._done)
        self._processes += other._processes
        self._slowest = self._keep_slowest(other._slowest)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return a message if the traces have no calls, or None."""
        return base.find_lack(kinds, self.kinds)

    def answer(self, incomplete: list[str]) -> Answers:
        """Yield the tables of sums."""
        from gpt.analyze.lib.next_step import name_next
        from gpt.analyze.lib.questions import answer_questions
        from gpt.analyze.lib.totals import Totals

        totals, processes = Totals(), [*self._processes]
        totals.merge(self._done)
        for current in self._open.values():
            totals.merge(current.named())
            processes.append(_process_row(current))
        yield _make_processes(processes)
        if totals.functions:
            yield _make_functions(totals, self._verbose)
        if slowest := self._keep_slowest(_iter_slowest(self._open.values())):
            from gpt.analyze.lib.slowest import answer_slowest

            yield answer_slowest(slowest, [header for header, _ in processes])
        if copies := list(_iter_copies(totals)):
            yield make_answer("copies", COPIES, copies)
        verdict = [
            *totals.replays.verdict(),
            *_describe_graphs(totals),
            *_describe_loading(totals),
            *totals.coverage.verdict(),
        ]
        if totals.kernels or verdict:
            times = any(kernel.gpu.count for kernel in totals.kernels.values())
            drawn = plot("bars", "name", "gpu_total" if times else "launches", log=1)
            partly = any(kernel.launches > kernel.gpu.count > 0 for kernel in totals.kernels.values())
            shown = [one._replace(shown="any") if partly and one.name == "gpu_launches" else one for one in KERNELS]
            yield make_answer("kernels", shown, _iter_kernels(totals), verdict, top=TOP, plots=[drawn])
        yield from totals.coverage.answer()
        if found := [*self._facts, *map(_find_facts, self._open.values())]:
            facts = [one for one, _ in found]
            yield from answer_questions(totals, facts, self._verbose)
            if last := name_next(totals, facts, [hints for _, hints in found]):
                yield last


def _iter_slowest(processes: Iterable[ProcessTotals]) -> Iterator[SlowCall]:
    for one in processes:
        if one.slowest:
            yield from one.slowest.close(one.last)


def _find_facts(totals: ProcessTotals) -> tuple[InferenceFacts, Hints | None]:
    from gpt.analyze.lib.next_step import find_hints
    from gpt.analyze.lib.questions import make_facts

    facts = make_facts(totals)
    return facts, find_hints(totals, facts)


def _process_row(totals: ProcessTotals) -> tuple[Header, tuple[Any, ...]]:
    process, header = totals.process, totals.process.header
    duration = totals.last - process.clock.monotonic
    counts = header["realtime"], totals.calls, len(process.threads)
    return header, (*counts, duration, process.recorded(totals.last), process.exit_status)


def _make_processes(processes: list[tuple[Header, tuple[Any, ...]]]) -> Record:
    verdict = []
    processes = sorted(processes, key=lambda one: one[0].get("rank", -1))
    who = tell_apart(header for header, _ in processes)
    rows = [(*name_program(header), *one, *row) for one, (header, row) in zip(who, processes, strict=True)]
    if any(row[-2] is not None for row in rows):
        verdict.append("recording was off at times: calls, launches and GPU times cover only the time in 'recorded'")
    return make_answer("processes", PROCESSES, rows, verdict)


def _make_functions(totals: Totals, verbose: bool) -> Record:
    """Return each type of functions, longest time first, followed by its functions. Ioctls are included only if
    `verbose`.
    """
    types = totals.types()
    hidden = types.pop(IOCTL, None) if not verbose else None
    rows: list[tuple[Any, ...]] = []
    partly = any(function.durations.count < function.calls + function.counted for function in types.values())
    for type_ in sorted(types, key=lambda t: (-types[t].durations.total, t)):
        rows.append((type_, None, None, *_times(types[type_], partly), None))
        inside = [api for api in totals.functions if api.type == type_]
        inside.sort(key=lambda api: (-totals.functions[api].durations.total, api))
        more = " (captured)" if type_ == "capture" else ""
        rows += [
            (type_, api.op, api.name, *_times(totals.functions[api], partly), f"{api.name}{more}") for api in inside
        ]
    counted = sum(function.counted for function in types.values())
    open_ = sum(function.calls - function.durations.count for function in types.values())
    late = sum(function.at_exit for function in types.values())
    verdict = []
    if counted:
        verdict.append(
            f"{amount(counted, 'call')} counted but not timed: times and means cover only the calls in 'timed'"
        )
    if late:
        verdict.append(
            f"{amount(late, 'call')} came after the driver had shut down at the program's exit, which is usual: "
            "they don't count as 'failed'"
        )
    if open_:
        verdict.append(f"no time for {amount(open_, 'call')} that did not return")
    if hidden:
        verdict.append(
            f"these calls made {amount(hidden.calls, 'ioctl')}, which --verbose and 'gpt-analyze ioctl' show"
        )
    return make_answer("functions", FUNCTIONS, rows, verdict, plots=[plot("bars", "label", "total", log=1)])


def _times(function: FunctionTotals, partly: bool) -> tuple[Any, ...]:
    """Return the columns from `calls` on. `partly` is True if any function has calls without times."""
    took, slowest = function.durations, function.slowest
    all_, open_ = function.calls + function.counted, function.calls - took.count
    counts = all_, took.count if partly else None, function.counted, open_, function.failed, function.at_exit
    if not took.count:
        return *counts, *[None] * 8
    times = took.total, took.total / took.count, took.percentile(0.5), took.percentile(0.99), took.largest
    who = (slowest.start, slowest.pid, slowest.thread) if slowest else (None, None, None)
    return *counts, *times, *who


def _iter_copies(totals: Totals) -> Rows:
    """Yield the bytes copied in each direction, most first, by calls that ran and by nodes of graphs that were
    launched.
    """
    found: dict[str, Any] = {}  # most values are Counters
    for api, function in totals.functions.items():
        if api.type in ("memcpy", "memset") and function.moved["calls"]:
            sums = found.setdefault(api.op, Counter())
            sums.update(function.moved)
            sums.update(gpu_calls=function.gpu.count, gpu_total=function.gpu.total)
    for (type_, op), done in totals.replays.done.items():
        if type_ in ("memcpy", "memset") and done.number:
            found.setdefault(op, Counter()).update(in_graphs=done.number, bytes=done.bytes)
    for op in sorted(found, key=lambda op: (-found[op]["bytes"], op)):
        sums = found[op]
        on_gpu = (sums["gpu_calls"], sums["gpu_total"]) if sums["gpu_calls"] else (None, None)
        number = sums["calls"] + sums["in_graphs"]
        counts = sums["calls"], sums["bytes"], sums["bytes"] // number
        yield op, *counts, sums["total"], *on_gpu, sums["in_graphs"]


def _iter_kernels(totals: Totals) -> Rows:
    """Yield each kernel, by GPU time and then by launches, descending.

    Traces of other tools may have times of launches that they don't count.
    """
    counts = {name: max(kernel.launches, kernel.gpu.count) for name, kernel in totals.kernels.items()}
    launches = sum(counts.values())
    time = sum(kernel.gpu.total for kernel in totals.kernels.values()) + sum(_graph_times(totals))
    for name, kernel in sorted(totals.kernels.items(), key=lambda k: (-k[1].gpu.total, -k[1].launches, k[0])):
        gpu, share = kernel.gpu, 100 * counts[name] / (launches or 1)
        known = gpu.count, gpu.total, 100 * gpu.total / (time or 1), gpu.total / (gpu.count or 1)
        yield name, counts[name], share, *(known if gpu.count else (None,) * 4), kernel.captured


def _graph_times(totals: Totals) -> list[float]:
    """Return the GPU time of graph launches in ns. The kernels in graphs have no GPU times of their own."""
    return [function.gpu.total for api, function in totals.functions.items() if api[:2] == GRAPHS]


def _describe_graphs(totals: Totals) -> Iterator[str]:
    """Return a sentence about how much of the GPU time was in graphs."""
    if inside := sum(_graph_times(totals)):
        whole = inside + sum(kernel.gpu.total for kernel in totals.kernels.values())
        share = f"{human_time(inside)}, {100 * inside / whole:.1f} % of the GPU time"
        launches = amount(sum(one.gpu.count for api, one in totals.functions.items() if api[:2] == GRAPHS), "launch")
        yield f"not in the times of kernels: {share}, in {launches} of graphs, which 'gpt-analyze graphs' lists"


def _describe_loading(totals: Totals) -> Iterator[str]:
    """Return a sentence about the GPU time spent loading code, if it's known, or if much of it may have been spent on
    that.
    """
    from gpt.trace.loading import FAR

    kernels = totals.kernels.values()
    if loaded := [kernel.loaded for kernel in kernels if kernel.loaded]:
        code = f"the code of {amount(len(loaded), 'kernel')}"
        yield f"not in the GPU time: {human_time(sum(loaded))} in which first launches loaded {code}"
    much = MUCH * sum(kernel.gpu.total for kernel in kernels)
    if (unsure := sum(kernel.unsure for kernel in kernels)) > much:
        once = amount(sum(kernel.unsure > 0 for kernel in kernels), "kernel")
        where = " outside of graphs" if _graph_times(totals) else ""
        yield f"up to {human_time(unsure)} of the GPU time may be the loading of {once} launched only once{where}"
    loads, time = sum(kernel.loads for kernel in kernels), sum(kernel.loading for kernel in kernels)
    if time > much:
        launches = f"{amount(loads, 'launch')} that took over {FAR} times as long as the others of the same kernel"
        fact = "a first launch may include the loading of its code"
        yield f"{human_time(time)} of the GPU time went to {launches}: {fact}"


class By(StrEnum):
    """Possible groupings of launches and GPU time."""

    kernel = "kernel"
    range = "range"
    module = "module"
    layer = "layer"
    stack = "stack"


def _choose(given: Mapping[str, Any]) -> Analysis | None:
    """Return the analysis that runs for --by, or None. Raises UsageError."""
    by = given["by"]
    if by is None:
        return None
    if given["top"]:
        raise UsageError("--by can't be combined with --top")
    from gpt.analyze.lib.attribution import attribute, find_lack
    from gpt.analyze.lib.sampled_stacks import attribute_stacks
    from gpt.trace.kinds import CALLS, GPU_TIMES, GRAPHS, NODE_TIMES, NODES, RANGES, SAMPLES, SITES

    stacks = by == By.stack
    kinds = CALLS | GPU_TIMES | GRAPHS | NODES | NODE_TIMES | RANGES | (SITES | SAMPLES if stacks else frozenset())
    find = attribute_stacks if stacks else lambda trace: attribute(trace, by)
    return of_model(find, "", kinds, need=lambda trace: find_lack(by, trace), drains=True)


OPTIONS: dict[str, Any] = {
    "top": Annotated[
        int | None, Option("--top", metavar="NUMBER", min=1, max=1000, help="List this many of the slowest calls, too.")
    ],
    "verbose": cli.VerboseSummary,
}
CHOICES: dict[str, Any] = {
    "by": Annotated[By | None, Option("--by", help="Print only launches and GPU time, by one of these.")],
}
ANALYSIS = Analysis("Sum up calls, bytes and kernels of programs.", Summary, OPTIONS, instead=_choose, choices=CHOICES)
