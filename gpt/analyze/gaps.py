"""gpt-analyze gaps: when nothing was launched, and when the GPU had nothing to do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpt.analyze.answer import Answers, Column, make_answer, plot
from gpt.analyze.command import of_model
from gpt.trace.kinds import CALLS, GPU_TIMES

if TYPE_CHECKING:
    from gpt.analyze.sequence import Timeline, Whole
    from gpt.trace.model import TraceModel

TIMES = (
    Column("count", "u64"),
    Column("total", "u64", "ns"),
    Column("share", "f64", "%"),
    *(Column(name, "u64", "ns") for name in ("mean", "p50", "p99", "longest")),
)
SHARE = 5  # where it stands in a row
GAPS = (
    Column("gap", "text", title="from, to"),
    Column("pid", "u64", "id"),
    Column("thread", "u64?", "id", shown="any"),
    *TIMES,
)
LONGEST = (
    Column("after", "text", "kernel", "longest gaps, after"),
    Column("before", "text", "kernel"),
    Column("call", "text?", title="most of it in"),
    Column("pid", "u64", "id", shown="never"),
    Column("thread", "u64", "id"),
    Column("start", "u64", "ns", "at"),
    Column("gap", "u64", "ns"),
)
IDLE = (
    Column("stream", "text", title="idle GPU"),
    Column("pid", "u64", "id"),
    Column("busy", "u64", "ns"),
    *TIMES,
)
TOP, LISTED = 10, 1000
LAUNCH, WAIT = "launch, launch", "wait, launch"
NO_TIMES = "when kernels ran is not recorded: 'gpt-hook run --gpu-time' does"


def gaps(trace: TraceModel) -> Answers:
    """Between launches of a thread, from waiting to the next launch, and between what ran on the GPU."""
    from gpt.analyze.sequence import make_timelines

    rows: list[tuple[Any, ...]] = []
    longest: list[tuple[Any, ...]] = []
    verdict: list[str] = []
    for timeline in make_timelines(trace):
        own = list(_iter_gaps(timeline))
        rows += own
        if not verdict and own:
            verdict.append(_verdict(timeline, own))
        longest += _iter_longest(trace, timeline)
    idle = list(_iter_idle(trace))
    if not idle:
        verdict.append(NO_TIMES)
    yield make_answer("gaps", GAPS, rows, verdict)
    longest.sort(key=lambda row: -row[-1])
    if longest:
        drawn = plot("bars", "after", "gap", title="longest gaps between launches, by the kernel before")
        yield make_answer("longest", LONGEST, longest[:LISTED], top=TOP, plots=[drawn])
    if idle:
        yield make_answer("idle", IDLE, idle, [f"{row[0]}: idle {row[SHARE]:.1f} % of its time" for row in idle[:1]])


def _times(found: Whole, whole: float) -> tuple[Any, ...]:
    """The columns TIMES."""
    import numpy as np

    p50, p99 = np.percentile(found, (50, 99), method="inverted_cdf")
    total = int(found.sum())
    return len(found), total, 100 * total / (whole or 1), total / len(found), int(p50), int(p99), int(found.max())


def _iter_gaps(timeline: Timeline) -> Iterator[tuple[Any, ...]]:
    """The columns GAPS: of each thread those between its launches, of the process those after it waited."""
    import numpy as np

    whole, pid = float(timeline.end.max() - timeline.start.min()), timeline.process.pid
    threads = timeline.calls["thread"]
    found = []
    for thread in np.unique(threads[timeline.launch]):
        own = timeline.launch & (threads == thread)
        between = np.maximum(timeline.start[own][1:] - timeline.end[own][:-1], 0)
        if len(between):
            found.append((LAUNCH, pid, int(thread), *_times(between, whole)))
    yield from sorted(found, key=lambda row: -row[4])
    starts = timeline.start[timeline.launch]
    next_ = np.searchsorted(starts, timeline.end[timeline.sync])
    # of several waits before one launch, the last
    last = np.append(next_[1:] != next_[:-1], True) & (next_ < len(starts)) if len(next_) else np.zeros(0, bool)
    if last.any():
        yield WAIT, pid, None, *_times(starts[next_[last]] - timeline.end[timeline.sync][last], whole)


def _verdict(timeline: Timeline, rows: list[tuple[Any, ...]]) -> str:
    between = [row for row in rows if row[0] == LAUNCH][:1]
    waits = [row for row in rows if row[0] == WAIT]
    facts = [f"{row[SHARE]:.1f} % of its time between launches of thread {row[2]}" for row in between]
    facts += [f"{row[SHARE]:.1f} % from a wait to the next launch, with nothing to do for the GPU" for row in waits]
    return f"process {timeline.process.pid}: {'; '.join(facts)}"


def _iter_longest(trace: TraceModel, timeline: Timeline) -> Iterator[tuple[Any, ...]]:
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
                where = timeline.process.pid, int(thread), max(0, int(timeline.end[before]))
                yield *names, most, *where, int(between[at])


def _iter_idle(trace: TraceModel) -> Iterator[tuple[Any, ...]]:
    """The columns IDLE: of all that ran for a process, then of each of its streams."""
    import numpy as np

    times = trace.gpu_times()
    for number, process in enumerate(trace.processes):
        own = times[times["process"] == number]
        streams = np.unique(own["stream"])
        parts = [("all streams", own)] if len(own) else []
        if len(streams) > 1:
            parts += [(f"{stream:#x}", own[own["stream"] == stream]) for stream in streams.tolist()]
        for name, part in parts:
            end = np.maximum.accumulate(part["begin"] + part["duration"].astype(np.int64))
            between = np.maximum(part["begin"][1:] - end[:-1], 0)
            whole = int(end[-1] - part["begin"][0])
            found = _times(between, whole) if len(between) else (0,) * 7
            yield name, process.pid, whole - found[1], *found


ANALYSIS = of_model(gaps, "Show when nothing was launched, and the GPU idle.", CALLS | GPU_TIMES)
