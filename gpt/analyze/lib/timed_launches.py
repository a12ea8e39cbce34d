"""Launches with probes and what they took, as overhead and exposed_latency add them up: per process, then over all."""

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

NO_ORIGINAL = "no times of kernels without probes: 'gpt-hook run --benchmark' takes them"


class TimedLaunches:
    """The launches of a process; they are joined once all that there is to say of them has come."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._probed: dict[int, ProbedLaunch] = {}  # by id
        self._times: list[dict[str, Any]] = []
        self._gpu: list[tuple[npt.NDArray[np.void], npt.NDArray[np.float64]]] = []  # what ran on the GPU, and ns

    def take(self) -> None:
        """Takes in what the process has collected."""
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
        """ns on the GPU of launches with probes, by thread and start."""
        import numpy as np

        starts = np.array(sorted({launch.start for launch in self._probed.values()}), np.uint64)
        found: dict[tuple[int, int], float] = {}
        for calls, took in self._gpu:
            mine = np.isin(calls["call"], starts)
            found.update(zip(map(tuple, calls[mine].tolist()), took[mine].tolist(), strict=True))
        return found

    def joined(self) -> Iterator[tuple[str, ProbedLaunch, dict[str, Any], float | None]]:
        """The kernel of each launch with times, the launch, its `times`, and ns on the GPU as --gpu-time has them."""
        names, on_gpu = self._process.kernels(), self._find_times()
        for times in self._times:
            if launch := self._probed.get(times["launch"]):
                gpu = on_gpu.get((launch.thread, launch.start))
                yield names.get(launch.function, f"#{launch.function}"), launch, times, gpu


def _make_values() -> array[float]:  # it has a name, for workers of a cluster send pickles
    return array("d")


class Samples:
    """Values of launches by name, of which medians are told: the first launch of a kernel contains its loading."""

    def __init__(self) -> None:
        self._values: dict[str, array[float]] = defaultdict(_make_values)

    def add(self, **values: float) -> None:
        """What is known of a launch."""
        for name, value in values.items():
            self._values[name].append(value)

    def merge(self, other: Samples) -> None:
        """Takes in what another one has."""
        for name, values in other._values.items():
            self._values[name].extend(values)

    def count(self, name: str) -> int:
        """Launches of which it is known."""
        return len(self._values.get(name, ()))

    def median(self, name: str) -> float | None:
        """None if it is known of no launch."""
        import numpy as np

        values = self._values.get(name)
        return float(np.median(values)) if values else None


def divide(time: float | None, by: float | None) -> float | None:
    """None where one is not known, or the second is 0."""
    return None if time is None or not by else time / by


class Mergeable(Protocol):
    """What is added up of the launches of a key."""

    def merge(self, other: Self) -> None:
        """Takes in what another one has."""


Key = TypeVar("Key", bound=Hashable)
Cost = TypeVar("Cost", bound=Mergeable)


class TimedFold(ABC, Generic[Key, Cost]):
    """What is known of the launches of all that was read, by a key."""

    streams = True

    def __init__(self) -> None:
        from gpt.analyze.lib.coverage import Coverage
        from gpt.trace.kinds import COVERED

        self.kinds = COVERED | {"times", "kernel", "map", "function", "gpu_times", "gpu_time", "clock"}
        self._done: dict[Key, Cost] = {}  # of processes that are over
        self._coverage = Coverage()  # of the same
        self._open: dict[Process, TimedLaunches] = {}

    @abstractmethod
    def new(self) -> Cost:
        """Sums of nothing."""

    @abstractmethod
    def add_up(self, process: Process, launches: TimedLaunches) -> dict[Key, Cost]:
        """What is known of a process by now."""

    @abstractmethod
    def tell(self, costs: dict[Key, Cost], coverage: list[str]) -> Answers:
        """The answers, of which `coverage` says what they leave out."""

    def take(self, process: Process) -> None:
        """Takes in what a process has collected."""
        if process not in self._open:
            self._open[process] = TimedLaunches(process)
        self._open[process].take()

    def end(self, process: Process) -> None:
        """Adds a process to those that are over."""
        from gpt.analyze.lib.coverage import make_coverage

        self._merge(self._done, self.add_up(process, self._open.pop(process)))
        self._coverage.merge(make_coverage(process))

    def merge(self, other: Self) -> None:
        """Takes in what another one has of later traces."""
        self._merge(self._done, other._done)
        self._coverage.merge(other._coverage)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Whether launches had probes."""
        return None if "times" in kinds else "no launch with probes in the trace: 'gpt-hook run -p' makes some"

    def answer(self, incomplete: list[str]) -> Answers:
        """What there is to say, and the launches without probes."""
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
