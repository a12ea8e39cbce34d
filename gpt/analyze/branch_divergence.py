"""gpt-analyze branch_divergence: how often the lanes of a warp part at branches.

At each branch that a warp comes to, all of its lanes that are there count as `reached`, those that jump as `taken`,
and as `split` if others with them do not. Of the lanes that part at a branch these are one side; so a branch at which
half of the warp jumps counts with half of its lanes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from gpt.analyze.lib.answer import Column
from gpt.analyze.lib.command import Analysis
from gpt.analyze.lib.ratios import Kernel, Ratios
from gpt.screen.units import human_count


class BranchDivergence(Ratios):
    """Lanes that part, of those that come to a branch."""

    name = "branch_divergence"
    fields = ("reached", "taken", "split")
    nothing = "no warp came to a branch"
    number, cost, scale = "reached", "split", 100
    ratio = Column("divergence", "f64", "%")
    sums = (Column("reached", "u64"), Column("taken", "u64"), Column("split", "u64"))

    def say(self, kernel: Kernel, total: Counter[str], where: str) -> Iterator[str]:
        """The share of lanes, and where most of them are."""
        reached = human_count(total["reached"])
        if total["split"]:
            yield f"{self.show(total)} of {reached} lanes at branches jump while others stay"
            yield f"{where}: {self.show(kernel.sums)} there"
        else:
            yield f"no branch diverges: of {reached} lanes at branches none jumps while others stay"


ANALYSIS = Analysis("Show where lanes part at branches.", BranchDivergence)
