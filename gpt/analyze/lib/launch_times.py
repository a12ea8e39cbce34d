"""Match launches with what they ran on the GPU: find out how long each call took, when its kernel or graph began, and
how long that ran.

A launch *starves* the GPU if no earlier launch of the process was still waiting or running when its call returned:
nothing was queued, so the GPU had to wait for the host. A launch is *short* if its work took less time than its call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gpt.analyze.lib.innermost import iter_innermost
from gpt.analyze.lib.numbers import Numbers
from gpt.analyze.lib.overlay import NOTHING, PIECE, overlay
from gpt.analyze.lib.sequence import LAUNCH, iter_calls
from gpt.trace.spill import Array, Aside, Sorted, Tape, iter_windows

if TYPE_CHECKING:
    from gpt.analyze.lib.periods import Period
    from gpt.analyze.lib.short_calls import Tapes
    from gpt.trace.model import TraceModel

# A launch: when its call began and how long it took. If it's `timed`, also when its work began and how long it ran.
# `depth` is the number of earlier launches that were waiting or running when the call returned, at `returned`.
LAUNCHED = [("start", "<i8"), ("took", "<f8"), ("thread", "<u8"), ("function", "<u4"), ("begin", "<i8"),
            ("duration", "<f8"), ("timed", "?"), ("depth", "<i8"), ("number", "<i8"), ("returned", "<i8")]  # fmt: skip
WORK = [("call", "<i8"), ("thread", "<u8"), ("begin", "<i8"), ("duration", "<f8")]
END = [("end", "<i8")]
POINTS = 1000  # number of parts of the time for which the depth of the queue is kept
BLOCK = 1 << 16  # launches to read at once
MOST_STEPS = 1000  # limit for the rows of a unit's sequence
DELAY = "delay"
GRAPH = "(a graph)"


@dataclass
class Sums:
    """Sums over launches. For timed launches they include, in ns, the calls, their work, and the delays between the
    start of each call and the start of its work.
    """

    launches: int = 0
    timed: int = 0
    calls: float = 0.0
    work: float = 0.0
    delay: float = 0.0
    ahead: int = 0  # adds up how many launches were waiting or running as each call returned
    starved: int = 0
    short: int = 0
    short_work: float = 0.0

    def add(self, rows: Array) -> None:
        """Add launches."""
        timed = rows[rows["timed"]]
        short = timed["duration"] < timed["took"]
        self.launches += len(rows)
        self.timed += len(timed)
        self.calls += float(timed["took"].sum())
        self.work += float(timed["duration"].sum())
        self.delay += float(_delays(timed).sum())
        self.ahead += int(timed["depth"].sum())
        self.starved += int((timed["depth"] == 0).sum())
        self.short += int(short.sum())
        self.short_work += float(timed["duration"][short].sum())


@dataclass
class Step:
    """Consecutive launches of the same kernel or graph in the unit, summed over all repetitions."""

    name: str
    times: int
    sums: Sums


@dataclass
class UnitTimes:
    """The unit that a process repeats: its number of launches, how often it occurs, and its duration in ns."""

    length: int
    times: int
    took: float
    sums: Sums
    steps: list[Step]
    more: int  # steps that were left out because there are more than MOST_STEPS


@dataclass
class ProcessLaunches:
    """The launches of a process, with times in ns. `depths` divides the time since the first launch into parts; for
    each, it has the begin and the greatest depth of the queue.
    """

    header: dict[str, Any]
    sums: Sums
    delays: tuple[int, int, int] = (0, 0, 0)  # median, 99th percentile and maximum
    span: int = 0  # from the start of the first launch to the end of the last work
    first: int = 0  # when that span began, counted from the start of the process
    ranges: dict[str | None, Sums] = field(default_factory=dict)
    unit: UnitTimes | None = None
    depths: list[tuple[int, int]] = field(default_factory=list)


def find_launches(trace: TraceModel, number: int, tape: Tape, tapes: Tapes, period: Period | None) -> ProcessLaunches:
    """Return the launches of a process, which join_work returned. `period` is the unit that it repeats, if any."""
    process = trace.processes[number]
    found = ProcessLaunches(process.header, Sums())
    delays = Numbers()
    first, last = int(tape[0:1]["start"][0]), 0
    for rows in tape:
        found.sums.add(rows)
        timed = rows[rows["timed"]]
        delays.add(DELAY, _delays(timed))
        last = max(last, int((timed["begin"] + timed["duration"].astype(np.int64)).max(initial=first)))
    if delays.count(DELAY):
        found.delays = delays.percentile(DELAY, 50), delays.percentile(DELAY, 99), delays.most(DELAY)
    found.first, found.span = first - trace.began(process), last - first - tapes.unrecorded.within_one(first, last)
    found.depths = _find_depths(tape, first, last)
    if len(trace.ranges(number).texts):
        _add_ranges(trace, number, tape, found)
    if period is not None:
        found.unit = _find_unit(trace, number, tape, tapes, period)
    return found


def _delays(rows: Array) -> npt.NDArray[np.int64]:
    """Return the ns from the beginning of each call to the beginning of its work."""
    begin, start = rows["begin"], rows["start"]
    found: npt.NDArray[np.int64] = np.maximum(begin - start, 0)
    return found


def join_work(trace: TraceModel, number: int) -> Tape:
    """Return the launches of a process with their work, in the order of their calls."""
    aside = Aside()
    work, ends = Sorted(aside, WORK, "call"), Sorted(aside, END, "end")
    joined, ordered = Sorted(aside, LAUNCHED, "returned"), Sorted(aside, LAUNCHED, "number")
    for rows in trace.iter_gpu_times([place for place in trace.gpus() if place[0] == number]):
        part = np.zeros(len(rows), WORK)
        for name in ("call", "thread", "begin", "duration"):
            part[name] = rows[name]
        work.add(part)
    count = 0
    for calls, own in iter_windows((_iter_launches(trace, number), LAUNCHED, "start"), (iter(work), WORK, "call")):
        rows = calls.copy()
        at = _match(rows, own)
        good = at >= 0
        rows["timed"][good] = True
        for name in ("begin", "duration"):
            rows[name][good] = own[name][at[good]]
        rows["number"] = np.arange(count, count + len(rows))
        rows["returned"] = rows["start"] + rows["took"].astype(np.int64)
        count += len(rows)
        part = np.zeros(int(good.sum()), END)
        part["end"] = _ends(rows[good])
        ends.add(part)
        joined.add(rows)
    ended, begun = 0, 0  # timed launches so far
    for rows, own in iter_windows((iter(joined), LAUNCHED, "returned"), (iter(ends), END, "end")):
        found, returned = rows.copy(), rows["returned"]
        timed = rows["timed"]
        before = begun + np.searchsorted(returned[timed], returned, "right")
        after = ended + np.searchsorted(own["end"], returned, "right")
        found["depth"] = before - after - (timed & (_ends(rows) > returned))
        begun += int(found["timed"].sum())
        ended += len(own)
        ordered.add(found)
    tape = Tape(aside, LAUNCHED)
    for rows in ordered:
        tape.append(rows)
    return tape


def _ends(rows: Array) -> npt.NDArray[np.int64]:
    """For each launch, return the time by which its call had returned and its work had ended."""
    begin, duration, returned = rows["begin"], rows["duration"], rows["returned"]
    found: npt.NDArray[np.int64] = np.maximum(begin + duration.astype(np.int64), returned)
    return found


def _iter_launches(trace: TraceModel, number: int) -> Iterator[Array]:
    for calls in iter_calls(trace, number, "function"):
        launch = np.flatnonzero(calls.of(LAUNCH))
        if len(launch):
            rows = np.zeros(len(launch), LAUNCHED)
            rows["start"], rows["took"] = calls.start[launch], calls.rows["duration"][launch]
            rows["thread"], rows["function"] = calls.rows["thread"][launch], calls.rows["function"][launch]
            yield rows


def _in_chunks(tape: Tape) -> Iterator[Array]:
    """Yield the rows of a tape in chunks. Launches in the same nanosecond stay in one chunk."""
    rest = np.zeros(0, LAUNCHED)
    for rows in tape:
        rows = np.concatenate((rest, rows)) if len(rest) else rows
        cut = int(np.searchsorted(rows["start"], rows["start"][-1]))
        rest = rows[cut:]
        if cut:
            yield rows[:cut]
    if len(rest):
        yield rest


def _match(calls: Array, work: Array) -> npt.NDArray[np.int64]:
    """Return the index of the work that each call launched, or -1. It's the work with the same thread and start of the
    call.
    """
    found = np.full(len(calls), -1)
    if not (len(calls) and len(work)):
        return found
    order = np.lexsort((work["thread"], work["call"]))
    own = work[order]
    keys = np.empty(len(own) + len(calls), [("time", "<i8"), ("thread", "<u8")])
    keys["time"] = np.concatenate((own["call"], calls["start"]))
    keys["thread"] = np.concatenate((own["thread"], calls["thread"]))
    _, which = np.unique(keys, return_inverse=True)
    place = np.full(int(which.max()) + 1, -1)
    place[which[: len(own)][::-1]] = order[::-1]  # if several match, the first one is used
    found = place[which[len(own) :]]
    return found


def _find_depths(tape: Tape, first: int, last: int) -> list[tuple[int, int]]:
    """Divide the time from `first` to `last` into POINTS equal parts, and return when each begins and the deepest queue
    in it.
    """
    width = max(1, -(-(last + 1 - first) // POINTS))
    deepest: dict[int, int] = {}
    for rows in tape:
        parts = (rows["start"] - first) // width
        values, at = np.unique(parts, return_index=True)
        for part, depth in zip(values.tolist(), np.maximum.reduceat(rows["depth"], at).tolist(), strict=True):
            deepest[part] = max(deepest.get(part, 0), depth + 1)
    return [(part * width, depth) for part, depth in sorted(deepest.items()) if 0 <= part < POINTS]


def _add_ranges(trace: TraceModel, number: int, tape: Tape, found: ProcessLaunches) -> None:
    """Add up launches by the innermost NVTX range in which the thread made them."""
    texts = [text if domain is None else f"{domain}: {text}" for domain, text in trace.ranges(number).texts]
    for pieces in overlay(_iter_moments(tape), iter_innermost(trace, number), "range"):
        pieces = pieces[np.argsort(pieces["number"])]
        rows = tape.take(pieces["number"])
        for range_ in np.unique(pieces["range"]).tolist():
            name = texts[range_] if range_ >= 0 else None
            found.ranges.setdefault(name, Sums()).add(rows[pieces["range"] == range_])


def _iter_moments(tape: Tape) -> Iterator[Array]:
    at = 0
    for rows in _in_chunks(tape):
        pieces = np.zeros(len(rows), PIECE)
        start, thread = rows["start"], rows["thread"]
        pieces["begin"], pieces["end"], pieces["thread"] = start, start + 1, thread
        pieces["number"], pieces["range"] = np.arange(at, at + len(rows)), NOTHING
        at += len(rows)
        yield pieces


def _find_unit(trace: TraceModel, number: int, tape: Tape, tapes: Tapes, period: Period) -> UnitTimes:
    """Sum up each launch of the unit over all repetitions, and merge consecutive launches of the same kernel into a
    step.
    """
    names, length = trace.processes[number].kernels(), period.length
    begin = int(period.begins[0])
    functions = tape[begin : begin + length]["function"]
    edges = np.flatnonzero(functions[1:] != functions[:-1]) + 1
    starts = np.append(0, edges)
    step_of = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, length)))
    steps = [
        Step(names.get(int(functions[at]), f"#{int(functions[at])}") if functions[at] else GRAPH, int(count), Sums())
        for at, count in zip(starts[:MOST_STEPS].tolist(), np.diff(np.append(starts, length)).tolist(), strict=False)
    ]
    sums = Sums()
    for low, high in zip(period.begins.tolist(), period.ends.tolist(), strict=True):
        for at in range(low, high, BLOCK):
            rows = tape[at : min(at + BLOCK, high)]
            sums.add(rows)
            which = step_of[(np.arange(at, at + len(rows)) - low) % length]
            order = np.argsort(which, kind="stable")
            values, places = np.unique(which[order], return_index=True)
            for value, own in zip(values.tolist(), np.split(order, places[1:]), strict=True):
                if value < len(steps):
                    steps[value].sums.add(rows[own])
    took = tapes.measure(period)[0]
    return UnitTimes(length, period.times, took, sums, steps, max(0, len(starts) - MOST_STEPS))
