"""Choose the analysis to run next on a program, for the last line of gpt-analyze summary.

The first rule that applies decides:

- collectives: there are several ranks, and collectives take MUCH of the GPU time.
- memory: once the program repeats a unit, it allocates more than it frees.
- graphs: graphs take most of the GPU time, and their kernels were probed.
- startup: until the program is steady, it takes at least LONG and longer than the steady part; or the time from its
  first launch on is at least WARM and TIMES as long as the steady part.
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

    from gpt.analyze.lib.questions import InferenceFacts
    from gpt.analyze.lib.totals import ProcessTotals, Totals

NEXT = (
    Column("command", "text", title="next"),
    Column("why", "text", title="to see"),
    Column("option", "text?", shown="never"),
)
MUCH, MOST = 0.2, 0.5  # shares of the GPU time
LONG, WARM, TIMES = 30_000_000_000, 100_000_000, 3  # ns, ns, factor
SERIAL, SHORT = 5, 1_000_000_000  # processes, ns
GROWING = 5  # minimum number of allocations without a free
SOME = 5  # minimum % of the time that a GPU must be idle for that to matter
BUSY = 25  # maximum % of the time that a busy GPU is idle


class Hints(NamedTuple):
    """Facts about a process that repeats a unit of launches, in ns: the time to its first launch, from there to its
    steady state, and from there to its last launch or to the end of its work on the GPU, whichever is later.

    `allocations` and `frees` count calls during the last three quarters of that time.
    """

    loading: int
    warm: int
    steady: int
    allocations: int
    frees: int


def find_hints(totals: ProcessTotals, facts: InferenceFacts) -> Hints | None:
    """Return the hints of a process, or None if nothing repeats in it."""
    from gpt.analyze.lib.iterations import WHOLE

    first = totals.launches.first()
    units = [row for row in facts.units if row[0].startswith(WHOLE)]
    if first is None or not units:
        return None
    process = totals.process
    header, clock = process.header, process.clock
    launched = int(clock.times(_array(first))[0]) - clock.monotonic
    slow = _find_slow(totals, *units[0][3:8]) if units[0][1] == "all" else 0
    begin = units[0][8] + slow  # ns from the start of the process
    last = int(clock.times(totals.launches.starts()[-1:])[0]) - clock.monotonic
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
    return Hints(launched, warm, works, made["alloc"], made["free"])


def _find_slow(totals: ProcessTotals, length: int, _: int, times: int, usual: float, first: int) -> int:
    """Return how many ns pass before a repetition takes at most USUAL times the median."""
    import numpy as np

    from gpt.analyze.lib.steady import USUAL

    places = first - 1 + length * np.arange(times + 1)
    starts = totals.launches.starts()
    times_of = totals.process.clock.times(starts[places[places < len(starts)]])
    good = np.flatnonzero(np.diff(times_of) <= USUAL * usual)
    return int(times_of[good[0]] - times_of[0]) if len(good) else 0


def _find_serial(facts: Sequence[InferenceFacts], hints: Sequence[Hints | None]) -> list[Hints]:
    """Return the hints of processes that began only after the last launch of all earlier ones."""
    found: list[Hints] = []
    end = 0
    for fact, one in sorted(zip(facts, hints, strict=True), key=lambda pair: int(pair[0].header["monotonic"])):
        if one and (begin := fact.header["monotonic"]) >= end:
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
    in_graphs = "graphs", f"which kernels take {human_share(100 * graphs / (whole or 1))} of the GPU time in graphs"
    if graphs > MOST * whole and totals.coverage.probed:
        return *in_graphs, None
    for one in sorted(hints, key=lambda one: -one.loading - one.warm)[:1]:
        before = one.loading + one.warm
        if (before > one.steady and before >= LONG) or (one.warm > TIMES * one.steady and one.warm >= WARM):
            return "startup", f"where {human_time(before)} go before steady work of {human_time(one.steady)}", None
    starts, steady = sum(one.loading + one.warm for one in serial), sum(one.steady for one in serial)
    if len(serial) >= SERIAL and starts >= SHORT and starts > steady:
        told = f"where {human_time(starts)} go in {len(serial)} processes before steady work of {human_time(steady)}"
        return "startup", told, None
    if graphs > MOST * whole and share < BUSY:
        return *in_graphs, "-p block_sched"
    if not idle:
        return "gaps", "when nothing was launched (--gpu-time says more)", "--gpu-time"
    if share >= SOME:
        return "idle", f"why the GPU is idle {human_share(share)} of the time", None
    busy = human_share(100 - share)
    return "idle", f"what keeps the GPU busy {busy} of the time", "-p block_sched"
