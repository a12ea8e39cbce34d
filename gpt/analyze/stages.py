"""gpt-analyze stages: what an inference spends its time on, from its first call to its last one.

The stages are found from the calls of the process that launches most:

- Initialization: from the first call to the first copy to the device, or, without one, the first loading of code.
- Weight Loading: from there to the end of the copies to the device before the first launch; the last of these, less
  than 1 % of the bytes together, are the input.
- Input Transfer: copies to the device after the weights.
- Kernel Compile: from loading code after the weights, or the first launch, until no kernel is launched that was not
  launched before, those aside that are launched once, and the program has waited for that; Warmup, if no code is
  loaded then.
- Inference: from there to the last launch, or the end of the wait after it, without what has a line of its own.
- Sync: waiting, in that time. Output Transfer: copies from the device after the first launch.
- Other: the rest.

A program that marks its stages with NVTX says it better: if names of its outermost ranges contain one of the WORDS,
the times are those of the ranges. Ranges of LIBRARIES do not count: ncclCommInitRankConfig is not a stage of a program.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from gpt.analyze.answer import Answers, Column, make_answer, plot
from gpt.analyze.command import of_model
from gpt.analyze.places import WHO, describe, tell_apart
from gpt.screen.units import amount
from gpt.trace.kinds import CALLS, RANGES

if TYPE_CHECKING:
    from gpt.analyze.periods import Period
    from gpt.analyze.sequence import Mask, Timeline
    from gpt.trace.model import TraceModel
    from gpt.trace.process import Process

COLUMNS = (
    Column("category", "text", title="Category"),
    Column("part", "text?", shown="under"),
    Column("time", "u64", "ns", "Time"),
    Column("share", "f64?", "%", "% Total"),
    Column("calls", "u64?"),
    Column("launches", "u64?", shown="any"),
    Column("bytes", "u64?", "bytes", "copied", "any"),
)
INIT, WEIGHTS, INPUT, COMPILE, WARMUP, INFERENCE, SYNC, OUTPUT, OTHER = NAMES = (
    "Initialization", "Weight Loading", "Input Transfer", "Kernel Compile", "Warmup", "Inference", "Sync",
    "Output Transfer", "Other",
)  # fmt: skip
TOKEN, TOTAL = "Per token", "Total"
PROCESSES = (  # of several that launched: the time of each stage
    Column("command", "text", title="process"),
    *WHO,
    *(Column(name.lower().replace(" ", "_"), "u64?", "ns", name) for name in (TOTAL, INFERENCE, TOKEN)),
    *(Column(name.lower().replace(" ", "_"), "u64?", "ns", name, "any") for name in NAMES if name != INFERENCE),
)
WORDS = (  # in names of NVTX ranges, lower case; the first that fits
    ("warm", WARMUP), ("compil", COMPILE), ("capture", COMPILE), ("sync", SYNC), ("output", OUTPUT), ("input", INPUT),
    ("weight", WEIGHTS), ("load", WEIGHTS), ("init", INIT), ("setup", INIT), ("infer", INFERENCE),
    ("generat", INFERENCE), ("decode", INFERENCE), ("prefill", INFERENCE), ("forward", INFERENCE),
)  # fmt: skip
LIBRARIES = frozenset(("nccl", "nvshmem", "cublas", "cudnn", "cusolver", "cusparse", "cufft", "cccl", "cub", "thrust"))
AHEAD = 0.5  # rounds are launched ahead if that takes less of the inference, and fewer of them are waited for
LITTLE = 0.01  # of the bytes before the first launch: the input
NO_LAUNCH = (
    "no launch of a kernel or graph in the trace, which stages are found by: "
    "'gpt-hook run' records those of a program, unless --calls or ctl excludes them"
)


def stages(trace: TraceModel) -> Answers:
    """The table of the process that launches most, and the times of all if there are several."""
    from gpt.analyze.sequence import make_timelines

    timelines = make_timelines(trace)
    if not timelines:
        return
    found = [_find_stages(trace, timeline) for timeline in timelines]
    who = tell_apart(process.header for process in trace.processes)
    mine = [who[trace.processes.index(timeline.process)] for timeline in timelines]
    rows, verdict = found[0]
    if len(timelines) > 1:
        verdict[0] += f"; {describe(mine[0])}, of {len(timelines)} that launched: --pid chooses"
    yield make_answer("stages", COLUMNS, rows, verdict, plots=[plot("bars", "category", "time", title="stages")])
    if len(timelines) > 1:
        yield make_answer("processes", PROCESSES, [
            (shlex.join(timeline.process.header["argv"]), *where, *_times(rows))
            for timeline, where, (rows, _) in zip(timelines, mine, found, strict=True)
        ])  # fmt: skip


def _times(rows: list[tuple[Any, ...]]) -> list[int | None]:
    """The columns PROCESSES from `total` on."""
    times = {row[1] or row[0]: row[2] for row in rows}
    return [times.get(name) for name in (TOTAL, INFERENCE, TOKEN, *(name for name in NAMES if name != INFERENCE))]


def find_need(trace: TraceModel) -> str | None:
    """What a trace without launches lacks."""
    from gpt.analyze.sequence import make_timelines

    return None if make_timelines(trace) else NO_LAUNCH


def _find_stages(trace: TraceModel, timeline: Timeline) -> tuple[list[tuple[Any, ...]], list[str]]:
    """The table of a process, and what is to be said of it."""
    import numpy as np

    from gpt.analyze.periods import find_steps, find_units

    begin, inference = _find_inference(timeline)
    marked = _ranges(trace, timeline.process)
    rows, total = _marked_rows(marked) if marked else _rows(timeline, begin, inference)
    verdict = ["from NVTX ranges" if marked else "from the calls: no NVTX range names a stage"]
    starts = timeline.start[timeline.launch]
    period = find_round(timeline.kernels[starts >= inference])
    if period and INFERENCE in (names := [row[0] for row in rows]):
        times = (period.ends - period.begins) // period.length
        took = float(np.median(find_steps(starts[starts >= inference], period.begins, times, period.length)))
        told, whole = "the median of their times", sum(row[2] for row in rows if row[0] in (INFERENCE, SYNC))
        rounds = starts[starts >= inference][find_units(period.begins, times, period.length)]
        if not marked and took * period.times < AHEAD * whole and _waited(timeline, rounds) < AHEAD:
            took = whole / period.times
            told = "launched ahead of the GPU: per token is the time of all and of the wait for them, by their number"
        rows.insert(names.index(INFERENCE) + 1, (INFERENCE, TOKEN, took, None, None, period.length, None))
        verdict.append(f"{period.times:,} rounds of {amount(period.length, 'launch')} that are the same; {told}")
    rows.append((TOTAL, None, total, 100.0, None, None, None))
    return rows, verdict


def _waited(timeline: Timeline, rounds: Any) -> float:
    """The share of the rounds after which the program waited for the GPU before it began the next one."""
    import numpy as np

    waits = np.sort(timeline.start[timeline.sync | timeline.copies["DtoH"]])
    waited = np.diff(np.searchsorted(waits, rounds)) > 0
    return float(waited.mean()) if len(waited) else 0.0


def find_round(kernels: Any) -> Period | None:
    """What repeats itself in most of the launches, if they do."""
    import numpy as np

    from gpt.analyze.periods import SHARE, find_periods

    periods = find_periods(np.unique(kernels, return_inverse=True)[1].astype(np.uint32))
    return next((period for period in periods[:1] if period.covered >= SHARE * len(kernels)), None)


def _find_inference(timeline: Timeline) -> tuple[int, int]:
    """When the first launch began, and when every kernel had been launched once and waited for, in ns."""
    import numpy as np

    starts = timeline.start[timeline.launch]
    _, firsts, counts = np.unique(timeline.kernels, return_index=True, return_counts=True)
    again = counts > 1  # one that the program launches once may come at its end
    last = int((firsts[again] if again.any() else firsts).max())
    waits = timeline.sync | timeline.copies["DtoH"]
    after = timeline.end[waits & (timeline.start >= starts[last])]
    follow = len(starts) - 1 > last
    inference = int(after.min()) if follow and len(after) and (starts > after.min()).any() else None
    if inference is None:  # no launch follows a wait for the kernel that came last
        inference = int(starts[0]) if not follow else int(starts[last])
    return int(starts[0]), inference


def _rows(timeline: Timeline, begin: int, inference: int) -> tuple[list[tuple[Any, ...]], int]:
    """The columns of each stage, and the time of all."""
    import numpy as np

    start, end, sizes = timeline.start, timeline.end, timeline.calls["bytes"].astype(np.float64)
    first, last = int(start.min()), int(end.max())
    inward, outward = timeline.copies["HtoD"], timeline.copies["DtoH"]
    early = np.flatnonzero(inward & (end <= begin))
    sums = np.cumsum(sizes[early][::-1])[::-1]  # of each copy and those after it
    weights = early[sums > LITTLE * sums[0]] if len(early) else early
    none = min([begin, *start[timeline.load][:1].tolist()])  # when weights would have been loaded
    loaded = (int(start[weights[0]]), int(end[weights[-1]])) if len(weights) else (none, none)
    copied = inward & (start >= loaded[1])
    stop = max([int(end[timeline.launch].max()), *end[timeline.sync & (start >= inference)].tolist()])
    masks: dict[str, Mask] = {  # of calls that have a line of their own: not those of one above
        INPUT: copied,
        OUTPUT: outward & (start >= begin),
        SYNC: timeline.sync & (start >= inference),
    }
    code = start[timeline.load & (start >= loaded[1])]
    warmup = min([begin, *code[:1].tolist()]), inference
    compiled = COMPILE if len(code) and code[0] < inference else WARMUP
    windows = {INIT: (first, loaded[0]), WEIGHTS: loaded, compiled: warmup, INFERENCE: (inference, stop)}
    own = np.zeros(len(start), bool)
    for mask in masks.values():
        own |= mask
    rows = {name: _row(name, timeline, mask, _length(start[mask], end[mask])) for name, mask in masks.items()}
    for name, (left, right) in windows.items():
        inside = (start >= left) & (start < right)
        taken = inside & own
        length = max(0, right - left) - _length(start[taken], np.minimum(end[taken], right))
        rows[name] = _row(name, timeline, inside & ~own, length)
    total = last - first
    rest = total - sum(row[2] for row in rows.values())
    rows[OTHER] = (OTHER, None, max(0, rest), None, None, None, None)
    shown = [rows[name] for name in NAMES if name in rows and (name != OTHER or rows[name][2] > 0)]
    return [(*row[:3], 100 * row[2] / (total or 1), *row[4:]) for row in shown], total


def _length(start: Any, end: Any) -> int:
    """How long intervals are together, what overlaps once; they are in order of their beginnings."""
    import numpy as np

    if not len(start):
        return 0
    reach = np.maximum.accumulate(end)
    before = np.concatenate(([start[0]], reach[:-1]))
    return int(np.maximum(reach - np.maximum(start, before), 0).sum())


def _row(name: str, timeline: Timeline, mask: Mask, time: int) -> tuple[Any, ...]:
    copies = mask & (timeline.copies["HtoD"] | timeline.copies["DtoH"])
    size = float(timeline.calls["bytes"][copies].astype(float).sum())
    return name, None, time, None, int(mask.sum()), int((mask & timeline.launch).sum()), size or None


def _ranges(trace: TraceModel, process: Process) -> dict[str, list[tuple[int, int]]]:
    """The intervals of outermost NVTX ranges whose names name a stage, by stage."""
    import numpy as np

    ends = {record["id"]: record["end"] for record in process.ranges if record["kind"] == "range_end"}
    found: dict[str, list[tuple[int, int]]] = defaultdict(list)
    reach: dict[int, int] = {}
    opened = [r for r in process.ranges if r["kind"] == "range" and r.get("id") in ends]
    for record in sorted(opened, key=lambda record: (record["start"], -ends[record["id"]])):
        name = record.get("name", "").lower()
        own = (record.get("domain") or "").lower() not in LIBRARIES
        stage = next((stage for word, stage in WORDS if own and word in name), None)
        if stage is None or record["start"] < reach.get(record["thread"], 0):
            continue
        reach[record["thread"]] = ends[record["id"]]
        left, right = trace.times(process, np.array([record["start"], ends[record["id"]]], np.uint64)).tolist()
        found[stage].append((left, right))
    return found


def _marked_rows(marked: dict[str, list[tuple[int, int]]]) -> tuple[list[tuple[Any, ...]], int]:
    """The columns of each stage that the program names, and the time from the first to the last."""
    total = max(right for spans in marked.values() for _, right in spans) - min(
        left for spans in marked.values() for left, _ in spans
    )
    rows = [(name, None, sum(r - l for l, r in marked[name])) for name in NAMES if name in marked]  # noqa: E741
    rest = total - sum(row[2] for row in rows)
    rows += [(OTHER, None, rest)] if rest > 0 else []
    return [(*row, 100 * row[2] / (total or 1), None, None, None) for row in rows], total


ANALYSIS = of_model(stages, "Show what an inference spends its time on.", CALLS | RANGES, need=find_need)
