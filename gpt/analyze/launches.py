"""gpt-analyze launches: find out whether launches limit a program, and how much a CUDA graph or fusion could save at
most.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.locations import WHO, describe, tell_apart
from gpt.analyze.lib.parts import Parts
from gpt.screen.units import amount, human_share, human_time
from gpt.trace.kinds import CALLS, COUNTED, GPU_TIMES, RANGES

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from gpt.analyze.lib.critical_path import UnitPath
    from gpt.analyze.lib.launch_times import ProcessLaunches, Sums
    from gpt.analyze.lib.locations import Who
    from gpt.analyze.lib.periods import Period
    from gpt.trace.model import TraceModel
    from gpt.trace.spill import Tape

SUMS = (
    Column("launches", "u64"),
    Column("timed", "u64", shown="never"),
    Column("call", "u64?", "ns", "call takes"),
    Column("work", "u64?", "ns", "GPU time"),
    Column("delay", "u64?", "ns", "start delay"),
    Column("starved", "f64?", "%", "GPU idle"),
    Column("short", "f64?", "%", "short"),
)
LAUNCHES = (
    *WHO,
    *SUMS,
    *(Column(name, "u64?", "ns", shown="never") for name in ("delay_p50", "delay_p99", "delay_most")),
    Column("depth", "f64?", title="queued"),
    Column("span", "u64", "ns", shown="never"),
)
AHEAD = Column("ahead", "f64?", title="ahead")
RANGE_SUMS = (Column("range", "text"), *SUMS, AHEAD)
UNITS = (
    Column("unit", "text", "kernel", "unit, from"),
    *WHO[:2],
    WHO[2]._replace(shown="any"),
    Column("length", "u64", title="launches"),
    Column("times", "u64"),
    Column("took", "u64", "ns", "takes"),
    Column("calls", "u64?", "ns", "in calls"),
    Column("work", "u64?", "ns", "GPU time"),
    Column("delay", "u64?", "ns", shown="never"),
    Column("starved", "f64?", "%", shown="never"),
    AHEAD._replace(shown="never"),
    Column("graph", "f64?", "%", "graph saves"),
    Column("fusion", "f64?", "%", "fusion saves"),
)
SEQUENCE = (
    Column("kernel", "text", "kernel", "kernels of the unit, in order"),
    Column("count", "u64", title="in a row"),
    *SUMS[1:],
    AHEAD._replace(shown="never"),
)
PATH = (
    Column("what", "text", title="critical path of a unit"),
    Column("rank", "text?", title="on", shown="any"),
    Column("name", "text?", "kernel", "in"),
    Column("count", "f64", title="times"),
    Column("time", "u64", "ns"),
    Column("share", "f64", "%"),
)
STEPS = (
    Column("where", "text"),
    Column("what", "text"),
    Column("name", "text?", "kernel"),
    Column("begin", "u64", "ns", "at"),
    Column("took", "u64", "ns"),
    Column("end", "u64", "ns", shown="never"),
)
DEPTHS = (Column("begin", "u64", "ns"), Column("depth", "u64"))
TOP, TOP_STEPS, TOP_KINDS, LISTED = 10, 30, 3, 10_000
ALONE = (
    "a collective that matches none of another rank may wait for one: give the traces of all ranks, without --engine; "
    "'gpt-analyze collectives' says for which rank it waits"
)
NO_RANGE = "(no range)"
BOUND = 50  # minimum % of launches with nothing queued, for a process to be called launch-bound
IN_CALLS = 25  # % of the time
LITTLE = 1  # % of a unit: smaller savings aren't worth advice
NO_TIMES = "no GPU times: 'gpt-hook run --gpu-time' records when kernels ran"
NO_LAUNCH = "no launch is recorded as a call: 'gpt-hook run' records launches unless --calls excludes them"
MEANS = (
    "start delay: from the start of a call until its work starts; GPU idle: launches made while the GPU had nothing to "
    "do; short: launches whose work took less time than the call; queued: launches that waited or ran; these times and "
    "numbers are means"
)


@dataclass
class LaunchesPart:
    """The launches of each process that made any, and the headers of all processes. `path` belongs to the process with
    the most launches.
    """

    headers: list[dict[str, Any]] = field(default_factory=list)
    found: list[tuple[int, ProcessLaunches]] = field(default_factory=list)
    path: UnitPath | None = None


class Launches(Parts[LaunchesPart]):
    """An analysis that compares launches with their work on the GPU."""

    drains = True
    kinds = CALLS | COUNTED | GPU_TIMES | RANGES | {"device"}

    def find(self, trace: TraceModel) -> LaunchesPart:
        """Find the launches of each process."""
        from gpt.analyze.lib.critical_path import find_path
        from gpt.analyze.lib.launch_times import find_launches, join_work
        from gpt.analyze.lib.sequence import launches_any
        from gpt.analyze.lib.short_calls import Tapes
        from gpt.analyze.lib.steady import find_unit

        part = LaunchesPart([process.header for process in trace.processes])
        most: tuple[tuple[int, int], int, Tape, Period | None] | None = None
        for number in range(len(trace.processes)):
            if launches_any(trace, number):
                tapes, tape = Tapes(trace, number), join_work(trace, number)
                period = find_unit(tapes)
                launches = find_launches(trace, number, tape, tapes, period)
                part.found.append((number, launches))
                if most is None or _order(launches) < most[0]:
                    most = _order(launches), number, tape, period
        if most and most[3]:
            part.path = find_path(trace, *most[1:3], most[3])
        return part

    def find_need(self, parts: list[LaunchesPart]) -> str | None:
        """Return how to record launches or their GPU times if these are missing, or None."""
        found = [launches for part in parts for _, launches in part.found]
        if not found:
            return NO_LAUNCH
        return None if any(launches.sums.timed for launches in found) else NO_TIMES

    def answer_parts(self, parts: list[LaunchesPart]) -> Answers:
        """Yield sums by process and by range; then, for the process with the most launches, its repeated unit and its
        queue.
        """
        who = tell_apart(header for part in parts for header in part.headers)
        found, first, paths = [], 0, []
        for part in parts:
            own = who[first : first + len(part.headers)]
            found += [(own[number], launches) for number, launches in part.found]
            paths += [(part.path, own)] * len(part.found)
            first += len(part.headers)
        if not found:
            return
        order = sorted(range(len(found)), key=lambda at: _order(found[at][1]))
        path, who_on_path = paths[order[0]]
        found = [found[at] for at in order]
        one, most = found[0]
        verdict = [*_describe(most), MEANS]
        if len(found) > 1:
            verdict[0] = f"{describe(one)}: {verdict[0]}"
        yield make_answer("launches", LAUNCHES, [_row(where, each) for where, each in found], verdict, top=TOP)
        if units := [row for where, each in found for row in _unit_row(where, each)]:
            yield make_answer("units", UNITS, units, [*_describe_unit(most), *_describe_queue(most)], top=TOP)
        if most.unit:
            steps = [(step.name, step.times, *_sums(step.sums)[1:], _ahead(step.sums)) for step in most.unit.steps]
            more = [f"and {amount(most.unit.more, 'step')} more"] if most.unit.more else []
            yield make_answer("sequence", SEQUENCE, steps, more, top=TOP_STEPS)
        if path:
            yield from _answer_path(path, one, who_on_path)
        if ranges := _iter_ranges([launches for _, launches in found]):
            yield make_answer("ranges", RANGE_SUMS, ranges, top=TOP)
        if most.depths:
            drawn = plot("levels", "begin", "depth", title=f"launches that wait or run, {describe(one)}")
            rows = [(max(0, most.first + begin), depth) for begin, depth in most.depths]
            told = "depth: the most launches that waited or ran, over time"
            yield make_answer("depth", DEPTHS, rows, [told], top=0, plots=[drawn])


def _sums(sums: Sums) -> tuple[Any, ...]:
    """Return values for the columns SUMS."""
    if not sums.timed:
        return sums.launches, 0, *[None] * 5
    means = (value / sums.timed for value in (sums.calls, sums.work, sums.delay))
    return sums.launches, sums.timed, *means, 100 * sums.starved / sums.timed, 100 * sums.short / sums.timed


def _ahead(sums: Sums) -> float | None:
    """Return how many launches were waiting or running when a call returned, on average."""
    return sums.ahead / sums.timed if sums.timed else None


def _order(launches: ProcessLaunches) -> tuple[int, int]:
    """Return a key by which the process with the most launches comes first."""
    return -launches.sums.launches, launches.header.get("rank", -1)


def _answer_path(path: UnitPath, one: Who, who: list[Who]) -> Answers:
    """Yield the parts of a unit's critical path, longest first, and then the path of one repetition, in order. `one` is
    the process that repeats the unit; `who` names all processes.
    """
    from gpt.analyze.lib.critical_path import share_on_host

    several = len({process for process, _, _ in path.sums}) > 1
    names = [_name_rank(each) if several else None for each in who]
    rows = [
        (kind, names[process], name or None, count / path.units, time / path.units, 100 * time / (path.took or 1))
        for (process, kind, name), (count, time) in path.sums.items()
    ]
    rows.sort(key=lambda row: (-row[4], row[0], row[1] or "", row[2] or ""))
    took = human_time(path.took / path.units)
    told = f"{describe(one)}: a unit takes {took}, {human_share(100 * share_on_host(path))} of it on the host, "
    verdict = [f"{told}the rest on the GPU: {_list_kinds(path, range(len(who)))}"]
    for number in {process: None for process, _, _ in path.sums} if several else ():
        if who[number] != one:
            share = 100 * sum(time for key, (_, time) in path.sums.items() if key[0] == number) / (path.took or 1)
            parts = _list_kinds(path, [number])
            verdict.append(f"{human_share(share)} of it is on {names[number]}, for which collectives wait: {parts}")
    repeated = "the repetition" if path.units == 1 else f"the {path.units} repetitions"
    verdict.append(f"mean of {repeated} whose time is closest to the median")
    if path.alone:
        verdict.append(ALONE)
    yield make_answer("path", PATH, rows, verdict, top=TOP)
    first = path.steps[0].begin if path.steps else 0
    steps = [
        (", ".join(filter(None, (names[step.process], step.where))), step.kind, step.name or None, step.begin - first,
         step.end - step.begin, step.end - first)
        for step in path.steps
    ]  # fmt: skip
    title = f"critical path of a unit of {describe(one)}: {took}"
    drawn = plot("spans", "begin", "where", end="end", color="what", title=title)
    yield make_answer("steps", STEPS, steps[:LISTED], ["'at' is the time since the unit began"], top=0, plots=[drawn])


def _name_rank(who: Who) -> str:
    """Name a process briefly."""
    return f"rank {who[1]}" if who[1] is not None else describe(who)


def _list_kinds(path: UnitPath, processes: Collection[int]) -> str:
    """List the kinds of steps that take the most time in some processes."""
    kinds = Counter[str]()
    for (process, kind, _), (_, time) in path.sums.items():
        kinds[kind] += time if process in processes else 0
    shares = ((kind, 100 * time / (path.took or 1)) for kind, time in kinds.most_common(TOP_KINDS) if time)
    return ", ".join(f"{kind} {human_share(share)}" for kind, share in shares)


def _row(who: tuple[Any, ...], found: ProcessLaunches) -> tuple[Any, ...]:
    """Return values for the columns LAUNCHES."""
    timed = found.sums.timed
    depth = (found.sums.delay + found.sums.work) / found.span if found.span > 0 and timed else None
    return *who, *_sums(found.sums), *(found.delays if timed else [None] * 3), depth, found.span


def _describe(found: ProcessLaunches) -> Iterator[str]:
    """Return sentences that say whether launches limit the process."""
    sums = found.sums
    if not sums.timed:
        yield NO_TIMES
        return
    starved, short = (100 * value / sums.timed for value in (sums.starved, sums.short))
    call, work = human_time(sums.calls / sums.timed), human_time(sums.work / sums.timed)
    told = (
        f"{human_share(starved)} of {amount(sums.timed, 'launch')} found the GPU with nothing to do; on average, a "
        f"call takes {call} and its work on the GPU {work}; in {human_share(short)} of launches, the work is shorter"
    )
    if starved < BOUND:
        yield f"not launch-bound: {told}"
    elif sums.work < sums.calls or short >= BOUND or _share_of_calls(found) >= IN_CALLS:
        yield f"launch-bound: {told}"
    else:
        yield f"the host launches late, but launch calls are short: {told}; 'gpt-analyze idle' says what else it does"


def _share_of_calls(found: ProcessLaunches) -> float:
    """Return the percentage of the time spent in launch calls: the time of the repeated unit, or if there's none, of
    the process.
    """
    sums, time = (found.unit.sums, found.unit.times * found.unit.took) if found.unit else (found.sums, found.span)
    return 100 * sums.calls / (time or 1)


def _saves(found: ProcessLaunches) -> tuple[float, float] | None:
    """Return the largest percentage by which a graph could shorten the unit, and the same for a graph plus fusion of
    its short kernels. Return None if the unit has only one launch, because a graph needs a launch, too.
    """
    unit = found.unit
    if not unit or unit.length < 2 or not unit.sums.timed or not unit.took:
        return None
    work, short = (value / unit.times for value in (unit.sums.work, unit.sums.short_work))
    return 100 * max(0.0, unit.took - work) / unit.took, 100 * min(1.0, max(0.0, unit.took - work + short) / unit.took)


def _unit_row(who: tuple[Any, ...], found: ProcessLaunches) -> Iterator[tuple[Any, ...]]:
    """Yield a row of UNITS for a process that repeats a unit."""
    if not found.unit:
        return
    unit, saves = found.unit, _saves(found) or (None, None)
    times = (value / unit.times if unit.sums.timed else None for value in (unit.sums.calls, unit.sums.work))
    delay, starved = _sums(unit.sums)[4:6]
    queue = delay, starved, _ahead(unit.sums)
    yield unit.steps[0].name, *who, unit.length, unit.times, unit.took, *times, *queue, *saves


def _describe_unit(found: ProcessLaunches) -> Iterator[str]:
    """Return a sentence about how much time of a unit a graph or fusion could save."""
    if not found.unit or not (saves := _saves(found)):
        return
    took, length = human_time(found.unit.took), amount(found.unit.length, "launch")
    if max(saves) < LITTLE:
        yield f"a CUDA graph of the {length} would save nothing: their work keeps the GPU busy for all of the {took}"
        return
    calls, rest = found.unit.sums.calls / found.unit.times, found.unit.took * saves[0] / 100
    if 100 * calls < IN_CALLS * rest:
        yield (
            f"none of the {length} runs on the GPU for {human_share(saves[0])} of the {took}, but launch calls take "
            f"only {human_time(calls)}: a CUDA graph helps only if it also replaces the host's other work, which "
            "'gpt-analyze idle' shows"
        )
        return
    yield (
        f"a CUDA graph of the {length} could save at most {human_share(saves[0])} of the {took}: the time in which "
        "none of them runs on the GPU; fusing kernels that are shorter than their launch calls, too, could save "
        f"{human_share(saves[1])} in all"
    )


def _describe_queue(found: ProcessLaunches) -> Iterator[str]:
    """Return a sentence about how long the launches of the unit are queued."""
    if found.unit and found.unit.sums.timed:
        sums = found.unit.sums
        delay, queue = human_time(sums.delay / sums.timed), f"{sums.ahead / sums.timed:.3g}"
        yield f"on average, work in this unit begins {delay} after its call begins, with {queue} launches ahead of it"


def _iter_ranges(found: list[ProcessLaunches]) -> list[tuple[Any, ...]]:
    """Return rows of RANGE_SUMS for all processes, most launches first."""
    from gpt.analyze.lib.launch_times import Sums

    ranges: dict[str | None, Sums] = {}
    for launches in found:
        for name, sums in launches.ranges.items():
            mine = ranges.setdefault(name, Sums())
            for key, value in vars(sums).items():
                setattr(mine, key, getattr(mine, key) + value)
    rows = [(NO_RANGE if name is None else name, *_sums(sums), _ahead(sums)) for name, sums in ranges.items()]
    return sorted(rows, key=lambda row: (-row[1], row[0])) if set(ranges) - {None} else []


ANALYSIS = Analysis("Say whether launches are the limit, and what helps.", Launches)
