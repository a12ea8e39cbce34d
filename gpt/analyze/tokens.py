"""gpt-analyze tokens: how long a language model takes to generate its first token, and each token after that.

A generation is a prefill step, followed by decode steps. The steps are found in one of three ways. The first that's
possible is used:

- NVTX ranges of the program with `prefill` or `decode` in their names;
- the outermost modules that 'gpt-hook run --layers' records, if most launches are in them: each call of the model is a
  step. If graphs captured in such calls are launched elsewhere, each replay is a decode step, and other calls are
  prefill. Otherwise the most frequent sequence of launches in a call is a decode step, and a call with other launches
  is a prefill; if that sequence is in less than half of the calls, a decode step has ALIKE of its launches in common
  with a neighbor;
- the shortest unit of launches that repeats with a wait or a copy from the device in each repetition or, if there's
  none, the unit that 'gpt-analyze summary' calls an iteration: each repetition is a decode step. Launches before it
  that aren't part of a decode step are the prefill.

If the modules are known, each kind of step is also split by layer.

A step lasts until the next step of its generation begins, so the time between tokens includes what the host does with a
token. The last step of a generation has no time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.attributed import UNSPLIT
from gpt.analyze.lib.attribution import sum_layers
from gpt.analyze.lib.command import of_model
from gpt.analyze.lib.locations import WHO, tell_apart
from gpt.analyze.lib.sequence import LAUNCH, iter_calls
from gpt.screen.units import amount
from gpt.trace.calls_store import times_of
from gpt.trace.kinds import CALLS, GPU_TIMES, GRAPHS, NODE_TIMES, NODES, RANGES
from gpt.trace.modules import LAYERS, UNKNOWN, is_call

if TYPE_CHECKING:
    import numpy.typing as npt

    from gpt.analyze.lib.periods import Period
    from gpt.analyze.lib.short_calls import Tapes
    from gpt.trace.model import TraceModel

    Whole = npt.NDArray[np.int64]

PREFILL, DECODE = "prefill", "decode"
PHASES = (
    Column("phase", "text"),
    *WHO,
    Column("steps", "u64"),
    Column("launches", "u64", title="launches each"),
    *(Column(name, "u64?", "ns") for name in ("p50", "p99", "longest")),
    Column("in_calls", "u64?", "ns", "in calls"),
    Column("gpu_time", "u64?", "ns", "GPU time", "any"),
    Column("gpu_share", "f64?", "%", "GPU busy", "any"),
)
GENERATIONS = (
    Column("generation", "u64", "id"),
    *WHO,
    Column("begin", "u64", "ns", "at"),
    Column("tokens", "u64"),
    Column("first", "u64?", "ns", "first token"),
    *(Column(name, "u64?", "ns") for name in ("p50", "p99", "longest")),
)
LAYERS_OF_STEPS = (
    Column("phase", "text"),
    *WHO,
    Column("layer", "text"),
    Column("launches", "f64", title="launches each"),
    Column("gpu_time", "f64?", "ns", "GPU time each", "any"),
    Column("share", "f64", "%"),
)
TOP = 20
LEAST = 3  # minimum number of decode steps
MOST = 0.5  # minimum share of launches within modules for their calls to be steps
WAITED = 0.9  # minimum share of a unit's repetitions that have a wait
ALIKE = 0.9  # minimum share of launches that two decode steps have in common
FAR = 20  # a step that lasts longer than this many medians is the last of its generation
NO_LAUNCH = "no launch of a kernel or graph in the trace: 'gpt-hook run' records launches unless --calls excludes them"
NO_STEPS = (
    "no steps of a language model: no NVTX range is named prefill or decode, no module of --layers is called "
    "repeatedly, and no unit of launches repeats"
)


class _Launches(NamedTuple):
    """The launches of a process: when each began, how long the call took, and a number that identifies its kernel or
    graph.
    """

    start: Whole
    took: npt.NDArray[np.float64]
    code: npt.NDArray[np.uint64]

    def find(self, begin: Any, end: Any) -> Any:
        """Return the index of the first launch at `begin` or later, and of the first one at `end` or later."""
        return np.searchsorted(self.start, begin), np.searchsorted(self.start, end)


class _Step(NamedTuple):
    """A step, with its times in ns. A generation consists of a PREFILL, if there is one, and the DECODEs after it."""

    begin: int
    end: int
    phase: str


class _Steps(NamedTuple):
    """The steps of a process, and how they were found."""

    steps: list[_Step]
    how: str


def tokens(trace: TraceModel) -> Answers:
    """Yield the times of prefill and decode steps, and the generations."""
    who = tell_apart(process.header for process in trace.processes)
    phases: list[tuple[Any, ...]] = []
    generations: list[tuple[Any, ...]] = []
    layers: list[tuple[Any, ...]] = []
    verdict: list[str] = []
    how: dict[str, None] = {}  # lines
    for number in range(len(trace.processes)):
        launches = _read_launches(trace, number)
        found = _find_steps(trace, number, launches)
        if found is None:
            continue
        split = _split(found.steps)
        phases += _sum_phases(trace, number, launches, split, who[number])
        generations += (_describe(one, who[number]) for one in split)
        verdict.append(found.how)
        layers += _sum_layers(trace, number, found.steps, who[number], how)
    if not phases:
        return
    usual = [row[len(WHO) + 3] for row in phases if row[0] == DECODE and row[len(WHO) + 3]]
    if usual:
        verdict.append(f"{1e9 / min(usual):,.1f} tokens per second, times the batch")
    if not trace.gpus():
        verdict.append("no GPU times: 'gpt-hook run --gpu-time' records when kernels ran")
    yield make_answer("phases", PHASES, phases, [*dict.fromkeys(verdict)], plots=[plot("bars", "phase", "p50")])
    if layers:
        yield make_answer("layers", LAYERS_OF_STEPS, layers, [*how], top=TOP)
    rows = [(at, *row) for at, row in enumerate(sorted(generations, key=lambda row: row[len(WHO)]), 1)]
    yield make_answer("generations", GENERATIONS, rows, top=TOP)


def find_need(trace: TraceModel) -> str | None:
    """Return a message if no steps were found, or None."""
    launches = [_read_launches(trace, number) for number in range(len(trace.processes))]
    if not any(len(one.start) for one in launches):
        return NO_LAUNCH
    return None if any(_find_steps(trace, at, one) for at, one in enumerate(launches)) else NO_STEPS


def _read_launches(trace: TraceModel, number: int) -> _Launches:
    parts = []
    for calls in iter_calls(trace, number, "function", "object"):
        chosen = calls.of(LAUNCH)
        rows = calls.rows[chosen]
        graph = rows["function"] == 0
        code = np.where(graph, rows["object"], rows["function"]).astype(np.uint64) << np.uint64(1) | graph
        parts.append((calls.start[chosen], rows["duration"], code))
    columns = zip(*parts, strict=True) if parts else ((), (), ())
    start, took, code = (np.concatenate(column) if column else np.zeros(0) for column in columns)
    return _Launches(start.astype(np.int64), took, code.astype(np.uint64))


# Steps


def _find_steps(trace: TraceModel, number: int, launches: _Launches) -> _Steps | None:
    if not len(launches.start):
        return None
    return _by_ranges(trace, number) or _by_modules(trace, number, launches) or _by_unit(trace, number, launches)


def _by_ranges(trace: TraceModel, number: int) -> _Steps | None:
    """Return the outermost ranges that are named like a step as steps, or None without such ranges."""
    texts, found, reached = trace.ranges(number).texts, [], 0
    phases = {}
    for at, (domain, text) in enumerate(texts):
        named = [phase for phase in (PREFILL, DECODE) if phase in text.lower()]
        if domain != LAYERS and len(named) == 1:
            phases[at] = named[0]
    for rows in trace.iter_ranges(number, 0) if phases else ():
        names, open_ = rows["name"], rows["open"]
        chosen = np.isin(names, list(phases)) & ~open_
        rows = rows[chosen]
        for begin, end, name in zip(*(rows[key].tolist() for key in ("begin", "end", "name")), strict=True):
            if begin >= reached:
                found.append(_Step(begin, end, phases[name]))
                reached = end
    good = any(step.phase == DECODE for step in found)
    return _Steps(found, "steps: NVTX ranges named prefill or decode") if good else None


def _by_modules(trace: TraceModel, number: int, launches: _Launches) -> _Steps | None:
    """Return the calls of outermost modules, and replays of graphs that were captured in such calls, as steps, or
    None.
    """
    texts, spans, reached = trace.ranges(number).texts, [], -1
    wanted = [at for at, (domain, text) in enumerate(texts) if domain == LAYERS and is_call(text)]
    for rows in trace.iter_ranges(number, 0) if wanted else ():
        names, open_ = rows["name"], rows["open"]
        chosen = np.isin(names, wanted) & ~open_
        rows = rows[chosen]
        for begin, end in zip(rows["begin"].tolist(), rows["end"].tolist(), strict=True):
            if begin >= reached:
                spans.append((begin, end))
                reached = end
    if not spans:
        return None
    first, last = launches.find(*np.array(spans).T)
    replays = _find_replays(trace, number, np.array(spans, np.int64))
    if (last - first).sum() + len(replays) < MOST * len(launches.start):
        return None
    contents = [launches.code[begin:end].tobytes() for begin, end in zip(first.tolist(), last.tolist(), strict=True)]
    if len(replays) >= LEAST:
        steps = [_Step(*span, PREFILL) for span, one in zip(spans, contents, strict=True) if one]
        steps += [_Step(at, at + 1, DECODE) for at in replays.tolist()]
        return _Steps(sorted(steps), "steps: replays of graphs captured in a module; other calls of it are prefill")
    spans = [span for span, one in zip(spans, contents, strict=True) if one]
    contents = [one for one in contents if one]
    (common, count) = Counter(contents).most_common(1)[0] if contents else (b"", 0)
    how = "decode steps launch the same kernels"
    decoding = [one == common for one in contents]
    if 2 * count < len(contents):
        how = "decode steps launch nearly the same kernels as the step before or after"
        decoding = _find_alike(contents)
    if sum(decoding) < LEAST:
        return None
    steps = [_Step(*span, DECODE if one else PREFILL) for span, one in zip(spans, decoding, strict=True)]
    return _Steps(steps, f"steps: calls of the outermost module; {how}")


def _find_replays(trace: TraceModel, number: int, spans: Whole) -> Whole:
    """Return when graphs were launched outside of modules' calls, if most of their nodes were captured in such calls.
    `spans` has the begin and end of each call.
    """
    process = trace.processes[number]
    found = [np.zeros(0, np.int64)]

    def inside(times: Any) -> Any:
        at = np.searchsorted(spans[:, 0], times, side="right") - 1
        return (at >= 0) & (times < spans[at, 1])

    for calls in iter_calls(trace, number, "function", "object", "stamp"):
        chosen = np.flatnonzero(calls.of(LAUNCH) & (calls.rows["function"] == 0))
        objects, stamps = calls.rows["object"][chosen], calls.rows["stamp"][chosen]
        for handle, graph, places in process.graphs.iter_launched(objects, stamps):
            origins = process.graphs.origins(handle, graph)
            if origins is None or not len(origins.calls):
                continue
            if inside(times_of(process, origins.calls)).mean() >= MOST:
                starts = calls.start[chosen[places]].astype(np.int64)
                found.append(starts[~inside(starts)])
    return np.sort(np.concatenate(found))


def _find_alike(contents: list[bytes]) -> list[bool]:
    """Return which steps launch nearly the same kernels as the step before or after, in any order. The key-value cache
    grows with each token, so some kernels of a decode step change from time to time.
    """

    @cache
    def count(one: bytes) -> Counter[int]:
        return Counter(np.frombuffer(one, np.uint64).tolist())

    def same(one: bytes, other: bytes) -> bool:
        two = count(one), count(other)
        return (two[0] & two[1]).total() >= ALIKE * min(map(Counter.total, two))

    alike = [same(*pair) for pair in pairwise(contents)]
    return [before or after for before, after in zip([False, *alike], [*alike, False], strict=True)]


def _by_unit(trace: TraceModel, number: int, launches: _Launches) -> _Steps | None:
    """Return the repetitions of a unit of launches, and the launches before them, as steps, or None."""
    from gpt.analyze.lib.short_calls import Tapes
    from gpt.analyze.lib.steady import find_unit

    tapes = Tapes(trace, number)
    period = _find_waited(tapes) or find_unit(tapes)
    if period is None:
        return None
    steps: list[_Step] = []
    for begin, end in zip(period.begins.tolist(), period.ends.tolist(), strict=True):
        before = int(np.searchsorted(launches.start, steps[-1].end)) if steps else 0
        if before < begin:
            steps.append(_Step(int(launches.start[before]), int(launches.start[begin]), PREFILL))
        for at in range(begin, end - period.length + 1, period.length):
            last = at + period.length - 1
            steps.append(_Step(int(launches.start[at]), int(launches.start[last]) + 1, DECODE))
    return _Steps(
        steps, f"steps: {amount(period.length, 'launch')} that repeat; what's launched before them is prefill"
    )


def _find_waited(tapes: Tapes) -> Period | None:
    """Return the shortest unit with a wait in its repetitions, or None."""
    from gpt.analyze.lib.periods import find_periods
    from gpt.analyze.lib.rounds import begin_at_break

    codes = tapes.codes(0)
    for period in sorted(find_periods(codes), key=lambda one: one.length):
        stretches = zip(period.begins.tolist(), period.ends.tolist(), strict=True)
        at = np.concatenate([np.arange(begin, end, period.length) for begin, end in stretches])
        inner = at[np.flatnonzero(np.diff(at) == period.length)]
        waits = tapes.launches.take(inner + period.length)["waits"] - tapes.launches.take(inner)["waits"]
        if len(inner) >= LEAST and (waits > 0).mean() >= WAITED:
            return begin_at_break(codes, tapes.starts(0), period)
    return None


# Sums


def _split(steps: list[_Step]) -> list[list[_Step]]:
    """Split steps into generations."""
    gaps = [after.begin - step.begin for step, after in pairwise(steps)]
    usual = float(np.median(gaps)) if gaps else 0.0
    found: list[list[_Step]] = []
    for at, step in enumerate(steps):
        far = at > 0 and steps[at - 1].phase == DECODE and gaps[at - 1] > FAR * usual
        if step.phase == PREFILL or not found or far:
            found.append([])
        found[-1].append(step)
    return found


def _iter_times(generation: list[_Step]) -> Iterator[tuple[_Step, int]]:
    """Yield each step that's followed by another, with the time at which that begins."""
    yield from ((step, after.begin) for step, after in pairwise(generation))


def _times(values: list[int]) -> tuple[Any, ...]:
    if not values:
        return None, None, None
    p50, p99 = (int(np.percentile(values, share, method="inverted_cdf")) for share in (50, 99))
    return p50, p99, max(values)


def _describe(generation: list[_Step], who: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return a row of GENERATIONS, without its number."""
    timed = [(step.phase, until - step.begin) for step, until in _iter_times(generation)]
    first = next((time for phase, time in timed if phase == PREFILL), None)
    return (*who, max(0, generation[0].begin), len(generation), first, *_times([t for p, t in timed if p == DECODE]))


def _sum_phases(trace: TraceModel, number: int, launches: _Launches, split: list[list[_Step]],
                who: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:  # fmt: skip
    """Yield a row for each kind of step. The times in calls and on the GPU are medians over the steps that have a
    time.
    """
    calls = np.concatenate(([0.0], np.cumsum(launches.took)))
    called, busy = _read_gpu(trace, number)
    for phase in (PREFILL, DECODE):
        own = [step for one in split for step in one if step.phase == phase]
        timed = [(step.begin, until) for one in split for step, until in _iter_times(one) if step.phase == phase]
        if not own:
            continue
        first, last = launches.find(*np.array([(step.begin, step.end) for step in own]).T)
        row = [phase, *who, len(own), float(np.median(last - first)), *_times([end - begin for begin, end in timed])]
        if not timed:
            yield (*row, None, None, None)
            continue
        begins, ends = np.array(timed).T
        first, last = launches.find(begins, ends)
        on_gpu = busy[np.searchsorted(called, ends)] - busy[np.searchsorted(called, begins)]
        share = 100 * on_gpu.sum() / max(1, (ends - begins).sum())
        gpu = (float(np.median(on_gpu)), min(100.0, float(share))) if len(called) else (None, None)
        yield (*row, float(np.median(calls[last] - calls[first])), *gpu)


def _sum_layers(
    trace: TraceModel, number: int, steps: list[_Step], who: tuple[Any, ...], how: dict[str, None]
) -> Iterator[tuple[Any, ...]]:
    """Yield a row for each layer of each kind of step, with means over its steps, and add lines that say `how` the GPU
    time of replays was split.
    """
    if all(domain != LAYERS for domain, _ in trace.ranges(number).texts):
        return
    begins, ends = (np.array([getattr(step, name) for step in steps], np.int64) for name in ("begin", "end"))
    phases = np.array([0, *((PREFILL, DECODE).index(step.phase) + 1 for step in steps)])

    def find_phase(times: Any) -> Any:
        """Return 0 for a call that belongs to no step."""
        at = np.searchsorted(begins, times, side="right")
        return np.where(times < np.append(0, ends)[at], phases[at], 0)

    sums, lines = sum_layers(trace, number, 3, find_phase)
    how.update(dict.fromkeys(lines))
    for phase, rows in zip((PREFILL, DECODE), sums, strict=True):
        count = sum(step.phase == phase for step in steps)
        timed = any(one.timed for one in rows.values())
        whole = sum(one.time if timed else one.launches for one in rows.values()) or 1
        order = sorted(
            rows.items(), key=lambda row: (row[0] in (UNKNOWN, UNSPLIT), -row[1].time, -row[1].launches, row[0])
        )
        for name, one in order:
            share = 100 * (one.time if timed else one.launches) / whole
            yield phase, *who, name, one.launches / count, one.time / count if timed else None, share


def _read_gpu(trace: TraceModel, number: int) -> tuple[Whole, Any]:
    """Return the times of calls with work on the GPU, sorted, and the running sum of that work in ns."""
    places = [place for place in trace.gpus() if place[0] == number]
    parts = [(rows["call"].copy(), rows["duration"].copy()) for rows in trace.iter_gpu_times(places)] if places else []
    if not parts:
        return np.zeros(0, np.int64), np.zeros(1)
    called, took = (np.concatenate(column) for column in zip(*parts, strict=True))
    order = np.argsort(called, kind="stable")
    return called[order], np.concatenate(([0.0], np.cumsum(took[order])))


ANALYSIS = of_model(tokens, "Show how long a language model takes per token.",
                    CALLS | GPU_TIMES | GRAPHS | NODES | NODE_TIMES | RANGES,
                    need=find_need, drains=True, sends=True)  # fmt: skip
