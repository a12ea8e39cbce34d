"""gpt-analyze memusage: how much memory the buffers of probes would need, and the peak of the program's own memory."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from gpt.analyze.lib.answer import Answers, Column, make_answer
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.locations import PROGRAM, WHO, name_program, tell_apart
from gpt.screen.units import amount

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from gpt.trace.machines import Header
    from gpt.trace.process import Process

KERNELS = (
    Column("name", "text", "kernel", "kernel"),
    Column("launches", "u64"),
    Column("total", "u64", "bytes"),
    Column("mean", "u64", "bytes"),
    Column("most", "u64", "bytes"),
)
PROCESSES = (
    *PROGRAM,
    *WHO,
    Column("allocations", "u64"),
    Column("peak", "u64", "bytes"),
    Column("left", "u64", "bytes", "at its end"),
    Column("most", "u64", "bytes", "for probes"),
)
TOP = 30  # rows that tables show
# Functions that handle device memory. The other functions of this type handle host memory, addresses and handles.
ALLOCATE = frozenset(
    ("cuMemAlloc", "cuMemAllocAsync", "cuMemAllocFromPoolAsync", "cuMemAllocManaged", "cuMemAllocPitch", "cuMemCreate")
)
FREE = frozenset(("cuMemFree", "cuMemFreeAsync", "cuMemRelease"))
BY_HANDLE = frozenset(("cuMemCreate", "cuMemRelease"))
WINDOW = 1 << 16  # allocations and frees to convert at once
NOT_COUNTED = "peak: without arrays, and without what the driver itself needs"


class MemoryPeak(NamedTuple):
    """The device memory of a process, in bytes: its peak, and what's left at its end."""

    allocations: int
    peak: int
    left: int


class _Use:
    """The allocations of a process, and the memory that its probes need."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._changes: list[npt.NDArray[np.uint64]] = []  # rows of time, api, address and size
        self._needs: dict[int, Counter[str]] = defaultdict(Counter)  # bytes that probes need, by function

    def take(self) -> None:
        """Add the records that the process has collected."""
        import numpy as np

        from gpt.trace.rows import iter_groups

        process = self.process
        for record in process.probes.take_told("memusage"):
            needs = self._needs[record["function"]]
            needs.update(launches=record["launches"], total=record["bytes"])
            needs["most"] = max(needs["most"], record["most"])
        for _, rows in process.calls.take():
            if {"to", "bytes"} <= set(rows.dtype.names or ()):
                good = rows[(rows["result"] == 0) & (rows["duration"] != 0)]
                for api, mine in iter_groups(good["api"]):
                    name = process.api(api).name
                    if name in ALLOCATE or name in FREE or name == f"#{api}":  # the function may get its name later
                        found = good[mine]
                        times = found["start"] if name in FREE else found["start"] + found["duration"]
                        apis = np.full(len(found), api, np.uint64)
                        self._changes.append(np.stack([times, apis, found["to"], found["bytes"]], axis=1))

    def kernels(self) -> dict[str, Counter[str]]:
        """Return how much memory the launches of each kernel have needed so far."""
        names = self.process.kernels()
        return {names.get(function, f"#{function}"): needs for function, needs in self._needs.items()}

    def _iter_changes(self) -> Iterator[list[int]]:
        """Yield allocations and frees in time order. An allocation counts when it returns, a free when it's called."""
        import numpy as np

        changes = np.concatenate([np.zeros((0, 4), np.uint64), *self._changes])
        changes = changes[np.lexsort(changes.T[::-1])]
        for at in range(0, len(changes), WINDOW):
            yield from changes[at : at + WINDOW].tolist()

    def memory(self) -> MemoryPeak:
        """Return the peak so far. If an address is allocated twice, a function that we don't know must have freed it in
        between.
        """
        live: dict[tuple[bool, int], int] = {}
        allocations = now = peak = 0
        for _, api, where, size in self._iter_changes():
            name = self.process.api(api).name
            key = name in BY_HANDLE, where
            if name not in ALLOCATE and name not in FREE:
                continue
            now -= live.pop(key, 0)
            if name in ALLOCATE:
                live[key] = size
                now += size
                allocations += 1
                peak = max(peak, now)
        return MemoryPeak(allocations, peak, now)

    def row(self) -> tuple[Any, ...]:
        """Return values for the columns PROCESSES, after WHO."""
        most = max((needs["most"] for needs in self._needs.values()), default=0)
        return *self.memory(), most


class MemUsage:
    """An analysis of the memory that the probes of each kernel need, and of each process's own memory."""

    streams = True

    def __init__(self) -> None:
        from gpt.analyze.lib.coverage import Coverage
        from gpt.trace.kinds import COVERED

        self.kinds = COVERED | {"memusage", "function", "api", "calls", "call", "clock"}
        self._coverage = Coverage()  # launches in processes that have ended
        self._done: dict[str, Counter[str]] = {}  # by kernel, for processes that have ended
        self._rows: list[tuple[Header, tuple[Any, ...]]] = []  # processes that have ended
        self._open: dict[Process, _Use] = {}

    def take(self, process: Process) -> None:
        """Add the records that a process has collected."""
        if process not in self._open:
            self._open[process] = _Use(process)
        self._open[process].take()

    def end(self, process: Process) -> None:
        """Add a process that has ended."""
        from gpt.analyze.lib.coverage import make_coverage

        use = self._open.pop(process)
        self._coverage.merge(make_coverage(process))
        _merge(self._done, use.kernels())
        self._rows.append((process.header, use.row()))

    def merge(self, other: MemUsage) -> None:
        """Merge an analysis of later traces."""
        _merge(self._done, other._done)
        self._rows += other._rows
        self._coverage.merge(other._coverage)

    def find_lack(self, kinds: set[str]) -> str | None:
        """Return a message if the traces have nothing to add up, or None."""
        if "memusage" in kinds:
            return None
        return "no buffer sizes in the trace: 'gpt-hook run -p PROBE --memusage' adds them up"

    def answer(self, incomplete: list[str]) -> Answers:
        """Yield the kernels, those with the most demanding launch first, and the processes."""
        from gpt.analyze.lib.coverage import Coverage, make_coverage

        kernels: dict[str, Counter[str]] = {}
        coverage = Coverage()
        coverage.merge(self._coverage)
        _merge(kernels, self._done)
        for process, use in self._open.items():
            _merge(kernels, use.kernels())
            coverage.merge(make_coverage(process))
        ordered = sorted(kernels.items(), key=lambda kernel: (-kernel[1]["most"], kernel[0]))
        if ordered:
            rows = [
                (name, needs["launches"], needs["total"], needs["total"] / (needs["launches"] or 1), needs["most"])
                for name, needs in ordered
            ]
            total = sum(needs["total"] for _, needs in ordered)
            verdict = [f"memusage:{ordered[0][1]['most']} for a launch at most, {total} for all"]
            if left_out := coverage.unprobed.total():
                verdict += coverage.reasons(f"{amount(left_out, 'launch')} not added up")
            yield make_answer("kernels", KERNELS, rows, verdict, top=TOP)
        processes = [*self._rows, *((process.header, use.row()) for process, use in self._open.items())]
        if processes:
            who = tell_apart(header for header, _ in processes)
            rows = [(*name_program(header), *one, *row) for one, (header, row) in zip(who, processes, strict=True)]
            yield make_answer("processes", PROCESSES, rows, [NOT_COUNTED])
        yield from coverage.answer()


def _merge(into: dict[str, Counter[str]], found: dict[str, Counter[str]]) -> None:
    for name, needs in found.items():
        known = into.setdefault(name, Counter())
        most = max(known["most"], needs["most"])
        known.update(needs)
        known["most"] = most


ANALYSIS = Analysis("Add up the memory that probe buffers would need.", MemUsage)
