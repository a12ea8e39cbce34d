"""gpt-analyze idle: why a GPU is idle, judging by what the host does meanwhile, and what would help.

gpt/analyze/lib/idle_causes.py has the rules that assign a cause to each idle time, and idle_verdict.py the sentences.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.idle_parts import IdlePart, IdleSums, find_part
from gpt.analyze.lib.locations import SINCE, WHO, Who
from gpt.analyze.lib.parts import Parts
from gpt.screen.units import amount, human_time
from gpt.trace.kinds import CALLS, COUNTED, GPU_TIMES, RANGES, SAMPLES

if TYPE_CHECKING:
    from gpt.analyze.lib.idle_causes import Times
    from gpt.trace.model import TraceModel

TIMES = (Column("count", "u64", title="times"), *(Column(name, "u64", "ns") for name in ("mean", "longest")))
IDLE = (Column("total", "u64", "ns", "idle"), Column("share", "f64", "%"))
GPUS = (
    Column("gpu", "text", title="GPU"),
    *WHO,
    Column("begin", "u64", "ns", "at"),
    Column("whole", "u64", "ns", "time"),
    *(Column(name, "u64", "ns", title) for name, title in (("kernels", ""), ("copies", "only copies"), ("idle", ""))),
    Column("share", "f64", "%"),
    Column("count", "u64", title="times"),
)
CAUSES = (
    Column("cause", "text", title="idle because"),
    Column("function", "text?", "function"),
    *IDLE,
    *TIMES,
    Column("waited", "u64?", "ns", "waited before", "any"),
    Column("label", "text", shown="never"),  # for the picture
)
DOING = (
    Column("doing", "text", "function", "the host was in"),
    Column("after", "text?", "function", "after waiting in"),
    *IDLE,
    *TIMES,
)
RANGES_IDLE = (
    Column("range", "text"),
    *IDLE,
    *TIMES,
    Column("cause", "text", title="mostly"),
    Column("function", "text?", "function", shown="any"),
)
LONGEST = (
    Column("after", "text", "kernel", "longest, after"),
    Column("before", "text", "kernel"),
    Column("cause", "text", title="because"),
    Column("function", "text?", "function", shown="any"),
    Column("part", "f64", "%", shown="never"),
    Column("range", "text?", shown="any"),
    Column("gpu", "text", title="GPU", shown="never"),
    *WHO[:2],
    Column("pid", "u64", "id", shown="never"),
    Column("thread", "u64", "id", shown="never"),
    Column("start", "u64", "ns", "at"),
    Column("took", "u64", "ns", "idle"),
)
TOP, TOP_VERDICTS, LISTED = 10, 3, 1000
NO_RANGE = "(no range)"
NO_TIMES = "no GPU times: 'gpt-hook run --gpu-time' records when kernels ran; 'gpt-analyze gaps' shows the host's gaps"
BUSY = "no cause takes 1 % of the time: 'gpt-analyze summary' lists the kernels"
SHARED = "{} is in several traces that were read separately: what other processes ran at the same time counts as idle"
PARTIAL = "only the chosen threads, streams or kernels count: the GPU may run others while it counts as idle"
UNTIMED = "{} counted but not timed: {} time counts as host code"


class Idle(Parts[IdlePart]):
    """An analysis of why GPUs had nothing to do."""

    drains = True
    kinds = CALLS | COUNTED | GPU_TIMES | RANGES | SAMPLES | {"device", "module"}

    def find(self, trace: TraceModel) -> IdlePart:
        """Find the idle times of all GPUs and their causes."""
        return find_part(trace)

    def find_need(self, parts: list[IdlePart]) -> str | None:
        """Return how to record GPU times if the traces have none, or None."""
        return None if any(part.uses for part in parts) else NO_TIMES

    def answer_parts(self, parts: list[IdlePart]) -> Answers:
        """Yield the verdicts, the use of each GPU, the causes, what the host did, NVTX ranges, and the longest idle
        times.
        """
        if any(part.uses for part in parts):
            yield from _iter_answers(IdleSums(parts))


def _waited(cause: str, times: Times) -> int | None:
    """Return how long the host had waited, or None if work was queued, because several idle times can then follow the
    same wait.
    """
    from gpt.analyze.lib.idle_causes import BETWEEN, LATE

    return times.waited or None if cause not in (BETWEEN, LATE) else None


def _iter_answers(found: IdleSums) -> Answers:
    """Yield the verdicts, then the tables."""
    from gpt.analyze.lib.idle_verdict import LEAST, VERDICT, iter_verdicts

    verdicts = sorted(iter_verdicts(found), key=lambda row: -row[0])
    shown = [row for _, *row in verdicts if row[3] >= LEAST]
    yield make_answer("verdict", VERDICT, shown, [] if shown else [BUSY], top=TOP_VERDICTS)
    yield make_answer("gpus", GPUS, _iter_uses(found), [*_iter_lines(found)])
    sums = found.sums
    rows = [
        (cause, name, *_times(found, times), _waited(cause, times), f"{cause}: {name}" if name else cause)
        for (cause, name), times in sums.causes.items()
    ]
    if not rows:
        return
    rows.sort(key=lambda row: (-row[2], row[-1]))
    drawn = plot("bars", "label", "total", title="idle time of the GPU by cause")
    yield make_answer("causes", CAUSES, rows, top=TOP, plots=[drawn])
    doing = [(what, after, *_times(found, times)) for (what, after), times in sums.doing.items()]
    yield make_answer("doing", DOING, sorted(doing, key=lambda row: (-row[2], row[0], row[1] or "")), top=TOP)
    if sums.places:
        from gpt.analyze.lib.host_samples import PLACES, iter_places

        told = "waiting: of these samples, in a system call"
        yield make_answer("places", PLACES, iter_places(sums.places), [told], top=TOP)
    if set(sums.ranges) - {None}:
        yield make_answer("ranges", RANGES_IDLE, _iter_ranges(found), top=TOP)
    found.longest.sort(key=lambda one: (-one[2].took, one[0], one[2].at))
    longest = [_describe_longest(found, *one) for one in found.longest[:LISTED]]
    yield make_answer("longest", LONGEST, longest, [f"'at' {SINCE}"], top=TOP)


def _times(found: IdleSums, times: Times) -> tuple[Any, ...]:
    """Return values for the columns IDLE and TIMES."""
    mean = times.total / (times.count or 1)
    return times.total, 100 * times.total / (found.whole or 1), times.count, mean, times.longest


def _iter_lines(found: IdleSums) -> Iterator[str]:
    from gpt.analyze.lib.gap_lengths import describe_cut, describe_loading

    yield "share: of the time from the GPU's first work to its last; copies are not idle"
    if found.partial:
        yield PARTIAL
    if found.untimed:
        more = f" and {len(found.untimed) - 1:,} more" if len(found.untimed) > 1 else ""
        yield f"no GPU times in {found.untimed[0]}{more}: that work counts as idle"
    yield from (SHARED.format(f"GPU {number}") for number, uses in enumerate(found.uses) if len(uses) > 1)
    if off := sum(use.off for use in found.iter_uses()):
        alone = " or no process used the GPU" if len(found.who) > 1 else ""
        yield f"recording was off{alone} for {human_time(off)} between work, which are neither busy nor idle"
    if cut := sum(use.cut for use in found.iter_uses()):
        told = describe_cut(cut, amount(cut, "idle period"), "'idle'")
        yield f"{told}, as 'recording off'"
    if found.counted:
        yield UNTIMED.format(amount(found.counted, "call"), "its" if found.counted == 1 else "their")
    if found.loaded[0]:
        yield describe_loading(*found.loaded)


def _iter_uses(found: IdleSums) -> Iterator[tuple[Any, ...]]:
    for number, uses in enumerate(found.uses):
        for use in uses:
            who: tuple[Any, ...] = found.who[use.processes[0]] if len(use.processes) == 1 else (None, None, None)
            share = 100 * use.idle / (use.whole or 1)
            times = max(0, use.first), use.whole, use.kernels, use.copies, use.idle
            yield f"GPU {number}", *who, *times, share, use.times


def _iter_ranges(found: IdleSums) -> list[tuple[Any, ...]]:
    rows = []
    for name, causes in found.sums.ranges.items():
        total = sum(times.total for times in causes.values())
        count = sum(times.count for times in causes.values())
        most = max(causes, key=lambda key: (causes[key].total, key[0], key[1] or ""))
        longest = max(times.longest for times in causes.values())
        share = 100 * total / (found.whole or 1)
        rows.append((name or NO_RANGE, total, share, count, total / (count or 1), longest, *most))
    return sorted(rows, key=lambda row: (-row[1], row[0]))


def _describe_longest(found: IdleSums, process: int, gpu: int, one: Any) -> tuple[Any, ...]:
    who: Who = found.who[process]
    at = max(0, one.at + found.began[process])
    return (
        one.after, one.before, one.cause, one.name, one.share, one.range, f"GPU {gpu}", *who, one.thread, at,
        one.took,
    )  # fmt: skip


ANALYSIS = Analysis("Say why the GPU is idle, and what would help.", Idle)
