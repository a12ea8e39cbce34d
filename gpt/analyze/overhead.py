"""gpt-analyze overhead: what kernels take with and without probes, and what a probed launch costs the program."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpt.analyze.answer import Answers, Column, make_answer
from gpt.analyze.command import Analysis

if TYPE_CHECKING:
    from gpt.trace.buffers import ProbedLaunch
    from gpt.trace.process import Process

KERNELS = (
    Column("name", "text", "kernel", "kernel"),
    Column("launches", "u64"),
    Column("original", "u64?", "ns", shown="any"),
    Column("probed", "u64?", "ns", shown="any"),
    Column("slowdown", "f64?", shown="any"),
    Column("registers_before", "u64?", title="regs", shown="any"),
    Column("registers", "u64?", title="with", shown="any"),
    Column("prologue", "u64", "ns"),
    Column("epilogue", "u64", "ns"),
    Column("timed", "u64", shown="never"),
    Column("compared", "u64", shown="never"),
)
TOP = 30  # rows that tables show


class _Costs:
    """Sums of the launches of a kernel, in ns, and what its code needs."""

    def __init__(self) -> None:
        self.sums = Counter[str]()
        self.registers: tuple[int | None, int | None] = None, None  # without probes, and with

    def add(self, times: dict[str, Any], on_gpu: float | None) -> None:
        """A launch; `on_gpu` is what --gpu-time says of it."""
        self.sums.update(launches=1, prologue=times["prologue"], epilogue=times["epilogue"])
        kernel = times.get("kernel", on_gpu)
        if kernel is not None:
            self.sums.update(timed=1, kernel=kernel)
        if "original" in times and "kernel" in times:
            self.sums.update(compared=1, original=times["original"], with_probes=times["kernel"])

    def merge(self, other: _Costs) -> None:
        """Takes in what another one has."""
        self.sums.update(other.sums)
        self.registers = other.registers if other.registers[1] is not None else self.registers

    @property
    def slowdown(self) -> float | None:
        """How many times as long the kernel with probes takes."""
        return self.sums["with_probes"] / self.sums["original"] if self.sums["original"] else None

    @property
    def added(self) -> int | None:
        """Registers that the probes need."""
        before, after = self.registers
        return after - before if before is not None and after is not None else None

    def row(self) -> tuple[Any, ...]:
        """From `launches` on."""
        sums, launches = self.sums, self.sums["launches"]
        original = sums["original"] / sums["compared"] if sums["compared"] else None
        kernel = sums["kernel"] / sums["timed"] if sums["timed"] else None
        host = sums["prologue"] / launches, sums["epilogue"] / launches
        return launches, original, kernel, self.slowdown, *self.registers, *host, sums["timed"], sums["compared"]


class TimedLaunches:
    """The launches of a process; they are joined once all that there is to say of them has come."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._probed: dict[int, ProbedLaunch] = {}  # by id
        self._times: list[dict[str, Any]] = []
        self._gpu: dict[tuple[int, int], float] = {}  # ns, by thread and start

    def take(self) -> None:
        """Takes in what the process has collected."""
        process = self._process
        for launch in process.probes.take_told("probed"):
            self._probed[launch.id] = launch
        self._times += process.probes.take_told("times")
        for _, rows in process.gpu_times.take():
            if {"thread", "call"} <= set(rows.dtype.names or ()):
                calls = zip(rows["thread"].tolist(), rows["call"].tolist(), strict=True)
                self._gpu.update(zip(calls, process.clock.durations(rows["duration"]).tolist(), strict=True))

    def joined(self) -> Iterator[tuple[str, ProbedLaunch, dict[str, Any], float | None]]:
        """The kernel of each launch with times, the launch, its `times`, and ns on the GPU as --gpu-time has them."""
        names = self._process.kernels()
        for times in self._times:
            if launch := self._probed.get(times["launch"]):
                gpu = self._gpu.get((launch.thread, launch.start))
                yield names.get(launch.function, f"#{launch.function}"), launch, times, gpu

    def named(self) -> dict[str, _Costs]:
        """What is known by now, by the name of the kernel."""
        found: dict[str, _Costs] = defaultdict(_Costs)
        for name, _, times, gpu in self.joined():
            found[name].add(times, gpu)
        names = self._process.kernels()
        for function, code in self._process.probes.codes.items():
            if (name := names.get(function, "")) in found:
                found[name].registers = code.get("registers_before"), code.get("registers")
        return found


class Overhead:
    """The costs of the kernels of all that was read."""

    streams = True

    def __init__(self) -> None:
        from gpt.analyze.coverage import Coverage
        from gpt.trace.kinds import COVERED

        self.kinds = COVERED | {"times", "kernel", "function", "gpu_times", "gpu_time", "clock"}
        self._done: dict[str, _Costs] = defaultdict(_Costs)  # of processes that are over
        self._coverage = Coverage()  # of the same
        self._open: dict[Process, TimedLaunches] = {}

    def take(self, process: Process) -> None:
        """Takes in what a process has collected."""
        if process not in self._open:
            self._open[process] = TimedLaunches(process)
        self._open[process].take()

    def end(self, process: Process) -> None:
        """Adds a process to those that are over."""
        from gpt.analyze.coverage import make_coverage

        _merge(self._done, self._open.pop(process).named())
        self._coverage.merge(make_coverage(process))

    def find_lack(self, kinds: set[str]) -> str | None:
        """Whether launches had probes."""
        return None if "times" in kinds else "no launch with probes in the trace: 'gpt-hook run -p' makes some"

    def answer(self, incomplete: list[str]) -> Answers:
        """The kernels, that which lost most time first."""
        from gpt.analyze.coverage import Coverage, make_coverage

        costs: dict[str, _Costs] = defaultdict(_Costs)
        coverage = Coverage()
        coverage.merge(self._coverage)
        _merge(costs, self._done)
        for process, launches in self._open.items():
            _merge(costs, launches.named())
            coverage.merge(make_coverage(process))
        if costs:
            ordered = sorted(costs.items(), key=lambda kernel: (-_lost(kernel[1]), kernel[0]))
            verdict = [*_means(costs), *coverage.verdict()]
            yield make_answer("kernels", KERNELS, [(name, *cost.row()) for name, cost in ordered], verdict, top=TOP)
        yield from coverage.answer()


def _merge(into: dict[str, _Costs], found: dict[str, _Costs]) -> None:
    for name, costs in found.items():
        into[name].merge(costs)


def _lost(costs: _Costs) -> int:
    return costs.sums["with_probes"] - costs.sums["original"]


def _means(costs: dict[str, _Costs]) -> Iterator[str]:
    """The means over kernels, each of which counts once."""
    slowdowns = [cost.slowdown for cost in costs.values() if cost.slowdown is not None]
    added = [cost.added for cost in costs.values() if cost.added is not None]
    if slowdowns:
        more = f", {sum(added) / len(added):+.2f} registers" if added else ""
        count = f"{len(slowdowns):,} kernel{'s' if len(slowdowns) > 1 else ''}"
        yield f"slowdown:{sum(slowdowns) / len(slowdowns):.3f}{more}, mean of {count}"
    else:
        yield "no times of kernels without probes: 'gpt-hook run --benchmark' takes them"


ANALYSIS = Analysis("Compare kernels with probes and without.", Overhead)
