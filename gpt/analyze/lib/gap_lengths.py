"""The lengths of gaps by group. If recording was off in a gap, its length isn't known: such a gap is CUT.

Only the number and the recorded time of cut gaps are kept; that time is included in the total.
"""

from __future__ import annotations

from collections.abc import Hashable

from gpt.analyze.lib.numbers import Numbers, Whole, add_up
from gpt.screen.units import amount, human_time


def describe_cut(count: int, what: str, where: str) -> str:
    """Say which columns include the time of cut gaps; `what` is their number, and `where` names columns."""
    verb = "is" if count == 1 else "are"
    return f"{what} around that time {verb} not counted or listed, but the recorded time is in {where} and 'share'"


def describe_loading(kernels: int, time: float) -> str:
    """Say how much of the idle time was spent in first launches, while their code was loaded."""
    return f"idle includes {human_time(time)} in which first launches loaded the code of {amount(kernels, 'kernel')}"


class GapLengths(Numbers):
    """Lengths of gaps in ns. Cut gaps don't count in the number, the maximum and the percentiles."""

    def __init__(self) -> None:
        super().__init__()
        self._cut: dict[Hashable, tuple[int, int]] = {}

    def add_gaps(self, group: Hashable, recorded: Whole, off: Whole) -> Whole:
        """Add gaps by their recorded time and the time that recording was off in each. Return the gaps that were
        recorded completely.
        """
        whole: Whole = recorded[off == 0]
        self.add(group, whole)
        if len(whole) < len(recorded):
            count, time = self.cut(group)
            cut = recorded[off > 0]
            self._cut[group] = count + len(cut), time + add_up(cut)
        return whole

    def cut(self, group: Hashable) -> tuple[int, int]:
        """Return the number of cut gaps, and the recorded ns in them."""
        return self._cut.get(group, (0, 0))

    def recorded(self, group: Hashable) -> int:
        """Return the recorded ns of all gaps."""
        return (self.total(group) if group in self else 0) + self.cut(group)[1]
