"""Collect the lengths of gaps by group.

If recording was off during a gap, its length isn't known. Such a gap is *cut*: it's counted separately, and only the
part that was recorded is added to the total.
"""

from __future__ import annotations

from collections.abc import Hashable

from gpt.analyze.lib.numbers import Numbers, Whole, add_up
from gpt.screen.units import amount, human_time


def describe_cut(count: int, what: str, where: str) -> str:
    """Return a sentence that says how the time of cut gaps is counted. `what` says how many there are, and `where`
    which columns include their time.
    """
    verb = "is" if count == 1 else "are"
    return f"{what} around that time {verb} not counted or listed, but the recorded time is in {where} and 'share'"


def describe_loading(kernels: int, time: float) -> str:
    """Say how much of the idle time was spent in first launches, while their code was loaded."""
    return f"idle includes {human_time(time)} in which first launches loaded the code of {amount(kernels, 'kernel')}"


class GapLengths(Numbers):
    """Lengths of gaps in ns, by group. Cut gaps are excluded from the number, the maximum and the percentiles."""

    def __init__(self) -> None:
        super().__init__()
        self._cut: dict[Hashable, tuple[int, int]] = {}

    def add_gaps(self, group: Hashable, recorded: Whole, off: Whole) -> Whole:
        """Add gaps, given as the time recorded in each and the time for which recording was off. Return the gaps that
        were recorded completely.
        """
        whole: Whole = recorded[off == 0]
        self.add(group, whole)
        if len(whole) < len(recorded):
            count, time = self.cut(group)
            cut = recorded[off > 0]
            self._cut[group] = count + len(cut), time + add_up(cut)
        return whole

    def cut(self, group: Hashable) -> tuple[int, int]:
        """Return the number of cut gaps, and the total of the time recorded in them."""
        return self._cut.get(group, (0, 0))

    def recorded(self, group: Hashable) -> int:
        """Return the recorded ns of all gaps."""
        return (self.total(group) if group in self else 0) + self.cut(group)[1]
