"""Count launches that ran with and without probes, and say why: part of every answer from probes."""

from __future__ import annotations

from collections import Counter
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
)
TOP = 10  # rows that tables show
REASONS = 3  # reasons that a line names
# Not in the trace, but concluded from it. No probe was asked for, or the process has no end record, which says why.
NOT_ASKED = Reason(OTHER, "no probe was asked for")
NOT_KNOWN = Reason(OTHER, "not known: the trace of its process has no end")


class Coverage:
    """Launches: how many were `probed`, and the others by kernel and reason; bytes that the writer packed in haste."""

    def __init__(self) -> None:
        self.probed = 0
        self.unprobed = Counter[tuple[str, Reason]]()
        self.quick = 0
        self.gpu_time = [0.0, 0.0]  # ns of kernels without probes, and with them

    def merge(self, other: Coverage) -> None:
        """Merge another one."""
        self.probed += other.probed
        self.quick += other.quick
        self.unprobed.update(other.unprobed)
        self.gpu_time = [a + b for a, b in zip(self.gpu_time, other.gpu_time, strict=True)]

    def rejects(self) -> bool:
        """Return True if launches should have been probed and weren't."""
        return any(reason not in (NOT_ASKED, NOT_KNOWN) for _, reason in self.unprobed)

    def verdict(self) -> Iterator[str]:
        """Yield one line, if there were launches, and one for each reason in it that has a remedy."""
        times = [f" ({time / 1e6:,.3f} ms on the GPU)" if any(self.gpu_time) else "" for time in self.gpu_time]
        ran = f"{amount(self.probed, 'launch')} ran with probes{times[True]}"
        if self.unprobed:
            yield from self.reasons(f"{ran}, {self.unprobed.total():,} without{times[False]}")
        elif self.probed:
            yield ran
        if self.quick:
            yield f"{human(self.quick)} of buffers were packed without zstd: writing couldn't keep up with the probes"

    def reasons(self, what: str) -> Iterator[str]:
        """Yield why launches ran without probes, after `what` happened to them; then the remedies."""
        reasons = Counter[Reason]()
        for (_, reason), launches in self.unprobed.items():
            reasons[reason] += launches
        told = [f"{reason} ({launches:,})" for reason, launches in reasons.most_common(REASONS)]
        more = [f"{len(reasons) - REASONS} more reasons"] if len(reasons) > REASONS else []
        yield f"{what}: {', '.join(told + more)}"
        yield from dict.fromkeys(reason.advice for reason, _ in reasons.most_common(REASONS) if reason.advice)

    def answer(self) -> Iterator[Record]:
        """Yield the launches without probes, by kernel and reason, if there were any."""
        if self.unprobed:
            ordered = sorted(self.unprobed.items(), key=lambda row: (-row[1], row[0]))
            yield make_answer(
                "unprobed",
                UNPROBED,
                [(kernel, str(reason), launches) for (kernel, reason), launches in ordered],
                top=TOP,
            )


def make_coverage(process: Process, launches: Mapping[int, int] | None = None) -> Coverage:
    """Return the coverage of a process. `launches` counts all by function; not all have a record with a reason."""
    found, probes, names = Coverage(), process.probes, process.kernels()
    found.probed = sum(count for id_, count in probes.probed.items() if process.is_chosen(names.get(id_, "")))
    found.quick = probes.quick
    known = probes.probed.copy()
    for (function, reason), count in probes.unprobed.items():
        known[function] += count
        if count and process.is_chosen(names.get(function, "")):
            found.unprobed[names.get(function, f"#{function}"), reason] += count
    all_ = launches or {}
    otherwise = NOT_KNOWN if process.status is None else NOT_ASKED
    unnamed = max(0, known[0] - all_.get(0, 0))  # have a reason, but the kernel is only in the launch
    for function, count in all_.items():
        left = max(0, count - known[function])
        told, unnamed = min(left, unnamed), max(0, unnamed - left)
        if left > told:
            found.unprobed[names.get(function, f"#{function}"), otherwise] += left - told
    return found
