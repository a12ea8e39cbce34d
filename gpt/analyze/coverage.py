"""Which launches ran with probes, and why others did not: what every answer from probes has to say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gpt.analyze.base import Column, Record, make_answer

if TYPE_CHECKING:
    from gpt.trace.process import Process

UNPROBED = (
    Column("kernel", "text", "kernel", "kernels without probes"),
    Column("reason", "text"),
    Column("launches", "u64"),
)
TOP = 10  # rows that tables show
REASONS = 3  # that a line names
NOT_ASKED = "no probe was asked for"


class Coverage:
    """Launches: how many were `probed`, and the others by kernel and reason."""

    def __init__(self) -> None:
        self.probed = 0
        self.unprobed = Counter[tuple[str, str]]()

    def merge(self, other: Coverage) -> None:
        """Takes in what another one has."""
        self.probed += other.probed
        self.unprobed.update(other.unprobed)

    def verdict(self) -> Iterator[str]:
        """One line, if there were launches."""
        reasons = Counter[str]()
        for (_, reason), launches in self.unprobed.items():
            reasons[reason] += launches
        ran = f"{self.probed:,} {'launch' if self.probed == 1 else 'launches'} ran with probes"
        if without := reasons.total():
            told = [f"{reason} ({launches:,})" for reason, launches in reasons.most_common(REASONS)]
            more = [f"{len(reasons) - REASONS} more reasons"] if len(reasons) > REASONS else []
            yield f"{ran}, {without:,} without: {', '.join(told + more)}"
        elif self.probed:
            yield ran

    def answer(self) -> Iterator[Record]:
        """The launches without probes, by kernel and reason, if there were any."""
        if self.unprobed:
            ordered = sorted(self.unprobed.items(), key=lambda row: (-row[1], row[0]))
            yield make_answer("unprobed", UNPROBED, [(*key, launches) for key, launches in ordered], top=TOP)


def make_coverage(process: Process, launches: Mapping[int, int] | None = None) -> Coverage:
    """That of a process. `launches` are all that there were, by function: of the rest no record has a reason."""
    found, probes, names = Coverage(), process.probes, process.kernels()
    found.probed = probes.probed.total()
    known = probes.probed.copy()
    for (function, reason), count in probes.unprobed.items():
        known[function] += count
        if count:
            found.unprobed[names.get(function, f"#{function}"), reason] += count
    for function, count in (launches or {}).items():
        if count > known[function]:
            found.unprobed[names.get(function, f"#{function}"), NOT_ASKED] += count - known[function]
    return found
