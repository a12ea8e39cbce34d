"""Choose the analysis to run next on a program, for the last line of gpt-analyze summary.

The first rule that applies decides:

- collectives: there are several ranks, and collectives take MUCH of the GPU time.
- memory: once the program repeats a unit, it allocates more than it frees; or it does so steadily for a while, during
  at least SOME_LAUNCHES of its launches and UNITS repetitions.
- graphs: graphs take most of the GPU time, and their kernels were probed.
- startup: until the program is steady, it takes at least LONG and longer than the steady part; or the time from its
  first launch on is at least WARM and TIMES as long as the steady part. If the program compiles a kernel again and
  again, the time from its first launch on doesn't count: `idle` says what that costs.
- startup: nothing repeats, and the time to the first launch is at least SHORT, and over ONCE times as long as the rest.
- startup: at least SERIAL processes ran one after the other, and together they take at least SHORT to become steady,
  and longer than their steady parts.
- graphs: graphs take most of the GPU time, and the GPU is busy.
- gaps: no GPU times are recorded.
- idle: anything else. It says why the GPU is idle, or if it's idle for less than SOME of the time, what keeps it busy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Column, Record, make_answer
from gpt.screen.units import human_share, human_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpt.analyze.lib.iterations import Stamps
    from gpt.analyze.lib.questions import InferenceFacts
    from gpt.analyze.lib.totals import ProcessTotals, Totals
    from gpt.trace.process import Process

NEXT = (
    Column("command", "text", title="next"),
    Column("why", "text", title="to see"),
    Column("option", "text?", shown="never"),
)
MUCH, MOST = 0.2, 0.5  # shares of the GPU time
LONG, WARM, TIMES = 30_000_000_000, 100_000_000, 3  # ns, ns, factor
SERIAL, SHORT = 5, 1_000_000_000  # processes, ns
ONCE = 10  # factor
GROWING = 5  # minimum number of allocations without a free
SOME_LAUNCHES, UNITS = 0.2, 3
SOME = 5  # minimum % of the time that a GPU must be idle for that to matter
BUSY = 25  # maximum % of the time that a busy GPU is idle


class Hints(NamedTuple):
    """Facts about a process, in ns: the time to its first launch, from there to its steady state, and from there to its
    last launch or to the end of its work on the GPU, whichever is later. A process that repeats no unit of launches is
    never steady, and then `warm` is 0.

    `allocations` and `frees` count calls during the last three quarters of the `steady` time.
    """

    loading: int
    warm: int
    steady: int
    allocations: int = 0
    frees: int = 0
    grows: bool = False  # memory grew steadily for a while
    repeats: bool = True
    compiled: int = 0  # how often the kernel was compiled that was compiled most often


def find_hints(totals: ProcessTotals, facts: InferenceFacts) -> Hints | None:
    """Return the hints of a process, or None if it launches nothing."""
    from gpt.analyze.lib.compiled import find_compiled
    from gpt.analyze.lib.iterations import WHOLE

    first = totals.launches.first()
    units = [row for row in facts.units if row[0].startswith(WHOLE)]
    if first is None:
        return None
    process = totals.process
    header, clock = process.header, process.clock
    launched = int(clock.times(_array(first))[0]) - clock.monotonic
    launches = totals.launches.starts()
    last = int(clock.times(launches[-1:])[0]) - clock.monotonic
    if not units:
        works = max(last - launched, facts.idle.total if facts.idle and facts.idle_all else 0)
        return Hints(launched, 0, works, repeats=False)
    slow = _find_slow(process, launches, *units[0][3:8]) if units[0][1] == "all" else 0
    begin = units[0][8] + slow  # ns from the start of the process
    since = header.get("tsc", 0) if "tsc_hz" in header else clock.monotonic
    stamp = since + round((begin + (last - begin) / 4) / clock.ns_per_tick)
    calls = totals.call_times.count(max(0, stamp), totals.last_stamp + 1)
    made = {"alloc": 0, "free": 0}
    for id_, count in calls.items():
        api = process.api(id_)
        if api.type == "memory" and api.op in made:
            made[api.op] += count
    warm, works = max(0, begin - launched), max(0, last - begin)
    if facts.idle and facts.idle_all:  # the GPU may have more to do than the host needs to launch it
        works = max(works, facts.idle.total - warm)
    grows = _grows(totals, launches, units[0][3])
    compiled = find_compiled(process, totals.launched())
    return Hints(launched, warm, works, made["alloc"], made["free"], grows, compiled=compiled[1] if compiled else 0)


def _grows(totals: ProcessTotals, launches: Stamps, length: int) -> bool:
    """Return whether memory grew steadily for a while. `launches` says when launches began, and a repeated unit has
    `length` of them.

    The period from START of the allocations to the last one is divided into quarters, as in growth.py.
    """
    import numpy as np

    from gpt.analyze.lib.growth import EACH, PARTS, START

    times, apis = totals.call_times, totals.process.apis
    made, gone = (
        np.sort(
            np.searchsorted(launches, times.starts([id_ for id_, api in apis.items() if api[:2] == ("memory", op)]))
        )
        for op in ("alloc", "free")
    )
    if len(made) * times.step < GROWING:
        return False
    first, last = int(made[int(START * len(made))]), int(made[-1])
    if last - first < max(SOME_LAUNCHES * len(launches), UNITS * length):
        return False
    edges = np.linspace(first, last + 1, PARTS + 1)
    allocated, freed = np.histogram(made, edges)[0], np.histogram(gone, edges)[0]
    grown = allocated - freed
    total = int(grown.sum())
    return bool(total * times.step >= GROWING and allocated.sum() >= 2 * freed.sum() and (grown >= EACH * total).all())


def _find_slow(process: Process, starts: Stamps, length: int, _: int, times: int, usual: float, first: int) -> int:
    """Return how many ns pass before a repetition takes at most USUAL times the median."""
    import numpy as np

    from gpt.analyze.lib.steady import USUAL

    places = first - 1 + length * np.arange(times + 1)
    times_of = process.clock.times(starts[places[places < len(starts)]])
    good = np.flatnonzero(np.diff(times_of) <= USUAL * usual)
    return int(times_of[good[0]] - times_of[0]) if len(good) else 0


def _find_serial(facts: Sequence[InferenceFacts], hints: Sequence[Hints | None]) -> list[Hints]:
    """Return the hints of processes that began only after the last launch of all earlier ones."""
    found: list[Hints] = []
    end = 0
    for fact, one in sorted(zip(facts, hints, strict=True), key=lambda pair: int(pair[0].header["monotonic"])):
        if one and one.repeats and (begin := fact.header["monotonic"]) >= end:
            found.append(one)
            end = begin + one.loading + one.warm + one.steady
    return found


def _array(stamp: int) -> Any:
    import numpy as np

    return np.array([stamp], np.uint64)


def name_next(totals: Totals, facts: Sequence[InferenceFacts], hints: Sequence[Hints | None]) -> Record | None:
    """Return the answer that names the next command, or None if neither launches nor their work were recorded."""
    if not any(fact.launches or fact.idle for fact in facts):
        return None
    named, why, option = _choose(totals, facts, [one for one in hints if one], _find_serial(facts, hints))
    return make_answer("next", NEXT, [(f"gpt-analyze {named}", why, option)])


def _choose(
    totals: Totals, facts: Sequence[InferenceFacts], hints: Sequence[Hints], serial: Sequence[Hints]
) -> tuple[str, str, str | None]:
    """Return the analysis to run next, the reason, and the option of gpt-hook that it needs, if this trace lacks its
    data. `serial` has the hints of processes that ran one after the other.
    """
    from gpt.analyze.lib.ranks import is_collective
    from gpt.trace.graphs import GRAPH_LAUNCH

    times = {name: kernel.gpu.total for name, kernel in totals.kernels.items()}
    graphs = sum(function.gpu.total for api, function in totals.functions.items() if api[:2] == GRAPH_LAUNCH)
    whole = sum(times.values()) + graphs
    idle = [fact.idle for fact in facts if fact.idle]
    share = 100 * sum(one.idle for one in idle) / (sum(one.total for one in idle) or 1)
    collectives = sum(time for name, time in times.items() if is_collective(name))
    ranks = {fact.header.get("rank") for fact in facts} - {None}
    if len(ranks) > 1 and collectives > MUCH * whole:
        part = human_share(100 * collectives / whole)
        return "collectives", f"which rank the others wait for in {part} of the GPU time", None
    if any(one.allocations - one.frees >= GROWING and one.allocations >= 2 * one.frees for one in hints):
        return "memory", "what isn't freed: memory grows with each iteration", None
    if any(one.grows for one in hints):
        return "memory", "what isn't freed for a long time: memory grows over many launches", None
    in_graphs = "graphs", f"which kernels take {human_share(100 * graphs / (whole or 1))} of the GPU time in graphs"
    if graphs > MOST * whole and totals.coverage.probed:
        return *in_graphs, None
    for one in sorted(hints, key=lambda one: -one.loading - one.warm)[:1]:
        warm = 0 if one.compiled and idle else one.warm
        before = one.loading + warm
        once = not one.repeats and before > ONCE * one.steady and before >= SHORT
        if (before > one.steady and before >= LONG) or once or (warm > TIMES * one.steady and warm >= WARM):
            work = "steady work" if one.repeats else "work"
            return "startup", f"where {human_time(before)} go before {work} of {human_time(one.steady)}", None
    starts, steady = sum(one.loading + one.warm for one in serial), sum(one.steady for one in serial)
    if len(serial) >= SERIAL and starts >= SHORT and starts > steady:
        told = f"where {human_time(starts)} go in {len(serial)} processes before steady work of {human_time(steady)}"
        return "startup", told, None
    if graphs > MOST * whole and share < BUSY:
        return *in_graphs, "-p block_sched"
    if not idle:
        return "gaps", "when nothing was launched (--gpu-time says more)", "--gpu-time"
    if share >= SOME and len(idle) > 1:
        return "idle", f"why the GPU is idle: each process leaves it idle {human_share(share)} of the time", None
    if share >= SOME:
        return "idle", f"why the GPU is idle {human_share(share)} of the time", None
    busy = human_share(100 - share)
    return "idle", f"what keeps the GPU busy {busy} of the time", "-p block_sched"
