"""gpt-analyze gaps: times when nothing was launched, and when the GPU was idle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import of_model
from gpt.analyze.lib.locations import SINCE, WHO, Who, describe, tell_apart
from gpt.base.printable import shorten
from gpt.screen.units import amount, human_time
from gpt.trace.kinds import CALLS, COUNTED, GPU_TIMES

if TYPE_CHECKING:
    from gpt.analyze.lib.gap_lengths import GapLengths
    from gpt.analyze.lib.gpu_use import GpuUse, Switches, Work
    from gpt.analyze.lib.launch_gaps import Between, Gap
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

TIMES = (
    Column("count", "u64"),
    Column("total", "u64", "ns"),
    Column("share", "f64", "%"),
    *(Column(name, "u64?", "ns") for name in ("longest", "mean", "p50", "p99")),
)
GAPS = (
    Column("gap", "text", title="gap after"),
    *WHO,
    Column("thread", "u64?", "id", shown="any"),
    *TIMES,
)
LONGEST = (
    Column("label", "text", shown="never"),  # for the picture
    Column("after", "text", "kernel", "long gap after"),
    Column("before", "text", "kernel"),
    Column("reason", "text", title="mostly in"),
    Column("share", "f64", "%"),
    Column("call", "text?", shown="never"),
    Column("in_calls", "f64", "%", shown="never"),
    *WHO[:2],
    Column("pid", "u64", "id", shown="never"),
    Column("thread", "u64", "id"),
    Column("start", "u64", "ns", "at"),
    Column("gap", "u64", "ns"),
)
IDLE = (
    Column("gpu", "text", title="idle GPU"),
    Column("stream", "text"),
    *WHO,
    Column("busy", "u64", "ns"),
    Column("total", "u64", "ns", "idle"),
    *TIMES[2:3],
    *TIMES[:1],
    *TIMES[3:],
)
PERIODS = (
    Column("gpu", "text", title="idle period"),
    Column("after", "text", "kernel"),
    Column("before", "text", "kernel"),
    *WHO,
    Column("start", "u64", "ns", "at"),
    Column("took", "u64", "ns", "idle"),
)
SWITCHES = (
    Column("place", "text", title="switches of"),
    Column("source", "text", title="from"),
    Column("target", "text", title="to"),
    *WHO,
    Column("count", "u64"),
    *(Column(name, "u64", "ns") for name in ("total", "mean", "longest")),
    Column("first", "u64", "ns", "first at"),
)
POINTS = (
    Column("place", "text", title="switch of"),
    *SWITCHES[1:3],
    *WHO,
    Column("start", "u64", "ns", "at"),
    Column("took", "u64", "ns"),
)
BRIEF = 18  # maximum width of a name in a picture
TOP, TOP_POINTS, TOP_IDLE, LISTED = 10, 5, 30, 1000  # LISTED is the limit for each list of longest gaps
MOST_OF = 0.5  # share of a gap that a call must cover to be named as its cause
HOST_CODE, SEVERAL_CALLS, GRAPH = "host code", "several calls", "a graph"
LAUNCH, WAIT = "launch", "wait"
NO_TIMES = "no GPU times{}: 'gpt-hook run --gpu-time' records when kernels ran"
OVERLAP = "gaps after waits may lie inside gaps after launches: don't add them up"
AT_LEAST = (
    "{:.1f} % of {} is between the end of a wait for all work and the next launch: the GPU had no kernel of this "
    "process to run"
)
NO_GAPS = "{} launched once, so nothing is between two launches"
PAUSED = "recording of {} was off for {}: launches in that time are missing"
UNTIMED = "{} counted but not timed: {} time counts as host code"
COUNT, SHARE = 5, 7  # indexes in a row of GAPS
WHOLE = "all processes", "all streams"
NOBODY = (None, None, None)  # the columns WHO of a row that covers several processes


def gaps(trace: TraceModel) -> Answers:
    """Yield the gaps between launches of a thread, between waits and launches, and between work on the GPU; then
    switches.
    """
    from gpt.analyze.lib.gpu_use import Switches, find_uses, name_processes

    who, switches = tell_apart(process.header for process in trace.processes), Switches()
    rows: list[tuple[Any, ...]] = []
    longest: list[tuple[Any, ...]] = []
    verdict: list[str] = []
    launching = _find_launching(trace, switches)
    for number, between in launching:
        own = list(_iter_gaps(between, who[number]))
        rows += own
        if not verdict:
            verdict += _verdict(who[number], between, own)
            if len(launching) > 1:
                verdict.append(f"that is one of {len(launching):,} processes that launched: --pid chooses")
        longest += _iter_longest(trace.processes[number], between, who[number])
    uses = find_uses(trace, name_processes(who), switches)
    idle = [row for use in uses for row in _iter_idle(use, who)]
    verdict += _describe_pauses(launching, who)
    if counted := sum(trace.counted(number) for number, _ in launching):
        verdict.append(UNTIMED.format(amount(counted, "call"), "its" if counted == 1 else "their"))
    verdict += _untimed(trace, who)
    if rows or verdict or not idle:
        yield make_answer("gaps", GAPS, rows, verdict)
    longest.sort(key=lambda row: -row[-1])
    if longest:
        drawn = plot("bars", "label", "gap", title="longest gaps between launches: from, to, when")
        yield make_answer("longest", LONGEST, longest[:LISTED], [f"'at' {SINCE}"], top=TOP, plots=[drawn])
    if idle:
        lines = [line for use in uses[:TOP] for line in _describe_idle(trace, use)]
        yield make_answer("idle", IDLE, idle, lines, top=TOP_IDLE)
        periods = sorted((row for use in uses for row in _iter_periods(trace, use, who)), key=lambda row: -row[-1])
        if periods:
            yield make_answer("periods", PERIODS, periods[:LISTED], [f"'at' {SINCE}"], top=TOP)
    yield from _answer_switches(switches, who)


def _find_launching(trace: TraceModel, switches: Switches) -> list[tuple[int, Between]]:
    """Return the gaps of each process that launched anything, most launches first; equal ones are sorted by rank.

    Switches of threads are added to `switches`.
    """
    from gpt.analyze.lib.gpu_use import ThreadSwitches
    from gpt.analyze.lib.launch_gaps import Between
    from gpt.analyze.lib.sequence import iter_calls

    found = []
    for number in range(len(trace.processes)):
        between = Between(trace.unrecorded(trace.processes[number]))
        threads = ThreadSwitches(number, switches)
        for calls in iter_calls(trace, number, "function", "object", "stream"):
            between.add(calls)
            threads.add(calls)
        if between.launches:
            found.append((number, between))
    switches.order()
    return sorted(found, key=lambda one: (-one[1].launches, trace.processes[one[0]].header.get("rank", -1)))


def _describe_pauses(launching: list[tuple[int, Between]], who: list[Who]) -> Iterator[str]:
    """Name the processes in which recording was off at times, and say which totals include the gaps around
    these times.
    """
    from gpt.analyze.lib.gap_lengths import describe_cut
    from gpt.analyze.lib.launch_gaps import WAITS

    found = {number: between.unrecorded.within_one(between.first, between.last) for number, between in launching}
    paused = [number for number, off in found.items() if off]
    if paused:
        more = f", and of {len(paused) - 1:,} more at times" if len(paused) > 1 else ""
        yield PAUSED.format(describe(who[paused[0]]), human_time(found[paused[0]]) + more)
    cut = Counter[str]()
    for _, between in launching:
        for group in between.gaps:
            cut["after waits" if group == WAITS else "after launches"] += between.gaps.cut(group)[0]
    told = [f"{count:,} {where}" for where, count in cut.items() if count]
    if told:
        yield describe_cut(cut.total(), f"{amount(cut.total(), 'gap')} ({', '.join(told)})", "'total'")


def _untimed(trace: TraceModel, who: list[Who]) -> Iterator[str]:
    """Name the processes whose GPU work has no times."""
    from gpt.analyze.lib.gpu_use import find_untimed

    if found := find_untimed(trace):
        first = describe(who[trace.processes.index(found[0])])
        more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
        yield NO_TIMES.format("" if len(found) == len(trace.processes) else f" of {first}{more}")


def _answer_switches(switches: Switches, who: list[Who]) -> Answers:
    """Yield sums of the switches by kind, and the individual switches, if there are any."""
    if not switches.count:
        return
    rows = [
        (place, source, target, *_who(process, who), sums.count, sums.total, sums.total / sums.count, sums.longest,
         sums.first)
        for (place, process, source, target), sums in switches.sums.items()
    ]  # fmt: skip
    rows.sort(key=lambda row: -row[6])
    kinds = {
        "for a thread, its calls that switched": any(process is not None for _, process, _, _ in switches.sums),
        "for a GPU, when it was idle between two processes": any(process is None for _, process, _, _ in switches.sums),
    }
    told = "; ".join(kind for kind, any_ in kinds.items() if any_)
    verdict = [f"'total', 'mean' and 'longest' are times: {told}", f"'at' {SINCE}"]
    yield make_answer("switches", SWITCHES, rows, verdict, top=TOP)
    points = [
        (switch.place, switch.source, switch.target, *_who(switch.process, who), max(0, switch.at), switch.took)
        for switch in switches.points()
    ]
    more = switches.count - len(points)
    lines = [f"only in the sums: {more:,} more switches"] if more else []
    yield make_answer("switch_points", POINTS, points, lines, top=TOP_POINTS)


def _who(process: int | None, who: list[Who]) -> tuple[Any, ...]:
    return NOBODY if process is None else who[process]


def _times(found: GapLengths, group: Hashable, whole: float) -> tuple[Any, ...]:
    """Return values for the columns TIMES."""
    count, total = found.count(group), found.recorded(group)
    share = 100 * total / (whole or 1)
    if not count:
        return count, total, share, *[None] * 4
    percentiles = (found.percentile(group, percent) for percent in (50, 99))
    return count, total, share, found.most(group), found.total(group) / count, *percentiles


def _iter_gaps(between: Between, who: Who) -> Iterator[tuple[Any, ...]]:
    """Yield rows of GAPS: the gaps between the launches of each thread, then the gaps of the process after waits."""
    from gpt.analyze.lib.launch_gaps import WAITS

    whole, gaps = float(between.whole), between.gaps
    threads = sorted(thread for thread in gaps if isinstance(thread, int) and _any(gaps, thread))
    found = [(LAUNCH, *who, thread, *_times(gaps, thread, whole)) for thread in threads]
    yield from sorted(found, key=lambda row: -row[6])
    if _any(gaps, WAITS):
        yield WAIT, *who, None, *_times(gaps, WAITS, whole)


def _any(gaps: GapLengths, group: Hashable) -> bool:
    return gaps.count(group) > 0 or gaps.cut(group)[0] > 0


def _verdict(who: Who, between: Between, rows: list[tuple[Any, ...]]) -> Iterator[str]:
    """Return a sentence about how much time a process spent between launches, in long gaps, and after waits.

    If it has several threads, this is about the thread with the most launches.
    """
    from gpt.analyze.lib.launch_gaps import LONG

    launches = sorted((row for row in rows if row[0] == LAUNCH), key=lambda row: (-row[COUNT], -row[SHARE]))[:1]
    waits = [row for row in rows if row[0] == WAIT]
    if not rows:
        threads = len(between.edges)
        yield NO_GAPS.format(describe(who) if threads == 1 else f"each of {threads:,} threads of {describe(who)}")
    off = between.unrecorded.within_one(between.first, between.last)
    time = f"{human_time(between.whole)}{' of recorded time' if off else ''}"
    for row in launches:
        count, long_time = between.long.get(row[4], (0, 0))
        every = between.whole or 1
        long = f" ({100 * long_time / every:.1f} % in {amount(count, 'gap')} over {human_time(LONG)})" if count else ""
        before, after = (100 * part / every for part in between.around(row[4]))
        most = f", which launches most of {len(between.edges):,}," if len(between.edges) > 1 else ""
        yield (
            f"{describe(who)} took {time} from its first call to its last; of that, thread {row[4]}{most} spent "
            f"{before:.1f} % before its first launch, {max(0.0, 100 - before - row[SHARE] - after):.1f} % in launches, "
            f"{row[SHARE]:.1f} % between them, waits included{long}, and {after:.1f} % after the last one"
        )
    for row in waits:
        whole = f"the {time} of {describe(who)} from its first call to its last"
        yield AT_LEAST.format(row[SHARE], "that time" if launches else whole)
    if launches and waits:
        yield OVERLAP


def _iter_longest(process: Process, between: Between, who: Who) -> Iterator[tuple[Any, ...]]:
    """Yield rows of LONGEST for a process."""
    from gpt.screen.brief import brief_name

    kernels = process.kernels()
    for thread, found in sorted(between.longest.items()):
        for gap in found:
            names = [
                kernels.get(function, f"#{function}") if function else GRAPH for function in (gap.after, gap.before)
            ]
            briefs = (shorten(brief_name(name), BRIEF, middle=False) for name in names)
            label = f"{' to '.join(briefs)}, {human_time(max(0, gap.start))}"
            reason, share, call = _explain(process, gap)
            in_calls = _percent(gap.calls.time, gap.time)
            yield label, *names, reason, share, call, in_calls, *who, thread, max(0, gap.start), gap.time


def _explain(process: Process, gap: Gap) -> tuple[str, float, str | None]:
    """Return what a thread did for most of a gap, how much of the gap this took, and the call, if it was a single
    one.
    """
    api = gap.calls.api
    if api is not None and gap.calls.longest >= MOST_OF * gap.time:
        name = process.api(api).name
        return name, _percent(gap.calls.longest, gap.time), name
    in_calls = _percent(gap.calls.time, gap.time)
    return (SEVERAL_CALLS, in_calls, None) if in_calls >= 100 * MOST_OF else (HOST_CODE, 100 - in_calls, None)


def _percent(part: float, whole: float) -> float:
    return 100 * min(1.0, part / (whole or 1))


def _iter_idle(use: GpuUse, who: list[Who]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of IDLE: for a GPU, for each process if there are several, and for their streams."""
    from gpt.analyze.lib.gpu_use import ALL

    if len(use.processes) > 1:
        yield use.name, WHOLE[0], *NOBODY, *_idle(use, ALL)
    for process in use.processes:
        yield use.name, WHOLE[1], *who[process], *_idle(use, process)
        streams = sorted(use.streams[process])
        for stream in streams if len(streams) > 1 else ():
            yield use.name, f"{stream:#x}", *who[process], *_idle(use, (process, stream))


def _iter_periods(trace: TraceModel, use: GpuUse, who: list[Who]) -> Iterator[tuple[Any, ...]]:
    """Yield rows of PERIODS: the longest idle periods of a GPU, each with the process whose work ended it."""
    kernels = {process: trace.processes[process].kernels() for process in use.processes}

    def name(work: Work) -> str:
        if work.function:
            return kernels[work.process].get(work.function, f"#{work.function}")
        return trace.processes[work.process].api(work.api).name

    for idle in use.longest:
        yield use.name, name(idle.after), name(idle.before), *who[idle.before.process], max(0, idle.begin), idle.took


def _describe_idle(trace: TraceModel, use: GpuUse) -> Iterator[str]:
    """Return a sentence about how long a GPU was idle between its first and last work, and how far these are from the
    start and end of the processes.
    """
    from gpt.analyze.lib.gap_lengths import describe_cut, describe_loading
    from gpt.analyze.lib.gpu_use import ALL

    group = ALL if len(use.processes) > 1 else use.processes[0]
    whole, (first, last) = use.whole(group), use.edges(group)
    began = min(trace.began(trace.processes[process]) for process in use.processes)
    ends = [trace.last(process) for process in use.processes if trace.called(process)]
    told = (
        f"{use.name}: idle {100 * use.gaps.recorded(group) / (whole or 1):.1f} % of the {human_time(whole)} from the "
    )
    told += "first to the last thing that ran on it"
    its = "its process" if len(use.processes) == 1 else "the first of its processes"
    told += f", which began {human_time(max(0, first - began))} after {its} did"
    if ends:
        left = max(ends) - last
        told += f" and ended {human_time(abs(left))} {'before' if left >= 0 else 'after'} the last call did"
    between = use.breaks.within_one(first, last)
    if between:
        told += f", without {human_time(between)} in which no process had work left"
    if (off := last - first - whole - between) > 0:
        told += f"{' and' if between else ', without'} {human_time(off)} in which recording was off"
    yield told
    if cut := use.gaps.cut(group)[0]:
        yield describe_cut(cut, amount(cut, "idle period"), "'idle'")
    kernels, time = trace.loading(use.places)
    if kernels:
        yield describe_loading(kernels, time)


def _idle(use: GpuUse, group: Hashable) -> tuple[Any, ...]:
    """Return values for the columns IDLE, from `busy` on."""
    whole = use.whole(group)
    count, total, share, *more = _times(use.gaps, group, whole)
    return whole - total, total, share, count, *more


ANALYSIS = of_model(
    gaps,
    "Show when nothing was launched and the GPU was idle.",
    CALLS | COUNTED | GPU_TIMES | {"device"},
    sends=True,
)
