"""gpt-analyze gaps: when nothing was launched, and when the GPU had nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpt.analyze.answer import Answers, Column, make_answer, plot
from gpt.analyze.command import of_model
from gpt.analyze.places import WHO, Who, describe, tell_apart
from gpt.trace.kinds import CALLS, GPU_TIMES

if TYPE_CHECKING:
    from gpt.analyze.gpu_use import Switch, Use
    from gpt.analyze.sequence import Timeline, Whole
    from gpt.trace.model import TraceModel

TIMES = (
    Column("count", "u64"),
    Column("total", "u64", "ns"),
    Column("share", "f64", "%"),
    *(Column(name, "u64", "ns") for name in ("mean", "p50", "p99", "longest")),
)
GAPS = (
    Column("gap", "text", title="from, to"),
    *WHO,
    Column("thread", "u64?", "id", shown="any"),
    *TIMES,
)
LONGEST = (
    Column("after", "text", "kernel", "longest gaps, after"),
    Column("before", "text", "kernel"),
    Column("call", "text?", title="most of it in"),
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
TOP, TOP_POINTS, TOP_IDLE, LISTED = 10, 5, 30, 1000
LAUNCH, WAIT = "launch, launch", "wait, launch"
NO_TIMES = "when kernels ran is not recorded{}: 'gpt-hook run --gpu-time' does"
WHOLE = "all processes", "all streams"
NOBODY = (None, None, None)  # the columns WHO of what is of several processes


def gaps(trace: TraceModel) -> Answers:
    """Between launches of a thread, from waiting to the next launch, and between what ran on the GPU; switches."""
    from gpt.analyze.gpu_use import find_uses
    from gpt.analyze.sequence import make_timelines

    who = tell_apart(process.header for process in trace.processes)
    rows: list[tuple[Any, ...]] = []
    longest: list[tuple[Any, ...]] = []
    verdict: list[str] = []
    timelines = make_timelines(trace)
    for timeline in timelines:
        mine = who[trace.processes.index(timeline.process)]
        own = list(_iter_gaps(timeline, mine))
        rows += own
        if not verdict and own:
            more = f"; and {len(timelines) - 1:,} more processes" if len(timelines) > 1 else ""
            verdict.append(_verdict(mine, own) + more)
        longest += _iter_longest(trace, timeline, mine)
    uses = find_uses(trace)
    idle = [row for use in uses for row in _iter_idle(use, who)]
    verdict += _untimed(trace, who)
    if rows or verdict or not idle:
        yield make_answer("gaps", GAPS, rows, verdict)
    longest.sort(key=lambda row: -row[-1])
    if longest:
        drawn = plot("bars", "after", "gap", title="longest gaps between launches, by the kernel before")
        yield make_answer("longest", LONGEST, longest[:LISTED], top=TOP, plots=[drawn])
    if idle:
        firsts = {row[0]: row for row in reversed(idle)}  # of each GPU, what stands for all of it
        lines = [f"{name}: idle {row[-6]:.1f} % of its time" for name, row in sorted(firsts.items())]
        yield make_answer("idle", IDLE, idle, lines[:TOP], top=TOP_IDLE)
    yield from _answer_switches(trace, uses, who)


def _untimed(trace: TraceModel, who: list[Who]) -> Iterator[str]:
    """Of which processes nothing is known that ran on a GPU."""
    from gpt.analyze.gpu_use import find_untimed

    if found := find_untimed(trace):
        first = describe(who[trace.processes.index(found[0])])
        more = f" and {len(found) - 1:,} more" if len(found) > 1 else ""
        yield NO_TIMES.format("" if len(found) == len(trace.processes) else f" of {first}{more}")


def _answer_switches(trace: TraceModel, uses: list[Use], who: list[Who]) -> Answers:
    """The points at which threads and GPUs change, if there are any: each, and those of one kind together."""
    from gpt.analyze.gpu_use import iter_gpu_switches, iter_thread_switches, name_processes

    names = name_processes(who)
    found = [*iter_thread_switches(trace), *(one for use in uses for one in iter_gpu_switches(use, names))]
    if not found:
        return
    groups: dict[tuple[Any, ...], list[Switch]] = {}
    for switch in found:
        groups.setdefault((switch.place, switch.source, switch.target, *_who(switch, who)), []).append(switch)
    rows = []
    for key, group in groups.items():
        took = [switch.took for switch in group]
        rows.append((*key, len(group), sum(took), sum(took) / len(group), max(took), group[0].at))
    rows.sort(key=lambda row: -row[6])
    verdict = ["time: of a thread that of its calls, of a GPU when it was idle between two processes"]
    yield make_answer("switches", SWITCHES, rows, verdict, top=TOP)
    found.sort(key=lambda switch: switch.at)
    points = [
        (switch.place, switch.source, switch.target, *_who(switch, who), max(0, switch.at), switch.took)
        for switch in found[:LISTED]
    ]
    more = [f"only in the sums: {len(found) - LISTED:,} more switches"] if len(found) > LISTED else []
    yield make_answer("switch_points", POINTS, points, more, top=TOP_POINTS)


def _who(switch: Switch, who: list[Who]) -> tuple[Any, ...]:
    return NOBODY if switch.process is None else who[switch.process]


def _times(found: Whole, whole: float) -> tuple[Any, ...]:
    """The columns TIMES."""
    import numpy as np

    p50, p99 = np.percentile(found, (50, 99), method="inverted_cdf")
    total = int(found.sum())
    return len(found), total, 100 * total / (whole or 1), total / len(found), int(p50), int(p99), int(found.max())


def _iter_gaps(timeline: Timeline, who: Who) -> Iterator[tuple[Any, ...]]:
    """The columns GAPS: of each thread those between its launches, of the process those after it waited."""
    import numpy as np

    whole = float(timeline.end.max() - timeline.start.min())
    threads = timeline.calls["thread"]
    found = []
    for thread in np.unique(threads[timeline.launch]):
        own = timeline.launch & (threads == thread)
        between = np.maximum(timeline.start[own][1:] - timeline.end[own][:-1], 0)
        if len(between):
            found.append((LAUNCH, *who, int(thread), *_times(between, whole)))
    yield from sorted(found, key=lambda row: -row[6])
    starts, waits = timeline.start[timeline.launch], timeline.find_idle_waits()
    next_ = np.searchsorted(starts, timeline.end[waits])
    # of several waits before one launch, the last
    last = np.append(next_[1:] != next_[:-1], True) & (next_ < len(starts)) if len(next_) else np.zeros(0, bool)
    if last.any():
        yield WAIT, *who, None, *_times(np.maximum(starts[next_[last]] - timeline.end[waits][last], 0), whole)


def _verdict(who: Who, rows: list[tuple[Any, ...]]) -> str:
    between = [row for row in rows if row[0] == LAUNCH][:1]
    waits = [row for row in rows if row[0] == WAIT]
    facts = [f"{row[-5]:.1f} % of its time between launches of thread {row[4]}" for row in between]
    facts += [f"{row[-5]:.1f} % from a wait to the next launch, with nothing to do for the GPU" for row in waits]
    return f"{describe(who)}: {'; '.join(facts)}"


def _iter_longest(trace: TraceModel, timeline: Timeline, who: Who) -> Iterator[tuple[Any, ...]]:
    """The columns LONGEST, of a process."""
    import numpy as np

    calls, threads = timeline.calls, timeline.calls["thread"]
    for thread in np.unique(threads[timeline.launch]):
        mine = np.flatnonzero(threads == thread)
        own = mine[timeline.launch[mine]]
        between = timeline.start[own][1:] - timeline.end[own][:-1]
        for at in np.argsort(-between, kind="stable")[:TOP]:
            if between[at] > 0:
                before, after = own[at], own[at + 1]
                inside = mine[np.searchsorted(mine, before) + 1 : np.searchsorted(mine, after)]
                most = trace.api(calls[inside[calls["duration"][inside].argmax()]]).name if len(inside) else None
                names = trace.kernel(calls[before]), trace.kernel(calls[after])
                where = *who, int(thread), max(0, int(timeline.end[before]))
                yield *names, most, *where, int(between[at])


def _iter_idle(use: Use, who: list[Who]) -> Iterator[tuple[Any, ...]]:
    """The columns IDLE: of a GPU, of each process on it if there are several, and of each stream of theirs."""
    import numpy as np

    processes = np.unique(use.rows["process"]).tolist()
    if len(processes) > 1:
        yield use.name, WHOLE[0], *NOBODY, *_idle(use)
    for process in processes:
        own = use.part(use.rows["process"] == process)
        yield use.name, WHOLE[1], *who[process], *_idle(own)
        streams = np.unique(own.rows["stream"]).tolist()
        for stream in streams if len(streams) > 1 else ():
            yield use.name, f"{stream:#x}", *who[process], *_idle(own.part(own.rows["stream"] == stream))


def _idle(use: Use) -> tuple[Any, ...]:
    """The columns IDLE from `busy` on."""
    found = _times(use.gaps, use.whole) if len(use.gaps) else (0,) * 7
    count, total, share, *more = found
    return use.whole - total, total, share, count, *more


ANALYSIS = of_model(gaps, "Show when nothing was launched, and the GPU idle.", CALLS | GPU_TIMES | {"device"})
