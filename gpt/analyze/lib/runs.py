"""One run of a comparison: its sums, and the conditions under which it ran, which should be the same on both sides."""

from __future__ import annotations

import math
import shlex
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Column, Record, make_answer
from gpt.analyze.lib.differences import RunSums, mean_of
from gpt.screen.units import amount, human_time
from gpt.trace.durations import Durations
from gpt.trace.process import Api

if TYPE_CHECKING:
    from gpt.analyze.lib.totals import ProcessTotals, Totals
    from gpt.trace.process import Process

NAMED = 4  # names in a line
SIDES = (
    Column("side", "text"),
    Column("probes", "text?", shown="any"),
    Column("command", "text", shown="line"),
    Column("runs", "u64"),
    Column("processes", "u64"),
    Column("calls", "u64"),
    Column("counted", "u64", title="not timed", shown="any"),
    Column("launches", "u64"),
    Column("probed", "u64", title="with probes", shown="any"),
)
CONDITIONS = (  # name; what to say if A and B differ; and how B ran in that case
    ("commands", "A and B ran different commands, which may do different work", "another command"),
    ("probes", "A and B ran with different probes, which take time of their own", "with different probes"),
    ("GPUs", "A and B ran on different GPUs", "on another GPU"),
    ("hosts", "A and B ran on different hosts", "on another host"),
    ("numbers of processes", "A and B ran different numbers of processes", "with another number of processes"),
)


class RunSummary:
    """One run in a comparison: its processes, how long they ran, and sums by function and kernel."""

    def __init__(self, name: str) -> None:
        self.name = name  # the trace's file name
        self.commands: list[str] = []
        self.hosts: set[str] = set()
        self.gpus: set[str] = set()
        self.probes: set[str] = set()  # names of the probes' maps
        self.calls = self.counted = self.launches = self.probed = self.threads = 0
        self.functions: dict[Api, RunSums] = defaultdict(RunSums)
        self.kernels: dict[str, RunSums] = defaultdict(RunSums)
        self.work: dict[Api, RunSums] = defaultdict(RunSums)  # GPU work other than kernels: copies, memsets, graphs
        self.on_gpu = 0.0  # ns
        self.in_thread = 0.0  # ns in calls, of the thread with the most time in calls
        self._begin, self._end, self.unrecorded = math.inf, -math.inf, 0

    def begin(self, process: Process) -> None:
        """Add a process whose totals will follow."""
        self.commands.append(shlex.join(process.header["argv"]))
        self.hosts.add(process.header["host"])

    def add(self, found: ProcessTotals) -> None:
        """Add the totals of a process, which may still be running."""
        clock, totals = found.process.clock, found.named()
        self.gpus |= {card["name"] for card in found.process.cards.values()}
        self.probes |= {layout.name for layout in found.process.probes.maps.values()}
        self.calls, self.counted = self.calls + found.calls, self.counted + found.counted
        self.probed += totals.coverage.probed
        self.threads += len(found.in_threads)
        self.in_thread = max(self.in_thread, *found.in_threads.values(), 0.0)
        self._begin = min(self._begin, clock.monotonic)
        self._end = max(self._end, found.process.find_end(found.last))
        self.unrecorded = max(self.unrecorded, found.process.unrecorded_until(found.last))
        self._add_totals(totals)

    def _add_totals(self, totals: Totals) -> None:
        for api, function in totals.functions.items():
            number = function.calls + function.counted
            self.functions[api].add(number, function.moved["bytes"], function.durations)
            self.on_gpu += function.gpu.total
            if function.gpu.count and (api.type, api.op) != ("kernel", "launch"):
                self.work[api].add(function.gpu.count, 0, function.gpu)
        for (type_, op), done in totals.replays.done.items():
            if done.number:
                self.functions[Api(type_, op, f"{op} in graphs")].add(done.number, done.bytes, Durations())
        for name, kernel in totals.kernels.items():
            launches = max(kernel.launches, kernel.gpu.count)
            self.kernels[name].add(launches, 0, kernel.gpu)
            self.launches += launches

    def rename(self, names: dict[str, str]) -> None:
        """Rename kernels, and merge kernels that are compared as one."""
        for name, shape in names.items():
            if name in self.kernels:
                kernel = self.kernels.pop(name)
                self.kernels[shape].add(kernel.number, kernel.bytes, kernel.times)

    @property
    def processes(self) -> int:
        """Return the number of processes."""
        return len(self.commands)

    @property
    def wall(self) -> float:
        """Return the ns from the start of the first process to the end of the last call, including time that wasn't
        recorded.
        """
        return max(0.0, self._end - self._begin)

    @property
    def outside(self) -> float:
        """Return the recorded time outside of calls, in the thread with the most time in calls."""
        return max(0.0, self.wall - self.unrecorded - self.in_thread)

    @property
    def in_calls(self) -> float:
        """Return the ns that all threads spent in calls."""
        return sum(function.times.total for function in self.functions.values())

    @property
    def conditions(self) -> tuple[tuple[str, ...], ...]:
        """Return the values of this run for CONDITIONS."""
        sets = (*self.commands[:1],), (*sorted(self.probes),), (*sorted(self.gpus),), (*sorted(self.hosts),)
        return *sets, (str(self.processes),)


def answer_sides(a: Sequence[RunSummary], b: Sequence[RunSummary], empty: Sequence[list[str]]) -> Record:
    """Return the table of both sides. Its verdict warns of conditions that differ, and names the empty files of A and
    of B, which aren't runs.
    """
    rows: list[tuple[Any, ...]] = []
    for name, runs in (("A", a), ("B", b)):
        probes = ", ".join(sorted(set().union(*(run.probes for run in runs)))) or None
        numbers = [
            round(mean_of(getattr(run, what) for run in runs).mean)
            for what in ("processes", "calls", "counted", "launches", "probed")
        ]
        more = f" and {len(runs[0].commands) - 1:,} more" if len(runs[0].commands) > 1 else ""
        rows.append((name, probes, runs[0].commands[0] + more, len(runs), *numbers))
    lost = [_tell_empty(side, names) for side, names in zip("AB", empty, strict=False) if names]
    return make_answer("sides", SIDES, rows, [*lost, *_warn(a, b)])


def _tell_empty(side: str, names: list[str]) -> str:
    told = ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED:,} more" if len(names) > NAMED else "")
    return f"{amount(len(names), 'empty file')} in {side} not counted as runs: {told}"


def _warn(a: Sequence[RunSummary], b: Sequence[RunSummary]) -> Iterator[str]:
    """Return warnings about conditions that differ between the runs."""
    for at, (what, different, _) in enumerate(CONDITIONS):
        sides = _find_conditions(at, a, b)
        if what == "GPUs" and not (all(sides[0]) and all(sides[1])):  # a trace doesn't name its GPUs
            continue
        if sides[0] == sides[1]:
            if len(sides[0]) > 1:
                yield f"runs of the same side differ in their {what}"
            continue
        told = "" if what == "commands" else f": {_name(sides[0])} in A, {_name(sides[1])} in B"
        yield different + told
    for name, runs in (("A", a), ("B", b)):
        if off := mean_of(run.unrecorded for run in runs).mean:
            yield f"in {name} recording was off for {human_time(off)}: its calls and launches are missing"
    if max(len(a), len(b)) > 1:
        yield "numbers of processes, calls and launches are the means of the runs"


def describe_change(a: Sequence[RunSummary], b: Sequence[RunSummary]) -> str | None:
    """Return a sentence about the conditions that differ between the runs of A and B, or None if none do, or if they
    aren't known.
    """
    found = []
    for at, (what, _, how) in enumerate(CONDITIONS):
        one, other = _find_conditions(at, a, b)
        if one.isdisjoint(other) and (what == "probes" or (all(one) and all(other))):
            found.append(how)
    return f"B ran {', '.join(found)}: that may be why" if found else None


def _find_conditions(at: int, *sides: Sequence[RunSummary]) -> list[set[tuple[str, ...]]]:
    return [{run.conditions[at] for run in runs} for runs in sides]


def _name(found: set[tuple[str, ...]]) -> str:
    return " or ".join(sorted({", ".join(one) or "none" for one in found}))
