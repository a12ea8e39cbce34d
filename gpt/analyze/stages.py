"""gpt-analyze stages: where an inference spends its time, from its first call to its last.

The stages are derived from the calls of the process with the most launches:

- Initialization: from the first call to the first copy of weights to the device or, if there's no such copy, to the
  first loading of code.
- Weight Loading: from there to the end of the last copy of weights before the first launch. The last copies before that
  launch, with less than 1 % of the bytes together, are the input. If all copies together have less than WEIGHTS_LEAST
  bytes, they can hardly be weights, so they count as input, too.
- Input Transfer: other copies to the device before the first launch, and those during the inference.
- Kernel Compile: begins with the first loading of code after the weights, or with the first launch if that comes
  earlier. It ends when every kernel that's launched more than once has been launched once, and the program has waited
  for these launches; if it didn't wait before it launched again, it ends when the call of the last one returned. It's
  called Warmup if no code is loaded in that time. Everything that the program copies or waits for meanwhile belongs to
  this stage.
- Inference: from there to the last launch or, if there's a wait after it, to the end of that wait, except time that has
  a line of its own.
- Sync, Output Transfer: waits and copies from the device during the inference, and copies after it. A copy may wait for
  kernels that were launched before it; if GPU times show how long, that counts as waiting.
- After Inference: from there to the last call, for example what a program does when it exits.
- Other: the rest, between the stages.

Calls that were only counted have no time, so they aren't in any stage; a line says how many there are.

A program that marks its stages with NVTX knows them better. If the names of its outermost ranges contain one of WORDS,
the times of these ranges are shown. Ranges from LIBRARIES don't count: ncclCommInitRankConfig isn't a stage of a
program.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import of_model
from gpt.analyze.lib.locations import PROGRAM, SINCE, WHO, describe, name_program, tell_apart
from gpt.screen.units import amount, human_time, percent
from gpt.trace.kinds import CALLS, COUNTED, GPU_TIMES, GRAPHS, RANGES

if TYPE_CHECKING:
    from gpt.analyze.lib.periods import Period
    from gpt.analyze.lib.sequence import Mask, Whole
    from gpt.analyze.lib.short_calls import Tapes
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process
    from gpt.trace.spill import Array
    from gpt.trace.unrecorded import Unrecorded

    Marked = dict[str, "RangeTimes"]  # by stage

COLUMNS = (
    Column("category", "text", title="Category"),
    Column("time", "u64", "ns", "Time"),
    Column("share", "f64?", "%", "% Total"),
    Column("begin", "u64?", "ns", "from", "any"),
    Column("in_calls", "u64?", "ns", "in calls", "any"),
    Column("calls", "u64?"),
    Column("launches", "u64?", shown="any"),
    Column("bytes", "u64?", "bytes", "host copies", "any"),
    Column("segment", "u64?", "ns", "time", "never"),  # these times add up to the total
)
TIME, IN_CALLS, CALLS_OF = 1, 4, 5  # indexes of columns
INIT, WEIGHTS, INPUT, COMPILE, WARMUP, INFERENCE, SYNC, OUTPUT, AFTER, OTHER = NAMES = (
    "Initialization", "Weight Loading", "Input Transfer", "Kernel Compile", "Warmup", "Inference", "Sync",
    "Output Transfer", "After Inference", "Other",
)  # fmt: skip
ROUND, TOTAL = "Per round", "Total"
PROCESSES = (  # the time in each stage, if several processes launched something
    *PROGRAM,
    *WHO,
    *(Column(name.lower().replace(" ", "_"), "u64?", "ns", name) for name in (TOTAL, INFERENCE, ROUND)),
    *(Column(name.lower().replace(" ", "_"), "u64?", "ns", name, "any") for name in NAMES if name != INFERENCE),
)
WORDS = (  # words to look for in the names of NVTX ranges, in lower case; the first match counts
    ("warm", WARMUP), ("compil", COMPILE), ("capture", COMPILE), ("sync", SYNC), ("output", OUTPUT), ("input", INPUT),
    ("weight", WEIGHTS), ("load", WEIGHTS), ("init", INIT), ("setup", INIT), ("infer", INFERENCE),
    ("generat", INFERENCE), ("decode", INFERENCE), ("prefill", INFERENCE), ("forward", INFERENCE),
)  # fmt: skip
LIBRARIES = frozenset(("nccl", "nvshmem", "cublas", "cudnn", "cusolver", "cusparse", "cufft", "cccl", "cub", "thrust"))
WHOLE = (
    "so per round is the time from the first one's first launch to the end of the wait after the last one, divided by"
    " their number"
)
NO_WAIT, FEW_WAITS = f"no wait between them, {WHOLE}", f"few waits between them, {WHOLE}"
MEDIAN = "per round: the median from its first launch to the one after its last, waits included"
AT_LEAST = "; {} of them {} waited for, so they may take longer on the GPU"
LAST = "; the last round ends with the wait for it"
# Rounds are launched ahead of the GPU if they take less than this share of the inference, and if the program waits for
# fewer than this share of them.
AHEAD = 0.5
WEIGHTS_LEAST = 64 << 10  # bytes
LITTLE = 0.01  # share of bytes that counts as input; share of time that isn't worth a sentence
COPIES = 0.05  # minimum share of the time for copies to be worth a sentence
COPIES_WAIT = "copies include waiting for kernels: 'gpt-hook run --gpu-time' records how long each took"
BETWEEN = "Other: the time between the stages, {} of it in no CUDA call"
UNTIMED = "counted but not timed, and in no stage"
ONLY_WAITED = "{}: while the host was in its {}, it only waited for earlier work, which is part of {}"
RECURS = "each kernel that's launched more than once had been launched; host code, waits and copies included"
NO_LAUNCH = (
    "no launch of a kernel or graph in the trace, and stages are found by launches: "
    "'gpt-hook run' records launches unless --calls or ctl excludes them"
)


class RangeTimes(NamedTuple):
    """The times of ranges: when the first one began, when the last one ended, and their sum in ns."""

    first: int
    last: int
    total: int


def stages(trace: TraceModel) -> Answers:
    """Yield the table of the process with the most launches, and the times of all processes if there are several."""
    who = tell_apart(process.header for process in trace.processes)
    found = sorted(
        ((process.header, one, *made) for number, (process, one) in enumerate(zip(trace.processes, who, strict=True))
         if (made := _find_stages(trace, number))),
        key=lambda one: (-one[2], one[0].get("rank", -1)),
    )  # fmt: skip
    if not found:
        return
    _, one, _, rows, verdict = found[0]
    if len(found) > 1:
        verdict[0] += f"; {describe(one)}, of {len(found)} that launched: --pid chooses"
    shown = [(*row, None if row[0] in (TOTAL, ROUND) else row[TIME]) for row in rows]
    yield make_answer("stages", COLUMNS, shown, verdict, plots=[plot("stack", "category", "segment", title="stages")])
    if len(found) > 1:
        yield make_answer("processes", PROCESSES, [
            (*name_program(header), *where, *_times(rows)) for header, where, _, rows, _ in found
        ])  # fmt: skip


def _times(rows: list[tuple[Any, ...]]) -> list[int | None]:
    """Return values for the columns PROCESSES, from `total` on."""
    times = {row[0]: row[TIME] for row in rows}
    return [times.get(name) for name in (TOTAL, INFERENCE, ROUND, *(name for name in NAMES if name != INFERENCE))]


def find_need(trace: TraceModel) -> str | None:
    """Return a message about what's missing if the trace has no launches, or None."""
    from gpt.analyze.lib.sequence import launches_any

    return None if any(launches_any(trace, number) for number in range(len(trace.processes))) else NO_LAUNCH


def _find_stages(trace: TraceModel, number: int) -> tuple[int, list[tuple[Any, ...]], list[str]] | None:
    """Return a process's number of launches, its table and its verdict, or None if it launched nothing."""
    from gpt.analyze.lib.rounds import INTERLEAVED
    from gpt.analyze.lib.short_calls import Tapes

    tapes = Tapes(trace, number)
    if not len(tapes.launches):
        return None
    inference = _find_inference(tapes)
    marked, process = _ranges(trace, number), trace.processes[number]
    rows, longest = (_marked_rows(marked, tapes.unrecorded), None) if marked else _rows(tapes, inference)
    total = rows[-1][TIME]
    verdict = [
        "found by NVTX ranges"
        if marked
        else "found by the calls, as no NVTX range names a stage: the names are guesses"
    ]
    if not marked:
        verdict += _describe_warmup(rows, inference == tapes.begin)
        for row in rows:
            if row[0] == OTHER and row[TIME] > LITTLE * total:
                verdict.append(_describe_other(process, row, longest))
    if not marked and not tapes.copies_timed:
        verdict += [COPIES_WAIT for row in rows if row[0] == OUTPUT and row[TIME] > COPIES * total]
    if not marked:
        verdict += [ONLY_WAITED.format(row[0], amount(row[CALLS_OF], "call"), SYNC)
                    for row in rows if row[0] in (INPUT, OUTPUT) and row[CALLS_OF] and not row[TIME]]  # fmt: skip
    if off := process.unrecorded_until(tapes.last - process.machines.offset(process.header)):
        verdict.append(f"recording was off for {human_time(off)}, which are in no stage")
    first = tapes.find_launch(inference)
    found = _find_rounds(tapes, first)
    if found and any(row[0] == INFERENCE for row in rows):
        every, period, searched = found
        took, told = _time_round(tapes, first, period)
        rows.append((ROUND, took, None, None, None, None, period.length, None))
        before = "the warm-up" if marked else next((row[0] for row in rows if row[0] in (COMPILE, WARMUP)), WARMUP)
        alone = f", in the launches after {before} alone" if searched else ""
        verdict.append(f"{_describe_rounds(tapes, every, period, before)}{alone}; {told}")
        if (in_threads := tapes.count_in_threads(every, searched)) > every.times:
            verdict.append(INTERLEAVED.format(f"{in_threads:,} rounds"))
    if not marked and (counted := trace.counted(number)):
        verdict.append(f"{amount(counted, 'call')} {UNTIMED}")
    verdict.append(f"'from' {SINCE}")
    return len(tapes.launches), rows, verdict


def _describe_warmup(rows: list[tuple[Any, ...]], no_launch: bool) -> Iterator[str]:
    """Return a sentence about when code was loaded or kernels warmed up. `no_launch` is True if no kernel is launched
    twice.
    """
    times = {row[0]: row[TIME] for row in rows}
    weights = " after the weights" if times.get(WEIGHTS) else ""
    since = {COMPILE: f"from the first loading of code{weights}", WARMUP: "from the first launch"}
    until = "the first launch, as no kernel is launched twice" if no_launch else RECURS
    yield from (f"{name}: {begin} until {until}" for name, begin in since.items() if times.get(name))


def _describe_other(process: Process, row: tuple[Any, ...], longest: tuple[int, int] | None) -> str:
    """Return a sentence about how much of the time between stages is host code. If calls are most of it, name the
    longest one.
    """
    told = BETWEEN.format(percent(row[TIME] - row[IN_CALLS], row[TIME]))
    if longest and 2 * row[IN_CALLS] > row[TIME]:
        told += f"; its longest call: {process.api(longest[0]).name}, {human_time(longest[1])}"
    return told


def _time_round(tapes: Tapes, first: int, period: Period) -> tuple[float, str]:
    """Return how long a round takes, and how we know that. The inference begins with launch number `first`."""
    from gpt.analyze.lib.rounds import ALL

    (took, waited), begin, done = tapes.measure(period), tapes.start(int(period.begins[0])), tapes.done
    if done is None:
        few = AT_LEAST.format(*(("few", "are") if waited else ("none", "is")))
        return took, MEDIAN + (few if waited < AHEAD else "")
    whole = max(0, done - begin - tapes.unrecorded.within_one(begin, done))
    covers_all = period.covered >= ALL * (len(tapes.launches) - first)
    if waited < AHEAD and (took * period.times < AHEAD * whole or covers_all):
        return whole / period.times, NO_WAIT if waited == 0 else FEW_WAITS
    return took, MEDIAN + (LAST if period.ends[-1] == len(tapes.launches) else "")


def _describe_rounds(tapes: Tapes, every: Period, period: Period, before: str) -> str:
    """Return sentences about how many rounds there are, what repeats in each, and how many come after the stage
    `before`.
    """
    from gpt.analyze.lib.periods import REPEATS
    from gpt.analyze.lib.rounds import find_rounds

    begin = int(every.begins[0])
    graphs = tapes.count_graphs(begin, begin + period.length)
    among = "" if not graphs else f", {graphs:,} of graphs," if period.length > 1 else " of a graph"
    told = f"{every.times:,} equal rounds of {amount(period.length, 'launch')}{among} from launch {begin + 1:,} on"
    inside = find_rounds(tapes.codes(begin, begin + period.length)).unit
    if inside and inside.length < period.length and inside.times >= REPEATS:
        told += f" (within each, {inside.times:,} times {amount(inside.length, 'launch')})"
    if period.times < every.times:
        told += f", of which the {period.times:,} after {before} are timed"
    return told


def _find_rounds(tapes: Tapes, first: int) -> tuple[Period, Period, int] | None:
    """Find the rounds of the process, and return those from a launch on, provided that they cover SHARE of the launches
    from there on. Otherwise, search only these launches.

    The last value is the first launch that was searched.
    """
    from gpt.analyze.lib.periods import SHARE
    from gpt.analyze.lib.rounds import begin_at_break, find_after

    for begin in dict.fromkeys((0, first)):
        codes = tapes.codes(begin)
        if unit := find_after(codes, partial(max, 0, tapes.again[2] + 1 - begin)).unit:
            every = begin_at_break(codes, tapes.starts(begin), unit).shift(begin)
            found = every.after(first)
            if found.times > 1 and found.covered >= SHARE * (len(tapes.launches) - first):
                return every, found, begin
    return None


def _find_inference(tapes: Tapes) -> int:
    """Return when inference begins, in ns: at the end of the first wait that begins after each recurring kernel has
    been launched once.

    If there's no such wait, or nothing is launched after it, inference begins when the last of these first launches has
    returned.
    """
    from gpt.analyze.lib.sequence import OUT, WAIT
    from gpt.analyze.lib.short_calls import iter_scan

    last, returned, before = tapes.again  # not the very last kernel, which may run only once, at the end
    if before == len(tapes.launches) - 1:
        return tapes.begin
    ends = [end[((acts & (WAIT | OUT)) != 0) & (start >= last)] for start, end, _, acts in iter_scan(tapes)]
    waited = min((int(end.min()) for end in ends if len(end)), default=None)
    return waited if waited is not None and tapes.latest > waited else min(returned, tapes.latest)


class _Part:
    """The calls in a stage: their number, the number of launches among them, the bytes copied, and their total ns."""

    def __init__(self) -> None:
        self.calls = self.launches = self.time = 0
        self.bytes = 0.0

    def count(self, mask: Mask, sizes: Array, acts: Array) -> None:
        """Add calls."""
        from gpt.analyze.lib.sequence import IN, LAUNCH, OUT
        from gpt.analyze.lib.short_calls import WAITED

        self.calls += int((mask & ((acts & WAITED) == 0)).sum())
        self.launches += int((mask & ((acts & LAUNCH) != 0)).sum())
        self.bytes += float(sizes[mask & ((acts & (IN | OUT | LAUNCH)) != 0)].sum())

    def row(self, name: str, begin: int | None, time: int, in_calls: int) -> tuple[Any, ...]:
        """Return the row of a stage."""
        return name, time, None, begin, in_calls, self.calls, self.launches, self.bytes or None


class _Cover:
    """The time covered by calls of several threads. Overlaps count once, and unrecorded time doesn't count."""

    def __init__(self, unrecorded: Unrecorded) -> None:
        self._unrecorded = unrecorded
        self._reach: int | None = None

    def add(self, start: Whole, end: Whole) -> Whole:
        """Return how much time each call adds to what earlier calls have covered. The calls are sorted by start."""
        import numpy as np

        if not len(start):
            return start
        reach = np.maximum.accumulate(np.append(start[0] if self._reach is None else self._reach, end))
        self._reach = int(reach[-1])
        begins = np.maximum(start, reach[:-1])
        added: Whole = np.maximum(reach[1:] - begins, 0) - self._unrecorded.within(begins, reach[1:])
        return added


def _rows(tapes: Tapes, inference: int) -> tuple[list[tuple[Any, ...]], tuple[int, int] | None]:
    """Return a row for each stage, a row for their sum, and the longest call between stages: its function and its
    ns.
    """
    from gpt.analyze.lib.sequence import IN, LOAD, OUT, WAIT
    from gpt.analyze.lib.short_calls import find_loaded, iter_scan

    begin = tapes.begin
    none = begin if tapes.load is None else min(begin, tapes.load)  # when weights would have been loaded
    weights = find_loaded(tapes, begin, LITTLE, WEIGHTS_LEAST)
    loaded = weights or (none, none)
    stop, code = tapes.launched, None
    for start, end, _, acts in iter_scan(tapes):
        stop = max(stop, int(end[((acts & WAIT) != 0) & (start >= inference)].max(initial=stop)))
        loads = start[((acts & LOAD) != 0) & (start >= loaded[1])]
        code = int(loads[0]) if code is None and len(loads) else code
    stop = stop if tapes.waited is None else max(tapes.launched, tapes.waited)
    warmup = begin if code is None else min(begin, code), inference
    compiled = COMPILE if code is not None and code < inference else WARMUP
    windows = {INIT: (tapes.first, loaded[0]), WEIGHTS: loaded, compiled: warmup, INFERENCE: (inference, stop),
               AFTER: (stop, tapes.last)}  # fmt: skip
    inputs = weights[1] if weights else tapes.first
    alone = {INPUT: (IN, [(inputs, begin), (inference, tapes.last)]), OUTPUT: (OUT, [(inference, tapes.last)]),
             SYNC: (WAIT, [(inference, stop)])}  # fmt: skip
    total = tapes.last - tapes.first - tapes.unrecorded.within_one(tapes.first, tapes.last)
    rows, longest = _add_up(tapes, alone, windows, total)
    shown = [
        rows[name] for name in NAMES if name in rows and (name == INFERENCE or rows[name][TIME] or rows[name][CALLS_OF])
    ]
    shown.append(rows[TOTAL])
    return [(*row[: TIME + 1], 100 * row[TIME] / (total or 1), *row[TIME + 2 :]) for row in shown], longest


def _add_up(
    tapes: Tapes, alone: dict[str, tuple[int, list[tuple[int, int]]]], windows: dict[str, tuple[int, int]], total: int
) -> tuple[dict[str, tuple[Any, ...]], tuple[int, int] | None]:
    """Return a row for each stage, and the longest call in OTHER.

    Calls that perform a certain act in certain periods have a line of their own (`alone`). The others belong to the
    window that they're in, or if there's none, to OTHER. TOTAL is the sum of all, `total` ns.
    """
    import numpy as np

    parts = {name: _Part() for name in (*alone, *windows, OTHER, TOTAL)}
    all_calls, all_in_calls, longest = _Cover(tapes.unrecorded), 0, None
    covered, inside_of = _Cover(tapes.unrecorded), {name: _Cover(tapes.unrecorded) for name in windows}
    calls_of, in_calls = {name: _Cover(tapes.unrecorded) for name in windows}, dict.fromkeys(windows, 0)

    def add(cover: _Cover, start: Whole, end: Whole, window: tuple[int, int]) -> int:
        """Add the part of each call that's inside a window."""
        reaches = (start < window[1]) & (end > window[0])
        clipped = np.maximum(start[reaches], window[0]), np.minimum(end[reaches], window[1])
        return int(cover.add(*clipped).sum())

    for rows in tapes.calls:
        start, end, sizes, acts = (rows[name] for name in ("start", "end", "bytes", "acts"))
        own, kinds = np.zeros(len(start), bool), {}
        for name, (act, times) in alone.items():
            mask = np.zeros(len(start), bool)
            for left, right in times:
                mask |= ((acts & act) != 0) & (start >= left) & (start < right)
            parts[name].count(mask, sizes, acts)
            kinds[name] = mask & ~own
            own |= mask
        added = covered.add(start[own], end[own])
        for name, mask in kinds.items():
            parts[name].time += int(added[mask[own]].sum())
        between = ~own
        for name, window in windows.items():
            inside = (start >= window[0]) & (start < window[1]) if name != AFTER else start >= window[0]
            parts[name].count(inside & ~own, sizes, acts)
            between &= ~inside
            parts[name].time += add(inside_of[name], start[own], end[own], window)
            in_calls[name] += add(calls_of[name], start, end, window)
        parts[OTHER].count(between, sizes, acts)
        parts[TOTAL].count(np.ones(len(start), bool), sizes, acts)
        all_in_calls += int(all_calls.add(start, end).sum())
        if between.any():
            took = np.where(between, end - start, -1)
            found = int(rows["api"][took.argmax()]), int(took.max())
            longest = found if longest is None or found[1] > longest[1] else longest
    stages = {name: parts[name].row(name, None, parts[name].time, parts[name].time) for name in alone}
    for name, (left, right) in windows.items():
        known = max(0, right - left) - tapes.unrecorded.within_one(left, right)
        time, other = parts[name].time, max(0, in_calls[name] - parts[name].time)
        stages[name] = parts[name].row(name, max(0, left), max(0, known - time), other)
    rest = [what - sum(row[at] for row in stages.values()) for what, at in ((total, TIME), (all_in_calls, IN_CALLS))]
    stages[OTHER] = parts[OTHER].row(OTHER, None, *(max(0, one) for one in rest))
    stages[TOTAL] = parts[TOTAL].row(TOTAL, None, total, all_in_calls)
    return stages, longest


def _ranges(trace: TraceModel, number: int) -> Marked:
    """Return the times of the outermost NVTX ranges that are named like a stage, by stage."""
    import numpy as np

    found: Marked = {}
    unrecorded = trace.unrecorded(trace.processes[number])
    reach: dict[int, int] = {}  # by thread: when its latest range ended
    texts = trace.ranges(number).texts
    names = [
        next((stage for word, stage in WORDS if (domain or "").lower() not in LIBRARIES and word in text.lower()), None)
        for domain, text in texts
    ]
    known = np.array([name is not None for name in names], bool)
    for rows in trace.iter_ranges(number, 0) if known.any() else ():
        name, open_ = rows["name"], rows["open"]
        chosen = known[name] & ~open_
        for row in rows[chosen]:
            left, right, thread, stage = int(row["begin"]), int(row["end"]), int(row["thread"]), names[row["name"]]
            if stage is None or left < reach.get(thread, left):
                continue
            reach[thread] = right
            before = found.get(stage, RangeTimes(left, right, 0))
            took = right - left - unrecorded.within_one(left, right)
            found[stage] = RangeTimes(min(before.first, left), max(before.last, right), before.total + took)
    return found


def _marked_rows(marked: Marked, unrecorded: Unrecorded) -> list[tuple[Any, ...]]:
    """Return a row for each stage that the program marked, and the time from the first to the last."""
    edges = min(spans.first for spans in marked.values()), max(spans.last for spans in marked.values())
    total = edges[1] - edges[0] - unrecorded.within_one(*edges)
    rows: list[tuple[Any, ...]] = [
        (name, marked[name].total, max(0, marked[name].first)) for name in NAMES if name in marked
    ]
    rest = total - sum(row[TIME] for row in rows)
    rows += [(OTHER, rest, None)] if rest > 0 else []
    rows.append((TOTAL, total, None))
    return [(name, time, 100 * time / (total or 1), begin, *[None] * 4) for name, time, begin in rows]


ANALYSIS = of_model(stages, "Show how an inference spends its time.", CALLS | COUNTED | GRAPHS | GPU_TIMES | RANGES,
                    need=find_need, drains=True, sends=True)  # fmt: skip
