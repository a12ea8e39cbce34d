"""Collect the times of launches with probes, for overhead and exposed_latency."""

from __future__ import annotations

from abc import ABC, abstractmethod
from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar

from gpt.analyze.lib.answer import Answers

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpt.trace.buffers import ProbedLaunch
    from gpt.trace.process import Process

NO_ORIGINAL = "no kernel times without probes: 'gpt-hook run --benchmark' measures them"


class TimedLaunches:
    """The launches of a process. They're matched with their times once all records have arrived."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._probed: dict[int, ProbedLaunch] = {}  # by id
        self._times: list[dict[str, Any]] = []
        self._gpu: list[tuple[npt.NDArray[np.void], npt.NDArray[np.float64]]] = []  # calls, and ns on the GPU

    def take(self) -> None:
        """Add the records that the process has collected."""
        import numpy as np

        process = self._process
        for launch in process.probes.take_told("probed"):
            self._probed[launch.id] = launch
        self._times += process.probes.take_told("times")
        for _, rows in process.gpu_times.take():
            if {"thread", "call"} <= set(rows.dtype.names or ()):
                if "probed" in (rows.dtype.names or ()):
                    rows = rows[rows["probed"] != 0]
                calls = np.zeros(len(rows), [("thread", "<u4"), ("call", "<u8")])
                calls["thread"], calls["call"] = rows["thread"], rows["call"]
                self._gpu.append((calls, process.clock.durations(rows["duration"])))

    def _find_times(self) -> dict[tuple[int, int], float]:
        """Return the GPU times, in ns, of launches with probes, by thread and start of the call."""
        import numpy as np

        starts = np.array(sorted({launch.start for launch in self._probed.values()}), np.uint64)
        found: dict[tuple[int, int], float] = {}
        for calls, took in self._gpu:
            mine = np.isin(calls["call"], starts)
            found.update(zip(map(tuple, calls[mine].tolist()), took[mine].tolist(), strict=True))
        return found

    def joined(self) -> Iterator[tuple[str, ProbedLaunch, dict[str, Any], float | None]]:
        """Yield each timed launch: its kernel, the launch, its `times` record, and its GPU time in ns from --gpu-time,
        or None.
        """
        names, on_gpu = self._process.kernels(), self._find_times()
        for times in self._times:
            if launch := self._probed.get(times["launch"]):
                gpu = on_gpu.get((launch.thread, launch.start))
                yield names.get(launch.function, f"#{launch.function}"), launch, times, gpu


def _make_values() -> array[float]:  # has a name, because workers of a cluster send pickles
    return array("d")


class Samples:
    """Values of launches, by name. Medians are used, because the first launch of a kernel includes loading its code."""

    def __init__(self) -> None:
        self._values: dict[str, array[float]] = defaultdict(_make_values)

    def add(self, **values: float) -> None:
        """Add the known values of a launch."""
        for name, value in values.items():
            self._values[name].append(value)

    def merge(self, other: Samples) -> None:
        """Merge another one."""
        for name, values in other._values.items():
            self._values[name].extend(values)

    def count(self, name: str) -> int:
        """Return how many launches have the value."""
        return len(self._values.get(name, ()))

    def median(self, name: str) -> float | None:
        """Return the median, or None if no launch has the value."""
        import numpy as np

        values = self._values.get(name)
        return float(np.median(values)) if values else None


def divide(time: float | None, by: float | None) -> float | None:
    """Return the quotient, or None if a time isn't known or the divisor is 0."""
    return None if time is None or not by else time / by


class Mergeable(Protocol):
    """The sums for the launches with one key."""

    def merge(self, other: Self) -> None:
        """Merge another one."""


Key = TypeVar("Key", bound=Hashable)
Cost = TypeVar("Cost", bound=Mergeable)


class TimedFold(ABC, Generic[Key, Cost]):
    """The base of analyses that compute costs of all launches, grouped by a key."""

    streams = True

    def __init__(self) -> None:
        from gpt.analyze.lib.coverage import Coverage
        from gpt.trace.kinds import COVERED

        self.kinds = COVERED | {"times", "kernel", "map", "function", "gpu_times", "gpu_time", "clock"}
        self._done: dict[Key, Cost] = {}  # costs in processes that have ended
        self._coverage = Coverage()  # launches in processes that have ended
        self._open: dict[Process, TimedLaunches] = {}

    @abstractmethod
    def new(self) -> Cost:
        """Return the sums of an empty group."""

    @abstractmethod
    def add_up(self, process: Process, launches: TimedLaunches) -> dict[Key, Cost]:
        """Return the costs of a process so far, by key."""

    @abstractmethod
    def tell(self, costs: dict[Key, Cost], coverage: list[str]) -> Answers:
        """Yield the answers. `coverage` has the lines about launches that aren't included."""

    def take(self, process: Process) -> None:
        """Add the records that a process has collected."""
        if process not in self._open:
            self._open[process] = TimedLaunches(process)
        self._open[process].take()

    def end(self, process: Process) -> None:
        """Add the costs of a process that has ended."""
        from gpt.analyze.lib.coverage import make_coverage

        self._merge(self._done, self.add_up(process, self._open.pop(process)))
        self._coverage.merge(make_coverage(process))

    def merge(self, other: Self) -> None:
        """Merge costs from later traces."""
        self._merge(self._done, other._done)
        self._coverage.merge(other._coverage)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return a message if no launch in the traces had probes, or None."""
        return None if "times" in kinds else "no launch with probes in the trace: 'gpt-hook run -p' makes some"

    def answer(self, incomplete: list[str]) -> Answers:
        """Yield the answers, and the table of launches without probes."""
        from gpt.analyze.lib.coverage import Coverage, make_coverage

        del incomplete
        costs: dict[Key, Cost] = {}
        coverage = Coverage()
        coverage.merge(self._coverage)
        self._merge(costs, self._done)
        for process, launches in self._open.items():
            self._merge(costs, self.add_up(process, launches))
            coverage.merge(make_coverage(process))
        if costs:
            yield from self.tell(costs, [*coverage.verdict()])
        yield from coverage.answer()

    def _merge(self, into: dict[Key, Cost], found: dict[Key, Cost]) -> None:
        for key, cost in found.items():
            into.setdefault(key, self.new()).merge(cost)
