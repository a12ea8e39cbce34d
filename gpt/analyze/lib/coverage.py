"""Count launches with and without probes, and the reasons. Every analysis of probe data ends with these counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpt.analyze.lib.answer import Column, Record, make_answer
from gpt.screen.units import amount, human
from gpt.stream.reasons import OTHER, Reason

if TYPE_CHECKING:
    from gpt.trace.process import Process

UNPROBED = (
    Column("kernel", "text", "kernel", "kernels without probes"),
    Column("reason", "text"),
    Column("launches", "u64"),
    Column("gpu_time", "f64?", "ns", "GPU time", "any"),
    Column("share", "f64?", "%", "share of all", "any"),
)
TOP = 10  # rows that tables show
REASONS = 3  # reasons that a line gives
# Reasons that aren't in the trace: nobody asked for a probe, or the process has no end record, which would give the
# reason.
NOT_ASKED = Reason(OTHER, "no probe was asked for")
NOT_KNOWN = Reason(OTHER, "not known: the trace of its process has no end")


class Coverage:
    """Counts launches with probes, and those without by kernel and reason.

    `quick` is the number of bytes that the writer compressed less than usual because it couldn't keep up.
    """

    def __init__(self) -> None:
        self.probed = 0
        self.unprobed = Counter[tuple[str, Reason]]()
        self.quick = 0
        self.gpu_time = [0.0, 0.0]  # ns of kernels without probes, and with them
        self.times = defaultdict[tuple[str, Reason], float](float)  # without probes, by kernel and reason

    def merge(self, other: Coverage) -> None:
        """Merge another one."""
        self.probed += other.probed
        self.quick += other.quick
        self.unprobed.update(other.unprobed)
        self.gpu_time = [a + b for a, b in zip(self.gpu_time, other.gpu_time, strict=True)]
        for key, time in other.times.items():
            self.times[key] += time

    def add_times(self, gpu_time: list[float], kernels: Mapping[str, float]) -> None:
        """Add GPU times in ns: `gpu_time` of all kernels without and with probes, and those without by kernel.

        The time of a single launch isn't known, so a kernel's time is divided among its reasons in proportion to their
        launches.
        """
        self.gpu_time = [a + b for a, b in zip(self.gpu_time, gpu_time, strict=True)]
        launches = Counter[str]()
        for (kernel, _), count in self.unprobed.items():
            launches[kernel] += count
        for (kernel, reason), count in self.unprobed.items():
            if time := kernels.get(kernel):
                self.times[kernel, reason] += time * count / launches[kernel]

    def rejects(self) -> bool:
        """Return True if launches should have been probed and weren't."""
        return any(reason not in (NOT_ASKED, NOT_KNOWN) for _, reason in self.unprobed)

    def verdict(self) -> Iterator[str]:
        """Yield one line, if there were launches, and one for each reason in it that has a remedy."""
        times = [
            f" ({time / 1e6:,.3f} ms on the GPU, {self._share(time):.1f} %)" if any(self.gpu_time) else ""
            for time in self.gpu_time
        ]
        ran = f"{amount(self.probed, 'launch')} ran with probes{times[True]}"
        if self.unprobed:
            yield from self.reasons(f"{ran}, {self.unprobed.total():,} without{times[False]}")
        elif self.probed:
            yield ran
        if self.quick:
            yield f"{human(self.quick)} of buffers were packed without zstd: writing couldn't keep up with the probes"

    def reasons(self, what: str) -> Iterator[str]:
        """Say why launches ran without probes: yield one line with the main reasons, which begins with `what`, and one
        line for each remedy.
        """
        reasons, times = Counter[Reason](), defaultdict[Reason, float](float)
        for (_, reason), launches in self.unprobed.items():
            reasons[reason] += launches
        for (_, reason), time in self.times.items():
            times[reason] += time
        first = sorted(reasons, key=lambda reason: (-times[reason], -reasons[reason]))[:REASONS]
        told = [
            f"{reason} ({reasons[reason]:,}{f', {self._share(times[reason]):.1f} %' if any(self.gpu_time) else ''})"
            for reason in first
        ]
        more = [f"{len(reasons) - REASONS} more reasons"] if len(reasons) > REASONS else []
        yield f"{what}: {', '.join(told + more)}"
        yield from dict.fromkeys(reason.advice for reason in first if reason.advice)

    def _share(self, time: float) -> float:
        """Return a time as a percentage of the GPU time of all kernels."""
        return 100 * time / sum(self.gpu_time) if any(self.gpu_time) else 0.0

    def answer(self) -> Iterator[Record]:
        """Yield a table of the launches without probes, by kernel and reason, unless all had probes."""
        if self.unprobed:
            ordered = sorted(self.unprobed.items(), key=lambda row: (-self.times.get(row[0], 0.0), -row[1], row[0]))
            rows = [
                (key[0], str(key[1]), launches, *self._timed(self.times.get(key, 0.0) if any(self.gpu_time) else None))
                for key, launches in ordered
            ]
            yield make_answer("unprobed", UNPROBED, rows, top=TOP)

    def _timed(self, time: float | None) -> tuple[float | None, float | None]:
        return time, None if time is None else self._share(time)


def make_coverage(process: Process, launches: Mapping[int, int] | None = None) -> Coverage:
    """Return a process's coverage. `launches` counts all launches by function; not all have a record with a reason."""
    found, probes, names = Coverage(), process.probes, process.kernels()
    known = probes.probed + Counter(probes.unwritten())
    found.probed = sum(count for id_, count in known.items() if process.is_chosen(names.get(id_, "")))
    found.quick = probes.quick
    for (function, reason), count in probes.unprobed.items():
        known[function] += count
        if count and process.is_chosen(names.get(function, "")):
            found.unprobed[names.get(function, f"#{function}"), reason] += count
    all_ = launches or {}
    otherwise = NOT_KNOWN if process.status is None else NOT_ASKED
    # The reason is known, but only the launch record names the kernel.
    unnamed = max(0, known[0] - all_.get(0, 0))
    for function, count in all_.items():
        left = max(0, count - known[function])
        told, unnamed = min(left, unnamed), max(0, unnamed - left)
        if left > told:
            found.unprobed[names.get(function, f"#{function}"), otherwise] += left - told
    return found
