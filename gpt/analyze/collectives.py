"""gpt-analyze collectives: how long NCCL's kernels transfer data, how long they wait, and which rank they wait for.

The kernel of a collective runs on each rank, and waits there for the other ranks. On each rank, the time from its start
to its end has two parts:

- *waiting* is the time until the last rank started its kernel; the others waited for that rank;
- *transfer* is the rest.

Both are *exposed*, except while other kernels of the same GPU run. lateness.py tells the first collective and the
warm-up from the rest, and finds out why a rank is late.

This is valid if no rank can finish before all have started: for all-reduce, all-gather, reduce-scatter and all-to-all.
For a broadcast, a reduction to one rank, sends and receives, only the running time is shown.

GPU times say when kernels ran. Without them, the times of blocks from the probe `block_sched` are used. They're on
a clock of the GPU, so we shift them until the launch with the shortest delay before its first block has no delay.

The trace doesn't say which kernels belong to the same collective. Streams of two ranks belong to one communicator if
their collective kernels have the same names in the same order, and if nearly all corresponding pairs overlap in time.
To compare times, the clocks of different machines are first aligned by the time of day, which isn't precise enough. But
all ranks of a communicator end a collective at the same time, so clocks are then corrected by the median difference
between these ends, at the beginning and at the end of the recording.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import of_model
from gpt.screen.units import amount, human_share, human_time
from gpt.trace.kinds import CALLS, GPU_TIMES, SAVES

if TYPE_CHECKING:
    from gpt.analyze.lib.ranks import Collectives, Split
    from gpt.trace.model import TraceModel

RANKS = (
    Column("rank", "text"),
    Column("host", "text?", shown="any"),
    Column("collectives", "u64", title="count"),
    Column("waiting", "u64", "ns"),
    Column("transfer", "u64", "ns"),
    Column("share", "f64", "%"),
    Column("exposed", "u64?", "ns", shown="any"),
    Column("caused", "u64", "ns", "others waited"),
    Column("last", "u64", title="was last"),
    Column("other", "u64", "ns", "other NCCL", "any"),
    Column("pid", "u64", "id", shown="never"),
    Column("device", "u64", "id", shown="never"),
)
WAITS = (
    Column("rank", "text", title="who waits"),
    Column("whom", "text", title="on whom"),
    Column("collectives", "u64"),
    Column("waiting", "u64", "ns"),
    Column("share", "f64", "%"),
    Column("mean", "u64", "ns"),
    Column("longest", "u64", "ns"),
)
KERNELS = (
    Column("name", "text", "kernel", "collective"),
    Column("ranks", "text"),
    Column("collectives", "u64"),
    Column("waiting", "u64", "ns", "mean waiting"),
    Column("transfer", "u64", "ns", "mean transfer"),
    Column("share", "f64", "%"),
    Column("dominated", "text", title="mostly"),
)
LATE = (
    Column("rank", "text", title="who is late"),
    Column("why", "text", title="because"),
    Column("collectives", "u64"),
    Column("caused", "u64", "ns", "others waited"),
    Column("share", "f64", "%"),
)
PHASES = (
    Column("phase", "text", title="phase"),
    Column("collectives", "u64"),
    Column("waiting", "u64", "ns"),
    Column("transfer", "u64", "ns"),
    Column("share", "f64", "%"),
    Column("mean", "u64", "ns", "each takes"),
)
OTHER_KERNELS = (
    Column("name", "text", "kernel", "other kernels of NCCL"),
    Column("rank", "text"),
    Column("count", "u64"),
    Column("total", "u64", "ns"),
    Column("mean", "u64", "ns"),
    Column("longest", "u64", "ns"),
)
SPANS = (
    Column("rank", "text"),
    Column("phase", "text", title="does"),
    Column("whom", "text?", title="for"),
    Column("name", "text", "kernel", "in"),
    Column("number", "u64", "id", "no"),
    Column("begin", "u64", "ns", "at"),
    Column("took", "u64", "ns"),
    Column("end", "u64", "ns", shown="never"),
)
TOP, TOP_SPANS = 16, 8  # rows that tables show
AROUND = 10  # number of collectives drawn before, and after, the one with the most waiting
WAITING, TRANSFER = "waiting", "transfer"
NONE = "no collective kernels in the trace: NCCL's have ncclDevKernel or ncclKernel in their names"
NO_TIMES = "no kernel times: 'gpt-hook run --gpu-time' or '-p block_sched' records when they ran"
ALONE = "collectives of one rank only: give the traces of the other ranks, too"


def find_lack(kinds: set[str]) -> str | None:
    """Return why it isn't known when kernels ran, or None if it is."""
    return None if kinds & {"gpu_times", "gpu_time", "buffer"} else NO_TIMES


def find_need(trace: TraceModel) -> str | None:
    """Return a message if there are no collective kernels, or None."""
    from gpt.analyze.lib.ranks import find_runs

    if ranks := {run[:2] for run in find_runs(trace)}:
        return None if len(ranks) > 1 else ALONE
    return NONE if len(trace.gpu_times()) else NO_TIMES


def collectives(trace: TraceModel) -> Answers:
    """Yield tables of ranks, of waits between ranks, of kernels, and of the collective in which ranks wait most."""
    from gpt.analyze.lib.ranks import Split, find_collectives

    found = find_collectives(trace)
    if len(found.ranks) < 2:
        return
    parts = [Split(group) for group in found.groups]
    drawn = plot("bars", "rank", "transfer", "waiting", title="collectives: transfer and waiting, by rank")
    yield make_answer("ranks", RANKS, _iter_ranks(found, parts), _verdict(found, parts), top=TOP, plots=[drawn])
    if parts:
        yield make_answer("waits", WAITS, _iter_waits(found, parts), top=TOP)
        yield make_answer("late", LATE, _iter_late(found, parts), top=TOP)
        yield make_answer("phases", PHASES, _iter_phases(parts))
        yield make_answer("kernels", KERNELS, _iter_kernels(found, parts), top=TOP)
        yield _make_spans(found, max(parts, key=lambda part: int(part.waiting.sum())))
    if found.others:
        yield make_answer("others", OTHER_KERNELS, _iter_others(found), top=TOP)


def _iter_ranks(found: Collectives, parts: list[Split]) -> Iterator[tuple[Any, ...]]:
    others = Counter[int]()
    for (number, _), took in found.others.items():
        others[number] += int(took.sum())
    for number, rank in enumerate(found.ranks):
        count = waiting = transfer = last = caused = hidden = 0
        known = bool(parts)
        for part in parts:
            if number in part.group.ranks:
                at = part.group.ranks.index(number)
                count += len(part.last)
                waiting += int(part.waiting[at].sum())
                transfer += int(part.transfer[at].sum())
                last += int((part.last == at).sum())
                caused += int(part.waiting[:, part.last == at].sum())
                known &= part.group.hidden is not None
                hidden += int(part.group.hidden[at].sum()) if part.group.hidden is not None else 0
        times = waiting, transfer, 100 * waiting / ((waiting + transfer) or 1)
        where = rank.process.pid, rank.device
        exposed = max(0, waiting + transfer - hidden) if known else None
        yield rank.name, rank.host, count, *times, exposed, caused, last, others[number], *where


def _iter_waits(found: Collectives, parts: list[Split]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each rank that another one waits for, longest first."""
    import numpy as np

    sums = defaultdict[tuple[str, str], list[Any]](list)
    for part in parts:
        for who in range(len(part.group.ranks)):
            for whom in set(np.unique(part.last).tolist()) - {who}:
                sums[part.name(found, who), part.name(found, whom)].append(part.waiting[who, part.last == whom])
    rows = []
    total = sum(int(part.waiting.sum()) for part in parts)
    for key, found_ in sums.items():
        waits = np.concatenate(found_)
        one = int(waits.sum())
        rows.append((*key, len(waits), one, 100 * one / (total or 1), one / len(waits), int(waits.max())))
    yield from sorted(rows, key=lambda row: (-row[3], row[0], row[1]))


def _iter_late(found: Collectives, parts: list[Split]) -> list[tuple[Any, ...]]:
    """Return a row for each rank that others wait for and each reason, longest wait first."""
    from gpt.analyze.lib.lateness import find_reasons

    sums, counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for part in parts:
        waiting = part.waiting.sum(axis=0).tolist()
        for last, why, time in zip(part.last.tolist(), find_reasons(part).tolist(), waiting, strict=True):
            if time:
                sums[part.name(found, last), why] += time
                counts[part.name(found, last), why] += 1
    total = sums.total() or 1
    return [(*key, counts[key], time, 100 * time / total) for key, time in sums.most_common()]


def _iter_phases(parts: list[Split]) -> list[tuple[Any, ...]]:
    """Return three rows for the collectives of communicators: the first ones, the warm-up, and the rest."""
    from gpt.analyze.lib.lateness import FIRST, REST, WARM, iter_phases

    sums: dict[str, list[int]] = {name: [0, 0, 0, 0] for name in (FIRST, WARM, REST)}
    for part in parts:
        for name, places in iter_phases(part):
            waiting, transfer = part.waiting[:, places], part.transfer[:, places]
            more = waiting.shape[1], int(waiting.sum()), int(transfer.sum()), waiting.size
            sums[name] = [one + other for one, other in zip(sums[name], more, strict=True)]
    return [
        (name, count, waiting, transfer, 100 * waiting / ((waiting + transfer) or 1), (waiting + transfer) / size)
        for name, (count, waiting, transfer, size) in sums.items()
        if count
    ]


def _iter_kernels(found: Collectives, parts: list[Split]) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each kernel of each communicator, most time first. Values are means over ranks and
    collectives.
    """
    from gpt.analyze.lib.lateness import classify

    rows = []
    for part in parts:
        ranks = _list(sorted(part.name(found, at).removeprefix("rank ") for at in range(len(part.group.ranks))))
        for name in dict.fromkeys(part.group.names.tolist()):
            mask = part.group.names == name
            waiting, transfer = float(part.waiting[:, mask].mean()), float(part.transfer[:, mask].mean())
            share = 100 * waiting / ((waiting + transfer) or 1)
            rows.append((name, ranks, int(mask.sum()), waiting, transfer, share, classify(part, mask)))
    yield from sorted(rows, key=lambda row: (-row[2] * (row[3] + row[4]), row[0], row[1]))


def _iter_others(found: Collectives) -> Iterator[tuple[Any, ...]]:
    """Yield, for each rank, the kernels in which ranks don't all wait for each other, most time first."""
    sums = Counter[str]()
    for (_, name), times in found.others.items():
        sums[name] += int(times.sum())
    for number, name in sorted(found.others, key=lambda key: (-sums[key[1]], key[1], key[0])):
        times = found.others[number, name]
        yield name, found.ranks[number].name, len(times), int(times.sum()), float(times.mean()), int(times.max())


def _list(numbers: list[str]) -> str:
    """Shorten a list of ranks for display."""
    found = sorted(map(int, numbers))
    whole = len(found) > 2 and found[-1] - found[0] == len(found) - 1
    return f"{found[0]}-{found[-1]}" if whole else ",".join(map(str, found))


def _make_spans(found: Collectives, part: Split) -> dict[str, Any]:
    """Return how long each rank waited and transferred in the collectives around the one with the most waiting."""
    group = part.group
    worst = int(part.waiting.sum(axis=0).argmax())
    near = range(max(0, worst - AROUND), min(len(part.last), worst + AROUND + 1))
    zero = int(group.begin[:, list(near)].min())
    rows = []
    for at in sorted(near, key=lambda at: abs(at - worst)):
        whom = part.name(found, int(part.last[at]))
        for place in sorted(range(len(group.ranks)), key=lambda place: group.ranks[place]):
            who, begin, end = part.name(found, place), int(group.begin[place, at]), int(group.end[place, at])
            turn = begin + int(part.waiting[place, at])
            spans = ((WAITING, begin, turn, whom), (TRANSFER, turn, end, None))
            rows += [
                (who, phase, for_, group.names[at], at + 1, left - zero, right - left, right - zero)
                for phase, left, right, for_ in spans
                if right > left
            ]
    order = {rank.name: number for number, rank in enumerate(found.ranks)}
    title = f"collectives {near[0] + 1:,} to {near[-1] + 1:,} of {len(part.last):,}"
    drawn = plot("spans", "begin", "rank", end="end", color="phase", title=title)
    rows.sort(key=lambda row: (abs(row[4] - worst - 1), order[row[0]], row[5]))
    whole = int(part.waiting[:, worst].sum())
    verdict = [f"most waiting in collective {worst + 1:,}: {human_time(whole)}, all ranks together"]
    return make_answer("around", SPANS, rows, verdict, top=TOP_SPANS, plots=[drawn])


def _describe_late(found: Collectives, parts: list[Split]) -> Iterator[str]:
    """Return a sentence about the rank that makes others wait the most, and why it's late."""
    from gpt.analyze.lib.lateness import GPU, HOST

    for rank, why, _, _, share in _iter_late(found, parts)[:1]:
        told = f"{human_share(share)} of the waiting is for {rank}, which is late"
        if why == HOST:
            yield f"{told} because its host launches late: 'gpt-analyze launches' says what it does before"
        elif why == GPU:
            yield f"{told} because earlier work on its GPU ends late: 'gpt-analyze diff' compares two ranks"


def _verdict(found: Collectives, parts: list[Split]) -> list[str]:
    from gpt.analyze.lib.lateness import REST

    waiting, transfer = (sum(int(getattr(part, name).sum()) for part in parts) for name in ("waiting", "transfer"))
    lines = []
    if waiting + transfer:
        rows = [*_iter_ranks(found, parts)]
        caused = {row[0]: row[7] for row in rows}
        worst = max(caused, key=lambda name: caused[name])
        share = 100 * waiting / (waiting + transfer)
        whom = f", {100 * caused[worst] / waiting:.1f} % of it for {worst}" if waiting else ""
        lines.append(f"collectives spend {share:.1f} % of their time waiting{whom}")
        lines += _describe_late(found, parts)
        if all(row[6] is not None for row in rows) and (hidden := waiting + transfer - sum(row[6] for row in rows)) > 0:
            lines.append(
                f"{human_share(100 * hidden / (waiting + transfer))} of their time is hidden behind other kernels of "
                "the same GPU, the rest is exposed"
            )
        phases = {row[0]: row for row in _iter_phases(parts)}
        rest = phases.get(REST)
        if rest and abs(rest[4] - share) >= 1:
            early = sum(row[1] for row in phases.values()) - rest[1]
            lines.append(f"without the first {amount(early, 'collective')}, which warm up, {rest[4]:.1f} % is waiting")
    if not found.ranks[0].said:
        lines.append("the traces name no ranks: they are numbered by host, process and device")
    for name, first, last in found.clocks:
        moved = human_time(abs(last)) != human_time(abs(first))
        drift = f" at the start, {human_time(abs(last))} at the end" if moved else ""
        lines.append(f"clock of {name} set {'back' if first < 0 else 'forward'} by {human_time(abs(first))}{drift}, "
                     "so that collectives end on all ranks at once")  # fmt: skip
    if early := sum(part.early for part in parts):
        lines.append(
            f"{amount(early, 'collective')} ended on one rank before beginning on another: clocks aren't exact enough"
        )
    if found.alone:
        count = sum(len(lane.names) for lane in found.alone)
        lines.append(
            f"not counted: {amount(count, 'kernel')} in {amount(len(found.alone), 'stream')} that no other rank matches"
        )
    if found.others:
        lines.append("other NCCL: kernels in which not every rank waits for all others")
    return lines


ANALYSIS = of_model(
    collectives,
    "Show how long collectives transfer and wait.",
    CALLS | GPU_TIMES | SAVES | {"device"},
    find_lack,
    need=find_need,
    types=frozenset(("kernel",)),
    sends=True,
)
