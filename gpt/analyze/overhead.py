"""gpt-analyze overhead: how long kernels take with and without probes, and what a probed launch costs the program."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from gpt.analyze.lib.answer import Answers, Column, make_answer, plot
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.timed_launches import NO_ORIGINAL, Samples, TimedFold, TimedLaunches, divide
from gpt.screen.units import amount

if TYPE_CHECKING:
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


class Costs:
    """The times of a kernel's launches in ns, and the number of registers of its code."""

    def __init__(self) -> None:
        self.samples = Samples()
        self.registers: tuple[int | None, int | None] = None, None  # without probes, and with

    def add(self, times: dict[str, Any], on_gpu: float | None) -> None:
        """Add a launch. `on_gpu` is its GPU time, if --gpu-time recorded it."""
        self.samples.add(prologue=times["prologue"], epilogue=times["epilogue"])
        kernel = times.get("kernel", on_gpu)
        if kernel is not None:
            self.samples.add(kernel=kernel)
        if "original" in times and "kernel" in times:
            self.samples.add(original=times["original"], with_probes=times["kernel"])

    def merge(self, other: Costs) -> None:
        """Add the times of another run."""
        self.samples.merge(other.samples)
        self.registers = other.registers if other.registers[1] is not None else self.registers

    @property
    def slowdown(self) -> float | None:
        """Return how many times longer the kernel takes with probes."""
        return divide(self.samples.median("with_probes"), self.samples.median("original"))

    @property
    def lost(self) -> float:
        """Return the ns that probes added to all launches that were also timed without them."""
        more = (self.samples.median("with_probes") or 0.0) - (self.samples.median("original") or 0.0)
        return more * self.samples.count("original")

    @property
    def added(self) -> int | None:
        """Return how many registers the probes need, or None."""
        before, after = self.registers
        return after - before if before is not None and after is not None else None

    def row(self) -> tuple[Any, ...]:
        """Return the columns from `launches` on."""
        median, count = self.samples.median, self.samples.count
        times = median("original"), median("kernel"), self.slowdown
        counts = count("kernel"), count("original")
        return count("prologue"), *times, *self.registers, median("prologue"), median("epilogue"), *counts


class Overhead(TimedFold[str, Costs]):
    """An analysis of what probes cost, by kernel."""

    def new(self) -> Costs:
        """Return the costs of an empty group."""
        return Costs()

    def add_up(self, process: Process, launches: TimedLaunches) -> dict[str, Costs]:
        """Return the costs of a process so far."""
        found: dict[str, Costs] = defaultdict(Costs)
        for name, _, times, gpu in launches.joined():
            found[name].add(times, gpu)
        names = process.kernels()
        for function, code in process.probes.codes.items():
            if (name := names.get(function, "")) in found:
                found[name].registers = code.get("registers_before"), code.get("registers")
        return found

    def tell(self, costs: dict[str, Costs], coverage: list[str]) -> Answers:
        """Yield the kernels, most time lost first."""
        ordered = sorted(costs.items(), key=lambda kernel: (-kernel[1].lost, kernel[0]))
        rows = [(name, *cost.row()) for name, cost in ordered]
        title = "slowdown: how many times as long the kernel takes with probes"
        known = any(cost.slowdown is not None for cost in costs.values())
        drawn = [plot("bars", "name", "slowdown", title=title)] if known else []
        yield make_answer("kernels", KERNELS, rows, [*_means(costs), *coverage], top=TOP, plots=drawn)


def _means(costs: dict[str, Costs]) -> Iterator[str]:
    """Yield the means over kernels. Each kernel counts once."""
    slowdowns = [cost.slowdown for cost in costs.values() if cost.slowdown is not None]
    added = [cost.added for cost in costs.values() if cost.added is not None]
    if slowdowns:
        more = f", {sum(added) / len(added):+.2f} registers" if added else ""
        yield f"slowdown:{sum(slowdowns) / len(slowdowns):.3f}{more}, mean of {amount(len(slowdowns), 'kernel')}"
    else:
        yield NO_ORIGINAL


ANALYSIS = Analysis("Compare kernels with and without probes.", Overhead)
